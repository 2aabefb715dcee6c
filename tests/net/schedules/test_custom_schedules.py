"""Custom schedules in session files: each valid order gives the same weights; a damaged schedule is
refused with its instruction before anything is sent, unless it is still valid."""
import json, os, random, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 2
LAYERS = ["{op: linear, out: 12}, {op: batchnorm}, {op: tanh}",
          "{op: linear, out: 10}, {op: relu}, {op: dropout, p: 0.3}", "{op: linear, out: 9}, {op: tanh}", "{op: linear, out: 7}"]
PLACES = {2: ["master", "w1"], 3: ["w1", "w2", "w1"], 4: ["w1", "master", "w2", "w1"]}
cluster = None


def body(n, micro, pipeline):
    text = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
            "privacy: {raw_input_leaves: true}\nstages:\n")
    for i, (at, layers) in enumerate(zip(PLACES[n], LAYERS[:n - 1] + ["{op: linear, out: 10}"])):
        flat = "{op: flatten}, " if i == 0 else ""
        text += f"  - {{name: s{i}, at: {at}, layers: [{flat}{layers}]}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 1, max_steps: {STEPS}, batch: 12, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, "
                   "optimizer: {kind: adam, lr: 0.003}}\n"
                   f"pipeline: {{micro_batches: {micro}, {pipeline}}}\nlog: {{every: 100}}\n")


def session_of(tag, n, micro, pipeline):
    return cluster.session(tag, body(n, micro, pipeline))


