"""Texts as training data: licences of this system, cut into passages, from CSV and JSON lines to a
network that tells one licence from another, whose middle is a worker's."""
import csv, gzip, json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = os.path.abspath(os.path.join(HERE, "../../golden/tokens"))
LICENCES = ("Apache-2.0", "GFDL-1.3", "GPL-3", "MPL-2.0")
WORDS = 30  # of a passage
PIECES = f"  tokenizer: {{file: {TOKENS}/pieces.txt}}\n"
DATA = "data:\n  format: text\n  root: texts\n  train: [train.csv]\n  test: [test.csv]\n  text: {max_tokens: 48}\n" + PIECES
FRONT = "{op: embedding, rows: 1600, out: 32}, {op: mean, dim: 1}, {op: linear, out: 32}"
REPORT = '{as: text, missing: value}'  # some passages have blanks alone
AS_TABLE = ("data:\n  format: table\n  root: texts\n  train: [train.csv]\n  test: [test.csv]\n  table:\n"
            f"    columns: {{id: {{as: id}}, text: {REPORT}, label: {{as: target}}}}\n  text: {{max_tokens: 48}}\n" + PIECES)
STAGES = ("stages:\n"
          f"  - {{name: front, at: master, layers: [{FRONT}]}}\n"
          "  - {name: middle, at: w1, layers: [{op: linear, out: 32}, {op: relu}]}\n"
          "  - {name: head, at: master, layers: [{op: linear, out: 4}]}\n")
TAIL = ("loss: {kind: cross_entropy, at: master}\n"
        f"train: {{epochs: 12, batch: 16, seed: {SEED}, optimizer: {{kind: adam, lr: 0.01}}}}\n")


