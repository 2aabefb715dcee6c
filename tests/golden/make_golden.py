#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/golden/{ops,optim}.{txt,bin} with PyTorch (Debian: python3-torch).

Run from anywhere after a change of tests/ops/cases.txt; the files are checked in and `make test`
only reads them. ops: every golden case of the table: inputs drawn as f32, outputs and all gradients
computed by PyTorch in float64 from them and rounded once, and PyTorch in float32 must agree.
optim: torch.optim in float32 over five steps, also with groups, learning-rate schedules, gradient
clipping.

X.bin is the values, little-endian; X.txt has a line per tensor: NAME DTYPE OFFSET RANK EXTENT...
"""
import os
import warnings

import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"float32": "f32", "float64": "f64", "int64": "i64"}
DOUT_SHARE = 0.375  # the share of a micro-batch: the scalar a loss's backward starts from


class Writer:
    def __init__(self, name):
        self.path = os.path.join(HERE, name)
        self.lines, self.data = [], bytearray()

    def add(self, name, value):
        a = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        self.data += b"\0" * (-len(self.data) % 8)
        dims = " ".join(str(d) for d in a.shape)
        head = f"{name} {DTYPES[a.dtype.name]} {len(self.data)} {a.ndim} {dims}"
        self.lines.append(head.rstrip())
        self.data += a.tobytes()

    def close(self):
        with open(self.path + ".txt", "w") as f:
            f.write("\n".join(self.lines) + "\n")
        with open(self.path + ".bin", "wb") as f:
            f.write(self.data)
        print(f"{self.path}: {len(self.lines)} tensors, {len(self.data)} bytes")


# ---- the case table ----------------------------------------------------------------------------

def read_cases():
    for line in open(os.path.join(HERE, "..", "ops", "cases.txt")):
        words = line.split()
        if words and words[0][0] != "#":
            name, op, *rest = words
            keys = dict(w.split("=") for w in rest)
            if keys.pop("golden", "1") == "1":
                yield name, op, keys


def extents(text):
    return [int(d) for d in text.split("x")]


def draw(rng, fill, shape):
    x = rng.standard_normal(shape)
    if fill == "ties":
        x = np.round(x)
    elif fill == "nan":
        x.reshape(-1)[rng.permutation(x.size)[: max(2, x.size // 20)]] = np.nan
    elif fill == "unit":
        x = rng.uniform(0.02, 0.98, shape)
    elif fill == "edge":
        x = rng.uniform(0, 1, shape)
        x.reshape(-1)[::3] = 0
        x.reshape(-1)[1::5] = 1
    elif fill == "big":
        x = rng.uniform(-90, 90, shape)
    elif fill == "shifted":
        x = 1000 + 3 * x
    return x.astype(np.float32)


# ---- dropout's numbers: Philox4x32-10 (Salmon et al., SC'11), written from the paper ------------

def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
SEED, STEP, MICRO_BATCH, LAYER = 0x123456789ABCDEF0, 0x300000005, 2, 5 << 4


def kept(n, p):
    """Element i is kept when its uniform number is not below p (see common/base/base.h)."""
    halves = [SEED & 0xFFFFFFFF, SEED >> 32]
    key = philox([LAYER, 0x636C656B, 0, 0], halves)[:2]
    words = []
    for block in range((n + 3) // 4):
        words += philox([block, MICRO_BATCH, STEP & 0xFFFFFFFF, STEP >> 32], key)
    return np.array([(w >> 8) / 2**24 >= p for w in words[:n]])


# ---- ops ---------------------------------------------------------------------------------------

def parameters(rng, op, keys, shape):
    def normal(*dims):
        return (0.5 * rng.standard_normal(dims)).astype(np.float32)

    if op == "linear":
        out = int(keys["out"])
        p = {"weight": normal(out, shape[-1]), "bias": normal(out)}
    elif op == "conv2d":
        out = int(keys["out"])
        inner = shape[1] // int(keys.get("groups", 1))
        p = {"weight": normal(out, inner, *extents(keys["kernel"])),
             "bias": normal(out)}
    elif op == "batchnorm":
        c = shape[1]
        return {"weight": normal(c), "bias": normal(c), "mean": normal(c),
                "var": rng.uniform(0.5, 2, c).astype(np.float32)}
    elif op == "embedding":
        return {"weight": normal(int(keys["rows"]), int(keys["out"]))}
    elif op == "layernorm":
        dims = extents(keys["shape"])
        return {"weight": normal(*dims), "bias": normal(*dims)}
    elif op == "lstm":
        return {k: normal(*v.shape) for k, v in lstm_of(keys, shape).named_parameters()}
    else:
        return {}
    if keys.get("bias") == "0":
        del p["bias"]
    return p


def lstm_of(keys, shape):
    return torch.nn.LSTM(shape[-1], int(keys["out"]), int(keys.get("layers", 1)),
                         keys.get("bias") != "0", batch_first=True)


def pair_of(keys, name, default):
    return extents(keys[name]) if name in keys else default


def lstm(keys, x, weights):
    """What torch.nn.LSTM's forward calls, with weights that can be differentiated."""
    layers = int(keys.get("layers", 1))
    zeros = torch.zeros(layers, x.shape[0], int(keys["out"]), dtype=x.dtype)
    return torch._VF.lstm(x, (zeros, zeros), weights, keys.get("bias") != "0", layers, 0.0, True,
                          False, True)[0]


