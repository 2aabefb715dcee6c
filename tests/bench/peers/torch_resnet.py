#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ResNet50 in PyTorch on one machine: mean squared error, SGD.

usage: torch_resnet.py BATCH SIZE THREADS [bf16] [channels_last]
bf16: the forward pass under torch.autocast, the loss and the parameters in f32
commands: steps N [THREADS]   milliseconds of each of N steps
          cpu N [THREADS]     the same in processor time of this process
          rss                 resident MiB before the network was made, and the maximum
"""
import json
import sys
import time

import torch

import resnet50


def resident(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(key))


def main():
    batch, size, threads = map(int, sys.argv[1:4])
    last = "channels_last" in sys.argv[4:]
    cast = torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in sys.argv[4:])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    idle = resident("VmRSS")
    net = torch.nn.Sequential(resnet50.front(), resnet50.back())
    x, y = torch.randn(batch, 3, size, size), torch.zeros(batch, 1000)
    y[torch.arange(batch), torch.arange(batch) * 37 % 1000] = 1
    if last:
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    loss = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    print("ready", flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "rss":
            print(json.dumps([idle, resident("VmHWM")]), flush=True)
            continue
        clock = time.process_time if word == "cpu" else time.perf_counter
        found = []
        torch.set_num_threads(int(numbers[1]) if numbers[1:] else threads)
        for _ in range(int(numbers[0])):
            begin = clock()
            optimizer.zero_grad(set_to_none=True)
            with cast:
                outputs = net(x)
            value = loss(outputs.float(), y)
            value.backward()
            optimizer.step()
            value.item()
            found.append((clock() - begin) * 1e3)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
