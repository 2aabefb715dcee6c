# SPDX-License-Identifier: Apache-2.0
"""Seed 001, example 2, in Python: encoder, decoder and classifier at three places.

usage: seed001_three_part_lstm.py SESSION.yaml
"""
import sys

import cleave
import torch
from torch import nn, optim

torch.manual_seed(2)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)

    def forward(self, x):
        out, _ = self.lstm(self.embedding(x))
        return out


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.linear = nn.Linear(64, 32)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.linear(out)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 10)

    def forward(self, x):
        return self.linear(self.mean_pool(x))

    def mean_pool(self, x):
        return torch.mean(x, dim=1)


input_data, labels = torch.randint(0, 100, (32, 20)), torch.randint(0, 10, (32,))

with cleave.open(sys.argv[1]):
    encoder = cleave.Remote(Encoder(), at="w1", example=input_data)
    decoder = cleave.Remote(Decoder(), at="w2", example=torch.zeros(32, 20, 64))
    classifier = cleave.Remote(Classifier(), at="w3", example=torch.zeros(32, 20, 32))
    criterion = nn.CrossEntropyLoss()
    optimizers = [cleave.Optimizer(optim.Adam, part, lr=0.001) for part in (encoder, decoder, classifier)]
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        encoded = encoder(input_data)
        decoded = decoder(encoded)
        outputs = classifier(decoded)
        loss = criterion(outputs, labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        print("Loss:", loss.item())
