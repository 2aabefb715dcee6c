"""The master parses workers as hostile too: a worker with a good certificate that answers nonsense,
nothing, or without end. And an honest one that stands still for a while."""
import functools, itertools, os, re, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
from fake_worker import *

suite = Suite()
cluster = None
LONG = os.environ.get("CLV_TEST_LONG") == "1"
CREDIT = 4 * MIB
PACE = SLOW * (2 if SANITIZED else 1)
TIMEOUT = round(2000 * PACE)  # ms
# Whole stacks at each allocation, which only leaks need, cost a sanitized master seconds.
QUICK = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") +
         ":fast_unwind_on_malloc=1:detect_leaks=0"}
ROWS, CLASSES, WIDE, STEPS = 16, 10, 24, 3

DATA = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy],"
        " test: [test-x.npy, test-y.npy]}\n")
SESSION = (f"{DATA}stages:\n"
           f"  - {{name: a, at: master,"
           f" layers: [{{op: flatten}}, {{op: linear, out: {WIDE}}}, {{op: relu}}]}}\n"
           f"  - {{name: b, at: w1, layers: [{{op: linear, out: {CLASSES}}}],"
           " weights: {file: b.safetensors}}\n"
           "loss: {kind: cross_entropy}\n"
           f"limits: {{connect_timeout: {TIMEOUT}ms, step_timeout: {TIMEOUT}ms,"
           f" credit: {CREDIT}}}\n"
           f"train: {{epochs: 100, max_steps: {STEPS}, batch: {ROWS}, seed: 5,"
           " optimizer: {kind: sgd, lr: 0.05}}\n")


def write_weights(path):
    """Initial weights of stage b, so that whoever holds it begins with the same."""
    draw, header, raw = numpy.random.default_rng(3), {}, b""
    for name, dims in (("3.weight", [CLASSES, WIDE]), ("3.bias", [CLASSES])):
        part = draw.uniform(-0.2, 0.2, dims).astype(numpy.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": dims,
                        "data_offsets": [len(raw), len(raw) + len(part)]}
        raw += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + raw)


# ---- a master and its worker -------------------------------------------------------------------

def fake(credit=CREDIT, **twisted):
    return FakeWorker(cluster.certs, credit, **twisted)


def weights(name):
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", name), STEPS)


def trained(name):
    """What a run has come to: the weights, and the loss of each step."""
    with open(os.path.join(cluster.dir, "runs", name, "metrics.jsonl")) as f:
        return weights(name), [json.loads(line)["loss"] for line in f]


class Met:
    """What became of a master that met it: exit code, what it said, largest resident size."""
    number = itertools.count()

    def __init__(self, worker, args=(), seconds=15):
        self.name, self.peak = f"meets{next(self.number)}", 0
        self.process = subprocess.Popen(
            [MASTER, "train", cluster.session(self.name, SESSION), "--fresh",
             "--set", f"workers.w1.address=127.0.0.1:{worker.port}", *args],
            cwd=cluster.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, env={**os.environ, **QUICK})
        watchdog = threading.Timer(seconds * PACE, self.process.kill)
        watcher = threading.Thread(target=self.watch, daemon=True)
        watchdog.start()
        watcher.start()
        _, errors = self.process.communicate()
        watchdog.cancel()
        watcher.join()
        self.code = self.process.returncode
        self.said = "".join(line for line in errors.splitlines(True) if " warn " not in line)

    def watch(self):
        """The largest so far, while there is somebody to ask."""
        while self.process.poll() is None:
            try:
                with open(f"/proc/{self.process.pid}/status") as f:
                    found = re.search(r"VmHWM:\s+(\d+) kB", f.read())
                self.peak = int(found.group(1)) * 1024 if found else self.peak
            except OSError:
                pass
            time.sleep(0.01)


@functools.cache
def honest():
    """A run with the fake as it is, and the frames that it got: what others are compared with."""
    with fake() as worker:
        met = Met(worker)
    assert met.code == 0, met.said
    return met, worker.log


def is_small(met, room):
    peak = honest()[0].peak
    assert SANITIZED or met.peak <= peak + room, (met.peak, peak)


