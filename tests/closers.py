#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of tests/e2e/test_closers.c: every function that the headers declare and whose
name ends like that of a function that releases something, each called with NULL. One file includes
all headers, so two headers that use one name for two things do not compile.
usage: tests/closers.py > ROWS
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("common", "kernels", "master", "worker")
TEMPLATES = "kernels/ops"  # their headers are included by each op, once for each real type
DEVICES = "kernels/cuda"   # needs a device or tests/gpu to link
ENDS = "free|unref|close|clear|done|release|release_cores|return_bytes|stop"
# Functions whose names end like a closer's but are none, or take no NULL; and the reason.
NONE = {
    "api_is_pass_done": "a question about a pass",
    "clv_cmd_stop": "a command of cleave-master",
    "clv_call_dependency_done": "an event of a call",
    "clv_packet_new_ref_release": "makes the packet of a handle, which has a number",
    "clv_context_clear": "frees the records of a context that stays",
    "clv_rref_entry_clear": "frees the value of an entry that stays",
    "clv_rref_handle_clear": "frees the value of a handle that stays",
    "clv_pace_clear": "drops the chunks of a queue that stays",
    "clv_lane_log_clear": "drops the messages of a log that stays",
    "clv_run_folder_clear": "removes the files of a folder",
    "cleave_context_close": "the context is a handle by value, and 0 is an error by its number",
    "cleave_future_release": "a handle by value, as above",
    "cleave_reference_release": "a handle by value, as above",
    "cleave_kept_release": "a handle by value, as above",
}
DECLARED = re.compile(r"(?:^|[;{}\n])\s*(?:CLEAVE_API\s+|static\s+|inline\s+)*([a-z_][\w ]*[\s*]+)"
                      rf"((?:clv|cleave|api)_(?:\w+_)?(?:{ENDS}))\s*\(([^()]*)\)", re.M)


def headers():
    for top in FOLDERS:
        for folder, _, files in sorted(os.walk(os.path.join(ROOT, top))):
            path = os.path.relpath(folder, ROOT)
            if path != TEMPLATES and not path.startswith(DEVICES):
                yield from (f"{path}/{name}" for name in sorted(files) if name.endswith(".h"))


def declarations(path):
    """(return type, name, parameters) of each closer of a header."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", f.read(), flags=re.S)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    return [(" ".join(m[1].split()), m[2], m[3]) for m in DECLARED.finditer(text)]


def argument(parameter):
    """The argument for a parameter: NULL, or zeros of its type."""
    words = parameter.split()
    return "NULL" if "*" in parameter or "[" in parameter else "(%s){0}" % " ".join(words[:-1])


def row(returns, name, parameters):
    call = f"{name}(%s)" % ", ".join(argument(p) for p in parameters.split(","))
    if returns.endswith("*"):
        call = f"return !{call};"
    elif returns in ("clv_code", "cleave_status"):
        call = f"return {call} == 0;"
    else:
        call = f"{call}; return true;"
    return f"static bool call_{name}(void) {{ {call} }}"


def main():
    found = {}
    for path in headers():
        print(f'#include "{path}"')
        for returns, name, parameters in declarations(path):
            if parameters.strip() != "void":
                found.setdefault(name, row(returns, name, parameters))
    for name in sorted(NONE.keys() - found.keys()):
        sys.exit(f"tests/closers.py: nothing needs the exception of {name}")
    names = sorted(found.keys() - NONE.keys())
    print("\n".join(found[n] for n in names))
    print("static const closer closers[] = {")
    print("\n".join(f'  {{"{n}", call_{n}}},' for n in names))
    print("};")


if __name__ == "__main__":
    main()
