#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The documents of seed 000: PDFs of forms about packages of this system, and what each word is.

usage: documents.py OUT [--train 400] [--test 70] [--public 0] [--seed 1] [--pieces 1500] [--look]

Writes OUT/pdf/train/*.pdf and OUT/pdf/test/*.pdf, and of what `cleave-master words` reads in them
OUT/train.jsonl and OUT/test.jsonl, a page a line: file, page, words, boxes, labels. A session takes
them as they are:

    data:
      format: documents
      root: OUT
      train: [train.jsonl]
      test: [test.jsonl]
      documents: {max_tokens: 256, stride: 64, labels: [..., OUT/labels.txt, a name a line]}
      tokenizer: {file: OUT/vocab.txt}       # WordPiece of the training pages, --pieces of them

Every value is a real one, from dpkg's records. A page has two packages, the one that the form is
about and a partner, in one of four layouts, which its title names, at its head and foot too. The
fields of both are the same, and of its two numbers one is the size and the other a count of needs.
So what a word says tells a version from a name, where it stands tells whose it is, and neither is
enough alone. --look prints how far the words, the places and both go by counting. No package is in
both sets. The same records and numbers give the same files. cleave-master is that of
$CLEAVE_TEST_BIN or build/release.

With --public there are pages of a fifth of the packages more, in OUT/public.jsonl. Nothing of them
is in the other sets: they stand for what everybody has. WordPiece is of these pages then.
"""
import argparse, collections, json, os, random, re, shutil, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "tests/net/lib"))
import pdfs

WIDTH, HEIGHT, SIZE = 600, 800, 8
ADVANCE = 0.6 * SIZE  # width of each character of Courier
HEAD, FOOT = 780, 40  # heights on a page at which the form's name is repeated
PAGES = 20            # pages of a file
LABELS = ("other", "package", "version", "section", "size", "needs", "maintainer", "summary",
          "partner_package", "partner_version", "partner_maintainer", "partner_summary")
FIELDS = (("package", "Package:"), ("version", "Version:"), ("section", "Section:"), ("size", "Size:"), ("needs", "Needs:"),
          ("maintainer", "Maintainer:"), ("summary", "About:"))


# ---- records -------------------------------------------------------------------------------------
def records():
    """dpkg's records, sorted by name: each field above as a list of words that fit their
    columns."""
    found = []
    for text in open("/var/lib/dpkg/status", encoding="utf-8").read().split("\n\n"):
        of = dict(re.findall(r"^([A-Za-z-]+): (.+)$", text, re.M))
        if not {"Package", "Version", "Section", "Installed-Size", "Maintainer", "Description"} <= set(of):
            continue
        record = {"package": [of["Package"]], "version": [of["Version"]], "section": [of["Section"]], "size": [of["Installed-Size"]],
                  "needs": [str(len(of["Depends"].split(",")) if "Depends" in of else 0)], "maintainer": of["Maintainer"].split()[:5],
                  "summary": of["Description"].split()[:8]}
        if len(of["Section"]) < 18 and all(len(w) < 35 and w.isascii() and w.isprintable() for words in record.values() for w in words):
            found.append(record)
    return sorted(found, key=lambda r: r["package"])


# ---- pages ---------------------------------------------------------------------------------------
def put(page, x, y, words, label, width):
    """Draws words from x, y downwards, in lines of at most `width`. Returns the height below
    them."""
    at = x
    for word in words:
        if at > x and at + ADVANCE * len(word) > x + width:
            at, y = x, y - 12
        page.append((at, y, word, label))
        at += ADVANCE * (len(word) + 1)
    return y - 14


def label_of(field, partner):
    name = ("partner_" if partner else "") + field
    return name if name in LABELS else "other"


def block(page, x, y, record, partner, keys, width, draw):
    """Draws the fields under each other, with or without keys before them."""
    for field, key in FIELDS:
        if keys:
            put(page, x, y, [key], "other", width)
        y = put(page, x + (70 if keys else 0), y, record[field], label_of(field, partner), width - (70 if keys else 0)) - draw.randrange(4)
    return y


def columns(page, left, right, draw, swapped, keys):
    y = 660 + draw.randrange(20)
    for i, (record, partner) in enumerate(((right, True), (left, False)) if swapped else ((left, False), (right, True))):
        block(page, (30, 320)[i] + draw.randrange(12), y, record, partner, keys, 255, draw)


def record_page(page, mine, partner, draw):
    columns(page, mine, partner, draw, False, draw.random() < 0.5)


def order_page(page, mine, partner, draw):
    columns(page, mine, partner, draw, True, draw.random() < 0.5)


def letter_page(page, mine, partner, draw):
    """Draws a page with the partner above and the package below."""
    x = 40 + draw.randrange(20)
    block(page, x, 690 + draw.randrange(10), partner, True, False, 400, draw)
    block(page, x, 420 + draw.randrange(10), mine, False, False, 400, draw)


def table_page(page, mine, partner, draw):
    """Draws a page with a table row for each package, and their maintainers below in two
    columns."""
    at = {"package": 30, "section": 210, "needs": 300, "size": 360, "version": 420}
    y = 680 + draw.randrange(20)
    for field, x in at.items():
        put(page, x, y, [field.capitalize()], "other", 100)
    for i, (record, of_partner) in enumerate(((mine, False), (partner, True))):
        for field, x in at.items():
            put(page, x, y - 20 - 18 * i, record[field], label_of(field, of_partner), 170)
        for k, field in enumerate(("maintainer", "summary")):
            put(page, (320, 30)[i] + draw.randrange(8), y - 80 - 60 * k, record[field], label_of(field, of_partner), 250)


LAYOUTS = (("Package record", record_page), ("Change order", order_page), ("Covering letter", letter_page), ("Summary sheet", table_page))


def make_page(mine, partner, draw):
    page = []
    title, layout = draw.choice(LAYOUTS)
    put(page, 220 + draw.randrange(40), 750 - draw.randrange(10), title.split(), "other", 300)
    layout(page, mine, partner, draw)
    for y in HEAD, FOOT:
        put(page, 30 + draw.randrange(40), y - draw.randrange(6), ["Form:", *title.split()], "other", 300)
    return page


def stream_of(page):
    def escape(word):
        return re.sub(r"([()\\])", r"\\\1", word)
    shown = "\n".join(f"1 0 0 1 {x:.1f} {y} Tm ({escape(word)}) Tj" for x, y, word, _ in page)
    return f"BT /F {SIZE} Tf\n{shown}\nET".encode("latin-1")


def write_pdf(path, drawn):
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(drawn)))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(drawn)),
               b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>"]
    for i, page in enumerate(drawn):
        stream = stream_of(page)
        objects.append(b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Resources << /Font << /F 3 0 R >> >> /Contents %d 0 R >>" %
                       (WIDTH, HEIGHT, 5 + 2 * i))
        objects.append(b"<< /Length %d >>\nstream\n" % len(stream) + stream + b"\nendstream")
    pdfs.write(path, objects)


def draw_set(folder, part, of, n, draw):
    """Pages by file and number."""
    drawn = {}
    shutil.rmtree(f"{folder}/pdf/{part}", ignore_errors=True)
    os.makedirs(f"{folder}/pdf/{part}")
    for first in range(0, n, PAGES):
        name = f"{first // PAGES:03}.pdf"
        pages = [make_page(*draw.sample(of, 2), draw) for _ in range(min(PAGES, n - first))]
        write_pdf(f"{folder}/pdf/{part}/{name}", pages)
        drawn.update({(name, i + 1): page for i, page in enumerate(pages)})
    return drawn


# ---- labels --------------------------------------------------------------------------------------
def words_of(folder, part):
    program = os.path.join(os.environ.get("CLEAVE_TEST_BIN") or os.path.join(ROOT, "build/release"), "cleave-master")
    done = subprocess.run([program, "words", f"{folder}/pdf/{part}"], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"cleave-master words: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def label_page(line, page):
    """The label of each word that was read: the label of the same word drawn at that place."""
    labels, left = [], list(page)
    for word, box in zip(line["words"], line["boxes"]):
        near = [d for d in left if d[2] == word and abs(1000 * d[0] / WIDTH - box[0]) < 4 and box[1] - 4 < 1000 * (1 - d[1] / HEIGHT) < box[3] + 4]
        if len(near) != 1:
            sys.exit(f"{line['file']}, page {line['page']}: {len(near)} words were drawn as '{word}' is read at {box}")
        left.remove(near[0])
        labels.append(near[0][3])
    if left:
        sys.exit(f"{line['file']}, page {line['page']}: '{left[0][2]}' is drawn and not read")
    return labels


def write_set(folder, part, drawn):
    lines = words_of(folder, part)
    if len(lines) != len(drawn):
        sys.exit(f"{part}: {len(drawn)} pages were drawn, and {len(lines)} read")
    with open(f"{folder}/{part}.jsonl", "w") as f:
        for line in lines:
            line.pop("label", None)
            line["labels"] = label_page(line, drawn[line["file"], line["page"]])
            f.write(json.dumps(line) + "\n")
    return lines


# ---- a vocabulary --------------------------------------------------------------------------------
def vocabulary(lines, n):
    """A vocabulary of n pieces: letters, then words and parts of words that shorten the training
    pages most."""
    words = collections.Counter(p for line in lines for w in line["words"] for p in re.findall(r"\w+|[^\w\s]", w.lower().replace("_", " _ ")))
    letters = sorted({c for w in words for c in w} | set("abcdefghijklmnopqrstuvwxyz0123456789.-:+~<>@/_"))
    worth = collections.Counter()
    for word, count in words.items():
        for i in range(len(word)):
            for k in range(i + 2, min(len(word), i + 6) + 1):
                worth[("##" if i else "") + word[i:k]] += count * (k - i - 1)
        if len(word) > 1:
            worth[word] += count * len(word)
    best = [p for p, gain in sorted(worth.items(), key=lambda x: (-x[1], x[0])) if gain > 3]
    fixed = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters if c.isalnum())]
    return (fixed + [p for p in best if p not in set(fixed)])[:n]


# ---- a look --------------------------------------------------------------------------------------
def shape_of(word):
    return re.sub(r"[a-z]+", "a", re.sub(r"[0-9]+", "9", word.lower()))


def look(train, test):
    """Prints how many words of the test pages get the right label by counts over the training
    pages."""
    keys = {"words": lambda w, b: w, "their shapes": lambda w, b: shape_of(w), "places": lambda w, b: (b[0] // 25, b[1] // 25),
            "shapes and places": lambda w, b: (shape_of(w), b[0] // 100, b[1] // 50)}
    all_labels = collections.Counter(x for line in train for x in line["labels"])
    for name, key in keys.items():
        counts = collections.defaultdict(collections.Counter)
        for line in train:
            for w, b, y in zip(line["words"], line["boxes"], line["labels"]):
                counts[key(w, b)][y] += 1
        right = [(counts[key(w, b)] or all_labels).most_common(1)[0][0] == y for line in test for w, b, y in zip(line["words"], line["boxes"], line["labels"])]
        print(f"by {name}: {100 * sum(right) / len(right):.1f} % right")


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    p.add_argument("out")
    for name, standard in (("train", 400), ("test", 70), ("public", 0), ("seed", 1), ("pieces", 1500)):
        p.add_argument("--" + name, type=int, default=standard)
    p.add_argument("--look", action="store_true")
    a = p.parse_args()
    of, draw = records(), random.Random(a.seed)
    draw.shuffle(of)
    if len(of) < 200:
        sys.exit(f"{len(of)} packages are recorded here: at least 200 are needed")
    fifth = len(of) // 5
    public = fifth if a.public else 0
    sets = {"train": (of[fifth + public:], a.train), "test": (of[:fifth], a.test)}
    if public:
        sets["public"] = (of[fifth:fifth + public], a.public)
    lines = {part: write_set(a.out, part, draw_set(a.out, part, records_of, n, draw)) for part, (records_of, n) in sets.items()}
    with open(f"{a.out}/vocab.txt", "w") as f:
        f.writelines(piece + "\n" for piece in vocabulary(lines["public" if public else "train"], a.pieces))
    with open(f"{a.out}/labels.txt", "w") as f:
        f.writelines(label + "\n" for label in LABELS)
    for part, of_part in lines.items():
        labels = collections.Counter(x for line in of_part for x in line["labels"])
        label, most = labels.most_common(1)[0]
        print(f"{part}: {len(of_part)} pages, {sum(labels.values())} words in {len(labels)} classes; the largest, {label}, has {100 * most / sum(labels.values()):.1f} %")
    if a.look:
        look(lines["train"], lines["test"])


if __name__ == "__main__":
    main()