def meets(codes, *words, args=(), room=CREDIT + 24 * MIB, **twisted):
    """The master gives up with one of `codes` and says why and with whom; with 0 among them, it may
    also train as if nothing had been. It takes at most `room` more memory than otherwise."""
    with fake(**twisted) as worker:
        met = Met(worker, args)
    assert met.code in codes, (met.code, met.said)  # a crash or the watchdog's kill is negative
    is_small(met, room)
    if met.code == 0:
        assert trained(met.name) == trained(honest()[0].name)
        return
    for word in ("w1", *words):
        assert re.search(word, met.said), (word, met.said)
    assert len(met.said) < 1000, met.said


def all_hold(checks):
    """Functions by name. Most wait for a deadline: a few at a time."""
    honest()
    with concurrent.futures.ThreadPoolExecutor(2 if SANITIZED else 3) as pool:
        running = {name: pool.submit(check) for name, check in checks.items()}
    problems = [f"{name}: {f.exception()}" for name, f in running.items() if f.exception()]
    assert not problems, "\n".join(problems)


def meet_all(codes, *words, cases):
    """Twists by name."""
    all_hold({name: lambda t=twist: meets(codes, *words, twist=t) for name, twist in cases.items()})


def ignore_all(cases):
    """The master trains to the end, and to the same bits."""
    meet_all([0], cases=cases)


@suite.test
def the_fake_is_good_enough():
    """Nothing twisted: the master trains to the end with it, as with a real worker. What follows
    differs in one thing each."""
    met, log = honest()
    calls = [f.context for f in log if f.kind == pb.CALL and f.flags & pb.FLAG_TRAINING]
    steps = [f.context for f in log if f.kind == pb.END_CONTEXT and f.commit.apply]
    assert calls == steps == list(range(1, STEPS + 1)), (calls, steps)
    done = cluster.train(cluster.session("really", SESSION))
    assert done.returncode == 0, done.stderr
    fakes, reals = weights(met.name), weights("really")
    assert fakes.keys() == reals.keys()
    for name, (dtype, dims, raw) in fakes.items():
        a, b = (numpy.frombuffer(r, numpy.float32) for r in (raw, reals[name][2]))
        assert reals[name][:2] == (dtype, dims) and numpy.allclose(a, b, 1e-5, 1e-6), name


@suite.test
def the_fake_knows_micro_batches_and_credit():
    with fake() as worker:
        met = Met(worker, ["--set", f"pipeline.micro_batches={ROWS}"])
    assert met.code == 0, met.said
    assert len(worker.got(pb.CALL)) > STEPS * ROWS
    with fake(credit=16 << 10) as worker:
        met = Met(worker, ["--set", "train.max_steps=40"])
    assert met.code == 0, met.said


# ---- before a step -----------------------------------------------------------------------------

def never(request):
    time.sleep(6 * PACE)
    return b""


@suite.test
def bad_hello():
    says = lambda codes, *words, **kw: lambda: meets(
        codes, *words, Hello=lambda r: hello_reply(CREDIT, **kw))
    is_bytes = lambda codes, raw: lambda: meets(codes, Hello=lambda r: raw)
    short = hello_reply(CREDIT)
    short.incarnation = bytes(3)
    all_hold({
        "bytes": is_bytes([4], b"\xff" * 100),
        "empty": is_bytes([4], b""),
        "random": is_bytes([4], os.urandom(100_000)),
        "too long": is_bytes([1, 4], bytes(10 * MIB)),
        "incarnation": is_bytes([4], short),
        "another protocol": says([4], "protocol", protocol=9),
        "an older protocol": says([4], "protocol", protocol=1),
        "escape": says([4], software="\x1b[2J" * 20),
        "capabilities": says([4], "capabilities", capabilities=["codec.bf16"] * 65),
        "never": lambda: meets([5], Hello=never)})


@suite.test
def a_worker_is_asked_for_a_lease_that_it_knows():
    lease, asked = ("--set", "limits.reference_lease=5s"), []
    meets([4], r"\(fake\) has no other reference lease than 300 s", "limits.reference_lease", args=lease)

    def opens(request):
        asked.append(pb.OpenSessionRequest.FromString(request).reference_lease_ms)
        return pb.OpenSessionReply(incarnation=bytes(16), granted=limits_of(CREDIT))
    hello = lambda r: hello_reply(CREDIT, capabilities=["chunks", "reference_lease"])
    for args in (lease, ()):
        with fake(Hello=hello, OpenSession=opens) as worker:
            met = Met(worker, args)
        assert met.code == 0, met.said
    assert asked == [5000, 300000], asked


