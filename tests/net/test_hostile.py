"""Hostile and clumsy peers, while an honest session trains on the same worker: an error to whoever
caused it, bounded memory, and to the honest session neither another bit nor a slower step."""
import os, random, re, threading
from cluster import *
import pyclient
from pyclient import *

suite = Suite()
cluster = None
MIB = 1 << 20
SESSION_BYTES, CREDIT = 64 * MIB, 4 * MIB

HONEST = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
          "stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 128}, {op: relu}]}\n"
          "  - {name: b, at: w1, layers: [{op: linear, out: 256}, {op: relu}, {op: dropout, p: 0.3}, {op: linear, out: 10}]}\n"
          "loss: {kind: cross_entropy}\npipeline: {micro_batches: 2}\nlog: {every: 1, json: true}\n"
          "train: {epochs: 1000000, batch: 64, seed: 5, optimizer: {kind: adam, lr: 0.003}}\n")


class Honest:
    """A training run in a process of its own; the time at which each of its steps was told."""

    def __enter__(self):
        session = cluster.session("honest", HONEST)
        self.process = subprocess.Popen([MASTER, "train", session, "--fresh"], cwd=cluster.dir, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.times = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.until(50)
        return self

    def _read(self):
        for line in self.process.stdout:
            if '"step":' in line:
                self.times.append(time.monotonic())

    def until(self, steps):
        deadline = time.monotonic() + 60 * SLOW
        while len(self.times) < steps:
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.stderr.read()
            time.sleep(0.01)

    def durations(self, begin, end):
        times = [t for t in self.times if begin <= t <= end]
        return [b - a for a, b in zip(times, times[1:])]

    def stop(self):
        """Finish the step, write a checkpoint; (steps, weights)."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60 * SLOW)
        self.reader.join()
        errors = self.process.stderr.read()
        assert self.process.returncode == 130, (self.process.returncode, errors)
        folder = os.path.join(cluster.dir, "runs", "honest")
        steps = max(int(d.split("-")[1]) for d in os.listdir(folder) if d.startswith("checkpoint-"))
        return steps, checkpoint_tensors(folder, steps)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def undisturbed(steps):
    done = cluster.train(cluster.session("quiet", HONEST), "--max-steps", str(steps), "--fresh", timeout=300)
    assert done.returncode == 0, done.stderr
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", "quiet"), steps)


# ---- memory ------------------------------------------------------------------------------------

def peak_begin(pid):
    """Forget the peak so far: from now on VmHWM is the largest since."""
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


def peak_now(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1)) * 1024


# ---- attacks -----------------------------------------------------------------------------------
# Each is a function of an Evil that does one wrong thing, checks the answer and returns the bytes
# it declared or sent.

StatusCode = grpc.StatusCode if pyclient.MISSING is None else None
ATTACKS = []


def attack(f):
    ATTACKS.append(f)
    return f


class Evil:
    """An identity that is allowed to open sessions, and means no good."""

    def __init__(self):
        self.caller = Caller(cluster.ports[0], cluster.certs, name="evil")
        self.caller.hello()
        self.made = []

    def session(self, lanes=0, loaded=True, attached=True, **kw):
        s = self.caller.open(lanes=lanes, name="evil")
        self.made.append(s)
        if loaded:
            s.load(kw.pop("graph", mlp(8, 4)), kw.pop("dims", [4, 6]), micro=2, **kw)
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


pace = 0.0  # seconds before each hostile message


def fails(f, *codes):
    """The gRPC error of f, which must be one of `codes`."""
    time.sleep(pace)
    try:
        f()
    except grpc.RpcError as e:
        assert e.code() in codes, (e.code(), e.details())
        return e.details()
    raise AssertionError("it was accepted")


def ends(lane, *codes):
    """The stream ends with one of `codes`, after whatever else was on its way."""
    time.sleep(pace)
    try:
        while True:
            got = lane.recv()
            assert got.kind in (pb.ABORT, pb.ERROR, pb.ATTACHED, pb.PONG, pb.CHUNK), got
    except Ended as e:
        assert e.code in codes, (e.code, e.text)
        return e.text


def refuses(lane, *codes):
    """An ABORT or ERROR with one of `codes` comes back; the session goes on."""
    time.sleep(pace)
    while True:
        got = lane.recv()
        if got.kind in (pb.ABORT, pb.ERROR):
            break
        assert got.kind in (pb.FORWARD, pb.BACKWARD, pb.VOTE), got
    assert got.failure.code in [c.value[0] for c in codes], got
    assert got.failure.text, got
    lane.send(pb.Frame(kind=pb.PING, message=7))
    while (pong := lane.recv()).kind != pb.PONG:
        assert pong.kind in (pb.ABORT, pb.ERROR), pong
    return got.failure.text


def load_request(s, **kw):
    fields = dict(session=s.id, epoch=1, stage=1, n_stages=3, graph=mlp(8, 4), threads=1, device="cpu", seed=1,
                  max_micro_batches=2, inputs=[pb.TensorSpec(dtype=F32, dims=[4, 6])],
                  optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=0.1))
    fields.update(kw)
    return pb.LoadShardRequest(**fields)


def load_fails(e, *codes, **kw):
    s = e.made[0] if e.made else e.session(loaded=False, attached=False)
    return fails(lambda: e.caller.stub.LoadShard(load_request(s, **kw), timeout=30 * SLOW), *codes)


BAD = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED")
REQUESTS = {
    "Hello": lambda: pb.HelloRequest(about=pb.About(protocol=1, software="x", capabilities=["a", "b"])),
    "OpenSession": lambda: pb.OpenSessionRequest(session=os.urandom(16), epoch=1, name="cut", config_digest=bytes(32)),
    "CloseSession": lambda: pb.CloseSessionRequest(session=os.urandom(16), epoch=1),
    "LoadShard": lambda: load_request(SessionOf(None, os.urandom(16), 1, 0)),
    "Status": lambda: pb.StatusRequest(session=os.urandom(16)),
}


@attack
def truncated_unary(e):
    r, sent = random.Random(1), 0
    for method, make in REQUESTS.items():
        whole = make().SerializeToString()
        for cut in sorted({1, len(whole) - 1, *(r.randrange(1, len(whole)) for _ in range(6))}):
            code, text = e.caller.raw(method, whole[:cut])
            at_a_border = code == StatusCode.OK  # a shorter message may be a whole one
            assert at_a_border or code.name in BAD, (method, cut, code, text)
            sent += cut
    return sent


@attack
def garbage_unary(e):
    r, sent = random.Random(2), 0
    for method in REQUESTS:
        for size in (1, 17, 300, 5000):
            code, text = e.caller.raw(method, r.randbytes(size))
            assert code.name in BAD, (method, size, code, text)
            sent += size
    return sent


@attack
def oversized_unary(e):
    for method, make in REQUESTS.items():
        code, text = e.caller.raw(method, make().SerializeToString() + b"\xaa\x3e\x80\x80\x10" + bytes(256 << 10))
        assert code == StatusCode.RESOURCE_EXHAUSTED, (method, code, text)
    code, text = e.caller.raw("LoadShard", bytes(3 * MIB))  # above the limit of any message
    assert code == StatusCode.RESOURCE_EXHAUSTED, (code, text)
    return 3 * MIB


@attack
def too_much_in_a_small_message(e):
    """Many empty elements: two bytes on the wire, far more once decoded."""
    for method, field in (("LoadShard", b"\x7a\x00"), ("Hello", b"\x0a\x02\x12\x00"), ("OpenSession", b"\x22\x00")):
        code, text = e.caller.raw(method, field * (100_000 // len(field)))
        assert code.name in BAD, (method, code, text)
    return 100_000


@attack
def deeply_nested_unary(e):
    groups = b"\x0b" * 20_000 + b"\x0c" * 20_000  # group 1 in group 1 ...
    message = b""
    while len(message) < 50_000:  # field 5 in field 5 ...: graph, then unknown all the way down
        n, length = len(message), b""
        while n > 127:
            length, n = length + bytes([n & 127 | 128]), n >> 7
        message = b"\x2a" + length + bytes([n]) + message
    for method in REQUESTS:
        for data in (groups, message, b"\x0b" * 40_000):
            code, text = e.caller.raw(method, data)
            skipped = data is message and code == StatusCode.OK  # one unknown field of bytes, to some
            assert skipped or code.name in BAD, (method, code, text)
    return len(groups)


@attack
def overflowing_shapes_unary(e):
    two = lambda *dims: [pb.TensorSpec(dtype=F32, dims=dims)]
    for dims in ([1 << 32, 1 << 32], [1 << 63, 2], [(1 << 64) - 1], [1 << 20] * 8, [4] * 9, [], [0, 6], [4, 0],
                 [4, 1 << 62]):
        load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, inputs=two(*dims))
    for dtype in (0, 2, 5, 99):
        load_fails(e, StatusCode.INVALID_ARGUMENT, inputs=[pb.TensorSpec(dtype=dtype, dims=[4, 6])])
    for bad in (dict(out=1 << 62), dict(out=-1), dict(out=0), dict(out=(1 << 31) - 1), dict(out=[1, 2, 3]),
                dict(), dict(out=3, kernel=3), dict(out=3, groups=0)):
        graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, **bad)], outputs=[1])
        load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, graph=graph)
    for bad in (dict(kernel=1 << 40), dict(kernel=3, pad=1 << 40), dict(kernel=3, stride=0), dict(kernel=30),
                dict(kernel=3, groups=1 << 33), dict(kernel=[3, 3, 3]), dict(kernel=-1)):
        graph = pb.Graph(nodes=[node(INPUT, name="x"), node(CONV, [0], 0, out=4, **bad)], outputs=[1])
        load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, graph=graph, inputs=two(2, 3, 8, 8))
    return 0


@attack
def absurd_extents(e):
    """Within every range, but far beyond the session's 64 MiB: refused without a touch of memory."""
    for out, wide in ((1 << 16, 1 << 16), (1 << 22, 6), (6, 1 << 22), (1 << 14, 1 << 12)):
        graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=out)], outputs=[1])
        load_fails(e, StatusCode.RESOURCE_EXHAUSTED, StatusCode.INVALID_ARGUMENT, graph=graph,
                   inputs=[pb.TensorSpec(dtype=F32, dims=[4, wide])])
    load_fails(e, StatusCode.RESOURCE_EXHAUSTED, StatusCode.INVALID_ARGUMENT,
               inputs=[pb.TensorSpec(dtype=F32, dims=[1 << 30, 6])])  # a batch
    return 0


