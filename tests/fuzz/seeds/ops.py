# SPDX-License-Identifier: Apache-2.0
"""Seeds with one module for every op (corpus/load): from the first case of kernels/ops/NAME.cases,
and one for each kind of refused case. The row in NAME.c says which inputs the op has."""
import os
import re

from seeds.base import F32, I64, ROOT, changed, pb, write
from seeds.unary import LINEAR, load, spec

OPS = os.path.join(ROOT, "kernels/ops")
KEEPS_ITS_WORDS = {"training", "fill", "golden", "second"}  # keys of a case that are no attributes
MOST_INPUTS = 8


def text(*path):
    with open(os.path.join(ROOT, *path)) as f:
        return f.read()


KEYS = {name.lower(): int(n) for name, n in re.findall(r"^  CLV_ATTR_(\w+) = (\d+),", text("kernels/ops/ops.h"), re.M)}
KINDS = {name.lower(): kind for name, kind in re.findall(r"\[CLV_ATTR_(\w+)\] =\s*KEY\(\w+,\s*KIND_(\w+)", text("common/model/graph/attrs.c"))}
OP_LIST = re.findall(r"^OP\((\d+), *\w+, *(\w+)\)", text("kernels/ops.def"), re.M)


def words_of(line):
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def lines_of(name):
    """The first case of an op, and its refused cases."""
    lines = text(OPS, name + ".cases").splitlines()
    cases = [line for line in lines if re.match(rf"{name}_\w+ ", line)]
    refused = [line.split(":", 1)[1].split("|")[0] for line in lines if line.startswith("refused:")]
    return cases[:1] + refused


def attr(key, value):
    parts = value.split("x")
    if KINDS[key] == "WEIGHTS":
        return pb.Attr(key=KEYS[key], numbers=[float(p) for p in parts])
    if KINDS[key] == "REAL" or any(re.search(r"[.e]", p) for p in parts):
        return pb.Attr(key=KEYS[key], number=float(value))
    return pb.Attr(key=KEYS[key], ints=[int(p) for p in parts])


def takes(row, kind):
    return f".takes_{kind} = true" in row


def inputs_of(row, words):
    """(shapes of the inputs, as the reader of cases makes them; which inputs hold integers)"""
    first = [int(n) for n in words["in"].split("x")]
    number = lambda key: int((re.findall(rf"\.{key} = (\d+)", row) or [str(int(key == "n_in"))])[0])
    n, most = number("n_in"), number("max_in")
    while n < min(most, MOST_INPUTS) and f"in{n}" in words:
        n += 1
    labels, lengths = takes(row, "labels"), takes(row, "lengths")
    specs = []
    for i in range(n):
        dims = first[:1] + first[2:] if labels and i == 1 else first
        dims = [int(v) for v in words[f"in{i}"].split("x")] if i and f"in{i}" in words else dims
        whole = labels and i == 1 or takes(row, "row_numbers") and i == 0 or lengths and i == most - 1
        specs.append(spec(*dims, dtype=I64 if whole else F32))
    return specs


def module_of(number, name, line):
    words, row = words_of(line), text(OPS, name + ".c")
    specs = inputs_of(row, words)
    op = pb.Node(op=number, name="op", layer=1, inputs=range(len(specs)))
    for key, value in words.items():
        if key in KEYS and key not in KEEPS_ITS_WORDS:
            op.attrs.append(attr(key, value))
    nodes = [pb.Node(name=f"x{i}") for i in range(len(specs))]
    return load(nodes + [op], specs)


ROWS = [text(OPS, name + ".c") for _, name in OP_LIST]
# else they have other names, and seeds other types
for kind in ("labels", "lengths", "row_numbers"):
    assert any(takes(row, kind) for row in ROWS), f"no op has .takes_{kind} = true"
for number, name in OP_LIST:
    for i, line in enumerate(lines_of(name)):
        write("load", f"op_{name}_{i}", module_of(int(number), name, line).SerializeToString())

# Two nodes with one parameter, and refused variants of them.
PAIR = load([pb.Node(name="x"), pb.Node(op=1, name="a", layer=1, inputs=[0], attrs=[attr("out", "3")]),
             pb.Node(op=1, name="b", layer=2, inputs=[1], attrs=[attr("out", "3")]),
             pb.Node(op=6, name="r", layer=3, inputs=[2])])
TIES = {"inside": pb.Tie(node=2, owner="a"), "itself": pb.Tie(node=2, owner="b"), "nowhere": pb.Tie(node=2, owner="c"),
        "of_nothing": pb.Tie(node=3, owner="a"), "to_nothing": pb.Tie(node=2, owner="r"), "outside": pb.Tie(node=2, owner="a", module=1),
        "nameless": pb.Tie(node=2), "no_node": pb.Tie(node=9, owner="a")}
for name, tie in TIES.items():
    write("load", "tie_" + name, changed(PAIR, ties=[tie]).SerializeToString())
write("load", "tie_other_shape", changed(LINEAR, ties=[pb.Tie(node=1, owner="act")]).SerializeToString())
write("load", "tie_chain", changed(PAIR, ties=[pb.Tie(node=2, owner="a"), pb.Tie(node=1, owner="b")]).SerializeToString())
WIDE = load([pb.Node(name="x"), pb.Node(op=1, name="a", layer=1, inputs=[0], attrs=[attr("out", "5")]),
             pb.Node(op=1, name="b", layer=2, inputs=[1], attrs=[attr("out", "5")])])
write("load", "tie_shapes_differ", changed(WIDE, ties=[pb.Tie(node=2, owner="a")]).SerializeToString())
