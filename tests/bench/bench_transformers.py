#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Transformers: training steps against the newest PyTorch with transformers and peft. harness.py
says how rows are measured. Except for `split`, rows are in processor time of one thread.

usage: bench_transformers.py OUT [--quick] [GROUP...]
  GROUP    a function below; default: all
  --quick  one round each, to see that everything runs; its figures are not exact
"""
import sys

from harness import OUT, main
from machine import print_machine
import transformer_rows as rows

QUICK = "--quick" in sys.argv
ROUNDS = 1 if QUICK else 5


def measured(name, *groups):
    if rows.with_peers(name, not QUICK):
        for group, *arguments in groups:
            group(*arguments, ROUNDS)


def attention():
    measured("attention", (rows.attention, (8, 128)), (rows.attention, (2, 512)))


def short():
    measured("bert", (rows.bert, (8, 128)))


def long():
    measured("bert", (rows.bert, (2, 512)))


def gpt2():
    measured("gpt2_lora", (rows.causal, "gpt2", (4, 256), ["c_attn"]))


def qwen2():
    measured("qwen2_lora", (rows.causal, "qwen2", (1, 512), ["q_proj", "v_proj"]))


def packed():
    """All blocks at full width, and therefore few rounds."""
    rows.pages(min(ROUNDS, 2))


def split():
    measured("layoutlm", (rows.split, (8, 128)))


if __name__ == "__main__":
    print_machine(OUT)
    sys.exit(main([attention, short, long, gpt2, qwen2, packed, split], [a for a in sys.argv[2:] if a != "--quick"]))
