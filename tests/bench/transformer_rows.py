# SPDX-License-Identifier: Apache-2.0
"""Rows of bench_transformers.py: training steps with AdamW of models by config.json with random
weights, ours by `model.hf` and the peer's by transformers (and peft), in processor time of one
thread; their memory beyond parameters, gradients and moments; attention alone; and LayoutLM over
two processes by the clock."""
import dataclasses
import json
import os
import time

import pypi
from harness import HERE, Side, enter, interleave, median, program, refusal, resident, skip
from cluster import Cluster, run

ENVIRONMENT = os.path.abspath(os.environ.get("CLEAVE_TRANSFORMERS") or os.path.join(HERE, "../../build/transformers"))
PACKAGES = "torch", "transformers", "safetensors", "peft"
STATES = 4  # values in memory for each parameter: itself, its gradient, two moments
BERT = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512,
        "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}
CONFIGS = {
    "bert": BERT,
    "layoutlm": {**BERT, "model_type": "layoutlm", "max_2d_position_embeddings": 1024},
    # On neither side is the table of tokens tied to the output layer.
    "gpt2": {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
             "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
             "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
              "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_act": "silu",
              "max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
              "attention_dropout": 0.0, "tie_word_embeddings": False},
}
# Numbers of tokens of eight pages of libtasn1.pdf (Debian's libtasn1-doc 4.19): its words, a start
# and an end token, at most 512.
PAGES = 26, 153, 136, 312, 419, 339, 284, 512
WHOLE = {"bert": "embeddings..classifier", "layoutlm": "embeddings..classifier", "gpt2": "wte..lm_head", "qwen2": "embed_tokens..lm_head"}
MAKE_DATA = """import sys, numpy
n, length, tokens, labels, boxes = map(int, sys.argv[1:6])
r = numpy.random.default_rng(7)
numpy.save('x.npy', r.integers(0, tokens, (n, length)))
numpy.save('y.npy', r.integers(0, abs(labels), (n, length) if labels < 0 else n))
begin = r.integers(0, 500, (n, length, 2))
numpy.save('boxes.npy', numpy.concatenate((begin, begin + r.integers(1, 500, begin.shape)), 2))"""


@dataclasses.dataclass
class Task:
    """A model and its records. lora: arguments of peft's LoraConfig, or None."""
    model: str
    head: str
    batch: int
    length: int
    dtype: str
    lora: dict = None
    threads: int = 1
    folder: str = ""

    @property
    def name(self):
        return f"{self.model}{'_lora' if self.lora else ''}_{self.batch}x{self.length}_{self.dtype}"


def adapters(**targets):
    return {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, **targets}


# ---- sides ---------------------------------------------------------------------------------------

def make_folder(c, name):
    path = os.path.join(c.dir, name)
    os.makedirs(path, exist_ok=True)
    return path


def prepare(c, task):
    """Writes config.json and one batch of records to a folder with the task's name."""
    config = CONFIGS[task.model]
    task.folder = make_folder(c, task.model)
    with open(os.path.join(task.folder, "config.json"), "w") as f:
        json.dump(config, f)
    labels = {"sequence": 2, "token": -5, "causal": -config["vocab_size"]}[task.head]
    done = run("/usr/bin/python3", "-c", MAKE_DATA, *map(str, (task.batch, task.length, config["vocab_size"], labels, 1)),
               cwd=make_folder(c, task.name))
    assert done.returncode == 0, done.stderr


def session(c, task, stages, more="", packed=None):
    """more: further keys of `train`, and sections after it. packed: None: records without lengths;
    else with lengths, packed (True) or padded (False)."""
    labels = {"sequence": ", labels: 2", "token": ", labels: 5", "causal": ""}[task.head]
    inputs = "inputs: [ids, boxes], train: [x.npy, boxes.npy, y.npy]" if task.model == "layoutlm" else "train: [x.npy, y.npy]"
    if packed is not None:
        inputs = f"inputs: [ids, boxes, lengths], train: [x.npy, boxes.npy, lengths.npy, y.npy], packed: {str(packed).lower()}"
    return c.session(task.name + ("_packed" if packed else ""), f"data: {{format: npy, root: {task.name}, {inputs}}}\n"
                     f"model: {{hf: {task.folder}, head: {task.head}{labels}}}\nstages:\n{stages}"
                     "loss: {kind: cross_entropy}\n"
                     f"train: {{dtype: {task.dtype}, epochs: 1000000, batch: {task.batch}, shuffle: false, "
                     "optimizer: {kind: adamw, lr: 0.00002}}\nlog: {every: 1000000}\n"
                     f"checkpoint: {{every_steps: 1000000}}\n{more}")


def whole(task):
    lora = ""
    if task.lora:
        lora = (f"lora: {{targets: [{', '.join(task.lora['target_modules'])}], r: {task.lora['r']}, "
                f"alpha: {task.lora['lora_alpha']}, dropout: {task.lora['lora_dropout']}}}, ")
    return f"  - {{name: all, at: master, threads: 1, {lora}layers: {WHOLE[task.model]}}}\n"


def peer(task):
    script = os.path.join(HERE, "peers", "torch_transformer.py")
    return Side(pypi.interpreter(ENVIRONMENT), script, json.dumps(dataclasses.asdict(task)))


def skipped(c, task, path, *names):
    """Whether the rows of a task are skipped because this machine has no bf16. Prints the
    reason."""
    wrong = refusal(c.dir, path) if task.dtype == "bf16" else ""
    for name in names if wrong else ():
        skip(name, wrong)
    return bool(wrong)


# ---- figures -------------------------------------------------------------------------------------

