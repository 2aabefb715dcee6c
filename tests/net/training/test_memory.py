#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""For a model whose weights dominate, master and workers use the memory of their own tensors, and
never 20 % more. The needed bytes are computed from the headers of the weight files; the used bytes
are the processes' anonymous memory beyond that of a worker without a session."""
import json, os, struct, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
MOST = 1.2  # maximum memory, relative to the bytes of a node's own tensors
BATCH, IMAGE = 8, 144
# (place, widths of its linear layers) of each stage. Both models have about equal bytes at each
# node; in WIDE, w2 has its weights in bf16.
SMALL = [("master", [IMAGE, 2304, 3072]), ("w1", [3072, 2304]), ("w2", [2304, 3072]), ("master", [3072, 10])]
WIDE = [("master", [IMAGE, 4096, 5120]), ("w1", [5120, 4096, 2048]), ("w2", [2048] * 11), ("master", [2048, 10])]
cluster = None


def linears(model):
    """[[(name, inputs, outputs) of each layer] of each stage]"""
    return [[(f"block{i}.{k}", n, out) for k, (n, out) in enumerate(zip(widths, widths[1:]))]
            for i, (_, widths) in enumerate(model)]


def pretrained(folder, model):
    """Writes a file for each stage, and the index. The numbers are zeros that take no space on the
    disk."""
    os.makedirs(folder)
    index = {}
    for i, stage in enumerate(linears(model)):
        header, at, file = {}, 0, f"model-0000{i + 1}-of-0000{len(model)}.safetensors"
        for name, n, out in stage:
            for tensor, shape in ((name + ".weight", [out, n]), (name + ".bias", [out])):
                bytes_ = 4 * out * (n if len(shape) > 1 else 1)
                header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + bytes_]}
                index[tensor], at = file, at + bytes_
        text = json.dumps(header).encode()
        with open(os.path.join(folder, file), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": index}, f)
    return json.loads(master("artifact", folder, "--json").stdout)["sha256"]


def bytes_of(folder, model):
    """{node: bytes of its tensors}, by the headers of the files."""
    found = {}
    for i, (at, _) in enumerate(model):
        with open(os.path.join(folder, f"model-0000{i + 1}-of-0000{len(model)}.safetensors"), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        found[at] = found.get(at, 0) + sum(t["data_offsets"][1] - t["data_offsets"][0] for t in header.values())
    return found


def values_of(model):
    """{node: maximum bytes of values and their gradients}"""
    found = {}
    for at, widths in model:
        found[at] = found.get(at, 0) + 4 * BATCH * 2 * sum(2 * w for w in widths)
    return found


def adapters_of(model, r):
    """{node: bytes of adapters, with gradients and both moments of AdamW}"""
    found = {}
    for (at, _), stage in zip(model, linears(model)):
        found[at] = found.get(at, 0) + 4 * 4 * r * sum(n + out for _, n, out in stage)
    return found


def body(model, own, steps, more=""):
    text = IMAGE_DATA + "stages:\n"
    for i, ((at, _), stage) in enumerate(zip(model, linears(model))):
        layers = ["{op: flatten}" if i == 0 else "{op: relu}"]
        layers += [f"{{op: linear, out: {out}, name: {name}}}" for name, _, out in stage]
        text += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(layers)}]{own[i]}}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{max_steps: {steps}, batch: {BATCH}, eval_batch: {BATCH}, seed: {SEED},"
                   " optimizer: {kind: adamw, lr: 0.001}}\ncheckpoint: {every_steps: 100}\n" + more)


def memory(pid, key):
    """The bytes in a row of /proc/PID/status; 0 if the process has ended."""
    with open(f"/proc/{pid}/status") as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":")), 0)


def anonymous(pid):
    return memory(pid, "RssAnon")


