# SPDX-License-Identifier: Apache-2.0
"""Optimizer: a torch optimizer over parameters here and at workers, which step together or not."""
from __future__ import annotations

import copy
import dataclasses
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from . import _errors, _lib
from ._lib import ffi, lib
from ._modules import OPTIMIZER, Module
from ._remote import Remote, RemoteParameter
from ._runtime import Runtime, Training

log = logging.getLogger("cleave")

# torch's class: its number in cleave.h, {field there: key of a group}, {key: the value it must
# have}
OFF = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False, "decoupled_weight_decay": False}
BETAS = {"beta1": ("betas", 0), "beta2": ("betas", 1), "eps": ("eps", None)}
COMMON = {"lr": ("lr", None), "weight_decay": ("weight_decay", None)}
KINDS: dict[type[torch.optim.Optimizer], tuple[int, dict[str, tuple[str, int | None]], dict[str, Any]]] = {
    torch.optim.SGD: (0, {**COMMON, "momentum": ("momentum", None), "nesterov": ("nesterov", None)}, {"dampening": 0, "maximize": False, "differentiable": False}),
    torch.optim.Adam: (1, {**COMMON, **BETAS}, OFF),
    torch.optim.AdamW: (2, {**COMMON, **BETAS}, {k: v for k, v in OFF.items() if k != "decoupled_weight_decay"}),
    torch.optim.Adagrad: (3, {**COMMON, "eps": ("eps", None), "lr_decay": ("lr_decay", None), "initial_accumulator_value": ("initial_accumulator_value", None)},
                          {"maximize": False, "differentiable": False}),
    torch.optim.RMSprop: (4, {**COMMON, "eps": ("eps", None), "alpha": ("alpha", None), "momentum": ("momentum", None), "centered": ("centered", None)},
                          {"maximize": False, "capturable": False, "differentiable": False}),
    torch.optim.Adamax: (5, {**COMMON, **BETAS}, {"maximize": False, "capturable": False, "differentiable": False}),
}
CHANGEABLE = {"lr", "initial_lr", "params"}  # keys of a group that may change while it trains


@dataclasses.dataclass(frozen=True)
class Step:
    """How a step ended. applied: False if a gradient is not finite; then no node has changed.
    norm: of all gradients before clipping; without clip_grad_norm of those at workers.  number:
    steps decided so far."""

    applied: bool
    norm: float
    number: int


