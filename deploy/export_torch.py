#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turn a PyTorch nn.Sequential into a Cleave model: a YAML layer list and a safetensors file.
A ResNet 18, 34 or 50 of torchvision becomes `model: {arch: resnet50}` and the file.

    export_torch.py --from net.py:model --weights net.safetensors > model.yaml

FILE is run as Python; the attribute is the model or a function without arguments that returns
it. The YAML is the `model:` section of a session file; stages then take ranges of it and
their initial weights from the safetensors file:

    stages:
      - {name: front, at: master,   layers: 0..2, weights: {file: net.safetensors}}
      - {name: back,  at: worker-1, layers: 3..7, weights: {file: net.safetensors}}

Tensors keep their state_dict names, so a checkpoint that Cleave writes loads into the same
model. A module that Cleave cannot compute exactly as PyTorch does is refused by name and
nothing is written. Needs PyTorch and NumPy, nothing else.
"""
import argparse
import importlib.util
import json
import os
import re
import struct
import sys

import torch
from torch import nn


class Unsupported(Exception):
    pass


# ---- modules to layers ---------------------------------------------------------------------------

def need(condition, what):
    if not condition:
        raise Unsupported(what)


def same(value):
    """An integer for a pair of equal ones."""
    pair = list(value) if isinstance(value, (tuple, list)) else [value, value]
    return pair[0] if pair[0] == pair[1] else pair


def linear(m, rank):
    need(rank in (None, 2), f"an input of rank {rank}; put nn.Flatten() before it")
    return {"op": "linear", "out": m.out_features, "bias": m.bias is not None}, 2


def conv_pad(m):
    if m.padding == "valid":
        return 0
    if m.padding != "same":
        return same(m.padding)
    need(all(k % 2 for k in m.kernel_size), "padding='same' with an even kernel")
    return same([k // 2 for k in m.kernel_size])


def conv2d(m, rank):
    need(m.padding_mode == "zeros", f"padding_mode='{m.padding_mode}'")
    need(same(m.dilation) == 1, f"dilation={m.dilation}")
    return {"op": "conv2d", "out": m.out_channels, "kernel": same(m.kernel_size),
            "stride": same(m.stride), "pad": conv_pad(m), "groups": m.groups,
            "bias": m.bias is not None}, 4


def window(op, m):
    layer = {"op": op, "kernel": same(m.kernel_size), "pad": same(m.padding)}
    stride = same(m.kernel_size if m.stride is None else m.stride)
    return layer if stride == layer["kernel"] else {**layer, "stride": stride}


def maxpool(m, rank):
    need(same(m.dilation) == 1, f"dilation={m.dilation}")
    need(not m.ceil_mode, "ceil_mode=True")
    need(not m.return_indices, "return_indices=True")
    return window("maxpool", m), 4


def avgpool(m, rank):
    need(not m.ceil_mode, "ceil_mode=True")
    need(m.divisor_override is None, f"divisor_override={m.divisor_override}")
    need(m.count_include_pad or same(m.padding) == 0, "count_include_pad=False with padding")
    return window("avgpool", m), 4


def globalavgpool(m, rank):
    need(same(m.output_size) == 1, f"output_size={m.output_size}")
    return {"op": "globalavgpool"}, 4


def batchnorm(m, rank):
    need(m.affine, "affine=False")
    need(m.track_running_stats, "track_running_stats=False")
    need(m.momentum is not None, "momentum=None (a cumulative average)")
    return {"op": "batchnorm", "eps": m.eps, "momentum": m.momentum}, rank


def gelu(m, rank):
    need(m.approximate == "none", f"approximate='{m.approximate}'")
    return {"op": "gelu"}, rank


def over_last(op):
    def convert(m, rank):
        need(m.dim == -1 or m.dim == 1 and rank == 2, f"dim={m.dim}; it goes over the last one")
        return {"op": op}, rank
    return convert


def flatten(m, rank):
    need((m.start_dim, m.end_dim) == (1, -1), f"start_dim={m.start_dim}, end_dim={m.end_dim}")
    return {"op": "flatten"}, 2


def unflatten(m, rank):
    sizes = list(m.unflattened_size)
    need(rank == 2 and m.dim in (1, -1), f"dim={m.dim} of what is not known to be [N, features]")
    need(all(isinstance(s, int) for s in sizes), "named dimensions")
    return {"op": "reshape", "shape": sizes}, 1 + len(sizes)


def dropout(m, rank):
    return {"op": "dropout", "p": m.p}, rank


def plain(op):
    return lambda m, rank: ({"op": op}, rank)


# The exact type decides: a subclass may compute something else.
CONVERT = {
    nn.Linear: linear, nn.Conv2d: conv2d, nn.MaxPool2d: maxpool, nn.AvgPool2d: avgpool,
    nn.AdaptiveAvgPool2d: globalavgpool, nn.BatchNorm1d: batchnorm, nn.BatchNorm2d: batchnorm,
    nn.GELU: gelu, nn.Softmax: over_last("softmax"), nn.LogSoftmax: over_last("log_softmax"),
    nn.Flatten: flatten, nn.Unflatten: unflatten, nn.Dropout: dropout, nn.ReLU: plain("relu"),
    nn.Sigmoid: plain("sigmoid"), nn.Tanh: plain("tanh"),
}
DEFAULTS = {"bias": True, "stride": 1, "pad": 0, "groups": 1, "eps": 1e-5, "momentum": 0.1}
WINDOWS = ("maxpool", "avgpool")  # their stride is the kernel's size unless given


def walk(module, path=""):
    """(path, module) of everything that computes, in order."""
    for name, child in module._modules.items():  # named_children() skips one that comes again
        at = f"{path}.{name}" if path else name
        if type(child) is nn.Sequential:
            yield from walk(child, at)
        elif type(child) is not nn.Identity:
            yield at, child


def hooks(m):
    return any(getattr(m, a, None) for a in ("_forward_hooks", "_forward_pre_hooks",
                                             "_backward_hooks", "parametrizations"))


def check_tensors(model, layers):
    """Every tensor of the model, as f32 (counters as i64), belongs to one exported layer."""
    wrong, names, owners = [], [at for at, _ in layers], {}
    for key, value in model.state_dict(keep_vars=True).items():
        at, _, leaf = key.rpartition(".")
        wanted = torch.int64 if leaf == "num_batches_tracked" else torch.float32
        if at not in names:
            wrong.append(f"'{key}': belongs to no layer that is exported")
        elif value.dtype != wanted:
            wrong.append(f"'{key}': {value.dtype}, expected {wanted}")
        elif owners.setdefault(id(value), key) != key:
            wrong.append(f"'{key}': shared with '{owners[id(value)]}'")
    return wrong


def convert(model):
    """[layer, ...] for a session file. Raises Unsupported naming everything that is in the way."""
    if type(model) is not nn.Sequential:
        raise Unsupported(f"{type(model).__name__} is not an nn.Sequential")
    layers, wrong, rank = [], [], None
    for at, m in walk(model):
        kind = type(m).__name__
        if type(m) not in CONVERT:
            wrong.append(f"layer '{at}': {kind} is not supported")
            continue
        if hooks(m):
            wrong.append(f"layer '{at}': {kind} has hooks or parametrizations")
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}", at):
            wrong.append(f"layer '{at}': its name has 1 to 63 letters, digits, '.', '_' or '-'")
        try:
            layer, rank = CONVERT[type(m)](m, rank)
            layers.append((at, layer))
        except Unsupported as e:
            wrong.append(f"layer '{at}': {kind} with {e}")
    if not wrong:
        wrong = check_tensors(model, layers)
    if not wrong and not layers:
        wrong = ["the model has no layers"]
    if wrong:
        raise Unsupported("\n".join(wrong))
    named = any(at != str(i) for i, (at, _) in enumerate(layers))
    return [{**layer, "name": at} if named else layer for at, layer in layers]


# ---- named architectures -------------------------------------------------------------------------

RESNETS = ("resnet18", "resnet34", "resnet50")


def is_resnet(model):
    return (type(model).__module__, type(model).__name__) == ("torchvision.models.resnet", "ResNet")


def differing(model, reference):
    """Names of the modules that differ: blocks in their type, and layers in their repr, which has
    every setting. The stem's input channels are the data's."""
    reference.conv1.in_channels = model.conv1.in_channels
    theirs = dict(reference.named_modules())
    what = lambda m: type(m) if list(m.children()) else repr(m)
    return [n for n, m in model.named_modules() if n not in theirs or what(m) != what(theirs[n])]


def resnet_arch(model):
    """{arch, classes} of a ResNet as torchvision's functions build it."""
    from torchvision import models  # it is there: the model is its
    keys, wrong = list(model.state_dict()), []
    for arch in RESNETS:
        reference = getattr(models, arch)(num_classes=model.fc.out_features)
        if list(reference.state_dict()) != keys:
            continue
        wrong = [f"layer '{n}': not as in torchvision's {arch}"
                 for n in differing(model, reference)]
        wrong += [f"layer '{n}': has hooks or parametrizations"
                  for n, m in model.named_modules() if hooks(m)]
        if not wrong:
            wrong = check_tensors(model, list(model.named_modules()))
        if wrong:
            raise Unsupported("\n".join(wrong))
        return {"arch": arch, "classes": model.fc.out_features}
    raise Unsupported(f"a ResNet of other blocks than {', '.join(RESNETS)}")