@suite.test
def bad_answers_to_set_up():
    def loads(codes, change, *words):
        """LoadModule's reply with another list of parameters."""
        def answer(request):
            good = loaded(Linear(pb.LoadModuleRequest.FromString(request)))
            params = change(list(good.params))
            good.ClearField("params")
            good.params.extend(params)
            return good
        return lambda: meets(codes, *words, LoadModule=answer)

    all_hold({
        "open": lambda: meets([4], OpenSession=lambda r: b"\x0a\x03abc"),
        "open never": lambda: meets([5], OpenSession=never),
        "load": lambda: meets([4], LoadModule=lambda r: b"\x0b" * 1000),
        "load never": lambda: meets([5], LoadModule=never),
        "too few": loads([1], lambda params: params[:1], "parameters"),
        "too many": loads([1], lambda params: params * 20, "parameters"),
        "far too many": loads([4], lambda params: params * 3000)})


@suite.test
def bad_attach():
    def silent(first, w):
        w.over.wait(6 * PACE)
        yield b""

    answers = lambda codes, frames, *words: lambda: meets(
        codes, *words, attached=lambda first, w: frames)
    credit = lambda n: [pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=n))]
    all_hold({
        "silent": lambda: meets([5], "attach", attached=silent),
        "nothing": answers([5], [], "attach"),
        "bytes": answers([4], [b"\xff\xff\xff"]),
        "PING": answers([4], [pb.Frame(kind=pb.PING, message=1)]),
        "too much credit": answers([4], credit(1 << 60)),
        "no credit": answers([1], credit(0), "credit of 0 bytes"),
        "too little": answers([1], credit(100), "credit of 100 bytes")})


# ---- silence -----------------------------------------------------------------------------------

def deaf(frames, w):
    for _ in frames:
        pass
    yield from ()


@suite.test
def never_answers():
    """Any one thing that the master waits for."""
    missing = lambda kind, *words, when=lambda f: True: lambda: meets(
        [5], "last heard of worker 'w1'", *words, twist=on(kind, nothing, when))
    silent = lambda lane0, *words: lambda: meets(
        [5], "last heard of worker 'w1'", *words, lane0=lane0)
    all_hold({
        **{pb.FrameKind.Name(kind): missing(kind, "step 1") for kind in (V, G, F)},
        "all": silent(starts(deaf), "step 1"),
        "set up": silent(deaf),
        "STATE_ITEM": missing(pb.STATE_ITEM, "checkpoint of step 3", "state of module 'b'"),
        "STATE_DONE": missing(pb.STATE_DONE, "checkpoint of step 3", "state of module 'b'",
                              when=lambda f: f.reply_to > STEPS)})


@suite.test
def nobody_waits_for_an_end():
    """But a worker that never tells of one does not make the master keep everything."""
    ignore_all({"ENDED": on(pb.ENDED, nothing)})
    with fake(twist=on(pb.ENDED, nothing)) as worker:
        met = Met(worker, ["--set", "train.max_steps=1500"], seconds=60)
    assert met.code in (0, 1, 5) and (met.code == 0 or "w1" in met.said), (met.code, met.said)
    is_small(met, 12 * MIB)


@suite.test
def each_answer_in_time_but_the_step_is_not():
    def slow(f):
        time.sleep(0.5 * PACE)
        return [f]

    begin = time.monotonic()
    meets([5], rf"step 1: backward .* took longer than {TIMEOUT} ms \(limits.step_timeout\)",
          twist=slow, args=["--set", "pipeline.micro_batches=16"])
    assert time.monotonic() - begin < 9 * PACE


@suite.test
def credit_that_never_comes_back():
    meets([5], "last heard of worker 'w1'", credit=16 << 10, twist=on(pb.CREDIT, nothing),
          args=["--set", "train.max_steps=40"])


# ---- answers with something wrong --------------------------------------------------------------

