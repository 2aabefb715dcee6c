# SPDX-License-Identifier: Apache-2.0
"""Parts that bench.py and bench_pipeline.py share: sides that take turns, foreign load, rows.

The processes of both sides of a row exist at the same time and take turns, A B A B..., round by
round; only the side whose turn it is has work. A row's figure is the median of the rounds' ratios,
printed with its quartiles. The share of the machine's processor time that went to processes not
ours is noted for every round; rounds above FOREIGN_LIMIT are repeated, up to a limit, and left out
when enough quiet ones remain. Results go to standard output and to build/bench/ROW.jsonl.

With STRICT=1 in the environment there are STRICT_ROUNDS rounds, all count, every second one of them
is run by a second process of our program (twins), and judge.py says which rows have missed their
target. If any has, it exits with 1.
"""
import json
import os
import statistics
import subprocess
import sys
import time

import judge

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/release")
os.environ["CLEAVE_TEST_BIN"] = OUT
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1",
                  PYTHONWARNINGS="ignore")
sys.path.insert(0, os.path.join(HERE, "../net/lib"))

RESULTS = os.path.join(HERE, "../../build/bench")
ROUNDS, MAX_ROUNDS, QUIET_ENOUGH = 9, 15, 5
STRICT, STRICT_ROUNDS = os.environ.get("STRICT", "") not in ("", "0"), 16
FOREIGN_LIMIT = 0.05
MIB, GIB = 1 << 20, 1 << 30
PYTHON = "/usr/bin/python3"
median, mean = statistics.median, statistics.mean


# ---- whose processor time ------------------------------------------------------------------------

def machine_ticks():
    """Busy ticks of all processors; time stolen by the host counts as busy."""
    with open("/proc/stat") as f:
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return user + nice + system + irq + softirq + steal


def process_table():
    """pid -> (parent, ticks of the process and of its ended children)."""
    table = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                field = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        table[int(pid)] = int(field[1]), sum(map(int, field[11:15]))
    return table


def own_ticks():
    table, ours = process_table(), {os.getpid()}
    while True:
        more = {pid for pid, (parent, _) in table.items() if parent in ours} - ours
        if not more:
            break
        ours |= more
    return sum(table[pid][1] for pid in ours if pid in table)


class Meter:
    """Share of the machine's processor time that other processes took while the meter was open."""

    def __enter__(self):
        self.begin, self.busy, self.own = time.monotonic(), machine_ticks(), own_ticks()
        return self

    def __exit__(self, *_):
        ticks = (time.monotonic() - self.begin) * os.sysconf("SC_CLK_TCK") * os.cpu_count()
        foreign = machine_ticks() - self.busy - (own_ticks() - self.own)
        self.foreign = min(1.0, max(0.0, foreign / max(ticks, 1)))


# ---- sides ---------------------------------------------------------------------------------------

class Side:
    """One side of a comparison: a process that runs a round when told to."""

    def __init__(self, *args):
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self.process.stdout.readline().strip()
        if not self.first:
            raise RuntimeError("did not start: " + " ".join(args))

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("died on: " + command)
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def program(name, *args, at=()):
    """at: words to put before the command, such as those of links.Namespaces."""
    return Side(*at, os.path.join(OUT, "bench", name), *args)


def torch(name, *args, python=PYTHON):
    return Side(python, os.path.join(HERE, "peers", name), *args)


class Twins:
    """Two processes of one side, which take the rounds in turn: a difference between their figures
    is not due to our program."""
    at = 0  # index of the process that runs this round

    def __init__(self, make):
        self.sides = [make(), make()]

    def ask(self, command):
        return self.sides[Twins.at].ask(command)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for side in self.sides:
            side.__exit__()


def twins(make):
    """Our side of a row: with STRICT two processes, else one."""
    return Twins(make) if STRICT else make()


def own(name, *args):
    return twins(lambda: program(name, *args))


# ---- rounds --------------------------------------------------------------------------------------

rows = []


def warm_up(sides):
    for Twins.at in ((0, 1) if STRICT else (0,)):
        for side in sides:
            side()


def one_round(sides):
    with Meter() as meter:
        figures = [side() for side in sides]
    return figures, meter.foreign


def strict_rounds(sides):
    warm_up(sides)
    found = []
    for k in range(STRICT_ROUNDS):
        Twins.at = k % 2
        found.append(one_round(sides))
    Twins.at = 0
    return found


def interleave(sides, rounds=ROUNDS, max_rounds=MAX_ROUNDS):
    """sides: functions that run one round and return its figure. Returns [(figures, foreign
    share)], without the noisy rounds if at least QUIET_ENOUGH others remain; with STRICT all
    rounds."""
    if STRICT and rounds > 1:
        return strict_rounds(sides)
    warm_up(sides)
    found = []
    while len(found) < max_rounds:
        found.append(one_round(sides))
        if sum(f <= FOREIGN_LIMIT for _, f in found) >= rounds:
            break
    quiet = [r for r in found if r[1] <= FOREIGN_LIMIT]
    return quiet if len(quiet) >= QUIET_ENOUGH else found


def ratio_of(ours, peer):
    return ours / peer


