#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills a run's master, its workers or both at random, while it trains and while it recovers:
weights, moments, the loss log and the egress table equal those of an undisturbed run.

usage: kill_soak.py KILLS [SEED]     KILLS in all, over the networks in turn; SEED draws the kills
"""
import json, os, random, signal, statistics, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
SEED_OF_KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 31)
TAIL = ("recovery: {{attempts: 1000000, wait: 100ms, give_up_after: 120s}}\n"
        "checkpoint: {{every_steps: {every}, keep: 2}}\nlog: {{every: 1000}}\n"
        "train: {{epochs: 100000, max_steps: {steps}, batch: 16, seed: {seed}, optimizer: {optimizer}}}\n")
ADAM, STEPS = "{kind: adam, lr: 0.003}, clip_grad_norm: 1.0", 600
CONV = "{op: conv2d, out: 8, kernel: 3, pad: 1}, {op: batchnorm}, {op: relu}, {op: dropout, p: 0.1}"
NETS = {
    "cnn": ("stages:\n"
            f"  - {{name: a, at: master, layers: [{CONV}]}}\n"
            f"  - {{name: b, at: w1, layers: [{CONV}, {{op: maxpool, kernel: 2}}]}}\n"
            "  - {name: c, at: w2, layers: [{op: flatten}, {op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
            "loss: {kind: cross_entropy}\ntransfer: direct\npipeline: {micro_batches: 4}\n", ADAM),
    "lstm": ("stages:\n"
             "  - {name: a, at: master, layers: [{op: lstm, out: 12}]}\n"
             "  - {name: b, at: w1, layers: [{op: lstm, out: 12}]}\n"
             "  - {name: c, at: w2, layers: [{op: mean, dim: 1}, {op: linear, out: 10}]}\n"
             "loss: {kind: cross_entropy}\nprivacy: {raw_input_leaves: true}\n", ADAM),
    "adapters": ("stages:\n"
                 "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 24, name: front.query}, {op: relu}], lora: {targets: [query], r: 3, dropout: 0.1}}\n"
                 "  - {name: b, at: w1, layers: [{op: linear, out: 20, name: middle.query}, {op: gelu}], lora: {targets: [query], r: 3, dropout: 0.1}}\n"
                 "  - {name: c, at: w2, layers: [{op: linear, out: 10, name: head}]}\n"
                 "loss: {kind: cross_entropy}\ntransfer: direct\n", "{kind: adamw, lr: 0.003}"),
    "cached": ("stages:\n"
               "  - {name: a, at: master, freeze: true, cache: true, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}, {op: linear, out: 24}]}\n"
               "  - {name: b, at: w1, layers: [{op: linear, out: 16}, {op: relu}, {op: dropout, p: 0.1}]}\n"
               "  - {name: c, at: w2, layers: [{op: linear, out: 10}]}\n"
               "loss: {kind: cross_entropy}\n", ADAM),
    "pipedream": ("stages:\n"
                  "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 32}, {op: tanh}]}\n"
                  "  - {name: b, at: w1, layers: [{op: linear, out: 24}, {op: tanh}]}\n"
                  "  - {name: c, at: w2, layers: [{op: linear, out: 10}]}\n"
                  "loss: {kind: cross_entropy}\npipeline: {schedule: pipedream, flush_every: 8}\n", "{kind: sgd, lr: 0.05, momentum: 0.9}"),
}
del sys.argv[1:]  # for the suite, arguments would be names of tests
r = random.Random(SEED_OF_KILLS)
suite = Suite()


class Keeping(Cluster):
    """Workers that keep a cache on disk, which a killed worker uses again."""

    def worker_config(self, i, extra=""):
        path = super().worker_config(i, extra)
        kept = os.path.join(self.dir, f"kept{i}")
        os.makedirs(kept, exist_ok=True)
        with open(path) as f:
            text = f.read().replace("role: master}", "role: master, cache_bytes: 1MiB}")
        with open(path, "w") as f:
            f.write(text + f"state_dir: {kept}\n")
        return path


def data_of(net):
    if net != "lstm":
        return IMAGE_DATA
    return "data: {format: npy, root: data, train: [steps-x.npy, steps-y.npy]}\n"


def session_of(net, name):
    body, optimizer = NETS[net]
    return cluster.session(name, data_of(net) + body + TAIL.format(every=48, steps=STEPS, seed=SEED, optimizer=optimizer))


def result(name):
    folder = os.path.join(cluster.dir, "runs", name)
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        losses = [(m["step"], m["loss"], m["grad_norm"]) for m in map(json.loads, f)]
    with open(os.path.join(folder, "egress.table")) as f:
        table = f.read()
    return [checkpoint_tensors(folder, STEPS, prefix) for prefix in ("model-", "optimizer-")], losses, table


def start(session):
    """Starts `train --resume` as systemd would, with its output in a file."""
    with open(session + ".out", "ab") as out:
        return subprocess.Popen([MASTER, "train", "--resume", session], cwd=cluster.dir, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def kill(process):
    process.kill()
    process.wait()


def killed_run(net, name, left):
    """One run with up to `left` kills. Returns the number of kills."""
    session, kills = session_of(net, name), 0
    master = start(session)
    while master.poll() is None:
        time.sleep(r.choice((0.1, r.uniform(0.3, 1.5))))
        if kills == left or master.poll() is not None:
            continue
        whom = r.choice(("master", "w1", "w2", "both", "all", "w1 again"))
        gone = {"w1": [0], "w2": [1], "both": [0], "all": [0, 1], "w1 again": [0]}.get(whom, [])
        for i in gone:
            kill(cluster.workers[i].process)
        if whom in ("master", "both", "all"):
            kill(master)
        kills += 1
        time.sleep(r.choice((0, 0.1, 0.4)))
        if whom in ("master", "both", "all"):
            master = start(session)
        for i in gone:
            cluster.restart(i)
        if whom == "w1 again" and kills < left:  # while the run recovers
            time.sleep(r.uniform(0, 0.1))
            kill(cluster.workers[0].process)
            kills += 1
            cluster.restart(0)
    with open(session + ".out") as f:
        assert master.returncode == 0, f"{net}: ended with {master.returncode} after {kills} kills:\n{f.read()[-3000:]}"
    return kills


def recoveries(name):
    with open(os.path.join(cluster.dir, "runs", name, "log.jsonl")) as f:
        return [m["seconds"] for m in map(json.loads, f) if m["event"] == "recovered"]


@suite.test
def killed_runs_change_no_bit():
    done, times, runs, wanted, differ = 0, [], 0, {}, []
    for net in NETS:
        plain = subprocess.run([MASTER, "train", session_of(net, net)], cwd=cluster.dir, capture_output=True, text=True)
        assert plain.returncode == 0, (net, plain.stderr)
        wanted[net] = result(net)
    begin = time.monotonic()
    while done < KILLS:
        net = list(NETS)[runs % len(NETS)]
        name = f"{net}-{runs}"
        done += killed_run(net, name, KILLS - done)
        times += recoveries(name)
        if result(name) == wanted[net]:
            shutil.rmtree(os.path.join(cluster.dir, "runs", name))
        else:
            differ.append(name)
        runs += 1
        print(f"{done} kills, {runs} runs, {time.monotonic() - begin:.0f} s", flush=True)
    times.sort()
    print(f"{done} kills in {runs} runs of {len(NETS)} networks, {len(times)} recoveries, median {statistics.median(times):.1f} s, "
          f"99 of 100 within {times[int(0.99 * (len(times) - 1))]:.1f} s, {len(differ)} differ (seed {SEED_OF_KILLS})", flush=True)
    assert not differ, differ


with Keeping(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=16, side=8)
    x = random.Random(4)
    write_npy(os.path.join(cluster.dir, "data", "steps-x.npy"), (256, 6, 4), "<f4",
              struct.pack("<6144f", *(x.uniform(-1, 1) for _ in range(6144))))
    write_npy(os.path.join(cluster.dir, "data", "steps-y.npy"), (256,), "<i8", struct.pack("<256q", *(x.randrange(10) for _ in range(256))))
    suite.main()
