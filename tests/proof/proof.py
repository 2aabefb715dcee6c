#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Run the long proofs and write what they found to tests/PROOFS.md.

usage: proof.py [--status | --names]
environment: PROOF=name for one of them, PROOF_SCALE=short|full

With --names it only checks PROOF and PROOF_SCALE; `make proof` does so before it installs packages.

A proof is run when its row is missing, stale, failed, or shorter than what is asked for. A row is
stale when the digest of what it depends on has changed: the product's tracked files (all but tests,
pages and hidden files) and the proof's own. A row is written as soon as its proof ends, so a run
that was killed goes on with the proof it was in. build/proof/ has the state and the output of each.
"""
import datetime
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tree
from rules import PROOFS, Unreadable

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
COLUMNS = ("proof", "date", "digest", "machine", "length", "figure", "target", "met")
NEVER = "never run"
SHORT = 12  # digits of a digest in the table
LIST = 280  # characters of a cell that is a list of names; others are as wide as documents allow
HEAD = """# Long proofs

`make proof` runs these and writes this table; `make proof-status` shows which rows are stale and which
proofs have no row. The digest is SHA-256 over the product's tracked files and the proof's own. A figure is
what the proof printed last.

"""


# ---- digests -------------------------------------------------------------------------------------

def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], stdout=subprocess.PIPE, check=True)
    return sorted(p for p in listed.stdout.decode().split("\0") if p and not p.endswith(".md"))


def depends(proof, paths):
    """The files of the product and the proof's own, of all that are tracked."""
    own = lambda p: any(p == need or p.startswith(need + "/") for need in proof.needs)
    return [p for p in paths if own(p) or not p.startswith(("tests/", "."))]


def digest(root, proof, paths=None):
    found = hashlib.sha256()
    for path in depends(proof, paths or tracked(root)):
        whole = os.path.join(root, path)
        content = b"absent"
        if os.path.exists(whole):
            with open(whole, "rb") as f:
                content = f.read()
        found.update(f"{path}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:SHORT]


# ---- the table -----------------------------------------------------------------------------------

def cell(text):
    text = re.sub(r"\s+", " ", str(text)).replace("|", "/").strip()
    most = tree.CELL if tree.is_wide(text) else LIST
    return text if len(text) <= most else text[:most - 3] + "..."


def read_table(path):
    """{proof: row} of PROOFS.md; a line that is no row of the table is an error."""
    rows = {}
    if not os.path.exists(path):
        return rows
    with open(path) as f:
        lines = [line.strip() for line in f if line.startswith("|")]
    for line in lines[2:]:
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) != len(COLUMNS):
            raise ValueError(f"{len(cells)} cells instead of {len(COLUMNS)}: {line}")
        row = dict(zip(COLUMNS, cells))
        rows[row["proof"]] = row
    return rows


