#!/usr/bin/python3
"""Stops each process of a session with default limits for a while. Pauses of 10, 20 and 50 s change
no bit; after 70 s the run ends with the reason, and --resume reaches the same bits. Takes about
fifteen minutes."""
import os, signal, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

STEPS = 3000
BODY = (IMAGE_DATA + "stages:\n  - {name: a, at: w1, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}]}\n"
        "  - {name: b, at: w2, layers: [{op: linear, out: 32}, {op: relu}]}\n"
        "  - {name: c, at: w1, layers: [{op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\ntransfer: direct\nlimits: {step_timeout: 65s}\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 16, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.01}}}}\n"
        "privacy: {raw_input_leaves: true}\ncheckpoint: {every_steps: 500}\n")
PAUSES = [float(s) for s in sys.argv[1:]] or [10, 20, 50]
del sys.argv[1:]
suite = Suite()


def started(cluster, name, *args):
    session = cluster.session(name, BODY)
    process = subprocess.Popen([MASTER, "train", session, *args], cwd=cluster.dir, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    kept = os.path.join(cluster.dir, "runs", name, "checkpoint-500", "MANIFEST.json")
    until(lambda: os.path.exists(kept) or process.poll() is not None, 120)
    return process


def bits(cluster, name, process):
    errors = process.communicate(timeout=300 * SLOW)[1]
    assert process.returncode == 0, errors
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", name), STEPS)


def pause(process, seconds):
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=16, side=8)
    alone = bits(cluster, "alone", started(cluster, "alone"))

    def victims(master):
        return {"master": master, **{w.name: w.process for w in cluster.workers}}

    @suite.test
    def pauses_that_are_shorter_than_the_peer_timeout():
        for who in ("master", "w1", "w2"):
            for seconds in PAUSES:
                name = f"{who}-{seconds:g}"
                process = started(cluster, name)
                pause(victims(process)[who], seconds)
                assert bits(cluster, name, process) == alone, name
                print(f"     {who} for {seconds:g} s: the same bits", flush=True)

    @suite.test
    def pauses_that_are_longer():
        for who in ("master", "w1", "w2"):
            process = started(cluster, who)
            pause(victims(process)[who], 70)
            errors = process.communicate(timeout=120 * SLOW)[1]
            assert process.returncode in (5, 6), (who, process.returncode, errors)
            again = started(cluster, who, "--resume")
            assert bits(cluster, who, again) == alone, who
            print(f"     {who} for 70 s: exit {process.returncode}, then the same bits: {errors.splitlines()[0]}", flush=True)

    suite.main()
