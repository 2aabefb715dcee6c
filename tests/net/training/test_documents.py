"""PDFs and images of pages: their words and boxes, limits on hostile files, and a network that
learns from their words over a worker."""
import json, os, random, re, shutil, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pdfs

suite = Suite()
HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY = os.path.abspath(os.path.join(HERE, "../../golden/tokens/pieces.txt"))
KINDS = {"invoice": "license fee total amount received of work", "letter": "you may send a copy to your program"}


def words(*args, code=0):
    done = master("words", *args, cwd=cluster.dir)
    assert done.returncode == code, (done.returncode, done.stdout[-500:], done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def path(name):
    return os.path.join(cluster.dir, name)


@suite.test
def pages_of_a_pdf_have_words_and_boxes():
    pdfs.of_lines(path("a.pdf"), ["Hello big world", "second line"], ["- page two"])
    lines, _ = words("a.pdf")
    assert [(x["page"], x["words"]) for x in lines] == [(1, ["Hello", "big", "world", "second", "line"]), (2, ["-", "page", "two"])], lines
    x0, y0, x1, y1 = lines[0]["boxes"][0]
    assert x0 == 100 and 90 < y0 < y1 < 140 and 150 < x1 < 200, lines[0]["boxes"]
    assert lines[0]["boxes"][3][1] > y1 and "label" not in lines[0]


@suite.test
def boxes_follow_the_page_rotation():
    pdfs.of_lines(path("plain.pdf"), ["Total 12"])
    (plain,), _ = words("plain.pdf")
    turns = ((90, lambda x, y: (1000 - y, x)), (180, lambda x, y: (1000 - x, 1000 - y)), (270, lambda x, y: (y, 1000 - x)))
    for degrees, rotate in (*turns, (450, turns[0][1]), (-270, turns[0][1]), (-90, turns[2][1])):
        pdfs.of_lines(path("turned.pdf"), ["Total 12"], extra=b"/Rotate %d" % degrees)
        (turned,), _ = words("turned.pdf")
        assert sorted(turned["words"]) == ["12", "Total"], turned
        for word, (x0, y0, x1, y1) in zip(plain["words"], plain["boxes"]):
            (a, b), (c, d) = rotate(x0, y0), rotate(x1, y1)
            box = turned["boxes"][turned["words"].index(word)]
            assert all(abs(p - q) < 25 for p, q in zip(box, [min(a, c), min(b, d), max(a, c), max(b, d)])), (degrees, box)
    pdfs.of_lines(path("part.pdf"), ["Total 12", "below"], extra=b"/CropBox [0 690 300 790]")
    (part,), _ = words("part.pdf")
    assert part["words"] == ["Total", "12"] and 170 < part["boxes"][0][0] < 230, part
    assert 600 < part["boxes"][0][1] < part["boxes"][0][3] <= 1000, part


@suite.test
def bytes_before_a_pdf_are_skipped():
    pdfs.of_lines(path("f.pdf"), ["Hello world"])
    with open(path("f.pdf"), "rb") as f:
        good = f.read()
    for n, front in enumerate((b"\r\n", b"\xef\xbb\xbf", b"Content-Type: application/pdf\r\n\r\n", b" " * 1024, b" " * 1025)):
        with open(path("g.pdf"), "wb") as f:
            f.write(front + good)
        lines, said = words("g.pdf", code=7 if n == 4 else 0)
        assert "not a PDF" in said if n == 4 else lines[0]["words"] == ["Hello", "world"], (n, lines, said)


@suite.test
def images_of_pages_are_read():
    pdfs.of_lines(path("b.pdf"), ["Hello big world"])
    subprocess.run(["pdftoppm", "-r", "150", "-singlefile", "-png", path("b.pdf"), path("b")], check=True, timeout=60)
    lines, _ = words("b.png")
    (pdf,), _ = words("b.pdf")
    assert lines[0]["words"] == ["Hello", "big", "world"], lines
    for a, b in zip(lines[0]["boxes"], pdf["boxes"]):
        assert abs(a[0] - b[0]) < 15 and abs(a[2] - b[2]) < 15, (a, b)


@suite.test
def long_pages_become_overlapping_windows():
    pdfs.of_lines(path("w.pdf"), ["the license of the program"] * 4)
    lines, _ = words("w.pdf", "--tokenizer", VOCABULARY, "--max-tokens", "12", "--stride", "3")
    assert len(lines) > 1 and all(len(x["ids"]) == len(x["boxes"]) == 12 for x in lines), lines
    assert lines[0]["ids"][0] == 2 and lines[0]["boxes"][0] == [0] * 4 and lines[0]["of_word"][0] == -1
    assert lines[0]["ids"][-4:-1] == lines[1]["ids"][1:4], lines[:2]
    for name, ends in (("bert", [2, 3, 0]), ("xlmr", [0, 2, 1])):
        line = words("w.pdf", "--tokenizer", os.path.join(os.path.dirname(VOCABULARY), name + ".json"), "--max-tokens", "80")[0][0]
        assert [line["ids"][0], line["ids"][line["of_word"].index(-1, 1)], line["ids"][-1]] == ends, line
    _, said = words("w.pdf", "--tokenizer", os.path.join(os.path.dirname(VOCABULARY), "llama.json"), code=7)
    assert "llama.json has no token [PAD] or <pad>" in said, said


def refused(name, text, *args, most=30):
    began = time.monotonic()
    _, said = words(name, *args, code=7)
    assert re.search(f"{re.escape(name)}: {text}", said) and time.monotonic() - began < most, (said, time.monotonic() - began)


@suite.test
def pdf_over_a_time_or_memory_limit_is_stopped():
    pdfs.bomb(path("hangs.pdf"), b"q Q 1 0 0 1 0 0 cm ", 20000000)
    refused("hangs.pdf", "pdftotext takes (longer|more) than 1 s", "--seconds", "1")
    pdfs.bomb(path("explodes.pdf"), b"1 0 0 1 60 700 Tm (ab ) Tj ", 2000000)
    refused("explodes.pdf", "pdftotext ends with signal 6 .it may have 128 MiB of memory", "--memory", "128", "--seconds", "20")


@suite.long
def image_over_a_memory_limit_is_stopped():
    """60000 x 60000 points of one colour."""
    with open(path("huge.png"), "wb") as f:
        import struct, zlib
        chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        packer = zlib.compressobj(1)
        rows = b"".join(packer.compress(bytes(7501 * 1000)) for _ in range(60)) + packer.flush()
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 1, 0, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    refused("huge.png", "tesseract (ends with .*it may have 256 MiB of memory|takes)", "--memory", "256", "--seconds", "5")


@suite.test
def damaged_file_does_not_stop_the_others():
    os.makedirs(path("many"))
    for i in range(8):
        pdfs.damaged(path(f"many/bad{i}.pdf"), i)
    with open(path("many/no.pdf"), "wb") as f:
        f.write(b"%PDF-1.4\nnothing")
    pdfs.of_lines(path("many/z.pdf"), ["the last one"])
    done = master("words", "many", cwd=cluster.dir)
    assert done.returncode in (0, 7) and json.loads(done.stdout.splitlines()[-1])["words"] == ["the", "last", "one"], (done.stdout, done.stderr)


@suite.test
def pages_without_words_are_named():
    pdfs.of_lines(path("bare.pdf"), [], [], [], [])
    lines, said = words("bare.pdf")
    assert [x["words"] for x in lines] == [[]] * 4 and re.search(r"bare\.pdf: page 3 has no words; .*pdftoppm", said), said
    assert "page 4 has" not in said and "4 pages have no words in all" in said, said
    for name in ("empty.pdf", "empty.png"):
        open(path(name), "w").close()
        assert f"{name}: the file is empty (0 bytes)" in words(name, code=7)[1]
    pdfs.of_lines(path("askew.pdf"), ["Total 12"], extra=b"/Rotate 45")
    refused("askew.pdf", "page 1 has a /Rotate that is not a multiple of 90: turn it with qpdf --rotate=0:1")
    os.makedirs(path("nothing"))
    assert "nothing: has no PDF, PNG or JPEG" in words("nothing", code=7)[1]


LABELLED = {"words": ["license", "fee", "12"], "boxes": [[0, 0, 10, 10], [10, 0, 20, 10], [20, 0, 30, 10]], "labels": ["key", "key", "value"]}
DOCUMENTS = ("data:\n  format: documents\n  train: [lines.jsonl]\n  test: [lines.jsonl]\n  documents: {max_tokens: 16}\n"
             f"  tokenizer: {{file: {VOCABULARY}}}\n")
STAGES = "stages:\n  - {name: all, at: master, layers: [{op: embedding, rows: 1600, out: 8}, {op: linear, out: 2}]}\n"
TAIL = f"loss: {{kind: cross_entropy}}\ntrain: {{epochs: 1, batch: 1, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.1}}}}\n"


def checked(name, code, text, data=DOCUMENTS, **changed):
    with open(path("lines.jsonl"), "w") as f:
        for line in (LABELLED, {k: v for k, v in {**LABELLED, **changed}.items() if v is not None}):
            f.write(json.dumps(line) + "\n")
    done = master("check", cluster.session(name, data + STAGES + TAIL, keys=""), cwd=cluster.dir)
    assert done.returncode == code and re.search(text, done.stdout + done.stderr), (done.returncode, done.stdout, done.stderr)


@suite.test
def check_reports_errors_in_labelled_pages():
    boxes = LABELLED["boxes"]
    checked("large", 7, r"data\.train: \S*lines\.jsonl:2:\d+: 1001 is no whole number from 0 to 1000", boxes=boxes[:2] + [[20, 0, 1001, 10]])
    checked("back", 7, r"lines\.jsonl:2:\d+: this box ends before it begins", boxes=boxes[:2] + [[20, 0, 3, 10]])
    checked("few", 7, r"lines\.jsonl:2: has 3 words and 2 boxes", boxes=boxes[:2])
    for name, text, changed in (
            ("number", "a text is expected here, found a number", {"words": ["license", "fee", 12]}),
            ("one", "a list is expected here, found a text", {"words": "license"}),
            ("share", r"1\.5 is no whole number from 0 to 1000", {"boxes": boxes[:2] + [[20, 0, 30, 1.5]]}),
            ("huge", r"1e\+300 is no whole number from 0 to 1000", {"boxes": boxes[:2] + [[20, 0, 1e300, 10]]}),
            ("quoted", "a number is expected here, found a text", {"boxes": boxes[:2] + [["20", 0, 30, 10]]}),
            ("three", "a box has four numbers, and this one 3", {"boxes": boxes[:2] + [[20, 0, 30]]}),
            ("class", "-3 is no whole number from 0 to", {"labels": ["key", "key", -3]})):
        checked(name, 7, r"data\.train: \S*lines\.jsonl:2:\d+: " + text, **changed)
    checked("unlabelled", 7, r"lines\.jsonl:2: has no 'labels'", labels=None)
    checked("short", 7, r"lines\.jsonl:2: has 3 words and 1 labels", labels=["key"])
    checked("pages", 7, r"lines\.jsonl:1: has no 'label'", DOCUMENTS.replace("{max", "{labels_of: pages, max"))
    checked("other", 7, r"lines\.jsonl:1: the class 'value' is not in data\.documents\.labels", DOCUMENTS.replace("{max", "{labels: [key], max"))
    checked("inputs", 3, r"data\.inputs: there is no 'masks'; there are ids, lengths and boxes", DOCUMENTS.replace("data:\n", "data:\n  inputs: [masks]\n"))
    checked("two", 3, "must name one file of pages or one folder", DOCUMENTS.replace("train: [", "train: [x, "))
    checked("plain", 3, "documents needs data.tokenizer.file", re.sub("  tokenizer.*\n", "", DOCUMENTS))


@suite.test
def broken_pages_are_listed_or_left_out():
    """Both lines and files. A line that is left out adds no class."""
    bad = [json.dumps({**LABELLED, "boxes": LABELLED["boxes"][:2]}), '{"words": [', json.dumps({**LABELLED, "labels": ["fresh", "a/b", None]})]
    with open(path("lines.jsonl"), "w") as f:
        f.writelines(line + "\n" for line in [json.dumps(LABELLED), *bad, json.dumps(LABELLED)])
    said = r"data\.train: 3 records cannot be read: .*data\.broken: skip.*lines\.jsonl:2: has 3 words and 2 boxes"
    done = master("check", cluster.session("broken", DOCUMENTS + STAGES + TAIL, keys=""), cwd=cluster.dir)
    assert done.returncode == 7 and re.search(said, done.stderr), done.stderr
    skip = DOCUMENTS.replace("data:\n", "data:\n  broken: skip\n")
    done = master("check", cluster.session("broken", skip + STAGES + TAIL, keys=""), cwd=cluster.dir)
    assert "data.train: 3 records left out (data.broken: skip); the first: " in done.stderr, done.stderr
    assert "2 training samples in 2 classes" in done.stdout, done.stdout
    for kind in KINDS:
        os.makedirs(path(f"kinds-of/{kind}"))
        pdfs.of_lines(path(f"kinds-of/{kind}/0.pdf"), [KINDS[kind]])
    open(path("kinds-of/letter/1.pdf"), "w").close()
    pdfs.of_lines(path("kinds-of/letter/2.pdf"), ["Total 12"], extra=b"/Rotate 45")
    skip = skip.replace("lines.jsonl", "kinds-of").replace("{max", "{labels_of: pages, max")
    stages = STAGES.replace("{op: linear, out: 2}", "{op: mean, dim: 1}, {op: linear, out: 2}")
    done = master("check", cluster.session("broken", skip + stages + TAIL, keys=""), cwd=cluster.dir)
    assert re.search(r"data\.train: 2 records left out .*the first: \S*1\.pdf: the file is empty", done.stderr), done.stderr
    assert "2 training samples in 2 classes" in done.stdout, done.stdout


def forms(name, train, test):
    """Writes pages with the script of the seed. Returns the data section of a session that reads
    them."""
    out = path(name)
    script = os.path.join(HERE, "../../seeds/documents.py")
    done = subprocess.run([script, out, "--train", str(train), "--test", str(test), "--pieces", "400"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    labels = ", ".join(open(f"{out}/labels.txt").read().split())
    return out, (DOCUMENTS.replace("train: [lines", f"root: {out}\n  train: [train").replace("test: [lines", "test: [test")
                 .replace("max_tokens: 16}", f"max_tokens: 64, stride: 16, labels: [{labels}]}}").replace(VOCABULARY, f"{out}/vocab.txt"))


@suite.test
def check_counts_every_word_of_the_seed_documents():
    out, data = forms("forms", 12, 6)
    sets = {part: [json.loads(line) for line in open(f"{out}/{part}.jsonl")] for part in ("train", "test")}
    assert [len(s) for s in sets.values()] == [12, 6]
    packages = {part: {w for line in s for w, y in zip(line["words"], line["labels"]) if y.endswith("package")} for part, s in sets.items()}
    assert packages["train"] and not packages["train"] & packages["test"], packages
    done = master("check", cluster.session("forms-check", data + STAGES.replace("out: 2}", "out: 12}") + TAIL, keys=""), cwd=cluster.dir)
    said = re.search(r"data\.test: 6 pages with (\d+) words in (\d+) windows of 64 tokens; 6 take more than one", done.stdout + done.stderr)
    assert said and int(said.group(1)) == sum(len(line["words"]) for line in sets["test"]) and int(said.group(2)) > 12, done.stdout + done.stderr


LAYOUTLM = {"model_type": "layoutlm", "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
            "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 64, "type_vocab_size": 2,
            "max_2d_position_embeddings": 1024, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}


@suite.test
def layoutlm_learns_word_labels():
    out, data = forms("many", 40, 12)
    for name, rows in (("model", 400), ("stale", 300)):
        os.makedirs(path(name))
        with open(path(name) + "/config.json", "w") as f:
            json.dump({**LAYOUTLM, "vocab_size": rows}, f)
    model = "model: {hf: model, head: token, labels: 12}\nstages:\n  - {name: all, at: master, layers: 0..LAST}\n"
    tail = TAIL.replace("epochs: 1, batch: 1", "epochs: 12, batch: 8").replace("{kind: sgd, lr: 0.1}", "{kind: adamw, lr: 0.003}")
    done = master("check", cluster.session("ask", data + model.replace("LAST", "999") + tail, keys=""), cwd=cluster.dir)
    model = model.replace("LAST", re.search(r"has layers 0\.\.(\d+)", done.stderr).group(1))
    done = master("check", cluster.session("old", data + model.replace("hf: model", "hf: stale") + tail, keys=""), cwd=cluster.dir)
    assert done.returncode == 3 and re.search(r"data\.tokenizer\.file: \S+vocab\.txt has 400 tokens, and the embedding '\S+' has rows: 300", done.stderr), done.stderr
    done = cluster.train(cluster.session("layoutlm", data + model + tail, keys=""), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    labels = [y for line in open(f"{out}/test.jsonl") for y in json.loads(line)["labels"]]
    largest = max(labels.count(y) for y in set(labels)) / len(labels)
    accuracy, places = re.search(r"test accuracy (\S+) % .* (\d+) places", done.stdout).groups()
    assert int(places) == len(labels) and float(accuracy) > 100 * largest + 20, (done.stdout[-300:], largest)
    done = master("predict", path("layoutlm.yaml"), "--out", path("forms.npy"), cwd=cluster.dir)
    assert done.returncode == 0 and re.search(r"forms\.npy: \[\d+, 64, 12\] f32", done.stdout), done.stdout + done.stderr
    same_labels_as_the_evaluation_counted(f"{out}/test.jsonl", "layoutlm.yaml", float(accuracy))
    done_well("export", "layoutlm", "--hf", "named")
    with open(path("named/config.json")) as f:
        config, names = json.load(f), re.search(r"labels: \[(.*)\]", data)[1].split(", ")
    assert [config["id2label"][str(i)] for i in range(12)] == names and config["label2id"] == {name: i for i, name in enumerate(names)}, config


def lines_of(name):
    with open(path(name)) as f:
        return [json.loads(line) for line in f]


def same_labels_as_the_evaluation_counted(given, session, accuracy):
    """Checks predictions: a line for each page in the given order, and each word's label from the
    window that owns the word."""
    with open(given) as f:
        pages = [json.loads(line) for line in f]
    with open(path("new.jsonl"), "w") as f:
        for i, page in enumerate(pages):
            f.write(json.dumps({"id": {"scan": [i, "\u00e9"]}, **{k: v for k, v in page.items() if k != "labels"}}) + "\n")
    predict = lambda name, out: done_well("predict", session, "--set", f"data.test=[{path(name)}]", "--output", out)
    assert f"out.jsonl: {len(pages)} pages, [" in predict("new.jsonl", "out.jsonl")
    out = lines_of("out.jsonl")
    right = [a == b for page, line in zip(pages, out) for a, b in zip(page["labels"], line["labels"])]
    assert len(right) == sum(len(p["words"]) for p in pages) and abs(100 * sum(right) / len(right) - accuracy) < 0.006, (sum(right), len(right), accuracy)
    for i, (page, line) in enumerate(zip(pages, out)):
        assert line["id"] == {"scan": [i, "\u00e9"]} and all(line[k] == page[k] for k in ("file", "page", "words", "boxes")), line
        assert all(1 / 12 <= p <= 1 for p in line["probabilities"]) and set(line) == {"id", *page, "probabilities"}, line
    predict("out.jsonl", "again.jsonl")
    assert lines_of("again.jsonl") == out
    done_well("check", session, "--set", f"data.train=[{path('out.jsonl')}]")
    done_well("predict", session, "--set", f"data.test=[{path('new.jsonl')}]", "--set", "data.limit_test=1", "--output", "one.jsonl")
    (one,) = lines_of("one.jsonl")
    known = [y is not None for y in one["labels"]]
    assert known == [p is not None for p in one["probabilities"]] and known == sorted(known, reverse=True) and 0 < sum(known) < len(known), one
    assert one["labels"][:sum(known)] == out[0]["labels"][:sum(known)], (one, out[0])
    refused = master("predict", session, "--set", f"data.test=[{path('new.jsonl')}]", "--output", "./new.jsonl", cwd=cluster.dir)
    assert refused.returncode == 1 and "is " + path("new.jsonl") + ", a file of data.test" in refused.stderr and len(lines_of("new.jsonl")) == len(pages), refused.stderr


def shipped(name, *sets):
    """A session of deploy/sessions in a folder of its own, with the settings of this machine."""
    shutil.copy(os.path.join(HERE, "../../../deploy/sessions", name), path("shipped"))
    tls = [f"tls.{k}={cluster.certs}/{f}" for k, f in (("ca", "ca.pem"), ("cert", "master.pem"), ("key", "master.key"))]
    return [f"shipped/{name}", *(a for s in [*(tls if sets else []), *sets] for a in ("--set", s))]


def done_well(*args):
    done = master(*args, cwd=cluster.dir, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@suite.long
def shipped_sessions_train_a_layoutlm_from_pages():
    """Hidden words make weights that both workers have on their disks, and a LayoutLM begins with
    them; plan says what that means. tests/seeds/seed000.py does the same at full size."""
    out, _ = forms("shipped", 12, 6)
    shutil.copy(f"{out}/train.jsonl", f"{out}/public.jsonl")
    os.mkdir(f"{out}/layoutlm-small")
    shutil.copy(f"{out}/vocab.txt", f"{out}/layoutlm-small")
    with open(f"{out}/layoutlm-small/config.json", "w") as f:
        json.dump({**LAYOUTLM, "num_hidden_layers": 4, "max_position_embeddings": 128, "tie_word_embeddings": False, "hidden_dropout_prob": 0.1}, f)
    done_well("train", *shipped("layoutlm-masked.yaml"), "--max-steps", "1")
    done_well("export", "layoutlm-masked", "--hf", f"{out}/layoutlm-base")
    shutil.copy(f"{out}/vocab.txt", f"{out}/layoutlm-base")
    digest = json.loads(done_well("artifact", f"{out}/layoutlm-base", "--json"))["sha256"]
    cluster.limits = f"artifacts:\n  base: {{folder: {out}/layoutlm-base, sha256: {digest}}}\n"
    sets = []
    for i, name in enumerate(("gpu-a", "gpu-b")):
        cluster.restart(i)
        sets += [f"workers.{name}.address={cluster.address(i)}", f"workers.{name}.identity=spiffe://test/w{i + 1}",
                 f"stages.{i + 1}.weights.sha256={digest}"]
    session = shipped("layoutlm-two-workers.yaml", *sets)
    plan = done_well("plan", *session)
    assert re.search(r"TOKENS: .* weights are known: with these, \d+ % of tokens", plan) and "1 secret layer behind stage 'rest'" in plan, plan
    assert not re.search(r"weights of stage '\w+' \(start", plan), plan
    refused = master("plan", *session, "--set", "privacy.tokens_readable=false", cwd=cluster.dir)
    assert refused.returncode == 3 and "privacy.tokens_readable: true" in refused.stderr, refused.stderr
    assert "F1" in done_well("train", *session, "--max-steps", "2")


@suite.test
def a_network_learns_from_pages():
    r = random.Random(7)
    for part, count in (("train", 40), ("test", 16)):
        for kind, sentence in KINDS.items():
            os.makedirs(path(f"{part}/{kind}"))
            for i in range(count // 2):
                some = r.sample(sentence.split(), 5)
                pdfs.of_lines(path(f"{part}/{kind}/{i}.pdf"), [" ".join(some[:3]), " ".join(some[3:]), "the the of"])
        lines, _ = words(part)
        assert {x["label"] for x in lines} == set(KINDS) and len(lines) == count
        with open(path(f"{part}.jsonl"), "w") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines)
    body = ("data:\n  format: text\n  train: [train.jsonl]\n  test: [test.jsonl]\n  text: {column: words, max_tokens: 24}\n"
            f"  tokenizer: {{file: {VOCABULARY}}}\n"
            "stages:\n  - {name: front, at: master, layers: [{op: embedding, rows: 1600, out: 16}, {op: mean, dim: 1}, {op: linear, out: 16}]}\n"
            "  - {name: middle, at: w1, layers: [{op: relu}, {op: linear, out: 16}, {op: relu}]}\n"
            "  - {name: head, at: master, layers: [{op: linear, out: 2}]}\n"
            f"loss: {{kind: cross_entropy, at: master}}\ntrain: {{epochs: 20, batch: 8, seed: {SEED}, optimizer: {{kind: adam, lr: 0.02}}}}\n")
    done = cluster.train(cluster.session("pages", body, keys="tokens_readable: true, labels_readable: true"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"test accuracy (\S+) %", done.stdout).group(1)) > 90, done.stdout


@suite.test
def predict_gives_each_pdf_page_one_label():
    """Trained on the pages above; of PDFs it is told which page of which file each line is."""
    data = DOCUMENTS.replace("lines.jsonl", "train.jsonl").replace("{max", "{labels_of: pages, max")
    stages = STAGES.replace("{op: linear, out: 2}", "{op: mean, dim: 1}, {op: linear, out: 2}").replace("out: 8", "out: 16")
    session = cluster.session("kinds", data + stages + TAIL.replace("epochs: 1, batch: 1", "epochs: 20, batch: 8").replace("{kind: sgd, lr: 0.1}", "{kind: adam, lr: 0.02}"), keys="")
    done_well("train", session)
    os.makedirs(path("loose"))
    for kind in KINDS:
        shutil.copy(path(f"test/{kind}/0.pdf"), path(f"loose/{kind}.pdf"))
    pdfs.of_lines(path("loose/many.pdf"), [KINDS["letter"]], [KINDS["invoice"]], [" ".join([KINDS["letter"]] * 4)])
    done_well("predict", session, "--set", "data.test=[loose]", "--output", "kinds.jsonl")
    assert [(x["file"], x["page"], x["label"]) for x in lines_of("kinds.jsonl")] == [
        ("invoice.pdf", 1, "invoice"), ("letter.pdf", 1, "letter"), ("many.pdf", 1, "letter"), ("many.pdf", 2, "invoice"), ("many.pdf", 3, "letter")]
    assert all(0.5 < x["probability"] <= 1 and "labels" not in x for x in lines_of("kinds.jsonl"))


with Cluster(2) as cluster:
    suite.main()
