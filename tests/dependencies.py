# SPDX-License-Identifier: Apache-2.0
"""Which scripts a script depends on."""
import functools, os, re
import tree

# modules that a script imports, or a script that it starts
NAMED = re.compile(r"^\s*(?:from|import)\s+([\w, ]+)|(\w+)\.py[\"']", re.M)


@functools.cache
def scripts():
    return tree.files("tests/*.py")


def reached(*paths):
    """The scripts, those of tests/ that they import or start, and what these reach."""
    found, due = set(), list(paths)
    while due:
        path = due.pop()
        if path not in found:
            found.add(path)
            names = {n for m in NAMED.finditer(tree.text(path)) for n in re.findall(r"\w+", m[1] or m[2])}
            due += [p for p in scripts() if os.path.basename(p)[:-3] in names]
    return tuple(sorted(found))
