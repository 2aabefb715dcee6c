#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions of all kinds open and close on two workers for a given time: trained, stopped, resumed,
evaluated, killed; programs on libcleave; some that are refused. Meanwhile `status` and the workers'
metrics are read: counters only grow, and while all jobs are stopped both have the same values. When
all sessions have closed, nothing of them is left: contexts, references, bytes, descriptors,
threads, memory.

usage: mixed_soak.py [SECONDS [SEED]]      default: 1800 (`make soak-mixed`); SEED replays a mix
"""
import collections, os, random, re, signal, statistics, sys, threading, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import SANITIZED, SLOW, Worker, master, open_files, synthetic_images
from tenants import allow
from measured import Measured
from mixed_compare import Ledger, compare, read, rows_of, sums
from mixed_jobs import KINDS, Job

LANES = 3  # approximate number of sessions at once
ROUND = 14  # number of jobs between two moments without any session
FROZEN_AFTER = (4, 10)  # numbers of jobs of a round after which all are stopped for a comparison
WARM_UP_S = 600  # or half of the run's time, if that is less
# {figure: its allowed growth from early to late, at w1 and at w2 (early_and_late)}. gRPC keeps
# threads that it once needed. At w1, malloc has two arenas, and a cache of freed memory for each
# thread, which fill for a while; w2 runs with one and without caches (PLAIN).
GROWTH = {"resident KiB": (8192, 2048), "descriptors": (0, 0), "threads": (3, 3)}
PLAIN = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"}
USERS = {"heavy": dict(weight=4), "light": dict(weight=1, sessions=6, bytes="96MiB", calls=4096),
         "programs": dict(weight=2), "tiny": dict(weight=2, sessions=1, bytes="1MiB")}


def process(pid):
    with open(f"/proc/{pid}/status") as f:
        status = dict(line.split(":", 1) for line in f)
    return dict(zip(GROWTH, (int(status["VmRSS"].split()[0]), open_files(pid),
                             int(status["Threads"]))))


def early_and_late(field, values, n_warm_up):
    """What a figure was early and late in a run. `values`: those of the quiet moments, of which the
    first n_warm_up are the warm-up. The medians of the first and the last third after the warm-up;
    of memory, the highest of two thirds of the run and of the last. malloc returns memory to the
    system by chance (w1 swung between 46 and 68 MiB), which lowers a median; a leak raises the
    highest."""
    if field == "resident KiB":
        last = len(values) - len(values) // 3
        return max(values[:last]), max(values[last:])
    warm = values[n_warm_up:]
    third = len(warm) // 3
    return statistics.median(warm[:third]), statistics.median(warm[-third:])


class Soak:
    """One run of the mix over a cluster."""

    def __init__(self, cluster, seed, note=print):
        self.cluster, self.seed, self.note = cluster, seed, note
        self.begin, self.failures, self.ended = time.monotonic(), [], threading.Event()
        self.jobs, self.kinds, self.lanes = 0, collections.Counter(), threading.Semaphore(LANES)
        self.lock, self.looking, self.gate, self.running = *(threading.Lock() for _ in range(3)), set()
        self.reads = collections.Counter()
        self.ledger = Ledger(cluster)
        self.quiet = []  # (time, figures of the workers' processes) at moments without a session

    def fail(self, text):
        with self.lock:
            self.failures.append(text)
        self.note(f"  at {time.monotonic() - self.begin:.1f} s: {text}")

    # ---- observers ------------------------------------------------------------------------------

    def watch_metrics(self):
        before = [read(p) for p in self.cluster.pages]
        while not self.ended.wait(0.1):
            now = [read(p) for p in self.cluster.pages]
            for i, (a, b) in enumerate(zip(before, now)):
                for key in a:
                    if re.match(r"[a-z_]+_total(\{|$)", key) and not b.get(key, -1) >= a[key]:
                        self.fail(f"w{i + 1}: {key} went from {a[key]:.17g} to {b.get(key)}")
            before, self.reads["scrapes"] = now, self.reads["scrapes"] + 1

    def watch_status(self):
        draw, seen = random.Random(self.seed), {}
        while not self.ended.wait(0.7):
            user = draw.choice(("watch", "heavy", "light"))
            with self.looking:
                rows = rows_of(self.cluster, user)
            for row in rows.values():
                for s in row["sessions"]:
                    key, counts = (row["worker"], s["id"], s["epoch"]), (s["bytes_in"], s["bytes_out"], s["age_s"])
                    if any(now < then for now, then in zip(counts, seen.get(key, counts))):
                        self.fail(f"status of {key}: {counts} after {seen[key]}")
                    seen[key] = counts
                    if user != "watch" and s["identity"] != f"spiffe://test/{user}":
                        self.fail(f"{user} was shown a session of {s['identity']}")
            self.reads["status"] += 1
            while len(seen) > 1000:
                seen.pop(next(iter(seen)))

    def looker(self, what):
        try:
            what()
        except Exception as e:  # otherwise the end of a thread would not be noticed
            self.fail(f"{what.__name__}: {type(e).__name__}: {e}")

    # ---- the mix ---------------------------------------------------------------------------------

    def start(self):
        """Starts the next job of the mix, which depends only on the seed and the job's number."""
        self.jobs += 1
        r = random.Random(f"{self.seed}:{self.jobs}")
        kind = r.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        job = Job(self, kind, f"{kind}{self.jobs}", r)
        self.lanes.acquire()
        thread = threading.Thread(target=self.perform, args=(job,))
        with self.lock:
            self.running.add(job)
        thread.start()
        return thread

    def perform(self, job):
        try:
            KINDS[job.kind][1](job)
            self.kinds[job.kind] += 1
        except Exception as e:
            self.fail(f"job {job.name}: {type(e).__name__}: {e}")
        finally:
            job.tidy()
            with self.lock:
                self.running.discard(job)
            self.lanes.release()

    def compare(self, where):
        with self.looking:
            wrong = compare(self.cluster, self.ledger)
        self.reads[where] += 1
        for text in wrong:
            self.fail(f"{where}, {self.jobs} jobs in: {text}")

    def freeze(self):
        """Stops all programs with a session; the workers finish the work that has come."""
        with self.gate:
            held = list(self.running)
            for job in held:
                job.signal(signal.SIGSTOP)
            try:
                time.sleep(0.3)
                self.compare("frozen")
            finally:
                for job in held:
                    job.signal(signal.SIGCONT)

    def empty(self):
        """Without any session, all figures must return to their earlier values."""
        # the session of a program that is killed before it attaches stays for the lease
        end = time.monotonic() + 30 * SLOW
        while any(sums(read(p)) for p in self.cluster.pages) and time.monotonic() < end:
            time.sleep(0.1)
        for i, p in enumerate(self.cluster.pages):
            for key, left in sums(read(p)).items():
                self.fail(f"w{i + 1} after {self.jobs} jobs, without a session: {key} is {left:g}")
        self.compare("empty")
        for text in self.ledger.settle():
            self.fail(text)
        with self.looking:
            time.sleep(1)  # for connections of ended programs, and for the worker to return memory
            self.quiet.append((time.monotonic(), [process(w.process.pid) for w in self.cluster.workers]))

    def round(self, until):
        threads = []
        for i in range(ROUND):
            if self.failures or (time.monotonic() > until and i > FROZEN_AFTER[0]):
                break
            threads.append(self.start())
            if i in FROZEN_AFTER:
                self.freeze()
        for t in threads:
            t.join()
        self.empty()

    # ---- figures ---------------------------------------------------------------------------------

    def line(self):
        held = "; ".join(f"w{i + 1} {w['resident KiB']} KiB, {w['descriptors']} descriptors, {w['threads']} threads"
                         for i, w in enumerate(self.quiet[-1][1]))
        n = self.reads
        self.note(f"{(time.monotonic() - self.begin) / 60:5.1f} min {self.jobs:6} jobs, {n['frozen']} + {n['empty']} "
                 f"comparisons, {n['scrapes']} scrapes, {n['status']} looks; {held}")

    def grown(self):
        """Compares the figures of the quiet moments early and late in the run."""
        half_s = (time.monotonic() - self.begin) / 2
        warm = self.begin + min(WARM_UP_S, half_s)
        n_warm_up = sum(when <= warm for when, _ in self.quiet)
        is_told = len(self.quiet) - n_warm_up >= 3
        if not is_told:
            self.note(f"  {len(self.quiet)} quiet moments: too few to tell whether anything grows")
        for i in range(len(self.cluster.workers) if is_told else 0):
            for field, bounds in GROWTH.items():
                early, late = early_and_late(field, [held[i][field] for _, held in self.quiet], n_warm_up)
                self.note(f"  w{i + 1} {field:12} {early:9.0f} -> {late:9.0f}   (bound: {bounds[i]:+})")
                # the arenas of w1 still fill in a run that ends before it is warm
                unjudged = field == "resident KiB" and (SANITIZED or i == 0 and half_s < WARM_UP_S)
                if late - early > bounds[i] and not unjudged:
                    self.fail(f"w{i + 1}: {field} {early:.0f} -> {late:.0f}")

    def run(self, seconds):
        lookers = [threading.Thread(target=self.looker, args=(f,)) for f in (self.watch_metrics, self.watch_status)]
        for t in lookers:
            t.start()
        until, told = self.begin + seconds, self.begin
        try:
            while time.monotonic() < until and not self.failures:
                self.round(until)
                if time.monotonic() - told > 60:
                    told = time.monotonic()
                    self.line()
        finally:
            self.ended.set()
            for t in lookers:
                t.join()
        self.line()
        self.note("  " + ", ".join(f"{n} {k}" for k, n in sorted(self.kinds.items())))
        self.note(f"  {self.ledger.account()}")
        self.grown()
        return self.failures


