#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a step would take on an H200 by shapes and a roofline alone: predictions, for a measurement
to be held against. Nothing here has been measured.

usage: predict.py          the tables as Markdown
       predict.py --write  puts them into tests/bench/GPU.md, and those of the compiled kernels if
                           there are any (build/release/nvcc)
       predict.py --check [PAGE]      says what of it is stale, and ends with 1 then
       predict.py --launches NETWORK  kernels and products of a step as tests/gpu/speed/steps counts
                                      them: of mlp, or of bert-small-drops with 2 texts of 8 tokens

A launch takes its bytes at the rate of a copy or its multiplications at their rate, whichever is
longer, and never less than a launch does. The host asks for launches one after the other; a step
is the longer of the two sums, and a wait for the loss.
"""
import collections, glob, os, re, subprocess, sys

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
TILE = 64 << 20                 # bytes of attention's scores at a time
F, B = 4, 2                     # bytes of an f32, of a bf16

Launch = collections.namedtuple("Launch", "kind bytes flops")


class Step:
    """The launches of one training step: forward, backward, optimiser. Calls of a library that ask
    for many launches are counted once, and what they ask for in `within`."""

    def __init__(self, name, what, value=F, bf16=False):
        self.name, self.what, self.launches, self.parameters, self.within = name, what, [], 0, 0
        self.value = value  # bytes of one of an image
        self.bf16 = bf16 or value == B  # what products multiply

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

    # Products in bf16 of values in f32: each factor is rounded, in a launch of its own.
    def rounded(self, n):
        self.add("rounding", n * (F + B), value=1)

    def product_of_bf16(self, m, n, k, value=F):
        self.add("products", (m * k + k * n) * B + m * n * value, 2 * m * n * k, value=1)

    def linear_of_bf16(self, rows, into, out):
        """Forward; returns what backward does: weights, bias, and the input's gradient."""
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

    def loss(self, rows, classes, labels=False):
        """The parts of a sum, and its end; backward. Of labels their terms before."""
        self.add("loss", rows * classes)
        self.add("loss", 0, times=2 if labels else 1)
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


def attention(n=64, t=512, h=768, heads=12, back=False):
    s = Step(f"Attention {'backward' if back else 'forward'}", f"{n} sequences of {t} places, {heads} heads of {h // heads}, `dtype: bf16`", bf16=True)
    (s.attention_back if back else s.attention)(n, t, h, heads)
    return s


def block(s, n, t, h, heads, wide):
    """Forward of a block of BERT's encoder; returns its backward."""
    rows, size = n * t, n * t * h
    inputs = [s.linear_of_bf16(rows, h, h) for _ in range(3)]
    s.attention(n, t, h, heads)
    out = s.linear_of_bf16(rows, h, h)
    s.add("element-wise", 3 * size)  # dropout, and what it is added to
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
    """Row numbers of a table: their keys, then exchanges, of which each doubling has one more."""
    doublings = (n - 1).bit_length()
    s.add("sorting", 2 * n)
    s.add("sorting", 4 * n, times=doublings * (doublings + 1) // 2)


def embeddings(s, n, t, h, vocabulary):
    """Forward of tokens, places and types; returns the backward. Types are row 0 at each place,
    whose gradients are the sums of a column."""
    size = n * t * h
    s.parameters += (vocabulary + t + 2) * h
    for table in ("tokens", "types"):
        s.add("embeddings", 2 * size)
        s.add("embeddings", 0)  # a note of numbers that were refused
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
    s.add("moves", 2 * n * h)  # the first place of each
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
    """What the page says otherwise than the sources, by line."""
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
