#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/golden/ops/NAME.{txt,bin} and optim.{txt,bin} with PyTorch (Debian: python3-torch).

    make_golden.py build/release/ops/print_cases

`make golden` does it after a change of kernels/ops/NAME.cases; the files are checked in and `make
test` only reads them. ops: every golden case: f32 inputs, and from them outputs and all gradients,
computed by PyTorch in float64 and rounded once; PyTorch in float32 must agree. Inputs of a case
that is already in the file are kept; those of a new case are drawn from a seed made of its name. So
only new cases change the files. optim: torch.optim in float32 over five steps, also with groups,
learning-rate schedules, gradient clipping.

X.bin has the values, little-endian; X.txt has a line per tensor: NAME DTYPE OFFSET RANK EXTENT...
"""
import json
import math
import os
import subprocess
import sys
import warnings
import zlib

import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"float32": "f32", "float64": "f64", "int64": "i64"}
# the gradient from which a loss's backward starts: the micro-batch's share of the batch
DOUT_SHARE = 0.375


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


def read_golden(name):
    """{tensor: array} of a file that Writer wrote; {} where there is none."""
    path = os.path.join(HERE, name)
    if not os.path.exists(path + ".txt"):
        return {}
    with open(path + ".bin", "rb") as f:
        data = f.read()
    dtypes, found = {v: k for k, v in DTYPES.items()}, {}
    for line in open(path + ".txt"):
        tensor, dtype, offset, _, *dims = line.split()
        shape = [int(d) for d in dims]
        count = int(np.prod(shape, dtype=np.int64))
        a = np.frombuffer(data, dtypes[dtype], count, int(offset))
        found[tensor] = a.reshape(shape).copy()
    return found


# ---- inputs ------------------------------------------------------------------------------------

def draw(rng, fill, shape):
    x = rng.standard_normal(shape)
    if fill == "ties":
        x = np.round(x)
    elif fill == "inf":
        x.reshape(-1)[rng.permutation(x.size)[:4]] = np.inf, -np.inf, np.inf, -np.inf
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


def draw_parameter(rng, row):
    if row["positive"]:
        return rng.uniform(0.5, 2, row["shape"]).astype(np.float32)
    return (0.5 * rng.standard_normal(row["shape"])).astype(np.float32)


def rows_of(case):
    """{name: row} of the inputs and parameters of a case."""
    rows = {f"in{i}": row for i, row in enumerate(case["inputs"])}
    rows.update({row["name"]: row for row in case["params"]})
    return rows


def stored_values(case, stored):
    """The values of an earlier file for the case and for the output's gradient; None if any is
    missing or has another shape."""
    rows = rows_of(case)
    found = {k: stored.get(f"{case['name']}.{k}") for k in [*rows, "dout"]}
    if any(v is None for v in found.values()):
        return None
    return found if all(list(found[k].shape) == row["shape"] for k, row in rows.items()) else None


def drawn_values(case, rng):
    values = {}
    for k, row in rows_of(case).items():
        if "values" in row:
            values[k] = np.array(row["values"])
        elif "below" in row:
            values[k] = rng.integers(0, row["below"], row["shape"])
            # so that no difference of the columns is negative
            if case["attrs"].get("minus", -1) >= 0:
                values[k].sort(-1)
        else:
            values[k] = draw(rng, row["fill"], row["shape"]) if "fill" in row \
                else draw_parameter(rng, row)
    return values


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


def row_kept(part, row, n, p):
    """The same as kept, for element i of a row of a part (clv_rng_stream_row)."""
    halves = [SEED & 0xFFFFFFFF, SEED >> 32]
    key = philox([LAYER, 0x636C656B, 0, 0], halves)[:2]
    own = philox([part, MICRO_BATCH, STEP & 0xFFFFFFFF, STEP >> 32], key)
    words = []
    for block in range((n + 3) // 4):
        words += philox([block, row, own[2], own[3]], own[:2])
    return [(w >> 8) / 2**24 >= p for w in words[:n]]


# ---- packed sequences --------------------------------------------------------------------------

def pad(x, lengths, places):
    """Packed [T, ...] to padded [N, places, ...]; pads are 0."""
    parts = torch.split(x[:int(lengths.sum())], lengths.tolist())
    return torch.stack([F.pad(v, (0, 0, 0, places - len(v))) for v in parts])


def pack(x, lengths, rows, rest):
    """Padded to packed. rest: the rows after the sequences, which belong to none."""
    parts = [v[:n] for v, n in zip(x, lengths.tolist())]
    return torch.cat(parts + [rest[int(lengths.sum()):rows]])


def packed(op, inputs, a, rest):
    """Applies an op for padded sequences to packed ones. rest: rows whose values
    the rows of no sequence get; None: the result is not packed."""
    *given, lengths = inputs
    y = op(*(pad(x, lengths, int(a["packed"])) for x in given), lengths)
    return y if rest is None else pack(y, lengths, len(given[0]), rest)


# ---- ops ---------------------------------------------------------------------------------------

def dropout(x, lengths, a, training):
    if a["packed"] and training:
        return packed(lambda v, _: drop(v, a["p"], True), (x, lengths), a, x * 0)
    return drop(x, a["p"], training)


def drop(x, p, training):
    if not training:
        return F.dropout(x, p, training=False)
    return x * torch.tensor(kept(x.numel(), p).reshape(x.shape)) / (1 - p)


def stochastic_depth(x, p, training):
    """torchvision.ops.stochastic_depth in mode "row", with one random number for each record."""
    if not training:
        return x * 1
    return x * torch.tensor(kept(len(x), p).reshape(-1, *[1] * (x.dim() - 1))) / (1 - p)


def attention(*inputs, a, training):
    if a["packed"]:
        return packed(lambda *given: attend(*given, a=a, training=training), inputs, a, inputs[0] * 0)
    return attend(*inputs, a=a, training=training)


def attend(q, k, v, lengths=None, *, a, training):
    """scaled_dot_product_attention by its formula (PyTorch 1.13 has no such function)."""
    heads, kv, p = int(a["heads"]), int(a["kv_heads"] or a["heads"]), a["p"]
    (n, t, f), s = q.shape, k.shape[1]
    q = q.reshape(n, t, heads, -1).transpose(1, 2)
    k, v = (x.reshape(n, s, kv, -1).transpose(1, 2).repeat_interleave(heads // kv, 1) for x in (k, v))
    seen = torch.ones(n, 1, t, s, dtype=torch.bool)
    if a["causal"]:
        seen = seen.tril()
    if lengths is not None:
        seen = seen & (torch.arange(s) < lengths[:, None])[:, None, None]
    scores = (q @ k.transpose(-1, -2) / (f // heads) ** 0.5).masked_fill(~seen, -torch.inf)
    # A row without a key is 0, where softmax has NaN.
    weights = torch.softmax(scores.masked_fill(~seen.any(-1, True), 0), -1) * seen
    if training and p:
        keep = [row_kept(i, row, s, p) for i in range(n * heads) for row in range(t)]
        weights = weights * torch.tensor(keep).reshape(n, heads, t, s) / (1 - p)
    return (weights @ v).transpose(1, 2).reshape(n, t, f)


def rotary(x, lengths, a):
    if a["packed"]:
        return packed(lambda v, _: rotate(v, a), (x, lengths), a, x * 0)
    return rotate(x, a)


def angles(width, a):
    """The angle of a step for each pair of values, as in transformers' Llama, with rope_type linear
    and llama3."""
    f = 1 / a["base"] ** (torch.arange(0, width, 2).double() / width)
    if a["factor"] == 1 or not a["original"]:
        return f / a["factor"]
    length, low, high = 2 * math.pi / f, a["low_freq_factor"], a["high_freq_factor"]
    smooth = (a["original"] / length - low) / (high - low)
    found = torch.where(length > a["original"] / low, f / a["factor"], f)
    medium = (length <= a["original"] / low) & (length >= a["original"] / high)
    return torch.where(medium, (1 - smooth) * f / a["factor"] + smooth * f, found)


def rotate(x, a):
    n, t, f = x.shape
    heads = int(a["heads"])
    width = f // heads
    angle = torch.arange(t).double()[:, None] * angles(width, a)
    cos, sin = (torch.cat([w, w], -1).to(x.dtype)[:, None] for w in (angle.cos(), angle.sin()))
    x = x.reshape(n, t, heads, width)
    other = torch.cat([-x[..., width // 2:], x[..., :width // 2]], -1)
    return (x * cos + other * sin).reshape(n, t, f)


def column(x, a):
    """The row numbers of an embedding."""
    if a["column"] < 0:
        return x - x if a["minus"] == 0 else x
    rows = x[..., int(a["column"])]
    return rows - x[..., int(a["minus"])] if a["minus"] >= 0 else rows


def positions(x, lengths, p, a):
    if a["packed"]:
        return packed(lambda v, _: add_positions(v, p, a), (x, lengths), a, x)
    return add_positions(x, p, a)


def add_positions(x, p, a):
    """Adds learned positions as the models of transformers do."""
    weight = p["weight"].reshape(int(a["rows"]), -1)
    return x + F.embedding(torch.arange(x.shape[1]) + int(a["offset"]), weight)


def last(x, lengths, a):
    """The last step of each sample, or its first step; 0 for a sample without steps."""
    if a["packed"]:
        return packed(lambda v, n: last(v, n, {**a, "packed": 0}), (x, lengths), a, None)
    found = x[torch.arange(len(x)), (lengths - 1).clamp(min=0) * (not a["first"])]
    return found * (lengths > 0)[:, None]


def permute(x, order):
    """order: the dimensions behind the batch, or the only one."""
    return x.permute(0, *(int(d) for d in np.atleast_1d(order))).contiguous()


def cross_entropy(x, t, a):
    """Places become rows, because PyTorch has the classes after the batch and we have them last."""
    weight = torch.tensor(a["class_weights"]).to(x) if a["class_weights"] else None
    return F.cross_entropy(x.flatten(0, -2), t.flatten(), weight, ignore_index=a["ignore_index"],
                           label_smoothing=a["label_smoothing"])


def focal(x, t, a):
    """Focal loss of the softmax; the mean is weighted by the weights of the classes, as in
    cross_entropy."""
    x, t = x.flatten(0, -2), t.flatten()
    x, t = x[t != a["ignore_index"]], t[t != a["ignore_index"]]
    weight = torch.tensor(a["class_weights"]).to(x)[t] if a["class_weights"] else torch.ones(len(t)).to(x)
    nll = F.cross_entropy(x, t, reduction="none")
    return (weight * (-torch.expm1(-nll)) ** a["exponent"] * nll).sum() / weight.sum()


def one(pair):
    """The number of an attribute that others have as a pair."""
    return int(np.atleast_1d(pair)[0])


def lstm(x, weights, layers, bias):
    """The function that torch.nn.LSTM's forward calls, with weights that can be differentiated."""
    zeros = torch.zeros(layers, x.shape[0], weights[1].shape[1], dtype=x.dtype)
    return torch._VF.lstm(x, (zeros, zeros), weights, bool(bias), layers, 0.0, True, False, True)[0]


