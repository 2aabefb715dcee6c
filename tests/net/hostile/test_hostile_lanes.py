"""Hostile streams: wrong ATTACHs, invalid frames and chunks, more bytes than the credit, peers that
neither read nor leave."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from hostile import *

attack = Attacks()

# ---- attaching ---------------------------------------------------------------------------------


@attack
def first_frame_is_not_attach(e):
    s = e.session(attached=False)
    for first in (a_call(), pb.Frame(kind=pb.PING, message=1),
                  pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=1))):
        lane = Lane(e.caller.channel)
        lane.send(first)
        ends(lane, FAILED)
    attach = attach_of(s, e).SerializeToString()
    for data in (b"", b"\xff" * 40, attach[:-3], attach[:10], b"\x0b" * 5000, os.urandom(3000)):
        lane = Lane(e.caller.channel)
        lane.send(data)
        ends(lane, INVALID, MORE, FAILED)
    return 5000


@attack
def wrong_attach(e):
    s, none = e.session(attached=False), os.urandom(16)

    def wrong(code, **changed):
        try:
            s.attach(**changed)
        except Ended as end:
            assert end.code == code, (end.code, end.text)
            return end.text
        raise AssertionError(f"ATTACH with {changed} was accepted")

    text = wrong(NONE, session=none)
    for epoch in (0, 2, 1 << 40):
        assert wrong(NONE, epoch=epoch) == text
    with Caller(the.cluster.ports[0], the.cluster.certs) as other:
        theirs = other.open(name="theirs")
        assert wrong(NONE, session=theirs.id) == text
        assert wrong(NONE, session=theirs.id, role=pb.ROLE_PEER) == text
        theirs.close()
    assert wrong(NONE, role=pb.ROLE_PEER) == text  # the caller is not a peer of the session
    wrong(ABORTED, incarnation=bytes(16))
    wrong(INVALID, role=7)
    wrong(INVALID, lane=1, lanes=0)
    wrong(INVALID, lanes=17)
    wrong(INVALID, session=b"short")
    s.attach()
    wrong(FAILED)  # lane 0 a second time
    return 0


@attack
def second_attach_in_a_stream(e):
    s = e.session()
    s.lanes[0].send(attach_of(s, e))
    ends(s.lanes[0], FAILED)
    return 0


# ---- invalid frames ----------------------------------------------------------------------------

def stream_ends(e, data, *codes, lanes=0):
    lane = e.session(lanes=lanes).lanes[0]
    lane.send(data)
    text = ends(lane, *codes)
    e.tidy()
    return text


@attack
def malformed_frames(e):
    whole = a_call().SerializeToString()
    for cut in (1, 3, 12, len(whole) - 50, len(whole) - 1):
        stream_ends(e, whole[:cut], INVALID)
    stream_ends(e, os.urandom(2000), INVALID, MORE)
    stream_ends(e, b"", INVALID)
    ping = pb.Frame(kind=pb.PING, message=1)
    for before in ([ping] * 16, [pb.Frame(kind=pb.PING, message=2, before=[ping])], [pb.Frame()]):
        stream_ends(e, pb.Frame(kind=pb.PING, message=3, before=before).SerializeToString(), INVALID)
    stream_ends(e, b"\x0b" * 30_000, INVALID, MORE)                     # groups without end
    stream_ends(e, b"\x8a\x06\x80\x80\x01" + bytes(16384) + b"\x0b", INVALID)
    stream_ends(e, whole + b"\x7a\x01x", INVALID)                       # a second payload
    stream_ends(e, b"\xaa\x3e\x80\x80\x03" + bytes(49152) + whole, MORE)  # 48 KiB of unknown field
    stream_ends(e, b"\x62\x00" * 15_000, INVALID, MORE)                 # 15,000 empty tensors
    f = a_call()
    f.payload += b"x"
    stream_ends(e, f, INVALID)
    f = a_call()
    right, f.tensors[0].crc32c = f.tensors[0].crc32c, f.tensors[0].crc32c ^ 1
    told = stream_ends(e, f, LOST) + worker_log()
    assert "another CRC32C" in told and f"{right:08x}" not in told and f"{right ^ 1:08x}" not in told, told
    return 50_000


@attack
def fields_that_cannot_be(e):
    for change in (dict(kind=0), dict(kind=3), dict(kind=7), dict(kind=99), dict(flags=2),
                   dict(flags=64), dict(message=0), dict(context=0), dict(module=ALL + 1),
                   dict(upstream=[1]), dict(vote=pb.Vote(finite=True)),
                   dict(failure=pb.Failure(code=1)), dict(state=pb.State(what=1))):
        f = a_call()
        f.MergeFrom(pb.Frame(**change))
        for k in ("kind", "message", "context"):  # zeros are not merged
            setattr(f, k, change.get(k, getattr(f, k)))
        stream_ends(e, f, INVALID)
    for change in (dict(bytes=95), dict(bytes=1 << 49), dict(dims=[1 << 40, 1 << 40]),
                   dict(dims=[1 << 63]), dict(dims=[4] * 9), dict(dtype=0), dict(dtype=200),
                   dict(transfer=5)):
        f = a_call()
        del f.tensors[0].dims[:]
        f.tensors[0].MergeFrom(pb.TensorHead(**{"dims": X[1], **change}))
        f.tensors[0].dtype = change.get("dtype", F32)
        stream_ends(e, f, INVALID, MORE)
    return 0


@attack
def bodies_that_cannot_be(e):
    arg, two = (5, False), a_call()
    two.tensors.append(tensor_head(*X))  # one argument, two tensors
    two.payload += X[0]
    needs = lambda **kw: pb.Frame(kind=pb.PREPARE, context=1, phase=1, backward=pb.Backward(
        calls=[pb.NeededCall(call=5, root=1, **kw)]))
    for f in (two, call(1, 9, 0, []), call(1, 9, 0, [arg] * 9), call(1, 9, 0, [(0, False)]),
              pb.Frame(kind=pb.VALUE, context=1, message=5),  # neither a tensor nor a failure
              pb.Frame(kind=pb.DROP, context=1, upstream=range(1, 66)),
              pb.Frame(kind=pb.DROP, context=1, to="w2"),
              prepare(1, 0, [(5, 1, False, [])]),
              prepare(1, 1, [(5, 1, False, [])] * 200),
              # peer number 2 of one peer
              prepare(1, 1, [(5, 1, False, [(0, 1, 2, 0)])], peers=["w2"]),
              prepare(1, 1, [(5, 1, False, [(0, 1, 0, 0), (0, 2, 0, 0)])]),
              needs(contributions=1 << 20), needs(targets=[pb.Target(slot=8, value=1)]),
              needs(targets=[pb.Target(slot=0, value=1, order=1 << 20)]),
              gradient(1, 1, 5, *Y, order=1 << 20),
              pb.Frame(kind=pb.APPLY, context=1, message=3, commit=pb.Commit(scale=float("inf"))),
              pb.Frame(kind=pb.APPLY, context=1, message=3),
              frame(pb.STATE_PUT, *X, state=pb.State(what=1, name="x", index=9, count=9999999))):
        stream_ends(e, f, INVALID)
    return 64 << 10


@attack
def oversized_frame(e):
    big = a_call(of=(bytes(80 << 10), [20480]))  # over 64 KiB inline
    stream_ends(e, big, INVALID)
    s = e.session()
    s.lanes[0].send(bytes(3 * MIB))  # over limits.message_size
    ends(s.lanes[0], MORE, grpc.StatusCode.CANCELLED)
    return 3 * MIB


@attack
def call_on_a_bulk_lane(e):
    s = e.session(lanes=1)
    bulk = s.attach(1)
    bulk.send(a_call())
    ends(bulk, FAILED)
    ends(s.lanes[0], FAILED)  # one lane ends, all end
    return 0


@attack
def a_pong_to_a_ping_that_was_not_sent(e):
    """If it counted, it would open the window for chunks that are still in flight."""
    lane = e.session().lanes[0]
    lane.send(pb.Frame(kind=pb.PONG, reply_to=1 << 63 | 5))
    ends(lane, INVALID)
    return 0


# ---- chunks and credit -------------------------------------------------------------------------

def two_in_chunks(*transfers, size=80_000):
    """A CALL whose arguments come in chunks, as these transfers."""
    f = call(1, 5, 0, [(0, False)] * len(transfers))
    for arg, transfer in zip(f.call.args, transfers):
        arg.here = True
        f.tensors.add(dtype=F32, dims=[size // 4], bytes=size, transfer=transfer)
    return f


@attack
def bad_chunks(e):
    data = bytes(100_000)
    for frames, codes in ((
            [chunk(data, offset=1, total=100_000)], [INVALID]), (            # beyond the total
            [chunk(data, offset=1 << 49, total=100_000)], [INVALID]), (
            [chunk(data, offset=(1 << 64) - 1, total=(1 << 50) - 1)], [INVALID]), (
            [chunk(b"", total=5)], [INVALID]), (
            [chunk(data, transfer=0)], [INVALID]), (
            [chunk(data, total=200_000), chunk(data, total=300_000)], [INVALID]), (  # another total
            [chunk(data, total=250_000)] * 3, [INVALID]), (                   # the same bytes again
            [chunk(data, total=1 << 48)], [MORE]), (                          # over session_bytes
            [chunk(data, total=CREDIT + 1)], [MORE]), (                       # over the credit
            [chunk(b"x", transfer=i + 1, total=2) for i in range(600)], [MORE]), (
            [chunk(bytes(MIB + 1))], [MORE]), (                               # over chunk_bytes
            [two_in_chunks(7, 7)], [INVALID]), (                              # one transfer twice
            [chunk(data), two_in_chunks(7)], [INVALID])):                     # of another size
        s = e.session()
        for f in frames:
            s.lanes[0].send(f)
        ends(s.lanes[0], *codes)
        e.tidy()
    return CREDIT


@attack
def the_same_bytes_twice(e):
    """A tensor is complete when each of its bytes has come, not when their number has."""
    s = e.session()
    half = os.urandom(50_000)
    for f in (chunk(half, total=100_000), chunk(half, total=100_000)):
        s.lanes[0].send(f)
    ends(s.lanes[0], INVALID)
    return 100_000


@attack
def credit_overrun(e):
    """Frames beyond the credit that the worker cannot process yet."""
    s = e.session(graph=linear_graph(2048))
    lane, data = s.lanes[0], f32([1] * 6 * 2048)
    assert lane.credit == CREDIT
    # waits for ever, and a change of its module's weights waits for it
    lane.send(call(1, 100, 0, [(99, False)]))
    put = frame(pb.STATE_PUT, data, [2048, 6], message=4, module=0,
                state=pb.State(what=pb.STATE_WEIGHTS, name="0.weight", count=2))
    for _ in range(CREDIT // len(data) + 1):
        lane.send(put)
    assert "credit" in ends(lane, MORE)
    # chunks whose heads never come return no credit either
    s = e.session()
    for i in range(5):
        s.lanes[0].send(chunk(bytes(MIB), transfer=i + 1))
    ends(s.lanes[0], MORE)
    return CREDIT + MIB


# ---- peers that neither read nor leave ---------------------------------------------------------

@attack
def half_a_stream(e):
    """Sessions that are opened and abandoned, and streams without any frame."""
    lanes = [Lane(e.caller.channel) for _ in range(10)]
    s = e.session(attached=False)
    s.attach().finish()  # a half close is the end of the lane
    ends(s.lanes[0], grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    for lane in lanes:
        lane.call.cancel()
    return 0


@attack
def answers_nobody_reads(e):
    """Requests whose answers are never read: the bytes that wait to be sent are bounded."""
    w = the.cluster.workers[0]
    s, seen = e.session(attached=False), w.text().count("does not read")
    # with a flow-control window of 1 KiB
    narrow = Caller(the.cluster.ports[0], the.cluster.certs, name="evil",
                    options=[("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)])
    ping = pb.Frame(kind=pb.PING, message=1)
    pings = pb.Frame(before=[ping] * 15, kind=pb.PING, message=1).SerializeToString()
    lane = Lane(narrow.channel, deaf=True)
    lane.send(attach_of(s, e))
    for _ in range(20_000 // 16):  # more than 8192 and those that the transport buffers
        lane.send(pings)
    until = time.monotonic() + 20 * SLOW
    while w.text().count("does not read") == seen and time.monotonic() < until:
        time.sleep(0.05)  # listens only now, because that reads from the stream
    lane.listen()
    assert "does not read" in ends(lane, MORE)
    narrow.close()
    # the maximum number of messages, times the bytes of one in its lane's log and in the stream
    return 8192 * 640


if __name__ == "__main__":
    attack.main("hostile_lanes")
