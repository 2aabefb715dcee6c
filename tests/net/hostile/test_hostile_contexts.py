"""Hostile programs: well-formed frames of contexts with requests for things that do not exist, that
have ended, that do not fit, or that never end."""
from math import prod
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from hostile import *

attack = Attacks()


@attack
def call_before_load_module(e):
    lane = e.session(loaded=False).lanes[0]
    lane.send(a_call())
    refuses(lane, FAILED)
    lane.send(pb.Frame(kind=pb.STATE_GET, message=5, state=pb.State(what=pb.STATE_WEIGHTS)))
    refuses(lane, FAILED)
    return 0


# ---- frames out of order ------------------------------------------------------------------------

class Program:
    """Contexts of one session; each makes one mistake."""

    def __init__(self, e):
        self.session = e.session()
        self.lane, self.context = self.session.lanes[0], 0
        self.send = self.lane.send

    def good(self, *frames, answers=0):
        """Sends valid frames in a new context; frames: functions of its id. answers: the number of
        answers to receive, which must be no refusals."""
        self.context += 1
        for f in frames:
            self.send(f(self.context))
        for _ in range(answers):
            got = self.lane.recv()
            assert got.kind not in (pb.ABORT, pb.ERROR) and not got.HasField("failure"), got
        return self

    def refuses(self, wrong, *codes):
        self.send(wrong(self.context))
        return refuses(self.lane, *codes)

    def poisons(self, wrong, *codes, value=100):
        self.send(wrong(self.context))
        return poisons(self.lane, self.context, value, *codes)


def first(c):
    return call(c, 100, 0, [(5, True, *X)])


def passes(n=1, phase=1, to=((0, 5, 0, 0),), value=100, **kw):
    return lambda c: prepare(c, phase, [(value, n, False, to)], **kw)


def brings(of=Y, phase=1, value=100, order=0):
    return lambda c: gradient(c, phase, value, *of, order=order)


def says(kind, **fields):
    return lambda c: pb.Frame(kind=kind, context=c, message=9, **fields)


def of_integers(c):
    f = first(c)
    f.tensors[0].dtype = 4
    return f


DONE = (first, passes(), brings())  # answered by GRADIENT and FINISHED
STEP = pb.Commit(scale=1, lr=0.1, apply=True) if pyclient.MISSING is None else None


@attack
def calls_out_of_order(e):
    p = Program(e)
    # uses the id again, then the id of its input
    p.good(first).refuses(lambda c: a_call(100, c), EXISTS)
    p.good(first).poisons(lambda c: call(c, 101, 0, [(5, True, *X)]), EXISTS, value=101)
    p.good(first).refuses(lambda c: frame(pb.VALUE, *Y, context=c, message=100), FAILED)
    p.good().poisons(lambda c: call(c, 100, 0, [(0, True, *X)] * 2), INVALID)  # it has one input
    for module in (1, 77, ALL - 1, ALL):
        p.good().poisons(lambda c: call(c, 100, module, [(0, True, *X)]), NONE)
    for dims in ([4, 5], [24], [0, 5], [6, 4], [2, 2, 6], []):
        value = f32([1] * prod(dims)), dims
        p.good().poisons(lambda c: a_call(100, c, of=value), INVALID)
    p.good().poisons(of_integers, INVALID)
    return 0


@attack
def backward_out_of_order(e):
    p = Program(e)
    p.good().refuses(passes(), NONE)                                     # no call has this id
    # the id is that of its input
    p.good(first).refuses(passes(value=5), NONE)
    p.good(first).refuses(brings(value=5), NONE)
    p.good(first).refuses(passes(to=[(1, 5, 0, 0)]), INVALID)            # it has one input
    p.good(lambda c: call(c, 100, 0, [(5, False, *X)])).refuses(passes(), INVALID)
    p.good(lambda c: a_call(100, c, training=False), passes(to=[])).refuses(brings(), FAILED)
    p.good(first).refuses(lambda c: prepare(c, 1, [(100, 0, True, [])]), INVALID)  # no scalar
    # the first phase has not ended
    p.good(first, passes()).refuses(passes(phase=2), FAILED)
    p.good(first, passes(n=2), brings()).refuses(brings(), EXISTS)       # the same order number
    p.good(first, brings(), brings(order=1)).refuses(passes(), INVALID)  # more than announced
    p.good(first, passes(n=2), brings()).refuses(brings(order=2), INVALID)  # a place that is not
    # there, ahead of the pass
    p.good(first, brings(order=7)).refuses(passes(), INVALID)
    p.good(first).refuses(passes(phase=3), FAILED)                          # two passes are missing
    # the context had no part in the skipped phases
    p.good(first, passes(phase=3, skipped=2), brings(phase=3), answers=2)
    p.good(first).refuses(passes(to=[(0, 6, 0, 0)]), INVALID)               # its input was 5
    p.good(first, passes()).refuses(brings(of=X), INVALID)               # the wrong shape
    p.good(first, passes()).refuses(brings(of=(f32([1] * 16), [16])), INVALID)
    p.good(*DONE, answers=2).refuses(brings(), FAILED)                   # it is over
    p.good(*DONE, answers=2).refuses(passes(), FAILED)                   # the phase, too
    p.good(*DONE, brings(phase=2), answers=2).refuses(passes(phase=2), FAILED)  # not retained
    return 0


