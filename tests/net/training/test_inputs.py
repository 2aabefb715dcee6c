"""Records with several inputs (tokens, numbers, lengths): each input is sent to the stages that
read it. For any cut over one to three workers, a model has the bits of the unsplit run."""
import json, os, random, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 8 if LONG else 4
# number of records, number of different tokens, maximum tokens of a record
SPACE, ROWS, PLACES = 96, 20, 7
NET = [
    "{op: embedding, rows: 20, out: 8, name: words, from: [ids]}",
    "{op: linear, out: 8, name: h}",
    "{op: linear, out: 8, name: q}",
    "{op: linear, out: 8, name: k, from: [h]}",
    "{op: linear, out: 8, name: v, from: [h]}",
    "{op: attention, heads: 2, p: 0.1, name: att, from: [q, k, v, lengths]}",
    "{op: add, name: r, from: [att, h]}",
    "{op: layernorm, name: x}",
    "{op: attention, heads: 2, name: again, from: [x, x, x, lengths]}",
    "{op: add, from: [again, x]}",
    "{op: mean, dim: 1, name: page}",
    "{op: linear, out: 5, name: more, from: [extra]}",
    "{op: concat, from: [page, more]}",
    "{op: linear, out: 3, name: head}",
]
cluster = None


def records(folder):
    r = random.Random(5)
    words = [[r.randrange(ROWS) for _ in range(PLACES)] for _ in range(SPACE)]
    lengths = [r.randint(1, PLACES) for _ in range(SPACE)]
    write_npy(os.path.join(folder, "ids.npy"), (SPACE, PLACES), "<i8", struct.pack(f"<{SPACE * PLACES}q", *sum(words, [])))
    write_npy(os.path.join(folder, "lengths.npy"), (SPACE,), "<i8", struct.pack(f"<{SPACE}q", *lengths))
    extra = [r.uniform(-1, 1) for _ in range(SPACE * 4)]
    write_npy(os.path.join(folder, "extra.npy"), (SPACE, 4), "<f4", struct.pack(f"<{SPACE * 4}f", *extra))
    labels = [(w[0] + n) % 3 for w, n in zip(words, lengths)]
    write_npy(os.path.join(folder, "y.npy"), (SPACE,), "<i8", struct.pack(f"<{SPACE}q", *labels))


FILES = "[ids.npy, extra.npy, lengths.npy, y.npy]"


def body(cuts, places, pipeline="micro_batches: 2", privacy="raw_input_leaves: true", more=""):
    text = (f"data: {{format: npy, root: data, inputs: [ids, extra, lengths], train: {FILES}, test: {FILES}}}\n"
            "stages:\n")
    for i, (first, last, at) in enumerate(zip([0, *cuts], [*cuts, len(NET)], places)):
        text += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(NET[first:last])}]}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 100, max_steps: {STEPS}, batch: 12, seed: 5eed5eed5eed5eed5eed5eed5eed5eed,"
                   " clip_grad_norm: 1.0, optimizer: {kind: adamw, lr: 0.01}}\n"
                   f"pipeline: {{{pipeline}}}\ntransfer: direct\ncheckpoint: {{every_steps: 100000}}\n"
                   f"privacy: {{{privacy}}}\n" + more)


def accuracy(said):
    return re.search(r"test accuracy[^\n]*", said).group(0)


UNSPLIT = {}


def compare(tag, *args, **how):
    if not UNSPLIT:
        UNSPLIT["is"] = cluster.trained("unsplit", body([], ["master"]), STEPS)
    one, one_log, one_said = UNSPLIT["is"]
    weights, log, said = cluster.trained(tag, body(*args, **how), STEPS)
    assert weights.keys() == one.keys(), tag
    for k in one:
        assert weights[k] == one[k], f"{tag}: {k} differs"
    assert log == one_log, f"{tag}: the loss log differs"
    assert accuracy(said) == accuracy(one_said), tag


