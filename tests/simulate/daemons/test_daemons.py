#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The random programs of the simulation over real daemons: the bits of home; and the same while a
worker is killed at a random moment and comes back. CLV_TEST_PROGRAMS=40 makes 40 of them, from seed
CLV_TEST_FIRST on; with a loss a fourth of these."""
import os, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../net/lib"))
from cluster import BIN, LONG, Cluster, Suite, Worker

PROGRAM = os.path.join(BIN, "simulate", "daemons")
PROGRAMS = int(os.environ.get("CLV_TEST_PROGRAMS") or (24 if LONG else 5))
FIRST = int(os.environ.get("CLV_TEST_FIRST") or 1)
suite = Suite()


def handle(what, number):
    """To worker `number` of the session file."""
    i = int(number) - 1
    worker = cluster.workers[i]
    if what == "kill":
        worker.kill()
        worker.process.wait()
    else:
        cluster.workers[i] = Worker(cluster, worker.name, worker.config)


def run(count, *args):
    session = cluster.session("random", "transfer: direct\n")
    p = subprocess.Popen([PROGRAM, session, str(FIRST), str(count), *args], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
    for line in p.stdout:
        word, *rest = line.split()
        if word == "ask":
            handle(*rest)
            p.stdin.write("done\n")
            p.stdin.flush()
        else:
            print("   ", line.strip(), flush=True)
    assert p.wait() == 0, f"{os.path.basename(PROGRAM)} ends with {p.returncode}"


@suite.test
def programs_give_the_bits_of_a_local_run():
    run(PROGRAMS)


@suite.long
def programs_recover_from_a_lost_worker():
    """Whatever needs it says so by its name; when it is back, everything is as without the loss."""
    run(-(-PROGRAMS // 4), "loss")


with Cluster(3, limits="limits: {tensors: 65536}\n") as cluster:
    suite.main()
