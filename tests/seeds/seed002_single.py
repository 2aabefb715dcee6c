# SPDX-License-Identifier: Apache-2.0
"""Seed 002 in Python, the notebook's first cells: the model at a worker.

usage: seed002_single.py SESSION.yaml [ITERATIONS]
"""
import sys

import cleave
import torch
from torch import nn, rand, randint


class MLP(nn.Module):
    def __init__(self, layer_1_in, layer_1_out, layer_2_out):
        super().__init__()
        self.w1 = nn.Linear(layer_1_in, layer_1_out)
        self.w2 = nn.Linear(layer_1_out, layer_2_out)

    def forward(self, x):
        return self.w2(self.w1(x).relu()).sigmoid()


torch.manual_seed(40)
batch_size, dataset_size, lr = 32, 320, .5
x = rand([dataset_size, 16])
target = randint(0, 2, [dataset_size, 1], dtype=torch.float32)

with cleave.open(sys.argv[1]):
    model = cleave.Remote(MLP(16, 8, 1), at="w1", example=x[:batch_size])
    optimizer = cleave.Optimizer(torch.optim.SGD, model, lr=lr)
    for i in range(int(sys.argv[2]) if len(sys.argv) > 2 else 10001):
        start = i * batch_size % dataset_size
        end = start + batch_size
        y = model(x[start:end, :])
        output = nn.BCELoss()(y, target[start:end, :])
        model.zero_grad()
        output.backward()
        optimizer.step()
        if i % 2000 == 0:
            print(f"loss at iteration {i}: {output.item():.3f}")
    print("last:", output.item())
