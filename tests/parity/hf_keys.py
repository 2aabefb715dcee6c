#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make hf-keys`: every key of the newest transformers' and peft's configs with values of its own.

A small model of each family gets one key after the other changed. Cleave either refuses the file
and names the key, or has the outputs of transformers' model by the same file. The keys are those of
the config classes, of GenerationConfig, and a name that nobody knows. Of peft's LoraConfig, rank
and scale of an adapter are compared. Keys of generation_config.json and preprocessor_config.json
are known or refused by name. A key of tokenizer_config.json or special_tokens_map.json is refused,
or texts have the tokens of transformers' tokenizer of that folder. Names of families, or "peft",
"files" and "tokenizers", take these alone.
"""
import argparse
import collections
import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import hf  # noqa: E402

LIMIT = 1e-4
HEAD = {"vit": "sequence", "bert": "masked", "roberta": "masked", "xlm-roberta": "masked", "camembert": "masked",
        "layoutlm": "masked", "distilbert": "masked"}  # the others: causal
ROPES = [{"rope_type": "default", "rope_theta": 50.0}, {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}, {"rope_type": "yarn", "factor": 2.0},
         {"rope_type": "dynamic", "factor": 2.0}, {"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0, "mscale": 2.0},
         {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 9},
         {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}, {"partial_rotary_factor": 0.5}, {"rope_theta": 20.0, "surprise": 1}]
VALUES = {  # of keys whose values cannot be guessed from the default
    "rope_parameters": ROPES, "rope_scaling": ROPES, "rope_theta": [77.0, 1e6], "partial_rotary_factor": [1.0, 0.5],
    "hidden_act": ["relu", "gelu_new", "quick_gelu", "nobody"], "activation": ["relu", "mish"], "activation_function": ["relu", "mish"],
    "layer_types": [None, ["full_attention"], ["sliding_attention"]], "sliding_window": [None, 4, 64],
    "dtype": ["float16", "bfloat16"], "torch_dtype": ["float16"], "position_embedding_type": ["absolute", "relative_key"],
    "problem_type": ["regression"], "quantization_config": [{"bits": 4}], "pruned_heads": [{}, {"0": [0]}],
    "id2label": [{"0": "a", "1": "b", "2": "c", "3": "d"}], "label2id": [{"a": 0}], "auto_map": [{"AutoModel": "x.Y"}],
    "architectures": [["Nobody"]], "model_type": ["t5"], "per_layer_config": [{}, {"0": {"head_dim": 4}}],
    "pad_token_id": [None, 7], "rms_norm_eps": [1e-2], "layer_norm_eps": [1e-2], "layer_norm_epsilon": [1e-2], "tie_word_embeddings": [True],
    "initializer_range": [0.5], "head_dim": [None, 4, 10], "num_key_value_heads": [None, 1]}
OLD = ["torch_dtype", "rope_scaling", "rope_theta", "partial_rotary_factor", "position_embedding_type", "quantization_config", "pruned_heads",
       "gradient_checkpointing", "use_bfloat16", "torchscript", "tie_encoder_decoder", "finetuning_task", "task_specific_params", "auto_map",
       "tokenizer_class", "prefix", "sep_token_id", "output_past", "surprise_of_nobody", "_num_labels", "is_decoder", "add_cross_attention",
       "per_layer_config", "model_type"]
DROPOUTS = ("dropout", "pdrop")
OTHERS = ("tokenizers", "files", "peft")
counts = collections.Counter()  # of all families


def drawn(key, value, rng):
    """Values of a key that are not its own."""
    if key in VALUES:
        return VALUES[key]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + rng.randrange(1, 5), max(1, value // 2)]
    if isinstance(value, float):
        return [value + 0.25, 0.5]
    return [rng.choice((3, True, "x", [1], {"a": 1}, 0.5))]


def keys_of(config):
    """Every key that a file of this class may have, with its value."""
    import transformers
    found = {**transformers.GenerationConfig().to_dict(), **{k: None for k in OLD}}
    found.update({f.name: getattr(config, f.name, None) for f in dataclasses.fields(config)})
    found.update(dict.fromkeys(config.attribute_map))
    return {k: found[k] for k in sorted(found) if k not in ("transformers_version",)}


class Case:
    """Ours and transformers' model by a file in `folder`."""

    def __init__(self, binaries, folder, family):
        self.binaries, self.folder, self.family = binaries, folder, family
        self.head = HEAD.get(family, "causal")
        _, config, self.rng, _ = hf.model_of(family, self.head, 3)
        self.config, self.base = config, json.loads(config.to_json_string(use_diff=False))
        self.base.pop("dtype", None)

    def write(self, change):
        with open(f"{self.folder}/config.json", "w") as f:
            json.dump({**self.base, **change}, f)

    def theirs(self):
        """Their model and its outputs for records; None: they do not have it."""
        import torch
        import transformers
        try:
            config = getattr(transformers, hf.CONFIGS[self.family]).from_pretrained(self.folder)
            config._attn_implementation = "eager"
            config.use_cache = False
            torch.manual_seed(5)
            net = getattr(transformers, hf.HEADS[self.family][self.head])(config).float().eval()
            with torch.no_grad():
                for p in net.parameters():
                    p += 0.1 * torch.randn(p.shape)
                ours, theirs = hf.samples(self.family, self.head, config, random.Random(5))
                y = hf.output_of(net, theirs)
        except Exception:  # noqa: BLE001: whatever they refuse a value with
            return None
        return net, ours, theirs, y

    def ours(self, net, records, y):
        """Outputs, or the text of the refusal."""
        import torch
        from safetensors.torch import load_file, save_file
        names = hf.saved_names(self.family, [n for n, _ in net.named_parameters()])
        state = {names[n]: p.detach().clone().contiguous() for n, p in net.named_parameters()}
        save_file({**state, **records, "dy": torch.zeros_like(y)}, f"{self.folder}/in")
        done = subprocess.run([f"{self.binaries}/parity/hf_step", self.folder, self.head, "0", f"{self.folder}/in", f"{self.folder}/out"],
                              stderr=subprocess.PIPE, text=True)
        return done.stderr if done.returncode else load_file(f"{self.folder}/out")["y"]

    def judge(self, key, value, asked):
        """What became of a value, and why that is wrong."""
        self.write({key: value})
        answer = asked(f"config {self.folder}")
        if answer != "ok":
            names = [key, str(value), *(value if isinstance(value, dict) else ())]
            return "refused", None if any(n in answer for n in names) else f"does not name the key: {answer}"
        if any(word in key for word in DROPOUTS):
            return "read", None
        made = self.theirs()
        if made is None:
            return "refused by transformers alone", None
        net, ours, theirs, y = made
        got = self.ours(net, ours, y)
        if isinstance(got, str):
            return "refused", None if key in got else f"does not name the key: {got}"
        mask = theirs.get("attention_mask")
        real = mask.bool() if mask is not None and y.dim() == 3 else slice(None)
        off = hf.apart(got[real], y[real]) / (hf.length(y[real]) or 1)
        return "equal", None if off <= LIMIT else f"{off:.1e} apart"


