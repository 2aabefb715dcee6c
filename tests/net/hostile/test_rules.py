#!/usr/bin/python3
"""The rules of PROTOCOL.md that carry a tag: each [R5.12] has a test r5_12_... here, which breaks
the rule on a live worker and checks that it refuses with the code of the page and continues. A
frame that is invalid by itself ends its stream; a frame at the wrong time gets an ERROR, an ABORT
of its context, or a failed value."""
import hashlib, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from hostile import *

suite = Suite()
GRAPH = lambda: mlp(8, 4)
DENIED = pyclient.MISSING or grpc.StatusCode.PERMISSION_DENIED
STEP = pyclient.MISSING or pb.Commit(scale=1, lr=0.1, apply=True)


class With:
    """A block with an Evil for one rule."""
    evil = None

    def __enter__(self):
        With.evil = With.evil or Evil()
        return With.evil

    def __exit__(self, *_):
        With.evil.tidy()


def rule(name, run):
    """Adds a test r...; run: a function of an Evil."""
    def test():
        with With() as e:
            run(e)
    test.__name__ = name
    suite.test(test)


def rules(table, kind):
    for name, (made, *codes) in table.items():
        rule(name, lambda e, made=made, codes=codes: kind(e, made, *codes))


# ---- 2, 3: calls ---------------------------------------------------------------------------------

def opening(**changed):
    fields = dict(session=os.urandom(16), epoch=1, name="rule", config_digest=bytes(32))
    return pb.OpenSessionRequest(**{**fields, **changed})


def open_fails(e, changed, *codes):
    fails(lambda: e.caller.stub.OpenSession(opening(**changed()), timeout=30 * SLOW), *codes)


def load_fails(e, changed, *codes):
    s = e.session(loaded=False, attached=False)
    spec = [pb.TensorSpec(dtype=F32, dims=(4, 6))]
    fails(lambda: e.caller.stub.LoadModule(load_request(s, GRAPH(), spec, **changed()), timeout=30 * SLOW), *codes)


def attach_fails(e, changed, *codes):
    s = e.session(attached=False)
    try:
        s.attach(**changed(e))
    except Ended as end:
        assert end.code in codes, (end.code, end.text)
        return
    raise AssertionError("it was accepted")


def attempts(first, second, *codes):
    """Opens attempts `first` and `second` of one session; the second is refused with one of
    `codes`."""
    def run(e):
        session = os.urandom(16)
        e.made.append(e.caller.open(session, **first))
        fails(lambda: e.caller.stub.OpenSession(opening(session=session, **second), timeout=30 * SLOW), *codes)
    return run


def is_not_there(ask):
    def run(e):
        s = e.session(attached=False)
        fails(lambda: ask(e.caller.stub, s), NONE)
    return run


def closed_twice(e):
    s = e.session(attached=False)
    s.close()
    fails(s.close, NONE)


def somebody_elses(e):
    with Caller(the.cluster.ports[0], the.cluster.certs) as other:
        theirs = other.open(name="theirs")
        for ask in (pb.StatusRequest(session=theirs.id), pb.CloseSessionRequest(session=theirs.id, epoch=1)):
            method = e.caller.stub.Status if isinstance(ask, type(pb.StatusRequest())) else e.caller.stub.CloseSession
            fails(lambda: method(ask), NONE)
        theirs.close()


def loaded_twice(e):
    s = e.session(attached=False)
    fails(lambda: s.load(GRAPH(), (4, 6)), EXISTS)


def unload(generation=0):
    return pb.Frame(kind=pb.UNLOAD, message=9, generation=generation)


def succeeded(e):
    """A session whose module 0 has generation 1."""
    s = e.session()
    s.lanes[0].send(unload())
    gone = s.lanes[0].recv()
    assert gone.kind == pb.UNLOADED and gone.reply_to == 9 and gone.module == 0, gone
    s.load(GRAPH(), (4, 6), generation=1)
    return s


def loaded_of_an_earlier_generation(e):
    s = succeeded(e)
    s.lanes[0].send(unload(1))
    assert s.lanes[0].recv().kind == pb.UNLOADED
    for generation in (0, 1):
        fails(lambda: s.load(GRAPH(), (4, 6), generation=generation), FAILED)


def too_large(e):
    whole = opening().SerializeToString() + b"\xaa\x3e\x80\x80\x10" + bytes(256 << 10)
    assert e.caller.raw("OpenSession", whole)[0] == MORE


def another_protocol(e):
    small = pb.About(protocol=9, software="x", limits=pb.Limits(message_bytes=300_000))
    code, text = e.caller.raw("Hello", pb.HelloRequest(about=small).SerializeToString())
    assert code.name == "FAILED_PRECONDITION" and "at most 300000 bytes" in text, (code, text)
    code, text = e.caller.raw("Hello", pb.HelloRequest(about=pb.About(protocol=7, software="x")).SerializeToString())
    assert code == UNIMPLEMENTED and "7" in text and "9" in text, (code, text)


def too_many_fields(e):
    assert e.caller.raw("OpenSession", b"\x22\x00" * 70_000)[0] in (MORE, INVALID)


def attached_twice(e):
    s = e.session()
    lane = Lane(e.caller.channel)
    lane.send(attach_of(s, e))
    ends(lane, FAILED)


def not_an_attach(e):
    e.session(attached=False)
    lane = Lane(e.caller.channel)
    lane.send(pb.Frame(kind=pb.PING, message=1))
    ends(lane, FAILED)


