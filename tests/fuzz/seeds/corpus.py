# SPDX-License-Identifier: Apache-2.0
"""Writes seeds to tests/fuzz/corpus. tests/check-seeds replaces `write`, to compare them."""
import os
import struct
import zlib

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(HERE))
CORPUS = os.path.join(HERE, "corpus")


def to_bytes(data):
    """A text as UTF-8, in which lone surrogates stand for raw bytes."""
    return data if isinstance(data, bytes) else data.encode(errors="surrogateescape")


def write(target, name, data):
    os.makedirs(os.path.join(CORPUS, target), exist_ok=True)
    with open(os.path.join(CORPUS, target, name), "wb") as f:
        f.write(to_bytes(data))


def read(target, name):
    """The bytes of a seed that is checked in."""
    with open(os.path.join(CORPUS, target, name), "rb") as f:
        return f.read()


def gzip_of(text, repeated="", times=0, rest=""):
    """The gzip file of text + repeated * times + rest, for ASCII and at most four repeated bytes.
    Made here, because each version of zlib makes another one."""
    bits = [1, 1, 0]  # the last block, with the fixed codes of RFC 1951

    def put(code, n):
        bits.extend(code >> i & 1 for i in reversed(range(n)))

    def put_text(part):
        for c in part.encode("ascii"):
            put(0x30 + c, 8)

    left = len(repeated) * (times - 1)
    put_text(text + (repeated if times else ""))
    for _ in range(left // 258 if times else 0):
        put(0xC5, 8)  # 258 bytes, from the bytes before
        put(len(repeated) - 1, 5)
    if times:
        put_text((repeated * times)[len(repeated) * times - left % 258:])
    put_text(rest)
    put(0, 7)
    bits += [0] * (-len(bits) % 8)
    body = bytes(sum(bit << i for i, bit in enumerate(bits[at:at + 8])) for at in range(0, len(bits), 8))
    whole = (text + repeated * times + rest).encode("ascii")
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + body + struct.pack("<II", zlib.crc32(whole), len(whole))
