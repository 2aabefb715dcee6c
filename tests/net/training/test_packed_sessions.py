#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Packed sequences over daemons: the losses, scores and answers of the padded run, the same bits
wherever the model is cut, fewer bytes at the worker, and what plan says of it."""
import itertools, json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *
import numpy as np

suite = Suite()
BF16 = "avx512_bf16" in open("/proc/cpuinfo").read()
RECORDS, PLACES, ROWS, HIDDEN, STEPS = 28, 32, 50, 32, 5
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 2 * HIDDEN,
         "max_position_embeddings": PLACES, "vocab_size": ROWS}
MODELS = {"layoutlm": {**SIZES, "type_vocab_size": 2, "max_2d_position_embeddings": 1001}, "llama": {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False},
          "gpt2": {"n_embd": HIDDEN, "n_layer": 4, "n_head": 4, "n_positions": PLACES, "vocab_size": ROWS},
          "bert": {**SIZES, "type_vocab_size": 2}, "roberta": {**SIZES, "type_vocab_size": 1, "max_position_embeddings": PLACES + 2},
          "qwen2": {**SIZES, "num_key_value_heads": 1, "tie_word_embeddings": False}}
# Other heads of the same: what is called so, its family, and the head with what its labels are.
OTHERS = {"pages": "layoutlm", "sentences": "bert", "reviews": "roberta", "hidden": "bert", "hidden-roberta": "roberta", "next": "gpt2"}
MODELS.update({name: MODELS[family] for name, family in OTHERS.items()})
FAMILY = {name: OTHERS.get(name, name) for name in MODELS}
TOKEN, SEQUENCE, MASKED, CAUSAL = ("token, labels: 5", "y"), ("sequence, labels: 3", "class"), ("masked", "hidden"), ("causal", "next")
HEAD = {**{name: TOKEN for name in MODELS}, **dict.fromkeys(("gpt2", "pages", "sentences", "reviews"), SEQUENCE), "hidden": MASKED,
        "hidden-roberta": MASKED, "next": CAUSAL}
PARTS = {"bert": ("embeddings", "encoder.layer"), "roberta": ("embeddings", "encoder.layer"), "layoutlm": ("embeddings", "encoder.layer"),
         "llama": ("embed_tokens", "layers"), "qwen2": ("embed_tokens", "layers"), "gpt2": ("wte..drop", "h")}
BACK = {"pages": "pooler..classifier", "sentences": "pooler..classifier", "reviews": "classifier", "llama": "norm..score", "qwen2": "norm..score",
        "gpt2": "ln_f..score", "hidden": "cls", "hidden-roberta": "lm_head", "next": "ln_f..lm_head"}
cluster, numbers = None, itertools.count()


def records(folder):
    """Sequences of 1 to 32 places, a third of them on average, and pads without a label."""
    rng = np.random.default_rng(5)
    for part in ("train", "test"):
        lengths = rng.integers(1, 20, RECORDS)
        lengths[3], lengths[11] = PLACES, 1
        real = np.arange(PLACES) < lengths[:, None]
        ids = np.where(real, rng.integers(1, ROWS, (RECORDS, PLACES)), 0)
        corner = rng.integers(0, 500, (RECORDS, PLACES, 2))
        boxes = np.concatenate([corner, corner + rng.integers(0, 500, corner.shape)], 2) * real[..., None]
        following = np.where(real, np.roll(ids, -1, 1), -100)
        following[np.arange(RECORDS), lengths - 1] = -100
        for name, values in (("ids", ids), ("lengths", lengths), ("boxes", boxes), ("y", np.where(real, ids % 5, -100)), ("class", ids[:, 0] % 3),
                             ("hidden", np.where(real & (ids % 4 == 0), ids, -100)), ("next", following)):
            np.save(f"{folder}/{part}-{name}.npy", values)
        if part == "train":
            train = lengths
    return train, lengths


def body(model="layoutlm", packed=True, ats=("master", "w1", "w1", "w2", "w2", "master"), dtype="f32", micro=3, steps=STEPS, threads=1, extra=""):
    """Tables, four blocks and the head at these places, neighbours of one place in one stage."""
    (head, y), (front, block) = HEAD[model], PARTS[FAMILY[model]]
    names = ["ids", "lengths"] + ["boxes"] * (FAMILY[model] == "layoutlm")
    parts = [front] + [f"{block}.{i}" for i in range(4)] + [BACK.get(model, "dropout..classifier")]
    stages, first = "", 0
    for i in range(1, len(parts) + 1):
        if i < len(parts) and ats[i] == ats[first]: continue
        layers = f"{parts[first].split('..')[0]}..{parts[i - 1].split('..')[-1]}"
        stages += f"  - {{name: s{first}, at: {ats[first]}, threads: {threads}, layers: {layers}}}\n"
        first = i
    files = {part: ", ".join(f"{part}-{name}.npy" for name in names + [y]) for part in ("train", "test")}
    return (f"data: {{format: npy, root: data, inputs: [{', '.join(names)}], train: [{files['train']}], test: [{files['test']}],"
            f" packed: {str(packed).lower()}}}\nmodel: {{hf: {model}, head: {head}}}\nstages:\n{stages}"
            f"loss: {{kind: cross_entropy}}\ntrain: {{epochs: 1000000, max_steps: {steps}, batch: 12, seed: {SEED}, dtype: {dtype},"
            " optimizer: {kind: adamw, lr: 0.003}}\n"
            f"pipeline: {{micro_batches: {micro}}}\nlog: {{every: 1}}\ncheckpoint: {{every_steps: 10000000}}\n{extra}")


def trained(on=None, **how):
    weights, log, _ = (on or cluster).trained(f"run{next(numbers)}", body(**how), how.get("steps", STEPS))
    return weights, [json.loads(line)["loss"] for line in log.splitlines() if '"step"' in line and '"loss"' in line]


def near(one, other):
    assert len(one) == len(other) >= STEPS and np.allclose(one, other, rtol=2e-5, atol=0), (one, other)


def rows_of(start, n):
    """What is sent of n sequences: their places, up to a 32nd of the padded ones."""
    unit = -(-n * PLACES // 32)
    return -(-int(LENGTHS[start:start + n].sum()) // unit) * unit


def in_u_shape(tag, packed):
    """Bytes of gradients that left by the record, and those that came to w1 by its own count."""
    since = len(cluster.workers[0].text())
    text = body(packed=packed, ats=("master",) + ("w1",) * 4 + ("master",), steps=2, extra="privacy: {tokens_readable: true}\n")
    done = cluster.train(cluster.session(tag, text.replace("batch: 12,", "batch: 12, shuffle: false,"), keys=""))
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: f"audit close session={tag} " in cluster.workers[0].text()[since:])
    came = re.search(rf"audit close session={tag} .*bytes_in=(\d+)", cluster.workers[0].text()[since:])
    left = {(r["kind"], r["stage"]): r["bytes"] for r in egress_rows(os.path.join(cluster.dir, "runs", tag))}
    return left["gradient", "s1"], int(came.group(1))


@suite.test
def bytes_fall_as_sequences_are_shorter():
    """First: behind many sessions a worker leaves lines of its audit out."""
    (packed, came), (padded, came_padded) = in_u_shape("bytes", True), in_u_shape("pads", False)
    assert padded == 24 * PLACES * HIDDEN * 4, padded
    assert packed == sum(rows_of(start, 4) for start in range(0, 24, 4)) * HIDDEN * 4, packed
    assert came < 0.5 * came_padded, (came, came_padded)


@suite.test
def packed_is_padded():
    """The first loss to the bit: nothing has been summed over places yet but the loss itself."""
    for model in MODELS:
        packed, padded = (trained(model=model, packed=word == "packed")[1] for word in ("packed", "padded"))
        assert packed[0] == padded[0], (model, packed, padded)
        near(packed, padded)


CUTS = [("master",) * 6] + [("master",) * (1 + cut) + ("w1",) * (4 - cut) + ("master",) for cut in range(4)] + \
       [("master", "w1", "w2", "w2", "w1", "master"), ("master", "w1", "w2", "w3", "w3", "master")]


def same_for_every_cut(packed, dtype, model, cuts=CUTS):
    whole, *others = (trained(model=model, ats=ats, packed=packed, dtype=dtype, steps=2) for ats in cuts)
    for ats, other in zip(cuts[1:], others):
        assert other == whole, (model, ats)


@suite.test
def every_cut():
    """CLV_TEST_ALL=1: of both models, packed and padded."""
    every = "CLV_TEST_ALL" in os.environ
    for model, packed in itertools.product(("layoutlm", "llama"), (True, False)):
        if every or packed == (model == "layoutlm"):
            same_for_every_cut(packed, "f32", model)


@suite.test
def every_cut_in_bf16():
    if not BF16:
        return "this processor has no AVX512-BF16"
    every = "CLV_TEST_ALL" in os.environ
    for model, packed in itertools.product(("layoutlm", "llama"), (True, False)):
        if every or packed == (model == "llama"):
            same_for_every_cut(packed, "bf16", model, CUTS if every else CUTS[::3])


def begin(c):
    """Data and configs of a cluster; the lengths of both sets."""
    os.mkdir(os.path.join(c.dir, "data"))
    for model, config in MODELS.items():
        os.mkdir(os.path.join(c.dir, model))
        with open(os.path.join(c.dir, model, "config.json"), "w") as f:
            json.dump({"model_type": FAMILY[model], **config}, f)
    return records(os.path.join(c.dir, "data"))


@suite.test
def on_devices():
    """Workers on simulated devices: unsplit there and over three of them, embeddings and pooler as
    well, in any order of a device's work; padded, the losses are near."""
    lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
    known = "privacy: {raw_input_leaves: true}\n"
    try:
        with Cluster(3, limits="device: cuda\n", env={"CLV_SIM_SEED": "7"}) as c:
            begin(c)
            for model, dtype in (("sentences", "f32"), ("layoutlm", "bf16") if BF16 else ("qwen2", "f32")):
                how = {"on": c, "model": model, "dtype": dtype, "extra": known, "steps": 2}
                one, *others = (trained(**how, ats=ats) for ats in (("w1",) * 5 + ("master",), ("w1", "w2", "w2", "w3", "w1", "master")))
                assert all(other == one for other in others), (model, one[1], [losses for _, losses in others])
                _, padded = trained(**how, ats=("w1",) * 5 + ("master",), packed=False)
                assert np.allclose(padded, one[1], rtol=2e-5 if dtype == "f32" else 2e-3), (model, padded, one[1])
    finally:
        lib.WORKER = WORKER


