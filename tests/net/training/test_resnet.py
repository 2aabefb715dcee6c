"""A ResNet over real daemons, cut by the names of its blocks: the bits of the unsplit run, from the
seed and from a weights file; and the error for a cut at a wrong place."""
import json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 3
DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy")

CUTS = {
    "unsplit": [("master", "conv1..fc")],
    "three_nodes": [("master", "conv1..layer1.0"), ("w1", "layer1.1..layer2"),
                    ("w2", "layer3"), ("w1", "layer4..fc")],
    "by_number": [("master", "0..3"), ("w2", "4..fc")],
    "inside_a_block": [("master", "conv1..layer2.1.bn1"), ("w1", "layer2.1.relu1..fc")],
    "u_shape": [("master", "conv1..layer3.0"), ("w1", "layer3.1..layer4.0"), ("master", "layer4.1..fc")],
}
cluster = None


def body(stages, weights=None, data="data"):
    text = (f"data: {{format: npy, root: {data}, train: [train-x.npy, train-y.npy]}}\n"
            "model: {arch: resnet18, classes: 10}\nstages:\n")
    for i, (at, layers) in enumerate(stages):
        init = f", weights: {{file: {weights}}}" if weights else ""
        text += f"  - {{name: s{i}, at: {at}, layers: {layers}{init}}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 9, max_steps: {STEPS}, batch: 8, seed: 5eed5eed5eed5eed5eed5eed5eed5eed,"
                   " optimizer: {kind: sgd, lr: 0.01, momentum: 0.9}}\n"
                   "pipeline: {micro_batches: 2, schedule: 1f1b}\ntransfer: direct\n"
                   "log: {every: 100}\ncheckpoint: {every_steps: 1000}\n")


def trained(tag, stages, weights=None):
    found, log, _ = cluster.trained(tag, body(stages, weights), STEPS)
    return found, [json.loads(line)["loss"] for line in log.splitlines()]


@suite.test
def every_cut_gives_the_same_bits():
    want, losses = trained("unsplit", CUTS["unsplit"])
    assert len(want) == 122 and len(losses) == STEPS
    counted = want["layer3.0.downsample.1.num_batches_tracked"][2]
    assert int.from_bytes(counted, "little") == 2 * STEPS
    for tag in list(CUTS)[1:] if LONG else ("three_nodes",):
        found, their_losses = trained(tag, CUTS[tag])
        assert found.keys() == want.keys(), found.keys() ^ want.keys()
        different = [n for n in want if found[n] != want[n]]
        assert not different and their_losses == losses, (tag, different[:3])


@suite.long
def state_dict_loads_with_the_same_bits_in_any_placement():
    """Training continues from the run's own checkpoint as one file for all stages, for all their
    places."""
    folder = os.path.join(cluster.dir, "runs", "unsplit", f"checkpoint-{STEPS}")
    weights = os.path.join(folder, "model-00001-of-00001.safetensors")
    one, losses = trained("again", CUTS["unsplit"], weights)
    three, their_losses = trained("again3", CUTS["three_nodes"], weights)
    assert one == three and losses == their_losses
    start = checkpoint_tensors(os.path.join(cluster.dir, "runs", "unsplit"), STEPS)
    assert one["bn1.num_batches_tracked"][2][0] == 4 * STEPS, "the counters went on"
    assert start["fc.weight"] != one["fc.weight"]


def refused(stages, says):
    session = cluster.session("wrong", body(stages))
    for command in ("check", "plan", "train"):
        done = master(command, session, cwd=cluster.dir)
        assert done.returncode == 3 and re.search(says, done.stderr), (command, done.stderr)


@suite.test
def wrong_cut_error_names_the_fix():
    refused([("master", "conv1..layer2"), ("w1", "layer4..fc")],
            r"stage 's1' starts with layer 50 \('layer4'\), but layer 34 \('layer3'\) is next")
    refused([("master", "conv1..layr2"), ("w1", "layer3..fc")], r"'layr2', did you mean 'layer2'\?")
    refused([("master", "conv1..layer2"), ("w1", "layer3..avgpool")],
            r"the stages end with layer 66 \('avgpool'\), the model with layer 68 \('fc'\)")


def shipped(name, *sets):
    """deploy/sessions/NAME over this cluster, whose workers know each other by other names."""
    sets += ("transfer=via_master",) + tuple(f"tls.{k}={cluster.dir}/certs/{f}" for k, f in
                  (("ca", "ca.pem"), ("cert", "master.pem"), ("key", "master.key")))
    for i, port in enumerate(cluster.ports, 1):
        sets += (f"workers.worker-{i}.address=127.0.0.1:{port}",
                 f"workers.worker-{i}.identity=spiffe://test/w{i}")
    args = [os.path.join(DEPLOY, "sessions", name + ".yaml")]
    for s in sets:
        args += ["--set", s]
    for command in ("check", "plan", "train"):
        done = master(command, *args, *(["--max-steps", "2"] if command == "train" else []),
                      cwd=cluster.dir, timeout=240)
        assert done.returncode == 0, (command, done.stdout + done.stderr)
    return done.stdout


@suite.long
def tutorial_in_two_stages_gives_the_same_losses():
    data = os.path.join(cluster.dir, "random")
    made = run(sys.executable, os.path.join(DEPLOY, "random_data.py"), data, "--samples", "16",
               "--shape", "3", "32", "32", "--classes", "1000")
    assert made.returncode == 0, made.stderr
    losses = []
    for name, places in (("away", ()), ("home", ("stages.0.at=master", "stages.1.at=master"))):
        shipped("resnet50-two-stages", f"data.root={data}", "train.batch=8", "pipeline.micro_batches=2",
                f"train.seed={SEED}", f"name={name}", *places)
        with open(os.path.join(cluster.dir, "runs", name, "metrics.jsonl")) as f:
            losses.append([json.loads(line)["loss"] for line in f])
    assert len(losses[0]) == 2 and losses[0] == losses[1], losses
    assert all(0 < loss < 1 for loss in losses[0]), losses


@suite.long
def fashion_mnist_in_four_stages_trains():
    said = shipped("resnet18-fashion-mnist", "data.limit_train=512", "data.limit_test=64",
                   "log.every=1")
    assert re.search(r"step 2/2 .* loss [12]\.\d.*test accuracy", said, re.S), said


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=64, n_test=8, side=32)
    suite.main()
