#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC": ResNet50 in two shards on two
worker processes with one compute thread each, a master with the data, the loss, distributed
autograd and DistributedOptimizer, over TCP (TensorPipe's uv transport), without TLS.

usage: torch_resnet_rpc.py BATCH
commands: steps N CHUNKS   milliseconds of each training step, with the batch in CHUNKS
micro-batches
          rss              [idle, peak] resident MiB of the master and both workers
"""
import json
import os
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.optim import DistributedOptimizer

import resnet50

torch.set_num_threads(1)
NAMES = ("master", "worker1", "worker2")


def resident(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(key))


def options(port):
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=16, rpc_timeout=600, init_method=f"tcp://127.0.0.1:{port}",
        _transports=["uv"], _channels=["basic"])


class Shard(nn.Module):
    """A worker's part. The lock is the tutorial's: one micro-batch computes at a time."""

    def __init__(self, make):
        super().__init__()
        self.net, self.lock = make(), threading.Lock()

    def forward(self, x_rref):
        x = x_rref.to_here()
        with self.lock:
            return self.net(x)

    def parameter_rrefs(self):
        return [rpc.RRef(p) for p in self.parameters()]


class Pipeline:
    def __init__(self, batch):
        torch.manual_seed(1)
        self.first = rpc.remote("worker1", Shard, args=(resnet50.front,))
        self.second = rpc.remote("worker2", Shard, args=(resnet50.back,))
        parameters = [p for shard in (self.first, self.second)
                      for p in shard.remote().parameter_rrefs().to_here()]
        self.optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.05)
        self.loss, self.batches = nn.MSELoss(), [resnet50.batch_of(torch, batch) for _ in range(2)]

    def forward(self, x, chunks):
        futures = []
        for part in x.chunk(chunks):
            y_rref = self.first.remote().forward(rpc.RRef(part))
            futures.append(self.second.rpc_async().forward(y_rref))
        return torch.cat(torch.futures.wait_all(futures))

    def step(self, chunks):
        x, y = self.batches[0]
        self.batches.reverse()
        begin = time.perf_counter()
        with dist_autograd.context() as context:
            loss = self.loss(self.forward(x, chunks), y)
            dist_autograd.backward(context, [loss])
            self.optimizer.step(context)
            loss.item()
        return (time.perf_counter() - begin) * 1e3


def everywhere(key):
    return [resident(key)] + [rpc.rpc_sync(name, resident, args=(key,)) for name in NAMES[1:]]


def drive(batch):
    idle = everywhere("VmRSS")
    pipeline = Pipeline(batch)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *args = line.split()
        if command == "steps":
            found = [pipeline.step(int(args[1])) for _ in range(int(args[0]))]
        elif command == "rss":
            found = list(zip(idle, everywhere("VmHWM")))
        print(json.dumps(found), flush=True)


def hush():
    """Discards stderr: at the end each process prints errors about the end of the others."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def join(rank, port):
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=3, rpc_backend_options=options(port))


def main():
    if sys.argv[1] == "serve":
        join(int(sys.argv[2]), int(sys.argv[3]))
        return rpc.shutdown()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    workers = [subprocess.Popen([sys.executable, __file__, "serve", str(rank), str(port)],
                                stdin=subprocess.DEVNULL) for rank in (1, 2)]
    join(0, port)
    drive(int(sys.argv[1]))
    for name in NAMES[1:]:
        rpc.rpc_sync(name, hush)
    hush()
    for worker in workers:
        worker.kill()
        worker.wait()
    os._exit(0)


if __name__ == "__main__":
    main()
