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
           "site: {as: category, missing: own}", "smoker: {as: boolean}", "outcome: {as: target}", "cost: {as: id}",
           "admitted: {as: date, missing: mean, parts: [year]}")
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
def table_comes_as_json_lines_and_from_a_database():
    session = cluster.session("learn", DATA + STAGES + TAIL, keys="labels_readable: true")
    want = outputs(session)
    assert outputs(session, "--set", "data.test=[test.jsonl]") == want
    query = ("--set", "data.test=[tables.db]", "--set", "data.table.query=SELECT * FROM test ORDER BY record",
             "--set", "data.table.others=ignore")
    got = outputs(session, *query)
    # SQLite has ids as numbers, so -1.50 would be -1.5
    assert [r[1:] for r in got] == [r[1:] for r in want], (got, want)
    done = master("predict", session, *query[:3], "data.table.query=DELETE FROM test", cwd=cluster.dir)
    assert done.returncode == 7 and "tables.db: data.table.query: it has no ORDER BY" in done.stderr, done.stderr


def split(keys, *options):
    """What `check --json` says of the split of train.csv by these keys of data.validation."""
    data = DATA.replace("{fraction: 0.2, by: group, group: site}", keys)
    done = master("check", cluster.session("split", data + STAGES + TAIL, keys="labels_readable: true"), "--json", *options, cwd=cluster.dir)
    return done, json.loads(done.stdout) if done.returncode == 0 else None


@suite.test
def sets_come_from_times_columns_and_folds():
    with open(os.path.join(cluster.dir, "tables/train.csv"), newline="") as f:
        header, *records = csv.reader(f)
    dated = [r for r in records if r[-1]]
    with open(os.path.join(cluster.dir, "tables/parts.csv"), "w", newline="") as f:
        csv.writer(f).writerows([header + ["part"]] + [r + [("fit", "tune", "test")[i % 3]] for i, r in enumerate(dated)])
    parts = ("--set", "data.train=[parts.csv]", "--set", "data.table.others=ignore")
    _, said = split("{fraction: 0.2, by: time, column: admitted}", *parts)
    assert said["validation"] == round(len(dated) * 0.2), said
    same = ("--set", "data.test=[parts.csv]")
    _, said = split("{by: column, column: part, training: [fit], validation: [tune]}", *parts, *same)
    assert [said["sets"][s]["records"] for s in ("training", "validation", "test")] == [18, 18, 17], said["sets"]
    assert not said["duplicates"], said["duplicates"]
    done, said = split("{fraction: 0.2}", *parts, *same)
    assert [(d["set"], d["same"]) for d in said["duplicates"]] == [("test", "inputs"), ("test", "id")], said["duplicates"]
    assert said["duplicates"][1]["records"] == 42, said["duplicates"]
    done, _ = split("{by: column, column: outcome, training: [ill], validation: [well]}")
    assert re.search(r"data\.validation: \d+ records are of a class that no training record has, as 1 \(well\)", done.stderr), done.stderr
    folds = [split(f"{{folds: 5, fold: {k}}}")[1]["sets"] for k in (1, 5)]
    assert [f["training"]["records"] for f in folds] == [48, 48], folds
    for keys, want in (("{folds: 5}", "data.validation.fold is 0: set the fold to hold back, from 1 to 5"),
                       ("{folds: 5, fold: 1, fraction: 0.1}", "a fraction and folds: keep one of them"),
                       ("{folds: 5, fold: 1, by: last}", "folds goes with by: stratified, random and group"),
                       ("{by: time, fraction: 0.1}", "by: time needs data.validation.column"),
                       ("{by: column, column: site, fraction: 0.1}", "fraction does not go with by: column"),
                       ("{column: site, fraction: 0.1}", "column goes with data.validation.by: time and column"),
                       ("{test: [x], fraction: 0.1}", "training, validation and test go with")):
        done, _ = split(keys)
        assert done.returncode == 3 and want in done.stderr, (keys, done.returncode, done.stderr)


