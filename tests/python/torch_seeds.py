#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make python-test`: the programs of the seeds in Python (tests/seeds/*.py), over three workers,
and each once more in one process, with a stand-in for cleave that leaves modules where they are.
What they print has to agree to 1e-4."""
import importlib.util, os, re, subprocess, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, SLOW, Cluster, Suite

PACKAGE, SEEDS = os.path.abspath(os.path.join(BIN, "python")), os.path.join(HERE, "../seeds")
# How far what is printed may be apart, relative; statistics over few places amplify rounding.
APART, APART_OF = 1e-4, {"seed003_rpc_pipeline": 5e-3}
PROGRAMS = {"seed000_split": [], "seed001_two_part_cnn": [], "seed001_three_part_lstm": [], "seed001_cpu_gpu_hybrid": [], "seed002_single": ["200"],
            "seed002_data_parallel": ["100"], "seed002_tensor_parallel": ["100"], "seed002_pipeline": ["100"], "seed004_spanning_backward": [],
            # at the thread's rate, batches of four drift apart
            "seed003_rpc_pipeline": ["4", "64", "1e-4"]}
STAND_IN = '''
import contextlib
Batch = contextlib.nullcontext
def open(path):
    return contextlib.nullcontext()
def Remote(module, *, at, example):
    module.placement = at
    module.gradients = lambda: {n: p.grad for n, p in module.named_parameters()}
    return module
def Optimizer(kind, model, **kw):
    return kind(model.parameters(), **kw)
'''
suite = Suite()


def ran(name, path):
    """Lines that the program prints with the cleave of that folder."""
    done = subprocess.run([sys.executable, os.path.join(SEEDS, name + ".py"), session, *PROGRAMS[name]], text=True, timeout=300 * SLOW,
                          env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines()


def is_close(ours, theirs, apart):
    numbers = [[float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", line)] for line in (ours, theirs)]
    words = [re.sub(r"-?\d+\.\d+(?:e-?\d+)?", "#", line) for line in (ours, theirs)]
    return words[0] == words[1] and all(abs(a - b) <= apart * max(1, abs(b)) for a, b in zip(*numbers))


def agrees(name):
    def test():
        if name.startswith("seed003") and not importlib.util.find_spec("torchvision"):
            return "no torchvision"
        ours, theirs = ran(name, PACKAGE), ran(name, stand_in)
        assert len(ours) == len(theirs) > 0 and all(is_close(a, b, APART_OF.get(name, APART)) for a, b in zip(ours, theirs)), "\n".join(f"{a}   {b}" for a, b in zip(ours, theirs))
        print("   ", ours[-1])
    test.__name__ = name
    suite.test(test)


for program in PROGRAMS:
    agrees(program)


if __name__ == "__main__":
    with Cluster(3) as cluster:
        session = cluster.session("python", "")
        stand_in = os.path.join(cluster.dir, "stand-in")
        os.mkdir(stand_in)
        with open(os.path.join(stand_in, "cleave.py"), "w") as f:
            f.write(STAND_IN)
        suite.main()