def resize(x, a, mode):
    """interpolate by the op's attributes: a size of 0 is not given."""
    pair = a["size"] if isinstance(a["size"], list) else [a["size"]] * 2
    size = [int(n) for n in pair][-(x.dim() - 2):] if pair[0] else None
    if mode == "nearest":
        return F.interpolate(x, size=size, scale_factor=a["scale_factor"] or None, mode=mode)
    return F.interpolate(x, size=size, scale_factor=a["scale_factor"] or None, align_corners=bool(a["align_corners"]),
                         mode="linear" if x.dim() == 3 else mode)


def gru(x, weights, layers, bias):
    """As lstm, for torch.nn.GRU."""
    zeros = torch.zeros(layers, x.shape[0], weights[1].shape[1], dtype=x.dtype)
    return torch._VF.gru(x, zeros, weights, bool(bias), layers, 0.0, True, False, True)[0]


def compute(expression, case, inputs, p):
    """The op as a PyTorch user would write it: the expression of its cases. x, t, others: inputs;
    p: parameters, whose running statistics it updates; a: attributes."""
    scope = {"x": inputs[0], "t": inputs[1] if len(inputs) > 1 else None, "others": inputs[2:],
             "p": p, "a": case["attrs"], "training": case["training"], "F": F, "torch": torch,
             "dropout": dropout, "stochastic_depth": stochastic_depth, "resize": resize, "lstm": lstm, "gru": gru, "attention": attention,
             "rotary": rotary, "permute": permute, "cross_entropy": cross_entropy, "focal": focal,
             "one": one, "column": column, "positions": positions, "last": last}
    return eval(expression, scope)


