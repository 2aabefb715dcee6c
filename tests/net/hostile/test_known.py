#!/usr/bin/python3
"""Layers at the master whose keys or weights a worker had in an earlier session: the ledger of keys
finds them, and they count as known to the worker."""
import json, math, os, random, re, shutil, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
OTHER = "0badcafe0badcafe0badcafe0badcafe"
THIRD = "7777cafe7777cafe7777cafe7777cafe"
RAW = "privacy: {raw_input_leaves: true}\n"
FRONT = "privacy: {front_known: true}\n"
# a run that moves layer a from the master
RELEASED = "privacy: {raw_input_leaves: true, release: [a]}\n"
cluster = None


def make_data(folder):
    os.makedirs(folder)
    r = random.Random(7)
    write_npy(os.path.join(folder, "x.npy"), (64, 16), "<f4", struct.pack("<1024f", *[r.uniform(-1, 1) for _ in range(1024)]))
    write_npy(os.path.join(folder, "y.npy"), (64,), "<i8", struct.pack("<64q", *[r.randrange(10) for _ in range(64)]))


def body(at, seed=None, more="", steps=2, weights="", layer="{op: linear, out: 16, name: a}", train=""):
    """A session body. at: place of the first layer; the next one is at the worker, the others at
    the master."""
    return ("data: {format: npy, root: data, train: [x.npy, y.npy], test: [x.npy, y.npy]}\n"
            f"stages:\n  - {{name: a, at: {at}, {weights}layers: [{layer}]}}\n"
            "  - {name: b, at: w1, layers: [{op: scale, factor: 1}]}\n"
            "  - {name: c, at: master, layers: [{op: relu}, {op: linear, out: 32, name: c}, {op: relu}, {op: linear, out: 10}]}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{batch: 8, max_steps: {steps}, {f'seed: {seed}, ' if seed else ''}{train}"
            "optimizer: {kind: sgd, lr: 0.001}}\n" + more)


def command(name, of, *args, **kw):
    return run(MASTER, name, cluster.session(of, body(**kw), ""), *args, cwd=cluster.dir)


def well(*args, **kw):
    done = command(*args, **kw)
    assert done.returncode == 0, done.stderr
    return done


def refused(*args, says="was at 'spiffe://test/w1'", **kw):
    done = command(*args, **kw)
    assert done.returncode == 3 and says in done.stderr and "privacy.front_known" in done.stderr, (done.returncode, done.stderr)
    return done


def planned(of, **kw):
    """The output of plan --json, also of a session that it refuses."""
    done = command("plan", of, "--json", **kw)
    return done.returncode, json.loads(done.stdout)


@suite.test
def layer_whose_key_a_worker_had_counts_as_known():
    """One seed in two sessions. With another seed the layer is secret again."""
    well("train", "one", at="w1", seed=SEED, more=RAW)
    code, said = planned("two", at="master", seed=SEED)
    assert code == 3 and said["privacy"]["records"] == "front_known", (code, said["privacy"])
    (known,) = said["known_layers"]
    assert known["name"] == "a" and "'spiffe://test/w1' in an earlier session, by its key (20" in known["why"], known
    for name in ("check", "train"):
        refused(name, "two", at="master", seed=SEED)
    assert not os.path.exists(os.path.join(cluster.dir, "runs/two/metrics.jsonl"))
    done = well("train", "allowed", at="master", seed=SEED, more=FRONT)
    assert "FRONT KNOWN" in done.stdout and "known: layer 0 'a' was at" in done.stdout, done.stdout
    code, said = planned("other", at="master", seed=OTHER)
    assert code == 0 and said["privacy"]["records"] == "mixed" and said["known_layers"] == [], said
    well("train", "other", at="master", seed=OTHER)


def secret_file(name, rows, layer="a", biases=None, **others):
    """A file of the weights of a layer, in rows, and of other layers. biases: None, one a row."""
    path = os.path.join(cluster.dir, name + ".safetensors")
    parts = {}
    for of, w in {layer: rows, **others}.items():
        parts |= {of + ".weight": ([len(w), len(w[0])], sum(w, [])), of + ".bias": ([biases or len(w)], [0.0] * (biases or len(w)))}
    head, data = {}, b""
    for key, (shape, values) in parts.items():
        more = struct.pack(f"<{len(values)}f", *values)
        head[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(more)]}
        data += more
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return f"weights: {{file: {path}, secret: true}}, "


