# SPDX-License-Identifier: Apache-2.0
"""From a torch module to a graph of Cleave: layers, their weights, and torch's names of these."""
from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from . import _errors

DTYPES = {torch.float32: "f32", torch.int64: "i64"}
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
CASTS = {torch.float64: ".float()", torch.float16: ".float()", torch.bfloat16: ".float()", torch.int32: ".long()",
         torch.bool: ".float()"}
AUTOCAST = {torch.float16: ", outside torch.autocast", torch.bfloat16: ", or call the Remote inside torch.autocast(dtype=torch.bfloat16)"}
LORA_KEYS = {"targets", "r", "alpha", "dropout"}
MAX_INPUTS = MAX_OUTPUTS = 8


@functools.lru_cache(None)
def exporter() -> Any:
    """export_torch.py, which `make` copies into this package with ops.json."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_export")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("export_torch")
    finally:
        sys.path.remove(folder)


@dataclasses.dataclass(frozen=True)
class Part:
    """A parameter or buffer of Cleave, and where it lies in one of torch's, in elements."""

    name: str
    offset: int
    shape: tuple[int, ...]


@dataclasses.dataclass
class Entry:
    """A parameter or buffer under torch's name."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_parameter: bool
    learns: bool
    parts: list[Part]
    constant: torch.Tensor | None = None  # a buffer that no layer has: only kept for state_dict

    def cut(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """{name in Cleave: tensor} of torch's tensor."""
        flat = tensor.detach().to("cpu", self.dtype).contiguous().reshape(-1)
        return {p.name: flat[p.offset:p.offset + math.prod(p.shape)].reshape(p.shape) for p in self.parts}

    def join(self, found: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Torch's tensor of Cleave's; None: some are not there."""
        if self.constant is not None:
            return self.constant
        if any(p.name not in found for p in self.parts):
            return None
        if len(self.parts) == 1 and self.parts[0].shape == self.shape:
            return found[self.parts[0].name]
        flat = torch.empty(math.prod(self.shape), dtype=self.dtype)
        for p in self.parts:
            flat[p.offset:p.offset + math.prod(p.shape)] = found[p.name].reshape(-1)
        return flat.reshape(self.shape)


@dataclasses.dataclass
class Model:
    """A module as Cleave computes it. yaml(): the `model:` section of a session file, for which
    save() writes the weights.

    inputs: [(name, "f32" or "i64", shape with the batch of the example)].  layers: as in a session
    file, each with "from".  weights: under Cleave's names.  entries: under torch's.
    """

    inputs: list[tuple[str, str, tuple[int, ...]]]
    layers: list[dict[str, Any]]
    weights: dict[str, np.ndarray[Any, Any]]
    entries: dict[str, Entry]
    # weights that do not learn, of no parameter
    constants: list[str] = dataclasses.field(default_factory=list)
    # layers whose values a tuple has; empty: the last one
    outputs: list[str] = dataclasses.field(default_factory=list)

    def yaml(self) -> str:
        """The `model:` section of a session file."""
        if self.outputs:
            raise _errors.unimplemented("a model that returns a tuple in a session file, whose model has one output", "load it as a cleave.Remote")
        script, lines, before = exporter(), ["model:", "  layers:"], self.inputs[0][0]
        for layer in self.layers:
            shown = {k: v for k, v in layer.items() if k != "from" or v != [before]}
            lines.append(f"    - {script.layer_yaml(shown)}")
            before = layer["name"]
        return "\n".join(lines) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the weights as a safetensors file, for `weights: {file: PATH}` of stages."""
        exporter().write_safetensors(os.fspath(path), self.weights)

    def attributes(self, layer: Mapping[str, Any]) -> str:
        """A layer's attributes as cleave_graph_op takes them."""
        script = exporter()
        return "{" + ", ".join(f"{k}: {script.scalar(v)}" for k, v in layer.items() if k not in ("op", "name", "from")) + "}"

    def frozen(self) -> list[str]:
        """Cleave's names of parameters that do not learn."""
        return [*(p.name for e in self.entries.values() if e.is_parameter and not e.learns for p in e.parts), *self.constants]


# ---- arguments -----------------------------------------------------------------------------------

def check_tensor(x: object, what: str) -> torch.Tensor:
    """Refuses in words what cannot be sent."""
    if not isinstance(x, torch.Tensor):
        raise _errors.invalid(f"{what} is a {type(x).__name__}, not a tensor")
    if x.dtype not in DTYPES:
        cast = CASTS.get(x.dtype, ".float()")
        raise _errors.invalid(f"{what} is {x.dtype}; Cleave computes in float32, and takes int64 for numbers of classes and tokens",
                              f"write {cast} where it is made" + AUTOCAST.get(x.dtype, ""))
    if x.is_sparse or x.is_quantized or x.layout != torch.strided:
        raise _errors.invalid(f"{what} is {x.layout}, not a dense tensor", "write .to_dense()")
    return x


def examples_of(example: object) -> list[torch.Tensor]:
    given: list[Any] = list(example) if isinstance(example, (tuple, list)) else [example]
    if not 1 <= len(given) <= MAX_INPUTS:
        raise _errors.invalid(f"example has {len(given)} tensors, at least 1 and at most {MAX_INPUTS}")
    for k, x in enumerate(given):
        if check_tensor(x, f"example {k}").dim() == 0:
            raise _errors.invalid(f"example {k} is a scalar; its first dimension is the batch")
    return given


# ---- export --------------------------------------------------------------------------------------

def export(module: nn.Module, example: object) -> Model:
    """The module as Cleave computes it.

    module: an nn.Sequential of modules that Cleave has, one such module, or one whose forward
    can be followed. Its parameters are float32.
    example: a tensor as forward takes it, [batch, ...] f32 or i64, or a tuple of them.

    Raises UnimplementedError that names each layer that Cleave cannot compute as PyTorch does.
    """
    script, given = exporter(), examples_of(example)
    module = on_cpu(module)
    shapes: list[tuple[int, ...]] = []
    is_inside, whole = is_single(module), module  # of a Sequential
    try:
        chain = as_chain(script, module, given)
        shapes = [] if chain else tuple_shapes(module, given)
        if shapes:
            whole = joined(module)
        elif not chain and len(given) == 1 and is_of_torch(module):
            is_inside, whole = True, nn.Sequential(module)
        layers, arrays, constants = (*chain, []) if chain else as_graph(script, whole, given)
    except script.Unsupported as e:
        why = str(e).partition("\n\nWhile executing")[0].strip().replace("\n", "\n  ")
        refuse_wrong_call(module, given, why)
        raise _errors.unimplemented(f"{type(module).__name__} cannot be exported:\n  {why}",
                                    "keep that part in this process, before or behind the Remote") from None
    names = input_names(whole, given)
    sources: list[str] = names
    for layer in layers:
        layer["from"] = sources = layer.get("from", sources)
        sources = [layer["name"]]
    inputs = [(n, DTYPES[x.dtype], tuple(x.shape)) for n, x in zip(names, given)]
    outputs = take_apart(layers, shapes) if shapes else []
    return Model(inputs, layers, arrays, entries_of(module, arrays, is_inside, constants), constants, outputs)


def refuse_wrong_call(module: nn.Module, given: Sequence[torch.Tensor], why: str) -> None:
    """InvalidError if forward itself does not take the example: the exporter knows less of it."""
    if "of these extents fails" not in why:
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(module).eval()(*(x.detach().cpu()[:2] for x in given))
    except Exception as e:
        raise _errors.invalid(f"{type(module).__name__} cannot be called with the example: {type(e).__name__}: {e}",
                              "example is what forward takes: a tensor, or a tuple of several") from None


def on_cpu(module: nn.Module) -> nn.Module:
    """The module, or a copy of it whose tensors lie in this process's memory, one after another."""
    tensors = [*module.parameters(), *module.buffers()]
    if all(t.device.type == "cpu" and t.is_contiguous() for t in tensors):
        return module
    if any(t.device.type == "meta" for t in tensors):
        raise _errors.invalid("the module has parameters on the meta device", "give it values first")
    return copy.deepcopy(module).cpu()


def is_single(module: nn.Module) -> bool:
    return type(module) is not nn.Sequential and not list(module.children())


def is_of_torch(module: nn.Module) -> bool:
    """Whether it is a layer of torch.nn that has others in it, as nn.TransformerEncoderLayer. The
    exporter knows these by their place in a module."""
    return type(module).__module__.startswith("torch.nn.") and type(module) is not nn.Sequential


def as_chain(script: Any, module: nn.Module, given: Sequence[torch.Tensor]) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """Layers of an nn.Sequential, or of one module; None: it has to be traced."""
    chain = nn.Sequential(module) if is_single(module) else module
    if type(chain) is not nn.Sequential or len(given) != 1:
        return None
    found, wrong = script.layers_at(chain, given[0].dim())
    if is_single(module) and wrong and not any("not supported" in w for w in wrong):
        raise script.Unsupported("\n".join(wrong))
    if wrong or not found:
        return None
    if wrong := script.check_tensors(chain, found):
        raise script.Unsupported("\n".join(wrong))
    return [{**layer, "name": at} for at, layer in found], script.state_arrays(chain)


def as_graph(script: Any, module: nn.Module, given: Sequence[torch.Tensor]) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]]:
    # tracing runs what counts batches
    state = {k: v.detach().clone() for k, v in module.named_buffers()}
    inputs = [(n, DTYPES[x.dtype], list(x.shape[1:])) for n, x in zip(input_names(module, given), given)]
    try:
        with torch.random.fork_rng(devices=[]):  # it draws records, and the program's draws stay
            t = script.followed(module, inputs)
        if t.is_flat:
            raise script.Unsupported("an output of one number a record without a dimension of its own; let forward return [N, 1]")
        tied = [f"'{layer['name']}' has the weight of '{layer['tied']}'" for layer in t.layers if "tied" in layer]
        if tied:
            raise script.Unsupported("\n".join([*tied, "weights that several layers share are for sessions: export_torch.py writes them"]))
        return t.layers, t.arrays, script.constants_of(t)
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(state[name])


