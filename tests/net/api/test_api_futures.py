#!/usr/bin/python3
"""Futures over real daemons: what blocks and its form that does not, polling, one of many,
callbacks, cancelling, deadlines and ends, with the modules at home, on one worker and on two, with
and without threads of the runtime. Then how busy eight contexts in flight keep two workers, and a
worker that dies."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, retold, run

PROGRAM, OVERLAP = (os.path.join(BIN, "net", name) for name in ("api_futures", "api_overlap"))
DIRECT = "transfer: direct\n"
ENV = {"CLEAVE_TEST_OPS": "1"}  # the op that waits
WAYS = {"direct": (DIRECT, "w1", "w2"), "direct_single": (DIRECT, "w1", "w2", "single"),
        "half": ("", "w1", "master"), "half_single": ("", "w1", "master", "single"),
        "at_home": ("", "master", "master"), "via_master": ("transfer: via_master\n", "w2", "w1")}


def main():
    failed, digests = 0, set()
    with Cluster(2, env=ENV) as c:
        for name, (body, *where) in WAYS.items():
            done = run(PROGRAM, c.session(name, body), *where, env=ENV)
            digests |= retold(name, done)
            failed += done.returncode != 0
        runs = (("overlap", OVERLAP, "64"), ("overlap_single", OVERLAP, "64", "single"),
                ("lost", PROGRAM, "lost", str(c.workers[0].process.pid)))
        for name, program, *more in runs:
            done = run(program, c.session(name, DIRECT), "w1", "w2", *more, env=ENV)
            retold(name, done)
            print("".join(f"  {name}: {line}\n" for line in done.stderr.splitlines()), end="", flush=True)
            failed += done.returncode != 0
    same = len(digests) == 1
    print("ok" if same else "not ok", "numbers_do_not_depend_on_the_way", *digests)
    return 1 if failed or not same else 0


sys.exit(main())
