#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the CPU backend pass as on older processors: oneDNN is limited to an instruction set,
and so are the properties that the backend takes from oneDNN (layouts, bf16, AMX). Instead of a set
that the machine lacks, its best set is used. `make long` runs all programs of kernels and plans
with all sets."""
import glob, os, subprocess, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
from cluster import BIN, LONG, SLOW, Suite

suite = Suite()
SETS = ("SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16") if LONG else ("SSE41", "AVX2")
# programs for `make test`, which take half a second of a core
QUICK = ("unit/graph/test_plan", "unit/cpu/test_layouts", "ops/test_golden")


def programs():
    found = [p for folder in ("unit/cpu", "unit/graph", "ops") for p in glob.glob(os.path.join(HERE, "..", folder, "test_*.c"))]
    return [os.path.relpath(p, os.path.join(HERE, ".."))[:-2] for p in sorted(found)] if LONG else QUICK


@suite.test
def kernels_and_plans_pass_on_older_processors():
    for isa in SETS:
        env = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "DNNL_MAX_CPU_ISA": isa}
        for program in programs():
            done = subprocess.run([os.path.join(BIN, "tests", program)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=300 * SLOW)
            assert done.returncode == 0, f"{program} with {isa}: {done.stdout[-3000:]}"


if __name__ == "__main__":
    suite.main()