@suite.test
def wrong_values():
    shape = "step 1: .*module 'b' answered with a tensor of another shape"
    meet_all([1], shape, cases=shapes(
        V, ([ROWS, CLASSES + 1],), ([ROWS + 1, CLASSES],), ([1, CLASSES],), ([ROWS * CLASSES],),
        ([ROWS, 40_000],), ([ROWS, CLASSES], I64), ([],)))
    meet_all([5], "step 1", cases=changes(
        V, dict(message=4711), dict(message=1), dict(context=99), dict(to="nobody"),
        dict(to="master")))
    meets([1], "step 1: egress refused", twist=change(V, to="w1"))
    meet_all([6], "step 1", "VALUE", cases=changes(
        V, dict(context=0), dict(message=0), dict(module=300), dict(flags=64)))


def error_for(f, code=9, hop=""):
    return failing(V, code, "my head hurts", hop, context=f.context, message=f.message)


@suite.test
def values_that_are_errors():
    fails = lambda *code_hop: on(V, lambda f: [error_for(f, *code_hop)])
    both = on(V, lambda f: [f.SerializeToString() + error_for(f).SerializeToString()])
    meet_all([1], "step 1: worker 'w1' reports.*my head hurts", cases={
        hop: fails(9, hop) for hop in ("", "module 1", "module 99", "%s")})
    meet_all([6], "step 1", "VALUE", cases={
        "code 99": fails(99), "no code": fails(0), "and a tensor": both})


@suite.test
def values_that_come_again():
    """The first counts, if it can be one."""
    zeros = bytes(4 * ROWS * CLASSES)
    ignore_all({
        "twice": on(V, twice),
        "another": on(V, lambda f: [copy(f), *with_tensor(f, zeros, [ROWS, CLASSES])]),
        "of an unknown call": on(V, lambda f: [copy(f, message=4711), f]),
        "of the master's call": on(V, lambda f: [copy(f, message=f.message - 1), f]),
        "of another context": on(V, lambda f: [copy(f, context=1 << 40, message=4712), f])})
    meet_all([0, 1], cases={
        "no value first": on(V, lambda f: [*with_tensor(copy(f), bytes(12), [3]), f]),
        "an error first": on(V, lambda f: [error_for(f), f]),
        "an error later": on(V, lambda f: [f, error_for(f)])})


@suite.test
def values_of_the_masters_own_calls():
    """The loss among them: it is not the worker's to say."""
    def forges(dims):
        def then(f):
            ids = (max(1, f.message + by) for by in (-2, -1, 1, 2, 3, 4, 5))
            return [*(frame(V, bytes(4), dims, context=f.context, message=k) for k in ids), f]
        return on(V, then)

    ignore_all({"a scalar": forges([]), "one number": forges([1])})


@suite.test
def wrong_gradients():
    shape = "step 1: .*a gradient of another shape for module 'a'"
    meet_all([1], shape, cases=shapes(
        G, ([ROWS, WIDE + 1],), ([ROWS - 1, WIDE],), ([2],), ([],), ([ROWS, WIDE], I64),
        ([ROWS, 40_000],)))
    meet_all([5], "step 1", cases=changes(
        G, dict(message=4711), dict(message=1), dict(context=99), dict(phase=2), dict(phase=0),
        dict(micro_batch=1), dict(to="nobody")))
    meets([1], "step 1: egress refused", twist=change(G, to="w1"))
    meet_all([6], "step 1", "GRADIENT", cases=changes(
        G, dict(micro_batch=5000), dict(message=0), dict(context=0)))


@suite.test
def a_gradient_without_a_tensor():
    """Nothing flows: as if it were zeros."""
    both = []
    for twist in (shaped(G, [ROWS, WIDE]), on(G, lambda f: [bare(f)])):
        with fake(twist=twist) as worker:
            met = Met(worker)
        assert met.code == 0, met.said
        both.append(weights(met.name))
    assert both[0] == both[1] != weights(honest()[0].name)


@suite.test
def gradients_that_nobody_asked_for():
    """Again, of the leaves, of the worker's own value, of the loss, of what is no value; of another
    pass, too late."""
    late = lambda f: frame(G, bytes(4), [1], context=f.context, phase=1, message=4711)
    ignore_all({
        "twice": on(G, twice),
        **{f"{by:+}": on(G, lambda f, by=by: [copy(f, message=f.message + by), f])
           for by in (-2, -1, 1, 2, 3, 1000)},
        "phase 2": on(G, lambda f: [copy(f, phase=2), f]),
        "after the step": on(pb.ENDED, lambda f: [late(f), f])})


# ---- votes -------------------------------------------------------------------------------------

