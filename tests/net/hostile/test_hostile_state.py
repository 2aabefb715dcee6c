"""A worker with a good certificate whose state, evaluations or stream are wrong or endless."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import liar
from liar import *

suite = Suite()


# ---- state and evaluation ----------------------------------------------------------------------

def items(dims=None, dtype=F32, what=1, **state):
    """A twist of the items of one kind of state: another shape, or other fields."""
    def then(f):
        for k, v in state.items():
            setattr(f.state, k, v)
        return [f] if dims is None else shaped(pb.STATE_ITEM, dims, dtype)(f)
    return on(pb.STATE_ITEM, then, lambda f: f.state.what == what)


def says_more(f):
    f.state.count = 4096
    return [f]


@suite.test
def state_that_differs_from_the_plan_is_refused():
    """At a checkpoint, with other names, shapes or numbers of items."""
    meet_all([11], "checkpoint of step 3: .*state.* module 'b'", cases={
        "path": items(name="../../etc/passwd"),
        "another stage's": items(name="1.weight"),
        "no such": items(name="step"),
        "short": items(dims=[3]),
        "long": items(dims=[1 << 15]),
        "dtype": items(dims=[CLASSES], dtype=I64, name="3.bias"),
        "index": items(index=0),
        "count": items(index=1, count=2),
        "far": items(index=4000, count=4096),
        "step's shape": items(what=2, dims=[1], dtype=I64),
        "step's dtype": items(what=2, dims=[]),
        "a moment": items(what=2, name="3.bias.exp_avg")})
    meet_all([11], "checkpoint of step 3: .*state", cases={
        "escape": items(name="a\nb"),
        "empty": items(name=""),
        "outside": items(index=5),
        "too many": items(count=5000)})
    early = lambda f: pb.Frame(kind=pb.STATE_DONE, reply_to=f.reply_to,
                               state=pb.State(what=1, count=2))
    ignore_all({
        "items twice": on(pb.STATE_ITEM, twice),
        "done twice": on(pb.STATE_DONE, twice),
        "done says more": on(pb.STATE_DONE, says_more),
        "done first": on(pb.STATE_ITEM, lambda f: [early(f), f])})


@suite.test
def state_pieces_give_same_bits_and_wrong_ones_are_refused():
    """A run with a worker that sends pieces gets the same bits as one with whole items. A worker
    that sends other pieces than requested is refused."""
    def of_piece(**state):
        def then(f):
            for k, v in state.items():
                setattr(f.state, k, v)
            return [f]
        return on(pb.STATE_ITEM, then)

    def bytes_of(raw, dtype=U8, dims=None):
        def then(f):
            f.payload = raw
            f.tensors[0].CopyFrom(tensor_head(raw, dims or [len(raw)], dtype))
            f.state.length = len(raw)
            return [f]
        return on(pb.STATE_ITEM, then, lambda f: f.state.name == "3.bias")

    with fake(pieces=True) as worker:
        met = Met(worker)
    assert met.code == 0 and trained(met.name) == trained(honest()[0].name), met.said
    asked = [f.state for f in worker.got(pb.STATE_GET)]
    assert asked and all(0 < s.length <= 256 << 10 for s in asked), asked
    assert all(f.state.length for f in worker.got(pb.STATE_PUT)) and not any(f.state.length for f in honest()[1])
    all_hold({name: lambda t=twist: meets([11], "checkpoint of step 3: .*another piece of '.*' of module 'b'", twist=t, pieces=True)
              for name, twist in {
                  "another item": of_piece(name="3.weight"),
                  "another index": of_piece(index=1, count=2),
                  "shorter": bytes_of(bytes(4 * CLASSES - 4)),
                  "longer": bytes_of(bytes(4 * CLASSES + 4))}.items()})
    all_hold({name: lambda t=twist: meets([11], "checkpoint of step 3: .*piece", twist=t, pieces=True)
              for name, twist in {
                  "no bytes": bytes_of(bytes(4 * CLASSES), F32, [CLASSES]),
                  "no length": of_piece(length=0, offset=4)}.items()})


@suite.test
def refused_state_names_the_worker_and_the_checkpoint():
    """Both when weights are pushed and when they are fetched."""
    refuses = lambda f: [failing(pb.ERROR, 8, "no room", "module 1", reply_to=f.reply_to)]
    said = "worker 'w1' reports for b: no room"
    meets([1, 4], said, twist=on(pb.STATE_DONE, refuses))
    meets([1], "checkpoint of step 3: " + said,
          twist=on(pb.STATE_DONE, refuses, lambda f: f.reply_to > STEPS))


@suite.test
def failed_evaluation_ends_the_run_with_its_cause():
    evaluates = lambda f: f.context > STEPS
    after = "evaluation after step 3: "
    meet_all([11], after + ".*module 'b' answered with a tensor of another shape", cases={
        str(dims): shaped(V, dims, when=evaluates)
        for dims in ([ROWS, CLASSES * 600], [ROWS, 1], [1], [ROWS + 1, CLASSES])})
    meets([1], after + "worker 'w1' reports.*: my head hurts",
          twist=on(V, lambda f: [error_for(f)], evaluates))
    meets([5], after + r"the value of module 'b' did not come from 'w1' in time.*; limits\.step_timeout is \S+ s: raise it",
          twist=on(V, nothing, evaluates))


# ---- endless streams ---------------------------------------------------------------------------

RAW = bytes(60 << 10)
# A short step timeout, because both sides keep a core busy during a flood.
SOON = ["--set", f"limits.step_timeout={TIMEOUT // (3 if LONG else 6)}ms", *WITH_BULK_LANES]


def flood(make, send=None):
    """A control lane that sends frames of `make` without end (`send`: how). It sends as fast as
    possible for 0.8 s, which is more than twice the timeout of SOON. Then it sends a thousand a
    second, while the master waits 3 s for the end of the context, so that no side has to keep a
    core busy."""
    def then(frames, w):
        begin = time.monotonic()
        while time.monotonic() < begin + 10 * PACE and not w.over.is_set():
            if not LONG and time.monotonic() > begin + 0.8 * PACE:
                time.sleep(0.001)
            if send:
                send(w, make())
            else:
                yield make()
    return starts(then)


def endless(codes, make):
    # The transport may read more before the master sees it, most on a busy machine (189 MiB were
    # seen); without a limit it would be gigabytes.
    return lambda: meets(codes, "step 1", lane0=flood(make), room=CREDIT + 256 * MIB, args=SOON)


def repeated(codes, f):
    raw = f.SerializeToString()
    return endless(codes, lambda: raw)


def new_chunk(count):
    return lambda: chunk(next(count), 0, 2 * len(RAW), len(RAW))


@suite.test
def endless_frame_streams_end_at_the_step_timeout():
    """The step timeout ends each endless stream, and memory stays bounded."""
    count = itertools.count(1)
    big = lambda kind, **kw: frame(kind, RAW, [len(RAW) // 4], context=1, **kw)
    item = pb.State(what=1, name="x", count=4)
    gradient = lambda: pb.Frame(kind=G, context=1, phase=next(count) % 60_000 + 2, message=3)
    value = lambda: failing(V, 3, "x" * 200, context=next(count), message=next(count))
    all_hold(some({
        "PING": repeated([5, 6], pb.Frame(kind=pb.PING, message=1)),
        "CREDIT": repeated([5, 6], pb.Frame(kind=pb.CREDIT, credit=pb.Credit(bytes=1 << 40))),
        "ENDED": repeated([5], pb.Frame(kind=pb.ENDED, context=1)),
        "FINISHED": repeated([1, 5], pb.Frame(kind=F, context=1, phase=1)),
        "ERROR": repeated([5], failing(pb.ERROR, 8, "x" * 250, context=99)),
        "unknown values": repeated([5], big(V, message=4711)),
        "values to itself": repeated([1, 5], big(V, message=5, to="w1")),
        "gradients": repeated([5, 6, 11], big(G, phase=1, message=3)),
        "items": repeated([5], big(pb.STATE_ITEM, reply_to=5, module=1, state=item)),
        "phases": endless([5, 6, 11], gradient),
        "contexts": endless([5], value),
        "chunks": endless([1, 6, 11], new_chunk(count))}))


@suite.test
def endless_chunks_beyond_the_credit_fail_the_step():
    """On a bulk lane, where chunks belong."""
    def put(w, f):
        w.bulk.put(f)
        time.sleep(0.001)

    meets([1, 6, 11], "step 1", "credit", lane0=flood(new_chunk(itertools.count(1)), put), args=WITH_BULK_LANES)


liar.main(suite)
