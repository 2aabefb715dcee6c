"""The look, which measures how well records can be read from tensors that leave: its figures for
small sessions, sessions that it refuses before a worker is dialled, and the files with its
figures."""
import json, os, random, re, struct, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../lib"))
from cluster import *

RECORDS, ROWS, PLACES, SIDE = 128, 50, 12, 12
LINEAR = "[{op: linear, out: 16}]"
HEADS = ["[{op: linear, out: %d}]", "[{op: linear, out: 32}, {op: relu}, {op: linear, out: %d}]",
         "[{op: linear, out: 32}, {op: relu}, {op: linear, out: 32}, {op: relu}, {op: linear, out: %d}]"]
EMBEDDING = "{op: embedding, rows: %d, out: 16}" % ROWS
ALL = READABLE + ", raw_input_leaves: true"
suite = Suite()
cluster = None


def data(folder):
    """Writes random data: whatever can be read of it must be in the tensors that leave."""
    r = random.Random(3)

    def floats(name, *shape):
        n = RECORDS
        for d in shape:
            n *= d
        write_npy(f"{folder}/{name}.npy", (RECORDS, *shape), "<f4", struct.pack(f"<{n}f", *(r.gauss(0, 1) for _ in range(n))))

    def wholes(name, below, *shape):
        n = RECORDS
        for d in shape:
            n *= d
        write_npy(f"{folder}/{name}.npy", (RECORDS, *shape), "<i8", struct.pack(f"<{n}q", *(r.randrange(below) for _ in range(n))))

    floats("vector", 16)
    floats("image", 3, SIDE, SIDE)
    wholes("tokens", ROWS, PLACES)
    for classes in (2, 10):
        wholes(f"y{classes}", classes)
    floats("real", 1)
    floats("three", 3)
    wholes("words", 5000, PLACES)

    def numbers(name, of):
        rows = [of(i) for i in range(RECORDS)]
        write_npy(f"{folder}/{name}.npy", (RECORDS, len(rows[0])), "<f4", struct.pack(f"<{RECORDS * len(rows[0])}f", *(v for row in rows for v in row)))

    numbers("signs", lambda i: [r.choice((-1, 1))])
    numbers("rare", lambda i: [1 if i % 10 == 7 else -1])
    numbers("few", lambda i: [r.choice((0, 1000))])
    numbers("far", lambda i: [r.uniform(0, 1e6)])
    numbers("soft", lambda i: [r.choice((.6, .9))])
    numbers("wide", lambda i: [r.gauss(0, 1) for _ in range(3)])
    for classes in (2, 10):
        numbers(f"hot{classes}", lambda i: [float(k == at) for at in [r.randrange(classes)] for k in range(classes)])
    numbers("thirteenth", lambda i: [r.uniform(-1, 1) * (k == 12) for k in range(16)])
    numbers("hundredth", lambda i: [r.uniform(-9, 9) if k == 99 else r.uniform(-1e-3, 1e-3) for k in range(300)])
    numbers("bits", lambda i: [float(k == 12 and r.randrange(2)) for k in range(16)])
    numbers("unscaled", lambda i: [r.gauss(0, 1) * (10000 if k == 5 else 1) for k in range(16)])
    numbers("one", lambda i: [r.gauss(0, 1) if k == 5 else 3. for k in range(16)])
    numbers("copies", lambda i: [r.gauss(0, 1)] * 16)
    numbers("alike", lambda i: [a + r.gauss(0, .5) for a in [r.gauss(0, 1)] for k in range(16)])
    numbers("same", lambda i: [1., 2., 3., 4.])
    numbers("kinds", lambda i: [float(k == at) for at in [r.randrange(8)] for k in range(8)])
    numbers("codes", lambda i: [(.1, .7, 3)[r.randrange(3)], r.randrange(4)])


def session(name, front, x, head, y, loss="{kind: cross_entropy}", middle="[{op: scale, factor: 1}]", keys="", more="", steps=2, seed=""):
    return cluster.session(name, f"data: {{format: npy, root: data, train: [{x}.npy, {y}.npy], test: [{x}.npy, {y}.npy]}}\nstages:\n"
                           f"  - {{name: a, at: master, layers: {front}}}\n  - {{name: b, at: w1, layers: {middle}}}\n"
                           f"  - {{name: c, at: master, layers: {head}}}\nloss: {loss}\n"
                           f"train: {{batch: 16, max_steps: {steps}, {seed}optimizer: {{kind: sgd, lr: 0.01}}}}\n" + more, keys)