def sums(*values):
    raw = struct.pack(f"<{len(values)}d", *values)
    return on(F, lambda f: with_tensor(f, raw, [len(values)], F64))


def without_vote(f):
    f.ClearField("vote")
    return [f]


def nan_in_vote(f):
    f.vote.grad_sq = float("nan")
    return [f]


@suite.test
def wrong_votes():
    lacks = "vote of 'w1' lacks module 'b'"
    meet_all([1], "step 1", lacks, cases={
        **shapes(F, ([0], F64), ([1], F64), ([2],), ([2], I64)),
        "none": on(F, lambda f: [bare(f)])})
    meet_all([5], "step 1", cases=changes(F, dict(phase=2), dict(phase=0), dict(context=99)))
    meet_all([6], "step 1", "FINISHED", cases={
        "context 0": change(F, context=0),
        "sums alone": on(F, without_vote),
        "finite": on(F, nan_in_vote)})
    early = lambda f: [pb.Frame(kind=F, context=f.context, phase=1), f]
    meet_all([0, 1], lacks, cases={"early": on(V, early), "before the gradient": on(G, early)})
    ignore_all({
        "twice": on(F, twice),
        "more sums": sums(1, 1, 1, float("nan")),
        "other sums": sums(1e300, 4),
        "of an unknown context": on(F, lambda f: [copy(f, context=99), f])})


def says_no(f):
    f.vote.finite, f.vote.grad_sq = False, 0
    return [f]


@suite.test
def votes_that_are_not_finite():
    """A step that is dropped is no error; twenty of them are."""
    def dropped(twist):
        with fake(twist=twist) as worker:
            met = Met(worker)
        assert met.code == 0, met.said
        assert [f.commit.apply for f in worker.got(pb.END_CONTEXT)[:STEPS]] == [False] * STEPS

    def hopeless():
        with fake(twist=sums(float("nan"), 1)) as worker:
            met = Met(worker, ["--set", "train.max_steps=40"])
        assert met.code == 9 and "diverged" in met.said, (met.code, met.said)

    all_hold({
        "nan": lambda: dropped(sums(float("nan"), 1)),
        "inf": lambda: dropped(sums(1, float("inf"))),
        "negative": lambda: dropped(sums(-5, 1)),
        "no": lambda: dropped(on(F, says_no)),
        "hopeless": hopeless})


# ---- what the wire refuses ---------------------------------------------------------------------

def wrong_sum(f):
    f.tensors[0].crc32c ^= 4
    return [f]


@suite.test
def malformed_frames():
    meets([6], "step 1", "CRC32C", twist=on(V, wrong_sum))
    empty = pb.TensorHead(dtype=F32, dims=[0], transfer=5)
    attach = pb.Attach(session=bytes(16), incarnation=bytes(16), role=1)
    bad = {
        "bytes": [b"\xff" * 50],
        "groups": [b"\x0b" * 20_000],
        "random": [os.urandom(5000)],
        "zeros": [bytes(10 * MIB)],
        "no kind": [b""],
        "kind 99": [pb.Frame(kind=99)],
        "ATTACH": [pb.Frame(kind=pb.ATTACH, attach=attach)],
        "ATTACHED": [pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=5))],
        "over the credit": [chunk(3, 0, CREDIT + 1)],
        "half a petabyte": [chunk(3, 0, 1 << 49)],
        "past the end": [chunk(3, 500, 1000)],
        "transfer 0": [chunk(0, 0, 1000)],
        "bytes twice": [chunk(3, 0, 4000), chunk(3, 500, 4000)],
        "another size": [chunk(3, 0, 4000), chunk(3, 1000, 5000)],
        "a tensor without bytes": [pb.Frame(kind=V, context=1, message=3, tensors=[empty])]}
    meet_all([6], "step 1", cases={
        name: on(V, lambda f, frames=frames: frames) for name, frames in bad.items()})


# ---- what nobody asked for ---------------------------------------------------------------------

def extra(*frames):
    """Before each value, and for its context unless they say otherwise."""
    return on(V, lambda f: [*(copy(e, context=e.context or f.context) for e in frames), f])


