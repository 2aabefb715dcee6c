#!/usr/bin/python3
"""Stops each process of a session for a while. Pauses of 10 and 70 s, which are shorter than the
default lease, change no bit. A run recovers after one that is longer than its lease. Without
recovery it ends with the reason, and --resume reaches the same bits. Takes about eight minutes."""
import os, signal, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

STEPS = 3000
BODY = (IMAGE_DATA + "stages:\n  - {name: a, at: w1, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}]}\n"
        "  - {name: b, at: w2, layers: [{op: linear, out: 32}, {op: relu}]}\n"
        "  - {name: c, at: w1, layers: [{op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\ntransfer: direct\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 16, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.01}}}}\n"
        "privacy: {raw_input_leaves: true}\ncheckpoint: {every_steps: 500}\n")
PATIENT = "limits: {step_timeout: 100s}\n"
LEASE = "lease: 20s, peer_timeout: 10s"
SHORT, NO_RECOVERY = (f"limits: {{step_timeout: 100s, {LEASE}}}\nrecovery: {how}\n" for how in ("{attempts: 5}", "off"))
PAUSES = [float(s) for s in sys.argv[1:]] or [10, 70]
del sys.argv[1:]
suite = Suite()


def started(cluster, name, limits, *args):
    session = cluster.session(name, BODY + limits)
    process = subprocess.Popen([MASTER, "train", session, *args], cwd=cluster.dir, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    kept = os.path.join(cluster.dir, "runs", name, "checkpoint-500", "MANIFEST.json")
    until(lambda: os.path.exists(kept) or process.poll() is not None, 120)
    return process


def bits(cluster, name, process):
    errors = process.communicate(timeout=300 * SLOW)[1]
    assert process.returncode == 0, errors
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", name), STEPS)


def victims(cluster, master):
    return {"master": master, **{w.name: w.process for w in cluster.workers}}


def images(cluster):
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=16, side=8)


def pause(process, seconds):
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


def test_pauses(cluster):
    images(cluster)
    alone = bits(cluster, "alone", started(cluster, "alone", PATIENT))

    @suite.test
    def pauses_that_are_shorter_than_the_lease():
        for who in ("master", "w1", "w2"):
            for seconds in PAUSES:
                name = f"{who}-{seconds:g}"
                process = started(cluster, name, PATIENT)
                pause(victims(cluster, process)[who], seconds)
                assert bits(cluster, name, process) == alone, name
                print(f"     {who} for {seconds:g} s: the same bits", flush=True)
    return alone


def test_leases(cluster, alone):
    images(cluster)

    @suite.test
    def runs_recover_after_pauses_that_are_longer_than_the_lease():
        for who in ("master", "w1", "w2"):
            name = f"{who}-recovers"
            process = started(cluster, name, SHORT)
            pause(victims(cluster, process)[who], 40)
            assert bits(cluster, name, process) == alone, name
            with open(os.path.join(cluster.dir, "runs", name, "run.json")) as f:
                found = [attempt["status"] for attempt in json.load(f)["attempts"]]
            assert found == ["recovered", "finished"], (name, found)
            print(f"     {who} for 40 s: one recovery, the same bits", flush=True)

    @suite.test
    def runs_without_recovery_end_and_resume():
        for who in ("master", "w1", "w2"):
            process = started(cluster, who, NO_RECOVERY)
            pause(victims(cluster, process)[who], 40)
            errors = process.communicate(timeout=120 * SLOW)[1]
            assert process.returncode == 6, (who, process.returncode, errors)
            again = started(cluster, who, NO_RECOVERY, "--resume")
            assert bits(cluster, who, again) == alone, who
            print(f"     {who} for 40 s: exit {process.returncode}, then the same bits: {errors.splitlines()[0]}", flush=True)


with Cluster(2) as patient, Cluster(2, limits=f"limits: {{{LEASE}}}\n") as strict:
    test_leases(strict, test_pauses(patient))
    suite.main()
