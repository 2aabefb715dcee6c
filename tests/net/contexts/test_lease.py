#!/usr/bin/python3
"""The lease of references (PROTOCOL.md 12) over real daemons, a second long: a node that dies or
falls silent loses its kept references when the lease ends and not before; an idle one keeps them.
Checked in `status` and in the metrics."""
import os, select, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *
from measured import Measured, numbers as metrics
from test_references import KEY, NOT_FOUND, acknowledged, keep, one_call, quiet, said

PROGRAM = os.path.join(BIN, "net", "api_lease")
LEASE = min(2, max(1, SLOW) * (2 if SANITIZED else 1))
LEASE_MS = int(1000 * LEASE)
# least rest of the lease when a node dies that renews it every third of its length
HEARD_LAST = LEASE * 0.57
LATE = 3.0  # seconds until the end of a lease shows in status
# link.h: a link is lost to a peer that is silent for 3 s and for three quarters of the lease more
SILENCE_ENDS_A_LINK = 3 + 0.75 * LEASE
PLENTY = min(2.3 * LEASE, SILENCE_ENDS_A_LINK - 1)
assert LEASE < PLENTY
# memory of a session: enough for five values of api_lease, but not also for a larger one
ROOM = "26MiB"
suite = Suite()


def since(begin):
    return time.monotonic() - begin


def after_the_lease(begin, gone, least=LEASE):
    """Waits until gone() is true, which may not be sooner than `least` seconds after `begin`."""
    # each request costs both sides milliseconds
    until(lambda: gone() or time.sleep(0.1), LEASE + LATE)
    assert least <= since(begin), f"after {since(begin):.3f} s instead of {least}"


# ---- frame by frame ------------------------------------------------------------------------------

def opened(lease_ms):
    """A session with a lease, in which the worker keeps a value only for w2, which sends nothing
    else."""
    w = Remote("w1", the.cluster.ports[0], lease_ms=lease_ms)
    w.load(0, tanh_graph(), [N, D])
    w.attach()
    one_call(w, 1, 100)
    w.send(keep(1, 1, 100))
    acknowledged(w, 1)
    end(w, 1)
    w.send(said(pb.REF_FORK, 1, fork=50, key=KEY, node="w2"))
    acknowledged(w, 1)
    w.send(said(pb.REF_DELETE, 2))
    acknowledged(w, 2)
    return w


def owns(w):
    return w.status().references_owned


@suite.test
@measured
def unrenewed_reference_expires_after_the_session_lease():
    with opened(LEASE_MS) as w, opened(0) as other:
        begin, number = time.monotonic(), 1
        while since(begin) < PLENTY:
            number += 1
            heard = time.monotonic()
            w.send(said(pb.REF_RENEW, number, ref=0, fork=0, node="w2"))
            acknowledged(w, number)
            assert owns(w) == 1, f"{since(begin):.2f} s after it was kept"
            time.sleep(LEASE / 3)
        after_the_lease(heard, lambda: owns(w) == 0)
        w.send(said(pb.REF_RENEW, number + 1, ref=0, fork=0, node="w2"))
        acknowledged(w, number + 1, NOT_FOUND)
        w.send(said(pb.REF_FETCH, number + 2, fork=50, node="w2"))
        acknowledged(w, number + 2, NOT_FOUND)
        assert owns(other) == 1, "the lease of another session"


@suite.test
@measured
def request_for_an_unknown_reference_fails_after_one_lease():
    """The same for a reference that does not exist and for an existing one with a wrong key."""
    with opened(LEASE_MS) as w:
        number, sent = 1, time.monotonic()
        for ids in (dict(ref=99, key=KEY), dict(key=KEY + 1)):
            number += 1
            w.send(said(pb.REF_FORK, number, **{"fork": 60 + number, "node": "w2", **ids}))
        w.send(said(pb.REF_FETCH, number + 1, ref=98, fork=97, early=True, node="w2"))
        quiet(w)
        texts = [acknowledged(w, n, NOT_FOUND).failure.text for n in (2, 3, 4)]
        assert LEASE <= since(sent) < LEASE + LATE, since(sent)
        assert len(set(texts)) == 1, texts
        # a frame that was delayed for long
        w.send(said(pb.REF_FORK, 2, ref=99, fork=62, key=KEY, node="w2"))
        acknowledged(w, 2, NOT_FOUND)


