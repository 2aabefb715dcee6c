#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of a session file: the same bits for all places of the stages; a base that does
not change and has the same initial values as without adapters, also from a file or a worker's
artifact."""
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
    """The initial values of a run, from a step with a rate that changes nothing."""
    text = body(PLACES["unsplit"], lora, 1).replace("lr: 0.02", "lr: 1e-300, weight_decay: 0")
    return cluster.trained(tag, text, 1)[0]


@suite.test
def any_placement_gives_the_same_bits():
    found = {tag: cluster.trained(tag, body(places), STEPS)[:2] for tag, places in chosen(PLACES, "unsplit", "two").items()}
    weights, log = found["unsplit"]
    rows = [json.loads(line) for line in log.splitlines()]
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"], (rows[0], rows[-1])
    for tag in found:
        assert found[tag][0].keys() == weights.keys()
        for name in weights:
            assert found[tag][0][name] == weights[name], f"{tag}: {name} differs"
        assert found[tag][1] == log, f"{tag}: the loss log differs"


@suite.test
def base_weights_do_not_change_and_start_as_without_lora():
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
def resume_gives_the_same_bits():
    whole = cluster.trained("whole", body(PLACES["two"]), STEPS)[0]
    session = cluster.session("halves", body(PLACES["two"]))
    for more in (["--max-steps", "11"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "halves"), STEPS) == whole


def a_frozen_artifact(weights):
    """Without adapters, a checkpoint has no file of the frozen stage, and a whole model cannot be
    exported."""
    text = body(PLACES["one"], False, more=("", weights + ", freeze: true", ""))
    whole = cluster.trained("frozen-whole", text, STEPS)[0]
    assert whole and not any(name.startswith("middle.") for name in whole), whole.keys()
    session = cluster.session("frozen-halves", text)
    for more in (["--max-steps", "11"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "frozen-halves"), STEPS) == whole
    done = master("export", "frozen-whole", "--merge", "no", cwd=cluster.dir)
    assert done.returncode and "has not all weights of: s1; the rest is in artifacts of workers" in done.stderr, done.stderr


def half_an_artifact(weights):
    """A run whose checkpoints have the adapters of that stage alone is resumed and evaluated."""
    text = body(PLACES["one"], more=("", weights, ""))
    whole = cluster.trained("kept-whole", text, STEPS)[0]
    session = cluster.session("kept-halves", text)
    for more in (["--max-steps", "11"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "kept-halves"), STEPS) == whole
    loss = [master("eval", "--json", os.path.join(cluster.dir, f"kept-{tag}.yaml"), cwd=cluster.dir) for tag in ("whole", "halves")]
    assert loss[0].returncode == 0 and json.loads(loss[0].stdout)["loss"] == json.loads(loss[1].stdout)["loss"], loss
    done = master("export", "kept-whole", "--merge", "no", cwd=cluster.dir)
    assert done.returncode and "stage 's1' takes them from the artifact 'base'" in done.stderr, done.stderr
    exported("kept-whole", "--adapters", "kept")
    assert safetensors(os.path.join(cluster.dir, "kept/adapter_model.safetensors")).keys() == {"base_model.model." + n for n in LEARN}


@suite.long
def file_without_adapters_loads_as_the_base():
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
    kept = {name for name in found["file"] if not name.startswith("middle.") or name in ADAPTERS}
    # the worker has the rest
    assert found["artifact"] == {name: found["file"][name] for name in kept}
    assert found["file"]["middle.0.query.lora_A.weight"] == first["middle.0.query.lora_A.weight"]
    half = {way: cluster.trained(f"half-from-{way}", body(PLACES["one"], steps=1, more=("", text, "")).replace("r: 3", "base: bf16, r: 3"), 1)[0]
            for way, text in ways.items()}
    assert half["artifact"] == {name: half["file"][name] for name in kept}
    for name, value in base.items():
        assert half["file"][name] == (halves(value) if name.endswith("weight") else value), name
    half_an_artifact(ways["artifact"])
    a_frozen_artifact(ways["artifact"])


def halves(tensor):
    """The tensor rounded to bf16, to nearest even."""
    bits = [b + 0x7fff + (b >> 16 & 1) >> 16 for b in struct.unpack(f"<{len(tensor[2]) // 4}I", tensor[2])]
    return "BF16", tensor[1], struct.pack(f"<{len(bits)}H", *bits)


@suite.test
def bf16_base_gives_the_same_bits_in_any_placement():
    """For all places of the stages. Weights of linear layers take half the bytes, in checkpoints
    too, and are exported in f32."""
    narrow = lambda places, **more: body(places, **more).replace("r: 3", "base: bf16, r: 3")
    found = {tag: cluster.trained("half-" + tag, narrow(places), STEPS)[:2] for tag, places in PLACES.items()}
    weights, log = found["unsplit"]
    assert found["one"] == found["two"] == found["unsplit"]
    first, wide = first_values("half-first", True), cluster.trained("half-none", body(PLACES["one"]), STEPS)[1]
    base = {name for name in weights if name.endswith(".weight") and name not in LEARN}
    for name in weights:
        assert (weights[name] == halves(first[name])) == (name in base), name
    ends = [json.loads(text.splitlines()[-1])["loss"] for text in (log, wide)]
    assert ends[0] != ends[1] and abs(ends[0] - ends[1]) < 0.05 * ends[1], ends
    session = cluster.session("half-halves", narrow(PLACES["two"]))
    for more in (["--max-steps", "11"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "half-halves"), STEPS) == weights
    exported("half-one", "--merge", "half-merged")
    merged = safetensors(os.path.join(cluster.dir, "half-merged/model.safetensors"))
    assert merged.keys() == weights.keys() - ADAPTERS and all(t[0] == "F32" for t in merged.values())
    kept = struct.unpack(f"<{20 * 24}H", weights["middle.0.query.weight"][2])
    layer = [struct.unpack("<f", struct.pack("<I", h << 16))[0] for h in kept]
    added = product(weights["middle.0.query.lora_B.weight"], weights["middle.0.query.lora_A.weight"])
    assert max(abs(m - w - 2 * p) for m, w, p in zip(floats(merged["middle.0.query.weight"]), layer, added)) < 1e-6


@suite.test
def frozen_parameters_have_no_gradient_or_moments():
    """By the worker's account and by `plan`, only trained parameters have a gradient and the two
    moments of AdamW."""
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
    session = cluster.session("half-wide", wide.replace("r: 3", "base: bf16, r: 3"))
    half = json.loads(master("plan", "--json", session, cwd=cluster.dir).stdout.splitlines()[0])["stages"][1]
    assert planned["adapters"]["weight_bytes"] - half["weight_bytes"] == 2 * (24 * 512 + 512 * 512), half
    text = master("plan", os.path.join(cluster.dir, "adapters.yaml"), cwd=cluster.dir).stdout
    assert "learns: middle.0.query.lora_A.weight" in text and "frozen:" not in text


def exported(run, *what):
    done = master("export", run, *what, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    return done.stdout


def floats(tensor):
    return struct.unpack(f"<{len(tensor[2]) // 4}f", tensor[2])


def product(b, a):
    """The matrix product B A of two tensors in the form of safetensors()."""
    (out, r), n = b[1], a[1][1]
    fb, fa = floats(b), floats(a)
    return [sum(fb[o * r + k] * fa[k * n + i] for k in range(r)) for o in range(out) for i in range(n)]


@suite.test
def exported_adapters_load_as_initial_weights():
    learned = cluster.trained("teacher", body(PLACES["one"]), STEPS)[0]
    said = exported("teacher", "--adapters", "adapter", "--merge", "merged")
    assert f"step {STEPS} in adapter and merged" in said, said
    files = safetensors(os.path.join(cluster.dir, "adapter/adapter_model.safetensors"))
    assert files == {"base_model.model." + name: learned[name] for name in LEARN}, files.keys() ^ LEARN
    with open(os.path.join(cluster.dir, "adapter/adapter_config.json")) as f:
        config = json.load(f)
    assert config["target_modules"] == ["front.query", "middle.0.query", "back.query"], config
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 6, 0.1) and config["peft_type"] == "LORA"
    assert config["modules_to_save"] == ["classifier"] and not config["rank_pattern"] and not config["use_rslora"]
    merged = safetensors(os.path.join(cluster.dir, "merged/model.safetensors"))
    assert merged.keys() == learned.keys() - ADAPTERS
    for name in merged:
        layer = name.removesuffix(".weight")
        a, b = (learned.get(f"{layer}.lora_{half}.weight") for half in "AB")
        if not a:
            assert merged[name] == learned[name], name
            continue
        moved = [w - v for w, v in zip(floats(merged[name]), floats(learned[name]))]
        assert max(abs(m - 2 * p) for m, p in zip(moved, product(b, a))) < 1e-6 and max(map(abs, moved)) > 1e-3, name

    begun = body(PLACES["two"], steps=1).replace("r: 3", "from: adapter, r: 3").replace("lr: 0.02", "lr: 1e-300, weight_decay: 0")
    found = cluster.trained("pupil", begun, 1)[0]
    for name in LEARN:
        assert found[name] == learned[name], name
    for wrong, why in {"alpha: 6": "alpha: 5", "r: 3": "r: 2"}.items():
        done = cluster.train(cluster.session("other", begun.replace(wrong, why)))
        assert done.returncode == 3 or "set lora.r, alpha and rslora as adapter_config.json has them" in done.stderr
        assert "set lora.r, alpha and rslora as adapter_config.json has them" in done.stderr, done.stderr
    done = cluster.train(cluster.session("other", begun.replace("back.query", "back.key.query").replace("targets: [query]", "targets: [query]")))
    assert done.returncode and "back.query.lora_A.weight" in done.stderr, done.stderr


@suite.long
def saved_module_loads_into_the_stage_that_has_it():
    """The classifier of the folder above, in a stage without adapters."""
    learned = safetensors(os.path.join(cluster.dir, "adapter/adapter_model.safetensors"))
    own = LORA.replace("r: 3", "from: adapter, r: 3") % ""
    cut = NET[2].index("{op: linear, out: 10, name: classifier}")
    parts, places = [NET[0], NET[1], NET[2][:cut], NET[2][cut:]], ["master", "w1", "w2", "master"]
    stages = "".join(f"  - {{name: s{i}, at: {at}, layers: [{', '.join(layers)}]{', ' + own if i < 3 else ''}}}\n"
                     for i, (at, layers) in enumerate(zip(places, parts)))
    text = re.sub(r"stages:\n(  - .*\n)*", lambda _: "stages:\n" + stages, body(PLACES["two"], steps=1))
    still = text.replace("lr: 0.02", "lr: 1e-300, weight_decay: 0")
    found = cluster.trained("headed", still, 1)[0]
    for name in LEARN:
        assert found[name] == learned["base_model.model." + name], name
    for key in ("name: s3, freeze: true,", "name: s3,"):
        said = cluster.train(cluster.session("frozen-head", text.replace("name: s3,", key)), "--max-steps", "1")
        says = "stage 's3': lora.from: 'classifier.weight' is saved in full there, but is frozen here"
        assert (says in said.stderr) == ("freeze" in key), said.stderr
    for i, param in enumerate(("front.query.lora_A.weight", "middle.0.query.lora_A.weight", "back.query.lora_A.weight")):
        lines = text.replace(f"name: s{i},", f"name: s{i}, X").split("\n")
        less = "\n".join(line.replace("name: s%d, X" % i, f"name: s{i},").replace("from: adapter, ", "") if " X" in line else line for line in lines)
        said = cluster.train(cluster.session("one-from", less), "--max-steps", "1")
        says = f"stage 's{i}': lora.from: '{param}' is in the folder too, and the lora of this stage has no from: give each stage"
        assert said.returncode and says in said.stderr, said.stderr
    for i, param in enumerate(("front.query.lora_A.weight", "middle.0.query.lora_A.weight", "back.query.lora_A.weight")):
        for cure, change in ((f"stage 's{i}' has no lora: give it that of this stage", lambda line: re.sub(r", lora: \{.*?\}", "", line)),
                             (f"lora.targets of stage 's{i}' does not name its layer: add it", lambda line: re.sub(
                                 r"\{op: linear, out: \d+, name: \S+query\}", lambda m: "{op: linear, out: 20, name: more.key}, " + m[0],
                                 line.replace("targets: [query]", "targets: [key]")))):
            less = "\n".join(change(line) if f"name: s{i}," in line else line for line in text.split("\n"))
            said = cluster.train(cluster.session("not-made", less), "--max-steps", "1")
            assert said.returncode == 7 and f"'{param}' is in the folder too, and {cure}" in said.stderr, said.stderr


@suite.test
def transposed_weights_are_merged_correctly():
    """A square one, whose shape does not tell; and its adapter has not the same form."""
    text = body(["master"] * 3).replace("out: 20, name: middle.0.query", "out: 24, transposed: true, name: middle.0.query")
    learned = cluster.trained("turned", text, STEPS)[0]
    exported("turned", "--merge", "turned")
    merged = safetensors(os.path.join(cluster.dir, "turned/model.safetensors"))["middle.0.query.weight"]
    a, b = (learned[f"middle.0.query.lora_{half}.weight"] for half in "AB")
    assert merged[1] == (24, 24), merged[1]
    added, moved = product(b, a), [w - v for w, v in zip(floats(merged), floats(learned["middle.0.query.weight"]))]
    assert max(abs(moved[i * 24 + o] - 2 * added[o * 24 + i]) for o in range(24) for i in range(24)) < 1e-6
    assert max(map(abs, moved)) > 1e-3


@suite.test
def unsupported_exports_are_refused():
    cluster.trained("bare", body(PLACES["one"], False, steps=1), 1)
    for args, why in {("bare", "--adapters", "x"): "has no adapters", ("bare",): "writes --adapters, --merge or --hf FOLDER",
                      ("bare", "--merge", "x", "--checkpoint", "7"): "there is no checkpoint of step 7",
                      ("nobody", "--merge", "x"): "nobody", ("bare", "--merge", "x", "--checkpoint", "z"): "the number of a step"}.items():
        done = master("export", *args, cwd=cluster.dir)
        assert done.returncode and why in done.stderr, (args, done.stderr)


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
    """Versions before 0.7 wrote such checkpoints."""
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
def unknown_lora_target_gets_a_suggestion():
    bad = body(PLACES["one"]).replace("targets: [query], r: 3", "targets: [qery], r: 3", 1)
    done = cluster.train(cluster.session("bad", bad))
    assert done.returncode == 3 and "did you mean 'query'?" in done.stderr, (done.returncode, done.stderr)


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