@suite.test
def secret_weights_that_mix_no_inputs_are_refused():
    """An identity, an approximate one, a permutation, one number everywhere: the worker can read
    records."""
    r = random.Random(3)
    eye = [[float(i == k) for k in range(16)] for i in range(16)]
    kinds = {"eye": eye, "near": [[v + r.gauss(0, 1e-3) for v in row] for row in eye], "turned": eye[5:] + eye[:5],
             "scaled": [[3.0 * v for v in row] for row in eye], "same": [[0.25] * 16] * 16}
    for name, rows in kinds.items():
        refused("check", "plain-" + name, at="master", weights=secret_file(name, rows), says="has values in its file that")
    spread = [[r.uniform(-1, 1) for _ in range(16)] for _ in range(16)]
    well("check", "spread", at="master", weights=secret_file("spread", spread))


@suite.test
def secret_weights_that_anybody_knows_are_refused():
    """Hadamard, cosine and sum matrices, also with a factor for each row, in another order, or
    beside other rows."""
    r = random.Random(4)
    kinds = {"hadamard": lambda i, k: -1.0 if bin(i & k).count("1") % 2 else 1.0,
             "cosine": lambda i, k: math.cos(math.pi * i * (k + 0.5) / 16), "sums": lambda i, k: float(k <= i + 3)}
    for name, of in kinds.items():
        rows = [[of(i, k) for k in range(16)] for i in range(16)]
        mixed = [[f * v for v in row] for row, f in ((row, r.uniform(-2, 2)) for row in r.sample(rows, 16))]
        beside = mixed[:6] + [[r.uniform(-1, 1) for _ in range(16)] for _ in range(10)]
        for form, w in (("plain", rows), ("mixed", mixed), ("beside", beside)):
            refused("check", name, at="master", weights=secret_file(f"{name}-{form}", w), says="has rows in its file that follow from a few numbers")


@suite.test
def weights_also_sent_to_a_worker_are_not_secret():
    """In the same session, before the ledger has them."""
    r = random.Random(5)
    rows = [[r.uniform(-1, 1) for _ in range(16)] for _ in range(16)]
    for name, change in (("same", rows), ("twice", [[2 * v for v in row] for row in rows]), ("factors", [[(1 + i) * v for v in row] for i, row in enumerate(rows)]), ("other", [[r.uniform(-1, 1) for _ in row] for row in rows])):
        theirs = secret_file("theirs", rows).replace("secret: true", "secret: false")
        text = body("master", weights=secret_file("own-" + name, change)).replace(
            "layers: [{op: scale, factor: 1}]", theirs + "layers: [{op: linear, out: 16, name: b}]")
        with open(os.path.join(cluster.dir, "theirs.safetensors"), "rb") as f:
            raw = f.read()
        with open(os.path.join(cluster.dir, "theirs.safetensors"), "wb") as f:
            f.write(raw.replace(b'"a.weight"', b'"b.weight"').replace(b'"a.bias"', b'"b.bias"'))
        done = run(MASTER, "check", cluster.session("begins", text, ""), cwd=cluster.dir)
        if name == "other":
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 3 and ("rows" if name == "factors" else "has weights") + " that a worker begins with" in done.stderr, (name, done.stderr)


@suite.test
def layer_moved_back_to_the_master_counts_as_known():
    """It was at the worker first, so its trained weights are known, even with another seed or a
    moved run folder."""
    well("train", "run", at="w1", more=RAW)
    code, said = planned("run", at="master")
    assert code == 3 and said["privacy"]["records"] == "front_known", (code, said["privacy"])
    for args in (("--resume",), ("--resume", "--accept-egress"), ("--resume", "--accept-egress", "--set", f"train.seed={OTHER}")):
        refused("train", "run", *args, at="master", steps=3, says="'spiffe://test/w1' earlier in this run (20")
    for name in ("eval", "predict"):
        refused(name, "run", "--accept-egress", at="master")
    shutil.copytree(os.path.join(cluster.dir, "runs/run"), os.path.join(cluster.dir, "runs/moved"))
    refused("train", "moved", "--resume", "--accept-egress", at="master", steps=3)
    well("train", "run", "--resume", "--accept-egress", at="master", steps=3, more=FRONT)
    well("train", "run", "--fresh", at="master")  # with another secret


@suite.test
def resume_without_moving_layers_is_accepted():
    for steps in (2, 3):
        well("train", "stays", "--resume", at="master", steps=steps)
    well("eval", "stays", at="master")


def ledger():
    with open(os.path.join(os.environ["XDG_STATE_HOME"], "cleave/keys.ledger")) as f:
        return f.read()


