#!/usr/bin/python3
"""Empty batches, scalars and linear layers on any rank, over real daemons: modules at home,
on one worker, on two. Then modules with several outputs, and values in bf16. The numbers must not
depend on the placement."""
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways
from cluster import run


def outputs(c):
    digests, failed = {}, 0
    for way, (body, *nodes) in ways.PLACEMENTS.items():
        if sys.argv[1:] and way not in sys.argv[1:]:
            continue
        folder = os.path.join(c.dir, "record_" + way)
        done = run(ways.program("api_outputs"), c.session("outputs_" + way, body), *nodes, folder)
        digests[way] = ways.told(way, done)
        failed += done.returncode != 0
        with open(os.path.join(folder, "egress.jsonl")) as f:
            hops = {(line["from"], line["to"]) for line in map(json.loads, f) if line["event"] == "hop"}
        # a link between workers carries messages even if no value goes over it
        good = {"two_workers": hops == {("w1", "w2"), ("w2", "w1")}, "at_home": not hops}.get(way, True)
        print("ok" if good else "not ok", f"{way}:hops_between_workers_are_recorded", hops)
        failed += not good
    return failed + (not ways.agree(digests, "outputs_do_not_depend_on_the_placement"))


sys.exit(ways.everywhere(ways.program("api_shapes"), ways.PLACEMENTS, then=outputs))