@suite.test
def session_from_a_table_is_in_order():
    folder = os.path.join(cluster.dir, "from")
    os.makedirs(folder)
    with open(os.path.join(cluster.dir, "tables/train.csv"), newline="") as f:
        records = list(csv.reader(f))
    with open(os.path.join(folder, "patients.csv"), "w", newline="") as f:
        w = csv.writer(f, delimiter=";")
        w.writerows([i or "", f"{1 + i % 9}/1/2020" if i else "seen", *(cell.replace(".", ",") for cell in r[:-1]), ".".join(reversed(r[-1].split("-"))), i or "patient_id"]
                    for i, r in enumerate(records))
    done = master("init", "--from", "patients.csv", cwd=folder)
    assert done.returncode == 0 and "the target is 'outcome', with its values as classes" in done.stdout, done.stdout + done.stderr
    text = open(os.path.join(folder, "session.yaml")).read()
    for want in ("separator: semicolon", "decimal: comma", '"age": {as: number, missing: median, indicator: true}',
                 '"site": {as: category, missing: own}', '"smoker": {as: boolean}', '"admitted": {as: date, format: "%d.%m.%Y", missing: median', '"patient_id": {as: id}', "out: 2", "others: ignore",
                 '"seen": {as: ignore}   # 9 different values; dates: say as: date, and format: "%d/%m/%Y" or "%m/%d/%Y"'):
        assert want in text, (want, text)
    done = master("check", "session.yaml", cwd=folder)
    assert done.returncode == 0 and "60 training samples in 2 classes" in done.stdout, done.stdout + done.stderr
    os.makedirs(os.path.join(cluster.dir, "lines"))
    done = master("init", "--from", "../tables/train.jsonl", cwd=os.path.join(cluster.dir, "lines"))
    text = open(os.path.join(cluster.dir, "lines/session.yaml")).read()
    assert done.returncode == 0 and "separator" not in text and '"admitted": {as: date, missing: median' in text, done.stderr + text
    done = master("init", "--from", "tables/tables.db", cwd=cluster.dir)
    assert done.returncode == 7 and "is an SQLite database: write a session for a CSV of its table" in done.stderr, done.stderr
    done = master("init", "--from", "nothing.csv", cwd=cluster.dir)
    assert done.returncode == 7 and "nothing.csv" in done.stderr, (done.returncode, done.stderr)


@suite.test
def index_of_a_column_is_that_of_pytorch():
    """Site is an index for an embedding: losses are those of nn.Embedding (make_table_index.py),
    and so are outputs of records with a site that training has not, or with none."""
    with open(os.path.join(TABLES, "index.json")) as f:
        want = json.load(f)
    shutil.copy(os.path.join(TABLES, "index.safetensors"), cluster.dir)
    columns = ("age: {as: number, missing: mean, indicator: true}", "smoker: {as: boolean}",
               "site: {as: index, missing: own, input: place}", "outcome: {as: target}")
    data = ("data:\n  format: table\n  root: tables\n  train: [train.csv]\n  test: [test.csv]\n  table:\n    others: ignore\n"
            "    columns:\n" + "".join(f"      {c}\n" for c in columns))
    layers = (f"{{op: embedding, name: rows, rows: {want['rows']}, out: 3, from: [place]}}, "
              "{op: concat, dim: 1, name: both, from: [input, rows]}, {op: linear, name: front, out: 8}, {op: relu}")
    weights = "weights: {file: index.safetensors}"
    stages = (f"stages:\n  - {{name: front, at: master, {weights}, layers: [{layers}]}}\n"
              f"  - {{name: middle, at: w1, {weights}, layers: [{{op: linear, name: middle, out: 8}}, {{op: relu}}]}}\n"
              f"  - {{name: head, at: master, {weights}, layers: [{{op: linear, name: head, out: 2}}]}}\n")
    tail = ("loss: {kind: cross_entropy, at: master}\n"
            f"train: {{epochs: 100, max_steps: 15, batch: 12, shuffle: false, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.5, momentum: 0}}}}\n"
            "log: {every: 1}\n")
    session = cluster.session("index", data + stages + tail)
    done = master("plan", session, cwd=cluster.dir)
    assert done.returncode == 0 and ("index of column 'site', input 'place': an embedding needs 5 rows: 3 values of the training "
                                     "records, one for all others, one for missing values") in done.stdout, done.stdout + done.stderr
    done = master("check", session, "--json", cwd=cluster.dir)
    assert [c["rows"] for c in json.loads(done.stdout)["columns"] if c["as"] == "index"] == [5], done.stdout + done.stderr
    done = cluster.train(session)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(os.path.join(cluster.dir, "runs/index/metrics.jsonl")) as f:
        losses = [json.loads(line)["loss"] for line in f]
    assert all(abs(a - b) < 1e-5 for a, b in zip(losses, want["losses"], strict=True)), (losses, want["losses"])
    with open(os.path.join(cluster.dir, "runs/index/table.json")) as f:
        assert '"as":"index"' in f.read()
    for row, wanted in zip(outputs(session), want["outputs"], strict=True):
        assert all(abs(float(a) - b) < 1e-4 for a, b in zip(row[-2:], wanted, strict=True)), (row, wanted)
    for change, text in ((("rows: 5", "rows: 4"), "session.*index has rows: 4|'rows' has rows: 4, and this index needs 5 rows"),
                         (("from: [place]", "from: [site]"), "no earlier layer has the name 'site'"),
                         ((", from: [place]}", ", from: [input]}"), "."),
                         ((", input: place", ", input: input"), "makes an input 'input', and the name of an input"),
                         ((", input: place", ", indicator: true"), "indicator does not go with as: index")):
        done = master("check", cluster.session("other", (data + stages + tail).replace(*change)), cwd=cluster.dir)
        assert done.returncode != 0 and re.search(text, done.stderr), (change, done.returncode, done.stdout, done.stderr)


