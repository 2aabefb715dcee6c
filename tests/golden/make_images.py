#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small image files of every kind (tests/fuzz/corpus/image) and the pixels that Pillow
reads.

Needs python3-pil and python3-numpy (Debian 12: Pillow 9.4). Writes images.txt and images.bin: for
each file its pixels as RGB and as grey, for some of them resized with Image.BILINEAR. For samples
of 16 bits see make_images16.py. Damaged files have no pixels; the tests name them.
"""
import io, os, struct, zlib
import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "../fuzz/corpus/image")
rng = np.random.Generator(np.random.PCG64(5))


class Writer:
    def __init__(self, name):
        self.index, self.values, self.name = [], bytearray(), name

    def add(self, key, image):
        a = np.ascontiguousarray(image, dtype=np.uint8)
        self.index.append(" ".join(map(str, [key, "u8", len(self.values), a.ndim, *a.shape])))
        self.values += a.tobytes()

    def close(self):
        with open(os.path.join(HERE, self.name + ".txt"), "w") as f:
            f.write("\n".join(self.index) + "\n")
        with open(os.path.join(HERE, self.name + ".bin"), "wb") as f:
            f.write(self.values)


def picture(height, width, channels):
    """A smooth image with some noise, so that it is a real test for codecs and filters."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 100 * np.sin(x / (2.0 + c) + y / 3.0) + 20 * rng.standard_normal((height, width))
              for c in range(channels)]
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8).squeeze()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, rows, *extra, interlace=0):
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(extra) +
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows), 9)) + chunk(b"IEND", b""))


def encode(image, kind, **how):
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind, **how)
    return out.getvalue()


def interlaced(image):
    """A PNG with Adam7 interlacing, which Pillow reads but cannot write."""
    rows = []
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = image[y0::dy, x0::dx]
        rows += [r.tobytes() for r in part] if part.size else []
    return png(image.shape[1], image.shape[0], 8, 2, rows, interlace=1)


def files():
    rgb, grey = picture(9, 13, 3), picture(9, 13, 1)
    alpha = np.dstack([rgb, picture(9, 13, 1)])
    wide = rng.integers(0, 65536, (5, 7), dtype=np.uint16)
    wide3 = rng.integers(0, 65536, (5, 7, 3), dtype=np.uint16)
    palette = Image.fromarray(rgb).quantize(11)
    out = io.BytesIO()
    palette.save(out, "PNG", transparency=3)
    yield "rgb.png", encode(rgb, "PNG")
    yield "grey.png", encode(grey, "PNG")
    yield "rgba.png", encode(alpha, "PNG")
    yield "grey_alpha.png", png(13, 9, 8, 4, [np.dstack([r, r[::-1]]).tobytes() for r in grey[:, None]])
    yield "palette.png", out.getvalue()
    yield "one_bit.png", png(13, 9, 1, 0, [np.packbits(r > 128).tobytes() for r in grey])
    yield "grey16.png", png(7, 5, 16, 0, [r.astype(">u2").tobytes() for r in wide])
    yield "rgb16.png", png(7, 5, 16, 2, [r.astype(">u2").tobytes() for r in wide3])
    yield "interlaced.png", interlaced(rgb)
    big = picture(21, 33, 3)
    yield "rgb.jpg", encode(big, "JPEG", quality=85)
    yield "grey.jpg", encode(picture(21, 33, 1), "JPEG")
    yield "progressive.jpg", encode(big, "JPEG", progressive=True, subsampling=2)
    cmyk = io.BytesIO()
    Image.fromarray(np.dstack([big, picture(21, 33, 1)]), "CMYK").save(cmyk, "JPEG")
    yield "cmyk.jpg", cmyk.getvalue()


def damaged():
    rgb = picture(9, 13, 3)
    jpeg = encode(picture(40, 40, 3), "JPEG")
    yield "truncated.png", encode(rgb, "PNG")[:-30]
    yield "truncated.jpg", jpeg[:len(jpeg) // 2]
    middle = jpeg.index(b"\xff\xda") + 60
    yield "short_scan.jpg", jpeg[:middle] + jpeg[-2:]
    yield "bomb.png", png(60000, 60000, 8, 2, [])
    at = jpeg.index(b"\xff\xc0") + 5  # of the frame header: length, precision, height, width
    yield "bomb.jpg", jpeg[:at] + struct.pack(">HH", 60000, 60000) + jpeg[at + 4:]
    yield "bad_chunk.png", encode(rgb, "PNG").replace(b"IHDR\0\0\0\x0d", b"IHDR\0\0\0\x0e")
    yield "text.png", b"not an image at all\n"


def main():
    out = Writer("images")
    os.makedirs(CORPUS, exist_ok=True)
    for name, data in files():
        with open(os.path.join(CORPUS, name), "wb") as f:
            f.write(data)
        if "16" in name: continue
        rgb = Image.open(io.BytesIO(data)).convert("RGB")
        out.add(name + ".rgb", rgb)
        out.add(name + ".grey", rgb.convert("L"))
    source = picture(37, 53, 3)
    out.add("resize.source", source)
    for width, height in ((20, 14), (53, 14), (7, 37), (106, 80), (1, 1), (52, 38)):
        out.add(f"resize.{width}x{height}", Image.fromarray(source).resize((width, height), Image.BILINEAR))
    part = Image.fromarray(source).crop((11, 5, 40, 30))
    out.add("resize.part", part.resize((16, 16), Image.BILINEAR))
    out.add("resize.part_grey", part.convert("L").resize((16, 16), Image.BILINEAR))
    for name, data in damaged():
        with open(os.path.join(CORPUS, name), "wb") as f:
            f.write(data)
    out.close()


if __name__ == "__main__":
    main()
