"""Compares the egress record with the bytes that the master's links sent, as the build of
tests/faults counts them."""
import json, os, re, signal, struct, subprocess, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../lib"))
from cluster import *

COUNTING = os.path.join(BIN, "faults", "cleave-master")
STEPS = 12
LAYERS = ("[{op: conv2d, out: 6, kernel: 3, pad: 1}, {op: batchnorm}, {op: relu}]",
          "[{op: conv2d, out: 8, kernel: 3, pad: 1}, {op: batchnorm}, {op: relu}]",
          "[{op: flatten}, {op: linear, out: 24}, {op: relu}]", "[{op: linear, out: 10}]")
suite = Suite()


def body(steps=STEPS, places=("master", "w1", "w2", "master"), micro=4, extra=""):
    stages = "".join(f"  - {{name: s{i}, at: {at}, layers: {layers}}}\n"
                     for i, (at, layers) in enumerate(zip(places, LAYERS)))
    return (IMAGE_DATA.replace("}", ", validation: {fraction: 0.2}}") + "transfer: direct\nstages:\n" + stages +
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 1000, max_steps: {steps}, batch: 32, eval_batch: 40, optimizer: {{kind: adam, lr: 0.003}}}}\n"
            f"pipeline: {{micro_batches: {micro}}}\nlog: {{every: 1000}}\ncheckpoint: {{every_steps: 6}}\n" + extra)