def weights_of(tag, session):
    done = cluster.train(session, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", tag), STEPS)


# ---- instruction lists ---------------------------------------------------------------------------

class Lists:
    """A schedule as text: header lines, and the words of each rank."""

    def __init__(self, path):
        with open(path) as f:
            lines = f.read().splitlines()
        self.head = [l for l in lines if not l.startswith("rank")]
        self.ranks = [l.split(":", 1)[1].split() for l in lines if l.startswith("rank")]
        self.stage_at = {int(l.split()[1]): int(l.split()[3]) for l in self.head[1:]}
        self.n, self.micro = len(self.stage_at), int(self.head[0].split("micro-batches ")[1].split()[0])

    def text(self, ranks):
        head = self.head[0].split()
        head[1] = "custom"
        return "\n".join([" ".join(head)] + self.head[1:] +
                         [f"rank {i}: " + " ".join(words) for i, words in enumerate(ranks)]) + "\n"


def parts(word):
    kind, micro, stage = re.fullmatch(r"([A-Za-z]+)(\d+)@(\d+)", word).groups()
    return kind, int(micro), int(stage)


def needs(word, crosses, n):
    """The instructions that must come before an instruction on any rank."""
    kind, k, s = parts(word)
    order = [f"{kind}{k - 1}@{s}"] if k and kind in "FBIW" else []
    if kind == "F" and s:
        order += [f"rf{k}@{s}" if crosses(s - 1) else f"F{k}@{s - 1}"]
    elif kind in "BI":
        order += [f"F{k}@{s}"]
        if s + 1 < n:
            order += [f"rb{k}@{s}" if crosses(s) else f"?{k}@{s + 1}"]
    order += {"W": [f"I{k}@{s}"], "sf": [f"F{k}@{s}"], "rf": [f"sf{k}@{s - 1}"], "sb": [f"?{k}@{s}"],
              "rb": [f"sb{k}@{s + 1}"]}.get(kind, [])
    return order


def shuffled(lists, r):
    """Another order of the same instructions, split or not, in which each comes after what it
    needs."""
    split = {s: r.random() < 0.5 for s in range(lists.n)}
    words = []
    for w in (w for rank in lists.ranks for w in rank):
        kind, k, s = parts(w)
        if kind in "BIW" and not (kind == "W"):
            words += [f"I{k}@{s}", f"W{k}@{s}"] if split[s] else [f"B{k}@{s}"]
        elif kind != "W":
            words += [w]
    crosses = lambda edge: lists.stage_at[edge] != lists.stage_at[edge + 1]
    there, left = set(), list(words)
    ranks = [[] for _ in lists.ranks]
    while left:
        ready = [w for w in left if all(
            any(d.replace("?", x) in there for x in "BI") if "?" in d else d in there
            for d in needs(w, crosses, lists.n))]
        w = r.choice(ready)
        left.remove(w)
        there.add(w)
        ranks[lists.stage_at[parts(w)[2]]].append(w)
    return ranks


def damaged(ranks, r):
    ranks = [list(words) for words in ranks]
    words = r.choice([w for w in ranks if len(w) > 1])
    at, other = r.sample(range(len(words)), 2)
    how = r.randrange(6)
    if how == 0:
        words[at], words[other] = words[other], words[at]
    elif how == 1:
        del words[at]
    elif how == 2:
        words.insert(at, words[other])
    elif how == 3:
        words.insert(other, words.pop(at))
    elif how == 4:
        kind, k, s = parts(words[at])
        words[at] = f"{r.choice(['F', 'B', 'I', 'W', 'sf', 'rf', 'sb', 'rb', 'S'])}{k}@{s}"
    else:
        kind, k, s = parts(words[at])
        words[at] = f"{kind}{k + r.choice((-1, 1)) if k else 1}@{s}"
    return ranks


def plan_of(n, micro, kind="1f1b"):
    session = session_of(f"plan{n}-{micro}", n, micro, f"schedule: {kind}")
    path = os.path.join(cluster.dir, f"plan{n}-{micro}.sched")
    done = master("plan", "--schedule", "--out", path, session)
    assert done.returncode == 0, done.stderr
    return Lists(path)


def custom(tag, lists, ranks):
    with open(os.path.join(cluster.dir, tag + ".sched"), "w") as f:
        f.write(lists.text(ranks))
    return session_of(tag, lists.n - 1, lists.micro, f"schedule: custom, file: {tag}.sched")


SHAPES = ((2, 1), (2, 4), (3, 3), (3, 6), (4, 4)) if LONG else ((2, 4), (3, 3), (3, 6))
EACH = int(os.environ.get("CLV_TEST_SCHEDULES", "3" if LONG else "1"))


@suite.test
def random_orders_give_the_same_weights():
    r = random.Random(90)
    for n, micro in SHAPES:
        lists = plan_of(n, micro)
        want = weights_of(f"plan{n}-{micro}", os.path.join(cluster.dir, f"plan{n}-{micro}.yaml"))
        for i in range(EACH):
            tag = f"random{n}-{micro}-{i}"
            session = custom(tag, lists, shuffled(lists, r))
            assert master("check", session).returncode == 0, tag
            got = weights_of(tag, session)
            assert [k for k in want if want[k] != got[k]] == [], tag


# Errors of the check of a whole schedule, or of its parser.
REFUSED = re.compile(r"rank \d+, instruction \d+ \(|\.sched:\d+:\d+: \w+@\d+: ")


@suite.test
def damaged_orders_are_refused_or_give_the_same_weights():
    r, refused = random.Random(91), 0
    for n, micro in SHAPES[1:]:
        lists = plan_of(n, micro)
        want = weights_of(f"damaged{n}-{micro}", session_of(f"damaged{n}-{micro}", n, micro, "schedule: naive"))
        for i in range(3 * EACH):
            tag = f"damaged{n}-{micro}-{i}"
            session = custom(tag, lists, damaged(shuffled(lists, r), r))
            done = master("check", session)
            if done.returncode == 0:
                assert weights_of(tag, session) == want, tag
                continue
            refused += 1
            assert done.returncode == 3 and REFUSED.search(done.stderr), (tag, done.stderr)
            for command in ("train", "plan")[:2 * (i == 0)]:
                again = master(command, session)
                assert (again.returncode, again.stderr) == (3, done.stderr), (command, again.stderr)
    assert refused >= (len(SHAPES) - 1) * EACH, refused


def stepping():
    """Lists with a step for each micro-batch, as `plan` writes them for pipedream."""
    session, path = session_of("stepping", 3, 1, "schedule: pipedream, flush_every: 3"), cluster.dir + "/s.sched"
    assert master("plan", "--schedule", "--out", path, session).returncode == 0
    with open(path) as f:
        return f.read()


@suite.test
def invalid_schedule_is_refused_by_check_plan_and_train():
    lists = plan_of(3, 3)
    good = lists.text(lists.ranks)
    cases = {
        "of other places": (good.replace("stage 1 rank", "stage 1 rank 0 #", 1), "or places them differently"),
        "of other micro-batches": (None, "micro-batches"),
        "of steps": (stepping(), "pipeline.schedule to pipedream"),
        "no text": ("", "a schedule starts with"),
        "a word": (good.replace("F0@0", "G0@0", 1), "G0@0 is no instruction"),
    }
    for tag, (text, part) in cases.items():
        name = tag.replace(" ", "-")
        session = custom(name, lists, lists.ranks)
        if text is None:
            session = session_of(name, 3, 2, f"schedule: custom, file: {name}.sched")
        else:
            with open(os.path.join(cluster.dir, name + ".sched"), "w") as f:
                f.write(text)
        for command in ("check", "plan", "train"):
            done = master(command, session)
            assert done.returncode == 3 and part in done.stderr, (tag, command, done.returncode, done.stderr)
    session = session_of("missing", 3, 3, "schedule: custom, file: nowhere.sched")
    for command in ("check", "plan", "train"):
        done = master(command, session)
        assert done.returncode == 3 and "nowhere.sched" in done.stderr, (command, done)


@suite.test
def schedule_kinds_that_do_not_fit_are_refused():
    for n, micro, kind, part in ((4, 3, "interleaved", "interleaved"), (2, 4, "interleaved", "interleaved")):
        done = master("check", session_of(f"unfit{n}", n, micro, f"schedule: {kind}"))
        assert done.returncode == 3 and part in done.stderr, done


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=64, n_test=16, side=4)
    suite.main()
