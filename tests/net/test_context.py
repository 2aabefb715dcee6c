"""A foreign client runs free programs over modules on one and two workers: calls in any shape of
graph, backward passes over the tape that it keeps itself, steps of the optimisers, errors and
quotas. The numbers are compared with a network in Python floats, computed here."""
import random
from cluster import *
import pyclient
from pyclient import *

suite = Suite()
cluster = None
MODULES, ALL = 256, 255
N, D = 4, 3
GRADIENTS = 4


# ---- one worker in a session of contexts -------------------------------------------------------

class Remote:
    """A worker's session: what is sent is counted as the protocol asks."""

    def __init__(self, name, port, session=None, peers=(), **hello):
        self.name, self.caller = name, Caller(port, cluster.certs)
        self.caller.hello(**hello)
        self.session = SessionOf(self.caller, session or os.urandom(16), 1, 0)
        self.granted = self.caller.stub.OpenSession(pb.OpenSessionRequest(
            session=self.session.id, epoch=1, name="contexts", seed=1, lanes=0, config_digest=bytes(32),
            peer_identities=peers), timeout=20 * SLOW).granted
        self.lane, self.calls = None, {}

    def load(self, module, graph, dims, peers=(), optimizer=None, **kw):
        reply = self.session.load(graph, dims, stage=module, n_stages=MODULES, micro=1, optimizer=optimizer,
                                  route=pb.Route(input_needs_grad=True, peers=peers), **kw)
        return reply

    def attach(self):
        self.lane = self.session.attach()

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
    return Remote(f"w{index + 1}", cluster.ports[index], **kw)


def call(context, message, module, args, training=True, micro=0, commit=None):
    """args: (value id, needs_grad) for what is there, (value id, needs_grad, raw, dims) for what comes
    along."""
    f = pb.Frame(kind=pb.CALL, context=context, message=message, stage=module, micro_batch=micro,
                 flags=pb.FLAG_TRAINING if training else 0)
    f.call.SetInParent()
    for a in args:
        f.call.args.add(value=a[0], needs_grad=a[1], here=len(a) > 2)
        if len(a) > 2:
            f.tensors.append(tensor_head(a[2], a[3]))
            f.payload += a[2]
    if commit:
        f.commit.CopyFrom(commit)
    return f


def deliver(context, value, to=""):
    return pb.Frame(kind=pb.DELIVER, context=context, message=value, to=to)


def prepare(context, phase, calls, retain=False, vote=False, peers=()):
    """calls: (id, contributions, root, [(slot, value, peer number, order)])."""
    f = pb.Frame(kind=pb.PREPARE, context=context, phase=phase,
                 backward=pb.Backward(retain=retain, vote=vote, peers=peers))
    for c in calls:
        n = f.backward.calls.add(call=c[0], contributions=c[1], root=c[2])
        for slot, value, to, order in c[3]:
            n.targets.add(slot=slot, value=value, to=to, order=order)
    return f


def gradient(context, phase, value, raw, dims, order=0):
    return frame(pb.GRADIENT, raw, dims, context=context, phase=phase, message=value, micro_batch=order)


def numbers(f):
    head = f.tensors[0]
    assert len(f.tensors) == 1 and head.transfer == 0 and head.crc32c == crc32c(f.payload), f
    return floats(f.payload, {F32: "f", F64: "d"}[head.dtype])


def state(worker, what, module, context=0):
    worker.send(pb.Frame(kind=pb.STATE_GET, message=900, stage=module, context=context,
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
    while True:  # the answer comes after what was on its way
        f = worker.lane.recv()
        if f.kind == pb.ENDED:
            assert f.reply_to == 7 and f.context == context
            return


# ---- networks and their numbers ----------------------------------------------------------------

def linear_graph(out=D):
    return pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=out)], outputs=[1])


def tanh_graph(out=D):
    """y = tanh(x W' + b): its backward reads what it saved."""
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


# ---- tests -------------------------------------------------------------------------------------

