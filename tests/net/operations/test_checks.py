"""`check` finds faults that would ruin a run, and names file and key; a run reports records that it
left out; messages say what to do next. All stages are at the master."""
import json, math, os, re, struct, subprocess, sys, zlib
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
COLUMNS, RECORDS = 6, 65
DATA = "data: {format: npy, root: data, train: [x.npy, y.npy], test: [tx.npy, y.npy]}\n"
STAGES = "stages:\n  - {name: a, at: master, layers: [{op: linear, out: 8}, {op: relu}, {op: linear, out: 3}]}\n"
LOSS = "loss: {kind: cross_entropy}\n"
TRAIN = "train: {epochs: 1, batch: 8, seed: 5, shuffle: false, optimizer: {kind: sgd, lr: 0.01}}\n"
BODY = DATA + STAGES + LOSS + TRAIN


def floats(name, shape, **at):
    """Writes a file of small numbers. at: {"c17": value} puts a value at index 17 of the file."""
    values = [math.sin(i) for i in range(math.prod(shape))]
    for place, value in at.items():
        values[int(place[1:])] = value
    write_npy(os.path.join(cluster.dir, "data", name), shape, "<f4", struct.pack(f"<{len(values)}f", *values))


def classes(name, n=RECORDS, most=3):
    write_npy(os.path.join(cluster.dir, "data", name), (n,), "<i8", struct.pack(f"<{n}q", *(i % most for i in range(n))))


def refused(name, body, code, *texts, args=(), command="check"):
    done = master(command, cluster.session(name, body), *args, cwd=cluster.dir)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    for t in texts:
        assert re.search(t, done.stderr), (t, done.stderr)
    return done


def passes(name, body, *args):
    done = master("check", cluster.session(name, body), *args, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    return done


# ---- values that are not finite ------------------------------------------------------------------

@suite.test
def non_finite_records_are_named():
    floats("bad.npy", (RECORDS, COLUMNS), c45=math.nan, c46=math.inf, c200=math.inf)
    bad = BODY.replace("train: [x.npy", "train: [bad.npy")
    said = (r"bad-x\.yaml:\d+:\d+: data\.train: .*data/bad\.npy: record 7, column 3 is nan, and 1 more record holds such values",
            "data.non_finite: skip")
    refused("bad-x", bad, 7, *said)
    refused("bad-x", bad, 7, *said, command="train")
    refused("bad-test", BODY.replace("tx.npy", "bad.npy"), 7, r"data\.test: .*bad\.npy: record 7, column 3")
    refused("bad-eval", BODY.replace("tx.npy", "bad.npy"), 7, r"data\.test: .*bad\.npy: record 7", command="eval")


@suite.test
def non_finite_records_are_left_out():
    floats("bad.npy", (RECORDS, COLUMNS), c45=math.nan, c200=math.inf)
    skip = BODY.replace("train: [x.npy", "non_finite: skip, train: [bad.npy")
    done = passes("skip", skip)
    assert "data.train: 2 of 65 records left out" in done.stderr and "record 7, column 3" in done.stderr, done.stderr
    assert "63 training samples" in done.stdout and "all of them were looked at" in done.stdout, done.stdout
    done = master("train", cluster.session("skip", skip), cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    assert "2 records were left out (data.non_finite: skip" in done.stdout, done.stdout
    losses = [json.loads(line)["loss"] for line in open(os.path.join(cluster.dir, "runs/skip/metrics.jsonl"))]
    assert len(losses) == 8 and all(math.isfinite(x) for x in losses), losses
    refused("none", BODY.replace("train: [x.npy", "non_finite: skip, train: [all.npy"), 3, "no record has finite values alone")
    floats("last.npy", (RECORDS, COLUMNS), c383=math.nan, c389=math.nan)
    refused("last", BODY.replace("train: [x.npy", "non_finite: skip, validation: {fraction: 0.03, by: last}, train: [last.npy"), 7,
            r"data\.validation: all of its 2 records are left out")


# ---- records that cannot be read -----------------------------------------------------------------

def png(name, depth, value, good=True, side=6):
    path = os.path.join(cluster.dir, "data", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + struct.pack(">%d%s" % (side, "H" if depth == 16 else "B"), *(value + y * side + x for x in range(side))) for y in range(side))
    data = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))
    with open(path, "wb") as f:
        f.write(data if good else data[:len(data) - 20])


