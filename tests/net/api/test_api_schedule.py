#!/usr/bin/python3
"""Random and damaged schedules through the C API (api_schedule.c) over real daemons: 100 of each
in all placements together, or CLV_TEST_SCHEDULES for each placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways
from cluster import Cluster, run

PROGRAM = ways.program("api_schedule")
PLACEMENTS = {"two_workers": ("transfer: direct\n", ["w1", "w2", "direct", "single"]),
              "via_master": ("", ["w2", "w1", "via_master", "threads"]),
              "one_worker": ("", ["w1", "w1", "via_master", "single"]),
              "at_home": ("", ["master", "master", "alone", "threads"])}
EACH = os.environ.get("CLV_TEST_SCHEDULES", "25")
failed = 0

with Cluster(2) as cluster:
    for seed, (name, (body, where)) in enumerate(PLACEMENTS.items(), 1):
        done = run(PROGRAM, cluster.session(name, body), *where, EACH, str(seed),
                   timeout=max(120, int(EACH)))
        ways.told(name, done)
        failed |= done.returncode != 0
sys.exit(failed)