def run_case(expression, case, values, dtype):
    """All results of a case in the given precision, as numpy float64 arrays by name. If values have
    no gradient of the output, only the output."""
    def leaf(a, grad=True):
        v = torch.tensor(a)
        return v if v.dtype == torch.int64 else v.to(dtype).requires_grad_(grad)

    inputs = [leaf(values[f"in{i}"]) for i in range(len(case["inputs"]))]
    p = {row["name"]: leaf(values[row["name"]], not row["buffer"]) for row in case["params"]}
    y = compute(expression, case, inputs, p)
    result = {"out": y}
    if values.get("dout") is not None:
        y.backward(torch.tensor(values["dout"]).to(dtype))
        result.update({f"din{i}": v.grad for i, v in enumerate(inputs) if v.grad is not None})
        for k, v in p.items():
            result.update({"d" + k: v.grad} if v.requires_grad else {k + "_after": v})
    return {k: v.detach().double().numpy() for k, v in result.items()}


def distance(a, b):
    same = np.isnan(a) == np.isnan(b)
    a, b = np.nan_to_num(a, nan=0), np.nan_to_num(b, nan=0)
    return np.inf if not same.all() else np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)


def write_case(out, expression, case, stored):
    values = stored_values(case, stored)
    exact = values and run_case(expression, case, {**values, "dout": None}, torch.float64)
    if not values or exact["out"].shape != values["dout"].shape:
        print(f"new: {case['name']}")
        rng = np.random.Generator(np.random.PCG64(zlib.crc32(case["name"].encode())))
        values = drawn_values(case, rng)
        shape = run_case(expression, case, values, torch.float64)["out"].shape
        values["dout"] = (rng.standard_normal(shape).astype(np.float32) if shape
                          else np.float32(DOUT_SHARE))
    exact = run_case(expression, case, values, torch.float64)
    rough = run_case(expression, case, values, torch.float32)
    for k in exact:
        if distance(rough[k], exact[k]) > 1e-5:
            print(f"note: {case['name']} {k}: PyTorch float32 is "
                  f"{distance(rough[k], exact[k]):.1e} from its float64")
    for k, v in values.items():
        out.add(f"{case['name']}.{k}", v)
    for k, v in exact.items():
        out.add(f"{case['name']}.{k}", v.astype(np.float32))


