#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Modules of programs at the master are judged by the rules of `plan`, with the host's ledger of
keys and weights that workers had. The build of tests/faults counts the bytes of tensors that links
sent."""
import os, shutil, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import ways

PROGRAM, COUNTING = ways.program("api_fronts"), os.path.join(BIN, "faults", "libcleave.so.0")
suite = Suite()


def program(*modes, **env):
    """Runs these modes of the program. Returns the bytes of tensors that left the host."""
    folder, counted = os.path.join(cluster.dir, "run"), os.path.join(cluster.dir, "counted")
    shutil.rmtree(folder, ignore_errors=True)
    with open(counted, "wb") as f:
        f.write(bytes(8))
    done = run(PROGRAM, cluster.session("fronts", ""), folder, *modes, cwd=cluster.dir,
               env={"CLEAVE_TEST_SENT": counted, "LD_LIBRARY_PATH": os.path.dirname(COUNTING), **env})
    assert done.returncode == 0 and done.stdout.count("ok ") == len(modes), done.stdout + done.stderr
    with open(counted, "rb") as f:
        return struct.unpack("<Q", f.read(8))[0]


@suite.test
def front_is_judged_by_the_rules_of_plan():
    assert program("front_that_mixes_nothing_is_refused") == 0
    assert program("front_that_hides_is_sent") == 4 * (4 * 16 + 4 * 2)


@suite.test
def gradient_is_judged_from_the_loss_on():
    values = 4 * 4 * 16  # bytes of the values, which leave before their gradient is refused
    assert program("gradient_behind_no_head_is_refused") == 3 * values
    assert program("gradient_behind_a_head_is_sent") == values + 4 * 4 * 2


@suite.test
def front_that_a_worker_had_before_is_refused_with_zero_bytes():
    assert program("worker_gets_weights_and_a_key") == 4 * (16 * 16 + 16)
    assert program("front_with_weights_of_a_worker_is_refused") == 0
    assert program("front_that_is_declared_known_is_sent", "front_with_other_secret_weights_is_sent") == 2 * 4 * (4 * 16 + 4 * 2)


@suite.test
def weights_that_a_program_reads_from_a_worker_are_known():
    assert program("weights_that_are_read_are_known", "leaf_is_judged_by_its_front") == 0


@suite.test
def unwritable_ledger_stops_a_program_with_zero_bytes():
    assert program("unwritable_ledger_stops_the_program", XDG_STATE_HOME="/dev/null") == 0


with Cluster(1) as cluster:
    suite.main()
