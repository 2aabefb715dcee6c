#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make hf-parity`: models of Hugging Face's transformers, and ours from the config.json that they
write: outputs and gradients of each tensor, and steps of AdamW, each from equal state.

Every family on 40 small random configs (HF_CONFIGS), its heads in turn. The first of each head
takes 100 steps, all others 3, of which the parameters are compared instead of the updates. Ours in
f32 is compared with theirs in float64. Of the first step ours in f64 is, too, and ours in f32 over
packed sequences; and the model cut in two has the bits of one part, padded and packed. Samples have
lengths of their own, 1 and all among them; at places behind them nothing is compared, and the loss
has no gradient. PyTorch and transformers come from PyPI, into build/transformers. Names of families
take these alone.
"""
import argparse
import collections
import contextlib
import importlib.metadata
import io
import math
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
import pypi  # noqa: E402

ENVIRONMENT = os.path.abspath(os.path.join(HERE, "../../build/transformers"))
STEPS, LIMIT, ZERO, ROUNDED, TWICE = 100, 1e-4, 1e-6, 1e-5, 2.0
# Biases of keys that no rotation follows. One adds the same number to all scores of a query, which
# softmax does not see.
UNSEEN = re.compile(r"attention\..*\b(key|k_lin)\.bias$|c_attn\.bias \(keys\)$")
FIGURES = ("output", "gradient", "update", "f64 output", "f64 gradient", "packed output", "packed gradient")
RATE, DECAY, BETAS, EPS = 1e-3, 0.01, (0.9, 0.999), 1e-8  # as hf_step.c has them
N, PLACES = 3, 11

by_rule = collections.Counter()  # tensors of a figure by the rule that they keep to
counts = collections.Counter()  # cuts that were compared

HEADS = {
    "bert": {"none": "BertModel", "sequence": "BertForSequenceClassification",
             "token": "BertForTokenClassification", "masked": "BertForMaskedLM"},
    "layoutlm": {"none": "LayoutLMModel", "sequence": "LayoutLMForSequenceClassification",
                 "token": "LayoutLMForTokenClassification", "masked": "LayoutLMForMaskedLM"},
    "roberta": {"none": "RobertaModel", "sequence": "RobertaForSequenceClassification",
                "token": "RobertaForTokenClassification", "masked": "RobertaForMaskedLM"},
    "xlm-roberta": {"none": "XLMRobertaModel", "sequence": "XLMRobertaForSequenceClassification",
                    "token": "XLMRobertaForTokenClassification", "masked": "XLMRobertaForMaskedLM"},
    "camembert": {"none": "CamembertModel", "sequence": "CamembertForSequenceClassification",
                  "token": "CamembertForTokenClassification", "masked": "CamembertForMaskedLM"},
    "distilbert": {"none": "DistilBertModel", "sequence": "DistilBertForSequenceClassification",
                   "token": "DistilBertForTokenClassification", "masked": "DistilBertForMaskedLM"},
    "gpt2": {"none": "GPT2Model", "sequence": "GPT2ForSequenceClassification",
             "token": "GPT2ForTokenClassification", "causal": "GPT2LMHeadModel"},
    "llama": {"none": "LlamaModel", "sequence": "LlamaForSequenceClassification",
              "token": "LlamaForTokenClassification", "causal": "LlamaForCausalLM"},
    "qwen2": {"none": "Qwen2Model", "sequence": "Qwen2ForSequenceClassification",
              "token": "Qwen2ForTokenClassification", "causal": "Qwen2ForCausalLM"},
    "mistral": {"none": "MistralModel", "sequence": "MistralForSequenceClassification",
                "token": "MistralForTokenClassification", "causal": "MistralForCausalLM"},
    "qwen3": {"none": "Qwen3Model", "sequence": "Qwen3ForSequenceClassification",
              "token": "Qwen3ForTokenClassification", "causal": "Qwen3ForCausalLM"},
    "phi3": {"none": "Phi3Model", "sequence": "Phi3ForSequenceClassification",
             "token": "Phi3ForTokenClassification", "causal": "Phi3ForCausalLM"},
    "vit": {"none": "ViTModel", "sequence": "ViTForImageClassification"},
}
CONFIGS = {"bert": "BertConfig", "layoutlm": "LayoutLMConfig", "roberta": "RobertaConfig",
           "gpt2": "GPT2Config", "llama": "LlamaConfig", "qwen2": "Qwen2Config", "vit": "ViTConfig",
           "xlm-roberta": "XLMRobertaConfig", "camembert": "CamembertConfig",
           "distilbert": "DistilBertConfig", "mistral": "MistralConfig", "qwen3": "Qwen3Config",
           "phi3": "Phi3Config"}
LLAMAS, ROBERTAS = ("llama", "mistral", "qwen2", "qwen3", "phi3"), ("roberta", "xlm-roberta", "camembert")


def no_dropout(family):
    if family == "gpt2":
        return {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "classifier_dropout": 0}
    if family in LLAMAS:
        return {"attention_dropout": 0, "classifier_dropout": 0, **({"resid_pdrop": 0} if family == "phi3" else {})}
    if family == "distilbert":
        return {"dropout": 0, "attention_dropout": 0, "seq_classif_dropout": 0}
    return {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


def sizes(family, rng):
    """A small config of its own for each seed."""
    heads = rng.choice((1, 2, 3, 4))
    hidden, inner, layers = heads * rng.choice((4, 6, 8)), rng.choice((24, 40)), rng.choice((1, 2, 3))
    # no relu: a value near 0 falls either way
    act = rng.choice(("gelu", "gelu_new", "silu", "gelu_pytorch_tanh", "tanh", "sigmoid"))
    eps = rng.choice((1e-12, 1e-5, 1e-3))
    if family == "gpt2":
        return {"vocab_size": 61, "n_embd": hidden, "n_head": heads, "n_layer": layers,
                "n_inner": rng.choice((None, inner)), "n_positions": PLACES + 3,
                "activation_function": act, "pad_token_id": rng.choice((0, 7)),
                "layer_norm_epsilon": eps, "tie_word_embeddings": False}
    common = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers,
              "intermediate_size": inner}
    if family == "vit":
        return {**common, "image_size": 12, "patch_size": rng.choice((3, 4, 6)),
                "num_channels": rng.choice((1, 3)), "hidden_act": act, "layer_norm_eps": eps,
                "qkv_bias": rng.choice((True, False))}
    common.update({"vocab_size": 61, "max_position_embeddings": PLACES + 4, "pad_token_id": rng.choice((0, 7))})
    if family in LLAMAS:
        common.update({"num_key_value_heads": rng.choice([n for n in (1, 2, heads) if heads % n == 0]), "tie_word_embeddings": False, "hidden_act": act,
                       "rms_norm_eps": rng.choice((1e-6, 1e-5, 1e-3)), "rope_parameters": rope(rng) if family != "phi3" else {"rope_type": "default", "rope_theta": 100.0}})
        if family in ("llama", "qwen3"):
            common["attention_bias"] = rng.choice((True, False))
        if family == "llama":
            common["mlp_bias"] = rng.choice((True, False))
        if family not in ("qwen2", "phi3"):
            common["head_dim"] = rng.choice((None, 6)) if family != "qwen3" else rng.choice((4, 6, 8))
        if family in ("mistral", "phi3"):
            common["sliding_window"] = rng.choice((None, PLACES, PLACES + 1, 4096))
            return common
        return {k: v for k, v in common.items() if v is not None}
    if family == "distilbert":
        return {"dim": hidden, "n_heads": heads, "n_layers": layers, "hidden_dim": inner, "activation": act,
                "vocab_size": 61, "max_position_embeddings": PLACES, "pad_token_id": common["pad_token_id"], "tie_word_embeddings": False}
    if family in ROBERTAS:
        common["pad_token_id"] = rng.choice((1, 0, 2))
    if family == "layoutlm":
        common["max_2d_position_embeddings"] = 40
    return {**common, "hidden_act": act, "type_vocab_size": rng.choice((1, 2)), "layer_norm_eps": eps,
            "tie_word_embeddings": False}


def rope(rng):
    """Positions of each kind: lengths of PLACES are within the limit of dynamic ones."""
    theta = {"rope_theta": rng.choice((100.0, 10000.0))}
    return {**theta, **rng.choice((
        {"rope_type": "default"}, {"rope_type": "linear", "factor": rng.choice((2.0, 1.5))},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "llama3", "factor": rng.choice((8.0, 2.0)), "low_freq_factor": rng.choice((1.0, 0.5)),
         "high_freq_factor": rng.choice((4.0, 1.5)), "original_max_position_embeddings": rng.choice((8, 30))}))}


def saved_names(family, names):
    """In memory transformers 5 calls some parameters of ViT otherwise than in files. The bias of a
    tied decoder is the head's there, and the decoder's here."""
    if family != "vit":
        ours = {n: re.sub(r"^(cls\.predictions|lm_head)\.bias$", r"\1.decoder.bias", n) for n in names}
        has_table = any(n.endswith("word_embeddings.weight") for n in names)
        if family in ROBERTAS and "lm_head.decoder.weight" in names and not has_table:
            # tied: the head comes first
            ours["lm_head.decoder.weight"] = "roberta.embeddings.word_embeddings.weight"
        return ours if len(set(ours.values())) == len(ours) else {n: n for n in names}
    pairs = (("layers.", "encoder.layer."), ("attention.q_proj", "attention.attention.query"),
             ("attention.k_proj", "attention.attention.key"),
             ("attention.v_proj", "attention.attention.value"),
             ("attention.o_proj", "attention.output.dense"), ("mlp.fc1", "intermediate.dense"),
             ("mlp.fc2", "output.dense"))
    found = {}
    for name in names:
        found[name] = name
        for inner, file in pairs:
            found[name] = found[name].replace(inner, file)
    return found


def samples(family, head, config, rng, n=N, places=PLACES):
    """(inputs of ours, arguments of theirs). Pads are among the real tokens too, where a family
    does not look for them: they have no gradient. One sample has all places, others often one."""
    import torch
    if family == "vit":
        side = config.image_size
        x = torch.randn(n, config.num_channels, side, side)
        return {"input.pixels": x}, {"pixel_values": x}
    lengths = [places] + [rng.choice((1, rng.randrange(1, places + 1), rng.randrange(1, places + 1))) for _ in range(n - 1)]
    rng.shuffle(lengths)
    lengths = torch.tensor(lengths)
    looks = family in ROBERTAS or (head == "sequence" and family in ("gpt2", *LLAMAS))
    ids = torch.randint(0, config.vocab_size if looks else 9, (n, places))
    if looks:
        ids[ids == config.pad_token_id] = config.vocab_size - 1
    mask = torch.arange(places)[None] < lengths[:, None]
    ids[~mask] = config.pad_token_id if config.pad_token_id is not None else 0
    ours = {"input.ids": ids, "input.lengths": lengths}
    theirs = {"input_ids": ids, "attention_mask": mask.long()}
    if family == "layoutlm":
        most = config.max_2d_position_embeddings
        begin = torch.randint(0, most // 2, (n, places, 2))
        boxes = torch.cat((begin, begin + torch.randint(0, most // 2, (n, places, 2))), 2)
        boxes[~mask] = 0
        ours["input.boxes"], theirs["bbox"] = boxes, boxes
    return ours, theirs


def target_loss(y, mask, seed):
    """Squares from a random target at real places alone: every output gets a gradient."""
    import torch
    g = torch.Generator().manual_seed(seed)
    d = (y - torch.randn(y.shape, generator=g)) ** 2
    if mask is not None and y.dim() == 3:
        return (d * mask[..., None]).sum() / (mask.sum() * y.shape[2])
    return d.mean()


def output_of(net, theirs):
    out = net(**theirs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def model_of(family, head, seed, tied=False):
    import torch
    import transformers
    rng = random.Random(f"{family} {head} {seed}")
    torch.manual_seed(seed)
    given = sizes(family, rng)
    if tied:
        given["tie_word_embeddings"] = True
    labels = rng.choice((3, 5))
    config = getattr(transformers, CONFIGS[family])(**given, **no_dropout(family), num_labels=labels,
                                                    initializer_range=0.15)
    config._attn_implementation = "eager"
    net = getattr(transformers, HEADS[family][head])(config).train()
    with torch.no_grad():  # so that biases and norms are seen, too
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape)
    return net, config, rng, labels


class Exact:
    """The same model in float64, which tells how much of a difference is rounding."""

    def __init__(self, net, config, family):
        import copy
        self.net = copy.deepcopy(net).double()
        self.names = saved_names(family, [n for n, _ in self.net.named_parameters()])

    def step(self, state, theirs, dy, moments, t):
        """(y, gradients, parameters behind the step) from the same numbers of 32 bits."""
        import torch
        params = {self.names[n]: p for n, p in self.net.named_parameters()}
        with torch.no_grad():
            for name, p in params.items():
                p.copy_(state[name])
                p.grad = None
        given = {k: v.double() if v.is_floating_point() else v for k, v in theirs.items()}
        y = output_of(self.net, given)
        y.backward(dy.double())
        grads = {n: p.grad.clone() if p.grad is not None else torch.zeros_like(p) for n, p in params.items()}
        after = {n: adamw(p.detach(), grads[n], *(m[n].double() for m in moments), t) for n, p in params.items()}
        return y.detach(), grads, after


def adamw(p, g, m, v, t):
    """torch.optim.AdamW's formula, of step t = 1, 2, ..."""
    m, v = m + (g - m) * (1 - BETAS[0]), v * BETAS[1] + g * g * (1 - BETAS[1])
    return p * (1 - RATE * DECAY) - RATE * (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt() + EPS)


