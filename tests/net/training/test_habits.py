#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training as in Hugging Face's Trainer gives PyTorch's numbers: AdamW without decay of biases and
norms, a rate that rises from 0 and falls to 0, clipping, accumulated gradients."""
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import golden
import numpy as np

suite = Suite()
RECORDS, WIDTH, CLASSES, STEPS, WARM, BATCH, RATE, DECAY, CLIP = 40, 9, 3, 10, 3, 8, 0.05, 0.5, 0.3
STAGES = ("stages:\n"
          "  - {name: front, at: master, layers: [{op: linear, out: 12}, {op: layernorm}, {op: relu}]}\n"
          "  - {name: middle, at: w1, layers: [{op: linear, out: 8}, {op: rmsnorm}]}\n"
          f"  - {{name: head, at: master, layers: [{{op: linear, out: {CLASSES}}}]}}\n")


def records(folder):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((RECORDS, WIDTH)).astype("f4"), rng.integers(0, CLASSES, RECORDS)
    np.save(f"{folder}/x.npy", x)
    np.save(f"{folder}/y.npy", y)
    return x, y


def body(steps=STEPS, decay="weights", more="", micro="pipeline: {micro_batches: 4}\n"):
    return ("data: {format: npy, root: habits, train: [x.npy, y.npy]}\n" + STAGES + "loss: {kind: cross_entropy}\n"
            f"{micro}train: {{epochs: 99, max_steps: {steps}, batch: {BATCH}, shuffle: false, seed: {SEED}, clip_grad_norm: {CLIP},"
            f" optimizer: {{kind: adamw, lr: {RATE}, weight_decay: {DECAY}, decay_applies_to: {decay}}}"
            f", schedule: {{kind: linear, warmup_steps: {WARM}, from_zero: true, total_steps: {STEPS}}}{more}}}\n")


def arrays(values):
    return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (_, shape, data) in values.items()}


def in_torch(state, all_decay):
    """(losses of the steps, rates of the steps, parameters after them) in PyTorch."""
    import torch
    import torch.nn.functional as F
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    p = {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in state.items()}
    norms = {"1.weight", "1.bias", "4.weight"}
    decays = [v for k, v in p.items() if all_decay or not (k.endswith("bias") or k in norms)]
    others = [v for k, v in p.items() if not any(v is d for d in decays)]
    optimiser = torch.optim.AdamW([{"params": decays, "weight_decay": DECAY}, {"params": others, "weight_decay": 0}][:2 if others else 1], lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda t: t / WARM if t < WARM else max(0.0, (STEPS - t) / (STEPS - WARM)))
    losses, rates = [], []
    for step in range(STEPS):
        at = step * BATCH % RECORDS
        h = F.relu(F.layer_norm(F.linear(x[at:at + BATCH], p["0.weight"], p["0.bias"]), (12,), p["1.weight"], p["1.bias"]))
        h = F.linear(h, p["3.weight"], p["3.bias"])
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + np.finfo("f4").eps) * p["4.weight"]
        loss = F.cross_entropy(F.linear(h, p["5.weight"], p["5.bias"]), y[at:at + BATCH])
        losses.append(loss.item())
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)
        optimiser.step()
        schedule.step()
    return losses, rates, {k: v.tolist() for k, v in p.items()}


def same_as_torch(decay):
    # the rate of the first step is 0
    state = arrays(cluster.trained(f"first-{decay}", body(1, decay), 1)[0])
    losses, rates, after = golden.numbers(f"habits-{decay}", {**state, "x": X, "y": Y}, lambda: in_torch(state, decay == "all"))
    values, log, _ = cluster.trained(decay, body(decay=decay), STEPS)
    rows = [json.loads(line) for line in log.splitlines()]
    assert np.allclose([r["loss"] for r in rows], losses, rtol=2e-5), (rows, losses)
    assert np.allclose([r["lr"] for r in rows], rates, rtol=1e-8, atol=0), (rows, rates)
    for name, v in arrays(values).items():
        want = np.array(after[name])
        assert np.abs(v - want).max() < 2e-4 * max(1, np.abs(want).max()), (name, v, want)
    return values


@suite.test
def biases_and_norms_do_not_decay():
    weights, all_of_it = same_as_torch("weights"), same_as_torch("all")
    assert weights != all_of_it


@suite.test
def resume_keeps_the_parameter_groups():
    whole = cluster.trained("whole", body(), STEPS)[0]
    session = cluster.session("parts", body())
    for more in (["--max-steps", "4"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "parts"), STEPS) == whole


@suite.test
def accumulation_equals_sequential_micro_batches():
    cut, log, _ = cluster.trained("cut", body(micro="pipeline: {micro_batches: 4, window: 1}\n"), STEPS)
    named, named_log, _ = cluster.trained("named", body(micro="", more=", accumulate: 4"), STEPS)
    assert named == cut and named_log == log
    once = cluster.trained("once", body(micro=""), STEPS)[0]
    assert once != cut
    done = master("plan", cluster.session("both", body(more=", accumulate: 2")), cwd=cluster.dir)
    assert done.returncode == 3 and "train.accumulate: 2 cuts a batch" in done.stderr, done.stderr


@suite.test
def dropout_samples_have_a_mean_and_an_interval():
    """A model whose only weights behind dropout are known: the mean of passes is near the
    output."""
    drops = STAGES.replace("layers: [{op: linear, out: 8}", "layers: [{op: dropout, p: 0.4}, {op: linear, out: 8}")
    session = cluster.session("drops", body(2).replace(STAGES, drops).replace("train: [x.npy, y.npy]", "train: [x.npy, y.npy], test: [x.npy]"))
    done = cluster.train(session)
    assert done.returncode == 0, done.stderr

    def rows(*options):
        out = os.path.join(cluster.dir, "d.csv")
        done = master("predict", session, "--output", out, *options, cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        with open(out) as f:
            names = f.readline().strip().split(",")
            return names, np.loadtxt(f, delimiter=",")[:, 2:]

    names, sampled = rows("--dropout-samples", "40")
    assert names[2:] == [f"{of}output_{k}" for of in ("", "low_", "high_") for k in range(CLASSES)], names
    mean, low, high = np.split(sampled, 3, axis=1)
    assert (low <= mean).all() and (mean <= high).all() and (low < high).any()
    plain = rows()[1]
    assert 0 < np.abs(mean - plain).mean() < 0.5 * (high - low).mean(), (mean, plain)
    assert (rows("--dropout-samples", "40")[1] == sampled).all(), "equal commands, equal bits"
    few = rows("--dropout-samples", "2", "--probabilities")[1]
    assert (few[:, :CLASSES].sum(1) - 1 < 1e-6).all() and (few >= 0).all() and (few <= 1).all()
    session = cluster.session("none", body(2).replace("train: [x.npy, y.npy]", "train: [x.npy, y.npy], test: [x.npy]"))
    assert cluster.train(session).returncode == 0
    done = master("predict", session, "--dropout-samples", "2", cwd=cluster.dir)
    assert done.returncode == 3 and "no layer of the model has dropout" in done.stderr, (done.returncode, done.stderr)


with Cluster(1) as cluster:
    os.makedirs(os.path.join(cluster.dir, "habits"))
    X, Y = records(os.path.join(cluster.dir, "habits"))
    suite.main()
