# SPDX-License-Identifier: Apache-2.0
"""Frames, and streams of frames that a worker's node gets from its master and another worker
(corpus/node)."""
import struct

from seeds.base import F32, I64, changed, crc32c, pb, write

MASTER, WORKER, BULK = 0, 1, 2
REFS = dict(ref=1, fork=2, number=3)


def heads(*tensors, transfer=0):
    """Heads and payload of tensors of (dims, numbers)."""
    out, payload = [], b""
    for i, (dims, numbers) in enumerate(tensors):
        data = struct.pack(f"<{len(numbers)}f", *numbers)
        payload += data
        out.append(pb.TensorHead(dtype=F32, dims=dims, bytes=len(data), crc32c=crc32c(data),
                                 transfer=transfer and transfer + i))
    return out, payload


X43 = ((4, 3), [i / 4 for i in range(12)])


def frame(kind, *tensors, transfer=0, context=1, **fields):
    h, payload = heads(*tensors, transfer=transfer)
    return pb.Frame(kind=kind, context=context, tensors=h, payload=b"" if transfer else payload, **fields)


def call(id, module, *args, tensors=(), flags=pb.FLAG_TRAINING, **fields):
    body = pb.Call(args=args, **{k: fields.pop(k) for k in list(fields) if k in pb.Call.DESCRIPTOR.fields_by_name})
    return frame(pb.CALL, *tensors, message=id, module=module, flags=flags, call=body, **fields)


def here(value=0):
    return pb.Arg(value=value, needs_grad=bool(value), here=True)


def arg(value):
    return pb.Arg(value=value, needs_grad=True)


def deliver(id, to=""):
    return frame(pb.DELIVER, message=id, to=to)


def prepare(*needed, phase=1, calls=1, **fields):
    return frame(pb.PREPARE, phase=phase, step=calls, backward=pb.Backward(calls=needed, **fields))


def needed(id, *targets, contributions=0, root=0.0):
    return pb.NeededCall(call=id, contributions=contributions, root=root, targets=targets)


def gradient(value, *tensors, order=0, phase=1):
    return frame(pb.GRADIENT, *tensors, message=value, order=order, phase=phase)


def apply(**fields):
    return frame(pb.APPLY, message=50, commit=pb.Commit(**dict(dict(scale=1, lr=0.1, apply=True), **fields)))


def ref(kind, context=0, message=0, to="", tensors=(), failure=None, **fields):
    return frame(kind, *tensors, context=context, message=message, to=to, failure=failure,
                 reference=pb.Reference(**fields))


END = frame(pb.END_CONTEXT, message=60)
FAILURE = pb.Failure(code=9, text="it broke", hop="module 1")
CHAIN = [call(10, 0, here(9), tensors=[X43]),
         call(11, 1, arg(10)), deliver(11)]
BACKWARD = [prepare(needed(11, pb.Target(value=10), contributions=1), calls=2, vote=True, more=True),
            prepare(needed(10, pb.Target(value=9), contributions=1), calls=2, vote=True),
            gradient(11, X43)]
LOSS = [call(10, 0, here(9), tensors=[X43]), call(12, 2, arg(10), here(), tensors=[X43]), deliver(12),
        prepare(needed(12, pb.Target(value=10), root=1), needed(10, contributions=1), calls=2, vote=True)]
BIG = [((128, 3), [i % 7 for i in range(384)])]


def chunks(transfer, *, parts=(0, 700, 1536)):
    payload = heads(*BIG)[1]
    return [(BULK, pb.Frame(kind=pb.CHUNK, payload=payload[a:b],
                            chunk=pb.Chunk(transfer=transfer, offset=a, total=len(payload))))
            for a, b in zip(parts, parts[1:])]


CHUNKED = call(20, 0, here(9), tensors=BIG, transfer=5)
KEEP = ref(pb.REF_KEEP, context=1, message=11, ref=1, fork=2, key=3, number=1)
STATE = dict(context=0, message=70, module=0)
BIAS = ((3,), [1, 2, 3])


