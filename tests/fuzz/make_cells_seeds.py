#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the cache of a table on disk: corpus/cell_files, files of its cells
(fuzz_cell_files.c), and corpus/cells, what it has besides them (fuzz_cells.c)."""
import json
import struct

from seeds.corpus import write

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
for name, text in SEEDS.items():
    write("cells", name, text)


def npy(descr, values, shape=None, header=128):
    """A .npy file with a header of so many bytes."""
    kind = {"f8": "d", "f4": "f", "i8": "q", "i4": "i", "u1": "B"}[descr[1:]]
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape or (len(values),)}, }}"
    return (b"\x93NUMPY\1\0" + struct.pack("<H", header - 10) + text.encode().ljust(header - 11) + b"\n"
            + struct.pack(f"{'>' if descr[0] == '>' else '<'}{len(values)}{kind}", *values))


# The numbers of the files in fuzz_cell_files.c, and the texts of the records that its table has.
N, M, D, E, DAY, T, U, W, IDS, PATHS, TEXTS, GROUPS = range(12)
RECORDS = [(b"p1", b"rgb.png"), (b"p2", b"grey.png"), (b"p3", b"rgb.jpg"), (b"p1", b"text.png")]
text, ids, paths = b"", [], []
for name, path in RECORDS:
    ids.append(len(text))
    paths.append(len(text) + len(name) + 1)
    text += name + b"\0" + path + b"\0"
NAN, INFINITY = float("nan"), float("inf")
FILES = {
    "numbers": (N, npy("<f8", [4, 3, 2, 1])), "numbers_f4": (N, npy("<f4", [4, 3, 2, 1])), "numbers_three": (N, npy("<f8", [4, 3, 2])),
    "numbers_table": (N, npy("<f8", [4, 3, 2, 1], (2, 2))), "numbers_missing": (N, npy("<f8", [NAN, 3, 2, 1])),
    "numbers_infinite": (N, npy("<f8", [INFINITY, 3, -INFINITY, 1])), "numbers_cut": (N, npy("<f8", [4, 3, 2, 1])[:-1]),
    "numbers_more": (N, npy("<f8", [4, 3, 2, 1]) + b"1"), "numbers_big_endian": (N, npy(">f8", [4, 3, 2, 1])),
    "numbers_unaligned": (N, npy("<f8", [4, 3, 2, 1], header=117)), "none": (N, b""), "no_header": (N, bytes(160)),
    "quantiles": (M, npy("<f8", [4, NAN, 2, 1])), "quantiles_missing": (M, npy("<f8", [NAN] * 4)), "large": (M, npy("<f8", [1e308, -1e308, 1, 2])),
    "words": (D, npy("<i4", [1, 0, -1, -1])), "words_below": (D, npy("<i4", [-2, 0, 0, 0])), "words_above": (D, npy("<i4", [2, 0, 0, 0])),
    "words_i8": (D, npy("<i8", [0, 0, 0, 0])), "index": (E, npy("<i4", [1, 1, 0, 0])), "index_missing": (E, npy("<i4", [-1, 1, 0, 0])),
    "days": (DAY, npy("<f8", [0.5, NAN, -1, 1e5])), "days_far": (DAY, npy("<f8", [1e300, INFINITY, -1e300, 0])),
    "classes": (T, npy("<i4", [1, 1, 1, 0])), "classes_missing": (T, npy("<i4", [1, -1, 1, 0])), "labels": (U, npy("<f8", [0, 0, 1, 1])),
    "labels_two": (U, npy("<f8", [0, 0, 2, 1])), "labels_missing": (U, npy("<f8", [0, NAN, 1, 1])), "weights": (W, npy("<f8", [0, 1, 2, 3])),
    "weights_negative": (W, npy("<f8", [-1, NAN, 2, 3])), "ids": (IDS, npy("<i8", ids[::-1])), "ids_inside": (IDS, npy("<i8", [1, *ids[1:]])),
    "ids_negative": (IDS, npy("<i8", [-1, *ids[1:]])), "ids_above": (IDS, npy("<i8", [len(text), *ids[1:]])), "paths": (PATHS, npy("<i8", paths[::-1])),
    "paths_inside": (PATHS, npy("<i8", [paths[0] + 1, *paths[1:]])), "texts": (TEXTS, npy("|u1", text.replace(b"rgb", b"RGB"))),
    "texts_open": (TEXTS, npy("|u1", text[:-1] + b"x")), "texts_none": (TEXTS, npy("|u1", b"")), "texts_leave": (TEXTS, npy("|u1", text.replace(b"rgb.", b"../x"))),
    "sets": (GROUPS, npy("<i8", [2, 1, 0, 0])), "sets_above": (GROUPS, npy("<i8", [3, 1, 0, 0])), "sets_negative": (GROUPS, npy("<i8", [-1, 1, 0, 0])),
}
for name, (which, data) in FILES.items():
    write("cell_files", name, bytes([which]) + data)