@attack
def broken_graphs(e):
    x, nodes = node(INPUT, name="x"), pb.Graph
    chain = [x] + [node(BATCHNORM, [i], i) for i in range(2047)]  # 10,235 parameters and buffers
    many = dict(inputs=[pb.TensorSpec(dtype=F32, dims=[2, 1])])
    load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, graph=nodes(nodes=chain, outputs=[2047]), **many)
    for graph in (nodes(), nodes(nodes=[x]), nodes(nodes=[x], outputs=[1]), nodes(nodes=[x], outputs=[0, 0]),
                  nodes(nodes=[x, node(RELU, [1], 0)], outputs=[1]),       # itself
                  nodes(nodes=[x, node(RELU, [5], 0)], outputs=[1]),       # the future
                  nodes(nodes=[x, node(RELU, [], 0)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0, 0, 0], 0)], outputs=[1]),
                  nodes(nodes=[x, node(999, [0], 0)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0], 1 << 21)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0], 0, name="n" * 100)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0], 0, name="../../x/\\")], outputs=[1]),
                  nodes(nodes=[x, node(LINEAR, [0], 0, out=2, name="d"), node(LINEAR, [1], 1, out=2, name="d")], outputs=[2]),
                  nodes(nodes=[x, node(INPUT, name="y")], outputs=[0]),
                  nodes(nodes=[node(RELU, [0], 0)], outputs=[0])):
        load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, StatusCode.ALREADY_EXISTS, graph=graph)
    load_fails(e, StatusCode.INVALID_ARGUMENT, n_stages=1, stage=0)
    load_fails(e, StatusCode.INVALID_ARGUMENT, stage=3)
    load_fails(e, StatusCode.INVALID_ARGUMENT, n_stages=300)
    load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, max_micro_batches=100_000)
    load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, threads=1_000_000)
    load_fails(e, StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, device="cuda:0")
    load_fails(e, StatusCode.NOT_FOUND, frozen=["no.such"])
    load_fails(e, StatusCode.NOT_FOUND, route=pb.Route(next_peer="nobody"))
    load_fails(e, StatusCode.NOT_FOUND, init=pb.INIT_ARTIFACT, artifact=pb.Artifact(name="none", sha256=bytes(32)))
    load_fails(e, StatusCode.INVALID_ARGUMENT, init=pb.INIT_ARTIFACT,
               artifact=pb.Artifact(name="../../etc/passwd", sha256=bytes(32)))
    load_fails(e, StatusCode.INVALID_ARGUMENT, optimizer=pb.Optimizer(kind=pb.OPTIMIZER_ADAM, lr=float("nan")))
    load_fails(e, StatusCode.INVALID_ARGUMENT, optimizer=pb.Optimizer(kind=77))
    return 2048 * 16


