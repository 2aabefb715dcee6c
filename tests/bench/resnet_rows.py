# SPDX-License-Identifier: Apache-2.0
"""Rows of bench_pipeline.py: PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC".
ResNet50, cut behind layer2 onto two workers of one compute thread each, beside a master with the
data and the loss; 128x128, mean squared error against one-hot labels, SGD. Ours over mutual TLS,
PyTorch without."""
import contextlib
import json
import os
import re
import time

from harness import PYTHON, Meter, enter, interleave, median, program, refusal, resident, skip, torch
from torch_peers import LAYOUTS
from cluster import Cluster, run

CHUNKS = (1, 2, 4, 8)
HERE = os.path.dirname(os.path.abspath(__file__))
RANDOM_DATA = os.path.join(HERE, "../../deploy/random_data.py")
BF16 = "dtype: bf16, "  # the key of `train` that selects bf16
TICK = os.sysconf("SC_CLK_TCK")


# ---- our side ------------------------------------------------------------------------------------

def make_data(c, batch):
    """Writes one batch of records. The master copies them into a batch, so two copies are in
    memory, as on PyTorch's side."""
    done = run(PYTHON, RANDOM_DATA, os.path.join(c.dir, f"data{batch}"), "--samples", str(batch))
    assert done.returncode == 0, done.stderr


def session(c, name, batch, chunks=None, threads=1, dtype=""):
    """chunks: the number of micro-batches when split over the workers; None: all on the master."""
    places = [("w1", "conv1..layer2"), ("w2", "layer3..fc")] if chunks else [("master", "conv1..fc")]
    stages = "".join(f"  - {{name: p{i}, at: {at}, threads: {threads}, layers: {layers}}}\n"
                     for i, (at, layers) in enumerate(places, 1))
    return c.session(f"{name}-{batch}", f"data: {{format: npy, root: data{batch}, "
                     "train: [train-x.npy, train-y.npy]}\nmodel: {arch: resnet50, classes: 1000}\n"
                     f"stages:\n{stages}loss: {{kind: mse}}\nprivacy: {{raw_input_leaves: true}}\n"
                     f"train: {{{dtype}epochs: 1000, batch: {batch}, shuffle: false, "
                     "optimizer: {kind: sgd, lr: 0.05}}\ntransfer: direct\n"
                     f"pipeline: {{micro_batches: {chunks or 1}}}\n"
                     "limits: {step_timeout: 300s, receive_window: 256MiB}\nlog: {every: 1000}\n"
                     "checkpoint: {every_steps: 100000}\n")


def process_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / TICK


def unsplit_turn(name, side):
    return lambda: {name: median(side.ask("steps 1"))}


def split_turn(chunks, side, second):
    """One round of a split run. Workers may still be in a step when the master has ended its last
    one; their processor time counts."""
    def turn():
        before = process_seconds(second.pid)
        ms = median(side.ask("steps 1"))
        time.sleep(0.1)
        return {f"split{chunks}": ms, f"cpu{chunks}": process_seconds(second.pid) - before}
    return turn


def our_turns(stack, c, batch):
    make_data(c, batch)
    start = lambda *a, **k: stack.enter_context(program("bench_train", session(c, *a, **k)))
    turns = [unsplit_turn(f"own{n}", start(f"own{n}", batch, threads=n)) for n in (1, 2)]
    second = c.workers[1].process
    return turns + [split_turn(m, start(f"split{m}", batch, chunks=m), second) for m in CHUNKS]


# ---- PyTorch's side ------------------------------------------------------------------------------

def rpc_admission(name, chunks, side):
    return lambda: {f"{name}-rpc{chunks}": median(side.ask(f"steps 1 {chunks}"))}


def local_turn(name, threads, side):
    return lambda: {f"{name}-local{threads}": median(side.ask(f"steps 1 {threads}"))}


def torch_turns(stack, pythons, batch):
    """Sides: each PyTorch version unsplit in both layouts, and over RPC with the tutorial's
    layout."""
    turns = []
    for name, python in pythons.items():
        start = lambda *a: stack.enter_context(torch(*a, python=python))
        for layout in LAYOUTS:
            side = start("torch_resnet.py", str(batch), "128", "1", layout)
            turns += [local_turn(f"{name}-{layout}", n, side) for n in (1, 2)]
        side = start("torch_resnet_rpc.py", str(batch))
        turns += [rpc_admission(name, m, side) for m in CHUNKS]
    return turns


# ---- rows ----------------------------------------------------------------------------------------

