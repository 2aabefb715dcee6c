# SPDX-License-Identifier: Apache-2.0
"""A side of bench_transformers.py: only attention, on one thread, forward and backward, over the
outputs of the linear layers before it.

usage: torch_attention.py fused|formula N T HEADS WIDTH P
  fused    scaled_dot_product_attention, by the path that it chooses for this dropout
  formula  the same in single operations: two products, softmax, dropout
commands: steps N   milliseconds of each of N steps
"""
import math
import sys
import time

import torch

how, (n, t, heads, width), p = sys.argv[1], map(int, sys.argv[2:6]), float(sys.argv[6])
torch.set_num_threads(1)
torch.manual_seed(7)
q, k, v = (torch.empty(n, t, heads * width).uniform_(-1, 1).requires_grad_() for _ in range(3))
gradient = torch.empty(n, t, heads * width).uniform_(-1, 1)


def apart(x):
    return x.view(n, t, heads, width).transpose(1, 2)


def attend():
    a, b, c = map(apart, (q, k, v))
    if how == "fused":
        return torch.nn.functional.scaled_dot_product_attention(a, b, c, dropout_p=p)
    weights = torch.softmax(a @ b.transpose(2, 3) / math.sqrt(width), -1)
    return torch.nn.functional.dropout(weights, p) @ c


def step():
    for x in (q, k, v):
        x.grad = None
    attend().transpose(1, 2).reshape(n, t, heads * width).backward(gradient)


print("ready", flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line.split()[1])):
        begin = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begin))
    print(times, flush=True)
