#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions that begin with a folder of pretrained weights: on the master, and on workers' own
disks, where each worker reads the files with its own tensors and no others."""
import hashlib, json, os, shutil, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
NET = [["{op: flatten}", "{op: linear, out: 24, name: front}", "{op: relu}"],
       ["{op: linear, out: 20, name: encoder.0}", "{op: layernorm, name: encoder.norm}", "{op: gelu}"],
       ["{op: linear, out: 10, name: classifier}"]]
NAMES = ["front.weight", "front.bias", "encoder.0.weight", "encoder.0.bias", "encoder.norm.weight",
         "encoder.norm.bias", "classifier.weight", "classifier.bias"]
SHAPES = [(24, 144), (24,), (20, 24), (20,), (20,), (20,), (10, 20), (10,)]
cluster = None


def values(i):
    """Numbers that bf16 has exactly."""
    n = 1
    for d in SHAPES[i]:
        n *= d
    return [((k * 7 + i * 3) % 31 - 15) / 64 for k in range(n)]


def packed(numbers, dtype):
    if dtype == "F32":
        return struct.pack(f"<{len(numbers)}f", *numbers)
    if dtype == "F16":
        return struct.pack(f"<{len(numbers)}e", *numbers)
    return b"".join(struct.pack("<f", x)[2:] for x in numbers)


def write_file(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values()))


def pretrained(folder, head=True):
    """As an early BERT was saved: with a prefix, gamma and beta, another head, positions; in two
    files, the first of which has what the front needs."""
    os.makedirs(folder)
    old = {"encoder.norm.weight": "encoder.norm.gamma", "encoder.norm.bias": "encoder.norm.beta"}
    files = [{}, {"cls.predictions.bias": ("F32", (3,), bytes(12)), "bert.position_ids": ("F32", (4,), bytes(16))}]
    for i, name in enumerate(NAMES):
        dtype = ("F32", "F16", "BF16")[i % 3]
        if name.startswith("classifier") and not head:
            continue
        there = name if name.startswith("classifier") else "bert." + old.get(name, name)
        files[not name.startswith("front")][there] = (dtype, SHAPES[i], packed(values(i), dtype))
    index = {}
    for k, tensors in enumerate(files):
        file = f"model-0000{k + 1}-of-00002.safetensors"
        write_file(os.path.join(folder, file), tensors)
        index.update({name: file for name in tensors})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": index}, f)


def body(weights, places=("master", "w1", "master"), privacy="", lr="1e-300"):
    text = IMAGE_DATA + "stages:\n"
    for i, (at, layers) in enumerate(zip(places, NET)):
        own = f", weights: {weights[i]}" if weights[i] else ""
        text += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(layers)}]{own}}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{max_steps: 1, batch: 22, seed: {SEED},"
                   f" optimizer: {{kind: adamw, lr: {lr}, weight_decay: 0}}}}\n"
                   "checkpoint: {every_steps: 100000}\n" + privacy)


def digest_of(folder):
    done = master("artifact", folder, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["sha256"]


def offer(i, folder, digest):
    """Worker i has the folder as its artifact `base`, and not the memory for large parts of it."""
    cluster.limits = f"artifacts:\n  base: {{folder: {folder}, sha256: {digest}}}\nlog: {{level: debug}}\nlimits: {{session_bytes: 48MiB}}\n"
    cluster.restart(i)


def expect(found, but=()):
    for i, name in enumerate(NAMES):
        same = found[name] == ("F32", SHAPES[i], packed(values(i), "F32"))
        assert same == (name not in but), name


@suite.test
def weights_folder_at_the_master_is_loaded():
    own = f"{{folder: {BASE}}}"
    found, _, text = cluster.trained("own", body([own] * 3), 1)
    expect(found)
    done = master("check", cluster.session("own2", body([own] * 3)))
    assert done.returncode == 0 and "1 tensor that the model does not have: 'cls.predictions.bias'" in done.stderr, done.stderr


@suite.test
def artifact_folder_reads_only_the_needed_file():
    there = os.path.join(cluster.dir, "there")
    shutil.copytree(BASE, there)
    digest = digest_of(there)
    assert digest == digest_of(BASE)
    offer(0, there, digest)
    # the front's, as long as it was
    wrong = os.path.join(there, "model-00001-of-00002.safetensors")
    with open(wrong, "r+b") as f:
        f.write(bytes(64))
    weights = [f"{{folder: {BASE}, sha256: {digest}}}", f"{{artifact: base, sha256: {digest}}}", f"{{folder: {BASE}}}"]
    expect(cluster.trained("there", body(weights), 1)[0])
    hashed = cluster.workers[0].text()[cluster.workers[0].begin:].count("hashed artifact 'base'")
    assert hashed == 3, hashed  # the index, at the start and at the load, being new; one file
    plan = master("plan", cluster.session("there2", body(weights)))
    assert "begins with artifact 'base' of its worker (sha256 " in plan.stdout, plan.stdout
    doctor = master("doctor", cluster.session("there3", body(weights)))
    assert "artifact 'base' for stage 's1' is there" in doctor.stdout + doctor.stderr, doctor.stdout
    moved = body([weights[1], weights[1], None], ("w1", "w1", "master"), "privacy: {raw_input_leaves: true}\n")
    done = cluster.train(cluster.session("damaged", moved))
    assert done.returncode == 7 and "model-00001-of-00002.safetensors has SHA-256" in done.stderr, done.stderr


@suite.test
def head_missing_in_the_folder_must_be_listed_as_new():
    bare = os.path.join(cluster.dir, "bare")
    pretrained(bare, head=False)
    digest = digest_of(bare)
    weights = [f"{{folder: {bare}}}", f"{{folder: {bare}}}", f"{{folder: {bare}}}"]
    done = cluster.train(cluster.session("headless", body(weights)))
    assert done.returncode == 7 and "2 missing tensors: 'classifier.weight', 'classifier.bias'" in done.stderr \
        and "weights.new" in done.stderr, done.stderr
    weights[2] = f"{{folder: {bare}, new: [classifier]}}"
    found, _, _ = cluster.trained("head", body(weights), 1)
    expect(found, NAMES[-2:])
    drawn = cluster.trained("drawn", body(["", "", ""]), 1)[0]
    assert found["classifier.weight"] == drawn["classifier.weight"]
    done = master("check", cluster.session("said", body(weights)))
    assert "not from " + bare + ", but from the seed: classifier.weight, classifier.bias" in done.stderr, done.stderr
    wrong = body([weights[0], weights[1], weights[2].replace("[classifier]", "[clasifier]")])
    done = master("check", cluster.session("wrong", wrong))
    assert done.returncode == 3 and "no parameter that begins with 'clasifier'" in done.stderr, done.stderr
    offer(0, bare, digest)
    there = f"{{artifact: base, sha256: {digest}, new: [classifier]}}"
    all_there = body([weights[0], there.replace(", new: [classifier]", ""), there], ("master", "w1", "w1"))
    assert cluster.trained("remote", all_there, 1)[0] == found
    lacks = all_there.replace(", new: [classifier]", "")
    done = cluster.train(cluster.session("lacks", lacks))
    assert done.returncode == 7 and "artifact 'base': 2 missing tensors" in done.stderr, done.stderr


@suite.test
def public_weights_do_not_count_as_secret():
    own = f"{{folder: {BASE}}}"
    session = cluster.session("public", body([own, own, own]), keys="")
    done = master("plan", session)
    assert done.returncode == 3 and "front_known" in done.stderr, (done.returncode, done.stderr)
    session = cluster.session("labels", body([own, own, own]), keys="front_known: true")
    done = master("plan", session)
    assert done.returncode == 3 and "labels_readable" in done.stderr, (done.returncode, done.stderr)
    new = own.replace("}", ", new: [classifier]}")
    # the worker had the key of the classifier in tests before
    for seed, says in ((SEED, "classifier was at 'spiffe://test/w1' in an earlier session"),
                       ("0badcafe0badcafe0badcafe0badcafe", "")):
        text = body([own, own, new]).replace(SEED, seed)
        done = master("plan", cluster.session("new", text, keys="front_known: true"))
        assert done.returncode == (3 if says else 0) and says in done.stderr, done.stderr


@suite.test
def folder_that_differs_from_its_digest_is_refused():
    digest = digest_of(BASE)
    config = os.path.join(cluster.dir, "odd.yaml")
    short = os.path.join(cluster.dir, "short")
    shutil.copytree(BASE, short)
    os.truncate(os.path.join(short, "model-00002-of-00002.safetensors"), 100)
    for folder, sha, says in ((short, digest, "another length than listed"), (BASE, "0" * 64, "has SHA-256"),
                              (os.path.join(cluster.dir, "none"), digest, "No such file"),
                              (cluster.dir, digest, "ARTIFACT.json")):
        with open(os.path.join(cluster.dir, "w1.yaml")) as f:
            text = f.read().split("artifacts:")[0]
        with open(config, "w") as f:
            f.write(text + f"artifacts:\n  base: {{folder: {folder}, sha256: {sha}}}\n")
        done = run(WORKER, "check", "--config", config)
        assert done.returncode == 7 and says in done.stderr, (folder, done.returncode, done.stderr)


with Cluster(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    BASE = os.path.join(cluster.dir, "base")
    pretrained(BASE)
    suite.main()