@suite.test
def layer_that_was_never_sent_stays_secret():
    """An attempt with the layer at a worker that does not answer: the ledger gets no line, and the
    layer at the master stays secret."""
    well("train", "tried", at="master", seed=THIRD)
    first = os.path.join(cluster.dir, "tried.safetensors")
    shutil.copy(os.path.join(cluster.dir, "runs/tried/checkpoint-2/model-00001-of-00003.safetensors"), first)
    secret = f"weights: {{file: {first}, secret: true}}, "
    before = ledger()
    cluster.workers[0].stop()
    try:
        for name, args, more in (("tried", ("--resume", "--accept-egress"), {"steps": 3}), ("again", (), {}), ("file", (), {"weights": secret})):
            done = command("train", name, *args, at="w1", seed=THIRD, more=RELEASED, train="dtype: f32, ", **more)
            assert done.returncode == 4, (name, done.returncode, done.stderr)
    finally:
        cluster.restart(0)
    assert ledger() == before
    well("train", "tried", "--resume", "--accept-egress", at="master", seed=THIRD, steps=3)
    well("train", "file", "--fresh", at="master", seed=THIRD, weights=secret)
    done = command("train", "tried", "--resume", "--accept-egress", at="w1", seed=THIRD, steps=4, more=RELEASED)
    assert done.returncode == 0 and ledger() != before, done.stderr
    refused("train", "tried", "--resume", "--accept-egress", at="master", seed=THIRD, steps=5, says="'spiffe://test/w1'")


def rewritten(path, name, change):
    """A secret file of the weights of layer a in another, changed."""
    with open(path, "rb") as f:
        raw = f.read()
    n, = struct.unpack("<Q", raw[:8])
    begin, end = json.loads(raw[8:8 + n])["a.weight"]["data_offsets"]
    values = struct.unpack(f"<{(end - begin) // 4}f", raw[8 + n + begin:8 + n + end])
    return secret_file(name, change([list(values[i:i + 16]) for i in range(0, len(values), 16)]))


def rounded(v):
    return struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", v))[0] & 0xffff0000))[0]


@suite.test
def many_weights_in_another_order_are_no_secret():
    """For weights with more values than the ledger samples: fetched, sent and initial ones."""
    r, wide = random.Random(6), "{op: linear, out: 512, name: a}"
    rows = [[r.uniform(-1, 1) for _ in range(16)] for _ in range(512)]
    mix = lambda rows: [[rounded(-3 * v) for v in row] for row in r.sample(rows, len(rows))]
    well("train", "wide", at="w1", more=RAW, layer=wide)
    trained = os.path.join(cluster.dir, "runs/wide/checkpoint-2/model-00001-of-00003.safetensors")
    well("train", "wide-given", at="w1", more=RAW, layer=wide, weights=secret_file("wide-first", rows), steps=1)
    for name, of in (("learned", rewritten(trained, "wide-learned", mix)), ("given", secret_file("wide-mixed", mix(rows)))):
        refused("check", name, at="master", layer=wide, weights=of, says="has weights that are scaled, rounded or reordered ones at 'spiffe://test/w1'")
    well("check", "drawn", at="master", layer=wide, weights=secret_file("drawn", [[r.uniform(-1, 1) for _ in range(16)] for _ in range(512)]))
    fresh = [[r.gauss(0, 1) for _ in range(16)] for _ in range(512)]
    theirs = secret_file("turned", [list(row) for row in zip(*fresh)]).replace("secret: true", "secret: false")
    with open(os.path.join(cluster.dir, "turned.safetensors"), "rb") as f:
        raw = f.read()
    with open(os.path.join(cluster.dir, "turned.safetensors"), "wb") as f:
        f.write(raw.replace(b'"a.weight"', b'"b.weight"').replace(b'"a.bias"', b'"b.bias"'))
    text = body("master", layer=wide, weights=secret_file("own", mix(fresh))).replace(
        "layers: [{op: scale, factor: 1}]", theirs + "layers: [{op: linear, out: 16, name: b}]")
    done = run(MASTER, "check", cluster.session("wide-begins", text, ""), cwd=cluster.dir)
    assert done.returncode == 3 and "has weights that a worker begins with" in done.stderr, done.stderr