IMAGES = ("data: {format: images, BROKENroot: data, train: [ROOT], test: [ROOT], images: {channels: 1}}\n" +
          STAGES.replace("layers: [", "layers: [{op: flatten}, ") + LOSS + TRAIN)


def images(root, broken=""):
    return IMAGES.replace("ROOT", root).replace("BROKEN", broken)


@suite.test
def broken_images_are_listed_or_left_out():
    for i in range(40):
        png(f"photos/{'cat' if i % 4 else 'dog'}/{i:02}.png", 8, 3 * i, good=i not in (1, 20))
    open(os.path.join(cluster.dir, "data/photos/cat/30.png"), "w").close()
    done = refused("photos", images("photos"), 7, "data.train: 3 records cannot be read", "data.broken: skip", "cat/01.png: PNG: truncated",
                   "dog/20.png: PNG", "cat/30.png: the file is empty")
    refused("photos", images("photos"), 7, r"(cannot be read|(cat|dog)/..\.png: .*)", command="train")
    done = passes("skip-photos", images("photos", "broken: skip, "))
    assert "data.train: 3 records left out (data.broken: skip); the first: image" in done.stderr and "37 training samples" in done.stdout, (done.stderr, done.stdout)
    assert re.search(r"'cat' +28 +28\n  'dog' +9 +9\n  all +37 +37\n", done.stdout) and re.search(r"data\.train: values from \d+ to 1\d\d of 255 .8 bits.", done.stdout), done.stdout
    done = master("train", cluster.session("skip-photos", images("photos", "broken: skip, ")), cwd=cluster.dir)
    assert done.returncode == 0 and "6 records were left out" in done.stdout, (done.stdout, done.stderr)
    done = master("predict", cluster.session("skip-photos", images("photos", "broken: skip, ")), "--output", "skip.jsonl", cwd=cluster.dir)
    ids = [json.loads(line)["id"] for line in open(os.path.join(cluster.dir, "skip.jsonl"))]
    assert done.returncode == 0 and len(ids) == 37 and "cat/01.png" not in ids and "cat/02.png" in ids, (done.stderr, ids)


@suite.test
def images_unlike_the_most_common_size_are_left_out():
    """Also if the first image is the one that differs."""
    for i in range(12):
        png(f"sizes/{'ab'[i % 2]}/{i:02}.png", 8, 3 * i, side=6 if i else 5)
    refused("sizes", images("sizes"), 7, r"sizes/a/00\.png: is 5 x 5, and others are 6 x 6: set data\.images\.crop")
    done = passes("sizes", images("sizes", "broken: skip, "))
    assert "data.train: 1 record left out" in done.stderr and re.search(r"'a' +5 +5\n  'b' +6 +6\n", done.stdout), done.stdout + done.stderr


@suite.test
def check_reports_the_levels_of_16_bit_images():
    for i in range(4):
        png(f"scans/{i % 2}/{i}.png", 16, 1000 * i)
    done = passes("scans", images("scans"))
    assert "data.train: values from 0 to 3035 of 65535 (16 bits), 144 levels, in 4 of 4 records" in done.stdout, done.stdout
    said = json.loads(passes("scans", images("scans"), "--json").stdout)
    assert said["values"]["data.train"] == {"low": 0, "high": 3035, "levels": 144, "bits": 16, "looked_at": 4}, said
    two = {"records": 4, "classes": [{"name": "0", "records": 2}, {"name": "1", "records": 2}]}
    assert said["sets"]["training"] == said["sets"]["test"] == two, said
    assert said["sets"]["validation"]["records"] == 0, said


