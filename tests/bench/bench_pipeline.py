#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Pipelines: ResNet50 in two modules against PyTorch, split and unsplit, and schedules against
their formulas and the simulator. harness.py says how rows are measured.

usage: bench_pipeline.py OUT [--quick] [GROUP...]
  GROUP    resnet, resnet32, simulated, memory, bf16, bubbles, links; default: all
  --quick  a fraction of the rounds, to see that everything runs; its figures are not exact
"""
import sys

import resnet_rows
import schedule_rows
import torch_peers
from harness import OUT, PYTHON, main
from machine import print_machine

QUICK = "--quick" in sys.argv


def either(quick, thorough):
    return quick if QUICK else thorough


faster = {"1.13": PYTHON}  # the PyTorch that won with 16


def resnet():
    pythons = torch_peers.pythons(not QUICK)
    name = resnet_rows.tutorial(16, either(1, 5), pythons)
    faster.clear()
    faster[name] = pythons[name]


def resnet32():
    """Only against the faster PyTorch: both together would take more memory than a machine may
    have."""
    resnet_rows.tutorial(32, either(1, 3), faster)


def simulated():
    resnet_rows.simulated_rows()


def memory():
    resnet_rows.memory_rows(either((8,), (1, 8)))


def bf16():
    resnet_rows.bf16_rows(either(1, 5), torch_peers.pythons(not QUICK))


def bubbles():
    schedule_rows.bubble_rows(either((2,), (2, 3, 4, 6, 8)))


def links():
    chosen = either(schedule_rows.LINKS[::4], schedule_rows.LINKS)
    schedule_rows.link_rows(chosen, either(8, 32), either(1, 3))


if __name__ == "__main__":
    print_machine(OUT)
    groups = [resnet, simulated, memory, bf16, bubbles, links]
    groups[1:1] = [] if QUICK else [resnet32]
    sys.exit(main(groups, [a for a in sys.argv[2:] if a != "--quick"]))
