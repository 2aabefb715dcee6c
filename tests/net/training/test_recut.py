#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A run goes on with other cuts, places and numbers of stages than its checkpoint: weights, moments
and the loss log have the bits of a run that never changed its cut. A layer moves from the master to
a worker only where the session says so; what does not fit is refused by name, and nothing dialled.

CLV_TEST_PAIRS=20 CLV_TEST_SEED=17: as many random pairs of cuts, by this seed (make recut)."""
import hashlib, json, os, random, re, struct, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
FIRST, STEPS = 7, 14  # steps under the first cut, and in all
PAIRS, DRAW = int(os.environ.get("CLV_TEST_PAIRS", 2)), int(os.environ.get("CLV_TEST_SEED", 1))
ADAM = "optimizer: {kind: adam, lr: 0.003}, clip_grad_norm: 1.0"
TOKENS = "data: {format: npy, root: data, inputs: [ids], train: [ids.npy, next.npy]}\n"
ROWS, PLACES, RECORDS = 30, 7, 96
# layers, records, training
NETS = {
    "cnn": (["{op: conv2d, out: 6, kernel: 3, pad: 1, name: c1}", "{op: batchnorm, name: n1}", "{op: relu}",
             "{op: conv2d, out: 8, kernel: 3, pad: 1, name: c2}", "{op: batchnorm, name: n2}", "{op: dropout, p: 0.25}",
             "{op: flatten}", "{op: linear, out: 24, name: f1}", "{op: relu}", "{op: dropout, p: 0.5}", "{op: linear, out: 10, name: f2}"],
            IMAGE_DATA, ADAM),
    "adapters": (["{op: flatten}", "{op: linear, out: 24, name: a.query}", "{op: relu}", "{op: dropout, p: 0.2}",
                  "{op: linear, out: 20, name: b.query}", "{op: gelu}", "{op: linear, out: 16, name: c.query}", "{op: linear, out: 10, name: head}"],
                 IMAGE_DATA, "optimizer: {kind: adamw, lr: 0.02}, clip_grad_norm: 1.0"),
    "tied": (["{op: embedding, rows: 30, out: 8, name: words}", "{op: linear, out: 12, name: m1}", "{op: gelu}", "{op: linear, out: 8, name: m2}",
              "{op: dropout, p: 0.2}", "{op: linear, out: 30, bias: false, name: back, tied: words}"], TOKENS, ADAM),
    "plain": (["{op: flatten}", "{op: linear, out: 24, name: a}", "{op: tanh}", "{op: linear, out: 20, name: b}", "{op: tanh}", "{op: linear, out: 10, name: c}"],
              IMAGE_DATA, "optimizer: {kind: sgd, lr: 0.05}"),
}
ALL = "release: ['*'], raw_input_leaves: true, labels_leave: true"
cluster = None


class Places(Cluster):
    """keeps: the workers keep files of checkpoints and rows of a front."""
    keeps = False

    def worker_config(self, i, extra=""):
        path = super().worker_config(i, extra)
        if not self.keeps:
            return path
        os.makedirs(os.path.join(self.dir, f"kept{i}"), exist_ok=True)
        with open(path) as f:
            text = f.read().replace('"spiffe://test/master", role: master}', '"spiffe://test/master", role: master, state_bytes: 16MiB, cache_bytes: 1MiB}')
        with open(path, "w") as f:
            f.write(text + f"state_dir: {self.dir}/kept{i}\n")
        return path

    def begins(self, **how):
        """The workers again, with other settings."""
        for k, v in how.items():
            setattr(self, k, v)
        for i in range(len(self.workers)):
            self.restart(i)


def body(net, cut, steps=STEPS, keys=ALL, more="", own={}):
    """cut: (number of layers, place) of each stage. own: keys of stages by their number."""
    layers, data, train = NETS[net]
    assert sum(n for n, _ in cut) == len(layers), cut
    text, at = "", 0
    for i, (n, place) in enumerate(cut):
        held = layers[at:at + n]
        lora = "lora: {targets: [query], r: 3, alpha: 6, dropout: 0.1%s}, " % (", train: [head]" if any("name: head" in l for l in held) else "")
        text += f"  - {{name: s{i}, at: {place}, {lora if any('query' in l for l in held) else ''}{own.get(i, '')}layers: {at}..{at + n - 1}}}\n"
        at += n
    return (data + "model:\n  layers:\n" + "".join(f"    - {l}\n" for l in layers) + f"stages:\n{text}loss: {{kind: cross_entropy}}\n"
            f"train: {{epochs: 100, max_steps: {steps}, batch: 16, seed: {SEED}, {train}}}\npipeline: {{micro_batches: 2}}\n"
            f"privacy: {{{READABLE}, {keys}}}\nlog: {{every: 100}}\ncheckpoint: {{every_steps: 100000}}\n" + more)


def moments(run_dir, step):
    """By name, from the files of all stages; `step` of each stage is the same."""
    found = {}
    for (_, name), value in checkpoint_tensors(run_dir, step, "optimizer-").items():
        assert found.setdefault(name, value) == value, name
    return found


def result(name):
    run_dir = os.path.join(cluster.dir, "runs", name)
    with open(os.path.join(run_dir, "metrics.jsonl")) as f:
        return checkpoint_tensors(run_dir, STEPS), moments(run_dir, STEPS), f.read()


def trained(name, text, *args, code=0):
    done = cluster.train(cluster.session(name, text, ""), *args)
    assert done.returncode == code, (done.returncode, done.stdout + done.stderr)
    return done


def undisturbed(net):
    if net not in undisturbed.of:
        trained(f"one-{net}", body(net, [(len(NETS[net][0]), "master")]))
        undisturbed.of[net] = result(f"one-{net}")
    return undisturbed.of[net]


undisturbed.of = {}


def compare(name, net, first, second, **how):
    trained(name, body(net, first), "--max-steps", str(FIRST))
    done = trained(name, body(net, second, **how), "--resume", "--accept-egress")
    for what, found, expected in zip(("weights", "moments"), result(name), undisturbed(net)):
        assert found.keys() == expected.keys(), (name, what, found.keys() ^ expected.keys())
        for k in expected:
            assert found[k] == expected[k], f"{name}: {k} of the {what} differs"
    assert result(name)[2] == undisturbed(net)[2], f"{name}: the loss log differs"
    return done


CUTS = {
    "one-to-three": ("cnn", [(11, "master")], [(3, "master"), (4, "w1"), (4, "master")]),
    "three-to-two": ("cnn", [(1, "master"), (6, "w1"), (4, "w2")], [(5, "master"), (6, "w1")]),
    "same-number": ("cnn", [(3, "master"), (4, "w1"), (4, "master")], [(6, "master"), (2, "w2"), (3, "w1")]),
    "places": ("cnn", [(4, "master"), (7, "w1")], [(4, "w2"), (7, "master")]),
    "adapters": ("adapters", [(3, "master"), (3, "w1"), (2, "w2")], [(5, "w1"), (3, "master")]),
    "tied": ("tied", [(1, "master"), (4, "w1"), (1, "master")], [(2, "master"), (1, "w2"), (2, "w1"), (1, "master")]),
    "tied-in-one": ("tied", [(1, "master"), (4, "w1"), (1, "master")], [(6, "master")]),
    "plain": ("plain", [(2, "master"), (4, "w1")], [(4, "master"), (1, "w1"), (1, "w2")]),
}


@suite.test
def another_cut_changes_no_bit():
    for name, how in chosen(CUTS, "one-to-three", "three-to-two", "same-number", "adapters", "tied", "plain").items():
        compare(name, *how)


@suite.long
def random_pairs_of_cuts_change_no_bit():
    for i in range(PAIRS):
        r = random.Random(f"{DRAW} {i}")
        net = r.choice(["cnn", "adapters", "tied"])
        one, other = drawn(r, net), drawn(r, net)
        compare(f"random{i}", net, one, other)
        print(f"pair {i} of seed {DRAW}: {net} {one} -> {other}: same bits", flush=True)


def drawn(r, net):
    """One to four stages at random places. Tied layers are at one node."""
    n = len(NETS[net][0])
    ends = sorted(r.sample(range(1, n), r.randint(0, 3)))
    cut = [[b - a, r.choice(["master", "w1", "w2"])] for a, b in zip([0, *ends], [*ends, n])]
    if net == "tied":
        cut[-1][1] = cut[0][1]
    return [tuple(x) for x in cut]


def lines(name, of, event=None):
    with open(os.path.join(cluster.dir, "runs", name, of)) as f:
        return [m for m in map(json.loads, f) if event in (None, m.get("event"))]


@suite.test
def cut_before_and_after_is_printed_and_recorded():
    """And the table has the rows of what moves, and the record its bytes."""
    first, second = [(3, "master"), (4, "w1"), (4, "master")], [(5, "master"), (6, "w2")]
    done = compare("told", "cnn", first, second)
    before = "s0 at master: layers 0 to 2; s1 at w1: layers 3 to 6; s2 at master: layers 7 to 10"
    after = "s0 at master: layers 0 to 4; s1 at w2: layers 5 to 10"
    assert f"changed since the last attempt: cut: {before} -> {after}\n" in done.stdout, done.stdout
    changes = {e["key"]: (e["before"], e["after"]) for e in lines("told", "changes.jsonl")}
    assert changes["cut"] == (before, after) and changes["released layers"] == ("none", "f1 to w2, f2 to w2"), changes
    assert not any(".layers" in key for key in changes), changes
    for said in ("moved: layer 3 'c2' from w1 to master\n", "known: layer 3 'c2' was at 'spiffe://test/w1' earlier in this run",
                 "moved: layer 10 'f2' from master to w2, which can undo it in activations that it recorded\n"):
        assert said in done.stdout, (said, done.stdout)
    rows = {(r["kind"], r["to"], r["name"]): r["bytes"] for r in egress_rows(os.path.join(cluster.dir, "runs", "told"), 2)
            if r["kind"] in ("weights", "state")}
    tensors = {"f1.weight": 8 * 144 * 24 * 4, "f1.bias": 96, "f2.weight": 960, "f2.bias": 40}
    expected = {("weights", "w2", k): n for k, n in tensors.items()}
    expected |= {("state", "w2", f"{k}.{m}"): n for k, n in tensors.items() for m in ("exp_avg", "exp_avg_sq")} | {("state", "w2", "step"): 8}
    assert rows == expected, (rows, expected)


def refused(name, text, *says, command="train", args=("--resume", "--accept-egress"), code=3):
    done = run(MASTER, command, cluster.session(name, text, ""), *args, cwd=cluster.dir)
    assert done.returncode == code and all(s in done.stderr for s in says), (done.returncode, done.stderr)
    return done


@suite.test
def layer_moves_to_a_worker_only_where_the_session_releases_it():
    """Nobody is dialled: no worker runs."""
    first, second = [(3, "master"), (4, "w1"), (4, "master")], [(5, "master"), (2, "w1"), (4, "w2")]
    keys = "raw_input_leaves: true, labels_leave: true"
    trained("release", body("cnn", first, keys=keys), "--max-steps", str(FIRST))
    for worker in cluster.workers:
        worker.stop()
    try:
        says = ("layers f1, f2 would move from master to w2, which could then undo them", "privacy.release: [f1, f2]")
        where = re.compile(r"release\.yaml:\d+:\d+: layers f1, f2")
        done = refused("release", body("cnn", second, keys=keys), *says)
        assert where.search(done.stderr), done.stderr
        refused("release", body("cnn", second, keys=keys + ", release: [f1]"), "layer f2 would move from master to w2", "privacy.release: [f2]")
        refused("release", body("cnn", second, keys=keys), *says, command="eval", args=("--accept-egress",))
        refused("release", body("cnn", second, keys=keys + ", release: [f3]"), "privacy.release: 'f3' matches no layer")
        done = run(MASTER, "plan", cluster.session("release", body("cnn", second, keys=keys), ""), "--json", cwd=cluster.dir)
        moved = {(m["name"], m["from"], m["to"], m["released"]) for m in json.loads(done.stdout)["moved_layers"]}
        assert moved == {("c2", "w1", "master", False), ("n2", "w1", "master", False), ("f1", "master", "w2", True), ("f2", "master", "w2", True)}, moved
        assert done.returncode == 0 and "train --resume will be refused: " in done.stderr, done.stderr
        refused("release", body("cnn", second, keys=keys + ", release: ['f[12]']"), "w1", args=("--resume", "--accept-egress", "--set", "recovery=off"), code=4)
    finally:
        for i in range(len(cluster.workers)):
            cluster.restart(i)
    trained("release", body("cnn", second, keys=keys + ", release: ['f[12]']"), "--resume", "--accept-egress")
    assert result("release")[:2] == undisturbed("cnn")[:2]


@suite.test
def layer_that_moves_home_stays_known():
    """With no word for it in the session, the run is refused by the ledger."""
    first, second = [(4, "w1"), (7, "master")], [(5, "master"), (6, "w1")]
    trained("home", body("cnn", first), "--max-steps", str(FIRST))
    text = body("cnn", second, keys="labels_leave: true").replace("front_known: true, ", "")
    refused("home", text, "'spiffe://test/w1' earlier in this run", "privacy.front_known")


@suite.test
def tensors_that_do_not_fit_are_refused_by_name():
    first, second = [(3, "master"), (4, "w1"), (4, "master")], [(5, "master"), (6, "w1")]
    trained("fits", body("cnn", first), "--max-steps", str(FIRST))
    other = lambda old, new: body("cnn", second).replace(old, new)
    refused("fits", other("name: f1", "name: g1"), "stage 's1'", "the checkpoint lacks 'g1.weight', 'g1.bias'")
    refused("fits", other("out: 24, name: f1", "out: 25, name: f1"), "'f1.weight' is F32 [24, 1152] in the checkpoint, and f32 [25, 1152] in the session")
    refused("fits", other("clip_grad_norm: 1.0", "clip_grad_norm: 1.0, freeze: [f1.bias]"),
            "'f1.bias.exp_avg', 'f1.bias.exp_avg_sq', which no stage of the session takes: its layer is frozen now")
    done = compare("fits2", "cnn", first, second)
    assert done.returncode == 0


@suite.long
def fixed_weights_of_an_artifact_are_found_at_the_new_place():
    """At another worker that has it, and in a file of the master with its digest. Other ones are
    refused by name."""
    plain = re.sub(r"lora: \{.*?\}, ", "", body("adapters", [(8, "master")]))
    trained("source", plain)
    source = os.path.join(cluster.dir, "runs/source", f"checkpoint-{STEPS}/model-00001-of-00001.safetensors")
    other = os.path.join(cluster.dir, "other.safetensors")
    with open(source, "rb") as f, open(other, "wb") as to:
        raw = f.read()
        to.write(raw[:-4] + bytes(4))
    digest, wrong = hashlib.sha256(raw).hexdigest(), hashlib.sha256(raw[:-4] + bytes(4)).hexdigest()
    before, limits = cluster.limits, f"artifacts:\n  base: {{file: {source}, sha256: {digest}}}\n  other: {{file: {other}, sha256: {wrong}}}\n"
    cluster.begins(limits=limits)
    base, first = f"weights: {{artifact: base, sha256: {digest}}}, ", [(3, "master"), (3, "w1"), (2, "master")]
    trained("base-one", body("adapters", first, own={1: base}))
    expected, moments_expected, log = result("base-one")
    assert not any(name.startswith("b.query.") and "lora" not in name for name in expected), expected.keys()
    for name, cut, own in (("base-moved", [(4, "master"), (2, "w2"), (2, "master")], {1: base}),
                           ("base-home", [(3, "master"), (3, "master"), (2, "w2")], {1: f"weights: {{file: {source}, sha256: {digest}}}, "})):
        trained(name, body("adapters", first, own={1: base}), "--max-steps", str(FIRST))
        trained(name, body("adapters", cut, own=own), "--resume", "--accept-egress")
        weights, moved, losses = result(name)
        assert moved == moments_expected and losses == log and all(weights[k] == v for k, v in expected.items()), name
        assert ("b.query.weight" in weights) == (name == "base-home"), weights.keys()
    for cut, own, says in (([(6, "master"), (2, "w1")], {}, f"the checkpoint lacks 'b.query.weight', 'b.query.bias', whose fixed values are in the artifact 'base' (sha256 {digest}) of stage 's1' at w1"),
                           ([(4, "master"), (3, "w2"), (1, "master")], {1: base}, "the checkpoint has 'c.query.weight', 'c.query.bias', which this stage would take from the artifact 'base'"),
                           ([(4, "master"), (2, "w2"), (2, "master")], {1: f"weights: {{artifact: other, sha256: {wrong}}}, "}, f"from the artifact 'other' (sha256 {wrong}), but the run has trained with 'base' (sha256 {digest})")):
        trained("base-other", body("adapters", first, own={1: base}), "--max-steps", str(FIRST), *(("--fresh",) if os.path.exists(os.path.join(cluster.dir, "runs/base-other")) else ()))
        refused("base-other", body("adapters", cut, own=own), says)
    cluster.begins(limits=before)


def put_step(name, stage, stages, value):
    """Another count of steps in the optimiser's file of a stage, and its digest in the manifest."""
    folder = os.path.join(cluster.dir, "runs", name, f"checkpoint-{FIRST}")
    path = os.path.join(folder, f"optimizer-{stage + 1:05}-of-{stages:05}.safetensors")
    with open(path, "rb") as f:
        raw = f.read()
    n, = struct.unpack("<Q", raw[:8])
    at = 8 + n + json.loads(raw[8:8 + n])["step"]["data_offsets"][0]
    changed = raw[:at] + struct.pack("<q", value) + raw[at + 8:]
    with open(path, "wb") as f:
        f.write(changed)
    with open(os.path.join(folder, "MANIFEST.json")) as f:
        text = f.read().replace(hashlib.sha256(raw).hexdigest(), hashlib.sha256(changed).hexdigest())
    text = text[:text.rindex('  "sha256": "')]
    with open(os.path.join(folder, "MANIFEST.json"), "w") as f:
        f.write(text + f'  "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n')


