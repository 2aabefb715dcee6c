#!/usr/bin/python3
"""Batches of nothing, scalars and linear layers on any rank, over real daemons: modules at home,
on one worker, on two. Then modules with several outputs, and values in bf16. The numbers must not
depend on the placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways
from cluster import run


def outputs(c):
    digests, failed = {}, 0
    for way, (body, *nodes) in ways.PLACEMENTS.items():
        if sys.argv[1:] and way not in sys.argv[1:]:
            continue
        done = run(ways.program("api_outputs"), c.session("outputs_" + way, body), *nodes)
        digests[way] = ways.told(way, done)
        failed += done.returncode != 0
    return failed + (not ways.agree(digests, "outputs_do_not_depend_on_the_placement"))


sys.exit(ways.everywhere(ways.program("api_shapes"), ways.PLACEMENTS, then=outputs))
