#!/usr/bin/python3
"""Futures over real daemons: blocking functions and their asynchronous forms, polling, waiting for
any of several, callbacks, cancelling, deadlines and ends, with the modules at the master, on one
worker and on two, with and without threads of the runtime. Then how busy eight contexts in flight
keep two workers, and a worker that dies."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways
from cluster import chosen, run

PROGRAM, MORE, OVERLAP, INTERRUPTS = map(
    ways.program, ("api_futures", "api_futures_more", "api_overlap", "api_interrupts"))
ENV = {"CLEAVE_TEST_OPS": "1"}  # the op that waits
WAYS = chosen({"direct": (ways.DIRECT, "w1", "w2"), "direct_single": (ways.DIRECT, "w1", "w2", "single"),
               "half": ("", "w1", "master"), "half_single": ("", "w1", "master", "single"),
               "at_home": ("", "master", "master"), "via_master": (ways.VIA_MASTER, "w2", "w1")},
              "direct", "half_single", "via_master")


def overlap_and_loss(c):
    failed = 0
    runs = (("overlap", OVERLAP, "64"), ("overlap_single", OVERLAP, "64", "single"),
            ("interrupted", INTERRUPTS, str(c.workers[0].process.pid)),
            ("lost", PROGRAM, "lost", str(c.workers[0].process.pid)))
    for name, program, *more in runs:
        done = run(program, c.session(name, ways.DIRECT), "w1", "w2", *more, env=ENV)
        ways.told(name, done)
        print("".join(f"  {name}: {line}\n" for line in done.stderr.splitlines()), end="", flush=True)
        failed += done.returncode != 0
    return failed


futures = ways.everywhere(PROGRAM, WAYS, "numbers_do_not_depend_on_the_way", overlap_and_loss, ENV)
more = ways.everywhere(MORE, WAYS, "numbers_of_more_do_not_depend_on_the_way", env=ENV)
sys.exit(futures or more)
