"""The life of contexts: many at once, their end, errors, limits, steps of the optimisers and their
order, workers and masters that die."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *

suite = Suite()


@suite.test
def a_thousand_contexts_at_once_equal_the_serial_run_bitwise():
    r = random.Random(12)
    n = 1000 if LONG else 300
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
        until = time.monotonic() + 10 * SLOW  # a PONG does not wait for the compute thread
        while (s := w.status()).calls_waiting < 4 and time.monotonic() < until:
            time.sleep(0.01)
        assert (s.contexts, s.values, s.calls_waiting, s.late_frames) == (1, 7, 4, 0), s
        end(w, 30)
        w.send(call(30, 410, 0, [(1, True, raw(x), [N, D])]))
        w.send(deliver(30, 410))
        w.send(frame(pb.VALUE, raw(x), [N, D], context=30, message=399))
        end(w, 30)  # a second END_CONTEXT is answered too
        s = w.status()
        assert (s.contexts, s.values, s.calls_waiting, s.late_frames) == (0, 0, 0, 3), s
        forward_and_value(w, 31, 420, x)  # other contexts continue


@suite.test
def abort_from_the_master_frees_the_context():
    r = random.Random(14)
    with one_module() as w:
        forward_and_value(w, 32, 430, randoms(r, N, D))
        w.send(pb.Frame(kind=pb.ABORT, context=32, failure=pb.Failure(code=10, text="elsewhere")))
        w.send(pb.Frame(kind=pb.PING, message=1))
        w.recv(pb.PONG)
        end(w, 32)
        assert w.status().contexts == 0


@suite.test
def call_error_fails_its_consumers_on_every_worker():
    with Pair(True) as two:
        w1, w2 = two.a, two.b
        w1.load(0, tanh_graph(), [N, D], peers=["w2"])
        w2.load(1, tanh_graph(), [N, D])
        two.attach()
        w2.send(call(33, 441, 1, [(440, True)]))
        w2.send(deliver(33, 441))
        # the input has five columns instead of three
        w1.send(call(33, 440, 0, [(1, True, bytes(4 * N * 5), [N, 5])]))
        w1.send(deliver(33, 440, "w2"))
        w1.send(deliver(33, 440))
        for w, message in ((w1, 440), (w2, 441)):
            f = two.recv(w, pb.VALUE, message=message)
            assert not f.tensors and f.failure.code == 3 and "module 0 expects input 0" in f.failure.text, f
            assert f.failure.hop == "module 0", f
        w1.send(call(33, 445, 9, [(1, True)]))
        w1.send(deliver(33, 445))
        f = two.recv(w1, pb.VALUE, message=445)
        assert f.failure.code == 5 and "module 9 is not loaded at this node" in f.failure.text, f
        w2.send(prepare(33, 1, [(441, 1, False, [])]))
        f = two.recv(w2, pb.ABORT, context=33)
        assert "module 0 expects input 0" in f.failure.text, f
        end(w2, 33)
        w1.send(call(34, 450, 0, [(1, True, bytes(4 * N * D), [N, D])]))
        w1.send(deliver(34, 450))
        numbers(two.recv(w1, pb.VALUE, message=450))


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
def end_context_carries_the_step_decision():
    r = random.Random(16)
    with one_module(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=1)) as w:
        m, x, dy = Tanh(w, 0), randoms(r, N, D), randoms(r, N, D)
        for context, does in ((43, True), (44, False)):
            first = 600 + 10 * context
            close(forward_and_value(w, context, first, x), flat(m.forward(x)))
            backward(w, context, 1, first, dy, vote=True)
            m.backward(x, m.forward(x), dy)
            w.send(pb.Frame(kind=pb.END_CONTEXT, context=context, message=78,
                            commit=pb.Commit(scale=0.5, lr=0.25, apply=does)))
            assert w.recv(pb.ENDED, context=context).reply_to == 78  # and no APPLIED
            if does:
                m.w = [[a - 0.25 * 0.5 * g for a, g in zip(*k)] for k in zip(m.w, m.dw)]
                m.b = [a - 0.25 * 0.5 * g for a, g in zip(m.b, m.db)]
        close(forward_and_value(w, 45, 999, x), flat(m.forward(x)))


@suite.test
def backward_after_a_weight_change_is_refused():
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
        assert f.failure.code == 9 and "parameters of module 0 have changed since the forward of call 751" \
            in f.failure.text, f


@suite.test
def invalid_frames_are_refused_and_the_session_continues():
    r = random.Random(18)
    with one_module() as w:
        x = randoms(r, N, D)
        forward_and_value(w, 60, 800, x)
        w.send(call(60, 800, 0, [(1, True)]))  # the same id again
        assert w.recv(pb.ERROR, reply_to=800).failure.code == 6
        w.send(pb.Frame(kind=pb.ENDED, context=60, message=5))  # a frame that only a worker sends
        assert "does not handle" in w.recv(pb.ERROR, reply_to=5).failure.text
        w.send(frame(pb.VALUE, raw(x), [N, D], context=60, message=800))
        assert w.recv(pb.ERROR, reply_to=800).failure.code == 9
        w.send(call(60, 801, 0, [(801, True)]))  # waits for itself until the context ends
        w.send(call(60, 802, 0, [(5, True), (6, False)]))
        w.send(deliver(60, 802))
        assert "has 1 input, not 2" in w.recv(pb.VALUE, message=802).failure.text
        for context, phase, calls, text in (
                (61, 1, [(900, 1, False, [])], "call 900 is not known at this node"),
                (62, 1, [(801, 1, False, [(3, 1, 0, 0)])], "input 3 of call 801"),
                (63, 1, [(801, 0, True, [])], "12 elements; a root is a scalar"),
                (64, 1, [(801, 1, False, []), (801, 1, False, [])], "named twice")):
            forward_and_value(w, context, 801, x)
            w.send(prepare(context, phase, calls))
            f = w.recv(pb.ABORT, context=context)
            assert text in f.failure.text, f
            w.send(prepare(context, phase + 1, [(801, 1, False, [])]))  # the refusal is repeated
            assert text in w.recv(pb.ABORT, context=context).failure.text
        forward_and_value(w, 65, 801, x)
        w.send(gradient(65, 1, 801, raw(x)[:12], [3]))
        w.send(prepare(65, 1, [(801, 1, False, [])]))
        assert "its gradient f32 [3]" in w.recv(pb.ABORT, context=65).failure.text
        w.send(call(66, 801, 0, [(1, True, raw(x), [N, D])]))
        w.send(gradient(66, 1, 1, raw(x), [N, D]))
        assert "1, which no call of this node computes" in w.recv(pb.ABORT, context=66).failure.text
        w.send(call(67, 801, 0, [(1, True, raw(x), [N, D])], training=False))
        w.send(prepare(67, 1, [(801, 0, True, [])]))
        assert "without TRAINING" in w.recv(pb.ABORT, context=67).failure.text
        for context in range(60, 68):
            end(w, context)
        s = w.status()
        assert (s.contexts, s.values, s.calls_waiting) == (0, 0, 0), s


@suite.test
def peer_worker_may_send_only_values():
    r = random.Random(19)
    w = remote(0, peers=["spiffe://test/w2"])
    with w, Caller(the.cluster.ports[0], the.cluster.certs, name="w2") as c:
        w.load(0, tanh_graph(), [N, D])
        w.attach()
        c.hello()
        peer = SessionOf(c, w.session.id, 1, 0).attach(
            role=pb.ROLE_PEER, owner="spiffe://test/master")
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
def link_to_a_peer_of_protocol_8_has_no_acks():
    """With two workers in one session, each link uses the protocol version of its own peer."""
    w = remote(0, peers=["spiffe://test/w2"])
    with w, Caller(the.cluster.ports[0], the.cluster.certs, name="w2") as c:
        w.load(0, tanh_graph(), [N, D])
        w.attach()
        c.hello(protocol=8)
        peer = SessionOf(c, w.session.id, 1, 0).attach(role=pb.ROLE_PEER, owner="spiffe://test/master")
        r = random.Random(5)
        for context in range(1, 2 * 32):
            w.send(call(context, 10, 0, [(1, False)], training=False))
            w.send(deliver(context, 10))
            peer.send(frame(pb.VALUE, raw(randoms(r, N, D)), [N, D], context=context, message=1))
            w.recv(pb.VALUE, context=context)
            end(w, context)
        assert peer.poll() is None
        peer.send(pb.Frame(kind=pb.ACK, ack=pb.Ack(received=[0])))
        assert "speak protocol 8" in w.recv(pb.ABORT, context=0).failure.text


@suite.test
def tensors_over_the_limit_or_quota_are_refused():
    with Cluster(1, limits="limits: {session_bytes: 16MiB}\n") as small:
        big = [64, 1024]  # 256 KiB
        with Caller(small.ports[0], small.certs) as c:
            c.hello()
            s = SessionOf(c, os.urandom(16), 1, 0)
            s.granted = c.stub.OpenSession(pb.OpenSessionRequest(
                session=s.id, epoch=1, name="small", lanes=0, config_digest=bytes(32))).granted
            s.load(pb.Graph(nodes=[node(INPUT, name="x"), node(8, [0], 0)], outputs=[1]), big, module=0)
            lane = s.attach()
            data = bytes(4 * 64 * 1024)
            begin = small.workers[0].rss()
            first = call(1, 100, 0, [(1, True, data, big)])
            first.tensors[0].transfer, first.payload = 1, b""
            lane.send(first)
            for k in chunks(data, 1):
                lane.send(k)
            for i in range(1, 100):  # would be 25 MiB of values without a limit
                lane.send(call(1, 100 + i, 0, [(99 + i, True)]))
            lane.send(deliver(1, 199))
            f = lane.recv()
            assert f.kind == pb.VALUE and f.failure.code == 8 and "quota" in f.failure.text, f
            assert SANITIZED or small.workers[0].rss() - begin < 40 << 20
            lane.send(pb.Frame(kind=pb.END_CONTEXT, context=1, message=5))
            assert lane.recv().kind == pb.ENDED
            status = c.stub.Status(pb.StatusRequest(session=s.id)).sessions[0]
            assert status.memory_bytes <= 17 << 20 and status.contexts == 0, status
            lane.send(call(2, 500, 0, [(7, True)]))
            for i in range(4200):  # more contexts than may be open
                lane.send(deliver(10 + i, 1))
            f = lane.recv()
            assert f.kind == pb.ERROR and f.failure.code == 8 and "4096 contexts" in f.failure.text, f

# ---- the order in which things happen ----------------------------------------------------------

NORM_IN, NORM_OUT = [N, 1, 5, 5], [N, 2, 3, 3]


def norm_graph():
    return pb.Graph(nodes=[node(INPUT, name="x"), node(CONV, [0], 0, out=2, kernel=[3, 3]),
                           node(BATCHNORM, [1], 1)], outputs=[2])


def park(w, context, first, xs, module=0):
    """Calls first, first + 1, ... that wait for the values first + 100, ..."""
    for i in range(len(xs)):
        w.send(call(context, first + i, module, [(first + 100 + i, False)]))


def bring(w, context, value, x, dims):
    w.send(frame(pb.VALUE, x, dims, context=context, message=value))


def answered(w):
    """Waits until the worker has handled all earlier frames. It must have answered none of them."""
    w.send(pb.Frame(kind=pb.PING, message=3))
    assert w.recv(pb.PONG).reply_to == 3
    w.send(deliver(9999, 1))
    deadline = time.monotonic() + 20 * SLOW
    while w.status().contexts < 1:
        assert time.monotonic() < deadline
    end(w, 9999)


@suite.test
def running_statistics_are_updated_in_call_id_order():
    r = random.Random(30)
    xs = [raw(randoms(r, N, 25)) for _ in range(6)]

    def go(order, chunked=False):
        with remote() as w:
            w.load(0, norm_graph(), NORM_IN)
            w.attach()
            if chunked:  # all others overtake the first one
                head = call(1, 100, 0, [(200, False, xs[0], NORM_IN)])
                head.tensors[0].transfer = 9
                head.payload = b""
                w.send(head)
                park(w, 2, 101, xs[1:])
            else:
                park(w, 2, 100, xs)
            for i in order:
                if i or not chunked:
                    bring(w, 2, 200 + i, xs[i], NORM_IN)
            answered(w)
            if chunked:
                assert w.status().calls_waiting == len(xs)
                for f in chunks(xs[0], 9):
                    w.send(f)
                w.send(deliver(1, 100))
                w.recv(pb.VALUE, message=100)
            w.send(deliver(2, 105))
            w.recv(pb.VALUE, message=105)
            assert w.status().calls_waiting == 0
            return state(w, pb.STATE_WEIGHTS, 0)

    in_order = go(range(6))
    assert go([5, 4, 3, 2, 1, 0]) == in_order
    assert go([3, 5, 0, 4, 1, 2]) == in_order
    assert go([5, 4, 3, 2, 1, 0], chunked=True) == in_order


@suite.test
def ended_or_failed_call_unblocks_later_calls():
    r = random.Random(31)
    xs = [raw(randoms(r, N, 25)) for _ in range(3)]
    with remote() as w:
        w.load(0, norm_graph(), NORM_IN)
        w.attach()
        park(w, 1, 100, xs[:1])
        park(w, 2, 101, xs[1:])
        bring(w, 2, 202, xs[2], NORM_IN)
        w.send(deliver(2, 102))
        answered(w)
        w.send(pb.Frame(kind=pb.VALUE, context=2, message=201, failure=pb.Failure(code=10, text="lost")))
        answered(w)
        end(w, 1)
        w.recv(pb.VALUE, message=102)
        assert w.status().calls_waiting == 0


class Parked:
    """A module with gradients in context 1 and a call of context 2 that waits for its input."""

    def __init__(self, w, r):
        self.m, self.x, dy = Tanh(w, 0), randoms(r, N, D), randoms(r, N, D)
        forward_and_value(w, 1, 100, self.x)
        backward(w, 1, 1, 100, dy)
        self.m.backward(self.x, self.m.forward(self.x), dy)
        w.send(call(2, 200, 0, [(250, False)]))
        w.send(deliver(2, 200))

    def step(self, rate=0.125):
        self.m.w = [[a - rate * g for a, g in zip(*k)] for k in zip(self.m.w, self.m.dw)]
        self.m.b = [a - rate * g for a, g in zip(self.m.b, self.m.db)]


@suite.test
def step_runs_after_earlier_and_before_later_calls():
    r = random.Random(32)
    with one_module(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=1)) as w:
        p = Parked(w, r)
        old = flat(p.m.forward(p.x))
        apply(w, 1)
        # the call has its input, but its place in the order is later
        w.send(call(3, 300, 0, [(1, True, raw(p.x), [N, D])]))
        w.send(deliver(3, 300))
        w.send(pb.Frame(kind=pb.STATE_GET, message=900, module=0, state=pb.State(what=pb.STATE_WEIGHTS)))
        # the decision about its step stays
        w.send(pb.Frame(kind=pb.END_CONTEXT, context=1, message=5))
        assert w.recv(pb.ENDED, reply_to=5)
        answered(w)
        bring(w, 2, 250, raw(p.x), [N, D])
        close(numbers(w.recv(pb.VALUE, message=200)), old)
        assert w.recv(pb.APPLIED).reply_to == 77
        p.step()
        frames = [w.lane.recv() for _ in range(4)]
        kinds = [f.kind for f in frames]
        assert sorted(kinds) == sorted([pb.VALUE, pb.STATE_ITEM, pb.STATE_ITEM, pb.STATE_DONE]), kinds
        close(numbers(frames[kinds.index(pb.VALUE)]), flat(p.m.forward(p.x)))
        items = {f.state.name: f.payload for f in frames if f.kind == pb.STATE_ITEM}
        close(floats(items["0.weight"]), flat(p.m.w))


@suite.test
def a_step_does_not_wait_for_a_call_that_ends_or_fails():
    r = random.Random(33)
    for how in ("end", "abort", "failure"):
        with one_module(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=1)) as w:
            Parked(w, r)
            apply(w, 1)
            answered(w)
            if how == "failure":
                w.send(pb.Frame(kind=pb.VALUE, context=2, message=250, failure=pb.Failure(code=10, text="lost")))
                assert w.recv(pb.VALUE, message=200).failure.text
            elif how == "abort":
                w.send(pb.Frame(kind=pb.ABORT, context=2, failure=pb.Failure(code=10, text="elsewhere")))
            else:
                w.send(pb.Frame(kind=pb.END_CONTEXT, context=2, message=5))
                w.recv(pb.ENDED, reply_to=5)
            assert w.recv(pb.APPLIED).reply_to == 77, how


@suite.test
def revert_and_weight_write_wait_for_earlier_calls():
    r = random.Random(34)
    with one_module(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=1)) as w:
        p = Parked(w, r)
        before = everything(w)
        apply(w, 1)
        w.send(pb.Frame(kind=pb.REVERT, context=1, message=78))
        # after the REVERT, so it cannot make the step before that final
        w.send(call(3, 300, 0, [(350, False)]))
        bring(w, 2, 250, raw(p.x), [N, D])
        w.recv(pb.VALUE, message=200)
        assert [w.recv(pb.APPLIED).reply_to for _ in range(2)] == [77, 78]
        assert everything(w) == before
        w.send(deliver(3, 300))
        new = f32([0.5] * D)
        w.send(frame(pb.STATE_PUT, new, [D], message=79, module=0,
                     state=pb.State(what=pb.STATE_WEIGHTS, name="0.bias", index=0, count=1)))
        answered(w)
        bring(w, 3, 350, raw(p.x), [N, D])
        close(numbers(w.recv(pb.VALUE, message=300)), flat(p.m.forward(p.x)))
        w.recv(pb.STATE_DONE, reply_to=79)
        assert everything(w)[0]["0.bias"] == new


@suite.test
def backward_waits_for_the_step_before_it():
    r = random.Random(35)
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=D), node(8, [1], 1),
                            node(LINEAR, [2], 2, out=D)], outputs=[3])
    with one_module(graph, optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=1)) as w:
        x, dy = randoms(r, N, D), randoms(r, N, D)
        for context in (1, 3):
            forward_and_value(w, context, 100 * context, x)
        backward(w, 1, 1, 100, dy)
        w.send(call(2, 350, 0, [(250, False)]))
        apply(w, 1)
        w.send(prepare(3, 1, [(300, 1, False, [(0, 1, 0, 0)])]))
        w.send(gradient(3, 1, 300, raw(dy), [N, D]))
        answered(w)
        bring(w, 2, 250, raw(x), [N, D])
        w.recv(pb.APPLIED)
        assert "have changed since the forward of call 300" in w.recv(pb.ABORT, context=3).failure.text

# ---- lost peers, cancelled streams -------------------------------------------------------------

OBSERVER = "  - {identity: \"spiffe://test/watch\", role: observer}\n"
HOLDER = """
import sys, types
import contexts
from contexts import *
contexts.the.cluster = types.SimpleNamespace(ports=[int(sys.argv[1])], certs=sys.argv[2])
w = remote(0, credit=1 << 30)
dims = [64, 256]
w.load(0, pb.Graph(nodes=[node(INPUT, name="x"), node(8, [0], 0)], outputs=[1]), dims)
w.attach()
data = bytes(4 * 64 * 256)
for context in range(1, 401):
    w.send(call(context, 10 * context, 0, [(0, False, data, dims)], training=False))
    w.send(call(context, 10 * context + 1, 0, [(5, False)]))