def compute(op, keys, x, t, p, others):
    """The op as a PyTorch user would write it; p has tensors, running statistics are updated. t:
    the second input, others: the third and so on."""
    kernel = pair_of(keys, "kernel", None)
    stride, pad = pair_of(keys, "stride", None), pair_of(keys, "pad", [0, 0])
    training = keys.get("training") == "1"
    if op == "dropout":
        if not training:
            return F.dropout(x, float(keys.get("p", 0.5)), training=False)
        drop = float(keys.get("p", 0.5))
        mask = torch.tensor(kept(x.numel(), drop).reshape(x.shape))
        return x * mask / (1 - drop)
    ops = {
        "linear": lambda: F.linear(x, p["weight"], p.get("bias")),
        "conv2d": lambda: F.conv2d(x, p["weight"], p.get("bias"), stride or 1, pad,
                                   groups=int(keys.get("groups", 1))),
        "maxpool": lambda: F.max_pool2d(x, kernel, stride, pad),
        "avgpool": lambda: F.avg_pool2d(x, kernel, stride, pad),
        "globalavgpool": lambda: F.adaptive_avg_pool2d(x, 1),
        "relu": lambda: F.relu(x),
        "sigmoid": lambda: torch.sigmoid(x),
        "tanh": lambda: torch.tanh(x),
        "gelu": lambda: F.gelu(x),
        "softmax": lambda: F.softmax(x, -1),
        "log_softmax": lambda: F.log_softmax(x, -1),
        "add": lambda: x + t,
        "flatten": lambda: torch.flatten(x, 1),
        "reshape": lambda: torch.reshape(x, [x.shape[0]] + extents(keys["shape"])),
        "batchnorm": lambda: F.batch_norm(x, p["mean"], p["var"], p["weight"], p["bias"], training,
                                          float(keys.get("momentum", 0.1)),
                                          float(keys.get("eps", 1e-5))),
        "cross_entropy": lambda: F.cross_entropy(x, t),
        "nll": lambda: F.nll_loss(x, t),
        "mse": lambda: F.mse_loss(x, t),
        "bce": lambda: F.binary_cross_entropy(x, t),
        "bce_with_logits": lambda: F.binary_cross_entropy_with_logits(x, t),
        "embedding": lambda: F.embedding(x, p["weight"]),
        "lstm": lambda: lstm(keys, x, list(p.values())),
        "mean": lambda: torch.mean(x, int(keys["dim"])),
        "scale": lambda: x * float(keys["factor"]),
        "concat": lambda: torch.cat([x, t] + others, int(keys["dim"])),
        "slice": lambda: x.movedim(int(keys["dim"]), 0)[
            int(keys.get("start", 0)):int(keys["stop"]) if "stop" in keys else None].movedim(
                0, int(keys["dim"])),
        "layernorm": lambda: F.layer_norm(x, extents(keys["shape"]), p["weight"], p["bias"],
                                          float(keys.get("eps", 1e-5))),
    }
    return ops[op]()


