#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Networks as people publish them (tests/parity/networks.py), exported as they are written, beside
PyTorch: outputs, gradients of every parameter and running statistics of one training step. `make
exports` runs it; with names only these.

    ok NAME: layers, distance from PyTorch in f64, in f32 as a multiple of PyTorch's own
    refused NAME: every reason

In f64 the distance of each tensor is at most 1e-5, and so is that of its change in three steps. In
f32 outputs and gradients are at most twice as far from PyTorch's in f64 as PyTorch's in f32 are, or
as PyTorch's in f64 of inputs that are rounded ten times more coarsely than f32, of up to 4 such
roundings; or they are `chaotic`. So are three steps if PyTorch's own are as far apart when its
inputs change by no more than the first step's distance: hardsigmoid's derivative is 1/6 in f32
there, in f64 too, so networks with it begin 3e-8 apart. Networks of large images are compared in
f64 at smaller ones (`narrow`). Dropout is 0 for the numbers, not for the export. Each tensor goes
back into the module.
"""
import argparse
import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../deploy")]

import numpy as np
import torch

import drawn_nets
import export_torch as exporter
import networks
from load_checkpoint import DTYPES, read_safetensors

# NARROW, WIDE: records in f64 and in f32, where one relu near 0 of two records moves all gradients;
# half of them where a record has more than LARGE values.
# FLOOR: a few units in the last place, where PyTorch's own distance is less than that by chance.
# CHAOS: PyTorch in f32 is so far from itself in f64 that a ratio says nothing.
# COARSE: ten roundings of f32, relative. FINE: five of f64.
# STEPS, RATE: of SGD in f64.
LIMIT, TIMES, FLOOR, CHAOS, COARSE, FINE, NARROW, WIDE, LARGE, GOAL = 1e-5, 2.0, 3e-7, 1e-3, 6e-7, 5e-16, 2, 8, 100_000, 0.9
STEPS, RATE, MORE = 3, 1e-3, 3
DTYPES["F64"] = "<f8"
exporter.TYPES["float64"] = "F64"


def without_dropout(net):
    for m in net.modules():
        if isinstance(m, (torch.nn.LSTM, torch.nn.GRU, torch.nn.MultiheadAttention)):
            m.dropout = 0.0
        elif "Dropout" in type(m).__name__ or type(m).__name__ == "StochasticDepth":
            m.p = 0.0
    return net


def records(net, inputs, n):
    """Draws n records: {name: tensor}."""
    torch.manual_seed(2)
    rows = min([m.num_embeddings for m in net.modules() if isinstance(m, torch.nn.Embedding)], default=2)
    made = {}
    for name, dtype, extents in inputs:
        shape = [n, *extents]
        made[name] = torch.randint(1, 4, shape) if name == "lengths" else torch.randint(0, rows, shape) if dtype == "i64" else torch.randn(shape, dtype=torch.float64)
    return made


def rounded(given, relative):
    """The records, each number changed by about that part of it."""
    return {n: x * (1 + relative * torch.randn_like(x)) if x.is_floating_point() else x for n, x in given.items()}


def in_torch(net, given, output, dy, dtype):
    """Outputs, {parameter: gradient} and buffers of a training step, of type dtype."""
    net = copy.deepcopy(net).to(dtype).train()
    torch.set_default_dtype(dtype)  # for states that forward makes
    y = net(*(x.to(dtype) if x.is_floating_point() else x for x in given.values()))
    torch.set_default_dtype(torch.float32)
    found = y if isinstance(y, dict) else y._asdict() if hasattr(y, "_asdict") else dict(enumerate(y)) if isinstance(y, (tuple, list)) else {0: y}
    y = {str(k): v for k, v in found.items()}[output or str(next(iter(found)))]
    dy = torch.randn(y.shape, dtype=torch.float64) if dy is None else dy
    y.backward(dy.to(dtype))
    grads = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    return y.detach(), grads, dict(net.named_buffers()), dy


def in_cleave(program, folder, net, t, given, dy, dtype, parameters=None):
    """The results of in_torch, computed by Cleave from the exported layers.

    parameters: {name: array} that replace those of the export."""
    text = exporter.yaml_of(t, "the test", [])
    kind = "f64" if dtype == torch.float64 else "f32"
    arrays = {n: a.astype(kind.replace("f64", "f8").replace("f32", "f4")) if a.dtype == np.float32 else a for n, a in (parameters or t.arrays).items()}
    arrays.update({f"input.{n}": (x.to(dtype) if x.is_floating_point() else x).numpy() for n, x in given.items()})
    arrays["dy"] = dy.to(dtype).reshape(len(dy), *(dy.shape[1:] or (1,))).contiguous().numpy()
    model, source, result = (os.path.join(folder, n) for n in ("model.yaml", "in.safetensors", "out.safetensors"))
    with open(model, "w") as f:
        f.write(text)
    exporter.write_safetensors(source, arrays)
    done = subprocess.run([program, model, kind, source, result, *given], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise AssertionError(done.stdout.strip()[-400:])
    return read_safetensors(result)


def joined(net, t, ours):
    """{parameter of the module: gradient} from Cleave's tensors."""
    made, shapes = {}, {n: p.shape for n, p in net.named_parameters()}
    for name, parts in exporter.parts_of(net, t.arrays).items():
        if name in shapes:
            flat = torch.zeros(shapes[name].numel(), dtype=ours["y"].dtype)
            for part, first, _ in parts:
                g = ours[f"grad.{part}"].reshape(-1)
                flat[first:first + len(g)] = g
            made[name] = flat.reshape(shapes[name])
    return made


