#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the share of a training's time that checkpoints take while a worker keeps a shard of MIB
MiB, written every 10 s and with `every: auto`, which has to keep the share at 3 %. Measures the
rate of the disk before and after. A step is slower while the worker copies, writes, hashes and
syncs the file: the cost of a checkpoint is the excess over the mean of the steps before and after.

usage: checkpoint_cost.py [MIB [SECONDS]]     a shard of 1024 MiB; each of both runs has SECONDS
                                              (600), or less if there are five checkpoints before
"""
import datetime, os, signal, statistics, subprocess, sys, threading, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 600
WIDTH, MOST_AUTO, BESIDE_S = 2048, 0.03, 30  # a layer of this width has 16 MiB
LAYERS = max(1, MIB * (1 << 20) // (WIDTH * WIDTH * 4))
BODY = (IMAGE_DATA + "stages:\n"
        f"  - {{name: a, at: master, layers: [{{op: flatten}}, {{op: linear, out: {WIDTH}}}, {{op: relu}}]}}\n"
        "  - {name: b, at: w1, layers: [" + ", ".join(f"{{op: linear, out: {WIDTH}}}, {{op: relu}}" for _ in range(LAYERS)) +
        ", {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 1}\n"
        "train: {epochs: 100000, max_steps: 1000000, batch: 8, optimizer: {kind: sgd, lr: 0.001}}\n"
        "checkpoint: {every: EVERY, keep: 1, home: never}\n")


class Keeping(Cluster):
    """A worker that keeps its files."""

    def worker_config(self, i, extra=""):
        os.makedirs(self.kept(), exist_ok=True)
        path = super().worker_config(i, extra + f"state_dir: {self.kept()}\n")
        with open(path) as f:
            config = f.read().replace("role: master}", f"role: master, state_bytes: {4 * MIB + 64}MiB}}")
        with open(path, "w") as f:
            f.write(config)
        return path

    def kept(self):
        return os.path.join(self.dir, "kept")


class Watch(threading.Thread):
    """Records when files below a folder are written: [[begin, end]...] by the clock. A write in
    progress has no end."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.times, self.bytes, self.is_over = folder, [], 0, False
        self.start()

    def run(self):
        while not self.is_over:
            now, sizes = time.time(), []
            for folder, _, names in os.walk(self.folder):
                for name in names:
                    try:
                        sizes += [n for n in [os.path.getsize(os.path.join(folder, name))] if name.endswith(".tmp") and n > 1 << 20]
                    except OSError:
                        pass
            if sizes and (not self.times or len(self.times[-1]) == 2):
                self.times.append([now])
            elif not sizes and self.times and len(self.times[-1]) == 1:
                self.times[-1].append(now)
            self.bytes = max([self.bytes, *sizes])
            time.sleep(0.02)


def disk_rate():
    """The rate of writing and syncing a file of this size, MB/s."""
    path = os.path.join(cluster.dir, "rate")
    begin = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={MIB}", "conv=fdatasync"], check=True, stderr=subprocess.DEVNULL)
    took = time.monotonic() - begin
    os.unlink(path)
    return MIB * 1.048576 / took


def steps_of(folder):
    """The times at which steps ended."""
    with open(os.path.join(folder, "log.jsonl")) as f:
        lines = [json.loads(line) for line in f if line.endswith("\n")]
    return [datetime.datetime.fromisoformat(m["time"].replace("Z", "+00:00")).timestamp() for m in lines if m["event"] == "progress"]


def costs_of(ends, writes):
    """(mean time of the quiet steps, [seconds that steps took longer during each write]). Compares
    with quiet steps up to BESIDE_S before and after. The step before a write counts too, because
    the worker copies in it."""
    steps = [(a, b, next((i for i, w in enumerate(writes) if b >= w[0] - (b - a) and a <= w[1]), None)) for a, b in zip(ends[2:], ends[3:])]
    quiet = [(a, b) for a, b, i in steps if i is None]
    if len(quiet) < 5:  # too few steps without a write
        return None, []
    costs = []
    for i, w in enumerate(writes):
        near = [b - a for a, b in quiet if w[0] - BESIDE_S <= a and b <= w[1] + BESIDE_S]
        beside = near if len(near) >= 5 else [b - a for a, b in quiet]
        mine = [b - a for a, b, of in steps if of == i]
        costs.append(sum(mine) - len(mine) * statistics.fmean(beside))
    return statistics.fmean(b - a for a, b in quiet), costs


def trained(name, every, seconds, most_writes=1000):
    """A run of this many seconds or writes. Returns the ends of its steps, its writes, and the
    bytes of a file."""
    session, folder = cluster.session(name, BODY.replace("EVERY", every)), os.path.join(cluster.dir, "runs", name)
    watch = Watch(cluster.kept())
    with Running([MASTER, "train", session], cwd=cluster.dir, stderr=subprocess.STDOUT) as run:
        reading = threading.Thread(target=lambda: [None for _ in run.process.stdout], daemon=True)
        reading.start()
        until(lambda: os.path.exists(os.path.join(folder, "log.jsonl")) and len(steps_of(folder)) > 1 or run.process.poll() is not None, 120)
        assert run.process.poll() is None, "the run did not begin"
        end = time.monotonic() + seconds
        while time.monotonic() < end and sum(len(w) == 2 for w in watch.times) < most_writes:
            time.sleep(0.2)
        watch.is_over = True
        watch.join()
        ends = steps_of(folder)
        run.process.kill()  # an interrupt would write another checkpoint
        run.process.wait()
        reading.join()
    shutil.rmtree(folder)
    cluster.restart(0)
    return ends, [w for w in watch.times if len(w) == 2], watch.bytes


def measure(name, every, seconds, usual, most_writes=1000):
    ends, writes, most = trained(name, every, seconds, most_writes)
    assert len(writes) >= 2, f"{len(writes)} checkpoints in {seconds} s"
    beside, costs = costs_of(ends, writes)
    # compares with the run without checkpoints, which is right only on a quiet machine
    if beside is None:
        assert every != "auto", "the disk wrote all the time"
        beside, found = usual, 1 - usual * (len(ends) - 4) / (ends[-1] - ends[3])
    else:
        found = sum(costs[:-1]) / (writes[-1][0] - writes[0][0])
    lengths = [b - a for a, b in writes]
    print(f"# every: {every}: {len(writes)} checkpoints of {most / 1e6:.0f} MB in {ends[-1] - ends[0]:.0f} s, written in {statistics.median(lengths):.1f} s "
          f"(median); a step takes {beside:.3f} s beside them and {usual:.3f} s in a run without; seconds each cost: "
          + " ".join(f"{c:.2f}" for c in costs) + "; begun at " + " ".join(f"{w[0] - ends[0]:.0f}" for w in writes), flush=True)
    return found


with Keeping(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=16, side=8)
    rates = [disk_rate()]
    ends, _, _ = trained("none", "30m", 25)
    usual = (ends[-1] - ends[3]) / (len(ends) - 4)
    often = measure("often", "10s", SECONDS, usual, 4)
    auto = measure("auto", "auto", SECONDS, usual, 5)
    rates.append(disk_rate())
    print(f"{MIB} MiB every 10 s: {100 * often:.1f} % of the time; every: auto: {100 * auto:.1f} %; the disk writes {rates[0]:.0f} and {rates[1]:.0f} MB/s", flush=True)
    good = auto <= MOST_AUTO
    print("ok" if good else "not ok", "checkpoints_take_at_most_3_percent_with_auto", flush=True)
sys.exit(0 if good else 1)
