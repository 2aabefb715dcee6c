# SPDX-License-Identifier: Apache-2.0
"""ResNets against torchvision's: the figures of `make parity`, and state_dicts to exchange.

A training step of a deep ResNet magnifies rounding: PyTorch in float32 is itself percents away from
float64 in the gradients of the first layers. So outputs and running statistics are compared for the
whole network, gradients for each block from PyTorch's own block input and output gradient, and the
gradients of the whole are judged by how far PyTorch in float32 is from float64.
"""
import copy
import os
import subprocess

import numpy as np
import torch
import torchvision

from cluster import BIN
from load_checkpoint import read_safetensors
from states import export

RATIO = "gradients, our error / PyTorch's"
BUFFERS = ("running_mean", "running_var")
SEEDS = 5
FORWARD_LIMIT, BLOCK_LIMIT, WHOLE_LIMIT = 1e-4, 1e-5, 2.0


def relative(ours, theirs):
    theirs = theirs.astype(np.float64)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def ready(arch, channels, classes, seed=1):
    """torchvision's network; batch norms with factors, so that no gradient is zero by symmetry."""
    torch.manual_seed(seed)
    net = getattr(torchvision.models, arch)(num_classes=classes)
    if channels != 3:
        net.conv1 = torch.nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, torch.nn.BatchNorm2d):
                m.weight.uniform_(0.5, 1.5)
                m.bias.uniform_(-0.5, 0.5)
    return net.train()


def parts_of(net):
    """[(range, module)]: stem, each block, head; a cut at every boundary."""
    stem = torch.nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    head = torch.nn.Sequential(net.avgpool, torch.nn.Flatten(), net.fc)
    blocks = [(f"layer{s}.{i}", block) for s in range(1, 5)
              for i, block in enumerate(getattr(net, f"layer{s}"))]
    return [("conv1..maxpool", stem), *blocks, ("avgpool..fc", head)]


def torch_run(net, x, target):
    """Forward and backward, part by part: what goes into each, then the output; with gradients."""
    values = [x.clone().requires_grad_()]
    for _, part in parts_of(net):
        values.append(part(values[-1]))
        values[-1].retain_grad()
    ((values[-1] - target) ** 2).mean().backward()
    return values


def arrays(values):
    return {n: v.detach().numpy() for n, v in values}


