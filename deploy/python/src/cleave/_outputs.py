# SPDX-License-Identifier: Apache-2.0
"""Calls of a Remote whose module returns a tuple, or that was given bfloat16 under autocast."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _errors, _lib
from ._lib import ffi, lib
from ._modules import CLEAVE, fill_tensor, take_tensor
from ._runtime import Runtime, Training


def is_autocast(device: str) -> bool:
    """Whether torch.autocast is on for tensors of that device."""
    try:
        return bool(torch.is_autocast_enabled(device))
    except TypeError:  # before torch 2.4
        return bool(torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled())


class Forward:
    """One forward whose backward may still come. Its finalizer leaves the calls of the runtime that
    free it at the worker to whoever calls next."""

    def __init__(self, runtime: Runtime, training: Training | None) -> None:
        self.runtime, self.training, self.is_over = runtime, training, False
        self.leaves = self.values = ffi.new("cleave_reference[]", 0)
        if training:
            training.live += 1

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self.training:
                self.training.live -= 1

    def release(self, handle: Any) -> None:
        for reference in (*self.leaves, *self.values):
            lib.cleave_reference_release(handle, reference, ffi.NULL)

    def forget(self) -> None:
        rt = self.runtime
        if not self.is_over and self.training in (rt._training, *rt._apart):
            for value in self.values:
                lib.cleave_call_forget(rt._handle, value, ffi.NULL)
            self.release(rt._handle)
        self.end()

    def __del__(self) -> None:
        if not self.is_over:
            self.runtime._garbage.append(self.forget)

    # ---- forward ---------------------------------------------------------------------------------

    def run(self, handle: Any, context: Any, modules: Sequence[Any], inputs: Sequence[torch.Tensor], wanted: Sequence[bool]) -> tuple[torch.Tensor, ...]:
        """Leaves, calls, and the outputs of the last module, bfloat16 if an input is."""
        error, tensor = _lib.new_error(), ffi.new("cleave_tensor *")
        self.leaves = ffi.new("cleave_reference[]", len(inputs))
        for k, x in enumerate(inputs):
            kept = fill_tensor(tensor, x)
            _lib.check(lib.cleave_leaf(handle, context, tensor, wanted[k], ffi.addressof(self.leaves, k), error), error)
            del kept
        options = ffi.new("cleave_call_options *", {"size": ffi.sizeof("cleave_call_options")})
        given: Any = self.leaves
        for module in modules:
            if module is modules[-1]:
                options.to_program = True
                options.fetch_dtype = CLEAVE[torch.bfloat16] if any(x.dtype == torch.bfloat16 for x in inputs) else 0
            made = ffi.new("cleave_reference[]", lib.cleave_output_count(module.handle))
            _lib.check(lib.cleave_call_outputs(handle, context, module.handle, given, len(given), options, made, len(made), error), error)
            for value in self.values:
                lib.cleave_reference_release(handle, value, ffi.NULL)
            given = self.values = made
        return tuple(self._fetch(value) for value in self.values)

    def _fetch(self, value: Any) -> torch.Tensor:
        tensor = ffi.new("cleave_tensor *")
        self.runtime._wait(lambda rt, future, e: lib.cleave_to_here_async(rt, value, 0, future, e),
                           lambda rt, future, e: lib.cleave_future_tensor(rt, future, tensor, e))
        return take_tensor(tensor)

    # ---- backward --------------------------------------------------------------------------------

    def backward(self, given: Sequence[torch.Tensor | None], wanted: Sequence[bool], retain: bool) -> list[torch.Tensor | None]:
        """Gradients of the wanted inputs. given: one for each output; None: zero."""
        training = self.training
        assert training
        used = [k for k, g in enumerate(given) if g is not None]
        roots = ffi.new("cleave_reference[]", [self.values[k] for k in used])
        tensors = ffi.new("cleave_tensor[]", len(used))
        kept = [fill_tensor(t, g) for t, g in zip(tensors, given_of(given))]
        options = ffi.new("cleave_backward_options *", {"size": ffi.sizeof("cleave_backward_options"), "gradients": tensors, "retain": retain})
        self.runtime._wait(lambda rt, future, e: lib.cleave_backward_async(rt, training.context, roots, len(roots), options, future, e))
        del kept
        return [self._take(leaf) if w else None for leaf, w in zip(self.leaves, wanted)]

    def _take(self, leaf: Any) -> torch.Tensor | None:
        error, tensor = _lib.new_error(), ffi.new("cleave_tensor *")
        with self.runtime._use() as rt:
            status = lib.cleave_leaf_gradient_take(rt, leaf, tensor, error)
        if status == _errors.Code.NOT_FOUND:  # no root depends on it
            return None
        _lib.check(status, error)
        return take_tensor(tensor)


def given_of(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [g for g in gradients if g is not None]


class Trained(torch.autograd.Function):
    """A forward in the training context, and its backward. An output without a gradient counts as
    zero."""

    @staticmethod
    def forward(ctx: Any, remote: Any, anchor: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rt, ctx.remote, ctx.wanted = remote.runtime, remote, list(ctx.needs_input_grad[2:])
        ctx.devices = [x.device for x in inputs]
        ctx.set_materialize_grads(False)
        with rt._use() as handle:
            training = rt._training_context(handle)
            ctx.made = Forward(rt, training)
            try:
                results = ctx.made.run(handle, training.context, remote._modules_at, inputs, ctx.wanted)
            except BaseException as e:
                training.failure = e
                ctx.made.end()
                raise
        return tuple(r.to(inputs[0].device) for r in results)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Any:
        from ._remote import _kept_graph
        remote, rt, made, retain = ctx.remote, ctx.remote.runtime, ctx.made, _kept_graph()
        if not given_of(given):
            return None, None, *(None for _ in ctx.wanted)
        with rt._use() as handle:
            check_backward(remote, made)
            try:
                gradients = made.backward(given, ctx.wanted, retain)
            except BaseException as e:
                made.training.failure = e
                raise
            made.training.touched.add(remote)
            if not retain:
                made.release(handle)
                made.end()
        return None, None, *(g if g is None else g.to(d) for g, d in zip(gradients, ctx.devices))


def check_backward(remote: Any, made: Forward) -> None:
    """Refuses a backward that would not be torch's."""
    training = made.training
    if made.is_over:
        raise _errors.precondition("backward a second time through this forward of a cleave.Remote: it has had its backward",
                                   "call backward(retain_graph=True) the first time (torch 2.1 or newer), or run the forward again")
    if remote.runtime._training is not training:
        raise _errors.precondition("the context of this forward was closed, by step() or zero_grad() of cleave.Optimizer",
                                   "run the forward again; zero_grad() belongs before the forward")
    if remote._has_stepped or training and remote in training.settled:
        raise _errors.precondition(f"backward through {remote._name} behind step() of its optimizer without zero_grad(), or with a forward from before it",
                                   "call zero_grad() of the optimizer before each forward")


