#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Models by Hugging Face's config.json: four blocks, cut between any of them over one to three
workers, give the bits of the unsplit run; and errors and reports before a run."""
import glob, itertools, json, os, re, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import numpy as np

suite = Suite()
RECORDS, PLACES, ROWS, LABELS, STEPS = 32, 9, 50, 5, 6
LLAMA = {"model_type": "llama", "vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "attention_dropout": 0.1}
LAYOUTLM = {"model_type": "layoutlm", "vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4,
            "intermediate_size": 24, "max_position_embeddings": PLACES + 1, "max_2d_position_embeddings": 40, "type_vocab_size": 2}
MODELS = {"llama": ["embed_tokens", *(f"layers.{i}" for i in range(4)), "norm..score"],
          "layoutlm": ["embeddings", *(f"encoder.layer.{i}" for i in range(4)), "dropout..classifier"]}
SETS = {"llama": "train: [train-ids.npy, train-y.npy], test: [test-ids.npy, test-y.npy]",
        "layoutlm": "inputs: [ids, boxes, lengths], train: [train-ids.npy, train-boxes.npy, train-lengths.npy, train-y.npy],"
                    " test: [test-ids.npy, test-boxes.npy, test-lengths.npy, test-y.npy]"}
cluster = None


def config(name, values):
    os.makedirs(os.path.join(cluster.dir, name), exist_ok=True)
    with open(os.path.join(cluster.dir, name, "config.json"), "w") as f:
        json.dump(values, f)


def records(folder):
    """Writes documents of different lengths; tokens after the end of a document do not count."""
    rng = np.random.default_rng(3)
    for part in ("train", "test"):
        ids = rng.integers(1, ROWS, (RECORDS, PLACES))
        begin = rng.integers(0, 20, (RECORDS, PLACES, 2))
        lengths = rng.integers(2, PLACES + 1, RECORDS)
        real = np.arange(PLACES) < lengths[:, None]
        np.save(f"{folder}/{part}-ids.npy", np.where(real, ids, 0))
        np.save(f"{folder}/{part}-boxes.npy", np.concatenate((begin, begin + rng.integers(0, 20, begin.shape)), 2))
        np.save(f"{folder}/{part}-lengths.npy", lengths)
        np.save(f"{folder}/{part}-y.npy", np.where(real & (rng.random(ids.shape) < 0.8), ids % LABELS, -100))


def ranges(blocks, cuts):
    """The layer ranges of stages that end after these blocks."""
    for first, last in zip([0, *cuts], [*cuts, len(blocks)]):
        yield f"{blocks[first].split('..')[0]}..{blocks[last - 1].split('..')[-1]}"


def body(cuts, places, model="layoutlm", spec="head: token, labels: 5", transfer="direct"):
    stages = "".join(f"  - {{name: s{i}, at: {at}, layers: {r}}}\n"
                     for i, (r, at) in enumerate(zip(ranges(MODELS[model], cuts), places)))
    return (f"data: {{format: npy, root: data, {SETS[model]}}}\n"
            f"model: {{hf: {model}, {spec}}}\nstages:\n{stages}"
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 100, max_steps: {STEPS}, batch: 8, seed: {SEED}, clip_grad_norm: 1.0,"
            " optimizer: {kind: adamw, lr: 0.003}}\n"
            f"pipeline: {{micro_batches: 2, schedule: 1f1b}}\ntransfer: {transfer}\ncheckpoint: {{every_steps: 100000}}\n")


UNSPLIT = {}


def compare(tag, *args, model="layoutlm", **how):
    if model not in UNSPLIT:
        UNSPLIT[model] = cluster.trained(f"unsplit-{model}", body([], ["master"], model), STEPS)
    one, one_log, _ = UNSPLIT[model]
    weights, log, _ = cluster.trained(tag, body(*args, model, **how), STEPS)
    assert weights.keys() == one.keys(), tag
    for k in one:
        assert weights[k] == one[k], f"{tag}: {k} differs"
    assert log == one_log, f"{tag}: the loss log differs"


def every_cut(n_workers):
    """Every cut with the first and last layers at the master and the blocks between at workers."""
    places = ["master", *(f"w{i + 1}" for i in range(n_workers)), "master"]
    for cuts in list(itertools.combinations(range(1, 6), n_workers + 1))[::1 if LONG else 8]:
        compare("cut-" + "-".join(map(str, cuts)), list(cuts), places)


@suite.test
def every_cut_over_one_worker_gives_the_same_bits():
    every_cut(1)


@suite.long
def every_cut_over_two_workers_gives_the_same_bits():
    every_cut(2)


@suite.test
def every_cut_over_three_workers_gives_the_same_bits():
    every_cut(3)


@suite.test
def values_via_the_master_give_the_same_bits():
    compare("via", [1, 3, 5], ["master", "w1", "w2", "master"], transfer="via_master")


@suite.test
def llama_over_three_workers_gives_the_same_bits():
    compare("llama", [1, 2, 4, 5], ["master", "w1", "w2", "w3", "master"], model="llama")


GOLDEN_HF = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/hf")
BLOCKS = {"distilbert": "transformer.layer", "mistral": "layers", "qwen3": "layers", "phi3": "layers", "xlm-roberta": "encoder.layer", "camembert": "encoder.layer"}


def family_splits(family, kind="", **keys):
    """Padded and packed, over one worker: the bits of the unsplit run. `kind` is what the names of
    the runs say besides the family."""
    with open(os.path.join(GOLDEN_HF, family, "config.json")) as f:
        config(family, {**json.load(f), **keys})
    blocks = [f"{BLOCKS[family]}.{i}" for i in range(2)]
    decoder = blocks[0].startswith("layers")
    MODELS[family] = ["embed_tokens" if decoder else "embeddings", *blocks, "norm..score" if decoder else "dropout..classifier"]
    for part in ("train", "test"):  # 1 is the pad of XLM-R
        np.save(f"{cluster.dir}/data/{part}-words.npy", np.maximum(np.load(f"{cluster.dir}/data/{part}-ids.npy"), 2))
    files = [f"{part}: [{', '.join(f'{part}-{n}.npy' for n in ('words', 'lengths', 'y'))}]" for part in ("train", "test")]
    for packed in ("false", "true"):
        SETS[family] = f"inputs: [ids, lengths], {', '.join(files)}, packed: {packed}"
        one = cluster.trained(f"{family}{kind}-one-{packed}", body([], ["master"], family), STEPS)[:2]
        assert cluster.trained(f"{family}{kind}-split-{packed}", body([1, 2], ["master", "w1", "master"], family), STEPS)[:2] == one, (family, packed)


@suite.test
def norms_of_heads_and_scaled_angles_over_a_worker_give_the_same_bits():
    family_splits("qwen3", "-scaled", rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
                                                       "original_max_position_embeddings": 8})


@suite.long
def further_families_over_a_worker_give_the_same_bits():
    for family in BLOCKS:
        family_splits(family, **({"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "sliding_window": PLACES} if family == "mistral" else {}))


@suite.test
def unknown_keys_are_refused_unless_the_session_lists_them():
    config("newer", {**LAYOUTLM, "auto_map": {"AutoModel": "x.Y"}})
    MODELS["newer"], SETS["newer"] = MODELS["layoutlm"], SETS["layoutlm"]
    for spec, code, says in (
            ("head: token", 3, r"newer/config\.json:1:\d+: 'auto_map' is not known, and may change what the model computes: if it does not, list it in model\.ignore_keys"),
            ("head: token, ignore_keys: [auto_map, hidden_act]", 3, r"model\.ignore_keys lists 'hidden_act', which is known and not ignored: take it out"),
            ("head: token, labels: 5, ignore_keys: [auto_map]", 0, r"not read of Hugging Face's files \(model\.ignore_keys\): auto_map\n")):
        done = master("plan", cluster.session("newer", body([], ["master"], "newer", spec)), cwd=cluster.dir)
        assert done.returncode == code and re.search(says, done.stdout + done.stderr), done.stdout + done.stderr
    done = master("plan", cluster.session("newer", body([], ["master"], "newer", spec)), "--json", cwd=cluster.dir)
    assert json.loads(done.stdout)["ignored_keys"] == ["auto_map"], done.stdout
    text = re.sub(r"model: .*", "model: {layers: [{op: embedding, rows: 50, out: 5}], ignore_keys: [x]}", body([], ["master"])).replace("embeddings..classifier", "0..0")
    done = master("check", cluster.session("nowhere", text), cwd=cluster.dir)
    assert done.returncode == 3 and "the session has neither model.hf nor lora.from nor data.tokenizer: leave it out" in done.stderr, done.stderr


@suite.test
def pictures_that_the_session_normalises_otherwise_are_told():
    with open(os.path.join(GOLDEN_HF, "vit", "config.json")) as f:
        config("vit", json.load(f))
    for part in ("train", "test"):
        np.save(f"{cluster.dir}/data/{part}-pixels.npy", np.zeros((RECORDS, 3, 8, 8), "u1"))
        np.save(f"{cluster.dir}/data/{part}-class.npy", np.arange(RECORDS) % 3)
    MODELS["vit"], SETS["vit"] = ["embeddings..classifier"], "train: [train-pixels.npy, train-class.npy], test: [test-pixels.npy, test-class.npy]"
    with open(os.path.join(cluster.dir, "vit", "preprocessor_config.json"), "w") as f:
        json.dump({"image_mean": [0.5, 0.5, 0.25], "image_std": 0.5, "do_rescale": True}, f)
    for normalize, told in (("", "is not given"), (", normalize: {mean: [0.5], std: [0.5]}", "has others"),
                            (", normalize: {mean: [0.5, 0.5, 0.25], std: [0.5, 0.5, 0.5]}", None)):
        text = body([], ["master"], "vit", "head: sequence").replace("test-class.npy]", "test-class.npy]" + normalize)
        done = master("plan", cluster.session("vit", text), cwd=cluster.dir)
        line = "normalises pictures, times 0.00392157, by mean [0.5, 0.5, 0.25] and std [0.5], and data.normalize "
        assert done.returncode == 0 and (line + str(told) in done.stdout if told else line not in done.stdout), done.stdout + done.stderr


def with_adapters(text, own):
    """The session with one more key in each stage, in their order."""
    for i, key in enumerate(own):
        text = re.sub(rf"(name: s{i}, [^}}]*)}}", rf"\1, {key}}}", text)
    return text


@suite.test
def adapters_over_two_workers_give_the_same_bits():
    """Two workers give the bits of one process, and the files for peft have peft's names."""
    lora = "lora: {targets: [query, value], r: 2, alpha: 4, dropout: 0.1%s}"
    one, log, _ = cluster.trained("lora-one", with_adapters(body([], ["master"]), [lora % ", train: [classifier]"]), STEPS)
    own = ["freeze: true", lora % "", lora % "", lora % ", train: [classifier]"]
    text = with_adapters(body([1, 3, 4], ["master", "w1", "w2", "master"]), own)
    split, split_log, _ = cluster.trained("lora-split", text, STEPS)
    assert split == one and split_log == log
    layers = [f"layoutlm.encoder.layer.{i}.attention.self.{what}" for i in range(4) for what in ("query", "value")]
    adapters = {f"{layer}.lora_{half}.weight" for layer in layers for half in "AB"}
    base, _, _ = cluster.trained("lora-base", text.replace("lr: 0.003", "lr: 1e-300, weight_decay: 0"), STEPS)
    moved = {name for name in one if one[name] != base[name]}
    assert moved == adapters | {"classifier.weight", "classifier.bias"}, moved ^ adapters
    done = master("export", "lora-split", "--adapters", "adapters", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(cluster.dir, "adapters/adapter_config.json")) as f:
        assert json.load(f)["target_modules"] == layers
    files = safetensors(os.path.join(cluster.dir, "adapters/adapter_model.safetensors"))
    assert files.keys() == {"base_model.model." + name for name in moved}


