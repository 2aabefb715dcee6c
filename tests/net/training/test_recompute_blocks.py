#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks that backward computes again: the bits of the run that keeps all values, in less memory,
which `plan` predicts and the worker measures; and errors for wrong names."""
import json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from processor import lacks_bf16
import numpy as np

suite = Suite()
RECORDS, PLACES, ROWS, HIDDEN, STEPS = 32, 32, 50, 32, 5
BERT = {"model_type": "bert", "vocab_size": ROWS, "hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 4 * HIDDEN, "max_position_embeddings": PLACES, "type_vocab_size": 2}
BLOCKS = "recompute_blocks: [encoder.layer], "
cluster = None


def records(folder):
    rng = np.random.default_rng(3)
    for part in ("train", "test"):
        ids = rng.integers(1, ROWS, (RECORDS, PLACES))
        np.save(f"{folder}/{part}-ids.npy", ids)
        np.save(f"{folder}/{part}-y.npy", ids % 5)


def body(middle="", schedule="1f1b", split=True, dtype="f32", steps=STEPS):
    """Blocks 0..3 at two workers, or all at the master."""
    stages = [("embeddings", "master"), ("encoder.layer.0..encoder.layer.2", "w1"), ("encoder.layer.3", "w2"),
              ("dropout..classifier", "master")] if split else [("embeddings..classifier", "master")]
    text = "".join(f"  - {{name: s{i}, at: {at}, {middle if 'encoder' in layers or not split else ''}layers: {layers}}}\n"
                   for i, (layers, at) in enumerate(stages))
    return ("data: {format: npy, root: data, train: [train-ids.npy, train-y.npy], test: [test-ids.npy, test-y.npy]}\n"
            f"model: {{hf: bert, head: token, labels: 5}}\nstages:\n{text}loss: {{kind: cross_entropy}}\n"
            f"train: {{epochs: 1000000, max_steps: {steps}, batch: 8, seed: {SEED}, dtype: {dtype},"
            " optimizer: {kind: adamw, lr: 0.003}}\n"
            f"pipeline: {{micro_batches: 2, schedule: {schedule}}}\nlog: {{every: 1}}\ncheckpoint: {{every_steps: 10000000}}\n")


def trained(tag, **how):
    weights, log, _ = cluster.trained(tag, body(**how), STEPS)
    return weights, [json.loads(line)["loss"] for line in log.splitlines()]


@suite.test
def recomputed_blocks_give_the_same_bits():
    kept = trained("kept", split=False)
    ways = {"whole": {"split": False}, "split": {}, "zb": {"schedule": "zb-h1"}, "naive": {"schedule": "naive"}}
    for tag, how in chosen(ways, "split", "zb").items():
        assert trained(tag, middle=BLOCKS, **how) == kept, tag
    ranges = "recompute_blocks: [encoder.layer.1..encoder.layer.2, encoder.layer.3], "
    assert trained("ranges", middle=ranges, split=False) == kept


@suite.test
def recompute_with_adapters_gives_the_same_bits():
    lora = "lora: {targets: [query, value], r: 2, dropout: 0.1}, "
    assert trained("lora-again", middle=BLOCKS + lora) == trained("lora", middle=lora)


@suite.test
def recompute_in_bf16_gives_the_same_bits():
    if lacks_bf16():
        return lacks_bf16()
    kept = trained("bf16", split=False, dtype="bf16")
    assert trained("bf16-again", middle=BLOCKS, dtype="bf16") == kept
    assert kept != trained("bf16-not", split=False)


def planned(session):
    """(all bytes, bytes that calls keep) of the stage at w1 in `plan`."""
    done = master("plan", session, "--json", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    stage = json.loads(done.stdout)["stages"][1]
    kinds = ("weight", "optimizer", "activation", "scratch", "cache")
    return sum(stage[f"{k}_bytes"] for k in kinds), stage["activation_bytes"]


def counted(session):
    """The maximum of several readings of the bytes that w1 charged to the session while it
    trains."""
    def look():
        shown = master("status", session, "--json", cwd=cluster.dir).stdout.splitlines()
        return next(r for r in map(json.loads, shown) if r["worker"] == "w1")["memory_bytes"]
    with Running([MASTER, "train", session], cwd=cluster.dir) as running:
        assert trains(running.process)
        return max(look() for _ in range(8))


@suite.long
def worker_memory_matches_the_plan():
    """For each of two micro-batches, the inputs of three blocks and the values after the blocks are
    kept."""
    kept = cluster.session("large", body(steps=1000000))
    again = cluster.session("small", body(middle=BLOCKS, steps=1000000))
    (all_kept, calls_kept), (all_again, calls_again) = planned(kept), planned(again)
    value = 8 // 2 * PLACES * HIDDEN * 4
    assert 2 * 3 * value <= calls_again <= 2 * 3 * (value + 2048), (calls_again, value)
    assert calls_kept > 5 * calls_again, (calls_kept, calls_again)
    falls = counted(kept) - counted(again)
    assert abs(falls - (all_kept - all_again)) <= 0.01 * (all_kept - all_again), (falls, all_kept, all_again)


@suite.test
def unknown_block_names_are_refused():
    for blocks, says in (("[encoder.layers]", r"stage 's1': the model has no layer or block 'encoder.layers', did you mean 'encoder.layer'\?"),
                         ("[classifier]", r"stage 's1': recompute_blocks: 'classifier' is not within the stage, whose layers are"),
                         ("[encoder.layer.0..encoder.layer.3]", "is not within the stage"),
                         ("[encoder.layer, encoder.layer.1]", r"'encoder.layer.1': layer 'encoder.layer.1.*' is in another block already"),
                         ("[3]", "'3' is neither a layer or block nor a range such as 0..3"),
                         ("[encoder.layer], recompute: true", "has recompute: true, which is all of it")):
        done = master("check", cluster.session("wrong", body(middle=f"recompute_blocks: {blocks}, ")), cwd=cluster.dir)
        assert done.returncode == 3 and re.search(says, done.stderr) and re.search(r"wrong\.yaml:1\d:\d+: ", done.stderr), (blocks, done.stderr)


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    records(os.path.join(cluster.dir, "data"))
    os.mkdir(os.path.join(cluster.dir, "bert"))
    with open(os.path.join(cluster.dir, "bert/config.json"), "w") as f:
        json.dump(BERT, f)
    suite.main()