# ---- a module that returns a tuple ---------------------------------------------------------------

def tuple_shapes(module: nn.Module, given: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Shapes of the tensors that the module returns as a tuple of two or more; else empty. It is
    run on two records in eval mode."""
    state, was = {k: v.detach().clone() for k, v in module.named_buffers()}, module.training
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            made = module(*(x.detach().cpu()[:2] for x in given))
    except Exception:
        return []  # the exporter says what is wrong
    finally:
        module.train(was)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(state[name])
    if not isinstance(made, (tuple, list)) or len(made) < 2:
        return []
    if len(made) > MAX_OUTPUTS:
        raise _errors.unimplemented(f"a module that returns {len(made)} tensors; at most {MAX_OUTPUTS}")
    for k, x in enumerate(made):
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float32 or x.dim() < 2 or len(x) != len(made[0]):
            shown = f"{x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            raise _errors.unimplemented(f"output {k} of {type(module).__name__} is {shown}; each of several outputs is float32 [batch, ...], [batch, 1] at least",
                                        "keep that part in this process, behind the Remote")
    return [tuple(x.shape) for x in made]


def joined(module: nn.Module) -> nn.Module:
    """The module with its outputs side by side in one, [batch, values]."""
    theirs: Any = type(module).forward

    @functools.wraps(theirs)
    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.cat([x.flatten(1) for x in theirs(self, *args, **kwargs)], 1)
    one = copy.copy(module)
    one.__class__ = type(type(module).__name__, (type(module),), {"forward": forward, "__module__": type(module).__module__})
    return one


def take_apart(layers: list[dict[str, Any]], shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Removes the layer that joins the outputs. Returns the names of their layers."""
    last = layers[-1]
    if last["op"] != "concat" or len(last["from"]) != len(shapes):
        raise _errors.unimplemented("a tuple whose tensors are parts of one another", "return that one tensor, and take it apart behind the Remote")
    del layers[-1]
    names = []
    for k, (source, shape) in enumerate(zip(last["from"], shapes)):
        name = source
        if len(shape) > 2:
            name = f"cleave-output{k}"
            layers.append({"op": "reshape", "shape": list(shape[1:]), "name": name, "from": [source]})
        names.append(name)
    return names


def input_names(module: nn.Module, given: Sequence[torch.Tensor]) -> list[str]:
    taken = {name.split(".")[0] for name, _ in module.named_modules() if name}
    names = ["input"] if len(given) == 1 else [f"input{k}" for k in range(len(given))]
    return [next(n for n in (name, f"cleave-{name}") if n not in taken) for name in names]


def entries_of(module: nn.Module, arrays: Mapping[str, Any], is_inside: bool, constants: Sequence[str] = ()) -> dict[str, Entry]:
    """Where each of Cleave's tensors lies in torch's: they share memory. Constants are none of
    these."""
    entries = {name: Entry(tuple(t.shape), t.dtype, isinstance(t, nn.Parameter), isinstance(t, nn.Parameter) and t.requires_grad, [])
               for name, t in module.state_dict(keep_vars=True).items()}
    tensors = {name: t.detach() for name, t in module.state_dict(keep_vars=True).items()}
    for ours, array in arrays.items():
        if ours in constants:
            continue
        direct = ours.split(".", 1)[1] if is_inside else ours
        address = array.__array_interface__["data"][0]
        name = direct if direct in tensors and tensors[direct].data_ptr() == address else owner_of(address, tensors)
        offset = (address - tensors[name].data_ptr()) // tensors[name].element_size()
        entries[name].parts.append(Part(ours, offset, tuple(array.shape)))
    for name, entry in entries.items():
        if not entry.parts:
            entry.constant = tensors[name].clone()
    return entries


def owner_of(address: int, tensors: Mapping[str, torch.Tensor]) -> str:
    for name, t in tensors.items():
        if t.data_ptr() <= address < t.data_ptr() + max(1, t.numel() * t.element_size()):
            return name
    raise _errors.make(_errors.Code.INTERNAL, f"an exported tensor at {address:#x} is none of the module's")


# ---- LoRA ----------------------------------------------------------------------------------------

def with_lora(model: Model, lora: Mapping[str, Any]) -> Model:
    """The model with low-rank adapters beside linear layers; everything else is frozen.

    lora: {"targets": names of layers or their ends, "r": rank, "alpha": factor times r, "dropout":
    0}, as stages[].lora of a session file. Initial values are those of peft.
    """
    if unknown := set(lora) - LORA_KEYS:
        raise _errors.unimplemented(f"lora={{{min(unknown)!r}: ...}}; there are {', '.join(sorted(LORA_KEYS))}")
    targets, r = list(lora.get("targets", ())), int(lora.get("r", 0))
    if not targets or r < 1:
        raise _errors.invalid("lora needs targets, a list of names, and r, a rank of 1 or more")
    alpha, p = float(lora.get("alpha", r)), float(lora.get("dropout", 0))
    layers: list[dict[str, Any]] = []
    entries = {name: dataclasses.replace(e, learns=False) for name, e in model.entries.items()}
    weights, renamed, left = dict(model.weights), dict[str, str](), set(targets)
    for layer in model.layers:
        layer = {**layer, "from": [renamed.get(s, s) for s in layer["from"]]}
        layers.append(layer)
        hit = [t for t in targets if layer["name"] == t or layer["name"].endswith("." + t)]
        if hit and layer["op"] == "linear":
            left.difference_update(hit)
            layers += adapter(layer, r, alpha, p, weights, entries)
            renamed[layer["name"]] = layers[-1]["name"]
    if left:
        linear = [layer["name"] for layer in model.layers if layer["op"] == "linear"]
        raise _errors.make(_errors.Code.NOT_FOUND, f"lora target {min(left)!r} is no linear layer of the module; there are {', '.join(linear) or 'none'}")
    return Model(model.inputs, layers, weights, entries, model.constants, [renamed.get(o, o) for o in model.outputs])


def adapter(layer: Mapping[str, Any], r: int, alpha: float, p: float, weights: dict[str, Any], entries: dict[str, Entry]) -> Iterable[dict[str, Any]]:
    """The layers behind a linear one, the sum last."""
    name, sources = layer["name"], layer["from"]
    out, inner = weights[f"{name}.weight"].shape
    a, b = torch.empty(r, inner), torch.zeros(out, r)
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    for ours, value in ((f"{name}.lora_A.weight", a), (f"{name}.lora_B.weight", b)):
        weights[ours] = value.numpy()
        entries[ours] = Entry(tuple(value.shape), torch.float32, True, True, [Part(ours, 0, tuple(value.shape))])
    if p:
        yield {"op": "dropout", "p": p, "name": f"{name}.lora_dropout", "from": sources}
        sources = [f"{name}.lora_dropout"]
    yield {"op": "linear", "out": r, "bias": False, "name": f"{name}.lora_A", "from": sources}
    yield {"op": "linear", "out": out, "bias": False, "name": f"{name}.lora_B", "from": [f"{name}.lora_A"]}
    yield {"op": "scale", "factor": alpha / r, "name": f"{name}.lora_scale", "from": [f"{name}.lora_B"]}
    yield {"op": "add", "name": f"{name}.lora_sum", "from": [name, f"{name}.lora_scale"]}