@suite.test
def a_call_gives_its_value_and_gradients():
    r = random.Random(1)
    with remote() as w:
        w.load(0, tanh_graph(), [N, D])
        w.attach()
        m, x = Tanh(w, 0), randoms(r, N, D)
        w.send(call(11, 101, 0, [(1, True, raw(x), [N, D])]))
        w.send(deliver(11, 101))
        y = m.forward(x)
        close(numbers(w.recv(pb.VALUE, message=101, context=11)), flat(y))
        dy = randoms(r, N, D)
        w.send(prepare(11, 1, [(101, 1, False, [(0, 1, 0, 5)])], vote=True))
        w.send(gradient(11, 1, 101, raw(dy), [N, D]))
        dx = m.backward(x, y, dy)
        g = w.recv(pb.GRADIENT, message=1, context=11, phase=1, micro_batch=5)
        close(numbers(g), flat(dx))
        done = w.recv(pb.FINISHED, context=11, phase=1)
        squares = [sum(v * v for v in flat(m.dw)), sum(v * v for v in m.db)]
        assert done.vote.finite
        close(numbers(done), squares)
        close([done.vote.grad_sq], [sum(squares)])
        got = gradients(w, 0, 11)
        assert sorted(got) == ["0.bias", "0.weight"]
        close(got["0.weight"], flat(m.dw))
        close(got["0.bias"], m.db)
        end(w, 11)


class Pair:
    """Two workers in one session; `direct`: they have links of their own, else this client relays."""

    def __init__(self, direct):
        sid = os.urandom(16)
        self.direct, self.relayed = direct, 0
        self.a = remote(0, session=sid, peers=["spiffe://test/w2"])
        self.b = remote(1, session=sid, peers=["spiffe://test/w1"])

    def attach(self):
        self.a.attach()
        self.b.attach()

    def recv(self, worker, kind, **want):
        """The next frame of `worker` for this client; whatever is for the other one is passed on."""
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


def fan_out_and_join(direct):
    """h = A(x) on w1; p = B(h) there, q = C(h) on w2; loss = mse(p + q, want) on w2."""
    r = random.Random(2)
    with Pair(direct) as two:
        w1, w2 = two.a, two.b
        w1.load(0, tanh_graph(), [N, D], peers=["w2"] if direct else [])
        w1.load(1, tanh_graph(), [N, D])
        w2.load(2, tanh_graph(), [N, D])
        w2.load(3, join_graph(), [N, D], inputs=two_inputs([N, D]))
        w2.load(4, mse_graph(), [N, D], inputs=two_inputs([N, D]))
        two.attach()
        a, b, c = Tanh(w1, 0), Tanh(w1, 1), Tanh(w2, 2)
        x, want = randoms(r, N, D), randoms(r, N, D)
        H, P, Q, J, L = 101, 102, 103, 104, 105
        w2.send(call(11, Q, 2, [(H, True)]))  # before its input is even made
        w2.send(call(11, J, 3, [(P, True), (Q, True)]))
        w2.send(call(11, L, 4, [(J, True), (2, False, raw(want), [N, D])]))
        w2.send(deliver(11, L))
        w1.send(call(11, H, 0, [(1, True, raw(x), [N, D])]))
        w1.send(call(11, P, 1, [(H, True)]))
        w1.send(deliver(11, H, "w2"))
        w1.send(deliver(11, P, "w2"))
        h = a.forward(x)
        p, q = b.forward(h), c.forward(h)
        e = [[u + v - t for u, v, t in zip(*k)] for k in zip(p, q, want)]
        close(numbers(two.recv(w2, pb.VALUE, message=L)), [sum(v * v for v in flat(e)) / (N * D)])

        w1.send(prepare(11, 1, [(P, 1, False, [(0, H, 0, 0)]), (H, 2, False, [(0, 1, 0, 0)])], vote=True))
        w2.send(prepare(11, 1, [(L, 0, True, [(0, J, 0, 0)]), (J, 1, False, [(0, P, 1, 0), (1, Q, 0, 0)]),
                                (Q, 1, False, [(0, H, 1, 1)])], vote=True, peers=["w1"]))
        d = [[2 * v / (N * D) for v in row] for row in e]
        dh = plus(b.backward(h, p, d), c.backward(h, q, d))
        dx = a.backward(x, h, dh)
        close(numbers(two.recv(w1, pb.GRADIENT, message=1)), flat(dx))
        two.recv(w1, pb.FINISHED, phase=1)
        two.recv(w2, pb.FINISHED, phase=1)
        for m, w, i in ((a, w1, 0), (b, w1, 1), (c, w2, 2)):
            got = gradients(w, i, 11)
            close(got["0.weight"], flat(m.dw))
            close(got["0.bias"], m.db)
        assert gradients(w2, 3, 11) == {}
        assert (two.relayed == 0) == direct, two.relayed
        end(w1, 11)
        end(w2, 11)
        return b"".join(state(w1, pb.STATE_WEIGHTS, 0).values())