if pyclient.MISSING is None:
    rules({
        "r2_1_an_epoch_of_0": (lambda: dict(epoch=0), INVALID),
        "r3_4_an_identity_too_long": (lambda: dict(peer_identities=["spiffe://" + "x" * 300]), INVALID, MORE),
        "r3_5_seventeen_lanes": (lambda: dict(lanes=17), INVALID, MORE),
        "r3_6_a_session_of_five_bytes": (lambda: dict(session=b"short"), INVALID),
        "r3_7_a_digest_of_five_bytes": (lambda: dict(config_digest=b"short"), INVALID),
        "r3_8_a_session_without_a_name": (lambda: dict(name=""), INVALID),
        "r3_9_a_lease_of_a_millisecond": (lambda: dict(reference_lease_ms=1), INVALID),
    }, open_fails)
    rule("r2_2_open_already", attempts({}, {}, EXISTS))
    rule("r2_3_an_earlier_attempt", attempts(dict(epoch=6), dict(epoch=5), FAILED))
    rule("r2_4_another_configuration", attempts(dict(epoch=6), dict(epoch=6, config_digest=bytes(31) + b"x"), FAILED))
    rule("r2_5_of_another_epoch", is_not_there(
        lambda stub, s: stub.CloseSession(pb.CloseSessionRequest(session=s.id, epoch=2))))
    rule("r2_6_closed_twice", closed_twice)
    rule("r2_7_somebody_elses", somebody_elses)
    rule("r2_8_loaded_twice", loaded_twice)
    rule("r2_11_loaded_of_an_earlier_generation", loaded_of_an_earlier_generation)
    rules({
        "r2_9_attached_from_before_a_restart": (lambda e: dict(incarnation=bytes(16)), ABORTED),
        "r2_10_attached_as_no_peer": (lambda e: dict(role=pb.ROLE_PEER), NONE),
        "r4_3_a_lane_beyond_the_last": (lambda e: dict(lane=1, lanes=0), INVALID),
    }, attach_fails)
    rule("r3_1_over_256_KiB", too_large)
    rule("r3_2_another_protocol", another_protocol)
    rule("r3_3_more_fields_than_that", too_many_fields)
    rule("r4_1_first_not_ATTACH", not_an_attach)
    rule("r4_2_a_lane_twice", attached_twice)
    rules({
        "r3_10_a_module_over_254": (lambda: dict(module=ALL), INVALID),
        "r3_11_one_key_too_few": (lambda: dict(keys=bytes(16)), INVALID),
        "r3_12_no_such_parameter_to_freeze": (lambda: dict(frozen=["no.such"]), NONE),
        "r3_13_no_such_device": (lambda: dict(device="abacus:0"), INVALID, NONE),
        "r3_14_no_such_artifact": (lambda: dict(init=pb.INIT_ARTIFACT, artifact=pb.Artifact(name="none", sha256=bytes(32))), NONE),
        "r3_15_no_such_peer": (lambda: dict(route=pb.Route(peers=["nobody"])), NONE),
        "r3_16_a_rate_that_is_no_number": (lambda: dict(optimizer=pb.Optimizer(kind=pb.OPTIMIZER_ADAM, lr=float("nan"))), INVALID),
    }, load_fails)


# ---- 4, 5: frames by themselves ------------------------------------------------------------------

def stream_ends(e, made, *codes):
    s = e.session()
    for f in made():
        s.lanes[0].send(f)
    ends(s.lanes[0], *(codes or (INVALID,)))


def changed(f, head=None, **fields):
    """The frame with other values of fields, which may be zeros; head: fields of its tensor's
    head."""
    for k, v in fields.items():
        if isinstance(v, (int, str, bytes)):
            setattr(f, k, v)
        else:
            f.MergeFrom(pb.Frame(**{k: v}))
    for k, v in (head or {}).items():
        if k == "dims":
            del f.tensors[0].dims[:]
            f.tensors[0].dims.extend(v)
        else:
            setattr(f.tensors[0], k, v)
    return [f]


def placed(f, position=0, backward=0, after=0):
    f.call.position, f.call.input_position, f.call.after = position, backward, after
    return f


def of_call(head=None, **fields):
    return lambda: changed(a_call(), head, **fields)


def this(f):
    return lambda: [f()]


def needed(**kw):
    return lambda: [pb.Frame(kind=pb.PREPARE, context=1, phase=1, backward=pb.Backward(
        calls=[pb.NeededCall(**{"call": 5, "root": 1, **kw})]))]


def needed_to(*targets):
    return needed(targets=[pb.Target(**{"value": 1, **t}) for t in targets])


def reference(kind, **fields):
    about = {k: fields.pop(k) for k in list(fields) if k in ("ref", "fork", "number", "early", "yours")}
    return lambda: [pb.Frame(kind=kind, **fields, reference=pb.Reference(**{"ref": 1, "fork": 2, "number": 1, **about}))]


def commit(**kw):
    return lambda: [pb.Frame(kind=pb.APPLY, context=1, message=3, commit=pb.Commit(**{"scale": 1, "lr": 1, "apply": True, **kw}))]


def two_transfers():
    f = call(1, 5, 0, [(0, False)] * 2)
    for arg in f.call.args:
        arg.here = True
        f.tensors.add(dtype=F32, dims=[20_000], bytes=80_000, transfer=7)
    return [f]