class Watch(threading.Thread):
    """The maximum memory of each process, measured every few milliseconds."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.most, self.over, self.looks = pids, dict.fromkeys(pids, 0), False, 0

    def run(self):
        while not self.over:
            for name, pid in self.pids.items():
                try:
                    self.most[name] = max(self.most[name], anonymous(pid))
                except OSError:
                    pass  # it has ended
            self.looks += 1
            time.sleep(0.004)


def held(command, session, *args):
    """{node: maximum memory during a command, beyond that of an idle worker}. Starts the workers
    first."""
    for i in range(len(cluster.workers)):
        cluster.restart(i)
    idle = [anonymous(w.process.pid) for w in cluster.workers]
    assert max(idle) < 10 << 20, idle  # Debian 13: 8.4 MB; Debian 12: 3.1
    done = subprocess.Popen([MASTER, command, session, *args], cwd=cluster.dir, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    watch = Watch({"master": done.pid, **{f"w{i + 1}": w.process.pid for i, w in enumerate(cluster.workers)}})
    watch.start()
    said = done.communicate(timeout=240 * SLOW)[0]
    watch.over = True
    watch.join()
    assert done.returncode == 0, said
    assert watch.looks > 50, watch.looks
    return {name: most - min(idle) for name, most in watch.most.items()}


def judge(what, found, need):
    print("  " + what + ": " + ", ".join(f"{n} {found[n] / 1e6:.1f} of {need[n] / 1e6:.1f} MB ({found[n] / need[n]:.2f})" for n in need), flush=True)
    for node, bytes_ in need.items():
        assert 0.9 * bytes_ < found[node] <= MOST * bytes_, f"{what}: {node} holds {found[node]} bytes, its own tensors need {bytes_}"


def added(*parts):
    return {node: sum(p[node] for p in parts) for node in parts[0]}


def times(n, part):
    return {node: n * bytes_ for node, bytes_ in part.items()}


def offer(folder, digest):
    cluster.limits = f"artifacts:\n  base: {{folder: {folder}, sha256: {digest}}}\n"


@suite.test
def training_memory_is_parameters_gradients_and_moments():
    """One worker begins with its artifact, the other one with what the master sends; a checkpoint
    is written, and in `make long` gone on from."""
    folder = os.path.join(cluster.dir, "small")
    digest = pretrained(folder, SMALL)
    offer(folder, digest)
    own = f", weights: {{folder: {folder}}}"
    weights = [own, f", weights: {{artifact: base, sha256: {digest}}}", own, own]
    need = added(times(4, bytes_of(folder, SMALL)), values_of(SMALL))
    judge("training", held("train", cluster.session("small", body(SMALL, weights, 2))), need)
    if not LONG:
        return
    session = cluster.session("small", body(SMALL, weights, 3))
    judge("going on", held("train", session, "--resume"), need)
    evaluation, need = held("eval", session), bytes_of(folder, SMALL)
    # neither gradients nor moments; what is no tensor is a third of so little
    assert all(evaluation[w] < 2 * need[w] for w in ("w1", "w2")), (evaluation, need)


@suite.test
def idle_master_stays_below_30_mib():
    """All stages and the loss are at a worker, so the master only reads records and directs. The
    files of its libraries count as well; other versions of oneDNN than 2 are larger."""
    stage = "stages:\n  - {name: s, at: w1, layers: [{op: flatten}, {op: linear, out: 10}]}\n"
    train = f"train: {{max_steps: 400, batch: {BATCH}, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.1}}}}\n"
    session = cluster.session("idle", IMAGE_DATA + stage + "loss: {kind: cross_entropy, at: w1}\n" + train,
                              READABLE + ", raw_input_leaves: true, labels_leave: true")
    done = subprocess.Popen([MASTER, "train", session], cwd=cluster.dir, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    peak = own = 0
    while done.poll() is None:
        own, peak = max(own, anonymous(done.pid)), max(peak, memory(done.pid, "VmHWM"))
        time.sleep(0.01)
    assert done.returncode == 0
    print(f"  an idle master: {peak / (1 << 20):.1f} MiB, {own / (1 << 20):.1f} of them its own", flush=True)
    has_onednn_2 = os.path.exists("/usr/lib/x86_64-linux-gnu/libdnnl.so.2")
    assert 1 << 20 < own < (8 if has_onednn_2 else 12) << 20, own
    assert peak < 30 << 20 or not has_onednn_2, peak


@suite.long
def frozen_weights_take_only_their_values():
    folder = os.path.join(cluster.dir, "wide")
    digest = pretrained(folder, WIDE)
    offer(folder, digest)
    own, there = f", weights: {{folder: {folder}}}", f", weights: {{artifact: base, sha256: {digest}}}"
    lora = [", lora: {r: 4, targets: [%s]}" % ", ".join(name for name, _, _ in stage) for stage in linears(WIDE)]
    lora[2] = lora[2].replace("r: 4", "r: 4, base: bf16")
    session = cluster.session("wide", body(WIDE, [w + l for w, l in zip((own, there, there, own), lora)], 2))
    base = added(bytes_of(folder, WIDE), values_of(WIDE))
    base["w2"] -= sum(2 * n * out for _, n, out in linears(WIDE)[2])
    judge("adapters", held("train", session), added(base, adapters_of(WIDE, 4)))
    judge("an evaluation", held("eval", session), added(base, adapters_of(WIDE, 4)))


if SANITIZED:
    print("skip test_memory: a sanitizer's memory is not the program's")
else:
    with Cluster(2) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), 64, 16)
        suite.main()