def check_family(binaries, family, asked):
    bad, own_counts = 0, collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        case = Case(binaries, folder, family)
        unchanged = case.judge("use_cache", True, asked)
        assert unchanged == ("equal", None), (family, unchanged)
        for key, own in keys_of(case.config).items():
            for value in drawn(key, own, case.rng):
                outcome, wrong = case.judge(key, value, asked)
                own_counts[outcome] += 1
                if wrong:
                    bad += 1
                    print(f"    OVER: {family}: {key} = {json.dumps(value)}: {outcome}, {wrong}", flush=True)
    counts.update(own_counts)
    print(f"{family}: " + ", ".join(f"{n} {what}" for what, n in sorted(own_counts.items())), flush=True)
    return bad


# ---- peft ----------------------------------------------------------------------------------------

LORA = {"r": [4, 7], "lora_alpha": [3, 16], "use_rslora": [True], "rank_pattern": [{"query": 2}, {"y.query": 2}], "alpha_pattern": [{"query": 5}],
        "init_lora_weights": [False, "gaussian", "orthogonal", "pissa", "olora", "loftq", "eva"], "bias": ["all", "lora_only"], "use_dora": [True],
        "lora_bias": [True], "fan_in_fan_out": [True], "lora_dropout": [0.5], "modules_to_save": [["head"]], "target_modules": [["query", "key"]],
        "layers_to_transform": [None], "layer_replication": [[[0, 1]]], "peft_type": ["IA3"], "task_type": ["SEQ_CLS"], "trainable_token_indices": [[1]],
        "exclude_modules": [["head"]], "use_qalora": [True], "alora_invocation_tokens": [[1]], "megatron_config": [{"a": 1}], "inference_mode": [True],
        "base_model_name_or_path": ["x"], "target_parameters": [["query.weight"]], "ensure_weight_tying": [True], "use_bdlora": [{"nblocks": 2}]}


