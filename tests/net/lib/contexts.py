"""A client without code of Cleave for sessions of contexts: frames, modules, and the numbers of
small networks in Python floats."""
import random
from cluster import *
import pyclient
from pyclient import *

N, D = 4, 3
GRADIENTS = 4


class the:
    """Variables of the running suite, such as its cluster of workers."""
    cluster = None


def run_suite(suite, name, workers=2, **kw):
    if pyclient.MISSING:
        print(f"skip {name}:", pyclient.MISSING)
        return
    with Cluster(workers, **kw) as the.cluster:
        suite.main()


# ---- one worker in a session of contexts -------------------------------------------------------

class Remote:
    """A session at a worker. Counts sent frames as the protocol requires."""

    def __init__(self, name, port, session=None, peers=(), lanes=0, lease_ms=0, **hello):
        self.name, self.caller = name, Caller(port, the.cluster.certs)
        self.caller.hello(**hello)
        self.session = SessionOf(self.caller, session or os.urandom(16), 1, lanes)
        self.granted = self.caller.stub.OpenSession(pb.OpenSessionRequest(
            session=self.session.id, epoch=1, name="contexts", lanes=lanes, config_digest=bytes(32),
            peer_identities=peers, reference_lease_ms=lease_ms), timeout=20 * SLOW).granted
        self.lane, self.calls = None, {}

    def load(self, module, graph, dims, peers=(), **kw):
        return self.session.load(graph, dims, module=module, route=pb.Route(peers=peers), **kw)

    def attach(self):
        self.lane, *_ = [self.session.attach(k) for k in range(self.session.n_lanes + 1)]

    def send(self, f):
        if f.kind == pb.CALL:
            self.calls[f.context] = self.calls.get(f.context, 0) + 1
        if f.kind in (pb.DROP, pb.PREPARE):
            f.step = self.calls.get(f.context, 0)
        self.lane.send(f)

    def recv(self, kind, **want):
        f = self.lane.recv()
        assert f.kind == kind, f
        for k, v in want.items():
            assert getattr(f, k) == v, (k, v, f)
        return f

    def status(self):
        reply = self.caller.stub.Status(pb.StatusRequest(session=self.session.id), timeout=20 * SLOW)
        return reply.sessions[0]

    def close(self):
        try:
            self.session.close()
        finally:
            self.caller.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def remote(index=0, **kw):
    return Remote(f"w{index + 1}", the.cluster.ports[index], **kw)


def call(context, message, module, args, training=True, micro=0):
    """A CALL. args: (value id, needs_grad) of a value at the worker, or (value id, needs_grad, raw,
    dims) of one that the frame carries."""
    f = pb.Frame(kind=pb.CALL, context=context, message=message, module=module, micro_batch=micro,
                 flags=pb.FLAG_TRAINING if training else 0)
    f.call.SetInParent()
    for a in args:
        f.call.args.add(value=a[0], needs_grad=a[1], here=len(a) > 2)
        if len(a) > 2:
            f.tensors.append(tensor_head(a[2], a[3]))
            f.payload += a[2]
    return f


def deliver(context, value, to=""):
    return pb.Frame(kind=pb.DELIVER, context=context, message=value, to=to)


def prepare(context, phase, calls, retain=False, vote=False, peers=(), skipped=0):
    """calls: (id, contributions, root, [(slot, value, peer number, order)])."""
    f = pb.Frame(kind=pb.PREPARE, context=context, phase=phase,
                 backward=pb.Backward(retain=retain, vote=vote, peers=peers, skipped=skipped))
    for c in calls:
        n = f.backward.calls.add(call=c[0], contributions=c[1], root=c[2])
        for slot, value, to, order in c[3]:
            n.targets.add(slot=slot, value=value, to=to, order=order)
    return f


def gradient(context, phase, value, raw, dims, order=0):
    return frame(pb.GRADIENT, raw, dims, context=context, phase=phase, message=value, order=order)


def numbers(f):
    head = f.tensors[0]
    assert len(f.tensors) == 1 and head.transfer == 0 and head.crc32c == crc32c(f.payload), f
    return floats(f.payload, {F32: "f", F64: "d"}[head.dtype])


def state(worker, what, module, context=0):
    worker.send(pb.Frame(kind=pb.STATE_GET, message=900, module=module, context=context,
                         state=pb.State(what=what)))
    items = {}
    while True:
        f = worker.lane.recv()
        assert f.kind in (pb.STATE_ITEM, pb.STATE_DONE) and f.reply_to == 900, f
        if f.kind == pb.STATE_DONE:
            assert f.state.count == len(items)
            return items
        items[f.state.name] = f.payload


def gradients(worker, module, context):
    return {k: floats(v) for k, v in state(worker, GRADIENTS, module, context).items()}