def plan(name, *args, keys=READABLE, **more):
    done = master("plan", "--json", session(name, *args, keys=keys, **more), cwd=cluster.dir)
    assert done.returncode == 0, (name, done.stderr)
    facts = json.loads(done.stdout)
    return {**facts["look"], "privacy": facts["privacy"], "egress": facts["egress"]}


def refused(command, path, *says):
    done = master(command, path, cwd=cluster.dir)
    assert done.returncode == 3 and all(re.search(s, done.stderr) for s in says), (command, done.returncode, done.stdout, done.stderr)


@suite.test
def labels_of_few_classes_are_readable_through_layers():
    for depth, head in enumerate(HEADS if LONG else HEADS[1:2]):
        look = plan(f"two-{depth}", LINEAR, "vector", head % 2, "y2")
        assert look["labels"]["read"] > .9 and look["labels"]["by"] in ("sign", "two clusters"), look
        assert look["privacy"]["labels"] == "readable" and look["egress"][1]["shows"] == "LABELS READABLE", look
        look = plan(f"ten-{depth}", LINEAR, "vector", head % 10, "y10")
        assert look["labels"]["read"] < .3 and look["privacy"]["labels"] == "inferable", look
        assert look["records"] == 64 and look["draws"] == 3 and look["seconds"] < 10, look
    for loss, by in (("{kind: cross_entropy, weight: [1, 50]}", "length"), ("{kind: cross_entropy, ignore_index: 0}", "zeros"),
                     ("{kind: cross_entropy, weight: [0, 1]}", "zeros")):
        look = plan("weighted", LINEAR, "vector", HEADS[2] % 2, "y2", loss)
        assert look["labels"]["read"] > .99, (loss, look)
    done = master("plan", session("said", LINEAR, "vector", HEADS[2] % 2, "y2", "{kind: cross_entropy, weight: [1, 50]}", keys=READABLE), cwd=cluster.dir)
    assert re.search(r"labels: loss.weight makes gradients of some classes longer", done.stdout), done.stdout
    for loss, y, n, says in (("{kind: mse}", "signs", 1, False), ("{kind: bce_with_logits}", "soft", 1, False), ("{kind: cross_entropy}", "y10", 10, False),
                             ("{kind: cross_entropy, ignore_index: 0}", "y10", 10, True)):
        done = master("plan", session("said", LINEAR, "vector", HEADS[2] % n, y, loss, keys=READABLE), cwd=cluster.dir)
        assert done.returncode == 0 and ("labels: those that are 0" in done.stdout) == says, (loss, done.stdout, done.stderr)


@suite.test
def numeric_labels_are_readable_from_gradients():
    """By their values if these repeat, else by whether they are above the median; a one-hot label
    by the index of its 1."""
    for y, least in (("signs", .7), ("rare", .7), ("real", .3), ("far", .9), ("few", .9)):
        for depth, head in enumerate(HEADS[:2] if LONG and y in ("signs", "rare") else HEADS[:1]):
            look = plan(f"{y}-{depth}", LINEAR, "vector", head % 1, y, "{kind: mse}")
            assert look["labels"]["read"] > least, (y, depth, look)
            assert look["privacy"]["labels"] == "readable" and look["egress"][1]["shows"] == "LABELS READABLE", look
    for y, n in (("hot2", 2), ("wide", 3)):
        look = plan(y, LINEAR, "vector", HEADS[1] % n, y, "{kind: mse}")
        assert look["labels"]["read"] > .3, (y, look)
    for y, loss, least in (("thirteenth", "{kind: mse}", .3), ("bits", "{kind: bce_with_logits}", .3), ("hundredth", "{kind: mse}", .3)):
        look = plan(y, LINEAR, "vector", "[{op: linear, out: 64}, {op: tanh}, {op: linear, out: %d}]" % (300 if y == "hundredth" else 16), y, loss)
        assert look["labels"]["read"] > least, (y, look)
    look = plan("hot10", LINEAR, "vector", HEADS[2] % 10, "hot10", "{kind: mse}")
    assert look["labels"]["read"] < .3, look
    look = plan("soft", LINEAR, "vector", HEADS[1] % 1, "soft", "{kind: bce_with_logits}")
    assert look["labels"]["state"] == "looked at", look
    refused("plan", session("signs", LINEAR, "vector", HEADS[1] % 1, "signs", "{kind: mse}"), "can read labels from the gradient for stage 'b'")


