# SPDX-License-Identifier: Apache-2.0
"""Parts that the makers of messages share: the classes that protoc makes from the shipped
.proto."""
import os
import re
import subprocess
import sys
import tempfile

from seeds.corpus import ROOT, read, write  # noqa: F401, for those who import this file

with tempfile.TemporaryDirectory() as made:
    subprocess.run(["protoc", f"-I{ROOT}/proto", "--python_out=" + made, "cleave/v1/cleave.proto"], check=True)
    sys.path.insert(0, made)
    from cleave.v1 import cleave_pb2 as pb
PROTOCOL = int(re.search(r"CLV_WIRE_PROTOCOL = (\d+)", open(f"{ROOT}/common/net/wire/wire.h").read()).group(1))
ID = bytes(range(1, 17))
F32, I64 = 1, 3


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def changed(message, **fields):
    copy = type(message)()
    copy.CopyFrom(message)
    for name, value in fields.items():
        if isinstance(value, (list, tuple)):
            copy.ClearField(name)
            getattr(copy, name).extend(value)
        elif hasattr(value, "SerializeToString"):
            getattr(copy, name).CopyFrom(value)
        elif value is None:
            copy.ClearField(name)
        else:
            setattr(copy, name, value)
    return copy