def end(worker, context):
    worker.send(pb.Frame(kind=pb.END_CONTEXT, context=context, message=7))
    while True:  # the answer comes after frames in flight
        f = worker.lane.recv()
        if f.kind == pb.ENDED:
            assert f.reply_to == 7 and f.context == context
            return


# ---- networks and their numbers ----------------------------------------------------------------

def linear_graph(out=D):
    return pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=out)], outputs=[1])


def tanh_graph(out=D):
    """y = tanh(x W' + b): its backward reads values that its forward saved."""
    return pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=out), node(8, [1], 1)], outputs=[2])


def join_graph():
    return pb.Graph(nodes=[node(INPUT, name="a"), node(INPUT, name="b"), node(ADD, [0, 1], 0)], outputs=[2])


def mse_graph():
    return pb.Graph(nodes=[node(INPUT, name="y"), node(INPUT, name="want"), node(19, [0, 1], 0)], outputs=[2])


def two_inputs(dims):
    return [pb.TensorSpec(dtype=F32, dims=dims), pb.TensorSpec(dtype=F32, dims=dims)]


def matmul(a, b):
    columns = list(zip(*b))
    return [[sum(p * q for p, q in zip(row, col)) for col in columns] for row in a]


def transpose(a):
    return [list(r) for r in zip(*a)]


def flat(m):
    return [v for r in m for v in r]


def rows(values, n):
    return [values[i:i + n] for i in range(0, len(values), n)]


def plus(a, b):
    return [[p + q for p, q in zip(r, s)] for r, s in zip(a, b)]


def randoms(r, n, columns):
    return [[struct.unpack("<f", struct.pack("<f", r.uniform(-1, 1)))[0] for _ in range(columns)]
            for _ in range(n)]


class Tanh:
    """The module of tanh_graph in doubles."""

    def __init__(self, worker, module):
        items = state(worker, pb.STATE_WEIGHTS, module)
        self.w, self.b = rows(floats(items["0.weight"]), D), floats(items["0.bias"])
        self.dw, self.db = [[0.0] * D for _ in range(D)], [0.0] * D

    def forward(self, x):
        import math
        y = [[math.tanh(v + b) for v, b in zip(r, self.b)] for r in matmul(x, transpose(self.w))]
        return y

    def backward(self, x, y, dy):
        dz = [[g * (1 - v * v) for g, v in zip(p, q)] for p, q in zip(dy, y)]
        self.dw = plus(self.dw, matmul(transpose(dz), x))
        self.db = [a + sum(c) for a, c in zip(self.db, zip(*dz))]
        return matmul(dz, self.w)


def close(got, want, tolerance=2e-5):
    got = list(got)
    assert len(got) == len(want), (len(got), len(want))
    error = sum((a - b) ** 2 for a, b in zip(got, want)) ** 0.5
    size = sum(b * b for b in want) ** 0.5
    assert error <= tolerance * max(size, 1e-30), (error, size, got[:4], want[:4])


def raw(m):
    return f32(flat(m))


# ---- common steps of tests -------------------------------------------------------------------

class Pair:
    """Two workers in one session. direct: whether they have a link; else this client relays."""

    def __init__(self, direct):
        sid = os.urandom(16)
        self.direct, self.relayed = direct, 0
        self.a = remote(0, session=sid, peers=["spiffe://test/w2"])
        self.b = remote(1, session=sid, peers=["spiffe://test/w1"])

    def attach(self):
        self.a.attach()
        self.b.attach()

    def recv(self, worker, kind, **want):
        """The next frame of `worker` for this client. Passes frames for the other worker on."""
        deadline = time.monotonic() + 20 * SLOW
        while True:
            for w, other in ((self.a, self.b), (self.b, self.a)):
                if w is worker and not w.lane.inbox.empty() and not w.lane.inbox.queue[0].kind == pb.CREDIT \
                        and not w.lane.inbox.queue[0].to:
                    return w.recv(kind, **want)
                while not w.lane.inbox.empty() and (w.lane.inbox.queue[0].kind == pb.CREDIT
                                                    or w.lane.inbox.queue[0].to):
                    f = w.lane.inbox.get()
                    if f.kind != pb.CREDIT:
                        assert f.to == other.name, f
                        self.relayed += 1
                        other.lane.send(f)
            assert time.monotonic() < deadline, f"no frame of kind {kind} from {worker.name}"
            time.sleep(0.001)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.a.close()
        self.b.close()


def one_module(graph=None, **kw):
    w = remote(0)
    w.load(0, graph or tanh_graph(), [N, D], **kw)
    w.attach()
    return w


