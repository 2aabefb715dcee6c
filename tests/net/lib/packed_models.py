# SPDX-License-Identifier: Apache-2.0
"""Small transformers of all families, records of many lengths, and sessions with them, packed or
padded and cut at any place, for tests/net/training/test_packed_*.py."""
import itertools, json, os
from cluster import SEED
import numpy as np

RECORDS, PLACES, ROWS, HIDDEN, STEPS = 28, 32, 50, 32, 5
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 2 * HIDDEN,
         "max_position_embeddings": PLACES, "vocab_size": ROWS}
MODELS = {"layoutlm": {**SIZES, "type_vocab_size": 2, "max_2d_position_embeddings": 1001}, "llama": {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False},
          "gpt2": {"n_embd": HIDDEN, "n_layer": 4, "n_head": 4, "n_positions": PLACES, "vocab_size": ROWS},
          "bert": {**SIZES, "type_vocab_size": 2}, "roberta": {**SIZES, "type_vocab_size": 1, "max_position_embeddings": PLACES + 2},
          "qwen2": {**SIZES, "num_key_value_heads": 1, "tie_word_embeddings": False}}
# name: family of models with another head.
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
numbers = itertools.count()

EVERY = os.environ.get("CLV_TEST_ALL") == "1"  # set by `make schedules`: every cut of every model
BLOCKS, MOST_WORKERS = 4, 3
UNCUT = ("master",) * (BLOCKS + 2)


def every_cut():
    """The places of the tables, the blocks and the head: consecutive blocks over one to three
    workers, with the tables and the head at the master or not. Then a worker that has two separate
    parts."""
    for first, end in itertools.combinations(range(BLOCKS + 1), 2):
        for workers in range(1, min(MOST_WORKERS, end - first) + 1):
            for inner in itertools.combinations(range(first + 1, end), workers - 1):
                bounds = (0, first, *inner, end, BLOCKS)
                names = ("master", *(f"w{i + 1}" for i in range(workers)), "master")
                blocks = [name for name, a, b in zip(names, bounds, bounds[1:]) for _ in range(b - a)]
                yield ("master", *blocks, "master")
    yield ("master", "w1", "w2", "w2", "w1", "master")


# The first two together have a cut at each of the five places.
FEW = (("master", "w1", "w2", "w3", "w3", "master"), ("master", "master", "w1", "w1", "w2", "master"), ("master", "w1", "w2", "w2", "w1", "master"))
CUTS = tuple(every_cut()) if EVERY else FEW


def at_workers(ats):
    """The same places, with the first worker instead of the master."""
    return tuple("w1" if at == "master" else at for at in ats)


def records(folder):
    """Writes sequences of 1 to 32 tokens, on average a third of 32, padded without labels."""
    rng = np.random.default_rng(5)
    for part in ("train", "test"):
        lengths = rng.integers(1, 20, RECORDS)
        lengths[3], lengths[11] = PLACES, 1
        real = np.arange(PLACES) < lengths[:, None]
        ids = np.where(real, rng.integers(2, ROWS, (RECORDS, PLACES)), 0)  # 0 and 1 are pads
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
    """A session body with tables, four blocks and head at these places. Neighbours at one place
    form one stage."""
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


def trained(on, **how):
    """(weights, losses) of a run on the cluster."""
    weights, log, _ = on.trained(f"run{next(numbers)}", body(**how), how.get("steps", STEPS))
    return weights, [json.loads(line)["loss"] for line in log.splitlines() if '"step"' in line and '"loss"' in line]


def begin(c):
    """Writes data and configs of a cluster. Returns the lengths of both sets."""
    os.mkdir(os.path.join(c.dir, "data"))
    for model, config in MODELS.items():
        os.mkdir(os.path.join(c.dir, model))
        with open(os.path.join(c.dir, model, "config.json"), "w") as f:
            json.dump({"model_type": FAMILY[model], **config}, f)
    return records(os.path.join(c.dir, "data"))
