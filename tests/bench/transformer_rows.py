# SPDX-License-Identifier: Apache-2.0
"""Rows of bench_transformers.py: training steps of BERT-base on one thread, in processor time, and
the memory that they take beyond parameters, gradients and moments. AdamW, dropout 0.1. Both sides
make their model from one config.json: ours from `model.hf`, the peer's by transformers."""
import json
import os

import pypi
from harness import HERE, OUT, Side, enter, interleave, program, resident, skip
from cluster import Cluster, run

ENVIRONMENT = os.path.abspath(os.path.join(HERE, "../../build/transformers"))
PACKAGES = "torch", "transformers", "safetensors"
CONFIG = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 30522, "hidden_size": 768,
          "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
          "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512,
          "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}
STATES = 4  # of each parameter: itself, its gradient, two moments
MAKE_DATA = """import sys, numpy
n, length, tokens = map(int, sys.argv[1:4])
r = numpy.random.default_rng(7)
numpy.save('x.npy', r.integers(0, tokens, (n, length)))
numpy.save('y.npy', r.integers(0, 2, n))"""


def folder(c, name):
    path = os.path.join(c.dir, name)
    os.makedirs(path, exist_ok=True)
    return path


def session(c, batch, length, dtype):
    name = f"bert-{batch}-{length}-{dtype}"
    data = folder(c, name)
    done = run("/usr/bin/python3", "-c", MAKE_DATA, str(batch), str(length), str(CONFIG["vocab_size"]), cwd=data)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(folder(c, "bert"), "config.json"), "w") as f:
        json.dump(CONFIG, f)
    return c.session(name, f"data: {{format: npy, root: {name}, train: [x.npy, y.npy]}}\n"
                     f"model: {{hf: {os.path.join(c.dir, 'bert')}, head: sequence, labels: 2}}\n"
                     "stages:\n  - {name: all, at: master, threads: 1, layers: embeddings..classifier}\n"
                     "loss: {kind: cross_entropy}\n"
                     f"train: {{dtype: {dtype}, epochs: 1000000, batch: {batch}, shuffle: false, "
                     "optimizer: {kind: adamw, lr: 0.00002}}\nlog: {every: 1000000}\n"
                     "checkpoint: {every_steps: 1000000}\n")


def peer(c, batch, length, dtype):
    python = pypi.interpreter(ENVIRONMENT)
    return Side(python, os.path.join(HERE, "peers", "torch_transformer.py"), os.path.join(c.dir, "bert"), str(batch),
                str(length), dtype)


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def turn(side):
    """Seconds of the processor for two steps."""
    def go():
        before = processor_seconds(side.process.pid)
        side.ask("steps 2")
        return (processor_seconds(side.process.pid) - before) / 2
    return go


def beyond(side, parameters):
    """MiB of a process that are not states of parameters."""
    return max(resident(side.process.pid, "VmHWM") - STATES * 4 * parameters / (1 << 20), 1.0)


def row(c, batch, length, dtype, rounds):
    name = f"bert_{batch}x{length}_{dtype}"
    path = session(c, batch, length, dtype)
    with program("bench_train", path) as ours, peer(c, batch, length, dtype) as theirs:
        parameters = json.loads(theirs.first)["parameters"]
        enter(name, "s", interleave([turn(ours), turn(theirs)], rounds, rounds), 0.6)
        pair = beyond(ours, parameters), beyond(theirs, parameters)
        enter(name + "_memory", "MiB", [(pair, 0.0)], 0.5, timed=False)


def rows(shapes, dtypes, rounds, install):
    wrong = None if pypi.works(ENVIRONMENT, *PACKAGES) else "not installed, and --quick installs nothing"
    if wrong and install:
        wrong = pypi.install(ENVIRONMENT, *PACKAGES, "numpy")
    if wrong:
        return skip("bert", wrong)
    with Cluster(0) as c:
        for batch, length in shapes:
            for dtype in dtypes:
                row(c, batch, length, dtype, rounds)