def piece(kind, offset, length, has=0, name="0.bias", what=1):
    """A frame for a piece of state, with `has` bytes of it."""
    raw = bytes(has)
    of = pb.State(what=what, name=name, count=1, offset=offset, length=length)
    return pb.Frame(kind=kind, **STATE, state=of, payload=raw, tensors=[
        pb.TensorHead(dtype=5, dims=[has], bytes=has, crc32c=crc32c(raw))] if has else [])


KEY = bytes(range(32, 64))


def cached(rows, *tensors, message=8, key=KEY, records=9, keep_s=60, **fields):
    """A VALUE of a cache: the tensors, then the numbers of their records."""
    h, payload = heads(*tensors)
    raw = struct.pack(f"<{len(rows)}q", *rows)
    h.append(pb.TensorHead(dtype=I64, dims=[len(rows)], bytes=len(raw), crc32c=crc32c(raw)))
    return pb.Frame(kind=pb.VALUE, context=1, message=message, tensors=h, payload=payload + raw,
                    cached=pb.Cached(key=key, records=records, keep_s=keep_s), **fields)


TALKS = {
    "cached": [cached([3, 1, 0, 2], X43), call(10, 0, arg(8)), cached([3, 3, 3, 3], message=9),
               call(11, 0, arg(9)), deliver(10), deliver(11), END],
    "cached_failed": [cached([-1, 1, 0, 2], X43), call(10, 0, arg(8)), cached([3, 1], message=9, key=b"\1" * 32),
                      call(11, 0, arg(9)), cached([-3], message=12), deliver(10), deliver(11), END],
    "cached_denied": [(WORKER, cached([3, 1, 0, 2], X43)), (WORKER, cached([3], message=9)), END],
    "cached_late": [END, cached([3, 1, 0, 2], X43), cached([3, 1, 0, 2], X43)],
    "forward": CHAIN + [END],
    "step": CHAIN + BACKWARD + [apply(), END],
    "step_skipped": CHAIN + BACKWARD + [apply(apply=False), END],
    "reverted": CHAIN + BACKWARD + [apply(), frame(pb.REVERT, message=51), END],
    "loss": LOSS + [apply(), END],
    "retain": LOSS[:3] + [prepare(needed(12, pb.Target(value=10), root=1), needed(10, contributions=1), calls=2,
                                  retain=True),
                          prepare(needed(12, pb.Target(value=10), root=2), needed(10, contributions=1), calls=2,
                                  phase=2, vote=True), apply(), END],
    "evaluation": [call(10, 0, here(), tensors=[X43], flags=0), deliver(10), END],
    "recompute": [call(10, 0, here(9), tensors=[X43], flags=pb.FLAG_TRAINING | pb.FLAG_RECOMPUTE | pb.FLAG_TRACE)]
    + CHAIN[1:] + BACKWARD + [END],
    "to_a_worker": [call(10, 0, here(9), tensors=[X43], flags=5, to="w2"), deliver(10, "w2"), deliver(10, "w9"),
                    END],
    "from_a_worker": [call(10, 0, arg(8)), (WORKER, frame(pb.VALUE, X43, message=8)), deliver(10), END],
    "value_failed": [call(10, 0, arg(8)), deliver(10),
                     (WORKER, frame(pb.VALUE, message=8, failure=FAILURE)), END],
    "backward_to_a_worker": [(WORKER, frame(pb.VALUE, X43, message=8)), call(10, 0, arg(8)),
                             prepare(needed(10, pb.Target(value=8, to=1), contributions=1), peers=["w2"]),
                             (WORKER, gradient(10, X43)), END],
    "two_gradients": [call(10, 0, here(9), tensors=[X43]),
                      prepare(needed(10, pb.Target(value=9, order=3), contributions=2), vote=True),
                      gradient(10, X43, order=1), (WORKER, gradient(10, X43, order=0)), apply(), END],
    "positions": [call(10, 0, here(9), tensors=[X43], position=1, input_position=3, weight_position=4),
              call(11, 1, arg(10), position=2)] + BACKWARD + [apply(position=5, keep=True), END],
    "behind": [call(10, 0, here(9), tensors=[X43], position=1, input_position=2)] + [
        prepare(needed(10, contributions=1)), gradient(10, X43), apply(position=3, keep=True),
        call(13, 0, here(), tensors=[X43], position=4, old_weights=True), deliver(13), END],
    "after": [call(10, 0, here(9), tensors=[X43]), call(11, 0, here(8), tensors=[X43], after=10), END],
    "dropped": CHAIN[:2] + [frame(pb.DROP, step=2, upstream=[10, 11]), END],
    "drop_first": [frame(pb.DROP, step=2, upstream=[10, 11])] + CHAIN[:2] + [END],
    "prepare_first": [prepare(needed(10, contributions=1), calls=1), call(10, 0, here(9), tensors=[X43]),
                      gradient(10, X43), END],
    "end_with_step": CHAIN + BACKWARD + [frame(pb.END_CONTEXT, message=60, commit=pb.Commit(
        scale=1, lr=0.1, apply=True))],
    "old_weights": [call(10, 0, here(9), tensors=[X43], position=1, input_position=3),
                    call(11, 0, here(8), tensors=[X43], position=2, input_position=5),
                    prepare(needed(10, pb.Target(value=9), contributions=1), calls=2), gradient(10, X43),
                    apply(position=4, keep=True),
                    prepare(needed(11, pb.Target(value=8), contributions=1), phase=2, calls=2),
                    gradient(11, X43, phase=2), call(12, 0, here(), tensors=[X43], position=6, old_weights=True), END],
    "two_contexts": CHAIN + BACKWARD[:2] + [
        changed(m, context=2) for m in CHAIN + BACKWARD[:2]] + [
        apply(), changed(apply(), context=2), BACKWARD[2], changed(BACKWARD[2], context=2),
        frame(pb.REVERT, message=51), changed(END, context=2), END],
    "state_behind_a_call": [call(11, 1, arg(8)), frame(pb.STATE_GET, **dict(STATE, module=1), state=pb.State(what=1)),
                            (WORKER, frame(pb.VALUE, X43, message=8)), END],
    "too_many_values": [(WORKER, frame(pb.VALUE, ((1,), [1]), message=100 + i)) for i in range(60)] + [
        call(10, 0, arg(159)), call(11, 0, here(), tensors=[X43]), END],
    "many_contexts": [changed(END, context=i) for i in range(1, 300)],
    "late": [END, call(10, 0, here(), tensors=[X43])],
    "aborted": CHAIN + [frame(pb.ABORT, message=1, failure=FAILURE), END],
    "unknown_module": [call(10, 77, here(), tensors=[X43]), deliver(10), END],
    "wrong_shape": [call(10, 0, here(), tensors=[((4, 5), [0] * 20)]), deliver(10), END],
    "wrong_rank": [call(10, 0, here(), tensors=[((12,), [0] * 12)]), deliver(10), END],
    "wrong_count": [call(10, 0, here(), here(), tensors=[X43, X43]), deliver(10), END],
    "wrong_gradient": CHAIN + BACKWARD[:2] + [gradient(11, ((2, 3), [0] * 6)), END],
    "twice": CHAIN + [CHAIN[0], (WORKER, frame(pb.VALUE, X43, message=10)), END],
    "not_a_number": [call(10, 0, here(9), tensors=[((4, 3), [float("nan")] * 12)])] + CHAIN[1:] + BACKWARD + [END],
    "other_batch": [call(10, 0, here(9), tensors=[((2, 3), [1] * 6)])] + CHAIN[1:] + [END],
    "denied": [(WORKER, CHAIN[0]), (WORKER, END), (WORKER, frame(pb.ERROR, message=1, failure=FAILURE))],
    "no_place_here": [frame(pb.FINISHED, message=5, phase=1, vote=pb.Vote(finite=True))],
    "chunked": [CHUNKED] + chunks(5) + [deliver(20), END],
    "chunks_first": chunks(5)[::-1] + [CHUNKED, deliver(20), END],
    "chunk_pieces": chunks(5, parts=(0, 100, 200, 300, 1536))[::2] + chunks(5, parts=(100, 200))
    + [CHUNKED] + chunks(5, parts=(300, 1536)) + [END],
    "chunk_twice": chunks(5, parts=(0, 100)) + chunks(5, parts=(50, 100)),
    "chunk_total": chunks(5, parts=(0, 100)) + [(BULK, pb.Frame(
        kind=pb.CHUNK, payload=b"12", chunk=pb.Chunk(transfer=5, total=9)))],
    "chunk_crc": [changed(CHUNKED, tensors=[changed(CHUNKED.tensors[0], crc32c=1)])] + chunks(5),
    "chunk_named_twice": [CHUNKED, CHUNKED],
    "chunk_quota": [(BULK, pb.Frame(kind=pb.CHUNK, payload=b"12", chunk=pb.Chunk(transfer=6, total=8 << 20))),
                    (MASTER, pb.Frame(kind=pb.VALUE, context=1, message=9, tensors=[pb.TensorHead(
                        dtype=F32, dims=[2 << 20], bytes=8 << 20, transfer=7)])),
                    (BULK, pb.Frame(kind=pb.CHUNK, payload=b"1234", chunk=pb.Chunk(transfer=7, total=8 << 20)))],
    "chunk_credit": [(BULK, pb.Frame(kind=pb.CHUNK, payload=b"1", chunk=pb.Chunk(transfer=8, total=1 << 30)))],
    "lane": [(BULK, CHAIN[0])],
    "attach": [frame(pb.ATTACHED, context=0, attached=pb.Attached(credit_bytes=5))],
    "link": [frame(pb.PING, context=0, message=3),
             frame(pb.PONG, context=0, message=1, reply_to=0, measure=pb.Measure(clock_ns=5, received_bytes=6)),
             frame(pb.PONG, context=0, message=1, reply_to=1 << 63 | 4),
             frame(pb.CREDIT, context=0, credit=pb.Credit(bytes=100))],
    "state_get": [frame(pb.STATE_GET, **STATE, state=pb.State(what=1)),
                  frame(pb.STATE_GET, **STATE, state=pb.State(what=2)),
                  frame(pb.STATE_GET, **dict(STATE, module=7), state=pb.State(what=1))],
    "state_gradients": LOSS + [frame(pb.STATE_GET, **dict(STATE, context=1), state=pb.State(what=4)), END],
    "state_put": [frame(pb.STATE_PUT, BIAS, **STATE, state=pb.State(what=1, name="0.bias", index=0, count=2)),
                  frame(pb.STATE_PUT, BIAS, **STATE, state=pb.State(what=1, name="none", index=1, count=2)),
                  frame(pb.STATE_PUT, X43, **STATE, state=pb.State(what=1, name="0.bias", index=0, count=1))],
    "state_pieces": [piece(pb.STATE_GET, 4, 8), piece(pb.STATE_PUT, 4, 8, 8), piece(pb.STATE_GET, 8, 4, name="none"),
                     piece(pb.STATE_GET, 1 << 40, 4), piece(pb.STATE_GET, 0, 1 << 30), piece(pb.STATE_GET, 0, 4, what=2),
                     piece(pb.STATE_PUT, 1, 8, 8, name="step", what=2)],
    "state_piece_of_nothing": [piece(pb.STATE_GET, 4, 0)],
    "state_piece_too_short": [piece(pb.STATE_PUT, 0, 9, 8)],
    "state_files": CHAIN + BACKWARD[:2] + [
        frame(pb.STATE_SAVE, **STATE, state=pb.State(what=1, name="front")), BACKWARD[2], apply(),
        frame(pb.STATE_SAVE, **STATE, state=pb.State(what=2, name="front.adam")),
        frame(pb.STATE_LOAD, **STATE, state=pb.State(what=1, name="front")),
        frame(pb.STATE_LOAD, **STATE, state=pb.State(what=2, name="front")),
        frame(pb.STATE_LOAD, **dict(STATE, module=1), state=pb.State(what=1, name="front")),
        frame(pb.STATE_LOAD, **STATE, state=pb.State(what=5, name="front.adam")),
        frame(pb.STATE_LOAD, **STATE, state=pb.State(what=1, name="none")),
        frame(pb.STATE_REMOVE, **STATE, state=pb.State(what=1, name="front")),
        frame(pb.STATE_LOAD, **STATE, state=pb.State(what=1, name="front")), END],
    "unload": [call(10, 0, arg(8)), frame(pb.UNLOAD, context=0, message=71, module=0),
               call(11, 0, here(), tensors=[X43]), END, frame(pb.UNLOAD, context=0, message=72, module=0),
               frame(pb.UNLOAD, context=0, message=73, module=0), call(12, 0, here(), tensors=[X43], generation=1),
               frame(pb.UNLOAD, context=0, message=74, module=9), frame(pb.STATE_GET, **STATE, state=pb.State(what=1))],
    "unload_behind_a_step": CHAIN + BACKWARD + [END, frame(pb.UNLOAD, context=0, message=71, module=0),
                                                frame(pb.UNLOAD, context=0, message=72, module=1, generation=3),
                                                frame(pb.UNLOAD, context=0, message=73, module=1)],
    "state_waits": CHAIN + BACKWARD[:2] + [
        frame(pb.STATE_GET, **STATE, state=pb.State(what=1)), BACKWARD[2], apply(), END],
    "reference": CHAIN + [KEEP, END, (WORKER, ref(pb.REF_FORK, ref=1, fork=5, key=3, number=1)),
                          (WORKER, ref(pb.REF_FETCH, ref=1, fork=5, number=2)),
                          (WORKER, ref(pb.REF_RENEW, number=3)),
                          (WORKER, ref(pb.REF_DELETE, ref=1, fork=5, number=4)),
                          ref(pb.REF_DELETE, ref=1, fork=2, number=2)],
    "reference_early": [KEEP] + CHAIN + [END], "reference_of_nothing": [KEEP, END],
    "reference_with_value": [ref(pb.REF_KEEP, tensors=[], context=0, message=0, ref=4, fork=5, key=6, number=1)],
    "reference_passed": [ref(pb.REF_USE, context=1, message=30, ref=1, fork=7, key=3, number=1, early=True,
                             node="w2"), call(31, 0, arg(30)), deliver(31),
                         (WORKER, ref(pb.REF_ACK, number=1)), (WORKER, ref(pb.REF_ACK, number=2)),
                         (WORKER, ref(pb.REF_VALUE, tensors=[X43], ref=1, fork=7)), END],
    "reference_failed": [ref(pb.REF_USE, context=1, message=30, ref=1, fork=7, key=3, number=1),
                         call(31, 0, arg(30)), deliver(31), ref(pb.REF_ACK, number=1),
                         ref(pb.REF_VALUE, failure=FAILURE, ref=1, fork=7), END],
    "reference_home": CHAIN + [KEEP, ref(pb.REF_USE, context=2, message=30, ref=1, fork=7, key=3, number=2,
                                         early=True, yours=True), END],
    "reference_relayed": CHAIN + [KEEP, ref(pb.REF_FORK, ref=1, fork=5, key=3, number=1, node="w3"),
                                  ref(pb.REF_FETCH, ref=1, fork=5, number=2, node="w3"),
                                  ref(pb.REF_ACK, number=1, node="w3", failure=FAILURE), END],
    "reference_denied": [(WORKER, KEEP), (WORKER, ref(pb.REF_FORK, ref=1, fork=5, key=4, number=1)),
                         (WORKER, ref(pb.REF_FETCH, ref=9, fork=9, number=2))],
}
for name, talk in TALKS.items():
    out = b""
    for said in talk:
        lane, message = said if isinstance(said, tuple) else (MASTER, said)
        data = message.SerializeToString()
        out += struct.pack("<BH", lane, len(data)) + data
    write("node", name, out)
