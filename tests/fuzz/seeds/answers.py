# SPDX-License-Identifier: Apache-2.0
"""Answers of a worker to a program (corpus/answers). The numbers are those of fuzz_answers.c, which
prints them with CLEAVE_FUZZ_SHOW=1."""
import struct

from seeds.base import changed, crc32c, pb, write
from seeds.frames import BIAS, CHAIN, FAILURE, KEEP, REFS, X43, frame, gradient, ref

X23 = ((2, 3), [1, 2, 3, 4, 5, 6])
WEIGHT, PARAMS = ((3, 3), [i / 9 for i in range(9)]), ["fc.weight", "fc.bias"]
THEN = None  # marks where the program continues


def vote(*squares, finite=True):
    data = struct.pack(f"<{len(squares)}d", *squares)
    head = pb.TensorHead(dtype=2, dims=[len(squares)], bytes=len(data), crc32c=crc32c(data))
    return pb.Frame(kind=pb.FINISHED, context=1, message=90, phase=1, tensors=[head], payload=data,
                    vote=pb.Vote(finite=finite))


def item(request, name, tensor, index=0, count=1, what=1, context=0):
    return frame(pb.STATE_ITEM, tensor, context=context, message=91, reply_to=request,
                 state=pb.State(what=what, name=name, index=index, count=count))


def told(request, count=1, what=1):
    return frame(pb.STATE_DONE, context=0, message=92, reply_to=request, state=pb.State(what=what, count=count))


def applied(request):
    return frame(pb.APPLIED, message=93, reply_to=request)


VALUE = frame(pb.VALUE, X23, message=3)
FORWARD = [VALUE, THEN]
LEARNT = FORWARD + [gradient(1, X23), vote(1.0, 2.0), THEN]
GRADED = LEARNT + [item(5, "fc.weight", WEIGHT, what=4, context=1), told(5, what=4), THEN]
KEPT = GRADED + [applied(6), ref(pb.REF_ACK, number=1), ref(pb.REF_ACK, number=2),
                 ref(pb.REF_VALUE, tensors=[X23], ref=7, fork=8), THEN]
ENDED = KEPT + [frame(pb.ENDED, message=94), THEN]
READ = ENDED + [item(14, "fc.weight", WEIGHT, 0, 2), item(14, "fc.bias", BIAS, 1, 2), told(14, 2), THEN]
ALL = READ + [item(15, "fc.weight", WEIGHT, 0, 2), item(15, "fc.bias", BIAS, 1, 2), told(15, 2), THEN]
WRITTEN = ALL + [told(16), THEN, told(17), THEN]
PASSED = WRITTEN + [ref(pb.REF_ACK, number=n) for n in (3, 4, 5)] + [
    ref(pb.REF_FETCH, ref=19, fork=23, number=1), frame(pb.VALUE, X23, context=2, message=22), THEN]


def traced(*rows):
    data = b"".join(struct.pack("<8q", *row) for row in rows)
    head = pb.TensorHead(dtype=3, dims=[len(rows), 8], bytes=len(data), crc32c=crc32c(data))
    return pb.Frame(kind=pb.ENDED, context=2, message=96, tensors=[head], payload=data)


BADLY = traced((0,) * 8, (99,) * 8, (1, 1, 0, 5, 9, 0, 1, 22), (1, -1) + (0,) * 6,
               (1, 0, 0, -1 << 63, -1 << 63, -1, -1, -1))