def write_ops(print_cases):
    root = os.path.join(HERE, "..", "..")
    printed = subprocess.run([os.path.abspath(print_cases)], cwd=root, stdout=subprocess.PIPE)
    if printed.returncode:
        sys.exit("make_golden.py: the cases have faults")
    os.makedirs(os.path.join(HERE, "ops"), exist_ok=True)
    for op in map(json.loads, printed.stdout.splitlines()):
        if op["none"]:
            print(f"none: {op['op']}: {op['none']}")
            continue
        out, stored = Writer(os.path.join("ops", op["op"])), read_golden(f"ops/{op['op']}")
        for case in op["cases"]:
            write_case(out, op["torch"], case, stored)
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

# Written after the first table, so that the offsets of the earlier optimisers do not change.
MORE_OPTIMISERS = {
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adagrad_decay": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1, weight_decay=0.02, eps=1e-6,
                                                   initial_accumulator_value=0.3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.8, eps=1e-6),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.95, centered=True, weight_decay=0.02),
    "rmsprop_all": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.5, centered=True,
                                                 weight_decay=0.01),
    "adamax": lambda p: torch.optim.Adamax(p),
    "adamax_decay": lambda p: torch.optim.Adamax(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
}


def write_optimisers(out, optimisers, seed):
    n, steps = 67, 5
    for number, (name, make) in enumerate(optimisers.items()):
        rng = np.random.Generator(np.random.PCG64(seed + number))
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
    """AdamW with param_groups: 20 values have weight decay, the others their own rate and betas."""
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


def write_warm_from_zero(out):
    """get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup of transformers'
    optimization.py."""
    warm, total = 5, 25

    def behind(factor):
        def at(step):
            return step / max(1, warm) if step < warm else factor((step - warm) / max(1, total - warm))
        return lambda o: torch.optim.lr_scheduler.LambdaLR(o, at)
    out.add("lr.zero_linear", rates(behind(lambda s: max(0.0, 1 - s)), 28))
    out.add("lr.zero_cosine", rates(behind(lambda s: max(0.0, 0.5 * (1 + np.cos(np.pi * s)))), 26))


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
    if len(sys.argv) != 2:
        sys.exit("usage: make_golden.py build/release/ops/print_cases")
    write_ops(sys.argv[1])
    optim = Writer("optim")
    write_optimisers(optim, OPTIMISERS, 7)
    write_schedules(optim)
    write_clipping(optim)
    write_groups(optim)
    write_optimisers(optim, MORE_OPTIMISERS, 107)
    write_warm_from_zero(optim)
    optim.close()