@suite.test
def weights_a_worker_had_in_an_earlier_run_are_not_secret():
    """Initial weights of a file, and weights that were trained at the worker."""
    well("train", "home", at="master")
    first = os.path.join(cluster.dir, "first.safetensors")
    shutil.copy(os.path.join(cluster.dir, "runs/home/checkpoint-2/model-00001-of-00003.safetensors"), first)
    secret = f"weights: {{file: {first}, secret: true}}, "
    well("train", "kept", at="master", weights=secret)
    well("train", "given", at="w1", weights=secret, more=RAW)
    refused("train", "again", at="master", weights=secret, says="has weights that were at 'spiffe://test/w1' in an earlier session")
    well("train", "taught", at="w1", more=RAW, train="shuffle: false, ")
    trained = os.path.join(cluster.dir, "trained.safetensors")
    shutil.copy(os.path.join(cluster.dir, "runs/taught/checkpoint-2/model-00001-of-00003.safetensors"), trained)
    refused("train", "learned", at="master", weights=f"weights: {{file: {trained}, secret: true}}, ",
            says="has weights that were at 'spiffe://test/w1'")
    scaled = rewritten(first, "scaled", lambda rows: [[-3 * v for v in row] for row in rows])
    turned = rewritten(first, "transposed", lambda rows: [list(row) for row in zip(*rows)])
    moved = rewritten(first, "moved", lambda rows: rows[3:] + rows[:3])
    short = rewritten(first, "rounded", lambda rows: [[rounded(v) for v in row] for row in rows])
    for of in (scaled, turned, moved, short):
        refused("check", "other-form", at="master", weights=of, says="in an earlier session")
    adapted = f"weights: {{file: {trained}, secret: true}}, lora: {{targets: [a], r: 2, alpha: 400}}, "
    well("train", "adapted", at="w1", weights=adapted, more=RAW, train="clip_grad_norm: 1.0, ")
    done = run(MASTER, "export", "adapted", "--merge", "merged", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    refused("train", "sum", at="master", weights="weights: {file: merged/model.safetensors, secret: true}, ",
            says="has weights that were at 'spiffe://test/w1'")


@suite.test
def averages_of_weights_a_worker_had_are_not_secret():
    """The worker has computed them (train.ema)."""
    well("train", "averaged", "--set", "train.optimizer.lr=0.5", at="w1", steps=6, more=RAW, train="ema: 0.9, ")
    done = run(MASTER, "export", "averaged", "--merge", "averages", "--weights", "ema", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    refused("check", "average", at="master", weights="weights: {file: averages/model.safetensors, secret: true}, ",
            says="has weights that were at 'spiffe://test/w1'")


@suite.test
def rows_a_worker_had_are_not_secret():
    """Also with a factor for each row or column, beside other rows, in two layers, or rounded. New
    rows are secret."""
    r, wide = random.Random(8), "{op: linear, out: 32, name: a}"
    well("train", "rows", at="w1", more=RAW, layer=wide)
    of = os.path.join(cluster.dir, "runs/rows/checkpoint-2/model-00001-of-00003.safetensors")
    rows = []
    rewritten(of, "as-it-is", lambda w: rows.extend(w) or w)
    assert len(rows) == 32
    fresh = lambda n, m=16: [[r.gauss(0, 0.2) for _ in range(m)] for _ in range(n)]
    times = lambda w: [[f * v for v in row] for row, f in ((row, r.choice((-1, 1)) * r.uniform(0.5, 2)) for row in w)]
    turned = lambda w: [list(row) for row in zip(*w)]
    for name, w, says in (("factors", times(rows), "rows"), ("signs", [[-v for v in row] if i % 3 else row for i, row in enumerate(rows)], "rows"),
                          ("columns", turned(times(turned(rows))), "columns"), ("beside", fresh(6) + times(rows[4:20]) + fresh(2), "rows"),
                          ("one", fresh(9) + times(rows[7:8]), "rows"), ("f16", [[struct.unpack("<e", struct.pack("<e", v))[0] for v in row] for row in times(rows)], "rows"), ("turned", times(turned(rows)), "rows")):
        out = 32 if name == "turned" else len(w)
        layer = f"{{op: linear, out: {out}, transposed: {str(name == 'turned').lower()}, name: a}}"
        refused("check", "rows-" + name, at="master", layer=layer, weights=secret_file("rows-" + name, w, biases=out), says=f" {says} that were, times a factor, at 'spiffe://test/w1' in an earlier session (20")
    parts = "{op: linear, out: 16, name: p}, {op: linear, out: 16, name: q, from: [input]}, {op: concat, dim: 1, from: [p, q], name: a}"
    refused("check", "parts", at="master", layer=parts, weights=secret_file("parts", rows[:16], layer="p", q=rows[16:]), says="rows that were, times a factor")
    well("check", "others", at="master", layer=wide, weights=secret_file("others", fresh(32)))


@suite.test
def unwritable_ledger_stops_the_run_before_connecting():
    """The error comes before any worker is dialled. A run without workers needs no ledger."""
    blocked = os.path.join(cluster.dir, "blocked")
    with open(blocked, "w"):
        pass
    session = cluster.session("dark", body("master"), "")
    for name, args in (("train", ()), ("plan", ())):
        done = run(MASTER, name, session, *args, cwd=cluster.dir, env={"XDG_STATE_HOME": blocked})
        if name == "plan":
            assert done.returncode == 0, done.stderr
            continue
        assert done.returncode == 1 and "cannot be written" in done.stderr and "XDG_STATE_HOME" in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(cluster.dir, "runs/dark/metrics.jsonl"))
    os.makedirs(os.path.join(cluster.dir, "spoilt/cleave"))
    with open(os.path.join(cluster.dir, "spoilt/cleave/keys.ledger"), "w") as f:
        f.write("nonsense\n")
    for name in ("plan", "check", "train"):
        done = run(MASTER, name, session, cwd=cluster.dir, env={"XDG_STATE_HOME": os.path.join(cluster.dir, "spoilt")})
        assert done.returncode and "the ledger of keys is damaged" in done.stderr and "move it away" in done.stderr, done.stderr
    home = cluster.session("home-alone", body("master").replace("at: w1", "at: master"), "")
    assert run(MASTER, "train", home, cwd=cluster.dir, env={"XDG_STATE_HOME": blocked}).returncode == 0
    with open(os.path.join(os.environ["XDG_STATE_HOME"], "cleave/keys.ledger")) as f:
        lines = f.read().splitlines()
    assert all(re.fullmatch(r"((key|run|weights) [0-9a-f]{32}|rows ([0-9a-f]{16})+) \d{4}-\d\d-\d\d spiffe://test/w1", l) for l in lines[1:]), lines
    assert len(set(lines)) == len(lines)


@suite.test
def unshuffled_ordered_labels_are_reported():
    """If classes are contiguous or periodic, and records are not shuffled."""
    for name, labels in (("sorted", [i // 13 for i in range(64)]), ("periodic", [i % 5 for i in range(64)]),
                         ("drawn", [random.Random(i).randrange(5) for i in range(64)])):
        if not LONG and name == "drawn":
            continue
        write_npy(os.path.join(cluster.dir, "data/y2.npy"), (64,), "<i8", struct.pack("<64q", *labels))
        for shuffle in (False, True):
            text = body("master", train=f"shuffle: {str(shuffle).lower()}, ").replace("train: [x.npy, y.npy]", "train: [x.npy, y2.npy]")
            session = cluster.session("order", text, "")
            said = json.loads(run(MASTER, "plan", session, "--json", cwd=cluster.dir).stdout)["labels_by_order"]
            named = "LABELS BY ORDER: train.shuffle is false" in run(MASTER, "plan", session, cwd=cluster.dir).stdout
            checked = run(MASTER, "check", session, cwd=cluster.dir)
            assert named == ("LABELS BY ORDER" in checked.stdout + checked.stderr) == (said is not None), (name, shuffle, said)
            assert named == (not shuffle and name != "drawn"), (name, shuffle, said)
            assert not said or said["lag"] == (5 if name == "periodic" else 1) and said["share"] > 0.9, said
    hot = [float(k == i // 13) for i in range(64) for k in range(10)]  # several numbers of a record
    write_npy(os.path.join(cluster.dir, "data/y3.npy"), (64, 10), "<f4", struct.pack("<640f", *hot))
    many = text.replace("shuffle: true", "shuffle: false").replace("y2.npy", "y3.npy").replace("[x.npy, y.npy]", "[x.npy, y3.npy]").replace("cross_entropy", "mse")
    said = json.loads(run(MASTER, "plan", cluster.session("hot", many, ""), "--json", cwd=cluster.dir).stdout)["labels_by_order"]
    assert said and said["lag"] == 1 and said["share"] > 0.9, said
    done = run(MASTER, "train", cluster.session("order", text.replace("shuffle: true", "shuffle: false").replace("y2", "y"), ""), cwd=cluster.dir)
    assert done.returncode == 0 and "LABELS BY ORDER" not in done.stdout, done.stdout


@suite.test
def trials_are_not_in_the_ledger():
    """Trials of micro_batches: auto use weights of a seed that is discarded."""
    added = []
    for name, more in (("without-trials", ""), ("trials", "pipeline: {micro_batches: auto}\n")):
        before = ledger().count("\n")
        done = well("train", name, at="w1", seed="1dea5eedcafe%04x" % len(added) * 2, more=RAW + more)
        assert ("by trial steps with" in done.stdout) == bool(more), (done.stdout, done.stderr)
        added.append(ledger().count("\n") - before)
    assert added[0] == added[1] > 0, added


if __name__ == "__main__":
    with Cluster(1) as cluster:
        make_data(os.path.join(cluster.dir, "data"))
        suite.main()