def write_row(row):
    rows.append(row)
    os.makedirs(RESULTS, exist_ok=True)
    with open(os.path.join(RESULTS, row["name"] + ".jsonl"), "w") as f:
        f.write(json.dumps(row) + "\n")


def outcome(ratios, samples, ratio, target, at_most, timed):
    if STRICT:
        return judge.strictly(ratios, [a for (a, _), _ in samples], target, at_most, timed)
    return "ok" if (ratio <= target if at_most else ratio >= target) else "MISSED"


def enter(name, unit, samples, target, at_most=True, note="", compare=ratio_of, figure=median, timed=True):
    """Adds a row. samples: [((ours, peer), foreign share)], one for each round. The row's figure is
    `figure` of the values that `compare` returns for the samples. timed: False for memory, which
    takes no rounds."""
    ratios = [compare(a, b) for (a, b), _ in samples]
    ratio = figure(ratios)
    low, _, high = judge.quartiles(ratios)
    apart = judge.itself([a for (a, _), _ in samples])
    result = outcome(ratios, samples, ratio, target, at_most, timed)
    foreign = max(f for _, f in samples)
    row = {"name": name, "unit": unit, "ours": median(a for (a, _), _ in samples),
           "peer": median(b for (_, b), _ in samples), "ratio": ratio, "min": min(ratios),
           "max": max(ratios), "quartiles": [low, high], "itself": apart, "result": result, "samples": [list(s) for s, _ in samples], "target": target,
           "better": "lower" if at_most else "higher", "ok": result == "ok", "foreign_max": round(foreign, 3),
           "foreign": [round(f, 3) for _, f in samples], "quiet": foreign <= FOREIGN_LIMIT,
           "note": note}
    write_row(row)
    print(f"{name:43} {row['ours']:10.4g} {row['peer']:10.4g} {unit:6} {ratio:8.3f} "
          f"[{row['min']:.3f} {low:.3f}-{high:.3f} {row['max']:.3f}] {'<=' if at_most else '>='} {target:<5g} "
          f"{result:6} {100 * apart:4.1f} % {100 * foreign:3.0f} %  {note}", flush=True)
    return ratio


def skip(name, reason):
    """Adds a row that cannot be measured on this machine."""
    write_row({"name": name, "skipped": reason})
    print(f"{name:43} skipped: {reason}", flush=True)


def mean_step(side, n):
    return lambda: mean(side.ask(f"steps {n}"))


def median_step(side, n):
    return lambda: median(side.ask(f"steps {n}"))


def refusal(folder, session):
    """The error of `plan` for a session file of that folder; '' if the session would run."""
    done = subprocess.run([os.path.join(OUT, "cleave-master"), "plan", session], cwd=folder, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[0].replace(session, "session") if done.returncode else ""


# ---- memory --------------------------------------------------------------------------------------

def resident(pid, key):
    """A value of /proc/PID/status, such as VmHWM, in MiB."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(key))


def peak_until_end(process):
    """The largest VmHWM of a process, MiB."""
    peak = 0.0
    while process.poll() is None:
        try:
            peak = max(peak, resident(process.pid, "VmHWM"))
        except (OSError, StopIteration):
            pass
        time.sleep(0.02)
    if process.returncode != 0:
        raise RuntimeError(f"{process.args[0]} exited with {process.returncode}")
    return peak


# ---- all of them ---------------------------------------------------------------------------------

def main(groups, wanted):
    """Runs the wanted groups of rows, or all if none is named, and prints which rows missed their
    target. Returns the exit code."""
    unknown = [w for w in wanted if w not in [g.__name__ for g in groups]]
    if unknown:
        sys.exit(f"no rows called {unknown}; there are {[g.__name__ for g in groups]}")
    print(f"{'':43} {'ours':>10} {'peer':>10} {'':6} {'ratio':>8} [min quartiles max] target, itself, foreign load at most",
          flush=True)
    for group in groups:
        if not wanted or group.__name__ in wanted:
            group()
    measured = [r for r in rows if "skipped" not in r]
    missed = [r["name"] for r in measured if not r["ok"]]
    noisy = [r["name"] for r in measured if not r["quiet"]]
    if noisy:
        print("measured beside other work on this machine: " + ", ".join(noisy))
    if missed and not STRICT:
        print("missed: " + ", ".join(missed))
    failed = strict_lines() if STRICT else 0
    skipped = len(rows) - len(measured)
    print(f"{len(measured) - len(missed)} of {len(measured)} targets met"
          f"{f', {skipped} rows skipped' if skipped else ''}; details in {os.path.normpath(RESULTS)}", flush=True)
    return 1 if failed else 0


def strict_lines():
    """Prints the rows that do not meet their target, by judgement. Returns the number of missed
    ones."""
    of = lambda word: [r for r in rows if r.get("result", "").startswith(word)]
    for title, word in (("missed strictly", "MISSED"), ("near", "near"), ("not judged", "not judged")):
        if of(word):
            print(f"{title}: " + ", ".join(r["name"] + r["result"][len(word):].replace(":", "") for r in of(word)))
    return len(of("MISSED"))
