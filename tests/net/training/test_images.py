"""A folder of images as training data, from files to trained weights over a worker."""
import csv, glob, json, os, re, shutil, struct, sys, zlib
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "../../fuzz/corpus/image")
CLASSES = ("blue", "green", "red")
DATA = ("data:\n  format: images\n  root: photos\n  train: [train]\n  test: [test]\n"
        "  normalize: {mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}\n"
        "  images: {resize: 18, crop: 16, train_crop: random_resized, area: [0.5, 1], flip: 0.5}\n")
STAGES = ("stages:\n"
          "  - {name: a, at: master, layers: [{op: conv2d, out: 8, kernel: 3}, {op: relu}, {op: maxpool, kernel: 2}]}\n"
          "  - {name: b, at: w1, layers: [{op: flatten}, {op: linear, out: 3}]}\n")
TAIL = ("loss: {kind: cross_entropy}\n"
        "train: {epochs: 6, batch: 16, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: adam, lr: 0.01}}\n")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(path, width, height, rows):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows))) + chunk(b"IEND", b""))


def photos(root, count, seed):
    """Writes images of noise with a stripe in the colour of the class, of different sizes."""
    import random
    r = random.Random(seed)
    for i in range(count):
        label, width, height = i % 3, r.randrange(18, 40), r.randrange(18, 40)
        rows = []
        for y in range(height):
            row = bytearray(r.randrange(100) for _ in range(3 * width))
            if y % 4 < 2:
                row[2 - label::3] = bytes(r.randrange(150, 256) for _ in range(width))
            rows.append(bytes(row))
        write_png(os.path.join(root, CLASSES[label], f"{i % 2}", f"{i:03}.png"), width, height, rows)


def body(data=DATA, tail=TAIL):
    return data + STAGES + tail


def weights(name, step):
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", name), step)