@attack
def out_of_order_unary(e):
    stub, none = e.caller.stub, SessionOf(None, os.urandom(16), 1, 0)
    text = fails(lambda: stub.LoadShard(load_request(none)), StatusCode.NOT_FOUND)  # before OpenSession
    close = lambda id, epoch=1: stub.CloseSession(pb.CloseSessionRequest(session=id, epoch=epoch))
    fails(lambda: close(none.id), StatusCode.NOT_FOUND)
    s = e.session(attached=False)
    fails(lambda: stub.LoadShard(load_request(s)), StatusCode.ALREADY_EXISTS)
    fails(lambda: stub.LoadShard(load_request(s, stage=0, n_stages=4)), StatusCode.INVALID_ARGUMENT)
    for epoch in (0, 2, 1 << 63):
        assert fails(lambda: stub.LoadShard(load_request(s, epoch=epoch)), StatusCode.NOT_FOUND) == text
        assert fails(lambda: close(s.id, epoch), StatusCode.NOT_FOUND) == text
    # somebody else's session is as if it were not there
    with Caller(cluster.ports[0], cluster.certs) as other:
        theirs = other.open(name="theirs")
        assert fails(lambda: stub.LoadShard(load_request(theirs)), StatusCode.NOT_FOUND) == text
        assert fails(lambda: close(theirs.id), StatusCode.NOT_FOUND) == text
        assert (fails(lambda: stub.Status(pb.StatusRequest(session=theirs.id)), StatusCode.NOT_FOUND)
                == fails(lambda: stub.Status(pb.StatusRequest(session=none.id)), StatusCode.NOT_FOUND))
        fails(lambda: stub.OpenSession(pb.OpenSessionRequest(session=theirs.id, epoch=1, name="x", config_digest=bytes(32))),
              StatusCode.ALREADY_EXISTS)
        theirs.close()
    close(s.id)
    assert fails(lambda: close(s.id), StatusCode.NOT_FOUND) == text
    return 0


