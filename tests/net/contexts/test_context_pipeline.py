"""The parts of a pipeline: the order of backward passes, weights of roots, calls that follow a
backward, values that are sent without a request, keys of random numbers, running statistics that
are reverted, steps that are final. With one worker, frame by frame."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *

suite = Suite()

# ---- the order of a backward pass --------------------------------------------------------------

@suite.test
def backwards_of_a_module_run_in_listed_order():
    import itertools
    with one_module(linear_graph()) as w:
        context, seen = 1, set()
        for listed in itertools.permutations((1, 2, 3)):
            for arrive in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
                calls_of(w, context, (1, 2, 3))
                w.send(prepare(context, 1, [needed(i) for i in listed]))
                for i in arrive:
                    row_of_gradient(w, context, 1, i, BACKWARD_ORDER[i - 1])
                order = [w.recv(pb.GRADIENT).message - 1000 for _ in listed]
                assert order == list(listed), (order, listed, arrive)
                w.recv(pb.FINISHED, context=context, phase=1)
                want = in_floats([BACKWARD_ORDER[i - 1] for i in listed])
                got = gradients(w, 0, context)
                assert got["0.bias"] == want, (got, want)
                assert got["0.weight"] == flat([[v] * D for v in want]), (got, want)
                seen.add((listed, tuple(want)))
                end(w, context)
                context += 1
        by_order = dict(seen)
        assert len(by_order) == 6 and by_order[1, 2, 3] == (0.0,) * D and by_order[3, 2, 1] == (1.0,) * D


@suite.test
def backward_order_continues_over_several_prepares():
    with one_module(linear_graph()) as w:
        for context, listed in enumerate(((1, 2, 3), (3, 2, 1)), 1):
            calls_of(w, context, (1, 2, 3))
            for i in (2, 1, 3):
                row_of_gradient(w, context, 1, i, BACKWARD_ORDER[i - 1])
            for i in listed[:2]:
                w.send(more(prepare(context, 1, [needed(i)])))
            w.send(prepare(context, 1, [needed(listed[2])]))
            for i in listed:
                w.recv(pb.GRADIENT, message=1000 + i)
            w.recv(pb.FINISHED)
            want = in_floats([BACKWARD_ORDER[i - 1] for i in listed])
            assert gradients(w, 0, context)["0.bias"] == want
            end(w, context)


@suite.test
def backwards_of_different_modules_do_not_wait():
    with remote() as w:
        for module in (0, 1, 2):
            w.load(module, linear_graph(), [1, D])
        w.attach()
        for module in (0, 1, 2):
            calls_of(w, 5, (10 + module,), module)
        w.send(prepare(5, 1, [needed(10), needed(11), needed(12)]))
        for i in (12, 11):  # call 10 is listed first, but its gradient does not come
            row_of_gradient(w, 5, 1, i, BACKWARD_ORDER[0])
            w.recv(pb.GRADIENT, message=1000 + i)
        nothing_else(w)
        row_of_gradient(w, 5, 1, 10, BACKWARD_ORDER[0])
        w.recv(pb.GRADIENT, message=1010)
        w.recv(pb.FINISHED, phase=1)


@suite.test
def backward_waits_for_the_call_listed_before_it():
    with one_module(linear_graph()) as w:
        calls_of(w, 6, (1, 2))
        w.send(prepare(6, 1, [needed(1), needed(2)]))
        row_of_gradient(w, 6, 1, 2, BACKWARD_ORDER[1])
        nothing_else(w)
        row_of_gradient(w, 6, 1, 1, BACKWARD_ORDER[0])
        assert [w.recv(pb.GRADIENT).message for _ in (1, 2)] == [1001, 1002]
        w.recv(pb.FINISHED)


@suite.test
def backward_pass_ends_only_after_its_last_prepare():
    with one_module(linear_graph()) as w:
        calls_of(w, 7, (1, 2, 3))
        row_of_gradient(w, 7, 1, 3, [3.0] * D)  # before the worker knows of the backward
        w.send(more(prepare(7, 1, [needed(1)], vote=True)))
        row_of_gradient(w, 7, 1, 1, [1.0] * D)
        w.recv(pb.GRADIENT, message=1001, phase=1)
        nothing_else(w)  # all calls so far have run, but the pass is not finished
        row_of_gradient(w, 7, 1, 2, [2.0] * D)  # a gradient of the pass, ahead of its PREPARE
        w.send(more(prepare(7, 1, [needed(2)], vote=True)))
        w.recv(pb.GRADIENT, message=1002)
        nothing_else(w)
        w.send(prepare(7, 1, [needed(3)], vote=True))
        w.recv(pb.GRADIENT, message=1003)
        done = w.recv(pb.FINISHED, phase=1)
        # the gradients of all three calls: 1 + 2 + 3 in each element
        close(numbers(done), [36.0 * D * D, 36.0 * D])
        w.send(prepare(7, 1, [needed(3)]))
        assert "phase 1 is over" in w.recv(pb.ABORT).failure.text


@suite.test
def prepare_waits_only_for_as_many_calls_as_it_names():
    with one_module(linear_graph()) as w:
        calls_of(w, 8, (1,))
        f = more(prepare(8, 1, [needed(1)]))
        f.step = 1
        w.lane.send(f)
        row_of_gradient(w, 8, 1, 1, [1.0] * D)
        w.recv(pb.GRADIENT, message=1001)
        f = prepare(8, 1, [needed(2)])
        f.step = 2  # a step that has not come yet
        w.lane.send(f)
        row_of_gradient(w, 8, 1, 2, [2.0] * D)
        nothing_else(w)
        calls_of(w, 8, (2,))
        w.recv(pb.GRADIENT, message=1002)
        w.recv(pb.FINISHED)
        assert gradients(w, 0, 8)["0.bias"] == [3.0] * D


# ---- roots -------------------------------------------------------------------------------------

@suite.test
def backward_root_uses_the_given_gradient():
    r = random.Random(50)
    with remote() as w:
        w.load(0, tanh_graph(), [N, D])
        w.load(1, mse_graph(), [N, D], inputs=two_inputs([N, D]))
        w.attach()
        x, want, found = raw(randoms(r, N, D)), raw(randoms(r, N, D)), {}
        for context, root, contribution in ((1, 1, None), (2, 0.25, None), (3, -2, None), (4, 0.5, -0.25)):
            w.send(call(context, 10, 0, [(1, True, x, [N, D])]))
            w.send(call(context, 11, 1, [(10, True), (2, False, want, [N, D])]))
            w.send(prepare(context, 1, [(11, int(contribution is not None), root, [(0, 10, 0, 0)]),
                                        (10, 1, False, [(0, 1, 0, 0)])]))
            if contribution is not None:
                w.send(gradient(context, 1, 11, f32([contribution]), []))
            dx = numbers(w.recv(pb.GRADIENT, message=1))
            w.recv(pb.FINISHED)
            found[root, contribution] = [dx] + [v for _, v in sorted(gradients(w, 0, context).items())]
        unit = found.pop((1, None))
        for (root, contribution), got in found.items():
            factor = root + (contribution or 0)  # powers of two: exact
            assert got == [[factor * v for v in part] for part in unit], (root, contribution)
        assert any(flat(unit))


# ---- calls that follow a backward --------------------------------------------------------------

def follower(context, message, after, x=ONES, module=0, **kw):
    f = call(context, message, module, [(1000 + message, True, x, [1, D])], **kw)
    f.call.after = after
    return f


@suite.test
def call_with_after_runs_once_that_backward_is_done():
    with remote() as w:
        for module in (0, 1):
            w.load(module, linear_graph(), [1, D])
        w.attach()
        calls_of(w, 1, (10,))
        w.send(follower(1, 11, 10))
        w.send(follower(1, 12, 11, module=1))  # call 12 is of another module and follows call 11
        for i in (10, 11, 12):
            w.send(deliver(1, i))
        w.recv(pb.VALUE, message=10)
        assert settled(w, calls_waiting=2).modules[0].forwards == 1
        w.send(more(prepare(1, 1, [needed(10)])))
        nothing_else(w)
        row_of_gradient(w, 1, 1, 10, [1.0] * D)
        w.recv(pb.GRADIENT, message=1010)
        w.recv(pb.VALUE, message=11)
        s = settled(w, calls_waiting=1)
        assert [(k.forwards, k.backwards) for k in s.modules] == [(2, 1), (0, 0)], s
        w.send(prepare(1, 1, [needed(11), needed(12)]))
        # the gradient of 12 may have no effect before 12 has run
        row_of_gradient(w, 1, 1, 12, [1.0] * D)
        nothing_else(w)
        row_of_gradient(w, 1, 1, 11, [2.0] * D)
        assert [(f.kind, f.message) for f in (w.lane.recv() for _ in range(3))] == [
            (pb.GRADIENT, 1011), (pb.VALUE, 12), (pb.GRADIENT, 1012)]
        w.recv(pb.FINISHED)
        assert gradients(w, 0, 1)["0.bias"] == [3.0] * D and gradients(w, 1, 1)["0.bias"] == [1.0] * D
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)


@suite.test
def several_calls_may_wait_for_one_backward():
    with one_module(linear_graph()) as w:
        calls_of(w, 1, (10,))
        for i in (11, 12, 13):
            w.send(follower(1, i, 10))
            w.send(deliver(1, i))
        settled(w, calls_waiting=3)
        w.send(prepare(1, 1, [needed(10)]))
        row_of_gradient(w, 1, 1, 10, [1.0] * D)
        w.recv(pb.GRADIENT)
        got = [w.lane.recv() for _ in range(4)]
        assert sorted((f.kind, f.message) for f in got if f.kind == pb.VALUE) == [
            (pb.VALUE, 11), (pb.VALUE, 12), (pb.VALUE, 13)] and got[-1].kind in (pb.VALUE, pb.FINISHED)
        settled(w, calls_waiting=0)


@suite.test
def call_after_a_call_without_pending_backward_runs_at_once():
    with one_module(linear_graph()) as w:
        calls_of(w, 1, (10, 20))
        w.send(prepare(1, 1, [needed(10)]))  # its saved values are used up
        row_of_gradient(w, 1, 1, 10, [1.0] * D)
        w.recv(pb.GRADIENT)
        w.recv(pb.FINISHED)
        w.send(prepare(1, 2, [needed(20)], retain=True))  # retained
        row_of_gradient(w, 1, 2, 20, [1.0] * D)
        w.recv(pb.GRADIENT)
        w.recv(pb.FINISHED)
        calls_of(w, 1, (50,))
        w.send(prepare(1, 3, [needed(50)]))  # no gradient flows
        w.send(pb.Frame(kind=pb.GRADIENT, context=1, phase=3, message=50))
        assert not w.recv(pb.GRADIENT, message=1050).tensors
        w.recv(pb.FINISHED)
        calls_of(w, 1, (30,), training=False)  # evaluation
        w.send(call(1, 40, 0, [(1040, True, f32([1.0] * 5), [1, 5])]))  # failed
        for leader in (10, 20, 30, 40, 50):
            w.send(follower(1, leader + 1, leader))
            w.send(deliver(1, leader + 1))
            assert numbers(w.recv(pb.VALUE, message=leader + 1))
        settled(w, calls_waiting=0)


@suite.test
def call_runs_when_its_leader_turns_out_to_have_no_backward():
    with one_module(linear_graph()) as w:
        for context, leader in ((1, dict(training=False)), (2, {})):
            w.send(call(context, 10, 0, [(9, True)], **leader))  # its input has not come yet
            w.send(follower(context, 11, 10))
            w.send(deliver(context, 11))
            settled(w, calls_waiting=2)
            if context == 1:
                w.send(frame(pb.VALUE, ONES, [1, D], context=context, message=9))
            else:
                w.send(pb.Frame(kind=pb.VALUE, context=context, message=9,
                                failure=pb.Failure(code=3, text="it broke", hop="elsewhere")))
            assert numbers(w.recv(pb.VALUE, message=11))
            settled(w, calls_waiting=0)
            end(w, context)


@suite.test
def call_after_an_unknown_call_fails_its_value():
    with one_module(linear_graph()) as w:
        w.send(frame(pb.VALUE, ONES, [1, D], context=1, message=5))
        for i, after in ((10, 99), (11, 5), (12, 12)):  # an unknown call, a leaf, the call itself
            w.send(follower(1, i, after))
            w.send(deliver(1, i))
            f = failure_of(w, i)
            assert f.code == 5 and f"call {after}, after whose backward module 0 is to run" in f.text, f
        calls_of(w, 2, (20,))
        w.send(follower(1, 13, 20))  # of another context
        w.send(deliver(1, 13))
        assert failure_of(w, 13).code == 5
        calls_of(w, 1, (14,))  # the context continues
        w.send(deliver(1, 14))
        assert numbers(w.recv(pb.VALUE, message=14))
        settled(w, calls_waiting=0)


@suite.test
def failed_context_fails_the_calls_waiting_for_its_backwards():
    with one_module(linear_graph()) as w:
        calls_of(w, 1, (10,))
        for i, after in ((11, 10), (12, 10), (13, 12)):
            w.send(follower(1, i, after))
            w.send(deliver(1, i))
        settled(w, calls_waiting=3)
        w.send(prepare(1, 1, [needed(99)]))
        why = w.recv(pb.ABORT, context=1).failure
        assert why.code == 5 and "call 99 is not known at this node" in why.text, why
        failed = sorted((w.recv(pb.VALUE) for _ in range(3)), key=lambda f: f.message)
        assert [(f.message, f.failure.text) for f in failed] == [(i, why.text) for i in (11, 12, 13)], failed
        settled(w, contexts=1, calls_waiting=0)
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)


@suite.test
def ended_context_frees_calls_waiting_for_a_backward():
    with one_module(linear_graph()) as w:
        for how in (pb.END_CONTEXT, pb.ABORT):
            context = 1 + how
            calls_of(w, context, (10,))
            for i in range(11, 16):
                w.send(follower(context, i, i - 1))
                w.send(deliver(context, i))
            w.send(follower(context, 16, 10))
            settled(w, contexts=1, calls_waiting=6)
            if how == pb.ABORT:
                why = pb.Failure(code=10, text="elsewhere")
                w.send(pb.Frame(kind=pb.ABORT, context=context, failure=why))
            else:
                end(w, context)
            settled(w, contexts=0, values=0, calls_waiting=0)
        forward_and_value(w, 90, 90, [[1.0] * D] * N)


@suite.test
def dropped_leader_value_still_lets_its_follower_run():
    with one_module(linear_graph()) as w:
        calls_of(w, 1, (10,))
        w.send(follower(1, 11, 10))
        w.send(deliver(1, 11))
        w.send(pb.Frame(kind=pb.DROP, context=1, upstream=[10, 1010, 1011]))
        settled(w, calls_waiting=1)
        nothing_else(w)
        w.send(prepare(1, 1, [needed(10)]))
        row_of_gradient(w, 1, 1, 10, [1.0] * D)
        w.recv(pb.GRADIENT)
        got = {f.kind: f for f in (w.lane.recv(), w.lane.recv())}
        assert got[pb.VALUE].message == 11 and pb.FINISHED in got
        settled(w, values=1, calls_waiting=0)  # only the follower's value


@suite.test
def dropped_follower_value_does_not_affect_its_leader():
    with one_module(linear_graph()) as w:
        calls_of(w, 1, (10,))
        w.send(follower(1, 11, 10))
        w.send(pb.Frame(kind=pb.DROP, context=1, upstream=[11, 1011]))
        settled(w, calls_waiting=1)
        w.send(prepare(1, 1, [needed(10)]))
        row_of_gradient(w, 1, 1, 10, [1.0] * D)
        w.recv(pb.GRADIENT)
        w.recv(pb.FINISHED)
        settled(w, calls_waiting=0, values=2)


# ---- values sent without a request -------------------------------------------------------------

@suite.test
def call_with_deliver_flag_sends_its_value():
    with one_module(linear_graph()) as w:
        f = call(1, 10, 0, [(9, True)])
        f.flags |= pb.FLAG_DELIVER
        w.send(f)
        nothing_else(w)
        w.send(frame(pb.VALUE, ONES, [1, D], context=1, message=9))
        asked = w.recv(pb.VALUE, message=10, context=1, to="")
        f = call(1, 11, 0, [(8, True, bytes(20), [1, 5])])
        f.flags |= pb.FLAG_DELIVER
        w.send(f)
        assert failure_of(w, 11).code == 3
        calls_of(w, 1, (12,))  # without the flag nothing comes
        nothing_else(w)
        w.send(deliver(1, 12))
        assert w.recv(pb.VALUE, message=12).payload == asked.payload


def value_for_a_peer(direct):
    with Pair(direct) as two:
        w1, w2 = two.a, two.b
        w1.load(0, linear_graph(), [1, D], peers=["w2"] if direct else [])
        w2.load(1, linear_graph(), [1, D])
        two.attach()
        w2.send(call(1, 11, 1, [(10, True)]))
        w2.send(deliver(1, 11))
        f = call(1, 10, 0, [(1, True, ONES, [1, D])])
        f.flags |= pb.FLAG_DELIVER
        f.to = "w2"
        w1.send(f)
        assert numbers(two.recv(w2, pb.VALUE, message=11))
        assert two.relayed == (0 if direct else 1)
        nothing_else(w1)


@suite.test
def call_with_deliver_flag_sends_to_a_peer_direct():
    value_for_a_peer(True)


@suite.test
def call_with_deliver_flag_sends_to_a_peer_via_master():
    value_for_a_peer(False)


# ---- keys of random numbers --------------------------------------------------------------------

def dropout_graph():
    drop = node(15, [0], 0)
    drop.attrs.append(pb.Attr(key=7, number=0.5))
    return pb.Graph(nodes=[node(INPUT, name="x"), drop], outputs=[1])


@suite.test
def dropout_is_keyed_by_step_and_micro_batch():
    dims = [4, 64]
    ones = f32([1.0] * 256)
    with remote() as w:
        w.load(0, dropout_graph(), dims)
        w.attach()
        next_id = iter(range(100, 10_000))

        def mask(context, step, micro, training=True):
            i = next(next_id)
            f = call(context, i, 0, [(0, True, ones, dims)], training=training, micro=micro)
            f.step = step
            w.send(f)
            w.send(deliver(context, i))
            return tuple(numbers(w.recv(pb.VALUE, message=i)))

        first = mask(1, 7, 0)
        assert set(first) == {0.0, 2.0} and 64 < first.count(0.0) < 192
        assert mask(1, 7, 0) == first == mask(2, 7, 0)
        assert len({first, mask(1, 7, 1), mask(1, 7, 2), mask(1, 8, 0), mask(2, 8, 1)}) == 5
        # 0 stands for the context's number, without its bits for the node that numbered it
        assert mask(3, 0, 0) == mask(4, 3, 0) != first
        assert mask((5 << 48) | 9, 0, 1) == mask(4, 9, 1)
        assert mask(1, 7, 0, training=False) == (1.0,) * 256


@suite.test
def second_backward_reuses_the_dropout_mask():
    dims = [4, 64]
    with remote() as w:
        w.load(0, dropout_graph(), dims)
        w.attach()
        f = call(1, 10, 0, [(1, True, f32([1.0] * 256), dims)], micro=3)
        f.step = 12
        f.flags |= pb.FLAG_DELIVER
        w.send(f)
        mask = numbers(w.recv(pb.VALUE, message=10))
        for phase in (1, 2):
            w.send(prepare(1, phase, [(10, 1, False, [(0, 1, 0, 0)])], retain=True))
            w.send(gradient(1, phase, 10, f32([1.0] * 256), dims))
            assert numbers(w.recv(pb.GRADIENT, message=1, phase=phase)) == mask
            w.recv(pb.FINISHED)


# ---- running statistics ------------------------------------------------------------------------

NORM_IN = [N, 2]


def norm_graph():
    return pb.Graph(nodes=[node(INPUT, name="x"), node(BATCHNORM, [0], 0)], outputs=[1])


class Norm:
    """A worker with one batchnorm; each training call moves its running statistics."""

    def __init__(self, seed, **kw):
        self.r, self.w, self.next = random.Random(seed), remote(), 100
        self.w.load(0, norm_graph(), NORM_IN, **kw)
        self.w.attach()

    def call(self, context, training=True):
        self.next += 1
        f = call(context, self.next, 0, [(5000 + self.next, True, raw(randoms(self.r, N, 2)), NORM_IN)],
                 training=training)
        f.flags |= pb.FLAG_DELIVER
        self.w.send(f)
        self.w.recv(pb.VALUE, message=self.next)
        return self.next

    def backward(self, context, phase, value, **kw):
        self.w.send(prepare(context, phase, [(value, 1, False, [(0, 5000 + value, 0, 0)])], **kw))
        self.w.send(gradient(context, phase, value, raw(randoms(random.Random(1), N, 2)), NORM_IN))
        self.w.recv(pb.GRADIENT)
        return self.w.recv(pb.FINISHED)

    def statistics(self):
        return {k: v for k, v in state(self.w, pb.STATE_WEIGHTS, 0).items() if "running" in k or "num" in k}

    def abort(self, context):
        self.w.send(pb.Frame(kind=pb.ABORT, context=context, failure=pb.Failure(code=10, text="elsewhere")))

    def end(self, context, does=None):
        f = pb.Frame(kind=pb.END_CONTEXT, context=context, message=78)
        if does is not None:
            f.commit.CopyFrom(pb.Commit(scale=1, lr=0.1, apply=does))
        self.w.send(f)
        self.w.recv(pb.ENDED, context=context)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.w.close()


@suite.test
def running_statistics_are_restored_when_no_step_is_taken():
    with Norm(60) as n:
        before = n.statistics()
        assert len(before) >= 2
        for context, give_up in ((1, "apply"), (2, "end"), (3, "abort")):
            values = [n.call(context), n.call(context)]
            moved = n.statistics()
            assert all(moved[k] != before[k] for k in before), (moved, before)
            n.backward(context, 1, values[0], vote=True)
            if give_up == "apply":
                apply(n.w, context, does=False)
                n.w.recv(pb.APPLIED)
                assert n.statistics() == before
                n.call(context)  # once more in the same context
                n.abort(context)
            elif give_up == "end":
                n.end(context, does=False)
            else:
                n.abort(context)
            assert n.statistics() == before, give_up
        n.call(4, training=False)  # evaluation moves nothing
        assert n.statistics() == before


@suite.test
def running_statistics_are_kept_by_a_step_or_a_plain_end():
    with Norm(61) as n:
        for context, finish in ((1, lambda c: n.end(c)), (2, lambda c: n.end(c, does=True))):
            before = n.statistics()
            value = n.call(context)
            moved = n.statistics()
            n.backward(context, 1, value, vote=True)
            finish(context)
            assert n.statistics() == moved != before
            n.abort(context)  # late: the statistics are no longer kept
            assert n.statistics() == moved
        value = n.call(3)
        n.backward(3, 1, value, vote=True)
        moved = n.statistics()
        apply(n.w, 3)
        n.w.recv(pb.APPLIED)
        n.end(3)
        assert n.statistics() == moved


@suite.test
def abort_keeps_statistics_that_another_context_changed():
    for give_up in ("apply", "end", "abort"):
        with Norm(62) as n:
            first = n.call(1)
            n.call(2)
            moved = n.statistics()
            if give_up == "apply":
                n.backward(1, 1, first)
                apply(n.w, 1, does=False)
                n.w.recv(pb.APPLIED)
            elif give_up == "end":
                n.end(1, does=False)
            else:
                n.abort(1)
            assert n.statistics() == moved, give_up
        # a second call of the same context does not change the statistics to revert to
        with Norm(62) as n:
            n.call(1), n.call(2), n.call(1)
            moved = n.statistics()
            n.abort(1)
            assert n.statistics() == moved
        with Norm(62) as n:  # an evaluation in between makes nothing final
            before = n.statistics()
            n.call(1)
            n.call(2, training=False)
            n.abort(1)
            assert n.statistics() == before


@suite.test
def abort_keeps_running_statistics_that_were_written():
    with Norm(65) as n:
        n.call(1)
        name = next(k for k in n.statistics() if "mean" in k)
        f = frame(pb.STATE_PUT, f32([5.0, 6.0]), [2], message=901, state=pb.State(
            what=pb.STATE_WEIGHTS, name=name, count=1))
        n.w.send(f)
        n.w.recv(pb.STATE_DONE, reply_to=901)
        n.abort(1)
        assert floats(n.statistics()[name]) == [5.0, 6.0]


@suite.test
def recompute_leaves_running_statistics_unchanged():
    with Norm(63) as n:
        value = n.call(1)
        moved = n.statistics()
        n.backward(1, 1, value, retain=True)
        once = gradients(n.w, 0, 1)
        assert n.statistics() == moved
        n.backward(1, 2, value)
        assert n.statistics() == moved
        twice = gradients(n.w, 0, 1)
        assert all(twice[k] == [2 * v for v in once[k]] for k in once) and any(flat(once.values()))


# ---- steps that are final ----------------------------------------------------------------------

@suite.test
def final_step_cannot_be_reverted():
    r = random.Random(64)
    x, dy, after = randoms(r, N, D), randoms(r, N, D), {}
    for final in (False, True):
        o = pb.Optimizer()
        o.CopyFrom(ADAM["optimizer"])
        o.final = final
        with one_module(optimizer=o) as w:
            for context in (1, 2, 3):
                forward_and_value(w, context, 10, x)
                backward(w, context, 1, 10, dy, vote=True)
                apply(w, context)
                w.recv(pb.APPLIED, context=context)
                stepped = everything(w)
                w.send(pb.Frame(kind=pb.REVERT, context=context, message=79))
                answer = w.lane.recv()
                if final:
                    assert answer.kind == pb.ERROR and answer.failure.code == 9, answer
                    assert everything(w) == stepped
                else:
                    assert answer.kind == pb.APPLIED, answer
                    apply(w, context)
                    w.recv(pb.APPLIED)
                end(w, context)
            after[final] = everything(w)
            assert struct.unpack("<q", after[final][1]["step"])[0] == 3 == w.status().modules[0].steps
    assert after[False] == after[True]


@suite.test
def final_step_keeps_no_copy_of_the_weights():
    side = 256
    parameters = 4 * (side * side + side)
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=side)], outputs=[1])
    data, grown = bytes(4 * side), {}
    for final in (False, True):
        o = pb.Optimizer(kind=pb.OPTIMIZER_ADAM, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, final=final)
        with remote() as w:
            w.load(0, graph, [1, side], optimizer=o)
            w.attach()

            def step(context):
                w.send(call(context, 10, 0, [(1, False, data, [1, side])]))
                w.send(prepare(context, 1, [(10, 1, False, [])], vote=True))
                w.send(gradient(context, 1, 10, data, [1, side]))
                w.recv(pb.FINISHED)
                held = w.status().memory_bytes
                apply(w, context)
                w.recv(pb.APPLIED)
                end(w, context)
                return held

            w.send(call(9, 10, 0, [(1, False, data, [1, side])]))
            # no vote and no step: everything except the copy of the parameters
            w.send(prepare(9, 1, [(10, 1, False, [])]))
            w.send(gradient(9, 1, 10, data, [1, side]))
            w.recv(pb.FINISHED)
            plain = w.status().memory_bytes
            end(w, 9)
            grown[final] = max(step(1), step(2), w.status().memory_bytes) - plain
    assert grown[False] >= 3 * parameters, grown  # parameters and two moments
    assert grown[True] < parameters // 4, grown


run_suite(suite, "context_pipeline")