class Evaluated(torch.autograd.Function):
    """A forward in eval mode: a backward is refused in words."""

    @staticmethod
    def forward(ctx: Any, remote: Any, anchor: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return evaluate(remote, inputs)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        raise _errors.unimplemented("backward through a cleave.Remote in eval mode: workers keep nothing of an evaluation",
                                    "call model.train() before the forward")


def evaluate(remote: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """A forward in a context of its own."""
    rt, error, context = remote.runtime, _lib.new_error(), ffi.new("cleave_context *")
    options = ffi.new("cleave_context_options *", {"size": ffi.sizeof("cleave_context_options"), "evaluation": not remote.training})
    with rt._use() as handle:
        _lib.check(lib.cleave_context_open(handle, options, context, error), error)
        made = Forward(rt, None)
        made.end()  # nothing comes after it
        try:
            results = made.run(handle, context[0], remote._modules_at, inputs, [False] * len(inputs))
        finally:
            made.release(handle)
            lib.cleave_context_end(handle, context[0], ffi.NULL)
    return tuple(r.to(inputs[0].device) for r in results)


def call(remote: Any, inputs: Sequence[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The outputs of the module: a tuple if it returns one."""
    results: tuple[torch.Tensor, ...]
    if not torch.is_grad_enabled():
        results = evaluate(remote, inputs)
    else:
        learns = remote._learning or any(x.requires_grad for x in inputs)
        function = Trained if learns and remote.training else Evaluated
        results = function.apply(remote, remote._anchor if learns else remote._anchor.detach(), *inputs)
    return results if remote._n_outputs > 1 else results[0]