@suite.test
def two_workers_with_a_fan_out_and_a_join_direct():
    fan_out_and_join(True)


@suite.test
def two_workers_with_a_fan_out_and_a_join_via_master():
    fan_out_and_join(False)


@suite.test
def from_a_to_b_and_back_to_a_adds_both_gradients():
    r = random.Random(3)
    with Pair(True) as two:
        w1, w2 = two.a, two.b
        w1.load(0, tanh_graph(), [N, D], peers=["w2"])
        w2.load(1, tanh_graph(), [N, D])
        two.attach()
        a, b, x, dy = Tanh(w1, 0), Tanh(w2, 1), randoms(r, N, D), randoms(r, N, D)
        w1.send(call(12, 201, 0, [(1, True, raw(x), [N, D])]))
        w1.send(deliver(12, 201, "w2"))
        w2.send(call(12, 202, 1, [(201, True)]))
        w2.send(deliver(12, 202, "w1"))
        w1.send(call(12, 203, 0, [(202, True)]))
        w1.send(deliver(12, 203))
        h1 = a.forward(x)
        h2 = b.forward(h1)
        h3 = a.forward(h2)
        close(numbers(two.recv(w1, pb.VALUE, message=203)), flat(h3))
        w2.send(prepare(12, 1, [(202, 1, False, [(0, 201, 1, 0)])], peers=["w1"]))
        w1.send(prepare(12, 1, [(203, 1, False, [(0, 202, 1, 0)]), (201, 1, False, [(0, 1, 0, 0)])],
                        peers=["w2"]))
        w1.send(gradient(12, 1, 203, raw(dy), [N, D]))
        dx = a.backward(x, h1, b.backward(h1, h2, a.backward(h2, h3, dy)))
        close(numbers(two.recv(w1, pb.GRADIENT, message=1)), flat(dx))
        two.recv(w1, pb.FINISHED)
        two.recv(w2, pb.FINISHED)
        close(gradients(w1, 0, 12)["0.weight"], flat(a.dw))
        close(gradients(w2, 1, 12)["0.weight"], flat(b.dw))


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


@suite.test
def a_call_that_nobody_uses_does_not_hang_the_backward():
    r = random.Random(4)
    with one_module() as w:
        m, x, dy = Tanh(w, 0), randoms(r, N, D), randoms(r, N, D)
        w.send(call(13, 300, 0, [(1, True, raw(x), [N, D])]))
        w.send(call(13, 301, 0, [(300, True)]))  # unused
        w.send(deliver(13, 300))
        y = m.forward(x)
        close(numbers(w.recv(pb.VALUE, message=300)), flat(y))
        close(backward(w, 13, 1, 300, dy), flat(m.backward(x, y, dy)))
        close(gradients(w, 0, 13)["0.weight"], flat(m.dw))
        w.send(pb.Frame(kind=pb.DROP, context=13, upstream=[301]))
        w.send(pb.Frame(kind=pb.DELIVER, context=13, message=300))
        w.recv(pb.VALUE, message=300)
        assert w.status().values == 2  # x and 300
        end(w, 13)