@suite.test
def gradients_passed_between_workers_are_examined():
    """From those of the last worker up to the next stage at the master."""
    for transfer in ("via_master", "direct"):
        for middle, rows in (("w2", {"b": True, "d": True}), ("master", {"b": False, "d": True})):
            if not LONG and (transfer, middle) == ("direct", "master"):
                continue
            path = session("row", LINEAR, "vector", HEADS[1] % 2, "y2", keys=READABLE, more=f"transfer: {transfer}\n")
            with open(path) as f:
                text = f.read()
            more = [("m", "master"), ("d", "w2")] if middle == "master" else [("d", "w2")]
            stages = "".join(f"  - {{name: {n}, at: {w}, layers: [{{op: linear, out: 16}}, {{op: relu}}]}}\n" for n, w in more)
            with open(path, "w") as f:
                f.write(text.replace("  - {name: c, at: master", stages + "  - {name: c, at: master"))
            done = master("plan", "--json", path, cwd=cluster.dir)
            assert done.returncode == 0, done.stderr
            found = {r["tensor"]: r["shows"] for r in json.loads(done.stdout)["egress"] if r["tensor"].startswith("gradient")}
            for stage, reads in rows.items():
                of = [shows for name, shows in found.items() if f"'{stage}'" in name]
                assert all(("LABELS READABLE" in shows) == reads for shows in of), (transfer, middle, found)
            assert any("'d'" in name for name in found) and (transfer == "direct" or any("'b'" in name for name in found)), found


@suite.test
def repeated_records_are_readable():
    for x in ("kinds", "codes"):
        look = plan(x, LINEAR, x, HEADS[0] % 10, "y10")
        assert look["tokens"]["read"] > .9 and "records repeat" in look["tokens"]["by"], look
        assert "TOKENS" in look["egress"][0]["shows"], look
    refused("plan", session("kinds", LINEAR, "kinds", HEADS[0] % 10, "y10"), "can read tokens from the activation of stage 'a'")
    look = plan("apart", LINEAR, "vector", HEADS[0] % 10, "y10")
    assert look["tokens"] == {"state": "not applicable", "why": "records have no tokens"}, look


@suite.test
def tokens_and_images_are_readable():
    look = plan("last", f"[{EMBEDDING}, {{op: lstm, out: 32}}, {{op: slice, dim: 1, start: {PLACES - 1}}}, {{op: flatten}}]", "tokens", HEADS[0] % 10, "y10")
    assert look["tokens"]["state"] == "looked at" and look["pixels"]["state"] == "not applicable", look
    look = plan("each", f"[{EMBEDDING}, {{op: lstm, out: 32}}]", "tokens", "[{op: mean, dim: 1}, {op: linear, out: 10}]", "y10")
    assert look["tokens"]["read"] > .5 and "TOKENS" in look["egress"][0]["shows"], look
    look = plan("mean", f"[{EMBEDDING}, {{op: mean, dim: 1}}, {{op: linear, out: 32}}]", "tokens", HEADS[0] % 10, "y10")
    assert look["tokens"]["read"] < .2, look
    head = "[{op: flatten}, {op: linear, out: 10}]"
    look = plan("picture", "[{op: conv2d, out: 8, kernel: 3, pad: 1}]", "image", head, "y10")
    assert look["pixels"]["read"] > .3, look
    look = plan("mixed", "[{op: flatten}, {op: linear, out: 144}, {op: reshape, shape: [1, 12, 12]}]", "image", head, "y10")
    assert look["pixels"]["read"] < .2, look


@suite.test
def dominating_feature_needs_the_raw_input_key():
    """Judged by the sizes of columns, values and factors, which no rule over a graph sees. Secret
    sums of features of equal size, independent or similar, reveal none of them."""
    both = "[{op: linear, out: 16, name: m}, {op: scale, factor: 1.0e-6, name: z}, {op: scale, factor: 0.1, from: [input], name: x}, {op: add, from: [x, z]}]"
    nothing = "[{op: linear, out: 16}, {op: dropout, p: 1, name: z}, {op: add, from: [input, z]}]"
    for x in ("unscaled", "one", "copies") if LONG else ("unscaled",):
        look = plan(x, LINEAR, x, HEADS[0] % 10, "y10", keys=ALL)
        assert look["features"]["read"] > .99 and "RAW INPUT" in look["egress"][0]["shows"], (x, look)
        refused("plan", session(x, LINEAR, x, HEADS[0] % 10, "y10"), "can read features from the activation of stage 'a'", "standardize the data", "privacy.raw_input_leaves: true")
    for front in (both, nothing):
        look = plan("sizes", front, "vector", HEADS[0] % 10, "y10", keys=ALL)
        assert look["features"]["read"] > .99, (front, look)
    for x in ("vector", "three", "alike") if LONG else ("alike",):
        for front in (LINEAR, "[{op: linear, out: 64}, {op: relu}, {op: linear, out: 32}]"):
            look = plan(x, front, x, HEADS[0] % 10, "y10")
            assert look["features"]["read"] < .8 and look["privacy"]["records"] == "mixed", (x, front, look)
    pixels = ("[{op: slice, dim: 1, stop: 1}, {op: reshape, shape: [144, 1], name: i}, {op: scale, factor: 0}, {op: positions, rows: 144, init_std: 1, name: p}, "
              "{op: mul, from: [i, p]}, {op: reshape, shape: [1, 12, 12]}]")
    look = plan("places", pixels, "image", "[{op: flatten}, {op: linear, out: 10}]", "y10", keys=ALL)
    assert look["features"]["read"] > .99 and look["pixels"]["read"] < .5, look


