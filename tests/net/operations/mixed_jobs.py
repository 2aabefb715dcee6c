# SPDX-License-Identifier: Apache-2.0
"""The jobs of mixed_soak.py: each runs one or two short sessions, and has its own random
numbers."""
import os, re, shutil, signal, socket, subprocess, threading, time
from cluster import BIN, IMAGE_DATA, MASTER, SANITIZED, SLOW

TIMEOUT_S = (300 if SANITIZED else 90) * SLOW
TINY = threading.Lock()  # held by a job of the identity whose quota is one session
DATA = IMAGE_DATA.replace("}\n", ", validation: {fraction: 0.25}}\n")


class Job:
    """A job: its name, its random numbers, and the programs that it has started."""

    def __init__(self, soak, kind, name, dice):
        self.soak, self.cluster, self.kind, self.name, self.dice = soak, soak.cluster, kind, name, dice
        self.user, self.programs, self.stages = dice.choice(("heavy", "light")), [], ()

    # ---- programs --------------------------------------------------------------------------------

    def start(self, *command, log=None):
        path = os.path.join(self.cluster.dir, (log or self.name) + ".out")
        with open(path, "ab") as out:
            with self.soak.gate:  # waits while all jobs are stopped
                p = subprocess.Popen(command, cwd=self.cluster.dir, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=subprocess.STDOUT)
                p.log = path
                self.programs.append(p)
        return p

    def end(self, p, *codes):
        code = p.wait(TIMEOUT_S)
        if code not in codes:
            raise AssertionError(f"exit code {code}, not {codes}: {' '.join(p.args)}\n{said(p)[-1500:]}")
        return said(p)

    def signal(self, sig):
        """Sends a signal to all running programs; they may end meanwhile."""
        for p in list(self.programs):
            if p.poll() is None:
                p.send_signal(sig)

    def tidy(self):
        for p in self.programs:
            if p.poll() is None:
                p.kill()
                p.wait()
            if os.path.exists(p.log):
                os.remove(p.log)
        for name in (self.name, self.name + "b"):
            shutil.rmtree(os.path.join(self.cluster.dir, "runs", name), ignore_errors=True)

    # ---- sessions --------------------------------------------------------------------------------

    def session(self, body):
        """Writes a session file of this job's user."""
        path = self.cluster.session(self.name, body)
        with open(path) as f:
            text = f.read().replace("certs/master.", f"certs/{self.user}.")
        with open(path, "w") as f:
            f.write(text)
        return path

    def body(self, places=None, width=None):
        """A session body with stages at the master and at one or two workers, in one of many
        shapes."""
        r = self.dice
        places = places or r.choice((["w1"], ["w2"], ["w1", "w2"], ["w2", "w1"]))
        conv = width is None and r.random() < 0.5
        width = width or r.choice((8, 32, 128))
        op = f"{{op: conv2d, out: {r.choice((4, 8))}, kernel: 3}}" if conv else f"{{op: linear, out: {width}}}"
        first = op if conv else "{op: flatten}, " + op
        last = ("{op: flatten}, " if conv else "") + "{op: linear, out: 10}"
        middle = op + ", {op: relu}" + r.choice((", {op: dropout, p: 0.1}", ""))
        layers = [first + ", {op: relu}"] + [middle] * (len(places) - 1) + [last]
        stages = "".join(f"  - {{name: s{i}, at: {at}, layers: [{l}]}}\n"
                         for i, (at, l) in enumerate(zip(["master", *places], layers)))
        optimizer = r.choice(("kind: sgd, lr: 0.01", "kind: sgd, lr: 0.01, momentum: 0.9", "kind: adam, lr: 0.001"))
        pipeline = f"micro_batches: {r.choice((1, 2, 4))}, schedule: {r.choice(('gpipe', '1f1b', 'zb-h1', 'naive'))}"
        self.stages = places
        return (f"{DATA}stages:\n{stages}loss: {{kind: cross_entropy}}\n"
                f"transfer: {r.choice(('direct', 'via_master'))}\n"
                f"train: {{epochs: 1000000, batch: {r.choice((16, 32, 48))}, seed: 5eed5eed5eed5eed5eed5eed5eed{r.randrange(1000):04x}, "
                f"optimizer: {{{optimizer}}}}}\npipeline: {{{pipeline}}}\n"
                "log: {every: 50}\ncheckpoint: {every_steps: 1000, keep: 1}\nlimits: {connect_timeout: 60s}\n")

    def train(self, path, *args):
        return self.start(MASTER, "train", path, *args)

    def logged(self):
        """The number of steps in metrics.jsonl."""
        try:
            with open(os.path.join(self.cluster.dir, "runs", self.name, "metrics.jsonl")) as f:
                return f.read().count("\n")
        except OSError:
            return 0

    def wait_for_steps(self, p, n):
        until = time.monotonic() + TIMEOUT_S
        while self.logged() < n:
            if p.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"it did not come to step {n}: {said(p)[-1500:]}")
            time.sleep(0.05)

    def took(self, least, most=None):
        """Records the number of steps that this session's stages must have taken."""
        self.soak.ledger.stepped(self.user, self.stages, least, least if most is None else most)


def said(p):
    with open(p.log, errors="replace") as f:
        return f.read()


# ---- sessions of cleave-master -------------------------------------------------------------------

