# SPDX-License-Identifier: Apache-2.0
"""The runtime: connections to the workers of a session file."""
from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from . import _errors, _lib
from ._lib import ffi, lib
from ._sends import Declared
from ._tables import Leaks, Sent, Table

log = logging.getLogger("cleave")

_opening = threading.Lock()  # cleave_open and cleave_close may not overlap
_open: list[Runtime] = []
KINDS = {1: "input", 2: "value", 3: "gradient", 4: "weights", 5: "failure", 6: "cached rows"}
NUMBERS = {name: number for number, name in KINDS.items()}
DTYPES = {0: "", 1: "f32", 3: "i64", 7: "bf16"}
PATIENCE_MS = 1000  # for a close behind Ctrl-C and at the end of the process


def _forked() -> None:
    for runtime in _open:
        runtime._is_forked = True
    _open.clear()


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _close_all() -> None:
    for runtime in list(_open):
        with contextlib.suppress(_errors.Error):
            runtime.close(deadline=PATIENCE_MS / 1000)


def current() -> Runtime:
    """The one open runtime."""
    if len(_open) != 1:
        raise _errors.precondition(f"{len(_open)} runtimes are open; " + ("give runtime=" if _open else "open one with cleave.open(\"session.yaml\")"))
    return _open[0]


class Training:
    """The open context of a training, and how much it holds."""

    @property
    def has_gradients(self) -> bool:
        return not self.touched <= self.settled

    def others(self, mine: set[Any]) -> set[Any]:
        """Remotes of other optimizers with gradients that wait for a step or zero_grad."""
        return {r for r in self.touched - self.settled - mine if r._has_optimizer}

    def __init__(self, context: Any) -> None:
        self.context = context
        self.live = 0  # forwards whose backward may still come
        self.touched: set[Any] = set()  # Remotes that had a backward
        # those of them that were stepped, or whose gradients were zeroed
        self.settled: set[Any] = set()
        self.failure: BaseException | None = None  # of a call; the context can only be ended


