# SPDX-License-Identifier: Apache-2.0
"""Seed 003 in Python: a ResNet50 in two shards at two workers, fed with micro-batches that overlap.

usage: seed003_rpc_pipeline.py SESSION.yaml [BATCH SIDE RATE]
"""
import concurrent.futures
import sys
import time

import cleave
import torch
from torch import nn, optim
from torchvision.models import resnet50

num_classes, num_batches = 1000, 3
batch_size, side, lr = (int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])) if len(sys.argv) > 4 else (120, 128, 0.05)


def shards():
    torch.manual_seed(0)
    whole = resnet50(num_classes=num_classes)
    first = nn.Sequential(whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2)
    second = nn.Sequential(whole.layer3, whole.layer4, whole.avgpool, nn.Flatten(), whole.fc)
    return first, second


class DistResNet50(nn.Module):
    def __init__(self, num_split, workers):
        super().__init__()
        self.num_split = num_split
        first, second = shards()
        self.p1 = cleave.Remote(first, at=workers[0], example=torch.zeros(2, 3, side, side))
        self.p2 = cleave.Remote(second, at=workers[1], example=torch.zeros(2, 512, side // 8, side // 8))
        self.pool = concurrent.futures.ThreadPoolExecutor(num_split)

    def forward(self, xs):
        parts = xs.split(-(-len(xs) // self.num_split), dim=0)
        return torch.cat(list(self.pool.map(lambda x: self.p2(self.p1(x)), parts)))


def run_master(num_split):
    model = DistResNet50(num_split, ["w1", "w2"])
    loss_fn = nn.MSELoss()
    opt = cleave.Optimizer(optim.SGD, model, lr=lr)
    one_hot_indices = torch.randint(0, num_classes, (batch_size, 1))
    for i in range(num_batches):
        print(f"Processing batch {i}")
        inputs = torch.randn(batch_size, 3, side, side)
        labels = torch.zeros(batch_size, num_classes).scatter_(1, one_hot_indices, 1)
        opt.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        opt.step()
        print("loss:", loss.item())


for num_split in [1, 2]:
    with cleave.open(sys.argv[1]):
        tik = time.time()
        run_master(num_split)
        print(f"number of splits = {num_split}, execution time = {time.time() - tik:.2f}", file=sys.stderr)
