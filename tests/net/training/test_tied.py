#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tied weights: the decoder at the master has the table of tokens of the front, which is at the
master too, with the blocks between at workers. Every schedule gives the bits of one module; the run
resumes; ties across nodes are refused with the reason."""
import json, os, re, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import golden
import numpy as np

suite = Suite()
RECORDS, PLACES, ROWS, STEPS = 24, 7, 30, 6
COMMON = {"vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CONFIGS = {"bert": {"model_type": "bert", "max_position_embeddings": PLACES, "type_vocab_size": 2, **COMMON},
           "gpt2": {"model_type": "gpt2", "vocab_size": ROWS, "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": PLACES},
           "roberta": {"model_type": "roberta", "pad_token_id": 0, "max_position_embeddings": PLACES + 2, "type_vocab_size": 1, **COMMON},
           "layoutlm": {"model_type": "layoutlm", "max_position_embeddings": PLACES, "type_vocab_size": 2, "max_2d_position_embeddings": 60, **COMMON},
           "llama": {"model_type": "llama", "tie_word_embeddings": True, **COMMON},
           "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 1, **COMMON}}
PARTS = {"bert": ("masked", ["embeddings", "encoder.layer.0", "encoder.layer.1", "cls"]),
         "gpt2": ("causal", ["wte..drop", "h.0", "h.1", "ln_f..lm_head"]),
         "llama": ("causal", ["embed_tokens", "layers.0", "layers.1", "norm..lm_head"])}
PARTS["layoutlm"] = PARTS["bert"]
PARTS["roberta"] = ("masked", [*PARTS["bert"][1][:3], "lm_head"])
PARTS["qwen2"] = PARTS["llama"]
TABLES = {**{name: f"{name}.embeddings.word_embeddings.weight" for name in ("bert", "roberta", "layoutlm")}, "gpt2": "transformer.wte.weight",
          "llama": "model.embed_tokens.weight", "qwen2": "model.embed_tokens.weight"}
TIED = {"bert": "cls.predictions.decoder.weight", "layoutlm": "cls.predictions.decoder.weight", "roberta": "lm_head.decoder.weight",
        "gpt2": "lm_head.weight", "llama": "lm_head.weight", "qwen2": "lm_head.weight"}
cluster = None


def records(folder):
    rng, others = np.random.default_rng(3), np.random.default_rng(4)
    for part in ("train", "test"):
        ids = rng.integers(1, ROWS, (RECORDS, PLACES))
        corner = others.integers(0, 30, (RECORDS, PLACES, 2))
        np.save(f"{folder}/{part}-ids.npy", ids)
        np.save(f"{folder}/{part}-boxes.npy", np.concatenate([corner, corner + others.integers(0, 30, corner.shape)], 2))
        np.save(f"{folder}/{part}-y.npy", np.where(rng.random(ids.shape) < 0.6, (ids * 7) % ROWS, -100))


def body(places, cuts=(1, 2, 3), model="bert", micro=4, schedule="1f1b", steps=STEPS, more="", own="", leaves=False):
    """A session body. cuts: the numbers of the model's four parts after which stages end."""
    head, parts = PARTS[model]
    ends = [*cuts, len(parts)] if len(places) > 1 else [len(parts)]
    text = ""
    for i, (first, last, at) in enumerate(zip([0, *ends], ends, places)):
        layers = f"{parts[first].split('..')[0]}..{parts[last - 1].split('..')[-1]}"
        text += f"  - {{name: s{i}, at: {at}, {own}layers: {layers}}}\n"
    names = ["ids", "boxes"] if model == "layoutlm" else ["ids"]
    train, test = (", ".join(f"{part}-{name}.npy" for name in [*names, "y"]) for part in ("train", "test"))
    return (f"data: {{format: npy, root: data, inputs: [{', '.join(names)}], train: [{train}], test: [{test}]}}\n"
            f"model: {{hf: {model}, head: {head}}}\nstages:\n{text}loss: {{kind: cross_entropy}}\n"
            f"train: {{epochs: 100, max_steps: {steps}, batch: 8, seed: {SEED}, clip_grad_norm: 0.5,"
            f" optimizer: {{kind: adamw, lr: 0.003}}{more}}}\n"
            f"pipeline: {{micro_batches: {micro}, schedule: {schedule}}}\nlog: {{every: 1}}\ncheckpoint: {{every_steps: 100000}}\n"
            + ("privacy: {raw_input_leaves: true}\n" if leaves else ""))


UNSPLIT = {}
U = ("master", "w1", "w2", "master")


def unsplit(model):
    if model not in UNSPLIT:
        UNSPLIT[model] = cluster.trained(f"one-{model}", body(["master"], model=model), STEPS)[:2]
    return UNSPLIT[model]


