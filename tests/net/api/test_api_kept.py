#!/usr/bin/python3
"""References that outlive their context, over real daemons: made, passed on, used and fetched by the
program, their owner and two workers, with and without a link between these. The numbers must be
those of tensors passed by hand, whatever the way."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, retold, run

PROGRAM = os.path.join(BIN, "net", "api_kept")
WAYS = {"direct": ("transfer: direct\n",), "via_master": ("transfer: via_master\n",),
        "single_thread": ("transfer: direct\n", "single")}


def main():
    failed, digests = 0, set()
    with Cluster(2, limits="limits: {session_bytes: 48MiB}\n") as c:
        for name, (body, *more) in WAYS.items():
            done = run(PROGRAM, c.session(name, body), "w1", "w2", *more)
            digests |= retold(name, done)
            failed += done.returncode != 0
        done = run(PROGRAM, c.session("lost", "transfer: direct\n"), "w1", "w2", "lost",
                   str(c.workers[0].process.pid))
        print(done.stdout, end="", flush=True)
        failed += done.returncode != 0
    same = len(digests) == 1
    print("ok" if same else "not ok", "numbers_do_not_depend_on_the_way", *digests)
    return 1 if failed or not same else 0


sys.exit(main())
