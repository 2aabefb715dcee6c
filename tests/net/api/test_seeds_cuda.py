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


def computed_on(worker):
    """Devices that modules of its closed sessions were on."""
    return [line for line in worker.text().splitlines() if "device=cuda:0" in line]


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
    passes(program)

with Cluster(3, limits="device: cuda\n") as cluster:
    session = cluster.session("seeds", "")
    suite.main()
