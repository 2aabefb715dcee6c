#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/golden/ema.{txt,bin}: averages of weights by torch.optim.swa_utils.AveragedModel.

    make_ema.py

A model of two parameters takes six steps of SGD with momentum in float32. Each parameter is a group
with a learning rate of its own. `plain` has the averages after each step with get_ema_multi_avg_fn,
`warm` those of an avg_fn whose decay in step t = 1, 2, ... is min(decay, (1 + t) / (10 + t));
use_buffers=False. Needs PyTorch 2. X.txt and X.bin are those of make_golden.py.
"""
import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from make_golden import Writer

N, CUT, STEPS, DECAY = 67, 20, 6, 0.9


class Weights(torch.nn.Module):
    def __init__(self, values):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.tensor(v.copy())) for v in (values[:CUT], values[CUT:]))

    def values(self):
        return np.concatenate([self.a.detach().numpy(), self.b.detach().numpy()])


def warm(averaged, current, n):
    decay = min(DECAY, (2 + int(n)) / (11 + int(n)))  # step n + 1
    return torch.lerp(averaged, current, 1 - decay)


def main():
    rng = np.random.Generator(np.random.PCG64(40))
    start = rng.standard_normal(N).astype(np.float32)
    grads = rng.standard_normal((STEPS, N)).astype(np.float32)
    model = Weights(start)
    averages = {"plain": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=False),
                "warm": AveragedModel(model, avg_fn=warm, use_buffers=False)}
    optimiser = torch.optim.SGD([{"params": [model.a]}, {"params": [model.b], "lr": 0.02}], lr=0.05, momentum=0.9)
    after = {name: [] for name in ("after", *averages)}
    for g in grads:
        model.a.grad, model.b.grad = torch.tensor(g[:CUT]), torch.tensor(g[CUT:])
        optimiser.step()
        after["after"].append(model.values())
        for name, average in averages.items():
            average.update_parameters(model)
            after[name].append(average.module.values())
    out = Writer("ema")
    out.add("ema.start", start)
    out.add("ema.grads", grads)
    for name, rows in after.items():
        out.add(f"ema.{name}", np.stack(rows))
    out.close()


main()
