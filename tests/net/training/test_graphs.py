"""Layers that name their inputs: a model with branches, cut at every place over one to three
workers, gives the bits of the unsplit run."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 12 if LONG else 5
DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy")

# Three layers read y, and a much later layer reads x; a gate has one value for each channel; the
# head reads the data again.
NET = [
    "{op: conv2d, out: 6, kernel: 3, pad: 1, name: x}",
    "{op: conv2d, out: 6, kernel: 3, pad: 1, name: f}",
    "{op: batchnorm, name: bn}",
    "{op: add, name: sum, from: [bn, x]}",
    "{op: relu, name: y}",
    "{op: maxpool, kernel: 2, name: narrow}",
    "{op: conv2d, out: 4, kernel: 3, stride: 2, pad: 1, name: wide, from: [y]}",
    "{op: dropout, p: 0.25}",
    "{op: avgpool, kernel: 2, name: far, from: [x]}",
    "{op: globalavgpool, name: gate, from: [y]}",
    "{op: mul, name: near, from: [narrow, gate]}",
    "{op: concat, dim: 1, name: both, from: [narrow, \"7\", far, near]}",
    "{op: relu}",
    "{op: flatten, name: flat}",
    "{op: flatten, name: again, from: [input]}",
    "{op: concat, from: [flat, again]}",
    "{op: linear, out: 10}",
]
cluster = None


def body(cuts, places, transfer="direct", schedule="1f1b", name="s"):
    text = IMAGE_DATA + "stages:\n"
    ends = [*cuts, len(NET)]
    for i, (first, last, at) in enumerate(zip([0, *cuts], ends, places)):
        text += f"  - {{name: {name}{i}, at: {at}, layers: [{', '.join(NET[first:last])}]}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 100, max_steps: {STEPS}, batch: 22, seed: 5eed5eed5eed5eed5eed5eed5eed5eed,"
                   " clip_grad_norm: 1.0, optimizer: {kind: adam, lr: 0.003}}\n"
                   f"pipeline: {{micro_batches: 4, schedule: {schedule}}}\ntransfer: {transfer}\n"
                   "checkpoint: {every_steps: 100000}\nprivacy: {raw_input_leaves: true}\n")


UNSPLIT = {}


def compare(tag, *args, **how):
    if not UNSPLIT:
        UNSPLIT["is"] = cluster.trained("unsplit", body([], ["master"]), STEPS)
    one, one_log, _ = UNSPLIT["is"]
    weights, log, _ = cluster.trained(tag, body(*args, **how), STEPS)
    assert weights.keys() == one.keys(), tag
    for k in one:
        assert weights[k] == one[k], f"{tag}: {k} differs"
    assert log == one_log, f"{tag}: the loss log differs"


@suite.test
def one_cut_anywhere_gives_the_same_bits():
    for k in range(1, len(NET)) if LONG else (1, 4, 6, 11, 15):
        compare(f"cut{k}", [k], ["master", "w1"])


@suite.test
def three_workers_give_the_same_bits():
    for k in range(1, len(NET) - 2) if LONG else (4, 9):
        compare(f"three{k}", [k, k + 1, k + 2], ["master", "w1", "w2", "w3"])
    for transfer in ("direct", "via_master"):
        for schedule in ("gpipe", "1f1b", "zb-h1") if LONG else ("1f1b" if transfer == "direct" else "zb-h1",):
            compare(f"u-{transfer}-{schedule}", [1, 6, 9, 11], ["master", "w1", "w2", "w3", "master"],
                    transfer=transfer, schedule=schedule)


@suite.test
def shipped_session_passes_check_plan_and_train():
    sets = []
    for s in (f"workers.worker-1.address=127.0.0.1:{cluster.ports[0]}", "workers.worker-1.identity=spiffe://test/w1",
              "data.limit_train=256", "data.limit_test=64", "log.every=1",
              *(f"tls.{k}={cluster.dir}/certs/{f}" for k, f in
                (("ca", "ca.pem"), ("cert", "master.pem"), ("key", "master.key")))):
        sets += ["--set", s]
    session = os.path.join(DEPLOY, "sessions/residual.yaml")
    for command, *more in (("check",), ("plan",), ("train", "--max-steps", "2"))[0 if LONG else 1:2 + LONG]:
        done = master(command, session, *sets, *more, cwd=cluster.dir, timeout=240)
        assert done.returncode == 0, (command, done.stdout + done.stderr)
        if command == "plan":
            assert "8 add            sum " in done.stdout, done.stdout


with Cluster(3) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
