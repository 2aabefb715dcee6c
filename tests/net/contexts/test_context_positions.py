"""Positions: the order that a master gives to the work of a context at a worker (PROTOCOL.md 6).
Frame by frame: the order in which work runs, work that waits, refusals, and the memory that is left
at the end. Steps in position and the weights before them are in test_context_steps.py."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *

suite = Suite()
ROW = [1.0] * D


def three_modules(**kw):
    w = remote()
    for module in range(3):
        w.load(module, linear_graph(), [1, D], **kw)
    w.attach()
    return w


# ---- forwards ----------------------------------------------------------------------------------

@suite.test
def forwards_run_in_position_order_across_modules():
    import itertools
    with three_modules() as w:
        for context, arrive in enumerate(itertools.permutations((1, 2, 3, 4)), 1):
            for position in arrive:  # 1 and 3 are of one module, 2 and 4 of two others
                at_position(w, context, 10 + position, position, module=(0, 0, 1, 0, 2)[position])
            values(w, 11, 12, 13, 14)
            end(w, context)


@suite.test
def missing_input_blocks_only_later_positions():
    with three_modules() as w:
        at_position(w, 1, 11, 1, sent=False)
        at_position(w, 1, 12, 2, module=1)
        at_position(w, 1, 13, 3, module=2)
        at_position(w, 1, 20, 0, module=1)  # position 0: in no order
        at_position(w, 2, 30, 1, module=1)  # of another context
        values(w, 20, 30)
        nothing_else(w)
        assert settled(w, calls_waiting=3).contexts == 2
        bring(w, 1, 11)
        values(w, 11, 12, 13)
        settled(w, calls_waiting=0)


@suite.test
def gap_blocks_later_positions_until_filled_or_context_ends():
    with three_modules() as w:
        for i in (1, 2, 4, 5):
            at_position(w, 1, 10 + i, i)
        values(w, 11, 12)
        nothing_else(w)
        settled(w, calls_waiting=2)
        at_position(w, 1, 13, 3, module=2)
        values(w, 13, 14, 15)
        at_position(w, 1, 17, 7)
        nothing_else(w)
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)


@suite.test
def failed_call_counts_as_a_completed_position():
    with three_modules() as w:
        at_position(w, 1, 13, 3)
        at_position(w, 1, 12, 2, module=9)
        at_position(w, 1, 11, 1)
        values(w, 11)
        assert "module 9 is not loaded at this node" in failure_of(w, 12).text
        values(w, 13)
        at_position(w, 1, 14, 4, sent=False)
        at_position(w, 1, 15, 5)
        w.send(pb.Frame(kind=pb.VALUE, context=1, message=2014,
                        failure=pb.Failure(code=3, text="it broke", hop="elsewhere")))
        assert failure_of(w, 14).text == "it broke"
        values(w, 15)


# ---- positions that are wrong --------------------------------------------------------------------

@suite.test
def call_at_a_completed_position_fails():
    with three_modules() as w:
        at_position(w, 1, 11, 1)
        at_position(w, 1, 12, 2)
        values(w, 11, 12)
        at_position(w, 1, 13, 1, module=1)
        f = failure_of(w, 13)
        assert f.code == 9 and f.text == "position 1 is over: 2 positions are done" and f.hop == "module 1", f
        at_position(w, 1, 14, 3)  # the context goes on
        values(w, 14)
        w.send(steps_at(1, 2))
        aborted(w, 9, "position 2 is over")


@suite.test
def call_at_a_used_position_fails():
    for kind in range(3):
        with three_modules() as w:
            positions = [2, 3, 4]
            at_position(w, 1, 12, *positions)
            positions = ([2, 6, 7], [5, 3, 7], [5, 6, 4])[kind]
            if positions == sorted(positions):
                at_position(w, 1, 13, *positions)
                f = failure_of(w, 13)
                assert f.code == 6 and f.text == "position 2 is taken", f
            at_position(w, 1, 11, 1, module=2)
            values(w, 11, 12)
            at_position(w, 1, 15, 5, 6, 7)  # the positions of the refused call are free again
            settled(w, calls_waiting=1)


@suite.test
def position_of_a_waiting_call_is_in_use():
    with three_modules() as w:
        at_position(w, 1, 11, 1, sent=False)
        nothing_else(w)
        at_position(w, 1, 12, 1, module=1)
        assert failure_of(w, 12).text == "position 1 is taken"
        bring(w, 1, 11)
        values(w, 11)
        at_position(w, 1, 13, 2)
        values(w, 13)


def given_twice(*frames):
    """Sends two frames for position 3; all earlier positions have come."""
    with three_modules() as w:
        for send in frames:
            send(w)
        w.send(prepare(1, 1, [needed(11), needed(12)]))
        for i in (11, 12):
            row_of_gradient(w, 1, 1, i, ROW)
        f = w.lane.recv()
        while f.kind in (pb.VALUE, pb.GRADIENT):
            f = w.lane.recv()
        assert f.kind == pb.ABORT and f.failure.code == 6 and "position 3 is given twice" in f.failure.text, f
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)


def giving(i, *positions):
    return lambda w: at_position(w, 1, i, *positions)


@suite.test
def position_used_by_two_kinds_fails_the_context():
    step = lambda w: w.send(steps_at(1, 3))
    given_twice(giving(11, 1, 2), giving(12, 3, 4), step)
    given_twice(giving(11, 1, 3), giving(12, 2, 4), step)
    given_twice(giving(11, 1, 2, 3), giving(12, 4, 5), step)
    given_twice(giving(11, 1, 3), giving(12, 2, 4), giving(13, 3))
    given_twice(giving(11, 1, 2, 3), giving(12, 3, 5))


@suite.test
def step_at_the_position_of_a_waiting_call_is_refused():
    with three_modules() as w:
        at_position(w, 1, 11, 1, sent=False)
        w.send(steps_at(1, 1, module=1))
        aborted(w, 6, "position 1 is taken")


@suite.test
def descending_or_too_large_positions_end_the_stream():
    def refused(f):
        w = three_modules()
        w.send(f)
        try:
            f = w.lane.recv()
            assert False, f
        except Ended as e:
            assert e.code == pyclient.grpc.StatusCode.INVALID_ARGUMENT, e
        try:  # an identity may have eight sessions; the worker may have closed this one
            w.close()
        except pyclient.grpc.RpcError as e:
            assert e.code() == pyclient.grpc.StatusCode.NOT_FOUND, e
    for positions in ((0, 1, 0), (1, 0, 2), (2, 2, 0), (3, 2, 0), (1, 3, 3), (1, 3, 2), ((1 << 20) + 1, 0, 0),
                  (1, 1 << 31, 0), (1, 2, 0xffffffff)):
        f = call(1, 11, 0, [(1, True, ONES, [1, D])])
        f.call.position, f.call.input_position, f.call.weight_position = positions
        refused(f)
    refused(steps_at(1, (1 << 20) + 1))
    refused(steps_at(1, 1, apply=False))
    f = pb.Frame(kind=pb.END_CONTEXT, context=1, message=7, commit=pb.Commit(scale=1, position=1, apply=True))
    refused(f)


@suite.test
def largest_position_is_accepted_and_waits():
    with three_modules() as w:
        at_position(w, 1, 11, (1 << 20) - 2, (1 << 20) - 1, 1 << 20)
        w.send(steps_at(1, (1 << 20) - 3))
        nothing_else(w)
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)


# ---- backwards -----------------------------------------------------------------------------------

def leaves(w, *ids):
    for i in ids:
        w.recv(pb.GRADIENT, message=1000 + i)


@suite.test
def backwards_wait_for_their_positions():
    with three_modules() as w:
        at_position(w, 1, 11, 1, 4)
        at_position(w, 1, 12, 2, 6, module=1)
        values(w, 11, 12)
        w.send(prepare(1, 1, [needed(11), needed(12)]))
        for i in (11, 12):
            row_of_gradient(w, 1, 1, i, ROW)
        nothing_else(w)
        at_position(w, 1, 13, 3, module=2)  # no backward reads it
        values(w, 13)
        leaves(w, 11)
        nothing_else(w)
        at_position(w, 1, 14, 5)
        values(w, 14)
        leaves(w, 12)
        w.recv(pb.FINISHED, phase=1)


@suite.test
def missing_gradient_blocks_later_forwards_and_backwards():
    with three_modules() as w:
        at_position(w, 1, 11, 1, 2)
        at_position(w, 1, 12, 3, 4, module=1)
        at_position(w, 1, 13, 5, module=2)
        w.send(prepare(1, 1, [needed(11), needed(12)]))
        row_of_gradient(w, 1, 1, 12, ROW)
        values(w, 11)
        nothing_else(w)
        row_of_gradient(w, 1, 1, 11, ROW)
        leaves(w, 11)
        values(w, 12)
        leaves(w, 12)
        got = {f.kind for f in (w.lane.recv(), w.lane.recv())}
        assert got == {pb.VALUE, pb.FINISHED}, got


# ---- gradients of parameters at their own position -----------------------------------------------

def sums_of(orders, gradient_rows, listed=(11, 12, 13)):
    """Gradients of the module and the rows of the trace."""
    with three_modules() as w:
        for i, positions in zip(listed, orders):
            at_position(w, 1, i, *positions)
        w.send(prepare(1, 1, [needed(i) for i in listed], vote=True))
        for i, row in zip(listed, gradient_rows):
            row_of_gradient(w, 1, 1, i, row)
        left = []
        f = w.lane.recv()
        while f.kind != pb.FINISHED:
            left += [f.message - 1000] if f.kind == pb.GRADIENT else []
            f = w.lane.recv()
        assert left == list(listed), left
        return gradients(w, 0, 1), f.payload, [(r[0], r[7]) for r in traced(w, 1) if r[0] < 6]


@suite.test
def weight_gradients_at_own_positions_give_the_same_bits():
    fused = sums_of(((1, 4), (2, 5), (3, 6)), BACKWARD_ORDER)
    assert fused[2] == [(F_, 11), (F_, 12), (F_, 13), (B_, 11), (B_, 12), (B_, 13)], fused[2]
    for orders, want in (
            (((1, 4, 7), (2, 5, 8), (3, 6, 9)), "F11 F12 F13 I11 I12 I13 W11 W12 W13"),
            (((1, 3, 6), (2, 5, 8), (4, 7, 9)), "F11 F12 I11 F13 I12 W11 I13 W12 W13"),
            (((1, 2, 3), (4, 5, 7), (6, 8)), "F11 I11 W11 F12 I12 F13 W12 B13")):
        got = sums_of(orders, BACKWARD_ORDER)
        assert got[:2] == fused[:2], (orders, got, fused)
        assert [f"{'_FBIW'[k]}{i}" for k, i in got[2]] == want.split(), (got[2], want)
    assert fused[0]["0.bias"] == in_floats(BACKWARD_ORDER) and any(sums_of(
        ((1, 4, 7), (2, 5, 8), (3, 6, 9)), BACKWARD_ORDER[::-1])[0]["0.bias"])


@suite.test
def weight_positions_that_reorder_the_sum_fail_the_context():
    for first, second in (((1, 3, 6), (2, 4, 5)), ((1, 3, 5), (2, 4))):
        with three_modules() as w:
            at_position(w, 1, 11, *first)
            at_position(w, 1, 12, *second)
            w.send(prepare(1, 1, [needed(11), needed(12)]))
            for i in (11, 12):
                row_of_gradient(w, 1, 1, i, ROW)
            f = w.lane.recv()
            while f.kind in (pb.VALUE, pb.GRADIENT) and f.message != 1012:
                f = w.lane.recv()
            assert f.kind == pb.ABORT and f.failure.code == 9, f
            assert f"has position {first[2]} for the gradients of its parameters" in f.failure.text, f


@suite.test
def pass_finishes_only_after_its_weight_gradients():
    with three_modules() as w:
        at_position(w, 1, 11, 1, 2, 4)
        values(w, 11)
        w.send(prepare(1, 1, [needed(11)], vote=True))
        # both stay, because work waits for them
        w.send(pb.Frame(kind=pb.DROP, context=1, upstream=[11, 1011]))
        row_of_gradient(w, 1, 1, 11, [2.0] * D)
        leaves(w, 11)
        nothing_else(w)
        at_position(w, 1, 12, 3)
        values(w, 12)
        close(numbers(w.recv(pb.FINISHED, phase=1)), [4.0 * D * D, 4.0 * D])
        assert gradients(w, 0, 1)["0.weight"] == [2.0] * D * D


def nothing(w, context, phase, value):
    w.send(pb.Frame(kind=pb.GRADIENT, context=context, phase=phase, message=value))


@suite.test
def empty_gradient_completes_a_call_with_weight_position():
    for dropped in (False, True):
        with three_modules() as w:
            for i, positions in ((11, (1, 4, 6)), (12, (2, 5, 7)), (13, (3, 8, 9))):
                at_position(w, 1, i, *positions)
            values(w, 11, 12, 13)
            w.send(prepare(1, 1, [needed(11), needed(12), needed(13)], vote=True))
            if dropped:
                w.send(pb.Frame(kind=pb.DROP, context=1, upstream=[11, 12, 13, 1011, 1012, 1013]))
            row_of_gradient(w, 1, 1, 11, [1.0] * D)
            nothing(w, 1, 1, 12)
            row_of_gradient(w, 1, 1, 13, [2.0] * D)
            assert w.recv(pb.GRADIENT, message=1011).tensors
            assert not w.recv(pb.GRADIENT, message=1012).tensors
            assert w.recv(pb.GRADIENT, message=1013).tensors
            w.recv(pb.FINISHED)
            got = gradients(w, 0, 1)
            assert got["0.weight"] == [3.0] * D * D and got["0.bias"] == [3.0] * D, got
            if dropped:
                settled(w, values=0)


@suite.test
def second_pass_ignores_positions():
    with three_modules() as w:
        at_position(w, 1, 11, 1, 2, 3)
        values(w, 11)
        for phase in (1, 2):
            w.send(prepare(1, phase, [needed(11)], retain=True, vote=True))
            row_of_gradient(w, 1, phase, 11, [1.0] * D)
            leaves(w, 11)
            w.recv(pb.FINISHED, phase=phase)
        assert gradients(w, 0, 1)["0.weight"] == [2.0] * D * D
        assert [r[0] for r in traced(w, 1) if r[0] < 6] == [F_, I_, W_, B_]


# ---- evaluations ---------------------------------------------------------------------------------

@suite.test
def backward_of_a_positioned_evaluation_is_refused():
    with three_modules() as w:
        at_position(w, 1, 12, 2, training=False)
        at_position(w, 1, 11, 1, 3, 4, training=False)
        values(w, 11, 12)
        w.send(prepare(1, 1, [needed(11)]))
        row_of_gradient(w, 1, 1, 11, ROW)
        aborted(w, 9, "made without TRAINING")
        end(w, 1)
        settled(w, contexts=0, values=0)


# ---- the end of a context ------------------------------------------------------------------------

PHASES = ("before anything", "an input is missing", "forwards have run", "prepared", "between I and W",
          "a step waits", "all but the last")


def reach(w, context, phase):
    """A context with an order of 11 positions, as far as `phase`."""
    late = PHASES.index(phase)
    if late >= 1:
        at_position(w, context, 11, 1, 4, 7, sent=late > 1)
    for i, positions in ((12, (2, 5, 8)), (13, (3, 6, 9))):
        at_position(w, context, i, *positions, module=i - 11)
    w.send(steps_at(context, 10))
    w.send(steps_at(context, 11 if late != 6 else 12, keep=True))
    for position in range(20, 60):  # so many that the session's memory shows them
        w.send(steps_at(context, position))
    if late >= 2:
        values(w, 11, 12, 13)
    if late >= 3:
        w.send(prepare(context, 1, [needed(11), needed(12), needed(13)], vote=True))
    if late >= 4:
        row_of_gradient(w, context, 1, 11, ROW)
        leaves(w, 11)
    if late == 5:
        row_of_gradient(w, context, 1, 12, ROW)
        leaves(w, 12)
    if late == 6:
        for i in (12, 13):
            row_of_gradient(w, context, 1, i, ROW)
            leaves(w, i)
    state(w, pb.STATE_OPTIMIZER, 2)


@suite.test
def ended_context_frees_all_outstanding_work():
    with three_modules(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=0.5)) as w:
        forward_and_gradient(w, 900)  # makes the plans and fills the pools
        held, context, late = None, 0, 0
        for position in range(2):
            for phase in PHASES:
                for how in (pb.END_CONTEXT, pb.ABORT):
                    context += 1
                    reach(w, context, phase)
                    if how == pb.ABORT:
                        why = pb.Failure(code=10, text="elsewhere")
                        w.send(pb.Frame(kind=pb.ABORT, context=context, failure=why))
                    else:
                        end(w, context)
                    row_of_gradient(w, context, 1, 11, ROW)  # too late, like the next three frames
                    bring(w, context, 11)
                    at_position(w, context, 14, 10)
                    w.send(steps_at(context, 9))
                    late += 4
                    settled(w, contexts=0, values=0, calls_waiting=0, late_frames=late)
            memory = w.status().memory_bytes
            # late frames may meet while they are dropped: the pool then has made a row or two more
            assert held is None or memory - held <= 4 * len(f32(ROW)), (memory, held)
            held = memory
        forward_and_gradient(w, 901)


def forward_and_gradient(w, context):
    at_position(w, context, 11, 1, 2, 3)
    values(w, 11)
    w.send(prepare(context, 1, [needed(11)]))
    row_of_gradient(w, context, 1, 11, ROW)
    leaves(w, 11)
    w.recv(pb.FINISHED)
    end(w, context)


@suite.test
def failed_context_runs_no_more_positions():
    with three_modules() as w:
        at_position(w, 1, 11, 1, 2)
        at_position(w, 1, 12, 3)
        values(w, 11)
        w.send(prepare(1, 1, [needed(99)]))
        aborted(w, 5, "call 99 is not known at this node")
        row_of_gradient(w, 1, 1, 11, ROW)
        w.send(steps_at(1, 4))
        aborted(w, 5, "call 99 is not known at this node")  # the refusal is repeated
        nothing_else(w)
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)


# ---- many ----------------------------------------------------------------------------------------

def many(n, position_of):
    """n calls in one context that wait for their input, and n steps. Returns (seconds until another
    request is answered, seconds until the context has ended)."""
    with three_modules() as w:
        begin = time.monotonic()
        for i in range(n):
            f = call(1, 10 + i, 0, [(5, False)])
            f.call.position = 2 * position_of(i)
            w.send(f)
            w.send(steps_at(1, 2 * position_of(i) + 1))
        nothing_else(w)
        taken = time.monotonic() - begin
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)
        return taken, time.monotonic() - begin - taken


@suite.test
def thousands_of_descending_positions_are_not_slower():
    n = 8000 if LONG else 2000
    plain = many(n, lambda i: i + 1)
    descending = many(n, lambda i: n - i)
    assert all(b < 2 * a + 5 * SLOW for a, b in zip(plain, descending)), (plain, descending)
    return None


@suite.long
def context_runs_65535_positioned_calls_and_refuses_more():
    with three_modules() as w:
        n = 65536
        for i in range(n - 1):  # n values are allowed, and the input is one of them
            f = call(1, 10 + i, 0, [(5, False)], training=False)
            f.call.position = 2 + i
            w.send(f)
        at_position(w, 1, 99999999, 1)
        f = w.lane.recv(timeout=120)
        assert f.kind == pb.ERROR and f.failure.code == 8 and "65536" in f.failure.text, f
        nothing_else(w)
        end(w, 1)
        settled(w, contexts=0, values=0, calls_waiting=0)
        forward_and_gradient(w, 2)


run_suite(suite, "context_positions")
