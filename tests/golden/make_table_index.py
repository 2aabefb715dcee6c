#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what PyTorch computes with a table whose column site is read as an index, for
tests/net/training/test_table.py: tests/golden/table/index.safetensors with the weights at the
beginning, and index.json with the loss of each step and the outputs of the test records.

Needs torch from PyPI. Reads the tables of make_table.py.
"""
import csv, json, os, struct
import torch
from torch import nn

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table")
BATCH, STEPS, LR = 12, 15, 0.5


def read(name):
    with open(os.path.join(HERE, name), newline="") as f:
        return list(csv.DictReader(f))


train, test = read("train.csv"), read("test.csv")
ages = torch.tensor([float(r["age"]) for r in train if r["age"]], dtype=torch.float64)
mean = ages.mean()
filled = torch.tensor([float(r["age"] or mean) for r in train], dtype=torch.float64)
std = filled.std(correction=0)
sites = sorted({r["site"] for r in train if r["site"]})


def tensors(records):
    rows = [[(float(r["age"] or mean) - filled.mean()) / std, not r["age"], r["smoker"] == "yes"] for r in records]
    # a value that training has not is the number behind all values, a missing one the next
    index = [len(sites) + 1 if not r["site"] else sites.index(r["site"]) if r["site"] in sites else len(sites) for r in records]
    return (torch.tensor(rows, dtype=torch.float64).float(), torch.tensor(index),
            torch.tensor([("ill", "well").index(r["outcome"]) for r in records]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(len(sites) + 2, 3)
        self.front, self.middle, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x, index):
        y = torch.cat([x, self.rows(index)], 1)
        return self.head(torch.relu(self.middle(torch.relu(self.front(y)))))


def save(path, state):
    head, at = {}, 0
    for name, value in state.items():
        head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + 4 * value.numel()]}
        at += 4 * value.numel()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for value in state.values():
            f.write(value.contiguous().numpy().tobytes())


torch.manual_seed(3)
net = Net()
save(os.path.join(HERE, "index.safetensors"), {k: v.detach() for k, v in net.state_dict().items()})
x, index, y = tensors(train)
optimizer, losses = torch.optim.SGD(net.parameters(), LR), []
for step in range(STEPS):
    at = step * BATCH % len(train)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x[at:at + BATCH], index[at:at + BATCH]), y[at:at + BATCH])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
x, index, _ = tensors(test)
with torch.no_grad():
    outputs = net(x, index)
with open(os.path.join(HERE, "index.json"), "w") as f:
    json.dump({"rows": len(sites) + 2, "losses": losses, "outputs": outputs.tolist()}, f)
    f.write("\n")