def our_run(folder, arch, classes, state, parts):
    """parts: [(range, x, dy)]. What tests/parity/stages.c writes."""
    given, wanted = (os.path.join(folder, f"{arch}-{n}.safetensors") for n in ("in", "out"))
    tensors = dict(state)
    for i, (_, x, dy) in enumerate(parts):
        tensors.update({f"{i}.x": x, f"{i}.dy": dy})
    export.write_safetensors(given, tensors)
    shape = ",".join(map(str, parts[0][1].shape))
    model = f"{{arch: {arch}, classes: {classes}}}"
    done = subprocess.run([os.path.join(BIN, "parity/stages"), model, shape, given, wanted,
                           *(r for r, _, _ in parts)], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return {n: t.numpy() for n, t in read_safetensors(wanted).items()}


def gradients(net):
    return {n: p.grad.numpy() for n, p in net.named_parameters()}


def distance(ours, exact):
    """Of all gradients together, as one vector."""
    far = sum(np.sum((ours[n] - g) ** 2) for n, g in exact.items())
    return float(np.sqrt(far / sum(np.sum(g ** 2) for g in exact.values())))


def whole_figures(ours, net, exact, y):
    state = arrays(net.state_dict().items())
    statistics = {n: relative(ours[n], a) for n, a in state.items() if n.endswith(BUFFERS)}
    assert all(int(ours[n]) == 1 for n in ours if n.endswith("num_batches_tracked"))
    exact = gradients(exact)
    own = distance({n: ours["grad." + n] for n in exact}, exact)
    return {"output": relative(ours["0.y"], y), "running statistics": max(statistics.values()),
            RATIO: own / distance(gradients(net), exact)}


def block_figures(ours, net, values):
    """Each block from PyTorch's input and output gradient: all that leaves it backwards."""
    found = {f"dx of {name}": relative(ours[f"{i}.dx"], values[i].grad.numpy())
             for i, (name, _) in enumerate(parts_of(net))}
    found.update({n: relative(ours["grad." + n], g) for n, g in gradients(net).items()})
    return found


def step(folder, arch, shape, classes, seed):
    """One training step: figures of the whole network, and of each block's gradients."""
    net = ready(arch, shape[1], classes, seed)
    exact = copy.deepcopy(net).double()
    state = {n: a.copy() for n, a in arrays(net.state_dict().items()).items()}
    x = torch.randn(shape)
    target = torch.nn.functional.one_hot(torch.randint(classes, shape[:1]), classes).float()
    values = torch_run(net, x, target)
    torch_run(exact, x.double(), target.double())
    at = [v.detach().numpy() for v in values]
    dy = [v.grad.numpy() for v in values]
    whole = our_run(folder, arch, classes, state, [("conv1..fc", at[0], dy[-1])])
    alone = our_run(folder, arch, classes, state,
                    [(r, at[i], dy[i + 1]) for i, (r, _) in enumerate(parts_of(net))])
    return whole_figures(whole, net, exact, at[-1]), block_figures(alone, net, values)


def over_seeds(found, of):
    return {k: float(of([f[k] for f in found])) for k in found[0]}


def compare(folder, arch, shape, classes):
    """[(figure, measured, limit, note)]. A value so near 0 that rounding decides whether a relu
    lets its gradient through makes the gradients of one seed a lottery, of PyTorch's own float32
    as well; the median of some is none."""
    whole, blocks = zip(*(step(folder, arch, shape, classes, seed) for seed in range(1, SEEDS + 1)))
    largest, blocks = over_seeds(whole, np.max), over_seeds(blocks, np.median)
    worst = max(blocks, key=blocks.get)
    ratios = [w[RATIO] for w in whole]
    note = f"largest of {SEEDS} seeds"
    return [("output", largest["output"], FORWARD_LIMIT, note),
            ("running statistics", largest["running statistics"], FORWARD_LIMIT, note),
            ("gradients of each block", blocks[worst], BLOCK_LIMIT, worst),
            (RATIO, float(np.median(ratios)), WHOLE_LIMIT,
             "single seeds: " + " ".join(f"{r:.2g}" for r in ratios))]


# ---- a state_dict there and back -----------------------------------------------------------------

def body(yaml, weights, batch):
    ranges = (("a", "master", "conv1..layer1"), ("b", "w1", "layer2.0..layer3.0"),
              ("c", "w2", "layer3.1..fc"))
    return ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy],"
            " test: [test-x.npy, test-y.npy]}\n" + yaml + "stages:\n" +
            "".join(f"  - {{name: {n}, at: {at}, layers: {r}, weights: {{file: {weights}}}}}\n"
                    for n, at, r in ranges) +
            f"loss: {{kind: cross_entropy}}\ntrain: {{epochs: 9, batch: {batch}, shuffle: false,"
            " optimizer: {kind: sgd, lr: 0.01}}\ncheckpoint: {every_steps: 1000}\n")


def torch_losses(net, x, y, batch, steps):
    opt, losses = torch.optim.SGD(net.parameters(), lr=0.01), []
    net.train()
    for i in range(0, batch * steps, batch):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[i:i + batch]), y[i:i + batch])
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return np.array(losses)


# ---- learning Fashion-MNIST (learns.py) ---------------------------------------------------------

LEARN_STEPS, LEARN_BATCH = 300, 64


def fashion_net(seed):
    torch.manual_seed(seed)
    net = torchvision.models.resnet18(num_classes=10)
    net.conv1 = torch.nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    return net