@suite.test
def answers_are_those_of_padded_sequences():
    for model in MODELS:
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
def plan_says_that_lengths_show():
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
def what_cannot_be_packed_is_named():
    layers = ("stages:\n  - {name: s, at: master, layers: [{op: embedding, rows: 50, out: 8, name: e}, %s"
              "{op: attention, from: [e, e, e, lengths], heads: 2}, {op: %s}, {op: linear, out: 3}]}\n")
    text = body(model="gpt2")
    start, stop = text.index("model:"), text.index("loss:")
    for op, says in (("mean, dim: 1", "layer 2: mean takes no packed sequences: it does not tell one sequence from the next"),
                     ("lstm, out: 4", "layer 2: lstm takes no packed sequences"), ("flatten", "layer 2: flatten takes no packed sequences"),
                     ("conv1d, out: 4, kernel: 3", "layer 2: conv1d takes no packed sequences")):
        done = master("check", cluster.session("named", text[:start] + layers % ("", op) + text[stop:]), cwd=cluster.dir)
        assert done.returncode == 3 and re.search(rf"named\.yaml:\d+:\d+: data\.packed: {says}", done.stderr), (op, done.stderr)
    os.makedirs(os.path.join(cluster.dir, "vit"), exist_ok=True)
    with open(os.path.join(cluster.dir, "vit/config.json"), "w") as f:
        json.dump({"model_type": "vit", **SIZES, "image_size": 12, "patch_size": 4, "num_channels": 1}, f)
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
