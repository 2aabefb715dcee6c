# SPDX-License-Identifier: Apache-2.0
"""Remote: a torch module that computes at a worker."""
from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from . import _errors, _export, _lib
from ._front import judged
from ._lib import ffi, lib
from ._modules import WEIGHTS, Module, fill_tensor, take_tensor
from ._runtime import Runtime, Training, current
from ._sends import Sends, declared
from ._tables import Sent

_keeps_graph = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)


class RemoteGradient(torch.Tensor):
    """Stands for a gradient at a worker, which Remote.gradients() reads."""

    _remote: Any

    def zero_(self) -> RemoteGradient:
        self._remote._forget_gradients()
        return self


class RemoteParameter(nn.Parameter):
    """Stands for a parameter at a worker: it has a shape and no values (torch's meta device).
    requires_grad_(False) freezes it there."""

    _remote: Any
    _adding: ClassVar[bool] = False  # cleave.Optimizer adds parameters now

    def __new__(cls, shape: Sequence[int], remote: Remote, learns: bool) -> RemoteParameter:
        self: RemoteParameter = super().__new__(cls, torch.empty(tuple(shape), device="meta"), learns)
        self._remote = remote
        return self

    # torch.optim asks each parameter for it.
    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        if not RemoteParameter._adding and "optim" in sys._getframe(1).f_code.co_filename:
            raise _errors.unimplemented("a torch optimizer cannot step parameters of a cleave.Remote: they are at a worker",
                                        "cleave.Optimizer(torch.optim.AdamW, model, lr=...) steps all nodes or none")
        return True

    @property
    def grad(self) -> torch.Tensor | None:
        if sys._getframe(1).f_code.co_filename.endswith("clip_grad.py"):
            raise _errors.unimplemented("clip_grad_norm_ cannot see gradients at a worker", "cleave.Optimizer(..., clip_grad_norm=1.0)")
        t = self._remote.runtime._training
        has_some = self._remote._has_stepped or t and self._remote in t.touched - t.settled
        if not has_some or not self.requires_grad:
            return None
        stand_in = torch.Tensor._make_subclass(RemoteGradient, torch.empty(self.shape, device="meta"))
        stand_in._remote = self._remote
        return stand_in

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if value is not None:
            raise _errors.unimplemented("the gradient of a parameter at a worker cannot be set here")
        self._remote._forget_gradients()

    @property
    def requires_grad(self) -> bool:
        return bool(torch.Tensor.requires_grad.__get__(self))  # type: ignore[attr-defined]

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        torch.Tensor.requires_grad.__set__(self, value)  # type: ignore[attr-defined]
        if getattr(self, "_remote", None) is not None:
            self._remote._freeze_is_stale = True

    def requires_grad_(self, requires_grad: bool = True) -> RemoteParameter:
        self.requires_grad = requires_grad
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return _errors.refuse_pickle(self, "state_dict() has its values")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _errors.refuse_pickle(self, "state_dict() has its values")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RemoteParameter({list(self.shape)} at {self._remote.placement})"


class _Live:
    """One forward whose backward may still come. Its finalizer leaves the calls of the runtime that
    free it at the worker to whoever calls next."""

    def __init__(self, runtime: Runtime, training: Training) -> None:
        self.runtime, self.training, self.is_over = runtime, training, False
        self.state: Any = None  # shim_forward *
        training.live += 1

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.training.live -= 1

    def forget(self) -> None:
        if not self.is_over and self.state is not None and self.training in (self.runtime._training, *self.runtime._apart):
            lib.shim_forward_forget(self.runtime._handle, self.state)
        self.end()

    def __del__(self) -> None:
        if not self.is_over:
            self.runtime._garbage.append(self.forget)