@attack
def steps_out_of_order(e):
    p = Program(e)
    step, back = says(pb.APPLY, module=ALL, commit=STEP), says(pb.REVERT)
    before = state(p, pb.STATE_WEIGHTS, 0)
    p.good(first, passes()).refuses(step, FAILED)            # during a backward
    p.good().refuses(passes(), NONE)
    p.refuses(step, ABORTED, NONE)                           # a step of a failed context
    p.good(*DONE, answers=2).refuses(back, FAILED)           # no step was taken
    assert state(p, pb.STATE_WEIGHTS, 0) == before
    p.good(*DONE, step, answers=3)
    after = state(p, pb.STATE_WEIGHTS, 0)
    assert after != before
    p.good(first).refuses(back, FAILED)                      # REVERT of another context's step
    p.context -= 1
    # of its own step, but the next context has begun
    p.refuses(back, FAILED)
    assert state(p, pb.STATE_WEIGHTS, 0) == after
    return 0


@attack
def an_end_whose_step_is_refused_while_calls_follow(e):
    """Calls wait for a backward whose gradient never comes, and the END_CONTEXT has a step. Calls
    of the next context use the records that were freed."""
    p, followers = Program(e), 3
    for _ in range(20):
        p.good(first, passes())
        for i in range(followers):
            follower = call(p.context, 200 + i, 0, [(0, True, *X)])
            follower.call.after = 100
            p.send(follower)
        p.send(says(pb.END_CONTEXT, commit=STEP)(p.context))
        got = [p.lane.recv() for _ in range(2)]
        assert [f.kind for f in got] == [pb.ABORT, pb.ENDED], got
        assert got[0].failure.code == FAILED.value[0] and got[1].step == 0, got
        p.good(*[lambda c, i=i: a_call(300 + i, c) for i in range(followers)],
               *[lambda c, i=i: deliver(c, 300 + i) for i in range(followers)], answers=followers)
        end(p, p.context)
    s = e.caller.stub.Status(pb.StatusRequest(session=p.session.id)).sessions[0]
    assert (s.contexts, s.values, s.calls_waiting) == (0, 0, 0), s
    return 0


@attack
def a_step_behind_an_unload(e):
    """A waiting call delays UNLOAD. A step comes after UNLOAD, and its context ends."""
    p = Program(e)
    p.good(*DONE, answers=2)
    stepping = p.context
    p.good(lambda c: call(c, 100, 0, [(99, False)]))
    p.send(pb.Frame(kind=pb.UNLOAD, module=0, message=4))
    p.send(says(pb.END_CONTEXT, commit=STEP)(stepping))
    assert p.lane.recv().kind == pb.ENDED
    end(p, p.context)
    refuses(p.lane, FAILED)
    p.send(pb.Frame(kind=pb.UNLOAD, module=0, message=5))
    assert p.lane.recv().kind == pb.UNLOADED
    return 0