@suite.test
def one_cut_anywhere_gives_the_same_bits():
    for k in range(1, len(NET))[::1 if LONG else 4]:
        compare(f"cut{k}", [k], ["master", "w1"])


@suite.test
def three_workers_give_the_same_bits():
    for k in range(1, len(NET) - 2)[::1 if LONG else 4]:
        compare(f"three{k}", [k, k + 1, k + 2], ["master", "w1", "w2", "w3"])
    compare("all-away", [4, 9], ["w1", "w2", "w3"])


@suite.test
def egress_record_matches_the_plan():
    """With first and last layers at the master, only lengths and activations leave; the record has
    their bytes."""
    text = body([3, 10], ["master", "w1", "master"], privacy="tokens_readable: true, labels_readable: true, front_known: true")
    session = cluster.session("u", text, keys="")
    plan = master("plan", "--json", session, cwd=cluster.dir)
    assert plan.returncode == 0, plan.stderr
    facts = json.loads(plan.stdout)
    lengths, activation, gradient, *_ = facts["egress"]
    assert lengths["tensor"] == "LENGTHS 'lengths', for stage s1" and lengths["bytes_per_step"] == 12 * 8, lengths
    assert [v["name"] for v in activation["values"]] == ["h", "q"] and activation["shape"] == [6, 2 * 56], activation
    assert "values" not in gradient and facts["privacy"]["lengths"] == "leave", facts
    done = cluster.train(session)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = {(r["kind"], r["stage"], r["name"]): r["bytes"] for r in egress_rows(os.path.join(cluster.dir, "runs", "u"))}
    trained = 12 * STEPS  # records, and an evaluation of all
    assert sent == {("input", "s1", "lengths"): (trained + SPACE) * 8, ("tokens", "s0", ""): (trained + SPACE) * 4 * 112,
                    ("gradient", "s1", ""): trained * 4 * 56}, sent
    said = master("egress", "u", cwd=cluster.dir)
    assert said.returncode == 0 and "lengths" in said.stdout, said.stdout + said.stderr


@suite.test
def waiting_batches_keep_all_their_inputs():
    """An asynchronous round holds several batches, which must equal batches that come one by
    one."""
    _, log, _ = cluster.trained("waits", body([4], ["master", "w1"], "micro_batches: 1, schedule: pipedream, flush_every: 4")
                                .replace(" clip_grad_norm: 1.0,", ""), STEPS)
    losses = [json.loads(line)["loss"] for line in log.splitlines()]
    assert len(losses) == STEPS and all(0 < loss < 3 for loss in losses), losses


@suite.test
def trials_and_cut_suggestions_accept_several_inputs():
    done = cluster.train(cluster.session("auto", body([4, 9], ["master", "w1", "w2"], "micro_batches: auto")))
    assert done.returncode == 0 and "micro_batches: " in done.stdout, done.stdout + done.stderr
    done = master("plan", "--suggest-cuts", cluster.session("suggest", body([4, 9], ["master", "w1", "w2"])), cwd=cluster.dir)
    assert done.returncode == 3 and "14 layers have 1 place where one value crosses" in done.stderr, done.stdout + done.stderr


@suite.test
def mistakes_are_refused_with_their_position():
    for change, says in (
            (("from: [ids]", "from: [idz]"), r"no earlier layer has the name 'idz', did you mean 'ids'\?"),
            ((", raw_input_leaves: true", ""),
             r"worker 'w1' is sent the records: layers of stage 's1' read 'extra'; read it at master"),
            (("[q, k, v, lengths]", "[q, k, v, extra]"), r"attention.*lengths")):
        text = body([10], ["master", "w1"], privacy=READABLE + ", raw_input_leaves: true").replace(*change)
        done = master("check", cluster.session("wrong", text, keys=""), cwd=cluster.dir)
        assert done.returncode == 3 and re.search(r"wrong.yaml:\d+:\d+: .*" + says, done.stderr), done.stderr


with Cluster(3) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    records(os.path.join(cluster.dir, "data"))
    suite.main()
