#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/golden/seeds.{txt,bin}: the programs of the seeds as PyTorch runs them.

The programs under tests/seeds read them, take as many steps as they hold and compare. Short runs
are checked in; `make_seeds.py --full FOLDER` writes whole runs, as `make parity` does.
Of seed 002 the notebook's numbers (torch.manual_seed(40), cells in order) are in the file; all
larger data and weights are functions of (stream, index), in seed_numbers.py and tests/seeds/seed.h,
so that only what PyTorch made of them is stored. Layout of the files: see make_golden.py.

Seed 002 runs chaotically after some thousand iterations, and whether one of its programs does is
measured: full runs have PERTURBED runs beside them whose weights move by up to STEP_LIMIT of
themselves after each step. Where those agree, `final` is the range of their last losses, and a
program has to end there: no step of its own may be further than that from PyTorch's. Where they do
not, the end says nothing. All four have ten steps from PyTorch's weights at PLACES places along its
run, sets called NAME.0, NAME.1, ...: `first` is the iteration they begin with, and a parameter has
one more dimension, its values before every iteration and after the last; before every forward pass
of its stage in the pipeline.
"""
import itertools
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import seed003
import seed_numbers as numbers
from make_golden import Writer

PERTURBED, STEP_LIMIT = 10, 1e-6
AGREE = 1e-3  # runs agree if their last losses differ by at most this share of the smallest
PLACES, PLACE_STEPS = 20, 10

# ---- numbers that C makes too --------------------------------------------------------------------

def normal(stream, shape):
    return torch.from_numpy(numbers.normal(stream, shape))


def classes(stream, n, n_classes):
    return torch.from_numpy(numbers.classes(stream, n, n_classes))


def fill(*modules):
    """Parameters in the modules' order: an embedding gets normal numbers, the rest uniform ones
    within 1 / sqrt(inputs of the layer), of an LSTM within 1 / sqrt(its width)."""
    stream = numbers.WEIGHTS
    for layer in (l for m in modules for l in m.modules()):
        for name, p in layer.named_parameters(recurse=False):
            if isinstance(layer, nn.Embedding):
                value = normal(stream, p.shape)
            else:
                fan = layer.hidden_size if isinstance(layer, nn.LSTM) else layer.weight[0].numel()
                value = torch.from_numpy(numbers.uniform(stream, p.shape, fan))
            p.data.copy_(value)
            stream += 1


def train(parts, optimizer, x, y, criterion, steps):
    """Trains on one batch repeatedly. Returns the losses and the norms of the first step's
    gradients."""
    fill(*parts)
    net = nn.Sequential(*parts)
    opt, losses = optimizer(net.parameters()), []
    for step in range(steps):
        opt.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        if step == 0:
            norms = torch.stack([p.grad.double().norm() for p in net.parameters()]).float()
        opt.step()
        losses.append(loss.item())
    return {"losses": np.float32(losses), "gradient_norms": norms}


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.001)


# ---- seed 001 ------------------------------------------------------------------------------------

def seed001_two_part_cnn(full):
    """The original program gives fc1 16 * 16 * 16 inputs, which fits images of 32 x 32, but draws
    images of 64 x 64, and so it fails. Here fc1 has the 16 * 32 * 32 inputs that such images
    give."""
    parts = (nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
             nn.Sequential(nn.Flatten(), nn.Linear(16 * 32 * 32, 10)))
    x, y = normal(numbers.DATA, (64, 3, 64, 64)), classes(numbers.LABELS, 64, 10)
    return train(parts, adam, x, y, nn.CrossEntropyLoss(), 20 if full else 3)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)

    def forward(self, x):
        return self.lstm(self.embedding(x))[0]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.linear = nn.Linear(64, 32)

    def forward(self, x):
        return self.linear(self.lstm(x)[0])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 10)

    def forward(self, x):
        return self.linear(torch.mean(x, dim=1))


def seed001_three_part_lstm(full):
    x, y = classes(numbers.DATA, 32 * 20, 100).reshape(32, 20), classes(numbers.LABELS, 32, 10)
    parts = (Encoder(), Decoder(), Classifier())
    return train(parts, adam, x, y, nn.CrossEntropyLoss(), 100 if full else 10)


class Halve(nn.Module):
    def forward(self, x):
        return x.float() / 2.0


def seed001_cpu_gpu_hybrid(full):
    x, y = normal(numbers.DATA, (32, 10)), normal(numbers.LABELS, (32, 10))
    return train((Halve(), nn.Linear(10, 10)), adam, x, y, nn.MSELoss(), 1000 if full else 50)


# ---- seed 002 ------------------------------------------------------------------------------------

LAYER_1_IN, LAYER_1_OUT, LAYER_2_OUT, BATCH, DATASET, LR = 16, 8, 1, 32, 320, 0.5


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(LAYER_1_IN, LAYER_1_OUT)
        self.w2 = nn.Linear(LAYER_1_OUT, LAYER_2_OUT)

    def forward(self, x):
        return torch.sigmoid(self.w2(torch.relu(self.w1(x))))


class Moved(torch.optim.SGD):
    """SGD that adds noise after each step: each number changes by up to STEP_LIMIT of itself."""

    def __init__(self, parameters, lr, noise):
        super().__init__(parameters, lr=lr)
        self.noise = noise

    @torch.no_grad()
    def step(self):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.mul_(1 + STEP_LIMIT * (2 * torch.rand(p.shape, generator=self.noise) - 1))


class Notebook:
    """The numbers of the notebook's cells, drawn in the notebook's order. first: the iteration that
    a run begins with. rate: a factor of every learning rate. noise: the generator of a perturbed
    run."""

    def __init__(self, first=0, rate=1, noise=None):
        torch.manual_seed(40)
        self.x = torch.rand([DATASET, 16])
        self.target = torch.randint(0, 2, [DATASET, 1], dtype=torch.float32)
        self.single, self.parallel, self.whole = MLP(), MLP(), MLP()
        half = LAYER_1_OUT // 2
        self.halves = [nn.Linear(LAYER_1_IN, half), nn.Linear(LAYER_1_IN, half),
                       nn.Linear(half, LAYER_2_OUT), nn.Linear(half, LAYER_2_OUT, bias=False)]
        with torch.no_grad():
            for k in range(2):
                part = slice(k * half, (k + 1) * half)
                self.halves[k].weight.copy_(self.whole.w1.weight[part])
                self.halves[k].bias.copy_(self.whole.w1.bias[part])
                self.halves[2 + k].weight.copy_(self.whole.w2.weight[:, part])
            self.halves[2].bias.copy_(self.whole.w2.bias)
        self.stages = [nn.Linear(16, 8), nn.Linear(8, 1)]
        self.first, self.rate, self.noise = first, rate, noise
        # called before iteration i, for the parameters whose names begin with prefix
        self.visit = lambda i, prefix: None

    def rows(self, i, size=BATCH):
        """The notebook's slice: (i + 1) * size % DATASET is 0 at the end, and the batch empty."""
        part = slice(i * size % DATASET, (i + 1) * size % DATASET)
        return self.x[part], self.target[part]

    def iterations(self, n):
        for i in range(self.first, self.first + n):
            self.visit(i, "")
            yield i

    def sgd(self, parameters, lr=LR):
        lr *= self.rate
        return Moved(parameters, lr, self.noise) if self.noise else torch.optim.SGD(parameters, lr=lr)


