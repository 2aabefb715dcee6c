#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turn a PyTorch module into a Cleave model: a YAML layer list and a safetensors file.
A ResNet 18, 34 or 50 of torchvision becomes `model: {arch: resnet50}` and the file. Of an
nn.Sequential the modules are read. Of any other module forward is run on records of the extents of
--input, and what it does is written down. --list prints what becomes layers.

    export_torch.py --from net.py:model --weights net.safetensors > model.yaml
    export_torch.py --from gpt.py:net --input ids:i64:16 --weights gpt.safetensors > model.yaml
    export_torch.py --from gpt.py:net --input ids:i64:16 --trained runs/gpt --torch gpt.pt

FILE is run as Python; the attribute is the model or a function without arguments that returns
it. The YAML is the `model:` section of a session file; stages then take ranges of it and
their initial weights from the safetensors file:

    stages:
      - {name: front, at: master,   layers: 0..2, weights: {file: net.safetensors}}
      - {name: back,  at: worker-1, layers: 3..7, weights: {file: net.safetensors}}

Tensors keep their state_dict names where they can, so a checkpoint that Cleave writes loads into
the same model. --trained RUN --torch FILE writes any run back as one state_dict that loads
strictly. Which modules there are, and what of their settings, is read from the rows of the ops
(ops.json). What Cleave cannot compute exactly as PyTorch does is refused, all of it at once, with
the place in forward, and nothing is written.
The projections of an nn.MultiheadAttention called `attn` are layers attn.q, attn.k, attn.v and
attn.out_proj: in_proj_weight is the weights of the first three, one behind the other.
Needs PyTorch and NumPy, nothing else.
"""
import argparse
import ast
import copy
import functools
import glob
import importlib.util
import json
import os
import re
import struct
import sys
import textwrap
from collections import OrderedDict

import torch
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import export_rules  # noqa: E402
import export_traced  # noqa: E402: it lies beside this script
from export_traced import Unsupported, input_of, need  # noqa: E402


class NotMapped(LookupError):
    """No row of an op has this class of modules."""


# ---- what the runtime has ------------------------------------------------------------------------

def spec_of(text):
    """[(module, {ours: theirs})] of "BatchNorm1d|BatchNorm2d(eps=eps, momentum=momentum)"."""
    names, _, rest = text.partition("(")
    pairs = dict(pair.strip().split("=") for pair in rest.rstrip(")").split(",") if pair.strip())
    return [(name.strip(), pairs) for name in names.split("|") if name.strip()]


def needs_of(text):
    """{attribute: value} of "dilation=1, padding_mode='zeros'"."""
    call = ast.parse(f"f({text})", mode="eval").body
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords}


class Row:
    """An op as its row in ops.json has it."""

    def __init__(self, row):
        self.op, self.loss = row["name"], row["loss"]
        self.elementwise, self.stride_is_kernel = row["elementwise"], row["stride_is_kernel"]
        self.types = {a["name"]: a["type"] for a in row["attributes"]}
        self.ranges = {a["name"]: (a["low"], a["high"]) for a in row["attributes"]}
        self.defaults = {a["name"]: a["default"] for a in row["attributes"]
                         if a["default"] is not None}
        self.modules = spec_of(row["torch_module"])
        self.needs = needs_of(row["torch_needs"])


def ops_file():
    """Installed, ops.json lies beside this script; in the repository it is built."""
    here = os.path.dirname(os.path.realpath(__file__))
    built = sorted(glob.glob(os.path.join(here, "..", "build", "*", "share", "cleave", "ops.json")),
                   key=os.path.getmtime, reverse=True)
    for path in [os.path.join(here, "ops.json"), *built]:
        if os.path.isfile(path):
            return path
    raise Unsupported("ops.json is neither beside this script nor in a build tree; give --ops FILE")


@functools.lru_cache(None)
def read_rows(path):
    try:
        with open(path) as f:
            return [Row(json.loads(line)) for line in f if line.strip()]
    except (OSError, ValueError, KeyError) as e:
        raise Unsupported(f"{path}: {e}; it is what cleave-master ops --json prints")


chosen = None  # --ops


def rows():
    return read_rows(chosen or ops_file())


def row_of(m):
    """(row, {ours: theirs}) of a module. The exact type decides: a subclass may compute something
    else."""
    found = [(row, pairs) for row in rows() for name, pairs in row.modules
             if getattr(nn, name, None) is type(m)]
    if not found:
        raise NotMapped
    fits = lambda row: all(getattr(m, key, wanted) == wanted for key, wanted in row.needs.items())
    return next((f for f in found if fits(f[0])), found[0])


def exportable():
    return sorted({n for row in rows() if not row.loss for n, _ in row.modules if hasattr(nn, n)})


# ---- modules to layers ---------------------------------------------------------------------------

def same(value):
    """An integer for a pair of equal ones, or for one of a single dimension."""
    pair = list(value) if isinstance(value, (tuple, list)) else [value, value]
    return pair[0] if len(pair) <= 2 and pair[0] == pair[-1] else pair


def padding(m):
    """conv's padding in words."""
    if m.padding == "valid":
        return 0
    need(all(k % 2 for k in m.kernel_size), "padding='same' with an even kernel")
    return same([d * (k // 2) for d, k in zip(m.dilation, m.kernel_size)])


def converted(kind, m, theirs):
    """The module's setting as a value of that type."""
    value = getattr(m, theirs)
    if kind == "true or false":
        return value is not None and value is not False
    if kind == "integer or [height, width]":
        return padding(m) if isinstance(value, str) else same(value)
    if kind == "list of integers":
        sizes = list(value)
        need(all(isinstance(n, int) for n in sizes), f"{theirs}={value}; it takes numbers")
        return sizes
    need(isinstance(value, (int, float)), f"{theirs}={value}")
    return value


# What torch_needs asks for and other settings make good all the same.
HARMLESS = {
    ("avgpool", "count_include_pad"): lambda m, rank: same(m.padding) == 0,
    ("softmax", "dim"): lambda m, rank: m.dim == 1 and rank == 2,
    ("log_softmax", "dim"): lambda m, rank: m.dim == 1 and rank == 2,
    ("reshape", "dim"): lambda m, rank: m.dim == -1 and rank == 2,
}


def check_needs(row, m, rank):
    for key, wanted in row.needs.items():
        value = getattr(m, key, wanted)
        excuse = HARMLESS.get((row.op, key), lambda m, rank: False)
        need(value == wanted or same(value) == wanted or excuse(m, rank), f"{key}={value!r}")


def check_ranges(row, layer):
    """A setting that the runtime would refuse when it reads the session."""
    for key, value in layer.items():
        low, high = row.ranges.get(key, (None, None))
        for n in value if isinstance(value, list) else [value]:
            number = isinstance(n, (int, float)) and low is not None
            need(not number or low <= n <= high, f"{key}={value}; the op {row.op} takes {low} to {high}")


# Ranks that an op takes, beyond what its module says: here an error names the layer. None: the
# rank of the records is not known yet.
IMAGES, SEQUENCES = ((None, 4), "it takes [N, channels, height, width]"), ((None, 3), "it takes rank 3")
RANKS = {
    "linear": ((None, 2, 3), "put nn.Flatten() before it"),
    "reshape": ((2,), "it takes what is known to be [N, features]"),
    "batchnorm": ((None, 2, 3, 4), "batchnorm takes [N, features], sequences [N, channels, length] "
                                   "or images [N, channels, height, width]"),
    **dict.fromkeys(("conv2d", "conv_transpose2d", "maxpool", "avgpool", "globalavgpool"), IMAGES),
    **dict.fromkeys(("conv1d", "conv_transpose1d", "lstm"), SEQUENCES),
}
# Modules whose type says the rank, where the op takes several.
MODULE_RANKS = {nn.BatchNorm2d: ((None, 4), "it takes [N, channels, height, width]"),
                nn.BatchNorm1d: ((None, 2, 3), RANKS["batchnorm"][1])}
RECORD_RANKS = (2, 3, 4)  # that the runtime gives a first layer
KEEP_RANK = ("linear", "softmax", "log_softmax", "batchnorm", "layernorm", "groupnorm", "rmsnorm")
GIVE_RANK = {"conv2d": 4, "conv1d": 3, "conv_transpose2d": 4, "conv_transpose1d": 3,
             "maxpool": 4, "avgpool": 4, "globalavgpool": 4, "flatten": 2, "lstm": 3}


def rank_after(row, layer, rank):
    """None: not known."""
    if row.op == "reshape":
        return 1 + len(layer["shape"])
    if row.op == "embedding":
        return rank and rank + 1
    return rank if row.elementwise or row.op in KEEP_RANK else GIVE_RANK.get(row.op)


def layer_of(m, rank):
    """The layer of a module behind an input of that rank, and the rank of its output."""
    row, pairs = row_of(m)
    need(not row.loss, "no place among layers: a loss goes under loss:")
    ranks, hint = MODULE_RANKS.get(type(m)) or RANKS.get(row.op, ((rank,), ""))
    need(rank in ranks, f"an input of rank {rank}; {hint}")
    check_needs(row, m, rank)
    layer = {"op": row.op}
    for ours, theirs in pairs.items():
        if row.types[ours] != "integer" or getattr(m, theirs) is not None:
            layer[ours] = converted(row.types[ours], m, theirs)
    check_ranges(row, layer)
    return layer, rank_after(row, layer, rank)


def first_rank(model):
    """The rank of the records, as the first module tells that takes one alone; else None."""
    for _, m in walk(model):
        if type(m) is nn.BatchNorm1d:
            continue  # in PyTorch it takes rank 3 as well
        try:
            row, _ = row_of(m)
        except NotMapped:
            return None
        ranks, _ = MODULE_RANKS.get(type(m)) or RANKS.get(row.op, ((), ""))
        known = [r for r in ranks if r is not None]
        if len(known) == 1:
            return known[0]
        if not row.elementwise and row.op not in KEEP_RANK:
            return None
    return None


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


def layers_at(model, rank):
    """[(path, layer), ...] behind records of that rank, and what is in the way."""
    layers, wrong = [], []
    for at, m in walk(model):
        kind = type(m).__name__
        if hooks(m):
            wrong.append(f"layer '{at}': {kind} has hooks or parametrizations")
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}", at):
            wrong.append(f"layer '{at}': its name has 1 to 63 letters, digits, '.', '_' or '-'")
        try:
            layer, rank = layer_of(m, rank)
            layers.append((at, layer))
        except NotMapped:
            wrong.append(f"layer '{at}': {kind} is not supported; what can be exported: "
                         + ", ".join(exportable()))
        except Unsupported as e:
            wrong.append(f"layer '{at}': {kind} with {e}")
    return layers, wrong


def convert(model):
    """[layer, ...] for a session file. Raises Unsupported naming everything that is in the way."""
    if type(model) is not nn.Sequential:
        raise Unsupported(f"{type(model).__name__} is not an nn.Sequential")
    rank = first_rank(model)
    layers, wrong = layers_at(model, rank)
    if not wrong and rank is None:
        # Records of some rank must pass; an embedding makes one more of each.
        wrong = min((layers_at(model, r)[1] for r in RECORD_RANKS), key=len)
    if not wrong:
        wrong = check_tensors(model, layers)
    if not wrong and not layers:
        wrong = ["the model has no layers"]
    if wrong:
        raise Unsupported("\n".join(wrong))
    named = any(at != str(i) for i, (at, _) in enumerate(layers))
    return [{**layer, "name": at} if named else layer for at, layer in layers]


# ---- other modules -------------------------------------------------------------------------------

def is_mapped(m):
    try:
        row_of(m)
        return True
    except NotMapped:
        return False


def layer_of_value(m, rank):
    """Modules that keep the shape need not be run, which would move what they remember."""
    need(not hooks(m), f"{export_rules.what_hooks(m)}, which no layer has; remove them before the export")
    layer, _ = layer_of(m, None if type(m) is nn.Linear else rank)
    row = next(row for row in rows() if row.op == layer["op"])
    return layer, row.op != "linear" and (row.op in KEEP_RANK or row.elementwise)


def followed(model, inputs, output=None):
    """What following forward gives: layers, arrays for the file of weights, notes, frozen."""
    ops, wrong = {row.op: set(row.types) for row in rows()}, []
    t = export_traced.traced(model, inputs, is_mapped, layer_of_value, ops, output)
    for layer in t.layers:
        try:
            check_ranges(next(row for row in rows() if row.op == layer["op"]), layer)
        except Unsupported as e:
            wrong.append(f"layer '{layer['name']}': {e}")
    wrong += [f"layer '{layer['name']}': no weights of it were found in the module" for layer in t.layers if not has_weights(layer, t.arrays)]
    need(not wrong, "\n".join(wrong))
    return t


def has_weights(layer, arrays):
    """Whether the file has what linear layers, convolutions, tables and norms begin with."""
    if layer["op"] not in (*export_rules.SHARED, "batchnorm", "layernorm", "groupnorm", "positions", "prepend"):
        return True
    name, biased = layer["name"], layer["op"] in export_rules.SHARED and layer["op"] != "embedding" and layer.get("bias", True)
    return ("tied" in layer or f"{name}.weight" in arrays or name in arrays) and (not biased or f"{name}.bias" in arrays)


def traced(model, inputs):
    """([layer, ...], arrays for the file of weights)"""
    t = followed(model, inputs)
    return t.layers, t.arrays


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


def defaults_of(layer):
    row = next(row for row in rows() if row.op == layer["op"])
    return {**row.defaults, "stride": layer["kernel"]} if row.stride_is_kernel else row.defaults


def layer_yaml(layer):
    """One layer in flow style, without what is the default anyway."""
    words, defaults = [f"op: {layer['op']}"], defaults_of(layer)
    for key, value in layer.items():
        if key != "op" and (key not in defaults or value != defaults[key]):
            words.append(f"{key}: {scalar(value)}")
    return "{" + ", ".join(words) + "}"


def layers_yaml(layers, source, inputs, frozen, notes=()):
    lines = [f"# {len(layers)} layers of {source}, by export_torch.py."]
    if len(inputs) > 1 or inputs and inputs[0] != "input":
        lines.append(f"# They read data.inputs: [{', '.join(inputs)}]")
    lines += [f"# Note: {note}." for note in notes] + ["model:", "  layers:"]
    lines += [f"    - {layer_yaml(layer)}  # {i}" for i, layer in enumerate(layers)]
    if frozen:
        lines += ["# Constants, and parameters with requires_grad=False; under train: in the session file:",
                  f"#   freeze: [{', '.join(json.dumps(n) for n in frozen)}]"]
    return "\n".join(lines) + "\n"


def constants_of(t):
    """Names of weights that are constants of forward, and do not learn."""
    return [name for name in t.arrays if name in t.frozen or name.rpartition(".")[0] in t.frozen]


def yaml_of(t, source, frozen):
    """The text of what followed() gives."""
    return layers_yaml(t.layers, source, [name for name, _, _ in t.inputs], [*frozen, *constants_of(t)], t.notes)


def model_yaml(model, source, frozen=(), inputs=(), output=None):
    """(text, arrays for the file of weights)"""
    if is_resnet(model) and not output:
        try:
            arch = resnet_arch(model)
            return (f"# {source}, by export_torch.py. Stages take layers such as conv1..layer2.\n"
                    f"model: {{arch: {arch['arch']}, classes: {arch['classes']}}}\n"), state_arrays(model)
        except Unsupported:
            if not inputs:
                raise
    if type(model) is nn.Sequential and not inputs:
        return layers_yaml(convert(model), source, (), frozen), state_arrays(model)
    t = followed(model, inputs, output)
    return yaml_of(t, source, moved_names(model, t.arrays, frozen)), t.arrays


def moved_names(model, arrays, names):
    """Parameters of the module under their names in the session."""
    parts = parts_of(model, arrays)
    return [ours for name in names for ours, _, _ in parts.get(name, ())]


# ---- safetensors ---------------------------------------------------------------------------------

TYPES = {"float32": "F32", "int64": "I64", "float64": "F64", "float16": "F16", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}


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


def parts_of(model, arrays):
    """{name in the state_dict: [(name in the session, first element, shape), ...]}: a session's
    tensor has the memory of one of the module's, or of a part of it."""
    found, owners = {}, {}
    tensors = {name: t.detach() for name, t in model.state_dict(keep_vars=True).items()}
    for name, t in tensors.items():
        owners.setdefault(t.data_ptr(), name)
    for ours, array in arrays.items():
        address = array.__array_interface__["data"][0]
        name = ours if ours in tensors and tensors[ours].data_ptr() == address else owners.get(address) or next(
            (n for n, t in tensors.items() if t.data_ptr() <= address < t.data_ptr() + t.numel() * t.element_size()), None)
        if name is not None:
            first = (address - tensors[name].data_ptr()) // tensors[name].element_size()
            found.setdefault(name, []).append((ours, first, array.shape))
    return found


def state_arrays(model):
    return {k: v.detach().cpu().numpy() for k, v in model.state_dict().items()}


# ---- a trained run, back in the module -----------------------------------------------------------

INDEX, EMA = "model.safetensors.index.json", ".ema"
READ = {"F32": torch.float32, "I64": torch.int64, "BF16": torch.bfloat16}


def read_tensors(path):
    """{name: tensor} of a safetensors file; bf16 becomes f32."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    n = struct.unpack_from("<Q", data)[0]
    header, found = json.loads(data[8:8 + n]), {}
    header.pop("__metadata__", None)
    for name, t in header.items():
        need(t["dtype"] in READ, f"{path}: '{name}' is {t['dtype']}")
        begin, end = (8 + n + at for at in t["data_offsets"])
        value = torch.frombuffer(data[begin:end], dtype=READ[t["dtype"]]) if end > begin else torch.empty(0)
        found[name] = (value.float() if value.dtype == torch.bfloat16 else value).reshape(t["shape"])
    return found


def checkpoint_of(run):
    """The folder of a checkpoint: itself, or the newest of a run."""
    if os.path.isfile(os.path.join(run, INDEX)):
        return run
    found = [(int(m[1]), m[0]) for m in (re.fullmatch(r"checkpoint-(\d+)", n) for n in (os.listdir(run) if os.path.isdir(run) else ())) if m
             and os.path.isfile(os.path.join(run, m[0], INDEX))]
    need(found, f"{run}: no checkpoint of a run is there, with {INDEX}")
    return os.path.join(run, max(found)[1])


def averages_of(folder):
    """{name in the session: average} of all stages of a run with train.ema."""
    names = sorted(n for n in os.listdir(folder) if re.fullmatch(r"optimizer-\d+-of-\d+\.safetensors", n))
    found = {n[:-len(EMA)]: t for name in names for n, t in read_tensors(os.path.join(folder, name)).items() if n.endswith(EMA)}
    need(found, f"{folder}: no averages of the weights are there: its run trained without train.ema, or they are at workers (cleave-master checkpoint gather)")
    return found


def read_run(run, ema=False):
    """{name in the session: tensor} of all stages. ema: averages in place of trained weights."""
    folder, found = checkpoint_of(run), {}
    with open(os.path.join(folder, INDEX)) as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    for name in files:
        need(os.path.basename(name) == name, f"{folder}/{INDEX}: '{name}' is no file of that folder")
        found.update(read_tensors(os.path.join(folder, name)))
    found.update(averages_of(folder) if ema else {})
    adapters = [n for n in found if ".lora_A." in n]
    need(not adapters, f"{folder}: '{min(adapters, default='')}' is an adapter; cleave-master export RUN --merge FOLDER adds them first")
    return found


def state_of(model, arrays, found, dtype=None):
    """The module's state_dict with the tensors of a run, which loads strictly. What no layer has
    stays the module's own. dtype: of its floats, or None: the module's."""
    state, parts, wrong = {}, parts_of(model, arrays), []
    tensors = model.state_dict(keep_vars=True)
    wrong += [f"'{n}' {list(t.shape)} is no tensor of this module; give --from and --input as for the export" for n, t in found.items() if n not in arrays]
    for name, t in tensors.items():
        flat = t.detach().clone().cpu().contiguous().reshape(-1)
        flat = flat.to(dtype) if dtype and flat.is_floating_point() else flat
        for ours, first, shape in parts.get(name, ()):
            if ours not in found or tuple(found[ours].shape) != tuple(shape):
                wrong.append(f"'{ours}' {list(shape)} of '{name}' is not in the run" + (f", which has {list(found[ours].shape)}" if ours in found else ""))
                continue
            value = found[ours].reshape(-1)
            flat[first:first + len(value)] = value
        state[name] = flat.reshape(t.shape)
    need(not wrong, "\n".join(wrong))
    first = {}
    # a parameter under several names has the run's value under each
    for name in [*parts, *tensors]:
        first.setdefault(tensors[name].data_ptr() if tensors[name].numel() else name, name)
    made = OrderedDict((name, state[first[t.data_ptr()]] if t.numel() and tensors[first[t.data_ptr()]].shape == t.shape else state[name]) for name, t in tensors.items())
    # versions of its modules, as state_dict() has them
    made._metadata = getattr(tensors, "_metadata", OrderedDict())
    return made


def write_state(model, arrays, run, path, ema=False):
    """One file that load_state_dict takes: safetensors, or as torch.save writes it (.pt, .pth)."""
    state, is_pickled = state_of(model, arrays, read_run(run, ema)), path.endswith((".pt", ".pth"))
    try:
        copy.deepcopy(model).load_state_dict(state if is_pickled else dict(state), strict=True)
    except Exception as e:
        raise Unsupported(f"{path}: {type(model).__name__} does not load it ({e}){'' if is_pickled else '; name a .pt, which has the versions of its modules'}") from None
    if is_pickled:
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
    else:
        write_safetensors(path, {name: t.contiguous().numpy() for name, t in state.items()})


def listing():
    """What there is, as deploy/SESSIONS.md has it."""
    modules = sorted({n for row in rows() if not row.loss for n, _ in row.modules}
                     | {m.__name__ for m in (*export_rules.MADE, *export_rules.SEVERAL, nn.Identity, nn.Dropout1d, nn.Dropout2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad2d,
                                             nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.Upsample, nn.SELU, nn.CELU, nn.GLU, nn.Softshrink, nn.Hardshrink, nn.Threshold, nn.Softsign, nn.Tanhshrink, nn.LogSigmoid, nn.Softmin, nn.CosineSimilarity, nn.PairwiseDistance, nn.EmbeddingBag)})
    taken, refused = export_rules.functions({row.op for row in rows()}, modules)
    wrapped = lambda names: textwrap.fill(", ".join(names), 108, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(["modules:", wrapped(modules), "functions of torch, of torch.nn.functional and of tensors:", wrapped(taken),
                      "refused, with what to write instead:", wrapped(refused)]) + "\n"


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


def write_trained(model, arrays, a):
    try:
        need(a.torch, "--trained RUN needs --torch FILE")
        write_state(model, arrays, a.trained, a.torch, a.ema)
    except (Unsupported, OSError, ValueError, KeyError) as e:
        for line in str(e).split("\n"):
            print(f"export_torch.py: {line}", file=sys.stderr)
        return 1
    return 0


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--from", dest="source", metavar="FILE:ATTRIBUTE",
                   help="an nn.Module, or a function that returns one")
    p.add_argument("--input", action="append", default=[], metavar="NAME:f32:3x8x8",
                   help="an input of a module that is traced, in the order of forward: its name, f32 or "
                   "i64, the extents of a record")
    p.add_argument("--output", metavar="NAME", help="of a forward that returns several values: the name, the key or the number of the one that is exported")
    p.add_argument("--weights", metavar="FILE.safetensors", help="where the tensors go")
    p.add_argument("--out", metavar="FILE.yaml", help="where the layer list goes (standard output)")
    p.add_argument("--trained", metavar="RUN", help="a run of that export, or a checkpoint of it: --torch writes it as one state_dict")
    p.add_argument("--torch", metavar="FILE", help="a state_dict of --trained, which load_state_dict(strict=True) of the module takes: safetensors, or .pt")
    p.add_argument("--ema", action="store_true", help="with --trained: the averages of the weights, of a run with train.ema")
    p.add_argument("--list", action="store_true", help="print the modules and functions that become layers, and no model")
    p.add_argument("--ops", metavar="ops.json",
                   help="the ops of the runtime, by cleave-master ops --json (beside this script)")
    a = p.parse_args()
    global chosen
    chosen = a.ops
    if a.list:
        sys.stdout.write(listing())
        return 0
    if not a.source:
        p.error("--from FILE:ATTRIBUTE is needed")
    try:
        model = load(a.source)
        frozen = [n for n, q in model.named_parameters() if not q.requires_grad]
        text, arrays = model_yaml(model, a.source, frozen, [input_of(i) for i in a.input], a.output)
    except Unsupported as e:
        for line in str(e).split("\n"):
            print(f"export_torch.py: {line}", file=sys.stderr)
        return 1
    if a.trained:
        return write_trained(model, arrays, a)
    if a.weights:
        write_safetensors(a.weights, arrays)
    for line in re.findall(r"^# (Note: .*)|^#   (freeze: .*)", text, re.M):
        print(f"export_torch.py: {line[0] or 'under train: in the session file, or constants learn: ' + line[1]}", file=sys.stderr)
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