@suite.test
def unequal_counts_of_steps_are_not_merged():
    first = [(3, "master"), (4, "w1"), (4, "master")]
    trained("counts", body("cnn", first), "--max-steps", str(FIRST))
    put_step("counts", 1, 3, FIRST - 1)
    refused("counts", body("cnn", [(3, "master"), (8, "w1")]), "stage 's1'", "the optimiser has taken 6 steps for 'c2.weight' and 7 for 'f1.weight'")
    refused("counts", body("cnn", [(7, "master"), (4, "w2")]), "stage 's0'", "taken 7 steps for 'c1.weight' and 6 for 'c2.weight'")
    trained("counts", body("cnn", [(3, "master"), (3, "w1"), (1, "w1"), (4, "w2")]), "--resume", "--accept-egress")


@suite.test
def files_that_stayed_at_workers_are_gathered_first():
    """Before anybody is dialled; under the old cut the run goes on from them."""
    text = lambda cut: body("cnn", cut).replace("every_steps: 100000", "every_steps: 100000, home: never")
    first = [(3, "master"), (4, "w1"), (4, "w2")]
    cluster.begins(keeps=True)
    trained("kept", text(first), "--max-steps", str(FIRST))
    for cut in ([(3, "master"), (8, "w1")], [(3, "master"), (4, "w2"), (4, "w1")]):
        for command in ("train", "eval"):
            refused("kept", text(cut), "model-00002-of-00003.safetensors stayed at 'spiffe://test/w1'", "cleave-master checkpoint gather ",
                    command=command, args=(*(("--resume",) if command == "train" else ()), "--accept-egress"))
    trained("kept", text(first).replace(", home: never", ", home: end"), "--resume")
    with open(os.path.join(cluster.dir, "runs/kept/metrics.jsonl")) as f:
        assert f.read() == undisturbed("cnn")[2]
    cluster.begins(keeps=False)


