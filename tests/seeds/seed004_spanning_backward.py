# SPDX-License-Identifier: Apache-2.0
"""Seed 004 in Python: the backward graph spans the workers, and each gradient is where its
parameter is.

usage: seed004_spanning_backward.py SESSION.yaml
"""
import sys

import cleave
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(4)


class Network(nn.Module):
    def __init__(self, split):
        super().__init__()
        layerseq1, layerseq2 = nn.Sequential(nn.Linear(16, 32), nn.ReLU()), nn.Sequential(nn.Linear(32, 10), nn.LogSoftmax(dim=1))
        self.layerseq1 = cleave.Remote(layerseq1, at="w1", example=torch.zeros(24, 16)) if split else layerseq1
        self.layerseq2 = cleave.Remote(layerseq2, at="w2", example=torch.zeros(24, 32)) if split else layerseq2

    def forward(self, x):
        return self.layerseq2(self.layerseq1(x))


with cleave.open(sys.argv[1]):
    data, target = torch.randn(24, 16), torch.randint(0, 10, (24,))
    network = Network(split=True)
    loss = F.nll_loss(network(data), target)
    loss.backward()
    print("loss:", loss.item())
    for part in (network.layerseq1, network.layerseq2):
        for name, gradient in part.gradients().items():
            print(f"gradient of {name}, at {part.placement}:", gradient.norm().item())
    network.zero_grad()
