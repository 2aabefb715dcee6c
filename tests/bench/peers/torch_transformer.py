# SPDX-License-Identifier: Apache-2.0
"""A side of bench_transformers.py: training steps of transformers' BertForSequenceClassification on
one thread, with PyTorch's fused attention where it takes dropout, and bf16 by autocast.

usage: torch_transformer.py FOLDER BATCH LENGTH f32|bf16
commands: steps N   milliseconds of each of N steps
"""
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

folder, batch, length, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder, num_labels=2),
                                                       attn_implementation="sdpa").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
ids, labels = torch.randint(model.config.vocab_size, (batch, length)), torch.randint(2, (batch,))


def step():
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    optimizer.step()


print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}), flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line.split()[1])):
        begin = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begin))
    print(json.dumps(times), flush=True)