def steps_in_torch(net, given, output, dy):
    """{parameter and buffer: value} after STEPS of SGD in f64."""
    net = copy.deepcopy(net).double().train()
    for _ in range(STEPS):
        _, grads, buffers, _ = in_torch(net, given, output, dy, torch.float64)
        with torch.no_grad():
            for n, p in net.named_parameters():
                p -= RATE * grads[n] if n in grads else 0
            for n, b in net.named_buffers():
                b.copy_(buffers[n])
    return {**{n: p.detach() for n, p in net.named_parameters() if n in grads}, **dict(net.named_buffers())}


def steps_in_cleave(program, folder, net, t, given, dy):
    """{tensor of the module: value} likewise, and the state_dict that loads strictly."""
    arrays = {n: a.astype("f8") if a.dtype == np.float32 else a for n, a in t.arrays.items()}
    frozen = exporter.constants_of(t)
    for _ in range(STEPS):
        found = in_cleave(program, folder, net, t, given, dy, torch.float64, arrays)
        arrays = {n: found[n].numpy() if n in found else a if n in frozen or f"grad.{n}" not in found else a - RATE * found[f"grad.{n}"].numpy().reshape(a.shape) for n, a in arrays.items()}
    state = exporter.state_of(net, t.arrays, {n: torch.from_numpy(np.array(a)) for n, a in arrays.items()}, torch.float64)
    copy.deepcopy(net).double().load_state_dict(state, strict=True)
    return state


def apart(ours, theirs, least=0.0):
    ours, theirs = ours.double(), theirs.double().reshape(ours.shape)
    norm = max(float(theirs.norm()), least)
    return float((ours - theirs).norm()) / norm if norm else float((ours - theirs).norm())


def together(found, names):
    return torch.cat([found[n].double().flatten() for n in names])


def in_f64(program, folder, net, t, inputs, output):
    """A text with the largest distance. Raises AssertionError if it is above the limit."""
    given = records(net, inputs, NARROW)
    y, grads, buffers, dy = in_torch(net, given, output, None, torch.float64)
    total, ours = float(together(grads, grads).norm()), in_cleave(program, folder, net, t, given, dy, torch.float64)
    mine = joined(net, t, ours)
    assert mine.keys() == grads.keys(), f"gradients of other parameters: {sorted(mine.keys() ^ grads.keys())[:4]}"
    worst = max([(apart(ours["y"], y), "the output"), *((apart(mine[n], grads[n], 1e-6 * total), n) for n in grads),
                 *((apart(ours[n], b, 1e-6), n) for n, b in buffers.items() if n in ours and b.is_floating_point())])
    assert worst[0] <= LIMIT, f"{worst[1]} is {worst[0]:.1e} from PyTorch's in f64"
    theirs, state, before = steps_in_torch(net, given, output, dy), steps_in_cleave(program, folder, net, t, given, dy), net.state_dict()
    # PyTorch runs heads that the output does not need, too
    exported = exporter.parts_of(net, t.arrays)
    changes = {n: (state[n] - before[n], v - before[n]) for n, v in theirs.items() if v.is_floating_point() and n in exported}
    last = max((apart(*both, 1e-6 * RATE * total), n) for n, both in changes.items())
    if last[0] > LIMIT:
        beside = steps_in_torch(net, rounded(given, max(worst[0], FINE)), output, dy)
        own = apart(beside[last[1]] - before[last[1]], changes[last[1]][1], 1e-6 * RATE * total)
        if own >= CHAOS and last[0] <= TIMES * own:
            return f"f64 {worst[0]:.0e}, {STEPS} steps chaotic"
    assert last[0] <= LIMIT, f"{last[1]} has changed by {last[0]:.1e} more or less than PyTorch's after {STEPS} steps in f64"
    return f"f64 {worst[0]:.0e}, {STEPS} steps {last[0]:.0e}"


