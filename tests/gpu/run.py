#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs first on a new machine with a GPU, from an unpacked bundle. Needs no network.

usage: run.py [--minutes N] [--again] [--out FOLDER] [--dry BUILD] [PIECE...]
Pieces run in order; a piece that has run is not run again (results.json). When the minutes are
over, the script ends after the current piece. The next call continues, also after a kill. The table
of results is in results.md. --list prints the pieces.
--dry: runs every piece with tiny shapes, with the programs of a build and on the simulated device.
Pieces that need a GPU are skipped and named. The results are in BUILD/gpu-dry; in a bundle BUILD is
`sim`. The times that it prints mean nothing.
"""
# An older Python must be able to parse this file, so that it can report that it is too old.
import sys
if sys.version_info < (3, 8):
    sys.exit("run.py needs Python 3.8 or later, and this is {0} ({1}): start it as python3.12 run.py".format(
        sys.version.split()[0], sys.executable))
import argparse, fcntl, glob, json, os, shutil, subprocess, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pieces
import beside_torch, sessions  # imported because they add pieces
from pieces import PIECES, At

MOST_TIMES = 2  # how often a piece may begin without ending


def path_of(name):
    return os.path.join(At.out, name)


def write_whole(name, text):
    """Writes the file completely or not at all, even if this process is killed."""
    try:
        with open(path_of(name + ".new"), "w") as f:
            f.write(text)
        os.replace(path_of(name + ".new"), path_of(name))
    except OSError as e:
        sys.exit("run.py: results cannot be written: {0}: name another folder with --out".format(e))


def write(results):
    lines = ["| piece | result | seconds | |", "|---|---|---|---|"]
    for name, function in PIECES.items():
        r = results.get(name, {"result": "did not run", "seconds": 0, "what": function.__doc__.strip()})
        what = " ".join(r["what"].split()).replace("|", "/")[:290]
        lines.append("| {0} | {1} | {2:.0f} | {3} |".format(name, r["result"], r["seconds"], what))
        for kernel, word, share in r.get("rows", ()):
            lines.append("| {0}: {1} | {2} | | {3} |".format(name, kernel, word, share))
    write_whole("results.json", json.dumps(results, indent=1))
    write_whole("results.md", "\n".join(lines + ["", *summary(results)]) + "\n")


def summary(results):
    """The number of pieces with each result, and the names of those that failed."""
    of = {}
    for name in PIECES:
        of.setdefault(results.get(name, {"result": "did not run"})["result"], []).append(name)
    yield ", ".join("{0} {1}".format(len(names), word) for word, names in of.items()) + ", of {0} pieces.".format(len(PIECES))
    for word, names in of.items():
        if word != "ok":
            yield "{0}: {1}.".format(word, ", ".join(names))


def known():
    """The results so far. A piece that was running when this script was killed runs once more."""
    try:
        with open(path_of("results.json")) as f:
            results = json.load(f)
    except FileNotFoundError:
        return {}
    except ValueError as e:
        sys.exit("run.py: {0} is damaged ({1}): --again forgets what has run".format(path_of("results.json"), e))
    for name, r in results.items():
        if r["result"] == "interrupted" and r["times"] >= MOST_TIMES:
            r.update(result="FAILED", what="began {0} times and did not end: {1}".format(r["times"], r["what"]))
    return results


def do(name, results):
    """Runs a piece. Records first that it has begun."""
    at, times = time.monotonic(), results.get(name, {}).get("times", 0) + 1
    results[name] = {"result": "interrupted", "times": times, "seconds": 0, "output": "", "what": PIECES[name].__doc__.strip()}
    write(results)
    try:
        r = PIECES[name]()
    except subprocess.TimeoutExpired as e:
        r = {"result": "FAILED", "what": "no end after {0:.0f} s: {1}".format(e.timeout, " ".join(map(str, e.cmd))[-200:]), "output": ""}
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
        r = {"result": "FAILED", "what": "{0}: {1}".format(type(e).__name__, e), "output": ""}
    r["seconds"] = time.monotonic() - at
    results[name] = r
    print("{0}: {1}: {2}".format(name, r["result"], " ".join(r["what"].split())[:200]), flush=True)


def options():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    p.add_argument("--minutes", type=float, default=9)
    p.add_argument("--again", action="store_true", help="forget what has run")
    p.add_argument("--list", action="store_true", help="what pieces there are")
    p.add_argument("--dry", metavar="BUILD", help="tiny shapes, on the simulated device of a build")
    p.add_argument("--out", metavar="FOLDER", help="where results go: beside this script, or BUILD/gpu-dry")
    p.add_argument("pieces", nargs="*", metavar="PIECE")
    a = p.parse_args()
    unknown = [name for name in a.pieces if name not in PIECES]
    if unknown:
        p.error("there is no piece {0}: --list says which there are".format(", ".join(unknown)))
    return a


def starts():
    """Whether our programs run on this machine. If not, every piece would fail with another
    message."""
    for name in ("cleave-master", "cleave-worker"):
        try:
            done = pieces.ours(name, "--version")
            why = done.stdout.strip()[-400:] if done.returncode else None
        except OSError as e:
            why = str(e)
        if why is not None:
            sys.exit("run.py: {0} does not start: {1}: BUNDLE.md says what the machine needs".format(pieces.program(name), why))


def ready(a):
    """Makes the folder of the results and locks it for this process."""
    At.dry = os.path.abspath(a.dry) if a.dry else None
    At.out = os.path.abspath(a.out or (os.path.join(At.dry, "gpu-dry") if At.dry else pieces.HERE))
    missing = next((p for p in ("cleave-master", "cleave-worker") if not os.path.exists(pieces.program(p))), None)
    if missing:
        sys.exit("run.py: there is no {0}: {1}".format(pieces.program(missing), "--dry needs the folder of a build (make units), or "
                 "sim of a bundle" if a.dry else "this script runs in an unpacked bundle, or with --dry"))
    starts()
    try:
        os.makedirs(At.out, exist_ok=True)
        lock = open(path_of("lock"), "w")
    except OSError as e:
        sys.exit("run.py: results cannot be written: {0}: name another folder with --out".format(e))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("run.py: another one is at work in {0}".format(At.out))
    for left in glob.glob(path_of("session-*")):
        shutil.rmtree(left, ignore_errors=True)
    return lock


def main():
    a = options()
    if a.list:
        print("\n".join("{0}: {1}".format(name, " ".join(f.__doc__.split())) for name, f in PIECES.items()))
        return
    lock, begin = ready(a), time.monotonic()
    results = {} if a.again else known()
    for name in a.pieces or PIECES:
        if time.monotonic() - begin > 60 * a.minutes:
            break
        if name in results and name not in a.pieces and results[name]["result"] != "interrupted":
            continue
        try:
            do(name, results)
        except KeyboardInterrupt:
            sys.exit("run.py: stopped in {0}: the next call begins with it".format(name))
        write(results)
    write(results)
    lock.close()
    sys.exit(any(r["result"] == "FAILED" for r in results.values()))


main()
