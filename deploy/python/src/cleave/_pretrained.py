# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's transformers by their folder: a chain of stages at nodes."""
from __future__ import annotations

import fnmatch
import json
import logging
import math
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from . import _errors, _export, _lib
from ._lib import ffi, lib
from ._modules import NUMBERS, TORCH, Module, names_of
from ._remote import Remote, check_artifact
from ._runtime import Runtime
from ._sends import Sends

log = logging.getLogger("cleave")

LORA_KEYS = {"targets", "r", "alpha", "dropout", "rslora"}
# Ends of transformers' names of classes, as in config.json, and what Cleave calls the head.
HEADS = {"ForSequenceClassification": "sequence", "ForImageClassification": "sequence", "ForTokenClassification": "token", "ForMaskedLM": "masked",
         "ForCausalLM": "causal", "LMHeadModel": "causal", "Model": "none"}
# Families whose head may share the table of tokens: the head's parameter, and whether it does
# where config.json has no tie_word_embeddings.
TIES = {**dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3"), ("lm_head.weight", False)), "gpt2": ("lm_head.weight", True),
        **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ("lm_head.decoder.weight", True)),
        "bert": ("cls.predictions.decoder.weight", True), "distilbert": ("vocab_projector.weight", True)}
# first parts of names of heads
HEAD_PARTS = {"lm_head", "cls", "classifier", "score", "pre_classifier", "vocab_transform", "vocab_layer_norm", "vocab_projector"}
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MAX_HEADER = 100 << 20  # bytes of a file's header: the limit of the safetensors library


# ---- files ---------------------------------------------------------------------------------------

class Weights:
    """Tensors of a folder's safetensors files, in memory of the files until one is asked for."""

    def __init__(self, folder: str) -> None:
        self.folder, self._found = folder, dict[str, tuple[str, mmap.mmap, torch.dtype, tuple[int, ...], int]]()
        for path in files_of(folder):
            self._add(path)

    def _add(self, path: str) -> None:
        with open(path, "rb") as f:
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) if os.fstat(f.fileno()).st_size >= 8 else None
        if data is None:
            raise _errors.invalid(f"{path} is no safetensors file: it has fewer than 8 bytes")
        length = struct.unpack_from("<Q", data)[0]
        if length > min(len(data) - 8, MAX_HEADER):
            raise _errors.invalid(f"{path}: its header has {length} bytes, and the file {len(data)}")
        try:
            header = json.loads(data[8:8 + length])
            items = [(n, t["dtype"], tuple(map(int, t["shape"])), *map(int, t["data_offsets"])) for n, t in header.items() if n != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise _errors.invalid(f"{path}: its header is wrong: {type(e).__name__} {e}") from None
        for name, dtype, shape, begin, end in items:
            bits = TYPES.get(dtype)
            if bits is None:
                continue  # masks and counters, which no model of cleave.h reads
            if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data) - 8 - length or end - begin != math.prod(shape) * torch.empty(0, dtype=bits).element_size():
                raise _errors.invalid(f"{path}: '{name}' of {dtype} {list(shape)} has the bytes {begin} to {end}")
            self._found[name] = (path, data, bits, shape, 8 + length + begin)

    def find(self, name: str) -> torch.Tensor | None:
        """A tensor in float32. A file of the bare model lacks the first part of the name, or has
        one more. None: no file has it."""
        for candidate in (name, name.partition(".")[2], *(n for n in self._found if n.partition(".")[2] == name)):
            if candidate in self._found:
                _, data, dtype, shape, at = self._found[candidate]
                if not math.prod(shape):
                    return torch.empty(shape)
                return torch.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=at).view(shape).float()
        return None


