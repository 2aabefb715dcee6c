# SPDX-License-Identifier: Apache-2.0
"""Compares the device memory of a stage in `plan` with the maximum that the worker charged. The
worker's device is simulated, the master has none."""
import hashlib, json, os, re, struct, sys, tempfile, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *

lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
suite = Suite()
MIB = 1 << 20
LOAN = 32 * MIB  # maximum workspace of a plan for cuBLASLt, CLV_CUDA_MATMUL_MAX_WORKSPACE
# Allowed error of plan: workspaces of the simulated libraries, and values that exist at once.
SMALL = 16 << 10

ROWS = "{op: reshape, shape: [12, 12]}, {op: linear, out: 16, name: x}"
NETS = {
    "mlp": "{op: flatten}, {op: linear, out: 96}, {op: relu}, {op: linear, out: 48}, {op: gelu}, {op: linear, out: 10}",
    "adapters": "{op: flatten}, {op: linear, out: 256, name: a}, {op: relu}, {op: linear, out: 256, name: b}, {op: gelu}, "
                "{op: linear, out: 256, name: c}, {op: relu}, {op: linear, out: 10, name: d}",
    "cnn": "{op: conv2d, out: 6, kernel: 3, pad: 1}, {op: batchnorm}, {op: relu}, {op: maxpool, kernel: 2}, "
           "{op: conv2d, out: 8, kernel: 3, pad: 1}, {op: relu}, {op: flatten}, {op: linear, out: 10}",
    "lstm": f"{ROWS}, {{op: lstm, out: 24, layers: 2}}, {{op: mean, dim: 1}}, {{op: linear, out: 10}}",
    "transformer": f"{ROWS}, {{op: attention, heads: 2, p: 0.1, name: a, from: [x, x, x]}}, {{op: linear, out: 16, name: o}}, "
                   "{op: add, from: [o, x], name: r}, {op: layernorm}, {op: linear, out: 32}, {op: gelu}, {op: linear, out: 16}, "
                   "{op: mean, dim: 1}, {op: linear, out: 10}",
}


def body(net, dtype, more=""):
    return (f"{IMAGE_DATA}privacy: {{raw_input_leaves: true}}\n"
            f"stages:\n  - {{name: all, at: w1, device: cuda, layers: [{NETS[net]}]{more}}}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 1, max_steps: 3, batch: 32, seed: {SEED}, dtype: {dtype}, optimizer: {{kind: adam, lr: 0.003}}}}\n"
            f"pipeline: {{micro_batches: 2}}\nlog: {{every: 1}}\ncheckpoint: {{every_steps: 100000}}\n")