def first_input(rng, op, keys, shape):
    if op == "embedding":
        return rng.integers(0, int(keys["rows"]), shape)
    return draw(rng, keys.get("fill", "normal"), shape)


def more_inputs(rng, op, keys, shape):
    """The inputs behind the first."""
    if op == "concat":
        return [draw(rng, "normal", extents(keys[k])) for k in sorted(keys)
                if k.startswith("in") and k != "in"]
    second = second_input(rng, op, shape)
    return [] if second is None else [second]


def second_input(rng, op, shape):
    if op in ("cross_entropy", "nll"):
        return rng.integers(0, shape[1], shape[0])
    if op == "add" or op == "mse":
        return rng.standard_normal(shape).astype(np.float32)
    if op.startswith("bce"):
        return rng.uniform(0, 1, shape).astype(np.float32)
    return None


def run_case(op, keys, values, dtype):
    """All results of a case in the given precision, as numpy float64 arrays by name."""
    def leaf(a, grad=True):
        v = torch.tensor(a)
        return v if v.dtype == torch.int64 else v.to(dtype).requires_grad_(grad)

    inputs = [leaf(v) for k, v in values.items() if k.startswith("in")]
    x, t, others = inputs[0], inputs[1] if len(inputs) > 1 else None, inputs[2:]
    p = {k: leaf(v, k not in ("mean", "var")) for k, v in values.items()
         if k != "dout" and not k.startswith("in")}
    y = compute(op, keys, x, t, p, others)
    dout = values.get("dout")
    if dout is None:
        shape = y.shape
        dout = np.full(shape, DOUT_SHARE) if y.dim() == 0 else None
        if dout is None:
            return {"shape": shape}
    y.backward(torch.tensor(dout).to(dtype))
    result = {"out": y}
    result.update({f"din{i}": v.grad for i, v in enumerate(inputs) if v.grad is not None})
    for k, v in p.items():
        result.update({"d" + k: v.grad} if v.requires_grad else {k + "_after": v})
    return {k: v.detach().double().numpy() for k, v in result.items()}


def distance(a, b):
    same = np.isnan(a) == np.isnan(b)
    a, b = np.nan_to_num(a, nan=0), np.nan_to_num(b, nan=0)
    return np.inf if not same.all() else np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)


def write_ops():
    out = Writer("ops")
    for number, (name, op, keys) in enumerate(read_cases()):
        rng = np.random.Generator(np.random.PCG64(1000 + number))
        shape = extents(keys["in"])
        values = {"in0": first_input(rng, op, keys, shape)}
        for i, more in enumerate(more_inputs(rng, op, keys, shape)):
            values[f"in{i + 1}"] = more
        values.update(parameters(rng, op, keys, shape))
        first = run_case(op, keys, values, torch.float64)
        if "shape" in first:
            values["dout"] = rng.standard_normal(first["shape"]).astype(np.float32)
        else:
            values["dout"] = np.float32(DOUT_SHARE)
        exact = run_case(op, keys, values, torch.float64)
        rough = run_case(op, keys, values, torch.float32)
        for k in exact:
            if distance(rough[k], exact[k]) > 1e-5:
                print(f"note: {name} {k}: PyTorch float32 is {distance(rough[k], exact[k]):.1e} "
                      "from its float64")
        for k, v in values.items():
            out.add(f"{name}.{k}", v)
        for k, v in exact.items():
            out.add(f"{name}.{k}", v.astype(np.float32))
    out.close()