def check_peft(asked):
    import peft
    import torch
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/adapter_config.json"
        for f in [*dataclasses.fields(peft.LoraConfig), None]:
            key = f.name if f else "surprise_of_nobody"
            for value in LORA.get(key, [{"a": 1}, "x"]):
                given = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["query"], key: value}
                with open(path, "w") as out:
                    json.dump(given, out)
                answer, wrong = asked(f"peft {path} query"), None
                if not answer.startswith("ok"):
                    counts["adapters refused"] += 1
                    wrong = None if key in answer else f"does not name the key: {answer}"
                else:
                    counts["adapters read"] += 1
                    wrong = scale_of(peft, torch, given, answer)
                if wrong:
                    bad += 1
                    print(f"    OVER: peft: {key} = {json.dumps(value)}: {wrong}", flush=True)
    return bad


def scale_of(peft, torch, given, answer):
    """Why rank and scale of the answer are not peft's; None: they are, or peft has no such
    adapter."""
    net = torch.nn.ModuleDict({"query": torch.nn.Linear(8, 8), "key": torch.nn.Linear(8, 8), "head": torch.nn.Linear(8, 8)})
    net.forward = lambda x: x
    try:
        layer = peft.get_peft_model(net, peft.LoraConfig(**{k: v for k, v in given.items() if k != "peft_type"})).base_model.model["query"]
        r, scale = layer.r["default"], layer.scaling["default"]
    except Exception:  # noqa: BLE001
        return None
    _, ours, factor = answer.split()
    return None if int(ours) == r and abs(float(factor) - scale) <= 1e-9 * scale else f"rank {ours} and scale {factor}, not {r} and {scale}"


# ---- files beside config.json --------------------------------------------------------------------

def check_files(binaries, asked):
    """Keys of GenerationConfig and of image processors: each is known, or refused by its name."""
    import transformers
    from transformers.processing_utils import ImagesKwargs
    images = {**dict.fromkeys(ImagesKwargs.__annotations__), "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": 0.5, "do_rescale": True,
              "rescale_factor": 1 / 255, "do_resize": True, "size": {"height": 8, "width": 8}, "image_processor_type": "ViTImageProcessor",
              "feature_extractor_type": "ViTFeatureExtractor", "processor_class": None}
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        case = Case(binaries, folder, "llama")
        case.write({})
        for file, keys in (("generation_config.json", transformers.GenerationConfig().to_dict()), ("preprocessor_config.json", images)):
            for key, own in {**keys, "surprise_of_nobody": 1}.items():
                for value in (own, *drawn(key, own, case.rng)):
                    with open(f"{folder}/{file}", "w") as f:
                        json.dump({key: value}, f, default=str)
                    answer = asked(f"config {folder}")
                    named = file in answer and key in answer and ("is not known" in answer) == (key == "surprise_of_nobody")
                    good = named or (answer == "ok" and key != "surprise_of_nobody")
                    counts["files read" if answer == "ok" else "files refused"] += 1
                    if not good:
                        bad += 1
                        print(f"    OVER: {file}: {key} = {json.dumps(value, default=str)}: {answer}", flush=True)
            os.remove(f"{folder}/{file}")
    return bad


# ---- tokenizers ----------------------------------------------------------------------------------

TOKENIZERS = {"BertTokenizer": "bert", "DistilBertTokenizer": "bert", "GPT2Tokenizer": "gpt2", "RobertaTokenizer": "roberta", "Qwen2Tokenizer": "qwen2",
              "LlamaTokenizer": "llama", "XLMRobertaTokenizer": "xlmr", "PreTrainedTokenizerFast": "llama3"}
SETTINGS = {
    "do_lower_case": [True, False], "strip_accents": [True, False, None], "tokenize_chinese_chars": [True, False], "add_prefix_space": [True, False, None],
    "pad_token": ["<new>", None], "unk_token": [{"content": "<other>", "lstrip": True}], "mask_token": ["<mask>"], "voice_token": ["<voice>"],
    "additional_special_tokens": [["<x>"], []], "extra_special_tokens": [["<x>"], {"a_token": "<x>"}], "split_special_tokens": [True],
    "truncation_side": ["left", "right"], "padding_side": ["left"], "model_max_length": [5], "clean_up_tokenization_spaces": [True], "errors": ["ignore"],
    "chat_template": ["x"], "add_bos_token": [True, False], "add_eos_token": [True], "surprise_of_nobody": [1], "auto_map": [{"AutoTokenizer": ["x.Y", None]}],
    "never_split": [["the"]], "fix_mistral_regex": [True], "max_length": [3], "stride": [1], "use_fast": [False], "sp_model_kwargs": [{}],
    "spaces_between_special_tokens": [True], "model_input_names": [["input_ids"]], "added_tokens_decoder": [{}, {"3": {"content": "the", "special": True}}]}