def peak(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        return int(float(re.search(r"^cleave_worker_device_memory_peak_bytes{.*} (\S+)$", page.read().decode(), re.M)[1]))


def planned_and_charged(net, dtype, limits, more=""):
    """(plan's figures of the stage, maximum of the device's account)"""
    port = free_port()
    with Cluster(1, limits=f"device: cuda\nmetrics: {{listen: \"127.0.0.1:{port}\"}}\n{limits}") as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        path = c.session(net, body(net, dtype, more))
        shown = master("plan", path, "--json", cwd=c.dir)
        assert shown.returncode == 0, shown.stderr
        done = c.train(path, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(shown.stdout)["stages"][0], peak(port)


@suite.test
def planned_device_memory_matches_the_charge():
    """Except for the memory of one call, which is taken if a forward is prepared before the
    backward ahead of it has ended, and for cuDNN's space of an LSTM, which plan only estimates."""
    for net in NETS:
        if net == "adapters":
            continue
        for dtype in ("f32", "bf16") if LONG or net == "lstm" else ("f32",):
            stage, charged = planned_and_charged(net, dtype, "cuda: {graphs: false}\n")
            off, call = charged - stage["memory_bytes"], stage["activation_bytes"] // 2
            reserve = stage["library_workspace_bytes"] % LOAN if (net, dtype) == ("lstm", "f32") else 0
            assert -call - SMALL <= off <= SMALL + reserve, (net, dtype, off, stage, charged)


def base_of_layers(folder):
    """Writes an artifact with the parameters of the net except the adapters."""
    header, at = {}, 0
    for layer, out, features in (("a", 256, 144), ("b", 256, 256), ("c", 256, 256), ("d", 10, 256)):
        for name, shape in ((f"{layer}.weight", [out, features]), (f"{layer}.bias", [out])):
            size = 4 * shape[0] * (shape + [1])[1]
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "base.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + struct.pack(f"<{at // 4}f", *(0.01 * (i % 23 - 11) for i in range(at // 4))))
    with open(os.path.join(folder, "base.safetensors"), "rb") as f:
        return f.name, hashlib.sha256(f.read()).hexdigest()


@suite.long
def planned_adapter_memory_matches_the_charge():
    """With a base in either type. The memory for a widened weight is included; of a base that the
    worker shares between sessions, no copy in another type stays."""
    with tempfile.TemporaryDirectory() as folder:
        file, digest = base_of_layers(folder)
        offer = f"artifacts:\n  base: {{file: {file}, sha256: {digest}}}\n"
        for base, dtype, more in [("bf16", "f32", ""), ("bf16", "bf16", ""), ("f32", "bf16", f", weights: {{artifact: base, sha256: {digest}}}")]:
            lora = f", lora: {{targets: [a, b, c], r: 2, base: {base}}}{more}"
            stage, charged = planned_and_charged("adapters", dtype, "cuda: {graphs: false}\n" + offer, lora)
            off, call = charged - stage["memory_bytes"], stage["activation_bytes"] // 2
            assert -call - SMALL <= off <= SMALL, (base, dtype, off, stage, charged)


@suite.test
def plan_says_which_memory_a_stage_uses():
    with Cluster(1) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        on_device = c.session("device", body("mlp", "f32"))
        said = master("plan", on_device, cwd=c.dir).stdout
        assert re.search(r"computes on cuda: its bits are those of such devices, and so is its memory; libraries may use up to "
                         r"64.0 MiB more", said), said
        shown = json.loads(master("plan", on_device, "--json", cwd=c.dir).stdout)["stages"][0]
        here = c.session("processor", body("mlp", "f32").replace("device: cuda", "device: cpu"))
        other = json.loads(master("plan", here, "--json", cwd=c.dir).stdout)["stages"][0]
        parts = [n for key, n in shown.items() if key.endswith("_bytes") and key not in ("memory_bytes", "library_workspace_bytes", "borrowed_bytes")]
        assert shown["memory_bytes"] == sum(parts) and shown["evaluation_bytes"] > 0, shown
        assert other["library_workspace_bytes"] == other["kept_bytes"] == other["evaluation_bytes"] == 0, other


def facts_of(stage):
    """The facts of a stage that depend on the device."""
    return {k: v for k, v in stage.items() if k.endswith("_bytes") or k == "fallback_layers"}


def on_two(devices):
    """A session with stages at the master and at two workers with these devices."""
    places = ["at: master", *(f"at: w{i}, device: {d}" for i, d in enumerate(devices, 1))]
    stages = "".join(f"  - {{name: s{i}, {at}, layers: [{{op: flatten}}, {{op: linear, out: 12}}, {{op: gelu}}]}}\n"
                     for i, at in enumerate(places))
    return re.sub(r"(?s)stages:\n.*?(?=loss:)", f"stages:\n{stages}", body("mlp", "f32"))


@suite.test
def plan_ask_resolves_device_auto_per_worker():
    """One of two workers has a device and the file names none: the figures are those of the
    backends that will compute."""
    with Cluster(2, limits="device: cuda\n") as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        c.limits = "device: cpu\n"
        c.restart(0)
        auto, known = c.session("auto", on_two(("auto", "auto"))), c.session("known", on_two(("cpu", "cuda")))
        def stages_of(path, *options):
            done = master("plan", path, "--json", *options, cwd=c.dir)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.splitlines()[0])["stages"]
        unasked, asked, named = stages_of(auto), stages_of(auto, "--ask"), stages_of(known)
        assert [s["computes_on"] for s in unasked] == [None] * 3 and not unasked[2]["kept_bytes"], unasked
        assert [s["computes_on"] for s in asked] == ["cpu", "cpu", "cuda:0"], asked
        assert [facts_of(s) for s in asked] == [facts_of(s) for s in named] != [facts_of(s) for s in unasked], (asked, named)
        said = master("plan", auto, "--ask", cwd=c.dir).stdout
        assert re.findall(r"computes on (\S+): its bits", said) == ["cuda:0"] and "stage 's2' computes on cuda:0 of w2" in said, said
        c.workers[1].stop()
        alone = master("plan", auto, "--ask", cwd=c.dir)
        assert alone.returncode == 4 and "worker w2" in alone.stderr and "leaves the private network" in alone.stdout, alone


suite.main()