def compare(tag, places, model="bert", **how):
    one, one_log = unsplit(model)
    weights, log, _ = cluster.trained(tag, body(places, model=model, **how), STEPS)
    assert weights.keys() == one.keys(), weights.keys() ^ one.keys()
    for k in one:
        assert weights[k] == one[k], f"{tag}: {k} differs"
    assert log == one_log, f"{tag}: the loss log differs"


@suite.test
def tie_across_two_modules_gives_the_same_bits():
    for model in CONFIGS if LONG else ("bert",):
        compare(f"u-{model}", U, model)
        assert TABLES[model] in UNSPLIT[model][0] and TIED[model] not in UNSPLIT[model][0], UNSPLIT[model][0].keys()


@suite.test
def ties_give_the_same_bits_for_any_cut_and_schedule():
    """Two stages at one worker as well, and both layers in a module at a worker."""
    compare("pair", ("master", "master"), cuts=(2,))
    compare("far-pair", ("w1", "w1"), cuts=(2,), leaves=True)
    compare("far", ("w1",), leaves=True)
    for schedule in ("naive", "gpipe", "zb-h1") if LONG else ("zb-h1",):
        compare(schedule, U, schedule=schedule)
    compare("again", U, own="recompute: true, ")


@suite.test
def accumulated_batches_give_the_same_bits():
    parts = body(U).replace("micro_batches: 4, schedule: 1f1b", "micro_batches: 1").replace("batch: 8,", "batch: 8, accumulate: 4,")
    assert cluster.trained("parts", parts, STEPS)[0] == unsplit("bert")[0]


@suite.test
def resume_gives_the_same_bits():
    session = cluster.session("halves", body(U))
    for more in (["--max-steps", "2"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "halves"), STEPS) == unsplit("bert")[0]
    state = checkpoint_tensors(os.path.join(cluster.dir, "runs", "halves"), STEPS, "optimizer-")
    table = sorted(name for _, name in state if "word_embeddings" in name or "decoder.weight" in name)
    assert table == [f"{TABLES['bert']}.exp_avg", f"{TABLES['bert']}.exp_avg_sq"], table


@suite.test
def tied_parameter_is_stored_and_frozen_once():
    """Its values differ from those without ties, and freezing it freezes both uses."""
    one = unsplit("bert")[0]
    with open(os.path.join(cluster.dir, "bert/config.json")) as f:
        config("untied", {**json.load(f), "tie_word_embeddings": False})
    PARTS["untied"] = PARTS["bert"]
    untied = cluster.trained("untied", body(["master"], model="untied"), STEPS)[0]
    assert untied.keys() - one.keys() == {TIED["bert"]} and untied[TABLES["bert"]] != one[TABLES["bert"]]
    still = body(U, more=f", freeze: [{TABLES['bert']}]")
    frozen, log, _ = cluster.trained("still", still, STEPS)
    first = cluster.trained("first", body(U).replace("lr: 0.003", "lr: 1e-300, weight_decay: 0"), STEPS)[0]
    assert frozen[TABLES["bert"]] == first[TABLES["bert"]] != one[TABLES["bert"]]
    assert frozen["cls.predictions.decoder.bias"] != first["cls.predictions.decoder.bias"]


LISTED = ("model:\n  layers:\n    - {op: embedding, rows: 30, out: 8, name: words}\n    - {op: linear, out: 8, name: middle}\n"
          "    - {op: gelu}\n    - {op: linear, out: 30, bias: false, name: back, tied: words}\n")


def listed(stages, layers=LISTED):
    text = body(["master"])
    begin, end = text.index("model: "), text.index("loss: ")
    rows = "".join(f"  - {{name: s{i}, at: {at}, layers: {run}}}\n" for i, (at, run) in enumerate(stages))
    return text[:begin] + layers + "stages:\n" + rows + text[end:]


@suite.test
def listed_layers_can_be_tied():
    one, log, _ = cluster.trained("list-one", listed([("master", "words..back")]), STEPS)
    assert sorted(one) == ["middle.bias", "middle.weight", "words.weight"], one.keys()
    u = listed([("master", "words"), ("w1", "middle..2"), ("master", "back")])
    assert cluster.trained("list-u", u, STEPS)[:2] == (one, log)
    for to, says in (("middle", r"tied: layer back has a weight \[30, 8\], and is tied to 'middle', which has \[8, 8\]"),
                     ("nobody", r"tied: layer back is tied to 'nobody', but no layer has that name")):
        done = master("check", cluster.session("list", listed([("master", "0..3")], LISTED.replace("tied: words", f"tied: {to}"))), cwd=cluster.dir)
        assert done.returncode == 3 and re.search(r"list\.yaml:\d+:\d+: " + says, done.stderr), done.stderr


