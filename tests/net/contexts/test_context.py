"""A client without code of Cleave runs programs over modules on one and two workers: calls in
graphs of any shape, backward passes over a tape that the client keeps itself. The numbers are
compared with a network in Python floats, computed here."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *

suite = Suite()


@suite.test
def call_returns_its_value_and_gradients():
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
        g = w.recv(pb.GRADIENT, message=1, context=11, phase=1, order=5)
        close(numbers(g), flat(dx))
        done = w.recv(pb.FINISHED, context=11, phase=1)
        squares = [sum(v * v for v in flat(m.dw)), sum(v * v for v in m.db)]
        assert done.vote.finite
        close(numbers(done), squares)
        got = gradients(w, 0, 11)
        assert sorted(got) == ["0.bias", "0.weight"]
        close(got["0.weight"], flat(m.dw))
        close(got["0.bias"], m.db)
        end(w, 11)


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
        w2.send(call(11, Q, 2, [(H, True)]))  # sent before the input's own call
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
def fan_out_and_join_over_a_direct_link_sums_gradients():
    fan_out_and_join(True)


@suite.test
def fan_out_and_join_via_the_master_sums_gradients():
    fan_out_and_join(False)


@suite.test
def round_trip_from_a_to_b_to_a_adds_both_gradients():
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


@suite.test
def unused_call_does_not_hang_the_backward():
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
        assert w.status().values == 2  # the values of x and of call 300
        end(w, 13)


@suite.test
def missing_gradient_is_sent_on_as_an_empty_one():
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
        w.send(gradient(15, 1, 320, raw(dz), [N, D], order=1))
        w.send(gradient(15, 1, 320, raw(dy), [N, D], order=0))
        w.send(deliver(15, 320))
        w.recv(pb.VALUE)
        assert w.lane.poll() is None
        w.send(prepare(15, 1, [(320, 2, False, [(0, 1, 0, 0)])]))
        close(numbers(w.recv(pb.GRADIENT)), flat(m.backward(x, m.forward(x), plus(dy, dz))))
        w.recv(pb.FINISHED)


@suite.test
def deliver_and_consumers_may_arrive_before_the_call():
    r = random.Random(7)
    with one_module() as w:
        m, x = Tanh(w, 0), randoms(r, N, D)
        w.send(deliver(16, 331))
        w.send(call(16, 331, 0, [(330, True)]))
        w.send(deliver(16, 330))
        w.send(pb.Frame(kind=pb.PING, message=3))
        assert w.recv(pb.PONG).reply_to == 3
        settled(w, calls_waiting=1, contexts=1)
        w.send(call(16, 330, 0, [(1, True, raw(x), [N, D])]))
        h = m.forward(x)
        got = {f.message: numbers(f) for f in (w.recv(pb.VALUE), w.recv(pb.VALUE))}
        close(got[330], flat(h))
        close(got[331], flat(m.forward(h)))
        assert w.status().calls_waiting == 0


@suite.test
def backward_waits_for_a_call_that_it_overtook():
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
        assert w.status().values == 1  # the leaf; value 340 was freed after its backward


@suite.test
def second_retained_backward_doubles_gradient_third_is_refused():
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
        assert f.failure.code == 9 and "call 350 of module 0" in f.failure.text and "retain" in f.failure.text, f


@suite.test
def retained_backward_keeps_statistics_and_dropout_mask():
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


run_suite(suite, "context")