def run_steps(net, config, family, head, rng, folder, steps, size):
    """Files of PyTorch's steps, and of each step what PyTorch has in both precisions."""
    import torch
    from safetensors.torch import save_file
    names = saved_names(family, [n for n, _ in net.named_parameters()])
    opt = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    exact, found = Exact(net, config, family), []
    for step in range(steps):
        ours, theirs = samples(family, head, config, rng, *size)
        opt.zero_grad()
        mask = theirs.get("attention_mask")
        y = output_of(net, theirs)
        y.retain_grad()
        target_loss(y, mask, step).backward()
        state = {names[n]: p.detach().clone() for n, p in net.named_parameters()}
        grads = {names[n]: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        given = {**state, **ours, "dy": y.grad, "step": torch.tensor([step])}
        moments = []
        for moment in ("exp_avg", "exp_avg_sq"):
            moments.append({names[n]: opt.state.get(p, {}).get(moment, torch.zeros_like(p)).clone()
                            for n, p in net.named_parameters()})
            given.update({f"{moment}.{n}": v for n, v in moments[-1].items()})
        save_file({k: v.contiguous() for k, v in given.items()}, os.path.join(folder, f"{step}.in"))
        exactly = exact.step(state, theirs, y.grad, moments, step + 1)
        opt.step()
        after = {names[n]: p.detach().clone() for n, p in net.named_parameters()}
        found.append({"mask": mask, "y": y.detach(), "grads": grads, "before": state, "after": after, "exact": exactly})
    return found


def apart(a, b):
    import torch
    return torch.linalg.norm(a.double() - b.double()).item()


def parts_of(name, value):
    """GPT-2 has the biases of queries, keys and values in one tensor, and the second is another
    matter."""
    if not name.endswith("c_attn.bias"):
        return [(name, value)]
    return [(f"{name} ({what})", v) for what, v in zip(("queries", "keys", "values"), value.chunk(3))]


def figures_of(step, out, few):
    """(figure, tensor) -> (ours, theirs, exactly) of one step. Updates are differences, but of a
    few steps the parameters behind them: Adam's first steps move an element whose gradient is
    rounding by a whole step in either direction, and chance decides how many there are."""
    import torch
    y64, grads64, after64 = step["exact"]
    real = step["mask"].bool() if step["mask"] is not None and y64.dim() == 3 else slice(None)
    rows = {("output", ""): (out["y"][real], step["y"][real], y64[real])}
    ours = [n[5:] for n in out if n.startswith("grad.")]
    assert set(ours) <= set(step["before"]), sorted(set(ours) - set(step["before"]))
    missing = {n for n, g in step["grads"].items() if n not in ours and torch.any(g != 0)}
    assert not missing, sorted(missing)
    for n in ours:
        grads = (out["grad." + n], step["grads"][n], grads64[n])
        steps = (v.double() - (0 if few else step["before"][n].double()) for v in (out["after." + n], step["after"][n], after64[n]))
        for figure, values in (("gradient", grads), ("update", steps)):
            for (part, a), (_, b), (_, c) in zip(*(parts_of(n, v) for v in values)):
                rows[figure, part] = (a, b, c)
    return rows


class Tensor:
    """One tensor of one figure over all steps. It is judged by the first of these rules that fits:

    near     in each step within 1e-4 of PyTorch in float64, by norm
    zero     its gradient is 0 but for rounding: that of float64 is below 1e-6 of float32's, or it
    is
             an UNSEEN bias and both are below 1e-5 of the model's largest gradient. Ours has to be
             below 1e-4 of that, and 1e-5 of an UNSEEN bias; the step along it has the sign of
             rounding, and is named and not judged.
             Where transformers rounds to float32 in float64 too, as in a softmax, ours in f64 shows
             it, and theirs has to be below 1e-5 of the largest gradient
    float64  over all steps at most twice as far from PyTorch in float64 as PyTorch's float32 is. A
             step of 1e-3 along a weight of 1 has a digit less than the weight. Ours in f64 has no
             such rule
    """

    def __init__(self, figure, name):
        self.figure, self.name = figure, name
        self.worst, self.share, self.ours, self.theirs, self.norms = 0.0, 0.0, 0.0, 0.0, [0.0, 0.0]
        self.steps = self.zero_steps = 0

    def add(self, ours, theirs, exactly, largest=math.inf):
        norm, exact, own = length(theirs), length(exactly), length(ours)
        self.steps += 1
        if self.has_no_gradient(norm, exact, own, largest):
            self.zero_steps += 1
            self.share = max(self.share, own / largest)
        else:
            self.worst = max(self.worst, apart(ours, exactly) / (exact or 1))
        self.ours, self.theirs = self.ours + apart(ours, exactly) ** 2, self.theirs + apart(theirs, exactly) ** 2
        self.norms = [self.norms[0] + norm ** 2, self.norms[1] + exact ** 2]

    def has_no_gradient(self, norm, exact, own, largest):
        """Whether a gradient is 0 but for rounding in a step, as those of queries are where every
        sample has one place."""
        if not self.figure.endswith("gradient"):
            return False
        if UNSEEN.search(self.name) and max(exact, norm) < ROUNDED * largest:
            return True
        return exact < ZERO * norm or (self.figure == "f64 gradient" and own < ZERO * norm and norm < ROUNDED * largest)

    def ratio(self):
        """How far ours is from float64, by how far PyTorch's float32 is; by squares over the
        steps."""
        return math.sqrt(self.ours / self.theirs) if self.theirs else math.inf if self.ours else 0.0

    def is_zero(self):
        return self.zero_steps > 0

    def rule(self, zeros):
        """The rule that it keeps to; None: it does not."""
        if self.zero_steps and self.share > (ROUNDED if UNSEEN.search(self.name) else LIMIT):
            return None
        if self.worst <= LIMIT:
            return "zero" if self.steps == self.zero_steps else "near"
        if self.figure == "update" and self.name in zeros:
            return "zero"
        return "float64" if self.ratio() <= TWICE and not self.figure.startswith("f64") else None


def zero_names(tensors):
    """Names whose gradient was zero in a step, along which the update is rounding."""
    return {t.name for t in tensors if t.figure == "gradient" and t.is_zero()}


def together(tensors, alone, zeros):
    """Updates of which one tensor alone keeps to no rule are judged as one vector of all that are
    not zero. The first step of Adam moves an element whose gradient is rounding by a whole step, in
    either direction; there are few, and chance decides in which tensors they are."""
    if len(alone) == len(tensors):
        return []
    for t in set(tensors) - set(alone):
        print(f"    not alone: update of {t.name}: {t.worst:.1e} from PyTorch's, {t.ratio():.2f} times as far from float64")
    every, of = Tensor("update", "all parameters together"), [t for t in tensors if t.figure == "update" and t.name not in zeros]
    every.worst = math.sqrt(sum((t.worst * n) ** 2 for t, n in ((t, math.sqrt(t.norms[0])) for t in of)) / sum(t.norms[0] for t in of))
    every.ours, every.theirs = sum(t.ours for t in of), sum(t.theirs for t in of)
    return [every]


def length(a):
    import torch
    return torch.linalg.norm(a.double()).item()


def figures_of_ways(step, out):
    """(figure, tensor) -> (ours, theirs, exactly) of ours in f64 and over packed sequences."""
    y64, grads64, _ = step["exact"]
    rows = {}
    for way in ("f64", "packed"):
        if f"{way}.y" not in out:
            continue
        mask = step["mask"].bool() if step["mask"] is not None and y64.dim() == 3 else slice(None)
        ours = out[f"{way}.y"] if way == "packed" else out[f"{way}.y"][mask]
        rows[f"{way} output", ""] = (ours, step["y"][mask], y64[mask])
        for n, g in step["grads"].items():
            for (part, a), (_, b), (_, c) in zip(*(parts_of(n, v) for v in (out[f"{way}.grad.{n}"], g, grads64[n]))):
                rows[f"{way} gradient", part] = (a, b, c)
    return rows


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compare(binaries, family, head, seed, steps, tied=False):
    """Every tensor of every figure."""
    import torch
    from safetensors.torch import load_file
    size = random.Random(f"{family} {head} {seed} size")
    size = size.choice((N, N, N + 1, 1)), size.choice((PLACES, PLACES, 7, 2, 1))
    with tempfile.TemporaryDirectory() as folder:
        net, config, rng, labels = model_of(family, head, seed, tied)
        config.save_pretrained(folder)
        found = run_steps(net, config, family, head, rng, folder, steps, size)
        files = [os.path.join(folder, f"{k}.{end}") for k in range(steps) for end in ("in", "out")]
        run([f"{binaries}/hf_step", folder, head, str(labels), *files])
        cuts = run([f"{binaries}/hf_ways", folder, head, str(labels), str(seed), files[0], f"{folder}/ways"])
        counts["cuts"] += int(cuts.split()[0])
        first, ways, tensors = load_file(files[1]), load_file(f"{folder}/ways"), {}
        assert torch.equal(first["y"], ways["padded.y"]), "two programs have other bits of one model"
        rows = figures_of_ways(found[0], ways)
        largest = max(length(theirs) for (figure, _), (_, theirs, _) in rows.items() if figure == "f64 gradient")
        for key, row in rows.items():
            tensors[key] = Tensor(*key)
            tensors[key].add(*row, largest)
        for k in range(steps):
            rows = figures_of(found[k], load_file(files[2 * k + 1]), steps < STEPS)
            largest = max(length(theirs) for (figure, _), (_, theirs, _) in rows.items() if figure == "gradient")
            for key, row in rows.items():
                tensors.setdefault(key, Tensor(*key)).add(*row, largest)
    found = list(tensors.values())
    zeros = zero_names(found)
    alone = [t for t in found if t.figure != "update" or t.rule(zeros)]
    return [*alone, *together(found, alone, zeros)]


def print_case(family, head, tensors):
    """A line of the worst that are near, and one for each tensor that another rule has to judge."""
    zeros, parts = zero_names(tensors), []
    by_rule.update((t.figure, t.rule(zeros)) for t in tensors)
    rules = {t: t.rule(zeros) for t in tensors}
    for figure in FIGURES:
        of = [t for t in tensors if t.figure == figure]
        if not of:
            continue
        count = {rule: sum(rules[t] == rule for t in of) for rule in ("near", "zero", "float64")}
        others = "".join(f", {n} {rule}" for rule, n in count.items() if n and rule != "near")
        parts.append(f"{figure} {max((t.worst for t in of if rules[t] == 'near'), default=0):.1e} ({count['near']} near{others})")
    print(f"{family:<9} {head:<11} " + "  ".join(parts), flush=True)
    for t, rule in rules.items():
        if rule != "near":
            print(f"    {rule or 'OVER'}: {t.figure} of {t.name}: {t.worst:.1e} from PyTorch's, {t.ratio():.2f} times as far from float64", flush=True)
    return all(rules.values())


def run_config(job):
    """(whether it is well, its lines, tensors by rule, cuts) of one config."""
    import torch
    torch.set_num_threads(1)
    binaries, family, head, seed, steps, tied = job
    by_rule.clear()
    counts.clear()
    lines, good = io.StringIO(), False
    with contextlib.redirect_stdout(lines):
        try:
            good = print_case(family, head + " tied" * tied, compare(binaries, family, head, seed, steps, tied))
        except AssertionError as wrong:
            print(f"    OVER: {family} {head} {seed}: {wrong}")
    return good, lines.getvalue(), dict(by_rule), counts["cuts"]


def jobs_of(families, a):
    """The first config of each head takes all steps. Every other one of a head that may share its
    table does."""
    for family in families:
        heads = list(HEADS[family])
        for i in range(a.configs):
            head, seed = heads[i % len(heads)], i // len(heads)
            yield f"{a.out}/parity", family, head, seed, min(a.steps, 3) if seed else a.steps, head in ("masked", "causal") and seed % 2 == 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--steps", type=int, default=STEPS)
    p.add_argument("--configs", type=int, default=40, help="of each family; the first of each head takes --steps, the others 3")
    p.add_argument("family", nargs="*")
    a = p.parse_args()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    print(f"{versions}; largest of {a.steps} steps")
    results, families, rules, n_cuts = [], a.family or list(HEADS), collections.Counter(), 0
    with multiprocessing.get_context("fork").Pool() as pool:  # a process for each core
        for good, lines, of_rules, cuts in pool.imap(run_config, jobs_of(families, a)):
            print(lines, end="", flush=True)
            results.append(good)
            rules.update(of_rules)
            n_cuts += cuts
    print(f"{len(results)} configs of {len(families)} families, {n_cuts} cuts with the bits of one part")
    for figure in FIGURES:
        print(f"   {figure}: " + ", ".join(f"{n} {rule}" for (of, rule), n in sorted(rules.items(), key=str) if of == figure))
    failed = results.count(False)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


def in_environment(*more):
    """Goes on in the environment, which is made first; `more` packages than this file needs."""
    python, packages = pypi.interpreter(ENVIRONMENT), ("torch", "transformers", "safetensors", *more)
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")
    if os.path.abspath(sys.prefix) == ENVIRONMENT:
        return
    wrong = None if pypi.works(ENVIRONMENT, *packages) else pypi.install(ENVIRONMENT, *packages, "numpy")
    if wrong:
        sys.exit(wrong)
    os.execv(python, [python, *sys.argv])


if __name__ == "__main__":
    in_environment()
    sys.exit(main())
