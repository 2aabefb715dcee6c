#!/usr/bin/python3
"""Gradients that the program gives, reads and writes, over real daemons: one program, its modules
at home, on one worker, on two, direct and through the master. The numbers must not depend on the
placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways

sys.exit(ways.everywhere(ways.program("api_gradients"), ways.LINKED))