def put(**kw):
    return lambda: [frame(pb.STATE_PUT, *X, state=pb.State(**{"what": 1, "name": "x", "count": 1, **kw}))]


def stored(kind, name, what=1, message=9, **kw):
    """A frame about a file of state."""
    return pb.Frame(kind=kind, message=message, state=pb.State(what=what, name=name), **kw)


DATA = bytes(100_000)
if pyclient.MISSING is None:
    rules({
        "r4_4_another_size_than_its_shape": (of_call(head=dict(bytes=95)),),
        "r4_5_nine_dimensions": (of_call(head=dict(dims=[1] * 9)), INVALID, MORE),
        "r4_6_a_dtype_that_is_none": (of_call(head=dict(dtype=200)),),
        "r4_7_a_wrong_checksum": (of_call(head=dict(crc32c=7)), LOST),
        "r4_8_bytes_behind_its_tensors": (of_call(payload=X[0] + b"x"),),
        "r4_9_over_64_KiB_in_a_frame": (this(lambda: a_call(of=(bytes(80 << 10), [20480]))),),
        "r4_10_one_transfer_for_two_tensors": (two_transfers,),
        "r4_11_a_transfer_beside_bytes": (of_call(head=dict(transfer=5)),),
        "r4_12_a_chunk_beyond_its_total": (this(lambda: chunk(DATA, offset=1, total=100_000)),),
        "r4_13_a_chunk_of_no_transfer": (this(lambda: chunk(DATA, transfer=0)),),
        "r4_14_a_chunk_without_bytes": (this(lambda: chunk(b"", total=5)),),
        "r4_15_another_total": (lambda: [chunk(DATA, total=200_000), chunk(DATA, total=300_000)],),
        "r4_16_the_same_bytes_twice": (lambda: [chunk(DATA, total=250_000)] * 2,),
        "r4_17_over_chunk_bytes": (this(lambda: chunk(bytes(MIB + 1))), MORE),
        "r4_18_beyond_the_credit": (this(lambda: chunk(DATA, total=CREDIT + 1)), MORE),
        "r5_1_a_kind_that_is_none": (of_call(kind=99),),
        "r5_2_a_body_of_another_kind": (of_call(state=pb.State(what=1) if pb else None),),
        "r5_3_a_body_that_is_missing": (this(lambda: pb.Frame(kind=pb.APPLY, context=1, message=3)),),
        "r5_4_a_tensor_too_many": (this(lambda: frame(pb.DROP, *X, context=1)),),
        "r5_5_a_flag_that_is_none": (of_call(flags=64),),
        "r5_6_a_flag_of_another_kind": (this(lambda: pb.Frame(kind=pb.DROP, context=1, flags=1)),),
        "r5_7_a_worker_where_none_is_named": (this(lambda: pb.Frame(kind=pb.DROP, context=1, to="w2")),),
        "r5_8_upstream_of_a_CALL": (of_call(upstream=[1]),),
        "r5_9_a_module_over_255": (of_call(module=256),),
        "r5_10_a_scale_that_is_not_finite": (commit(scale=float("inf")),),
        "r5_11_a_failure_of_code_17": (this(lambda: pb.Frame(
            kind=pb.VALUE, context=1, message=5, failure=pb.Failure(code=17))),),
        "r5_12_a_context_of_0": (of_call(context=0),),
        "r5_13_a_message_of_0": (of_call(message=0),),
        "r5_14_seventeen_calls": (this(lambda: prepare(1, 1, [(i, 0, 0, []) for i in range(5, 22)])),),
        "r5_15_a_call_of_id_0": (needed(call=0),),
        "r5_16_a_root_that_is_not_finite": (needed(root=float("nan")),),
        "r5_17_more_contributions": (needed(contributions=4097),),
        "r5_18_slot_8": (needed_to(dict(slot=8)),),
        "r5_19_two_targets_of_a_slot": (needed_to(dict(slot=0), dict(slot=0, value=2)),),
        "r5_20_a_target_of_order_4096": (needed_to(dict(order=4096)),),
        "r5_21_a_worker_that_is_not_listed": (needed_to(dict(to=1)),),
        "r5_22_positions_that_do_not_ascend": (this(lambda: placed(call(1, 9, 0, [(5, False)]), 5, 4)),),
        "r5_23_a_position_of_a_step_not_taken": (commit(apply=False, position=3),),
        "r5_24_a_reference_of_id_0": (reference(pb.REF_FETCH, ref=0),),
        "r5_25_a_reference_without_a_number": (reference(pb.REF_FETCH, number=0),),
        "r5_26_early_where_it_means_nothing": (reference(pb.REF_DELETE, early=True),),
        "r5_27_a_gradient_of_order_4096": (this(lambda: gradient(1, 1, 5, *Y, order=4096)),),
        "r5_28_an_item_behind_the_last": (put(index=9, count=9),),
        "r5_29_a_value_without_anything": (this(lambda: pb.Frame(kind=pb.VALUE, context=1, message=5)),),
        "r5_30_nine_arguments": (this(lambda: call(1, 9, 0, [(5, False)] * 9)),),
        "r5_31_an_argument_that_is_nowhere": (this(lambda: call(1, 9, 0, [(0, False)])),),
        "r5_32_a_phase_of_0": (this(lambda: prepare(1, 0, [(5, 1, False, [])])),),
        "r5_33_another_ATTACH": (this(lambda: pb.Frame(kind=pb.ATTACH, attach=pb.Attach(
            session=bytes(16), epoch=1, role=pb.ROLE_MASTER, incarnation=bytes(16)))), FAILED),
        "r5_34_sixteen_more_rates": (commit(more_lrs=[1] * 16),),
        "r5_38_a_gradient_of_no_context": (put(what=4),),
        "r5_39_a_file_that_is_a_path": (this(lambda: stored(pb.STATE_SAVE, "../x")),),
        "r5_40_a_file_of_gradients": (this(lambda: stored(pb.STATE_SAVE, "x", 4)),),
    }, stream_ends)