class Optimizer(torch.optim.Optimizer):
    """A torch optimizer of which each node takes its part: every node steps, or none.

    kind: torch.optim.SGD, Adam, AdamW, Adagrad, RMSprop or Adamax.
    model: a module with Remotes in it, or torch's list of groups, [{"params": [...], "lr": ...}].
    clip_grad_norm: the largest norm over all gradients, here and at the workers; 0: no clipping.
    kw: as of the torch class: lr, weight_decay, betas, ...

    Schedulers of torch work: lr may change, other settings may not. last: the Step before.
    Raises UnimplementedError for another class or setting.
    """

    last: Step | None

    def __init__(self, kind: type[torch.optim.Optimizer], model: nn.Module | Iterable[Mapping[str, Any]], *,
                 clip_grad_norm: float = 0, **kw: Any) -> None:
        if kind not in KINDS:
            raise _errors.unimplemented(f"{getattr(kind, '__name__', kind)} at workers; there are {', '.join(k.__name__ for k in KINDS)}")
        if not 0 <= clip_grad_norm < math.inf:
            raise _errors.invalid(f"clip_grad_norm={clip_grad_norm}: it is a number above 0, or 0 for no clipping")
        groups = _groups(model)
        self.last, self._kind, self._clip = None, kind, float(clip_grad_norm)
        RemoteParameter._adding = True
        try:
            super().__init__(groups, _defaults(kind, kw))
        finally:
            RemoteParameter._adding = False
        self._inner = _inner(kind, self.param_groups, kw)
        self._remotes = _remotes(self.param_groups)
        runtimes = {id(r.runtime): r.runtime for r in self._remotes}
        if len(runtimes) > 1:
            raise _errors.unimplemented("Remotes of several runtimes in one optimizer")
        self._runtime: Runtime | None = next(iter(runtimes.values()), None)
        for r in self._remotes:
            r._has_optimizer = True
        self._handle: Any = None
        self._rates: list[tuple[int, float]] = []
        self._fixed, self._seen = [dict(g) for g in self.param_groups], [dict(g) for g in self.param_groups]
        self._mine = set(self._remotes)
        self._here = [p for group in self.param_groups for p in group["params"] if not isinstance(p, RemoteParameter)]
        if self._runtime:
            self._make()

    def _make(self) -> None:
        """The optimizer at the workers: a group for each of this one's and each module."""
        number, fields, _ = KINDS[self._kind]
        wanted = [(g, m, names) for g, group in enumerate(self.param_groups) for m, names in _members(group["params"])]
        groups, kept = ffi.new("cleave_group[]", max(1, len(wanted))), []
        for target, (g, m, names) in zip(groups, wanted):
            modules, texts = ffi.new("cleave_module *[]", [m.handle]), [ffi.new("char[]", n.encode()) for n in names]
            array = ffi.new("char *[]", texts)
            kept += [modules, texts, array]
            target.modules, target.n_modules, target.parameters, target.n_parameters, target.kind = modules, 1, array, len(names), number
            for field, (key, index) in fields.items():
                value = self.param_groups[g][key]
                setattr(target, field, type(getattr(target, field))(value if index is None else value[index]))
        runtime, found = self._runtime, ffi.new("cleave_optimizer **")
        assert runtime
        if wanted:
            runtime._end_idle_training()
            runtime._call_in_thread(lambda rt, e: lib.cleave_optimizer_new(rt, groups, len(wanted), self._clip, found, e))
            runtime._optimizers.append(found[0])
            self._handle, self._rates = found[0], [(g, float(self.param_groups[g]["lr"])) for g, _, _ in wanted]
        for r in self._remotes:
            for m in r._modules_at:
                m.needs_place = True
        del kept

    # ---- a step ----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every node, then this process: or none, if a gradient is not finite. Waits until
        the workers have answered. closure: as torch's; its loss is returned."""
        return _hooked(self, closure) if _has_hooks(self) else self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch's wrapper costs more than the rest

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_groups()
        home = [p.grad for p in self._here if p.grad is not None]
        finite, square = _are_finite(home), _square(home) if self._clip else 0.0
        runtime = self._runtime
        context = runtime._training if runtime else None
        if runtime and context and context.failure:
            raise _errors.precondition(f"a call since the last step failed: {context.failure}", "call zero_grad(), then begin the step again")
        for r in self._remotes:
            if r._has_stepped:
                raise _errors.precondition(f"step() a second time without zero_grad(): the gradients of {r._name} ended with the first")
        if runtime and context and (context.touched - context.settled) & self._mine:
            applied, norm, scale, number = self._step_far(runtime, context, finite, square)
        else:
            norm = math.sqrt(square) if finite else 0.0
            applied, scale, number = finite, self._scale(norm), self.last.number + 1 if self.last else 1
        self.last = Step(applied, norm, number)
        if not applied:
            log.warning("no node has taken this step: a gradient is not finite")
        elif self._inner:
            if scale != 1:
                torch._foreach_mul_(home, scale)
            self._inner.step()
        return loss

    def _scale(self, norm: float) -> float:
        """torch's clip_grad_norm_."""
        return min(1.0, self._clip / (norm + 1e-6)) if self._clip else 1.0

    def _step_far(self, runtime: Runtime, context: Training, finite: bool, square: float) -> tuple[bool, float, float, int]:
        """The workers' part. The context is closed, which waits for their answers, unless other
        optimizers have gradients in it."""
        mine, stepper = self._mine, ffi.NULL
        keeps = bool(context.others(mine))
        with runtime._use() as rt:
            if self._handle and finite:
                self._set_rates(rt)
                stepper = self._handle
            context.settled |= context.touched & mine
            for remote in context.touched & mine:
                remote.__dict__["_has_stepped"] = True
            if not keeps:
                runtime._training = None  # whatever becomes of it
            result = runtime._close_context(context, stepper, keeps, square) if stepper or not keeps else None
        runtime._log_notices()
        number = self.last.number if self.last else 0
        if result is None or not stepper:
            return finite, math.sqrt(square) if finite else 0.0, self._scale(math.sqrt(square)) if finite else 1.0, number + finite
        return result

    def _set_rates(self, rt: Any) -> None:
        for i, (g, before) in enumerate(self._rates):
            rate = float(self.param_groups[g]["lr"])
            if rate != before:
                error = _lib.new_error()
                _lib.check(lib.cleave_optimizer_set_rate(rt, self._handle, i, rate, error), error)
                self._rates[i] = (g, rate)

    def _check_groups(self) -> None:
        """Brings new rates to the optimizer here, and refuses what workers would not follow."""
        if self.param_groups == self._seen:
            return
        inner = iter(self._inner.param_groups) if self._inner else iter(())
        for k, (group, before) in enumerate(zip(self.param_groups, self._fixed)):
            if _has_home(group):
                mine = next(inner)
                mine.update({key: v for key, v in group.items() if key != "params"})
            changed = [key for key, v in group.items() if v is not before.get(key) and key not in CHANGEABLE and key in before and v != before[key]]
            if changed and any(isinstance(p, RemoteParameter) for p in group["params"]):
                raise _errors.unimplemented(f"group {k}: {changed[0]} changed from {before[changed[0]]} to {group[changed[0]]}; at workers only lr may change",
                                            "a scheduler that cycles momentum takes cycle_momentum=False")
        self._seen = [dict(g) for g in self.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients, here and at the workers. A forward before it stays usable."""
        for p in self._here:
            if p.grad is not None:
                if set_to_none:
                    p.grad = None
                else:
                    p.grad.detach_().zero_()
        if self._runtime:
            self._runtime._zero_gradients(self._mine)

    def add_param_group(self, param_group: Any) -> None:
        """Only while it is made: workers have their groups then."""
        if hasattr(self, "_inner"):
            raise _errors.unimplemented("add_param_group behind the making of a cleave.Optimizer", "make another optimizer")
        super().add_param_group(param_group)

    # ---- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As the torch class's over the same model in one process: moments are copied from the
        workers."""
        packed = super().state_dict()
        where = {id(p): k for k, p in enumerate(p for group in self.param_groups for p in group["params"])}
        packed["state"] = {where[id(p)]: s for p, s in self._inner.state.items()} if self._inner else {}
        for r in self._remotes:
            states = {m.name: m.read_state(OPTIMIZER) for m in r._modules_at}
            for name, m, entry in r._entries():
                found = _moments(entry, states[m.name]) if id(r._parameters.get(name)) in where else {}
                if found:
                    packed["state"][where[id(r._parameters[name])]] = found
        return packed

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes the state of the torch class over the same model, or of state_dict()."""
        everything = [p for group in self.param_groups for p in group["params"]]
        home = [k for k, p in enumerate(everything) if not isinstance(p, RemoteParameter)]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            if len(group["params"]) != len(saved["params"]):
                raise _errors.invalid(f"a group of {len(saved['params'])} parameters, here of {len(group['params'])}")
            group.update({k: v for k, v in saved.items() if k != "params"})
        self._check_groups()
        if self._inner:
            packed = self._inner.state_dict()
            packed["state"] = {k: copy.deepcopy(state_dict["state"][i]) for k, i in enumerate(home) if i in state_dict["state"]}
            self._inner.load_state_dict(packed)
        where = {id(p): k for k, p in enumerate(everything)}
        for r in self._remotes:
            given: dict[str, dict[str, torch.Tensor]] = {}
            for name, m, entry in r._entries():
                saved = state_dict["state"].get(where.get(id(r._parameters.get(name)), -1), {})
                given.setdefault(m.name, {}).update(_parts(entry, saved))
            for m in r._modules_at:
                m.write_state(OPTIMIZER, given.get(m.name, {}))

    def __repr__(self) -> str:
        return f"cleave.{super().__repr__()}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _errors.refuse_pickle(self, "save state_dict(), and make an Optimizer again")

    def __deepcopy__(self, memo: Any) -> Any:
        return _errors.refuse_pickle(self, "make another Optimizer")

    def __del__(self) -> None:
        runtime, handle = self.__dict__.get("_runtime"), self.__dict__.get("_handle")
        if runtime and handle:
            runtime._garbage.append(lambda: _release(runtime, handle))


def _release(runtime: Runtime, handle: Any) -> None:
    if handle in runtime._optimizers:
        runtime._optimizers.remove(handle)
        lib.cleave_optimizer_release(runtime._handle, handle, ffi.NULL)


# ---- hooks ---------------------------------------------------------------------------------------

HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
GLOBAL_HOOKS = [h for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
                if (h := getattr(sys.modules[torch.optim.Optimizer.__module__], name, None)) is not None]


def _has_hooks(optimizer: Optimizer) -> bool:
    own = optimizer.__dict__
    return bool(own.get(HOOKS[0]) or own.get(HOOKS[1]) or any(GLOBAL_HOOKS))


def _hooked(optimizer: Optimizer, closure: Callable[[], Any] | None) -> Any:
    """A step between the hooks of torch 2."""
    wrap: Any = torch.optim.Optimizer.profile_hook_step
    return wrap(Optimizer._step)(optimizer, closure)


# ---- groups --------------------------------------------------------------------------------------

def _groups(model: nn.Module | Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(model, nn.Module):
        return [{"params": [p for p in model.parameters() if p.requires_grad]}]
    groups = [dict(g) if isinstance(g, Mapping) else g for g in model]
    if not groups or not all(isinstance(g, dict) and "params" in g for g in groups):
        raise _errors.invalid("an Optimizer takes a module, or a list of {'params': [...]}", "give the model itself, and not its parameters()")
    return [{**g, "params": [p for p in ([g["params"]] if isinstance(g["params"], torch.Tensor) else g["params"]) if p.requires_grad]} for g in groups]


def _defaults(kind: type[torch.optim.Optimizer], kw: Mapping[str, Any]) -> dict[str, Any]:
    """The torch class's own, which checks them too."""
    defaults = dict(kind([torch.zeros(1, requires_grad=True)], **kw).defaults)
    for key, value in KINDS[kind][2].items():
        if defaults.get(key, value) != value:
            raise _errors.unimplemented(f"{kind.__name__}({key}={defaults[key]}) at workers; it is {value} there")
    if any(isinstance(v, torch.Tensor) for v in defaults.values()):
        raise _errors.unimplemented(f"{kind.__name__} with a tensor as a setting", "give a number")
    return defaults


def _inner(kind: type[torch.optim.Optimizer], groups: Iterable[dict[str, Any]], kw: Mapping[str, Any]) -> torch.optim.Optimizer | None:
    """The torch class itself, over what is in this process."""
    home = [{**g, "params": [p for p in g["params"] if not isinstance(p, RemoteParameter)]} for g in groups if _has_home(g)]
    return kind(home, **kw) if home else None


def _has_home(group: Mapping[str, Any]) -> bool:
    return any(not isinstance(p, RemoteParameter) for p in group["params"])


def _remotes(groups: Iterable[Mapping[str, Any]]) -> list[Remote]:
    return list(dict.fromkeys(p._remote for g in groups for p in g["params"] if isinstance(p, RemoteParameter)))


def _members(parameters: Iterable[torch.Tensor]) -> list[tuple[Module, list[str]]]:
    """(module, Cleave's names) of the remote ones among them."""
    wanted = {id(p) for p in parameters if isinstance(p, RemoteParameter)}
    found: dict[int, tuple[Module, list[str]]] = {}
    for r in _remotes([{"params": list(parameters)}]):
        for name, m, entry in r._entries():
            if id(r._parameters.get(name)) in wanted:
                found.setdefault(id(m), (m, []))[1].extend(p.name for p in entry.parts)
    return list(found.values())


def _square(gradients: Iterable[torch.Tensor]) -> float:
    """Sum of the squares."""
    return math.fsum(float(g.detach().double().square().sum()) for g in gradients)


def _are_finite(gradients: Iterable[torch.Tensor]) -> bool:
    return all(math.isfinite(float(g.detach().abs().max())) for g in gradients if g.numel())


def _moments(entry: Any, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """torch's state of one parameter."""
    first, steps = entry.parts[0].name, state.get("step")
    if steps is None or not int(steps):
        return {}
    names = [n[len(first) + 1:] for n in state if n.startswith(first + ".") and "." not in n[len(first) + 1:]]
    found: dict[str, Any] = {}
    for moment in names:
        joined = entry.join({p.name: state[f"{p.name}.{moment}"] for p in entry.parts if f"{p.name}.{moment}" in state})
        if joined is not None:
            found[moment] = joined
    return {"step": torch.tensor(float(steps)), **found} if found else {}


def _parts(entry: Any, saved: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Cleave's items of torch's state of one parameter."""
    found: dict[str, torch.Tensor] = {}
    for moment, value in saved.items():
        if moment == "step":
            found["step"] = torch.tensor(int(value), dtype=torch.int64)
        elif isinstance(value, torch.Tensor):
            found.update({f"{name}.{moment}": part for name, part in entry.cut(value).items()})
    return found
