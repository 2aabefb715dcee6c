#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/export_torch.py --input: traced modules become layers of a session, which over a worker
has PyTorch's losses and weights. The golden numbers include the layers, so the tests need no
PyTorch; with PyTorch, they also compare the exported layers, and check that other modules are
refused."""
import base64, importlib.util, json, os, re, sys
sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), d) for d in ("../lib", "../../parity")]
from cluster import *
import golden
import numpy as np

suite = Suite()
EXPORTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy/export_torch.py")
OPS = os.path.join(os.path.abspath(BIN), "share/cleave/ops.json")
STEPS, BATCH, RATE, RECORDS = 4, 8, 0.2, 32
INPUTS = {"ordinary": ["pixels"], "gpt": ["ids"], "encoder": ["ids", "lengths"], "byhand": ["ids", "types"], "picture": ["pixels"], "everyday": ["ids", "pixels"]}
# Layers of the first two stages.
CUTS = {"ordinary": (3, 31), "gpt": (2, 8), "encoder": (3, 20), "byhand": (2, 9), "picture": (2, 9), "everyday": (2, 30)}
cluster = None


def records(name):
    rng = np.random.default_rng(4)
    made = {"ids": rng.integers(0, 11, (RECORDS, 6)), "types": rng.integers(0, 3, (RECORDS, 6)),
            "pixels": rng.standard_normal((RECORDS, 3, 8, 8)).astype("f4")}
    if "lengths" in INPUTS[name]:
        made["lengths"] = rng.integers(1, 7, RECORDS)
    return {**{k: made[k] for k in INPUTS[name]}, "y": rng.integers(0, 4, (RECORDS, 6) if name in ("gpt", "encoder") else RECORDS)}


def packed(arrays):
    return {k: [a.dtype.str, list(a.shape), base64.b64encode(a.tobytes()).decode()] for k, a in arrays.items()}


def unpacked(arrays):
    return {k: np.frombuffer(base64.b64decode(data), dtype).reshape(shape) for k, (dtype, shape, data) in arrays.items()}


def loaded(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exporter():
    module = loaded(EXPORTER)
    module.chosen = OPS
    return module


def exported(name):
    import traced_nets
    e = exporter()
    return e.model_yaml(traced_nets.net(name), name, inputs=[e.input_of(i) for i in traced_nets.NETS[name][1]])


def in_torch(name):
    """Layers and weights as exported, PyTorch's losses, and its weights then."""
    import torch, traced_nets
    e = exporter()
    text, before = exported(name)
    net, data = traced_nets.net(name), {k: torch.from_numpy(v) for k, v in records(name).items()}
    optimiser, losses = torch.optim.SGD(net.parameters(), lr=RATE), []
    for step in range(STEPS):
        part = slice(BATCH * step, BATCH * step + BATCH)
        y = net(*(data[k][part] for k in INPUTS[name]))
        loss = torch.nn.functional.cross_entropy(y.flatten(0, -2), data["y"][part].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    after = e.model_yaml(net, name, inputs=[e.input_of(i) for i in traced_nets.NETS[name][1]])[1]
    return {"yaml": text, "before": packed(before), "losses": losses, "after": packed(after)}


def write_weights(path, arrays):
    types, header, data = {"<f4": "F32", "<i8": "I64"}, {}, b""
    for name, a in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        header[name] = {"dtype": types[a.dtype.str], "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def body(name, text):
    first, second = CUTS[name]
    last = text.count("{op: ") - 1
    frozen = re.findall(r"^#   freeze: (.*)", text, re.M)
    files = [f"{k}.npy" for k in (*INPUTS[name], "y")]
    stages = "".join(f"  - {{name: s{i}, at: {at}, layers: {a}..{b}, weights: {{file: {name}.safetensors}}}}\n"
                     for i, (at, a, b) in enumerate((("master", 0, first), ("w1", first + 1, second), ("master", second + 1, last))))
    return (f"data: {{format: npy, root: {name}, inputs: [{', '.join(INPUTS[name])}], train: [{', '.join(files)}], test: [{', '.join(files)}]}}\n"
            f"{text}stages:\n{stages}loss: {{kind: cross_entropy}}\n"
            f"train: {{epochs: 1, max_steps: {STEPS}, batch: {BATCH}, shuffle: false, seed: {SEED}, optimizer: {{kind: sgd, lr: {RATE}}}{', freeze: ' + frozen[0] if frozen else ''}}}\n"
            "log: {every: 1}\ncheckpoint: {every_steps: 1000}\nprivacy: {raw_input_leaves: true}\n")


def runs_as_in_torch(name):
    data = records(name)
    kept = golden.numbers(f"traced-{name}", data, lambda: in_torch(name))
    os.makedirs(os.path.join(cluster.dir, name), exist_ok=True)
    for k, v in data.items():
        np.save(os.path.join(cluster.dir, name, k + ".npy"), v)
    write_weights(os.path.join(cluster.dir, name + ".safetensors"), unpacked(kept["before"]))
    ours, log, _ = cluster.trained(name, body(name, kept["yaml"]), STEPS)
    losses = [json.loads(line)["loss"] for line in log.splitlines()]
    assert np.allclose(losses, kept["losses"], rtol=1e-5), (losses, kept["losses"])
    after = unpacked(kept["after"])
    assert ours.keys() == after.keys(), ours.keys() ^ after.keys()
    for k, (_, shape, raw) in ours.items():
        want, found = after[k].astype("f8"), np.frombuffer(raw, after[k].dtype).reshape(shape).astype("f8")
        assert np.linalg.norm(found - want) <= 1e-4 * max(np.linalg.norm(want), 1e-3), (k, found, want)


@suite.test
def traced_attention_function_matches_pytorch():
    runs_as_in_torch("gpt")


@suite.test
def traced_manual_attention_matches_pytorch():
    runs_as_in_torch("byhand")


@suite.test
def traced_encoder_with_masks_matches_pytorch():
    runs_as_in_torch("encoder")


@suite.test
def traced_conv_branches_match_pytorch():
    runs_as_in_torch("picture")


@suite.test
def traced_frames_and_masks_by_ids_match_pytorch():
    runs_as_in_torch("everyday")


@suite.test
def traced_functions_and_constants_match_pytorch():
    runs_as_in_torch("ordinary")


def has_torch():
    try:
        import torch
        return hasattr(torch.nn.functional, "scaled_dot_product_attention")
    except ImportError:
        return False


@suite.test
def traced_export_matches_the_golden_file():
    """Without that function in PyTorch, of a module that does not call it."""
    if importlib.util.find_spec("torch") is None:
        return "python3-torch is not installed"
    for name in INPUTS if has_torch() else ("everyday",):
        (text, arrays), kept = exported(name), golden.numbers(f"traced-{name}", records(name), lambda: in_torch(name))
        assert text == kept["yaml"], name
        constants = unpacked(kept["before"])
        for frozen in re.findall(r"^#   freeze: (.*)", text, re.M):
            for key in json.loads(frozen):
                assert np.array_equal(arrays[key], constants[key]), (name, key)


@suite.test
def unsupported_calls_are_refused_by_name_and_place():
    """Without that function in PyTorch, what calls it is left out."""
    if importlib.util.find_spec("torch") is None:
        return "python3-torch is not installed"
    import torch, traced_nets
    e, all_there = exporter(), has_torch()
    nets = [(traced_nets.Calls(then), ["x:f32:3x4"], says) for then, says in traced_nets.REFUSED]
    nets += [(torch.nn.Sequential(make()), ["x:f32:3x4"], says) for make, says in traced_nets.ENCODERS]
    nets += [(make(), ["x:f32:3x4"], says) for make, says in traced_nets.SHARED]
    nets += [(make(), ["x:f32:3x4", "lengths:i64"], says) for make, says in traced_nets.MASKS]
    for net, inputs, says in nets:
        try:
            e.traced(net, [e.input_of(i) for i in inputs])
            found = "taken"
        except e.Unsupported as why:
            found = str(why)
        assert re.search(says, found) or not all_there and "no attribute 'scaled_dot" in found, (says, found)
    for text, inputs, says in (("x:f64:3", None, r"expected NAME:f32:3x8x8"), ("", [], r"needs --input NAME")):
        try:
            e.input_of(text) if inputs is None else e.traced(traced_nets.net("gpt"), inputs)
            found = "taken"
        except e.Unsupported as why:
            found = str(why)
        assert re.search(says, found), (says, found)


with Cluster(1) as cluster:
    suite.main()
