#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Packed sequences at workers with simulated devices."""
import itertools, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *
from packed_models import *
import numpy as np

suite = Suite()

KNOWN = "privacy: {raw_input_leaves: true}\n"
KINDS = itertools.product(("sentences", "bert", "layoutlm", "llama"), ("f32", "bf16")) if EVERY else (("sentences", "bf16"),)


def on_devices(ats, dtype):
    """Tables at a device in any case. In bf16 the head as well: a processor need not know it."""
    return (*at_workers(ats)[:-1], "w1" if dtype == "bf16" else "master")


@(suite.test if EVERY else suite.long)
def packed_over_three_devices_gives_the_same_bits():
    """Tables and pooler there as well, in any order of a device's work; padded, the losses are
    near."""
    for model, dtype in KINDS:
        how = {"model": model, "dtype": dtype, "extra": KNOWN, "steps": 2}
        whole, padded = (trained(cluster, **how, ats=on_devices(UNCUT, dtype), packed=packed) for packed in (True, False))
        assert np.allclose(padded[1], whole[1], rtol=2e-5 if dtype == "f32" else 2e-3), (model, padded[1], whole[1])
        cuts = {on_devices(ats, dtype) for ats in (CUTS if EVERY else [("w1", "w2", "w2", "w3", "w1", "w1")])}
        for ats, packed in itertools.product(sorted(cuts), (True, False) if EVERY else (True,)):
            same = whole if packed else padded
            assert trained(cluster, **how, ats=ats, packed=packed) == same, (model, dtype, ats, packed)


lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
with Cluster(3, limits="device: cuda\n", env={"CLV_SIM_SEED": "7"}) as cluster:
    begin(cluster)
    suite.main()
