"""Steps inside a context, the weights before them, forwards that run again, and the trace of a
context (PROTOCOL.md 6, Positions and Trace), frame by frame."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *

suite = Suite()
SGD = dict(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=0.5)) if pyclient.MISSING is None else {}
TWO_LINEAR = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=D), node(LINEAR, [1], 1, out=D)],
                      outputs=[2]) if pyclient.MISSING is None else None


def linear(**kw):
    w = remote()
    w.load(0, linear_graph(), [1, D], **kw)
    w.attach()
    return w


def two_linear(**kw):
    """A worker with two linear layers, whose backward reads its parameters."""
    w = remote()
    w.load(0, TWO_LINEAR, [1, D], **SGD, **kw)
    w.attach()
    return w


def weights(w, module=0):
    return {k: floats(v) for k, v in state(w, pb.STATE_WEIGHTS, module).items() if k.endswith(("weight", "bias"))}


def gradients_come(w, context, phase, given):
    for i, row in given.items():
        row_of_gradient(w, context, phase, i, row)
    return {i: numbers(w.recv(pb.GRADIENT, message=1000 + i)) for i in given}


# ---- steps in position ---------------------------------------------------------------------------

@suite.test
def step_consumes_gradients_since_the_previous_step():
    """Powers of two: every number is exact."""
    with linear(**SGD) as w:
        before = weights(w)
        for i, positions in ((11, (1, 3)), (12, (2, 5)), (13, (6, 7))):
            at_position(w, 1, i, *positions)
        # no gradient comes before the last step
        for position, lr, scale in ((4, 0.25, 2), (8, 0.25, 1), (9, 1.0, 1)):
            w.send(steps_at(1, position, lr=lr, scale=scale))
        values(w, 11, 12)
        w.send(prepare(1, 1, [needed(11), needed(12), needed(13)], vote=True))
        gradients_come(w, 1, 1, {11: [1.0] * D})
        state(w, pb.STATE_WEIGHTS, 0)
        once = weights(w)
        close(flat([[p - q for p, q in zip(before[k], once[k])] for k in sorted(once)]), [0.5] * (D + D * D), 1e-6)
        assert gradients(w, 0, 1) == {}, "they were not forgotten"
        row_of_gradient(w, 1, 1, 12, [2.0] * D)
        assert come(w, 2) == {(pb.GRADIENT, 1012), (pb.VALUE, 13)}
        row_of_gradient(w, 1, 1, 13, [4.0] * D)
        w.recv(pb.GRADIENT, message=1013)
        close(numbers(w.recv(pb.FINISHED)), [0, 0], 0)
        after = weights(w)
        close(flat([[p - q for p, q in zip(once[k], after[k])] for k in sorted(once)]), [1.5] * (D + D * D), 1e-6)
        s = w.status().modules[0]
        assert s.steps == 2, s
        apply(w, 1)  # a second APPLY has nothing to apply
        w.recv(pb.APPLIED)
        assert weights(w) == after and w.status().modules[0].steps == 2
        f = pb.Frame(kind=pb.END_CONTEXT, context=1, message=7, commit=pb.Commit(scale=1, lr=1, apply=True))
        w.send(f)
        w.recv(pb.ENDED)
        assert weights(w) == after


def come(w, n):
    """Receives the next n frames, in any order."""
    got = [w.lane.recv() for _ in range(n)]
    return {(f.kind, f.message if f.kind != pb.FINISHED else 0) for f in got}


@suite.test
def late_step_frame_runs_at_its_position():
    with linear(**SGD) as w:
        at_position(w, 1, 11, 1, 2)
        at_position(w, 1, 12, 4)
        values(w, 11)
        w.send(prepare(1, 1, [needed(11)]))
        gradients_come(w, 1, 1, {11: [1.0] * D})
        w.recv(pb.FINISHED)
        before = weights(w)
        w.send(steps_at(1, 3))
        f = w.recv(pb.VALUE, message=12)
        after = weights(w)
        assert after != before
        close(numbers(f), [sum(r) + b for r, b in zip(rows(after["0.weight"], D), after["0.bias"])], 1e-6)


@suite.test
def non_finite_gradient_fails_context_but_keeps_earlier_steps():
    for bad in (float("nan"), float("inf"), -float("inf")):
        with linear(**SGD) as w:
            before = weights(w)
            at_position(w, 1, 11, 1, 2)
            at_position(w, 1, 12, 4, 5)
            at_position(w, 1, 13, 7)
            for position in (3, 6):
                w.send(steps_at(1, position))
            values(w, 11)
            w.send(prepare(1, 1, [needed(11), needed(12)]))
            gradients_come(w, 1, 1, {11: [1.0] * D})
            values(w, 12)
            once = weights(w)
            assert once != before
            row_of_gradient(w, 1, 1, 12, [0.0, bad, 0.0])
            w.recv(pb.GRADIENT, message=1012)
            aborted(w, 3, "a gradient of module 0 is not finite")
            assert weights(w) == once and w.status().modules[0].steps == 1
            end(w, 1)
            settled(w, contexts=0, values=0, calls_waiting=0)


@suite.test
def invalid_step_fails_the_context():
    group = pb.ParamGroup(optimizer=SGD["optimizer"], params=["0.bias"])
    for fields, step, code, part in (
            (dict(optimizer=pb.Optimizer()), steps_at(1, 1), 5, "has no optimiser"),
            (SGD, steps_at(1, 1, module=5), 5, "module 5 is not loaded at this node"),
            (SGD, steps_at(1, 1, module=ALL), 5, "module 255 is not loaded at this node"),
            (dict(SGD, groups=[group]), steps_at(1, 1), 9, "1 learning rate for 2 groups")):
        with linear(**fields) as w:
            w.send(step)
            aborted(w, code, part)
            end(w, 1)
            settled(w, contexts=0)


@suite.test
def step_before_its_weight_gradients_fails_the_context():
    """Half of the gradients that it would apply are missing."""
    with linear(**SGD) as w:
        before = weights(w)
        at_position(w, 1, 11, 1, 2, 4)
        w.send(steps_at(1, 3))
        values(w, 11)
        w.send(prepare(1, 1, [needed(11)]))
        gradients_come(w, 1, 1, {11: [1.0] * D})
        aborted(w, 9, "module 0 cannot step before the gradients of its parameters")
        assert weights(w) == before and gradients(w, 0, 1) == {}


@suite.test
def positioned_step_uses_one_learning_rate_per_group():
    group = pb.ParamGroup(optimizer=SGD["optimizer"], params=["0.bias"])
    with linear(groups=[group], **SGD) as w:
        before = weights(w)
        at_position(w, 1, 11, 1, 2)
        w.send(steps_at(1, 3, lr=0.5, more=[0.125]))
        values(w, 11)
        w.send(prepare(1, 1, [needed(11)]))
        gradients_come(w, 1, 1, {11: [1.0] * D})
        w.recv(pb.FINISHED)
        after = weights(w)
        close([p - q for p, q in zip(before["0.weight"], after["0.weight"])], [0.5] * D * D, 1e-6)
        close([p - q for p, q in zip(before["0.bias"], after["0.bias"])], [0.125] * D, 1e-6)


@suite.test
def positioned_step_makes_an_earlier_step_final():
    """REVERT would take it back with what it means."""
    with linear(**SGD) as w:
        calls = [(11, 1, False, [])]  # its backward reads no parameters
        for context in (1, 2):
            f = call(context, 11, 0, [(1011, False, ONES, [1, D])])
            f.call.position, f.call.input_position = 1, 2
            w.send(f)
        w.send(prepare(1, 1, calls))
        row_of_gradient(w, 1, 1, 11, [1.0] * D)
        w.recv(pb.FINISHED)
        apply(w, 1)
        w.recv(pb.APPLIED)
        w.send(steps_at(2, 3))
        w.send(prepare(2, 1, calls))
        row_of_gradient(w, 2, 1, 11, [1.0] * D)
        w.recv(pb.FINISHED)
        stepped = weights(w)
        w.send(pb.Frame(kind=pb.REVERT, context=1, message=79))
        assert w.recv(pb.ERROR).failure.code == 9
        assert weights(w) == stepped


# ---- weights before a step -----------------------------------------------------------------------

def run_list(w, context, calls, steps=(), rows_of=None):
    """Calls {id: positions} and steps [(position, keep)] in one context; the trace and gradients of
    inputs."""
    for i, positions in calls.items():
        f_positions, old = positions[:3], len(positions) > 3
        at_position_with(w, context, i, old, *f_positions)
    for position, keep in steps:
        w.send(steps_at(context, position, keep=keep))
    w.send(prepare(context, 1, [needed(i) for i in sorted(calls, key=lambda i: calls[i][1])]))
    for n, i in enumerate(calls):
        row_of_gradient(w, context, 1, i, [1.0 + n, 0.5, -2.0])
    y, dx = {}, {}
    f = w.lane.recv()
    while f.kind != pb.FINISHED:
        assert f.kind in (pb.VALUE, pb.GRADIENT), f
        (y if f.kind == pb.VALUE else dx)[f.message % 1000] = numbers(f)
        f = w.lane.recv()
    return y, dx, traced(w, context)


def at_position_with(w, context, i, behind, position, input_position=0, weight_position=0):
    f = call(context, i, 0, [(1000 + i, True, ONES, [1, D])])
    f.flags |= pb.FLAG_DELIVER | pb.FLAG_TRACE
    f.call.position, f.call.input_position, f.call.weight_position, f.call.old_weights = position, input_position, weight_position, behind
    w.send(f)


@suite.test
def backward_after_a_step_uses_its_forwards_weights():
    for split in (False, True):
        with two_linear() as w:
            calls = {11: (1, 3, 4), 12: (2, 6, 7)} if split else {11: (1, 3), 12: (2, 5)}
            plain = run_list(w, 1, {11: (1, 3), 12: (2, 4)})
            kept = weights(w)
            y, dx, rows_ = run_list(w, 2, calls, [(5, False)] if split else [(4, False)])
            assert weights(w) != kept
            assert (y, dx) == plain[:2], "the backward of 12 used the new weights"
            again = run_list(w, 3, {11: (1, 2), 12: (3, 4)})
            assert again[1] != dx and w.status().modules[0].steps == 1
            versions = [(r[0], r[7], r[6]) for r in rows_ if r[0] < 6]
            first = versions[0][2]
            assert all(v == first for k, _, v in versions if k != 5), versions
            assert [v for k, _, v in versions if k == 5] == [first + 1]


@suite.test
def weight_gradients_use_their_forwards_weights():
    with two_linear() as w:  # 12 alone, without a step
        run_list(w, 1, {12: (1, 2)}, [])
        at_position_with(w, 2, 12, False, 1, 2)
        values(w, 12)
        w.send(prepare(2, 1, [needed(12)]))
        gradients_come(w, 2, 1, {12: [2.0, 0.5, -2.0]})
        w.recv(pb.FINISHED)
        want = gradients(w, 0, 2)
    for last in ((2, 5), (2, 5, 6)):
        with two_linear() as w:
            for i, positions in ((11, (1, 3)), (12, last)):
                at_position_with(w, 1, i, False, *positions)
            w.send(steps_at(1, 4))
            values(w, 11, 12)
            w.send(prepare(1, 1, [needed(11), needed(12)]))
            gradients_come(w, 1, 1, {11: [1.0] * D})
            gradients_come(w, 1, 1, {12: [2.0, 0.5, -2.0]})
            w.recv(pb.FINISHED)
            assert gradients(w, 0, 1) == want


@suite.test
def reordered_backwards_use_their_forwards_weights():
    """When the step comes, call 12 has run, and call 11, whose backward has the smaller position,
    has not."""
    with two_linear() as w:
        plain = run_list(w, 1, {10: (1, 2), 11: (3, 4), 12: (5, 6)})
        y, dx, _ = run_list(w, 2, {10: (1, 2), 11: (5, 6), 12: (3, 7)}, [(4, False)])
        assert w.status().modules[0].steps == 1
        assert dx[12] == plain[1][12] and y[12] == plain[0][12]
        assert dx[11] != plain[1][11] and y[11] != plain[0][11]


@suite.test
def old_weights_predate_the_last_step_that_kept_them():
    def second(behind, steps, calls=None):
        with two_linear() as w:
            return run_list(w, 1, calls or {11: (1, 2), 12: (4, 5) + (0,) * behind + (behind,) * behind}, steps)
    old = second(0, [], {11: (1, 2), 12: (3, 4)})
    new = second(0, [(3, True)])
    assert new[0][12] != old[0][12] and new[1][12] != old[1][12]
    assert second(1, [(3, True)])[:2] == old[:2]
    assert second(1, [(3, False)])[:2] == new[:2]  # no weights were kept
    assert second(1, [], {11: (1, 2), 12: (3, 4, 0, True)})[:2] == old[:2]  # there was no step
    # after two steps: the weights between them
    calls = {11: (1, 2), 12: (4, 5), 13: (7, 8, 0, True), 14: (9, 10)}
    y, dx, _ = second(1, [(3, True), (6, True)], calls)
    between = second(0, [(3, True)], {11: (1, 2), 12: (4, 5), 13: (6, 7)})
    assert y[13] == between[0][13] and dx[13] == between[1][13] and y[14] != y[13]
    # the second step keeps no weights: a later call uses the present ones
    y, dx, _ = second(1, [(3, True), (6, False)], calls)
    assert y[13] == y[14]


IMAGES = [2, 16, 8, 8]


def convolved(positions, steps):
    """{call: gradient of its input} of a module whose kernels keep weights in a layout of their
    own."""
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(CONV, [0], 0, out=16, kernel=3, pad=1), node(8, [1], 1),
                            node(CONV, [2], 2, out=16, kernel=3, pad=1)], outputs=[3])
    r = random.Random(82)
    x = {i: f32([r.uniform(-1, 1) for _ in range(2 * 16 * 64)]) for i in (11, 12, 13, 14)}
    with remote() as w:
        w.load(0, graph, IMAGES, **SGD)
        w.attach()
        for i, (position, input_position) in positions.items():
            f = call(1, i, 0, [(1000 + i, True, x[i], IMAGES)])
            f.call.position, f.call.input_position = position, input_position
            w.send(f)
        for position in steps:
            w.send(steps_at(1, position, lr=0.001))
        w.send(prepare(1, 1, [needed(i) for i in positions]))
        for i in positions:
            w.send(gradient(1, 1, i, x[i], IMAGES))
        dx = {i: w.recv(pb.GRADIENT, message=1000 + i).payload for i in positions}
        w.recv(pb.FINISHED)
        return dx


@suite.test
def backward_uses_new_weights_right_after_one_on_old_weights():
    plain = convolved({11: (1, 2), 12: (3, 4)}, [])
    mixed = convolved({11: (1, 3), 12: (2, 6), 13: (5, 7)}, [4])
    alone = convolved({11: (1, 2), 13: (4, 5)}, [3])
    assert mixed[12] == plain[12], "12 ran before the step"
    assert mixed[13] == alone[13], "13 ran after it"


WIDE = 128
WIDE_ROW = f32([1.0] * WIDE)


@suite.test
def old_weights_are_freed_after_the_last_call_needing_them():
    """One micro-batch in flight over each of 40 steps: two versions at a time, not forty."""
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=WIDE), node(LINEAR, [1], 1, out=WIDE)],
                     outputs=[2])
    parameters, held = 2 * 4 * (WIDE * WIDE + WIDE), {}
    for n in (2, 40):
        with remote() as w:
            w.load(0, graph, [1, WIDE], **SGD)
            w.attach()
            for k in range(n):
                f = call(1, 10 + k, 0, [(1000 + k, False, WIDE_ROW, [1, WIDE])])
                last = k + 1 == n  # F0 F1 B0 S0 F2 B1 S1 ... B of the last
                f.call.position, f.call.input_position = max(1, 3 * k - 1), 3 * k + 3 - last
                w.send(f)
                if not last:
                    w.send(steps_at(1, 3 * k + 4, lr=1e-6))
            for k in range(n):
                f = prepare(1, 1, [(10 + k, 1, False, [])])
                w.send(f if k + 1 == n else more(f))
                w.send(gradient(1, 1, 10 + k, WIDE_ROW, [1, WIDE]))
            w.recv(pb.FINISHED)
            held[n] = w.status().memory_bytes
    assert held[40] < held[2] + 2 * parameters + 40 * 8 * WIDE * 4, (held, parameters)


@suite.test
def backward_on_old_weights_uses_current_running_statistics():
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(BATCHNORM, [0], 0), node(LINEAR, [1], 1, out=D),
                            node(LINEAR, [2], 2, out=D)], outputs=[3])
    r = random.Random(80)
    xs = {i: raw(randoms(r, N, D)) for i in (11, 12, 13)}
    found = {}
    for how in ("plain", "behind", "recompute"):
        with remote() as w:
            w.load(0, graph, [N, D], **SGD)
            w.attach()
            for i, positions in ((11, (1, 2)), (12, (4, 5)), (13, (6, 8))):
                f = call(1, i, 0, [(1000 + i, True, xs[i], [N, D])])
                f.call.position, f.call.input_position = positions
                f.call.old_weights = how != "plain" and i != 11
                if how == "recompute":
                    f.flags |= pb.FLAG_RECOMPUTE
                w.send(f)
            for position in (3, 7):
                w.send(steps_at(1, position, keep=True))
            w.send(prepare(1, 1, [needed(i) for i in (11, 12, 13)]))
            for i in (11, 12, 13):
                w.send(gradient(1, 1, i, xs[11], [N, D]))
                w.recv(pb.GRADIENT)
            w.recv(pb.FINISHED)
            found[how] = {k: v for k, v in state(w, pb.STATE_WEIGHTS, 0).items() if "running" in k or "num" in k}
            assert any(floats(v)[0] for k, v in found[how].items() if "mean" in k)
    assert found["plain"] == found["behind"] == found["recompute"], found


# ---- forwards that run again ---------------------------------------------------------------------

DROPOUT = 15


def dropping_graph(width, layers):
    nodes, at = [node(INPUT, name="x")], 0
    for layer in range(0, 4 * layers, 4):
        drop = node(DROPOUT, [at + 3], layer + 3)
        drop.attrs.add(key=7, number=0.5)
        nodes += [node(LINEAR, [at], layer, out=width), node(BATCHNORM, [at + 1], layer + 1),
                  node(8, [at + 2], layer + 2), drop]
        at += 4
    return pb.Graph(nodes=nodes, outputs=[at])


def eight_calls(recompute, split=False, width=64):
    r = random.Random(81)
    x = [raw(randoms(r, 32, width)) for _ in range(8)]
    with remote() as w:
        w.load(0, dropping_graph(width, 6), [32, width], **SGD)
        w.attach()
        for i in range(8):
            f = call(1, 10 + i, 0, [(1010 + i, True, x[i], [32, width])], micro=i)
            f.flags |= pb.FLAG_DELIVER | (pb.FLAG_RECOMPUTE if recompute else 0)
            f.call.position, f.call.input_position, f.call.weight_position = 1 + i, 9 + i, (17 + i) * split
            w.send(f)
        y = [w.recv(pb.VALUE, message=10 + i).payload for i in range(8)]
        memory = w.status().memory_bytes
        w.send(prepare(1, 1, [needed(10 + i) for i in range(8)], vote=True))
        for i in range(8):
            w.send(gradient(1, 1, 10 + i, x[i], [32, width]))
        dx = [w.recv(pb.GRADIENT, message=1010 + i).payload for i in range(8)]
        vote = w.recv(pb.FINISHED).payload
        stage = w.status().modules[0]
        assert (stage.forwards, stage.backwards) == (8, 8), stage
        return (y, dx, vote, state(w, GRADIENTS, 0, 1), state(w, pb.STATE_WEIGHTS, 0)), memory


@suite.test
def recompute_gives_the_same_bits_in_less_memory():
    plain, large = eight_calls(False)
    assert plain == eight_calls(False, split=True)[0]
    for split in (False, True):
        got, small = eight_calls(True, split)
        assert got == plain, [a == b for a, b in zip(got, plain)]
        assert large - small > 7 * 6 * 3 * 32 * 64 * 4 // 2, (large, small)
    assert len(set(plain[0])) == 8


@suite.test
def recompute_uses_its_forwards_weights():
    with two_linear() as w:
        plain = run_list(w, 1, {11: (1, 3), 12: (2, 4)})
    with two_linear() as w:
        for i, positions in ((11, (1, 3)), (12, (2, 5))):
            f = call(1, i, 0, [(1000 + i, True, ONES, [1, D])])
            f.flags |= pb.FLAG_RECOMPUTE
            f.call.position, f.call.input_position = positions
            w.send(f)
        w.send(steps_at(1, 4))
        w.send(prepare(1, 1, [needed(11), needed(12)]))
        assert gradients_come(w, 1, 1, {11: [1.0, 0.5, -2.0], 12: [2.0, 0.5, -2.0]}) == plain[1]
        w.recv(pb.FINISHED)


@suite.test
def call_waits_for_the_backward_of_a_recomputed_call():
    with linear() as w:
        f = call(1, 10, 0, [(1010, True, ONES, [1, D])])
        f.flags |= pb.FLAG_RECOMPUTE | pb.FLAG_DELIVER
        w.send(f)
        values(w, 10)
        f = call(1, 11, 0, [(1011, True, ONES, [1, D])])
        f.flags |= pb.FLAG_DELIVER
        f.call.after = 10
        w.send(f)
        nothing_else(w)
        settled(w, calls_waiting=1)
        w.send(prepare(1, 1, [needed(10)]))
        row_of_gradient(w, 1, 1, 10, [1.0] * D)
        assert come(w, 3) == {(pb.GRADIENT, 1010), (pb.VALUE, 11), (pb.FINISHED, 0)}


# ---- the trace of a context ----------------------------------------------------------------------

@suite.test
def trace_has_one_row_per_operation_in_order():
    with remote() as w:
        for module in (0, 1):
            w.load(module, TWO_LINEAR, [1, D], **SGD)
        w.attach()
        begun = clock(w)
        f = call(1, 11, 0, [(2011, True)], micro=3)
        f.flags |= pb.FLAG_DELIVER | pb.FLAG_TRACE
        f.call.position, f.call.input_position = 1, 4
        w.send(f)
        f = call(1, 12, 1, [(11, True)], micro=5)
        f.flags |= pb.FLAG_DELIVER
        f.call.position, f.call.input_position, f.call.weight_position = 2, 3, 5
        w.send(f)
        w.send(steps_at(1, 6, module=1))
        w.send(frame(pb.VALUE, ONES, [1, D], context=1, message=2011))
        values(w, 11, 12)
        w.send(prepare(1, 1, [(12, 1, False, [(0, 11, 0, 0)]), (11, 1, False, [(0, 2011, 0, 0)])]))
        row_of_gradient(w, 1, 1, 12, [1.0] * D)
        w.recv(pb.GRADIENT, message=2011)
        w.recv(pb.FINISHED)
        got = traced(w, 1)
        small = 4 * D
        # (kind, module, micro-batch, bytes, version, value) of the rows, in the order of their
        # times
        assert [(r[0], r[1], r[2], r[5], r[6], r[7]) for r in got] == [
            (7, ALL, 0, small, 0, 2011), (F_, 0, 3, 0, got[1][6], 11), (6, ALL, 0, small, 0, 11),
            (F_, 1, 5, 0, got[3][6], 12), (6, ALL, 0, small, 0, 12), (9, ALL, 0, small, 0, 12),
            (I_, 1, 5, 0, got[3][6], 12), (8, ALL, 0, small, 0, 2011), (B_, 0, 3, 0, got[1][6], 11),
            (W_, 1, 5, 0, got[3][6], 12), (S_, 1, 0, 0, got[3][6] + 1, 0)], got
        assert all(begun <= r[3] <= r[4] <= clock(w) for r in got)
        computing = [r for r in got if r[0] < 6]
        assert all(p[4] <= q[3] for p, q in zip(computing, computing[1:])), computing


def clock(w):
    w.send(pb.Frame(kind=pb.PING, message=55))
    f = w.recv(pb.PONG, reply_to=55)
    assert f.HasField("measure"), f
    return f.measure.clock_ns


@suite.test
def trace_grows_to_700_rows_only_with_the_trace_flag():
    with linear() as w:
        for context in (1, 2):
            for i in range(700):
                f = call(context, 10 + i, 0, [(5, False)], training=False)
                f.flags |= pb.FLAG_TRACE if context == 1 else 0
                w.send(f)
            w.send(frame(pb.VALUE, ONES, [1, D], context=context, message=5))
            got = traced(w, context)
            want = [5] + [10 + i for i in range(700)] if context == 1 else []
            assert sorted(r[7] for r in got) == want, len(got)


@suite.test
def pong_reports_the_clock_and_the_bytes_received():
    size = 256 << 10
    data = bytes(size)
    with remote(lanes=1) as w:
        w.load(0, linear_graph(), [1, D])
        w.attach()
        first = clock(w)
        w.send(pb.Frame(kind=pb.PING, message=56))
        before = w.recv(pb.PONG, reply_to=56).measure
        assert first < before.clock_ns < first + int(60e9 * SLOW)
        f = pb.Frame(kind=pb.VALUE, context=1, message=5)
        f.tensors.append(tensor_head(data, [size // 4], transfer=9))
        w.send(f)
        for c in chunks(data, 9, 64 << 10):
            w.session.lanes[1].send(c)
        settled(w, values=1)
        w.send(pb.Frame(kind=pb.PING, message=57))
        after = w.recv(pb.PONG, reply_to=57).measure
        came = after.received_bytes - before.received_bytes
        # the worker cannot know when the first chunk was sent
        assert came in (size - (64 << 10), size), (before, after)
        taken = after.receiving_ns - before.receiving_ns
        assert 0 < taken < after.clock_ns - before.clock_ns, (before, after)


run_suite(suite, "context_steps")
