# SPDX-License-Identifier: Apache-2.0
"""What the checks of the tree (tests/check-*) share: its files, and how a check ends."""
import fnmatch, os, re, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GENERATED = {"build", ".git", "__pycache__", "runs"}
CELL = 160  # maximum characters of a table's cell in a document; a piece of code counts as four


def walked():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in GENERATED]
        yield from (os.path.relpath(os.path.join(folder, n), ROOT) for n in names)


def files(*patterns):
    """The tree's files, new ones too, that match one of the patterns ('*.c' in every folder)."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):  # a tree without git
        listed = walked()
    found = sorted({p for p in listed if p and os.path.isfile(os.path.join(ROOT, p))})
    return [p for p in found if not patterns or any(fnmatch.fnmatch(p, q) for q in patterns)]


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def is_wide(cell):
    """Whether a cell of a table is too wide. A list of names may have any width."""
    return len(cell.strip()) > CELL and any(len(item.split()) > 6 for item in re.split(r"[,;]", cell))


def end(bad, good):
    """One line for each thing that is wrong, or one that says what holds."""
    print("\n".join(map(str, bad)) if bad else good)
    sys.exit(1 if bad else 0)