# ---- optimisers --------------------------------------------------------------------------------

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True,
                                              weight_decay=0.02),
    "adam": lambda p: torch.optim.Adam(p, lr=0.001),
    "adam_decay": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6,
                                             weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def write_optimisers(out):
    n, steps = 67, 5
    for number, (name, make) in enumerate(OPTIMISERS.items()):
        rng = np.random.Generator(np.random.PCG64(7 + number))
        start = rng.standard_normal(n).astype(np.float32)
        grads = rng.standard_normal((steps, n)).astype(np.float32)
        p = torch.tensor(start.copy(), requires_grad=True)
        optimiser = make([p])
        after = []
        for g in grads:
            p.grad = torch.tensor(g)
            optimiser.step()
            after.append(p.detach().numpy().copy())
        out.add(f"{name}.start", start)
        out.add(f"{name}.grads", grads)
        out.add(f"{name}.after", np.stack(after))
        for key, value in optimiser.state[p].items():
            if key != "step" and value is not None:
                out.add(f"{name}.{key}", value)


def write_groups(out):
    """AdamW with param_groups: 20 values decay, the others have rate and betas of their own."""
    n, cut, steps = 67, 20, 5
    rng = np.random.Generator(np.random.PCG64(23))
    start = rng.standard_normal(n).astype(np.float32)
    grads = rng.standard_normal((steps, n)).astype(np.float32)
    parts = [torch.tensor(v.copy(), requires_grad=True) for v in (start[:cut], start[cut:])]
    optimiser = torch.optim.AdamW([
        {"params": parts[:1], "weight_decay": 0.1},
        {"params": parts[1:], "weight_decay": 0, "lr": 0.03, "betas": (0.8, 0.95)}], lr=0.01)
    after = []
    for g in grads:
        parts[0].grad, parts[1].grad = torch.tensor(g[:cut]), torch.tensor(g[cut:])
        optimiser.step()
        after.append(np.concatenate([p.detach().numpy() for p in parts]))
    out.add("adamw_groups.start", start)
    out.add("adamw_groups.grads", grads)
    out.add("adamw_groups.after", np.stack(after))
    for key in ("exp_avg", "exp_avg_sq"):
        out.add(f"adamw_groups.{key}", torch.cat([optimiser.state[p][key] for p in parts]))


def rates(make, steps, base=0.05):
    p = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([p], lr=base)
    scheduler = make(optimiser)
    result = []
    for _ in range(steps):
        result.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return np.array(result)


def write_schedules(out):
    S = torch.optim.lr_scheduler

    def warm(then):
        """Five steps of warm-up, then another schedule."""
        return lambda o: S.SequentialLR(
            o, [S.LinearLR(o, start_factor=0.2, end_factor=1, total_iters=4), then(o)], [5])

    out.add("lr.step", rates(lambda o: S.StepLR(o, 7, gamma=0.3), 30))
    out.add("lr.cosine", rates(lambda o: S.CosineAnnealingLR(o, 25), 26))
    out.add("lr.linear", rates(lambda o: S.LinearLR(o, 1, 0, total_iters=25), 30))
    out.add("lr.warm", rates(lambda o: S.LinearLR(o, 0.2, 1, total_iters=4), 12))
    out.add("lr.warm_step", rates(warm(lambda o: S.StepLR(o, 4, gamma=0.5)), 30))
    out.add("lr.warm_cosine", rates(warm(lambda o: S.CosineAnnealingLR(o, 20)), 26))


def write_clipping(out):
    rng = np.random.Generator(np.random.PCG64(99))
    g = rng.standard_normal(501).astype(np.float32)
    for name, limit in (("clip.cut", 3.0), ("clip.pass", 1000.0)):
        p = torch.nn.Parameter(torch.zeros(501))
        p.grad = torch.tensor(g.copy())
        norm = torch.nn.utils.clip_grad_norm_([p], limit)
        out.add(f"{name}.grads", g)
        out.add(f"{name}.max_norm", np.float64(limit))
        out.add(f"{name}.norm", np.float64(norm.item()))
        out.add(f"{name}.after", p.grad)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    write_ops()
    optim = Writer("optim")
    write_optimisers(optim)
    write_schedules(optim)
    write_clipping(optim)
    write_groups(optim)
    optim.close()