PONG = frame(pb.PONG, context=0, message=1, reply_to=1, measure=pb.Measure(clock_ns=(1 << 63) - 1))
ANSWERS = {
    "trace_clock": [PONG] + PASSED + [BADLY, THEN],
    "passed_on": PASSED, "traced": PASSED + [traced((1, 0, 0, 5, 9, 0, 1, 22), (6, 255, 0, 5, 9, 0, 1, 22)), THEN],
    "traced_badly": PASSED + [BADLY, THEN],
    "fork_denied": PASSED[:-2] + [ref(pb.REF_FORK, ref=19, fork=99, key=1, number=2), THEN],
    "all": ALL, "written": WRITTEN,
    "not_written": ALL + [frame(pb.ERROR, context=0, message=95, reply_to=16, failure=FAILURE), THEN], "state_shape": ENDED + [item(14, "fc.weight", X43, 0, 2), told(14, 2), THEN],
    "state_order": READ + [told(15, 2), item(15, "fc.bias", BIAS, 1, 2), item(15, "fc.weight", WEIGHT, 0, 2), THEN],
    "state_name": READ + [item(15, "fc.weight", WEIGHT, 0, 2), item(15, "none", BIAS, 1, 2), told(15, 2), THEN],
    "state_index": READ + [item(15, "fc.weight", WEIGHT, 9, 4096), item(15, "fc.bias", BIAS, 0, 1), told(15, 2), THEN],
    "state_count": READ + [told(15, 4096), THEN],
    "passed": ENDED[:-2] + [ref(pb.REF_ACK, number=3), ref(pb.REF_ACK, number=4), frame(pb.ENDED, message=94), THEN],
    "graded": GRADED, "kept": KEPT, "ended": ENDED,
    "kept_failed": GRADED + [ref(pb.REF_ACK, number=1, failure=FAILURE), THEN],
    "fetch_failed": GRADED + [ref(pb.REF_ACK, number=1), ref(pb.REF_VALUE, failure=FAILURE, ref=7, fork=8), THEN],
    "fetch_shape": GRADED + [ref(pb.REF_ACK, number=1), ref(pb.REF_VALUE, tensors=[X43], ref=7, fork=8), THEN],
    "step_failed": GRADED + [frame(pb.ERROR, message=93, reply_to=6, failure=FAILURE), THEN],
    "grade_failed": LEARNT + [frame(pb.ERROR, context=0, message=93, reply_to=5, failure=FAILURE), THEN],
    "grade_shape": LEARNT + [item(5, "fc.weight", X43, what=4, context=1), told(5, what=4), THEN],
    "grade_missing": LEARNT + [told(5, count=0, what=4), THEN],
    "forward": FORWARD, "value_failed": [frame(pb.VALUE, message=3, failure=FAILURE)],
    "value_shape": [frame(pb.VALUE, X43, message=3)], "value_unknown": [frame(pb.VALUE, X23, message=77)] + FORWARD,
    "value_relayed": [frame(pb.VALUE, X23, message=3, to="w1"), frame(pb.VALUE, X23, message=3, to="w9")],
    "learnt": LEARNT, "gradient_shape": FORWARD + [gradient(1, X43), gradient(4, X43), THEN],
    "gradient_order": FORWARD + [gradient(1, X23, order=5), gradient(1, X23, phase=2), gradient(77, X23), THEN],
    "gradient_relayed": FORWARD + [changed(gradient(1, X23), to="w1")],
    "not_finite": FORWARD + [gradient(1, X23), vote(1.0, 2.0, finite=False), THEN],
    "vote_count": FORWARD + [gradient(1, X23), vote(1.0), THEN], "no_vote": FORWARD + [
        gradient(1, X23), frame(pb.FINISHED, message=90, phase=1), THEN],
    "aborted": [frame(pb.ABORT, message=1, failure=FAILURE)],
    "refused": [frame(pb.ERROR, message=1, reply_to=3, failure=FAILURE)],
    "broken": [frame(pb.ABORT, context=0, message=1, failure=FAILURE)],
    "error_of_nothing": [frame(pb.ERROR, context=0, message=1, failure=pb.Failure(code=5, hop="module 99"))],
    "ended_early": FORWARD + [frame(pb.ENDED, message=94)], "crc": [changed(VALUE, payload=b"")],
    "denied": [CHAIN[0], VALUE], "strangers": [applied(5), told(5), item(5, "x", BIAS), vote(1.0),
                                               frame(pb.ENDED, context=9, message=94)] + FORWARD,
    "references": [ref(kind, **REFS) for kind in (pb.REF_FORK, pb.REF_DELETE, pb.REF_FETCH)]
    + [ref(pb.REF_RENEW, number=3), ref(pb.REF_ACK, number=1), KEEP,
       ref(pb.REF_USE, context=1, message=30, ref=1, fork=7, key=3, number=1), VALUE],
    "references_relayed": [ref(pb.REF_FETCH, to="w1", **REFS), ref(pb.REF_FETCH, to="w9", **REFS),
                           ref(pb.REF_ACCEPT, to="w1", **REFS),
                           ref(pb.REF_VALUE, tensors=[X43], to="w1", ref=1, fork=2), VALUE],
}


def said(answers):
    return b"".join(b"\0\0" if a is None else struct.pack("<H", a.ByteSize()) + a.SerializeToString()
                    for a in answers)


for name, answers in ANSWERS.items():
    write("answers", name, said(answers))
