#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own split training: torch.distributed.rpc, distributed autograd, DistributedOptimizer,
over TCP (TensorPipe's uv transport), without TLS. The master holds the first shard and the loss,
one worker process the second.

usage: torch_rpc.py echo|mlp|cnn [CHUNKS]
commands: ping N (echo)      microseconds of each rpc_sync of a function that does nothing
          steps N (mlp, cnn) milliseconds of each training step
          rss                worker's resident MiB: idle and peak
"""
import json
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.optim import DistributedOptimizer

torch.set_num_threads(1)


def nothing():
    return None


def resident(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(key))


def mlp():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())


def cnn():
    front = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    rest = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
    return front, rest


NETS = {"mlp": mlp, "cnn": cnn}


class Shard:
    """The worker's part, behind a remote reference."""

    def __init__(self, net):
        self.net = NETS[net]()[1]

    def forward(self, x):
        return self.net(x)

    def parameters(self):
        return [rpc.RRef(p) for p in self.net.parameters()]


def options(port):
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=16, rpc_timeout=600, init_method=f"tcp://127.0.0.1:{port}",
        _transports=["uv"], _channels=["basic"])


def serve(port):
    rpc.init_rpc("worker", rank=1, world_size=2, rpc_backend_options=options(port))
    rpc.shutdown()


class Split:
    def __init__(self, net, chunks):
        torch.manual_seed(40)
        self.net, self.chunks = net, chunks
        self.front = NETS[net]()[0]
        self.shard = rpc.remote("worker", Shard, args=(net,))
        params = [rpc.RRef(p) for p in self.front.parameters()] + self.shard.rpc_sync().parameters()
        if net == "mlp":
            self.x, self.y = torch.rand(320, 16), torch.randint(0, 2, (320, 1)).float()
            self.batch, self.loss = 32, nn.BCELoss()
            self.optimizer = DistributedOptimizer(torch.optim.SGD, params, lr=0.5)
        else:
            self.x, self.y = torch.rand(640, 1, 28, 28), torch.randint(0, 10, (640,))
            self.batch, self.loss = 64, nn.CrossEntropyLoss()
            self.optimizer = DistributedOptimizer(torch.optim.Adam, params, lr=0.001)
        self.at = 0

    def step(self):
        rows = slice(self.at, self.at + self.batch)
        self.at = (self.at + self.batch) % len(self.x)
        with dist_autograd.context() as context:
            if self.chunks == 1:
                out = self.shard.rpc_sync().forward(self.front(self.x[rows]))
            else:
                parts = [self.shard.rpc_async().forward(self.front(x))
                         for x in self.x[rows].chunk(self.chunks)]
                out = torch.cat(torch.futures.wait_all(parts))
            dist_autograd.backward(context, [self.loss(out, self.y[rows])])
            self.optimizer.step(context)


def timed(n, unit, call):
    found = []
    for _ in range(n):
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * unit)
    return found


def main():
    if sys.argv[1] == "serve":
        return serve(int(sys.argv[2]))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    worker = subprocess.Popen([sys.executable, __file__, "serve", str(port)])
    rpc.init_rpc("master", rank=0, world_size=2, rpc_backend_options=options(port))
    rpc.rpc_sync("worker", nothing)
    idle = rpc.rpc_sync("worker", resident, args=("VmRSS",))
    split = None
    if sys.argv[1] != "echo":
        split = Split(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *args = line.split()
        if command == "ping":
            found = timed(int(args[0]), 1e6, lambda: rpc.rpc_sync("worker", nothing))
        elif command == "steps":
            found = timed(int(args[0]), 1e3, split.step)
        elif command == "rss":
            found = [idle, rpc.rpc_sync("worker", resident, args=("VmHWM",))]
        print(json.dumps(found), flush=True)
    worker.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
