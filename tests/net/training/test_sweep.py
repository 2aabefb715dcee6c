#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Several runs of one session: a grid, folds, a kill and its continuation, and what is refused
before the first run starts."""
import csv, glob, json, os, signal, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import policies
import numpy as np

suite = Suite()
BODY = ("data: {format: npy, root: records, train: [x.npy, y.npy], validation: {fraction: 0.25}}\n"
        "stages:\n"
        "  - {name: front, at: master, layers: [{op: linear, out: 8}, {op: relu}]}\n"
        "  - {name: middle, at: w1, layers: [{op: linear, out: 8}, {op: relu}]}\n"
        "  - {name: head, at: master, layers: [{op: linear, out: 3}]}\n"
        "loss: {kind: cross_entropy}\n"
        f"train: {{epochs: 2, batch: 16, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.1}}}}\n")
RATES = ("--grid", "train.optimizer.lr=0.0001,0.3,0.05")


def records(folder):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 6)).astype("f4")
    np.save(f"{folder}/x.npy", x)
    np.save(f"{folder}/y.npy", (x @ rng.standard_normal((6, 3))).argmax(1))


def sweep(session, *options, **kw):
    return master("sweep", session, *options, cwd=cluster.dir, **kw)


def runs(pattern):
    return sorted(glob.glob(os.path.join(cluster.dir, "runs", pattern)))


def rows(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@suite.test
def finished_runs_are_ranked_and_not_run_again():
    session = cluster.session("grid", BODY)
    first = sweep(session, *RATES, "--json", "--jobs", "2")  # the worker has room for one
    # a run that finds no room at the worker is tried again
    assert "failed (exit" not in first.stderr, first.stderr
    table = rows(first)
    assert [r["value"] for r in table] == sorted((r["value"] for r in table), reverse=True), table
    assert {r["set"]["train.optimizer.lr"] for r in table} == {"0.0001", "0.3", "0.05"}, table
    assert "3 runs over the same records: each record leaves in each run, 3 times" in first.stderr, first.stderr
    for r in table:  # the run is what `train` makes of these values
        with open(os.path.join(cluster.dir, r["runs"][0], "session.effective.yaml")) as f:
            assert f"lr: {r['set']['train.optimizer.lr']}\n" in f.read(), r
        with open(os.path.join(cluster.dir, r["runs"][0], "evaluations.jsonl")) as f:
            last = [e for e in map(json.loads, f) if e["event"] == "validation"][-1]
        assert (r["value"], r["step"]) == (last["accuracy"], last["step"]), (r, last)
    stamps = {p: os.stat(p).st_mtime_ns for p in runs("grid-*/run.json")}
    again = sweep(session, *RATES, "--json")
    assert rows(again) == table and "started" not in again.stderr and "3 of 3 runs are finished" in again.stderr, again.stderr
    assert {p: os.stat(p).st_mtime_ns for p in runs("grid-*/run.json")} == stamps
    other = sweep(session, "--grid", "train.optimizer.lr=0.0001,0.2")
    assert other.returncode == 3 and "sweep.jsonl:3: the sweep has other points than these options" in other.stderr, other.stderr
    table = list(csv.reader(sweep(session, *RATES, "--csv").stdout.splitlines()))
    assert table[0] == ["point", "validation.accuracy", "step", "state", "train.optimizer.lr"] and len(table) == 4, table


@suite.test
def killed_sweep_continues_with_the_same_bits():
    session = cluster.session("killed", BODY.replace("epochs: 2", "epochs: 40") + "checkpoint: {every_steps: 5}\n")
    rates = ("--grid", "train.optimizer.lr=0.1")
    process = subprocess.Popen([MASTER, "sweep", session, *rates], cwd=cluster.dir,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: runs("killed-001/checkpoint-*/MANIFEST.json"))
    process.kill()
    process.wait()
    done = rows(sweep(session, *rates, "--json"))
    assert [r["state"] for r in done] == ["finished"], done
    whole = rows(sweep(session, *rates, "--json", "--set", "name=unbroken"))
    assert [r["value"] for r in whole] == [r["value"] for r in done]
    ends = [checkpoint_tensors(os.path.join(cluster.dir, f"runs/{n}-001"), 120) for n in ("killed", "unbroken")]
    assert ends[0] == ends[1]


@suite.test
def interrupted_sweep_ends_its_runs_after_a_checkpoint():
    session = cluster.session("paused", BODY.replace("epochs: 2", "epochs: 100000") + "checkpoint: {every_steps: 5}\n")
    process = subprocess.Popen([MASTER, "sweep", session, "--grid", "train.batch=16", "--json"], cwd=cluster.dir, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: runs("paused-001/checkpoint-*/MANIFEST.json"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60 * SLOW)
    assert process.returncode == 130 and "the same command continues the sweep" in err, (process.returncode, err)
    assert json.loads(out)["state"] == "not finished", out
    with open(runs("paused-001/run.json")[0]) as f:
        record = json.load(f)
    assert record["attempts"][-1]["status"] == "interrupted" and record["checkpoints"], record


@suite.test
def run_that_waits_for_its_worker_says_so():
    session = cluster.session("alone", BODY + "recovery: {give_up_after: 60s}\n")
    process = subprocess.Popen([MASTER, "sweep", session, "--grid", "train.batch=16", "--set", f"workers.w1.address=127.0.0.1:{free_port()}"],
                               cwd=cluster.dir, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "alone-001: " in line:
            process.send_signal(signal.SIGINT)
    assert process.wait() == 130 and any("no process listens on this address" in line for line in lines), lines


@suite.test
def wrong_values_are_refused_before_the_first_run():
    session = cluster.session("wrong", BODY)
    for options, code, says in ((("--grid", "train.bach=1,2"), 3, "unknown"),
                                (("--grid", "train.batch=8,0"), 3, "train.batch"),
                                (("--grid", "stages.2.layers=[{op: linear, out: 3}],[{op: linear, out: 2}]"), 3, "no run was started: wrong-002"),
                                (("--grid", "name=a,b"), 2, "cannot change name"),
                                (("--folds", "3"), 3, "--folds 3: data.validation has"),
                                (RATES + ("--set", "data.validation.fraction=0"), 3, "a sweep compares validations"),
                                (RATES + ("--set", "checkpoint.dir=here"), 3, "leave checkpoint.dir out")):
        done = sweep(session, *options)
        assert done.returncode == code and says in done.stderr, (options, done.returncode, done.stderr)
    assert not runs("wrong*"), runs("wrong*")


@suite.test
def point_that_diverges_does_not_end_the_others():
    session = cluster.session("bad", BODY.replace("epochs: 2", "epochs: 20"))
    done = sweep(session, "--grid", "train.optimizer.lr=1e30,0.1", "--json")
    table = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 9 and [r["state"] for r in table] == ["finished", "failed (exit 9)"], (done.stderr, table)
    assert "bad-001 failed (exit 9): diverged" in done.stderr, done.stderr


@suite.test
def folds_are_runs_whose_mean_counts():
    session = cluster.session("folds", BODY.replace("fraction: 0.25", "by: stratified"))
    table = rows(sweep(session, "--folds", "3", "--json"))
    assert len(table) == 1 and len(table[0]["runs"]) == 3 and table[0]["deviation"] is not None, table
    values = []
    for k, folder in enumerate(table[0]["runs"]):
        with open(os.path.join(cluster.dir, folder, "session.effective.yaml")) as f:
            assert f"fold: {k + 1}\n" in f.read()
        with open(os.path.join(cluster.dir, folder, "evaluations.jsonl")) as f:
            values.append([e for e in map(json.loads, f) if e["event"] == "validation"][-1]["accuracy"])
    assert abs(table[0]["value"] - np.mean(values)) < 1e-6 and abs(table[0]["deviation"] - np.std(values, ddof=1)) < 1e-6
    said = master("plan", session, "--folds", "3", cwd=cluster.dir).stdout
    assert "sweep: 3 runs over the same records: each record leaves in each run, 3 times" in said, said
    assert "which begin with the same weights (train.seed)" in said, said
    one = master("plan", session, "--set", "data.validation.folds=3", "--set", "data.validation.fold=1",
                 "--set", "checkpoint.best=validation.loss", cwd=cluster.dir)
    assert "cross-validation: 3 runs over the same records" in one.stdout, one.stdout + one.stderr


@suite.test
def plan_says_that_sampling_shows_rare_classes():
    session = cluster.session("often", BODY)
    said = master("plan", session, "--set", "data.sampling=balanced", cwd=cluster.dir).stdout
    assert "LABELS BY FREQUENCY: data.sampling draws records of some classes more often" in said, said
    plain = json.loads(master("plan", session, "--json", cwd=cluster.dir).stdout.splitlines()[0])
    assert plain["labels_by_frequency"] is False, plain
    done = master("plan", session, "--set", "data.sampling_weights=[1, 2]", cwd=cluster.dir)
    assert done.returncode == 3 and "class 2, and there are weights of 2 classes" in done.stderr, done.stderr
    done = master("plan", session, "--set", "data.sampling_weights=[1, 2, 3, 4]", cwd=cluster.dir)
    assert done.returncode == 3 and "data.sampling_weights has 4 numbers, and there are 3 classes: give a number for each" in done.stderr, done.stderr


@suite.test
def policy_counts_the_bytes_of_all_runs():
    if policies.missing():
        print("  skip:", policies.missing(), flush=True)
        return
    host = policies.Host(cluster.dir)
    session = cluster.session("bytes", BODY)
    policy = ("version: 1\nworkers: [\"spiffe://test/w1\"]\nkinds: [activation, gradient]\nlargest_shape: [64, 64]\n"
              "dtypes: [f32]\nbytes_per_epoch: 6000\nallow: {labels_readable: true, front_known: true}\n")
    host.decree(policy)
    one = run(*host.near, MASTER, "sweep", session, "--grid", "train.optimizer.lr=0.1", cwd=cluster.dir)
    assert one.returncode == 0, one.stderr
    two = run(*host.near, MASTER, "sweep", session, *RATES, "--set", "name=three", cwd=cluster.dir)
    assert two.returncode == 3 and "the 3 runs of the sweep count together: " in two.stderr and \
        "bytes_per_epoch is 5.9 KiB" in two.stderr, two.stderr
    assert not runs("three*"), runs("three*")


with Cluster(1, limits="limits: {sessions: 1}\n") as cluster:
    os.makedirs(os.path.join(cluster.dir, "records"))
    records(os.path.join(cluster.dir, "records"))
    suite.main()
