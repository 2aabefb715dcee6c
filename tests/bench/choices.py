#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes kernels/cpu/choices.def: which kernel is faster, by shape class, instruction set and
version of the library. Measures the instruction sets of this machine, older ones by
DNNL_MAX_CPU_ISA, in processor time of one thread. Rows of other instruction sets and versions stay.
A row keeps its kernel unless another one takes less than ENOUGH times as long. Builds the programs
again in between, because the times in bf16 and f32 are those of the chosen kernels.

usage: choices.py OUT [--paces] [ISA...]   ISA: of ISAS; default: all that this machine has
  --paces  keeps the kernels, and only times bf16 against f32
"""
import collections
import json
import math
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "../../kernels/cpu/choices.def")
ISAS = {"avx2": "AVX2", "avx512_core": "AVX512_CORE", "avx512_core_bf16": "AVX512_CORE_BF16", "avx512_core_amx": "AVX512_CORE_AMX"}
BF16 = "avx512_core_bf16", "avx512_core_amx"
# Questions, and the instruction sets that have more than one candidate.
QUESTIONS = {"CONV_F32": tuple(ISAS), "CONV_WEIGHT_F32": ("avx2",), "CONV_WEIGHT_BF16": BF16[1:], "CONV_BF16": BF16[1:],
             "LINEAR_WEIGHT": tuple(ISAS), "ATTENTION_BF16": BF16, "LSTM_BF16": BF16}
# OpenBLAS core whose kernels have vectors as wide as those of the instruction set
BLAS_CORES = {isa: "Haswell" if isa == "avx2" else "SkylakeX" for isa in ISAS}
ENOUGH = 0.9
HEAD = """/* Written by `make bench-choices`: do not edit. A row says which kernel was faster for a question and a
 * shape class of choices_int.h, with an instruction set and a version of a library. Rows of one
 * instruction set are in ascending order of the version. PACE: time of an op in bf16, in hundredths of
 * its time in f32; changes no bit. */
"""


def ask(out, question, isa, core=None):
    environment = dict(os.environ, OMP_NUM_THREADS="1", DNNL_MAX_CPU_ISA=ISAS[isa], ONEDNN_MAX_CPU_ISA=ISAS[isa])
    environment.update({"OPENBLAS_CORETYPE": core} if core else {})
    done = subprocess.run([os.path.join(out, "bench/bench_choices"), question], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench_choices {question} with {isa}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def read_table():
    with open(TABLE) as f:
        text = f.read()
    choices = {m[:4]: m[4] for m in re.findall(r'^CHOICE\((\w+), (\w+), (\w+), "(.*)", (\w+)\)$', text, re.M)}
    paces = {m[:4]: int(m[4]) for m in re.findall(r'^PACE\((\w+), (\w+), (\w+), "(.*)", (\d+)\)$', text, re.M)}
    return choices, paces


def order(row):
    question, shape_class, isa, library = row
    return list(QUESTIONS).index(question), shape_class, isa, [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", library)]


def write_table(choices, paces):
    with open(TABLE, "w") as f:
        f.write(HEAD)
        for row in sorted(choices, key=order):
            f.write('CHOICE({}, {}, {}, "{}", {})\n'.format(*row, choices[row]))
        for row in sorted(paces):
            f.write('PACE({}, {}, {}, "{}", {})\n'.format(*row, paces[row]))


def choose(choices, question, isa, library, found):
    """Fills in the rows of one question from the lines that bench_choices has printed."""
    classes = collections.defaultdict(list)
    for line in found:
        classes[line["class"]].append(line["ms"])
    for name, shapes in classes.items():
        row = question, name, isa, library
        now = choices.get(row, next(iter(shapes[0])))
        pace = {c: mean([ms[c] / ms[now] for ms in shapes]) for c in shapes[0]}
        best = min(pace, key=pace.get)
        choices[row] = best if pace[best] < ENOUGH else now
        print(f"{question} {name} {isa} {library}: {choices[row]}", " ".join(f"{c} {r:.2f}" for c, r in pace.items()), flush=True)


def measure_choices(out, isa, choices):
    for question, isas in QUESTIONS.items():
        core = BLAS_CORES[isa] if question == "LINEAR_WEIGHT" else None
        library = ask(out, "about", isa, core)[0]["blas" if core else "onednn"]
        if isa in isas and "not used" not in library:
            choose(choices, question, isa, library, ask(out, question, isa, core))


def measure_paces(out, isa, paces):
    processor, classes = ask(out, "about", isa)[0]["processor"], collections.defaultdict(list)
    for line in ask(out, "paces", isa):
        classes[line["op"].upper(), line["class"]].append(line["ms"]["bf16"] / line["ms"]["f32"])
        print(isa, line, flush=True)
    for (op, name), ratios in classes.items():
        paces[op, name, isa, processor] = round(100 * mean(ratios))


def build(out):
    subprocess.run([os.environ.get("MAKE", "make"), "-s", os.path.relpath(os.path.join(out, "bench/bench_choices"))], check=True,
                   cwd=os.path.join(HERE, "../.."))


def main(out, *words):
    choices, paces = read_table()
    isas = [w for w in words if w != "--paces"] or ISAS
    there = [i for i in isas if ask(out, "about", i)[0]["isa"] == i]
    for isa in there if "--paces" not in words else ():
        measure_choices(out, isa, choices)
    write_table(choices, paces)
    build(out)
    for isa in there:
        if isa in BF16:
            measure_paces(out, isa, paces)
    write_table(choices, paces)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