@suite.test
def numeric_class_names_sort_as_text_with_a_warning():
    for i, name in enumerate(("1", "10", "11", "2")):
        png(f"numbers/{name}/{i}.png", 8, 10 * i)
    body = images("numbers").replace("out: 3}", "out: 4}")
    done = passes("numbers", body)
    assert re.search("'1' +1 +1\n  '10' +1 +1\n  '11' +1 +1\n  '2' +1 +1\n", done.stdout), done.stdout
    assert "not as numbers: '11' is class 2, and '2' class 3; zeros in front" in done.stderr, done.stderr
    names = [c["name"] for c in json.loads(passes("numbers", body, "--json").stdout)["sets"]["training"]["classes"]]
    assert names == ["1", "10", "11", "2"], names
    for name in "12":
        os.rename(os.path.join(cluster.dir, "data/numbers", name), os.path.join(cluster.dir, "data/numbers/0" + name))
    done = passes("numbers", body)
    assert "not as numbers" not in done.stderr and re.search("'01' +1 +1\n  '02' +1 +1\n", done.stdout), done.stdout + done.stderr


@suite.test
def broken_texts_are_listed_or_left_out():
    with open(os.path.join(cluster.dir, "vocab.txt"), "w") as f:
        f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]) + "\n")
    with open(os.path.join(cluster.dir, "data/t.jsonl"), "w") as f:
        f.write('{"text": "a b", "label": "x"}\n{"text": "b"\n{"txt": "b", "label": "x"}\n{"text": "b", "label": "y"}\n{"text": "b", "label": "/"}\n')
    with open(os.path.join(cluster.dir, "data/t.csv"), "w") as f:
        f.write('text,label\na,x\nb\n"b\nb",y\nb,x,z\na,/\n')
    for name, says in (("t.jsonl", (r"t\.jsonl:2:\d+: ", r"t\.jsonl:3:1: has no 'text', but 'txt', 'label'", r"t\.jsonl:5: a class's name")),
                       ("t.csv", (r"t\.csv:3:1: this record has 1 field", r"t\.csv:6:1: this record has more than 2", r"t\.csv:7: a class's name"))):
        body = (f"data: {{format: text, BROKENroot: data, train: [{name}], test: [{name}], tokenizer: {{file: vocab.txt}}, text: {{max_tokens: 6}}}}\n" +
                STAGES.replace("layers: [", "layers: [{op: embedding, rows: 7, out: 4}, {op: mean, dim: 1}, ") + LOSS + TRAIN)
        refused("broken-t", body.replace("BROKEN", ""), 7, "data.train: .*3 records cannot be read", *says)
        done = passes("skip-t", body.replace("BROKEN", "broken: skip, "))
        assert "data.train: 3 records left out (data.broken: skip); the first: " in done.stderr, done.stderr
        assert re.search("'x' +1 +1\n  'y' +1 +1\n", done.stdout), done.stdout
        assert "test: 2 of 2 records have the inputs of a training record (record 0 as 0 of data.train): scores on" in done.stdout, done.stdout


@suite.test
def rank_3_records_are_interpreted_by_the_first_layer():
    floats("seq.npy", (RECORDS, 4, 6))
    body = DATA.replace("train: [x.npy", "train: [seq.npy").replace(", test: [tx.npy, y.npy]", "") + LOSS + TRAIN
    stages = "stages:\n  - {name: a, at: master, layers: [FIRST, {op: flatten}, {op: linear, out: 3}]}\n"
    for first, noted in (("{op: lstm, out: 5}", 0), ("{op: conv1d, out: 5, kernel: 3}", 0), ("{op: conv2d, out: 5, kernel: 3}", 0), ("{op: linear, out: 5}", 1),
                         ("{op: batchnorm}", 1), ("{op: avgpool, kernel: 2}", 0)):
        done = passes("rank", body + stages.replace("FIRST", first))
        assert ("taken for images of one channel, [1, 1, 4, 6]; if they are sequences, data.inputs: [x]" in done.stderr) == noted, (first, done.stderr)


@suite.test
def check_quick_reads_only_a_sample():
    n = 4000
    floats("long.npy", (n, 2), c2=math.nan)
    classes("long-y.npy", n)
    body = BODY.replace("x.npy, y.npy", "long.npy, long-y.npy").replace(", test: [tlong.npy, long-y.npy]", "")
    refused("long", body, 7, "record 1, column 0")
    done = passes("long", body, "--quick")
    assert "1000 of 4000 training records were looked at" in done.stdout, done.stdout


