"""Parts that the suites of hostile and faulty peers share: an honest session that trains meanwhile
on the same worker, an identity that attacks, checks of the answers to an attack, and the memory
that it may take. Each suite is a list of attacks; an attack is a function of an Evil that does one
wrong thing, checks the answer and returns the number of bytes that it declared or sent."""
import re
from contexts import *

MIB = 1 << 20
SESSION_BYTES, CREDIT = 32 * MIB, 4 * MIB
INVALID, NONE, EXISTS, MORE, FAILED, ABORTED, UNIMPLEMENTED, LOST = (
    pyclient.MISSING or getattr(grpc.StatusCode, code) for code in (
        "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION", "ABORTED", "UNIMPLEMENTED", "DATA_LOSS"))
TESTING = {"CLEAVE_TEST_OPS": "1"}  # allows the op `wait`
the.pace = 0.0  # seconds to wait before the check of each answer

# The honest session takes 60 steps a second, so that attacks have the cores: only its bits count.
PACED = "" if LONG else ", {op: wait, forward_ms: 8}"
HONEST = """
data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}
stages:
  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 128}, {op: relu}%s]}
  - {name: b, at: w1, layers: [{op: linear, out: 256}, {op: relu}, {op: dropout, p: 0.3},
                               {op: linear, out: 10}]}
loss: {kind: cross_entropy}
pipeline: {micro_batches: 2}
log: {every: 1, json: true}
train: {epochs: 1000000, batch: 64, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: adam, lr: 0.003}}
"""


class Honest:
    """A training run in a process of its own, and the times at which it printed its steps. pace:
    PACED, or
    "" for as many steps as possible."""

    def __init__(self, pace=PACED):
        self.pace = pace

    def __enter__(self):
        session = the.cluster.session("honest", HONEST % self.pace)
        self.process = subprocess.Popen([MASTER, "train", session, "--fresh"], cwd=the.cluster.dir,
                                        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        stdin=subprocess.DEVNULL, env=dict(os.environ, **TESTING))
        self.times = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.until(10 if self.pace else 50)
        return self

    def _read(self):
        for line in self.process.stdout:
            if '"step":' in line:
                self.times.append(time.monotonic())

    def until(self, steps):
        deadline = time.monotonic() + 60 * SLOW
        while len(self.times) < steps:
            alive = self.process.poll() is None and time.monotonic() < deadline
            assert alive, self.process.stderr.read()
            time.sleep(0.01)

    def durations(self, begin, end):
        times = [t for t in self.times if begin <= t <= end]
        return [b - a for a, b in zip(times, times[1:])]

    def stop(self):
        """Lets the run finish its step and write a checkpoint. Returns (number of steps,
        weights)."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60 * SLOW)
        self.reader.join()
        errors = self.process.stderr.read()
        assert self.process.returncode == 130, (self.process.returncode, errors)
        folder = os.path.join(the.cluster.dir, "runs", "honest")
        steps = max(int(d.split("-")[1]) for d in os.listdir(folder) if d.startswith("checkpoint-"))
        return steps, checkpoint_tensors(folder, steps)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def worker_log():
    """The worker's log; "" in a process that only attacks the worker."""
    workers = getattr(the.cluster, "workers", None)
    return workers[0].text() if workers else ""


def undisturbed(steps, pace=PACED):
    session = the.cluster.session("quiet", HONEST % pace.replace("8", "0"))
    done = the.cluster.train(session, "--max-steps", str(steps), "--fresh", timeout=300, env=TESTING)
    assert done.returncode == 0, done.stderr
    return checkpoint_tensors(os.path.join(the.cluster.dir, "runs", "quiet"), steps)


# ---- memory ------------------------------------------------------------------------------------

def peak_begin(pid):
    """Resets the peak of memory: from now on VmHWM is the largest size since. This needs root for a
    process that cannot be dumped; without it only sizes above the old peak show."""
    try:
        with open(f"/proc/{pid}/clear_refs", "w") as f:
            f.write("5")
    except PermissionError:
        return peak_now(pid)
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


def peak_now(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1)) * 1024


# ---- the attacker, and the answers that must come-------------------------------------------------

class Evil:
    """An attacker: an identity that is allowed to open sessions."""

    def __init__(self):
        self.caller = Caller(the.cluster.ports[0], the.cluster.certs, name="evil")
        self.caller.hello()
        self.made = []

    def session(self, lanes=0, loaded=True, attached=True, graph=None, dims=(4, 6), **kw):
        """A session with one module, 0, whose input is `dims`. kw changes the LoadModule
        request."""
        s = self.caller.open(lanes=lanes, name="evil")
        self.made.append(s)
        if loaded:
            s.load(graph or mlp(8, 4), dims, **kw)
        if attached:
            s.attach()
        return s

    def tidy(self):
        for s in self.made:
            try:
                s.close()
            except grpc.RpcError:
                pass
            for lane in s.lanes:
                lane.call.cancel()
        self.made = []


def fails(f, *codes):
    """The text of the gRPC error of f, which must be one of `codes`."""
    time.sleep(the.pace)
    try:
        f()
    except grpc.RpcError as e:
        assert e.code() in codes, (e.code(), e.details())
        return e.details()
    raise AssertionError("it was accepted")


