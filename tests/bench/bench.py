#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Speed and memory as ratios against peers measured in the same run; harness.py says how.

usage: bench.py OUT [ROW...]      OUT holds cleave-worker, cleave-master and bench/; default: all
rows
"""
import contextlib
import os
import subprocess
import sys

from harness import (GIB, MIB, OUT, enter, interleave, main, mean_step, median, median_step, own,
                     mean, peak_until_end, program, resident, skip, torch, twins)
from machine import STEP, print_kernels, print_machine
from torch_peers import LAYOUTS, Peers
from cluster import Cluster, write_npy
from processor import lacks_bf16
from wire_rows import LinkPair, sizes, tensors


# ---- messages ------------------------------------------------------------------------------------

def rpc_echo():
    with Cluster(1) as c, twins(lambda: LinkPair(c.certs)) as ours, contextlib.ExitStack() as stack:
        # PyTorch's processes start slowly, and the echo's link would be idle meanwhile
        peers = Peers(stack, "torch_rpc.py", "echo")
        bare = stack.enter_context(program("bench_echo", c.certs, "master", "w1"))
        found = interleave([lambda: median(ours.ask("ping 2000")), lambda: median(bare.ask("ping 2000")),
                            *peers.asking(median, "ping 500")])
        enter("rpc_empty_vs_bare_echo", "us", [((o, b), f) for (o, b, *_), f in found], 1.3)
        samples, note = peers.best(found)
        enter("rpc_empty_vs_torch_rpc", "us", samples, 0.25, note=note)


# ---- training ------------------------------------------------------------------------------------

def mlp_session(c):
    import random
    import struct
    r = random.Random(40)
    folder = os.path.join(c.dir, "data")
    os.makedirs(folder, exist_ok=True)
    write_npy(os.path.join(folder, "x.npy"), (320, 16), "<f4",
              struct.pack("<5120f", *(r.random() for _ in range(5120))))
    write_npy(os.path.join(folder, "y.npy"), (320, 1), "<f4",
              struct.pack("<320f", *(r.randrange(2) for _ in range(320))))
    return c.session("mlp", "data: {format: npy, root: data, train: [x.npy, y.npy]}\n"
                     "stages:\n  - {name: a, at: master, layers: [{op: linear, out: 8}, {op: relu}]}\n"
                     "  - {name: b, at: w1, layers: [{op: linear, out: 1}, {op: sigmoid}]}\n"
                     "loss: {kind: bce}\ntrain: {batch: 32, shuffle: false, optimizer: {kind: sgd, lr: 0.5}}\n")


CNN = ["{op: conv2d, out: 32, kernel: 3, pad: 1}", "{op: relu}", "{op: maxpool, kernel: 2}",
       "{op: conv2d, out: 64, kernel: 3, pad: 1}", "{op: relu}", "{op: maxpool, kernel: 2}",
       "{op: flatten}", "{op: linear, out: 128}", "{op: relu}", "{op: linear, out: 10}"]


DEEP = CNN[:6] + ["{op: conv2d, out: 128, kernel: 3, pad: 1}", "{op: relu}", "{op: globalavgpool}",
                  "{op: flatten}", "{op: linear, out: 10}"]


def cnn_session(c, name, cut=None, micro=1, schedule="gpipe", net=None):
    """cut: the number of layers that stay on the master; None: all."""
    net = net or CNN
    parts = [("master", net)] if cut is None else [("master", net[:cut]), ("w1", net[cut:])]
    stages = "".join(f"  - {{name: s{i}, at: {at}, threads: 1, layers: [{', '.join(layers)}]}}\n"
                     for i, (at, layers) in enumerate(parts))
    return c.session(name, "data:\n  format: idx\n  root: /usr/share/datasets/fashion-mnist\n"
                     "  train: [train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz]\n"
                     "  limit_train: 2048\n  normalize: {mean: [0.2860], std: [0.3530]}\n"
                     f"stages:\n{stages}loss: {{kind: cross_entropy}}\n"
                     "train: {batch: 64, shuffle: false, optimizer: {kind: adam, lr: 0.001}}\n"
                     f"pipeline: {{micro_batches: {micro}, schedule: {schedule}}}\n")


def mlp():
    with Cluster(1) as c, own("bench_train", mlp_session(c)) as ours, contextlib.ExitStack() as stack:
        peers = Peers(stack, "torch_rpc.py", "mlp")
        samples, note = peers.best(interleave([mean_step(ours, 2000), *peers.asking(mean, "steps 200")]))
        enter("mlp_split_steps_vs_torch_rpc", "it/s", [((1e3 / o, 1e3 / p), f) for (o, p), f in samples],
              8, False, note)


def contexts():
    """Programs on the public API. PyTorch's step knows the loss, so ours fetches it as well.
    PyTorch cannot revert a step, and ends a context without waiting for an answer: the row `final`
    is our program with no more than that."""
    for row, how, target in (("context_step", (), 0.2), ("final_context_step", ("final",), 0.1)):
        with Cluster(1) as c, own("bench_context", "mlp", c.session("mlp", ""), *how) as ours, \
                contextlib.ExitStack() as stack:
            peers = Peers(stack, "torch_rpc.py", "mlp")
            samples, note = peers.best(interleave([median_step(ours, 1000), *peers.asking(median, "steps 200")]))
            enter(f"{row}_vs_torch_dist_autograd", "ms", samples, target, note=note)
    with Cluster(3) as c, contextlib.ExitStack() as stack, \
            own("bench_context", "lstm", c.session("lstm", "transfer: direct\n")) as ours:
        peers = Peers(stack, "torch_lstm.py")
        samples, note = peers.best(interleave([median_step(ours, 50), *peers.asking(median, "steps 50")]))
        enter("seed001_lstm_three_workers_vs_torch_unsplit", "ms", samples, 1.0, note=note)


def cnn():
    """The rows of split networks compare our split run with our unsplit one: for the network of the
    PyTorch row, whose second convolution alone is most of the work, and for one that a cut can
    halve."""
    with Cluster(1) as c, own("bench_train", cnn_session(c, "whole")) as whole, \
            own("bench_train", cnn_session(c, "split", *CUT)) as split, contextlib.ExitStack() as stack:
        peers = Peers(stack, "torch_cnn.py", layouts=LAYOUTS)
        found = interleave([median_step(s, 20) for s in (whole, split)] + peers.asking(median, "steps 20"))
        samples, note = peers.best(found)
        enter("cnn_unsplit_vs_torch", "ms", samples, 0.65, note=note)
        enter("cnn_split2_vs_own_unsplit", "ms", [((s, w), f) for (w, s, *_), f in found], 0.7, True,
              "cut after layer %d, %d micro-batches" % CUT)
    with Cluster(1) as c, own("bench_train", cnn_session(c, "whole", net=DEEP)) as whole, \
            own("bench_train", cnn_session(c, "split", *DEEP_CUT, net=DEEP)) as split:
        found = interleave([median_step(s, 20) for s in (split, whole)])
        enter("deep_cnn_split2_vs_own_unsplit", "ms", found, 0.7, True,
              "cut after layer %d, %d micro-batches" % DEEP_CUT)


CUT, DEEP_CUT = (3, 2), (6, 8)


RESNET = STEP  # batch, side, threads


def resnet():
    """In f32 and in bf16, each against PyTorch's best in the same type; ours in bf16 also against
    PyTorch's best in f32, because a processor without bf16 has only that."""
    print_kernels(OUT)
    with own("bench_resnet", *RESNET) as ours, contextlib.ExitStack() as stack:
        peers = Peers(stack, "torch_resnet.py", *RESNET, layouts=LAYOUTS)
        resnet_rows("graph_1t", "vs_torch", (0.8, 0.5), ours, peers)
        if lacks_bf16():
            return skip("resnet50_bf16", lacks_bf16())
        with own("bench_resnet", *RESNET, "bf16") as halves:
            resnet_rows("bf16", "vs_torch_fp32", (0.5, 0.5), halves, peers)
            stack.close()
            cast = Peers(stack, "torch_resnet.py", *RESNET, "bf16", layouts=LAYOUTS)
            resnet_rows("bf16", "vs_torch_bf16", (0.8, 0.8), halves, cast)
            stack.close()


