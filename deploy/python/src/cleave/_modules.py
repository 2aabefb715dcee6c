# SPDX-License-Identifier: Apache-2.0
"""Modules of cleave.h: from an exported model to a loaded module, its state and its freezing."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from . import _errors, _lib
from ._export import Model
from ._lib import ffi, lib
from ._runtime import Runtime

NUMBERS = {"f32": 1, "i64": 3}
TORCH = {1: torch.float32, 3: torch.int64, 7: torch.bfloat16}
BYTES = {1: 4, 3: 8, 7: 2}
CLEAVE = {torch.float32: 1, torch.int64: 3, torch.bfloat16: 7}
WEIGHTS, OPTIMIZER = 1, 2
SMALL = 64 << 10  # bytes that are copied in less time than a destructor takes


def fill_tensor(target: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Describes a tensor to cleave.h without a copy, unless it is elsewhere or not row-major.
    Returns the memory, which has to live until the call has returned."""
    x = tensor.detach()
    if x.device.type != "cpu" or not x.is_contiguous():
        x = x.cpu().contiguous()
    target.dtype, target.rank = CLEAVE[x.dtype], x.dim()
    target.shape[0:x.dim()] = list(x.shape)
    target.data = ffi.cast("void *", x.data_ptr())
    return x


def _free(tensor: Any) -> Any:
    """A destructor, which keeps its argument until then."""
    at = _lib.address(tensor)

    def free(_: Any, kept: object = tensor) -> None:
        _lib.tensor_free(at)
    return free


def take_tensor(tensor: Any) -> torch.Tensor:
    """The memory of a result as a tensor, without a copy unless it is small. tensor: a
    cleave_tensor *, in memory of its own."""
    shape, dtype = tuple(tensor.shape[0:tensor.rank]), TORCH[tensor.dtype]
    size = math.prod(shape) * BYTES[tensor.dtype]
    if size <= SMALL:
        small = torch.empty(shape, dtype=dtype)
        if size:
            ffi.memmove(ffi.cast("char *", small.data_ptr()), ffi.cast("char *", tensor.data), size)
        _lib.tensor_free(_lib.address(tensor))
        return small
    data = ffi.gc(ffi.cast("char *", tensor.data), _free(tensor))
    return torch.frombuffer(ffi.buffer(data, size), dtype=dtype).view(shape)


def taken(tensor: Any) -> torch.Tensor:
    """A result in memory that is used again, as a tensor of its own."""
    own = ffi.new("cleave_tensor *", tensor)
    tensor.capacity, tensor.data = 0, ffi.NULL
    return take_tensor(own)


def names_of(names: Iterable[str]) -> tuple[Any, list[Any]]:
    """A char *[] of cleave.h, and what keeps it alive."""
    kept = [ffi.new("char[]", n.encode()) for n in names]
    return ffi.new("char *[]", kept), kept


