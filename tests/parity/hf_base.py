#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make hf-base`: BERT and LayoutLM of base size (12 blocks, 768 wide, vocabulary of 30,522) in
sessions over a worker and mutual TLS, beside transformers: outputs, gradients, three steps of
AdamW.

Weights are random and go by a folder of save_pretrained. A step of SGD at a rate of 1024 shows the
gradient as what it subtracts. Each tensor is judged as hf.py does it: within 1e-4 of PyTorch by its
norm, or at most twice as far from PyTorch in float64 as PyTorch's own float32 is.
"""
import argparse
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../net/lib")]
import hf  # noqa: E402

N, PLACES, STEPS, RATE, DECAY, LABELS, SGD_RATE = 4, 48, 3, 1e-4, 0.01, 5, 1024
MODELS = {"bert": ("sequence", "pooler..classifier"), "layoutlm": ("token", "dropout..classifier")}


def network(family):
    import torch
    import transformers
    torch.manual_seed(1)
    config = getattr(transformers, hf.CONFIGS[family])(num_labels=LABELS, **hf.no_dropout(family), tie_word_embeddings=False)
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (12, 768, 30522)
    config._attn_implementation = "eager"
    return getattr(transformers, hf.HEADS[family][MODELS[family][0]])(config).train()


def records(family, folder, rng=None):
    """Files of one batch, and transformers' arguments with labels."""
    import numpy, torch
    g = torch.Generator().manual_seed(2)
    lengths = torch.tensor([PLACES, 31, 17, 40])
    real = torch.arange(PLACES)[None] < lengths[:, None]
    ids = torch.where(real, torch.randint(5, 30522, (N, PLACES), generator=g), 0)
    ours = {"ids": ids, "lengths": lengths}
    theirs = {"input_ids": ids, "attention_mask": real.long()}
    if family == "layoutlm":
        begin = torch.randint(0, 500, (N, PLACES, 2), generator=g)
        boxes = torch.cat((begin, begin + torch.randint(0, 500, (N, PLACES, 2), generator=g)), 2) * real[..., None]
        ours["boxes"], theirs["bbox"] = boxes, boxes
    y = torch.randint(0, LABELS, (N, PLACES) if MODELS[family][0] == "token" else (N,), generator=g)
    ours["y"] = theirs["labels"] = torch.where(real, y, -100) if y.dim() == 2 else y
    for name, value in ours.items():
        numpy.save(f"{folder}/{name}.npy", value.numpy())
    return [k for k in ours if k != "y"], theirs


def session(cluster, family, tag, optimizer, steps):
    folder, (head, tail) = f"{cluster.dir}/{family}", MODELS[family]
    inputs = INPUTS[family]
    sets, own = ", ".join(f"{n}.npy" for n in [*inputs, "y"]), f"weights: {{folder: {folder}/model}}"
    return cluster.session(f"{family}-{tag}", (
        f"data: {{format: npy, root: {folder}, inputs: [{', '.join(inputs)}], train: [{sets}], test: [{sets}]}}\n"
        f"model: {{hf: {folder}/model, head: {head}, labels: {LABELS}}}\nstages:\n"
        f"  - {{name: front, at: master, layers: embeddings..encoder.layer.0, {own}}}\n"
        f"  - {{name: body, at: w1, layers: encoder.layer.1..encoder.layer.10, {own}}}\n"
        f"  - {{name: tail, at: master, layers: encoder.layer.11..classifier, {own}}}\n"
        "loss: {kind: cross_entropy}\n"
        f"train: {{epochs: 100, max_steps: {steps}, batch: {N}, shuffle: false, optimizer: {optimizer}}}\n"
        "checkpoint: {every_steps: 100000}\nlimits: {step_timeout: 20m}\n"))


INPUTS = {}


