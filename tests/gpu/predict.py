#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a step would take on an H200 by shapes and a roofline alone: predictions, for a measurement
to be held against. Nothing here has been measured.

usage: predict.py          the tables as Markdown
       predict.py --write  puts them into tests/bench/GPU.md, and those of the compiled kernels if
                           there are any (build/release/nvcc)

A launch takes its bytes at the rate of a copy or its multiplications at their rate, whichever is
longer, and never less than a launch does. The host asks for launches one after the other; a step
is the longer of the two sums, and a wait for the loss.
"""
import collections, glob, os, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "tests/bench/GPU.md")

# ---- the device: NVIDIA's published numbers of an H200 SXM, and what is assumed of them ----------
BYTES_S = 4.8e12 * 0.75         # memory: own kernels reach three quarters
# Products and convolutions, multiply-adds as two.
F32_S, TF32_S, BF16_S = 67e12 * 0.7, 494e12 * 0.5, 989e12 * 0.5
LEAST_S = 2.0e-6                # of a launch on the device
HOST_S = 4.0e-6                 # of a launch at the host: the driver's part and ours
ASKED_S = 2.0e-6               # of one that cuDNN asks for within a call: the driver's part alone
WAIT_S = 20e-6                  # for the loss, once a step
# With CUDA graphs: a launch within one, at least; what the host takes for all of a step: three
# graphs and what is put and got around them, and the optimiser.
WITHIN_S, GRAPHS_S = 1.0e-6, 60e-6
F, B = 4, 2                     # bytes of an f32, of a bf16

Launch = collections.namedtuple("Launch", "kind bytes flops")


class Step:
    """The launches of one training step: forward, backward, optimiser. Calls of a library that ask
    for many launches are counted once, and what they ask for in `within`."""

    def __init__(self, name, what, value=F):
        self.name, self.what, self.launches, self.parameters, self.within = name, what, [], 0, 0
        self.value = value  # bytes of one of an image

    def add(self, kind, values, flops=0, times=1, value=None):
        self.launches += [Launch(kind, values * (value or self.value), flops)] * times

    def weights(self, n):
        """In bf16 they are rounded once a step, and their gradient is made f32."""
        self.parameters += n
        if self.value == B:
            self.add("weights", n * (F + B), value=1, times=2)

    def product(self, m, n, k, times=1):
        self.add("products", m * k + k * n + m * n, 2 * m * n * k, times)

    def sums(self, reads):
        """A column sum: the walk, and the parts' end."""
        self.add("sums", reads)
        self.add("sums", 0)

    def linear(self, rows, into, out, first=False):
        self.parameters += into * out + out
        self.product(out, rows, into)
        if not first:
            self.product(into, rows, out)
        self.product(into, out, rows)
        self.sums(rows * out)

    def relu(self, n):
        """Backward; forward is the product's before it."""
        self.add("element-wise", 3 * n)

    def conv(self, n, c, k, h, kernel, stride, first=False):
        oh = h // stride
        x, w, y = n * c * h * h, k * c * kernel * kernel, n * k * oh * oh
        self.weights(w)
        for _ in range(2 if first else 3):
            self.add("convolutions", x + w + y, 2 * y * c * kernel * kernel)
        return oh

    def batchnorm(self, n, adds):
        """A walk for the moments, one to apply; backward a walk for sums, one for inputs. These do
        what follows: the first walk back reads the output, and writes a sum's gradient."""
        self.sums(n)
        self.add("batchnorm", (3 if adds else 2) * n)
        self.sums((4 if adds else 2) * n)
        self.add("batchnorm", 3 * n)

    def loss(self, rows, classes):
        """Its terms, their mean, a note of labels that were refused; backward."""
        self.add("loss", rows * classes)
        self.add("loss", 0, times=2)
        self.add("loss", 2 * rows * classes)

    def optimiser(self, reads_and_writes):
        self.add("optimiser", self.parameters * reads_and_writes, value=F)

    def times(self, flops_s):
        """Seconds by kind on the device, and of the host."""
        by = collections.Counter()
        for kind, size, flops in self.launches:
            by[kind] += max(size / BYTES_S, flops / flops_s, LEAST_S)
        return by, (len(self.launches) - self.within) * HOST_S + self.within * ASKED_S

    def total(self, flops_s):
        by, host = self.times(flops_s)
        return max(sum(by.values()), host) + WAIT_S

    def with_graphs(self, flops_s):
        device = sum(max(l.bytes / BYTES_S, l.flops / flops_s, WITHIN_S) for l in self.launches)
        return max(device, GRAPHS_S) + WAIT_S


# ---- the models ----------------------------------------------------------------------------------
def mlp():
    s, rows = Step("MLP", "batch 256, linear 784-1024-1024-10 with relu, SGD with momentum"), 256
    for i, (into, out) in enumerate(((784, 1024), (1024, 1024), (1024, 10))):
        s.linear(rows, into, out, first=i == 0)
        if i < 2:
            s.relu(rows * out)
    s.loss(rows, 10)
    s.optimiser(5)
    return s


