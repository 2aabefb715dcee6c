"""Schedules over real daemons: all synchronous ones give the same bits, and the asynchronous ones
take the same steps as a simulation of them in a few lines of Python."""
import json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 30 if LONG else 23  # an epoch, and in `make test` one step of the next

NET = [
    ["{op: conv2d, out: 6, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}", "{op: maxpool, kernel: 2}"],
    ["{op: conv2d, out: 10, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}", "{op: dropout, p: 0.25}"],
    ["{op: avgpool, kernel: 2}", "{op: flatten}", "{op: linear, out: 24}", "{op: relu}"],
    ["{op: dropout, p: 0.5}", "{op: linear, out: 10}"],
]
# Places of four stages: over three nodes, with the first at the master; in a ring over two workers.
PLACES = {"line": ["master", "w1", "w2", "w2"], "ring": ["w1", "w2", "w1", "w2"]}
cluster = None


def body(places, pipeline, steps=STEPS, stage="", train="clip_grad_norm: 1.0, ", batch=24):
    text = IMAGE_DATA + "privacy: {raw_input_leaves: true}\nstages:\n"
    for i, (at, layers) in enumerate(zip(places, NET)):
        text += f"  - {{name: s{i}, at: {at}, {stage}layers: [{', '.join(layers)}]}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 100, max_steps: {steps}, batch: {batch}, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, {train}"
                   "optimizer: {kind: adam, lr: 0.003}}\n"
                   f"pipeline: {{{pipeline}}}\nlog: {{every: 100}}\ncheckpoint: {{every_steps: 100000}}\n")


def trained(tag, *args, steps=STEPS, **kw):
    return cluster.trained(tag, body(*args, steps=steps, **kw), steps)


SYNCHRONOUS = {
    "gpipe": ("line", "micro_batches: 4, schedule: gpipe", ""),
    "1f1b": ("line", "micro_batches: 4, schedule: 1f1b", ""),
    "textbook": ("line", "micro_batches: 4, schedule: 1f1b, window: textbook", ""),
    "window": ("line", "micro_batches: 4, schedule: 1f1b, window: 3", ""),
    "zb-h1": ("line", "micro_batches: 4, schedule: zb-h1", ""),
    "recompute": ("line", "micro_batches: 4, schedule: 1f1b", "recompute: true, "),
    "recompute-zb": ("line", "micro_batches: 4, schedule: zb-h1", "recompute: true, "),
    "interleaved": ("ring", "micro_batches: 4, schedule: interleaved", ""),
    "ring-zb": ("ring", "micro_batches: 4, schedule: zb-h1", ""),
}


@suite.test
def synchronous_schedules_give_the_same_bits():
    """The net has batch norm and dropout, and gradients are clipped. 512 samples make 21 batches of
    24 and one of 8."""
    reference, log, _ = trained("naive", PLACES["line"], "micro_batches: 4, schedule: naive")
    for tag, (places, pipeline, stage) in SYNCHRONOUS.items():
        weights, other, _ = trained(tag, PLACES[places], pipeline, stage=stage)
        for name in reference:
            assert weights[name] == reference[name], f"{tag}: {name} differs"
        assert other == log, f"{tag}: the loss log differs"


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
