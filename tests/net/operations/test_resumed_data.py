"""The data of a run: on --resume, changed records and labels are refused by name and changed keys
are reported; validation sets and limits have records of all classes, and evaluations keep their
scores. All stages are at the master."""
import glob, json, math, os, re, struct, sys, zlib
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import tfevents
from cluster import *

suite = Suite()
DATA = "data: {format: npy, root: data, train: [x.npy, y.npy], test: [tx.npy, ty.npy], validation: {fraction: 0.2}}\n"
STAGES = "stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 3}]}\n"
TAIL = ("loss: {kind: cross_entropy}\n"
        f"train: {{epochs: 2, batch: 12, seed: {SEED}, optimizer: {{kind: adamw, lr: 0.1}}, schedule: {{kind: cosine}}}}\n"
        "checkpoint: {every_steps: 2}\n")
PIECES = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/tokens/pieces.txt"))


def path(*parts):
    return os.path.join(cluster.dir, *parts)


def floats(name, n, columns=6, add=0.0):
    values = [(i * 37 % 101) / 50 - 1 + add for i in range(n * columns)]
    write_npy(path("data", name), (n, columns), "<f4", struct.pack(f"<{len(values)}f", *values))


def whole(name, values):
    write_npy(path("data", name), (len(values),), "<i8", struct.pack(f"<{len(values)}q", *values))