@suite.test
def frames_that_belong_elsewhere():
    """What only a master sends, and answers to questions that were not asked."""
    state = pb.State(what=1, name="1.bias", count=1)
    bias = dict(raw=bytes(4 * WIDE), dims=[WIDE], state=state)
    commit = pb.Commit(scale=1, lr=1, apply=True)
    ignore_all({pb.FrameKind.Name(f.kind): extra(f) for f in (
        pb.Frame(kind=pb.CALL, message=9, call=pb.Call(args=[pb.Arg(value=3)])),
        pb.Frame(kind=pb.DELIVER, message=3),
        pb.Frame(kind=pb.DROP, upstream=[3]),
        pb.Frame(kind=pb.PREPARE, phase=1, backward=pb.Backward(
            calls=[pb.NeededCall(call=3, root=1)])),
        pb.Frame(kind=pb.APPLY, message=9, module=255, commit=commit),
        pb.Frame(kind=pb.REVERT, message=9),
        pb.Frame(kind=pb.END_CONTEXT, message=9),
        pb.Frame(kind=pb.STATE_GET, message=9, state=pb.State(what=1)),
        frame(pb.STATE_PUT, message=9, **bias),
        frame(pb.STATE_ITEM, reply_to=5, module=1, **bias),
        pb.Frame(kind=pb.STATE_DONE, reply_to=5, module=1, state=pb.State(what=1, count=4096)),
        pb.Frame(kind=pb.PONG, reply_to=5))})
    ignore_all({f"APPLIED {k}": extra(pb.Frame(kind=pb.APPLIED, reply_to=k))
                for k in (1, 5, 1 << 50)})


@suite.test
def references_that_it_was_not_given():
    """What a worker may not say goes unheard; what it may is answered as for what does not exist."""
    about = dict(ref=3, fork=4, key=5)
    begun = [pb.Frame(kind=kind, context=1, message=9, reference=pb.Reference(number=1, **about))
             for kind in (pb.REF_KEEP, pb.REF_USE, pb.REF_FORK)]
    asked = [pb.Frame(kind=kind, reference=pb.Reference(number=2 + i, **about)) for i, kind in
             enumerate((pb.REF_FETCH, pb.REF_DELETE, pb.REF_ACCEPT, pb.REF_RENEW))]
    loose = [pb.Frame(kind=pb.REF_ACK, reference=pb.Reference(number=7)),
             pb.Frame(kind=pb.REF_VALUE, reference=pb.Reference(**about), failure=pb.Failure(code=5))]
    once = []

    def first(f):
        once.append(f)
        return [*begun, *asked, *loose, f] if len(once) == 1 else [f]

    with fake(twist=on(V, first)) as worker:
        met = Met(worker)
    assert met.code == 0, met.said
    answers = {f.reference.number: f.failure.code for f in worker.got(pb.REF_ACK)}
    assert answers == {2: 5, 3: 0, 4: 0, 5: 5} and not worker.got(pb.REF_VALUE), answers


@suite.test
def ends_that_are_early_or_come_again():
    ended = lambda context: pb.Frame(kind=pb.ENDED, context=context, reply_to=1)
    early = lambda f: [ended(f.context), f]
    ignore_all({
        **{f"before {pb.FrameKind.Name(kind)}": on(kind, early) for kind in (V, G, F)},
        "of others": on(V, lambda f: [*map(ended, range(f.context + 1, 20)), f]),
        "twice": on(pb.ENDED, twice)})


@suite.test
def a_context_given_up():
    """ABORT and ERROR: the worker's text arrives, whatever the code and the place."""
    def gives_up(code, text="no more room", hop="", kind=pb.ABORT, at=G):
        return on(at, lambda f: [failing(kind, code, text, hop, context=f.context), f])

    meet_all([1], "step 1: worker 'w1' reports for b: no more room", cases={
        f"code {code}": gives_up(code, hop="module 1") for code in range(1, 17)})
    hops = "", "link", "connect", "load", "w1", "module 77", "module -1", "%s%n", "x" * 128
    meet_all([1], "step 1: worker 'w1' reports.*: no more room", cases={
        hop: gives_up(8, hop=hop) for hop in hops})
    meet_all([1], "step 1: worker 'w1' reports", cases={
        "ERROR": gives_up(8, kind=pb.ERROR),
        "at the value": gives_up(8, at=V),
        "empty": gives_up(8, ""),
        "long": gives_up(8, "x" * 256),
        "percent": gives_up(8, "%s%n%d%500000x")})
    meet_all([6], "step 1", "failure|ABORT", cases={
        "code 0": gives_up(0),
        "code 17": gives_up(17),
        "longer": gives_up(8, "x" * 257),
        "escape": gives_up(8, "\x1b[2J")})
    ignore_all({
        "another context": extra(failing(pb.ABORT, 8, "?", context=99)),
        "another's ERROR": extra(failing(pb.ERROR, 8, "?", context=99, reply_to=4711))})


