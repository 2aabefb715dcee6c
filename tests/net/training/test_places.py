#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A class for each place of a record: PyTorch's cross_entropy with ignore_index, weights of classes
and smoothing, whose mean is over the places of the whole batch, however it is cut."""
import json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import golden
import numpy as np

suite = Suite()
RECORDS, PLACES, ROWS, CLASSES, STEPS, BATCH, RATE = 48, 7, 20, 4, 6, 12, 0.5
OPTIONS = "weight: [1, 0.5, 2, 1.5], ignore_index: -100, label_smoothing: 0.1"
STAGES = ("stages:\n"
          f"  - {{name: front, at: master, layers: [{{op: embedding, rows: {ROWS}, out: 6}}, {{op: linear, out: 8}}]}}\n"
          "  - {name: middle, at: w1, layers: [{op: tanh}]}\n"
          f"  - {{name: head, at: master, layers: [{{op: linear, out: {CLASSES}}}]}}\n")


def records(folder):
    """Writes records. Some have few places with a label, and those of one micro-batch have none."""
    rng = np.random.default_rng(7)
    ids = rng.integers(0, ROWS, (RECORDS, PLACES))
    labels = np.where(rng.random((RECORDS, PLACES)) < rng.random((RECORDS, 1)), ids % CLASSES, -100)
    labels[3:6] = -100
    for part in ("train", "test"):
        np.save(f"{folder}/{part}-x.npy", ids)
        np.save(f"{folder}/{part}-y.npy", labels)
    return ids, labels


def body(options=OPTIONS, micro=1, steps=STEPS, rate=RATE, at="master", extra=""):
    return ("data: {format: npy, root: places, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n" + STAGES +
            f"loss: {{kind: cross_entropy, {options}, at: {at}}}\n"
            f"pipeline: {{micro_batches: {micro}, schedule: gpipe}}\n"
            f"train: {{epochs: 9, max_steps: {steps}, batch: {BATCH}, shuffle: false, seed: {SEED},"
            f" optimizer: {{kind: sgd, lr: {rate}}}}}\n{extra}")


def losses(log):
    return [json.loads(line)["loss"] for line in log.splitlines() if '"loss"' in line and '"step"' in line][:STEPS]


def in_torch(state):
    """(losses of the same steps; loss, accuracy and number of places over all records after
    them)"""
    import torch
    ids, labels, weight = torch.from_numpy(IDS), torch.from_numpy(LABELS), torch.tensor([1, 0.5, 2, 1.5])
    p = {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in state.items()}
    table, (w1, b1), (w2, b2) = p["0.weight"], (p["1.weight"], p["1.bias"]), (p["3.weight"], p["3.bias"])

    def loss(rows):
        y = torch.tanh(table[ids[rows]] @ w1.T + b1) @ w2.T + b2
        return torch.nn.functional.cross_entropy(y.flatten(0, 1), labels[rows].flatten(), weight, ignore_index=-100, label_smoothing=0.1), y
    seen = []
    for step in range(STEPS):
        at = step * BATCH % RECORDS
        value, _ = loss(slice(at, at + BATCH))
        seen.append(value.item())
        value.backward()
        with torch.no_grad():
            for v in p.values():
                v -= RATE * v.grad
                v.grad = None
    value, y = loss(slice(0, RECORDS))
    counted = labels != -100
    return seen, value.item(), (y.argmax(2) == labels)[counted].float().mean().item(), int(counted.sum())


def first_state():
    values, _, _ = cluster.trained("first", body(steps=1, rate=1e-30), 1)
    return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (_, shape, data) in values.items()}


@suite.test
def loss_matches_pytorchs_mean_for_any_micro_batches():
    state = first_state()
    inputs = {**state, "ids": IDS, "labels": LABELS}
    want, last, right, places = golden.numbers("places", inputs, lambda: in_torch(state))
    for micro in (1, 4, 5):
        session = cluster.session(f"cut{micro}", body(micro=micro))
        done = cluster.train(session)
        assert done.returncode == 0, done.stderr
        got = losses(open(os.path.join(cluster.dir, "runs", f"cut{micro}", "metrics.jsonl")).read())
        assert np.allclose(got, want, rtol=2e-6), (micro, got, want)
        found = re.search(r"test accuracy (\S+) %  \(loss (\S+), (\d+) samples, (\d+) places", done.stdout)
        assert found, done.stdout
        assert abs(float(found[1]) - 100 * right) < 0.01 and abs(float(found[2]) - last) < 1e-4, (found[0], right, last)
        assert int(found[3]) == RECORDS and int(found[4]) == places, found[0]


@suite.test
def a_worker_computes_the_same_loss():
    """The options of the loss are sent with the module, and the labels with each call."""
    logs = []
    for at in ("master", "w1"):
        session = cluster.session(f"at-{at}", body(at=at, micro=2), keys=READABLE + ", labels_leave: true")
        done = cluster.train(session)
        assert done.returncode == 0, done.stderr
        logs.append(losses(open(os.path.join(cluster.dir, "runs", f"at-{at}", "metrics.jsonl")).read()))
    assert logs[0] == logs[1], logs


def by_numpy(logits, labels):
    """The scores of scikit-learn, each computed by its definition: AUC by all pairs."""
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    answers, n = logits.argmax(1), len(labels)
    confusion = np.array([[np.sum((labels == a) & (answers == b)) for b in range(CLASSES)] for a in range(CLASSES)])
    right, had, gave = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    f1 = np.where(had + gave > 0, 2 * right / np.maximum(had + gave, 1), 0)
    auc = []
    for c in range(CLASSES):
        own, rest = p[labels == c, c][:, None], p[labels != c, c][None, :]
        auc.append(((own > rest) + 0.5 * (own == rest)).mean())
    return {"accuracy": right.sum() / n, "f1": {"micro": right.sum() / n, "macro": f1[had + gave > 0].mean()}, "auc": np.mean(auc),
            "perplexity": np.exp(-np.log(p[np.arange(n), labels]).mean()), "confusion": confusion.tolist(),
            "classes": [{"name": str(c), "precision": right[c] / max(gave[c], 1), "recall": right[c] / max(had[c], 1), "f1": f1[c],
                         "auc": auc[c], "places": had[c], "answers": gave[c]} for c in range(CLASSES)]}


def close(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return a == b if isinstance(a, str) else abs(a - b) < 2e-5


@suite.test
def evaluation_scores_match_scikit_learn():
    session = cluster.session("scored", body(OPTIONS + ", scores: [f1, auc, confusion, perplexity]", micro=3))
    done = cluster.train(session)
    assert done.returncode == 0, done.stderr
    state = {k: np.frombuffer(v, "<f4").reshape(shape).astype("f8")
             for k, (_, shape, v) in checkpoint_tensors(os.path.join(cluster.dir, "runs", "scored"), STEPS).items()}
    hidden = np.tanh(state["0.weight"][IDS] @ state["1.weight"].T + state["1.bias"])
    logits, counted = hidden @ state["3.weight"].T + state["3.bias"], LABELS != -100
    want = by_numpy(logits[counted], LABELS[counted])
    assert re.search(rf"F1 micro {want['f1']['micro']:.4f}, macro {want['f1']['macro']:.4f}, AUC {want['auc']:.4f}, perplexity", done.stdout), done.stdout
    assert "places by label (rows) and answer (columns)" in done.stdout, done.stdout
    done = master("eval", session, "--json", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if '"scores"' in line]
    assert len(found) == 1 and close(found[0]["scores"], want), (found, want)


@suite.test
def wrong_number_of_class_weights_is_refused():
    done = master("plan", cluster.session("few", body("weight: [1, 2]")), cwd=cluster.dir)
    assert done.returncode == 3 and "class_weights has 2 numbers, not 4" in done.stderr, done.stderr


with Cluster(1) as cluster:
    os.makedirs(os.path.join(cluster.dir, "places"))
    IDS, LABELS = records(os.path.join(cluster.dir, "places"))
    suite.main()
