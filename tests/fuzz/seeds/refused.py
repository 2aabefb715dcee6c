# SPDX-License-Identifier: Apache-2.0
"""Refused frames, one for each check (corpus/wire)."""
from seeds.base import F32, ID, changed, pb, write
from seeds.frames import (BIAS, cached, FAILURE, REFS, X43, apply, arg, frame, heads, here, needed, ref)

NAN = float("nan")
SMALL = [pb.TensorHead(dtype=F32, dims=[1], bytes=4)]
ATTACH = pb.Attach(session=ID, epoch=1, incarnation=ID, lane=1, lanes=2, role=pb.ROLE_MASTER)


def bad_call(args, tensors=(), **fields):
    return frame(pb.CALL, *tensors, message=1, call=pb.Call(args=args, **fields))


def bad_backward(*calls, peers=(), phase=1):
    return frame(pb.PREPARE, phase=phase, backward=pb.Backward(calls=calls, peers=peers))


def bad_tensors(*tensors, kind=pb.VALUE, payload=b"", **fields):
    return pb.Frame(kind=kind, context=1, message=1, tensors=tensors, payload=payload, **fields)


BAD = {
    "kind": pb.Frame(kind=77), "kind_hole": pb.Frame(kind=5),
    "context": frame(pb.DELIVER, context=0, message=1), "module": frame(pb.REVERT, message=1, module=256),
    "flags": frame(pb.DELIVER, message=1, flags=64), "flags_here": frame(pb.DELIVER, message=1, flags=1),
    "upstream": frame(pb.DROP, upstream=range(65)), "upstream_here": frame(pb.DELIVER, message=1, upstream=[1]),
    "message": frame(pb.DELIVER), "to_here": frame(pb.REVERT, message=1, to="w2"),
    "to_text": frame(pb.DELIVER, message=1, to="a\x01"), "to_long": frame(pb.DELIVER, message=1, to="w" * 129),
    "lanes": pb.Frame(kind=pb.ATTACH, attach=changed(ATTACH, lane=9)),
    "role": pb.Frame(kind=pb.ATTACH, attach=changed(ATTACH, role=7)),
    "session": pb.Frame(kind=pb.ATTACH, attach=changed(ATTACH, session=b"short")),
    "owner": pb.Frame(kind=pb.ATTACH, attach=changed(ATTACH, owner="o" * 300)),
    "first_credit": pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=1 << 60)),
    "scale": apply(scale=NAN), "lrs": apply(more_lrs=[0.5] * 16), "more_lr": apply(more_lrs=[NAN]),
    "position": apply(position=1 << 21), "position_dropped": apply(position=3, apply=False),
    "vote_tensor": frame(pb.FINISHED, BIAS, message=1, phase=1),
    "failure_code": frame(pb.ERROR, message=1, failure=pb.Failure(code=99)),
    "failure_text": frame(pb.ERROR, message=1, failure=pb.Failure(code=9, text="a\x02")),
    "failure_missing": frame(pb.ERROR, message=1),
    "credit": pb.Frame(kind=pb.CREDIT, credit=pb.Credit(bytes=1 << 60)),
    "chunk_id": pb.Frame(kind=pb.CHUNK, payload=b"1", chunk=pb.Chunk(total=9)),
    "chunk_empty": pb.Frame(kind=pb.CHUNK, chunk=pb.Chunk(transfer=1, total=9)),
    "chunk_over": pb.Frame(kind=pb.CHUNK, payload=b"12", chunk=pb.Chunk(transfer=1, offset=8, total=9)),
    "chunk_total": pb.Frame(kind=pb.CHUNK, payload=b"1", chunk=pb.Chunk(transfer=1, total=1 << 60)),
    "chunk_session": pb.Frame(kind=pb.CHUNK, payload=b"1", chunk=pb.Chunk(transfer=1, total=1 << 49)),
    "state_what": frame(pb.STATE_GET, message=1, state=pb.State(what=3)),
    "state_count": frame(pb.STATE_GET, message=1, state=pb.State(what=1, count=5000)),
    "state_file": frame(pb.STATE_SAVE, message=1, state=pb.State(what=1, name="../x")),
    "state_file_gradients": frame(pb.STATE_LOAD, message=1, state=pb.State(what=4, name="x")),
    "state_file_answer": frame(pb.STATE_FILE, message=1, state=pb.State(what=1, name="x", bytes=1 << 60,
                                                                         sha256=bytes(32))),
    "state_name": frame(pb.STATE_PUT, BIAS, message=1, state=pb.State(what=1, count=1)),
    "args": bad_call([arg(1)] * 9), "arg": bad_call([pb.Arg()]), "no_args": bad_call([]),
    "args_here": bad_call([here()]), "positions": bad_call([arg(1)], position=5, input_position=4),
    "needed_id": bad_backward(needed(0)), "needed_root": bad_backward(needed(1, root=NAN)),
    "needed_many": bad_backward(needed(1, contributions=5000)),
    "target": bad_backward(needed(1, pb.Target(value=0))),
    "target_twice": bad_backward(needed(1, pb.Target(value=1), pb.Target(value=2))),
    "targets": bad_backward(needed(1, *([pb.Target(value=1)] * 33))),
    "needed": bad_backward(*([needed(1)] * 17)), "phase": bad_backward(needed(1), phase=0),
    "peers": bad_backward(peers=["w"] * 9), "peer": bad_backward(peers=[""]),
    "peer_text": bad_backward(peers=["a\x03"]), "peer_long": bad_backward(peers=["p" * 200]),
    "ref_number": ref(pb.REF_FETCH, ref=1, fork=2), "ref_id": ref(pb.REF_FETCH, number=3),
    "ref_early": ref(pb.REF_DELETE, early=True, **REFS), "ref_node": ref(pb.REF_FETCH, node="a\x04", **REFS),
    "body_here": frame(pb.DELIVER, message=1, credit=pb.Credit(bytes=1)),
    "dtype": bad_tensors(pb.TensorHead(dtype=99, bytes=4)),
    "bytes": bad_tensors(pb.TensorHead(dtype=F32, dims=[1], bytes=5)),
    "overflow": bad_tensors(pb.TensorHead(dtype=F32, dims=[1 << 40, 1 << 40], bytes=5)),
    "dim": bad_tensors(pb.TensorHead(dtype=F32, dims=[1 << 63], bytes=5)),
    "dims": bad_tensors(pb.TensorHead(dtype=F32, dims=[1] * 9, bytes=4)),
    "size": bad_tensors(pb.TensorHead(dtype=F32, dims=[1 << 49], bytes=1 << 51, transfer=1)),
    "session_bytes": bad_tensors(pb.TensorHead(dtype=F32, dims=[1 << 46], bytes=1 << 48, transfer=1)),
    "mixed": bad_call([here()] * 2, [X43, X43]), "empty": bad_tensors(
        pb.TensorHead(dtype=F32, dims=[0], transfer=3)),
    "inline": bad_tensors(pb.TensorHead(dtype=F32, dims=[1 << 15], bytes=1 << 17), payload=bytes(9)),
    "payload": bad_tensors(*SMALL, payload=b"123"), "tensors": bad_tensors(*(SMALL * 17), payload=bytes(68)),
    "cached_records": cached([1], records=0), "cached_keep": cached([1], keep_s=0),
    "cached_numbers": changed(cached([1]), tensors=heads(BIAS)[0], payload=heads(BIAS)[1]),
    "cached_rows": cached([1], X43), "cached_nothing": frame(pb.VALUE, message=1, cached=pb.Cached(records=1, keep_s=1)),
    "cached_failure": cached([1], failure=FAILURE), "cached_key": cached([1], key=b"short"),
    "cached_here": frame(pb.DELIVER, message=1, cached=pb.Cached(records=1, keep_s=1)),
    "value": bad_tensors(*SMALL, payload=b"1234", failure=FAILURE), "gradient": frame(
        pb.GRADIENT, X43, message=1, phase=1, order=5000),
    "tensor_here": frame(pb.DELIVER, X43, message=1),
    "ack_counts": pb.Frame(kind=pb.ACK, ack=pb.Ack(received=range(40))), "ack_none": pb.Frame(kind=pb.ACK, ack=pb.Ack()),
}
two = [changed(h, transfer=7) for h in heads(X43, X43)[0]]
BAD["transfer_twice"] = changed(BAD["mixed"], tensors=two, payload=b"")
BAD["mixed"] = changed(BAD["mixed"], tensors=[two[0], changed(two[1], transfer=0)])
for name, message in BAD.items():
    write("wire", "bad_frame_" + name, b"\x00\x00" + message.SerializeToString())
write("wire", "frame_ack", b"\0\0" + pb.Frame(kind=pb.ACK, ack=pb.Ack(received=[5, 1 << 40, 7])).SerializeToString())
for step in (0, 150):  # bytes of a piece
    write("wire", f"frame_value_{step}", bytes([0, step]) + frame(pb.VALUE, ((128,), [i / 8 for i in range(128)]), message=1).SerializeToString())
write("wire", "bad_frame_kind_of_4_bytes", bytes([0, 0, 8 | 5, 1, 2, 3, 4]))
write("wire", "bad_frame_wire_type", bytes([0, 0, 8, 22, 0x23]))
write("wire", "bad_frame_long_varint", bytes([0, 0, 8] + [255] * 11))
write("wire", "bad_frame_field_zero", bytes([0, 0, 0, 1]))
write("wire", "bad_frame_unknown_fixed", bytes([0, 2, 0xF9, 7, 1, 2, 3, 4, 5, 6, 7, 8, 0xFD, 7, 1, 2, 3, 4]))