def files_of(folder: str) -> list[str]:
    """The folder's safetensors files that count: model.safetensors, or those of its index."""
    single, index = os.path.join(folder, "model.safetensors"), os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(single):
        return [single]
    if not os.path.exists(index):
        raise _errors.make(_errors.Code.NOT_FOUND, f"{folder} has neither model.safetensors nor model.safetensors.index.json",
                           hint="net.save_pretrained(folder) of transformers writes them; Cleave reads no pickled weights")
    names = sorted(set(_json(index).get("weight_map", {}).values()))
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise _errors.invalid(f"{index}: {name!r} is no file of this folder")
    return [os.path.join(folder, n) for n in names]


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except FileNotFoundError:
        raise _errors.make(_errors.Code.NOT_FOUND, f"there is no {path}", hint="a folder as transformers' save_pretrained writes it") from None
    except (ValueError, RecursionError) as e:
        raise _errors.invalid(f"{path}: {e}") from None
    if not isinstance(found, dict):
        raise _errors.invalid(f"{path} is not a JSON object")
    return found


def _head_of(config: Mapping[str, Any], folder: str) -> str:
    names = config.get("architectures") or [""]
    found = [head for end, head in HEADS.items() if str(names[0]).endswith(end)] if isinstance(names, list) else []
    if not found:
        raise _errors.invalid(f"{folder}/config.json names no class that Cleave knows: architectures={names}",
                              f"give head=, one of {', '.join(dict.fromkeys(HEADS.values()))}")
    return found[0]


# ---- a stage -------------------------------------------------------------------------------------

class _Stage(Module):
    """A part of the model at one node. loads: the arguments of cleave_load_hf, lora and a tie."""

    def __init__(self, runtime: Runtime, model: _export.Model, name: str, at: str, options: Mapping[str, Any], loads: Mapping[str, Any]) -> None:
        self._loads = loads
        super().__init__(runtime, model, name, at, options)

    def _create(self, rt: Any, options: Any, module: Any, error: Any) -> int:
        s, kept = self._loads, list[Any]()
        given, example = ffi.new("cleave_input *"), s["example"]
        given.dtype, given.rank = NUMBERS[_export.DTYPES[example.dtype]], example.dim()
        given.shape[0:example.dim()] = list(example.shape)
        if s["targets"]:
            options.lora = _lora_of(s["lora"], s["targets"], kept)
        if s["tie"]:
            options.ties, options.n_ties = _tie_of(s["tie"], kept), 1
        if s["ignore_keys"]:
            kept += names_of(s["ignore_keys"])
            options.ignore_keys, options.n_ignore_keys = kept[-2], len(s["ignore_keys"])
        layers, head = s["layers"].encode(), s["head"].encode()
        status = lib.cleave_load_hf(rt, options, os.fsencode(s["folder"]), layers, head, given, module, error)
        del kept
        return int(status)

    def parameters(self) -> dict[str, _export.Entry]:
        info, error, found = ffi.new("cleave_parameter *"), _lib.new_error(), {}
        for i in range(lib.cleave_parameter_count(self.handle)):
            info.size = ffi.sizeof("cleave_parameter")
            _lib.check(lib.cleave_parameter_info(self.handle, i, info, error), error)
            name, shape = _lib.text(info.name), tuple(info.shape[0:info.rank])
            found[name] = _export.Entry(shape, TORCH[info.dtype], not info.buffer, bool(info.learns), [_export.Part(name, 0, shape)])
        return found


def _lora_of(lora: Mapping[str, Any], targets: Sequence[str], kept: list[Any]) -> Any:
    array, texts = names_of(targets)
    o = ffi.new("cleave_lora *")
    kept += [array, texts, o]
    o.size, o.targets, o.n_targets, o.r = ffi.sizeof("cleave_lora"), array, len(targets), int(lora["r"])
    o.alpha, o.dropout, o.rslora = float(lora.get("alpha", lora["r"])), float(lora.get("dropout", 0)), bool(lora.get("rslora", False))
    return o


