# SPDX-License-Identifier: Apache-2.0
"""Remote: a torch module that computes at a worker."""
from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from . import _errors, _export, _lib, _outputs
from ._front import judged
from ._lib import ffi, lib
from ._modules import CLEAVE, SMALL, WEIGHTS, Module, taken
from ._runtime import Runtime, Training, current
from ._sends import Sends, declared
from ._tables import Sent

_keeps_graph = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)


# Functions of torch that make a tensor of a parameter's form, and need no values.
_FORMS = frozenset(("__get__", "detach", "detach_", "requires_grad_", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"))
_without_subclasses = getattr(torch._C, "DisableTorchFunctionSubclass", torch._C.DisableTorchFunction)


class _AtWorker:
    """Base of what stands for values at a worker. It has a form and no values, so that functions of
    torch on it would do nothing without a word: they are refused."""

    _remote: Any
    _noun: ClassVar[str]  # "a parameter", and where its values are read and written
    _reader: ClassVar[str]
    _writer: ClassVar[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        is_change = name.startswith("__i") and name not in ("__invert__", "__int__", "__index__") or name in ("__set__", "__setitem__") \
            or name.endswith("_") and not name.endswith("__")
        if is_change and name not in _FORMS and isinstance(first, _AtWorker) and _is_of_values(func):
            raise first._refusal(name, first._writer)
        try:
            with _without_subclasses():
                made = func(*args, **(kwargs or {}))
        except (NotImplementedError, RuntimeError, TypeError) as e:
            stand_in = next((x for x in args if isinstance(x, _AtWorker)), None)
            if stand_in is None or isinstance(e, _errors.Error) or "meta" not in str(e):
                raise
            raise stand_in._refusal(name, stand_in._reader) from None
        if not isinstance(made, torch.Tensor) or made is first or isinstance(made, _AtWorker) or made.device.type != "meta":
            return made
        stand_in = next((x for x in args if isinstance(x, _AtWorker)), None)
        if stand_in is None or name.endswith("_like"):
            return made
        if name not in _FORMS:
            raise stand_in._refusal(name, stand_in._reader)
        kind: Any = RemoteGradient if isinstance(stand_in, RemoteGradient) else RemoteValue
        view = made.as_subclass(kind)
        view._remote = stand_in._remote
        return view

    def _refusal(self, name: str, instead: str) -> _errors.Error:
        at = getattr(self, "_remote", None)
        return _errors.unimplemented(f"{name} of {self._noun} of a cleave.Remote{f' at {at.placement}' if at is not None else ''}: its values are not in this process", instead)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        form: Any = self
        return f"{type(self).__name__}({list(form.shape)} at {self._remote.placement})"


def _is_of_values(func: Any) -> bool:
    """Whether a setter is that of values: of .data, and not of .requires_grad and the like."""
    owner = getattr(func, "__self__", None)
    return getattr(func, "__name__", "") != "__set__" or owner is torch.Tensor.data


class RemoteValue(_AtWorker, torch.Tensor):  # type: ignore[misc]
    """A view of a RemoteParameter, such as p.data."""

    _noun, _reader, _writer = "a parameter", "remote.state_dict() copies them here; weight_decay= of cleave.Optimizer is the usual penalty", \
        "give the module its values before cleave.Remote(module, ...), or load them: remote.load_state_dict(...)"


class RemoteGradient(_AtWorker, torch.Tensor):  # type: ignore[misc]
    """Stands for a gradient at a worker, which Remote.gradients() reads."""

    _noun, _reader, _writer = "a gradient", "remote.gradients() copies them here", "cleave.Optimizer(..., clip_grad_norm=1.0) clips at all nodes"

    def zero_(self) -> RemoteGradient:
        self._remote._forget_gradients()
        return self


class RemoteParameter(_AtWorker, nn.Parameter):  # type: ignore[misc]
    """Stands for a parameter at a worker: it has a shape and no values (torch's meta device).
    requires_grad_(False) freezes it there."""

    _noun, _reader, _writer = RemoteValue._noun, RemoteValue._reader, RemoteValue._writer
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
            raise _errors.unimplemented("clip_grad_norm_ and clip_grad_value_ cannot see gradients at a worker", "cleave.Optimizer(..., clip_grad_norm=1.0)")
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


class _Memory:
    """A forward and its backward in the words of shim.h, for inputs of one module: making it costs
    more than filling it, so that later forwards use it again."""

    __slots__ = ("_kept", "back", "back_at", "error", "error_at", "forth", "forth_at", "is_small", "shapes", "value_shape")

    def __init__(self, remote: Remote) -> None:
        self._kept = ffi.new("shim_forward *"), ffi.new("shim_backward *")
        self.forth, self.back = ffi.gc(self._kept[0], lib.shim_forward_free), ffi.gc(self._kept[1], lib.shim_backward_free)
        self.error = _lib.new_error()
        self.forth_at, self.back_at, self.error_at = (_lib.address(p) for p in (self.forth, self.back, self.error))
        self.forth.modules, self.forth.n_modules, self.forth.n_inputs = remote._handles, len(remote._modules_at), len(remote._dtypes)
        for target, dtype in zip(self.forth.inputs, remote._dtypes):
            target.dtype = CLEAVE[dtype]
        self.back.forward, self.back.gradient.dtype = self.forth, CLEAVE[torch.float32]
        self.shapes: list[tuple[int, ...]] = [()] * len(remote._dtypes)
        self.value_shape: tuple[int, ...] = ()  # of the value for inputs of these shapes
        self.is_small = False                   # inputs and value

    def fill(self, inputs: Sequence[torch.Tensor], wanted: Sequence[bool]) -> Any:
        """Describes the inputs without a copy, unless they are elsewhere or not row-major. Returns
        what has to live until the forward has begun."""
        forth, kept = self.forth, inputs
        for k, x in enumerate(inputs):
            if not x.is_cpu or not x.is_contiguous():
                x = x.detach().cpu().contiguous()
                kept = [*kept, x]
            if x.shape != self.shapes[k]:
                self.reshape(k, x)
            forth.input_at[k], forth.requires_grad[k] = x.data_ptr(), wanted[k]
        forth.begun = forth.done = False
        return kept

    def reshape(self, k: int, x: torch.Tensor) -> None:
        self.shapes[k], self.is_small = x.shape, False
        self.forth.inputs[k].rank = x.dim()
        self.forth.inputs[k].shape[0:x.dim()] = list(x.shape)
        self.forth.room, self.back.room_bytes[k] = 0, x.numel() * x.element_size()

    def value(self, room: torch.Tensor | None) -> torch.Tensor:
        """The value of a forward that is done."""
        if room is not None and self.forth.is_in_room:
            return room
        found = taken(self.forth.result)
        self.value_shape, self.forth.room_bytes = found.shape, found.numel() * found.element_size()
        self.is_small = max(self.forth.room_bytes, *self.back.room_bytes) <= SMALL
        self.back.gradient.rank = found.dim()
        self.back.gradient.shape[0:found.dim()] = list(found.shape)
        return found

    def gradient(self, k: int, room: torch.Tensor | None) -> torch.Tensor:
        """The gradient of an input, of a backward that is done."""
        return room if room is not None and self.back.is_in_room[k] else taken(self.back.gradients[k])


class _Call:
    """One forward, whose backward may still come if it is in a training context. Its finalizer
    leaves the calls of the runtime that free it at the worker to whoever calls next."""

    __slots__ = ("devices", "is_live", "memory", "remote", "training", "wanted")

    def __init__(self, remote: Remote, training: Training | None) -> None:
        self.remote, self.training, self.is_live = remote, training, training is not None
        self.wanted: tuple[bool, ...] = ()
        self.devices: list[torch.device] | None = None  # of the inputs; None: all are in memory
        try:
            self.memory: _Memory = remote._spare.pop()
        except IndexError:
            self.memory = _Memory(remote)
        if training:
            training.live += 1

    def forward(self, handle: Any, inputs: Sequence[torch.Tensor], wanted: Sequence[bool], evaluation: bool) -> torch.Tensor:
        memory, training, rt = self.memory, self.training, self.remote.runtime
        forth, error, room = memory.forth, memory.error, None
        kept = memory.fill(inputs, wanted)
        if training:
            forth.context = training.context
        else:
            forth.context.id, forth.evaluation = 0, evaluation
        try:
            # what is sent at once keeps Python's lock; the value's memory is made while it travels
            if memory.is_small and self.remote._is_warm and rt.run is None:
                if _lib.forward_begin(rt._handle_at, memory.forth_at, memory.error_at):
                    raise _lib.error_of(error)
                room = torch.empty(memory.value_shape)
                forth.room = room.data_ptr()
            else:
                forth.room = 0
            while not forth.done:
                if lib.shim_forward_run(handle, forth, _lib.SLICE_MS, error):
                    raise _lib.error_of(error)
        except BaseException:
            lib.shim_forward_abandon(handle, forth)
            raise
        del kept
        if not self.remote._is_warm:
            self.remote._is_warm = True
        return memory.value(room)

    def backward(self, handle: Any, gradient: torch.Tensor, retain: bool) -> list[torch.Tensor | None]:
        memory, rt, wanted = self.memory, self.remote.runtime, self.wanted
        back, error = memory.back, memory.error
        rooms: list[torch.Tensor | None] = [None] * len(wanted)
        if gradient.dtype is not torch.float32 or not gradient.is_cpu or not gradient.is_contiguous():
            gradient = _export.check_tensor(gradient, f"the gradient of {self.remote._name}'s output").detach().cpu().contiguous()
        back.gradient_at, back.retain, back.begun, back.done = gradient.data_ptr(), retain, False, False
        try:
            if memory.is_small and rt.run is None:
                if _lib.backward_begin(rt._handle_at, memory.back_at, memory.error_at):
                    raise _lib.error_of(error)
                for k, is_wanted in enumerate(wanted):
                    if is_wanted:
                        rooms[k] = room = torch.empty(memory.shapes[k])
                        back.rooms[k] = room.data_ptr()
            else:
                back.rooms = [0] * lib.SHIM_INPUTS
            while not back.done:
                if lib.shim_backward_run(handle, back, _lib.SLICE_MS, error):
                    raise _lib.error_of(error)
        except BaseException:
            lib.shim_backward_abandon(handle, back)
            raise
        return [memory.gradient(k, rooms[k]) if wanted[k] else None for k in range(len(wanted))]

    def end(self) -> None:
        """No backward comes any more."""
        if self.is_live and self.training:
            self.training.live -= 1
        self.is_live = False

    def reuse(self) -> None:
        """Gives the memory to later forwards of the Remote: nothing of this one is in it."""
        self.end()
        self.remote._spare.append(self.memory)

    def forget(self) -> None:
        rt = self.remote.runtime
        if self.is_live and self.training in (rt._training, *rt._apart):
            lib.shim_forward_forget(rt._handle, self.memory.forth)
        self.end()

    def __del__(self) -> None:
        if self.is_live:
            self.remote.runtime._garbage.append(self.forget)


class _Trained(torch.autograd.Function):
    """A forward in the training context, and its backward."""

    @staticmethod
    def forward(ctx: Any, remote: Remote, anchor: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        rt = remote.runtime
        handle = rt._begin_use()
        try:
            training = rt._training_context(handle)
            ctx.call = call = _Call(remote, training)
            call.wanted = ctx.needs_input_grad[2:]
            if not all([x.is_cpu for x in inputs]):
                call.devices = [x.device for x in inputs]
            try:
                result = call.forward(handle, inputs, call.wanted, False)
            except BaseException as e:
                training.failure = e
                call.end()
                raise
        finally:
            rt._end_use()
        return result if inputs[0].is_cpu else result.to(inputs[0].device)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        call, retain = ctx.call, _kept_graph()
        remote, training = call.remote, call.training
        rt = remote.runtime
        handle = rt._begin_use()
        try:
            if not call.is_live or rt._training is not training or remote._has_stepped or remote in training.settled:
                raise _why_no_backward(call)
            try:
                gradients = call.backward(handle, outputs[0], retain)
            except BaseException as e:
                training.failure = e
                raise
            training.touched.add(remote)
            if not retain:
                call.reuse()
        finally:
            rt._end_use()
        return None, None, *(gradients if call.devices is None else [g if g is None else g.to(d) for g, d in zip(gradients, call.devices)])


def _why_no_backward(call: _Call) -> _errors.Error:
    name = call.remote._name
    if not call.is_live:
        return _errors.precondition("backward a second time through this forward of a cleave.Remote: it has had its backward",
                                    "call backward(retain_graph=True) the first time, or run the forward again" if _keeps_graph else
                                    "run the forward again; retain_graph needs a newer torch, 2.1 or so")
    if call.remote.runtime._training is not call.training:
        return _errors.precondition("the context of this forward was closed, by step() or zero_grad() of cleave.Optimizer",
                                    "run the forward again; zero_grad() belongs before the forward")
    if call.remote._has_stepped:
        return _errors.precondition(f"backward through {name} without zero_grad() since its step: a worker's gradients end with the step, those here do not",
                                    "call zero_grad() of the optimizer before each backward phase")
    return _errors.precondition(f"backward through {name} behind step() or zero_grad() of its optimizer, with a forward from before",
                                "run the forward again; zero_grad() belongs before it")


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
        no one else has the values of front, head and modules at="master": the ledger of this host
        knows better if a worker had them. Runtime.egress() prints the words. With
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
        is_secret = isinstance(sends, Mapping) and bool(sends.get("secret"))
        sends = judged(self.runtime.path, sends, modules, places)
        if weights is not None:
            check_artifact(weights, "weights")
        options = {"device": device, "threads": threads, "recompute": recompute, "weights": weights, "secret": is_secret}
        given = _export.examples_of(example)
        for k, (m, node) in enumerate(zip(modules, places)):
            prefix = f"{k}." if len(modules) > 1 else ""
            model = _export.export(m, given if len(given) > 1 else given[0])
            model = _export.with_lora(model, lora) if lora else model
            own = [f[len(prefix):] for f in freeze if f.startswith(prefix)]
            self._modules_at.append(Module(self.runtime, model, self._name + (f".{k}" if prefix else ""), node, {**options, "freeze": own}))
            self._prefixes.append(prefix)
            if k + 1 < len(modules):
                given = _outputs_of(m, given)
        self._complete(sends)

    # ---- making ----------------------------------------------------------------------------------

    def _begin(self, runtime: Runtime, name: str, lora: Mapping[str, Any] | None) -> None:
        """A Remote without modules, to which the caller adds them."""
        super().__init__()
        self.runtime, self._has_optimizer, self._has_stepped, self._is_warm = runtime, False, False, False
        self._name, self.lora = self._unique(name), dict(lora) if lora else None
        self._modules_at: list[Module] = []
        self._prefixes: list[str] = []

    def _complete(self, sends: Sends) -> None:
        """What follows from the modules."""
        self._anchor = torch.zeros((), requires_grad=True)
        self._make_parameters()
        self._freeze_is_stale, self._learning = False, bool(self.remote_parameters())
        self._handles = ffi.new("cleave_module *[]", [m.handle for m in self._modules_at])
        self._is_special = any(m.model.outputs for m in self._modules_at)  # _outputs.py calls it
        self._n_outputs = len(self._modules_at[-1].model.outputs) or 1
        self._dtypes = [_export.BY_NAME[dtype] for _, dtype, _ in self._modules_at[0].model.inputs]
        self._spare: list[_Memory] = []  # of forwards that have ended
        self._says, self._has_bf16_rows = declared(sends, len(self._dtypes)), False
        self._declare()
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

    def _declare(self) -> None:
        first, says = self._modules_at[0], self._says
        for k, (_, dtype, shape) in enumerate(first.model.inputs if first.at != "master" else ()):
            shows = says.text(k, dtype)
            self.runtime._shows[first.name, k] = shows
            self.runtime._declare(Sent(first.at, "input", first.name, str(k), dtype, shape, shows, 0, 0), says.inputs[k], says.hiding_layers)
        for here, before, behind in zip(self._modules_at, [None, *self._modules_at], [*self._modules_at[1:], None]):
            if here.at != "master" and before and before.at == "master":
                for output in _names_of_outputs(before):
                    self.runtime._declare(Sent(here.at, "value", before.name, output, "f32", (), f"output of {before.name}", 0, 0), says.of_value, says.hiding_layers)
            if here.at != "master" and (behind is None or behind.at == "master"):
                self._declare_gradients(here, "f32")
        for before, behind in zip(self._modules_at, self._modules_at[1:]):
            if "master" not in (before.at, behind.at) and before.at != behind.at:
                for output in _names_of_outputs(before):
                    self.runtime._declare_relay(before.name, before.at, behind.at, says, output)

    def _declare_gradients(self, m: Module, dtype: str) -> None:
        for output in _names_of_outputs(m):
            self.runtime._declare(Sent(m.at, "gradient", m.name, output, dtype, (), "of the output", 0, 0), self._says.gradient, self._says.hiding_layers)

    def _declare_bf16(self) -> None:
        """Rows of what autocast sends in bfloat16, once it does."""
        first, last, says = self._modules_at[0], self._modules_at[-1], self._says
        for k, (_, dtype, shape) in enumerate(first.model.inputs if first.at != "master" else ()):
            if dtype == "f32":
                self.runtime._declare(Sent(first.at, "input", first.name, str(k), "bf16", shape, says.text(k, dtype), 0, 0), says.inputs[k], says.hiding_layers)
        if last.at != "master":
            self._declare_gradients(last, "bf16")
        self._has_bf16_rows = True

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

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The output, [batch, ...] float32, on the device of the first input; a tuple of them if
        the module returns one. Inside torch.autocast an input may be bfloat16: it is sent in half
        the bytes, the worker computes with it as float32, and outputs and gradients come back in
        bfloat16.

        In training mode with gradients enabled, the worker keeps what the backward needs until
        then.
        """
        if len(inputs) != len(self._dtypes):
            raise _errors.invalid(f"{self._name} takes {len(self._dtypes)} inputs, and was called with {len(inputs)}")
        is_bf16 = False
        for k, (x, dtype) in enumerate(zip(inputs, self._dtypes)):
            if isinstance(x, torch.Tensor) and x.layout is torch.strided:
                if x.dtype is dtype:
                    continue
                if x.dtype is torch.bfloat16 and dtype is torch.float32 and _outputs.is_autocast(x.device.type):
                    is_bf16 = True
                    continue
            x = _export.check_tensor(x, f"input {k} of {self._name}")
            raise _errors.invalid(f"input {k} of {self._name} is {x.dtype}, and its example was {_export.DTYPES[dtype]}")
        self._synchronize()
        if is_bf16 and not self._has_bf16_rows:
            self._declare_bf16()
        if is_bf16 or self._is_special:
            return _outputs.call(self, inputs)
        if not torch.is_grad_enabled():
            return self._evaluate(inputs)
        learns = self._learning or any(x.requires_grad for x in inputs)
        call = _Trained if learns and self.training else _Evaluated
        result: torch.Tensor = call.apply(self, self._anchor if learns else self._anchor.detach(), *inputs)
        return result

    def _evaluate(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """A forward in a context of its own. In training mode dropout drops and statistics run."""
        with self.runtime._use() as handle:
            call = _Call(self, None)
            result = call.forward(handle, inputs, [False] * len(inputs), not self.training)
            call.reuse()
        return result if inputs[0].is_cpu else result.to(inputs[0].device)

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
                self._is_warm = False
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


def _names_of_outputs(m: Module) -> list[str]:
    """As egress() names them: the first or only one has no name."""
    return ["", *(f"output {k}" for k in range(1, len(m.model.outputs)))]


def _outputs_of(module: nn.Module, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Examples for the next module of a chain. Statistics stay as they are."""
    was = module.training
    module.eval()
    try:
        with torch.no_grad():
            x = module(*(g.detach() for g in given))
    finally:
        module.train(was)
    made = list(x) if isinstance(x, (tuple, list)) else [x]
    return [_export.check_tensor(y, "the output of a module of the chain") for y in made]