@suite.test
def parameters_have_the_names_in_hf_files():
    weights, _, _ = UNSPLIT["layoutlm"]
    assert {"layoutlm.embeddings.x_position_embeddings.weight", "layoutlm.encoder.layer.3.attention.self.query.weight",
            "layoutlm.encoder.layer.0.output.LayerNorm.bias", "classifier.bias"} <= weights.keys()
    assert len(weights) == 7 + 2 + 4 * 16 + 2, sorted(weights)


@suite.test
def plan_lists_the_lengths_and_activations_sent():
    done = master("plan", cluster.session("plan", body([1, 5], ["master", "w1", "master"])), cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    for says in (r"LENGTHS 'lengths', for stage s1 ", r"activation of stage 's0' .* to w1 .*TOKENS", r"lengths: of every record"):
        assert re.search(says, done.stdout), done.stdout
    assert "boxes" not in done.stdout.split("leaves the private network")[1], done.stdout


def pages(folder):
    """A vocabulary of letters, and pages whose words are numbers or names."""
    words = [c + d for c in "abcdefgh" for d in "xyz"] + [str(n) for n in range(40)]
    with open(f"{folder}/vocab.txt", "w") as f:
        f.writelines(w + "\n" for w in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    rng = np.random.default_rng(5)
    for part in ("train", "test"):
        with open(f"{folder}/{part}.jsonl", "w") as f:
            for _ in range(16):
                page = [words[i] for i in rng.integers(0, len(words), int(rng.integers(5, 30)))]
                boxes = [[10 * i, 20, 10 * i + 9, 30] for i in range(len(page))]
                labels = ["answer" if w.isdigit() else "question" if w < "d" else None for w in page]
                f.write(json.dumps({"words": page, "boxes": boxes, "labels": labels}) + "\n")
    return 5 + len(words)


@suite.test
def shipped_session_passes_check_plan_and_train():
    forms = os.path.join(cluster.dir, "forms")
    os.mkdir(forms)
    config("twelve", {**LAYOUTLM, "num_hidden_layers": 12, "vocab_size": pages(forms), "max_position_embeddings": 24,
                      "max_2d_position_embeddings": 1024})
    sets = []
    for s in (f"workers.gpu-a.address=127.0.0.1:{cluster.ports[0]}", "workers.gpu-a.identity=spiffe://test/w1",
              f"data.root={forms}", f"data.tokenizer.file={forms}/vocab.txt", "data.documents.max_tokens=24",
              "data.documents.stride=6", f"model.hf={cluster.dir}/twelve", "log.every=1",
              "privacy.labels_readable=true",  # of the session's four classes these pages have two
              *(f"tls.{k}={cluster.dir}/certs/{f}" for k, f in
                (("ca", "ca.pem"), ("cert", "master.pem"), ("key", "master.key")))):
        sets += ["--set", s]
    session = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy/sessions/layoutlm-documents.yaml")
    for command, *more in (("check",), ("plan",), ("train", "--max-steps", "3")):
        done = master(command, session, *sets, *more, cwd=cluster.dir, timeout=240)
        assert done.returncode == 0, (command, done.stdout + done.stderr)
        if command == "plan":
            assert re.search(r"\n    66\.\.79\s+block\s+encoder\.layer\.3 +\[2, 24, 16\]\n", done.stdout), done.stdout


@suite.test
def more_labels_than_classes_are_refused():
    """For data whose classes have names."""
    words = os.path.join(cluster.dir, "named")
    os.makedirs(words, exist_ok=True)
    config("named-model", {**LAYOUTLM, "vocab_size": pages(words), "max_2d_position_embeddings": 1024, "max_position_embeddings": 24})
    text = ("data: {format: documents, root: named, train: [train.jsonl], test: [test.jsonl], tokenizer: {file: named/vocab.txt},"
            " documents: {max_tokens: 24, stride: 6}}\n"
            "model: {hf: named-model, head: token, labels: %d}\nstages:\n  - {name: s0, at: master, layers: embeddings..classifier}\n"
            f"loss: {{kind: cross_entropy}}\ntrain: {{max_steps: 1, batch: 8, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.1}}}}\n")
    for labels, says in ((2, None), (5, r"named\.yaml:\d+:\d+: labels: 5, and \S+ has 2 classes, 'answer' to 'question': write labels: 2")):
        done = master("check", cluster.session("named", text % labels), cwd=cluster.dir)
        assert says is None and done.returncode == 0 or says and re.search(says, done.stderr), done.stderr
    for part in ("train", "test"):
        with open(f"{words}/{part}.jsonl") as f:
            lines = f.read().replace('"answer"', '"10"').replace('"question"', '"9"')
        with open(f"{words}/number-{part}.jsonl", "w") as f:
            f.write(lines)
    done = master("check", cluster.session("numbers", (text % 5).replace("[t", "[number-t")), cwd=cluster.dir)
    assert re.search("'10' to '9' in the order of their names as texts, not as numbers: write labels: 2, or give the data", done.stderr), done.stderr
    listed = (text % 2).replace("stride: 6", "stride: 6, labels: [question, answer, other]")
    done = master("check", cluster.session("list", listed), cwd=cluster.dir)
    assert done.returncode == 3 and "labels go up to 2, and the last layer has 2 outputs: it needs 3, one per class" in done.stderr, done.stderr


@suite.test
def a_trained_head_keeps_its_order_of_classes():
    """Data number classes by the order of their names; where config.json has the same names in
    another order, each output would count as another class."""
    folder = os.path.join(cluster.dir, "opinions")
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/vocab.txt", "w") as f:
        f.write("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad")) + "\n")
    bert = {k: v for k, v in LAYOUTLM.items() if k != "max_2d_position_embeddings"}
    config("opinion", {**bert, "model_type": "bert", "vocab_size": 7})
    text = ("data: {format: text, root: opinions, inputs: [ids, lengths], train: [t.jsonl], test: [t.jsonl], text: {max_tokens: 4}, tokenizer: {file: opinions/vocab.txt}}\n"
            "model: {hf: opinion, head: sequence, labels: %d}\nstages:\n  - {name: s0, at: master, layers: embeddings..classifier%s}\n"
            f"loss: {{kind: cross_entropy}}\ntrain: {{max_steps: 1, batch: 2, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.1}}}}\n")
    weights = ", weights: {folder: trained%d%s}"

    def write(n, classes, **keys):
        for name in ("opinion", f"trained{n}"):
            config(name, {**bert, "model_type": "bert", "vocab_size": 7, **keys})
        with open(f"{folder}/t.jsonl", "w") as f:
            f.writelines(json.dumps({"text": "good bad", "label": c}) + "\n" for c in classes * 2)

    for n in (2, 3, 11):
        write(n, [f"c{i}" for i in range(n)])
        cluster.trained(f"opinion{n}", text % (n, ""), 1)
        shutil.rmtree(os.path.join(cluster.dir, f"trained{n}"))
        done = master("export", f"opinion{n}", "--hf", f"trained{n}", cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
    for names, classes, says, new, by_name in (
            (["neg", "pos"], ["pos", "neg"], None, "", False),
            (["pos", "neg"], ["pos", "neg"], "'neg' is class 0 of the data and output 1 of the head, whose output 0 is 'pos'", "", False),
            (["pos", "neg"], ["pos", "neg"], "'neg' is class 0 of the data and output 1 of the head", "", True),
            (["POSITIVE", "NEGATIVE"], ["positive", "negative"], "'negative' is class 0 of the data and output 1", "", False),
            (["pos", "neg"], ["pos", "neg"], None, ", new: [classifier]", False),
            (["pos", "neg"], ["0-pos", "1-neg"], None, "", False),
            (["pos", "neg"], ["bad", "good"], None, "", False),
            (["0", "1", "2"], [0, 1, 2], None, "", False),
            (["0", "1", "2"], [1, 2], "its classes, 2 in the order of their names, are not in the order of the 3 .*'1' is class 0 of the data", "", False),
            ([f"LABEL_{i}" for i in range(11)], list(range(11)), "'10' is class 2 of the data and output 10 of the head", "", False)):
        n = len(names)
        write(n, classes, **{"label2id": {name: i for i, name in enumerate(names)}} if by_name else {"id2label": dict(enumerate(names))})
        done = master("check", cluster.session("opinions", text % (n, weights % (n, new))), cwd=cluster.dir)
        assert done.returncode == (3 if says else 0) and re.search(says or "", done.stderr), (names, classes, done.stderr)


@suite.test
def labels_beyond_the_head_outputs_are_refused():
    """Labels of a file that are numbers: more than the head has are refused, fewer are pointed out,
    since the rest may be in other data."""
    text = body([], ["master"], "layoutlm", "head: token, labels: %d")
    y = np.load(os.path.join(cluster.dir, "data/train-y.npy"))
    most, at = int(y.max()), int((y == y.max()).any(1).argmax())
    for labels, code, says in (
            (most, 3, rf"few\.yaml:\d+:\d+: data\.\w+: \S+: labels go up to {most} \(record {at}\), and the last layer has {most} outputs: it needs {most + 1}"),
            (most + 1, 0, r"^(?!.*labels go up to)"),
            (most + 3, 0, rf"data\.train: labels go up to {most}, and the head has labels: {most + 3}; .*write labels: {most + 1}")):
        done = master("check", cluster.session("few", text % labels), cwd=cluster.dir)
        assert done.returncode == code and re.search(says, done.stderr, re.S), (labels, done.stderr)


@suite.test
def mistakes_are_refused_with_their_position():
    config("broken", {**LAYOUTLM, "hidden_act": "mish"})
    MODELS["broken"], SETS["broken"] = MODELS["layoutlm"], SETS["layoutlm"]
    for model, spec, says in (
            ("layoutlm", "head: causal", r"model.hf: a layoutlm has no head 'causal', only none, sequence"),
            ("broken", "head: token", r"model.hf: \S*broken/config.json:1:\d+: hidden_act 'mish' is not known"),
            ("layoutlm", "labels: 3", r"model.hf needs a head")):
        done = master("check", cluster.session("mistake", body([], ["master"], model, spec)), cwd=cluster.dir)
        assert done.returncode != 0 and re.search(says, done.stderr), (model, done.stderr)


@suite.test
def resume_with_a_changed_config_json_is_refused():
    config("changed", LAYOUTLM)
    MODELS["changed"], SETS["changed"] = MODELS["layoutlm"], SETS["layoutlm"]
    text = body([], ["master"], "changed")
    cluster.trained("changed", text.replace(f"max_steps: {STEPS}", "max_steps: 2"), 2)
    config("changed", {**LAYOUTLM, "hidden_act": "relu"})
    done = cluster.train(cluster.session("changed", text), "--resume")
    assert done.returncode == 7 and re.search(r"began: config\.json of model\.hf \(\S*changed\); restore the old files", done.stderr), done.stderr
    config("changed", LAYOUTLM)
    done = cluster.train(cluster.session("changed", text), "--resume")
    assert done.returncode == 0, done.stderr


@suite.test
def byte_order_mark_is_skipped_and_utf_16_refused():
    """Editors write a byte order mark; the refusal names UTF-16."""
    MODELS["marked"], SETS["marked"] = MODELS["layoutlm"], SETS["layoutlm"]
    for front, encoding, says in ((b"\xef\xbb\xbf", "utf-8", None), (b"", "utf-16", r"config\.json:1:1: its text is UTF-16, and UTF-8 is expected")):
        config("marked", LAYOUTLM)
        with open(os.path.join(cluster.dir, "marked/config.json"), "wb") as f:
            f.write(front + json.dumps(LAYOUTLM).encode(encoding))
        done = master("check", cluster.session("marked", body([], ["master"], "marked")), cwd=cluster.dir)
        assert done.returncode == (3 if says else 0) and re.search(says or "", done.stderr), done.stderr


@suite.test
def inputs_that_no_layer_reads_are_refused():
    """Without lengths nothing would be left out of the padding."""
    for name, says in (("length", r"'length': it reads ids, boxes, lengths \(how many .*; did you mean 'lengths'\?"),
                       ("attention_mask", r"'attention_mask': it reads ids, boxes, lengths \(how many places of a record are no padding\); leave"),
                       ("lengths", None)):
        text = body([], ["master"]).replace("boxes, lengths]", f"boxes, {name}]")
        done = master("check", cluster.session("inputs", text), cwd=cluster.dir)
        assert done.returncode == (3 if says else 0) and re.search(rf"inputs\.yaml:\d+:\d+: data\.inputs: no layer of the model reads {says}" if says else "", done.stderr), done.stderr
    by_layers = ("data: {format: npy, root: data, inputs: [x, %s], train: [train-ids.npy, train-lengths.npy, train-y.npy], test: [test-ids.npy, test-lengths.npy, test-y.npy]}\n"
                 "model:\n  layers:\n    - {op: embedding, rows: 50, out: 8, name: words}\n    - {op: attention, heads: 2, from: [words, words, words, lengths]}\n"
                 "    - {op: linear, out: 5}\nstages:\n  - {name: s0, at: master, layers: 0..2}\nloss: {kind: cross_entropy}\n"
                 f"train: {{max_steps: 1, batch: 8, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.1}}}}\n")
    unread = by_layers.replace("from: [words, words, words, lengths]", "from: [words, words, words]")
    for text, says in ((by_layers, None), (unread, "data.inputs: no layer of the model reads 'lengths': it reads x; leave the input and its files out")):
        done = master("check", cluster.session("inputs", text % "lengths"), cwd=cluster.dir)
        assert done.returncode == (3 if says else 0) and (says or "") in done.stderr, done.stderr


@suite.test
def unreadable_model_is_not_reported_as_bad_records():
    config("broken", {**LAYOUTLM, "hidden_act": "mish"})
    np.save(os.path.join(cluster.dir, "data/floats.npy"), np.zeros((RECORDS, PLACES), np.float32))
    for model, says in (("nowhere", r"model.hf: \S*nowhere/config.json: No such file"), ("broken", r"model.hf: \S*broken/config.json:1:\d+: hidden_act 'mish'")):
        text = body([], ["master"], "layoutlm").replace("hf: layoutlm", f"hf: {model}").replace("-ids.npy", "-y.npy")
        text = re.sub(r"inputs: .*}", "train: [floats.npy, train-y.npy]}", text)
        done = master("check", cluster.session("unread", text), cwd=cluster.dir)
        assert done.returncode and re.search(says, done.stderr), done.stderr
    done = master("check", cluster.session("number", body([], ["master"]).replace("layers: embeddings..classifier", "layers: 6")), cwd=cluster.dir)
    assert "'stages.0.layers' must be a list of layers or a range such as 0..3 or conv1..layer2 (layer 6 alone is 6..6), got '6'" in done.stderr, done.stderr


def keys_of(value):
    """Of an object and those in it, but for lists of names."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key
        if key in ("rope_parameters", "model", "truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"):
            yield from keys_of(inner)
        if key in ("normalizers", "pretokenizers", "processors", "added_tokens"):
            for step in inner:
                yield from keys_of(step)


@suite.test
def every_key_of_hf_files_is_documented():
    """What transformers, tokenizers and peft write (tests/golden) is judged in CHECKPOINTS.md."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
    with open(os.path.join(root, "deploy/CHECKPOINTS.md")) as f:
        page = set(re.findall(r"`([a-z_0-9.*]+)`", f.read()))
    page |= {part for word in page for part in word.split(".")}
    files = [f"hf/{family}/config.json" for family in sorted(os.listdir(os.path.join(root, "tests/golden/hf")))]
    for path in (*files, "peft/adapter/adapter_config.json", *(f"tokens/{n}.json" for n in ("gpt2", "roberta", "llama3", "qwen2", "bert", "llama", "mistral", "xlmr", "t5", "fused"))):
        with open(os.path.join(root, "tests/golden", path)) as f:
            missing = {key for key in keys_of(json.load(f)) if key not in page and not key.startswith("summary_")}
        assert not missing, (path, missing)


@suite.test
def readable_tokens_are_refused_with_the_full_path():
    """A projection of each token hides none, and long names leave room for the fix."""
    short = cluster.session("silent", body([2, 3], ["master", "w1", "master"]), keys="labels_readable: true")
    deep = os.path.join(cluster.dir, *["a-long-name-of-a-folder"] * 8)
    os.makedirs(deep)
    os.symlink(cluster.dir, os.path.join(deep, "back"))
    for path in short, os.path.join(deep, "back", "silent.yaml"):
        done = master("check", path, cwd=cluster.dir)
        assert done.returncode == 3 and "silent.yaml:12:20: " in done.stderr, done.stderr
        assert "set privacy.tokens_readable: true; the path: word_embeddings" in done.stderr, done.stderr
        assert "(null)" not in done.stderr, done.stderr


def another_config_is_refused(run):
    """With another config.json the weights mean something else, whatever their shapes are."""
    path = os.path.join(cluster.dir, "layoutlm/config.json")
    with open(path) as f:
        before = f.read()
    with open(path, "w") as f:
        json.dump({**json.loads(before), "layer_norm_eps": 1e-3}, f)
    done = master("export", run, "--hf", "other", cwd=cluster.dir)
    assert done.returncode == 7, (done.returncode, done.stderr)
    assert re.search(r"differs from the begin of the run in \S*exported: config\.json of model\.hf \(\S*layoutlm\); .*--accept-data", done.stderr), done.stderr
    assert not os.path.exists(os.path.join(cluster.dir, "other"))
    done = master("export", run, "--hf", "other", "--accept-data", cwd=cluster.dir)
    assert done.returncode == 0 and "and is accepted: config.json of model.hf" in done.stderr, done.stderr
    with open(path, "w") as f:
        f.write(before)
    digests = glob.glob(os.path.join(cluster.dir, "**", run, "data.digest"), recursive=True)[0]
    os.rename(digests, digests + ".away")
    done = master("export", run, "--hf", "other", cwd=cluster.dir)
    assert done.returncode == 0 and "has no digest of config.json of model.hf" in done.stderr, done.stderr
    with open(digests, "w") as f:
        f.write("damaged\n")
    done = master("export", run, "--hf", "other", cwd=cluster.dir)
    assert done.returncode == 7 and "the config.json that the run began with is not known" in done.stderr, done.stderr
    os.rename(digests + ".away", digests)


@suite.test
def exported_model_loads_as_initial_weights():
    trained = cluster.trained("exported", body([1, 3], ["master", "w1", "master"]), STEPS)[0]
    done = master("export", "exported", "--hf", "out", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    out = os.path.join(cluster.dir, "out")
    with open(os.path.join(out, "config.json")) as f:
        made = json.load(f)
    assert made["architectures"] == ["LayoutLMForTokenClassification"] and made["dtype"] == "float32", made
    assert len(made["id2label"]) == LABELS and made["hidden_size"] == 16, made
    assert safetensors(os.path.join(out, "model.safetensors")) == trained
    another_config_is_refused("exported")
    still = body([1, 3], ["master", "w1", "master"]).replace("max_steps: 6", "max_steps: 1").replace("lr: 0.003", "lr: 1e-300, weight_decay: 0")
    still = re.sub(r"(layers: [^}]*)}", r"\1, weights: {folder: out}}", still)
    assert cluster.trained("begun", still, 1)[0] == trained
    os.rename(os.path.join(out, "model.safetensors"), os.path.join(out, "model-1.safetensors"))
    for encoding, says in (("utf-8-sig", None), ("utf-16", "index.json: its text is UTF-16, and UTF-8 is expected")):
        with open(os.path.join(out, "model.safetensors.index.json"), "w", encoding=encoding) as f:
            json.dump({"weight_map": {name: "model-1.safetensors" for name in trained}}, f)
        if says is None:
            assert cluster.trained("indexed", still, 1)[0] == trained
        else:
            done = cluster.train(cluster.session("encoded", still))
            assert done.returncode != 0 and says in done.stderr, done.stderr


@suite.test
def a_masked_head_is_exported_with_both_names_of_its_bias():
    """transformers has decoder.bias and, beside it, the bias of the head, and asks for both."""
    config("untied", {**LAYOUTLM, "tie_word_embeddings": False})
    MODELS["untied"], SETS["untied"] = ["embeddings", "cls"], SETS["layoutlm"]
    text = body([], ["master"], "untied", "head: masked").replace(f"max_steps: {STEPS}", "max_steps: 1")
    trained = cluster.trained("masked", re.sub(r"(train|test)-y", r"\1-ids", text), 1)[0]
    done = master("export", "masked", "--hf", "masked-out", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    out = safetensors(os.path.join(cluster.dir, "masked-out/model.safetensors"))
    assert out.pop("cls.predictions.bias") == trained["cls.predictions.decoder.bias"] and out == trained


GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/peft")
TARGETS = "targets: [query, value, attention.output.dense, intermediate.dense, encoder.layer.%d.output.dense], r: 2, alpha: %d, from: %s"


def adapted(folder, name):
    """The ViT of tests/golden/peft: a stage for each block, and one for the head."""
    weights = f"weights: {{folder: {GOLDEN}}}"
    stages = [("embeddings..encoder.layer.0", TARGETS % (0, 6, folder)), ("encoder.layer.1", TARGETS % (1, 9, folder)), ("layernorm..classifier", None)]
    text = "".join(f"  - {{name: s{i}, at: {at}, layers: {layers}, {weights}{f', lora: {{{lora}}}' if lora else ''}}}\n"
                   for i, ((layers, lora), at) in enumerate(zip(stages, ("master", "w1", "master"))))
    return (f"data: {{format: npy, root: data, inputs: [pixels], train: [pixels.npy, classes.npy], test: [pixels.npy, classes.npy]}}\n"
            f"model: {{hf: {GOLDEN}, head: sequence, labels: 3}}\nstages:\n{text}loss: {{kind: cross_entropy}}\n"
            "train: {epochs: 1, max_steps: 1, batch: 4, optimizer: {kind: sgd, lr: 1e-30}}\ncheckpoint: {every_steps: 100000}\n")


@suite.test
def peft_adapters_round_trip_with_the_same_outputs():
    """ViT's modules have other names in memory than in files, and peft's files follow memory."""
    with open(os.path.join(GOLDEN, "expected.json")) as f:
        expected = json.load(f)
    np.save(os.path.join(cluster.dir, "data/pixels.npy"), np.array(expected["pixels"], np.float32))
    np.save(os.path.join(cluster.dir, "data/classes.npy"), np.arange(len(expected["pixels"])) % 3)
    folder, theirs = os.path.join(GOLDEN, "adapter"), os.path.join(GOLDEN, "adapter/adapter_model.safetensors")
    for name in ("from-peft", "from-export"):
        cluster.trained(name, adapted(folder, name), 1)
        out = os.path.join(cluster.dir, name + ".npy")
        done = master("predict", name + ".yaml", "--output", out, cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        assert np.abs(np.load(out) - np.array(expected["outputs"])).max() < 1e-5, name
        done = master("export", name, "--adapters", name + "-out", cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        folder = os.path.join(cluster.dir, name + "-out")
        ours = safetensors(os.path.join(folder, "adapter_model.safetensors"))
        assert {k: v for k, v in ours.items() if "layernorm" not in k} == safetensors(theirs), ours.keys() ^ safetensors(theirs).keys()
        with open(os.path.join(folder, "adapter_config.json")) as f:
            config = json.load(f)
        assert "vit.layers.1.mlp.fc2" in config["target_modules"] and config["alpha_pattern"]["vit.layers.1.attention.q_proj"] == 9, config
        assert config["modules_to_save"] == ["classifier", "vit.layernorm"], config


with Cluster(3) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    records(os.path.join(cluster.dir, "data"))
    config("llama", LLAMA)
    config("layoutlm", LAYOUTLM)
    suite.main()