def forward_and_value(w, context, value, x, **kw):
    w.send(call(context, value, 0, [(1, True, raw(x), [N, D])], **kw))
    w.send(deliver(context, value))
    return numbers(w.recv(pb.VALUE, context=context, message=value))


def backward(w, context, phase, value, dy, **kw):
    w.send(prepare(context, phase, [(value, 1, False, [(0, 1, 0, 0)])], **kw))
    w.send(gradient(context, phase, value, raw(dy), [N, D]))
    dx = numbers(w.recv(pb.GRADIENT, context=context, message=1))
    w.recv(pb.FINISHED, context=context, phase=phase)
    return dx


ADAM = dict(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_ADAM, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8)) \
    if pyclient.MISSING is None else {}


def everything(w, module=0):
    return state(w, pb.STATE_WEIGHTS, module), state(w, pb.STATE_OPTIMIZER, module)


def apply(w, context, kind=None, module=ALL, lr=0.25, scale=0.5, does=True):
    w.send(pb.Frame(kind=kind or pb.APPLY, context=context, message=77, module=module,
                    commit=None if kind == pb.REVERT else pb.Commit(scale=scale, lr=lr, apply=does)))


# ---- independent calls on a row of ones ------------------------------------------------------

BIG = float(1 << 24)  # BIG + 1 rounds to BIG, so sums show their order
ONES = f32([1.0] * D)
BACKWARD_ORDER = [[BIG] * D, [1.0] * D, [-BIG] * D]


def calls_of(w, context, ids, module=0, **kw):
    """Sends independent calls on a row of ones. The gradient of the weights is then the row that is
    sent as gradient of the output."""
    for i in ids:
        w.send(call(context, i, module, [(1000 + i, True, ONES, [1, D])], **kw))


def row_of_gradient(w, context, phase, value, row, order=0):
    w.send(gradient(context, phase, value, f32(row), [1, D], order=order))


def needed(i, contributions=1):
    return (i, contributions, False, [(0, 1000 + i, 0, 0)])


def more(f):
    f.backward.more = True
    return f


def nothing_else(w, module=0):
    """Waits until the worker has handled all frames. It must have answered none of them."""
    state(w, pb.STATE_WEIGHTS, module)


def collect(w, kind, n):
    return {f.message: f for f in (w.recv(kind) for _ in range(n))}


def failure_of(w, value):
    f = w.recv(pb.VALUE, message=value)
    assert f.HasField("failure") and not f.tensors, f
    return f.failure


def settled(w, **want):
    """Waits until the counters of the session, which another thread writes, have these values."""
    deadline = time.monotonic() + 20 * SLOW
    while True:
        s = w.status()
        if all(getattr(s, k) == v for k, v in want.items()):
            return s
        assert time.monotonic() < deadline, (want, s)
        time.sleep(0.01)


def in_floats(rows_):
    """The serial sum of rows in f32."""
    total = rows_[0]
    for row in rows_[1:]:
        total = floats(f32([a + b for a, b in zip(total, row)]))
    return total


# ---- positions -----------------------------------------------------------------------------------

def at_position(w, context, i, position, input_position=0, weight_position=0, module=0, sent=True, **kw):
    """Sends a call on ones, whose value comes here as soon as it has run. sent: if false, its
    input, value 2000 + i, comes later."""
    arg = (1000 + i, True, ONES, [1, D]) if sent else (2000 + i, True)
    f = call(context, i, module, [arg], **kw)
    f.flags |= pb.FLAG_DELIVER | pb.FLAG_TRACE
    f.call.position, f.call.input_position, f.call.weight_position = position, input_position, weight_position
    w.send(f)


def bring(w, context, i):
    w.send(frame(pb.VALUE, ONES, [1, D], context=context, message=2000 + i))


def values(w, *ids):
    for i in ids:
        f = w.recv(pb.VALUE, message=i)
        assert not f.HasField("failure"), f


def steps_at(context, position, module=0, lr=0.5, more=(), **kw):
    commit = pb.Commit(scale=1, lr=lr, more_lrs=more, apply=True, position=position)
    for k, v in kw.items():
        setattr(commit, k, v)
    return pb.Frame(kind=pb.APPLY, context=context, message=77, module=module, commit=commit)


def aborted(w, code, *parts):
    f = w.recv(pb.ABORT).failure
    assert f.code == code and all(p in f.text for p in parts), f


def traced(w, context):
    w.send(pb.Frame(kind=pb.END_CONTEXT, context=context, message=7))
    f = w.recv(pb.ENDED, context=context, reply_to=7)
    if not f.tensors:
        return []
    assert f.tensors[0].dtype == I64 and f.tensors[0].dims[1] == 8, f
    got = rows(floats(f.payload, "q"), 8)
    return [r for r in got if any(r)]


F_, B_, I_, W_, S_ = 1, 2, 3, 4, 5