@suite.test
def where_nothing_flows_an_empty_gradient_is_passed_on():
    r = random.Random(5)
    with one_module() as w:
        forward_and_value(w, 14, 310, randoms(r, N, D))
        w.send(prepare(14, 1, [(310, 1, False, [(0, 1, 0, 0)])]))
        w.send(pb.Frame(kind=pb.GRADIENT, context=14, phase=1, message=310))
        assert len(w.recv(pb.GRADIENT, message=1).tensors) == 0
        w.recv(pb.FINISHED)
        assert gradients(w, 0, 14) == {}


@suite.test
def a_gradient_before_its_prepare_is_parked():
    r = random.Random(6)
    with one_module() as w:
        m, x, dy, dz = Tanh(w, 0), randoms(r, N, D), randoms(r, N, D), randoms(r, N, D)
        forward_and_value(w, 15, 320, x)
        w.send(gradient(15, 1, 320, raw(dz), [N, D], order=7))
        w.send(gradient(15, 1, 320, raw(dy), [N, D], order=2))
        w.send(deliver(15, 320))
        w.recv(pb.VALUE)
        assert w.lane.poll() is None
        w.send(prepare(15, 1, [(320, 2, False, [(0, 1, 0, 0)])]))
        close(numbers(w.recv(pb.GRADIENT)), flat(m.backward(x, m.forward(x), plus(dy, dz))))
        w.recv(pb.FINISHED)


@suite.test
def deliver_and_users_may_come_before_the_call():
    r = random.Random(7)
    with one_module() as w:
        m, x = Tanh(w, 0), randoms(r, N, D)
        w.send(deliver(16, 331))
        w.send(call(16, 331, 0, [(330, True)]))
        w.send(deliver(16, 330))
        w.send(pb.Frame(kind=pb.PING, message=3))
        assert w.recv(pb.PONG).reply_to == 3
        assert w.status().calls_waiting == 1 and w.status().contexts == 1
        w.send(call(16, 330, 0, [(1, True, raw(x), [N, D])]))
        h = m.forward(x)
        got = {f.message: numbers(f) for f in (w.recv(pb.VALUE), w.recv(pb.VALUE))}
        close(got[330], flat(h))
        close(got[331], flat(m.forward(h)))
        assert w.status().calls_waiting == 0


@suite.test
def a_call_overtaken_by_its_whole_backward_is_waited_for():
    r = random.Random(8)
    with one_module() as w:
        x, dy = randoms(r, N, D), randoms(r, N, D)
        data = raw(x)
        head = call(17, 340, 0, [(1, True, data, [N, D])])
        head.tensors[0].transfer = 9
        head.payload = b""
        w.send(head)
        w.send(prepare(17, 1, [(340, 1, False, [(0, 1, 0, 0)])]))
        w.send(pb.Frame(kind=pb.DROP, context=17, upstream=[340]))
        w.send(pb.Frame(kind=pb.PING, message=4))
        w.recv(pb.PONG)
        w.send(gradient(17, 1, 340, raw(dy), [N, D]))
        for f in chunks(data, 9):
            w.send(f)
        dx = numbers(w.recv(pb.GRADIENT, message=1))
        w.recv(pb.FINISHED)
        m = Tanh(w, 0)
        close(dx, flat(m.backward(x, m.forward(x), dy)))
        assert w.status().values == 1  # the leaf; 340 went after its backward


@suite.test
def retained_twice_is_twice_the_gradient_and_a_third_without_is_refused():
    r = random.Random(9)
    with one_module() as w:
        x, dy = randoms(r, N, D), randoms(r, N, D)
        forward_and_value(w, 18, 350, x)
        first = backward(w, 18, 1, 350, dy, retain=True)
        once = gradients(w, 0, 18)
        assert backward(w, 18, 2, 350, dy) == first
        twice = gradients(w, 0, 18)
        for name in once:
            assert [2 * v for v in once[name]] == twice[name], name
        w.send(prepare(18, 3, [(350, 1, False, [])]))
        w.send(gradient(18, 3, 350, raw(dy), [N, D]))
        f = w.recv(pb.ABORT, context=18)
        assert f.failure.code == 9 and "call 15e of module 0" in f.failure.text and "retain" in f.failure.text, f