@attack
def state_that_is_not_there(e):
    p = Program(e)

    def put(value, name, what=pb.STATE_WEIGHTS, module=0):
        return lambda _: frame(pb.STATE_PUT, *value, message=4, module=module, state=pb.State(
            what=what, name=name, index=0, count=1))

    before = state(p, pb.STATE_WEIGHTS, 0)
    p.refuses(put(X, "0.weight"), INVALID)  # its shape is [8, 6]
    p.refuses(put((bytes(4 * 48), [8, 6]), "0.bias"), INVALID)
    p.refuses(put(X, "9.weight"), NONE)
    for module in (1, 77, ALL):
        p.refuses(put(X, "0.weight", module=module), NONE)
        p.refuses(says(pb.STATE_GET, module=module, state=pb.State(what=pb.STATE_WEIGHTS)), NONE)
    p.refuses(put((bytes(32), [8]), "0.bias", what=pb.STATE_OPTIMIZER), NONE)
    assert state(p, pb.STATE_WEIGHTS, 0) == before
    return 0


@attack
def what_only_a_worker_says(e):
    p = Program(e)
    for kind, fields in ((pb.STATE_DONE, dict(state=pb.State(what=1))), (pb.ENDED, {}),
                         (pb.FINISHED, dict(phase=1, vote=pb.Vote(finite=True))), (pb.APPLIED, {})):
        p.good().refuses(says(kind, **fields), FAILED, UNIMPLEMENTED)
    return 0


@attack
def a_step_after_every_mistake(e):
    """After mistakes in other contexts, a call, its backward and its step work as always."""
    p = Program(e)
    p.good(first).refuses(lambda c: a_call(100, c), EXISTS)
    p.good(first, passes()).refuses(brings(of=X), INVALID)
    p.good().poisons(lambda c: a_call(100, c, of=(f32([1] * 20), [4, 5])), INVALID)
    p.good(first, lambda c: call(c, 101, 0, [(99, False)]))  # waits until its context ends
    p.good(first, lambda c: call(c, 101, 0, [(6, True, *X)]),
           lambda c: prepare(c, 1, [(101, 1, False, [(0, 6, 0, 0)]),
                                    (100, 1, False, [(0, 5, 0, 0)])], vote=True),
           brings(), brings(value=101))
    got = [p.lane.recv() for _ in range(3)]
    assert [f.kind for f in got] == [pb.GRADIENT, pb.GRADIENT, pb.FINISHED], got
    assert [f.message for f in got[:2]] == [6, 5] and got[0].payload == got[1].payload, got
    assert got[2].vote.finite, got[2]
    p.send(says(pb.APPLY, module=ALL, commit=STEP)(p.context))
    end(p, 4)
    assert p.lane.recv().kind == pb.APPLIED
    for context in (1, 2, 3, 5):
        end(p, context)
    s = e.caller.stub.Status(pb.StatusRequest(session=p.session.id)).sessions[0]
    assert (s.contexts, s.values, s.calls_waiting) == (0, 0, 0), s
    return 0


# ---- values that do not fit----------------------------------------------------------------------

@attack
def inputs_that_do_not_fit_each_other(e):
    """A sum of two inputs, batches of 4 and of 1: the worker reads nothing past the end of the
    smaller."""
    lane = e.session(graph=join_graph(), inputs=two_inputs([4, 6])).lanes[0]
    for k, (training, sizes) in enumerate((
            (True, (4, 1)), (False, (4, 1)), (True, (1, 4)), (False, (64, 2)))):
        args = [(0, False, f32([1] * 6 * n), [n, 6]) for n in sizes]
        lane.send(call(1 + k, 10, 0, args, training=training))
        poisons(lane, 1 + k, 10, INVALID)
    return 0


SECRET = 987654321012345  # an element of a tensor, which no text may contain


def is_untold(e):
    """Checks that neither the worker's status nor its log contains SECRET."""
    assert str(SECRET) not in str(e.caller.stub.Status(pb.StatusRequest()))
    assert str(SECRET) not in worker_log()


@attack
def labels_out_of_range(e):
    """A class number that is too large is an error and not used as an index."""
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(INPUT, name="y"),
                            node(CROSS_ENTROPY, [0, 1], 0)], outputs=[2])
    lane = e.session(graph=graph, optimizer=pb.Optimizer(), inputs=[
        pb.TensorSpec(dtype=F32, dims=[4, 6]), pb.TensorSpec(dtype=I64, dims=[4])]).lanes[0]

    def loss_of(context, *labels, needs_grad=False):
        data = struct.pack("<4q", *labels)
        f = call(context, 10, 0, [(0, True, *X), (0, needs_grad, data, [4])])
        f.tensors[1].dtype = I64
        lane.send(f)

    for k, bad in enumerate((6, -1, 1 << 40, -(1 << 63), SECRET)):
        loss_of(1 + k, 0, 1, bad, 2)
        assert "label of sample 2" in poisons(lane, 1 + k, 10, INVALID)
    loss_of(9, 0, 1, 5, 2, needs_grad=True)
    assert "no gradient" in poisons(lane, 9, 10, INVALID)
    is_untold(e)
    return 0


