# SPDX-License-Identifier: Apache-2.0
"""libcleave, and how Python waits for it."""
from __future__ import annotations

import ctypes
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import _errors
from ._tables import Table

T = TypeVar("T")
SLICE_MS = 50  # a call that waits looks at signals after so long
# A step keeps Python's lock for so long at most; threads grant each other 5 ms. A timer that is due
# before the next tick of the kernel, 4 ms, costs 50 us.
HELD_MS = 4


def _preloaded(folder: str) -> object:
    """libcleave of a folder, before the extension asks for it by its name."""
    import _cffi_backend  # type: ignore[import-untyped,unused-ignore]
    path = os.path.join(folder, "libcleave.so.0")
    try:
        return _cffi_backend.FFI().dlopen(path, os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as e:
        raise ImportError(f"CLEAVE_LIBRARY_DIR={folder}: {e}") from None


_kept = _preloaded(os.environ["CLEAVE_LIBRARY_DIR"]) if "CLEAVE_LIBRARY_DIR" in os.environ else None

try:
    from ._ffi import ffi as ffi, lib as lib
except ImportError as e:
    raise ImportError(f"{e}; libcleave.so.0 is looked for beside this package, in the build tree that it is part of, and in "
                      "CLEAVE_LIBRARY_DIR=FOLDER") from e


def check_abi() -> str:
    """The version of libcleave. ImportError: it is not the version that this package was built
    with."""
    built = f"{lib.CLEAVE_VERSION_MAJOR}.{lib.CLEAVE_VERSION_MINOR}.{lib.CLEAVE_VERSION_PATCH}"
    found = str(ffi.string(lib.cleave_version()).decode())
    if found.split(".")[:2] != built.split(".")[:2]:
        raise ImportError(f"this package was built with cleave.h {built}, but the libcleave that was loaded is {found}: "
                          "install both of one version, or unset CLEAVE_LIBRARY_DIR")
    return found


VERSION = check_abi()


def address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def held(name: str, result: Any, n_arguments: int) -> Callable[..., Any]:
    """A function of libcleave that keeps Python's lock, for what returns at once: handing the lock
    back costs 5 ms beside a thread that computes. Pointers are given as address() has them."""
    prototype = ctypes.PYFUNCTYPE(result, *[ctypes.c_void_p] * n_arguments)
    found: Callable[..., Any] = prototype(address(ffi.addressof(lib, name)))
    return found


forward_begin = held("shim_forward_begin", ctypes.c_int, 3)
backward_begin = held("shim_backward_begin", ctypes.c_int, 3)
context_open = held("cleave_context_open", ctypes.c_int, 4)
tensor_free = held("cleave_tensor_free", None, 1)
record_notice = held("shim_record_notice", ctypes.c_bool, 3)
step_run = held("shim_step_run", ctypes.c_int, 4)


def text(chars: Any) -> str:
    """A Python string of a C string; "" for NULL."""
    return ffi.string(chars).decode(errors="replace") if chars != ffi.NULL else ""


def new_error() -> Any:
    return ffi.new("cleave_error *")


def error_of(error: Any) -> _errors.Error:
    """The exception that a cleave_error says."""
    return _errors.make(error.status, text(error.text), node=text(error.node), hop=text(error.place))


def check(status: int, error: Any) -> None:
    if status:
        raise error_of(error)


def milliseconds(seconds: float | None, what: str = "deadline") -> int:
    """cleave.h's deadline: 0 for None."""
    if seconds is None:
        return 0
    if not 0 < seconds < 1e9:
        raise _errors.invalid(f"{what}={seconds}: it is a number of seconds above 0, or None for limits.step_timeout of the session")
    return max(1, round(seconds * 1000))


def in_thread(function: Callable[[], T], undo: Callable[[T], object] | None = None, interrupt: Callable[[], object] | None = None) -> T:
    """Runs what has no future in a thread, so that Ctrl-C ends the wait at once. undo: what becomes
    of a result that comes later than that.  interrupt: makes the function end soon."""
    result: list[T] = []
    failure: list[BaseException] = []
    ended, lock, given_up = threading.Event(), threading.Lock(), False

    def work() -> None:
        try:
            value = function()
        except BaseException as e:
            failure.append(e)
        else:
            with lock:
                result.append(value)
                late = given_up
            if late and undo:
                undo(value)
        ended.set()

    threading.Thread(target=work, name="cleave-call", daemon=True).start()
    try:
        while not ended.wait(SLICE_MS / 1000):
            pass
    except BaseException:
        with lock:
            given_up = True
            left = list(result)
        if interrupt and not ended.is_set():
            interrupt()
        if left and undo:
            threading.Thread(target=undo, args=left, name="cleave-undo", daemon=True).start()
        raise
    if failure:
        raise failure[0]
    return result[0]


def now() -> float:
    return time.monotonic()


@dataclasses.dataclass(frozen=True)
class Library:
    """A library that this process runs. path: "" if it is not loaded. of: "wheel", or "system" if
    its updates are those of the system."""

    name: str
    version: str
    path: str
    of: str


def libraries() -> Table[Library]:
    """Which OpenSSL, gRPC, oneDNN and OpenBLAS run, and whether they are the wheel's."""
    rows = ffi.new("cleave_library[]", lib.CLEAVE_LIBRARIES)
    n = lib.cleave_libraries(rows, lib.CLEAVE_LIBRARIES)
    return Table([Library(text(r.name), text(r.version), text(r.path), "wheel" if r.is_of_wheel else "system") for r in rows[0:n]],
                 "libraries of this process")
