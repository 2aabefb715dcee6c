# SPDX-License-Identifier: Apache-2.0
"""Seed 001, example 3, in Python: preprocessing here, the model on a worker's first GPU, or its
processor.

usage: seed001_cpu_gpu_hybrid.py SESSION.yaml
"""
import sys

import cleave
import torch
from torch import nn, optim

torch.manual_seed(3)


class Preprocessor(nn.Module):
    def forward(self, x):
        return x.float() / 2.0


input_data, targets = torch.randn(32, 10), torch.randn(32, 10)

with cleave.open(sys.argv[1]):
    preprocessor = Preprocessor()
    gpu_model = cleave.Remote(nn.Linear(10, 10), at="w1", example=input_data)
    criterion = nn.MSELoss()
    optimizer_gpu = cleave.Optimizer(optim.Adam, gpu_model, lr=0.001)
    for _ in range(5):
        optimizer_gpu.zero_grad()
        outputs = gpu_model(preprocessor(input_data))
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer_gpu.step()
        print("Loss:", loss.item())