class Ours:
    def __init__(self, cluster, family):
        self.cluster, self.family = cluster, family

    def run(self, tag, optimizer, steps):
        """Names to values behind the steps, and the losses."""
        from safetensors.torch import load_file
        path = session(self.cluster, self.family, tag, optimizer, steps)
        self.do("train", path)
        run = f"{self.cluster.dir}/runs/{self.family}-{tag}"
        with open(f"{run}/metrics.jsonl") as f:
            losses = [json.loads(line)["loss"] for line in f]
        folder, found = f"{run}/checkpoint-{steps}", {}
        for name in os.listdir(folder):
            if name.startswith("model-") and name.endswith(".safetensors"):
                found.update({k: v.clone() for k, v in load_file(f"{folder}/{name}").items()})
        return path, found, losses, run

    def do(self, *args):
        import cluster
        done = cluster.master(*args, cwd=self.cluster.dir, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr


def steps_of(net, theirs, n, double):
    """(outputs, gradients of the first step, parameters behind n steps, losses), from copies."""
    import copy
    import torch
    net = copy.deepcopy(net)
    net = net.double() if double else net
    names = [name for name, _ in net.named_parameters()]
    opt = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    losses, first = [], None
    for _ in range(n):
        opt.zero_grad()
        out = net(**theirs)
        out.loss.backward()
        losses.append(out.loss.item())
        if first is None:
            first = (out.logits.detach().clone(), {k: p.grad.clone() for k, p in zip(names, net.parameters()) if p.grad is not None})
        opt.step()
    return (*first, {k: p.detach() for k, p in zip(names, net.parameters())}, losses)


def judged(rows):
    """rows: (figure, name, ours, theirs, exactly, what to subtract from each)."""
    tensors, largest = [], max(hf.length(row[3]) for row in rows if row[0] == "gradient")
    for figure, name, ours, theirs, exactly, base in rows:
        t = hf.Tensor(figure, name)
        t.add(*(v.double() - base for v in (ours, theirs, exactly)), largest)
        tensors.append(t)
    zeros = {t.name for t in tensors if t.is_zero()}
    alone = [t for t in tensors if t.figure != "update" or t.rule(zeros)]
    return [*alone, *hf.together(tensors, alone, zeros)]


def compare(cluster, family):
    import numpy, torch
    folder = f"{cluster.dir}/{family}"
    os.makedirs(folder)
    INPUTS[family], theirs = records(family, folder)
    net, ours = network(family), Ours(cluster, family)
    net.save_pretrained(f"{folder}/model", max_shard_size="100MB")
    before = {k: p.detach() for k, p in net.named_parameters()}
    y, grads, after, losses = steps_of(net, theirs, STEPS, double=False)
    y64, grads64, after64, losses64 = steps_of(net, theirs, STEPS, double=True)
    rows = []
    _, stepped, our_losses, run = ours.run("adamw", f"{{kind: adamw, lr: {RATE}, weight_decay: {DECAY}}}", STEPS)
    zero = torch.zeros(1)
    assert all(".pooler." in k for k in stepped.keys() ^ before.keys()), stepped.keys() ^ before.keys()
    rows += [("update", k, stepped[k], after[k], after64[k], before[k]) for k in grads]
    shutil.rmtree(run)
    _, stepped, _, run = ours.run("sgd", f"{{kind: sgd, lr: {SGD_RATE}}}", 1)
    rows += [("gradient", k, (before[k].double() - stepped[k].double()) / SGD_RATE, grads[k], grads64[k], zero) for k in grads]
    shutil.rmtree(run)
    path, _, _, run = ours.run("still", "{kind: sgd, lr: 1e-300}", 1)
    ours.do("predict", path, "--output", f"{folder}/out.npy")
    shutil.rmtree(run)
    real = theirs["attention_mask"].bool() if y.dim() == 3 else slice(None)
    out = torch.from_numpy(numpy.load(f"{folder}/out.npy")).reshape(y.shape)
    rows.append(("output", "", out[real], y[real], y64[real], zero))
    shown = ", ".join(f"{a:.6f} ({b:.6f}, {c:.6f})" for a, b, c in zip(our_losses, losses, losses64))
    print(f"{family}: losses of {STEPS} steps, PyTorch's in f32 and f64 behind them: {shown}")
    return hf.print_case(family, MODELS[family][0], judged(rows))


def main():
    import torch
    import transformers
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="build/release")
    parser.add_argument("families", nargs="*", help="of " + ", ".join(MODELS))
    args = parser.parse_args()
    os.environ["CLEAVE_TEST_BIN"] = os.path.abspath(args.out)
    import cluster
    torch.set_num_threads(2)
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}")
    with cluster.Cluster(1) as c:
        good = [compare(c, family) for family in args.families or MODELS]
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    hf.in_environment()
    sys.exit(main())
