# SPDX-License-Identifier: Apache-2.0
"""What the rules of `cleave-master plan` find in the tensors of a Remote, from the modules of this
process before and behind it."""
from __future__ import annotations

import collections
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from . import _errors, _export, _session
from ._sends import SHOWS, Sends, declared, words_of

log = logging.getLogger("cleave")

KEYS = {"front", "head", "secret"}
WORST = SHOWS["raw input"], SHOWS["labels readable"]
# Permits all, so that plan prints what it finds.
PRIVACY = "{raw_input_leaves: true, tokens_readable: true, front_known: true, labels_readable: true, labels_leave: true}"


def judged(path: str, sends: Sends, modules: Sequence[nn.Module], places: Sequence[str]) -> Sends:
    """sends= of a Remote, with the findings of plan in the place of "front", "head" and "secret".

    sends: {"front": (module, example), ...}: the module whose output is the Remote's input, and a
    batch of records.  "head": the module behind the Remote.  "secret": no one else has the values
    of both.  Raises InvalidError if "inputs" or "gradient" says less than the rules find, or
    "hiding_layers" more layers than there are.  Raises DeniedError if the ledger of this host says
    that a worker had values which are "secret", and the row does not say that they are known.
    """
    if not isinstance(sends, Mapping) or not KEYS & set(sends):
        return sends
    own = {k: v for k, v in sends.items() if k not in KEYS}
    if set(places) == {"master"} or "master" in places and not {"front", "head"} & set(sends):
        return own  # the library judges modules of this process
    front, example, head = _modules_of(sends)
    is_secret, known = bool(sends.get("secret", False)), dict[str, str]()
    try:
        found, n_layers, known = _findings(path, front, example, modules, places, head, is_secret)
    except (_errors.Error, LookupError, OSError, RuntimeError, TypeError, ValueError) as e:
        log.warning("plan cannot judge what is in front of the Remote, so that counts as raw records: %s", e)
        found, n_layers = WORST, 0
    said = declared(own, 1)
    if is_secret:
        _refuse_known(known, found, (said.inputs[0], said.gradient))
    for name, says, finds in (("inputs", said.inputs[0], found[0]), ("gradient", said.gradient, found[1])):
        if says and finds & ~says:
            raise _errors.invalid(f"sends={{{name!r}: {own[name]!r}}}, and the rules of plan find {words_of(finds)}",
                                  f"leave {name!r} out, or keep more layers in this process")
    if said.hiding_layers > n_layers:
        raise _errors.invalid(f"sends={{'hiding_layers': {said.hiding_layers}}}, and {n_layers} layers in front have weights")
    return {"inputs": own.get("inputs") or words_of(found[0] or SHOWS["mixed"]),
            "gradient": own.get("gradient") or words_of(found[1] or SHOWS["mixed"]), "hiding_layers": said.hiding_layers}


def _refuse_known(known: Mapping[str, str], found: tuple[int, int], said: tuple[int, int]) -> None:
    """Refuses values that are said to be secret, and that a worker had. known: the reason by the
    layer's name, of layers in front ("front.0") and behind."""
    admit = {"front": ("inputs", SHOWS["front known"], found[0] & ~said[0]), "head": ("gradient", SHOWS["labels readable"], found[1] & ~said[1])}
    for layer, why in known.items():
        part, _, name = layer.partition(".")
        key, word, unsaid = admit.get(part, ("", 0, 0))
        if word & unsaid:
            raise _errors.make(_errors.Code.DENIED, f"sends={{'secret': True}}, and layer {name or part!r} of {part!r} {why}",
                               hint=f"begin with other values, or say it: sends={{..., {key!r}: {words_of(word).lower()!r}}}")