@suite.test
def everything_given_up():
    """ABORT without a context, as of a worker whose link to another one has ended."""
    gone = failing(pb.ABORT, 14, "the link to w2 ended", "w1")
    meet_all([1], "step 1", "the link to w2 ended", cases={
        pb.FrameKind.Name(kind): on(kind, lambda f: [gone]) for kind in (V, G, F)})


@suite.test
def a_step_that_is_not_taken():
    """Nobody waits for the worker's part in it, but nobody goes on without it either."""
    cannot = lambda f: [failing(pb.ABORT, 13, "cannot step", "module 1", context=f.context), f]
    meet_all([1], "worker 'w1' reports for b: cannot step", cases={
        f"step {k}": on(pb.ENDED, cannot, lambda f, k=k: f.context == k)
        for k in range(1, STEPS + 1)})


# ---- state and evaluation ----------------------------------------------------------------------

def items(dims=None, dtype=F32, what=1, **state):
    """The items of one sort with another shape, or with other fields."""
    def then(f):
        for k, v in state.items():
            setattr(f.state, k, v)
        return [f] if dims is None else shaped(pb.STATE_ITEM, dims, dtype)(f)
    return on(pb.STATE_ITEM, then, lambda f: f.state.what == what)


def says_more(f):
    f.state.count = 4096
    return [f]


@suite.test
def state_that_is_not_the_plans():
    """At the checkpoint: other names, shapes, numbers of items."""
    meet_all([1], "checkpoint of step 3: .*state.* module 'b'", cases={
        "path": items(name="../../etc/passwd"),
        "another stage's": items(name="1.weight"),
        "no such": items(name="step"),
        "short": items(dims=[3]),
        "long": items(dims=[1 << 18]),
        "dtype": items(dims=[CLASSES], dtype=I64, name="3.bias"),
        "index": items(index=0),
        "count": items(index=1, count=2),
        "far": items(index=4000, count=4096),
        "step's shape": items(what=2, dims=[1], dtype=I64),
        "step's dtype": items(what=2, dims=[]),
        "a moment": items(what=2, name="3.bias.exp_avg")})
    meet_all([6], "checkpoint of step 3: .*state", cases={
        "escape": items(name="a\nb"),
        "empty": items(name=""),
        "outside": items(index=5),
        "too many": items(count=5000)})
    early = lambda f: pb.Frame(kind=pb.STATE_DONE, reply_to=f.reply_to,
                               state=pb.State(what=1, count=2))
    ignore_all({
        "items twice": on(pb.STATE_ITEM, twice),
        "done twice": on(pb.STATE_DONE, twice),
        "done says more": on(pb.STATE_DONE, says_more),
        "done first": on(pb.STATE_ITEM, lambda f: [early(f), f])})


@suite.test
def state_that_is_refused():
    """The weights that are pushed, and those that are asked for."""
    refuses = lambda f: [failing(pb.ERROR, 8, "no room", "module 1", reply_to=f.reply_to)]
    said = "worker 'w1' reports for b: no room"
    meets([1, 4], said, twist=on(pb.STATE_DONE, refuses))
    meets([1], "checkpoint of step 3: " + said,
          twist=on(pb.STATE_DONE, refuses, lambda f: f.reply_to > STEPS))


@suite.test
def an_evaluation_that_fails():
    evaluates = lambda f: f.context > STEPS
    after = "evaluation after step 3: "
    meet_all([1], after + ".*module 'b' answered with a tensor of another shape", cases={
        str(dims): shaped(V, dims, when=evaluates)
        for dims in ([ROWS, CLASSES * 3000], [ROWS, 1], [1], [ROWS + 1, CLASSES])})
    meets([1], after + "worker 'w1' reports.*: my head hurts",
          twist=on(V, lambda f: [error_for(f)], evaluates))
    meets([5], after + "the value of module 'b' did not come from 'w1'",
          twist=on(V, nothing, evaluates))


# ---- without end -------------------------------------------------------------------------------