def arrays(tensors):
    return {k: np.frombuffer(raw, "f4").reshape(shape) for k, (_, shape, raw) in tensors.items()}


def in_torch(state, x, y):
    """(losses, weights after them) in PyTorch, with one tensor that is read twice."""
    import torch
    import torch.nn.functional as F
    p = {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in state.items()}
    optimiser, losses = torch.optim.AdamW(list(p.values()), lr=0.003), []
    for step in range(STEPS):
        at = step * 8 % RECORDS
        h = F.gelu(F.linear(F.embedding(torch.from_numpy(x[at:at + 8]), p["words.weight"]), p["middle.weight"], p["middle.bias"]))
        loss = F.cross_entropy(F.linear(h, p["words.weight"]).flatten(0, 1), torch.from_numpy(y[at:at + 8]).flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), 0.5)
        optimiser.step()
        losses.append(loss.item())
    return losses, {k: v.tolist() for k, v in p.items()}


@suite.test
def tied_training_matches_pytorch():
    text = listed([("master", "words"), ("w1", "middle..2"), ("master", "back")]).replace("batch: 8,", "batch: 8, shuffle: false,").replace("micro_batches: 4", "micro_batches: 1")
    state = arrays(cluster.trained("torch-first", text.replace("lr: 0.003", "lr: 1e-300, weight_decay: 0").replace(f"max_steps: {STEPS}", "max_steps: 1"), 1)[0])
    x, y = (np.load(os.path.join(cluster.dir, "data", f"train-{name}.npy")) for name in ("ids", "y"))
    losses, after = golden.numbers("tied", {**state, "x": x, "y": y}, lambda: in_torch(state, x, y))
    ours, log, _ = cluster.trained("torch", text.replace("lr: 0.003", "lr: 0.003, weight_decay: 0.01"), STEPS)
    found = [json.loads(line)["loss"] for line in log.splitlines()]
    assert np.allclose(found, losses, rtol=1e-5), (found, losses)
    for name, v in arrays(ours).items():
        want = np.array(after[name])
        assert np.linalg.norm(v - want) < 1e-4 * np.linalg.norm(want), name


def planned(text, *args, tag="planned", code=0):
    done = master("plan", cluster.session(tag, text), *args, cwd=cluster.dir)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@suite.test
def plan_names_the_owner_of_a_tied_weight():
    assert f"    tied: {TIED['bert']} is {TABLES['bert']} of stage s0\n" in planned(body(U))
    assert f"    tied: {TIED['bert']} is {TABLES['bert']}\n" in planned(body(["master"]))
    stage = json.loads(planned(body(U), "--json"))["stages"][3]
    assert stage["ties"] == [{"weight": TIED["bert"], "owner_weight": TABLES["bert"], "of": TABLES["bert"], "stage": "s0"}], stage


@suite.test
def ties_across_nodes_are_refused_with_the_reason():
    for places, stage, at in ((("master", "w1", "w2", "w1"), "s3", "w1"), (("w1", "w2", "w2", "master"), "s3", "master")):
        for command in ("check", "plan"):
            done = master(command, cluster.session("across", body(places, leaves=True)), cwd=cluster.dir)
            assert done.returncode == 3, done.stdout
            for says in (rf"across\.yaml:\d+:\d+: stage '{stage}' at {at} has layer 'cls\.predictions\.decoder', whose weight is that of"
                         rf" 'bert\.embeddings\.word_embeddings' in stage 's0'", "sent in every step", "what the tokens are",
                         "put both stages at one node", "tie_word_embeddings: false"):
                assert re.search(says, done.stderr), done.stderr
    for schedule in ("pipedream, flush_every: 2", "pipedream-2bw, flush_every: 2"):
        text = body(U, micro=1 if "2bw" not in schedule else 4, schedule=schedule).replace(" clip_grad_norm: 0.5,", "")
        assert "stages step by themselves in this schedule" in planned(text, code=3)
    text = body(U).replace("name: s3, at: master,", "name: s3, at: master, freeze: true,")
    assert "freeze both or neither" in planned(text, code=3)


def lora(text, **stages):
    """The session with adapters in these stages."""
    for name, keys in stages.items():
        text, n = re.subn(rf"(name: {name}, at: [\w-]+, )", rf"\1lora: {{{keys}}}, ", text)
        assert n == 1, text
    return text


