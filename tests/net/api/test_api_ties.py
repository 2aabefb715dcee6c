#!/usr/bin/python3
"""One weight of two modules through the C API, over real daemons: at home, on one worker, on two.
The numbers must not depend on the placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways

sys.exit(ways.everywhere(ways.program("api_ties"), ways.PLACEMENTS))