@suite.test
def check_reads_every_image():
    folder = os.path.join(cluster.dir, "data/images/cat")
    os.makedirs(folder)
    png = one_png()
    for i in range(40):
        with open(os.path.join(folder, f"{i:02}.png"), "wb") as f:
            f.write(png[:-20] if i == 33 else png)
    body = ("data: {format: images, root: data, train: [images]}\n" + STAGES.replace("{op: linear, out: 8}", "{op: flatten}, {op: linear, out: 8}")
            + LOSS + TRAIN)
    refused("images", body, 7, r"data\.train: image .*cat/33\.png")
    passes("images", body, "--set", "data.limit_train=10")


def one_png(side=4):
    import zlib
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((7 * y + x) % 256 for x in range(3 * side)) for y in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@suite.test
def skipped_steps_are_counted():
    """After the first step the weights give no finite value."""
    body = BODY.replace("lr: 0.01", "lr: 1.0e38").replace("test: [tx.npy, y.npy]", "limit_train: 64")
    done = master("train", cluster.session("far", body), cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    said = re.search(r"7 of 8 steps were skipped and changed no weight: (\d) had a loss that was not finite, (\d) a gradient", done.stdout)
    assert said and int(said[1]) + int(said[2]) == 7, done.stdout
    lines = [json.loads(line) for line in open(os.path.join(cluster.dir, "runs/far/log.jsonl"))]
    assert [(x["steps"], x["of"]) for x in lines if x.get("event") == "skipped"] == [(7, 8)], lines
    assert "schedule" not in done.stderr, done.stderr


@suite.test
def run_whose_steps_are_all_skipped_exits_with_9():
    body = BODY.replace("{format: npy", "{normalize: {mean: [0], std: [1.0e-40]}, format: npy")
    done = refused("none-taken", body, 9, "none of the 9 steps changed the weights", "exit-9", command="train")
    assert "9 of 9 steps were skipped" in done.stdout, done.stdout
    assert "schedule.failed" not in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(cluster.dir, "runs/none-taken/schedule.failed"))


# ---- keys that exclude each other ----------------------------------------------------------------

@suite.test
def mismatched_shape_of_test_records_is_refused():
    floats("wide.npy", (RECORDS, COLUMNS + 1))
    refused("wide", BODY.replace("tx.npy", "wide.npy"), 3,
            r"wide\.yaml:\d+:\d+: data\.test: .*wide\.npy has records of \[7\], .*x\.npy of data\.train has \[6\]")


@suite.test
def labels_that_do_not_fit_the_loss_are_refused():
    refused("few", BODY.replace("out: 3", "out: 2"), 3, r"data\.train: .*y\.npy: labels go up to 2 \(record \d+\), and the last layer has 2 outputs")
    floats("targets.npy", (RECORDS, 1), c0=0.5, c9=7)
    bce = BODY.replace("y.npy]", "targets.npy]").replace("out: 3}", "out: 1}, {op: sigmoid}").replace("cross_entropy", "bce")
    refused("bce", bce, 3, r"data\.train: .*targets\.npy: label of record 1, column 0 is 0.84\d*|record \d+", r"loss\.kind bce needs labels from 0 to 1")
    passes("mse", bce.replace("kind: bce", "kind: mse"))
    refused("mse-wide", bce.replace("kind: bce", "kind: mse").replace("out: 1}", "out: 2}"), 3,
            r"data\.train: .*targets\.npy has labels of \[1\], and the last layer \('3'\) gives \[2\]")


@suite.test
def tokens_beyond_the_embedding_rows_are_refused():
    write_npy(os.path.join(cluster.dir, "data/tokens.npy"), (RECORDS, 4), "<i8", struct.pack(f"<{4 * RECORDS}q", *(i % 11 for i in range(4 * RECORDS))))
    body = BODY.replace(", test: [tx.npy, y.npy]", "").replace("train: [x.npy", "train: [tokens.npy").replace(
        "{op: linear, out: 8}", "{op: embedding, rows: 11, out: 4}, {op: flatten}, {op: linear, out: 8}")
    passes("tokens", body)
    refused("few-rows", body.replace("rows: 11", "rows: 10"), 3, r"data\.train: .*tokens\.npy: record \d+ has the number 10, and the embedding '0' has rows: 10")


