#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes PNG files of 16 bits (tests/fuzz/corpus/image) and their samples as f32.

Needs python3-numpy. Writes images16.txt and images16.bin: of each file its samples as RGB and as
grey, and pictures resized as Pillow's I;16 resizes them since 10.4: weights and sums in double,
rounded to 16 bits after each pass. If Pillow is that new, the script compares with it.
"""
import os, struct, zlib
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "../fuzz/corpus/image")
GREY, RGB, GREY_ALPHA, RGBA = 0, 2, 4, 6
rng = np.random.Generator(np.random.PCG64(16))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(image, colour, *extra):
    """A file with these samples: [height, width, channels] of uint16."""
    height, width = image.shape[:2]
    head = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in image)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(extra) + chunk(b"IDAT", zlib.compress(rows, 9)) +
            chunk(b"IEND", b""))


def samples_of(data, channels):
    """The samples of a file whose rows have filter 0."""
    width, height = struct.unpack(">II", data[16:24])
    at = data.index(b"IDAT") - 4
    size = struct.unpack(">I", data[at:at + 4])[0]
    rows = np.frombuffer(zlib.decompress(data[at + 8:at + 8 + size]), np.uint8).reshape(height, -1)[:, 1:]
    return np.ascontiguousarray(rows).view(">u2").astype(np.uint16).reshape(height, width, channels)


def to_grey(rgb):
    r, g, b = (rgb[..., c].astype(np.uint64) for c in range(3))
    return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16).astype(np.uint16)


def along(a, out):
    """One pass over the last axis of [rows, n]."""
    n, result = a.shape[1], np.zeros((a.shape[0], out), np.uint16)
    scale = n / out
    width = max(scale, 1.0)
    for o in range(out):
        center = (o + 0.5) * scale
        low, high = max(int(center - width + 0.5), 0), min(int(center + width + 0.5), n)
        w = [max(1 - abs((x - center + 0.5) * (1.0 / width)), 0.0) for x in range(low, high)]
        total = 0.0
        for v in w: total += v
        sums = np.zeros(a.shape[0])
        for x, v in zip(range(low, high), w): sums += a[:, x] * (v / total)
        result[:, o] = np.clip((sums + 0.5).astype(np.int64), 0, 65535)
    return result


def resize(plane, width, height):
    if plane.shape[1] != width: plane = along(plane, width)
    return along(plane.T.copy(), height).T.copy() if plane.shape[0] != height else plane


def check_pillow(plane, width, height, want):
    try:
        import PIL
        from PIL import Image
    except ImportError:
        return
    if tuple(map(int, PIL.__version__.split(".")[:2])) < (10, 4): return
    assert (np.asarray(Image.fromarray(plane).resize((width, height), Image.BILINEAR)) == want).all()


def files():
    wide, wide3 = (rng.integers(0, 65536, (5, 7, n), dtype=np.uint16) for n in (2, 4))
    scan = (1200 + 400 * np.sin(np.mgrid[0:24, 0:32][1] / 3.0) + rng.integers(0, 72, (24, 32))).astype(np.uint16)[..., None]
    yield "grey16.png", None, 1
    yield "rgb16.png", None, 3
    yield "grey_alpha16.png", (wide, GREY_ALPHA), 1
    yield "rgba16.png", (wide3, RGBA), 3
    yield "grey16_trns.png", (wide[..., :1], GREY, chunk(b"tRNS", struct.pack(">H", wide[0, 0, 0]))), 1
    yield "rgb16_trns.png", (wide3[..., :3], RGB, chunk(b"tRNS", struct.pack(">HHH", *wide3[0, 0, :3]))), 3
    yield "scan12.png", (scan, GREY), 1


def main():
    index, values = [], bytearray()

    def add(key, a):
        a = np.ascontiguousarray(a, dtype="<f4")
        index.append(" ".join(map(str, [key, "f32", len(values), a.ndim, *a.shape])))
        values.extend(a.tobytes())

    for name, what, channels in files():
        path = os.path.join(CORPUS, name)
        if what:
            with open(path, "wb") as f: f.write(png(*what))
            image = what[0][..., :channels]
        else:
            with open(path, "rb") as f: image = samples_of(f.read(), channels)
        rgb = np.repeat(image, 3, -1) if channels == 1 else image
        add(name + ".rgb", rgb)
        add(name + ".grey", image[..., 0] if channels == 1 else to_grey(image))
    source = rng.integers(0, 65536, (37, 53, 3), dtype=np.uint16)
    add("resize.source", source)
    for width, height in ((20, 14), (53, 14), (7, 37), (60, 41), (1, 1)):
        planes = [resize(source[..., c], width, height) for c in range(3)]
        for c in range(3): check_pillow(source[..., c], width, height, planes[c])
        add(f"resize.{width}x{height}", np.stack(planes, -1))
    add("resize.grey_16x16", resize(source[..., 0], 16, 16))
    with open(os.path.join(HERE, "images16.txt"), "w") as f: f.write("\n".join(index) + "\n")
    with open(os.path.join(HERE, "images16.bin"), "wb") as f: f.write(values)


if __name__ == "__main__":
    main()