def goes_back(net, t):
    """Each tensor of the export, changed, is a state_dict that loads strictly, with that change."""
    found = {n: torch.from_numpy(a.copy()) + (1 if a.dtype == np.float32 else 0) for n, a in t.arrays.items()}
    state = exporter.state_of(net, t.arrays, found)
    copy.deepcopy(net).load_state_dict(state, strict=True)
    for name in exporter.parts_of(net, t.arrays):
        before = net.state_dict()[name]
        assert not before.is_floating_point() or not before.numel() or bool((state[name] - before > 0.5).all()), f"'{name}' does not go back"


def in_f32(program, folder, net, t, inputs, output):
    """The same of output and gradients, as multiples of PyTorch's own distance from f64."""
    large = max(int(np.prod(extents or [1])) for _, _, extents in inputs) > LARGE
    given, said = records(net, inputs, WIDE // 2 if large else WIDE), []
    y, grads, _, dy = in_torch(net, given, output, None, torch.float64)
    y32, grads32, _, _ = in_torch(net, given, output, dy, torch.float32)
    y_beside, grads_beside, _, _ = in_torch(net, rounded(given, COARSE), output, dy, torch.float64)
    ours = in_cleave(program, folder, net, t, given, dy, torch.float32)
    mine, names = joined(net, t, ours), list(grads)

    def again(what):
        """The same of other roundings of the inputs, since a relu near 0 moves few of them."""
        for _ in range(MORE):
            found = in_torch(net, rounded(given, COARSE), output, dy, torch.float64)
            yield found[0] if what == "output" else together(found[1], names)
    assert mine.keys() == grads.keys(), f"gradients of other parameters: {sorted(mine.keys() ^ grads.keys())[:4]}"
    for what, a, b, c, d in (("output", ours["y"], y32, y, y_beside), ("gradients", *(together(g, names) for g in (mine, grads32, grads, grads_beside)))):
        own = max(apart(b, c), apart(d, c), FLOOR)
        times = apart(a, c) / own
        if times > TIMES and own < CHAOS:
            own = max([own, *(apart(z, c) for z in again(what))])
            times = apart(a, c) / own
        said.append(f"{what} {times:.2f}" if own < CHAOS else f"{what} chaotic")
        assert times <= TIMES or own >= CHAOS, f"{what} in f32: {times:.2f} times PyTorch's own distance {own:.1e} from f64"
    return ", ".join(said)


def tried(program, folder, row):
    """(ok, refused or not ok, its text)"""
    name, make, inputs, more = row
    given = [exporter.input_of(i) for i in inputs]
    torch.manual_seed(1)
    net = make()
    try:
        t = exporter.followed(net, given, more.get("output"))
    except exporter.Unsupported as e:
        return "refused", str(e)
    without_dropout(net)
    plain = exporter.followed(net, given, more.get("output"))
    try:
        goes_back(net, plain)
        narrow = [exporter.input_of(i) for i in more.get("narrow", inputs)]
        small = plain if narrow == given else exporter.followed(net, narrow, more.get("output"))
        return "ok", ", ".join([f"{len(t.layers)} layers", in_f64(program, folder, net, small, narrow, more.get("output")), in_f32(program, folder, net, plain, given, more.get("output"))])
    except Exception as e:
        return "not ok", str(e) if isinstance(e, AssertionError) else f"{type(e).__name__}: {e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="build/release")
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    exporter.chosen = os.path.join(a.out, "share/cleave/ops.json")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    program, folder = os.path.abspath(os.path.join(a.out, "parity/exported")), tempfile.mkdtemp()
    rows, count = [r for r in (*networks.NETWORKS, *drawn_nets.NETWORKS) if not a.names or r[0] in a.names], {"ok": 0, "refused": 0, "not ok": 0}
    try:
        for row in rows:
            begin = time.monotonic()
            result, text = tried(program, folder, row)
            count[result] += 1
            print(f"{result} {row[0]}: {text} ({time.monotonic() - begin:.0f} s)" if "\n" not in text else f"{result} {row[0]}:\n    " + text.replace("\n", "\n    "), flush=True)
    finally:
        shutil.rmtree(folder)
    share = count["ok"] / max(1, len(rows))
    print(f"{count['ok']} of {len(rows)} networks exported as written, {count['refused']} refused, {count['not ok']} wrong")
    return 0 if not count["not ok"] and (a.names or share >= GOAL) else 1


if __name__ == "__main__":
    sys.exit(main())