def command(*args):
    """Runs a command. Returns the bytes of tensors that it sent."""
    path = os.path.join(cluster.dir, "sent")
    if os.path.exists(path):
        os.unlink(path)
    done = run(COUNTING, *args, cwd=cluster.dir, env={"CLEAVE_TEST_SENT": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return sent()


def sent():
    with open(os.path.join(cluster.dir, "sent"), "rb") as f:
        return struct.unpack("<Q", f.read(8))[0]


class Record:
    """The sums of an egress.jsonl. An incomplete last line is ignored."""

    def __init__(self, name):
        self.attempts, self.open, self.settled, self.hops, self.names = [], {}, [], [], set()
        with open(os.path.join(cluster.dir, "runs", name, "egress.jsonl")) as f:
            lines = [json.loads(line) for line in f if line.endswith("\n")]
        for line in lines:
            getattr(self, line["event"])(line)

    def attempt(self, line):
        self.attempts.append(dict(line, ended=False))

    def look(self, line):
        assert line["records"] and line["labels"], line

    def allow(self, line):
        self.open[line["attempt"], line["id"]] = line
        self.names.add((line["kind"], line["name"]))

    def settle(self, line):
        allowed = self.open.pop((line["attempt"], line["id"]))
        assert line["bytes"] <= allowed["bytes"], line
        self.settled.append(dict(allowed, bytes=line["bytes"], tensors=line["tensors"]))

    def hop(self, line):
        self.hops.append(line)

    def end(self, line):
        self.attempts[line["attempt"] - 1].update(ended=True, bytes=line["bytes"])

    def sum(self, **what):
        return sum(l["bytes"] for l in self.settled + list(self.open.values())
                   if all(l[k] == v for k, v in dict({"from": "master"}, **what).items()))


@suite.test
def egress_record_is_exact_after_an_orderly_end():
    """Training, its evaluations, a resume, eval and predict."""
    session = cluster.session("whole", body())
    total = command("train", session, "--max-steps", str(STEPS // 2))
    first = Record("whole")
    assert first.sum() == total > 100000 and not first.open, (first.sum(), total)
    more = command("train", session, "--resume")
    again = Record("whole")
    assert again.sum() == total + more, (again.sum(), total, more)
    assert again.sum(attempt=2) == more and again.sum(kind="weights") > 0 < again.sum(kind="state")
    assert ("weights", "3.weight") in again.names, again.names
    assert any(kind == "state" and "3.weight" in name for kind, name in again.names), again.names
    total += more
    for what in ("eval", "predict"):
        out = ("--out", os.path.join(cluster.dir, "p.npy")) if what == "predict" else ()
        total += command(what, session, *out)
        now = Record("whole")
        assert now.sum() == total and not now.open, (what, now.sum(), total)
        assert now.attempts[-1]["command"] == what and now.sum(attempt=len(now.attempts), kind="gradient") == 0
    assert [a["command"] for a in now.attempts] == ["train", "train", "eval", "predict"]
    assert all(a["ended"] for a in now.attempts)


@suite.test
def direct_transfers_match_the_planned_bytes():
    record = Record("whole")
    planned = {way: sum(l["bytes"] for l in record.settled if (l["from"], l["to"]) == way)
               for way in (("w1", "w2"), ("w2", "w1"))}
    assert planned["w1", "w2"] > planned["w2", "w1"] > 0, planned
    told = {(h["from"], h["to"]): 0 for h in record.hops}
    for h in record.hops:
        told[h["from"], h["to"]] += h["bytes"]
    assert told.keys() == planned.keys(), record.hops
    for way, bytes_ in planned.items():  # the links count messages with their tensors
        assert bytes_ <= told[way] < 1.3 * bytes_ + 4096, (way, bytes_, told)


@suite.test
def trials_send_only_random_numbers():
    total = command("train", cluster.session("auto", body(micro="auto")), "--max-steps", "2")
    record = Record("auto")
    assert [a["command"] for a in record.attempts][-1] == "train", record.attempts
    trial = sum(l["bytes"] for l in record.settled if l["random"] and l["from"] == "master")
    assert trial and all(record.attempts[l["attempt"] - 1]["command"] == "trial"
                         for l in record.settled if l["random"])


@suite.test
def raw_records_are_listed_as_input():
    """In each form in which they leave, with the key of `privacy` that permits it."""
    plain = body(1).replace(LAYERS[0], "[{op: flatten}]").replace(LAYERS[1], "[{op: linear, out: 8}, {op: relu}]")
    stages = plain.replace(LAYERS[2], "[{op: linear, out: 8}, {op: relu}]") + "privacy: {raw_input_leaves: true}\n"
    command("train", cluster.session("plain", stages, keys=""))
    record = Record("plain")
    assert record.sum(kind="input", stage="s0") > 0 == record.sum(kind="activation", stage="s0"), record.names


@suite.test
def raw_records_between_workers_are_listed_as_input():
    """Tensors that a worker sends to another are listed as what they reveal, in plan and in the
    record."""
    stages = body(1, ("w1", "w2", "master", "master")).replace(LAYERS[0], "[{op: flatten}]")
    stages = stages.replace(LAYERS[1], "[{op: linear, out: 8}, {op: relu}]")
    session = cluster.session("hop", stages.replace(LAYERS[2], "[{op: linear, out: 8}, {op: relu}]")
                              + "privacy: {raw_input_leaves: true}\n", keys="")
    done = run(MASTER, "plan", session, cwd=cluster.dir)
    assert re.search(r"-> s1: .*, direct: RAW INPUT", done.stdout), done.stdout
    shown = [s["direct_shows"] for s in json.loads(run(MASTER, "plan", session, "--json", cwd=cluster.dir).stdout)["stages"]]
    assert shown[:2] == ["RAW INPUT", ""], shown
    command("train", session)
    hops = {(l["kind"], l["name"]) for l in Record("hop").settled if (l["from"], l["to"]) == ("w1", "w2")}
    assert hops == {("input", "RAW INPUT")}, hops
    with open(session) as f:
        text = f.read()
    for name, layers, words, kind in (("sums", "[{op: flatten}, {op: linear, out: 24}]", "FRONT KNOWN", "activation"),
                                      ("looks", "[{op: conv2d, out: 2, kernel: 3, pad: 1}, {op: flatten}]", "FRONT KNOWN, PICTURE", "activation"),
                                      ("scales", "[{op: scale, factor: 2}, {op: flatten}]", "RAW INPUT", "input")):
        path = cluster.session(name, text[text.index("data:"):].replace("layers: [{op: flatten}]", "layers: " + layers), keys="")
        done = run(MASTER, "plan", path, "--json", cwd=cluster.dir)
        assert done.returncode == 0 and json.loads(done.stdout)["stages"][0]["direct_shows"] == words, (name, done.stdout[:3000], done.stderr)
        command("train", path)
        hops = {(l["kind"], l["name"]) for l in Record(name).settled if (l["from"], l["to"]) == ("w1", "w2")}
        assert hops == {(kind, words)}, (name, hops)


@suite.test
def egress_record_never_undercounts_after_a_kill():
    """At several moments, the first of them before the first step."""
    session = cluster.session("killed", body(1000000))
    path, all_sent = os.path.join(cluster.dir, "sent"), 0
    for i in range(5 if LONG else 3):
        if os.path.exists(path):
            os.unlink(path)
        with Running([COUNTING, "train", session, "--fresh"], cwd=cluster.dir, stderr=subprocess.DEVNULL,
                     env={**os.environ, "CLEAVE_TEST_SENT": path}) as run:
            deadline = time.monotonic() + 30 * SLOW
            while not (os.path.exists(path) and os.path.getsize(path) == 8 and sent()):
                assert time.monotonic() < deadline and run.process.poll() is None
                time.sleep(0.001)
            time.sleep(0.05 * i)
            run.process.kill()
            run.process.wait()
        all_sent += sent()
        record = Record("killed")
        assert len(record.attempts) == i + 1 and not record.attempts[i]["ended"]
        assert record.sum() >= all_sent, (i, record.sum(), all_sent)
        step = 32 * 6 * 12 * 12 * 4  # bytes of a batch at the larger cut
        assert record.sum() - all_sent < (i + 1) * 3 * 96 * step


@suite.test
def changed_egress_table_needs_accept_egress():
    session = cluster.session("whole", body(places=("master", "w1", "w1", "master")))
    for what in ("eval", "predict"):
        done = master(what, session, cwd=cluster.dir)
        assert done.returncode == 3 and "--accept-egress" in done.stderr, done.stderr
    done = master("eval", session, "--accept-egress", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    table = os.path.join(cluster.dir, "runs/whole/egress.table")
    os.unlink(table)  # a missing table is an error too
    for why in ("No such file", "not a regular file"):
        for what in (("eval",), ("train", "--resume", "--set", f"train.max_steps={STEPS + 1}")):
            done = master(what[0], session, *what[1:], cwd=cluster.dir)
            assert done.returncode == 3 and why in done.stderr and "--accept-egress" in done.stderr, done.stderr
        os.path.exists(table) or os.mkdir(table)


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=320, n_test=100)
    suite.main()
