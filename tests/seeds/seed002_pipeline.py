# SPDX-License-Identifier: Apache-2.0
"""Seed 002 in Python, pipeline: two stages with queues between them. A batch's gradients come back
to stage 0 when that has computed later batches, so each batch is a cleave.Batch of its own.

usage: seed002_pipeline.py SESSION.yaml [ITERATIONS]
"""
import sys

import cleave
import torch
from torch import nn, rand, randint

torch.manual_seed(40)
batch_size, dataset_size, lr = 32, 320, .5
x = rand([dataset_size, 16])
target = randint(0, 2, [dataset_size, 1], dtype=torch.float32)
loss = nn.BCELoss()

with cleave.open(sys.argv[1]):
    stages = [cleave.Remote(nn.Sequential(nn.Linear(16, 8), nn.ReLU()), at="w1", example=x[:batch_size]),
              cleave.Remote(nn.Sequential(nn.Linear(8, 1), nn.Sigmoid()), at="w2", example=torch.zeros(batch_size, 8))]
    optimizers = [cleave.Optimizer(torch.optim.SGD, s, lr=lr) for s in stages]
    stage_0_backward_queue, stage_1_forward_queue, stage_1_backward_queue = [], [], []
    forward_stage = [True, False]
    batch_idx = 0
    while batch_idx < (int(sys.argv[2]) if len(sys.argv) > 2 else 10000):
        # node 0
        if forward_stage[0]:
            start = batch_idx * batch_size % dataset_size
            end = (batch_idx + 1) * batch_size % dataset_size or -1
            batch = cleave.Batch()
            with batch:
                output = stages[0](x[start:end, :])
            stage_1_forward_queue.append((batch, output, target[start:end, :]))
            if batch_idx % 1000 == 3:
                print(f"loss at iteration {batch_idx}: {batch_loss.item():.3f}")
            batch_idx += 1
        elif stage_0_backward_queue:
            batch, output, gradient = stage_0_backward_queue.pop(0)
            with batch:
                stages[0].zero_grad()
                output.backward(gradient=gradient)
                optimizers[0].step()

        # node 1
        if forward_stage[1]:
            batch, output, batch_target = stage_1_forward_queue.pop(0)
            received = output.detach().requires_grad_()
            stage_1_backward_queue.append((batch, output, received, stages[1](received), batch_target))
        elif stage_1_backward_queue:
            batch, output, received, y, batch_target = stage_1_backward_queue.pop(0)
            stages[1].zero_grad()
            batch_loss = loss(y, batch_target)
            batch_loss.backward()
            stage_0_backward_queue.append((batch, output, received.grad))
            optimizers[1].step()

        # at first, there is nothing to go back
        if batch_idx > 2:
            forward_stage[0] = not forward_stage[0]
        else:
            print(f"Filling pipeline to start, batch {batch_idx - 1}")
        forward_stage[1] = not forward_stage[1]
    print("last:", batch_loss.item())
