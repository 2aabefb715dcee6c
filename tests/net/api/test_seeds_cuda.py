#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The programs of the seeds over workers that compute on a simulated device (`device: cuda`), with
mutual TLS: PyTorch's figures, within the programs' own limits."""
import os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *

lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
suite = Suite()

# What does not run here, and why.
LEFT_OUT = {
    "seed001_cpu_gpu_hybrid": "names cpu:1, a second processor of its worker",
    "seed002_tensor_parallel": "compares bits with the master's, and these are of one kind of device",
    "seed003_rpc_pipeline": "ResNet50: too many values for a simulated device",
    "seed004_spanning_backward": "names cpu:1, a second processor of its worker",
}


def passes(name):
    def test():
        done = run(os.path.abspath(os.path.join(BIN, "seeds", name)), session, cwd=ROOT)
        line = (done.stdout.splitlines() or [done.stderr[-2000:]])[-1]
        print("   ", line)
        assert done.returncode == 0 and re.match(rf"PASS {name}: .*\d", line), (done.returncode, line)
        for w in cluster.workers:
            assert w.process.poll() is None, f"{w.name} is gone:\n{w.text()[-3000:]}"
    test.__name__ = name
    suite.test(test)


for program in SEED_PROGRAMS:
    if program not in LEFT_OUT:
        passes(program)


@suite.test
def what_is_left_out_is_a_seed():
    assert not set(LEFT_OUT) - set(SEED_PROGRAMS), LEFT_OUT


@suite.test
def the_device_computed():
    """The workers' modules were on the device, not on the processor beside it."""
    for w in cluster.workers:
        assert "cuda:0" in w.text(), w.text()[-3000:]


with Cluster(3, limits="device: cuda\n") as cluster:
    session = cluster.session("seeds", "")
    suite.main()