def resnet_rows(name, peer, targets, ours, peers):
    """targets: of time and of memory. Rows for the time and the processor time of a step, and for
    the memory that the network takes: the peak less what is resident before the network is made,
    against PyTorch's smallest."""
    for unit, clock in (("steps", ""), ("cpu", "_cpu")):
        found = interleave([lambda: median(ours.ask(f"{unit} 3")), *peers.asking(median, f"{unit} 3")])
        samples, note = peers.best(found)
        enter(f"resnet50_{name}{clock}_{peer}", "ms", samples, targets[0], note=note)
    peak = lambda side: (lambda idle, most: most - idle)(*side.ask("rss"))
    theirs = {peak(side): which for which, side in peers.sides.items()}
    enter(f"resnet50_{name.removesuffix('_1t')}_rss_{peer}", "MiB", [((peak(ours), min(theirs)), 0.0)],
          targets[1], note=f"peer: {theirs[min(theirs)]}", timed=False)


# ---- memory --------------------------------------------------------------------------------------

def worker_memory():
    samples = []
    for _ in range(3):
        with Cluster(1) as c:
            pid = c.workers[0].process.pid
            idle = resident(pid, "VmRSS")
            with program("bench_train", cnn_session(c, "memory", 3)) as ours:
                ours.ask("steps 60")
                mine = resident(pid, "VmHWM") - idle
        with torch("torch_rpc.py", "cnn") as peer:
            peer.ask("steps 60")
            before, peak = peer.ask("rss")
        samples.append(((mine, peak - before), 0.0))
    enter("worker_rss_vs_torch_rpc_worker", "MiB", samples, 0.5, timed=False)


def master_memory():
    """A real cleave-master that drives training and whose stages are all on workers."""
    samples = []
    for _ in range(3):
        with Cluster(1) as c:
            session = mlp_session(c)
            with open(session) as f:
                text = f.read().replace("at: master", "at: w1").replace("{kind: bce}", "{kind: bce, at: w1}")
            with open(session, "w") as f:
                f.write(text.replace("privacy: {", "privacy: {raw_input_leaves: true, labels_leave: true, "))
            process = subprocess.Popen([os.path.join(OUT, "cleave-master"), "train", session,
                                        "--max-steps", "3000", "--set", "train.epochs=1000"],
                                       cwd=c.dir, stdout=subprocess.DEVNULL)
            samples.append(((peak_until_end(process), 1.0), 0.0))
    enter("master_idle_rss", "MiB", samples, 30, True, "cleave-master, all stages on a worker", timed=False)


if __name__ == "__main__":
    print_machine(OUT)
    sys.exit(main([rpc_echo, tensors, sizes, mlp, contexts, cnn, resnet, worker_memory, master_memory], sys.argv[2:]))