class Rounds:
    """The figures of the sides, round by round: [({side: figure}, foreign share)]."""

    def __init__(self, turns, rounds):
        merged = lambda: {k: v for turn in turns for k, v in turn().items()}
        self.found = [(figures[0], foreign)
                      for figures, foreign in interleave([merged], rounds, rounds + rounds // 2)]

    def best(self, *endings):
        """The side with the smallest median among those whose name has one of these endings."""
        names = [n for n in self.found[0][0] if n.endswith(endings)]
        return min(names, key=lambda n: median(f[n] for f, _ in self.found))

    def pairs(self, ours, peer, scale=1):
        return [((f[ours] * scale, f[peer]), foreign) for f, foreign in self.found]


def speed_rows(r, tag):
    local1, local2 = r.best("local1"), r.best("local2")
    rpc, pipelined = r.best(*(f"rpc{m}" for m in CHUNKS)), r.best("split2", "split4", "split8")
    for name, ours, peer, target in (
            ("resnet50_unsplit_1t_vs_torch", "own1", local1, 0.8),
            ("resnet50_unsplit_2t_vs_torch", "own2", local2, 0.8),
            ("resnet50_split2_one_chunk_vs_own_unsplit", "split1", "own1", 1.03),
            ("resnet50_pipelined_vs_torch_rpc_best", pipelined, rpc, 0.6),
            ("resnet50_pipelined_vs_torch_unsplit_2t", pipelined, local2, 0.9),
            ("resnet50_sanity_torch_rpc_vs_its_unsplit", r.best("rpc1"), local1, 1.3),
            ("resnet50_sanity_torch_pipelined_vs_its_rpc", rpc, r.best("rpc1"), 1.0)):
        enter(name + tag, "ms", r.pairs(ours, peer), target, True, f"{ours} : {peer}")


def pipeline_rows(r, tag):
    for m in CHUNKS[1:]:
        enter(f"resnet50_efficiency_{m}_chunks_vs_ideal{tag}", "ms",
              r.pairs("own1", f"split{m}", (m + 1) / (2 * m)), 0.85, False,
              f"ideal: (m+1)/2m of unsplit on one thread; efficiency {m} chunks")
    enter(f"resnet50_worker2_cpu_8_chunks_vs_1{tag}", "s", r.pairs("cpu8", "cpu1"), 1.15)


def tutorial(batch, rounds, pythons):
    """Returns which of the pythons was the faster one, unsplit."""
    tag = "" if batch == 16 else f"_b{batch}"
    with Cluster(2) as c, contextlib.ExitStack() as stack:
        r = Rounds(our_turns(stack, c, batch) + torch_turns(stack, pythons, batch), rounds)
    speed_rows(r, tag)
    pipeline_rows(r, tag)
    return r.best("local1", "local2").split("-")[0]


# ---- against the simulator -----------------------------------------------------------------------

WARM, STEPS = 5, 9  # the window no longer changes after the fifth step


class Trace:
    """The compute and transfers of a run's later steps, seconds."""

    def __init__(self, path):
        with open(path) as f:
            events = json.load(f)["traceEvents"]
        self.spans, self.took, self.passed, begun = {}, {}, {}, {}
        for e in events:
            if e["ph"] == "e":
                key, at = begun.pop(e["id"], (None, 0))
                if key:
                    self.passed.setdefault(key, []).append((e["ts"] - at) * 1e-6)
            elif e["ph"] in "Xb" and e["args"]["step"] >= WARM:
                key = e["args"]["phase"], e["args"]["stage"]
                if e["ph"] == "b":
                    begun[e["id"]] = key, e["ts"]
                elif key[0] != "step":
                    self.add(key, e)

    def add(self, key, e):
        begin, end = e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6
        self.took.setdefault(key, []).append(end - begin)
        low, high = self.spans.get(e["args"]["step"], (begin, end))
        self.spans[e["args"]["step"]] = min(low, begin), max(high, end)

    def rounds(self):
        return [high - low for low, high in self.spans.values()]

    def costs(self, stage):
        """The arguments of bench_sched: times of forward, input gradient, weight gradient and step,
        then the latency of the cut and the transfer times on its link."""
        of = lambda phase: median(self.took.get((phase, stage), [0]))
        half, edge = of("backward") / 2, ("activation", stage)
        latency = median(self.passed.get(edge, [0]))
        return of("forward"), half + of("input gradient"), half + of("weight gradient"), 0, latency, 0, 0


def traced(c, chunks):
    path = os.path.join(c.dir, f"trace{chunks}.json")
    done = c.train(session(c, f"traced{chunks}", 16, chunks), "--trace", path, "--max-steps", str(STEPS),
                   timeout=600)
    assert done.returncode == 0, done.stderr
    windows = re.findall(r"^window (\d+)", done.stdout, re.M)
    return Trace(path), windows[-1] if windows else "0"


def simulated_rows():
    """Compares each run with a simulation that has the stage times measured in it."""
    with Cluster(2) as c, program("bench_sched") as sched:
        make_data(c, 16)
        for m in CHUNKS[1:]:
            with Meter() as meter:
                trace, window = traced(c, m)
            stages = " ".join(f"{rank} " + " ".join(f"{x:.9f}" for x in trace.costs(stage))
                              for stage, rank in enumerate((0, 1, 2)))
            seconds, _, _ = sched.ask(f"seconds 1f1b {window} {m} 3 {stages}")
            enter(f"resnet50_efficiency_{m}_chunks_vs_simulated", "s",
                  [((seconds, took), meter.foreign) for took in trace.rounds()], 0.9, False,
                  f"the simulator's round : the measured one, window {window}")


# ---- memory --------------------------------------------------------------------------------------

ROLES = ("master", "worker1", "worker2")


def idle_master():
    """Memory of a master that has almost nothing to do: its only layer is small and on a worker."""
    with Cluster(1) as c:
        done = run(PYTHON, RANDOM_DATA, os.path.join(c.dir, "data"), "--samples", "4", "--shape", "4",
                   "--classes", "4")
        assert done.returncode == 0, done.stderr
        with program("bench_train", c.session(
                "idle", "data: {format: npy, root: data, train: [train-x.npy, train-y.npy]}\n"
                "stages: [{name: a, at: w1, layers: [{op: linear, out: 4}]}]\nloss: {kind: mse}\n"
                "privacy: {raw_input_leaves: true}\n"
                "train: {batch: 4, optimizer: {kind: sgd, lr: 0.05}}\n")) as master:
            master.ask("steps 4")
            return resident(master.process.pid, "VmHWM")


def our_memory(chunks, idle):
    """MiB of each role above its idle memory."""
    with Cluster(2) as c:
        make_data(c, 16)
        pids = [w.process.pid for w in c.workers]
        before = [idle] + [resident(pid, "VmRSS") for pid in pids]
        with program("bench_train", session(c, "memory", 16, chunks)) as master:
            master.ask("steps 4")
            return [resident(pid, "VmHWM") - b for pid, b in zip([master.process.pid] + pids, before)]


def torch_memory(chunks):
    with torch("torch_resnet_rpc.py", "16") as peer:
        peer.ask(f"steps 4 {chunks}")
        return [peak - idle for idle, peak in peer.ask("rss")]


def memory_rows(chunk_counts):
    idle = idle_master()
    for chunks in chunk_counts:
        for role, ours, peer in zip(ROLES, our_memory(chunks, idle), torch_memory(chunks)):
            enter(f"resnet50_{role}_rss_{chunks}_chunks_vs_torch_rpc", "MiB", [((ours, peer), 0.0)], 0.5,
                  True, "peaks, idle sizes subtracted", timed=False)


# ---- bf16 ----------------------------------------------------------------------------------------

def cast_turns(stack, pythons):
    """Sides: PyTorch unsplit on one thread, every version and layout, in f32 and with autocast to
    bf16."""
    return [unsplit_turn(f"{name}-{layout}-{kind}", stack.enter_context(
                torch("torch_resnet.py", "16", "128", "1", layout, kind, python=python)))
            for name, python in pythons.items() for layout in LAYOUTS for kind in ("f32", "bf16")]


def bf16_rows(rounds, pythons):
    with Cluster(0) as c, contextlib.ExitStack() as stack:
        make_data(c, 16)
        path = session(c, "bf16", 16, dtype=BF16)
        wrong = refusal(c.dir, path)
        if wrong:
            return skip("resnet50_bf16_vs_torch", wrong)
        ours = stack.enter_context(program("bench_train", path))
        r = Rounds([unsplit_turn("ours", ours)] + cast_turns(stack, pythons), rounds)
    for kind, target, name in (("f32", 0.5, "fp32"), ("bf16", 0.8, "bf16")):
        peer = r.best("-" + kind)
        enter(f"resnet50_bf16_vs_torch_{name}", "ms", r.pairs("ours", peer), target, True,
              f"one thread each; peer: {peer}")
