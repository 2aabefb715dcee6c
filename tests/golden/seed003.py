# SPDX-License-Identifier: Apache-2.0
"""Seed 003 in PyTorch, for make_seeds.py: the tutorial "Distributed Pipeline Parallelism Using RPC"
without its processes. ResNet50 is cut where the tutorial cuts it; a batch goes through both parts
in micro-batches, whose outputs torch.cat puts together for one loss.

`xs.split(num_split)` is read in two ways: with `count`, num_split is the number of chunks, as the
tutorial's text says; with `size` it is the number of images of each, as its code has it."""
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet50

import seed_numbers as numbers

LR, SPLITS = 0.05, (1, 2, 4, 8)
SMALL = {"images": 9, "side": 64, "classes": 200, "batches": 2}
# The tutorial's sizes. SEED003_BATCHES=1 takes a third of the time.
REAL = {"images": 120, "side": 128, "classes": 1000,
        "batches": int(os.environ.get("SEED003_BATCHES", "3"))}
# Tensors of the state after the first step. Running statistics show the order of the micro-batches.
COMPARED = ("bn1.running_mean", "bn1.running_var", "layer2.3.bn1.running_var",
            "layer3.0.bn1.running_mean", "layer4.2.bn2.running_var", "layer4.2.bn3.bias")


def network(classes):
    net = resnet50(num_classes=classes)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(numbers.resnet(name, tuple(p.shape))))
    return net.train()


def parts(net):
    return (nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1, net.layer2),
            nn.Sequential(net.layer3, net.layer4, net.avgpool, nn.Flatten(), net.fc))


def chunk_size(reading, k, images):
    return k if reading == "size" else -(-images // k)


def batches_of(images, side, batches, **_):
    x = numbers.normal(numbers.DATA, (batches, images, 3, side, side))
    return torch.from_numpy(x)


def labels_of(images, classes, **_):
    indices = torch.from_numpy(numbers.classes(numbers.LABELS, images, classes))
    return F.one_hot(indices, classes).float()


def step(net, opt, xs, labels, chunk):
    first, second = parts(net)
    opt.zero_grad()
    loss = F.mse_loss(torch.cat([second(first(x)) for x in xs.split(chunk)]), labels)
    loss.backward()
    opt.step()
    return loss.item()


def state_of(net):
    """The tensors to compare: COMPARED, and how far each row of fc.weight has changed."""
    state = net.state_dict()
    found = {what: state[what].numpy().copy() for what in COMPARED}
    moved = state["fc.weight"].double().numpy() - numbers.resnet("fc.weight", state["fc.weight"].shape)
    return {**found, "moved": np.float32(np.linalg.norm(moved, axis=1))}


def run(sizes, reading, k):
    """A training from the beginning: (losses, state after the first step)."""
    net, labels, losses = network(sizes["classes"]), labels_of(**sizes), []
    opt = torch.optim.SGD(net.parameters(), lr=LR)
    for xs in batches_of(**sizes):
        losses.append(step(net, opt, xs, labels, chunk_size(reading, k, sizes["images"])))
        if len(losses) == 1:
            state = state_of(net)
    return {"losses": np.float32(losses), **state}


def figures(sizes):
    """{name: tensor} for each reading and number of splits."""
    found = {"sizes": np.float32([sizes[k] for k in ("images", "side", "classes", "batches")])}
    for reading in ("count", "size"):
        for k in SPLITS:
            begin = time.perf_counter()
            one = run(sizes, reading, k)
            print(f"PyTorch: number of splits = {k} ({reading}), execution time ="
                  f" {time.perf_counter() - begin:.3f}, losses {one['losses']}", flush=True)
            found.update({f"{reading}_{k}.{what}": value for what, value in one.items()})
    return found