def cluster():
    c = Measured(2, "limits: {sessions: 12, connections: 96, identity_connections: 80, handshake_timeout: 30s, lease: 8s, peer_timeout: 5s}\nlog: {lines: 1000000}\n",
                 extra_allow="".join(allow(name, **quotas) for name, quotas in USERS.items())
                 + '  - {identity: "spiffe://test/watch", role: observer}\n')
    c.workers[1].stop()
    c.workers[1] = Worker(c, "w2", c.worker_config(1), PLAIN)
    for name in (*USERS, "watch", "stranger"):
        c.issue(name, f"spiffe://test/{name}")
    other = os.path.join(c.dir, "other-ca")
    assert master("certs", "init", "--dir", other).returncode == 0
    assert master("certs", "issue", "master", "--dir", other, "--uri", "spiffe://test/heavy").returncode == 0
    with open(os.path.join(c.dir, "both.pem"), "w") as out:
        for ca in (c.certs, other):
            with open(os.path.join(ca, "ca.pem")) as f:
                out.write(f.read())
    c.looking = c.session("looking", "")
    os.mkdir(os.path.join(c.dir, "data"))
    synthetic_images(os.path.join(c.dir, "data"), n=256, n_test=64)
    return c


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1800
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}, {seconds:g} s", flush=True)
    with cluster() as c:
        failures = Soak(c, seed, lambda text: print(text, flush=True)).run(seconds)
    print(f"{'not ok' if failures else 'ok'} mixed_sessions_leave_nothing_behind (seed {seed})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
