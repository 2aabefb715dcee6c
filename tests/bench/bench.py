#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Speed and memory as ratios against peers measured in the same run; harness.py says how.

usage: bench.py OUT [ROW...]      OUT holds cleave-worker, cleave-master and bench/; default: all
rows
"""
import os
import subprocess
import sys

from harness import (GIB, MIB, OUT, enter, interleave, main, mean_step, median, median_step,
                     peak_until_end, program, resident, torch)
from cluster import Cluster, write_npy


class LinkPair:
    """Two processes that hold a clv_link, the dialling one in front."""

    def __init__(self, certs, lanes=4):
        self.server = program("bench_link", "serve", certs, "w1")
        self.client = program("bench_link", "dial", certs, "master", self.server.first,
                              "spiffe://test/w1", str(lanes))
        self.ask = self.client.ask

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.server.close()


# ---- messages ------------------------------------------------------------------------------------

def rpc_echo():
    with Cluster(1) as c, LinkPair(c.certs) as ours, \
            program("bench_echo", c.certs, "master", "w1") as bare, torch("torch_rpc.py", "echo") as t:
        sides = [lambda: median(ours.ask("ping 2000")), lambda: median(bare.ask("ping 2000")),
                 lambda: median(t.ask("ping 500"))]
        found = interleave(sides)
        enter("rpc_empty_vs_bare_echo", "us", [((o, b), f) for (o, b, _), f in found], 1.3)
        enter("rpc_empty_vs_torch_rpc", "us", [((o, p), f) for (o, _, p), f in found], 0.25)


def tensors():
    """The strongest raw peer: which batch is best depends on caches and on how dear a wake-up is,
    so two sizes run and the better one counts, round by round."""
    with Cluster(1) as c, LinkPair(c.certs) as ours, \
            program("bench_tls", "64", c.certs, "master", "w1") as small, \
            program("bench_tls", "256", c.certs, "master", "w1") as large, \
            program("bench_tls", "0", c.certs, "master", "w1") as naive:
        for size, repeat, name in ((16, 16, "tensor_16m_vs_raw_tls"), (64, 6, "tensor_64m_vs_raw_tls")):
            command = f"tensor {size * MIB} {repeat}"
            rates = [lambda side=side: size * MIB / GIB / median(side.ask(command))
                     for side in (ours, small, large, naive)]
            found = [((o, max(s, b), n), f) for (o, s, b, n), f in interleave(rates)]
            enter(name, "GiB/s", [((o, b), f) for (o, b, _), f in found], 0.80, False)
            enter(name.replace("vs_raw_tls", "sanity_batched_vs_naive"), "GiB/s",
                  [((b, n), f) for (_, b, n), f in found], 1.2, False, "the peer is a strong one")


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
    """cut: how many layers stay on the master; None: all."""
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
    with Cluster(1) as c, program("bench_train", mlp_session(c)) as ours, \
            torch("torch_rpc.py", "mlp") as peer:
        found = interleave([mean_step(ours, 2000), mean_step(peer, 200)])
        enter("mlp_split_steps_vs_torch_rpc", "it/s", [((1e3 / o, 1e3 / p), f) for (o, p), f in found],
              8, False)


def contexts():
    """Programs on the public API. PyTorch's step has the loss at hand, so ours reads it as well."""
    with Cluster(1) as c, program("bench_context", "mlp", c.session("mlp", "")) as ours, \
            torch("torch_rpc.py", "mlp") as peer:
        found = interleave([median_step(ours, 1000), median_step(peer, 200)])
        enter("context_step_vs_torch_dist_autograd", "ms", found, 0.2)
    with Cluster(3) as c, program("bench_context", "lstm", c.session("lstm", "transfer: direct\n")) as ours, \
            torch("torch_lstm.py") as peer:
        found = interleave([median_step(ours, 50), median_step(peer, 50)])
        enter("seed001_lstm_three_workers_vs_torch_unsplit", "ms", found, 1.0)


