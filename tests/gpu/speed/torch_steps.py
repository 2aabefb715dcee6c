#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training steps of steps.c in PyTorch: the median of their times, and their losses.

usage: torch_steps.py NETWORK BATCH SIZE f32|f64|tf32|bf16 STEPS eager|compile [FILE]
       torch_steps.py versions   of Python and what is imported here
FILE: written by steps.c, with initial parameters, input and target. In f32, FILE.f32 gets the
parameters after the first step. In f64, prints for each parameter how far the first step of steps.c
(FILE.after) and that of FILE.f32 are from its own. CLEAVE_TORCH_ON: cuda, or cpu.
Exits 77 where this PyTorch cannot.
"""
import contextlib, importlib, json, os, sys, time
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/peers")]
CANNOT = 77
try:
    import torch
    from torch import nn
    import resnet50
except ImportError as why:
    print(f"no PyTorch in {sys.executable} ({why}): start run.py with the Python that has it")
    sys.exit(CANNOT)

ON = os.environ.get("CLEAVE_TORCH_ON", "cpu")


def cannot(why):
    print(why)
    sys.exit(CANNOT)


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


class Texts(nn.Module):
    """BERT with a head that gives class logits for each text."""

    def __init__(self, **sizes):
        super().__init__()
        try:
            from transformers import BertConfig, BertForSequenceClassification
        except ImportError as why:
            cannot(f"no transformers in {sys.executable} ({why})")
        self.model = BertForSequenceClassification(BertConfig(**sizes, num_labels=2, attn_implementation="sdpa"))

    def forward(self, ids):
        return self.model(ids).logits


def texts(batch, length, **sizes):
    return Texts(**sizes), torch.randint(30522, (batch, length)), torch.randint(2, (batch,))


def bert(batch, length):
    return texts(batch, length)


def bert_small(batch, length):
    return texts(batch, length, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.001)


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=2e-5, weight_decay=0.01, fused=ON == "cuda")


def squares(out, target):
    return nn.functional.mse_loss(out.to(target.dtype), target)


def classes(out, target):
    return nn.functional.cross_entropy(out if out.dtype == torch.float64 else out.float(), target)


NETWORKS = {"mlp": (mlp, sgd, squares), "lstm": (lstm, adam, squares), "resnet50": (images, sgd, squares),
            "bert": (bert, adamw, classes), "bert-small": (bert_small, adamw, classes)}


def in_order(net, path):
    """The parameters in the order of the file, by our names if the names are transformers'."""
    with open(path + ".names") as f:
        names = f.read().splitlines()
    own = {name.removeprefix("model."): p for name, p in net.named_parameters()}
    return [own[name] for name in names] if isinstance(net, Texts) else list(net.parameters())


def load(path, tensors):
    """Reads the tensors from the file, one after the other."""
    with open(path, "rb") as f:
        for t in tensors:
            raw = bytearray(f.read(t.element_size() * t.numel()))
            t.data.copy_(torch.frombuffer(raw, dtype=t.dtype).view(t.shape))
        assert not f.read(1), "the file has more numbers"


def off(parameter, judge, begin):
    """The distance from the f64 step, divided by that step's length."""
    moved, apart = (judge - begin).norm().item(), (parameter.double() - judge).norm().item()
    return apart / moved if moved else 0.0 if apart == 0 else float("inf")


def judged(path, parameters, begin):
    """[(name, distance of our step, distance of PyTorch's f32 step)] of the parameters."""
    ours = [torch.empty(p.shape) for p in parameters]
    load(path + ".after", ours)
    theirs = torch.load(path + ".f32")
    with open(path + ".names") as f:
        names = f.read().splitlines()
    for name, p, b, *both in zip(names, parameters, begin, ours, theirs):
        judge = p.detach().cpu()
        yield [name, *(off(each, judge, b) for each in both)]


def finish():
    if ON == "cuda":
        torch.cuda.synchronize()


def versions():
    """One line with the versions of packages; names the missing ones."""
    said = [f"Python {sys.version.split()[0]}", f"PyTorch {torch.__version__}",
            f"CUDA {torch.version.cuda}" if torch.cuda.is_available() else "which sees no device"]
    for name in ("numpy", "transformers", "triton"):
        try:
            said.append(f"{name} {importlib.import_module(name).__version__}")
        except ImportError:
            said.append(f"no {name}")
    print(", ".join(said))


def main():
    if ON == "cuda" and not torch.cuda.is_available():
        cannot(f"PyTorch {torch.__version__} of {sys.executable} sees no device")
    name, batch, size, math, n, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6]
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = math == "tf32"
    net, x, target = NETWORKS[name][0](batch, size)
    file = sys.argv[7] if len(sys.argv) > 7 else None
    followed, begin, rows = (in_order(net, file) if file else []), [], []
    if file:
        load(file, [*followed, x, target])
        begin = [p.detach().double() for p in followed]
    if math == "f64":
        net, x, target = (t.double() if t is net or t.is_floating_point() else t for t in (net, x, target))
    last = torch.channels_last if name == "resnet50" and ON == "cuda" else torch.contiguous_format
    net, x, target = net.to(ON, memory_format=last), x.to(ON), target.to(ON)
    if name == "resnet50":
        x = x.to(memory_format=last)
    optimizer = NETWORKS[name][1](net)
    if how == "compile" and not hasattr(torch, "compile"):
        cannot(f"PyTorch {torch.__version__} has no torch.compile")
    run = torch.compile(net) if how == "compile" else net
    cast = torch.autocast(ON, torch.bfloat16) if math == "bf16" else contextlib.nullcontext()
    losses, ms = [], []
    for i in range(n):
        at = time.perf_counter()
        optimizer.zero_grad()
        with cast:
            out = run(x)
        loss = NETWORKS[name][2](out, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        finish()
        ms.append(1e3 * (time.perf_counter() - at))
        if file and i == 0 and math == "f64":
            rows = list(judged(file, followed, begin))
        elif file and i == 0:
            torch.save([p.detach().cpu().float() for p in followed], file + ".f32")
    late = sorted(ms[n // 2:])
    print(json.dumps({"network": name, "on": ON, "how": how, "torch": torch.__version__, "losses": losses, "apart": rows,
                      "ms": late[len(late) // 2]}))


versions() if sys.argv[1:] == ["versions"] else main()
