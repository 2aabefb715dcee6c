#!/usr/bin/python3
"""References that outlive their context (PROTOCOL.md 12) at a worker, frame by frame, sent by a
client without code of Cleave: the sender, number and order of requests do not change the result."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *

suite = Suite()
REF, FORK, KEY = 1 << 20, (1 << 20) + 1, 0x1234567890ABCDEF
NOT_FOUND, CANCELLED = 5, 1


def said(kind, number=0, ref=REF, fork=FORK, key=0, to="", early=False, node="", context=0, message=0):
    return pb.Frame(kind=kind, context=context, message=message, to=to, reference=pb.Reference(
        ref=ref, fork=fork, key=key, number=number, early=early, node=node))


def keep(number, context, value, **kw):
    return said(pb.REF_KEEP, number, key=KEY, context=context, message=value, **kw)


def answers(w, n):
    """The next n frames by (kind, number)."""
    found = {}
    for _ in range(n):
        f = w.lane.recv()
        assert f.kind in (pb.REF_ACK, pb.REF_VALUE, pb.REF_FETCH, pb.REF_DELETE, pb.VALUE), f
        found[(f.kind, f.reference.number)] = f
    assert len(found) == n, found
    return found


def acknowledged(w, number, code=0):
    f = w.recv(pb.REF_ACK)
    assert (f.reference.number, f.failure.code) == (number, code), f
    return f


def quiet(w):
    """Checks that the worker sends nothing else: the next frame is the compute thread's answer."""
    w.send(pb.Frame(kind=pb.STATE_GET, message=901, module=77, state=pb.State(what=pb.STATE_WEIGHTS)))
    assert w.recv(pb.ERROR).reply_to == 901


def owns(w, wanted):
    """Waits until the worker owns the wanted number; its compute thread updates it after its
    answer."""
    return until(lambda: w.status().references_owned == wanted)


def one_call(w, context, value, seed=1):
    """A call, and a request for its value."""
    x = randoms(random.Random(seed), N, D)
    w.send(call(context, value, 0, [(0, False, raw(x), [N, D])], training=False))
    w.send(deliver(context, value))
    return w.recv(pb.VALUE).payload


@suite.test
def kept_value_outlives_its_context_until_last_handle_freed():
    with one_module() as w:
        y = one_call(w, 1, 100)
        w.send(keep(1, 1, 100))
        acknowledged(w, 1)
        end(w, 1)
        for number in (2, 3):
            w.send(said(pb.REF_FETCH, number))
            got = answers(w, 2)
            assert got[(pb.REF_VALUE, 0)].payload == y and (pb.REF_ACK, number) in got
        assert owns(w, 1)
        w.send(said(pb.REF_DELETE, 4))
        acknowledged(w, 4)
        assert owns(w, 0)
        w.send(said(pb.REF_FETCH, 5))
        acknowledged(w, 5, NOT_FOUND)


@suite.test
def repeated_frame_is_acknowledged_but_not_applied():
    with one_module() as w:
        one_call(w, 1, 100)
        for _ in range(3):
            w.send(keep(1, 1, 100))
            acknowledged(w, 1)
        assert owns(w, 1)
        w.send(said(pb.REF_DELETE, 2))
        acknowledged(w, 2)
        w.send(keep(1, 1, 100))  # a frame that was delayed for long
        acknowledged(w, 1)
        assert owns(w, 0)


@suite.test
def early_fetch_and_keep_wait_for_the_value():
    with one_module() as w:
        w.send(said(pb.REF_FETCH, 2, early=True))
        w.send(said(pb.REF_FETCH, 2, early=True))
        quiet(w)
        w.send(keep(1, 1, 100))
        got = answers(w, 2)
        assert set(got) == {(pb.REF_ACK, 1), (pb.REF_ACK, 2)}
        x = randoms(random.Random(2), N, D)
        w.send(call(1, 100, 0, [(0, False, raw(x), [N, D])], training=False))
        assert len(w.recv(pb.REF_VALUE).tensors) == 1


