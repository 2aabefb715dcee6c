"""The master parses workers as hostile too: a worker with a good certificate that answers nonsense,
nothing, or without end. And an honest one that stands still for a while."""
import concurrent.futures, os, re, threading
from cluster import *
import pyclient
from pyclient import *

suite = Suite()
cluster = None
LONG = os.environ.get("CLV_TEST_LONG") == "1"
MIB = 1 << 20
CREDIT = 4 * MIB
ROWS, CLASSES, WIDE = 16, 10, 24

SESSION = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
           f"stages:\n  - {{name: a, at: master, layers: [{{op: flatten}}, {{op: linear, out: {WIDE}}}, {{op: relu}}]}}\n"
           f"  - {{name: b, at: w1, layers: [{{op: linear, out: {CLASSES}}}]}}\n"
           "loss: {kind: cross_entropy}\n"
           f"limits: {{connect_timeout: 2s, step_timeout: 2s, credit: {CREDIT}}}\n"
           f"train: {{epochs: 100, max_steps: 3, batch: {ROWS}, seed: 5, optimizer: {{kind: sgd, lr: 0.05}}}}\n")


class FakeWorker:
    """Speaks the protocol in zeros. Whatever a test passes in replaces one part of it:
    unary methods by name (bytes -> bytes), `lane0` (the frames of the control lane), or `twist`
    (each frame that would be sent -> the list of what is sent instead)."""

    def __init__(self, twist=None, lane0=None, attached=None, **methods):
        self.twist, self.lane0, self.attached, self.methods = twist or (lambda f: [f]), lane0, attached, methods
        self.log, self.message, self.over = [], 0, threading.Event()
        certs = [read(os.path.join(cluster.certs, n)) for n in ("w1.key", "w1.pem", "ca.pem")]
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(12), options=[("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers([self])
        self.port = self.server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(
            [certs[:2]], certs[2], require_client_auth=True))
        self.server.start()

    def service(self, details):
        name = details.method.rsplit("/", 1)[-1]
        if name == "Session":
            return grpc.stream_stream_rpc_method_handler(self.session, pb.Frame.FromString, self.bytes_of)
        answer = self.methods.get(name, getattr(self, name, None))
        return answer and grpc.unary_unary_rpc_method_handler(lambda r, c: answer(r))

    @staticmethod
    def bytes_of(frame):
        return frame if isinstance(frame, bytes) else frame.SerializeToString()

    limits = dict(sessions=8, tensors=4096, session_bytes=1 << 30, message_bytes=64 << 20, chunk_bytes=1 << 20,
                  credit_bytes=CREDIT, concurrent_calls=8)

    def about(self):
        return pb.HelloReply(about=pb.About(protocol=1, limits=pb.Limits(**self.limits), software="fake", isa="x"),
                             incarnation=bytes(16), worker="w1", cores=1, threads=1, devices=["cpu"])

    def Hello(self, request):
        return self.about().SerializeToString()

    def OpenSession(self, request):
        return pb.OpenSessionReply(incarnation=bytes(16), granted=pb.Limits(**self.limits)).SerializeToString()

    def CloseSession(self, request):
        return pb.CloseSessionReply().SerializeToString()

    def loaded(self):
        params = [pb.ParamSpec(name=n, spec=pb.TensorSpec(dtype=F32, dims=d), digest=bytes(32))
                  for n, d in (("3.weight", [CLASSES, WIDE]), ("3.bias", [CLASSES]))]
        return pb.LoadShardReply(params=params, memory_bytes=1, outputs=[pb.TensorSpec(dtype=F32, dims=[ROWS, CLASSES])])

    def LoadShard(self, request):
        return self.loaded().SerializeToString()

    def session(self, frames, context):
        first = next(frames)
        if self.attached:
            yield from self.attached(first, self)
        else:
            yield pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=CREDIT))
        if first.attach.lane:
            for _ in frames:
                pass
        elif self.lane0:
            yield from self.lane0(frames, self)
        else:
            for f in frames:
                self.log.append(f)
                for reply in self.play(f):
                    yield from self.twist(reply)

    def zeros(self, kind, dims, cause, dtype=F32, **fields):
        self.message += 1
        size = {F32: 4, F64: 8, I64: 8}[dtype]
        for d in dims:
            size *= d
        return frame(kind, bytes(size), dims, dtype, message=(7 << 48) + self.message, context=cause.context, step=cause.step,
                     micro_batch=cause.micro_batch, n_micro_batches=cause.n_micro_batches, flags=cause.flags & 1, **fields)

    def play(self, f):
        if f.kind == pb.FORWARD:
            yield self.zeros(pb.FORWARD, [f.tensors[0].dims[0], CLASSES], f, stage=2, upstream=[f.message])
            self.forward_message = f.message
        elif f.kind == pb.BACKWARD:
            yield self.zeros(pb.BACKWARD, [f.tensors[0].dims[0], WIDE], f, stage=0, reply_to=self.forward_message)
            vote = self.zeros(pb.VOTE, [2], f, F64, stage=1)
            vote.vote.finite = True
            yield vote
        elif f.kind == pb.COMMIT:
            yield pb.Frame(kind=pb.COMMITTED, reply_to=f.message)
        elif f.kind == pb.PING:
            yield pb.Frame(kind=pb.PONG, reply_to=f.message)
        elif f.kind == pb.STATE_GET:
            items = [("3.weight", [CLASSES, WIDE], F32), ("3.bias", [CLASSES], F32)] if f.state.what == 1 else [("step", [], I64)]
            for i, (name, dims, dtype) in enumerate(items):
                item = self.zeros(pb.STATE_ITEM, dims, f, dtype, stage=1, reply_to=f.message)
                item.state.CopyFrom(pb.State(what=f.state.what, name=name, index=i, count=len(items)))
                item.n_micro_batches = 0
                yield item
            yield pb.Frame(kind=pb.STATE_DONE, reply_to=f.message, stage=1, state=pb.State(what=f.state.what, count=len(items)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.server.stop(0)


def train(fake, seconds=12, args=()):
    """(exit code, what it said, largest resident size) of a master that meets it."""
    session = cluster.session("meets", SESSION)
    process = subprocess.Popen([MASTER, "train", session, "--fresh", "--set", f"workers.w1.address=127.0.0.1:{fake.port}", *args],
                               cwd=cluster.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    watchdog = threading.Timer(seconds * SLOW, process.kill)
    watchdog.start()
    peak = [0]

    def watch():
        """The largest so far, while there is somebody to ask."""
        while process.poll() is None:
            try:
                with open(f"/proc/{process.pid}/status") as f:
                    found = re.search(r"VmHWM:\s+(\d+) kB", f.read())
                peak[0] = int(found.group(1)) * 1024 if found else peak[0]
            except OSError:
                pass
            time.sleep(0.01)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    _, errors = process.communicate()
    watchdog.cancel()
    watcher.join()
    return process.returncode, errors, peak[0]


def meets(codes, *words, args=(), **fake):
    with FakeWorker(**fake) as w:
        code, errors, peak = train(w, args=args)
    assert code in codes, (code, errors)  # a crash or the watchdog's kill is negative
    assert "w1" in errors, errors
    for word in words:
        assert re.search(word, errors), (word, errors)
    assert len(errors) < 2000, errors
    assert SANITIZED or peak <= normal_peak() + CREDIT + 24 * MIB, (peak, normal_peak())
    return errors


_peak = []


def normal_peak():
    if not _peak:
        with FakeWorker() as w:
            code, errors, peak = train(w)
        assert code == 0, errors
        _peak.append(peak)
    return _peak[0]


@suite.test
def the_fake_is_good_enough():
    """Nothing twisted: the master trains to the end with it. What follows differs in one thing each."""
    with FakeWorker() as w:
        code, errors, _ = train(w)
        assert code == 0, errors
        assert [f.step for f in w.log if f.kind == pb.FORWARD and f.flags & 1] == [1, 2, 3]


def never(request):
    time.sleep(6 * SLOW)
    return b""


@suite.test
def bad_hello():
    proto = lambda **kw: lambda r: pb.HelloReply(**kw).SerializeToString()
    meets([4], Hello=lambda r: b"\xff" * 100)
    meets([4], Hello=lambda r: b"")
    meets([4], Hello=lambda r: os.urandom(100_000))
    meets([4], "protocol", Hello=proto(about=pb.About(protocol=9), incarnation=bytes(16), worker="w1"))
    meets([4], Hello=proto(about=pb.About(protocol=1), incarnation=bytes(3), worker="w1"))
    meets([4], Hello=proto(about=pb.About(protocol=1, software="\x1b[2J" * 20), incarnation=bytes(16), worker="w1"))
    meets([1, 4], Hello=lambda r: bytes(10 * MIB))
    meets([5], Hello=never)


@suite.test
def bad_answers_to_set_up():
    meets([4], OpenSession=lambda r: b"\x0a\x03abc")
    meets([5], OpenSession=never)
    meets([4], LoadShard=lambda r: b"\x0b" * 1000)
    meets([5], LoadShard=never)
    fake = FakeWorker.loaded(None)
    less = pb.LoadShardReply(params=fake.params[:1], outputs=fake.outputs)
    meets([1, 4], "parameters", LoadShard=lambda r: less.SerializeToString())
    many = pb.LoadShardReply(params=[fake.params[0]] * 2000, outputs=fake.outputs)
    meets([1, 4], LoadShard=lambda r: many.SerializeToString())


@suite.test
def bad_attach():
    def silent(first, w):
        w.over.wait(6 * SLOW)
        yield b""

    meets([5], attached=silent)
    meets([4, 3, 1, 6], attached=lambda first, w: [b"\xff\xff\xff"])
    meets([4, 3, 1, 6], attached=lambda first, w: [pb.Frame(kind=pb.PING, message=1)])
    meets([5], attached=lambda first, w: [])
    meets([4, 3, 1, 6], attached=lambda first, w: [pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=1 << 60))])


@suite.test
def never_answers_a_step():
    def deaf(frames, w):
        for _ in frames:
            pass
        yield from ()

    errors = meets([5], "last heard of worker 'w1'", "step 1", lane0=deaf)
    assert "limits.step_timeout" in errors

    def slow(f):
        time.sleep(0.5)
        return [f]

    begin = time.monotonic()  # each answer in time, the step not
    meets([5], "step 1: no loss or vote within 2000 ms", twist=slow, args=["--set", "pipeline.micro_batches=16"])
    assert time.monotonic() - begin < 5 * SLOW


def change(kind, **fields):
    """A twist: one kind of frame with other fields."""
    def twist(f):
        if f.kind == kind:
            for k, v in fields.items():
                setattr(f, k, v)
        return [f]
    return twist


def shaped(kind, dims, dtype=F32, when=lambda f: True):
    def twist(f):
        if f.kind != kind or not when(f):
            return [f]
        size = {F32: 4, F64: 8, I64: 8}[dtype]
        for d in dims:
            size *= d
        del f.tensors[:]
        raw = bytes(size)
        if size <= 64 << 10:
            f.tensors.append(tensor_head(raw, dims, dtype))
            f.payload = raw
            return [f]
        f.payload = b""
        f.tensors.append(pb.TensorHead(dtype=dtype, dims=dims, bytes=size, crc32c=crc32c(raw), transfer=9))
        return [*chunks(raw, 9), f]
    return twist


@suite.test
def wrong_numbers():
    """Shapes, ids, steps and stages that belong to nothing."""
    F, B, V = pb.FORWARD, pb.BACKWARD, pb.VOTE
    for twist in (shaped(F, [ROWS, CLASSES + 1]), shaped(F, [ROWS + 1, CLASSES]), shaped(F, [1, CLASSES]), shaped(F, [ROWS * CLASSES]),
                  shaped(F, [ROWS, 40_000]), shaped(F, [ROWS, CLASSES], I64), shaped(F, []),
                  shaped(B, [ROWS, WIDE + 1]), shaped(B, [ROWS - 1, WIDE]), shaped(B, [2]),
                  shaped(V, [1], F64), shaped(V, [3], F64), shaped(V, [2]),
                  change(F, step=2), change(F, step=0), change(F, micro_batch=1, n_micro_batches=2), change(F, stage=0),
                  change(F, stage=200), change(F, context=99),
                  change(B, reply_to=12345), change(B, step=9), change(B, stage=2), change(B, stage=1),
                  change(V, step=7), change(V, stage=0), change(V, stage=99)):
        meets([1, 5, 6], "step 1", twist=twist)


@suite.test
def malformed_frames():
    F = pb.FORWARD

    def wrong_sum(f):
        if f.kind == F:
            f.tensors[0].crc32c ^= 4
        return [f]

    meets([6, 7], "CRC32C", twist=wrong_sum)
    for bad in (b"\xff" * 50, b"", b"\x0b" * 20_000, os.urandom(5000), bytes(10 * MIB),
                pb.Frame(kind=pb.ATTACH, attach=pb.Attach(session=bytes(16), incarnation=bytes(16), role=1)),
                pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=5)),
                chunk_of(CREDIT + 1), chunk_of(1 << 49)):
        meets([1, 6], twist=lambda f: [bad] if f.kind == F else [f])