def pieces_that_are_none(e):
    def get(**kw):
        return pb.Frame(kind=pb.STATE_GET, message=9, state=pb.State(**{"what": 1, "name": "0.bias", "length": 4, **kw}))

    whole = frame(pb.STATE_PUT, *X, state=pb.State(what=1, name="x", count=1, length=len(X[0])))
    short = frame(pb.STATE_PUT, bytes(8), [8], 5, state=pb.State(what=1, name="x", count=1, length=7))
    saved = stored(pb.STATE_SAVE, "x")
    saved.state.length = 4
    for f in (get(length=0, offset=4), get(name=""), get(what=4), get(length=1 << 51), whole, short, saved):
        stream_ends(e, lambda: [f], INVALID)


rule("r5_41_a_piece_that_is_none", pieces_that_are_none)


# ---- 5, 6: frames in their context ---------------------------------------------------------------

def on_a_bulk_lane(e):
    s = e.session(lanes=1)
    bulk = s.attach(1)
    bulk.send(a_call())
    ends(bulk, FAILED)


def before_a_module(e):
    lane = e.session(loaded=False).lanes[0]
    lane.send(a_call())
    refuses(lane, FAILED)


rule("r5_35_a_CALL_on_a_bulk_lane", on_a_bulk_lane)
rule("r5_36_before_the_first_LoadModule", before_a_module)


def first(c=1):
    return call(c, 100, 0, [(5, True, *X)])


def passes(n=1, phase=1, to=((0, 5, 0, 0),), value=100, **kw):
    return prepare(1, phase, [(value, n, False, to)], **kw)


def brings(of=Y, phase=1, value=100, order=0):
    return gradient(1, phase, value, *of, order=order)


def says(kind, context=1, **fields):
    return pb.Frame(kind=kind, context=context, message=9, **fields)


def writes(of, name="0.bias"):
    """A frame that writes the gradient of a bias."""
    return frame(pb.STATE_PUT, *of, context=1, message=9, module=0, state=pb.State(what=4, name=name, count=1))


def done():
    return [first(), passes(), brings()]  # answered by GRADIENT and FINISHED


def is_refused(e, made, *codes):
    """Sends these frames, the last of which must be refused."""
    lane = e.session().lanes[0]
    for f in made():
        lane.send(f)
    return refuses(lane, *codes)


def is_poison(e, made, *codes):
    """Sends these frames; the value 101 of the CALL must be an error."""
    lane = e.session().lanes[0]
    for f in made():
        lane.send(f)
    poisons(lane, 1, 101, *codes)


if pyclient.MISSING is None:
    rules({
        "r5_37_a_kind_no_worker_acts_on": (lambda: [says(pb.APPLIED)], UNIMPLEMENTED),
        "r6_1_an_id_again": (lambda: [first(), a_call(100)], EXISTS),
        "r6_2_a_value_that_is_made_here": (lambda: [first(), frame(pb.VALUE, *Y, context=1, message=100)], FAILED),
        "r6_3_a_call_that_is_not_here": (lambda: [passes()], NONE),
        "r6_4_a_pass_in_a_pass": (lambda: [first(), passes(), passes(phase=2)], FAILED),
        "r6_5_a_place_that_is_taken": (lambda: [first(), passes(n=2), brings(), brings()], EXISTS),
        "r6_6_a_place_that_is_not_there": (lambda: [first(), passes(n=2), brings(order=2)], INVALID),
        "r6_7_a_phase_that_is_not_the_next": (lambda: [first(), passes(phase=3)], FAILED),
        "r6_8_a_target_that_is_no_input": (lambda: [first(), passes(to=[(0, 6, 0, 0)])], INVALID),
        "r6_9_an_input_without_a_gradient": (lambda: [call(1, 100, 0, [(5, False, *X)]), passes()], INVALID),
        "r6_10_a_gradient_behind_its_call": (lambda: [*done(), brings()], FAILED),
        "r6_11_a_second_backward": (lambda: [*done(), brings(phase=2), passes(phase=2)], FAILED),
        "r6_12_backward_of_an_evaluation": (
            lambda: [a_call(100, training=False), passes(to=[]), brings()], FAILED),
        "r6_13_a_step_in_a_pass": (lambda: [first(), passes(), says(pb.APPLY, module=ALL, commit=STEP)], FAILED),
        "r6_14_no_step_to_take_back": (lambda: [*done(), says(pb.REVERT)], FAILED),
        "r6_15_a_root_that_is_no_scalar": (lambda: [first(), prepare(1, 1, [(100, 0, True, [])])], INVALID),
        "r6_16_a_call_named_twice": (lambda: [first(), passes(n=2), passes(n=2)], FAILED, EXISTS),
        "r6_17_a_gradient_of_another_shape": (lambda: [first(), passes(), brings(of=X)], INVALID),
        "r6_18_a_gradient_of_an_input": (lambda: [first(), brings(value=5)], NONE),
        "r6_29_a_gradient_written_in_a_pass": (lambda: [first(), passes(), writes(X)], FAILED),
        "r6_30_a_gradient_that_is_not_there": (lambda: [first(), writes(X)], NONE),
        "r6_31_a_gradient_written_in_another_shape": (lambda: [*done(), writes(X)], INVALID),
    }, is_refused)
    rules({
        "r6_19_a_module_that_is_not_here": (lambda: [call(1, 101, 77, [(0, True, *X)])], NONE),
        "r6_20_an_input_too_many": (lambda: [call(1, 101, 0, [(0, True, *X)] * 2)], INVALID),
        "r6_21_a_batch_of_another_shape": (lambda: [a_call(101, of=(f32([1] * 24), [6, 4]))], INVALID),
        "r6_22_after_a_call_that_is_not_here": (lambda: [placed(call(1, 101, 0, [(0, True, *X)]), after=77)], NONE),
        "r6_23_an_input_that_is_here_already": (
            lambda: [first(), call(1, 101, 0, [(5, True, *X)])], EXISTS),
        "r6_24_a_position_that_is_taken": (
            lambda: [placed(call(1, 100, 0, [(0, True, *X)]), 1),
                     placed(call(1, 101, 0, [(0, True, *X)]), 1)], EXISTS, FAILED),
    }, is_poison)


