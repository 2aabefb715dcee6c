#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The unsplit CNN in PyTorch, one thread, batch 64, Adam, on Fashion-MNIST.

usage: torch_cnn.py [channels_last]
commands: steps N    milliseconds of each training step
"""
import gzip
import sys

import numpy as np
import torch
from torch import nn

from steps import serve

BATCH, BATCHES, ROOT = 64, 32, "/usr/share/datasets/fashion-mnist/"


def read(name, skip):
    with gzip.open(ROOT + name) as f:
        return np.frombuffer(f.read(skip + BATCH * BATCHES * 784)[skip:], np.uint8)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = read("train-images-idx3-ubyte.gz", 16)[:BATCH * BATCHES * 784].astype(np.float32)
    x = torch.from_numpy((x / 255 - 0.2860) / 0.3530).reshape(-1, 1, 28, 28).float()
    y = torch.from_numpy(read("train-labels-idx1-ubyte.gz", 8)[:BATCH * BATCHES].astype(np.int64))
    batches = [(a.clone(), b.clone()) for a, b in zip(x.split(BATCH), y.split(BATCH))]
    net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
    if sys.argv[1:] == ["channels_last"]:
        net = net.to(memory_format=torch.channels_last)
        batches = [(a.to(memory_format=torch.channels_last), b) for a, b in batches]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    serve(net, nn.CrossEntropyLoss(), optimizer, batches)


if __name__ == "__main__":
    main()