def trained(j, least=4, most=40):
    path, steps = j.session(j.body()), j.dice.randint(least, most)
    j.end(j.train(path, "--max-steps", str(steps)), 0)
    j.took(steps)
    return path, steps


def evaluated(j):
    path, _ = trained(j, most=12)
    j.end(j.start(MASTER, "eval", path), 0)


def resumed(j):
    path, steps = trained(j, most=12)
    more = j.dice.randint(1, 12)
    j.end(j.train(path, "--resume", "--max-steps", str(steps + more)), 0)
    j.took(more)


def stopped(j):
    p = j.train(j.session(j.body()))
    j.wait_for_steps(p, j.dice.randint(1, 20))
    j.end(j.start(MASTER, "stop", j.name, log=j.name + "-stop"), 0)
    j.end(p, 130)
    j.took(j.logged())


def interrupted(j):
    p = j.train(j.session(j.body()))
    j.wait_for_steps(p, j.dice.randint(1, 20))
    p.send_signal(signal.SIGINT)
    j.end(p, 130)
    j.took(j.logged())


def killed(j):
    """Killed at a step, or after some time. A step may have been taken that is not logged; and the
    message that makes the last logged step final may not have reached the workers."""
    p = j.train(j.session(j.body()))
    if j.dice.random() < 0.5:
        j.wait_for_steps(p, j.dice.randint(1, 20))
    else:
        time.sleep(j.dice.uniform(0, 0.6))
    p.kill()
    p.wait()
    j.took(max(0, j.logged() - 1), j.logged() + 2)


# ---- programs on libcleave -----------------------------------------------------------------------

def program(j, name, *args):
    where, j.user = j.dice.choice((["w1", "w2"], ["w2", "w1"])), "programs"
    path = j.session(f"transfer: {j.dice.choice(('direct', 'via_master'))}\nlimits: {{connect_timeout: 60s}}\n")
    j.soak.ledger.unknown("programs")
    return j.start(os.path.join(BIN, "net", name), path, *where, *args)


def kept(j):
    j.end(program(j, "api_kept", "few"), 0)


def many_steps(j):
    j.end(program(j, "api_faults", "0", str(j.dice.randint(20, 200))), 0)


def random_programs(j):
    j.end(program(j, "random_programs", str(j.dice.randrange(1 << 20)), str(j.dice.randint(1, 10))), 0)


def killed_program(j):
    p = program(j, *j.dice.choice((("api_kept",), ("random_programs", "1", "1000000"), ("api_faults", "0", "1000000"))))
    time.sleep(j.dice.uniform(0, 1.2))
    p.kill()
    p.wait()


# ---- refused callers ----------------------------------------------------------------------------

def refuse(j, path, code, *words, args=()):
    text = re.sub(r"\s+", " ", j.end(j.train(path, "--max-steps", "2", *args), code))
    if not all(w in text for w in words):
        raise AssertionError(f"refused without {words}: {text[-1500:]}")


def foreign(j):
    """A caller with a certificate of another authority."""
    other = os.path.join(j.cluster.dir, "other-ca")
    tls = {"ca": "both.pem", "cert": f"{other}/master.pem", "key": f"{other}/master.key"}
    sets = [w for k, v in tls.items() for w in ("--set", f"tls.{k}={v}")]
    refuse(j, j.session(j.body()), 4, args=[*sets, "--set", "limits.connect_timeout=5s"])
    j.soak.ledger.turned_away(handshakes=1)


def not_allowed(j):
    j.user = "stranger"
    refuse(j, j.session(j.body()), 4, "not in its allow table")
    j.soak.ledger.turned_away(handshakes=1)


def too_many_sessions(j):
    j.user = "tiny"
    with TINY:
        at = j.dice.choice((["w1"], ["w2"]))
        holder = j.train(j.session(j.body(at, 8)))
        j.wait_for_steps(holder, 1)
        second = Job(j.soak, j.kind, j.name + "b", j.dice)
        second.user, second.programs = "tiny", j.programs
        refuse(second, second.session(second.body(at, 8)), 1, "allow[].sessions")
        j.soak.ledger.turned_away(sessions=1)
        holder.send_signal(signal.SIGINT)
        j.end(holder, 130)
        j.took(j.logged())


def too_many_bytes(j):
    j.user = "tiny"
    with TINY:
        refuse(j, j.session(j.body(["w1", "w2"], 1024)), 1, "allow[].bytes")


def knock(j):
    """A caller without TLS, or one that leaves in the middle of the handshake."""
    for _ in range(j.dice.randint(1, 3)):
        with socket.create_connection(("127.0.0.1", j.dice.choice(j.cluster.ports)), 10) as s:
            s.sendall(j.dice.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"")))
        j.soak.ledger.turned_away(handshakes=1)


# kind -> (relative frequency, function)
KINDS = {"trained": (8, trained), "evaluated": (3, evaluated), "resumed": (3, resumed), "stopped": (3, stopped),
         "interrupted": (2, interrupted), "killed": (5, killed), "kept": (2, kept), "many_steps": (3, many_steps),
         "random_programs": (3, random_programs), "killed_program": (3, killed_program),
         "foreign": (2, foreign), "not_allowed": (2, not_allowed),
         "too_many_sessions": (2, too_many_sessions), "too_many_bytes": (2, too_many_bytes), "knock": (2, knock)}
