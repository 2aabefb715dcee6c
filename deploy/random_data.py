#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Random images and one-hot labels as .npy files, for sessions that are about speed.

    random_data.py FOLDER --samples 360 --shape 3 128 128 --classes 1000

writes FOLDER/train-x.npy ([samples, *shape], normal numbers) and FOLDER/train-y.npy ([samples,
classes], a 1 at a random class): what torch.randn and a scatter_ of random classes give. f32.
"""
import argparse
import os

import numpy as np


def write_images(path, rng, samples, shape):
    """One sample at a time: the file may be larger than memory."""
    x = np.lib.format.open_memmap(path, "w+", np.float32, (samples, *shape))
    for i in range(samples):
        x[i] = rng.standard_normal(shape, np.float32)
    x.flush()


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("folder")
    p.add_argument("--samples", type=positive, default=360)
    p.add_argument("--shape", type=positive, nargs="+", default=[3, 128, 128])
    p.add_argument("--classes", type=positive, default=1000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = np.random.default_rng(a.seed)
    os.makedirs(a.folder, exist_ok=True)
    write_images(os.path.join(a.folder, "train-x.npy"), rng, a.samples, tuple(a.shape))
    y = np.zeros((a.samples, a.classes), np.float32)
    y[np.arange(a.samples), rng.integers(a.classes, size=a.samples)] = 1
    np.save(os.path.join(a.folder, "train-y.npy"), y)


if __name__ == "__main__":
    main()