@suite.test
def tokens_with_a_factor_per_place_are_read():
    """With so many words few repeat, so the output for a word at its place does not depend on the
    others."""
    of_place = "[{op: embedding, rows: 5000, out: 16, name: e}, {op: linear, out: 16, name: m}, {op: scale, factor: 0, from: [e]}, {op: positions, rows: %d, init_std: 1, name: s}, {op: mul, from: [m, s]}]" % PLACES
    look = plan("factors", of_place, "words", "[{op: mean, dim: 1}, {op: linear, out: 10}]", "y10")
    assert look["features"]["read"] > .95 and "TOKENS" in look["egress"][0]["shows"], look
    look = plan("whole", "[{op: embedding, rows: 5000, out: 16}, {op: flatten}, {op: linear, out: 32}]", "words", HEADS[0] % 10, "y10")
    assert look["features"]["read"] < .3 and look["privacy"]["records"] == "mixed", look


@suite.test
def records_with_equal_labels_form_readable_groups():
    """Only the names of the classes stay unknown; this needs no key."""
    for head in (HEADS[0], "[{op: linear, out: 64}, {op: tanh}, {op: linear, out: %d}]"):
        path = session("shared", LINEAR, "vector", head % 10, "y10")
        done = master("plan", path, cwd=cluster.dir)
        assert done.returncode == 0 and re.search(r"label groups (0\.9\d|1\.00) by clusters of directions: which records share a label can be read", done.stdout), done.stdout
        look = plan("shared", LINEAR, "vector", head % 10, "y10")
        assert look["groups"]["read"] > .9 and look["labels"]["read"] < .3 and look["privacy"]["labels"] == "inferable", look
    look = plan("reals", LINEAR, "vector", HEADS[0] % 1, "real", "{kind: mse}")
    assert look["groups"] == {"state": "not applicable", "why": "labels are no classes"}, look


@suite.test
def probe_that_cannot_run_is_reported():
    digest = "0" * 64
    text = session("artifact", LINEAR, "vector", HEADS[0] % 10, "y10", keys=READABLE)
    with open(text) as f:
        whole = f.read()
    again = "  - {name: d, at: w1, layers: [{op: relu}]}\n  - {name: e, at: master, layers: [{op: linear, out: 10}]}\n"
    with open(text, "w") as f:
        f.write(whole.replace("layers: [{op: scale, factor: 1}]", f"weights: {{artifact: base, sha256: '{digest}'}}, layers: [{{op: linear, out: 16}}]")
                .replace("loss: {kind", again + "loss: {kind"))
    done = master("plan", text, cwd=cluster.dir)
    assert done.returncode == 0 and "pixels not applicable" in done.stdout and "tokens not applicable" in done.stdout, done.stdout + done.stderr
    with open(text) as f:
        whole = f.read()
    with open(text, "w") as f:
        f.write(whole.replace("vector.npy", "kinds.npy"))
    done = master("plan", text, cwd=cluster.dir)
    assert done.returncode == 0 and "tokens not looked at (stage 'b' begins with an artifact" in done.stdout, done.stdout + done.stderr