def arrays(n=60, labels=lambda i: i // 20):
    """Writes the data files. The training set is sorted by its labels."""
    floats("x.npy", n)
    whole("y.npy", [labels(i) for i in range(n)])
    floats("tx.npy", 30, add=0.01)
    whole("ty.npy", [i % 3 for i in range(30)])


def png(file, value):
    """Writes a grey image of 4 x 4 pixels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)) +
                chunk(b"IDAT", zlib.compress((b"\0" + bytes([value] * 4)) * 4)) + chunk(b"IEND", b""))


def begun(name, body, *args):
    """A run that stopped after its second step."""
    session = cluster.session(name, body)
    done = cluster.train(session, "--fresh", "--max-steps", "2", *args)
    assert done.returncode == 0, done.stderr
    return session


def refused(session, *texts, args=(), code=7):
    before = {f: open(f, "rb").read() for f in glob.glob(path("runs", "**", "data.digest"), recursive=True)}
    done = cluster.train(session, "--resume", *args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    for t in texts:
        assert re.search(t, done.stderr), (t, done.stderr)
    assert all(open(f, "rb").read() == b for f, b in before.items())
    return done


def resumed(session, *args):
    done = cluster.train(session, "--resume", *args)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done


def changes(name):
    file = path("runs", name, "changes.jsonl")
    return [json.loads(line) for line in open(file)] if os.path.exists(file) else []


# ---- data ----------------------------------------------------------------------------------------

@suite.test
def flipped_labels_are_refused_by_name():
    arrays()
    session = begun("flipped", DATA + STAGES + TAIL)
    whole("y.npy", [2 - i // 20 for i in range(60)])
    refused(session, r"run in \S*runs/flipped began: labels of data\.train \(\S+/y\.npy\); .*--accept-data")
    arrays()
    resumed(session, "--max-steps", "3")
    whole("ty.npy", [0] * 30)
    refused(session, r"labels of data\.test \(\S+/ty\.npy\)")
    done = resumed(session, "--accept-data", "--max-steps", "4")
    assert "changed since the last attempt: labels of data.test" in done.stdout, done.stdout
    assert [c["key"].split(" (")[0] for c in changes("flipped")] == ["labels of data.test"], changes("flipped")
    resumed(session)  # the accepted data are now the run's data


@suite.test
def changed_inputs_are_refused_by_name():
    arrays()
    body = "data: {format: npy, root: data, inputs: [left, right], train: [x.npy, x2.npy, y.npy]}\n"
    floats("x2.npy", 60, add=2)
    stages = STAGES.replace("{op: flatten}", "{op: add, name: both, from: [left, right]}")
    session = begun("inputs", body + stages + TAIL)
    floats("x2.npy", 60, add=2.5)
    refused(session, r"right of data\.train \(\S+/x2\.npy\)")


@suite.test
def changed_text_or_images_are_refused():
    """For images, the bytes of the files count: a new date of a file is no change."""
    def table(word, classes="ab"):
        with open(path("data", "t.csv"), "w") as f:
            f.write("text,label\n" + "".join(f"the {word if i == 7 else 'free'} software {i},{classes[i % 2]}\n" for i in range(30)))
    table("free")
    layers = "stages:\n  - {name: a, at: master, layers: [{op: embedding, rows: 1600, out: 4}, {op: mean, dim: 1}, {op: linear, out: 2}]}\n"
    session = begun("texts", f"data: {{format: text, root: data, train: [t.csv], text: {{max_tokens: 8}}, tokenizer: {{file: {PIECES}}}}}\n" +
                    layers + TAIL)
    table("free", "ac")
    refused(session, r"class 1 is 'b' in the run that was trained, and 'c' in data\.train: the values of data\.text\.label in its records must be the same")
    table("other")
    refused(session, r"records of data\.train \(\S+/t\.csv\)")
    for i in range(24):
        png(path("data", "photos", "ab"[i % 2], f"{i:02}.png"), 10 * i)
    body = "data: {format: images, root: data, train: [photos], images: {channels: 1}}\n"
    session = begun("photos", body + STAGES.replace("out: 3", "out: 2") + TAIL)
    os.utime(path("data", "photos", "a", "04.png"), (1, 1))
    resumed(session, "--max-steps", "3")
    os.rename(path("data", "photos", "b"), path("data", "photos", "c"))
    refused(session, "and 'c' in data.train: the folders of its images must be the same", args=("--accept-data",))
    os.rename(path("data", "photos", "c"), path("data", "photos", "b"))
    png(path("data", "photos", "a", "04.png"), 41)
    refused(session, r"records of data\.train \(\S+/photos\)")


@suite.test
def another_tokenizer_or_model_is_refused_by_name():
    """Also by eval and predict, whose records differ from those of the run."""
    with open(path("data", "v.csv"), "w") as f:
        f.write("text,label\n" + "".join(f"the free software {i},{'ab'[i % 2]}\n" for i in range(30)))
    pieces, vocab, model = open(PIECES).read().split("\n"), path("data", "vocab.txt"), path("data", "bert")

    def files(swapped=False, dropout=0.1):
        lines = list(pieces)
        # swaps two tokens that no record has, so the token numbers of the training set do not
        # change
        if swapped:
            lines[-3], lines[-2] = lines[-2], lines[-3]
        with open(vocab, "w") as f:
            f.write("\n".join(lines))
        os.makedirs(model, exist_ok=True)
        with open(os.path.join(model, "config.json"), "w") as f:
            json.dump({"model_type": "bert", "vocab_size": 1600, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "intermediate_size": 8, "max_position_embeddings": 16, "type_vocab_size": 2, "hidden_dropout_prob": dropout}, f)
    files()
    body = (f"data: {{format: text, root: data, train: [v.csv], test: [v.csv], text: {{max_tokens: 8}}, tokenizer: {{file: {vocab}}}}}\n"
            f"model: {{hf: {model}, head: sequence, labels: 2}}\nstages:\n  - {{name: a, at: master, layers: embeddings..classifier}}\n" + TAIL)
    session = begun("words", body)
    for command in ("predict", "eval"):
        done = master(command, session, cwd=cluster.dir)
        assert done.returncode == 0 and not done.stderr, (done.stdout, done.stderr)
    for change, says in ((lambda: files(swapped=True), r"data\.tokenizer\.file \(\S+/vocab\.txt\)"),
                         (lambda: files(dropout=0.2), r"config\.json of model\.hf \(\S+/bert\)")):
        change()
        refused(session, says + r"; .*--accept-data")
        for command in ("predict", "eval"):
            done = master(command, session, cwd=cluster.dir)
            assert done.returncode == 7 and re.search(r"the run in runs/words: " + says + "; .*--accept-data", done.stderr), (done.returncode, done.stderr)
            done = master(command, session, "--accept-data", cwd=cluster.dir)
            assert done.returncode == 0 and re.search("accepted: " + says, done.stderr), (done.returncode, done.stderr)
    files()
    done = master("predict", session, "--set", "data.tokenizer.lower_case=false", cwd=cluster.dir)
    assert done.returncode == 0 and "data.tokenizer.lower_case is false here, but was true when" in done.stderr, done.stderr
    digests = path("runs", "words", "data.digest")
    kept = [line for line in open(digests) if not line.startswith("tokenizer.")]
    open(digests, "w").writelines(kept)
    done = master("eval", session, cwd=cluster.dir)
    assert done.returncode == 0 and "cannot be checked whether" in done.stderr, done.stderr


@suite.test
def shrunken_data_does_not_finish_a_run():
    arrays()
    session = cluster.session("shrunk", DATA + STAGES + TAIL)
    assert cluster.train(session, "--fresh").returncode == 0
    arrays(24, lambda i: i // 8)
    refused(session, "records of data.train .*, 60 then and 24 now")
    done = refused(session, r"has done 8 steps.* 19 records .*\(48 before\) has only 4: .*train\.epochs", args=["--accept-data"], code=3)
    assert "finished" not in done.stdout, done.stdout
    done = resumed(session, "--accept-data", "--set", "train.epochs=6")
    assert "steps of the run: 8 -> 12" in done.stdout, done.stdout


@suite.test
def run_from_an_old_version_names_the_split_keys_to_set():
    arrays()
    last = DATA.replace("fraction: 0.2", "fraction: 0.2, by: last")
    session = begun("older", last + STAGES + TAIL)
    os.remove(path("runs", "older", "data.digest"))
    cluster.session("older", DATA + STAGES + TAIL)
    refused(session, r"data\.digest.*Cleave 0\.7 or earlier.*Set data\.validation\.by: last to continue")
    refused(session, r"Set data\.validation\.by: last and data\.limit_by: first", args=["--set", "data.limit_train=50"])
    done = resumed(session, "--set", "data.validation.by=last")
    assert "cannot be checked whether the data" in done.stderr and "changed" not in done.stdout, (done.stdout, done.stderr)
    assert os.path.exists(path("runs", "older", "data.digest"))


# ---- keys ----------------------------------------------------------------------------------------

@suite.test
def changed_keys_are_reported_and_recorded():
    arrays()
    session = begun("keys", DATA + STAGES + TAIL)
    done = resumed(session, "--max-steps", "4", "--json", "--set", "train.optimizer.lr=0.05", "--set", "train.epochs=5")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    told = [(t["key"], t["before"], t["after"]) for t in told if t["event"] == "changed"]
    assert told == [("train.epochs", "2", "5"), ("train.optimizer.lr", "0.1", "0.05"), ("steps of the run", "8", "20"),
                    ("steps of train.schedule, which follow the run (total_steps: 8 keeps them)", "8", "20")], told
    assert [(c["key"], c["before"], c["after"], c["attempt"]) for c in changes("keys")] == [(*t, 2) for t in told]
    done = resumed(session, "--max-steps", "5", "--set", "train.drop_last=true", "--set", "train.batch=11",
                   "--set", f"train.seed={SEED[::-1]}", "--set", "checkpoint.best=validation.loss", "--accept-data")
    assert "changed since the last attempt: checkpoint.best: not given -> validation.loss\n" in done.stdout, done.stdout
    assert re.search(r"changed since the last attempt: train\.drop_last: false -> true\n", done.stdout), done.stdout
    assert re.search(r"steps of the run: 20 -> 8\n", done.stdout) and "train.seed: (secret) -> another one" in done.stdout, done.stdout
    assert SEED[::-1] not in done.stdout + open(path("runs", "keys", "changes.jsonl")).read()


@suite.test
def optimiser_without_checkpoint_state_is_refused():
    """The refusal comes before the run changes. adam and adamw have the same state."""
    arrays()
    session = begun("kind", DATA + STAGES + TAIL)
    kept = open(path("runs", "kind", "session.effective.yaml"), "rb").read()
    for kind in ("sgd", "adagrad", "adamax"):
        done = refused(session, rf"train\.optimizer\.kind is {kind}, but the checkpoints of runs/kind were written with adamw: "
                       "set it back to adamw", args=("--set", f"train.optimizer.kind={kind}"), code=3)
        assert open(path("runs", "kind", "session.effective.yaml"), "rb").read() == kept, done.stderr
    two = "stages=[{name: a, at: master, layers: [{op: flatten}]}, {name: b, at: master, layers: [{op: linear, out: 3}]}]"
    done = resumed(session, "--max-steps", "3", "--set", two)
    assert "last attempt: cut: a at master: layers 0 to 1 -> a at master: layer 0; b at master: layer 1\n" in done.stdout and "stages.1" not in done.stdout, done.stdout
    resumed(session, "--max-steps", "4", "--set", "train.optimizer.kind=adam")
    session = begun("momentum", DATA + STAGES + TAIL.replace("adamw", "sgd"))
    refused(session, r"train\.optimizer\.momentum is 0\.9, but .* were written with 0: ", args=("--set", "train.optimizer.momentum=0.9"), code=3)


# ---- sets ----------------------------------------------------------------------------------------

@suite.test
def validation_split_of_sorted_data_covers_all_classes():
    arrays()
    body = DATA + STAGES + TAIL.replace("cross_entropy}", "cross_entropy, scores: [f1]}")
    session = cluster.session("sorted", body)
    done = cluster.train(session, "--fresh")
    assert done.returncode == 0 and not re.search("one class", done.stderr), done.stderr
    assert "12 of 60 records are held back for validation: each class by its share, drawn by the seed" in done.stdout, done.stdout
    told = [json.loads(line) for line in open(path("runs", "sorted", "evaluations.jsonl"))]
    assert [c["places"] for c in told[0]["scores"]["classes"]] == [4, 4, 4], told[0]
    done = master("check", session, "--set", "data.validation.by=last", cwd=cluster.dir)
    assert done.returncode == 0 and "data.validation: its 12 records are of one class, 2" in done.stderr, done.stderr
    done = master("check", session, "--set", "data.limit_train=10", "--set", "data.limit_by=first", cwd=cluster.dir)
    assert "data.train: its 8 records are of one class, 0" in done.stderr and "data.validation: its 2" in done.stderr, done.stderr
    done = master("check", session, "--set", "data.limit_train=10", cwd=cluster.dir)
    assert done.returncode == 0 and "one class" not in done.stderr and "2 of 10 records" in done.stdout, done


@suite.test
def validation_fraction_below_one_record_holds_back_one():
    arrays(21, lambda i: i % 3)
    tail = TAIL.replace("every_steps", "best: validation.loss, every_steps")
    session = cluster.session("rounds", DATA.replace("0.2", "0.02") + STAGES + tail)
    done = cluster.train(session, "--fresh")
    assert done.returncode == 0 and "a fraction of 0.02 of 21 records rounds to none, so one is held back" in done.stderr, done.stderr
    assert master("eval", session, "--checkpoint", "best", cwd=cluster.dir).returncode == 0


@suite.test
def validation_split_does_not_divide_groups():
    arrays()
    whole("g.npy", [i // 4 for i in range(60)])
    session = cluster.session("groups", DATA.replace("fraction: 0.2", "fraction: 0.2, by: group, group: g.npy") + STAGES + TAIL)
    done = master("check", session, cwd=cluster.dir)
    assert done.returncode == 0 and "12 of 60 records are held back for validation: in whole groups" in done.stdout, done
    whole("g.npy", [7] * 60)
    done = master("check", session, cwd=cluster.dir)
    assert done.returncode == 7 and "all 60 records are in one group" in done.stderr, done.stderr
    for wrong, says in (("by: group", "needs data.validation.group"), ("group: g.npy", "goes with data.validation.by: group")):
        done = master("check", cluster.session("g", DATA.replace("fraction: 0.2", f"fraction: 0.2, {wrong}") + STAGES + TAIL), cwd=cluster.dir)
        assert done.returncode == 3 and says in done.stderr, done.stderr
    for i in range(24):
        png(path("data", "people", "ab"[i % 2], f"p{i // 4}", f"{i}.png"), i)
    body = ("data: {format: images, root: data, train: [people], images: {channels: 1}, validation: {fraction: 0.25, by: group}}\n" +
            STAGES.replace("out: 3", "out: 2") + TAIL)
    done = master("check", cluster.session("people", body), cwd=cluster.dir)
    assert done.returncode == 0 and re.search(r"[48] of 24 records are held back for validation: in whole groups", done.stdout), done
    png(path("data", "people", "a", "alone.png"), 3)
    done = master("check", cluster.session("people", body), cwd=cluster.dir)
    assert done.returncode == 7 and "people/a/alone.png is in no group" in done.stderr, done.stderr


@suite.test
def validation_split_groups_texts_by_a_column():
    with open(path("data", "g.jsonl"), "w") as f:
        f.writelines(json.dumps({"text": f"free software {i}", "label": "ab"[i % 2], "author": i // 5}) + "\n" for i in range(50))
    layers = "stages:\n  - {name: a, at: master, layers: [{op: embedding, rows: 1600, out: 4}, {op: mean, dim: 1}, {op: linear, out: 2}]}\n"
    body = (f"data: {{format: text, root: data, train: [g.jsonl], text: {{max_tokens: 8}}, tokenizer: {{file: {PIECES}}}, "
            "validation: {fraction: 0.2, by: group, group: author}}\n" + layers + TAIL)
    done = master("check", cluster.session("authors", body), cwd=cluster.dir)
    assert done.returncode == 0 and "10 of 50 records are held back for validation: in whole groups" in done.stdout, done
    done = master("check", cluster.session("authors", body.replace("group: author", "group: writer")), cwd=cluster.dir)
    assert done.returncode == 7 and "has no 'writer'" in done.stderr, done.stderr


@suite.test
def validation_split_does_not_divide_documents():
    """All windows of a page are in the same set; with `by: group` all pages of a file are."""
    def pages(named):
        with open(path("data", "d.jsonl"), "w") as f:
            for i in range(20):
                words = [f"word{k}" for k in range(24 if i % 2 else 3)]
                page = {"words": words, "boxes": [[0, 0, 9, 9]] * len(words), "label": "ab"[i // 2 % 2]}
                f.write(json.dumps({**page, "file": f"{i // 4}.pdf"} if named else page) + "\n")
    layers = "stages:\n  - {name: a, at: master, layers: [{op: embedding, rows: 1600, out: 4}, {op: mean, dim: 1}, {op: linear, out: 2}]}\n"
    body = ("data: {format: documents, root: data, inputs: [ids], train: [d.jsonl], validation: {fraction: 0.2}, "
            f"documents: {{labels_of: pages, max_tokens: 16}}, tokenizer: {{file: {PIECES}}}}}\n" + layers + TAIL)
    pages(False)
    done = master("check", cluster.session("pages", body), cwd=cluster.dir)
    assert done.returncode == 0 and "are held back for validation: in whole pages, drawn by the seed" in done.stdout, done
    by_file = cluster.session("files", body.replace("fraction: 0.2", "fraction: 0.2, by: group"))
    done = master("check", by_file, cwd=cluster.dir)
    assert done.returncode == 7 and re.search(r"d\.jsonl:1: has no 'file', and data\.validation\.by: group", done.stderr), done.stderr
    pages(True)
    done = master("check", by_file, cwd=cluster.dir)
    held, all = map(int, re.search(r"(\d+) of (\d+) records are held back for validation: in whole groups", done.stdout).groups())
    assert done.returncode == 0 and all == 5 * held, done  # five equal files


@suite.test
def predict_limit_takes_the_first_records():
    arrays()
    session = cluster.session("first", DATA + STAGES + TAIL)
    assert cluster.train(session, "--fresh").returncode == 0
    done = master("predict", session, "--set", "data.limit_test=4", "--output", "p.csv", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in open(path("p.csv"))] == ["id", "0", "1", "2", "3"]


# ---- messages ------------------------------------------------------------------------------------

@suite.test
def scores_are_stored_with_evaluations():
    arrays()
    body = DATA + STAGES + TAIL.replace("cross_entropy}", "cross_entropy, scores: [f1, auc, confusion, perplexity]}")
    session = cluster.session("scores", body + "log: {tensorboard: true}\n")
    done = cluster.train(session, "--fresh", "--json")
    assert done.returncode == 0, done.stderr
    printed = [t for t in map(json.loads, done.stdout.splitlines()) if t["event"] in ("validation", "test")]
    kept = [json.loads(line) for line in open(path("runs", "scores", "evaluations.jsonl"))]
    assert len(kept) == 3 and [k["scores"] for k in kept] == [p["scores"] for p in printed], kept
    curves = tfevents.read(path("runs", "scores", "tensorboard"))
    for k in kept:
        for name, value in (("f1_micro", k["scores"]["f1"]["micro"]), ("f1_macro", k["scores"]["f1"]["macro"]),
                            ("auc", k["scores"]["auc"]), ("perplexity", k["scores"]["perplexity"])):
            assert math.isclose(curves[f"{k['event']}/{name}"][k["step"]], value, rel_tol=1e-6), (name, k, curves)
    done = master("runs", cwd=cluster.dir)
    assert re.search(r"\n ?scores +finished .* accuracy \d\.\d{4} at \d+, validation ", done.stdout), done.stdout
    without = cluster.session("untold", body.replace(", validation: {fraction: 0.2}", ""))
    assert cluster.train(without, "--fresh").returncode == 0
    assert re.search(r"\n ?untold +finished .* accuracy \d\.\d{4} at \d+, test ", master("runs", cwd=cluster.dir).stdout)


@suite.test
def non_finite_losses_are_reported():
    arrays()
    body = DATA + STAGES.replace("{op: flatten}", "{op: flatten}, {op: linear, out: 6}") + TAIL.replace("lr: 0.1", "lr: 1.0e38")
    body = body.replace("schedule: {kind: cosine}", "schedule: {kind: constant}") + "log: {every: 4}\n"
    done = cluster.train(cluster.session("nan", body), "--fresh")
    assert "-nan" not in done.stdout + done.stderr, done.stdout
    assert re.search(r"SKIPPED \d of 4 steps \(loss or gradient not finite\)", done.stdout), (done.stdout, done.stderr)
    assert re.search(r"step 8/8 .* loss nan ", done.stdout), done.stdout
    one = [(i * 37 % 101) / 50 - 1 for i in range(360)]
    one[96] = 3e38  # data.scale makes it infinite, so one step of an epoch is not finite
    write_npy(path("data", "x.npy"), (60, 6), "<f4", struct.pack("<360f", *one))
    body = (DATA.replace("validation: {fraction: 0.2}", "scale: 10") + STAGES +
            TAIL.replace("lr: 0.1", "lr: 0.001") + "log: {every: 5}\n")
    done = cluster.train(cluster.session("one", body), "--fresh")
    told = re.findall(r"step \d+/10 .* loss (\S+) .*SKIPPED 1 of 5 steps", done.stdout)
    assert len(told) == 2 and all(0 < float(v) < 9 for v in told), done.stdout


@suite.test
def long_names_are_complete_or_visibly_truncated():
    long = "x" * 70
    done = master("check", "--" + long, cwd=cluster.dir)
    assert f"there is no option --{long}" in done.stderr, done.stderr
    arrays()
    names = "a_stage_of_which_the_name_is_as_long_as_one_may_be_which_is_64_c"
    session = cluster.session("long", DATA + STAGES.replace("name: a,", f"name: {names},") + TAIL)
    assert cluster.train(session, "--fresh", "--trace", "t.json").returncode == 0
    assert f"F0 {names}" in open(path("t.json")).read()
    os.rename(path("runs", "long"), path("runs", "y" * 120))
    told = master("runs", cwd=cluster.dir).stdout
    assert "y" * 76 + "... " in told and "y" * 77 not in told, told
    assert any(json.loads(line)["name"] == "y" * 120 for line in master("runs", "--json", cwd=cluster.dir).stdout.splitlines())


cluster = Cluster(0)
with cluster:
    os.mkdir(path("data"))
    suite.main()