def chunk_of(total):
    return pb.Frame(kind=pb.CHUNK, payload=bytes(1000), chunk=pb.Chunk(transfer=3, offset=0, total=total)) if pyclient.MISSING is None else None


@suite.test
def frames_nobody_asked_for():
    F = pb.FORWARD
    extra = lambda *more: lambda f: [*more, f] if f.kind == F else [f]
    item = frame(pb.STATE_ITEM, bytes(4), [1], message=5, stage=1, state=pb.State(what=1, name="x", index=0, count=1))
    for odd in (item, pb.Frame(kind=pb.STATE_DONE, stage=1, state=pb.State(what=1)), pb.Frame(kind=pb.COMMITTED, reply_to=3),
                pb.Frame(kind=pb.ENDED, context=1), pb.Frame(kind=pb.STATE_GET, stage=0, state=pb.State(what=1)),
                pb.Frame(kind=pb.COMMIT, commit=pb.Commit(step=1, scale=1, lr=1, apply=True)),
                frame(pb.STATE_PUT, bytes(4 * WIDE), [WIDE], stage=0, state=pb.State(what=1, name="1.bias", index=0, count=1))):
        meets([1, 3, 5, 6], twist=extra(odd))
    meets([1, 5, 6], twist=lambda f: [f, f])  # everything twice

    def votes_first(f):
        vote = frame(pb.VOTE, bytes(16), [2], F64, message=77, context=f.context, step=f.step, stage=1, vote=pb.Vote(finite=True))
        return [vote, vote, f] if f.kind == pb.BACKWARD else [f]

    meets([1, 6], "vote of stage 1", twist=votes_first)
    abort = pb.Frame(kind=pb.ABORT, failure=pb.Failure(code=8, text="no more room", hop="stage 1"))
    meets([1, 6], "no more room", "stage 1", twist=extra(abort))
    nan = struct.pack("<2d", float("nan"), 1)

    def not_finite(f):
        if f.kind == pb.VOTE:
            f.payload, f.tensors[0].crc32c = nan, crc32c(nan)
        return [f]

    with FakeWorker(twist=not_finite) as w:  # a step that is dropped is no error
        code, errors, _ = train(w)
        assert code == 0, errors


