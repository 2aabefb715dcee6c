# SPDX-License-Identifier: Apache-2.0
"""Data and weights as functions of (stream, index), the same bits as tests/seeds/seed.h makes in C.
For make_seeds.py (PyTorch's runs) and tests/net/api/test_seeds.py (session files); needs only
numpy."""
import zlib

import numpy as np

# streams of random numbers; the k-th parameter of a program has the stream WEIGHTS + k
DATA, LABELS, WEIGHTS = 1, 2, 16


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
    """Sums of three uniform numbers: mean 0, variance 1, without rounding."""
    n = int(np.prod(shape))
    s = (bits(stream, 3 * n) >> np.uint32(11)).astype(np.int64).reshape(n, 3).sum(1)
    return ((2 * s - 3 * 0x1FFFFF).astype(np.float32) * np.float32(2**-21)).reshape(shape)


def classes(stream, n, n_classes):
    return (bits(stream, n) % np.uint32(n_classes)).astype(np.int64)


# ---- ResNet50, by the names of torchvision -------------------------------------------------------

def resnet(name, shape):
    """Initial values of a tensor of seed 003: batch norms are 1 and 0, convolutions as
    kaiming_normal_(mode="fan_out", nonlinearity="relu"), the linear layer as PyTorch's; the stream
    is the CRC of the name."""
    stream = zlib.crc32(name.encode())
    if name.startswith("fc."):
        return uniform(stream, shape, 2048)
    if len(shape) != 4:
        return np.full(shape, name.endswith(("weight", "running_var")), np.float32)
    fan_out = shape[0] * shape[2] * shape[3]
    return normal(stream, shape) * np.sqrt(np.float32(2) / np.float32(fan_out))


def resnet50_state(classes):
    """{name: array} of a state_dict, without the counts of batches."""
    shapes = {}

    def conv_norm(conv, norm, n_in, n_out, kernel):
        shapes[conv + ".weight"] = (n_out, n_in, kernel, kernel)
        shapes.update({f"{norm}.{what}": (n_out,)
                       for what in ("weight", "bias", "running_mean", "running_var")})

    conv_norm("conv1", "bn1", 3, 64, 7)
    n_in = 64
    for layer, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << layer
        for block in range(blocks):
            at = f"layer{layer + 1}.{block}."
            for k, (a, b, kernel) in enumerate(((n_in, width, 1), (width, width, 3), (width, 4 * width, 1))):
                conv_norm(f"{at}conv{k + 1}", f"{at}bn{k + 1}", a, b, kernel)
            if block == 0:
                conv_norm(at + "downsample.0", at + "downsample.1", n_in, 4 * width, 1)
            n_in = 4 * width
    shapes.update({"fc.weight": (classes, n_in), "fc.bias": (classes,)})
    return {name: resnet(name, shape) for name, shape in shapes.items()}
