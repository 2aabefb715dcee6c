#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of tests/e2e/test_nulls.c: calls of each function of cleave.h that returns a
status, with one pointer NULL at a time and all other arguments valid. The function has to refuse
the call and name that argument. MAY lists the arguments that may be NULL by the header.
usage: tests/nulls.py > ROWS
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = "master/api/cleave.h"
# (function, argument): what NULL means there.
MAY = {
    ("cleave_open", "options"): "the defaults",
    ("cleave_open_text", "options"): "the defaults",
    ("cleave_close", "runtime"): "nothing is closed",
    ("cleave_close", "ret_leaks"): "nobody asks",
    ("cleave_graph_op", "attributes"): "none",
    ("cleave_graph_op", "name"): "its number",
    ("cleave_graph_op", "ret_node"): "nobody asks",
    ("cleave_load_architecture", "attributes"): "the defaults",
    ("cleave_load_hf", "layers"): "those of the options",
    ("cleave_load_hf", "head"): "none",
    ("cleave_module_release", "module"): "nothing is released",
    ("cleave_module_reload", "weights"): "those it began with",
    ("cleave_module_reload", "optimizer"): "moments and steps of 0",
    ("cleave_module_reload_async", "weights"): "those it began with",
    ("cleave_module_reload_async", "optimizer"): "moments and steps of 0",
    ("cleave_optimizer_release", "optimizer"): "nothing is released",
    ("cleave_state_save_at_worker", "ret_file"): "nobody asks",
    ("cleave_state_load_at_worker", "ret_file"): "nobody asks",
    ("cleave_parallel_release", "parallel"): "nothing is released",
    ("cleave_context_open", "options"): "the defaults",
    ("cleave_call_with", "options"): "the defaults",
    ("cleave_call_outputs", "options"): "the defaults",
    ("cleave_rpc_async", "ret_reference"): "the value is used in no further call",
    ("cleave_rpc_sync", "ret_reference"): "the value is used in no further call",
    ("cleave_backward_with", "options"): "the defaults",
    ("cleave_backward_async", "options"): "the defaults",
    ("cleave_future_then", "user"): "it is handed on",
    ("cleave_step", "ret"): "nobody asks",
    ("cleave_step_with", "options"): "nothing beside the optimiser",
    ("cleave_step_with", "ret"): "nobody asks",
    ("cleave_step_with_async", "options"): "nothing beside the optimiser",
    ("cleave_step_at", "ret_lr"): "nobody asks",
}
DECLARED = re.compile(r"CLEAVE_API\s+([\w *]+?)\s*\b(cleave_\w+)\(([^;]*?)\)\s*(?:CLEAVE_RESULT)?;", re.S)


def functions():
    """(return type, name, parameters) of each function of the header."""
    with open(os.path.join(ROOT, HEADER), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", " ", f.read(), flags=re.S)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    return [(m[1].strip(), m[2], " ".join(m[3].split())) for m in DECLARED.finditer(text)]


def pointers(parameters):
    """Names of the parameters that are pointers, those to functions too."""
    found = []
    for p in re.split(r",(?![^(]*\))", parameters):
        named = re.search(r"\(\*(\w+)\)", p) or re.search(r"(\w+)(?:\[\w*\])?\s*$", p)
        if "*" in p or "[" in p:
            found.append(named[1])
    return found


def argument(p, missing):
    """The argument for a parameter: NULL, memory that any pointer can have, or a number above 0."""
    named = re.search(r"\(\*(\w+)\)", p) or re.search(r"(\w+)(?:\[\w*\])?\s*$", p)
    if "(*" in p:
        return "NULL" if named[1] == missing else "any_callback"
    if "*" not in p and "[" not in p:
        kind = " ".join(p.split()[:-1])
        return f"({kind}){{1}}"
    return "NULL" if named[1] == missing else "&error" if named[1] == "error" else "anything"


def rows():
    for returns, name, parameters in functions():
        if returns != "cleave_status":
            continue
        split = re.split(r",(?![^(]*\))\s*", parameters)
        for missing in pointers(parameters):
            if missing != "error" and (name, missing) not in MAY:
                yield name, missing, f"{name}(%s)" % ", ".join(argument(p, missing) for p in split)


def main():
    known = {(name, p) for _, name, parameters in functions() for p in pointers(parameters)}
    for name, p in sorted(MAY.keys() - known):
        sys.exit(f"tests/nulls.py: {name} has no argument {p} that may be NULL")
    found = list(rows())
    for i, (_, _, call) in enumerate(found):
        print(f"static cleave_status call_{i}(void) {{ return {call}; }}")
    print("static const null_call null_calls[] = {")
    for i, (name, missing, _) in enumerate(found):
        print(f'  {{"{name}", "{missing}", call_{i}}},')
    print("};")


if __name__ == "__main__":
    main()