@suite.test
def fetch_without_a_handle_gives_the_same_not_found():
    """For a reference that does not exist, for another node's, and for a wrong key; sent by the
    master on behalf of w2."""
    with one_module() as w:
        one_call(w, 1, 100)
        w.send(keep(1, 1, 100))
        acknowledged(w, 1)
        texts = set()
        for number, ids in ((1, dict(ref=99)), (2, dict(fork=99)), (3, dict(fork=FORK))):
            w.send(said(pb.REF_FETCH, number, node="w2", **ids))
            f = acknowledged(w, number, NOT_FOUND)
            assert f.to == "w2"
            texts.add(f.failure.text)
        assert len(texts) == 1
        w.send(said(pb.REF_FORK, 4, fork=50, key=KEY + 1, node="w2"))
        w.send(said(pb.REF_FORK, 5, ref=98, fork=51, key=KEY, node="w2"))
        quiet(w)  # either frame may come first
        w.send(said(pb.REF_DELETE, 6, node="w2"))  # the handle is the master's and not w2's
        acknowledged(w, 6)
        assert owns(w, 1)


@suite.test
def a_fork_of_another_worker_keeps_the_value():
    with one_module() as w:
        y = one_call(w, 1, 100)
        # the FORK comes before the KEEP of its reference
        w.send(said(pb.REF_FORK, 1, fork=50, key=KEY, node="w2"))
        w.send(keep(1, 1, 100))
        assert {acknowledged(w, 1).to, acknowledged(w, 1).to} == {"", "w2"}
        w.send(said(pb.REF_DELETE, 2))
        acknowledged(w, 2)
        assert owns(w, 1)
        w.send(said(pb.REF_FETCH, 2, fork=50, node="w2"))
        got = answers(w, 2)
        assert got[(pb.REF_VALUE, 0)].payload == y and got[(pb.REF_VALUE, 0)].to == "w2"
        w.send(said(pb.REF_DELETE, 3, fork=50, node="w2"))
        acknowledged(w, 3)
        assert owns(w, 0)


def kept_without_its_input(w):
    """Keeps value 100, whose input comes later."""
    w.send(call(1, 100, 0, [(99, False)], training=False))
    w.send(keep(1, 1, 100))
    acknowledged(w, 1)


def fetched(w, number):
    w.send(said(pb.REF_FETCH, number))
    return answers(w, 2)[(pb.REF_VALUE, 0)]


@suite.test
def ended_context_leaves_kept_values_alive():
    with one_module() as w:
        x = randoms(random.Random(5), N, D)
        kept_without_its_input(w)
        w.send(call(1, 101, 0, [(99, False)], training=False))
        w.send(pb.Frame(kind=pb.END_CONTEXT, context=1, message=7))
        assert w.recv(pb.ENDED, reply_to=7).step == 1
        w.send(call(1, 102, 0, [(99, False)], training=False))  # it has ended
        w.send(frame(pb.VALUE, raw(x), [N, D], context=1, message=99))
        assert w.recv(pb.ENDED, reply_to=7).step == 0
        assert fetched(w, 2).tensors
        modules = w.status().modules
        assert [m.evals for m in modules] == [1], modules


@suite.test
def context_failure_becomes_the_error_of_the_reference():
    with one_module() as w:
        kept_without_its_input(w)
        w.send(pb.Frame(kind=pb.ABORT, context=1, failure=pb.Failure(code=14, text="w2 is gone")))
        f = fetched(w, 2)
        assert (f.failure.code, f.failure.text) == (14, "w2 is gone"), f
        w.send(keep(3, 2, 200, ref=REF + 8, fork=FORK + 8))  # no call makes value 200
        acknowledged(w, 3)
        w.send(pb.Frame(kind=pb.END_CONTEXT, context=2, message=8))
        assert w.recv(pb.ENDED).step == 0


@suite.test
def worker_fetches_a_passed_reference_and_releases_it():
    with one_module() as w:
        x = randoms(random.Random(3), N, D)
        by_hand = one_call(w, 1, 100, seed=3)
        w.send(call(2, 101, 0, [(100, False)], training=False))
        w.send(deliver(2, 101))
        for _ in range(2):
            w.send(said(pb.REF_USE, 1, key=KEY, context=2, message=100))
        seen = {}
        while (pb.REF_FETCH, 1) not in seen:
            seen.update(answers(w, 1))
        w.send(said(pb.REF_ACK, 1))
        f = frame(pb.REF_VALUE, raw(x), [N, D])
        f.reference.CopyFrom(pb.Reference(ref=REF, fork=FORK))
        w.send(f)
        while (pb.VALUE, 0) not in seen or not any(kind == pb.REF_DELETE for kind, _ in seen):
            seen.update(answers(w, 1))
        assert seen[(pb.VALUE, 0)].payload == by_hand
        number = next(number for kind, number in seen if kind == pb.REF_DELETE)
        assert w.status().references_used == 1
        w.send(said(pb.REF_ACK, number))
        until(lambda: w.status().references_used == 0)


if __name__ == "__main__":
    run_suite(suite, "references", workers=1)
