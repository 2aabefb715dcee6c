# SPDX-License-Identifier: Apache-2.0
"""Seed 001, example 1, in Python: a feature extractor at one worker, a classifier at another.

usage: seed001_two_part_cnn.py SESSION.yaml
"""
import sys

import cleave
import torch
from torch import nn, optim

torch.manual_seed(1)


class FeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, kernel_size=3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=2)

    def forward(self, x):
        return self.pool(self.relu(self.conv1(x)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16 * 32 * 32, 10)

    def forward(self, x):
        return self.fc1(x.view(x.size(0), -1))


input_data, labels = torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,))

with cleave.open(sys.argv[1]):
    feature_extractor = cleave.Remote(FeatureExtractor(), at="w1", example=input_data)
    classifier = cleave.Remote(Classifier(), at="w2", example=torch.zeros(64, 16, 32, 32))
    criterion = nn.CrossEntropyLoss()
    optimizer_feature_extractor = cleave.Optimizer(optim.Adam, feature_extractor, lr=0.001)
    optimizer_classifier = cleave.Optimizer(optim.Adam, classifier, lr=0.001)
    for _ in range(5):
        optimizer_feature_extractor.zero_grad()
        optimizer_classifier.zero_grad()
        outputs = classifier(feature_extractor(input_data))
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer_feature_extractor.step()
        optimizer_classifier.step()
        print("Loss:", loss.item())
