#!/usr/bin/python3
"""The C API over real daemons: one program, its modules at home, on one worker, on two, direct and
through the master. Each test of the program counts once per placement; the numbers must not depend
on the placement."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, SANITIZED, run

PROGRAM = os.path.join(BIN, "net", "api_program")
FAULTS = os.path.join(BIN, "net", "api_faults")
RANDOM = os.path.join(BIN, "net", "random_programs")
EXAMPLE = os.path.join(BIN, "seeds", "example")
PLACEMENTS = {
    "at_home": ("", ["master", "master"]),
    "half_and_half": ("transfer: direct\n", ["master", "w1"]),
    "two_workers": ("transfer: direct\n", ["w1", "w2"]),
    "via_master": ("transfer: via_master\n", ["w2", "w1"]),
    "one_worker": ("", ["w1", "w1"]),
}


def emit(name, done):
    """The program's lines under the placement's name; True when all is well."""
    for line in done.stdout.splitlines():
        if line.startswith(("ok ", "not ok ")):
            word = "ok " if line.startswith("ok ") else "not ok "
            print(word + name + ":" + line[len(word):], flush=True)
        elif not line.startswith("digest "):
            print(name, line)
    if done.returncode != 0:
        print(f"not ok {name}_ends_well ({done.returncode}) {done.stderr[-2000:]}")
    return done.returncode == 0


def main():
    wanted, failed, digests = sys.argv[1:], 0, {}
    with Cluster(2, limits="limits: {tensors: 65536, credit: 4MiB}\n") as c:  # a thousand contexts hold that many
        for name, (body, where) in PLACEMENTS.items():
            if wanted and name not in wanted:
                continue
            done = run(PROGRAM, c.session(name, body), *where)
            failed += not emit(name, done)
            digests[name] = [line for line in done.stdout.splitlines() if line.startswith("digest ")][:1]
        if len(set(map(str, digests.values()))) > 1:
            failed += 1
            print("not ok numbers_do_not_depend_on_the_placement", digests)
        elif len(digests) > 1:
            print("ok numbers_do_not_depend_on_the_placement")
        for name, session in (("alone", None), ("with_a_worker", c.session("example", ""))):
            done = run(EXAMPLE, *([session] if session else []))
            good = done.returncode == 0 and float(done.stdout.split()[3]) < 0.5 * float(done.stdout.split()[1])
            failed += not good
            print(f"{'ok' if good else 'not ok'} example_{name} {done.stdout.strip()} {done.stderr.strip()}")
        plain = c.session("plain", "")
        direct = c.session("direct", "transfer: direct\n")
        count = os.environ.get("CLEAVE_TEST_PROGRAMS", "100" if SANITIZED else "1000")
        failed += not emit("direct", run(RANDOM, direct, "w1", "w2", "1", count, timeout=300))
        failed += not emit("via_master", run(RANDOM, plain, "master", "w2", "100001", count, timeout=300))
        failed += not emit("many", run(FAULTS, plain, "w1", "w2", "0", "3000"))
        failed += not emit("faults", run(FAULTS, plain, "w1", "w2", str(c.workers[1].process.pid)))
    return 1 if failed else 0


sys.exit(main())