# ---- on the stream -----------------------------------------------------------------------------

X, Y = (f32([0.5] * 24), [4, 6]), (f32([0.25] * 16), [4, 4])


def forward(k=0, step=1, n=2, message=None, value=X, **fields):
    return training(pb.FORWARD, message or 100 * step + k, step, k, n, *value, **fields)


def backward(k, reply_to, step=1, n=2, value=Y, **fields):
    return training(pb.BACKWARD, 100 * step + 50 + k, step, k, n, *value, reply_to=reply_to,
                    flags=pb.FLAG_TRAINING | (pb.FLAG_PREPARE if k + 1 == n else 0), **fields)


@attack
def first_frame_is_not_attach(e):
    s = e.session(attached=False)
    for first in (forward(), pb.Frame(kind=pb.PING, message=1), pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=1))):
        lane = Lane(e.caller.channel)
        lane.send(first)
        ends(lane, StatusCode.FAILED_PRECONDITION)
    attach = pb.Frame(kind=pb.ATTACH, attach=pb.Attach(
        session=s.id, epoch=1, incarnation=e.caller.about.incarnation, lanes=0, role=pb.ROLE_MASTER)).SerializeToString()
    for data in (b"", b"\xff" * 40, attach[:-3], attach[:10], b"\x0b" * 5000, os.urandom(3000)):
        lane = Lane(e.caller.channel)
        lane.send(data)
        ends(lane, StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED, StatusCode.FAILED_PRECONDITION)
    return 5000


@attack
def wrong_attach(e):
    s, none = e.session(attached=False), os.urandom(16)

    def wrong(code, **changed):
        try:
            s.attach(**changed)
        except Ended as end:
            assert end.code == code, (end.code, end.text)
            return end.text
        raise AssertionError(f"ATTACH with {changed} was accepted")

    text = wrong(StatusCode.NOT_FOUND, session=none)
    for epoch in (0, 2, 1 << 40):
        assert wrong(StatusCode.NOT_FOUND, epoch=epoch) == text
    with Caller(cluster.ports[0], cluster.certs) as other:
        theirs = other.open(name="theirs")
        assert wrong(StatusCode.NOT_FOUND, session=theirs.id) == text
        assert wrong(StatusCode.NOT_FOUND, session=theirs.id, role=pb.ROLE_PEER) == text
        theirs.close()
    assert wrong(StatusCode.NOT_FOUND, role=pb.ROLE_PEER) == text  # not one of its own session's peers
    wrong(StatusCode.ABORTED, incarnation=bytes(16))
    wrong(StatusCode.INVALID_ARGUMENT, role=7)
    wrong(StatusCode.INVALID_ARGUMENT, lane=1, lanes=0)
    wrong(StatusCode.INVALID_ARGUMENT, lanes=17)
    wrong(StatusCode.INVALID_ARGUMENT, session=b"short")
    s.attach()
    wrong(StatusCode.FAILED_PRECONDITION)  # lane 0 a second time
    return 0


@attack
def second_attach_in_a_stream(e):
    s = e.session()
    s.lanes[0].send(pb.Frame(kind=pb.ATTACH, attach=pb.Attach(
        session=s.id, epoch=1, incarnation=e.caller.about.incarnation, lanes=0, role=pb.ROLE_MASTER)))
    ends(s.lanes[0], StatusCode.FAILED_PRECONDITION)
    return 0


@attack
def forward_before_load_shard(e):
    lane = e.session(loaded=False).lanes[0]
    lane.send(forward())
    refuses(lane, StatusCode.FAILED_PRECONDITION)
    lane.send(pb.Frame(kind=pb.STATE_GET, message=5, stage=1, state=pb.State(what=pb.STATE_WEIGHTS)))
    refuses(lane, StatusCode.FAILED_PRECONDITION)
    return 0


