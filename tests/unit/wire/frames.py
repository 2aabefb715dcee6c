#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reads FOLDER/frame with classes that protoc makes from the shipped .proto, checks every field
against what the C test put there, and writes FOLDER/again with the stock serializer."""
import subprocess
import sys

folder = sys.argv[1]
subprocess.run(["protoc", "-Iproto", "--python_out=" + folder, "cleave/v1/cleave.proto"],
               check=True)
sys.path.insert(0, folder)
from cleave.v1 import cleave_pb2 as pb

frame = pb.Frame()
frame.ParseFromString(open(folder + "/frame", "rb").read())
want = pb.Frame(
    kind=pb.FORWARD, context=0x0102030405060708, message=77, phase=3, step=123456789012,
    micro_batch=3, n_micro_batches=4, stage=2, flags=pb.FLAG_TRAINING | pb.FLAG_PREPARE,
    upstream=[1, 2**64 - 1, 1 << 40], presence=b"\x02\x10", reply_to=300,
    payload=bytes((i * 7 + 3) & 255 for i in range(64)),
    commit=pb.Commit(step=41, scale=0.125, lr=1e-3, apply=True))
want.tensors.add(dtype=1, dims=[2, 3], bytes=24, crc32c=0xDEADBEEF)
want.tensors.add(dtype=3, dims=[5], bytes=40, crc32c=0x12345678)
if frame != want:
    sys.exit("read:\n%s\nwanted:\n%s" % (frame, want))
open(folder + "/again", "wb").write(want.SerializeToString())
