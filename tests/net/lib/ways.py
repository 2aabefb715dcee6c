"""Runs programs on libcleave over real daemons in several ways: with modules in several places,
with or without a link between the workers, with or without threads of the program. Each test of the
program counts once for each way, and all ways must give the same numbers."""
import os, sys
from cluster import BIN, Cluster, chosen, run

DIRECT, VIA_MASTER = "transfer: direct\n", "transfer: via_master\n"
# Places of two modules: at the master, on one worker, on two.
PLACEMENTS = chosen({"at_home": (DIRECT, "master", "master"), "half_and_half": (DIRECT, "w1", "master"),
                     "two_workers": (DIRECT, "w1", "w2"), "one_worker": (DIRECT, "w2", "w2")}, "at_home", "two_workers")
# Ways of programs for which the link between workers matters.
LINKED = chosen({"at_home": ("", "master", "master"), "half_and_half": (DIRECT, "master", "w1"),
                 "two_workers": (DIRECT, "w1", "w2"), "via_master": (VIA_MASTER, "w2", "w1"),
                 "one_worker": ("", "w1", "w1")}, "at_home", "two_workers")


def program(name):
    return os.path.join(BIN, "net", name)


def told(way, done):
    """Prints the lines of a program with the name of its way. Returns the digests of its
    numbers."""
    digests = []
    for line in done.stdout.splitlines():
        word = next((w for w in ("ok ", "not ok ", "digest ") if line.startswith(w)), None)
        if word == "digest ":
            digests.append(line)
        else:
            print(f"{word}{way}:{line[len(word):]}" if word else f"  {way}: {line}", flush=True)
    if done.returncode != 0:
        print(f"not ok {way}_ends_well ({done.returncode}) {done.stderr[-2000:]}", flush=True)
    return digests


def agree(digests, name="numbers_do_not_depend_on_the_placement"):
    """Checks that all ways gave the same single digest."""
    same = len(set(map(tuple, digests.values()))) == 1 and all(len(d) == 1 for d in digests.values())
    print(*(("ok", name, *next(iter(digests.values()))) if same else ("not ok", name, digests)), flush=True)
    return same


def everywhere(path, ways, name="numbers_do_not_depend_on_the_placement", then=None, env=None, **options):
    """Runs a program in each way, (body of the session file, arguments...). then(cluster) may run
    more on the cluster, and returns the number of failed runs. Returns the exit code of the
    script."""
    wanted, failed, digests = sys.argv[1:], 0, {}
    with Cluster(2, env=env, **options) as c:
        for way, (body, *more) in ways.items():
            if not wanted or way in wanted:
                done = run(path, c.session(way, body), *more, env=env)
                digests[way] = told(way, done)
                failed += done.returncode != 0
        failed += then(c) if then else 0
    return 1 if failed or not agree(digests, name) else 0
