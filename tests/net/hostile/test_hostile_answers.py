"""A worker with a good certificate whose answers in a step are wrong or unrequested."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import liar
from liar import *

suite = Suite()


@suite.test
def bulk_lanes_are_opened_only_where_packets_may_need_chunks():
    for args, lanes in (((), 0), (WITH_BULK_LANES, 4)):
        with fake() as worker:
            met = Met(worker, args)
        assert met.code == 0, met.said
        opened = [pb.OpenSessionRequest.FromString(raw).lanes for name, raw in worker.heard if name == "OpenSession"]
        attached = sum(pb.Frame.FromString(raw).kind == pb.ATTACH for name, raw in worker.heard if name == "Session")
        assert (opened, attached) == ([lanes], 1 + lanes), (opened, attached)


# ---- wrong answers -----------------------------------------------------------------------------

@suite.test
def wrong_values_fail_the_step():
    shape = "step 1: .*module 'b' answered with a tensor of another shape"
    meet_all([11], shape, cases=shapes(
        V, ([ROWS, CLASSES + 1],), ([ROWS + 1, CLASSES],), ([1, CLASSES],), ([ROWS * CLASSES],),
        ([ROWS, 40_000],), ([ROWS, CLASSES], I64), ([],)))
    meet_all([5], "step 1", cases=changes(
        V, dict(message=4711), dict(message=1), dict(context=99), dict(to="nobody"),
        dict(to="master")))
    meets([1], "step 1: egress refused", twist=change(V, to="w1"))
    meet_all([11], "step 1", "VALUE", cases=changes(
        V, dict(context=0), dict(message=0), dict(module=300), dict(flags=64)))


@suite.test
def error_values_fail_the_step():
    fails = lambda *code_hop: on(V, lambda f: [error_for(f, *code_hop)])
    both = on(V, lambda f: [f.SerializeToString() + error_for(f).SerializeToString()])
    meet_all([1], "step 1: worker 'w1' reports.*my head hurts", cases={
        hop: fails(9, hop) for hop in ("", "module 1", "module 99", "%s")})
    meet_all([11], "step 1", "VALUE", cases={
        "code 99": fails(99), "no code": fails(0), "and a tensor": both})


@suite.test
def duplicate_values_are_ignored():
    """The first one counts, if it is valid."""
    zeros = bytes(4 * ROWS * CLASSES)
    ignore_all({
        "twice": on(V, twice),
        "another": on(V, lambda f: [copy(f), *with_tensor(f, zeros, [ROWS, CLASSES])]),
        "of an unknown call": on(V, lambda f: [copy(f, message=4711), f]),
        "of the master's call": on(V, lambda f: [copy(f, message=f.message - 1), f]),
        "of another context": on(V, lambda f: [copy(f, context=1 << 40, message=4712), f])})
    meet_all([0, 1, 11], cases={
        "no value first": on(V, lambda f: [*with_tensor(copy(f), bytes(12), [3]), f]),
        "an error first": on(V, lambda f: [error_for(f), f]),
        "an error later": on(V, lambda f: [f, error_for(f)])})


@suite.test
def forged_values_of_the_masters_calls_are_ignored():
    """Also values of the loss, which the worker does not compute."""
    def forges(dims):
        def then(f):
            ids = (max(1, f.message + by) for by in (-2, -1, 1, 2, 3, 4, 5))
            return [*(frame(V, bytes(4), dims, context=f.context, message=k) for k in ids), f]
        return on(V, then)

    ignore_all({"a scalar": forges([]), "one number": forges([1])})


@suite.test
def wrong_gradients_fail_the_step():
    shape = "step 1: .*a gradient of another shape for module 'a'"
    meet_all([11], shape, cases=shapes(
        G, ([ROWS, WIDE + 1],), ([ROWS - 1, WIDE],), ([2],), ([],), ([ROWS, WIDE], I64),
        ([ROWS, 40_000],)))
    meet_all([5], "step 1", cases=changes(
        G, dict(message=4711), dict(message=1), dict(context=99), dict(phase=2), dict(phase=0),
        dict(order=1), dict(to="nobody")))
    meets([1], "step 1: egress refused", twist=change(G, to="w1"))
    meet_all([11], "step 1", "GRADIENT", cases=changes(
        G, dict(order=5000), dict(message=0), dict(context=0)))


@suite.test
def gradient_without_a_tensor_counts_as_zeros():
    """A GRADIENT without a tensor has the effect of one of zeros."""
    both = []
    for twist in (shaped(G, [ROWS, WIDE]), on(G, lambda f: [bare(f)])):
        with fake(twist=twist) as worker:
            met = Met(worker)
        assert met.code == 0, met.said
        both.append(weights(met.name))
    assert both[0] == both[1] != weights(honest()[0].name)


@suite.test
def unrequested_gradients_are_ignored():
    """Duplicates; gradients of leaves, of the worker's own value, of the loss and of unknown
    values; those of another pass, which come too late."""
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


@suite.test
def wrong_votes_fail_the_step():
    lacks = "vote of 'w1' lacks module 'b'"
    meet_all([11], "step 1", lacks, cases={
        **shapes(F, ([0], F64), ([1], F64), ([2],), ([2], I64)),
        "none": on(F, lambda f: [bare(f)])})
    meet_all([5], "step 1", cases=changes(F, dict(phase=2), dict(phase=0), dict(context=99)))
    meet_all([11], "step 1", "FINISHED", cases={
        "context 0": change(F, context=0),
        "sums alone": on(F, without_vote)})
    early = lambda f: [pb.Frame(kind=F, context=f.context, phase=1), f]
    meet_all([0, 11], lacks, cases={"early": on(V, early), "before the gradient": on(G, early)})
    ignore_all({
        "twice": on(F, twice),
        "more sums": sums(1, 1, 1, float("nan")),
        "other sums": sums(1e300, 4),
        "of an unknown context": on(F, lambda f: [copy(f, context=99), f])})


def says_no(f):
    f.vote.finite = False
    return [f]


@suite.test
def non_finite_votes_drop_steps_until_the_run_fails():
    """One dropped step does not end the run, but twenty in a row do. A run in which all steps were
    dropped has failed too."""
    def dropped(twist):
        with fake(twist=twist) as worker:
            met = Met(worker)
        assert met.code == 9 and "none of the 3 steps changed the weights" in met.said, met.said
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


# ---- frames that are invalid --------------------------------------------------------------------

def wrong_sum(f):
    f.tensors[0].crc32c ^= 4
    return [f]


@suite.test
def malformed_frames_fail_the_step():
    meets([11], "step 1", "CRC32C", twist=on(V, wrong_sum))
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
    meet_all([6, 11], "step 1", cases={  # 6: gRPC itself refuses a message above the limit
        name: on(V, lambda f, frames=frames: frames) for name, frames in bad.items()}, args=WITH_BULK_LANES)


# ---- unrequested frames --------------------------------------------------------------------------

def extra(*frames):
    """A twist that sends these frames before each VALUE, for its context unless they name
    another."""
    return on(V, lambda f: [*(copy(e, context=e.context or f.context) for e in frames), f])


@suite.test
def unexpected_frame_kinds_are_ignored():
    """Frames that only a master sends, and answers without a request."""
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
        pb.Frame(kind=pb.STATE_DONE, reply_to=5, module=1, state=pb.State(what=1, count=4096)))})
    meet_all([11], "PONG to PING 5, which was not sent", cases={
        "PONG": extra(pb.Frame(kind=pb.PONG, reply_to=5))})
    ignore_all({f"APPLIED {k}": extra(pb.Frame(kind=pb.APPLIED, reply_to=k))
                for k in (1, 5, 1 << 50)})


@suite.test
def unknown_references_are_ignored_or_not_found():
    """Frames that a worker may not send are ignored; allowed ones are answered as for a reference
    that does not exist."""
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
def early_or_duplicate_ended_frames_are_ignored():
    ended = lambda context: pb.Frame(kind=pb.ENDED, context=context, reply_to=1)
    early = lambda f: [ended(f.context), f]
    ignore_all({
        **{f"before {pb.FrameKind.Name(kind)}": on(kind, early) for kind in (V, G, F)},
        "of others": on(V, lambda f: [*map(ended, range(f.context + 1, 20)), f]),
        "twice": on(pb.ENDED, twice)})


@suite.test
def abort_of_a_context_reports_the_workers_text():
    """By ABORT or ERROR, with any code, at any point of the step."""
    def gives_up(code, text="no more room", hop="", kind=pb.ABORT, at=G):
        return on(at, lambda f: [failing(kind, code, text, hop, context=f.context), f])

    meet_all([1], "step 1: worker 'w1' reports for b: no more room", cases={
        f"code {code}": gives_up(code, hop="module 1") for code in range(1, 17)})
    meets([1], r"step 1: worker 'w2' reports for b: no more room \(passed on by worker 'w1'\)",
          twist=gives_up(8, "worker 'w2' reports for b: no more room", "module 1"))
    hops = "", "link", "connect", "load", "w1", "module 77", "module -1", "%s%n", "x" * 128
    meet_all([1], "step 1: worker 'w1' reports.*: no more room", cases={
        hop: gives_up(8, hop=hop) for hop in hops})
    meet_all([1], "step 1: worker 'w1' reports", cases={
        "ERROR": gives_up(8, kind=pb.ERROR),
        "at the value": gives_up(8, at=V),
        "empty": gives_up(8, ""),
        "long": gives_up(8, "x" * 256),
        "percent": gives_up(8, "%s%n%d%500000x")})
    meet_all([11], "step 1", "failure|ABORT", cases={
        "code 0": gives_up(0),
        "code 17": gives_up(17),
        "longer": gives_up(8, "x" * 257),
        "escape": gives_up(8, "\x1b[2J")})
    ignore_all({
        "another context": extra(failing(pb.ABORT, 8, "?", context=99)),
        "another's ERROR": extra(failing(pb.ERROR, 8, "?", context=99, reply_to=4711))})


@suite.test
def abort_without_a_context_fails_the_step():
    """As when a worker's link to another worker has ended."""
    gone = failing(pb.ABORT, 14, "the link to w2 ended", "w1")
    meet_all([1], "step 1", "the link to w2 ended", cases={
        pb.FrameKind.Name(kind): on(kind, lambda f: [gone]) for kind in (V, G, F)})


@suite.test
def lost_link_between_workers_is_a_loss_whatever_its_code():
    """A peer that was restarted refuses the connection as one of an unknown session. The run may
    recover, so the exit code is that of a lost worker."""
    other = [word for setting in ("address=127.0.0.1:9", "identity=spiffe://test/w2") for word in ("--set", f"workers.w2.{setting}")]
    for code, ends in ((1, 6), (5, 6), (9, 6), (14, 6), (15, 1)):
        gone = failing(pb.ABORT, code, "the link to w2 ended", "w2")
        meets([ends], "step 1", "the link to w2 ended", args=other, twist=on(G, lambda f: [gone]))


@suite.test
def worker_that_cannot_step_fails_the_run():
    """The master does not wait for the worker's part of the step, but cannot continue without
    it."""
    cannot = lambda f: [failing(pb.ABORT, 13, "cannot step", "module 1", context=f.context), f]
    meet_all([1], "worker 'w1' reports for b: cannot step", cases={
        f"step {k}": on(pb.ENDED, cannot, lambda f, k=k: f.context == k)
        for k in range(1, STEPS + 1)})


liar.main(suite)
