# SPDX-License-Identifier: Apache-2.0
"""Data and weights as functions of (stream, index), the same bits as tests/seeds/seed.h makes in C.
For make_seeds.py (PyTorch's runs) and tests/net/api/test_seeds.py (session files); needs only numpy."""
import numpy as np

DATA, LABELS, WEIGHTS = 1, 2, 16  # streams; the k-th parameter of a program has WEIGHTS + k


def mix(x):
    """The finaliser of MurmurHash3 (Appleby)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def bits(stream, n):
    key = np.uint32(stream * 0x9E3779B9 & 0xFFFFFFFF)
    return mix(mix(np.arange(n, dtype=np.uint32)) + key)


def uniform(stream, shape, fan):
    """Odd multiples of 2^-24 between -1 and 1, times 1 / sqrt(fan)."""
    odd = (bits(stream, int(np.prod(shape))) >> np.uint32(8)).astype(np.int64) * 2 - 0xFFFFFF
    bound = np.float32(1) / np.sqrt(np.float32(fan))
    return (odd.astype(np.float32) * np.float32(2**-24) * bound).reshape(shape)


def normal(stream, shape):
    """Sums of three uniform numbers: mean 0, variance 1, and exact."""
    n = int(np.prod(shape))
    s = (bits(stream, 3 * n) >> np.uint32(11)).astype(np.int64).reshape(n, 3).sum(1)
    return ((2 * s - 3 * 0x1FFFFF).astype(np.float32) * np.float32(2**-21)).reshape(shape)


def classes(stream, n, n_classes):
    return (bits(stream, n) % np.uint32(n_classes)).astype(np.int64)
