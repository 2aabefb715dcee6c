#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Seed 001's encoder, decoder and classifier in PyTorch, unsplit, one thread, batch 32, one Adam.

usage: torch_lstm.py
commands: steps N    milliseconds of each training step
"""
import torch
from torch import nn

from steps import serve

BATCH, BATCHES, TIME, WORDS, CLASSES = 32, 10, 20, 100, 10


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.encoder = nn.LSTM(32, 64, batch_first=True)
        self.decoder = nn.LSTM(64, 64, batch_first=True)
        self.narrow = nn.Linear(64, 32)
        self.classifier = nn.Linear(32, CLASSES)

    def forward(self, words):
        encoded, _ = self.encoder(self.embedding(words))
        decoded, _ = self.decoder(encoded)
        return self.classifier(self.narrow(decoded).mean(dim=1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(40)
    batches = [(torch.randint(0, WORDS, (BATCH, TIME)), torch.randint(0, CLASSES, (BATCH,)))
               for _ in range(BATCHES)]
    net, loss = Whole(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    serve(net, loss, optimizer, batches)


if __name__ == "__main__":
    main()
