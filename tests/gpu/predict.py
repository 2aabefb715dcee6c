#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of a step on an H200 from shapes and a roofline, to compare it with
measurements. Nothing here has been measured.

usage: predict.py          the tables as Markdown
       predict.py --write  puts them into tests/bench/GPU.md, and those of the compiled kernels if
                           there are any (build/release/nvcc)
       predict.py --check [PAGE]      prints the stale lines of the page, and exits with 1 if there
       are any predict.py --launches NETWORK  kernels and products of a step as
       tests/gpu/speed/steps counts
                                      them: of mlp, or of bert-small-drops with 2 texts of 8 tokens

A launch takes the time of its bytes at the rate of a copy or that of its multiplications at their
rate, whichever is longer, and at least LEAST_S. The host starts launches one after the other. A
step is the longer of the device's and the host's sums, and a wait for the loss.
"""
import collections, glob, os, re, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "tests/bench/GPU.md")

# ---- the device: NVIDIA's published numbers of an H200 SXM, and what is assumed of them ----------
BYTES_S = 4.8e12 * 0.75         # bytes a second: our kernels reach three quarters of the peak
# Operations a second of products and convolutions; a multiply-add counts as two.
F32_S, TF32_S, BF16_S = 67e12 * 0.7, 494e12 * 0.5, 989e12 * 0.5
LEAST_S = 2.0e-6                # minimum time of a launch on the device
HOST_S = 4.0e-6                 # time of the host for a launch, in the driver and in our code
# time of the host for a launch that cuDNN makes within a call: only the driver's
ASKED_S = 2.0e-6
WAIT_S = 20e-6                  # wait for the loss, once in a step
# With CUDA graphs: minimum time of a launch in a graph; time of the host for a whole step, which is
# three graphs, the copies before and after them, and the optimiser.
WITHIN_S, GRAPHS_S = 1.0e-6, 60e-6
TILE = 64 << 20                 # bytes of attention's scores that are computed at a time
F, B = 4, 2                     # bytes of an f32, of a bf16

Launch = collections.namedtuple("Launch", "kind bytes flops")


class Step:
    """The launches of one training step: forward, backward, optimiser. A library call with many
    launches counts as one; `within` counts the launches that it makes."""

    def __init__(self, name, what, value=F, bf16=False):
        self.name, self.what, self.launches, self.parameters, self.within = name, what, [], 0, 0
        self.value = value  # bytes of a value of an image
        self.bf16 = bf16 or value == B  # whether factors of products are bf16

    def add(self, kind, values, flops=0, times=1, value=None):
        self.launches += [Launch(kind, values * (value or self.value), flops)] * times

    def weights(self, n):
        """n weights. In bf16 they are rounded once in a step, and their gradient is converted to
        f32."""
        self.parameters += n
        if self.value == B:
            self.add("weights", n * (F + B), value=1, times=2)

    def product(self, m, n, k, times=1):
        self.add("products", m * k + k * n + m * n, 2 * m * n * k, times)

    def sums(self, reads):
        """A column sum: a pass over the values, then the sum of the parts."""
        self.add("sums", reads)
        self.add("sums", 0)

    def linear(self, rows, into, out, first=False):
        self.parameters += into * out + out
        self.product(out, rows, into)
        if not first:
            self.product(into, rows, out)
        self.product(into, out, rows)
        self.sums(rows * out)

    # For products in bf16 of values in f32, a separate launch rounds each factor.
    def rounded(self, n):
        self.add("rounding", n * (F + B), value=1)

    def product_of_bf16(self, m, n, k, value=F):
        self.add("products", (m * k + k * n) * B + m * n * value, 2 * m * n * k, value=1)

    def linear_of_bf16(self, rows, into, out):
        """Adds forward; returns a function that adds backward: gradients of weights, bias and
        input."""
        self.parameters += into * out + out

        def multiply(m, n, k):
            self.rounded(m * k)
            self.rounded(k * n)
            self.product_of_bf16(m, n, k)

        def back():
            multiply(into, out, rows)
            self.sums(rows * out)
            multiply(rows, into, out)
        multiply(rows, out, into)
        return back

    def layernorm(self, rows, width):
        self.parameters += 2 * width
        self.add("norms", 2 * rows * width)

    def layernorm_back(self, rows, width):
        self.sums(2 * rows * width)
        self.add("norms", 3 * rows * width)

    def tiles(self, n, t, heads):
        """Rows of the scores at a time: see kernels/cuda/attention.c."""
        rows = min(max(TILE // (n * heads * t * F), 1), t)
        return [min(rows, t - at) for at in range(0, t, rows)]

    def attention(self, n, t, h, heads):
        self.add("heads", n * t * h * (F + B), value=1, times=3)
        for rows in self.tiles(n, t, heads):
            scores = n * heads * rows * t
            self.add("products", (n * rows * h + n * t * h) * B + scores * F, 2 * scores * h // heads, value=1)
            self.add("weights of attention", scores * (F + B), value=1)
            self.add("products", (scores + n * t * h) * B + n * rows * h * F, 2 * scores * h // heads, value=1)
        self.add("heads", 2 * n * t * h)

    def attention_back(self, n, t, h, heads):
        self.add("heads", n * t * h * (F + B), value=1, times=4)
        for rows in self.tiles(n, t, heads):
            scores, part, whole = n * heads * rows * t, n * rows * h, n * t * h
            self.add("products", (part + whole) * B + scores * F, 2 * scores * h // heads, value=1, times=2)
            self.add("weights of attention", scores * 2 * (F + B), value=1)
            self.add("products", (scores + whole) * B + part * F, 2 * scores * h // heads, value=1)
            self.add("products", (scores + part) * B + 2 * whole * F, 2 * scores * h // heads, value=1, times=2)
        self.add("heads", 2 * n * t * h, times=3)

    def relu(self, n):
        """Adds backward; forward is part of the product before it."""
        self.add("element-wise", 3 * n)

    def conv(self, n, c, k, h, kernel, stride, first=False):
        oh = h // stride
        x, w, y = n * c * h * h, k * c * kernel * kernel, n * k * oh * oh
        self.weights(w)
        for _ in range(2 if first else 3):
            self.add("convolutions", x + w + y, 2 * y * c * kernel * kernel)
        return oh

    def batchnorm(self, n, adds):
        """A pass for the moments, one to apply them; in backward a pass for sums, one for inputs.
        They include the relu and sum after it: the first backward pass reads the output, and writes
        the gradient of the sum."""
        self.sums(n)
        self.add("batchnorm", (3 if adds else 2) * n)
        self.sums((4 if adds else 2) * n)
        self.add("batchnorm", 3 * n)

    def loss(self, rows, classes, labels=False):
        """The parts of a sum, their sum, and backward. With labels, also their terms before."""
        self.add("loss", rows * classes)
        self.add("loss", 0, times=2 if labels else 1)
        self.add("loss", 2 * rows * classes)

    def optimiser(self, reads_and_writes):
        self.add("optimiser", self.parameters * reads_and_writes, value=F)

    def times(self, flops_s):
        """({kind: seconds on the device}, seconds of the host)"""
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
        s.within = len(s.launches) - 3  # those of forward and of the two passes of backward
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


def attention(n=64, t=512, h=768, heads=12, back=False):
    s = Step(f"Attention {'backward' if back else 'forward'}", f"{n} sequences of {t} places, {heads} heads of {h // heads}, `dtype: bf16`", bf16=True)
    (s.attention_back if back else s.attention)(n, t, h, heads)
    return s


def block(s, n, t, h, heads, wide):
    """Adds forward of a block of BERT's encoder; returns a function that adds its backward."""
    rows, size = n * t, n * t * h
    inputs = [s.linear_of_bf16(rows, h, h) for _ in range(3)]
    s.attention(n, t, h, heads)
    out = s.linear_of_bf16(rows, h, h)
    s.add("element-wise", 3 * size)  # dropout and the sum with the residual
    s.layernorm(rows, h)
    wider = s.linear_of_bf16(rows, h, wide)
    s.add("element-wise", 2 * rows * wide)
    narrower = s.linear_of_bf16(rows, wide, h)
    s.add("element-wise", 3 * size)
    s.layernorm(rows, h)

    def back():
        s.layernorm_back(rows, h)
        s.add("element-wise", 2 * size)
        narrower()
        s.add("element-wise", 3 * rows * wide)
        wider()
        s.add("element-wise", 3 * size)  # the sum of two gradients
        s.layernorm_back(rows, h)
        s.add("element-wise", 2 * size)
        out()
        s.attention_back(n, t, h, heads)
        for linear in inputs:
            linear()
            s.add("element-wise", 3 * size)
    return back


