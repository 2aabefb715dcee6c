#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/corpus/cells: what the cache of a table on disk has besides its cells
(fuzz_cells.c)."""
import json, os

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus/cells")
GOOD = {"version": 1, "key": "0" * 64, "records": 3, "broken": 1, "errors": "a.csv:4:1: column 'n' has 'x'\n",
        "names": [["b", "a \"1\"", "\u00e4"], [], ["ill", "well"]]}


def with_(**changes):
    return json.dumps({**GOOD, **changes})


SEEDS = {
    "good": with_(), "no_names": with_(names=[[], [], []], errors="", broken=0), "version": with_(version=2),
    "key": with_(key="1" * 64), "no_records": with_(records=0), "many_records": with_(records=1 << 32), "twice": with_(names=[["a", "a"], [], []]),
    "few_columns": with_(names=[[], []]), "many_columns": with_(names=[[], [], [], []]), "nul": with_(names=[["\0"], [], []]),
    "class": with_(names=[[], [], ["a/b"]]), "unknown": with_(other=1), "lacks": json.dumps({"version": 1}),
    "names_are_numbers": with_(names=[[1], [], []]), "more": with_() + "x", "cut": with_()[:40], "list": "[]", "key_twice": '{"version":1,"version":1}',
}
os.makedirs(FOLDER, exist_ok=True)
for name, text in SEEDS.items():
    with open(os.path.join(FOLDER, name), "w") as f:
        f.write(text)