# ---- 6: frames of an unloaded module -------------------------------------------------------------

def a_late_call(e):
    lane = succeeded(e).lanes[0]
    lane.send(a_call(101))
    poisons(lane, 1, 101, NONE)
    lane.send(changed(a_call(102), generation=1)[0])
    lane.send(deliver(1, 102))
    got = lane.recv()
    assert got.kind == pb.VALUE and got.message == 102 and got.tensors, got


def a_late_step(e):
    lane = succeeded(e).lanes[0]
    lane.send(says(pb.APPLY, commit=STEP))
    refuses(lane, NONE)


def late_state(e):
    state = pb.State(what=pb.STATE_WEIGHTS, name="0.bias", count=1)
    for f in (pb.Frame(kind=pb.STATE_GET, message=9, state=state), unload(), unload(7),
              stored(pb.STATE_SAVE, "x"), stored(pb.STATE_LOAD, "x"), stored(pb.STATE_REMOVE, "x"),
              pb.Frame(kind=pb.UNLOAD, message=9, module=5),
              frame(pb.STATE_PUT, f32([1] * 8), [8], message=9, state=state)):
        lane = succeeded(e).lanes[0]
        lane.send(f)
        refuses(lane, NONE)


def in_use(e):
    lane = e.session().lanes[0]
    lane.send(first())
    lane.send(unload())
    refuses(lane, FAILED)
    lane.send(says(pb.END_CONTEXT))
    assert lane.recv().kind == pb.ENDED
    lane.send(unload())
    assert lane.recv().kind == pb.UNLOADED


def piece(kind=None, offset=0, raw=None, length=4):
    state = pb.State(what=pb.STATE_WEIGHTS, name="0.bias", count=1, offset=offset, length=len(raw) if raw else length)
    return frame(kind or pb.STATE_GET, raw, [len(raw)] if raw else (), 5, message=9, state=state)


def pieces_beyond_their_item(e):
    """Pieces up to the end are accepted: the fetched item is the one that was put."""
    lane = e.session().lanes[0]
    lane.send(piece(pb.STATE_PUT, 4, b"abcdefgh"))
    assert lane.recv().kind == pb.STATE_DONE
    lane.send(piece(offset=8, length=4))
    item, done = lane.recv(), lane.recv()
    assert (item.kind, item.payload, item.state.offset, item.state.name) == (pb.STATE_ITEM, b"efgh", 8, "0.bias"), item
    assert (done.kind, done.reply_to, done.state.count) == (pb.STATE_DONE, 9, 1), done
    for f in (piece(offset=32), piece(offset=29, length=4), piece(offset=1 << 50, length=1 << 50), piece(length=1 << 25),
              piece(pb.STATE_PUT, 28, b"abcdefgh")):
        lane.send(f)
        refuses(lane, INVALID)


if pyclient.MISSING is None:
    rule("r5_42_a_piece_beyond_its_item", pieces_beyond_their_item)
    rule("r6_25_a_CALL_of_the_module_before", a_late_call)
    rule("r6_26_an_APPLY_of_the_module_before", a_late_step)
    rule("r6_27_state_of_the_module_before", late_state)
    rule("r6_28_a_module_that_is_in_use", in_use)


# ---- 6: files of state ---------------------------------------------------------------------------

NAMES = ("", ".", "..", "../x", "/x", "a/b", ".x", "a b", "a\x7f", "\u00e4", "n" * 129)


def no_names(e):
    for kind in (pb.STATE_SAVE, pb.STATE_LOAD, pb.STATE_REMOVE):
        for name in NAMES:
            stream_ends(e, lambda: [stored(kind, name)], INVALID)
            e.tidy()


def keeps(lane, name, kind=None):
    lane.send(stored(kind or pb.STATE_SAVE, name))
    f = lane.recv()
    assert f.kind == pb.STATE_FILE and f.reply_to == 9 and f.state.name == name, f
    return f.state