@suite.test
def micro_batch_of_one_record_with_batch_norm_is_refused():
    norm = BODY.replace("{op: relu}", "{op: batchnorm}")
    refused("norm-last", norm, 3, r"norm-last\.yaml:\d+:\d+: the last batch of an epoch has 1 record, .*layer 1 \(batchnorm\)", "train.drop_last: true")
    passes("norm-drop", norm.replace("batch: 8", "batch: 8, drop_last: true"))
    passes("norm-early", norm.replace("epochs: 1", "max_steps: 8"))
    refused("norm-micro", norm.replace("batch: 8", "batch: 8, drop_last: true") + "pipeline: {micro_batches: 8}\n", 3,
            r"norm-micro\.yaml:\d+:\d+: a batch has 8 records, and its smallest micro-batch 1 .*pipeline\.micro_batches: 8.*batchnorm")


# ---- messages ------------------------------------------------------------------------------------

@suite.test
def missing_key_error_shows_an_example():
    refused("no-optimizer", BODY.replace(", optimizer: {kind: sgd, lr: 0.01}", ""), 3,
            r"missing key 'train\.optimizer': .*For example: `optimizer: \{kind: adam, lr: 0\.001\}`")


@suite.test
def unknown_op_error_suggests_or_lists_ops():
    refused("case", BODY.replace("op: relu", "op: ReLU"), 3, r"case\.yaml:\d+:\d+: no op is called 'ReLU'; did you mean 'relu'\?")
    refused("no-op", BODY.replace("op: relu", "op: transformer"), 3, "no op is called 'transformer'; `cleave-master ops` lists them")


@suite.test
def common_mistakes_get_a_specific_hint():
    done = master("check", "nothing.yaml", cwd=cluster.dir)
    assert done.returncode == 3 and "`cleave-master init` writes a first session.yaml" in done.stderr, done.stderr
    refused("bare", BODY.replace("{op: relu}", "relu"), 3, r"'stages\.0\.layers\.1' must be a mapping of keys, such as `\{op: linear\}`")
    refused("colon", BODY.replace("out: 8", "out 8"), 3, "'stages.0.layers.0.out 8' is no attribute: is a ':' missing")
    refused("one-file", BODY.replace("train: [x.npy, y.npy]", "train: x.npy"), 3, "must be a list .*, such as \\[train-images")
    refused("root", BODY.replace("root: data", "root: gone"), 7,
            r"root\.yaml:\d+:\d+: data\.root: \S+/gone is not a folder \(No such file or directory\): give the folder")
    refused("untrained", BODY, 8, r"run folder \S+ does not exist: train first", command="eval")
    refused("units", BODY.replace("out: 8", "units: 8"), 3, "linear has no attribute 'units'; it takes out, bias")
    refused("no-test", BODY.replace(", test: [tx.npy, y.npy]", ""), 3, r"data\.test is missing: name the records to look at there: two files, records and labels", command="eval")


@suite.test
def missing_certificate_error_names_the_command_to_run():
    body = "tls: {ca: certs/ca.pem, cert: certs/m2.pem, key: certs/m2.key}\n" + BODY
    path = cluster.session("no-cert", body)
    with open(path) as f:
        text = f.read().replace("tls: {ca: certs/ca.pem, cert: certs/master.pem, key: certs/master.key}\n", "")
    with open(path, "w") as f:
        f.write(text)
    done = master("check", path, cwd=cluster.dir)
    assert done.returncode == 4 and re.search(
        r"tls\.cert: .*m2\.pem: No such file.*`cleave-master certs issue m2 --dir .*certs --uri URI` makes it", done.stderr), done.stderr
    done = master("check", path, "--set", "tls.ca=gone/ca.pem", cwd=cluster.dir)
    assert "tls.ca: " in done.stderr and re.search(r"`cleave-master certs init --dir .*gone` makes one", done.stderr), done.stderr
    done = master("check", path, "--set", "tls.ca=theirs.pem", cwd=cluster.dir)
    assert "theirs.pem: No such file or directory; copy the ca.pem of your CA there" in done.stderr, done.stderr