@suite.test
def retaining_leaves_running_statistics_and_dropout_alone():
    r = random.Random(10)
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(CONV, [0], 0, out=2, kernel=[3, 3]), node(BATCHNORM, [1], 1),
                            pb.Node(op=15, inputs=[2], layer=2, attrs=[pb.Attr(key=7, number=0.5)])], outputs=[3])
    dims, out = [N, 1, 5, 5], [N, 2, 3, 3]
    with remote() as w:
        w.load(0, graph, dims)
        w.attach()
        x, dy = raw(randoms(r, N, 25)), raw(randoms(r, N, 18))
        w.send(call(19, 360, 0, [(1, True, x, dims)]))
        w.send(deliver(19, 360))
        w.recv(pb.VALUE)
        before = state(w, pb.STATE_WEIGHTS, 0)
        results = []
        for phase in (1, 2):
            w.send(prepare(19, phase, [(360, 1, False, [(0, 1, 0, 0)])], retain=True))
            w.send(gradient(19, phase, 360, dy, out))
            results.append(w.recv(pb.GRADIENT).payload)
            w.recv(pb.FINISHED)
        assert results[0] == results[1] and any(floats(results[0]))
        assert state(w, pb.STATE_WEIGHTS, 0) == before


@suite.test
def frozen_parameters_get_no_gradient():
    r = random.Random(11)
    with one_module(frozen=["0.weight"]) as w:
        m, x, dy = Tanh(w, 0), randoms(r, N, D), randoms(r, N, D)
        forward_and_value(w, 20, 370, x)
        w.send(prepare(20, 1, [(370, 1, False, [(0, 1, 0, 0)])], vote=True))
        w.send(gradient(20, 1, 370, raw(dy), [N, D]))
        close(numbers(w.recv(pb.GRADIENT)), flat(m.backward(x, m.forward(x), dy)))
        close(numbers(w.recv(pb.FINISHED)), [sum(v * v for v in m.db)])
        got = gradients(w, 0, 20)
        assert sorted(got) == ["0.bias"]
        close(got["0.bias"], m.db)


@suite.test
def a_thousand_contexts_at_once_equal_the_serial_run_bitwise():
    r = random.Random(12)
    n = 1000
    xs, dys = [raw(randoms(r, N, D)) for _ in range(n)], [raw(randoms(r, N, D)) for _ in range(n)]

    def go(w, first, width):
        results = {}
        for begin in range(0, n, width):
            ids = range(begin, begin + width)
            for i in ids:
                w.send(call(first + i, 10_000 + i, 0, [(0, True, xs[i], [N, D])]))
                w.send(deliver(first + i, 10_000 + i))
            ys = {f.context - first: f.payload for f in (w.recv(pb.VALUE) for _ in ids)}
            if width > 1:
                assert w.status().contexts == width
            order = list(ids)
            r.shuffle(order)
            for i in order:
                w.send(prepare(first + i, 1, [(10_000 + i, 1, False, [(0, 5, 0, 0)])]))
                w.send(gradient(first + i, 1, 10_000 + i, dys[i], [N, D]))
                dx = w.recv(pb.GRADIENT, context=first + i).payload
                w.recv(pb.FINISHED, context=first + i)
                results[i] = (ys[i], dx)
            for i in ids:
                results[i] += (tuple(sorted(state(w, GRADIENTS, 0, first + i).items())),)
                end(w, first + i)
        return results

    with one_module() as w:
        serial, wide = go(w, 1000, 1), go(w, 100_000, n)
        assert serial == wide and len(serial) == n
        assert (w.status().contexts, w.status().values) == (0, 0)


@suite.test
def end_context_frees_and_late_frames_are_dropped():
    r = random.Random(13)
    with one_module() as w:
        x = randoms(r, N, D)
        for i in range(5):
            forward_and_value(w, 30, 400 + i, x) if i == 0 else w.send(call(30, 400 + i, 0, [(399, True)]))
        w.send(pb.Frame(kind=pb.PING, message=1))
        w.recv(pb.PONG)
        s = w.status()
        assert (s.contexts, s.values, s.calls_waiting, s.late_frames) == (1, 7, 4, 0), s
        end(w, 30)
        w.send(call(30, 410, 0, [(1, True, raw(x), [N, D])]))
        w.send(deliver(30, 410))
        w.send(frame(pb.VALUE, raw(x), [N, D], context=30, message=399))
        end(w, 30)  # again, and answered again
        s = w.status()
        assert (s.contexts, s.values, s.calls_waiting, s.late_frames) == (0, 0, 0, 3), s
        forward_and_value(w, 31, 420, x)  # others go on