def no_such_file(e):
    """A file that does not exist; the answer for another identity's file is the same."""
    lane = e.session().lanes[0]
    saved = keeps(lane, "mine")
    assert saved.bytes > 8 * 6 * 4 and len(saved.sha256) == 32, saved
    with Caller(the.cluster.ports[0], the.cluster.certs) as other:
        theirs = other.open(name="theirs")
        theirs.load(GRAPH(), (4, 6))
        theirs.attach()
        texts = []
        for kind in (pb.STATE_LOAD, pb.STATE_REMOVE):
            for name in ("mine", "none"):
                theirs.lanes[0].send(stored(kind, name))
                texts.append(refuses(theirs.lanes[0], NONE).replace(name, "..."))
        assert len(set(texts)) == 1, texts
        theirs.close()
    again = keeps(lane, "mine", pb.STATE_LOAD)
    assert (again.bytes, again.sha256) == (saved.bytes, saved.sha256), again
    keeps(lane, "mine", pb.STATE_REMOVE)
    lane.send(stored(pb.STATE_LOAD, "mine"))
    refuses(lane, NONE)


def of_another_module(e):
    lane = e.session().lanes[0]
    keeps(lane, "small")
    s = e.session(graph=mlp(7, 4))
    s.lanes[0].send(stored(pb.STATE_LOAD, "small"))
    assert "0.weight" in refuses(s.lanes[0], INVALID)
    keeps(lane, "small", pb.STATE_REMOVE)


def over_its_quota(e):
    lane = e.session().lanes[0]
    for name in ("one", "two", "one"):
        keeps(lane, name)
    lane.send(stored(pb.STATE_SAVE, "three"))
    assert "allow[].state_bytes" in refuses(lane, MORE)
    for name in ("one", "two"):
        keeps(lane, name, pb.STATE_REMOVE)


def of_another_digest(e):
    lane = e.session().lanes[0]
    saved = keeps(lane, "small")
    wrong = stored(pb.STATE_LOAD, "small")
    wrong.state.sha256 = bytes(31) + b"x"
    lane.send(wrong)
    assert f"has the SHA-256 {saved.sha256.hex()}, not {'00' * 31}78" in refuses(lane, LOST)
    wrong.state.sha256 = saved.sha256
    lane.send(wrong)
    assert lane.recv().kind == pb.STATE_FILE
    keeps(lane, "small", pb.STATE_REMOVE)


def disk_errors_leave_the_earlier_file_and_the_session():
    """A file system of one page is mounted over the identity's folder: it is full, then
    read-only."""
    with With() as e:
        lane = e.session().lanes[0]
        keeps(lane, "small")
        folder = os.path.join(the.cluster.dir, "states", hashlib.sha256(b"spiffe://test/evil").hexdigest())
        if run("mount", "-t", "tmpfs", "-o", "size=4k", "none", folder).returncode:
            keeps(lane, "small", pb.STATE_REMOVE)
            return "no tmpfs here"
        try:
            saved = keeps(lane, "small")
            lane.send(stored(pb.STATE_SAVE, "small"))
            text = refuses(lane, MORE)
            assert "'small': the worker's disk is full (0 B of 4.0 KiB are free): free space" in text, text
            run("mount", "-o", "remount,ro", folder)
            lane.send(stored(pb.STATE_SAVE, "small"))
            text = refuses(lane, grpc.StatusCode.UNAVAILABLE)
            assert "mounted read-only" in text and "An earlier file of this name is still there" in text, text
            assert keeps(lane, "small", pb.STATE_LOAD).sha256 == saved.sha256
            assert os.listdir(folder) == ["small.safetensors"]
        finally:
            run("umount", folder)
        keeps(lane, "small", pb.STATE_REMOVE)


if pyclient.MISSING is None:
    suite.test(disk_errors_leave_the_earlier_file_and_the_session)
    rule("r6_41_a_load_of_another_digest", of_another_digest)
    rule("r6_32_a_file_that_is_not_there", no_such_file)
    rule("r6_33_a_file_of_another_module", of_another_module)
    rule("r6_34_more_than_its_quota", over_its_quota)
    rule("names_of_files_are_no_paths", no_names)


# ---- 3: Kept -------------------------------------------------------------------------------------

RANGE = pyclient.MISSING or grpc.StatusCode.OUT_OF_RANGE


def kept(of, name="", verb="LIST", **fields):
    """The reply of Kept to `of`, an Evil or a Caller, about its files of state."""
    caller = getattr(of, "caller", of)
    return caller.stub.Kept(pb.KeptRequest(verb=getattr(pb, f"KEPT_{verb}"), sort=pb.KEPT_FILES, name=name, **fields),
                            timeout=30 * SLOW)


def kept_requests_that_contradict_themselves(e):
    for wrong in (dict(verb=9), dict(sort=9), dict(verb=pb.KEPT_READ), dict(key=bytes(32)), dict(name="x", sort=1),
                  dict(verb=pb.KEPT_REMOVE), dict(verb=pb.KEPT_REMOVE, sort=2), dict(length=1), dict(digest=True),
                  dict(verb=pb.KEPT_READ, sort=2, name="x"), dict(verb=pb.KEPT_READ, sort=2, name="x", length=2 << 20)):
        fails(lambda: e.caller.stub.Kept(pb.KeptRequest(**wrong)), INVALID)
    for name in filter(None, NAMES):
        for verb, more in (("LIST", {}), ("READ", dict(length=1)), ("REMOVE", {})):
            fails(lambda: kept(e, name, verb, **more), INVALID)