PLAIN = ["The quick brown Fox, ÜNAL and whole e\u0301 ", "  whole\n\n<mask> 漢字 don't 3.14 [MASK] <unk>", "ing", ""]


class Tokenizer:
    """A tokenizer of transformers in a folder, and ours of the same."""

    def __init__(self, binaries, folder, kind, name):
        import make_tokens
        import transformers
        self.binaries, self.folder, self.transformers = binaries, folder, transformers
        os.makedirs(f"{folder}/given")
        with open(os.path.join(make_tokens.FOLDER, name + ".json"), encoding="utf-8") as f, open(f"{folder}/given/tokenizer.json", "w", encoding="utf-8") as to:
            to.write(f.read())
        with open(f"{folder}/given/tokenizer_config.json", "w") as f:
            json.dump({"tokenizer_class": kind, "do_lower_case": True} if name == "bert" else {"tokenizer_class": kind}, f)
        getattr(transformers, kind).from_pretrained(f"{folder}/given").save_pretrained(f"{folder}/saved")
        self.kind, self.texts = kind, []
        for i, text in enumerate(PLAIN):
            self.texts.append(f"{folder}/text{i}")
            with open(self.texts[-1], "w", encoding="utf-8", newline="") as f:
                f.write(text)
        with open(f"{folder}/saved/tokenizer_config.json") as f:
            self.base = json.load(f)

    def judge(self, key, value):
        """What became of a value, and why that is wrong."""
        with open(f"{self.folder}/saved/tokenizer_config.json", "w") as f:
            json.dump({**self.base, key: value} if key else self.base, f)
        done = subprocess.run([f"{self.binaries}/parity/print_tokens", f"{self.folder}/saved/tokenizer.json", "--ends", "auto", *self.texts],
                              capture_output=True, text=True)
        if done.returncode:
            return "tokenizers refused", None if key and key in done.stderr else f"does not name the key: {done.stderr}"
        try:
            peer = getattr(self.transformers, self.kind).from_pretrained(f"{self.folder}/saved")
            want = [peer(text)["input_ids"] for text in PLAIN]
        except Exception:  # noqa: BLE001
            return "tokenizers refused by transformers alone", None
        ours = [list(map(int, line.split())) for line in done.stdout.split("\n")[:len(PLAIN)]]
        return "tokenizers equal", None if ours == want else f"{ours}, not {want}"


def check_tokenizers(binaries):
    sys.path.insert(0, os.path.join(HERE, "../golden"))
    bad = 0
    for kind, name in TOKENIZERS.items():
        with tempfile.TemporaryDirectory() as folder:
            t = Tokenizer(binaries, folder, kind, name)
            for key, values in {None: [None], **{k: [v] for k, v in t.base.items()}, **SETTINGS}.items():
                for value in values:
                    outcome, wrong = t.judge(key, value)
                    counts[outcome] += 1
                    if wrong:
                        bad += 1
                        print(f"    OVER: {kind}: {key} = {json.dumps(value)}: {outcome}, {wrong}", flush=True)
    return bad


def check(job):
    """(values that are wrong, outcomes, lines) of a family or of other files."""
    binaries, family = job
    import torch
    torch.set_num_threads(1)
    counts.clear()
    lines = io.StringIO()
    with subprocess.Popen([f"{binaries}/parity/hf_keys"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as ours:
        def asked(line):
            ours.stdin.write(line + "\n")
            ours.stdin.flush()
            return ours.stdout.readline().rstrip("\n")

        others = {"peft": lambda: check_peft(asked), "files": lambda: check_files(binaries, asked), "tokenizers": lambda: check_tokenizers(binaries)}
        with contextlib.redirect_stdout(lines):
            bad = others[family]() if family in others else check_family(binaries, family, asked)
        ours.stdin.close()
    return bad, dict(counts), lines.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("families", nargs="*", help="of " + ", ".join([*hf.HEADS, *OTHERS]))
    args = parser.parse_args()
    bad, outcomes = 0, collections.Counter()
    with multiprocessing.get_context("fork").Pool() as pool:  # a process for each core
        for wrong, of_one, lines in pool.imap_unordered(check, [(args.out, f) for f in args.families or [*OTHERS, *hf.HEADS]], chunksize=1):
            print(lines, end="", flush=True)
            bad += wrong
            outcomes.update(of_one)
    n = sum(outcomes.values())
    for what, count in sorted(outcomes.items()):
        print(f"   {count} {what}")
    print(f"{n - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    hf.in_environment("peft")
    sys.exit(main())
