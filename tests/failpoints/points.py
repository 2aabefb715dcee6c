# SPDX-License-Identifier: Apache-2.0
"""The failpoints of the tree: names, files and functions; and the tables that they come from."""
import os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tree

POINT = re.compile(r'\bCLV_FAILPOINT\("([^"]+)"')
LINK, RECORD, RECOVER = "common/net/link/link_state.c", "common/model/weights/weights.h", "master/run/run_recover.c"


def body(path, function):
    """The text of a function's definition; '' if the file has none."""
    m = re.search(rf"^(?:[\w*]+ )+\**{function}\([^;{{]*\) {{\n.*?^}}", tree.text(path), re.M | re.S)
    return m[0] if m else ""


def statuses():
    """The status of an attempt, in lower case."""
    enum = re.search(r"typedef enum clv_run_status {(.*?)} clv_run_status;", tree.text(RECORD), re.S)[1]
    return [s.lower() for s in re.findall(r"\bCLV_RUN_(\w+)", enum) if s != "STATUSES"]


def events():
    """The events of a recovery."""
    return sorted(set(re.findall(r'print_event\(r, "(\w+)"', tree.text(RECOVER))))


def link_actions():
    """The actions of the table of a link's states that change a state."""
    table = re.search(r"\bactions\[CLV_LINK_STATES\].*?};", tree.text(LINK), re.S)[0]
    rows = re.findall(r"\] = {([a-z_, ]+)}", table)
    return sorted({a.strip() for row in rows for a in row.split(",")} - {"refuse_event", "ignore_event"})


def checkpoint_functions():
    """The functions that write a checkpoint, except those that only call others of them."""
    found = set(re.findall(r"\bclv_checkpoint_(\w+)\([^;]*clv_checkpoint_writer \*", tree.text(RECORD)))
    return sorted(f for f in found if not f.startswith("writer_") and f not in ("add_stage", "add_state"))


def required():
    """Name of each point that a table asks for, and the table."""
    yield from ((f"link.{a}", LINK) for a in link_actions())
    yield from ((f"run.{s}", RECORD) for s in statuses())
    yield from ((f"recovery.{e}", RECOVER) for e in events())
    yield from ((f"checkpoint.{f}", RECORD) for f in checkpoint_functions())


def expanded(name):
    """The names of failpoints that a format string can produce."""
    if "%s" not in name:
        return [name]
    words = {"run.%s": statuses, "recovery.%s": events}.get(name)
    return [name.replace("%s", w) for w in words()] if words else []


def written():
    """(name, file) of each failpoint in the sources, with formats expanded. A name that is also
    written out is not counted for the format."""
    found = [(m[1], path) for path in tree.files("common/*.c", "master/*.c", "worker/*.c") for m in POINT.finditer(tree.text(path))]
    literal = {name for name, _ in found}
    return [(one, path) for name, path in found for one in expanded(name) or [name] if one == name or one not in literal]
