#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""config.json as Hugging Face's transformers writes it for a small model of each family, and the
names and shapes of the parameters that it saves for each head, in tests/golden/hf. In
tests/golden/peft a small ViT, an adapter of it by Hugging Face's peft, and the outputs of both for
a few images.

`make hf-golden` runs it; PyTorch and transformers come from PyPI, into build/transformers.
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER, ADAPTED = os.path.join(HERE, "hf"), os.path.join(HERE, "peft")
sys.path[:0] = [os.path.join(HERE, "../net/lib"), os.path.join(HERE, "../parity")]
import hf  # noqa: E402

COMMON = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24}
TEXT = {**COMMON, "vocab_size": 50, "max_position_embeddings": 20}
CONFIGS = {
    "bert": {**TEXT, "tie_word_embeddings": False},
    "layoutlm": {**TEXT, "max_2d_position_embeddings": 30, "tie_word_embeddings": False},
    "roberta": {**TEXT, "tie_word_embeddings": False},
    "gpt2": {"vocab_size": 50, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 20,
             "tie_word_embeddings": False},
    "llama": {**TEXT, "num_key_value_heads": 2},
    "qwen2": {**TEXT, "num_key_value_heads": 2},
    "xlm-roberta": {**TEXT, "tie_word_embeddings": False},
    "camembert": {**TEXT, "tie_word_embeddings": False},
    "distilbert": {"dim": 16, "n_heads": 4, "n_layers": 2, "hidden_dim": 24, "vocab_size": 50,
                   "max_position_embeddings": 20, "tie_word_embeddings": False},
    "mistral": {**TEXT, "num_key_value_heads": 2},
    "qwen3": {**TEXT, "num_key_value_heads": 2, "head_dim": 6},
    "phi3": {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0},
    "vit": {**COMMON, "image_size": 8, "patch_size": 4},
}


def make_adapter():
    """A model with an adapter whose weights have been trained, and a head that peft saves whole."""
    import json
    import peft
    import torch
    import transformers
    torch.manual_seed(3)
    config = transformers.ViTConfig(**CONFIGS["vit"], num_labels=3, initializer_range=0.3)
    net = transformers.ViTForImageClassification(config)
    net.save_pretrained(ADAPTED)
    targets = ["q_proj", "v_proj", "o_proj", "fc1", "fc2"]
    inner = {name: f"vit.layers.1.{'mlp' if name[:2] == 'fc' else 'attention'}.{name}" for name in targets}
    settings = {"target_modules": targets, "r": 2, "lora_alpha": 6, "alpha_pattern": dict.fromkeys(inner.values(), 9)}
    adapted = peft.get_peft_model(net, peft.LoraConfig(modules_to_save=["classifier"], **settings)).eval()
    with torch.no_grad():
        for p in adapted.parameters():
            if p.requires_grad:
                p += 0.2 * torch.randn_like(p)
        pixels = torch.randint(0, 256, (4, 3, 8, 8)).float() / 256
        outputs = adapted(pixel_values=pixels).logits
    adapted.save_pretrained(os.path.join(ADAPTED, "adapter"))
    os.remove(os.path.join(ADAPTED, "adapter/README.md"))
    with open(os.path.join(ADAPTED, "expected.json"), "w") as f:
        json.dump({"pixels": pixels.tolist(), "outputs": outputs.tolist()}, f)


def main():
    import transformers
    from safetensors import safe_open
    make_adapter()
    for family, sizes in CONFIGS.items():
        config = getattr(transformers, hf.CONFIGS[family])(num_labels=3, **sizes)
        folder = os.path.join(FOLDER, family)
        config.save_pretrained(folder)
        for head, name in hf.HEADS[family].items():
            with tempfile.TemporaryDirectory() as saved:
                getattr(transformers, name)(config).save_pretrained(saved)
                with safe_open(os.path.join(saved, "model.safetensors"), "pt") as f:
                    lines = [f"{n} {f.get_slice(n).get_shape()}\n" for n in sorted(f.keys())]
            with open(os.path.join(folder, head + ".txt"), "w") as f:
                f.writelines(lines)


if __name__ == "__main__":
    hf.in_environment("peft")
    main()
