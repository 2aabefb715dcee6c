#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Packed sequences at workers with simulated devices."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *
from packed_models import *
import numpy as np

suite = Suite()


@suite.test
def unsplit_and_over_three_devices():
    """Embeddings and pooler there as well, in any order of a device's work; padded, the losses are
    near."""
    known = "privacy: {raw_input_leaves: true}\n"
    for model, dtype in (("sentences", "f32"), ("layoutlm", "bf16") if BF16 else ("qwen2", "f32")):
        how = {"model": model, "dtype": dtype, "extra": known, "steps": 2}
        one, *others = (trained(cluster, **how, ats=ats) for ats in (("w1",) * 5 + ("master",), ("w1", "w2", "w2", "w3", "w1", "master")))
        assert all(other == one for other in others), (model, one[1], [losses for _, losses in others])
        _, padded = trained(cluster, **how, ats=("w1",) * 5 + ("master",), packed=False)
        assert np.allclose(padded, one[1], rtol=2e-5 if dtype == "f32" else 2e-3), (model, padded, one[1])


lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
with Cluster(3, limits="device: cuda\n", env={"CLV_SIM_SEED": "7"}) as cluster:
    begin(cluster)
    suite.main()