def lstm(cudnn):
    n, t, f, h, layers = 64, 64, 128, 256, 2
    s = Step("LSTM by cuDNN" if cudnn else "LSTM without cuDNN",
             f"batch {n}, {t} steps, {layers} layers of {h} over {f} values, a linear layer to 10, Adam")
    for layer in range(layers):
        into = h if layer else f
        s.parameters += 4 * h * (into + h + 2)
        s.product(4 * h, n * t, into)
        s.product(4 * h, n, h, times=t - 1)
        s.add("cells", n * h * 11, times=t)
        s.product(h, n, 4 * h, times=t - 1)
        s.add("cells", n * h * 16, times=t)
        s.product(into, 4 * h, n * t)
        s.product(h, 4 * h, n * t)
        s.add("element-wise", 2 * n * t * h)
        for _ in range(2):
            s.sums(n * t * 4 * h)
        if layer:
            s.product(into, n * t, 4 * h)
    if cudnn:
        s.within = len(s.launches) - 3  # forward, and the two backwards
        for reads_and_writes in (2, 1, 2):  # weights packed, gradients cleared, and unpacked
            s.add("element-wise", reads_and_writes * s.parameters)
    s.linear(n, h, 10)
    s.loss(n, 10)
    s.optimiser(7)
    return s


def resnet50(value=F):
    n, kind = 128, " and `dtype: bf16`" if value == B else ""
    s = Step("ResNet50", f"{n} images of 224 x 224, SGD with momentum{kind}", value)
    if value == B:
        s.add("layouts", n * 3 * 224 * 224 * (F + B), value=1)  # images come in f32, row-major

    def unit(c, k, h, kernel, stride, adds=False, first=False):
        oh = s.conv(n, c, k, h, kernel, stride, first)
        s.batchnorm(n * k * oh * oh, adds)
        s.parameters += 2 * k
        return oh

    h = unit(3, 64, 224, 7, 2, first=True)
    s.add("pools", n * 64 * (h * h + h * h // 4 * 2), times=2)
    h, c = h // 2, 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            unit(c, width, h, 1, 1)
            oh = unit(width, width, h, 3, step)
            unit(width, 4 * width, oh, 1, 1, adds=True)
            if block == 0:
                unit(c, 4 * width, h, 1, step)
            s.add("element-wise", 3 * n * c * h * h)  # the sum of two gradients
            h, c = oh, 4 * width
    s.add("pools", n * c * h * h, times=2)
    s.linear(n, c, 1000)
    s.loss(n, 1000)
    s.optimiser(5)
    return s


# ---- the tables ----------------------------------------------------------------------------------
def predictions():
    yield "| step | launches | GB moved | TFLOP | host asks, ms | f32, ms | TF32, ms | bf16, ms | f32 or bf16 with graphs, ms | longest parts |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for s in (mlp(), lstm(True), lstm(False), resnet50(), resnet50(B)):
        rates = (F32_S, TF32_S, None) if s.value == F else (None, None, BF16_S)
        by, host = s.times(rates[0] or rates[2])
        whole = sum(by.values())
        parts = ", ".join(f"{kind} {100 * t / whole:.0f} %" for kind, t in by.most_common(3))
        moved, flops = (sum(l[i] for l in s.launches) for i in (1, 2))
        steps = " | ".join(f"{1e3 * s.total(rate):.2f}" if rate else "-" for rate in rates)
        yield (f"| {s.name}: {s.what} | {len(s.launches) - s.within} | {moved / 1e9:.3g} | {flops / 1e12:.3g} | {1e3 * host:.2f} | "
               f"{steps} | {1e3 * s.with_graphs(rates[0] or rates[2]):.2f} | {parts} |")


def kernels():
    reports = sorted(glob.glob(os.path.join(ROOT, "build/release/nvcc/kernels/cuda/*.ptxas")))
    if not reports:
        return None
    said = subprocess.run([os.path.join(ROOT, "kernels/cuda/nvidia/spills"), "--table", *reports], stdout=subprocess.PIPE,
                          text=True, check=True)
    return said.stdout.splitlines()


def put(page, word, lines):
    before, rest = page.split(f"<!-- {word} -->\n", 1)
    return before + f"<!-- {word} -->\n" + "".join(l + "\n" for l in lines) + rest[rest.index(f"<!-- /{word} -->"):]


def main():
    if sys.argv[1:] != ["--write"]:
        print("\n".join(predictions()))
        return
    with open(PAGE) as f:
        page = put(f.read(), "predictions", predictions())
    compiled = kernels()
    page = put(page, "kernels", compiled) if compiled else page
    with open(PAGE, "w") as f:
        f.write(page)


main()