def _tie_of(tied: tuple[str, Module, str], kept: list[Any]) -> Any:
    weight, owner, of_weight = tied
    texts = [ffi.new("char[]", n.encode()) for n in (weight, of_weight)]
    tie = ffi.new("cleave_tie *", {"weight": texts[0], "of": owner.handle, "of_weight": texts[1]})
    kept += [*texts, tie]
    return tie


# ---- the model -----------------------------------------------------------------------------------

class _Pretrained(Remote):
    """A chain of stages. Parameters have transformers' names."""

    def __init__(self, rt: Runtime, folder: str, stages: Sequence[tuple[str, str]], loads: Mapping[str, Any], options: Mapping[str, Any],
                 weights: Mapping[str, Mapping[str, str]], sends: Sends, name: str) -> None:
        lora: Mapping[str, Any] | None = loads["lora"]
        self._begin(rt, name, lora)
        self._files: Weights | None = None
        left = set(lora["targets"] if lora else ()) | set(options["freeze"])
        for layers, at in stages:
            stage, found = self._stage({**loads, "layers": layers}, at, {**options, "weights": weights.get(at)}, layers == stages[-1][0])
            left -= found
            self._modules_at.append(stage)
            self._prefixes.append("")
        if left:
            raise _errors.make(_errors.Code.NOT_FOUND, f"{min(left)!r} of lora or freeze is in none of these stages of {folder}")
        self._files = None
        self._complete(sends)

    def _stage(self, loads: dict[str, Any], at: str, options: dict[str, Any], is_last: bool) -> tuple[_Stage, set[str]]:
        """Loads a stage twice: without values, for the names of its parameters, then with them.
        Returns it with the targets and globs that it has."""
        before, example = self._modules_at, loads["example"]
        model = _export.Model([("input", "f32" if before else _export.DTYPES[example.dtype], tuple(example.shape))], [], {}, {})
        loads["tie"] = (loads["tied"], before[0], next(iter(before[0].model.entries))) if is_last and before and loads["tied"] else None
        name = f"{self._name}.{len(before)}"
        probe = _Stage(self.runtime, model, name, at, {**options, "freeze": (), "recompute": (), "weights": None}, {**loads, "targets": ()})
        names = list(probe.parameters())
        probe.release()
        targets = [t for t in (loads["lora"] or {}).get("targets", ()) if any(n == t + ".weight" or n.endswith(f".{t}.weight") for n in names)]
        frozen = {p: [n for n in names if fnmatch.fnmatchcase(n, p)] for p in options["freeze"]}
        options["freeze"] = list(names) if loads["lora"] and not targets else [n for found in frozen.values() for n in found]
        if not options["weights"]:
            model.weights = self._values(loads["folder"], names)
        stage = _Stage(self.runtime, model, name, at, options, {**loads, "targets": targets})
        model.entries, model.weights = stage.parameters(), {}
        return stage, {*targets, *(p for p, found in frozen.items() if found)}

    def _values(self, folder: str, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Values of the folder's files. A head that they lack is drawn."""
        self._files = self._files or Weights(folder)
        found = {n: self._files.find(n) for n in names}
        missing = [n for n, value in found.items() if value is None]
        if other := [n for n in missing if n.partition(".")[0] not in HEAD_PARTS]:
            raise _errors.make(_errors.Code.NOT_FOUND, f"the safetensors files of {folder} have no '{other[0]}', and lack {len(missing)} of {len(names)} tensors")
        if missing:
            log.warning("%s: the files have no %s: they begin at values that are drawn", folder, ", ".join(missing))
        return {n: value.numpy() for n, value in found.items() if value is not None}


def pretrained(rt: Runtime, folder: str | os.PathLike[str], *, stages: Sequence[tuple[str, str]], example: torch.Tensor, head: str | None = None,
               lora: Mapping[str, Any] | None = None, freeze: Sequence[str] = (), weights: Mapping[str, Mapping[str, str]] | None = None,
               device: str | None = None, threads: int = 1, recompute: Sequence[str] = (), sends: Sends = None, name: str | None = None,
               ignore_keys: Sequence[str] = ()) -> Remote:
    """A model of transformers (bert, distilbert, roberta, xlm-roberta, camembert, gpt2, llama,
    mistral, qwen2, qwen3, phi3, vit) over nodes, without transformers.

    folder: config.json and safetensors files, as save_pretrained writes them. Weights in float16
        and bfloat16 become float32.
    stages: [(layers, node)], in order, as a session file names layers: [("embed_tokens..layers.0",
        "master"), ("layers.1..layers.10", "worker-1"), ("layers.11..lm_head", "master")].
    example: a batch: token numbers [batch, positions] int64, or pictures [batch, channels, height,
        width] float32. Calls have its shape, apart from the batch. No position is padding.
    head: "causal", "masked", "sequence", "token" or "none"; None: that of config.json.
    lora: {"targets": names of linear layers or their ends, "r": 8, "alpha": 16, "dropout": 0,
        "rslora": False}; everything else is frozen then.
    freeze: names or globs of parameters that do not learn.
    weights: {worker: {"artifact": NAME, "sha256": DIGEST}}: values of its stages from the worker's
        own disk. Those of other workers are sent.
    device, threads, recompute, sends, name: as of Remote.
    ignore_keys: keys of the folder's files that Cleave does not know, and that change nothing. Any
        other unknown key is refused.

    Returns a Remote: its output is [batch, positions, vocabulary] float32 for "causal" and
    "masked", [batch, classes], [batch, positions, classes] or [batch, positions, hidden] for the
    others. A head that shares its table with the tokens has to be at their node. Raises
    NotFoundError for a folder without these files or tensors, InvalidError for stages that do not
    fit the model.
    """
    path, plan = os.fspath(folder), [(str(layers), str(at)) for layers, at in stages]
    config = _json(os.path.join(path, "config.json"))
    family = str(config.get("model_type"))
    _check(plan, example, lora, family)
    if isinstance(ignore_keys, str):
        raise _errors.invalid(f"ignore_keys={ignore_keys!r}: it is a list of names, [{ignore_keys!r}]")
    chosen, artifacts = head or _head_of(config, path), dict(weights or {})
    for node, artifact in artifacts.items():
        if node not in (at for _, at in plan):
            raise _errors.invalid(f"weights={{{node!r}: ...}}: no stage is at {node}")
        check_artifact(artifact, f"weights of {node}: ")
    tied, shares = TIES.get(family, ("", False))
    is_tied = chosen in ("causal", "masked") and bool(config.get("tie_word_embeddings", shares))
    loads = {"folder": path, "head": chosen, "example": example, "lora": dict(lora) if lora else None, "tied": tied if is_tied else "",
             "ignore_keys": tuple(ignore_keys)}
    options = {"device": device, "threads": threads, "recompute": recompute, "freeze": tuple(freeze)}
    return _Pretrained(rt, path, plan, loads, options, artifacts, sends, name or os.path.basename(os.path.normpath(path)) or "pretrained")


def _check(stages: Sequence[tuple[str, str]], example: torch.Tensor, lora: Mapping[str, Any] | None, family: str) -> None:
    if not stages:
        raise _errors.invalid("stages is empty: it is [(layers, node)], at least one")
    _export.examples_of(example)
    if lora is None:
        return
    if unknown := set(lora) - LORA_KEYS:
        raise _errors.unimplemented(f"lora={{{min(unknown)!r}: ...}}; there are {', '.join(sorted(LORA_KEYS))}")
    if isinstance(lora.get("targets"), str) or not lora.get("targets") or int(lora.get("r", 0)) < 1:
        raise _errors.invalid("lora needs targets, a list of names, and r, a rank of 1 or more")
    if family == "vit":
        raise _errors.unimplemented("adapters of a ViT from Python: files and transformers name its layers differently",
                                    "train them by a session file, or export the torch module and give it to a Remote")
