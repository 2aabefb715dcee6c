#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the frames FOLDER/KIND with classes that protoc makes from the shipped .proto, checks every
field against what the C test put there, and writes FOLDER/KIND.again with the stock serializer."""
import subprocess
import sys

folder = sys.argv[1]
subprocess.run(["protoc", "-Iproto", "--python_out=" + folder, "cleave/v1/cleave.proto"],
               check=True)
sys.path.insert(0, folder)
from cleave.v1 import cleave_pb2 as pb


def frame(kind, **fields):
    return pb.Frame(kind=kind, context=0x0102030405060708, message=77, phase=3, step=123456789012,
                    module=2, reply_to=300, **fields)


call = frame(pb.CALL, micro_batch=3, flags=pb.FLAG_TRAINING,
             payload=bytes((i * 7 + 3) & 255 for i in range(64)),
             call=pb.Call(after=2**64 - 2, args=[
                 pb.Arg(value=2**64 - 1, needs_grad=True), pb.Arg(here=True),
                 pb.Arg(value=78, needs_grad=True, here=True)]))
call.tensors.add(dtype=1, dims=[2, 3], bytes=24, crc32c=0xDEADBEEF)
call.tensors.add(dtype=3, dims=[5], bytes=40, crc32c=0x12345678)

backward = pb.Backward(retain=True, vote=True, more=True, skipped=2, peers=["worker-2", "w3"], calls=[
    pb.NeededCall(call=80, root=0.25, targets=[
        pb.Target(value=79, to=2), pb.Target(value=78, slot=1, order=4095)]),
    pb.NeededCall(call=79, contributions=1),
    pb.NeededCall(call=2**64 - 1, contributions=7, targets=[
        pb.Target(value=1, slot=7, order=1, to=1)])])

wanted = {
    "CALL": call,
    "DROP": frame(pb.DROP, upstream=[1, 2**64 - 1, 1 << 40]),
    "PREPARE": frame(pb.PREPARE, backward=backward),
    "APPLY": frame(pb.APPLY, commit=pb.Commit(scale=0.125, lr=1e-3, apply=True,
                                                 more_lrs=[0.5, 0, -2])),
}
for kind, want in wanted.items():
    path = folder + "/" + kind
    read = pb.Frame()
    read.ParseFromString(open(path, "rb").read())
    if read != want:
        sys.exit("%s read:\n%s\nwanted:\n%s" % (kind, read, want))
    open(path + ".again", "wb").write(want.SerializeToString())