def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def turn(side, n=2):
    """Processor seconds of a step, averaged over n steps."""
    def go():
        before = processor_seconds(side.process.pid)
        side.ask(f"steps {n}")
        return (processor_seconds(side.process.pid) - before) / n
    return go


def clock(side, n):
    """Seconds of a step by the clock."""
    def go():
        before = time.monotonic()
        side.ask(f"steps {n}")
        return (time.monotonic() - before) / n
    return go


def beyond(side, parameters):
    """MiB of a process beyond its STATES values for each parameter."""
    return max(resident(side.process.pid, "VmHWM") - STATES * 4 * parameters / (1 << 20), 1.0)


def row(c, task, rounds, target, memory=False):
    prepare(c, task)
    path, remembers = session(c, task, whole(task)), task.name + "_memory"
    if skipped(c, task, path, task.name, *([remembers] if memory else [])):
        return
    with program("bench_train", path) as ours, peer(task) as theirs:
        steps = 1 if rounds == 1 else 2
        found = interleave([turn(ours, steps), turn(theirs, steps)], rounds, rounds)
        rate = task.batch * task.length / median(a for (a, _), _ in found)
        enter(task.name, "s", found, target, note=f"{rate:.0f} tokens/s")
        if memory:
            parameters = json.loads(theirs.first)["parameters"]
            pair = beyond(ours, parameters), beyond(theirs, parameters)
            enter(remembers, "MiB", [(pair, 0.0)], 0.5, timed=False)


# ---- rows ----------------------------------------------------------------------------------------

def with_peers(name, install):
    """Whether the newest PyTorch is installed. Prints the reason if not."""
    wrong = None if pypi.works(ENVIRONMENT, *PACKAGES) else "not installed, and --quick installs nothing"
    if wrong and install:
        wrong = pypi.install(ENVIRONMENT, *PACKAGES, "numpy")
    if wrong:
        skip(name, wrong)
    return not wrong


def bert(shape, rounds):
    with Cluster(0) as c:
        for dtype in ("f32", "bf16"):
            row(c, Task("bert", "sequence", *shape, dtype), rounds, 0.6, memory=True)


def causal(model, shape, targets, rounds):
    """Causal language models such as GPT-2 and Llama, with adapters."""
    with Cluster(0) as c:
        for dtype in ("f32", "bf16"):
            row(c, Task(model, "causal", *shape, dtype, adapters(target_modules=targets)), rounds, 0.7)


def attention(shape, rounds):
    """12 heads of 64 with dropout 0.1. Compares the peer's fused path also with its own formula in
    single operations."""
    n, t = shape
    arguments = list(map(str, (n, t, 12, 64, 0.1)))
    torch = lambda how: Side(pypi.interpreter(ENVIRONMENT), os.path.join(HERE, "peers", "torch_attention.py"), how, *arguments)
    name, steps = f"attention_dropout_{n}x{t}", max(1, 4096 // (n * t) * 8)
    with program("bench_attention", *arguments) as ours, torch("fused") as fused, torch("formula") as formula:
        found = interleave([turn(ours, steps), turn(fused, steps), turn(formula, steps)], rounds, rounds)
        pick = lambda a, b: [((f[a], f[b]), foreign) for f, foreign in found]
        enter(name, "s", pick(0, 1), 0.5)
        enter(name + "_sanity_path_vs_formula", "s", pick(1, 2), 1.5)


MAKE_LENGTHS = """import sys, numpy
lengths = numpy.array(list(map(int, sys.argv[1:])))
numpy.save('lengths.npy', lengths)
y = numpy.load('y.npy')
numpy.save('y.npy', numpy.where(numpy.arange(y.shape[1]) < lengths[:, None], y, -100))"""


def pages(rounds):
    """Pages of real lengths: packed, against the same pages padded to 512 tokens."""
    with Cluster(0) as c:
        for dtype in ("f32", "bf16"):
            task = Task("layoutlm", "token", len(PAGES), 512, dtype)
            prepare(c, task)
            done = run("/usr/bin/python3", "-c", MAKE_LENGTHS, *map(str, PAGES), cwd=make_folder(c, task.name))
            assert done.returncode == 0, done.stderr
            name, path = f"layoutlm_pages_{dtype}_packed_vs_padded", session(c, task, whole(task), packed=True)
            if skipped(c, task, path, name):
                continue
            with program("bench_train", path) as packed, \
                    program("bench_train", session(c, task, whole(task), packed=False)) as padded:
                found = interleave([turn(packed, 1), turn(padded, 1)], rounds, rounds)
                enter(name, "s", found, 0.65, note=f"{sum(PAGES)} places of {512 * len(PAGES)}")


CUT = ("  - {name: front, at: master, threads: 1, layers: embeddings..encoder.layer.5}\n"
       "  - {name: back, at: w1, threads: 1, layers: encoder.layer.6..encoder.layer.11}\n"
       "  - {name: head, at: master, threads: 1, layers: dropout..classifier}\n")


def split(shape, rounds, dtypes=("f32", "bf16")):
    """The labels stay at the master; half of the blocks is at a worker, over TLS, on the other
    core."""
    for dtype in dtypes:
        task = Task("layoutlm", "token", *shape, dtype, threads=2)
        with Cluster(1) as c:
            prepare(c, task)
            path = session(c, task, CUT, f"pipeline: {{micro_batches: {task.batch // 2}, schedule: 1f1b}}\n")
            name = task.name + "_split_vs_torch_2_threads"
            if skipped(c, task, path, name):
                continue
            with program("bench_train", path) as ours, peer(task) as theirs:
                found = interleave([clock(ours, 2), clock(theirs, 2)], rounds, rounds)
                enter(name, "s", found, 0.65)
