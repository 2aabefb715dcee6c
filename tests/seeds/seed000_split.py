# SPDX-License-Identifier: Apache-2.0
"""Seed 000 in Python: the first layers and the classifier stay with the images, the rest is at a
worker.

usage: seed000_split.py SESSION.yaml
"""
import sys

import cleave
import torch
from torch import nn

torch.manual_seed(0)
images, labels = torch.randn(96, 1, 28, 28), torch.randint(0, 10, (96,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32)
front = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
middle, head = nn.Sequential(nn.Linear(3136, 64), nn.ReLU()), nn.Linear(64, 10)

with cleave.open(sys.argv[1]) as rt:
    far = cleave.Remote(middle, at="w1", example=front(images[:32]))
    model = nn.Sequential(front, far, head)
    opt = cleave.Optimizer(torch.optim.AdamW, model, lr=1e-3)
    for epoch in range(3):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            print("loss:", loss.item())