@attack
def calls_out_of_order(e):
    FAILED, INVALID, EXISTS, NONE = (StatusCode.FAILED_PRECONDITION, StatusCode.INVALID_ARGUMENT,
                                     StatusCode.ALREADY_EXISTS, StatusCode.NOT_FOUND)
    s = e.session()
    lane = s.lanes[0]

    def after(first, wrong, *codes):
        """`first` are good frames, one answer each; then `wrong`, a function of the answers."""
        answers = []
        for f in first:
            lane.send(f(answers) if callable(f) else f)
            answers.append(lane.recv())
            assert answers[-1].kind not in (pb.ABORT, pb.ERROR), answers[-1]
        lane.send(wrong(answers) if callable(wrong) else wrong)
        refuses(lane, *codes)

    commit = lambda step: pb.Frame(kind=pb.COMMIT, message=9, commit=pb.Commit(step=step, scale=1, lr=0.1, apply=True))
    after([], backward(0, 12345), FAILED)                                       # BACKWARD without FORWARD
    after([forward(0)], backward(1, 12345), FAILED)                             # of another micro-batch
    after([forward(0)], lambda a: backward(0, a[0].message + 1), INVALID)       # wrong reply_to
    after([forward(0)], lambda a: backward(0, a[0].message, value=X), INVALID)  # wrong shape
    after([forward(0)], lambda a: backward(0, a[0].message, step=2), FAILED)    # of another step
    after([forward(0)], forward(0, message=777), EXISTS)                        # run already
    after([forward(0), lambda a: backward(0, a[0].message)], lambda a: backward(0, a[0].message), EXISTS, FAILED)
    after([forward(0)], forward(1, n=3), INVALID)                               # the step has two
    after([forward(0)], forward(1, context=99), INVALID)                        # another context
    after([], forward(5, n=6), INVALID)                                         # loaded for two
    after([], forward(0, step=0, context=1, message=5), FAILED)
    after([], forward(0, stage=0), NONE)
    after([], forward(0, stage=2), NONE)
    after([], forward(0, stage=200), NONE)
    after([], commit(1), FAILED)                                                # nothing voted
    after([], commit(7), FAILED)
    after([forward(0)], commit(1), FAILED)
    after([forward(0)], forward(0, step=1, message=779, commit=pb.Commit(step=5, apply=True)), FAILED)
    after([], forward(0, value=(f32([1] * 20), [4, 5])), INVALID)
    after([], forward(0, value=(f32([1] * 24), [24])), INVALID)
    after([], forward(0, value=(b"", [0, 6])), INVALID)
    after([], forward(0, value=(f32([1] * 24), [6, 4])), INVALID)
    twice = forward(0)
    twice.tensors.append(tensor_head(X[0], X[1]))
    twice.payload += X[0]
    after([], twice, INVALID)                                                   # slot 1 is not there
    high = forward(0)
    high.presence = bytes(15) + b"\x80"
    after([], high, INVALID)                                                    # slot 127 neither
    wrong_type = forward(0)
    wrong_type.tensors[0].dtype = 4
    after([], wrong_type, INVALID)
    for kind, fields in ((pb.VOTE, dict(context=1, vote=pb.Vote(finite=True))), (pb.COMMITTED, {}),
                         (pb.STATE_DONE, dict(state=pb.State(what=1))), (pb.ENDED, dict(context=1))):
        after([], pb.Frame(kind=kind, message=3, stage=1, **fields), FAILED, StatusCode.UNIMPLEMENTED)
    put = lambda value, name, **kw: frame(pb.STATE_PUT, *value, message=4, stage=kw.pop("stage", 1), state=pb.State(
        what=kw.pop("what", 1), name=name, index=0, count=1), **kw)
    after([], put(X, "0.weight"), INVALID)                                      # [8, 6] it is
    after([], put(X, "9.weight"), NONE)
    after([], put(X, "0.weight", stage=2), NONE)
    after([], put((f32([1] * 8), [8]), "0.bias", what=2), NONE)
    after([], pb.Frame(kind=pb.STATE_GET, message=4, stage=77, state=pb.State(what=1)), NONE)
    # and after all that a step is still a step
    for k in range(2):
        lane.send(forward(k, message=5000 + k))
    replies = [lane.recv() for _ in range(2)]
    for k in range(2):
        lane.send(backward(k, replies[k].message))
    assert [lane.recv().kind for _ in range(3)] == [pb.BACKWARD, pb.BACKWARD, pb.VOTE]
    after([], commit(2), FAILED)
    assert not s.caller.stub.Status(pb.StatusRequest(session=s.id)).sessions[0].stages[0].parked
    return 0


@attack
def parked_without_end(e):
    lane = e.session().lanes[0]
    for i in range(40):
        lane.send(forward(0, step=50 + i))
    refuses(lane, StatusCode.RESOURCE_EXHAUSTED)
    return 40 * 2000


@attack
def batch_sizes_without_end(e):
    lane = e.session().lanes[0]
    for n in range(1, 80):
        lane.send(frame(pb.FORWARD, f32([1] * 6 * n), [n, 6], context=1 << 40, message=1000 + n, stage=1, n_micro_batches=1))
    refuses(lane, StatusCode.RESOURCE_EXHAUSTED)
    return 40 * 80 * 80


@attack
def inputs_that_do_not_fit_each_other(e):
    """A sum of two inputs, one a batch of 4, the other of 1: nothing beyond the smaller is read."""
    spec = pb.TensorSpec(dtype=F32, dims=[4, 6])
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(INPUT, name="y"), node(ADD, [0, 1], 0)], outputs=[2])
    lane = e.session(graph=graph, inputs=[spec, spec]).lanes[0]
    for flags, sizes in ((pb.FLAG_TRAINING, (4, 1)), (0, (4, 1)), (pb.FLAG_TRAINING, (1, 4)), (0, (64, 2))):
        raws = [f32([1] * 6 * n) for n in sizes]
        f = pb.Frame(kind=pb.FORWARD, context=1, message=10, step=1 if flags else 0, n_micro_batches=1, stage=1, flags=flags)
        for raw, n in zip(raws, sizes):
            f.tensors.append(tensor_head(raw, [n, 6]))
        f.payload = b"".join(raws)
        lane.send(f)
        refuses(lane, StatusCode.INVALID_ARGUMENT)
    return 0


