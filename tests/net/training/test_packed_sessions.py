#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Packed sequences over daemons: the losses, scores and predictions of the padded run, the same
bits for all cuts of the model, fewer bytes at the worker, and the output of plan."""
import itertools, json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from packed_models import *
from processor import lacks_bf16
import numpy as np

suite = Suite()
cluster = None


def learned(**how):
    return trained(cluster, **how)


def near(one, other):
    assert len(one) == len(other) >= STEPS and np.allclose(one, other, rtol=2e-5, atol=0), (one, other)


def rows_of(start, n):
    """The rows sent of n sequences: their tokens, rounded up to a 32nd of the padded rows."""
    unit = -(-n * PLACES // 32)
    return -(-int(LENGTHS[start:start + n].sum()) // unit) * unit


def in_u_shape(tag, packed):
    """(bytes of gradients that left, by the record; bytes that came to w1, by its own count)"""
    since = len(cluster.workers[0].text())
    text = body(packed=packed, ats=("master",) + ("w1",) * 4 + ("master",), steps=2, extra="privacy: {tokens_readable: true}\n")
    done = cluster.train(cluster.session(tag, text.replace("batch: 12,", "batch: 12, shuffle: false,"), keys=""))
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: f"audit close session={tag} " in cluster.workers[0].text()[since:])
    came = re.search(rf"audit close session={tag} .*bytes_in=(\d+)", cluster.workers[0].text()[since:])
    left = {(r["kind"], r["stage"]): r["bytes"] for r in egress_rows(os.path.join(cluster.dir, "runs", tag))}
    return left["gradient", "s1"], int(came.group(1))


@suite.test
def shorter_sequences_send_fewer_bytes():
    """Runs first, because after many sessions a worker omits audit lines."""
    (packed, came), (padded, came_padded) = in_u_shape("bytes", True), in_u_shape("pads", False)
    assert padded == 24 * PLACES * HIDDEN * 4, padded
    assert packed == sum(rows_of(start, 4) for start in range(0, 24, 4)) * HIDDEN * 4, packed
    assert came < 0.5 * came_padded, (came, came_padded)


@suite.test
def packed_losses_match_padded_losses():
    """The first loss has the same bits, because until then only the loss itself is a sum over
    tokens."""
    for model in MODELS if EVERY else ("layoutlm", "reviews") if LONG else ("reviews",):
        packed, padded = (learned(model=model, packed=word == "packed")[1] for word in ("packed", "padded"))
        assert packed[0] == padded[0], (model, packed, padded)
        near(packed, padded)


def same_for_every_cut(model, packed, dtype="f32", cuts=CUTS):
    whole = learned(model=model, ats=UNCUT, packed=packed, dtype=dtype, steps=2)
    for ats in cuts:
        assert learned(model=model, ats=ats, packed=packed, dtype=dtype, steps=2) == whole, (model, packed, ats)


@suite.test
def every_cut_of_packed_gives_the_same_bits():
    """The others pack no other ops than these."""
    for model in MODELS if EVERY else ("layoutlm", "sentences") if LONG else ("layoutlm",):
        same_for_every_cut(model, True, cuts=CUTS if EVERY else FEW[:2])


@suite.test
def every_cut_of_padded_gives_the_same_bits():
    for model in MODELS if EVERY else ("llama",):
        same_for_every_cut(model, False, cuts=CUTS if LONG or EVERY else FEW[:1])


@suite.test
def every_cut_in_bf16_gives_the_same_bits():
    if lacks_bf16():
        return lacks_bf16() + "; test_packed_cuda.py has bf16 on devices"
    for model, packed in itertools.product(MODELS, (True, False)) if EVERY else (("llama", True),):
        same_for_every_cut(model, packed, "bf16", CUTS if EVERY else FEW[:2] if LONG else FEW[1:2])


@suite.test
def packed_predictions_match_padded_predictions():
    for model in MODELS if EVERY else ("llama",):
        session = cluster.session(f"answers-{model}", body(model=model, steps=2))
        done = cluster.train(session)
        assert done.returncode == 0, done.stdout + done.stderr
        said, out = [], []
        for packed in ("true", "false"):
            name = os.path.join(cluster.dir, f"{model}-{packed}.npy")
            how = ("--set", f"data.packed={packed}", "--accept-egress")
            done = master("predict", session, "--out", name, *how, cwd=cluster.dir)
            assert done.returncode == 0, done.stderr
            out.append(np.load(name))
            done = master("eval", session, "--json", *how, cwd=cluster.dir)
            assert done.returncode == 0, done.stderr
            said.append({k: v for k, v in json.loads(done.stdout).items() if k in ("loss", "accuracy")})
        real = np.ones(RECORDS, bool) if HEAD[model] == SEQUENCE else np.arange(PLACES) < TEST_LENGTHS[:, None]
        assert out[0].shape == out[1].shape and (out[0][real] == out[1][real]).all(), model
        assert len(said[0]) == 2 and said[0] == said[1], (model, said)


@suite.test
def plan_says_that_lengths_are_visible():
    session = cluster.session("says", body(ats=("master", "w1", "w1", "master", "master", "master")))
    done = master("plan", session, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    for says in (r"LENGTHS 'lengths', for stage s1 ", r"\nlengths: of every record's sequence are sent",
                 r"\nplaces: sequences are packed \(data\.packed\): the size of all that is sent shows how many places"):
        assert re.search(says, done.stdout), (says, done.stdout)
    mean = LENGTHS.mean()
    assert f"\nsequences: those of data.train have {mean:.1f} of {PLACES} places on average; sizes and memory are of full ones" in done.stdout, done.stdout
    assert re.search(r"a step each way, about \S+ \S+ of data\.train, ", done.stdout), done.stdout
    assert re.search(r"^  activation of stage 's0'.* about \S+ \S+ of data\.train$", done.stdout, re.M), done.stdout
    facts = json.loads(master("plan", "--json", session, cwd=cluster.dir).stdout)
    sizes = {r["tensor"].split()[0]: (r["bytes_per_step"], r["expected_bytes_per_step"]) for r in facts["egress"]}
    full, about = sizes["activation"]
    sent = sum(rows_of(start, 4) for start in range(0, 24, 4)) * HIDDEN * 4 / 2
    assert full == 12 * PLACES * HIDDEN * 4 and abs(about - full * (mean / PLACES + 1 / 64)) <= 1, sizes
    assert abs(about - sent) < 0.15 * sent, (about, sent)
    assert all(one == other for name, (one, other) in sizes.items() if name not in ("activation", "gradient")), sizes
    assert facts["privacy"]["places"] == "show" and facts["privacy"]["lengths"] == "leave", facts["privacy"]
    done = master("plan", "--json", session, "--set", "data.packed=false", cwd=cluster.dir)
    assert "places" not in json.loads(done.stdout)["privacy"], done.stdout


@suite.test
def layers_without_packing_support_are_named():
    layers = ("stages:\n  - {name: s, at: master, layers: [{op: embedding, rows: 50, out: 8, name: e}, %s"
              "{op: attention, from: [e, e, e, lengths], heads: 2}, {op: %s}, {op: linear, out: 3}]}\n")
    text = body(model="gpt2")
    start, stop = text.index("model:"), text.index("loss:")
    for op, says in (("mean, dim: 1", "layer 2: mean takes no packed sequences: it cannot separate one sequence from the next"),
                     ("lstm, out: 4", "layer 2: lstm takes no packed sequences"), ("flatten", "layer 2: flatten takes no packed sequences"),
                     ("conv1d, out: 4, kernel: 3", "layer 2: conv1d takes no packed sequences")):
        done = master("check", cluster.session("named", text[:start] + layers % ("", op) + text[stop:]), cwd=cluster.dir)
        assert done.returncode == 3 and re.search(rf"named\.yaml:\d+:\d+: data\.packed: {says}", done.stderr), (op, done.stderr)
    os.makedirs(os.path.join(cluster.dir, "vit"), exist_ok=True)
    with open(os.path.join(cluster.dir, "vit/config.json"), "w") as f:
        sizes = {k: v for k, v in SIZES.items() if k not in ("max_position_embeddings", "vocab_size")}
        json.dump({"model_type": "vit", **sizes, "image_size": 12, "patch_size": 4, "num_channels": 1}, f)
    pages = text[:start].replace("inputs: [ids, lengths], ", "")
    pages = re.sub(r"(train|test): \[.*?\]", r"\1: [\1-images.npy, \1-class.npy]", pages)
    for part in ("train", "test"):
        np.save(f"{cluster.dir}/data/{part}-images.npy", np.zeros((RECORDS, 1, 12, 12), "f4"))
    images = pages + "model: {hf: vit, head: sequence, labels: 3}\nstages:\n  - {name: s, at: master, layers: embeddings..classifier}\n" + text[stop:]
    done = master("check", cluster.session("images", images), cwd=cluster.dir)
    assert done.returncode == 3 and re.search(r"images\.yaml:\d+:\d+: data\.packed: a vit takes images of one size, which have no pads: leave", done.stderr), done.stderr
    none = text[:start] + "stages:\n  - {name: s, at: master, layers: [{op: embedding, rows: 50, out: 3}]}\n" + text[stop:]
    done = master("check", cluster.session("none", none), cwd=cluster.dir)
    assert done.returncode == 3 and "data.packed: no layer reads the lengths of sequences" in done.stderr, done.stderr


with Cluster(3) as cluster:
    LENGTHS, TEST_LENGTHS = begin(cluster)
    suite.main()
