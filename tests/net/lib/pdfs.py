"""Writes PDFs by hand: pages of words, and hostile files. Standard library only."""
import random, zlib


def write(path, objects):
    """Writes a PDF of these objects (bytes); the first one, number 1, is the catalog."""
    out, places = bytearray(b"%PDF-1.4\n"), []
    for i, body in enumerate(objects):
        places.append(len(out))
        out += b"%d 0 obj\n" % (i + 1) + body + b"\nendobj\n"
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + b"".join(b"%010d 00000 n \n" % p for p in places)
    out += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    with open(path, "wb") as f:
        f.write(out)


def pages(path, contents, extra=b""):
    """Writes a PDF with a page of 600 x 800 for each content stream, which may be compressed.
    extra: keys of each page, such as /Rotate 90."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(contents)))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents)),
               b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    for i, (stream, packed) in enumerate(contents):
        objects.append(b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << /Font << /F 3 0 R >> >> /Contents %d 0 R %s >>" % (5 + 2 * i, extra))
        objects.append(b"<< /Length %d%s >>\nstream\n" % (len(stream), b" /Filter /FlateDecode" if packed else b"") + stream + b"\nendstream")
    write(path, objects)


def text_page(lines):
    text = b"BT /F 20 Tf 24 TL 60 700 Td " + b" ".join(b"(%s) Tj T*" % line.encode("latin-1") for line in lines) + b" ET"
    return text, False


def of_lines(path, *all_lines, extra=b""):
    pages(path, [text_page(lines) for lines in all_lines], extra)


def bomb(path, unit, times):
    """Writes a PDF whose content stream unpacks to `unit`, `times` times."""
    begin, block, end = b"BT /F 20 Tf 60 700 Td ", unit * 10000, b" ET"
    packer = zlib.compressobj(9)
    out = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    # a full flush makes the packed block independent of the bytes before it
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    out += packed * (times // 10000) + packer.compress(end) + packer.flush()[:-4]
    total = zlib.adler32(begin)
    for _ in range(times // 10000):
        total = zlib.adler32(block, total)
    out += zlib.adler32(end, total).to_bytes(4, "big")
    pages(path, [(out, True)])


def damaged(path, seed):
    """Writes a valid PDF with randomly changed bytes."""
    of_lines(path, ["Total 12.50", "due on receipt"])
    r = random.Random(seed)
    with open(path, "rb") as f:
        data = bytearray(f.read())
    for _ in range(30):
        data[r.randrange(9, len(data))] = r.randrange(256)
    with open(path, "wb") as f:
        f.write(data)