@attack
def row_numbers_out_of_range(e):
    """Row numbers of an embedding. They must not be in the failure of its value, nor in that of a
    call which uses the value."""
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(EMBEDDING, [0], 0, rows=9, out=4)], outputs=[1])
    lane = e.session(graph=graph, inputs=[pb.TensorSpec(dtype=I64, dims=[4])]).lanes[0]
    f = call(1, 10, 0, [(0, False, struct.pack("<4q", 0, 1, SECRET, 2), [4])])
    f.tensors[0].dtype = I64
    lane.send(f)
    lane.send(call(1, 11, 0, [(10, False)]))
    for value in (10, 11):
        text = poisons(lane, 1, value, INVALID)
        assert "row number of sample 2" in text and str(SECRET) not in text, text
    is_untold(e)
    return 0


# ---- frames without end ------------------------------------------------------------------------

@attack
def frames_that_wait_without_end(e):
    """Each frame claims that CALLs were sent before it, which never come."""
    lane, n = e.session().lanes[0], 2000
    drop = pb.Frame(kind=pb.DROP, context=1, step=50, upstream=[7])
    for _ in range(n // 16):
        lane.send(pb.Frame(before=[drop] * 15, kind=pb.DROP, context=1, step=50, upstream=[7]))
    refuses(lane, MORE)
    return n * 2000  # bytes that a waiting frame takes


# A module keeps at most 32 plans, and one of mlp(8, 4) takes about 40 KiB, whatever its batch size.
PLANS = 32 * (48 << 10)


@attack
def batch_sizes_without_end(e):
    """Plans that no call holds are freed for others: 200 plans would take 8 MiB. The memory of
    waiting calls is counted too, so at most 20 wait at once, even on a busy machine."""
    lane = e.session().lanes[0]
    for n in range(1, 201):
        lane.send(a_call(100 + n, of=(f32([1] * 6 * n), [n, 6]), training=False))
        if n % 20 == 0:
            lane.send(deliver(1, 100 + n))
            got = lane.recv()
            assert got.kind == pb.VALUE and got.message == 100 + n and got.tensors, got
    return PLANS + 20 * 200 * 200  # 24 bytes of input and 16 of output a record


@attack
def batch_sizes_that_stay(e):
    """Calls whose backward may still come hold their plans."""
    lane = e.session().lanes[0]
    for n in range(1, 80):
        lane.send(a_call(100 + n, of=(f32([1] * 6 * n), [n, 6])))
    poisons(lane, 1, 179, MORE)
    return PLANS + 20 * 80 * 80


@attack
def values_without_end(e):
    """A context can keep only as many tensors as fit the session's quota."""
    lane, data = e.session().lanes[0], f32([1] * 6 * 2048)
    f, n, texts = frame(pb.VALUE, data, [2048, 6], context=1), SESSION_BYTES // len(data) + 1, []

    def answer(kind):
        while (got := lane.recv()).kind == pb.ERROR:
            texts.append(got.failure.text)
        assert got.kind == kind, got
        return got

    for i in range(n):
        f.message = 1 + i
        lane.send(f)
        if i % 40 == 0:  # often enough to stay within the credit
            lane.send(pb.Frame(kind=pb.END_CONTEXT, context=2 + i, message=1))
            answer(pb.ENDED)
    lane.send(deliver(1, n))  # an error, or no memory to say so
    lane.send(pb.Frame(kind=pb.END_CONTEXT, context=1, message=1))
    while (got := lane.recv()).kind != pb.ENDED:
        assert got.kind in (pb.ERROR, pb.VALUE) and got.failure.code == MORE.value[0], got
        texts.append(got.failure.text)
    assert any("limits.session_bytes" in t for t in texts), texts
    lane.send(a_call(100, n + 2))  # the memory of the ended context is free again
    lane.send(deliver(n + 2, 100))
    assert answer(pb.VALUE).tensors
    return SESSION_BYTES // 2


if __name__ == "__main__":
    attack.main("hostile_contexts")
