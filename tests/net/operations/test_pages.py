#!/usr/bin/python3
"""The pages that `make install` installs: all exist, and links between them work."""
import os, re, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
BIN = os.environ.get("CLEAVE_TEST_BIN", os.path.join(ROOT, "build/release"))
LINK = re.compile(r"\]\(([^)#\s]+\.md)[^)]*\)")


def pages(folder):
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f not in ("build", ".git")]
        found += [os.path.relpath(os.path.join(at, n), folder) for n in names if n.endswith(".md")]
    return set(found)


def installed():
    """The folder of the documents in OUT/tree, for any PREFIX."""
    for at, folders, names in os.walk(os.path.join(BIN, "tree")):
        if at.endswith("share/doc/cleave"):
            return at


def dead_links(folder):
    for page in sorted(pages(folder)):
        with open(os.path.join(folder, page)) as f:
            for target in LINK.findall(f.read()):
                if "://" not in target and not os.path.exists(os.path.join(folder, os.path.dirname(page), target)):
                    yield f"{page} -> {target}"


def main():
    folder = installed()
    if not folder:
        print("skip installed_pages: no installed tree (make units)")
        return 0
    missing = sorted(pages(ROOT) - pages(folder))
    dead = list(dead_links(folder))
    for name, bad in (("all_pages_are_installed", missing), ("installed_pages_link_to_each_other", dead)):
        print(f"not ok {name}: {', '.join(bad)}" if bad else f"ok {name}")
    return 1 if missing or dead else 0


sys.exit(main())