@suite.test
def index_that_a_worker_gets_is_a_raw_record():
    columns = ("dose: {as: number}", "cost: {as: number}", "site: {as: index, missing: own}", "outcome: {as: target}")
    data = ("data:\n  format: table\n  root: tables\n  train: [train.csv]\n  table:\n    others: ignore\n"
            "    columns:\n" + "".join(f"      {c}\n" for c in columns))
    numbers, rows = "{op: linear, out: 4, name: a}", "{op: embedding, rows: 5, out: 4, name: b, from: [site]}"
    both, rest = "{op: concat, dim: 1, from: [a, b]}", "{op: relu}, {op: linear, out: 2}"
    for front, back, text, key in ((numbers, f"{rows}, {both}, {rest}", "layers of stage 'back' read 'site'", "raw_input_leaves"),
                                   (f"{numbers}, {rows}, {both}", rest, "tokens", "tokens_readable")):
        stages = f"stages:\n  - {{name: front, at: master, layers: [{front}]}}\n  - {{name: back, at: w1, layers: [{back}]}}\n"
        done = master("plan", cluster.session("raw", data + stages + TAIL, keys="labels_readable: true"), cwd=cluster.dir)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and text in said and key in said, said


@suite.test
def records_are_drawn_by_a_column_of_weights():
    with open(os.path.join(cluster.dir, "tables/train.csv"), newline="") as f:
        header, *records = csv.reader(f)

    def run(weights, *options, test="test.csv"):
        with open(os.path.join(cluster.dir, "tables/weighted.csv"), "w", newline="") as f:
            csv.writer(f).writerows([header + ["share"]] + [r + [w] for r, w in zip(records, weights)])
        data = DATA.replace("train: [train.csv]", "train: [weighted.csv]\n  sampling: column").replace(
            "    columns:\n", "    columns:\n      share: {as: weight}\n")
        return master("plan", cluster.session("weighted", data + STAGES + TAIL, keys="labels_readable: true"), *options, cwd=cluster.dir)
    done = run([i % 3 for i in range(60)])
    assert done.returncode == 0 and "WEIGHTS BY FREQUENCY" in done.stdout, done.stdout + done.stderr
    for weights, text in (([0] * 60, "the column 'share' is 0 in all"), ([1] * 5 + [-1] * 55, "weighted.csv:7:.*'-1', and a weight is 0 or more"),
                          ([1] * 5 + [""] * 55, "weighted.csv:7:.*the weight 'share' is missing")):
        done = run(weights)
        assert done.returncode in (3, 7) and re.search(text, done.stderr), (done.returncode, done.stderr)
    done = run([1] * 60, "--set", "data.sampling=balanced")
    assert done.returncode == 3 and "nothing reads this weight: set data.sampling: column" in done.stderr, done.stderr
    done = run([1] * 60, "--set", "data.table.columns.share.as=ignore")
    assert done.returncode == 3 and "data.sampling: column needs a column of data.table.columns with as: weight" in done.stderr, done.stderr


@suite.test
def table_on_disk_trains_to_the_same_bits():
    runs = {}
    for storage in ("memory", "disk"):
        session = cluster.session(f"on-{storage}", DATA.replace("  table:\n", f"  table:\n    storage: {storage}\n") + STAGES + TAIL,
                                  keys="labels_readable: true")
        done = cluster.train(session)
        assert done.returncode == 0, done.stdout + done.stderr
        with open(os.path.join(cluster.dir, f"runs/on-{storage}/table.json")) as f:
            learnt = f.read()
        folder = os.path.join(cluster.dir, f"runs/on-{storage}")
        steps = max(int(name.split("-")[1]) for name in os.listdir(folder) if name.startswith("checkpoint-"))
        runs[storage] = (steps, checkpoint_tensors(folder, steps), learnt, outputs(session))
    assert runs["memory"] == runs["disk"]
    cache = os.path.join(cluster.dir, "runs/tables.cache")
    assert os.stat(cache).st_mode & 0o777 == 0o700
    # train.csv, test.csv with labels, and test.csv without them for predict
    assert len(os.listdir(cache)) == 3, os.listdir(cache)


if __name__ == "__main__":
    with Cluster(1) as cluster:
        shutil.copytree(TABLES, os.path.join(cluster.dir, "tables"))
        suite.main()