@suite.test
def nothing_to_read_is_reported_as_not_applicable():
    """From five records nothing can be learned. Vectors have no pixels or tokens to read, and
    without a gradient there is no label to read."""
    def states(name, front, x, head=HEADS[0] % 10, middle="[{op: scale, factor: 1}]"):
        path = session(name, front, x, head, "y10", keys=READABLE, more="", middle=middle)
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace("train: [", "limit_train: 5, train: [").replace("batch: 16", "batch: 1"))
        done = master("plan", "--json", path, cwd=cluster.dir)
        assert done.returncode == 0, (name, done.stderr)
        look = json.loads(done.stdout)["look"]
        assert look["features"]["state"] != "looked at" and look["groups"]["state"] == look["labels"]["state"], look
        return [look[k]["state"] for k in ("pixels", "tokens", "labels")], look

    none, unread = "not applicable", "not looked at"
    flat = "[{op: flatten}, {op: linear, out: 10}]"
    for name, args, want in (("vectors", (LINEAR, "vector"), [none, none, unread]),
                             ("frozen", (LINEAR + ", freeze: true", "vector"), [none, none, none]),
                             ("pictures", ("[{op: conv2d, out: 2, kernel: 3, pad: 1}]", "image", flat), [unread, none, unread]),
                             ("coarse", ("[{op: conv2d, out: 2, kernel: 4, stride: 4}]", "image", flat), [none, none, unread]),
                             ("words", (f"[{EMBEDDING}, {{op: lstm, out: 32}}]", "tokens", "[{op: mean, dim: 1}, {op: linear, out: 10}]"), [none, unread, unread]),
                             ("repeated", (LINEAR, "same"), [none, unread, unread])):
        found, look = states("few-" + name, *args)
        assert found == want, (name, look)


@suite.test
def readable_labels_are_refused_before_connecting():
    cluster.workers[0].stop()
    try:
        # with the secret weights of some seeds `train`, which looks once, reads less than it
        # refuses
        path = session("two", LINEAR, "vector", HEADS[1] % 2, "y2", seed="seed: 5eed5eed5eed5eed5eed5eed5eed0002, ")
        for command in ("plan", "check", "train"):
            refused(command, path, r"two\.yaml:\d+:\d+: worker 'w1' can read labels from the gradient for stage 'b'",
                    "% more than a guess, by (sign|two clusters)", "privacy.labels_readable: true")
    finally:
        cluster.restart(0)


@suite.test
def readability_figures_are_stored_with_the_run():
    path = session("kept", LINEAR, "vector", HEADS[1] % 2, "y2", keys="labels_readable: true")
    done = cluster.train(path)
    assert done.returncode == 0 and re.search(r"read from what leaves \(64 records, \d+\.\d s\): .*labels [01]\.\d\d by", done.stdout), done.stdout + done.stderr
    done = cluster.train(path, "--resume", "--set", "train.max_steps=4")  # with an unchanged table
    assert done.returncode == 0, done.stdout + done.stderr
    assert master("eval", path, cwd=cluster.dir).returncode == 0
    with open(os.path.join(cluster.dir, "runs/kept/run.json")) as f:
        assert re.fullmatch(r"pixels not applicable, tokens not applicable, labels [01]\.\d\d, features [01]\.\d\d, groups [01]\.\d\d", json.load(f)["attempts"][-1]["look"])
    page = master("egress", "kept", "--json", cwd=cluster.dir)
    attempts = [line for line in map(json.loads, page.stdout.splitlines()) if line["event"] == "attempt"]
    assert [(a["command"], a["looked_at"]) for a in attempts] == [("train", 64), ("train", 64), ("eval", 64)], attempts
    assert float(attempts[0]["groups"]) > .5 and float(attempts[0]["features"]) < .9 and attempts[2]["groups"] == "not applicable", attempts
    assert float(attempts[0]["labels"]) > .5 and attempts[2]["labels"] == "not applicable", attempts
    path = session("same", "[{op: conv2d, out: 8, kernel: 3, pad: 1}]", "image", "[{op: flatten}, {op: linear, out: 10}]", "y10", keys="", steps=1)
    for command in ("train", "eval"):  # with such a rate nothing is learned in between
        done = master(command, path, "--set", "train.optimizer.lr=1e-30", cwd=cluster.dir)
        assert done.returncode == 0, done.stdout + done.stderr
    page = master("egress", "same", "--json", cwd=cluster.dir)
    train, evaluation = [line for line in map(json.loads, page.stdout.splitlines()) if line["event"] == "attempt"]
    assert 0 < float(train["pixels"]) == float(evaluation["pixels"]), page.stdout
    assert re.search("an onlooker reads: pixels not applicable, .*, features [01].*, label groups [01]", master("egress", "kept", cwd=cluster.dir).stdout)


with Cluster(2) as cluster:
    os.makedirs(os.path.join(cluster.dir, "data"), exist_ok=True)
    data(os.path.join(cluster.dir, "data"))
    suite.main()
