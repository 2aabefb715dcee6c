# SPDX-License-Identifier: Apache-2.0
"""Describes the machine for `make bench`: processor, flags, libraries, and the oneDNN kernels that
a training step uses here."""
import collections
import json
import os
import re
import subprocess

# Flags of /proc/cpuinfo by which libraries choose kernels.
FLAG = re.compile(r"sse4_1|avx2?|fma|f16c|avx512\w*|avx_vnni\w*|amx_\w+|vaes|sha_ni")
STEP = ("16", "128", "1")  # of bench_resnet: batch, side, threads


def processor():
    """(name, family and model, flags that matter), from /proc/cpuinfo."""
    with open("/proc/cpuinfo") as f:
        rows = dict(re.findall(r"^(model name|cpu family|model|flags)\s*:\s*(.*)$", f.read(), re.M))
    flags = [flag for flag in rows.get("flags", "").split() if FLAG.fullmatch(flag)]
    return rows.get("model name", "unknown processor"), f"family {rows.get('cpu family', '?')} model {rows.get('model', '?')}", flags


def computes_with(out):
    """The CPU backend's description of its instruction set and libraries."""
    return json.loads(subprocess.run([os.path.join(out, "bench/bench_machine")], stdout=subprocess.PIPE, text=True, check=True).stdout)


def chosen_kernels(out, *dtype):
    """Counter of (primitive, direction, implementation) of one step of ResNet50, as oneDNN reports
    them. Products that OpenBLAS or our own loops compute are not among them."""
    done = subprocess.run([os.path.join(out, "bench/bench_resnet"), *STEP, *dtype], input="steps 1\n", stdout=subprocess.PIPE,
                          text=True, check=True, env={**os.environ, "ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1"})
    fields = [line.split(",") for line in done.stdout.splitlines() if re.match(r"(?:onednn|dnnl)_verbose,(?:primitive,)?exec,", line)]
    rows = [f[f.index("exec") + 2:] for f in fields]  # the fields after the engine
    return collections.Counter((r[0], r[2].removesuffix("_training"), r[1]) for r in rows if r[0] != "reorder")


def print_machine(out):
    name, kind, flags = processor()
    own = computes_with(out)
    print(f"machine: {name}, {kind}, {os.cpu_count()} cores; {' '.join(flags)}")
    print(f"computes with {own['isa']}; {own['libraries']}; bf16: {own['lacks_bf16'] or 'yes'}", flush=True)


def print_kernels(out):
    for dtype in ((), ("bf16",))[:1 if computes_with(out)["lacks_bf16"] else 2]:
        for (primitive, direction, kernel), n in sorted(chosen_kernels(out, *dtype).items()):
            print(f"  {dtype[0] if dtype else 'f32':4} {n:3} x {primitive} {direction}: {kernel}")
