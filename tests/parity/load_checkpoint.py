#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Load a Cleave checkpoint into PyTorch and test it: what a user without Cleave would write.

    load_checkpoint.py RUN/checkpoint-N     the accuracy of cnn() on Fashion-MNIST's test set

The reader of safetensors is a dozen lines; NumPy and PyTorch are all it needs.
"""
import gzip
import json
import os
import struct
import sys

import numpy as np
import torch
from torch import nn

FASHION = "/usr/share/datasets/fashion-mnist"
DTYPES = {"F32": "<f4", "I64": "<i8"}


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack_from("<Q", data)[0]
    header, found = json.loads(data[8:8 + n]), {}
    header.pop("__metadata__", None)
    for name, t in header.items():
        begin, end = (8 + n + o for o in t["data_offsets"])
        array = np.frombuffer(data[begin:end], DTYPES[t["dtype"]]).reshape(t["shape"])
        found[name] = torch.from_numpy(array.copy())
    return found


def read_checkpoint(folder):
    """The state_dict of all stages together."""
    with open(os.path.join(folder, "model.safetensors.index.json")) as f:
        files = json.load(f)["weight_map"]
    state = {}
    for name in sorted(set(files.values())):
        state.update(read_safetensors(os.path.join(folder, name)))
    assert state.keys() == files.keys(), "the index and the files disagree"
    return state


def read_idx(name):
    with gzip.open(os.path.join(FASHION, name)) as f:
        data = f.read()
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def fashion(part, limit=None, mean=0.2860, std=0.3530):
    """Images [N, 1, 28, 28] f32, normalised in f32, and classes [N]."""
    x = read_idx(f"{part}-images-idx3-ubyte.gz")[:limit]
    y = read_idx(f"{part}-labels-idx1-ubyte.gz")[:limit]
    x = (x[:, None].astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))


def cnn():
    """The model of deploy/sessions/fashion-mnist.yaml."""
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    model = cnn()
    model.load_state_dict(read_checkpoint(sys.argv[1]))
    model.eval()
    x, y = fashion("t10k")
    with torch.no_grad():
        right = sum(int((model(x[i:i + 500]).argmax(1) == y[i:i + 500]).sum())
                    for i in range(0, len(y), 500))
    print(f"test accuracy {100 * right / len(y):.2f} %  ({len(y)} samples)")


if __name__ == "__main__":
    main()
