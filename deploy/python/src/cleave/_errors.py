# SPDX-License-Identifier: Apache-2.0
"""Exceptions. Each failure of Cleave is an Error; most are also the built-in exception that
fits."""
from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """Status of a failed call. The numbers are those of gRPC's status codes."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID = 3
    DEADLINE = 4
    NOT_FOUND = 5
    EXISTS = 6
    DENIED = 7
    EXHAUSTED = 8
    PRECONDITION = 9
    ABORTED = 10
    RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
    PROTOCOL_VIOLATION = 17


class Error(Exception):
    """A call of Cleave that failed.

    code: the Code.  node: "master" or the name of the worker that failed, "" if unknown.
    hop: module or step at that node, "" if unknown.  text: what is wrong, with the value.
    hint: what to do about it, "" if the text says so.
    """

    code: Code
    node: str
    hop: str
    text: str
    hint: str

    def __init__(self, code: int, node: str = "", hop: str = "", text: str = "", hint: str = "") -> None:
        super().__init__(code, node, hop, text, hint)
        self.args = code, node, hop, text, hint  # OSError would keep two
        self.code, self.node, self.hop, self.text, self.hint = Code(code), node, hop, text, hint

    def __str__(self) -> str:
        place = ", ".join(p for p in (self.node, self.hop) if p)
        text = f"{place}: {self.text}" if place and place not in self.text else self.text
        return f"{text}\n  hint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (int(self.code), self.node, self.hop, self.text, self.hint)


class InvalidError(Error, ValueError):
    """An argument or a file is wrong in itself."""


class DeadlineError(Error, TimeoutError):
    """A deadline has passed."""


class NotFoundError(Error, LookupError):
    """There is no such name, or its handle was released."""


class DeniedError(Error, PermissionError):
    """A rule of this host, of a worker or of a policy forbids it."""


class UnavailableError(Error, ConnectionError):
    """A worker is not reached, or was lost."""


class UnimplementedError(Error, NotImplementedError):
    """Cleave, or this version of a worker, cannot do it."""


class PreconditionError(Error, RuntimeError):
    """The call is valid, but not in the present state."""


class ExhaustedError(Error, RuntimeError):
    """A quota, a limit or memory is used up."""


BY_CODE: dict[int, type[Error]] = {
    Code.INVALID: InvalidError, Code.RANGE: InvalidError, Code.DEADLINE: DeadlineError, Code.NOT_FOUND: NotFoundError,
    Code.DENIED: DeniedError, Code.UNAUTHENTICATED: DeniedError, Code.UNAVAILABLE: UnavailableError,
    Code.UNIMPLEMENTED: UnimplementedError, Code.PRECONDITION: PreconditionError, Code.EXHAUSTED: ExhaustedError,
}

# (a part of the text in small letters, hint)
HINTS = (
    ("had its backward", "call backward(retain_graph=True) the first time, or run the forward again"),
    ("after the call was made", "step the optimizer after the last backward of its forward"),
    ("was lost", "start it again, then Runtime.rejoin(worker) and load_state_dict, or open another runtime"),
    ("connection refused", "is cleave-worker running at that address? `cleave-master doctor SESSION.yaml` asks"),
)
HINT_BY_CODE = {
    Code.UNAVAILABLE: "`cleave-master doctor SESSION.yaml` looks at all workers",
    Code.DEADLINE: "give cleave.open(deadline=SECONDS), or set limits.step_timeout in the session file",
}


def hint_of(code: int, text: str) -> str:
    small = text.lower()
    return next((hint for part, hint in HINTS if part in small), HINT_BY_CODE.get(Code(code), ""))


def make(code: int, text: str, *, node: str = "", hop: str = "", hint: str = "") -> Error:
    """The exception of a code, with the hint that fits."""
    return BY_CODE.get(code, Error)(code, node, hop, text, hint or hint_of(code, text))


def invalid(text: str, hint: str = "") -> Error:
    return make(Code.INVALID, text, hint=hint)


def unimplemented(text: str, hint: str = "") -> Error:
    return make(Code.UNIMPLEMENTED, text, hint=hint)


def precondition(text: str, hint: str = "") -> Error:
    return make(Code.PRECONDITION, text, hint=hint)


def refuse_pickle(thing: object, instead: str) -> object:
    """TypeError of pickle, deepcopy and torch.save."""
    raise TypeError(f"cannot pickle or copy a {type(thing).__name__}: it is a handle of this process and runtime; {instead}")
