#!/usr/bin/python3
"""References that outlive their context, over real daemons: made, passed on, used and fetched by
the program, their owner and two workers, with and without a link between these. The numbers must
equal those of tensors that the program fetches and passes itself."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways
from cluster import run

PROGRAM = ways.program("api_kept")
WAYS = {"direct": (ways.DIRECT, "w1", "w2"), "via_master": (ways.VIA_MASTER, "w1", "w2"),
        "single_thread": (ways.DIRECT, "w1", "w2", "single")}


def a_worker_is_lost(c):
    done = run(PROGRAM, c.session("lost", ways.DIRECT), "w1", "w2", "lost", str(c.workers[0].process.pid))
    ways.told("lost", done)
    return done.returncode != 0


sys.exit(ways.everywhere(PROGRAM, WAYS, "numbers_do_not_depend_on_the_way", a_worker_is_lost,
                         limits="limits: {session_bytes: 48MiB}\n"))