@attack
def labels_out_of_range(e):
    """The loss at the worker: a class that is not there is an error, not an index."""
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(INPUT, name="y"), node(CROSS_ENTROPY, [0, 1], 0)], outputs=[2])
    s = e.session(graph=graph, stage=2, inputs=[pb.TensorSpec(dtype=F32, dims=[4, 6]), pb.TensorSpec(dtype=I64, dims=[4])],
                  optimizer=pb.Optimizer(), route=pb.Route(input_needs_grad=True, labels_here=True))
    lane = s.lanes[0]
    for bad in (6, -1, 1 << 40, -(1 << 63)):
        labels = struct.pack("<4q", 0, 1, bad, 2)
        f = training(pb.FORWARD, 10, 1, 0, 1, *X, stage=2)
        f.tensors.append(tensor_head(labels, [4], I64))
        f.payload += labels
        lane.send(f)
        refuses(lane, StatusCode.INVALID_ARGUMENT)
    return 0


def stream_ends(e, data, *codes, lanes=0):
    lane = e.session(lanes=lanes).lanes[0]
    lane.send(data)
    text = ends(lane, *codes)
    e.tidy()
    return text


@attack
def malformed_frames(e):
    INVALID, MORE = StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED
    whole = forward().SerializeToString()
    for cut in (1, 3, 12, len(whole) - 200, len(whole) - 1):
        stream_ends(e, whole[:cut], INVALID)
    stream_ends(e, os.urandom(2000), INVALID, MORE)
    stream_ends(e, b"", INVALID)
    stream_ends(e, b"\x0b" * 30_000, INVALID, MORE)                     # groups without end
    stream_ends(e, b"\x8a\x06\x80\x80\x01" + bytes(16384) + b"\x0b", INVALID)
    stream_ends(e, whole + b"\x7a\x01x", INVALID)                       # a second payload
    stream_ends(e, b"\xaa\x3e\x80\x80\x03" + bytes(49152) + whole, MORE)  # 48 KiB of unknown field
    stream_ends(e, b"\x62\x00" * 15_000, INVALID, MORE)                 # 15,000 empty tensors
    for change in (dict(kind=0), dict(kind=99), dict(flags=8), dict(micro_batch=9), dict(n_micro_batches=5000),
                   dict(message=0), dict(context=0), dict(stage=300)):
        f = forward()
        for k, v in change.items():
            setattr(f, k, v)
        stream_ends(e, f, INVALID)
    for change in (dict(bytes=95), dict(bytes=1 << 49), dict(dims=[1 << 40, 1 << 40]), dict(dims=[1 << 63]), dict(dims=[4] * 9),
                   dict(dtype=0), dict(dtype=200), dict(transfer=5)):
        f = forward()
        for k, v in change.items():
            if k == "dims":
                del f.tensors[0].dims[:]
                f.tensors[0].dims.extend(v)
            else:
                setattr(f.tensors[0], k, v)
        stream_ends(e, f, INVALID, MORE)
    f = forward()
    f.payload += b"x"
    stream_ends(e, f, INVALID)
    f = forward()
    f.upstream.extend(range(65))
    stream_ends(e, f, INVALID)
    f = forward()
    f.vote.finite = True
    stream_ends(e, f, INVALID)
    f = forward()
    f.tensors[0].crc32c ^= 1
    stream_ends(e, f, StatusCode.DATA_LOSS)
    stream_ends(e, pb.Frame(kind=pb.COMMIT, commit=pb.Commit(step=1, scale=float("inf"))), INVALID)
    stream_ends(e, pb.Frame(kind=pb.STATE_PUT, state=pb.State(what=1, name="x", index=9, count=9999999)), INVALID)
    return 50_000


@attack
def oversized_frame(e):
    big = training(pb.FORWARD, 5, 1, 0, 1, bytes(80 << 10), [20480])  # over 64 KiB inline
    stream_ends(e, big, StatusCode.INVALID_ARGUMENT)
    s = e.session()
    s.lanes[0].send(bytes(3 * MIB))  # over limits.message_size
    ends(s.lanes[0], StatusCode.RESOURCE_EXHAUSTED, StatusCode.CANCELLED)
    return 3 * MIB


@attack
def forward_on_a_bulk_lane(e):
    s = e.session(lanes=1)
    bulk = s.attach(1)
    bulk.send(forward())
    ends(bulk, StatusCode.FAILED_PRECONDITION)
    ends(s.lanes[0], StatusCode.FAILED_PRECONDITION)  # one lane ends, all end
    return 0


