#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of a session file: the same bits wherever the stages are, a base that does not
move, and one that begins as without adapters; from a file and from a worker's artifact too."""
import hashlib, json, os, re, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 30
NET = [
    ["{op: flatten}", "{op: linear, out: 24, name: front.query}", "{op: relu}", "{op: dropout, p: 0.2}"],
    ["{op: linear, out: 20, name: middle.0.query}", "{op: gelu}", "{op: linear, out: 18, name: middle.0.key}"],
    ["{op: relu}", "{op: linear, out: 16, name: back.query}", "{op: dropout, p: 0.2}", "{op: linear, out: 10, name: classifier}"],
]
LORA = "lora: {targets: [query], r: 3, alpha: 6, dropout: 0.1%s}"
PLACES = {"unsplit": ["master"] * 3, "one": ["master", "w1", "master"], "two": ["master", "w1", "w2"]}
ADAPTERS = {f"{name}.lora_{half}.weight" for name in ("front.query", "middle.0.query", "back.query") for half in "AB"}
LEARN = ADAPTERS | {"classifier.weight", "classifier.bias"}
cluster = None


def body(places, lora=True, steps=STEPS, more=("", "", ""), micro=2):
    text = IMAGE_DATA + "stages:\n"
    for i, (at, layers) in enumerate(zip(places, NET)):
        own = ", " + LORA % (", train: [classifier]" if i == 2 else "") if lora else ""
        text += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(layers)}]{own}{more[i]}}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 100, max_steps: {steps}, batch: 22, seed: {SEED}, clip_grad_norm: 1.0,"
                   " optimizer: {kind: adamw, lr: 0.02}}\n"
                   f"pipeline: {{micro_batches: {micro}}}\nprivacy: {{labels_leave: true}}\n"
                   "checkpoint: {every_steps: 100000}\n")


def first_values(tag, lora):
    """Those that a run begins with: of a step whose rate moves nothing."""
    text = body(PLACES["unsplit"], lora, 1).replace("lr: 0.02", "lr: 1e-300, weight_decay: 0")
    return cluster.trained(tag, text, 1)[0]


@suite.test
def same_bits_wherever_the_stages_are():
    found = {tag: cluster.trained(tag, body(places), STEPS)[:2] for tag, places in PLACES.items()}
    weights, log = found["unsplit"]
    rows = [json.loads(line) for line in log.splitlines()]
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"], (rows[0], rows[-1])
    for tag in PLACES:
        assert found[tag][0].keys() == weights.keys()
        for name in weights:
            assert found[tag][0][name] == weights[name], f"{tag}: {name} differs"
        assert found[tag][1] == log, f"{tag}: the loss log differs"


@suite.test
def the_base_stays_and_begins_as_without_adapters():
    plain, first = first_values("plain", False), first_values("first", True)
    last = cluster.trained("last", body(PLACES["one"]), STEPS)[0]
    assert first.keys() == plain.keys() | ADAPTERS and last.keys() == first.keys()
    for name in plain:
        assert first[name] == plain[name], name
    for name in first:
        assert (last[name] != first[name]) == (name in LEARN), name
    a, b = first["front.query.lora_A.weight"], first["front.query.lora_B.weight"]
    assert a[:2] == ("F32", (3, 144)) and b[:2] == ("F32", (24, 3)) and not any(b[2]) and any(a[2])
    assert a[2][:32] != first["front.query.weight"][2][:32]
    assert len({first[name][2][:32] for name in ADAPTERS if "lora_A" in name}) == 3


@suite.test
def resumes_to_the_bit():
    whole = cluster.trained("whole", body(PLACES["two"]), STEPS)[0]
    session = cluster.session("halves", body(PLACES["two"]))
    for more in (["--max-steps", "11"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "halves"), STEPS) == whole


