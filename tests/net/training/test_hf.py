#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Models by Hugging Face's config.json: four blocks, cut between any of them over one to three
workers, give the bits of the unsplit run; and what is said before anything runs."""
import itertools, json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import numpy as np

suite = Suite()
RECORDS, PLACES, ROWS, LABELS, STEPS = 32, 9, 50, 5, 6
LLAMA = {"model_type": "llama", "vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "attention_dropout": 0.1}
BLOCKS = ["embed_tokens", *(f"layers.{i}" for i in range(4)), "norm..score"]
cluster = None


def config(name, values):
    os.makedirs(os.path.join(cluster.dir, name), exist_ok=True)
    with open(os.path.join(cluster.dir, name, "config.json"), "w") as f:
        json.dump(values, f)


def records(folder):
    rng = np.random.default_rng(3)
    ids = rng.integers(0, ROWS, (RECORDS, PLACES))
    for part in ("train", "test"):
        np.save(f"{folder}/{part}-x.npy", ids)
        np.save(f"{folder}/{part}-y.npy", np.where(rng.random(ids.shape) < 0.8, ids % LABELS, -100))


def ranges(cuts):
    """Stages that end behind these blocks."""
    for first, last in zip([0, *cuts], [*cuts, len(BLOCKS)]):
        yield f"{BLOCKS[first].split('..')[0]}..{BLOCKS[last - 1].split('..')[-1]}"


def body(cuts, places, model="{hf: llama, head: token, labels: 5}", transfer="direct"):
    stages = "".join(f"  - {{name: s{i}, at: {at}, layers: {r}}}\n" for i, (r, at) in enumerate(zip(ranges(cuts), places)))
    return ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
            f"model: {model}\nstages:\n{stages}"
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 100, max_steps: {STEPS}, batch: 8, seed: {SEED}, clip_grad_norm: 1.0,"
            " optimizer: {kind: adamw, lr: 0.003}}\n"
            f"pipeline: {{micro_batches: 2, schedule: 1f1b}}\ntransfer: {transfer}\ncheckpoint: {{every_steps: 100000}}\n")


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


def every_cut(n_workers):
    """The front and the head at the master, blocks between at workers."""
    places = ["master", *(f"w{i + 1}" for i in range(n_workers)), "master"]
    for cuts in itertools.combinations(range(1, len(BLOCKS)), n_workers + 1):
        compare("cut-" + "-".join(map(str, cuts)), list(cuts), places)


@suite.test
def every_cut_over_one_worker():
    every_cut(1)


@suite.test
def every_cut_over_two_workers():
    every_cut(2)


@suite.test
def every_cut_over_three_workers():
    every_cut(3)


@suite.test
def values_go_by_way_of_the_master():
    compare("via", [1, 3, 5], ["master", "w1", "w2", "master"], transfer="via_master")


@suite.test
def parameters_have_the_names_of_files():
    weights, _, _ = cluster.trained("names", body([1, 4], ["master", "w1", "master"]), STEPS)
    assert {"model.embed_tokens.weight", "model.layers.3.self_attn.q_proj.weight", "model.norm.weight", "score.bias"} <= weights.keys()
    assert len(weights) == 1 + 4 * 9 + 1 + 2, sorted(weights)


@suite.test
def mistakes_are_refused_at_their_place():
    config("broken", {**LLAMA, "hidden_act": "mish"})
    for model, says in (("{hf: llama, head: masked}", r"model.hf: a llama has no head 'masked', only none, sequence"),
                        ("{hf: broken, head: token}", r"model.hf: \S*broken/config.json:1:\d+: hidden_act 'mish' is not known"),
                        ("{hf: nowhere, head: token}", r"nowhere/config.json: No such file"),
                        ("{hf: llama}", r"model.hf needs a head")):
        done = master("check", cluster.session("mistake", body([], ["master"], model)), cwd=cluster.dir)
        assert done.returncode != 0 and re.search(says, done.stderr), (model, done.stderr)


with Cluster(3) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    records(os.path.join(cluster.dir, "data"))
    config("llama", LLAMA)
    suite.main()
