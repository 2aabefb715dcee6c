#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A few seconds of mixed_soak.py: the mix runs, and status, metrics and the jobs' own counts agree
while all jobs are stopped and when all have ended. `make soak-mixed` takes longer, to show that
nothing grows."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import pyclient
from cluster import SLOW, Suite
from mixed_soak import GROWTH, Soak, cluster, early_and_late

suite = Suite()


@suite.long
def mixed_sessions_leak_nothing():
    with cluster() as c:
        soak = Soak(c, 8)
        failures = soak.run(4 * SLOW)
        assert not failures, failures
        assert all(soak.reads[what] for what in ("frozen", "empty", "scrapes", "status")), soak.reads
        assert len(soak.kinds) > 3 and sum(soak.ledger.closed) > 3, (soak.kinds, soak.ledger.account())


# MiB at w1 in a run without a leak, a figure a minute
SWINGS = [45, 48, 61, 65, 66, 66, 66, 67, 67, 58, 47, 47, 59, 62, 62, 62, 62, 63, 67, 61, 66, 66, 68, 69, 69, 69, 69]


@suite.test
def memory_that_swings_has_not_grown():
    for leak, grows in ((0, False), (1, True)):
        early, late = early_and_late("resident KiB", [(m + leak * i) * 1024 for i, m in enumerate(SWINGS)], 9)
        assert (late - early > GROWTH["resident KiB"][0]) == grows, (leak, early, late)
    assert early_and_late("threads", [30] * 9 + [22] * 6 + [23] * 6 + [24] * 6, 9) == (22, 24)


if pyclient.MISSING:
    print("skip mixed:", pyclient.MISSING)
else:
    suite.main()
