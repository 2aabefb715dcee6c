"""Convolutions of every kind in sessions: dilated, over images of one row, transposed, with group
normalisation between them; over real daemons, on processors and on the simulated device."""
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *
from processor import lacks_bf16

lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
suite = Suite()
STEPS = 4
NET = [
    ["{op: conv2d, out: 4, kernel: 3, pad: 2, dilation: 2}", "{op: groupnorm, groups: 2}", "{op: relu}"],
    ["{op: conv_transpose2d, out: 3, kernel: 3, stride: 2, pad: 1, output_pad: 1}", "{op: relu}",
     "{op: reshape, shape: [3, -1]}", "{op: conv1d, out: 4, kernel: 5, stride: 3, dilation: 2}"],
    ["{op: permute, order: [2, 1]}", "{op: layernorm}", "{op: permute, order: [2, 1]}",
     "{op: conv_transpose1d, out: 2, kernel: 4, stride: 2}", "{op: flatten}", "{op: linear, out: 10}"],
]


def body(places, dtype):
    text = IMAGE_DATA + "stages:\n"
    for i, (at, layers) in enumerate(zip(places, NET)):
        text += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(layers)}]}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 1, max_steps: {STEPS}, batch: 12, seed: {SEED}, dtype: {dtype},"
                   " optimizer: {kind: adam, lr: 0.003}}\n"
                   "pipeline: {micro_batches: 2}\nlog: {every: 1}\ncheckpoint: {every_steps: 100000}\n")


def trained(tag, places, device="cpu", dtype="f32"):
    with Cluster(2, limits=f"device: {device}\n") as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        weights, log, _ = c.trained(tag, body(places, dtype), STEPS)
        return weights, [json.loads(line)["loss"] for line in log.splitlines()]


WHOLE = {}


def whole():
    if not WHOLE:
        WHOLE["is"] = trained("whole", ["master"] * 3)
    return WHOLE["is"]


@suite.test
def split_run_gives_the_same_bits_as_unsplit():
    assert trained("split", ["master", "w1", "w2"]) == whole()


@suite.test
def device_losses_are_close_to_the_processors():
    weights, losses = trained("device", ["master", "w1", "w1"], "cuda")
    assert weights != whole()[0], "the device computed nothing"
    assert all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(losses, whole()[1])), (losses, whole()[1])


@suite.long
def device_losses_in_bf16_are_close_to_f32():
    if lacks_bf16():
        return lacks_bf16()
    weights, losses = trained("short", ["master", "w1", "w2"], "cuda", "bf16")
    again = trained("again", ["master", "w2", "w1"], "cuda", "bf16")
    assert (weights, losses) == again, (losses, again[1])
    assert all(0 < abs(a - b) < 0.03 * abs(b) for a, b in zip(losses, whole()[1])), (losses, whole()[1])


suite.main()
