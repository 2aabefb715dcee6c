#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a small split program for many steps, each in a context of its own. Compares memory,
descriptors and threads of the program and of both workers, and the contexts of the workers, early
in the run and at the end.

usage: api_soak.py [STEPS]      default: 100000 (`make soak`)
"""
import os, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, SANITIZED, SLOW, open_files
from pyclient import Caller, pb

PROGRAM = os.path.join(BIN, "net", "api_faults")
# allowed growth of memory over 80,000 steps, because allocators need time to settle
LIMIT_KIB = 2048
FIELDS = ("resident KiB", "descriptors", "threads")


def own_threads(pid):
    """The number of threads with the program's name. Threads of gRPC have other names, and their
    number varies with the load."""
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm") as f:
                names.append((int(task) != pid, f.read()))
        except FileNotFoundError:  # it has ended meanwhile
            pass
    names.sort()
    return sum(name == names[0][1] for _, name in names)


def process(pid):
    with open(f"/proc/{pid}/status") as f:
        status = dict(line.split(":", 1) for line in f)
    return [int(status["VmRSS"].split()[0]), open_files(pid), own_threads(pid)]


def sessions(cluster, i):
    """The sessions in the status of worker i."""
    with Caller(cluster.ports[i], cluster.certs) as caller:
        return sessions_by(caller)


def sessions_by(caller):
    return list(caller.stub.Status(pb.StatusRequest(), timeout=20 * SLOW).sessions)


def held(cluster, i):
    """The number of open contexts at worker i, in all sessions."""
    return sum(s.contexts for s in sessions(cluster, i))


def look(cluster, program):
    found = {"program": process(program.pid)}
    for i, w in enumerate(cluster.workers):
        found[w.name] = process(w.process.pid)
    return found, [held(cluster, i) for i in range(len(cluster.workers))]


def soak(steps):
    """Prints the figures. Returns the list of those that have grown."""
    with Cluster(2) as c:
        program = subprocess.Popen([PROGRAM, c.session("soak", "transfer: direct\n"), "w1", "w2", "0", str(steps)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        looks = []
        for line in program.stdout:
            if line.strip() not in ("warm", "done"):
                print("  " + line.strip())
                continue
            looks.append(look(c, program))
            program.stdin.write("on\n")
            program.stdin.flush()
        grown = [] if program.wait() == 0 and len(looks) == 2 else [f"the program ended with {program.returncode}"]
        for name in looks[0][0] if len(looks) == 2 else ():
            for k, field in enumerate(FIELDS):
                before, after = looks[0][0][name][k], looks[1][0][name][k]
                print(f"  {name:8} {field:12} {before:8} -> {after}")
                if after - before > (0 if k else LIMIT_KIB) and not (k == 0 and SANITIZED):
                    grown.append(f"{name}: {field} {before} -> {after}")
        for i, w in enumerate(c.workers):
            contexts = [held(c, i)] + [l[1][i] for l in looks]
            print(f"  {w.name:8} contexts     {contexts[1:]}, {contexts[0]} after the program has closed")
            if any(contexts):
                grown.append(f"{w.name} holds {contexts} contexts")
        return grown


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    grown = soak(steps)
    print(f"{'not ok' if grown else 'ok'} {steps}_steps_leave_nothing_behind {'; '.join(grown)}".strip())
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