def _modules_of(sends: Mapping[str, Any]) -> tuple[nn.Module, torch.Tensor, nn.Module | None]:
    front, head = sends.get("front"), sends.get("head")
    if not isinstance(front, tuple) or len(front) != 2 or not isinstance(front[0], nn.Module):
        raise _errors.invalid("sends={'front': ...} is a module and a batch of its records: (front, images[:32])")
    if head is not None and not isinstance(head, nn.Module):
        raise _errors.invalid(f"sends={{'head': ...}} is a module, and this is a {type(head).__name__}")
    return front[0], _export.check_tensor(front[1], "the batch of 'front'"), head


def _findings(path: str, front: nn.Module, example: torch.Tensor, modules: Sequence[nn.Module], places: Sequence[str],
              head: nn.Module | None, secret: bool) -> tuple[tuple[int, int], int, dict[str, str]]:
    """Findings of the Remote's input and of its output's gradient, the number of layers in front
    that have weights, and why layers of this process are known: {layer: reason}."""
    parts = {"front": front, "far": nn.Sequential(*modules), **({"head": head} if head is not None else {})}
    model = _export.export(nn.Sequential(collections.OrderedDict(parts)), example)
    worker = next(p for p in places if p != "master")
    with tempfile.TemporaryDirectory() as folder:
        model.save(os.path.join(folder, "weights.safetensors"))
        settings = [*_data(folder, parts, example), f"privacy={PRIVACY}", f"model={{layers: [{_layers(model)}]}}",
                    f"stages=[{', '.join(_stage(model, part, worker, folder, secret) for part in parts)}]",
                    f"train={{batch: {len(example)}, epochs: 1, optimizer: {{kind: sgd, lr: 0.1}}, freeze: [{', '.join(model.frozen())}]}}"]
        found = _session._call(["plan", path, "--json", *(a for s in settings for a in ("--set", s))])[0]
    rows = {kind: row["shows"] for row in found["egress"] for kind in ("activation", "gradient") if row["tensor"].startswith(f"{kind} ")}
    shown = _set_of(rows["activation"]), _set_of(rows.get("gradient", "LABELS READABLE"))
    known = {str(layer["name"]): str(layer["why"]) for layer in found["known_layers"]}
    return shown, len({name.rpartition(".")[0] for name in model.weights if name.startswith("front")}), known


def _set_of(words: str) -> int:
    return sum(SHOWS[w.strip().lower()] for w in words.split(",") if w.strip())


def _layers(model: _export.Model) -> str:
    script, shown, before = _export.exporter(), [], [model.inputs[0][0]]
    for layer in model.layers:
        shown.append(script.layer_yaml({k: v for k, v in layer.items() if k != "from" or v != before}))
        before = [layer["name"]]
    return ", ".join(shown)


def _stage(model: _export.Model, part: str, worker: str, folder: str, secret: bool) -> str:
    names = [layer["name"] for layer in model.layers if layer["name"].partition(".")[0] == part]
    at = worker if part == "far" else "master"
    has_weights = part != "far" and any(n.partition(".")[0] == part for n in model.weights)
    weights = f", weights: {{file: {folder}/weights.safetensors, secret: {str(secret).lower()}}}" if has_weights else ""
    return f"{{name: {part}, at: {at}, layers: {names[0]}..{names[-1]}{weights}}}"


def _data(folder: str, parts: Mapping[str, nn.Module], example: torch.Tensor) -> list[str]:
    """Writes the records, and labels of the form of the output. Returns settings for both."""
    was = {m: m.training for part in parts.values() for m in part.modules()}
    try:
        with torch.no_grad():
            x = example
            for part in parts.values():
                x = part.eval()(x)
    finally:
        for m, training in was.items():
            m.training = training
    classes = x.dim() == 2 and x.shape[1] > 1
    labels = np.arange(len(x)) % x.shape[1] if classes else np.zeros(tuple(x.shape), np.float32)
    np.save(os.path.join(folder, "records.npy"), example.detach().cpu().numpy())
    np.save(os.path.join(folder, "labels.npy"), labels)
    return [f"data={{format: npy, root: {folder}, train: [records.npy, labels.npy]}}", f"loss={{kind: {'cross_entropy' if classes else 'mse'}}}"]