def a_range_behind_the_end(e):
    """Ranges up to the end give the file, without a session."""
    saved = keeps(e.session().lanes[0], "small")
    e.tidy()
    parts = [kept(e, "small", "READ", offset=i, length=min(50, saved.bytes - i)).data for i in range(0, saved.bytes, 50)]
    assert hashlib.sha256(b"".join(parts)).digest() == saved.sha256
    for offset, length in ((saved.bytes, 1), (saved.bytes - 1, 2), (1 << 40, 1), (0, 1 << 20)):
        text = fails(lambda: kept(e, "small", "READ", offset=offset, length=length), RANGE)
        assert f"'small' has {saved.bytes} bytes" in text, text
    listed = kept(e, "small", digest=True).files
    assert [(f.name, f.bytes, f.sha256) for f in listed] == [("small", saved.bytes, saved.sha256)], listed
    removed = kept(e, "small", "REMOVE")
    assert [f.name for f in removed.files] == ["small"], removed
    log = the.cluster.workers[0].text()
    for line in ("read kept identity=spiffe://test/evil file=small offset=0 bytes=50 reason=\"ok\"",
                 f"remove kept identity=spiffe://test/evil file=small offset=0 bytes={saved.bytes} reason=\"ok\""):
        assert f"audit {line}" in log, log[-2000:]


def a_file_that_changed(e):
    """Changed between two ranges by this identity, and changed in its content on the worker's
    disk."""
    lane = e.session().lanes[0]
    saved = keeps(lane, "small")
    first = kept(e, "small", "READ", length=8).files[0]
    assert kept(e, "small", "READ", offset=8, length=8, version=first.version).files[0].version == first.version
    keeps(lane, "small")
    assert "has changed" in fails(lambda: kept(e, "small", "READ", offset=8, length=8, version=first.version), ABORTED)
    again = kept(e, "small", digest=True).files[0]
    assert again.version != first.version and again.sha256 == saved.sha256, again
    path, = [os.path.join(at, f) for at, _, files in os.walk(os.path.join(the.cluster.dir, "states")) for f in files
             if f == "small.safetensors"]
    assert os.stat(path).st_mode & 0o777 == 0o600 and os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    with open(path, "r+b") as f:
        f.seek(-1, 2)
        f.write(b"!")
    assert "has changed" in fails(lambda: kept(e, "small", "READ", length=8, version=again.version), ABORTED)
    other = kept(e, "small", digest=True).files[0]
    assert other.version != again.version and other.sha256 != saved.sha256, other
    keeps(lane, "small", pb.STATE_REMOVE)


def kept_by_somebody_else(e):
    """Files of another identity cannot be listed, read or removed, and a full quota of one identity
    does not reduce that of another."""
    the.cluster.issue("m2", "spiffe://test/m2")
    lane = e.session().lanes[0]
    for name in ("one", "two"):
        keeps(lane, name)
    assert kept(e).used_bytes == kept(e).quota_bytes == 8192
    with Caller(the.cluster.ports[0], the.cluster.certs, name="m2") as other:
        other.hello()
        assert not kept(other).files and not kept(other).used_bytes and not kept(other, "one", digest=True).files
        texts = {fails(lambda: kept(other, name, verb, **more), NONE).replace(name, "...")
                 for name in ("one", "none") for verb, more in (("READ", dict(length=1)), ("REMOVE", {}))}
        assert len(texts) == 1, texts
        theirs = other.open(name="theirs")
        theirs.load(GRAPH(), (4, 6))
        theirs.attach()
        assert keeps(theirs.lanes[0], "one").bytes
        theirs.close()
        assert [f.name for f in kept(other).files] == ["one"]
        kept(other, "one", "REMOVE")
    assert [f.name for f in kept(e).files] == ["one", "two"]
    assert [f.name for f in kept(e, after="one").files] == ["two"]
    for name in ("one", "two"):
        kept(e, name, "REMOVE")
    fails(lambda: kept(e, "one", "REMOVE"), NONE)


if pyclient.MISSING is None:
    rule("r3_18_kept_requests_that_contradict_themselves", kept_requests_that_contradict_themselves)
    rule("r3_19_a_range_behind_the_end_of_a_kept_file", a_range_behind_the_end)
    rule("r3_20_a_kept_file_that_changed", a_file_that_changed)
    rule("r3_21_a_kept_file_of_another_identity", kept_by_somebody_else)


# ---- 6: caches ---------------------------------------------------------------------------------

def cached(rows, values=None, message=5, records=9, keep_s=60, key=bytes(range(32)), dtype=3):
    """A VALUE of a cache: the rows [n, 6], if there are any, then their numbers."""
    numbers = struct.pack(f"<{len(rows)}q", *rows)
    data, dims = (b"", None) if values is None else values
    heads = [] if dims is None else [pb.TensorHead(dtype=1, dims=dims, bytes=len(data), crc32c=crc32c(data))]
    heads.append(pb.TensorHead(dtype=dtype, dims=[len(rows)], bytes=len(numbers), crc32c=crc32c(numbers)))
    return pb.Frame(kind=pb.VALUE, context=1, message=message, tensors=heads, payload=data + numbers,
                    cached=pb.Cached(key=key, records=records, keep_s=keep_s))


def caches_of_nothing(e):
    for wrong in (dict(records=0), dict(records=(1 << 32) + 1), dict(keep_s=0), dict(keep_s=31536001)):
        stream_ends(e, lambda: [cached([0], **wrong)], INVALID)


