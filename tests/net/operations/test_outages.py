"""Outages: connections that are reset, silent or refused during a session. No step is repeated, no
bit differs, and the record has one attempt. A link ends when limits.lease is over, or soon after
its peer's process has died."""
import functools, os, random, signal, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from relays import RelayedCluster

suite = Suite()
os.environ["CLEAVE_TEST_OPS"] = "1"  # `wait` makes a run long by the clock alone
STEPS = 100
PEER_TIMEOUT, LEASE = 1 * max(1, SLOW), 20 * max(1, SLOW)
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 512}, {op: relu}, {op: dropout, p: 0.3}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 256}, {op: relu}, {op: wait, forward_ms: 25}]}\n"
        "  - {name: c, at: w2, layers: [{op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 1}\ntransfer: direct\n"
        f"limits: {{peer_timeout: {PEER_TIMEOUT:g}s, lease: {LEASE:g}s, step_timeout: {2 * max(1, SLOW):g}s}}\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 64, seed: {SEED}, optimizer: {{kind: adam, lr: 0.003}}}}\n"
        "checkpoint: {every_steps: 25}\nrecovery: off\n")


class Run:
    def __init__(self, name, session=None, *args):
        self.dir = os.path.join(the.cluster.dir, "runs", name)
        session = session or the.cluster.session(name, BODY)
        self.process = subprocess.Popen([MASTER, "train", session, *args], cwd=the.cluster.dir, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def step(self):
        try:
            with open(os.path.join(self.dir, "metrics.jsonl")) as f:
                return f.read().count("\n")
        except FileNotFoundError:
            return 0

    def is_over(self):
        return self.process.poll() is not None

    def at(self, step):
        until(lambda: self.step() >= step or self.is_over(), 60)
        assert self.step() >= step, self.process.communicate()
        return self

    def ends(self, code=0):
        self.out, self.err = self.process.communicate(timeout=120 * SLOW)
        assert self.process.returncode == code, (self.process.returncode, self.out, self.err)
        return self

    def result(self):
        """(weights and moments, losses of all steps). Asserts that there was one attempt."""
        with open(os.path.join(self.dir, "run.json")) as f:
            assert len(json.load(f)["attempts"]) == 1
        with open(os.path.join(self.dir, "metrics.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        kept = [checkpoint_tensors(self.dir, STEPS, prefix) for prefix in ("model-", "optimizer-")]
        return kept, [(m["step"], m["loss"]) for m in lines]


class the:
    cluster = None


@functools.cache
def undisturbed():
    return Run("alone").ends().result()


@suite.test
def resets_change_no_bit():
    """Resets of all connections of one worker at once, of single ones, and in the middle of a
    message."""
    # a link between workers is dialled again after up to 5 s, which is longer than step_timeout
    run, draw, resets = Run("reset").at(5), random.Random(7), 0
    relays = [*the.cluster.relays.values(), *the.cluster.between.values()]
    while run.step() < STEPS - 20 and not run.is_over():
        relay = draw.choice(relays)
        if draw.random() < 0.5:
            relay.after(draw.randrange(200_000))
            resets += 1
        else:
            resets += relay.reset(draw.choice([1, 1, None]))
        time.sleep((0.05 + draw.random() / 5) * max(1, SLOW))
    assert run.ends().result() == undisturbed()
    assert resets >= 10, resets
    print(f"# {resets} resets")


def outages(name, worker, peer):
    """The link's row in `status --json`."""
    done = master("status", os.path.join(the.cluster.dir, name + ".yaml"), "--json", "--interval", "0.1", env={"CLEAVE_TEST_OPS": "1"})
    row = next(row for row in map(json.loads, done.stdout.splitlines()) if row["worker"] == worker)
    (session,) = row["sessions"]
    return next(link for link in session["links"] if link["peer"] == peer)


@suite.test
def silence_ends_nothing():
    """Packets are dropped for a moment, and for longer than peer_timeout and step_timeout: between
    the master and a worker, and only between two workers."""
    run, relays, between = Run("silent").at(5), the.cluster.relays, list(the.cluster.between.values())
    for cut, seconds in (([relays[0]], 0.3), ([relays[1]], 3 * PEER_TIMEOUT), (between, 4 * PEER_TIMEOUT)):
        before = run.step()
        for relay in cut:
            relay.drop()
        time.sleep(seconds)
        if cut == between:
            w1_to_w2, w2_to_master = outages("silent", "w1", "w2"), outages("silent", "w2", "master")
        for relay in cut:
            relay.heal()
        healed = time.monotonic()
        until(lambda: run.step() > before + 3 or run.is_over(), 30)
        took = time.monotonic() - healed
        assert took < 5 or SLOW > 1, took
    assert run.ends().result() == undisturbed()
    assert w1_to_w2["outage_s"] > PEER_TIMEOUT and w2_to_master["outage_s"] == 0, (w1_to_w2, w2_to_master)
    assert w2_to_master["outages"] == 1 and 1 < w2_to_master["last_outage_s"] < 4 * PEER_TIMEOUT, w2_to_master
    assert 0 < w2_to_master["last_outage_age_s"] < 60 * SLOW, w2_to_master
    print(f"# back {took:.1f} s after the heal")


@suite.test
def lease_ends_the_link():
    session = the.cluster.session("lost", BODY.replace(f"lease: {LEASE:g}s", "lease: 2s"))
    run = Run("lost", session).at(5)
    the.cluster.relays[0].drop()
    begin = time.monotonic()
    run.ends(6)
    took = time.monotonic() - begin
    the.cluster.relays[0].heal()
    assert "not connected again within 2 s (limits.lease)" in run.err, run.err
    assert took > 2, took


@suite.test
def dead_worker_ends_the_run_soon():
    """Without a listening process the run does not wait for the end of the lease."""
    run = Run("dead").at(5)
    the.cluster.relays[0].refuse()
    begin = time.monotonic()
    run.ends(6)
    the.cluster.relays[0].heal()
    assert "refuses connections" in run.err, run.err
    assert time.monotonic() - begin < LEASE / 2


@suite.test
def interrupt_ends_a_run_whose_link_is_mended():
    run = Run("stopped").at(5)
    the.cluster.relays[0].drop()
    time.sleep(2 * PEER_TIMEOUT)
    begin = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    run.ends(130)
    the.cluster.relays[0].heal()
    assert time.monotonic() - begin < LEASE / 2, time.monotonic() - begin


@suite.test
def worker_that_restarts_while_resume_connects_is_waited_for():
    """The master sends Hello and opens a session, then attaches to another process after the
    restart."""
    relay, restarts = the.cluster.relays[0], []

    def restart():
        the.cluster.workers[0].kill()
        the.cluster.restart(0)
        restarts.append(time.monotonic())

    relay.before_next(lambda: relay.before_next(restart))  # the connection after that of Hello
    session = the.cluster.session("resumed", BODY.replace("recovery: off\n", "recovery: {wait: 200ms}\n"))
    run = Run("resumed", session, "--resume", "--set", "train.max_steps=20").ends()
    assert len(restarts) == 1 and "has been restarted since the master's Hello" in run.out + run.err, (run.out, run.err)


with RelayedCluster(2, parted=True, limits=f"limits: {{peer_timeout: {PEER_TIMEOUT:g}s, lease: {LEASE:g}s}}\n") as the.cluster:
    os.mkdir(os.path.join(the.cluster.dir, "data"))
    synthetic_images(os.path.join(the.cluster.dir, "data"), n=512, n_test=16, side=8)
    suite.main()
