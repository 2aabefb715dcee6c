# SPDX-License-Identifier: Apache-2.0
"""Seed 002 in Python, data parallel: a copy of the model at each of two workers, their gradients
summed here.

usage: seed002_data_parallel.py SESSION.yaml [ITERATIONS]
"""
import copy
import sys

import cleave
import torch
from torch import nn, rand, randint

torch.manual_seed(40)
batch_size, dataset_size, lr = 32, 320, .5
x = rand([dataset_size, 16])
target = randint(0, 2, [dataset_size, 1], dtype=torch.float32)
model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
loss = nn.BCELoss()

with cleave.open(sys.argv[1]):
    nodes = [cleave.Remote(copy.deepcopy(model), at=at, example=x[:batch_size]) for at in ("w1", "w2")]
    for i in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5001):
        outputs, grads = [], []
        for k, node in enumerate(nodes):
            start = (i + k) * batch_size % dataset_size
            node.load_state_dict(model.state_dict())
            output = loss(node(x[start:start + batch_size, :]), target[start:start + batch_size, :])
            node.zero_grad()
            output.backward()
            outputs.append(output.item())
            grads.append(node.gradients())
        for name, p in model.named_parameters():
            p.grad = sum(g[name] for g in grads)
        optimizer.step()
        for node in nodes:
            node.zero_grad()
        if i % 1000 == 0:
            print(f"loss at iteration {i}: {sum(outputs) / 2:.3f}")
    print("last:", sum(outputs) / 2)