@suite.test
def lease_out_of_range_or_over_the_limit_is_refused():
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
        c.hello()

        def refused(ms, code, *words):
            got, text = c.raw("OpenSession", pb.OpenSessionRequest(
                session=os.urandom(16), epoch=1, name="lease", config_digest=bytes(32),
                reference_lease_ms=ms).SerializeToString())
            assert got == code and all(word in text for word in words), (ms, got, text)
        for ms in (1, 999, 86400001, 2 ** 32 - 1):
            refused(ms, grpc.StatusCode.INVALID_ARGUMENT, str(ms), "1000 to 86400000")
        for ms in (400001, 86400000):
            refused(ms, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{ms / 1000:g} s", "limit of 400 s",
                    "limits.reference_lease", "worker.yaml")
        before = pb.OpenSessionRequest(session=os.urandom(16), epoch=1, name="lease",
                                       config_digest=bytes(32)).SerializeToString()
        # a text as lease; 2^64 - 1
        for wrong in (b"\x42\x01a", b"\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
            assert c.raw("OpenSession", before + wrong)[0] == grpc.StatusCode.INVALID_ARGUMENT, wrong
        assert not c.stub.Status(pb.StatusRequest()).sessions
        assert "reference_lease" in c.about.about.capabilities


# ---- programs ------------------------------------------------------------------------------------

class Program(Running):
    """The program api_lease, which gets commands; w1 owns the values, w2 uses them, w3 has their
    inputs."""

    def __init__(self, *way, body="transfer: direct\n"):
        self.name = f"lease{time.monotonic_ns()}"
        session = the.cluster.session(self.name, f"{body}limits: {{reference_lease: {LEASE_MS}ms}}\n")
        super().__init__([PROGRAM, session, "w1", "w2", "w3", *way], stdin=subprocess.PIPE)
        self.told("open")

    def told(self, step):
        ready, _, _ = select.select([self.process.stdout], [], [], 40 * SLOW)
        line = self.process.stdout.readline() if ready else "nothing"
        assert line == f"ok {step}\n", f"{step}: {line}"

    def does(self, step, *slots):
        for slot in slots or (0,):
            self.process.stdin.write(f"{step} {slot}\n")
            self.process.stdin.flush()
            self.told(step)

    def at_the_owner(self):
        """This session in the status of the owner alone, because a stopped worker would not
        answer."""
        done = master("status", the.cluster.owner, "--json", "--interval", "0.1", cwd=the.cluster.dir)
        assert done.returncode == 0, done.stdout + done.stderr
        return next(s for s in json.loads(done.stdout)["sessions"] if s["session"] == self.name)

    def __exit__(self, *_):
        self.process.stdin.close()
        super().__exit__()


def gauge(worker, name):
    """The value of a gauge, summed over all sessions of the master."""
    return metrics(the.cluster.pages[worker])[f'cleave_worker_{name}{{identity="spiffe://test/master"}}']


def kept():
    return gauge(0, "owned_references")


class Killed:
    """Kills a worker, and restarts it at the end of the block."""

    def __init__(self, worker):
        self.index = worker

    def __enter__(self):
        the.cluster.workers[self.index].kill()
        return self

    def __exit__(self, *_):
        the.cluster.restart(self.index)


class Stopped:
    """Stops a worker, which stays connected but sends nothing."""

    def __init__(self, worker):
        self.worker = the.cluster.workers[worker]

    def __enter__(self):
        self.worker.kill(signal.SIGSTOP)
        return self

    def resume(self):
        self.worker.kill(signal.SIGCONT)

    def __exit__(self, *_):
        self.resume()


def holds(program, *slots):
    """Gives w2 a handle of each value, which w1 knows, while the values have not come. All messages
    are answered."""
    program.does("hold", *slots)
    until(lambda: (kept(), gauge(1, "used_references")) == (len(slots), len(slots)))
    until(lambda: not gauge(0, "pending_reference_messages") + gauge(1, "pending_reference_messages"))


def agrees(program, references):
    """Checks that status and metrics have the same number of references."""
    s = program.at_the_owner()
    assert s["references"] == kept() == references, (s, kept())
    assert s["memory_bytes"] == gauge(0, "memory_bytes"), (s, gauge(0, "memory_bytes"))
    return s


@suite.test
@measured
def idle_user_keeps_its_reference():
    """For several leases, over a direct link and through the master, in two sessions at once."""
    with Program() as direct, Program(body="transfer: via_master\n") as by_master, Stopped(2) as source:
        for p in (direct, by_master):
            p.does("hold")
        held = lambda: (kept(), gauge(1, "used_references"))
        until(lambda: held() == (2, 2))
        begin = time.monotonic()
        while since(begin) < PLENTY:
            assert held() == (2, 2), f"after {since(begin):.2f} s"
            time.sleep(0.1)
        source.resume()
        for p in (direct, by_master):
            for step in ("was_used", "is_there", "let_go"):
                p.does(step)
        begin = time.monotonic()
        until(lambda: kept() == 0)
        assert since(begin) < HEARD_LAST, "what is released goes at once"
        direct.does("leaves_nothing")
        by_master.does("leaves_nothing")


@suite.test
@measured
def killed_user_loses_its_references_after_the_lease():
    with Program() as p, Stopped(2) as source:
        holds(p, *range(5))
        with Stopped(0) as owner, Killed(1):
            killed = time.monotonic()
            p.does("user_was_lost", 4)
            owner.resume()  # the owner learns of the loss after the master, and reports it
            p.does("begin_at_owner", 5)
            time.sleep(0.1)  # the master remembers the owner's report
            source.resume()  # the values come, but no node fetches them
            p.does("is_there", 4)
            p.does("let_go", *range(4))
            p.does("is_crowded")
            assert agrees(p, 5)["memory_bytes"] > 20 << 20
            after_the_lease(killed, lambda: kept() == 1, HEARD_LAST)
            p.does("has_room")
            # this value and the one that fitted before
            assert agrees(p, 1)["memory_bytes"] < 13 << 20
            p.does("end_at_owner", 5)
            p.does("is_there", 4)
            p.does("leaves", 4)


@suite.test
@measured
def stopped_user_loses_its_references_after_the_lease():
    with Program() as p, Stopped(2) as source:
        holds(p, 0, 1)
        with Stopped(1) as user:
            stopped = time.monotonic()
            source.resume()
            p.does("is_there", 0, 1)
            p.does("let_go", 0)
            passed = time.monotonic()
            p.does("hold", 2)  # a handle that never arrives
            p.does("let_go", 2)
            agrees(p, 3)
            after_the_lease(stopped, lambda: kept() <= 2, HEARD_LAST)
            after_the_lease(passed, lambda: kept() == 1)
            user.resume()
            p.does("use_was_let_go", 1)
            until(lambda: gauge(1, "used_references") == 0)
        p.does("is_there", 1)
        p.does("hold", 3)  # the session goes on
        p.does("was_used", 3)
        p.does("let_go", 3)
        until(lambda: kept() == 1)
        agrees(p, 1)
        p.does("leaves", 1)


@suite.test
@measured
def silent_master_loses_its_references_after_the_lease():
    """A stopped master, or one whose node has no thread while the program does something else."""
    with Program() as stopped, Program("single") as elsewhere:
        for p in (stopped, elsewhere):
            p.does("hold")
            p.does("was_used")
        stopped.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        assert kept() == 2
        after_the_lease(begin, lambda: kept() == 0, HEARD_LAST)
        stopped.process.send_signal(signal.SIGCONT)
        for p in (stopped, elsewhere):
            p.does("is_gone")
            p.does("hold", 1)
            p.does("was_used", 1)
            p.does("let_go", 1)
            p.does("leaves", 0)


@suite.test
def lease_over_a_workers_limit_names_the_worker():
    session = the.cluster.session("longer", "limits: {reference_lease: 401s}\n")
    done = run(PROGRAM, session, "w1", "w2", "w3")
    assert done.returncode == 1 and "worker 'w1'" in done.stdout and "401 s" in done.stdout, done.stdout
    assert "limits.reference_lease" in done.stdout, done.stdout


def main():
    if pyclient.MISSING:
        print("skip lease:", pyclient.MISSING)
        return
    with Measured(3, limits=f"limits: {{session_bytes: {ROOM}, reference_lease: 400s}}\n") as the.cluster:
        c = the.cluster
        c.owner = os.path.join(c.dir, "owner.yaml")
        with open(c.owner, "w") as f:
            f.write("version: 1\nname: owner\n"
                    "tls: {ca: certs/ca.pem, cert: certs/master.pem, key: certs/master.key}\n"
                    f"workers: {{w1: {{address: \"{c.address(0)}\", identity: \"spiffe://test/w1\"}}}}\n")
        suite.main()


main()