def table(proofs, rows):
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    lines += [[cell(rows[p.name].get(c, "-")) for c in COLUMNS] for p in proofs if p.name in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def replace(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.replace(path + ".new", path)


# ---- one proof -----------------------------------------------------------------------------------

def machine():
    with open("/proc/cpuinfo") as f:
        name = re.search(r"^model name\s*:\s*(.*)", f.read(), re.M)
    return f"{name[1] if name else 'unknown processor'}, {os.cpu_count()} cores"


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def judge(proof, code, lines):
    """(figure, met): met is yes, no (a measured figure misses its target) or failed."""
    try:
        figure, met = proof.read(lines)
    except Unreadable as why:
        return f"unreadable: {why} (exit code {code})", "failed"
    if code and not proof.measures:
        return f"{figure} (exit code {code})", "failed"
    if code and met:
        return f"{figure}, yet exit code {code}", "failed"
    return figure, "yes" if met else "no" if proof.measures else "failed"


class Runs:
    """The proofs of one tree, their rows and states."""

    def __init__(self, root, proofs, scale):
        self.root, self.proofs, self.scale = root, proofs, scale
        self.state = os.path.join(root, "build/proof")
        self.page = os.path.join(root, "tests/PROOFS.md")
        self.rows = read_table(self.page)
        paths = tracked(root)
        self.digests = {p.name: digest(root, p, paths) for p in proofs}

    def path(self, proof, ending):
        return os.path.join(self.state, proof.name + ending)

    def lacks(self, proof):
        """The reason why a proof has to be run, or None."""
        row = self.rows.get(proof.name)
        if row is None:
            return NEVER
        if row["digest"] != self.digests[proof.name]:
            return "stale"
        if row["met"] == "failed":
            return "failed"
        if row["length"] not in (proof.length("full"), proof.length(self.scale)):
            return "shorter"
        return None

    def note(self, proof, **state):
        replace(self.path(proof, ".json"), json.dumps({"digest": self.digests[proof.name], **state},
                                                      indent=1))

    def run(self, proof):
        variables = [f"{k}={v}" for k, v in proof.variables(self.scale).items()]
        env = {k: v for k, v in os.environ.items()
               if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PROOF", "PROOF_SCALE")}
        started, log = now(), self.path(proof, ".log")
        self.note(proof, started=started, result="running", log=log)
        with open(log, "w") as out:
            code = subprocess.run([os.environ.get("MAKE", "make"), "--no-print-directory", proof.name, *variables],
                                  cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=subprocess.STDOUT).returncode
        with open(log, errors="replace") as f:
            figure, met = judge(proof, code, f.read().splitlines())
        self.note(proof, started=started, ended=now(), result=met, figure=figure, exit_code=code, log=log)
        self.rows[proof.name] = dict(zip(COLUMNS, (proof.name, now()[:10], self.digests[proof.name], machine(),
                                                   proof.length(self.scale), figure, proof.target, met)))
        replace(self.page, HEAD + table(self.proofs, self.rows))
        return met

    def interrupted(self, proof):
        try:
            with open(self.path(proof, ".json")) as f:
                return json.load(f)["result"] == "running"
        except OSError:
            return False


# ---- commands ------------------------------------------------------------------------------------

def status(runs):
    """Prints the table, each row preceded by the reason why it has to be run."""
    for p in runs.proofs:
        row, lacks = runs.rows.get(p.name), runs.lacks(p)
        said = "; ".join(row[c] for c in COLUMNS[1:]) if row else f"about {p.minutes} minutes"
        word = (lacks or "fresh").upper() if lacks == "stale" else lacks or "fresh"
        print(f"{word:10} {p.name:15} {said}{'; was interrupted' if runs.interrupted(p) else ''}")
    print(f"{sum(not runs.lacks(p) for p in runs.proofs)} of {len(runs.proofs)} proofs are fresh")
    return 0


def prove(runs, only):
    """Runs the proofs that have to be run, or the one that was requested."""
    chosen = [p for p in runs.proofs if (p.name == only if only else runs.lacks(p))]
    print(f"{len(chosen)} proofs to run, about {sum(p.minutes for p in chosen)} minutes when whole", flush=True)
    failed = []
    for p in chosen:
        why = "interrupted" if runs.interrupted(p) else runs.lacks(p) or "asked for"
        print(f"{p.name} ({why}), {p.length(runs.scale)} ...", flush=True)
        met = runs.run(p)
        print(f"  {met}: {runs.rows[p.name]['figure']}", flush=True)
        failed += [p.name] if met == "failed" else []
    if failed:
        print("failed: " + ", ".join(failed) + "; their output is in build/proof/")
    return 1 if failed else 0


def main(proofs=PROOFS, root=ROOT, args=None):
    args = sys.argv[1:] if args is None else args
    only, scale = os.environ.get("PROOF", ""), os.environ.get("PROOF_SCALE") or "full"
    names = [p.name for p in proofs]
    if scale not in ("full", "short"):
        sys.exit(f"PROOF_SCALE={scale}: full or short")
    if only and only not in names:
        sys.exit(f"PROOF={only}: there are {' '.join(names)}")
    if args == ["--names"]:
        return 0
    runs = Runs(root, proofs, scale)
    if args == ["--status"]:
        return status(runs)
    os.makedirs(runs.state, exist_ok=True)
    with open(os.path.join(runs.state, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit("another `make proof` is at work in this tree")
        return prove(runs, only)


if __name__ == "__main__":
    sys.exit(main())