def ends(lane, *codes):
    """Waits until the stream ends with one of `codes`; skips frames before that."""
    time.sleep(the.pace)
    try:
        while True:
            got = lane.recv()
            assert got.kind in (pb.ABORT, pb.ERROR, pb.ATTACHED, pb.PONG, pb.CHUNK), got
    except Ended as e:
        assert e.code in codes, (e.code, e.text)
        return e.text


def is_alive(lane):
    lane.send(pb.Frame(kind=pb.PING, message=7))
    while (pong := lane.recv()).kind != pb.PONG:
        assert pong.kind in (pb.ABORT, pb.ERROR), pong


def refuses(lane, *codes):
    """Waits for an ABORT or ERROR with one of `codes`; the session continues."""
    time.sleep(the.pace)
    while (got := lane.recv()).kind not in (pb.ABORT, pb.ERROR):
        assert got.kind in (pb.VALUE, pb.GRADIENT, pb.FINISHED), got
    assert got.failure.code in [c.value[0] for c in codes], got
    assert got.failure.text, got
    is_alive(lane)
    return got.failure.text


def poisons(lane, context, value, *codes):
    """Checks that the value is an error with one of `codes`; the session continues."""
    time.sleep(the.pace)
    lane.send(deliver(context, value))
    got = lane.recv()
    assert got.kind == pb.VALUE and got.message == value and not got.tensors, got
    assert got.failure.code in [c.value[0] for c in codes], got
    assert got.failure.text, got
    is_alive(lane)
    return got.failure.text


# ---- frames ------------------------------------------------------------------------------------

# an input of mlp(8, 4), and a tensor like its output
X, Y = (f32([0.5] * 24), [4, 6]), (f32([0.25] * 16), [4, 4])


def a_call(value=100, context=1, of=X, **kw):
    """A valid CALL of Evil's module, whose input is not kept as a value."""
    return call(context, value, 0, [(0, True, *of)], **kw)


def chunk(data, transfer=7, offset=0, total=None):
    return pb.Frame(kind=pb.CHUNK, payload=data, chunk=pb.Chunk(
        transfer=transfer, offset=offset, total=len(data) if total is None else total))


def attach_of(s, e, **changed):
    fields = dict(session=s.id, epoch=1, incarnation=e.caller.about.incarnation, lanes=0,
                  role=pb.ROLE_MASTER)
    fields.update(changed)
    return pb.Frame(kind=pb.ATTACH, attach=pb.Attach(**fields))


# ---- the suites --------------------------------------------------------------------------------

def problem_of(attack, evil, pid):
    """Runs an attack up to four times and measures memory. The first run warms allocators up. Some
    of the growth is due to the honest session and the transport, and the attack's part is in each
    run, so one later run within the limit suffices. Returns what is wrong, or None."""
    grown = []
    for k in range(4):
        try:
            before = peak_begin(pid)
            declared = attack(evil)
            grown.append(peak_now(pid) - before)
        except Exception as problem:
            return f"{attack.__name__}: {type(problem).__name__}: {problem}"
        finally:
            evil.tidy()
        if k and (SANITIZED or grown[-1] <= 2 * declared + MIB):
            return None
    return f"{attack.__name__}: {grown} bytes grown, {declared} declared"


class Attacks:
    """A decorator of attacks. main() makes a suite of them."""

    def __init__(self):
        self.all = []

    def __call__(self, f):
        self.all.append(f)
        return f

    def each_attack_is_refused_within_its_memory(self):
        """An honest session trains meanwhile, and keeps its bits."""
        worker, failures = the.cluster.workers[0], []
        with Honest() as honest:
            evil = Evil()
            for attack in self.all:
                problem = problem_of(attack, evil, worker.process.pid)
                if problem:
                    failures.append(problem)
                dead = worker.process.poll() is not None
                assert not dead, f"the worker died of {attack.__name__}:\n{worker.text()[-2000:]}"
            evil.caller.close()
            steps, weights = honest.stop()
        assert not failures, "\n".join(failures)
        assert weights == undisturbed(steps), "the honest session's weights differ"

    def main(self, name):
        suite = Suite()
        suite.test(self.each_attack_is_refused_within_its_memory)
        run_hostile(suite, name)


def the_worker_is_well_afterwards():
    w = the.cluster.workers[0]
    assert w.process.poll() is None
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
        until = time.monotonic() + 10 * SLOW
        while (left := c.stub.Status(pb.StatusRequest()).sessions) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, left
    for word in ("ERROR", "assert", "AddressSanitizer", "runtime error"):
        assert word not in w.text(), w.text()[-3000:]


def run_hostile(suite, name, keys="", evil=""):
    """Runs the tests of `suite` against one worker, and then checks the worker. keys: further text
    of its worker.yaml. evil: further keys of the identity that attacks."""
    suite.test(the_worker_is_well_afterwards)
    if pyclient.MISSING:
        print(f"skip {name}:", pyclient.MISSING)
        return
    with Cluster(0) as cluster:
        the.cluster = cluster
        for who in ("w1", "evil"):
            cluster.issue(who, "spiffe://test/" + who)
        cluster.ports = [free_port()]
        cluster.limits = (f"limits: {{sessions: 16, session_bytes: {SESSION_BYTES}, "
                          f"receive_window: {CREDIT}, message_size: 2MiB}}\nlog: {{lines: 1000000}}\n{keys}")
        cluster.extra_allow = f"  - {{identity: \"spiffe://test/evil\", role: master{evil}}}\n"
        cluster.workers = [Worker(cluster, "w1", cluster.worker_config(0))]
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=32, side=8)
        suite.main()