class _Trained(torch.autograd.Function):
    """A forward in the training context, and its backward."""

    @staticmethod
    def forward(ctx: Any, remote: Remote, anchor: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        wanted = list(ctx.needs_input_grad[2:])
        rt = remote.runtime
        with rt._use() as handle:
            training = rt._training_context(handle)
            ctx.live = _Live(rt, training)
            try:
                state, result = remote._forward(handle, training.context, inputs, wanted, False)
            except BaseException as e:
                training.failure = e
                ctx.live.end()
                raise
        ctx.remote, ctx.wanted, ctx.root = remote, wanted, state.value.id
        ctx.leaves, ctx.devices = [state.leaves[i].id for i in range(len(inputs))], [x.device for x in inputs]
        ctx.live.state = state
        return result.to(inputs[0].device)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        remote, rt, retain = ctx.remote, ctx.remote.runtime, _kept_graph()
        with rt._use() as handle:
            training = ctx.live.training
            if ctx.live.is_over:
                raise _errors.precondition("backward a second time through this forward of a cleave.Remote: it has had its backward",
                                           "call backward(retain_graph=True) the first time, or run the forward again" if _keeps_graph else
                                           "run the forward again; retain_graph needs a newer torch, 2.1 or so")
            if rt._training is not training:
                raise _errors.precondition("the context of this forward was closed, by step() or zero_grad() of cleave.Optimizer",
                                           "run the forward again; zero_grad() belongs before the forward")
            if remote._has_stepped:
                raise _errors.precondition(f"backward through {remote._name} without zero_grad() since its step: a worker's gradients end with the step, those here do not",
                                           "call zero_grad() of the optimizer before each backward phase")
            if remote in training.settled:
                raise _errors.precondition(f"backward through {remote._name} behind step() or zero_grad() of its optimizer, with a forward from before",
                                           "run the forward again; zero_grad() belongs before it")
            try:
                gradients = remote._backward(handle, training.context, ctx, outputs[0], retain)
            except BaseException as e:
                training.failure = e
                raise
            training.touched.add(remote)
            if not retain:
                ctx.live.end()
        return None, None, *(g if g is None else g.to(d) for g, d in zip(gradients, ctx.devices))


def _kept_graph() -> bool:
    """Whether this backward keeps the graph. Refuses what would not be exact."""
    if torch.is_grad_enabled():
        raise _errors.unimplemented("double backward (create_graph=True) through a cleave.Remote: workers have no derivatives of gradients")
    return bool(_keeps_graph()) if _keeps_graph else False  # torch 1.13 does not say


class _Evaluated(torch.autograd.Function):
    """A forward in eval mode: a backward is refused in words."""

    @staticmethod
    def forward(ctx: Any, remote: Remote, anchor: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        return remote._evaluate(inputs)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        raise _errors.unimplemented("backward through a cleave.Remote in eval mode: workers keep nothing of an evaluation",
                                    "call model.train() before the forward")


class Remote(nn.Module):
    """A module at a worker, called like any other: far(x) sends x, and returns what the worker has
    computed; backward() sends the gradient of that, and brings the gradient of x.

    module: an nn.Sequential of modules that Cleave has (`cleave-master ops`), one such module, or
        one whose forward can be followed; parameters are float32. A list of modules is a chain,
        with a worker for each in `at`.
    at: name of a worker of the session file, or "master".
    example: an input, [batch, ...] float32 or int64, or a tuple of several. Later batches may have
        other sizes, and no other shape.
    device: "cpu", "cuda", "cuda:1"; None: the worker's first device that is not a processor.
    threads: compute threads at the worker.
    freeze: names or globs ("0.*") of parameters that do not learn; those with requires_grad=False
        do not either.
    lora: {"targets": [...], "r": 8, "alpha": 16}: adapters beside linear layers learn, nothing
    else.
    recompute: blocks of layers that keep only their inputs, as train.recompute of a session file.
    weights: {"artifact": NAME, "sha256": DIGEST}: values from the worker's own disk; None: the
        module's, which are sent.
    sends: what the tensors show, in the words of `cleave-master plan` ("mixed", "tokens, picture");
        None: the worst that they can be. A text for all inputs, a list with one for each, or
        {"inputs": ..., "gradient": "labels readable", "hiding_layers": 1}. With {"front": (front,
        images[:32]), "head": head, "secret": True} the rules of plan judge: what is declared beside
        may not be less, and a front that cannot be exported shows raw records. "secret" says that
        no one else has the values of front and head. Runtime.egress() prints the words. With
        open(run=...) the host's policy is checked against them, and the record has them.
    name: for messages and the worker's status.

    Nothing is sent until the first use: a forward, state_dict(), load_state_dict() or place().
    Raises UnimplementedError for a layer that Cleave lacks, InvalidError for an example of another
    type. The first use raises UnavailableError for a lost worker, ExhaustedError for too little
    memory there.
    """

    def __init__(self, module: nn.Module | Sequence[nn.Module], *, at: str | Sequence[str], example: object, device: str | None = None,
                 threads: int = 1, freeze: Sequence[str] = (), lora: Mapping[str, Any] | None = None, recompute: Sequence[str] = (),
                 weights: Mapping[str, str] | None = None, sends: Sends = None, name: str | None = None,
                 runtime: Runtime | None = None) -> None:
        self._begin(runtime or current(), name or "remote", lora)
        modules, places = _stages(module, at)
        sends = judged(self.runtime.path, sends, modules, places)
        if weights is not None:
            check_artifact(weights, "weights")
        options = {"device": device, "threads": threads, "recompute": recompute, "weights": weights}
        given = _export.examples_of(example)
        for k, (m, node) in enumerate(zip(modules, places)):
            prefix = f"{k}." if len(modules) > 1 else ""
            model = _export.export(m, given if len(given) > 1 else given[0])
            model = _export.with_lora(model, lora) if lora else model
            own = [f[len(prefix):] for f in freeze if f.startswith(prefix)]
            self._modules_at.append(Module(self.runtime, model, self._name + (f".{k}" if prefix else ""), node, {**options, "freeze": own}))
            self._prefixes.append(prefix)
            if k + 1 < len(modules):
                given = [_output_of(m, given)]
        self._complete(sends)

    # ---- making ----------------------------------------------------------------------------------

    def _begin(self, runtime: Runtime, name: str, lora: Mapping[str, Any] | None) -> None:
        """A Remote without modules, to which the caller adds them."""
        super().__init__()
        self.runtime, self._has_optimizer, self._has_stepped = runtime, False, False
        self._name, self.lora = self._unique(name), dict(lora) if lora else None
        self._modules_at: list[Module] = []
        self._prefixes: list[str] = []

    def _complete(self, sends: Sends) -> None:
        """What follows from the modules."""
        self._anchor = torch.zeros((), requires_grad=True)
        self._make_parameters()
        self._freeze_is_stale, self._learning = False, bool(self.remote_parameters())
        self._handles = ffi.new("cleave_module *[]", [m.handle for m in self._modules_at])
        self._declare(sends)
        self._declare_weights()

    # ---- what it is ------------------------------------------------------------------------------

    def _unique(self, name: str) -> str:
        taken, k, found = self.runtime._names, 2, name
        while found in taken:
            found, k = f"{name}-{k}", k + 1
        taken.add(found)
        return found

    def _entries(self) -> Iterator[tuple[str, Module, _export.Entry]]:
        """(torch's name, module, entry) of all parameters and buffers."""
        for prefix, m in zip(self._prefixes, self._modules_at):
            yield from ((prefix + name, m, entry) for name, entry in m.model.entries.items())

    def _make_parameters(self) -> None:
        """Parameters without values, under their names in the module, dots and all."""
        for name, m, entry in self._entries():
            if entry.is_parameter:
                learns = all(self._learns(m)[p.name] for p in entry.parts)
                self._parameters[name] = RemoteParameter(entry.shape, self, learns)

    def _learns(self, m: Module) -> dict[str, bool]:
        info, error, found = ffi.new("cleave_parameter *"), _lib.new_error(), {}
        for i in range(lib.cleave_parameter_count(m.handle)):
            info.size = ffi.sizeof("cleave_parameter")
            _lib.check(lib.cleave_parameter_info(m.handle, i, info, error), error)
            found[_lib.text(info.name)] = bool(info.learns)
        return found

    def _declare(self, sends: Sends) -> None:
        first = self._modules_at[0]
        says = declared(sends, len(first.model.inputs))
        for k, (_, dtype, shape) in enumerate(first.model.inputs if first.at != "master" else ()):
            shows = says.text(k, dtype)
            self.runtime._shows[first.name, k] = shows
            self.runtime._declare(Sent(first.at, "input", first.name, str(k), dtype, shape, shows, 0, 0), says.inputs[k], says.hiding_layers)
        for here, before, behind in zip(self._modules_at, [None, *self._modules_at], [*self._modules_at[1:], None]):
            if here.at != "master" and before and before.at == "master":
                self.runtime._declare(Sent(here.at, "value", before.name, "", "f32", (), f"output of {before.name}", 0, 0), says.of_value, says.hiding_layers)
            if here.at != "master" and (behind is None or behind.at == "master"):
                self.runtime._declare(Sent(here.at, "gradient", here.name, "", "f32", (), "of the output", 0, 0), says.gradient, says.hiding_layers)
        for before, behind in zip(self._modules_at, self._modules_at[1:]):
            if "master" not in (before.at, behind.at) and before.at != behind.at:
                self.runtime._declare_relay(before.name, before.at, behind.at, says)

    def _declare_weights(self) -> None:
        for m in self._modules_at:
            for entry in m.model.entries.values() if m.at != "master" else ():
                for p in entry.parts:
                    if p.name in m.given:
                        self.runtime._declare(Sent(m.at, "weights", m.name, p.name, _export.DTYPES[entry.dtype], p.shape, "", 0, 0))

    @property
    def placement(self) -> str:
        """Nodes, in the order of the chain: "w1, w2"."""
        return ", ".join(m.at for m in self._modules_at)

    def remote_parameters(self) -> dict[str, RemoteParameter]:
        """{name: parameter} of what learns at the workers."""
        return {n: p for n, p in self._parameters.items() if isinstance(p, RemoteParameter) and p.requires_grad}

    def extra_repr(self) -> str:
        return f"{self._name} at {self.placement}, {sum(p.numel() for p in self.parameters())} parameters"

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Remote:
        """Remote values stay where they are; their type cannot be changed."""
        probe = fn(torch.zeros(1))
        if isinstance(probe, torch.Tensor) and probe.dtype != torch.float32:
            raise _errors.unimplemented(f"a cleave.Remote in {probe.dtype}: workers compute in float32")
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _errors.refuse_pickle(self, "save state_dict(), and make a Remote again")

    def __deepcopy__(self, memo: Any) -> Any:
        return _errors.refuse_pickle(self, "make another Remote")

    def __del__(self) -> None:
        for m in self.__dict__.get("_modules_at", ()):
            m.runtime._garbage.append(m.release)

    # ---- calls -----------------------------------------------------------------------------------

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The output, [batch, ...] float32, on the device of the first input.

        In training mode with gradients enabled, the worker keeps what the backward needs until
        then.
        """
        wanted = self._modules_at[0].model.inputs
        if len(inputs) != len(wanted):
            raise _errors.invalid(f"{self._name} takes {len(wanted)} inputs, and was called with {len(inputs)}")
        for k, (x, (_, dtype, shape)) in enumerate(zip(inputs, wanted)):
            if _export.DTYPES[_export.check_tensor(x, f"input {k} of {self._name}").dtype] != dtype:
                raise _errors.invalid(f"input {k} of {self._name} is {x.dtype}, and its example was {dtype}")
        self._synchronize()
        if not torch.is_grad_enabled():
            return self._evaluate(inputs)
        learns = self._learning or any(x.requires_grad for x in inputs)
        call = _Trained if learns and self.training else _Evaluated
        result: torch.Tensor = call.apply(self, self._anchor if learns else self._anchor.detach(), *inputs)
        return result

    def _evaluate(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """A forward in a context of its own. In training mode dropout drops and statistics run."""
        with self.runtime._use() as handle:
            _, result = self._forward(handle, None, inputs, [False] * len(inputs), not self.training)
        return result.to(inputs[0].device)

    def _forward(self, handle: Any, context: Any, inputs: Sequence[torch.Tensor], wanted: Sequence[bool], evaluation: bool) -> tuple[Any, torch.Tensor]:
        state, tensors = ffi.new("shim_forward *"), ffi.new("cleave_tensor[]", len(inputs))
        kept = [fill_tensor(t, x) for t, x in zip(tensors, inputs)]
        needs = ffi.new("bool[]", list(wanted))
        if context is not None:
            state.context = context
        state.evaluation, state.modules, state.n_modules = evaluation, self._handles, len(self._modules_at)
        state.inputs, state.requires_grad, state.n_inputs = tensors, needs, len(inputs)
        _lib.advance(lambda e: lib.shim_forward_run(handle, state, _lib.SLICE_MS, e), state,
                     lambda: lib.shim_forward_abandon(handle, state))
        del kept
        return state, take_tensor(ffi.addressof(state, "result"), state)

    def _backward(self, handle: Any, context: Any, ctx: Any, gradient: torch.Tensor, retain: bool) -> list[torch.Tensor | None]:
        state = ffi.new("shim_backward *")
        state.context, state.root.id, state.n_leaves, state.retain = context, ctx.root, len(ctx.leaves), retain
        for i, (leaf, wanted) in enumerate(zip(ctx.leaves, ctx.wanted)):
            state.leaves[i].id = leaf if wanted else 0
        kept = fill_tensor(state.gradient, _export.check_tensor(gradient, f"the gradient of {self._name}'s output"))
        _lib.advance(lambda e: lib.shim_backward_run(handle, state, _lib.SLICE_MS, e), state,
                     lambda: lib.shim_backward_abandon(handle, state))
        del kept
        return [take_tensor(ffi.addressof(state.gradients, i), state) if wanted else None for i, wanted in enumerate(ctx.wanted)]

    def place(self) -> Remote:
        """Sends the module to its workers now, and not with its first use. Returns itself."""
        self._synchronize()
        return self

    def _synchronize(self) -> None:
        """Brings requires_grad of the parameters to the worker, and the module after a change."""
        if self._freeze_is_stale:
            self._freeze_is_stale = False
            self._learning = bool(self.remote_parameters())
            for m in self._modules_at:
                self._freeze(m)
        for m in self._modules_at:
            if m.needs_place:
                m.place()

    def _freeze(self, m: Module) -> None:
        now = self._learns(m)
        wanted = {p.name: bool(self._parameters[name].requires_grad)  # type: ignore[union-attr]
                  for name, owner, entry in self._entries() if owner is m and entry.is_parameter for p in entry.parts}
        changed = {n: w for n, w in wanted.items() if now[n] != w}
        t = self.runtime._training
        if changed and t and not t.live and not t.others(set()):
            self.runtime._end_training()
        for frozen in (True, False):
            if names := [n for n, w in changed.items() if w != frozen]:
                m.set_frozen(names, frozen)

    def _forget_gradients(self) -> None:
        self.runtime._zero_gradients({self})

    def gradients(self) -> dict[str, torch.Tensor]:
        """{name: gradient} of the parameters that have one since the last step, copied from the
        workers, in the shapes of the parameters."""
        t, found = self.runtime._training, {}
        if not t or self not in t.touched - t.settled:
            return {}
        for prefix, m in zip(self._prefixes, self._modules_at):
            theirs = m.gradients(t.context)
            for name, entry in m.model.entries.items():
                joined = entry.join(theirs) if entry.is_parameter else None
                if joined is not None:
                    found[prefix + name] = joined
        return found

    # ---- state -----------------------------------------------------------------------------------

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Parameters and buffers under the module's names, copied from the workers. Frozen ones of
        a worker's artifact are left out, unless its worker.yaml makes them readable."""
        destination = {} if destination is None else destination
        self._synchronize()
        for own, m in zip(self._prefixes, self._modules_at):
            theirs = m.read_state(WEIGHTS)
            for name, entry in m.model.entries.items():
                joined = entry.join(theirs)
                if joined is not None:
                    destination[prefix + own + name] = joined
        return destination

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, strict: bool,
                              missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str]) -> None:
        self._synchronize()
        given: dict[str, dict[str, torch.Tensor]] = {m.name: {} for m in self._modules_at}
        known = set()
        for name, m, entry in self._entries():
            key = prefix + name
            known.add(key)
            value = state_dict.get(key)
            if value is None:
                if not key.endswith("num_batches_tracked") and entry.constant is None:
                    missing_keys.append(key)
            elif tuple(value.shape) != entry.shape:
                error_msgs.append(f"size mismatch for {key}: {tuple(value.shape)} in the checkpoint, {entry.shape} at {m.at}")
            elif entry.constant is None:
                given[m.name].update(entry.cut(value))
        if strict:
            unexpected_keys += [k for k in state_dict if k.startswith(prefix) and k not in known]
        if not error_msgs and not (strict and missing_keys):
            for m in self._modules_at:
                m.write_state(WEIGHTS, given[m.name])


def check_artifact(weights: Mapping[str, str], what: str) -> None:
    if set(weights) != {"artifact", "sha256"}:
        raise _errors.invalid(f"{what}={dict(weights)}: it is {{'artifact': NAME, 'sha256': DIGEST}}, or None for values that are sent")


def _stages(module: nn.Module | Sequence[nn.Module], at: str | Sequence[str]) -> tuple[list[nn.Module], list[str]]:
    if isinstance(module, nn.Module):
        if not isinstance(at, str):
            raise _errors.invalid(f"at={list(at)} with one module", "give a list of as many modules, or one name")
        return [module], [at]
    modules, places = list(module), [at] * len(module) if isinstance(at, str) else list(at)
    if not modules or len(places) != len(modules) or not all(isinstance(m, nn.Module) for m in modules):
        raise _errors.invalid(f"{len(modules)} modules at {len(places)} places: a chain has a place for each module, and at least one")
    return modules, places


def _output_of(module: nn.Module, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """An example for the next module of a chain. Statistics stay as they are."""
    was = module.training
    module.eval()
    try:
        with torch.no_grad():
            x = module(*(g.detach() for g in given))
    finally:
        module.train(was)
    return _export.check_tensor(x, "the output of a module of the chain")
