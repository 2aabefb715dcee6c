#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Walks the failpoints: a small run is killed, stopped or failed at each point of each process, at
up to three moments. The same command starts the master again, a dead worker starts again with its
disk, and the run has to end with the weights, moments and losses of a run that nothing disturbed.
Then a smaller walk with a spare: w1 dies at each of its points and does not come back, and the
master and the spare are killed at what they reach when w3 takes its place.

usage: kill_walk.py [--points WORD] [--actions crash,stop,error] [--who master,w1,w2]
                    [--spares too,only,no]

Which points a process reaches, and how often, comes from traces of an undisturbed run and of one
that loses a worker. The program fails if a point of the tree is in no trace.
"""
import argparse, collections, os, signal, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../failpoints"))
import cluster as lib
import points
from cluster import *

MASTER, lib.WORKER = (os.path.join(BIN, "failpoints", name) for name in ("cleave-master", "cleave-worker"))
STEPS, EVERY, LIMIT_S = 60, 12, 90
# numbers of state changes after which w1 is killed, for the points of a recovery
LOST_AT = (3, 30, 55)
FILES = ("checkpoint.", "file.", "run.")  # points before a file operation, which can fail
NOT_WALKED = {  # points that no trace has -> the reason
    "recovery.replaced": "needs a spare: walked with one",
    "run.failed": "the run fails", "run.interrupted": "the user interrupts the run", "run.stopped": "`cleave-master stop`",
}
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}, {op: dropout, p: 0.3}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 16}, {op: relu}]}\n"
        "  - {name: c, at: w2, layers: [{op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 20}\ntransfer: direct\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 16, seed: {SEED}, optimizer: {{kind: adam, lr: 0.003}}}}\n"
        f"checkpoint: {{every_steps: {EVERY}, keep: 1, home: never}}\n"
        "recovery: {attempts: 1000, wait: 100ms, give_up_after: 60s}\n"
        "limits: {peer_timeout: 5s, connect_timeout: 2s}\n")
Case = collections.namedtuple("Case", "who point count action lost", defaults=(0,))


class Keeping(Cluster):
    """Workers whose disks survive a restart."""
    names = ("master", "w1", "w2")
    body = BODY

    def session(self, name):
        return super().session(name, self.body)

    def worker_config(self, i, extra=""):
        kept = os.path.join(self.dir, f"kept{i}")
        os.makedirs(kept, exist_ok=True)
        path = super().worker_config(i, extra + f"state_dir: {kept}\n")
        config = text(path).replace("role: master}", "role: master, state_bytes: 16MiB}")
        with open(path, "w") as f:
            f.write(config)
        return path

    def restart_with(self, i, env=None):
        self.workers[i].stop()
        self.workers[i] = Worker(self, f"w{i + 1}", self.worker_config(i), env)


class Spared(Keeping):
    """A cluster in which w3 is a spare of w1; for it the master fetches the files of all
    checkpoints."""
    names = ("master", "w1", "w2", "w3")
    body = BODY.replace("home: never", "home: always").replace("recovery: {", "recovery: {replace_after: 300ms, ")

    def session(self, name):
        path = super().session(name)
        config = text(path).replace('identity: "spiffe://test/w1"}', 'identity: "spiffe://test/w1", spares: [w3]}')
        with open(path, "w") as f:
            f.write(config)
        return path


def start(session, env=None):
    with open(session + ".out", "ab") as out:
        return subprocess.Popen([MASTER, "train", "--resume", session], cwd=cluster.dir, stdout=out, stderr=out,
                                stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def is_stopped(process):
    try:
        with open(f"/proc/{process.pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def tend(session, master, late=0, gone=None):
    """Until the master has succeeded, restarts each process that dies, except worker `gone`, a
    worker `late` seconds late, and continues stopped processes."""
    end, starts, masters = time.monotonic() + LIMIT_S * SLOW, 0, 1
    while (code := master.poll()) != 0:
        if time.monotonic() > end or masters > 5:
            master.kill()
            raise AssertionError(f"no end after {masters} starts of the master (last code {code}):\n{text(session + '.out')[-2500:]}")
        for i, w in enumerate(cluster.workers):
            if w.process.poll() is not None and i != gone:
                time.sleep(late)
                cluster.restart_with(i)
                starts += 1
        for process in (master, *(w.process for w in cluster.workers)):
            if is_stopped(process):
                time.sleep(0.3)
                process.send_signal(signal.SIGCONT)
        if code is not None:
            master, masters = start(session), masters + 1
        time.sleep(0.01)
    for i, w in enumerate(cluster.workers):  # a point may be reached while the session ends
        if is_stopped(w.process):
            w.process.send_signal(signal.SIGCONT)
        elif w.process.poll() is not None:
            cluster.restart_with(i)
    return starts, masters


def text(path):
    with open(path, errors="replace") as f:
        return f.read()


def result(name):
    folder = os.path.join(cluster.dir, "runs", name)
    losses = [(m["step"], m["loss"]) for m in map(json.loads, text(os.path.join(folder, "metrics.jsonl")).splitlines())]
    kept = [checkpoint_tensors(folder, STEPS, prefix) for prefix in ("model-", "optimizer-")]
    left = sorted(n for n in os.listdir(folder) if n.startswith("checkpoint-"))
    listed = json.loads(text(os.path.join(folder, f"checkpoint-{STEPS}", "MANIFEST.json")))["files"]
    places = {name: (row.get("place"), row["sha256"]) for name, row in listed.items() if name.endswith(".safetensors")}
    return kept, places, losses, text(os.path.join(folder, "egress.table")), left


def run_case(name, envs, late=0, gone=None):
    """A run whose processes have these environments. Returns its session, and the numbers of
    restarts of workers and of the master."""
    session = cluster.session(name)
    for i, who in enumerate(cluster.names[1:]):
        if envs.get(who):
            cluster.restart_with(i, envs[who])
    return session, tend(session, start(session, envs.get("master")), late, gone)


def traced(name, lost=0, gone=None):
    """The number of times that each process reaches each point."""
    files = {who: os.path.join(cluster.dir, f"{name}.{who}.trace") for who in cluster.names}
    envs = {who: {"CLEAVE_FAILPOINT_TRACE": path} for who, path in files.items()}
    if lost:
        envs["w1"]["CLEAVE_FAILPOINT"] = f"step.compute_change:{lost}:crash"
    run_case(name, envs, 4 * bool(lost), gone)
    for i in range(len(cluster.workers)):
        cluster.restart_with(i)
    return {who: collections.Counter(text(path).split()) for who, path in files.items() if os.path.exists(path)}


def moments(n):
    return sorted({1, (n + 1) // 2, n})


def cases(plain, lossy, a):
    for who in plain:
        for point, n in sorted(plain[who].items()):
            for action in a.actions.split(","):
                if action == "error" and not (who == "master" and point.startswith(FILES)):
                    continue
                for count in moments(n) if action == "crash" else moments(n)[-2:-1] or [1]:
                    yield Case(who, point, count, action)
    for point, n in sorted(lossy["master"].items()):
        if point not in plain["master"] and a.actions != "error":
            for lost in LOST_AT:
                yield Case("master", point, 1, "crash", lost)
            yield Case("master", point, 1, "stop", LOST_AT[1])


def spare_cases(plain, lossy):
    """The cases with a spare: w1 dies at each of its points, the others at points that they reach
    after its loss."""
    for point, n in sorted(plain["w1"].items()):
        yield Case("w1", point, (n + 1) // 2, "crash")
    for who in ("master", "w3"):
        for point, n in sorted(lossy[who].items()):
            if point not in plain.get(who, ()):
                yield Case(who, point, (n + 1) // 2, "crash", LOST_AT[1])


class Walk:
    """The runs of some cases. gone: the worker that is not restarted."""

    def __init__(self, wanted, gone=None):
        self.wanted, self.gone = wanted, gone
        self.problems, self.fired, self.restarts, self.masters = [], 0, 0, 0

    def has_happened(self, c, name, before):
        """Runs one case. Returns true if its process reached its point."""
        envs = {c.who: {"CLEAVE_FAILPOINT": f"{c.point}:{c.count}:{c.action}"}}
        if c.lost:
            envs["w1"] = {"CLEAVE_FAILPOINT": f"step.compute_change:{c.lost}:crash"}
        log = log_of(c.who, name)
        session, (n, m) = run_case(name, envs, 4 * (c.point == "recovery.waiting" and self.gone is None), self.gone)
        self.restarts, self.masters = self.restarts + n, self.masters + m - 1
        if result(name) != self.wanted:
            self.problems.append(f"{c}: the result differs")
        return f"failpoint {c.point}\n" in text(log)[before:]

    def take(self, c, name):
        before = os.path.getsize(log_of(c.who, name)) if os.path.exists(log_of(c.who, name)) else 0
        try:
            happened = self.has_happened(c, name, before)
        except AssertionError as e:
            self.problems.append(f"{c}: {e}")
            for i in range(len(cluster.workers)):
                cluster.restart_with(i)
            return
        self.fired += happened
        if not happened and c.count == 1:
            self.problems.append(f"{c}: was not reached")
        if not happened and c.who != "master":  # the worker has its failpoint still ahead
            cluster.restart_with(int(c.who[1]) - 1)
        shutil.rmtree(os.path.join(cluster.dir, "runs", name))

    def take_all(self, some):
        begin = time.monotonic()
        for k, c in enumerate(some):
            self.take(c, f"walk{k}")
            if k % 20 == 19:
                print(f"{k + 1} of {len(some)} runs, {time.monotonic() - begin:.0f} s", flush=True)
        print("\n".join(self.problems), flush=True) if self.problems else None
        print(f"{len(some)} runs{' with a spare' if self.gone is not None else ''}, {len({c.point for c in some})} points of {len({c.who for c in some})} processes, "
              f"{self.fired} reached, {self.masters} masters and {self.restarts} workers started again, {len(self.problems)} problems", flush=True)
        return not self.problems


def log_of(who, name):
    return os.path.join(cluster.dir, name + ".yaml.out") if who == "master" else cluster.workers[int(who[1]) - 1].log_path


def walk(a):
    plain, lossy = traced("plain"), traced("lossy", LOST_AT[1])
    walk = Walk(result("plain"))
    assert result("lossy") == walk.wanted, "a run that lost a worker differs"
    reached = {p for of in (*plain.values(), *lossy.values()) for p in of}
    missing = sorted({name for name, _ in points.written()} - reached - set(NOT_WALKED))
    walk.problems += [f"no run reaches {p}" for p in missing]
    return walk.take_all([c for c in cases(plain, lossy, a) if c.point.startswith(a.points) and c.who in a.who.split(",")])


def walk_with_spare(a):
    plain, lossy = traced("plain"), traced("lossy", LOST_AT[1], 0)
    walk = Walk(result("plain"), 0)
    assert result("lossy") == walk.wanted, "a run whose spare took over differs"
    assert lossy["master"]["recovery.replaced"] and lossy["w3"], lossy
    return walk.take_all([c for c in spare_cases(plain, lossy) if c.point.startswith(a.points)])


parser = argparse.ArgumentParser()
parser.add_argument("--points", default="")
parser.add_argument("--actions", default="crash,stop,error")
parser.add_argument("--who", default="master,w1,w2")
parser.add_argument("--spares", choices=("too", "only", "no"), default="too")
arguments, good = parser.parse_args(), True
for kind, n, walked in ((Keeping, 2, walk), (Spared, 3, walk_with_spare)):
    if arguments.spares == ("no" if kind is Spared else "only"):
        continue
    with kind(n) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=16, side=8)
        good &= walked(arguments)
print("ok" if good else "not ok", "each_failpoint_changes_no_bit", flush=True)
sys.exit(0 if good else 1)
