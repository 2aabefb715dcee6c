#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The programs of the seeds over three daemons with mutual TLS, against PyTorch's short runs in
tests/golden/seeds.*; the chains among them as session files too. `make parity` has whole runs."""
import json, os, re, shutil, struct, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../lib"), os.path.join(HERE, "../../golden")]
import numpy as np
import seed_numbers as numbers
from cluster import BIN, LONG, SEED_PROGRAMS, Cluster, Suite, master, run

ROOT = os.path.join(HERE, "../../..")
suite = Suite()


# Lines that the notebook of seed 002 prints within the short runs.
NOTEBOOK = {
    "seed002_single": ["loss at iteration 0: 0.715"],
    "seed002_data_parallel": ["loss at iteration 0: 0.706"],
    "seed002_tensor_parallel": ["loss at iteration 0: 0.693"],
    "seed002_pipeline": ["Filling pipeline to start, batch 0", "Filling pipeline to start, batch 1",
                         "loss at iteration 3: 0.691"],
}
TESTING = {"CLEAVE_TEST_OPS": "1"}  # allows the op `wait`
HALVES = {"seed003_rpc_pipeline": {"READING": "count"}}  # the other READING has a test of its own


def printed(name, *args, env=None):
    """(exit code, lines) of a program."""
    done = run(os.path.abspath(os.path.join(BIN, "seeds", name)), session, *args, cwd=ROOT, env=env)
    return done.returncode, done.stdout.splitlines() or [f"nothing on stdout: {done.stderr[-2000:]}"]


def seed(name, *args):
    """(exit code, last line) of a program."""
    code, lines = printed(name, *args)
    return code, lines[-1]


def passes(name):
    def test():
        code, (*before, line) = printed(name, env=HALVES.get(name))
        print("   ", line)
        assert before == NOTEBOOK.get(name, before), before
        assert code == 0 and re.match(rf"PASS {name}: .*\d", line), (code, line)
        for w in cluster.workers:
            assert w.process.poll() is None, f"{w.name} is gone:\n{w.text()[-2000:]}"
    test.__name__ = name
    (suite.long if name == "seed003_rpc_pipeline" else suite.test)(test)


for program in SEED_PROGRAMS:
    passes(program)


@suite.test
def seed002_pipeline_overlaps():
    """Layers that wait change no number, and make the stages busy at the same time."""
    code, lines = printed("seed002_pipeline", env={**TESTING, "WAIT_MS": "10"})
    assert code == 0 and lines[-1].startswith("PASS "), lines
    n, of = map(int, re.fullmatch(r"stage 0 computed (\d+) of (\d+) batches .*", lines[-2]).groups())
    print(f"    {n} of {of} batches")
    assert of == 16 and n >= 8, lines


@suite.long
def seed003_prints_times_and_gives_the_bits_of_a_local_run():
    """Every num_split in both readings, one of which needs a tree of concats. With all modules at
    the master, losses, weights and running statistics have the same digest."""
    digests = []
    for where in ("workers", "home"):
        code, lines = printed("seed003_rpc_pipeline", env={"PARTS": where, "READING": "size"})
        assert code == 0, lines
        found = [re.fullmatch(r"number of splits = (\d), execution time = (\d+\.\d+) "
                              r"\(size: (\d+) micro-batches, loss 0\.\d+\)", line) for line in lines]
        splits = [(int(m[1]), int(m[3])) for m in found if m]
        assert splits == [(k, -(-IMAGES // k)) for k in (1, 2, 4, 8)], lines
        assert splits[0][1] > 8 and lines.count("Processing batch 1") == 4, lines
        digests.append(next(line for line in lines if line.startswith("digest ")))
    assert digests[0] == digests[1], digests


@suite.test
def seed_with_a_changed_reference_loss_fails():
    """With a reference loss changed by a thousandth, the program names it and exits with 1."""
    folder = os.path.join(cluster.dir, "golden")
    os.mkdir(folder)
    for name in ("seeds.txt", "seeds.bin"):
        shutil.copy(os.path.join(ROOT, "tests/golden", name), folder)
    with open(os.path.join(folder, "seeds.txt")) as f:
        at = next(int(line.split()[2]) for line in f if line.startswith("seed002_single.losses "))
    with open(os.path.join(folder, "seeds.bin"), "r+b") as f:
        # in the eighth loss: the bit flipped below changes it by between 2^-10 and 2^-9 of its
        # value
        f.seek(at + 4 * 7 + 1)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 0x40]))
    code, line = seed("seed002_single", folder)
    assert code == 1 and re.match(r"FAIL seed002_single: .*loss 7:", line), (code, line)


@suite.test
def seed_names_the_missing_worker():
    path = cluster.session("nobody", "")
    with open(path) as f:
        text = f.read().replace("  w1:", "  other:")
    with open(path, "w") as f:
        f.write(text)
    done = run(os.path.abspath(os.path.join(BIN, "seeds", "seed002_single")), path, cwd=ROOT)
    assert done.returncode == 1 and "FAIL seed002_single: " in done.stdout, done.stdout
    assert "'w1'" in done.stdout and "nobody.yaml" in done.stdout, done.stdout


# ---- the chains as session files -----------------------------------------------------------------

def golden(name):
    """A tensor of tests/golden/seeds.*"""
    with open(os.path.join(ROOT, "tests/golden/seeds.txt")) as f:
        words = next(line for line in f if line.startswith(name + " ")).split()
    shape = [int(w) for w in words[4:]]
    with open(os.path.join(ROOT, "tests/golden/seeds.bin"), "rb") as f:
        f.seek(int(words[2]))
        return np.frombuffer(f.read(4 * int(np.prod(shape))), "<f4").reshape(shape)


def drawn(*shapes):
    """{name: weights} as the programs draw them. shapes: (name, shape, inputs of the layer)."""
    return {name: numbers.uniform(numbers.WEIGHTS + k, shape, fan) if fan else numbers.normal(numbers.WEIGHTS + k, shape)
            for k, (name, shape, fan) in enumerate(shapes)}


def two_part_cnn():
    return (numbers.normal(numbers.DATA, (64, 3, 64, 64)), numbers.classes(numbers.LABELS, 64, 10),
            drawn(("conv1.weight", (16, 3, 3, 3), 27), ("conv1.bias", (16,), 27),
                  ("fc1.weight", (10, 16384), 16384), ("fc1.bias", (10,), 16384)))


def three_part_lstm():
    def lstm(name, width):
        return ((f"{name}.weight_ih_l0", (256, width), 64), (f"{name}.weight_hh_l0", (256, 64), 64),
                (f"{name}.bias_ih_l0", (256,), 64), (f"{name}.bias_hh_l0", (256,), 64))
    return (numbers.classes(numbers.DATA, 32 * 20, 100).reshape(32, 20),
            numbers.classes(numbers.LABELS, 32, 10),
            drawn(("embedding.weight", (100, 32), 0), *lstm("encoder", 32), *lstm("decoder", 64),
                  ("widths.weight", (32, 64), 64), ("widths.bias", (32,), 64),
                  ("classes.weight", (10, 32), 32), ("classes.bias", (10,), 32)))


def cpu_gpu_hybrid():
    return (numbers.normal(numbers.DATA, (32, 10)), numbers.normal(numbers.LABELS, (32, 10)),
            drawn(("fc1.weight", (10, 10), 10), ("fc1.bias", (10,), 10)))


def single():
    names = ("w1.weight", "w1.bias", "w2.weight", "w2.bias")
    return (golden("seed002.x"), golden("seed002.target"),
            {name: golden("seed002_single." + name) for name in names})


IMAGES, SIDE, CLASSES, BATCHES = map(int, golden("seed003_rpc_pipeline.sizes"))


def rpc_pipeline():
    hot = np.eye(CLASSES, dtype=np.float32)[numbers.classes(numbers.LABELS, IMAGES, CLASSES)]
    return (numbers.normal(numbers.DATA, (BATCHES * IMAGES, 3, SIDE, SIDE)), np.tile(hot, (BATCHES, 1)),
            numbers.resnet50_state(CLASSES))


def write_safetensors(path, arrays):
    header, at = {}, 0
    for name, a in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.write(b"".join(a.tobytes() for a in arrays.values()))


def trains(name, data, figures, *sets, later=1e-4):
    """Trains the session file tests/seeds/NAME.yaml at these workers and compares with PyTorch's
    losses.
    later: the limit for losses after the first step."""
    def test():
        folder = os.path.join(cluster.dir, name)
        os.makedirs(os.path.join(folder, "data"))
        os.symlink(cluster.certs, os.path.join(folder, "certs"))
        x, y, weights = data()
        np.save(os.path.join(folder, "data/x.npy"), x)
        np.save(os.path.join(folder, "data/y.npy"), y)
        write_safetensors(os.path.join(folder, "weights.safetensors"), weights)
        with open(os.path.join(ROOT, "tests/seeds", name + ".yaml")) as f:
            text = f.read()
        for i in range(2):
            text = text.replace(f"127.0.0.1:{7441 + i}", f"127.0.0.1:{cluster.ports[i]}")
        with open(os.path.join(folder, name + ".yaml"), "w") as f:
            f.write(text)
        done = master("train", os.path.join(folder, name + ".yaml"), *(f"--set={s}" for s in sets),
                      cwd=folder)
        assert done.returncode == 0, done.stderr
        theirs = golden(f"{name}.{figures}")
        theirs = theirs[~np.isnan(theirs)]
        with open(os.path.join(folder, "runs", name, "metrics.jsonl")) as f:
            ours = np.array([json.loads(line)["loss"] for line in f])
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        off = np.abs(ours - theirs) / theirs
        print(f"    {name}.yaml: {len(ours)} steps within {np.max(off):.1e} of PyTorch")
        assert off[0] < 1e-4 and np.max(off) < later, (ours[:10], theirs[:10])
    test.__name__ = name + "_session"
    (suite.test if name in SHORT else suite.long)(test)


SHORT = {"seed001_three_part_lstm", "seed001_cpu_gpu_hybrid"}  # of `make test`
trains("seed001_two_part_cnn", two_part_cnn, "losses")
trains("seed001_three_part_lstm", three_part_lstm, "losses")
trains("seed001_cpu_gpu_hybrid", cpu_gpu_hybrid, "losses")
trains("seed002_single", single, "losses")
trains("seed003_rpc_pipeline", rpc_pipeline, "count_4.losses", f"train.batch={IMAGES}",
       f"model.classes={CLASSES}", "pipeline.micro_batches=3", later=0.3)

with Cluster(3, limits="cpu_devices: 2\n", env=TESTING) as cluster:
    session = cluster.session("seeds", "")
    suite.main()
