# SPDX-License-Identifier: Apache-2.0
"""Cleave checkpoints written from PyTorch's state, and the two models that parity is judged on."""
import hashlib
import importlib.util
import json
import os

import numpy as np
import torch
from torch import nn

from cluster import SEED
from load_checkpoint import cnn, fashion

HERE = os.path.dirname(os.path.abspath(__file__))
EXPORTER = os.path.join(HERE, "../../deploy/export_torch.py")


def _exporter():
    spec = importlib.util.spec_from_file_location("export_torch", EXPORTER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


export = _exporter()


# ---- checkpoints ---------------------------------------------------------------------------------

def write_checkpoint(run_dir, step, stages, cursor, seed=0):
    """RUN/checkpoint-<step>; stages: [({name: array}, {optimiser's name: array}), ...];
    cursor: (epoch, records of it that are used)."""
    folder = os.path.join(run_dir, f"checkpoint-{step}")
    os.makedirs(folder)
    where = {}
    for i, (weights, optimizer) in enumerate(stages):
        for kind, arrays in (("model", weights), ("optimizer", optimizer)):
            name = f"{kind}-{i + 1:05}-of-{len(stages):05}.safetensors"
            export.write_safetensors(os.path.join(folder, name), arrays, {"step": str(step)})
            if kind == "model":
                where.update({key: name for key in arrays})
    total = sum(a.nbytes for weights, _ in stages for a in weights.values())
    dump(folder, "model.safetensors.index.json",
         {"metadata": {"total_size": total}, "weight_map": where})
    dump(folder, "trainer_state.json",
         {"epoch": cursor[0], "index": cursor[1], "global_step": step, "max_steps": 0,
          "seed": str(seed), "extra": {}})
    manifest(folder, step, len(stages))
    return folder


def dump(folder, name, value):
    with open(os.path.join(folder, name), "w") as f:
        json.dump(value, f)


def manifest(folder, step, stages):
    files = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    body = json.dumps({"format": "cleave-checkpoint", "version": 1, "step": step, "stages": stages,
                       "protocol_version": 1, "config_sha256": "", "files": files}, indent=2)
    assert body.endswith("\n}")
    body = body[:-2] + ",\n"
    digest = hashlib.sha256(body.encode()).hexdigest()
    with open(os.path.join(folder, "MANIFEST.json"), "w") as f:
        f.write(body + f'  "sha256": "{digest}"\n}}\n')


# ---- the models ----------------------------------------------------------------------------------

class Case:
    """A model, its data in order, and how both sides train it. `stages`: layers per stage."""

    def __init__(self, folder):
        self.x, self.y = self.make_data(folder)
        self.per_epoch = len(self.x) // self.batch

    def rows(self, step):
        at = step % self.per_epoch * self.batch
        return self.x[at:at + self.batch], self.y[at:at + self.batch]

    def cursor(self, step):
        return step // self.per_epoch, step % self.per_epoch * self.batch

    def initial(self, seed):
        torch.manual_seed(seed)
        return self.net()

    def body(self, weights=None):
        """The session file: one stage on the master, one on each of two workers."""
        text = self.data + "stages:\n"
        at, layers = 0, export.convert(self.net())
        for name, where, n in zip("abc", ("master", "w1", "w2"), self.stages):
            text += f"  - name: {name}\n    at: {where}\n    layers:\n"
            text += "".join(f"      - {export.layer_yaml(l)}\n" for l in layers[at:at + n])
            text += f"    weights: {{file: {weights}}}\n" if weights else ""
            at += n
        return text + (f"loss: {{kind: {self.loss_kind}}}\nprivacy: {{raw_input_leaves: true, release: ['*']}}\n"
                       f"train: {{epochs: 100000, batch: {self.batch}, shuffle: false, seed: {SEED},"
                       f" optimizer: {self.optimizer}}}\n"
                       "checkpoint: {every_steps: 1000000}\nlog: {every: 1000000}\n")

    def split(self, arrays):
        """The tensors of each stage, by the index that their names begin with."""
        ends = np.cumsum(self.stages)
        found = [{} for _ in self.stages]
        for name, a in arrays.items():
            found[int(np.searchsorted(ends, int(name.split(".")[0]), "right"))][name] = a
        return found


class Mlp(Case):
    """16-8-1 with a sigmoid, binary cross entropy on random labels, plain SGD."""
    name, batch, stages, loss_kind = "mlp", 32, (2, 1, 1), "bce"
    optimizer = "{kind: sgd, lr: 0.5}"
    data = "data: {format: npy, root: data, train: [mlp-x.npy, mlp-y.npy]}\n"
    loss = staticmethod(nn.functional.binary_cross_entropy)

    def net(self):
        return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def make_data(self, folder):
        g = torch.Generator().manual_seed(40)
        x = torch.rand([320, 16], generator=g)
        y = torch.randint(0, 2, [320, 1], generator=g).float()
        np.save(os.path.join(folder, "mlp-x.npy"), x.numpy())
        np.save(os.path.join(folder, "mlp-y.npy"), y.numpy())
        return x, y

    def torch_optimizer(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.5)

    def moments(self, net, opt, step):
        """The optimiser's tensors of each stage with parameters."""
        return {}

    def gradient(self, name, before, after):
        """What the step was made from. The rate is a power of two: only the rounding of the new
        weight is lost."""
        return (before[0][name].astype(np.float64) - after[0][name]) / 0.5


class MlpMomentum(Mlp):
    """The same with momentum, so that there is a state and the gradient is read from it."""
    name, optimizer = "mlp-momentum", "{kind: sgd, lr: 0.5, momentum: 0.5}"

    def torch_optimizer(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)

    def moments(self, net, opt, step):
        buffers = {n: opt.state[p].get("momentum_buffer") for n, p in net.named_parameters()}
        return {f"{n}.momentum_buffer": np.zeros(p.shape, np.float32) if buffers[n] is None
                else buffers[n].numpy().copy() for n, p in net.named_parameters()}

    def gradient(self, name, before, after):
        key = name + ".momentum_buffer"
        return after[1][key] - 0.5 * before[1][key].astype(np.float64)


class Cnn(Case):
    """Two convolutions and two linear layers on Fashion-MNIST, cross entropy, Adam."""
    name, batch, stages, loss_kind = "cnn", 64, (3, 3, 4), "cross_entropy"
    optimizer = "{kind: adam, lr: 0.001}"
    data = ("data:\n  format: idx\n  root: /usr/share/datasets/fashion-mnist\n"
            "  train: [train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz]\n"
            "  normalize: {mean: [0.2860], std: [0.3530]}\n  limit_train: 6400\n  limit_by: first\n")
    loss = staticmethod(nn.functional.cross_entropy)

    def net(self):
        return cnn()

    def make_data(self, folder):
        return fashion("train", 6400)

    def torch_optimizer(self, net):
        return torch.optim.Adam(net.parameters(), lr=0.001)

    def moments(self, net, opt, step):
        found = {}
        for name, p in net.named_parameters():
            for key in ("exp_avg", "exp_avg_sq"):
                moment = opt.state[p].get(key)
                found[f"{name}.{key}"] = (np.zeros(p.shape, np.float32) if moment is None
                                          else moment.numpy().copy())
        return found

    def gradient(self, name, before, after):
        """exp_avg' = beta exp_avg + (1 - beta) g, with both factors rounded to f32."""
        key = name + ".exp_avg"
        beta, rest = np.float64(np.float32(0.9)), np.float64(np.float32(0.1))
        return (after[1][key] - beta * before[1][key].astype(np.float64)) / rest