@suite.test
def adapters_work_with_tied_weights():
    """A decoder is not trained if its table is frozen."""
    shown = "labels_readable: true, tokens_readable: true, front_known: true"
    for tag, stages in (("blocks", {"s1": "targets: [query, value], r: 2"}), ("front", {"s0": "targets: [query], r: 2"}),
                        ("table", {"s0": "targets: [query], r: 2, train: [word_embeddings]"}),
                        ("both", {"s0": "targets: [query], r: 2", "s2": "targets: [decoder], r: 2"})):
        if not LONG and tag in ("front", "table"):
            continue
        cuts = (1, 3) if tag == "blocks" else (2, 3)
        runs = []
        for place, places in (("home", ("master",) * 3), ("away", ("master", "w1", "master"))):
            name = f"lora-{tag}-{place}"
            done = cluster.train(cluster.session(name, lora(body(places, cuts=cuts), **stages), keys=shown))
            assert done.returncode == 0, (name, done.stderr)
            runs.append(checkpoint_tensors(os.path.join(cluster.dir, "runs", name), STEPS))
        assert runs[0] == runs[1], tag
        names = [k for k in runs[0] if ".lora_" in k]
        assert len(names) == {"blocks": 8, "front": 2, "table": 2, "both": 4}[tag] and TIED["bert"] not in runs[0], names
    for stages, says in (({"s2": "targets: [decoder], r: 2"}, r"stage 's2' has adapters .* 'bert\.embeddings\.word_embeddings' in stage 's0', which learns: freeze"),
                         ({"s0": "targets: [query], r: 2", "s2": "targets: [dense], r: 2, train: [decoder]"},
                          r"lora\.train names layer 'cls\.predictions\.decoder', .* in stage 's0', which is fixed: let that one learn")):
        done = master("check", cluster.session("adapters", lora(body(("master", "w1", "master"), cuts=(2, 3)), **stages), keys=shown), cwd=cluster.dir)
        assert done.returncode == 3 and re.search(r"adapters\.yaml:\d+:\d+: " + says, done.stderr), done.stderr


@suite.test
def tied_table_makes_labels_readable():
    """The decoder's values are the table's: drawn from a secret seed, or of a public file."""
    done = cluster.train(cluster.session("public", body(["master"], model="gpt2", steps=1)))
    assert done.returncode == 0, done.stderr
    for tag, own, code in ("drawn", "", 0), ("known", "weights: {folder: runs/public/checkpoint-1}, ", 3):
        text = body(("master", "w1", "master"), cuts=(1, 3), model="gpt2").replace("at: master, ", f"at: master, {own}", 1)
        # the worker had the table of SEED in tests before
        text = text.replace(SEED, "0badcafe0badcafe0badcafe0badcafe")
        done = master("check", cluster.session(tag, text, keys="front_known: true, tokens_readable: true"), cwd=cluster.dir)
        assert done.returncode == code, done.stdout + done.stderr
    assert "set privacy.labels_readable: true" in done.stderr and "lm_head (linear)" in done.stderr, done.stderr


@suite.test
def exported_tied_weight_has_one_name_and_loads_back():
    trained = cluster.trained("exported", body(U), STEPS)[0]
    done = master("export", "exported", "--hf", "out", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    out = safetensors(os.path.join(cluster.dir, "out/model.safetensors"))
    assert out.pop("cls.predictions.bias") == trained["cls.predictions.decoder.bias"] and out == trained
    with open(os.path.join(cluster.dir, "out/config.json")) as f:
        assert json.load(f).get("tie_word_embeddings", True)
    still = body(U, steps=1).replace("lr: 0.003", "lr: 1e-300, weight_decay: 0")
    both = {**trained, TIED["bert"]: trained[TABLES["bert"]]}
    write_safetensors(os.path.join(cluster.dir, "both.safetensors"), both)
    os.mkdir(os.path.join(cluster.dir, "twice"))
    write_safetensors(os.path.join(cluster.dir, "twice/model.safetensors"), both)
    for tag, own in ("folder", "out"), ("file", "both.safetensors"), ("folder", "twice"):
        begun = still.replace("layers:", f"weights: {{{tag}: {own}}}, layers:")
        assert cluster.trained(f"begun-{own}", begun, 1)[0] == trained, own
    other = (*trained[TABLES["bert"]][:2], bytes(trained[TABLES["bert"]][2][:-1]) + b"\x12")
    for path in "both.safetensors", "twice/model.safetensors":
        write_safetensors(os.path.join(cluster.dir, path), {**both, TIED["bert"]: other})
    for own in "file: both.safetensors", "folder: twice":
        done = master("check", cluster.session("apart", still.replace("layers:", f"weights: {{{own}}}, layers:")), cwd=cluster.dir)
        assert done.returncode and f"'{TABLES['bert']}' and '{TIED['bert']}' have other values there" in done.stderr, done.stderr


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def config(name, values):
    os.makedirs(os.path.join(cluster.dir, name), exist_ok=True)
    with open(os.path.join(cluster.dir, name, "config.json"), "w") as f:
        json.dump(values, f)


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    records(os.path.join(cluster.dir, "data"))
    for name, values in CONFIGS.items():
        config(name, values)
    suite.main()
