#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the product in one place at a time and shows that a simulated seed notices: mutants.py OUT
CC RUNS LIBRARIES. A mutant that survives is a failure."""
import os, re, shutil, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
MUTANTS = {
    "GRADIENT's order is ignored": ("common/engine/context_backward.c", "p->frame.micro_batch = t->order;",
                                    "p->frame.micro_batch = 0;"),
    "running statistics move in no order": ("common/engine/context_queue.c",
                                            "l->ordered = clv_module_buffer_bytes(c->mod) > 0;", "l->ordered = false;"),
    "credit is not given back": ("common/link/departures.c",
                                 "CLV_MIN(d->credit_full, d->credit_left + CLV_MIN(bytes, d->credit_full));",
                                 "d->credit_left;"),
    "a context's failure is told to nobody": ("master/api/context.c", "if (!(c->nodes & ~notified & NODE_BIT(i))) continue;\n    if (api_packet(rt, CLV_ABORT",
                                              "continue;\n    if (api_packet(rt, CLV_ABORT"),
    "who is lost fails nothing": ("master/api/workers.c", "api_node_fail(rt, p->index, &p->why_lost);", ""),
    "a kept value that was released is waited for": ("master/api/kept.c",
                                                     "  answered(rt, k);\n  api_id_table_remove", "  api_id_table_remove"),
}


def broken(path, old, new):
    with open(os.path.join(ROOT, path)) as f:
        text = f.read()
    assert text.count(old) >= 1, f"{path} has no '{old}'"
    return text.replace(old, new)


def build(out, cc, folder, path, text):
    """The simulation with one file changed; the rest comes from the libraries."""
    source, changed, program = (os.path.join(folder, name) for name in ("mutant.c", "mutant.o", "simulate"))
    with open(source, "w") as f:
        f.write(text)
    subprocess.run([cc, "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-w", "-ffp-contract=off", '-DCLV_VERSION="mutant"',
                    "-DCLV_SANITIZED=0", f"-I{ROOT}", f"-I{out}/gen", "-c", source, "-o", changed], check=True)
    libs = [os.path.join(out, "lib", name) for name in os.listdir(os.path.join(out, "lib"))]
    parts = os.path.join(out, "tests", "simulate")
    objects = [os.path.join(parts, name) for name in os.listdir(parts) if name.endswith(".o")]
    subprocess.run([cc, changed, *objects, "-o", program, "-Wl,--start-group", *libs, "-Wl,--end-group",
                    *sys.argv[4:], "-pthread"], check=True)
    return program


def noticed(program, runs):
    """What it says of the mutant, or None."""
    try:
        done = subprocess.run([program, "--runs", runs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=120)
    except subprocess.TimeoutExpired:
        return "does not end"
    caught = re.search(r"^not ok (seed .*)", done.stdout, re.M)
    return caught.group(1) if caught else f"ends with {done.returncode}" if done.returncode else None


def main():
    out, cc, runs = sys.argv[1], sys.argv[2], sys.argv[3]
    folder = os.path.join(out, "simulate", "mutant")
    os.makedirs(folder, exist_ok=True)
    survivors = 0
    for name, (path, old, new) in MUTANTS.items():
        said = noticed(build(out, cc, folder, path, broken(path, old, new)), runs)
        print(f"ok caught: {name}: {said[:150]}" if said else f"not ok {name} survives {runs} runs", flush=True)
        survivors += not said
    shutil.rmtree(folder)
    return 1 if survivors else 0


sys.exit(main())
