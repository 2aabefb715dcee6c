#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make hf-parity`: models of Hugging Face's transformers, and ours from the config.json that they
write: outputs and gradients of each tensor, and 100 steps of AdamW, each from equal state.

Every family with every head it has here, on small random configs. Samples have lengths of their
own; at places behind them nothing is compared, and the loss has no gradient. PyTorch and
transformers come from PyPI, into build/transformers. Names of families take these alone.
"""
import argparse
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
STEPS, OUTPUT_LIMIT, GRADIENT_LIMIT, UPDATE_LIMIT = 100, 1e-5, 1e-4, 1e-3
RATE, DECAY = 1e-3, 0.01  # as hf_step.c has them
N, PLACES = 3, 11

HEADS = {
    "bert": {"none": "BertModel", "sequence": "BertForSequenceClassification",
             "token": "BertForTokenClassification", "masked": "BertForMaskedLM"},
    "layoutlm": {"none": "LayoutLMModel", "sequence": "LayoutLMForSequenceClassification",
                 "token": "LayoutLMForTokenClassification", "masked": "LayoutLMForMaskedLM"},
    "roberta": {"none": "RobertaModel", "sequence": "RobertaForSequenceClassification",
                "token": "RobertaForTokenClassification", "masked": "RobertaForMaskedLM"},
    "gpt2": {"none": "GPT2Model", "sequence": "GPT2ForSequenceClassification",
             "token": "GPT2ForTokenClassification", "causal": "GPT2LMHeadModel"},
    "llama": {"none": "LlamaModel", "sequence": "LlamaForSequenceClassification",
              "token": "LlamaForTokenClassification", "causal": "LlamaForCausalLM"},
    "qwen2": {"none": "Qwen2Model", "sequence": "Qwen2ForSequenceClassification",
              "token": "Qwen2ForTokenClassification", "causal": "Qwen2ForCausalLM"},
    "vit": {"none": "ViTModel", "sequence": "ViTForImageClassification"},
}
CONFIGS = {"bert": "BertConfig", "layoutlm": "LayoutLMConfig", "roberta": "RobertaConfig",
           "gpt2": "GPT2Config", "llama": "LlamaConfig", "qwen2": "Qwen2Config", "vit": "ViTConfig"}


def no_dropout(family):
    if family == "gpt2":
        return {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "classifier_dropout": 0}
    if family in ("llama", "qwen2"):
        return {"attention_dropout": 0, "classifier_dropout": 0}
    return {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


def sizes(family, rng):
    """A small config of its own for each seed."""
    heads = rng.choice((2, 4))
    hidden, inner, layers = heads * rng.choice((4, 6, 8)), rng.choice((24, 40)), rng.choice((1, 2, 3))
    act = rng.choice(("gelu", "gelu_new", "silu"))  # no relu: a value near 0 falls either way
    if family == "gpt2":
        return {"vocab_size": 61, "n_embd": hidden, "n_head": heads, "n_layer": layers,
                "n_inner": rng.choice((None, inner)), "n_positions": PLACES + 3,
                "activation_function": act, "pad_token_id": 0,
                "tie_word_embeddings": False}
    common = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers,
              "intermediate_size": inner}
    if family == "vit":
        return {**common, "image_size": 12, "patch_size": rng.choice((3, 4)),
                "num_channels": rng.choice((1, 3)), "hidden_act": act,
                "qkv_bias": rng.choice((True, False))}
    common.update({"vocab_size": 61, "max_position_embeddings": PLACES + 4, "pad_token_id": 0})
    if family in ("llama", "qwen2"):
        common.update({"num_key_value_heads": rng.choice((1, heads)), "tie_word_embeddings": False,
                       "rope_parameters": {"rope_type": "default",
                                           "rope_theta": rng.choice((100.0, 10000.0))}})
        if family == "llama":
            common.update({"attention_bias": rng.choice((True, False)),
                           "mlp_bias": rng.choice((True, False)), "head_dim": rng.choice((None, 6))})
        return {k: v for k, v in common.items() if v is not None}
    if family == "roberta":
        common["pad_token_id"] = 1
    if family == "layoutlm":
        common["max_2d_position_embeddings"] = 40
    return {**common, "hidden_act": act, "type_vocab_size": rng.choice((1, 2)),
            "tie_word_embeddings": False}


def saved_names(family, names):
    """In memory transformers 5 calls some parameters of ViT otherwise than in files."""
    if family != "vit":
        return {n: n for n in names}
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


def samples(family, config, rng):
    """(inputs of ours, arguments of theirs): tokens never are the padding, as it has no
    gradient."""
    import torch
    if family == "vit":
        side = config.image_size
        x = torch.randn(N, config.num_channels, side, side)
        return {"input.pixels": x}, {"pixel_values": x}
    lengths = torch.tensor([PLACES] + [rng.randrange(1, PLACES + 1) for _ in range(N - 1)])
    ids = torch.randint(2, config.vocab_size, (N, PLACES))
    mask = torch.arange(PLACES)[None] < lengths[:, None]
    ids[~mask] = config.pad_token_id
    ours = {"input.ids": ids, "input.lengths": lengths}
    theirs = {"input_ids": ids, "attention_mask": mask.long()}
    if family == "layoutlm":
        most = config.max_2d_position_embeddings
        begin = torch.randint(0, most // 2, (N, PLACES, 2))
        boxes = torch.cat((begin, begin + torch.randint(0, most // 2, (N, PLACES, 2))), 2)
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


def run_steps(net, config, family, rng, folder, steps):
    """Files of PyTorch's steps: [(given, mask, y, grads, before, after)]."""
    import torch
    from safetensors.torch import save_file
    names = saved_names(family, [n for n, _ in net.named_parameters()])
    opt = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    found = []
    for step in range(steps):
        ours, theirs = samples(family, config, rng)
        opt.zero_grad()
        mask = theirs.get("attention_mask")
        y = output_of(net, theirs)
        y.retain_grad()
        target_loss(y, mask, step).backward()
        state = {names[n]: p.detach().clone() for n, p in net.named_parameters()}
        grads = {names[n]: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        given = {**state, **ours, "dy": y.grad, "step": torch.tensor([step])}
        for n, p in net.named_parameters():
            kept = opt.state.get(p, {})
            for moment in ("exp_avg", "exp_avg_sq"):
                given[f"{moment}.{names[n]}"] = kept.get(moment, torch.zeros_like(p)).clone()
        save_file({k: v.contiguous() for k, v in given.items()}, os.path.join(folder, f"{step}.in"))
        opt.step()
        after = {names[n]: p.detach().clone() for n, p in net.named_parameters()}
        found.append((mask, y.detach(), grads, state, after))
    return found


def relative(ours, theirs):
    import torch
    far = torch.linalg.norm(ours.double() - theirs.double()).item()
    norm = torch.linalg.norm(theirs.double()).item()
    return far / norm if norm else far


def masked_relative(ours, theirs, mask):
    if mask is not None and theirs.dim() == 3:
        return relative(ours[mask.bool()], theirs[mask.bool()])
    return relative(ours, theirs)


def gradient_error(name, ours, theirs, largest):
    """Of one tensor, by its norm. Softmax does not see the bias of keys: its gradient is zero but
    for rounding, and is judged by the largest gradient."""
    import torch
    far = torch.linalg.norm(ours.double() - theirs.double()).item()
    nothing = re.search(r"\b(key|k_proj)\.bias$", name)
    return far / (largest if nothing else torch.linalg.norm(theirs.double()).item() or largest)


def without_keys(name, value):
    """Of a bias of queries, keys and values: the step along the keys' has the size of a step and
    the sign of rounding."""
    import torch
    third = value.numel() // 3
    return torch.cat((value[:third], value[2 * third:])) if name.endswith("c_attn.bias") else value


def update_error(name, ours, before, after):
    return relative(without_keys(name, ours - before), without_keys(name, after - before))


def errors(found, out):
    import torch
    mask, y, grads, before, after = found
    largest = max(torch.linalg.norm(g.double()).item() for g in grads.values())
    ours = [n[5:] for n in out if n.startswith("grad.")]
    assert set(ours) <= set(before), sorted(set(ours) - set(before))
    missing = {n for n, g in grads.items() if n not in ours and torch.any(g != 0)}
    assert not missing, sorted(missing)
    worst = lambda pairs: max(pairs)
    return {
        "output": (masked_relative(out["y"], y, mask), ""),
        "gradient": worst((gradient_error(n, out["grad." + n], grads[n], largest), n) for n in ours),
        "update": worst((update_error(n, out["after." + n], before[n], after[n]), n)
                        for n in ours if torch.linalg.norm(grads[n]) > 1e-4 * largest),
    }


LIMITS = {"output": OUTPUT_LIMIT, "gradient": GRADIENT_LIMIT, "update": UPDATE_LIMIT}


def compare(binary, family, head, seed, steps):
    """[(figure, worst of all steps, step, tensor)]."""
    from safetensors.torch import load_file
    with tempfile.TemporaryDirectory() as folder:
        net, config, rng, labels = model_of(family, head, seed)
        config.save_pretrained(folder)
        found = run_steps(net, config, family, rng, folder, steps)
        files = [os.path.join(folder, f"{k}.{end}") for k in range(steps) for end in ("in", "out")]
        done = subprocess.run([binary, folder, head, str(labels), *files], stderr=subprocess.PIPE,
                              text=True)
        assert done.returncode == 0, done.stderr
        all_errors = [errors(found[k], load_file(files[2 * k + 1])) for k in range(steps)]
    rows = []
    for figure in LIMITS:
        k = max(range(steps), key=lambda i: all_errors[i][figure][0])
        rows.append((figure, *all_errors[k][figure], k + 1))
    return rows


def main():
    import torch
    import transformers
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--steps", type=int, default=STEPS)
    p.add_argument("--seeds", type=int, default=1)
    p.add_argument("family", nargs="*")
    a = p.parse_args()
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}; largest of"
          f" {a.steps} steps")
    failed = n = 0
    for family in a.family or HEADS:
        for head in HEADS[family]:
            for seed in range(a.seeds):
                rows = compare(f"{a.out}/parity/hf_step", family, head, seed, a.steps)
                ok = all(error <= LIMITS[figure] for figure, error, _, _ in rows)
                failed, n = failed + (not ok), n + 1
                print(f"{family:<9} {head:<9} " + "  ".join(
                    f"{figure} {error:.1e}{'' if error <= LIMITS[figure] else f' OVER at {name}, step {k}'}"
                    for figure, error, name, k in rows), flush=True)
    print(f"{n - failed} passed, {failed} failed")
    return 1 if failed else 0


def in_environment():
    """Goes on in the environment, which is made first."""
    python, packages = pypi.interpreter(ENVIRONMENT), ("torch", "transformers", "safetensors")
    if os.path.abspath(sys.prefix) == ENVIRONMENT:
        return
    wrong = None if pypi.works(ENVIRONMENT, *packages) else pypi.install(ENVIRONMENT, *packages, "numpy")
    if wrong:
        sys.exit(wrong)
    os.execv(python, [python, *sys.argv])


if __name__ == "__main__":
    in_environment()
    sys.exit(main())