def cnn():
    """The split rows are ours against ours: the network of the PyTorch row, whose second
    convolution alone is most of the work, and one that a cut can halve."""
    with Cluster(1) as c, program("bench_train", cnn_session(c, "whole")) as whole, \
            program("bench_train", cnn_session(c, "split", *CUT)) as split, \
            torch("torch_cnn.py") as peer:
        found = interleave([median_step(s, 20) for s in (whole, split, peer)])
        enter("cnn_unsplit_vs_torch", "ms", [((w, p), f) for (w, _, p), f in found], 0.65)
        enter("cnn_split2_vs_own_unsplit", "ms", [((s, w), f) for (w, s, _), f in found], 0.7, True,
              "cut after layer %d, %d micro-batches" % CUT)
    with Cluster(1) as c, program("bench_train", cnn_session(c, "whole", net=DEEP)) as whole, \
            program("bench_train", cnn_session(c, "split", *DEEP_CUT, net=DEEP)) as split:
        found = interleave([median_step(s, 20) for s in (split, whole)])
        enter("deep_cnn_split2_vs_own_unsplit", "ms", found, 0.7, True,
              "cut after layer %d, %d micro-batches" % DEEP_CUT)


CUT, DEEP_CUT = (3, 2), (6, 8)


def resnet():
    """Against the better of PyTorch's two layouts, round by round. What stays of the memory: peak
    less what is resident before the network is made."""
    shape = "16", "128", "1"
    with program("bench_resnet", *shape) as ours, torch("torch_resnet.py", *shape) as planes, \
            torch("torch_resnet.py", *shape, "channels_last") as last:
        sides = ours, planes, last
        if "avx512_bf16" in open("/proc/cpuinfo").read():
            with program("bench_resnet", *shape, "bf16") as halves:
                resnet_bf16(halves, planes, last)
        for unit, name in (("steps", ""), ("cpu", "_cpu")):
            found = interleave([lambda side=side: median(side.ask(f"{unit} 3")) for side in sides])
            enter(f"resnet50_graph_1t{name}_vs_torch", "ms",
                  [((o, min(p, q)), f) for (o, p, q), f in found], 0.8)
        mine, *peers = [peak - idle for idle, peak in (side.ask("rss") for side in sides)]
        enter("resnet50_graph_rss_vs_torch", "MiB", [((mine, min(peers)), 0.0)], 0.5)


def resnet_bf16(ours, *peers):
    """Our convolutions in bf16 against PyTorch in f32."""
    for unit, name in (("steps", ""), ("cpu", "_cpu")):
        found = interleave([lambda side=side: median(side.ask(f"{unit} 3"))
                            for side in (ours, *peers)])
        enter(f"resnet50_bf16{name}_vs_torch_fp32", "ms",
              [((o, min(p)), f) for (o, *p), f in found], 0.5)
    mine, *theirs = [peak - idle for idle, peak in (side.ask("rss") for side in (ours, *peers))]
    enter("resnet50_bf16_rss_vs_torch_fp32", "MiB", [((mine, min(theirs)), 0.0)], 0.5)


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
    enter("worker_rss_vs_torch_rpc_worker", "MiB", samples, 0.5)


def master_memory():
    """A real cleave-master whose stages are all elsewhere, while it drives training."""
    samples = []
    for _ in range(3):
        with Cluster(1) as c:
            session = mlp_session(c)
            with open(session) as f:
                text = f.read().replace("at: master", "at: w1").replace("{kind: bce}", "{kind: bce, at: w1}")
            with open(session, "w") as f:
                f.write(text + "privacy: {raw_input_leaves: true, labels_leave: true}\n")
            process = subprocess.Popen([os.path.join(OUT, "cleave-master"), "train", session,
                                        "--max-steps", "3000", "--set", "train.epochs=1000"],
                                       cwd=c.dir, stdout=subprocess.DEVNULL)
            samples.append(((peak_until_end(process), 1.0), 0.0))
    enter("master_idle_rss", "MiB", samples, 30, True, "cleave-master, all stages on a worker")


if __name__ == "__main__":
    main([rpc_echo, tensors, mlp, contexts, cnn, resnet, worker_memory, master_memory], sys.argv[2:])
