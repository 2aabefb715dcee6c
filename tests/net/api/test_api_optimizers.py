#!/usr/bin/python3
"""Every optimiser through the C API, over real daemons: one program, its modules at home,
on one worker, on two. The numbers must not depend on the placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, retold, run

PROGRAM = os.path.join(BIN, "net", "api_optimizers")
PLACEMENTS = {"at_home": ["master", "master"], "half_and_half": ["w1", "master"],
              "two_workers": ["w1", "w2"], "one_worker": ["w2", "w2"]}


def main():
    failed, digests = 0, set()
    with Cluster(2) as c:
        for name, where in PLACEMENTS.items():
            done = run(PROGRAM, c.session(name, "transfer: direct\n"), *where)
            digests |= retold(name, done)
            failed += done.returncode != 0
    same = len(digests) == 1
    print("ok" if same else "not ok", "numbers_do_not_depend_on_the_placement", *digests)
    return 1 if failed or not same else 0


sys.exit(main())