@suite.test
def cached_rows_are_sent_again_to_the_new_place():
    """Behind a frozen front, with the bits of a run that kept its cut."""
    front = {0: "freeze: true, cache: true, "}
    cluster.begins(keeps=True)
    trained("front", body("plain", [(2, "master"), (4, "w1")], own=front))
    trained("front-moved", body("plain", [(2, "master"), (4, "w1")], own=front), "--max-steps", str(FIRST))
    done = trained("front-moved", body("plain", [(2, "master"), (2, "w2"), (2, "master")], own=front), "--resume", "--accept-egress")
    assert re.search(r"CACHED activation of stage 's0', once .* to w2 ", done.stdout), done.stdout
    assert result("front-moved") == result("front")
    rows = egress_rows(os.path.join(cluster.dir, "runs", "front-moved"), 2)
    assert sum(r["bytes"] for r in rows if (r["kind"], r["to"]) == ("cached", "w2")), rows
    cluster.begins(keeps=False)


def most_memory(name, width):
    """The most anonymous memory that a master has while it moves three layers to other workers."""
    NETS[name] = (["{op: flatten}", *(f"{{op: linear, out: {width}, name: l{i}}}" for i in range(3)), "{op: linear, out: 10, name: head}"], IMAGE_DATA, ADAM)
    cuts = [(2, "w1"), (2, "w2"), (1, "w1")], [(3, "w2"), (2, "w1")]
    trained(name, body(name, cuts[0], steps=2), "--max-steps", "1")
    process = subprocess.Popen([MASTER, "train", cluster.session(name, body(name, cuts[1], steps=2), ""), "--resume", "--accept-egress"],
                               cwd=cluster.dir, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    most = 0
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status") as f:
            found = re.search(r"RssAnon:\s+(\d+) kB", f.read())
        most, _ = max(most, int(found[1]) << 10 if found else 0), time.sleep(0.002)
    assert process.returncode == 0, process.stderr.read()
    return most


@suite.long
def master_holds_16_mib_of_what_moves():
    """Of 140 MiB of weights and moments, beside a run that moves next to nothing. The process grows
    by these and by the buffers of its links, which are 8 MiB at most."""
    idle, moving = most_memory("narrow", 8), most_memory("wide", 2048)
    print(f"master: {idle / 2**20:.1f} MiB idle, {(moving - idle) / 2**20:.1f} MiB more while it moves 140 MiB", flush=True)
    assert moving - idle < (16 + 8) << 20, (idle, moving)


@suite.test
def evaluation_and_prediction_work_under_another_cut():
    first, second = [(3, "master"), (8, "w1")], [(7, "w2"), (3, "w1"), (1, "master")]
    trained("seen", body("cnn", first))
    found = []
    for cut in (first, second):
        session = cluster.session("seen", body("cnn", cut), "")
        done = run(MASTER, "eval", session, "--json", "--accept-egress", cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        out = os.path.join(cluster.dir, "seen.csv")
        assert run(MASTER, "predict", session, "--accept-egress", "--out", out, cwd=cluster.dir).returncode == 0
        with open(out) as f:
            found.append((json.loads(done.stdout)["loss"], f.read()))
    assert found[0] == found[1]


with Places(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    rng = random.Random(3)
    ids = [[rng.randrange(1, ROWS) for _ in range(PLACES)] for _ in range(RECORDS)]
    for file, rows in (("ids", ids), ("next", [[i * 7 % ROWS for i in row] for row in ids])):
        write_npy(os.path.join(cluster.dir, "data", file + ".npy"), (RECORDS, PLACES), "<i8", struct.pack(f"<{RECORDS * PLACES}q", *sum(rows, [])))
    suite.main()