def fashion_sets(weights, schedule, chunks, lr, momentum):
    """Overrides of deploy/sessions/resnet18-fashion-mnist.yaml, for the run of fashion_torch."""
    sets = [f"data.limit_train={LEARN_STEPS * LEARN_BATCH}", "data.limit_by=first", "train.epochs=1",
            "train.shuffle=false", f"train.batch={LEARN_BATCH}",
            f"pipeline.micro_batches={chunks}", f"pipeline.schedule={schedule}",
            f"train.optimizer.lr={lr}", f"train.optimizer.momentum={momentum}",
            "transfer=via_master", "log.every=1000000", "privacy.front_known=true",
            "privacy.labels_readable=true"]
    return sets + [f"stages.{i}.weights.file={weights}" for i in range(4)]


def fashion_torch(net, x, y, chunks, lr, momentum):
    """PyTorch's unsplit run: batch norms see chunks of a batch, as micro-batches do."""
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum, weight_decay=0.0005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, LEARN_STEPS)
    net.train()
    for i in range(0, LEARN_STEPS * LEARN_BATCH, LEARN_BATCH):
        opt.zero_grad()
        for rows in torch.arange(i, i + LEARN_BATCH).chunk(chunks):
            loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
            (loss * (len(rows) / LEARN_BATCH)).backward()
        opt.step()
        schedule.step()


def accuracy(net, x, y):
    net.eval()
    with torch.no_grad():
        right = sum(int((net(x[i:i + 500]).argmax(1) == y[i:i + 500]).sum())
                    for i in range(0, len(y), 500))
    return 100 * right / len(y)


# ---- what is not this network --------------------------------------------------------------------

def set_stride(net):
    net.layer3[0].conv1.stride = (1, 1)


def share(net):
    net.layer1[0].bn1.weight = net.layer1[0].bn2.weight


# what makes a ResNet 18 another network, and what the exporter must say
LOOKALIKES = [
    (lambda net: setattr(net, "maxpool", torch.nn.Identity()), "'maxpool': not as in .* resnet18"),
    (set_stride, "'layer3.0.conv1': not as in"),
    (lambda net: net.half(), r"'conv1.weight': torch.float16"),
    (share, "'layer1.0.bn2.weight': shared with 'layer1.0.bn1.weight'"),
    (lambda net: net.layer4.append(net.layer4[1]), "a ResNet of other blocks than resnet18, "),
    (lambda net: net.layer2.register_forward_hook(print), "'layer2': has hooks"),
]


def damaged(folder):
    """(what the refusal must say, file): state_dicts that are not this network's."""
    state = export.state_arrays(torchvision.models.resnet18(num_classes=10))
    state["conv1.weight"] = state["conv1.weight"][:, :1].copy()
    renamed = {("module." + n if n == "fc.bias" else n): a for n, a in state.items()}
    missing = {n: a for n, a in state.items() if not n.startswith("layer2.0.downsample")}
    thousand = {**state, "fc.weight": np.zeros((1000, 512), np.float32)}
    more = {**state, "layer1.2.conv1.weight": state["layer1.1.conv1.weight"],
            "layer1.2.conv2.weight": state["layer1.1.conv2.weight"]}
    half = {**state, "layer3.0.conv1.weight": state["layer3.0.conv1.weight"].astype(np.float16)}
    export.TYPES["float16"] = "F16"
    cases = {
        "renamed": (renamed, r"that the model does not have: 'module.fc.bias' \(the model has "
                             r"'fc.bias'\)"),
        "missing": (missing, r"stage 'b': .* 5 missing tensors: 'layer2.0.downsample.0.weight', "),
        "thousand": (thousand, r"'fc.weight': expected f32 \[10, 512\], found f32 \[1000, 512\] "),
        "more": (more, r"2 tensors that the model does not have: 'layer1.2.conv1.weight', "),
        "half": (half, r"'layer3.0.conv1.weight': expected f32 .*, found f16 .*; save it in f32"),
    }
    for name, (arrays_, says) in cases.items():
        path = os.path.join(folder, name + ".safetensors")
        export.write_safetensors(path, arrays_)
        yield says, path