w.send(deliver(400, 4000))
w.recv(pb.VALUE)
while w.status().calls_waiting < 400:
    time.sleep(0.01)
print("held", flush=True)
time.sleep(600)
"""


@suite.long
def killed_master_leaves_no_session_at_the_worker():
    with Cluster(1, limits="limits: {lease: 20s}\n", extra_allow=OBSERVER) as alone:
        alone.issue("watch", "spiffe://test/watch")

        def seen():
            return watch.stub.Status(pb.StatusRequest(), timeout=20 * SLOW).sessions
        with Caller(alone.ports[0], alone.certs, name="watch") as watch:
            watch.hello()
            resident = alone.workers[0].rss()
            holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(alone.ports[0]), alone.certs],
                                      stdout=subprocess.PIPE, cwd=os.path.dirname(pyclient.__file__))
            try:
                assert holder.stdout.readline() == b"held\n"
                held = seen()
                assert len(held) == 1 and held[0].contexts == held[0].calls_waiting == 400 and held[0].memory_bytes >= 25 << 20, held
                grown = alone.workers[0].rss() - resident
                assert grown > 20 << 20, grown
            finally:
                holder.kill()
                holder.wait()
                holder.stdout.close()
            begin = time.monotonic()
            while seen():
                assert time.monotonic() - begin < 20 + 10 * SLOW, seen()
                time.sleep(0.05)
            assert time.monotonic() - begin > 19, "a master that is back within the lease goes on"
            assert "not connected again within 20 s (limits.lease)" in alone.workers[0].text()


@suite.test
def worker_killed_in_backward_is_reported_at_once():
    r = random.Random(40)
    with Pair(True) as two:
        w1, w2 = two.a, two.b
        w1.load(0, tanh_graph(), [N, D], peers=["w2"])
        w2.load(1, tanh_graph(), [N, D])
        two.attach()
        x = randoms(r, N, D)
        w1.send(call(1, 100, 0, [(1, True, raw(x), [N, D])]))
        w1.send(deliver(1, 100, "w2"))
        w2.send(call(1, 101, 1, [(100, True)]))
        w2.send(deliver(1, 101))
        two.recv(w2, pb.VALUE, message=101)
        w1.send(prepare(1, 1, [(100, 1, False, [])]))
        # the gradient for this backward never comes
        w2.send(prepare(1, 1, [(101, 1, False, [(0, 100, 1, 0)])], peers=["w1"]))
        assert w2.status().contexts == 1
        begin = time.monotonic()
        the.cluster.workers[1].kill()
        w2.session.close = lambda: None  # the worker is dead and cannot answer
        told = w1.recv(pb.ABORT)
        assert "the link to w2 ended" in told.failure.text and told.failure.hop == "w2", told
        try:
            w2.lane.recv()
            raise AssertionError("the dead worker's stream goes on")
        except Ended:
            pass
        w1.send(pb.Frame(kind=pb.ABORT, context=1, failure=pb.Failure(
            code=told.failure.code, text=told.failure.text, hop="w2")))
        answered(w1)
        assert w1.status().contexts == 0 and w1.status().values == 0
        assert time.monotonic() - begin < 5 * SLOW
        forward_and_value(w1, 2, 200, x)  # the session continues with the other worker
        the.cluster.restart(1)


@suite.test
def cancelled_large_value_leaves_no_memory_in_use():
    size = int(os.environ.get("CLEAVE_TEST_CANCEL_MIB", "8")) << 20
    dims, data = [64, size // 256], bytes(size)
    sum_of_data = crc32c(data)
    with Cluster(1, limits=f"limits: {{session_bytes: {size * 7 // 4}, receive_window: {size * 3 // 2}}}\n") as alone, \
            Caller(alone.ports[0], alone.certs) as c:
        c.hello(credit=2 * size)
        s = SessionOf(c, os.urandom(16), 1, 0)
        c.stub.OpenSession(pb.OpenSessionRequest(session=s.id, epoch=1, name="large", lanes=0,
                                                 config_digest=bytes(32)))
        s.load(pb.Graph(nodes=[node(INPUT, name="x"), node(8, [0], 0)], outputs=[1]), [64, 4], module=0)
        lane = s.attach()

        def status():
            return c.stub.Status(pb.StatusRequest(session=s.id)).sessions[0]

        for n in range(3):  # two at a time would exceed the quota and the credit
            f = call(1 + n, 100, 0, [(7, True)])
            f.call.args[0].here = True
            f.tensors.add(dtype=F32, dims=dims, bytes=size, crc32c=sum_of_data, transfer=1 + n)
            pieces = list(chunks(data, 1 + n))
            lane.send(f)
            for k in pieces[:len(pieces) // 2]:
                lane.send(k)
            lane.send(pb.Frame(kind=pb.END_CONTEXT, context=1 + n, message=5))
            assert lane.recv(timeout=60).kind == pb.ENDED
            assert (status().contexts, status().values, status().calls_waiting) == (0, 0, 0)
            for k in pieces[len(pieces) // 2:]:  # chunks that were in flight
                lane.send(k)
            deadline = time.monotonic() + 60 * SLOW
            while status().late_frames < 1 + n:
                assert time.monotonic() < deadline, status()
                time.sleep(0.01)
        assert (status().contexts, status().values, status().calls_waiting) == (0, 0, 0)
        assert status().memory_bytes <= size * 7 // 4
        small = bytes(4 * 64 * 4)
        lane.send(call(9, 900, 0, [(1, True, small, [64, 4])]))
        lane.send(deliver(9, 900))
        assert lane.recv().kind == pb.VALUE
        s.close()


run_suite(suite, "context_life", extra_allow=OBSERVER)