@suite.test
def a_file_without_adapters_is_a_base():
    """Of the master's, and of a worker's own; adapters begin as they do without one."""
    cluster.trained("source", body(PLACES["unsplit"], False), STEPS)
    folder = os.path.join(cluster.dir, "runs", "source", f"checkpoint-{STEPS}")
    file = os.path.join(folder, sorted(f for f in os.listdir(folder) if f.startswith("model-"))[1])
    base, first = safetensors(file), first_values("fresh", True)
    with open(file, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    cluster.limits += f"artifacts:\n  base: {{file: {file}, sha256: {digest}}}\n"
    cluster.restart(0)
    ways = {"file": f", weights: {{file: {file}}}", "artifact": f", weights: {{artifact: base, sha256: {digest}}}"}
    found = {way: cluster.trained(f"from-{way}", body(PLACES["one"], steps=1, more=("", text, "")), 1)[0]
             for way, text in ways.items()}
    for name, value in base.items():
        assert found["file"][name] == value, name
    assert found["file"] == found["artifact"]
    assert found["file"]["middle.0.query.lora_A.weight"] == first["middle.0.query.lora_A.weight"]


@suite.test
def what_is_frozen_costs_its_values_alone():
    """In the worker's own account and in `plan`: the gradient and both moments of AdamW are those
    of what learns."""
    wide = body(PLACES["one"], steps=2).replace("out: 20,", "out: 512,").replace("out: 18,", "out: 512,")
    counts, planned = {}, {}
    for tag, text in {"full": wide.replace(", " + LORA % "", ""), "adapters": wide}.items():
        cluster.trained(tag, text, 2)
        loaded = re.search(rf"session {tag}: module 1 's1' loaded, \d+ parameters, (\d+) bytes", cluster.workers[0].text())
        counts[tag] = int(loaded[1])
        done = master("plan", "--json", os.path.join(cluster.dir, tag + ".yaml"), cwd=cluster.dir)
        planned[tag] = json.loads(done.stdout.splitlines()[0])["stages"][1]
    values = lambda tag: planned[tag]["weight_bytes"]
    base, learns = values("full"), values("adapters") - values("full")
    assert base > 1 << 20 and 0 <= learns - 4 * 3 * (24 + 512) < 128, (base, learns)  # padded
    assert planned["full"]["optimizer_bytes"] == 3 * base and planned["adapters"]["optimizer_bytes"] == 3 * learns
    saved = counts["full"] - counts["adapters"]
    assert 2 * base - 3 * learns - (96 << 10) < saved < 2 * base, (saved, base, learns)
    text = master("plan", os.path.join(cluster.dir, "adapters.yaml"), cwd=cluster.dir).stdout
    assert "learns: middle.0.query.lora_A.weight" in text and "frozen:" not in text


def rewritten(folder, name, tensors):
    """A file of a checkpoint with other tensors, and the manifest that says so."""
    header, data = {}, b""
    for key, (dtype, shape, raw) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, name), "rb") as f:
        whole = f.read()
    path = os.path.join(folder, "MANIFEST.json")
    with open(path) as f:
        manifest = f.read()
    entry = f'"{name}": {{"bytes": {len(whole)}, "sha256": "{hashlib.sha256(whole).hexdigest()}"}}'
    manifest = re.sub(rf'"{name}": {{[^}}]*}}', entry, manifest)
    head = manifest[:manifest.rindex('  "sha256"')]
    with open(path, "w") as f:
        f.write(head + f'  "sha256": "{hashlib.sha256(head.encode()).hexdigest()}"\n}}\n')


@suite.test
def a_checkpoint_with_moments_of_frozen_parameters_resumes():
    """As versions before 0.7 wrote them."""
    text = body(PLACES["one"], False) + "  # a comment\n"
    text = text.replace("max_steps", 'freeze: ["middle.0.query.*"], max_steps')
    whole = cluster.trained("new", text, STEPS)[0]
    session = cluster.session("old", text)
    assert cluster.train(session, "--max-steps", "9").returncode == 0
    folder = os.path.join(cluster.dir, "runs", "old", "checkpoint-9")
    name = next(f for f in sorted(os.listdir(folder)) if f.startswith("optimizer-") and "2-of" in f)
    moments = safetensors(os.path.join(folder, name))
    assert not any("query" in key for key in moments), moments.keys()
    zeros = {f"middle.0.query.bias.{m}": ("F32", (20,), bytes(80)) for m in ("exp_avg", "exp_avg_sq")}
    zeros.update({f"middle.0.query.weight.{m}": ("F32", (20, 24), bytes(1920)) for m in ("exp_avg", "exp_avg_sq")})
    rewritten(folder, name, dict(moments, **zeros))
    done = cluster.train(session, "--resume")
    assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "old"), STEPS) == whole


@suite.test
def what_a_target_is_called():
    bad = body(PLACES["one"]).replace("targets: [query], r: 3", "targets: [qery], r: 3", 1)
    done = cluster.train(cluster.session("bad", bad))
    assert done.returncode == 3 and "did you mean 'query'?" in done.stderr, (done.returncode, done.stderr)


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
