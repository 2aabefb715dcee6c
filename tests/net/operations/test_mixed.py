#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A few seconds of mixed_soak.py: the mix runs, and status, metrics and the jobs' own counts agree
while all jobs are stopped and when all have ended. `make soak-mixed` takes longer, to show that
nothing grows."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import pyclient
from cluster import SLOW, Suite
from mixed_soak import Soak, cluster

suite = Suite()


@suite.long
def mixed_sessions_leak_nothing():
    with cluster() as c:
        soak = Soak(c, 8)
        failures = soak.run(4 * SLOW)
        assert not failures, failures
        assert all(soak.reads[what] for what in ("frozen", "empty", "scrapes", "status")), soak.reads
        assert len(soak.kinds) > 3 and sum(soak.ledger.closed) > 3, (soak.kinds, soak.ledger.account())


if pyclient.MISSING:
    print("skip mixed:", pyclient.MISSING)
else:
    suite.main()