RAW = bytes(60 << 10)


def flood(make, send=None):
    """A control lane on which `make` comes without end; with `send`, that is done with it."""
    def then(frames, w):
        until = time.monotonic() + 10 * PACE
        while time.monotonic() < until and not w.over.is_set():
            if send:
                send(w, make())
            else:
                yield make()
    return starts(then)


def endless(codes, make):
    # What the transport has read before anybody looks at it comes on top, the more the busier the
    # machine is (189 MiB were seen); without a bound it would be gigabytes.
    return lambda: meets(codes, "step 1", lane0=flood(make), room=CREDIT + 256 * MIB)


def repeated(codes, f):
    raw = f.SerializeToString()
    return endless(codes, lambda: raw)


def new_chunk(count):
    return lambda: chunk(next(count), 0, 2 * len(RAW), len(RAW))


@suite.test
def endless_streams():
    """Whatever comes without end, the step's own time ends it, in bounded memory."""
    count = itertools.count(1)
    big = lambda kind, **kw: frame(kind, RAW, [len(RAW) // 4], context=1, **kw)
    item = pb.State(what=1, name="x", count=4)
    gradient = lambda: pb.Frame(kind=G, context=1, phase=next(count) % 60_000 + 2, message=3)
    value = lambda: failing(V, 3, "x" * 200, context=next(count), message=next(count))
    all_hold({
        "PING": repeated([5, 6], pb.Frame(kind=pb.PING, message=1)),
        "CREDIT": repeated([5, 6], pb.Frame(kind=pb.CREDIT, credit=pb.Credit(bytes=1 << 40))),
        "ENDED": repeated([5], pb.Frame(kind=pb.ENDED, context=1)),
        "FINISHED": repeated([1, 5], pb.Frame(kind=F, context=1, phase=1)),
        "ERROR": repeated([5], failing(pb.ERROR, 8, "x" * 250, context=99)),
        "unknown values": repeated([5], big(V, message=4711)),
        "values to itself": repeated([1, 5], big(V, message=5, to="w1")),
        "gradients": repeated([1, 5, 6], big(G, phase=1, message=3)),
        "items": repeated([5], big(pb.STATE_ITEM, reply_to=5, module=1, state=item)),
        "phases": endless([1, 5, 6], gradient),
        "contexts": endless([5], value),
        "chunks": endless([6], new_chunk(count))})


@suite.test
def endless_chunks():
    """On the lane where they belong."""
    def put(w, f):
        w.bulk.put(f)
        time.sleep(0.001)

    meets([6], "step 1", "credit", lane0=flood(new_chunk(itertools.count(1)), put))


# ---- standing still ----------------------------------------------------------------------------

BIG = (DATA + "stages:\n"
       "  - {name: a, at: master,"
       " layers: [{op: flatten}, {op: linear, out: 2048}, {op: relu}]}\n"
       "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n"
       "loss: {kind: cross_entropy}\npipeline: {micro_batches: 8, schedule: gpipe}\n"
       "train: {epochs: 1000, max_steps: %d, batch: 256, seed: 5,"
       " optimizer: {kind: sgd, lr: 0.01}}\n"
       "log: {every: 1, json: true}\ncheckpoint: {every_steps: 10}\n")


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


@suite.test
def worker_that_stands_still():
    """A step is 2 MiB of activations, the credit 1 MiB. The worker is stopped while the master
    sends; for longer than the keepalive, the master gives up, and --resume gives the same bits."""
    seconds, steps = (30 if LONG else 6), 60
    w = cluster.workers[0]
    alone = cluster.train(cluster.session("moving", BIG % steps))
    assert alone.returncode == 0, alone.stderr
    session = cluster.session("still", BIG % steps)
    process = subprocess.Popen([MASTER, "train", session], cwd=cluster.dir, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")),
                              daemon=True)
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
    runs = os.path.join(cluster.dir, "runs")
    a, b = (checkpoint_tensors(os.path.join(runs, name), steps) for name in ("moving", "still"))
    assert a == b


if pyclient.MISSING:
    print("skip hostile worker:", pyclient.MISSING)
else:
    with Cluster(1, limits="limits: {credit: 1MiB}\n") as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=1024, n_test=ROWS, side=8)
        write_weights(os.path.join(cluster.dir, "b.safetensors"))
        suite.main()