def caches_without_numbers(e):
    nothing = pb.Frame(kind=pb.VALUE, context=1, message=5, cached=pb.Cached(key=bytes(32), records=9, keep_s=60))
    for f in (nothing, cached([0, 1], dtype=2), cached([]), cached([0], X), cached([0, 1, 2, 3], (b"", [4, 0]))):
        stream_ends(e, lambda: [f], INVALID)


def rows_that_cannot_be(e):
    lane = e.session().lanes[0]
    lane.send(cached([8, 0, 3, 1], X))
    for i, f in enumerate((cached([9, 0, 1, 2], X), cached([-1]), cached([0, 1, 2, 3], Y), cached([0], records=10)), 6):
        f.message = i
        lane.send(f)
        poisons(lane, 1, i, INVALID)
    lane.send(call(1, 100, 0, [(20, False)]))
    lane.send(cached([3, 8, 8, 0], message=20))
    lane.send(deliver(1, 100))
    assert (got := lane.recv()).kind == pb.VALUE and got.tensors[0].dims == [4, 4], got
    removes(e)


def removes(e, n=1):
    gone = e.caller.stub.Kept(pb.KeptRequest(verb=pb.KEPT_REMOVE, sort=pb.KEPT_CACHES), timeout=30 * SLOW).caches
    assert len(gone) == n, gone
    assert not e.caller.stub.Kept(pb.KeptRequest(), timeout=30 * SLOW).caches


def a_cache_over_its_quota(e):
    lane = e.session().lanes[0]
    lane.send(cached([0, 1, 2, 3], X, records=5000))
    assert "allow[].cache_bytes" in poisons(lane, 1, 5, MORE)
    removes(e, 0)


def rows_that_are_not_there(e):
    lane = e.session().lanes[0]
    lane.send(cached([0, 1, 2, 3]))
    poisons(lane, 1, 5, NONE)
    lane.send(cached([0, 1, 2, 3], X, message=6))
    lane.send(cached([0, 1, 2, 4], message=7))
    poisons(lane, 1, 7, NONE)
    removes(e)


def a_cache_of_another_worker(e):
    """Another worker may send values, but cannot decide which values are kept."""
    sid = os.urandom(16)
    e.caller.stub.OpenSession(opening(session=sid, peer_identities=["spiffe://test/w2"]), timeout=30 * SLOW)
    s = SessionOf(e.caller, sid, 1, 0)
    e.made.append(s)
    s.load(mlp(8, 4), (4, 6))
    lane = s.attach()
    the.cluster.issue("w2", "spiffe://test/w2")
    with Caller(the.cluster.ports[0], the.cluster.certs, name="w2") as peer:
        peer.hello()
        theirs = SessionOf(peer, sid, 1, 0).attach(role=pb.ROLE_PEER, owner="spiffe://test/evil")
        for f in (cached([0, 1, 2, 3], X), cached([0, 1, 2, 3])):
            theirs.send(f)
            assert "only the master may send" in refuses(lane, DENIED)
    removes(e, 0)


rule("r5_43_a_cache_of_nothing", caches_of_nothing)
rule("r5_44_a_cache_without_numbers", caches_without_numbers)
if pyclient.MISSING is None:
    rule("r6_37_a_cache_of_another_worker", a_cache_of_another_worker)
    rule("r6_38_rows_that_cannot_be", rows_that_cannot_be)
    rule("r6_39_a_cache_over_its_quota", a_cache_over_its_quota)
    rule("r6_40_rows_that_are_not_there", rows_that_are_not_there)


# ---- 12: references ------------------------------------------------------------------------------

def told(lane, kind, number, code=None, **fields):
    about = {k: fields.pop(k) for k in list(fields) if k in ("ref", "fork", "key", "node")}
    lane.send(pb.Frame(kind=kind, **fields, reference=pb.Reference(**{"ref": 1, "fork": 2, "number": number, **about})))
    if code is None:
        return
    while (got := lane.recv()).kind != pb.REF_ACK or got.reference.number != number:
        pass
    assert got.failure.code == (code and code.value[0]), got


def a_kept_value(e):
    lane = e.session().lanes[0]
    lane.send(a_call(100))
    told(lane, pb.REF_KEEP, 1, 0, key=7, context=1, message=100)
    return lane


def of_nobody(**ids):
    return lambda e: told(a_kept_value(e), pb.REF_FETCH, 2, NONE, **ids)


def a_wrong_key(e):
    """It gets the answer of a request that may be early: only when the lease has ended, so after
    the answer to another request."""
    lane = a_kept_value(e)
    told(lane, pb.REF_FORK, 1, fork=50, key=8, node="w2")
    told(lane, pb.REF_FETCH, 2, NONE, fork=50, node="w2")


rule("r12_1_a_reference_that_does_not_exist", of_nobody(ref=99))
rule("r12_2_a_fork_of_somebody_else", of_nobody(fork=99))
rule("r12_3_a_wrong_key", a_wrong_key)


def that_was_no_harm():
    With.evil.caller.close()
    the_worker_is_well_afterwards()


if pyclient.MISSING is None:
    suite.test(that_was_no_harm)
if __name__ == "__main__":
    run_hostile(suite, "rules", """state_dir: .
peers: [{name: w2, address: "127.0.0.1:1", identity: "spiffe://test/w2"}]
""", """, state_bytes: 8KiB, cache_bytes: 64KiB}
  - {identity: "spiffe://test/m2", role: master, state_bytes: 4KiB}
  - {identity: "spiffe://test/w2", role: peer""")
