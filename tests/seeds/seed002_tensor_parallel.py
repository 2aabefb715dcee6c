# SPDX-License-Identifier: Apache-2.0
"""Seed 002 in Python, tensor parallel: layer 1 is divided by its outputs, layer 2 by its inputs.

usage: seed002_tensor_parallel.py SESSION.yaml [ITERATIONS]
"""
import sys

import cleave
import torch
from torch import nn, rand, randint

torch.manual_seed(40)
batch_size, dataset_size, lr = 64, 320, .5
x = rand([dataset_size, 16])
target = randint(0, 2, [dataset_size, 1], dtype=torch.float32)
w1, w2, loss = nn.Linear(16, 8), nn.Linear(8, 1), nn.BCELoss()


def part(weight, bias):
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


with cleave.open(sys.argv[1]):
    rows, half = x[:batch_size], torch.zeros(batch_size, 4)
    w1_node_0 = cleave.Remote(part(w1.weight[:4, :], w1.bias[:4]), at="w1", example=rows)
    w1_node_1 = cleave.Remote(part(w1.weight[4:, :], w1.bias[4:]), at="w2", example=rows)
    w2_node_0 = cleave.Remote(part(w2.weight[:, :4], w2.bias), at="w1", example=half)
    w2_node_1 = cleave.Remote(part(w2.weight[:, 4:], None), at="w2", example=half)
    weights = [w1_node_0, w1_node_1, w2_node_0, w2_node_1]
    optimizers = [cleave.Optimizer(torch.optim.SGD, w, lr=2 * lr) for w in weights]
    for i in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5001):
        start = i * batch_size % dataset_size
        batch_x, batch_target = x[start:start + batch_size, :], target[start:start + batch_size, :]
        h1 = torch.cat([nn.ReLU()(w1_node_0(batch_x)), nn.ReLU()(w1_node_1(batch_x))], dim=1)
        y = nn.Sigmoid()(w2_node_0(h1[:, :4]) + w2_node_1(h1[:, 4:]))
        output = loss(y, batch_target)
        for w in weights:
            w.zero_grad()
        output.backward()
        for o in optimizers:
            o.step()
        if i % 1000 == 0:
            print(f"loss at iteration {i}: {output.item():.3f}")
    print("last:", output.item())