@suite.test
def an_abort_of_the_master_frees_a_context():
    r = random.Random(14)
    with one_module() as w:
        forward_and_value(w, 32, 430, randoms(r, N, D))
        w.send(pb.Frame(kind=pb.ABORT, context=32, failure=pb.Failure(code=10, text="elsewhere")))
        w.send(pb.Frame(kind=pb.PING, message=1))
        w.recv(pb.PONG)
        end(w, 32)
        assert w.status().contexts == 0


@suite.test
def an_error_in_a_call_poisons_its_users_on_every_worker():
    with Pair(True) as two:
        w1, w2 = two.a, two.b
        w1.load(0, tanh_graph(), [N, D], peers=["w2"])
        w2.load(1, tanh_graph(), [N, D])
        two.attach()
        w2.send(call(33, 441, 1, [(440, True)]))
        w2.send(deliver(33, 441))
        w1.send(call(33, 440, 0, [(1, True, bytes(4 * N * 5), [N, 5])]))  # five columns, not three
        w1.send(deliver(33, 440, "w2"))
        w1.send(deliver(33, 440))
        for w, message in ((w1, 440), (w2, 441)):
            f = two.recv(w, pb.VALUE, message=message)
            assert not f.tensors and f.failure.code == 3 and "module 0 expects input 0" in f.failure.text, f
            assert f.failure.hop == "module 0", f
        w1.send(call(33, 445, 9, [(1, True)]))
        w1.send(deliver(33, 445))
        f = two.recv(w1, pb.VALUE, message=445)
        assert f.failure.code == 5 and "module 9 is not here" in f.failure.text, f
        w2.send(prepare(33, 1, [(441, 1, False, [])]))
        f = two.recv(w2, pb.ABORT, context=33)
        assert "module 0 expects input 0" in f.failure.text, f
        end(w2, 33)
        w1.send(call(34, 450, 0, [(1, True, bytes(4 * N * D), [N, D])]))
        w1.send(deliver(34, 450))
        numbers(two.recv(w1, pb.VALUE, message=450))


ADAM = dict(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_ADAM, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8)) \
    if pyclient.MISSING is None else {}


def everything(w, module=0):
    return state(w, pb.STATE_WEIGHTS, module), state(w, pb.STATE_OPTIMIZER, module)


def apply(w, context, kind=None, module=ALL, lr=0.25, scale=0.5, does=True):
    w.send(pb.Frame(kind=kind or pb.APPLY, context=context, message=77, stage=module,
                    commit=None if kind == pb.REVERT else pb.Commit(scale=scale, lr=lr, apply=does)))


@suite.test
def apply_steps_and_revert_restores_every_byte():
    r = random.Random(15)
    with one_module(**ADAM) as w:
        x, dy = randoms(r, N, D), randoms(r, N, D)
        for context in (40, 41):
            forward_and_value(w, context, 500 + context, x)
            backward(w, context, 1, 500 + context, dy, vote=True)
            before = everything(w)
            apply(w, context)
            assert w.recv(pb.APPLIED, context=context).reply_to == 77
            after = everything(w)
            assert after[0] != before[0] and struct.unpack("<q", after[1]["step"])[0] == context - 39
            w.send(pb.Frame(kind=pb.REVERT, context=context, message=78))
            assert w.recv(pb.APPLIED, context=context).reply_to == 78
            assert everything(w) == before
            apply(w, context)
            w.recv(pb.APPLIED)
            assert everything(w) == after
            w.send(pb.Frame(kind=pb.REVERT, context=99, message=79))
            assert w.recv(pb.ERROR, reply_to=79).failure.code == 9
        forward_and_value(w, 42, 600, x)  # makes the last step final
        w.send(pb.Frame(kind=pb.REVERT, context=41, message=80))
        f = w.recv(pb.ERROR, reply_to=80)
        assert f.failure.code == 9 and "another context" in f.failure.text, f
        assert everything(w) == after


