#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of bench_transformers.py that this machine cannot measure are skipped by name."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../net/lib")]
asked, sys.argv = sys.argv, sys.argv[:1] + [os.environ.get("CLEAVE_TEST_BIN", os.path.join(HERE, "../../build/release"))]
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # oneDNN then has no bf16 on any processor
import harness
import transformer_rows as rows
from cluster import Cluster, Suite

sys.argv = asked
suite = Suite()
SMALL = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}


def never(*_, **__):
    raise AssertionError("a side was started")


@suite.test
def bf16_rows_are_skipped_where_the_processor_has_none():
    harness.write_row = harness.rows.append  # writes nothing to build/bench
    rows.program = rows.peer = never
    rows.CONFIGS["bert"].update(SMALL)

    def group():
        with Cluster(0) as c:
            rows.row(c, rows.Task("bert", "sequence", 2, 8, "bf16"), 1, 0.6, memory=True)

    assert harness.main([group], []) == 0
    assert [r["name"] for r in harness.rows] == ["bert_2x8_bf16", "bert_2x8_bf16_memory"], harness.rows
    assert all("bf16 needs a processor with AVX512-BF16" in r["skipped"] for r in harness.rows), harness.rows


if __name__ == "__main__":
    suite.main()
