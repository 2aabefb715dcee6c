#!/usr/bin/python3
"""The C API over real daemons: one program, its modules at home, on one worker, on two, direct and
through the master. Each test of the program counts once per placement; the numbers must not depend
on the placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways
from cluster import BIN, LONG, run

FAULTS, RANDOM = ways.program("api_faults"), ways.program("random_programs")
EXAMPLE = os.path.join(BIN, "seeds", "example")
COUNT = os.environ.get("CLEAVE_TEST_PROGRAMS", "300" if LONG else "30")


def example(name, *session):
    done = run(EXAMPLE, *session)
    good = done.returncode == 0 and float(done.stdout.split()[3]) < 0.5 * float(done.stdout.split()[1])
    print(f"{'ok' if good else 'not ok'} example_{name} {done.stdout.strip()} {done.stderr.strip()}", flush=True)
    return good


def the_rest(c):
    failed = [example("alone"), example("with_a_worker", c.session("example", ""))].count(False)
    plain, direct = c.session("plain", ""), c.session("direct", ways.DIRECT)
    runs = (("direct", RANDOM, direct, "w1", "w2", "1", COUNT),
            ("via_master", RANDOM, plain, "master", "w2", "100001", COUNT),
            ("many", FAULTS, plain, "w1", "w2", "0", "3000" if LONG else "400"),
            ("faults", FAULTS, plain, "w1", "w2", str(c.workers[1].process.pid)))
    for name, *command in runs:
        done = run(*command, timeout=300)
        ways.told(name, done)
        failed += done.returncode != 0
    return failed


# max tensors of a session: a thousand contexts hold that many
sys.exit(ways.everywhere(ways.program("api_program"), ways.LINKED, then=the_rest,
                         limits="limits: {tensors: 65536, receive_window: 4MiB}\n"))