class Batch:
    """A batch of its own, for pipelines: its forward, its backward and its step are in blocks of
    it, and those of other batches may come between.

        b = cleave.Batch()
        with b:
            h = far(x)
        ...                                 # forwards of other batches
        with b:
            h.backward(gradient)
            opt.step()

    Without it, the forwards up to a step are one batch, and the step ends them. A batch that is
    never stepped ends with the runtime. One block of a runtime is open at a time; calls of other
    threads belong to it meanwhile. runtime: None for the one that is open.
    """

    def __init__(self, *, runtime: Runtime | None = None) -> None:
        self._runtime = runtime or current()
        self._training: Training | None = None
        self._outside: Training | None = None

    def __enter__(self) -> Batch:
        r = self._runtime
        r._refuse()
        with r._lock:
            if r._batch:
                raise _errors.precondition("a block of a cleave.Batch inside a block of one", "close the other block before")
            r._batch, self._outside, r._training = self, r._training, self._training
        return self

    def __exit__(self, *_: object) -> None:
        r = self._runtime
        with r._lock:
            r._apart.discard(self._training)
            self._training, r._training, r._batch = r._training, self._outside, None
            if self._training:
                r._apart.add(self._training)

    def __del__(self) -> None:
        t = self.__dict__.get("_training")
        if t:
            self._runtime._garbage.append(lambda: self._runtime._end_training(t) if t in self._runtime._apart else None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _errors.refuse_pickle(self, "make another Batch")


class _Use:
    """A block in which the handle of a runtime is valid: close() waits for its end."""

    __slots__ = ("runtime",)

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def __enter__(self) -> Any:
        return self.runtime._begin_use()

    def __exit__(self, *_: object) -> None:
        self.runtime._end_use()


class Runtime:
    """Connections to workers over mutual TLS. Made by cleave.open; a context manager.

    Threads may use it at the same time. A forked child may not: its functions raise
    PreconditionError there.
    """

    def __init__(self, handle: Any, record: Any, path: str, run: str | None = None) -> None:
        self._handle, self._record, self.path, self.run = handle, record, path, run
        # with the lock
        self._notice, self._error = ffi.new("char[]", lib.SHIM_NOTICE), _lib.new_error()
        self._handle_at, self._record_at, self._notice_at, self._error_at = (_lib.address(p) for p in (handle, record, self._notice, self._error))
        self._is_forked = self._is_closed = False
        self._lock, self._gate = threading.RLock(), threading.Lock()
        self._idle = threading.Condition(self._gate)
        self._users = 0
        # of finalizers: run by the next call
        self._garbage: collections.deque[Callable[[], None]] = collections.deque()
        self._modules: list[Any] = []     # cleave_module *, in the order of loading
        self._optimizers: list[Any] = []  # cleave_optimizer *
        self._loaded: weakref.WeakSet[Any] = weakref.WeakSet()  # Modules of Remotes
        self._declared: dict[str, Sent] = {}
        self._shows: dict[tuple[str, int], str] = {}
        self._names: set[str] = set()
        self._training: Training | None = None
        self._batch: Batch | None = None          # whose block is open
        self._apart: set[Training | None] = set()  # of Batches whose blocks are closed
        self.leaks: Leaks | None = None

    # ---- use -------------------------------------------------------------------------------------

    def _refuse(self) -> None:
        if self._is_forked:
            raise _errors.precondition("this process was forked from the one that opened the runtime, and connections cannot be shared",
                                       "call Cleave in the parent only; a DataLoader's workers may prepare batches")
        if self._is_closed:
            raise _errors.precondition("the runtime is closed", "open another one with cleave.open")

    def _use(self) -> _Use:
        """The handle, which stays valid inside the block."""
        return _Use(self)

    def _begin_use(self) -> Any:
        """The handle, which stays valid until _end_use."""
        if self._is_forked:  # the lock may never be free then
            self._refuse()
        with self._gate:
            if self._is_closed:
                self._refuse()
            self._users += 1
        if self._garbage:
            self._collect()
        return self._handle

    def _end_use(self) -> None:
        with self._gate:
            self._users -= 1
            if self._is_closed and not self._users:
                self._idle.notify_all()

    def _collect(self) -> None:
        """Does what finalizers have left: they must not call the runtime themselves."""
        while self._garbage:
            with contextlib.suppress(IndexError):
                self._garbage.popleft()()

    def _log_notices(self) -> None:
        while _lib.record_notice(self._record_at, self._notice_at, lib.SHIM_NOTICE):
            log.warning("%s", _lib.text(self._notice))

    def _wait(self, begin: Callable[[Any, Any, Any], int], read: Callable[[Any, Any, Any], int] | None = None) -> None:
        """Begins an operation with begin(runtime, future *, error), waits for it, and reads its
        result with read(runtime, future, error)."""
        error, done, future = _lib.new_error(), ffi.new("bool *"), ffi.new("cleave_future *")
        with self._use() as rt:
            _lib.check(begin(rt, future, error), error)
            try:
                while not done[0]:
                    _lib.check(lib.cleave_future_wait_for(rt, future[0], _lib.SLICE_MS, done, error), error)
                if read:
                    _lib.check(read(rt, future[0], error), error)
            except BaseException:
                lib.cleave_future_cancel(rt, future[0], ffi.NULL)
                raise
            finally:
                lib.cleave_future_release(rt, future[0], ffi.NULL)

    def _call_in_thread(self, function: Callable[[Any, Any], int]) -> None:
        """function(runtime, error) of what blocks and has no future."""
        def work() -> None:
            with self._use() as rt:
                error = _lib.new_error()
                _lib.check(function(rt, error), error)
        self._refuse()
        _lib.in_thread(work)

    # ---- public ----------------------------------------------------------------------------------

    def nodes(self) -> list[str]:
        """Names of the nodes: "master", then the workers in the order of the session file."""
        with self._use() as rt:
            names: list[str] = []
            while (name := lib.cleave_node_name(rt, len(names))) != ffi.NULL:
                names.append(_lib.text(name))
            return names

    def egress(self) -> Table[Sent]:
        """What leaves this process: a row for each kind of tensor that a Remote will send, and for
        what was sent, with numbers of tensors and bytes. Failures of calls have no shape."""
        rows = dict(self._declared)
        for index in range(1 << 30):
            sent = ffi.new("shim_sent *")
            if not lib.shim_record_sent(self._record, index, sent):
                break
            row = self._sent(sent)
            key = _key_of(row)
            rows[key] = _joined(rows[key], row) if key in rows else row
        return Table(list(rows.values()), f"leaves this process by {self.path}")

    def _sent(self, s: Any) -> Sent:
        what, name, module = KINDS[s.kind], _lib.text(s.name), _lib.text(s.module)
        if what == "input":
            name = str(s.input)
        if what == "weights" and s.optimizer:
            what = "optimizer"
        elif what in ("value", "gradient") and s.input:
            name = f"output {s.input}"
        shows = self._shows.get((module, s.input), "") if what == "input" else ""
        return Sent(_lib.text(s.worker), what, module, name, DTYPES[s.dtype], tuple(s.shape[0:s.rank]), shows, s.tensors, s.bytes)

    def _declare(self, row: Sent, shows: int = 0, hiding_layers: int = 0) -> None:
        """Adds a row to egress(). With a record the runtime sends nothing without a row.
        shows: a set of cleave_shows; 0: the worst."""
        if self.run is not None and row.to != "master":
            self._declare_in_library(row, shows, hiding_layers)
        self._declared[_key_of(row)] = row

    def _declare_in_library(self, row: Sent, shows: int, hiding_layers: int) -> None:
        error, new, is_state = _lib.new_error(), ffi.new("cleave_declaration *"), row.what in ("weights", "optimizer")
        kept = [ffi.new("char[]", row.to.encode()), ffi.new("char[]", row.module.encode())]
        new.size, new.worker, new.module = ffi.sizeof("cleave_declaration"), kept[0], kept[1]
        new.kind, new.optimizer = NUMBERS["weights" if is_state else row.what], row.what == "optimizer"
        new.shows, new.hiding_layers = shows, hiding_layers
        if row.what == "input":
            new.input, new.rank = int(row.name), len(row.shape)
            new.shape[0:new.rank] = [0, *row.shape[1:]]
        elif not is_state:
            new.rank, new.input = -1, int(row.name.rpartition(" ")[2] or 0)
        new.dtype = 0 if is_state else next(number for number, name in DTYPES.items() if name == row.dtype)
        with self._use() as rt:
            _lib.check(lib.cleave_declare(rt, new, error), error)

    def _declare_relay(self, module: str, at: str, to: str, says: Declared, output: str) -> None:
        """An output of a module of a chain and its gradient, which this process makes, or relays if
        the workers have no link. egress() has them when they were sent."""
        if self.run is not None:
            for node, what, shows in ((to, "value", says.of_value), (at, "gradient", says.gradient)):
                if node != "master":
                    self._declare_in_library(Sent(node, what, module, output, "f32", (), "", 0, 0), shows, says.hiding_layers)

    def _declare_state(self, module: str, at: str, what: str) -> None:
        """Parameters and buffers ("weights"), or moments ("optimizer"), which will be sent."""
        if self.run is not None and at != "master":
            self._declare_in_library(Sent(at, what, module, "", "", (), "", 0, 0), 0, 0)

    def epoch(self) -> None:
        """Begins an epoch: bytes_per_epoch of the host's policy is counted from 0 again."""
        error = _lib.new_error()
        with self._use() as rt:
            _lib.check(lib.cleave_epoch(rt, error), error)

    def rejoin(self, worker: str, *, deadline: float | None = None) -> None:
        """Takes a lost worker back after its restart. It has lost everything: Remotes there refuse
        their calls until load_state_dict has given them weights again. deadline: seconds."""
        ms = _lib.milliseconds(deadline)
        self._wait(lambda rt, future, e: lib.cleave_worker_rejoin_async(rt, worker.encode(), ms, future, e))
        for module in self._loaded:
            if module.at == worker and not module.needs_place:
                module.was_lost = True

    def close(self, *, deadline: float | None = None) -> Leaks:
        """Ends all contexts, waits until the workers have freed them, and closes the connections.
        Returns what the program had left open. deadline: seconds; None: the runtime's."""
        if self._is_closed:
            return self.leaks or Leaks()
        self._refuse()
        ms = _lib.milliseconds(deadline)
        with self._idle:
            if self._is_closed:
                return self.leaks or Leaks()
            self._is_closed = True  # nothing new begins
            while self._users:
                self._idle.wait(_lib.SLICE_MS / 1000)
        if self in _open:
            _open.remove(self)
        self.leaks = _lib.in_thread(lambda: self._close(ms), interrupt=lambda: lib.shim_record_interrupt(self._record))
        if self.leaks:
            log.warning("the runtime was closed with open handles:\n%s", self.leaks.text.rstrip())
        return self.leaks

    def _close(self, ms: int) -> Leaks:
        self._collect()
        for t in (self._training, *self._apart):
            if t and (t.failure or not (t.live or t.has_gradients)):
                self._end_training(t)
        rt, error, leaks = self._handle, _lib.new_error(), ffi.new("cleave_leaks *")
        for optimizer in self._optimizers:
            lib.cleave_optimizer_release(rt, optimizer, ffi.NULL)
        for module in self._modules:
            lib.cleave_module_release(rt, module, ffi.NULL)
        with _opening:
            status = lib.cleave_close(rt, ms, leaks, error)
        self._log_notices()
        self._handle = ffi.NULL  # the record stays, for egress()
        found = Leaks(leaks.contexts, leaks.references, leaks.futures, leaks.kept, _lib.text(leaks.text))
        if status:
            self.leaks = found
            raise _lib.error_of(error)
        return found

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_forked or self._is_closed:
            return
        if kind is None:
            self.close()
            return
        # The block's exception counts, and Ctrl-C does not wait for a worker that has stopped.
        interrupted = issubclass(kind, KeyboardInterrupt)
        try:
            self.close(deadline=PATIENCE_MS / 1000 if interrupted else None)
        except _errors.Error as e:
            log.info("close: %s", e)

    def __repr__(self) -> str:
        state = "forked" if self._is_forked else "closed" if self._is_closed else "open"
        return f"<cleave.Runtime {self.path} {state}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _errors.refuse_pickle(self, "open one in each process with cleave.open")

    __copy__ = __deepcopy__ = lambda self, *_: _errors.refuse_pickle(self, "open another one with cleave.open")

    # ---- contexts --------------------------------------------------------------------------------

    def _training_context(self, rt: Any) -> Training:
        """The open training context; a new one if there is none, if it has failed, or if nothing of
        it is wanted any more: forwards that were forgotten without a backward."""
        with self._lock:
            t = self._training
            if t and t.failure and t.has_gradients:
                raise _errors.precondition(f"a call since the last step failed ({t.failure}), and its gradients are lost with those before it",
                                           "call zero_grad() of the optimizer, then begin the step again")
            if t and t.settled and (left := t.others(set())):
                raise _errors.precondition(f"gradients of {', '.join(sorted(r._name for r in left))} were neither stepped nor zeroed, and another optimizer has stepped",
                                           "call step() or zero_grad() of each optimizer before the next forward")
            if t and (t.settled or not t.touched) and (t.failure or not t.live):
                self._end_training()
                t = None
            if t is None:
                context = ffi.new("cleave_context *")
                if _lib.context_open(self._handle_at, None, _lib.address(context), self._error_at):
                    raise _lib.error_of(self._error)
                t = self._training = Training(context[0])
            return t

    def _end_training(self, t: Training | None = None) -> None:
        """Ends a training context, None: the present one. Waits only for a step that its workers
        have not answered."""
        with self._lock:
            t = t or self._training
            if t is self._training:
                self._training = None
            self._apart.discard(t)
        if t and lib.cleave_context_end(self._handle, t.context, ffi.NULL) == _errors.Code.PRECONDITION:
            self._close_context(t, ffi.NULL)

    def _end_idle_training(self) -> None:
        """Ends the training context if no forward that lives and no gradient is in it."""
        with self._use():
            t = self._training
            if t and not t.live and not t.has_gradients:
                self._end_training()

    def _close_context(self, t: Training, optimizer: Any, keeps: bool = False, square: float = 0.0) -> tuple[bool, float, float, int]:
        """Steps, if there is an optimizer, and closes the context unless it is kept. Returns
        applied, norm, scale and number of the decision. square: sum of squares of the gradients of
        this process."""
        state, error = ffi.new("shim_step *"), _lib.new_error()
        state.context, state.optimizer, state.keeps_context, state.other_square = t.context, optimizer, keeps, square
        try:
            status = _lib.step_run(self._handle_at, _lib.address(state), _lib.HELD_MS, _lib.address(error))
            while not status and not state.done:
                status = lib.shim_step_run(self._handle, state, _lib.SLICE_MS, error)
            if status:
                raise _lib.error_of(error)
        except BaseException:
            lib.shim_step_abandon(self._handle, state)
            lib.cleave_context_end(self._handle, t.context, ffi.NULL)
            raise
        decided = state.result  # a view of state's memory
        return decided.applied, decided.norm, decided.scale, decided.number

    def _zero_gradients(self, mine: set[Any]) -> None:
        """Forgets gradients of Remotes: the context ends, unless others have theirs in it."""
        t = self._training
        for remote in mine:
            remote.__dict__["_has_stepped"] = False  # nn.Module's __setattr__ is slow
        if t and (t.touched & mine or t.failure):
            with self._use():
                if t.failure or not t.others(mine):
                    self._end_training()
                else:
                    t.settled |= t.touched & mine


def _key_of(row: Sent) -> str:
    return f"{row.to} {row.what} {row.module} {row.name}{' bf16' if row.dtype == 'bf16' else ''}"


def _joined(a: Sent, b: Sent) -> Sent:
    return Sent(a.to, a.what, a.module, a.name, a.dtype, max(a.shape, b.shape) if a.tensors else b.shape, a.shows, a.tensors + b.tensors, a.bytes + b.bytes)


def open(path: str | os.PathLike[str], *, deadline: float | None = None, workers: Sequence[str] | None = None,
         run: str | os.PathLike[str] | None = None) -> Runtime:
    """Connects to the workers of a session file.

    path: a session file. Its keys name, tls, workers, transfer, limits and train.seed are used.
    deadline: seconds after which a call that waits raises DeadlineError; None: limits.step_timeout.
    workers: names of those to connect to; None: all of the file.
    run: folder for the record of what leaves, which `cleave-master egress RUN` prints; None: none.
        With it a tensor without a row of egress() is refused. Where the host has a policy, it is
        required, and the policy says `programs: declared` or refuses the program.

    Raises DeniedError for a policy that refuses programs, InvalidError (with file:line:column) for
    a wrong file, UnavailableError for a worker that is not reached, DeniedError for one that
    refuses this certificate.
    """
    name, ms = os.fspath(path), _lib.milliseconds(deadline)
    record = lib.shim_record_new()
    if record == ffi.NULL:
        raise MemoryError("cleave.open")
    record = ffi.gc(record, lib.shim_record_free)
    runtime = _lib.in_thread(lambda: _connect(name, workers, None if run is None else os.fspath(run), ms, record), lambda late: late._close(PATIENCE_MS),
                             lambda: lib.shim_record_interrupt(record))
    _open.append(runtime)
    runtime._log_notices()
    return runtime


def _connect(path: str, workers: Sequence[str] | None, run: str | None, ms: int, record: Any) -> Runtime:
    error, handle = _lib.new_error(), ffi.new("cleave_runtime **")
    names = [ffi.new("char[]", w.encode()) for w in workers or ()]
    given = ffi.new("char *[]", names) if workers is not None else ffi.NULL
    folder = ffi.NULL if run is None else ffi.new("char[]", os.fsencode(run))
    with _opening:
        status = lib.shim_open(os.fsencode(path), ffi.cast("char const *const *", given), len(names), folder, ms, record, handle, error)
    _lib.check(status, error)
    return Runtime(handle[0], record, path, run)
