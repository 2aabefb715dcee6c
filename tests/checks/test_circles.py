# SPDX-License-Identifier: Apache-2.0
"""tests/check-circles on a small tree with planted circles and wrong exceptions: each fails, and
the message names it."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import planted

MAKEFILE = """
objects: $(patsubst %.c,$(OUT)/%.o,$(wildcard common/*/*.c common/*/*/*.c master/*/*/*.c))
$(OUT)/%.o: %.c
	mkdir -p $(@D) && gcc -I. -O1 -fPIC -MMD -c $< -o $@
"""
HEADER = """typedef void link_each_fn(int x);
typedef struct link_events { int n; void (*on_end)(void *user, int code); } link_events;
int low(void); int high(void); void each(link_each_fn *fn); int end(link_events *e); int begin(void);
"""
SEEN = '#include "common/net/link/link.h"\n'
FILES = {
    "common/net/link/link.h": HEADER,
    "common/net/link/low.c": SEEN + "int low(void) { return 1; }\nint end(link_events *e) { e->on_end(0, 1); return 2; }\n"
                         "void each(link_each_fn *fn) { fn(1); }\n",
    "common/net/link/high.c": SEEN + "int high(void) { return low() + 1; }\nint begin(void) { return 3; }\n",
    "common/net/fair/fair.c": "int fair(void) { return 1; }\n",
    "common/engine/reference/reference_fetch.c": "int reference(void) { return 1; }\n",
    "common/engine/engine.c": "int engine(void) { return 1; }\n",
    "master/api/core/core.c": "int core(void) { return 1; }\n",
    "master/api/extra/extra.c": "int extra(void) { return 1; }\n",
    "common/model/graph/one.c": "int two(void); int one(int n) { return n ? two() : 1; }\n",
    "common/model/graph/two.c": "int one(int n); int two(void) { return one(0); }\n",
    "tests/circles": "# reasons\nceiling common/model/graph 2 chapters of one thing\n",
    "Makefile": MAKEFILE,
}
HIGH, LOW, ROWS = "common/net/link/high.c", "common/net/link/low.c", "tests/circles"
ENDS = "static void ended(void *user, int code) { (void)user; (void)code; }\n"
UP = "int up(void) { return begin(); }\n"
EXEMPT = "".join(f"exempt common/x{n} a.c b.c reason\n" for n in range(7))

FAULTS = {  # name: (planted changes, error message)
    "a circle by symbol": ([(LOW, UP)], "common/net/link: low.c -> high.c (begin) -> low.c (low)"),
    "a circle by a member": (
        [(HIGH, ENDS + "int go(void) { link_events e = {.on_end = ended}; return end(&e); }\n")], "high.c (on_end, a pointer)"),
    "a circle by a place in braces": (
        [(HIGH, ENDS + "int go(void) { link_events e = {1, ended}; return end(&e); }\n")], "high.c (on_end, a pointer)"),
    "a circle by an assignment": (
        [(HIGH, ENDS + "int go(link_events *e) { e->on_end = ended; return end(e); }\n")], "high.c (on_end, a pointer)"),
    "a circle by an argument": (
        [(HIGH, "static void one(int x) { (void)x; }\nvoid go(void) { each(one); }\n")], "high.c (each, a pointer)"),
    "a circle by an argument that is stored": (
        [(LOW, "void keep(link_events *e, void (*f)(void *, int)) { e->on_end = f; }\n"),
         ("common/net/link/link.h", "void keep(link_events *e, void (*f)(void *, int));\n"),
         (HIGH, ENDS + "void go(link_events *e) { keep(e, ended); }\n")], "high.c (on_end, a pointer)"),
    "a function handed nowhere known": (
        [(HIGH, "static long odd(char x) { return x; }\nlong (*get(void))(char) { return odd; }\n")],
        "common/net/link/high.c: odd is handed to a place"),
    "an exemption not needed": (
        [(ROWS, "exempt common/net/link low.c high.c reason\n")], "not needed: low.c and high.c do not call each other"),
    "an exemption of a file that is gone": ([(ROWS, "exempt common/net/link low.c gone.c reason\n")], "there is no common/net/link/gone.c"),
    "an exemption without a reason": ([(ROWS, "exempt common/model/graph one.c two.c\n")], "tests/circles:3: not `exempt"),
    "a seventh exemption": ([(ROWS, EXEMPT)], "tests/circles:9: the exemption number 7"),
    "a new folder with a circle": (
        [("common/new/one.c", "int b(void); int a(int n) { return n ? b() : 1; }\n"),
         ("common/new/two.c", "int a(int n); int b(void) { return a(0); }\n")], "common/new: 2 files in circles, at most 0"),
    "a strict folder that is gone": ([("=common/net/fair/fair.c", None)], "common/net/fair is strict, and there is no such folder"),
    "a ceiling of a strict folder": ([(ROWS, "ceiling common/net/link 2 reason\n")], "common/net/link is strict and has no ceiling"),
    "a ceiling of no folder": ([(ROWS, "ceiling common/gone 2 reason\n")], "there is no folder common/gone"),
    "a ceiling too high": ([("=" + ROWS, "ceiling common/model/graph 3 reason\n")], "only 2 files of common/model/graph are in circles"),
    "a ceiling passed": (
        [("common/model/graph/three.c", "int two(void); int three(void) { return two(); }\n"),
         ("common/model/graph/two.c", "int three(void); int four(void) { return three(); }\n")],
        "common/model/graph: 3 files in circles, at most 2"),
}
HOLDS = {
    "the tree as it is": ([], "2 files in circles, 0 pairs exempt"),
    "an exempt pair": ([(LOW, UP), (ROWS, "exempt common/net/link low.c high.c reason\n")], "2 files in circles, 1 pairs exempt"),
    "a callback from below": (
        [("common/net/fair/fair.c", SEEN + ENDS + "int go(void) { link_events e = {.on_end = ended}; return end(&e); }\n")],
        "2 files in circles"),
}
CHECK = ["tests/check-circles"]
CASES = {what: (changes, CHECK, 0, says) for what, (changes, says) in HOLDS.items()}
CASES.update((what, (changes, CHECK, 1, says)) for what, (changes, says) in FAULTS.items())
CASES["the floors of a folder"] = ([], CHECK + ["--layers", "common/net/link"], 0, " 1  low.c\n 2  high.c\n")
sys.exit(planted.judge(FILES, ("check-circles", "callbacks.py", "tree.py"), CASES))