@suite.test
def a_commit_rides_on_the_next_call():
    r = random.Random(16)
    with one_module(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=1)) as w:
        m, x, dy = Tanh(w, 0), randoms(r, N, D), randoms(r, N, D)
        forward_and_value(w, 43, 610, x)
        backward(w, 43, 1, 610, dy, vote=True)
        m.backward(x, m.forward(x), dy)
        m.w = [[a - 0.25 * 0.5 * g for a, g in zip(*k)] for k in zip(m.w, m.dw)]
        m.b = [a - 0.25 * 0.5 * g for a, g in zip(m.b, m.db)]
        y = forward_and_value(w, 44, 620, x, commit=pb.Commit(step=43, scale=0.5, lr=0.25, apply=True))
        close(y, flat(m.forward(x)))
        apply(w, 43, does=False)
        w.recv(pb.APPLIED)
        assert gradients(w, 0, 43) == {}


@suite.test
def weights_that_changed_between_forward_and_backward_are_refused():
    r = random.Random(17)
    with remote() as w:
        w.load(0, pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=D), node(8, [1], 1),
                                  node(LINEAR, [2], 2, out=D)], outputs=[3]), [N, D])
        w.attach()
        x, dy = randoms(r, N, D), randoms(r, N, D)
        for context in (50, 51):
            forward_and_value(w, context, 700 + context, x)
        backward(w, 50, 1, 750, dy, vote=True)
        apply(w, 50)
        w.recv(pb.APPLIED)
        w.send(prepare(51, 1, [(751, 1, False, [(0, 1, 0, 0)])]))
        w.send(gradient(51, 1, 751, raw(dy), [N, D]))
        f = w.recv(pb.ABORT, context=51)
        assert f.failure.code == 9 and "parameters of module 0 have changed since the forward of call 2ef" \
            in f.failure.text, f


@suite.test
def what_is_wrong_is_refused_and_the_session_goes_on():
    r = random.Random(18)
    with one_module() as w:
        x = randoms(r, N, D)
        forward_and_value(w, 60, 800, x)
        w.send(call(60, 800, 0, [(1, True)]))  # the same id again
        assert w.recv(pb.ERROR, reply_to=800).failure.code == 6
        w.send(training(pb.FORWARD, 5, 1, 0, 1, raw(x), [N, D]))
        assert "in a session of contexts" in w.recv(pb.ERROR, reply_to=5).failure.text
        w.send(frame(pb.VALUE, raw(x), [N, D], context=60, message=800))
        assert w.recv(pb.ERROR, reply_to=800).failure.code == 9
        w.send(call(60, 801, 0, [(801, True)]))  # waits for itself until the context ends
        w.send(call(60, 802, 0, [(5, True), (6, False)]))
        w.send(deliver(60, 802))
        assert "has 1 inputs, not 2" in w.recv(pb.VALUE, message=802).failure.text
        for context, phase, calls, text in (
                (61, 1, [(900, 1, False, [])], "call 384 is not here"),
                (62, 2, [(801, 1, False, [(3, 1, 0, 0)])], "input 3 of call 321"),
                (63, 1, [(801, 0, True, [])], "12 elements; a root is a scalar"),
                (64, 1, [(801, 1, False, []), (801, 1, False, [])], "named twice")):
            forward_and_value(w, context, 801, x)
            w.send(prepare(context, phase, calls))
            f = w.recv(pb.ABORT, context=context)
            assert text in f.failure.text, f
            w.send(prepare(context, phase + 1, [(801, 1, False, [])]))  # said again
            assert text in w.recv(pb.ABORT, context=context).failure.text
        forward_and_value(w, 65, 801, x)
        w.send(gradient(65, 1, 801, raw(x)[:12], [3]))
        w.send(prepare(65, 1, [(801, 1, False, [])]))
        assert "its gradient f32 [3]" in w.recv(pb.ABORT, context=65).failure.text
        w.send(call(66, 801, 0, [(1, True, raw(x), [N, D])]))
        w.send(gradient(66, 1, 1, raw(x), [N, D]))
        assert "1, which is no call here" in w.recv(pb.ABORT, context=66).failure.text
        w.send(call(67, 801, 0, [(1, True, raw(x), [N, D])], training=False))
        w.send(prepare(67, 1, [(801, 0, True, [])]))
        assert "without TRAINING" in w.recv(pb.ABORT, context=67).failure.text
        for context in range(60, 68):
            end(w, context)
        s = w.status()
        assert (s.contexts, s.values, s.calls_waiting) == (0, 0, 0), s


