# SPDX-License-Identifier: Apache-2.0
"""tests/check-clock on a small tree: a file that asks the host for the time or for randomness is
named, and so is a row that is not needed."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import planted

FILES = {
    "common/net/link/link.c": "/* clv_now_ns() */\nint f(void) { return x->time(0) + clv_clock_now(0) + s.clock; }\n",
    "common/base/base.c": "int g(void) { return clv_now_ns(); }\n",
    "tests/clocks": "# none\n",
}
LINK, ROWS = "common/net/link/link.c", "tests/clocks"
FAULTS = {
    "a clock": ([(LINK, "int h(void) { return clv_now_ns(); }\n")], "common/net/link/link.c: clv_now_ns: take it from"),
    "a clock by its address": ([(LINK, "void *h = clv_now_ns;\n")], "common/net/link/link.c: clv_now_ns: take it from"),
    "randomness": ([("common/net/fair/fair.c", "int h(void) { return rand(); }\n")], "common/net/fair/fair.c: rand: take it from"),
    "an exception not needed": ([(ROWS, f"allow {LINK} 1 reason\n")], f"not needed: {LINK} uses neither"),
    "an exception elsewhere": ([(ROWS, "allow common/base/base.c 1 reason\n")], "is in none of the folders"),
    "an exception without a number": ([(ROWS, f"allow {LINK} reason\n")], "tests/clocks:2: not `allow FILE NUMBER REASON`"),
    "a number passed": ([(ROWS, f"allow {LINK} 1 reason\n"), (LINK, "int h(void) { return time(0) + clv_now_ns(); }\n")],
                        f"{LINK}: clv_now_ns, time: take it from what is handed in (2 uses, at most 1)"),
    "a number too high": ([(LINK, "int h(void) { return time(0); }\n"), (ROWS, f"allow {LINK} 2 reason\n")],
                          f"only 1 uses are in {LINK}: lower the number"),
}
HOLDS = {
    "the tree as it is": ([], "0 uses of the machine's in them, 1 in the tree"),
    "an exception": ([(LINK, "int h(void) { return time(0); }\n"), (ROWS, f"allow {LINK} 1 reason\n")], "1 uses of the machine's in them"),
}
CASES = {what: (changes, ["tests/check-clock"], 0, says) for what, (changes, says) in HOLDS.items()}
CASES.update((what, (changes, ["tests/check-clock"], 1, says)) for what, (changes, says) in FAULTS.items())
sys.exit(planted.judge(FILES, ("check-clock", "callbacks.py", "tree.py"), CASES))
