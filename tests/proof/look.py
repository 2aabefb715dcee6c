#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Random first and last layers: can readers read more than the limits of a session that `plan`
calls mixed?

For each of LOOKS seeded draws `plan` says what a session shows, by rules and by its look. Then the
same model with the same weights runs on records that the look has not seen, and readers of this
file, which share no code with Cleave's, read what would leave: pixels, tokens and labels as
deploy/SESSIONS.md defines them. A linear reader that is trained on pairs of records and tensors is
printed beside; it inverts secret linear layers, and is no part of the result.

    tests/proof/look.py [--runs 200] [--first 1] [--verbose]
"""
import argparse, json, os, random, re, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
from cluster import *
import numpy as np

LIMITS = {"pixels": 0.5, "tokens": 0.2, "labels": 0.3}
NOISE = 0.06  # allowed error of a figure that is measured on 32 new records
TRAIN, FRESH, ROWS = 256, 512, 50
KEYS = "tokens_readable: true, labels_readable: true, front_known: true, raw_input_leaves: true"
cluster = None


# ---- sessions ------------------------------------------------------------------------------------

class Draw:
    """One front, one head, and data for both."""

    def __init__(self, number):
        self.number, self.r, self.g = number, random.Random(number), np.random.default_rng(number)
        self.seed = "".join(self.r.choice("0123456789abcdef") for _ in range(32))
        self.kind = self.r.choice(("image", "image", "signal", "tokens", "tokens", "vector"))
        self.classes = self.r.choice((2, 3, 4, 5, 8, 10, 10, 20))
        getattr(self, self.kind)()
        self.head = ["flatten"] * (len(self.shape) > 1) + self.mlp(self.r.randint(1, 3), self.classes)

    def mlp(self, depth, out):
        layers = []
        for _ in range(depth - 1):
            layers += [f"linear, out: {self.r.choice((16, 32, 64))}", self.r.choice(("relu", "tanh", "gelu"))]
        return layers + [f"linear, out: {out}"]

    def image(self):
        side, channels = self.r.choice((8, 12, 16)), self.r.choice((1, 3))
        self.record, self.shape, self.front = (channels, side, side), (channels, side, side), []
        for _ in range(self.r.randint(1, 4)):
            out, kernel, stride = self.r.choice((4, 8)), self.r.choice((3, 3, 5)), self.r.choice((1, 1, 2))
            size = (self.shape[1] - 1) // stride + 1
            if size < 2:
                break
            self.front += [f"conv2d, out: {out}, kernel: {kernel}, pad: {kernel // 2}, stride: {stride}", "relu"]
            self.shape = (out, size, size)
        self.close()

    def signal(self):
        length = self.r.choice((32, 64))
        self.record, self.shape, self.front = (2, length), (2, length), [f"reshape, shape: [2, {length}]"]
        for _ in range(self.r.randint(1, 3)):
            self.front += [f"conv1d, out: 8, kernel: 5, pad: 2", "relu"]
            self.shape = (8, length)
        self.close()

    def close(self):
        """Some fronts end with a layer that mixes all places."""
        if self.r.random() < .5:
            self.shape = (self.r.choice((16, 48)),)
            self.front += ["flatten", f"linear, out: {self.shape[0]}"]

    def tokens(self):
        places, width = self.r.choice((4, 8, 12)), self.r.choice((8, 16))
        self.record, self.front = (places,), [f"embedding, rows: {ROWS}, out: {width}"]
        end = self.r.choice(("lstm", "last", "mean", "flatten", "each"))
        if end in ("lstm", "last"):
            self.front.append(f"lstm, out: {width}")
        if end == "last":
            self.front += [f"slice, dim: 1, start: {places - 1}", "flatten", f"linear, out: {width}"]
        if end == "mean":
            self.front += ["mean, dim: 1", f"linear, out: {width}"]
        if end == "flatten":
            self.front += ["flatten", f"linear, out: {width}"]
        if end == "each":
            self.front.append(f"linear, out: {width}")
        self.shape = (places, width) if end in ("lstm", "each") else (width,)

    def vector(self):
        self.record, self.shape = (24,), (self.r.choice((8, 16, 32)),)
        self.front = self.mlp(self.r.randint(1, 2), self.shape[0])

    def records(self, n):
        if self.kind == "tokens":
            weights = 1 / np.arange(1, ROWS + 1) ** self.r.choice((0, .7))
            return self.g.choice(ROWS, (n, *self.record), p=weights / weights.sum()).astype("<i8")
        x = self.g.standard_normal((n, *self.record))
        if self.kind == "vector":
            return x.astype("<f4")
        for axis in range(2, x.ndim):  # neighbours are alike, as in pictures
            x = x + np.roll(x, 1, axis) + np.roll(x, -1, axis)
        return (x / x.std()).astype("<f4")

    def stages(self, *parts):
        text = "stages:\n"
        for name, at, layers in parts:
            text += f"  - {{name: {name}, at: {at}, layers: [{', '.join('{op: %s}' % x for x in layers)}]}}\n"
        return text

    def session(self, name, x, y, parts, loss):
        test = "" if x != "x" else ", test: [fresh.npy]"
        return cluster.session(f"{name}-{self.number}", f"data: {{format: npy, root: data, train: [x.npy, {y}.npy]{test}}}\n"
                               + self.stages(*parts) + f"loss: {{kind: {loss}}}\ntrain: {{batch: 32, max_steps: 1, seed: {self.seed},"
                               " optimizer: {kind: sgd, lr: 1.0e-30}}\n", KEYS)


def command(*args):
    done = master(*args, cwd=cluster.dir)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout


def save(name, array):
    np.save(os.path.join(cluster.dir, "data", name + ".npy"), array)


def leaving(d, fresh):
    """What the front makes of fresh records."""
    save("fresh", fresh)
    save("zeros", np.zeros((TRAIN, *d.shape), "<f4"))
    path = d.session("front", "x", "zeros", [("front", "master", d.front)], "mse")
    command("train", path)
    command("predict", path, "--output", "left.npy")
    return np.load(os.path.join(cluster.dir, "left.npy"))


def head_weights(d):
    path = d.session("whole", "x", "y", [("all", "master", d.front + ["scale, factor: 1"] + d.head)], "cross_entropy")
    command("train", path)
    folder = os.path.join(cluster.dir, "runs", f"whole-{d.number}", "checkpoint-1")
    tensors = {}
    for f in sorted(os.listdir(folder)):
        if f.startswith("model-") and f.endswith(".safetensors"):
            tensors.update(safetensors(os.path.join(folder, f)))
    return tensors


# ---- readers -------------------------------------------------------------------------------------

def figure(hits, base):
    return max(0.0, (hits - base) / (1 - base)) if base < 1 else 0.0


def correlation(a, b):
    both = np.sqrt((a * a).sum() * (b * b).sum())
    return abs((a * b).sum() / both) if both > 0 else 0.0


def pixels(record, left):
    """The best channel; of a flat tensor there is none."""
    if left.ndim != record.ndim:
        return 0.0
    grey, half, best, found = record.mean(1), len(record) // 2, 0, 0
    step = [a // b for a, b in zip(grey.shape[1:], left.shape[2:])]
    if int(np.prod(left.shape[2:])) < 16:
        return 0.0
    for axis, s in enumerate(step):
        shape = list(grey.shape)
        shape[axis + 1:axis + 2] = [left.shape[axis + 2], s] if s * left.shape[axis + 2] == shape[axis + 1] else [0, 0]
        if 0 in shape:
            return 0.0
        grey = grey.reshape(shape).mean(axis + 2)
    grey = grey - grey[:half].mean(0)
    for c in range(left.shape[1]):
        one = left[:, c] - left[:half, c].mean(0)
        fit = correlation(one[:half], grey[:half])
        if fit > best:
            best, found = fit, correlation(one[half:], grey[half:])
    return found


def tokens(record, left):
    """The nearest vector, of each place or of all of them."""
    half, found = len(record) // 2, []
    if left.ndim == 3:
        known, asked = left[:half].reshape(-1, left.shape[-1]), left[half:].reshape(-1, left.shape[-1])
        names, wanted = record[:half].reshape(-1), record[half:].reshape(-1)
        nearest = ((asked[:, None] - known[None]) ** 2).sum(-1).argmin(1)
        found.append((names[nearest], wanted, names))
    else:
        nearest = ((left[half:, None] - left[None, :half]) ** 2).sum(-1).argmin(1)
        found.append((record[:half][nearest].reshape(-1), record[half:].reshape(-1), record[:half].reshape(-1)))
    said, wanted, names = found[0]
    counted = np.isin(wanted, names)
    base = np.bincount(wanted[counted]).max() / counted.sum()
    return figure((said == wanted)[counted].mean(), base)


def groups(group, label, half):
    """Each group is answered with its commonest label of the first half."""
    hits = 0
    for k in np.unique(group[half:]):
        of = label[:half][group[:half] == k]
        answer = np.bincount(of).argmax() if len(of) else 0
        hits += (label[half:][group[half:] == k] == answer).sum()
    base = np.bincount(label[half:]).max() / (len(label) - half)
    return figure(hits / (len(label) - half), base)


def labels(d, weights, y):
    """Gradients of the head in NumPy, by sign, length and two clusters."""
    n, width = len(y), int(np.prod(d.shape))
    x, back = d.g.standard_normal((n, width)), []
    at = len(d.front) + 1
    for i, layer in enumerate(d.head):
        op = layer.split(",")[0]
        if op == "linear":
            w, b = (np.frombuffer(weights[f"{at + i}.{k}"][2], "<f4").astype(float) for k in ("weight", "bias"))
            w = w.reshape(len(b), -1)
            back.append(lambda g, w=w: g @ w)
            x = x @ w.T + b
        elif op == "relu":
            back.append(lambda g, m=x > 0: g * m)
            x = np.maximum(x, 0)
        elif op == "tanh":
            x = np.tanh(x)
            back.append(lambda g, t=x: g * (1 - t * t))
        elif op == "gelu":
            e = np.vectorize(__import__("math").erf)(x / np.sqrt(2))
            back.append(lambda g, s=.5 * (1 + e) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi): g * s)
            x = x * .5 * (1 + e)
    p = np.exp(x - x.max(1, keepdims=True))
    g = p / p.sum(1, keepdims=True)
    g[np.arange(n), y] -= 1
    for f in reversed(back):
        g = f(g)
    half, length = n // 2, np.linalg.norm(g, axis=1)
    signs = max(((groups((g[:half, k] > 0).astype(int), y[:half], half // 2), k) for k in range(g.shape[1])))[1]
    unit = g / np.maximum(length, 1e-30)[:, None]
    centers = unit[[0, (unit[:half] @ unit[0]).argmin()]]
    for _ in range(10):
        side = (unit @ centers.T).argmax(1)
        centers = np.array([unit[:half][side[:half] == k].sum(0) if (side[:half] == k).any() else centers[k] for k in (0, 1)])
        centers /= np.maximum(np.linalg.norm(centers, axis=1), 1e-30)[:, None]
    cut = max((groups((length[:half] > c).astype(int), y[:half], half // 2), c) for c in np.quantile(length[:half], np.arange(.05, 1, .05)))[1]
    return max(groups((g[:, signs] > 0).astype(int), y, half), groups(side, y, half), groups((length > cut).astype(int), y, half))


def linear_reader(record, left, kind):
    """Ridge regression from what leaves to records, of pairs; its figure on the last 64."""
    x = np.c_[left.reshape(len(left), -1), np.ones(len(left))].astype(float)
    fit = len(x) - 64
    y = np.eye(ROWS)[record].reshape(len(record), -1) if kind == "tokens" else record.reshape(len(record), -1).astype(float)
    w = np.linalg.solve(x[:fit].T @ x[:fit] + 1e-3 * np.eye(x.shape[1]), x[:fit].T @ y[:fit])
    out = x[fit:] @ w
    if kind == "tokens":
        said, wanted = out.reshape(64, -1, ROWS).argmax(-1).reshape(-1), record[fit:].reshape(-1)
        return figure((said == wanted).mean(), np.bincount(wanted).max() / len(wanted))
    return correlation(out - y[:fit].mean(0), y[fit:] - y[:fit].mean(0))


# ---- the proof -----------------------------------------------------------------------------------

def one(number, verbose):
    d = Draw(number)
    save("x", d.records(TRAIN))
    save("y", d.g.integers(0, d.classes, TRAIN).astype("<i8"))
    parts = [("front", "master", d.front), ("middle", "w1", ["scale, factor: 1"]), ("head", "master", d.head)]
    plan = json.loads(command("plan", "--json", d.session("cut", "", "y", parts, "cross_entropy")))
    look, privacy = plan["look"], plan["privacy"]
    fresh = d.records(FRESH)
    left = leaving(d, fresh)
    read = {"linear": linear_reader(fresh, left, d.kind)}
    if d.kind in ("image", "signal"):
        read["pixels"] = pixels(fresh[:64], left[:64])
    if d.kind == "tokens":
        read["tokens"] = tokens(fresh[:64], left[:64])
    read["labels"] = labels(d, head_weights(d), np.resize(d.g.permutation(64) % d.classes, 512))
    mixed = {"pixels": privacy["records"] == "mixed", "tokens": privacy["records"] == "mixed", "labels": privacy["labels"] == "inferable"}
    above = {k: v for k, v in read.items() if mixed.get(k) and v > LIMITS[k]}
    if verbose or any(v > LIMITS[k] + NOISE for k, v in above.items()):
        print(f"{number} {d.kind} {d.front} | {d.head}: {privacy['records']}, {privacy['labels']}; look "
              + ", ".join(f"{k} {look[k].get('read', look[k]['state'])}" for k in LIMITS) + "; fresh "
              + ", ".join(f"{k} {v:.2f}" for k, v in read.items()), flush=True)
    return {"above": above, "mixed": mixed, "read": read, "seconds": look["seconds"], "classes": d.classes,
            "records": privacy["records"], "labels": privacy["labels"], "kind": d.kind}


def share(of, all_):
    return f"{len(of)} of {len(all_)} ({100 * len(of) / max(len(all_), 1):.0f} %)"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    o = parser.parse_args()
    global cluster
    with Cluster(1) as cluster:
        os.makedirs(os.path.join(cluster.dir, "data"), exist_ok=True)
        all_ = [one(i, o.verbose) for i in range(o.first, o.first + o.runs)]
    bad = [r for r in all_ if any(v > LIMITS[k] + NOISE for k, v in r["above"].items())]
    close = [r for r in all_ if r["above"] and r not in bad]
    mixed = [r for r in all_ if r["records"] == "mixed"]
    for k in LIMITS:
        of = [r["read"][k] for r in all_ if r["mixed"][k] and k in r["read"]]
        print(f"{k}: {len(of)} called mixed, at most {max(of, default=0):.2f} of fresh records, {np.mean(of) if of else 0:.2f} on average; limit {LIMITS[k]}")
    for kind in ("image", "signal", "tokens", "vector"):
        of = [r["read"]["linear"] for r in mixed if r["kind"] == kind]
        print(f"a linear reader trained on {FRESH - 64} pairs, {kind}: {np.mean(of) if of else 0:.2f} on average, {max(of, default=0):.2f} at most, of {len(of)} called mixed")
    needs = [r for r in all_ if r["records"] in ("tokens", "front_known", "raw_input")]
    reads = [r for r in all_ if r["labels"] == "readable"]
    many = [r for r in all_ if r["classes"] > 4]
    print(f"a key is needed for records: {share(needs, all_)}; pictures, which need none: {share([r for r in all_ if r['records'] == 'picture'], all_)}")
    print(f"a key is needed for labels: {share(reads, all_)}; of those with more than 4 classes: {share([r for r in reads if r['classes'] > 4], many)}")
    print(f"a look of three draws took {np.mean([r['seconds'] for r in all_]):.2f} s on average")
    print(f"{len(all_)} fronts and heads, {len(close)} above a limit within the error of 32 records, {len(bad)} above")
    return 1 if bad else 0


sys.exit(main())