def passages():
    """(class, text), every fifth for the test."""
    sets = {"train": [], "test": []}
    for name in LICENCES:
        words = open(f"/usr/share/common-licenses/{name}", encoding="utf-8", errors="replace").read().split(" ")
        for i in range(0, len(words) - WORDS, WORDS):
            sets["test" if i // WORDS % 5 == 4 else "train"].append((name, " ".join(words[i:i + WORDS])))
    return sets


def write_all(folder):
    os.makedirs(folder)
    for part, records in passages().items():
        with open(f"{folder}/{part}.csv", "w", newline="") as f:
            w = csv.writer(f)
            w.writerows([("id", "text", "label"), *((i, text, name) for i, (name, text) in enumerate(records))])
        with gzip.open(f"{folder}/{part}.jsonl.gz", "wt") as f:
            f.writelines(json.dumps({"label": name, "text": text, "more": [1, None]}) + "\n" for name, text in records)


def body(data=DATA, stages=STAGES, tail=TAIL):
    return data + stages + tail


@suite.test
def text_model_learns_and_predicts_class_names():
    session = cluster.session("learn", body(), keys="labels_readable: true")
    plan = master("plan", session, cwd=cluster.dir)
    assert plan.returncode == 0 and re.search(r"activation of stage 'front'.*\[16, 32\]", plan.stdout), plan.stdout + plan.stderr
    assert "TOKENS" not in plan.stdout, plan.stdout
    done = cluster.train(session, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(re.search(r"test accuracy (\S+) %", done.stdout).group(1))
    largest = max(sum(name == c for name, _ in passages()["test"]) for c in LICENCES) / len(passages()["test"])
    assert accuracy > 100 * largest + 20, (accuracy, largest, done.stdout)
    out = os.path.join(cluster.dir, "p.csv")
    done = master("predict", session, "--out", out, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    names = [row["name"] for row in csv.DictReader(open(out))]
    right = sum(a == b for a, (b, _) in zip(names, passages()["test"]))
    assert len(names) == len(passages()["test"]) and abs(100 * right / len(names) - accuracy) < 0.2


@suite.test
def json_lines_give_the_same_bits():
    few = TAIL.replace("epochs: 12", "max_steps: 3")
    lines = DATA.replace(".csv", ".jsonl.gz")
    runs = [cluster.trained(name, body(data, tail=few), 3)[:2] for name, data in (("csv", DATA), ("lines", lines), ("table", AS_TABLE))]
    assert runs[0] == runs[1]
    assert runs[0] == runs[2], "a table's column `as: text` gives the batches of format text"


@suite.test
def text_of_a_table_is_checked_evaluated_and_predicted():
    session = cluster.session("table", body(AS_TABLE, tail=TAIL.replace("epochs: 12", "max_steps: 3")), keys="labels_readable: true")
    done = master("check", session, cwd=cluster.dir)
    assert done.returncode == 0 and re.search(r"  text +text +\d+ to 48 tokens +7 +\d+\n", done.stdout), done.stdout + done.stderr
    assert re.search(r"data.train: \d+ of \d+ texts are longer than data.text.max_tokens \(48\) and cut", done.stdout + done.stderr), done.stdout + done.stderr
    out = os.path.join(cluster.dir, "t.csv")
    done = master("predict", session, "--out", out, "--set", "data.limit_test=4", cwd=cluster.dir)
    rows = list(csv.DictReader(open(out)))
    assert done.returncode == 0 and [row["id"] for row in rows] == ["0", "1", "2", "3"], (done.stderr, rows)
    without_test = body(AS_TABLE.replace("  test: [test.csv]\n", ""), tail=TAIL)
    done = master("predict", cluster.session("no-test", without_test, keys="labels_readable: true"), cwd=cluster.dir)
    assert done.returncode == 3 and "data.test is missing: name the records to look at there: one table, as in [patients.csv]" in done.stderr, done.stderr
    done = master("eval", session, "--set", "data.table.columns.text.value=none", cwd=cluster.dir)
    assert done.returncode == 7 and "column 'text' is not read as the run's training read it" in done.stderr, done.stderr
    away = ("stages:\n  - {name: front, at: w1, layers: [" + FRONT + "]}\n"
            "  - {name: head, at: master, layers: [{op: linear, out: 4}]}\n")
    done = master("plan", cluster.session("text-away", body(AS_TABLE, stages=away), keys=""), cwd=cluster.dir)
    assert done.returncode == 3 and "raw_input_leaves" in done.stderr, done.stderr


@suite.test
def text_stands_beside_numbers():
    front = ("{op: embedding, name: words, rows: 1600, out: 32, from: [ids]}, {op: mean, name: means, dim: 1}, "
             "{op: concat, dim: 1, from: [input, means]}, {op: linear, out: 32}")
    beside = AS_TABLE.replace("id: {as: id}", "id: {as: number}")
    stages = STAGES.replace(FRONT, front)
    tail = TAIL.replace(SEED, SEED[::-1])  # no worker knows the layers of this seed
    done = master("check", cluster.session("beside", body(beside, stages, tail), keys="labels_readable: true"), cwd=cluster.dir)
    assert done.returncode == 0, done.stdout + done.stderr
    for data, part, text in (
            (beside.replace("data:\n", "data:\n  inputs: [ids, lengths]\n"), stages, "data.inputs: no layer of the model reads 'lengths'"),
            (beside, STAGES, "embedding needs i64 row numbers"),
            (AS_TABLE.replace(PIECES, ""), STAGES, "columns.text: as: text needs data.tokenizer.file"),
            (AS_TABLE.replace("id: {as: id}", "id: {as: text}"), STAGES, "columns.text: a second text; a record has one"),
            (AS_TABLE.replace("id: {as: id}", "id: {as: file}"), STAGES, "`as: file` makes the image the record's only input"),
            (AS_TABLE.replace("  table:\n", "  table:\n    storage: disk\n"), STAGES, "the tokens of `as: text` are in memory"),
            (AS_TABLE.replace(REPORT, "{as: text, missing: most_frequent}"), STAGES, "most_frequent goes with inputs that are no text"),
            (AS_TABLE.replace(REPORT, "{as: text}"), STAGES, r"train.csv:\d+:\d+: column 'text' has no text here"),
            (AS_TABLE.replace(REPORT, "{as: text, indicator: true}"), STAGES, "indicator goes with inputs that are no text: missing: value"),
            (AS_TABLE.replace("data:\n", "data:\n  inputs: [lengths]\n"), STAGES, "the text of column 'text' is the input ids: add it"),
            (AS_TABLE.replace("max_tokens: 48", "max_tokens: 48, column: body"), STAGES, "data.text.column does not go with data.format table"),
            (AS_TABLE.replace(REPORT, "{as: category}"), STAGES, "but with text and documents, or with a column `as: text`: remove it|but with text, or with a column `as: text`"),
            (AS_TABLE.replace("id: {as: id}", "id: {as: index, input: ids}"), stages, "two columns are the input 'ids'")):
        done = master("check", cluster.session("wrong", body(data, part, tail), keys="labels_readable: true"), cwd=cluster.dir)
        assert done.returncode in (3, 7) and re.search(text, done.stderr), (text, done.returncode, done.stdout, done.stderr)


@suite.test
def session_from_a_table_suggests_texts():
    def written(name, column):
        folder = os.path.join(cluster.dir, name)
        os.makedirs(folder)
        with open(os.path.join(folder, "patients.csv"), "w", newline="") as f:
            csv.writer(f).writerows([(column, "report", "finding"), *((i % 9, text, c) for i, (c, text) in enumerate(passages()["test"]) if text.strip())])
        done = master("init", "--from", "patients.csv", cwd=folder)
        assert done.returncode == 0, done.stderr
        return folder, done.stdout, open(os.path.join(folder, "session.yaml")).read()
    _, _, text = written("with-age", "age")
    assert re.search(r'"report": {as: ignore} .*; texts: as: text makes them tokens', text), text
    folder, said, text = written("with-id", "patient_id")
    assert '"report": {as: text}' in text and "put its vocab.txt here" in said, said + text
    done = master("check", "session.yaml", "--quick", "--set", f"data.tokenizer.file={TOKENS}/pieces.txt", cwd=folder)
    assert done.returncode == 0, done.stderr


def modelling(objective):
    model = "stages:\n  - {name: all, at: master, layers: [{op: embedding, rows: 1600, out: 16}, {op: linear, out: 1600}]}\n"
    return body(DATA + f"  objective: {objective}\n", model, TAIL.replace("epochs: 12", "epochs: 12, max_steps: 60"))


@suite.test
def resumed_run_masks_the_same_tokens():
    """26 steps an epoch: the whole run and the resumed one see the second epoch's tokens."""
    for objective in ("masked", "causal") if LONG else ("masked",):
        whole, metrics, _ = cluster.trained(objective, modelling(objective), 60)
        losses = [row["loss"] for row in map(json.loads, metrics.splitlines()) if "loss" in row]
        assert sum(losses[-10:]) < 0.95 * sum(losses[:10]), losses
        session = cluster.session(objective + "-again", modelling(objective))
        for more in (["--max-steps", "37"], ["--resume"]):
            done = cluster.train(session, *more, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
        assert checkpoint_tensors(os.path.join(cluster.dir, "runs", objective + "-again"), 60) == whole


@suite.test
def check_counts_classes_and_truncated_texts():
    done = master("check", cluster.session("count", body(), keys="labels_readable: true"), cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ training samples in 4 classes", done.stdout), done.stdout
    assert re.search(r"data.train: \d+ of \d+ texts are longer than data.text.max_tokens \(48\) and cut", done.stdout + done.stderr), done.stdout + done.stderr


@suite.test
def vectors_per_token_need_tokens_readable():
    """One vector a token may leave if the file says so, tokens themselves if it says more."""
    per_token = STAGES.replace(FRONT, "{op: embedding, rows: 1600, out: 32}").replace(
        "[{op: linear, out: 32}, {op: relu}]", "[{op: lstm, out: 32}, {op: mean, dim: 1}]")
    done = master("plan", cluster.session("vectors", body(stages=per_token), keys=""), cwd=cluster.dir)
    assert done.returncode == 3 and "tokens_readable" in done.stderr, done.stderr
    done = master("plan", cluster.session("said", body(stages=per_token), keys="tokens_readable: true, labels_readable: true"), cwd=cluster.dir)
    assert done.returncode == 0 and "TOKENS: one vector per token is sent" in done.stdout, done.stdout + done.stderr
    away = ("stages:\n  - {name: front, at: w1, layers: [" + FRONT + "]}\n"
            "  - {name: head, at: master, layers: [{op: linear, out: 4}]}\n")
    done = master("plan", cluster.session("rows", body(stages=away), keys=""), cwd=cluster.dir)
    assert done.returncode == 3 and "raw_input_leaves" in done.stderr, done.stderr


def refused(name, data, code, text, stages=STAGES, tail=TAIL):
    done = master("check", cluster.session(name, data + stages + tail, keys=""), cwd=cluster.dir)
    assert done.returncode == code and re.search(text, done.stderr), (done.returncode, done.stderr)


def table(name, text):
    with open(os.path.join(cluster.dir, "texts", name), "w") as f:
        f.write(text)
    return DATA.replace("train.csv", name)


@suite.test
def text_errors_name_line_and_column():
    refused("quotes", table("q.csv", 'text,label\n"a",b\n"open,b\n'), 7, r"data\.train: .*q\.csv:3:1: these quotes have no end")
    refused("json", table("j.jsonl", '{"text": "a", "label": "b"}\n{"text": x}\n'), 7, r"j\.jsonl:2:10: no JSON value begins here")
    refused("column", DATA.replace("{max", "{column: body, max"), 7, r"train\.csv:1:1: the header has no 'body'")
    for name, line, text in (("number", '{"text": 5, "label": "b"}', r"1:10: a text is expected here, found a number"),
                             ("share", '{"text": "a", "label": 1.5}', r"1:24: 1\.5 is no whole number from 0 to 2147483647"),
                             ("list", '{"text": "a", "label": ["b"]}', r"1:24: a text is expected here, found a list")):
        refused(name, table(f"{name}.jsonl", line + "\n"), 7, rf"{name}\.jsonl:" + text)
    refused("ending", table("t.tsv", "text\tlabel\n"), 7, r"t\.tsv: texts come as \.csv or \.jsonl")
    refused("classes", DATA.replace("test.csv", "q2.csv"), 7, "both need the same") if table("q2.csv", "text,label\na,b\n") else None
    refused("vocabulary", DATA.replace("pieces.txt", "nothing.txt"), 7, r"nothing\.txt")
    refused("pad", DATA.replace("pieces.txt", "gpt2.json"), 7, r"data\.tokenizer\.pad: name the token")
    refused("mask", DATA.replace("data:\n", "data:\n  objective: masked\n").replace("pieces.txt}", "pieces.txt, mask: '[NO]'}"), 7, r"data\.tokenizer\.mask: .*has no token '\[NO\]'")
    refused("token", DATA.replace("pieces.txt}", "pieces.txt, pad: '[NO]'}"), 7, r"has no token '\[NO\]'")
    refused("rows", DATA, 3, r"rows\.yaml:\d+:\d+: data\.tokenizer\.file: .* has 1600 tokens, and the embedding '\S+' has rows: 1000", STAGES.replace("1600", "1000"))
    refused("no-tokenizer", DATA.replace(PIECES, ""), 3, r"no-tokenizer\.yaml:\d+:\d+: data\.format text needs data\.tokenizer\.file")
    refused("one-file", DATA.replace("[train.csv]", "[train.csv, x]"), 3, "must name one table of texts")
    refused("one-column", DATA.replace("{max", "{column: a, label: a, max"), 3, "column and label are both 'a'")
    refused("no-embedding", DATA, 3, "the first layer must be an embedding", STAGES.replace(FRONT, "{op: linear, out: 32}"))


with Cluster(1) as cluster:
    write_all(os.path.join(cluster.dir, "texts"))
    suite.main()