def single(book, n):
    opt, losses = book.sgd(book.single.parameters()), []
    for i in book.iterations(n):
        x, target = book.rows(i)
        loss = F.binary_cross_entropy(book.single(x), target)
        opt.zero_grad()
        loss.backward()
        if len(x) == 0:  # PyTorch: the mean of nothing is nan, its gradients are zeros, not nan
            assert loss.isnan() and all(p.grad.eq(0).all() for p in book.single.parameters())
        opt.step()
        losses.append(loss.item())
    return np.float32(losses)


def data_parallel(book, n):
    """Both copies hold the same weights, so one model gives the gradients of both."""
    parameters, losses = list(book.parallel.parameters()), []
    opt = book.sgd(parameters)
    for i in book.iterations(n):
        both = [F.binary_cross_entropy(book.parallel(x), target)
                for x, target in (book.rows(i), book.rows(i + 1))]
        grads = [torch.autograd.grad(loss, parameters) for loss in both]
        for p, a, b in zip(parameters, *grads):
            p.grad = a + b
        opt.step()
        losses.append([loss.item() for loss in both])
    return np.float32(losses)


def tensor_parallel(book, n):
    a, b, c, d = book.halves
    opt = book.sgd([p for w in book.halves for p in w.parameters()], 2 * LR)
    losses = []
    for i in book.iterations(n):
        x, target = book.rows(i, 2 * BATCH)
        h = torch.cat([torch.relu(a(x)), torch.relu(b(x))], axis=1)
        y = torch.sigmoid(c(h[:, :4]) + d(h[:, 4:]))
        loss = F.binary_cross_entropy(y, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return np.float32(losses)


def pipeline(book, n):
    """The notebook's loop with its queues; losses by batch. As in the notebook, a batch that
    would end at row 0 ends one row before the last. Batches whose backward the loop does not reach
    have no loss. A run that begins at a later batch begins with empty queues too."""
    stages = book.stages
    opts = [book.sgd(s.parameters()) for s in stages]
    forward_0, forward_1, losses = True, False, []
    to_stage_1, in_stage_1, to_stage_0 = [], [], []
    batch = 0
    while batch < n:
        if forward_0:
            number = book.first + batch
            book.visit(number, "w1.")
            start, end = number * BATCH % DATASET, (number + 1) * BATCH % DATASET or -1
            to_stage_1.append((torch.relu(stages[0](book.x[start:end])), book.target[start:end]))
            batch += 1
        elif to_stage_0:
            out = to_stage_0.pop(0)
            stages[0].zero_grad()
            out.backward(gradient=out.grad)
            opts[0].step()
        if forward_1:
            book.visit(None, "w2.")
            out, target = to_stage_1.pop(0)
            in_stage_1.append((torch.sigmoid(stages[1](out)), out, target))
        elif in_stage_1:
            stages[1].zero_grad()
            y, out, target = in_stage_1.pop(0)
            loss = F.binary_cross_entropy(y, target)
            loss.backward(inputs=[stages[1].weight, stages[1].bias, out], retain_graph=True)
            losses.append(loss.item())
            to_stage_0.append(out)
            opts[1].step()
        if batch > 2:
            forward_0 = not forward_0
        forward_1 = not forward_1
    return np.float32(losses)


# name: (run, iterations of a whole run, models by the prefix of their parameters' names)
SEED002 = {
    "seed002_single": (single, 10001, lambda b: {"": b.single}),
    "seed002_data_parallel": (data_parallel, 5001, lambda b: {"": b.parallel}),
    "seed002_tensor_parallel": (tensor_parallel, 5001, lambda b: dict(
        zip(("w1_0.", "w1_1.", "w2_0.", "w2_1."), b.halves))),
    "seed002_pipeline": (pipeline, 10000, lambda b: {"w1.": b.stages[0], "w2.": b.stages[1]}),
}


def last_loss(losses):
    """The last loss; of data parallel the mean of both copies. Empty batches have no loss."""
    return float([v for v in losses.reshape(len(losses), -1).mean(1) if v == v][-1])


def weights(name, book):
    """{name of the parameter: a copy of it}"""
    return {prefix + key: p.detach().clone() for prefix, model in SEED002[name][2](book).items()
            for key, p in model.named_parameters()}


def perturbed(name, k):
    """The last loss of perturbed run number k, in which noise follows every step."""
    torch.set_num_threads(1)
    run, n, _ = SEED002[name]
    return last_loss(run(Notebook(noise=torch.Generator().manual_seed(k)), n))


def spread(ends):
    return (max(ends) - min(ends)) / min(ends)


def whole_run(name):
    """(losses, [(iteration, weights before it)] at PLACES iterations) of PyTorch's run."""
    run, n, _ = SEED002[name]
    wanted = {k * (n - 2 * PLACE_STEPS) // (PLACES - 1) for k in range(PLACES)}
    book, found = Notebook(), []
    book.visit = lambda i, _: found.append((i, weights(name, book))) if i in wanted else None
    return run(book, n), found


def from_place(name, first, state, rate=1):
    """PyTorch's run from iteration `first` with weights `state`, until PLACE_STEPS iterations had
    rows: some batches are empty."""
    run, _, models = SEED002[name]
    for n in itertools.count(PLACE_STEPS):
        book, states = Notebook(first, rate), {key: [] for key in state}
        for prefix, model in models(book).items():
            model.load_state_dict({k: state[prefix + k] for k in model.state_dict()})
        keep = lambda _, prefix: [states[key].append(value) for key, value in
                                  weights(name, book).items() if key.startswith(prefix)]
        book.visit = keep
        losses = run(book, n)
        if np.isfinite(losses.reshape(len(losses), -1)).any(1).sum() == PLACE_STEPS:
            break
    keep(None, "")
    return {"first": np.float32([first]), "losses": losses,
            **{key: torch.stack(values) for key, values in states.items()}}


def seed002(name, full):
    """{name of a set: its tensors} of a program."""
    run, n, _ = SEED002[name]
    found = weights(name, Notebook())
    if not full:
        return {name: {**found, "losses": run(Notebook(), 500)}}
    found["losses"], states = whole_run(name)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        ends = list(pool.map(perturbed, [name] * PERTURBED, range(PERTURBED)))
    print(f"{name}: {last_loss(found['losses']):.4f}; perturbed:", *(f"{e:.4f}" for e in sorted(ends)),
          flush=True)
    found["ends"] = np.float32(ends)
    if spread(ends) <= AGREE:
        found["final"] = np.float32([min(ends), max(ends)])
    return {name: found, **{f"{name}.{k}": from_place(name, *at) for k, at in enumerate(states)}}


# ---- seed 003 ------------------------------------------------------------------------------------

def seed003_rpc_pipeline(full):
    return seed003.figures(seed003.REAL if full else seed003.SMALL)


# ---- seed 004 ------------------------------------------------------------------------------------

def seed004_spanning_backward(full):
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(1))
    fill(net)
    loss = F.nll_loss(net(normal(numbers.DATA, (24, 16))), classes(numbers.LABELS, 24, 10))
    loss.backward()
    return {"losses": np.float32([loss.item()]),
            **{name: p.grad for name, p in net.named_parameters()}}


# ---- the files -----------------------------------------------------------------------------------

OTHERS = [seed001_two_part_cnn, seed001_three_part_lstm, seed001_cpu_gpu_hybrid,
          seed004_spanning_backward]


def collect(full, more=(seed003_rpc_pipeline,)):
    """{name of a set: its tensors} of PyTorch's runs of all programs."""
    torch.set_num_threads(1)
    found = {run.__name__: run(full) for run in (*OTHERS, *more)}
    book = Notebook()
    found["seed002"] = {"x": book.x, "target": book.target}
    for name in SEED002:
        found.update(seed002(name, full))
    return found


def write(folder, found):
    w = Writer(os.path.join(folder, "seeds"))
    for name, tensors in sorted(found.items()):
        for what, value in tensors.items():
            w.add(f"{name}.{what}", value)
    w.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--full"]:
        write(sys.argv[2], collect(full=True))
    else:
        write(HERE, collect(full=False))
