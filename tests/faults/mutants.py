#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the protocol of references in one place at a time and shows which seed of references.c
notices: mutants.py OUT CC [RUNS]. A mutant that survives is a failure."""
import os, re, shutil, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
USER, OWNER, POST = (f"common/reference/rref_{part}.c" for part in ("user", "owner", "post"))
MUTANTS = {
    "a parent goes before the owner knows its child": (
        USER, "CLV_RREF_FORK, h->owner);", "CLV_RREF_FORK, h->owner);\n    tell_parent(t, h);"),
    "a handle goes before its owner has answered": (
        USER, "!h->released || h->state == RREF_JOINING || !rref", "!h->released || !rref",
        "if (h->state == RREF_JOINED) {\n    h->state = RREF_LEAVING",
        "if (h->state <= RREF_JOINED) {\n    rref_post_cancel(t, &h->join);\n    h->state = RREF_LEAVING"),
    "repeats are obeyed again": (POST, "return !verdict;", "return true;"),
    "who is silent is never given up": (
        POST, "if (t->now - p->heard_ns > t->env.lease_ns) give_up(t, p);", ""),
    "nobody renews": (POST, "bool owes = ", "bool owes = false && "),
    "a fetch that is early is taken and forgotten": (
        OWNER, "return m->early ? park(t, from, m) : CLV_NOT_FOUND;",
        "return m->early ? CLV_OK : CLV_NOT_FOUND;"),
    "a fetch that waits for the value is forgotten": (
        OWNER, "if (f->wants) serve(t, f);", ""),
    "a fork that is early is refused": (
        OWNER, "add_fork(t, e, from, m->fork) : park(t, from, m)",
        "add_fork(t, e, from, m->fork) : CLV_NOT_FOUND"),
    "an owner's own early handle counts as known": (USER, "m->owner == from && !m->early", "m->owner == from"),
    "the key is not asked for": (OWNER, "return e && e->key == m->key ?", "return e ?"),
    "whose fork it is does not matter": (OWNER, "f && f->node == node &&", "f &&"),
    "messages are sent once": (POST, "post->due_ns = t->now + post->wait_ns;", "post->due_ns = UINT64_MAX;"),
    "an error is not stored": (OWNER, "e->failed = copy_of(why);", "e->failed = copy_of(rref_refusal(0));"),
}


def build(out, cc, folder, path, changes):
    """The program with one file changed; the rest comes from the libraries."""
    with open(os.path.join(ROOT, path)) as f:
        text = f.read()
    for old, new in zip(changes[::2], changes[1::2]):
        assert text.count(old) >= 1, f"{path} has no '{old}'"
        text = text.replace(old, new)
    source, program = os.path.join(folder, "mutant.c"), os.path.join(folder, "references")
    with open(source, "w") as f:
        f.write(text)
    libs = [os.path.join(out, "lib", name) for name in os.listdir(os.path.join(out, "lib"))]
    made = subprocess.run([cc, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-w", f"-I{ROOT}", f"-I{out}/gen", source,
                           os.path.join(ROOT, "tests/faults/references.c"), "-o", program,
                           "-Wl,--start-group", *libs, "-Wl,--end-group", *LIBRARIES],
                          stderr=subprocess.PIPE, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    return program


LIBRARIES = sys.argv[4:] or []


def main():
    out, cc, runs = sys.argv[1], sys.argv[2], sys.argv[3]
    folder = os.path.join(out, "faults", "mutant")
    os.makedirs(folder, exist_ok=True)
    survivors = 0
    for name, (path, *changes) in MUTANTS.items():
        program = build(out, cc, folder, path, changes)
        done = subprocess.run([program, "--runs", runs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=600)
        caught = re.search(r"^seed \d+ at .*", done.stdout, re.M)
        what = caught.group(0) if caught else f"ends with {done.returncode}" if done.returncode < 0 else None
        print(f"ok caught: {name}: {what}" if what else f"not ok {name} survives {runs} runs", flush=True)
        survivors += not what
    shutil.rmtree(folder)
    return 1 if survivors else 0


sys.exit(main())