def sort(s, n):
    """Sorts row numbers of a table: makes keys, then exchanges them. Each doubling of the length
    adds one more exchange."""
    doublings = (n - 1).bit_length()
    s.add("sorting", 2 * n)
    s.add("sorting", 4 * n, times=doublings * (doublings + 1) // 2)


def embeddings(s, n, t, h, vocabulary):
    """Adds forward of the embeddings of tokens, positions and types; returns a function that adds
    backward. The type is 0 at each position, so the gradients are column sums."""
    size = n * t * h
    s.parameters += (vocabulary + t + 2) * h
    for table in ("tokens", "types"):
        s.add("embeddings", 2 * size)
        s.add("embeddings", 0)  # the record of row numbers that are out of range
        if table == "tokens":
            s.add("embeddings", 2 * size)
    s.add("element-wise", 3 * size)
    s.layernorm(n * t, h)
    s.add("element-wise", size * (2 * F + 1), value=1)

    def back():
        s.add("element-wise", size * (2 * F + 1), value=1)
        s.layernorm_back(n * t, h)
        s.add("copies", 2 * size, times=2)
        s.add("copies", 2 * h)
        s.sums(size)
        s.add("copies", t * h)
        s.sums(size)
        s.add("copies", 2 * size)
        s.add("copies", vocabulary * h)
        sort(s, n * t)
        s.add("embeddings", 2 * size)
    return back


def bert(n=64, t=512, h=768, blocks=12, heads=12, wide=3072, vocabulary=30522, name="BERT-base"):
    s = Step(name, f"{n} sequences of {t} tokens, with dropout, `dtype: bf16`, AdamW", bf16=True)
    backs = [embeddings(s, n, t, h, vocabulary)]
    backs += [block(s, n, t, h, heads, wide) for _ in range(blocks)]
    s.add("moves", 2 * n * h)  # the first token of each text
    pooler = s.linear_of_bf16(n, h, h)
    s.add("element-wise", 2 * n * h)
    labels = s.linear_of_bf16(n, h, 2)
    s.loss(n, 2, labels=True)
    labels()
    s.add("element-wise", 2 * n * h)
    pooler()
    s.add("copies", n * t * h)
    s.add("moves", 2 * n * h)
    for back in reversed(backs):
        back()
    s.optimiser(7)
    return s


# ---- the tables ----------------------------------------------------------------------------------
def predictions():
    yield "| step | launches | GB moved | TFLOP | host asks, ms | f32, ms | TF32, ms | bf16, ms | f32 or bf16 with graphs, ms | longest parts |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for s in (mlp(), lstm(True), lstm(False), resnet50(), resnet50(B), bert(), attention(), attention(back=True)):
        rates = (None, None, BF16_S) if s.bf16 else (F32_S, TF32_S, None)
        by, host = s.times(rates[0] or rates[2])
        whole = sum(by.values())
        parts = ", ".join(f"{kind} {100 * t / whole:.0f} %" for kind, t in by.most_common(3))
        moved, flops = (sum(l[i] for l in s.launches) for i in (1, 2))
        steps = " | ".join(f"{1e3 * s.total(rate):.2f}" if rate else "-" for rate in rates)
        yield (f"| {s.name}: {s.what} | {len(s.launches) - s.within} | {moved / 1e9:.3g} | {flops / 1e12:.3g} | {1e3 * host:.2f} | "
               f"{steps} | {1e3 * s.with_graphs(rates[0] or rates[2]):.2f} | {parts} |")


def kernels():
    """The table of compiled kernels; None where there is no nvcc."""
    built = os.environ.get("CLEAVE_TEST_BIN") or os.path.join(ROOT, "build/release")
    sources = sorted(glob.glob(os.path.join(ROOT, "kernels/cuda/*.cu")))
    reports = [os.path.join(built, "nvcc/kernels/cuda", os.path.basename(s)[:-2] + "ptxas") for s in sources]
    if not all(map(os.path.exists, reports)):
        return None
    said = subprocess.run([os.path.join(ROOT, "kernels/cuda/nvidia/spills"), "--table", *reports], stdout=subprocess.PIPE,
                          text=True, check=True)
    return said.stdout.splitlines()


def part(page, word):
    """The lines between two marks."""
    return re.search(rf"<!-- {word} -->\n(.*?)<!-- /{word} -->", page, re.S)[1].splitlines()


def stale(page):
    """The lines in which the page differs from the sources."""
    for line, written in zip(predictions(), part(page, "predictions")):
        if line != written:
            yield f"predicted now: {line}"
    compiled = kernels()
    if compiled is None:
        return
    now, then = ({line.split("`")[1]: line for line in lines[2:]} for lines in (compiled, part(page, "kernels")))
    yield from (f"a new kernel: {now[name]}" for name in sorted(set(now) - set(then)))
    yield from (f"compiled no more: {name}" for name in sorted(set(then) - set(now)))
    yield from (f"compiled otherwise: {now[name]}" for name in sorted(set(now) & set(then)) if now[name] != then[name])


def put(page, word, lines):
    before, rest = page.split(f"<!-- {word} -->\n", 1)
    return before + f"<!-- {word} -->\n" + "".join(l + "\n" for l in lines) + rest[rest.index(f"<!-- /{word} -->"):]


def launches(network):
    s = {"mlp": mlp, "bert-small-drops": lambda: bert(2, 8, 32, 2, 2, 64)}[network]()
    kinds = collections.Counter(l.kind for l in s.launches)
    return sum(kinds.values()) - kinds["products"] - kinds["copies"], kinds["products"]


def write():
    with open(PAGE) as f:
        page = put(f.read(), "predictions", predictions())
    compiled = kernels()
    page = put(page, "kernels", compiled) if compiled else page
    with open(PAGE, "w") as f:
        f.write(page)


def check(path):
    with open(path) as f:
        lines = list(stale(f.read()))
    if lines:
        sys.exit("\n".join([*lines, f"{os.path.relpath(path, ROOT)} is stale: make all, then tests/gpu/predict.py --write"]))


def main():
    how, rest = (sys.argv + [""])[1], sys.argv[2:]
    if how == "--write":
        write()
    elif how == "--check":
        check(rest[0] if rest else PAGE)
    elif how == "--launches":
        print(*launches(rest[0]))
    else:
        print("\n".join(predictions()))


if __name__ == "__main__":
    main()
