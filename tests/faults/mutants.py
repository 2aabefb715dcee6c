#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the protocol of references in one place at a time and shows what notices: a seed of
references.c or, of a break in a cell of the tables, the unit test that walks them: mutants.py OUT
CC RUNS LIBRARIES. A mutant that survives is a failure."""
import os, re, shutil, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
USER, OWNER, POST, TABLES, INPUTS = (f"common/reference/rref{part}.c" for part in ("_user", "_owner", "_post", "_tables", ""))
MUTANTS = {
    "repeats are handled again": (POST, "return !answered;", "return true;"),
    "who is silent is never given up": (
        INPUTS, "if (t->now - p->heard_ns > t->o.lease_ns) give_up(t, p);", ""),
    "nobody renews": (INPUTS, "bool owes = ", "bool owes = false && "),
    "an owner's own early handle counts as known": (USER, "m->owner == from && !m->early", "m->owner == from"),
    "the key is not asked for": (OWNER, "bool wrong = e && e->key != m->key;", "bool wrong = false;"),
    "whose fork it is does not matter": (OWNER, "f && f->node == node &&", "f &&"),
    "messages are sent once": (POST, "post->due_ns = t->now + post->wait_ns;", "post->due_ns = UINT64_MAX;"),
    "an error is not stored": (OWNER, "clv_rref_failure_copy(given->failure);",
                               "clv_rref_failure_copy(clv_rref_refusal(0));"),
    "of several answers that wait one is sent": (POST, "p->ack_last = first ?", "p->ack_first = p->ack_last = true ?"),
    "a record goes although a result is to be made from it": (
        "common/reference/rref_record.c", "if (!r->results) clv_slab_give(s, r);", "clv_slab_give(s, r);"),
}
# State, fact, what its cell becomes.
CELLS = {
    "a parent goes before the owner knows its child": (
        "CHILD_OFFERED", "CHILD_USE_TAKEN", "DO(CHILD_NONE, RREF_FREE)"),
    "a handle goes before its owner has answered": (
        "JOINING", "RELEASE", "DO(ENDED, RREF_CUT_OWNER, RREF_CUT_FETCH, RREF_CHECK)"),
    "a handle goes before its children": ("JOINED", "RELEASE", "DO(LEAVING, RREF_CUT_FETCH, RREF_SEND_DELETE)"),
    "who passed it is not told": ("JOINING", "ANSWERED", "DO(JOINED, RREF_NOTE_JOINED, RREF_REPORT_JOINED)"),
    "a refused handle is gone before who passed it knows": (
        "JOINING_RELEASED", "REFUSED", "DO(ENDED, RREF_CUT_OWNER, RREF_CHECK, RREF_SEND_ACCEPT, RREF_REPORT_JOINED)"),
    "what was wanted of a lost owner never comes": (
        "JOINED", "OWNER_LOST", "DO(FAILED, RREF_CUT_OWNER, RREF_SEND_ACCEPT)"),
    "a FETCH goes on although its handle was released": ("JOINED", "RELEASE", "DO(JOINED_RELEASED, RREF_CHECK)"),
    "an owner is asked soon, again and again": ("JOINED", "ASKED", "DO(JOINED, RREF_ASK_SOON)"),
    "FORK is posted twice": (
        "NONE", "GIVEN", "DO(JOINING, RREF_SEND_FORK, RREF_SEND_FORK, RREF_REPORT_USED)"),
    "a handle is used before its owner is asked": ("NONE", "GIVEN", "DO(JOINING, RREF_REPORT_USED, RREF_SEND_FORK)"),
    "a fetch that is early is taken and forgotten": ("FORK_NONE", "FORK_EARLY", "STAY(FORK_NONE)"),
    "a fetch that waits for the value is forgotten": ("FORK_KNOWN", "FORK_ASK", "STAY(FORK_KNOWN)"),
    "a fork that is early is refused": ("ENTRY_NONE", "ENTRY_FORKED", "REFUSE(NOT_FOUND)"),
    "another key does as well": ("ENTRY_VALUE", "ENTRY_KEYLESS", "DO(ENTRY_VALUE, RREF_ADD_FORK)"),
    "a value is stored twice": ("ENTRY_VALUE", "ENTRY_SETTLED", "DO(ENTRY_VALUE, RREF_STORE_VALUE)"),
    "a value is wanted before who came early is served": (
        "ENTRY_NONE", "ENTRY_KEPT", "DO(ENTRY_EXPECTED, RREF_REPORT_CREATE, RREF_UNPARK_FORKS)"),
    "an entry goes and nobody learns it": ("ENTRY_VALUE", "ENTRY_LEFT", "DO(ENTRY_NONE, RREF_FREE)"),
    "what was not acknowledged is not sent again": ("POST_SENT", "POST_DUE", "STAY(POST_SENT)"),
    "the window does not move": ("POST_BEHIND", "POST_ROOM", "STAY(POST_BEHIND)"),
}
SIMULATED = "tests/faults/references.c"
WALKED = "tests/unit/reference/test_tables.c"


def read(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def broken(path, changes):
    text = read(path)
    for old, new in zip(changes[::2], changes[1::2]):
        assert text.count(old) >= 1, f"{path} has no '{old}'"
        text = text.replace(old, new)
    return text


def broken_cell(state, fact, cell):
    text, row = read(TABLES), rf"(\n  \[RREF_{state}\] = {{\n(?:    [^\n]*\n)*?    \[RREF_{fact}\] *= )[^\n]*,\n"
    found = re.search(row, text)
    assert found, f"{TABLES} has no row for {fact} in {state}"
    return text[:found.start()] + found.group(1) + cell + ",\n" + text[found.end():]


def build(out, cc, folder, text, test):
    """A test with one file changed; the rest comes from the libraries."""
    source, program = os.path.join(folder, "mutant.c"), os.path.join(folder, "test")
    with open(source, "w") as f:
        f.write(text)
    libs = [os.path.join(out, "lib", name) for name in os.listdir(os.path.join(out, "lib"))]
    made = subprocess.run([cc, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-w", f"-I{ROOT}", f"-I{out}/gen", source,
                           os.path.join(ROOT, test), "-o", program,
                           "-Wl,--start-group", *libs, "-Wl,--end-group", *LIBRARIES, "-lcmocka"],
                          stderr=subprocess.PIPE, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    return program


def noticed(program, *args):
    """What it says of the mutant, or None."""
    try:
        done = subprocess.run([program, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "does not end"
    caught = re.search(r"^(seed \d+ at .*|ERROR: .*|.*\.c:\d+: error.*)", done.stdout, re.M)
    return caught.group(0) if caught else f"ends with {done.returncode}" if done.returncode else None


LIBRARIES = sys.argv[4:] or []


def main():
    out, cc, runs = sys.argv[1], sys.argv[2], sys.argv[3]
    folder = os.path.join(out, "faults", "mutant")
    os.makedirs(folder, exist_ok=True)
    survivors = 0
    mutants = [(name, broken(path, changes), [SIMULATED, WALKED]) for name, (path, *changes) in MUTANTS.items()]
    mutants += [(name, broken_cell(*cell), [WALKED, SIMULATED]) for name, cell in CELLS.items()]
    for name, text, tests in mutants:
        caught = None
        for test in tests:
            if said := noticed(build(out, cc, folder, text, test), *(["--runs", runs] if test == SIMULATED else [])):
                caught = f"{os.path.basename(test)}: {said}"
                break
        print(f"ok caught: {name}: {caught}" if caught else f"not ok {name} survives {runs} runs", flush=True)
        survivors += not caught
    shutil.rmtree(folder)
    return 1 if survivors else 0


sys.exit(main())