@suite.test
def state_that_is_not_the_plans():
    """At the checkpoint: other names, shapes, numbers of items."""
    def items(dims=None, **state):
        def twist(f):
            if f.kind == pb.STATE_ITEM and f.state.what == 1:
                for k, v in state.items():
                    setattr(f.state, k, v)
                if dims:
                    return shaped(pb.STATE_ITEM, dims)(f)
            return [f]
        return twist

    for twist in (items(name="../../etc/passwd"), items(name="0.weight"), items(dims=[3]), items(dims=[1 << 18]),
                  items(index=1, count=2), items(index=4000, count=4096)):
        meets([1, 3, 5, 6, 7, 8], twist=twist)


@suite.test
def evaluation_output_of_the_wrong_shape():
    for dims in ([ROWS, CLASSES * 3000], [ROWS, 1], [1], [ROWS + 1, CLASSES]):
        meets([1, 6], "evaluation output", twist=shaped(pb.FORWARD, dims, when=lambda f: not f.flags & 1))


@suite.test
def endless_streams():
    """Whatever comes without end, the step's own time ends it, in bounded memory."""
    def endless(make):
        def lane0(frames, w):
            next(frames)
            until = time.monotonic() + 10 * SLOW
            while time.monotonic() < until and not w.over.is_set():
                yield make(w)
        return lane0

    ping = pb.Frame(kind=pb.PING, message=1).SerializeToString()
    meets([1, 5, 6], "w1", lane0=endless(lambda w: ping))
    credit = pb.Frame(kind=pb.CREDIT, credit=pb.Credit(bytes=1 << 40)).SerializeToString()
    meets([5], "w1", lane0=endless(lambda w: credit))
    ended = pb.Frame(kind=pb.ENDED, context=4).SerializeToString()
    meets([1, 5, 6], lane0=endless(lambda w: ended))
    raw = bytes(60 << 10)
    forward = training(pb.FORWARD, 5, 1, 0, 1, raw, [len(raw) // 4], stage=2).SerializeToString()
    meets([1, 5, 6], lane0=endless(lambda w: forward))
    counter = iter(range(1, 1 << 60))
    meets([1, 5, 6], lane0=endless(lambda w: pb.Frame(
        kind=pb.CHUNK, payload=raw, chunk=pb.Chunk(transfer=next(counter), offset=0, total=2 * len(raw)))))


# ---- standing still ----------------------------------------------------------------------------

BIG = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
       "stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 2048}, {op: relu}]}\n"
       "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n"
       "loss: {kind: cross_entropy}\npipeline: {micro_batches: 8, schedule: gpipe}\n"
       "train: {epochs: 1000, max_steps: %d, batch: 256, seed: 5, optimizer: {kind: sgd, lr: 0.01}}\n"
       "log: {every: 1, json: true}\ncheckpoint: {every_steps: 10}\n")


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


@suite.test
def worker_that_stands_still():
    """A step is 2 MiB of activations, the credit 1 MiB. The worker is stopped while the master sends;
    for longer than the keepalive, the master gives up, and --resume gives the same bits."""
    seconds, steps = (30 if LONG else 6), 60
    w = cluster.workers[0]
    alone = cluster.train(cluster.session("moving", BIG % steps))
    assert alone.returncode == 0, alone.stderr
    session = cluster.session("still", BIG % steps)
    process = subprocess.Popen([MASTER, "train", session], cwd=cluster.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, stdin=subprocess.DEVNULL)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
    reader.start()
    until = time.monotonic() + 30 * SLOW
    while sum('"step":' in l for l in lines) < 15 and time.monotonic() < until:
        time.sleep(0.005)
    w.kill(signal.SIGSTOP)
    try:
        before = peak = rss(process.pid)
        until = time.monotonic() + seconds
        while time.monotonic() < until and process.poll() is None:
            peak = max(peak, rss(process.pid))
            time.sleep(0.02)
        count = sum('"step":' in l for l in lines)
    finally:
        w.kill(signal.SIGCONT)
    errors = process.stderr.read()
    process.wait(60 * SLOW)
    reader.join()
    assert count < steps, "the run was over before the worker stopped"
    assert SANITIZED or peak - before <= MIB + 3 * MIB, (before, peak)
    if process.returncode != 0:
        assert LONG and process.returncode == 6 and "w1" in errors, (process.returncode, errors)
        again = cluster.train(session, "--resume")
        assert again.returncode == 0, again.stderr
    a, b = (checkpoint_tensors(os.path.join(cluster.dir, "runs", n), steps) for n in ("moving", "still"))
    assert a == b


if pyclient.MISSING:
    print("skip hostile worker:", pyclient.MISSING)
else:
    with Cluster(1, limits="limits: {credit: 1MiB}\n") as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=1024, n_test=ROWS, side=8)
        suite.main()
