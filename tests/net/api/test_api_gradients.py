#!/usr/bin/python3
"""Gradients that the program gives, reads and writes, over real daemons: one program, its modules
at home, on one worker, on two, direct and through the master. The numbers must not depend on the
placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, retold, run

PROGRAM = os.path.join(BIN, "net", "api_gradients")
PLACEMENTS = {
    "at_home": ("", ["master", "master"]),
    "half_and_half": ("transfer: direct\n", ["master", "w1"]),
    "two_workers": ("transfer: direct\n", ["w1", "w2"]),
    "via_master": ("transfer: via_master\n", ["w2", "w1"]),
    "one_worker": ("", ["w1", "w1"]),
}


def main():
    failed, digests = 0, set()
    with Cluster(2) as c:
        for name, (body, where) in PLACEMENTS.items():
            done = run(PROGRAM, c.session(name, body), *where)
            digests |= retold(name, done)
            failed += done.returncode != 0
    same = len(digests) == 1
    print("ok" if same else "not ok", "numbers_do_not_depend_on_the_placement", *digests)
    return 1 if failed or not same else 0


sys.exit(main())
