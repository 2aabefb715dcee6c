#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Transformers: training steps against the newest PyTorch with transformers. harness.py says how
rows are measured; these are processor time of one thread.

usage: bench_transformers.py OUT [--quick] [GROUP...]
  GROUP    short, long; default: both
  --quick  one round each, to see that everything runs; its figures say little
"""
import sys

from harness import main
import transformer_rows

QUICK = "--quick" in sys.argv


def bert(*shape):
    transformer_rows.rows([shape], ("f32", "bf16"), 1 if QUICK else 5, not QUICK)


def short():
    bert(8, 128)


def long():
    bert(2, 512)


if __name__ == "__main__":
    sys.exit(main([short, long], [a for a in sys.argv[2:] if a != "--quick"]))
