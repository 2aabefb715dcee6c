#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A session file trains with every optimiser: the same bits for all places of its stages, also when
stopped and resumed; its checkpoints have the moments under PyTorch's names."""
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 12 if LONG else 6
KINDS = {
    "sgd": ("momentum: 0.9, weight_decay: 0.01", 0.05, {"momentum_buffer"}),
    "adam": ("", 0.003, {"exp_avg", "exp_avg_sq"}),
    "adamw": ("weight_decay: 0.1, betas: [0.8, 0.95]", 0.003, {"exp_avg", "exp_avg_sq"}),
    "adagrad": ("lr_decay: 0.01, initial_accumulator_value: 0.1", 0.05, {"sum"}),
    "rmsprop": ("alpha: 0.9, momentum: 0.5, centered: true", 0.001, {"square_avg", "momentum_buffer", "grad_avg"}),
    "adamax": ("weight_decay: 0.01", 0.003, {"exp_avg", "exp_inf"}),
}
cluster = None


def body(kind, at):
    settings, lr, _ = KINDS[kind]
    return (IMAGE_DATA + "stages:\n"
            "  - {name: s0, at: master, layers: [{op: flatten}, {op: linear, out: 24}, {op: relu}]}\n"
            f"  - {{name: s1, at: {at}, layers: [{{op: linear, out: 10}}]}}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 100, max_steps: {STEPS}, batch: 32, seed: 5eed5eed5eed5eed5eed5eed5eed5eed,"
            f" optimizer: {{kind: {kind}, lr: {lr}{', ' + settings if settings else ''}}}}}\n")


def optimiser_state(run):
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", run), STEPS, "optimizer-")


def trains(kind):
    home, log, _ = cluster.trained(f"{kind}-home", body(kind, "master"), STEPS)
    rows = [json.loads(line) for line in log.splitlines()]
    assert rows[-1]["loss"] < rows[0]["loss"], (rows[0], rows[-1])
    away, away_log, _ = cluster.trained(f"{kind}-away", body(kind, "w1"), STEPS)
    assert away == home and away_log == log
    state = optimiser_state(f"{kind}-away")
    assert {name.rsplit(".", 1)[1] for _, name in state if "." in name} == KINDS[kind][2], state.keys()
    session = cluster.session(f"{kind}-resumed", body(kind, "w1"))
    for more in (["--max-steps", "5"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", f"{kind}-resumed"), STEPS) == home
    assert optimiser_state(f"{kind}-resumed") == state


for kind in KINDS:
    def test(kind=kind):
        trains(kind)
    test.__name__ = f"{kind}_trains_and_resumes"
    suite.test(test)

with Cluster(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