def chunk(data, transfer=7, offset=0, total=None):
    return pb.Frame(kind=pb.CHUNK, payload=data,
                    chunk=pb.Chunk(transfer=transfer, offset=offset, total=len(data) if total is None else total))


@attack
def bad_chunks(e):
    INVALID, MORE = StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED
    data = bytes(100_000)
    for frames, codes in ((
            [chunk(data, offset=1, total=100_000)], [INVALID]), (            # beyond the total
            [chunk(data, offset=1 << 49, total=100_000)], [INVALID]), (
            [chunk(data, offset=(1 << 64) - 1, total=(1 << 50) - 1)], [INVALID]), (
            [chunk(b"", total=5)], [INVALID]), (
            [chunk(data, transfer=0)], [INVALID]), (
            [chunk(data, total=200_000), chunk(data, total=300_000)], [INVALID]), (  # another total
            [chunk(data, total=250_000)] * 3, [INVALID]), (                   # the same bytes again
            [chunk(data, total=1 << 48)], [MORE]), (                          # over session_bytes
            [chunk(data, total=CREDIT + 1)], [MORE]), (                       # over the credit
            [chunk(b"x", transfer=i + 1, total=2) for i in range(600)], [MORE]), (
            [chunk(bytes(MIB + 1))], [MORE])):                                # over chunk_bytes
        s = e.session()
        for f in frames:
            s.lanes[0].send(f)
        ends(s.lanes[0], *codes)
        e.tidy()
    # a head that names a transfer twice, or one of another size
    head = lambda transfers, size: pb.Frame(
        kind=pb.FORWARD, context=1, message=5, step=1, n_micro_batches=1, stage=1, flags=1,
        tensors=[pb.TensorHead(dtype=F32, dims=[size // 4], bytes=size, transfer=t) for t in transfers])
    stream_ends(e, head([7, 7], 80_000), INVALID)
    s = e.session()
    s.lanes[0].send(chunk(data))
    s.lanes[0].send(head([7], 80_000))
    ends(s.lanes[0], INVALID)
    return CREDIT


@attack
def the_same_bytes_twice(e):
    """A tensor is whole when each of its bytes has come, not when enough bytes have."""
    s = e.session()
    half = os.urandom(50_000)
    for f in (chunk(half, total=100_000), chunk(half, total=100_000)):
        s.lanes[0].send(f)
    ends(s.lanes[0], StatusCode.INVALID_ARGUMENT)
    return 100_000


@attack
def credit_overrun(e):
    """Frames that nobody may consume yet, beyond the credit."""
    s = e.session(dims=[2048, 6])
    raw, lane = f32([1] * 6 * 2048), s.lanes[0]
    assert lane.credit == CREDIT
    crc = crc32c(raw)
    for i in range(CREDIT // len(raw) + 1):
        f = training(pb.FORWARD, 100 + i, 40, 0, 1, None, ())
        f.tensors.append(pb.TensorHead(dtype=F32, dims=[2048, 6], bytes=len(raw), crc32c=crc))
        f.payload = raw
        lane.send(f)
    # whichever limit is met first: parked messages or the credit
    try:
        refuses(lane, StatusCode.RESOURCE_EXHAUSTED)
    except Ended as end:
        assert end.code == StatusCode.RESOURCE_EXHAUSTED, end
    # chunks whose heads never come are not given back either
    s = e.session()
    for i in range(5):
        s.lanes[0].send(chunk(bytes(MIB), transfer=i + 1))
    ends(s.lanes[0], StatusCode.RESOURCE_EXHAUSTED)
    return CREDIT + MIB


@attack
def half_a_stream(e):
    """Sessions opened and forgotten, streams opened and left without a word."""
    lanes = [Lane(e.caller.channel) for _ in range(10)]
    s = e.session(attached=False)
    s.attach().finish()  # a half close is the end of the lane
    ends(s.lanes[0], StatusCode.OK, StatusCode.UNAVAILABLE)
    for lane in lanes:
        lane.call.cancel()
    return 0


@attack
def answers_nobody_reads(e):
    """Requests whose answers are never read: what waits to be sent is bounded."""
    s, seen = e.session(attached=False), cluster.workers[0].text().count("does not read")
    narrow = Caller(cluster.ports[0], cluster.certs, name="evil",  # and a window of 1 KiB
                    options=[("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)])
    lane, ping = Lane(narrow.channel, deaf=True), pb.Frame(kind=pb.PING, message=1).SerializeToString()
    lane.send(pb.Frame(kind=pb.ATTACH, attach=pb.Attach(
        session=s.id, epoch=1, incarnation=e.caller.about.incarnation, lanes=0, role=pb.ROLE_MASTER)))
    for _ in range(20_000):  # more than 8192 and what the transport takes before it is full
        lane.send(ping)
    w, until = cluster.workers[0], time.monotonic() + 20 * SLOW
    while w.text().count("does not read") == seen and time.monotonic() < until:
        time.sleep(0.05)  # to listen earlier would be to read
    lane.listen()
    assert "does not read" in ends(lane, StatusCode.RESOURCE_EXHAUSTED)
    narrow.close()
    return 8192 * 256  # the limit of messages, and what one of them takes


# ---- the tests ---------------------------------------------------------------------------------

@suite.test
def each_attack_is_refused_within_its_memory():
    """Twice: the first time warms allocators up, the second is measured. An honest session trains."""
    pid = cluster.workers[0].process.pid
    failures = []
    with Honest() as honest:
        evil = Evil()
        for f in ATTACKS:
            for measured in (False, True):
                try:
                    before = peak_begin(pid)
                    declared = f(evil)
                    grown = peak_now(pid) - before
                    assert not measured or SANITIZED or grown <= 2 * declared + MIB, f"{grown} bytes grown, {declared} declared"
                except Exception as problem:
                    failures.append(f"{f.__name__}: {type(problem).__name__}: {problem}")
                    if cluster.workers[0].process.poll() is not None:
                        raise AssertionError(f"the worker died of {f.__name__}:\n{cluster.workers[0].text()[-2000:]}")
                    evil.tidy()
                    break
                evil.tidy()
        evil.caller.close()
        steps, weights = honest.stop()
    assert not failures, "\n".join(failures)
    assert weights == undisturbed(steps), "the honest session's weights differ"


class Foe:
    """attacker() in a process of its own."""

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "attacker", str(cluster.ports[0]), cluster.certs],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        return self

    def attack(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def attacker(port, certs):
    """Attacks for as many seconds as each line says, up to 100 messages a second. A real one would not
    live on this machine: its own computing gets only the time that nobody else wants."""
    global cluster, pace
    os.nice(19)
    pace = 0.01
    cluster = Cluster.__new__(Cluster)
    cluster.ports, cluster.certs = [int(port)], certs
    evil, turn = Evil(), 0
    print("ready", flush=True)
    for line in sys.stdin:
        until, begin = time.monotonic() + float(line), turn
        while time.monotonic() < until:
            ATTACKS_AT_PACE[turn % len(ATTACKS_AT_PACE)](evil)
            evil.tidy()
            turn += 1
        print(turn - begin, flush=True)


def rates():
    """Median step time under attack and in peace, in turns within one run."""
    quiet, busy, attacks = [], [], 0
    with Honest() as honest, Foe() as foe:
        foe.attack(0.5)
        for _ in range(8):
            begin = time.monotonic()
            time.sleep(0.4)
            quiet += honest.durations(begin, time.monotonic())
            begin = time.monotonic()
            attacks += foe.attack(0.4)
            busy += honest.durations(begin, time.monotonic())
        steps, weights = honest.stop()
    median = lambda xs: sorted(xs)[len(xs) // 2]
    assert len(quiet) > 100 and len(busy) > 100 and attacks >= 8, (len(quiet), len(busy), attacks)
    return median(quiet) / median(busy), attacks, steps, weights


@suite.test
def honest_rate_under_attack():
    if SANITIZED:
        return "a sanitizer's pace is not the program's"
    seen = []
    for _ in range(3):  # noise of the machine is repeated, not averaged away
        ratio, attacks, steps, weights = rates()
        seen.append(round(ratio, 3))
        if ratio >= 0.9:
            break
    assert weights == undisturbed(steps)
    assert max(seen) >= 0.65, seen
    if max(seen) < 0.9:  # the attacker shares the honest session's cores here: not the daemon's doing alone
        return f"rates under attack were {seen} of the quiet ones, 0.9 is wanted; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"# rate under attack {seen} of the undisturbed one, {attacks} attacks")


if pyclient.MISSING is None:
    ATTACKS_AT_PACE = [first_frame_is_not_attach, out_of_order_unary, forward_before_load_shard, bad_chunks, wrong_attach,
                       calls_out_of_order, forward_on_a_bulk_lane, overflowing_shapes_unary, malformed_frames]


@suite.test
def the_worker_is_well_afterwards():
    w = cluster.workers[0]
    assert w.process.poll() is None
    with Caller(cluster.ports[0], cluster.certs) as c:
        until = time.monotonic() + 10 * SLOW
        while (left := c.stub.Status(pb.StatusRequest()).sessions) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, left
    for word in ("ERROR", "assert", "AddressSanitizer", "runtime error"):
        assert word not in w.text(), w.text()[-3000:]


if pyclient.MISSING:
    print("skip hostile:", pyclient.MISSING)
elif sys.argv[1:2] == ["attacker"]:
    attacker(*sys.argv[2:])
else:
    with Cluster(0) as cluster:
        for name in ("w1", "evil"):
            cluster.issue(name, "spiffe://test/" + name)
        cluster.ports = [free_port()]
        cluster.limits = (f"limits: {{sessions: 16, session_bytes: {SESSION_BYTES}, credit: {CREDIT}, message_size: 2MiB}}\n")
        cluster.extra_allow = "  - {identity: \"spiffe://test/evil\", role: master}\n"
        cluster.workers = [Worker(cluster, "w1", cluster.worker_config(0))]
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=32, side=8)
        suite.main()