class Named:
    """A cleave_named_tensor[] of tensors by name, alive as long as this object."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.n, self.names, self.items = len(tensors), set(tensors), ffi.new("cleave_named_tensor[]", max(1, len(tensors)))
        self._kept: list[Any] = []
        for item, (name, tensor) in zip(self.items, tensors.items()):
            text = ffi.new("char[]", name.encode())
            item.name = text
            self._kept += [text, fill_tensor(item.tensor, tensor)]


class Module:
    """A loaded module: one stage of a Remote."""

    def __init__(self, runtime: Runtime, model: Model, name: str, at: str, options: Mapping[str, Any]) -> None:
        self.runtime, self.model, self.name, self.at = runtime, model, name, at
        self.needs_place, self.was_lost = True, False
        self.given: set[str] = set()  # Cleave's names of values that are sent with it
        self._input_grads = model.inputs[0][1] == "f32"
        self.handle = self._load(options)
        runtime._modules.append(self.handle)
        runtime._loaded.add(self)

    def _graph(self) -> Any:
        error, new, node = _lib.new_error(), ffi.new("cleave_graph **"), ffi.new("int *")
        _lib.check(lib.cleave_graph_new(new, error), error)
        nodes: dict[str, int] = {}
        try:
            for name, dtype, shape in self.model.inputs:
                _lib.check(lib.cleave_graph_input(new[0], name.encode(), NUMBERS[dtype], list(shape), len(shape), node, error), error)
                nodes[name] = node[0]
            for layer in self.model.layers:
                sources = [nodes[s] for s in layer["from"]]
                _lib.check(lib.cleave_graph_op(new[0], layer["op"].encode(), self.model.attributes(layer).encode(), layer["name"].encode(),
                                               sources, len(sources), node, error), error)
                nodes[layer["name"]] = node[0]
            for output in self.model.outputs:
                _lib.check(lib.cleave_graph_output(new[0], nodes[output], error), error)
        except BaseException:
            lib.cleave_graph_free(new[0])
            raise
        return new[0]

    def _create(self, rt: Any, options: Any, module: Any, error: Any) -> int:
        """Loads the graph as *module. Returns cleave.h's status."""
        graph = self._graph()
        try:
            return int(lib.cleave_load_graph(rt, options, graph, module, error))
        finally:
            lib.cleave_graph_free(graph)

    def _load(self, given: Mapping[str, Any]) -> Any:
        error, module, o = _lib.new_error(), ffi.new("cleave_module **"), ffi.new("cleave_module_options *")
        kept: list[Any] = [ffi.new("char[]", self.name.encode()), ffi.new("char[]", self.at.encode())]
        o.size, o.name, o.at, o.threads = ffi.sizeof("cleave_module_options"), kept[0], kept[1], given["threads"]
        if given["device"]:
            kept.append(ffi.new("char[]", given["device"].encode()))
            o.device = kept[-1]
        frozen, recompute = [*self.model.frozen(), *given["freeze"]], list(given["recompute"])
        for names, field in ((frozen, "frozen"), (recompute, "recompute_blocks")):
            array, texts = names_of(names)
            kept += [array, texts]
            if names:
                setattr(o, field, array)
                setattr(o, f"n_{field}", len(names))
        artifact = given["weights"]
        if artifact:
            kept += [ffi.new("char[]", artifact["artifact"].encode()), ffi.new("char[]", artifact["sha256"].encode())]
            o.artifact, o.artifact_sha256 = kept[-2], kept[-1]
            fresh = Named({k: torch.from_numpy(v) for k, v in self.model.weights.items() if ".lora_" in k})
        else:
            fresh = Named({k: torch.from_numpy(v) for k, v in self.model.weights.items()})
        self.given = fresh.names
        o.weights_are_secret = bool(given.get("secret"))  # looked up in the ledger of this host
        o.weights, o.n_weights = ffi.cast("cleave_named_tensor *", fresh.items), fresh.n
        with self.runtime._use() as rt:
            _lib.check(self._create(rt, o, module, error), error)
        return module[0]

    def place(self) -> None:
        """Loads the module at its node, if that has not been done, or something of it has
        changed."""
        if self.needs_place and not self.was_lost:
            self.runtime._wait(lambda rt, future, e: lib.cleave_module_place_async(rt, self.handle, self._input_grads, 0, future, e))
            self.needs_place = False

    # ---- state -----------------------------------------------------------------------------------

    def read_state(self, kind: int) -> dict[str, torch.Tensor]:
        """State by Cleave's names, in memory of its own."""
        state = ffi.new("cleave_state *")
        self.runtime._wait(lambda rt, future, e: lib.cleave_state_read_async(rt, self.handle, kind, 0, future, e),
                           lambda rt, future, e: lib.cleave_future_state(rt, future, state, e))
        found = {}
        for i in range(state.n):
            item = state.items[i]
            tensor = ffi.new("cleave_tensor *", item.tensor)
            item.tensor.capacity = 0  # take_tensor frees it
            found[_lib.text(item.name)] = take_tensor(tensor)
        lib.cleave_state_free(state)
        return found

    def write_state(self, kind: int, tensors: Mapping[str, torch.Tensor]) -> None:
        given = Named(tensors)
        if tensors or self.was_lost:
            self.runtime._declare_state(self.name, self.at, "weights" if kind == WEIGHTS else "optimizer")
        if kind == WEIGHTS and self.was_lost:
            state = ffi.new("cleave_state *", {"items": given.items, "n": given.n})
            self.runtime._wait(lambda rt, future, e: lib.cleave_module_reload_async(rt, self.handle, state, ffi.NULL, 0, future, e))
            self.was_lost = False
        elif tensors:
            self.runtime._wait(lambda rt, future, e: lib.cleave_state_write_async(rt, self.handle, kind, given.items, given.n, 0, future, e))

    def set_frozen(self, names: Sequence[str], frozen: bool) -> None:
        """As requires_grad_(not frozen) of these parameters or globs."""
        array, kept = names_of(names)
        for what in ("weights", "optimizer"):  # the module is loaded again, with its state
            self.runtime._declare_state(self.name, self.at, what)
        call = lib.cleave_parameter_freeze if frozen else lib.cleave_parameter_thaw
        self.runtime._call_in_thread(lambda rt, e: call(rt, self.handle, array, len(names), 0, e))
        self.needs_place = True
        del kept

    def gradients(self, context: Any) -> dict[str, torch.Tensor]:
        """Gradients of the context by Cleave's names."""
        found, result = ffi.new("cleave_gradients *"), {}
        self.runtime._wait(lambda rt, future, e: lib.cleave_gradients_read_async(rt, context, 0, future, e),
                           lambda rt, future, e: lib.cleave_future_gradients(rt, future, found, e))
        for i in range(found.n):
            item = found.items[i]
            if item.module == self.handle:
                tensor = ffi.new("cleave_tensor *", item.tensor)
                item.tensor.capacity = 0
                result[_lib.text(item.name)] = take_tensor(tensor)
        lib.cleave_gradients_free(found)
        return result

    def release(self) -> None:
        """Gives the module up; its node frees it when no context and optimizer needs it."""
        if self.handle in self.runtime._modules and not self.runtime._is_closed and not self.runtime._is_forked:
            self.runtime._modules.remove(self.handle)
            lib.cleave_module_release(self.runtime._handle, self.handle, ffi.NULL)