@suite.test
def another_worker_brings_values_and_nothing_else():
    r = random.Random(19)
    w = remote(0, peers=["spiffe://test/w2"])
    with w, Caller(cluster.ports[0], cluster.certs, name="w2") as c:
        w.load(0, tanh_graph(), [N, D])
        w.attach()
        c.hello()
        peer = SessionOf(c, w.session.id, 1, 0).attach(role=pb.ROLE_PEER)
        x, m = randoms(r, N, D), Tanh(w, 0)
        w.send(call(70, 900, 0, [(5, True)]))
        w.send(deliver(70, 900))
        for f in (call(70, 901, 0, [(1, True, raw(x), [N, D])]), pb.Frame(kind=pb.END_CONTEXT, context=70, message=3),
                  pb.Frame(kind=pb.STATE_GET, message=4, state=pb.State(what=pb.STATE_WEIGHTS))):
            peer.send(f)
            refused = w.recv(pb.ERROR)
            assert refused.failure.code == 7 and "worker 'w2'" in refused.failure.text, refused
        peer.send(frame(pb.VALUE, raw(x), [N, D], context=70, message=5))
        close(numbers(w.recv(pb.VALUE, message=900)), flat(m.forward(x)))


@suite.test
def what_is_over_a_limit_or_the_quota_is_refused():
    with Cluster(1, limits="limits: {session_bytes: 16MiB}\n") as small:
        big = [64, 1024]  # 256 KiB
        with Caller(small.ports[0], small.certs) as c:
            c.hello()
            s = SessionOf(c, os.urandom(16), 1, 0)
            s.granted = c.stub.OpenSession(pb.OpenSessionRequest(
                session=s.id, epoch=1, name="small", seed=1, lanes=0, config_digest=bytes(32))).granted
            s.load(pb.Graph(nodes=[node(INPUT, name="x"), node(8, [0], 0)], outputs=[1]), big, stage=0,
                   n_stages=MODULES, micro=1)
            lane = s.attach()
            data = bytes(4 * 64 * 1024)
            begin = small.workers[0].rss()
            first = call(1, 100, 0, [(1, True, data, big)])
            first.tensors[0].transfer, first.payload = 1, b""
            lane.send(first)
            for k in chunks(data, 1):
                lane.send(k)
            for i in range(1, 100):  # 25 MiB of values if nothing refused them
                lane.send(call(1, 100 + i, 0, [(99 + i, True)]))
            lane.send(deliver(1, 199))
            f = lane.recv()
            assert f.kind == pb.VALUE and f.failure.code == 8 and "quota" in f.failure.text, f
            assert small.workers[0].rss() - begin < 40 << 20
            lane.send(pb.Frame(kind=pb.END_CONTEXT, context=1, message=5))
            assert lane.recv().kind == pb.ENDED
            status = c.stub.Status(pb.StatusRequest(session=s.id)).sessions[0]
            assert status.memory_bytes <= 17 << 20 and status.contexts == 0, status
            lane.send(call(2, 500, 0, [(7, True)]))
            for i in range(4200):  # more contexts than may be open
                lane.send(deliver(10 + i, 1))
            f = lane.recv()
            assert f.kind == pb.ERROR and f.failure.code == 8 and "4096 contexts" in f.failure.text, f


if pyclient.MISSING:
    print("skip context:", pyclient.MISSING)
else:
    with Cluster(2) as cluster:
        suite.main()
