#!/usr/bin/python3
"""The order of records tells a worker nothing: evaluations are sent in a permuted order, and their
results are in the order of the files."""
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_worker import *
from cluster import *

suite = Suite()
CREDIT, RECORDS, CLASSES = 4 << 20, 60, 3
cluster = None


def body(name, seed="", batch=8):
    """A session whose records begin with their index in the files, which are sorted by class, and
    reach the worker unchanged."""
    return (f"data: {{format: npy, root: {name}, train: [x.npy, y.npy], test: [x.npy, y.npy]}}\n"
            "stages:\n"
            "  - {name: a, at: master, layers: [{op: scale, factor: 1}]}\n"
            "  - {name: b, at: w1, layers: [{op: linear, out: 6, name: b}]}\n"
            f"  - {{name: c, at: master, layers: [{{op: linear, out: {CLASSES}, name: c}}]}}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{batch: 60, eval_batch: {batch}, max_steps: 1, seed: {seed or SEED}, "
            "optimizer: {kind: sgd, lr: 0.001}}\n"
            "privacy: {raw_input_leaves: true}\n")


def make_data(name):
    folder = os.path.join(cluster.dir, name)
    os.makedirs(folder)
    x = numpy.random.default_rng(3).standard_normal((RECORDS, 5)).astype("<f4")
    x[:, 0] = numpy.arange(RECORDS)
    numpy.save(os.path.join(folder, "x.npy"), x)
    numpy.save(os.path.join(folder, "y.npy"), (numpy.arange(RECORDS) * CLASSES // RECORDS).astype("<i8"))
    return x


def sent(log):
    """The indexes of the records that evaluations sent, in the order of arrival."""
    trained = {f.context for f in log if f.kind == pb.CALL and f.flags & pb.FLAG_TRAINING}
    values = [tensor_of(f) for f in log if f.kind == pb.VALUE and f.context not in trained]
    return [int(v) for x in values for v in x[:, 0]]


def commanded(command, name, body, *args):
    """(output of the command, indexes of the records that it sent to a worker of its own)"""
    with FakeWorker(cluster.certs, CREDIT, pieces=True) as worker:
        session = cluster.session(name, body, "labels_readable: true")
        with open(session) as f:
            text = f.read()
        with open(session, "w") as f:
            f.write(text.replace(f":{cluster.ports[0]}", f":{worker.port}"))
        done = run(MASTER, command, session, *args, cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        return done.stdout, sent(worker.log)


def weights(name):
    return {k: numpy.frombuffer(raw, "<f4").reshape(dims)
            for k, (_, dims, raw) in checkpoint_tensors(os.path.join(cluster.dir, "runs", name), 1).items()}


@suite.test
def evaluation_records_are_sent_in_shuffled_order():
    """In the test of train, eval and predict. The order depends only on the seed, and does not
    follow the class."""
    make_data("one")
    _, order = commanded("train", "one", body("one"))
    assert sorted(order) == list(range(RECORDS)) and order != sorted(order), order
    right = sum(k // 20 == at // 20 for at, k in enumerate(order))
    alike = sum(a // 20 == b // 20 for a, b in zip(order, order[1:]))  # files: 57, chance: 19
    assert right < 36 and alike < 32, (right, alike, order)
    for command in ("eval", "predict"):
        assert commanded(command, "one", body("one"))[1] == order, command
    assert commanded("train", "other", body("one", "0badcafe0badcafe0badcafe0badcafe"))[1] != order


@suite.test
def predictions_are_written_in_file_order():
    """Predictions in all three formats. The loss of an evaluation does not depend on its batch
    size."""
    x = make_data("two")
    y = numpy.arange(RECORDS) * CLASSES // RECORDS
    commanded("train", "two", body("two"))
    w = weights("two")
    want = (x @ w["b.weight"].T + w["b.bias"]) @ w["c.weight"].T + w["c.bias"]
    top = want.max(1, keepdims=True)
    loss = (top[:, 0] + numpy.log(numpy.exp(want - top).sum(1)) - want[range(RECORDS), y]).mean()
    for batch in (8, 7, 60) if LONG else (8, 7):
        said, _ = commanded("eval", "two", body("two", batch=batch), "--json")
        assert abs(json.loads(said.splitlines()[-1])["loss"] - loss) < 1e-4, (said, loss)
        for name in ("p.npy", "p.csv", "p.jsonl")[:3 if LONG or batch == 8 else 1]:
            commanded("predict", "two", body("two", batch=batch), "--output", name)
        got = numpy.load(os.path.join(cluster.dir, "p.npy"))
        assert numpy.allclose(got, want, 1e-4, 1e-4), (got, want)
        with open(os.path.join(cluster.dir, "p.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        with open(os.path.join(cluster.dir, "p.csv")) as f:
            rows = f.read().splitlines()[1:]
        assert [l["id"] for l in lines] == list(range(RECORDS)), lines[:3]
        assert [int(r.split(",")[0]) for r in rows] == list(range(RECORDS)), rows[:3]
        assert [l["class"] for l in lines] == list(want.argmax(1)), lines[:3]


@suite.test
def large_outputs_are_scored_batch_by_batch():
    """Outputs of 288 MB: each batch is scored when it comes, with the labels of its records."""
    folder, n, classes = os.path.join(cluster.dir, "wide"), 48, 1_500_000
    os.makedirs(folder)
    x = numpy.random.default_rng(4).standard_normal((n, 1)).astype("<f4")
    y = (numpy.arange(n) * (classes // n)).astype("<i8")
    numpy.save(os.path.join(folder, "x.npy"), x)
    numpy.save(os.path.join(folder, "y.npy"), y)
    text = ("data: {format: npy, root: wide, train: [x.npy, y.npy], test: [x.npy, y.npy]}\n"
            f"stages:\n  - {{name: a, at: master, layers: [{{op: linear, out: {classes}, bias: false, name: a}}]}}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{batch: 4, eval_batch: 5, max_steps: 1, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.001}}}}\n"
            "log: {json: true}\n")
    done = run(MASTER, "train", cluster.session("wide", text), cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    (w,) = weights("wide").values()
    want = numpy.mean([numpy.log(numpy.exp(w[:, 0] * v).sum()) - w[k, 0] * v for v, k in zip(x[:, 0], y)])
    (got,) = [e["loss"] for e in map(json.loads, done.stdout.splitlines()) if e.get("event") == "test"]
    assert abs(got - want) < 1e-4, (got, want)


if __name__ == "__main__":
    if pyclient.MISSING:
        print("skip order:", pyclient.MISSING)
        sys.exit(0)
    with Cluster(1) as cluster:
        suite.main()