# ---- text ----------------------------------------------------------------------------------------

def scalar(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(scalar, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def layer_yaml(layer):
    """One layer in flow style, without what is the default anyway."""
    words = [f"op: {layer['op']}"]
    for key, value in layer.items():
        default = DEFAULTS.get(key) if not (key == "stride" and layer["op"] in WINDOWS) else None
        if key != "op" and (default is None or value != default):
            words.append(f"{key}: {scalar(value)}")
    return "{" + ", ".join(words) + "}"


def model_yaml(model, source, frozen=()):
    if is_resnet(model):
        arch = resnet_arch(model)
        lines = [f"# {source}, by export_torch.py. Stages take layers such as conv1..layer2.",
                 f"model: {{arch: {arch['arch']}, classes: {arch['classes']}}}"]
    else:
        layers = convert(model)
        lines = [f"# {len(layers)} layers of {source}, by export_torch.py.", "model:", "  layers:"]
        lines += [f"    - {layer_yaml(layer)}  # {i}" for i, layer in enumerate(layers)]
    if frozen:
        lines += ["# Parameters with requires_grad=False; under train: in the session file:",
                  f"#   freeze: [{', '.join(json.dumps(n) for n in frozen)}]"]
    return "\n".join(lines) + "\n"


# ---- safetensors ---------------------------------------------------------------------------------

TYPES = {"float32": "F32", "int64": "I64"}


def write_safetensors(path, arrays, metadata=None):
    """arrays: {name: NumPy array}. Wider elements first, then by name, so that all are aligned."""
    header, at = {"__metadata__": {"format": "pt", **(metadata or {})}}, 0
    names = sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n))
    for name in names:
        a = arrays[name]
        header[name] = {"dtype": TYPES[a.dtype.name], "shape": list(a.shape),
                        "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            f.write(arrays[name].tobytes())
    os.replace(path + ".tmp", path)


def state_arrays(model):
    return {k: v.detach().cpu().numpy() for k, v in model.state_dict().items()}


# ---- command line --------------------------------------------------------------------------------

def load(source):
    path, _, attr = source.rpartition(":")
    if not path or not attr:
        raise Unsupported(f"--from {source}: expected FILE:ATTRIBUTE")
    spec = importlib.util.spec_from_file_location("exported", path)
    if spec is None or not os.path.isfile(path):
        raise Unsupported(f"--from {source}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec.loader.exec_module(module)
    found = getattr(module, attr, None)
    if found is None:
        raise Unsupported(f"--from {source}: {path} has no '{attr}'")
    found = found() if callable(found) and not isinstance(found, nn.Module) else found
    if not isinstance(found, nn.Module):
        raise Unsupported(f"--from {source}: {attr} is no nn.Module")
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--from", dest="source", required=True, metavar="FILE:ATTRIBUTE",
                   help="an nn.Sequential or torchvision ResNet, or a function that returns one")
    p.add_argument("--weights", metavar="FILE.safetensors", help="where the tensors go")
    p.add_argument("--out", metavar="FILE.yaml", help="where the layer list goes (standard output)")
    a = p.parse_args()
    try:
        model = load(a.source)
        frozen = [n for n, q in model.named_parameters() if not q.requires_grad]
        text = model_yaml(model, a.source, frozen)
    except Unsupported as e:
        for line in str(e).split("\n"):
            print(f"export_torch.py: {line}", file=sys.stderr)
        return 1
    if a.weights:
        write_safetensors(a.weights, state_arrays(model))
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
