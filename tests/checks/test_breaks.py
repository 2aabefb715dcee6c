# SPDX-License-Identifier: Apache-2.0
"""tests/check-breaks on a small tree: a break without its place or its test is named, and so is a
break that its test does not notice."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import planted

LIST = """import collections
Break = collections.namedtuple("Break", "name path edits test")
BREAKS = []
def add(name, path, edits, test="tests/unit/x/test_x"):
    BREAKS.append(Break(name, path, edits, test))
add("the sum", "common/x/x.c", [("int sum", "a + b", "a - b")])
"""
MAKEFILE = """
$(OUT)/tests/unit/x/test_x: common/x/x.c tests/unit/x/test_x.c
	mkdir -p $(@D) && gcc -o $@ $^
"""
FILES = {
    "common/x/x.c": "/* { */\nint sum(int a, int b) {\n  return a\n    + b;\n}\nint more(int a) { return a; }\nint again(int a) { return a; }\n",
    "tests/unit/x/test_x.c": "int sum(int a, int b);\nint main(void) { return sum(2, 3) != 5; }\n",
    "tests/breaks.py": LIST,
    "tests/breaks_of_rules.py": "",
    "Makefile": MAKEFILE,
}
ROWS, X = "tests/breaks.py", "common/x/x.c"


def row(name, edits, **more):
    return [(ROWS, f"add({name!r}, {more.get('path', X)!r}, {edits!r}, {more.get('test', 'tests/unit/x/test_x')!r})\n")]


CHECK, RUN = ["tests/check-breaks"], ["tests/check-breaks", "--run"]
CASES = {
    "a break with its place": ([], CHECK, 0, "1 breaks on purpose, each with its place and its test"),
    "a break that is caught": ([], RUN, 0, "ok caught: the sum: exit 1\n1 breaks caught, 0 not"),
    "a break that survives": (row("a more", [("int more", "return a;", "return 7;")]), RUN, 1,
                              "not ok caught: a more: survives tests/unit/x/test_x"),
    "a break that does not build": (row("a more", [("int more", "return a;", "return b;")]), RUN, 1, "not ok caught: a more: does not build"),
    "a test that fails unbroken": ([("=tests/unit/x/test_x.c", "int main(void) { return 3; }\n")], RUN, 1,
                                   "the sum: tests/unit/x/test_x fails unbroken: exit 3"),
    "a place that is gone": (row("a more", [("int more", "return b;", "")]), CHECK, 1,
                             "common/x/x.c: a more: in int more: 'return b;' is there 0 times, not once"),
    "a function that is gone": (row("a more", [("int less", "return a;", "")]), CHECK, 1, "'int less' is there 0 times, not once"),
    "two places": (row("a more", [("", "return a;", "")]), CHECK, 1, "common/x/x.c: a more: 'return a;' is there 2 times, not once"),
    "a file that is gone": (row("a more", [("", "a", "")], path="common/x/y.c"), CHECK, 1, "common/x/y.c: a more: there is no such file"),
    "a break of two files": (row("a more", [("int more", "return a;", "return 1 * a;"),
                                            ("", "!= 5", "!= 6", "tests/unit/x/test_x.c")]), RUN, 0, "2 breaks caught, 0 not"),
    "a second file that is gone": (row("a more", [("int more", "a", "7"), ("", "a", "", "common/x/y.c")]), CHECK, 1,
                                   "common/x/y.c: a more: there is no such file"),
    "a test that is gone": (row("a more", [("", "a", "")], test="tests/unit/x/test_y"), CHECK, 1, "there is no test tests/unit/x/test_y.c"),
    "a break that changes nothing": (row("a more", [("int more", "return a;", "return a;")]), CHECK, 1, "a more: changes nothing"),
    "a name twice": (row("the sum", [("int more", "return a;", "return 7;")]), CHECK, 1, "the sum: a second break of that name"),
}
sys.exit(planted.judge(FILES, ("check-breaks", "callbacks.py", "tree.py", "dependencies.py"), CASES))