@suite.test
def check_counts_images_and_classes():
    session = cluster.session("count", body())
    done = master("check", session, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    assert "96 training samples in 3 classes" in done.stdout, done.stdout
    plan = master("plan", session, cwd=cluster.dir)
    assert re.search(r"activation of stage 'a'.*\[16, 8, 7, 7\]", plan.stdout), plan.stdout


@suite.test
def image_model_learns_and_predicts():
    session = cluster.session("learn", body())
    done = cluster.train(session)
    assert done.returncode == 0, done.stderr
    accuracy = float(re.search(r"test accuracy (\S+) %", done.stdout).group(1))
    assert accuracy > 90, done.stdout  # one in three by chance
    told = re.findall("test accuracy.*", done.stdout)
    # nothing is random
    for sets in ((), ("--set", "data.images.train_crop=center", "--set", "data.images.flip=0")):
        done = master("eval", session, *sets, cwd=cluster.dir)
        assert done.returncode == 0 and re.findall("test accuracy.*", done.stdout) == told, (told, done.stdout, done.stderr)

    assert open(os.path.join(cluster.dir, "runs", "learn", "classes")).read() == "blue\ngreen\nred\n"
    out = os.path.join(cluster.dir, "p.npy")
    done = master("predict", session, "--out", out, cwd=cluster.dir)
    assert done.returncode == 0 and re.search(rb"\(48, ?3[,)]", open(out, "rb").read(128)), done.stderr
    assert json.load(open(out + ".json"))["classes"] == list(CLASSES)


@suite.test
def predict_needs_no_labels():
    """Predicts images in any folders, by path, with the class names of the training."""
    session = os.path.join(cluster.dir, "learn.yaml")
    loose = os.path.join(cluster.dir, "photos", "loose")
    files = sorted(glob.glob(os.path.join(cluster.dir, "photos", "test", "**", "*.png"), recursive=True))[:12]
    os.makedirs(os.path.join(loose, "more"))
    for i, file in enumerate(files):
        shutil.copy(file, os.path.join(loose, "more" if i % 2 else ".", f"{i:02}, x.png"))
    new = ("--set", "data.test=[loose]")
    done = master("predict", session, *new, "--format", "csv", "--output", "new.txt", cwd=cluster.dir)
    assert done.returncode == 0 and "new.txt: [12, 3] f32" in done.stdout, done
    rows = list(csv.DictReader(open(os.path.join(cluster.dir, "new.txt"), newline="")))
    assert list(rows[0]) == ["id", "class", "name", "output_blue", "output_green", "output_red"], rows[0]
    assert {r["id"] for r in rows} == {f"{'more/' if i % 2 else ''}{i:02}, x.png" for i in range(12)}, rows
    right = sum(f"/{r['name']}/" in files[int(r["id"].rsplit("/", 1)[-1][:2])] for r in rows)
    assert right >= 10, rows
    done = master("predict", session, *new, "--output", "new.jsonl", "--checkpoint", "36", cwd=cluster.dir)
    assert done.returncode == 0, done
    told = [json.loads(line) for line in open(os.path.join(cluster.dir, "new.jsonl"))]
    assert [(t["id"], t["name"], t["class"]) for t in told] == [(r["id"], r["name"], int(r["class"])) for r in rows]
    assert all(t["outputs"][CLASSES.index(c)] == float(r["output_" + c]) for t, r in zip(told, rows) for c in CLASSES)
    done = master("predict", session, *new, "--checkpoint", "7", cwd=cluster.dir)
    assert done.returncode == 8 and "no checkpoint of step 7; there is one of step 36" in done.stderr, done
    # what is evaluated has the classes of the training
    shutil.copytree(os.path.join(cluster.dir, "photos", "test", "red"), os.path.join(cluster.dir, "photos", "two", "red"))
    done = master("eval", session, "--set", "data.test=[two]", cwd=cluster.dir)
    assert done.returncode == 7 and "class 0 is 'blue' in the run that was trained, and 'red' in data.test" in done.stderr, done


@suite.test
def validation_covers_all_classes():
    """Validation images are loaded as in an evaluation. The end of the folder would have only one
    class."""
    data = DATA + "  validation: {fraction: 0.4}\n  limit_train: 72\n"
    done = cluster.train(cluster.session("held", body(data)))
    assert done.returncode == 0, done.stderr
    told = re.findall(r"validation accuracy (\S+) %  \(loss \S+, (\d+) samples, step \d+, epoch \d\)", done.stdout)
    assert len(told) == 6 and told[0][1] == "29" and float(told[-1][0]) > 80, done.stdout


@suite.test
def loader_thread_count_changes_no_weight():
    """Same weights with 1 and 8 threads, and when the run is cut in two inside an epoch."""
    for threads in (1, 8):
        session = cluster.session(f"threads-{threads}", body(DATA + f"  threads: {threads}\n"))
        done = cluster.train(session, "--max-steps", "14")
        assert done.returncode == 0, done.stderr
    assert weights("threads-1", 14) == weights("threads-8", 14)
    session = cluster.session("resumed", body())
    assert cluster.train(session, "--max-steps", "8").returncode == 0
    done = cluster.train(session, "--resume", "--max-steps", "14")
    assert done.returncode == 0, done.stderr
    assert weights("threads-1", 14) == weights("resumed", 14)
    other = cluster.session("still", body(DATA.replace("flip: 0.5", "flip: 0")))
    assert cluster.train(other, "--max-steps", "14").returncode == 0
    assert weights("threads-1", 14) != weights("still", 14)  # the flips were there


@suite.test
def jpeg_and_png_images_train_together():
    root = os.path.join(cluster.dir, "photos", "mixed")
    for name in ("rgb.jpg", "grey.jpg", "progressive.jpg", "cmyk.jpg"):
        os.makedirs(os.path.join(root, "jpeg"), exist_ok=True)
        shutil.copy(os.path.join(CORPUS, name), os.path.join(root, "jpeg"))
    for name in ("palette.png", "grey_alpha.png", "grey16.png", "interlaced.png", "one_bit.png"):
        os.makedirs(os.path.join(root, "png"), exist_ok=True)
        shutil.copy(os.path.join(CORPUS, name), os.path.join(root, "png"))
    data = DATA.replace("[train]", "[mixed]").replace("  test: [test]\n", "")
    tail = TAIL.replace("batch: 16", "batch: 3").replace("epochs: 6", "epochs: 2")
    done = cluster.train(cluster.session("mixed", body(data, tail)))
    assert done.returncode == 0, done.stderr
    grey = re.sub(r"normalize: .*", "normalize: {mean: [0.5], std: [0.25]}", data).replace("images: {", "images: {channels: 1, ")
    done = cluster.train(cluster.session("mixed-grey", body(grey, tail)))
    assert done.returncode == 0, done.stderr


def damaged(name, corpus_file, text, command):
    """A copy of the training folder with one bad file among the good ones."""
    root = os.path.join(cluster.dir, "photos", name)
    shutil.copytree(os.path.join(cluster.dir, "photos", "train"), root)
    # one that check looks at, or not
    bad = "blue/0/000.png" if command == "check" else "blue/0/0001.png"
    shutil.copy(os.path.join(CORPUS, corpus_file), os.path.join(root, bad))
    session = cluster.session(name, body(DATA.replace("[train]", f"[{name}]")))
    done = master(command, session, cwd=cluster.dir)
    assert done.returncode == 7, (done.returncode, done.stdout, done.stderr)
    assert f"photos/{name}/{bad}: " in done.stderr and re.search(text, done.stderr), done.stderr


@suite.test
def bad_images_exit_with_7():
    damaged("bomb", "bomb.png", "60000 x 60000 are 3600000000 pixels, the limit is 67108864", "check")
    damaged("no-image", "text.png", "neither PNG .* nor JPEG", "check")
    damaged("cut-png", "truncated.png", "PNG: truncated", "train")
    damaged("cut-jpeg", "truncated.jpg", "JPEG: Premature end", "train")
    damaged("bomb-jpeg", "bomb.jpg", "raise data.images.max_pixels", "train")


def refused(name, data, code, text, stages=STAGES):
    done = master("check", cluster.session(name, data + stages + TAIL), cwd=cluster.dir)
    assert done.returncode == code and re.search(text, done.stderr), (done.returncode, done.stderr)


@suite.test
def bad_folders_and_options_are_refused():
    refused("missing", DATA.replace("[train]", "[trian]"), 7, r"missing\.yaml:\d+:\d+: data\.train: image folder .*/photos/trian: No such file")
    os.makedirs(os.path.join(cluster.dir, "photos", "empty", "cat"))
    refused("empty", DATA.replace("[train]", "[empty]"), 7, "class 'cat' has no .png, .jpg or .jpeg")
    refused("flat", DATA.replace("[train]", "[train/red/0]"), 7, "one folder per class")
    shutil.copytree(os.path.join(cluster.dir, "photos", "test", "red"), os.path.join(cluster.dir, "photos", "one", "red"))
    refused("classes", DATA.replace("[test]", "[one]"), 7, "both need the same classes")
    refused("two", DATA.replace("[train]", "[train, labels]"), 3, r"two\.yaml:\d+:\d+: 'data.train' must name one folder")
    refused("no-crop", DATA.replace("crop: 16, ", ""), 3, r"no-crop\.yaml:\d+:\d+: .*set data.images.crop")
    refused("channels", DATA.replace("{resize", "{channels: 2, resize"), 3, "channels must be 1 or 3")
    refused("outputs", DATA, 3, r"outputs\.yaml:\d+:\d+: data\.train: .*train: labels go up to 2, and the last layer has 2 outputs: it needs 3",
            STAGES.replace("out: 3", "out: 2"))
    refused("sizes", DATA.replace("crop: 16, train_crop: random_resized, area: [0.5, 1], ", ""), 7,
            r"when resized, and others are .*: set data.images.crop")


def table_of(name, part, **more):
    """Writes a table of the images of a part, in the order of the folder: file, class, its number
    and an id."""
    root = os.path.join(cluster.dir, "photos")
    files = sorted((os.path.relpath(f, root) for f in glob.glob(f"{root}/{part}/*/*/*.png")), key=lambda f: (os.path.dirname(f), f))
    with open(os.path.join(root, name), "w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["id", "scan", "colour", "bright", "odd"])
        for i, file in enumerate(files):
            label = file.split("/")[1]
            rows.writerow([f"p{i}", more.get(str(i), file), label, ("no", "yes")[label == "red"], i % 5])
    return files


COLUMNS = "  table:\n    columns: {id: {as: id}, scan: {as: file}, colour: {as: target}, bright: {as: ignore}, odd: {as: ignore}}\n"
TABLE = DATA.replace("format: images", "format: table").replace("[train]", "[train.csv]").replace("[test]", "[test.csv]") + COLUMNS


@suite.test
def images_that_a_table_names_train_as_those_of_a_folder():
    table_of("train.csv", "train"), table_of("test.csv", "test")
    folder = cluster.trained("of-folder", body(), 36)[0]
    values, _, said = cluster.trained("of-table", body(TABLE), 36)
    assert values == folder and "test accuracy" in said, said
    disk = TABLE.replace("  table:\n", "  table:\n    storage: disk\n")
    assert cluster.trained("on-disk", body(disk), 36)[0] == folder
    assert len(glob.glob(os.path.join(cluster.dir, "runs/tables.cache/*/paths.npy"))) == 2
    out = os.path.join(cluster.dir, "p.csv")
    done = master("predict", os.path.join(cluster.dir, "on-disk.yaml"), "--output", out, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    with open(out, newline="") as f:
        assert [r["id"] for r in csv.DictReader(f)][:3] == ["p0", "p1", "p2"]
    several = TABLE.replace("bright: {as: ignore}, odd: {as: ignore}", "bright: {as: target}, odd: {as: target}")
    losses = ("loss: {kind: targets, targets: {colour: {kind: cross_entropy, classes: 3}, bright: {kind: bce_with_logits},"
              " odd: {kind: mse, loss_weight: 0.1}}}\n")
    tail = losses + TAIL.split("\n", 1)[1].replace("epochs: 6", "epochs: 1")
    said = cluster.trained("several", body(several, tail).replace("out: 3", "out: 5"), 6)[2]
    assert re.search(r"\n  bright: loss [\d.]+, accuracy [\d.]+ %\n", said), said


@suite.test
def paths_that_leave_the_folder_are_refused_with_their_place():
    for path, text in (("/etc/passwd", "which leaves the folder of the images"), ("train/../../x.png", "which leaves"),
                       ("..", "which leaves"), ("train/none.png", "which is no file in the folder of the images"),
                       ("train", "which is no file"), ("", "has no value here")):
        table_of("bad.csv", "train", **{"3": path})
        done = master("check", cluster.session("bad", body(TABLE.replace("train.csv", "bad.csv"))), cwd=cluster.dir)
        assert done.returncode == 7 and re.search(r"bad\.csv:5:4: column 'scan' .*" + re.escape(text), done.stderr), (path, done.stderr)
    for columns, text in (("odd: {as: number}", "`as: file` makes the image the record"), ("odd: {as: file}", "a second column `as: file`")):
        done = master("check", cluster.session("bad", body(TABLE.replace("odd: {as: ignore}", columns))), cwd=cluster.dir)
        assert done.returncode == 3 and text in done.stderr, done.stderr
    done = master("check", cluster.session("bad", body(TABLE.replace("scan: {as: file}", "scan: {as: ignore}, x: {as: number}"))), cwd=cluster.dir)
    assert done.returncode == 3 and "does not go with data.format table" in done.stderr, done.stderr


with Cluster(1) as cluster:
    for part, count, seed in (("train", 96, 1), ("test", 48, 2)):
        photos(os.path.join(cluster.dir, "photos", part), count, seed)
    suite.main()
