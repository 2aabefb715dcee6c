# SPDX-License-Identifier: Apache-2.0
"""A side of bench_transformers.py: training steps of a model of transformers, with random weights
and records, AdamW, PyTorch's fused attention where it takes dropout, and bf16 by autocast. With
adapters of peft; their base is bf16, too, where bf16 is asked for.

usage: torch_transformer.py JSON
  of a Task in transformer_rows.py: folder, head, batch, length, dtype, threads, lora
commands: steps N   milliseconds of each of N steps
"""
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

LABELS = {"sequence": 2, "token": 5}
task = json.loads(sys.argv[1])
batch, length, bf16 = task["batch"], task["length"], task["dtype"] == "bf16"
torch.set_num_threads(task["threads"])


def make():
    config = transformers.AutoConfig.from_pretrained(task["folder"])
    config.num_labels = LABELS.get(task["head"], 2)
    config.use_cache = False
    kind = {"sequence": "AutoModelForSequenceClassification", "token": "AutoModelForTokenClassification",
            "causal": "AutoModelForCausalLM"}[task["head"]]
    try:
        made = getattr(transformers, kind).from_config(config, attn_implementation="sdpa")
    except ValueError:  # of LayoutLM, which has the spelled out one alone
        made = getattr(transformers, kind).from_config(config)
    if not task["lora"]:
        return made
    from peft import LoraConfig, get_peft_model
    if bf16:
        made = made.to(torch.bfloat16)
    return get_peft_model(made, LoraConfig(**task["lora"]))


def records(config):
    ids = torch.randint(config.vocab_size, (batch, length))
    if task["head"] == "sequence":
        return {"input_ids": ids, "labels": torch.randint(2, (batch,))}
    if task["head"] == "causal":
        return {"input_ids": ids, "labels": ids}
    begin = torch.randint(500, (batch, length, 2))
    return {"input_ids": ids, "labels": torch.randint(LABELS["token"], (batch, length)),
            "bbox": torch.cat((begin, begin + torch.randint(1, 500, begin.shape)), 2)}


torch.manual_seed(7)
model = make().train()
learning = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(learning, lr=2e-5, fused=True)
inputs = records(model.config)


def step():
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(**inputs).loss
    loss.backward()
    optimizer.step()


print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()),
                  "learning": sum(p.numel() for p in learning)}), flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line.split()[1])):
        begin = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begin))
    print(json.dumps(times), flush=True)
