#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training steps of steps.c in PyTorch: the median of their times, and their losses.

usage: torch_steps.py mlp|lstm|resnet50 BATCH SIZE f32|tf32|bf16 STEPS eager|compile [FILE]
FILE: what steps.c wrote: parameters, input and target to begin with. On the GPU, or the processor
where there is none. Exits 77 where this PyTorch cannot.
"""
import contextlib, json, os, sys, time
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/peers")]
CANNOT = 77
try:
    import torch
    from torch import nn
    import resnet50
except ImportError as why:
    print(f"no PyTorch: {why}")
    sys.exit(CANNOT)

ON = "cuda" if torch.cuda.is_available() else "cpu"


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.linear = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x):
        return self.linear(self.lstm(x)[0][:, -1])


def mlp(batch, width):
    net = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return net, torch.randn(batch, 784), torch.randn(batch, 10)


def lstm(batch, length):
    return Lstm(), torch.randn(batch, length, 128), torch.randn(batch, 10)


def images(batch, side):
    return nn.Sequential(resnet50.front(), resnet50.back()), torch.randn(batch, 3, side, side), torch.randn(batch, 1000)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.001)


NETWORKS = {"mlp": (mlp, sgd), "lstm": (lstm, adam), "resnet50": (images, sgd)}


def load(path, tensors):
    """The file's numbers, one tensor after the other."""
    with open(path, "rb") as f:
        for t in tensors:
            raw = bytearray(f.read(4 * t.numel()))
            t.data.copy_(torch.frombuffer(raw, dtype=torch.float32).view(t.shape))
        assert not f.read(1), "the file has more numbers"


def finish():
    if ON == "cuda":
        torch.cuda.synchronize()


def main():
    name, batch, size, math, n, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6]
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = math == "tf32"
    net, x, target = NETWORKS[name][0](batch, size)
    if len(sys.argv) > 7:
        load(sys.argv[7], [*net.parameters(), x, target])
    last = torch.channels_last if name == "resnet50" and ON == "cuda" else torch.contiguous_format
    net, x, target = net.to(ON, memory_format=last), x.to(ON), target.to(ON)
    if name == "resnet50":
        x = x.to(memory_format=last)
    optimizer = NETWORKS[name][1](net)
    if how == "compile" and not hasattr(torch, "compile"):
        print(f"PyTorch {torch.__version__} has no torch.compile")
        sys.exit(CANNOT)
    run = torch.compile(net) if how == "compile" else net
    cast = torch.autocast(ON, torch.bfloat16) if math == "bf16" else contextlib.nullcontext()
    losses, ms = [], []
    for _ in range(n):
        at = time.perf_counter()
        optimizer.zero_grad()
        with cast:
            out = run(x)
        loss = nn.functional.mse_loss(out.float(), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        finish()
        ms.append(1e3 * (time.perf_counter() - at))
    late = sorted(ms[n // 2:])
    print(json.dumps({"network": name, "on": ON, "how": how, "torch": torch.__version__, "losses": losses,
                      "ms": late[len(late) // 2]}))


main()