@suite.test
def csv_read_as_another_format_names_table():
    with open(os.path.join(cluster.dir, "data/x.csv"), "w") as f:
        f.write("1.5,2,3\n4,5,6\n")
    cure = r"it seems to be a CSV: data\.format: table reads one with a header"
    refused("csv", BODY.replace("train: [x.npy", "train: [x.csv"), 7, r"data\.train: .*data/x\.csv: wrong magic", cure)
    refused("csv-idx", BODY.replace("train: [x.npy", "train: [x.csv").replace("format: npy", "format: idx"), 7, cure)
    refused("other", BODY.replace("format: npy", "format: idx"), 7, "it is a .npy file: data.format: npy")
    open(os.path.join(cluster.dir, "data/empty.npy"), "w").close()
    refused("empty", BODY.replace("train: [x.npy", "train: [empty.npy"), 7, r"data\.train: .*empty\.npy: truncated: the file is empty")
    refused("csv-format", BODY.replace("format: npy", "format: csv"), 3, r"got 'csv'; a CSV is a table")


@suite.test
def other_files_in_an_image_folder_are_counted():
    folder = os.path.join(cluster.dir, "data/strays/cat")
    os.makedirs(folder)
    for name, data in (("a.png", one_png()), ("b.gif", b"GIF"), ("c.webp", b"RIFF")):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
    body = "data: {format: images, root: data, train: [strays]}\n" + STAGES.replace("{op: linear, out: 8}", "{op: flatten}, {op: linear, out: 8}") + LOSS + TRAIN
    done = passes("strays", body)
    assert re.search(r"data\.train: 2 files in .*strays are no image of a class .*ignored; the first: cat/b\.gif", done.stderr), done.stderr


@suite.test
def worker_check_warns_of_too_few_concurrent_calls():
    cluster.issue("w", "spiffe://test/w")
    path = os.path.join(cluster.dir, "w.yaml")
    with open(path, "w") as f:
        f.write("tls: {ca: certs/ca.pem, cert: certs/w.pem, key: certs/w.key}\n"
                "allow: [{identity: \"spiffe://test/master\", role: master}]\nlimits: {sessions: 48}\n")
    done = run(WORKER, "check", "--config", path)
    assert done.returncode == 0 and "limits.concurrent_calls is 64: set it to 288, or allow 10 sessions" in done.stderr, done.stderr
    done = run(WORKER, "check", "--config", path, "--set", "limits.concurrent_calls=288")
    assert done.returncode == 0 and not done.stderr, done.stderr
    done = run(WORKER, "check", "--config", path, "--set", "cores=[0, 999]")
    assert done.returncode == 0 and re.search(r"w\.yaml: cores: this process may use \d+ cores?, but not (0, )?999", done.stderr), done.stderr
    done = run(WORKER, "check", "--config", path, "--set", "state_dir=gone")
    assert done.returncode == 4 and "gone' does not exist; make it with `mkdir -m 700" in done.stderr, done.stderr
    state_dir = os.path.join(cluster.dir, "state")
    os.mkdir(state_dir)
    with open(os.path.join(state_dir, "epochs"), "w") as f:
        f.write("cleave-epochs 1\nseven\n")
    done = run(WORKER, "check", "--config", path, "--set", f"state_dir={state_dir}")
    assert done.returncode == 4 and f"{state_dir}/epochs:2: not an epoch" in done.stderr, done.stderr


cluster = Cluster(0)
with cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    floats("x.npy", (RECORDS, COLUMNS))
    floats("tx.npy", (RECORDS, COLUMNS))
    floats("all.npy", (RECORDS, COLUMNS), **{f"c{i}": math.nan for i in range(RECORDS * COLUMNS)})
    classes("y.npy")
    suite.main()
