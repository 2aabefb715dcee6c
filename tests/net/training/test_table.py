#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A table of numbers and words from CSV to predictions: the middle is a worker's, and `eval` and
`predict` encode by what the run has learnt, not by the records that they get. `init --from` writes
a session for a table that it sees for the first time."""
import csv, json, os, re, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
TABLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/table")
COLUMNS = ("age: {as: number, missing: mean, indicator: true}", "dose: {as: number, scale: log}",
           "grade: {as: number, scale: quantile, missing: most_frequent}", "weight: {as: ignore}", "same: {as: number}",
           "site: {as: category, missing: own}", "smoker: {as: boolean}", "outcome: {as: target}", "cost: {as: id}")
DATA = ("data:\n  format: table\n  root: tables\n  train: [train.csv]\n  test: [test.csv]\n"
        "  validation: {fraction: 0.2, by: group, group: site}\n  table:\n    columns:\n"
        + "".join(f"      {c}\n" for c in COLUMNS))
STAGES = ("stages:\n"
          "  - {name: front, at: master, layers: [{op: linear, out: 16}, {op: relu}]}\n"
          "  - {name: middle, at: w1, layers: [{op: linear, out: 8}, {op: relu}]}\n"
          "  - {name: head, at: master, layers: [{op: linear, out: 2}]}\n")
TAIL = ("loss: {kind: cross_entropy, at: master}\n"
        f"train: {{max_steps: 12, batch: 8, seed: {SEED}, optimizer: {{kind: adam, lr: 0.01}}}}\n")


def outputs(session, *options):
    out = os.path.join(cluster.dir, "p.csv")
    done = master("predict", session, "--output", out, *options, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    with open(out, newline="") as f:
        return list(csv.reader(f))[1:]


@suite.test
def table_is_checked_trained_evaluated_and_predicted():
    session = cluster.session("learn", DATA + STAGES + TAIL, keys="labels_readable: true")
    done = master("check", session, "--json", cwd=cluster.dir)
    found = {c["name"]: c for c in json.loads(done.stdout)["columns"]}
    assert found["same"]["warning"] == "constant" and found["age"]["missing"] > 0 and found["site"]["distinct"] < 4, found
    done = cluster.train(session)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "activation of stage 'front'" in done.stdout and "RAW" not in done.stdout, done.stdout
    learnt = os.path.join(cluster.dir, "runs/learn/table.json")
    assert os.stat(learnt).st_mode & 0o777 == 0o600
    done = master("eval", session, cwd=cluster.dir)
    assert done.returncode == 0 and "20 samples" in done.stdout, done.stdout + done.stderr
    rows = outputs(session)
    test = os.path.join(cluster.dir, "tables/test.csv")
    with open(test, newline="") as f:
        records = list(csv.DictReader(f))
    want = [r["cost"] if r["cost"][0] != "-" else "'" + r["cost"] for r in records]
    assert [r[0] for r in rows] == want, "ids are the cells, and none begins like a formula"
    # other records beside a record change nothing: what was learnt is the run's
    few = os.path.join(cluster.dir, "tables/few.csv")
    with open(few, "w") as f:
        f.writelines(open(test).readlines()[:4])
    again = outputs(session, "--set", "data.test=[few.csv]")
    assert [r[3:] for r in again] == [r[3:] for r in rows[:3]], (again, rows[:3])


@suite.test
def table_that_was_learnt_is_needed_and_compared():
    session = cluster.session("learn", DATA + STAGES + TAIL, keys="labels_readable: true")
    learnt = os.path.join(cluster.dir, "runs/learn/table.json")
    done = master("eval", session, "--set", "data.table.columns.same.scale=none", cwd=cluster.dir)
    assert done.returncode == 7 and "column 'same' is not read as the run's training read it" in done.stderr, done.stderr
    os.rename(learnt, learnt + ".away")
    done = master("predict", session, cwd=cluster.dir)
    assert done.returncode == 7 and "has no table.json" in done.stderr, (done.returncode, done.stderr)
    with open(learnt, "w") as f:
        f.write("{")
    done = master("predict", session, cwd=cluster.dir)
    assert done.returncode == 7 and "table.json:1:2" in done.stderr, (done.returncode, done.stderr)
    os.rename(learnt + ".away", learnt)


@suite.test
def session_from_a_table_is_in_order():
    folder = os.path.join(cluster.dir, "from")
    os.makedirs(folder)
    with open(os.path.join(cluster.dir, "tables/train.csv"), newline="") as f:
        records = list(csv.reader(f))
    with open(os.path.join(folder, "patients.csv"), "w", newline="") as f:
        w = csv.writer(f, delimiter=";")
        w.writerows([*(cell.replace(".", ",") for cell in r), i or "patient_id"] for i, r in enumerate(records))
    done = master("init", "--from", "patients.csv", cwd=folder)
    assert done.returncode == 0 and "the target is 'outcome', with its values as classes" in done.stdout, done.stdout + done.stderr
    text = open(os.path.join(folder, "session.yaml")).read()
    for want in ("separator: semicolon", "decimal: comma", '"age": {as: number, missing: median, indicator: true}',
                 '"site": {as: category, missing: own}', '"smoker": {as: boolean}', '"patient_id": {as: id}', "out: 2"):
        assert want in text, (want, text)
    done = master("check", "session.yaml", cwd=folder)
    assert done.returncode == 0 and "60 training samples in 2 classes" in done.stdout, done.stdout + done.stderr
    done = master("init", "--from", "nothing.csv", cwd=cluster.dir)
    assert done.returncode == 7 and "nothing.csv" in done.stderr, (done.returncode, done.stderr)


if __name__ == "__main__":
    with Cluster(1) as cluster:
        shutil.copytree(TABLES, os.path.join(cluster.dir, "tables"))
        suite.main()
