# SPDX-License-Identifier: Apache-2.0
"""Tables: what left this process, runs, steps. Lists of dataclasses that print themselves."""
from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

Row = TypeVar("Row")


class Table(Sequence[Row], Generic[Row]):
    """Rows of one dataclass. print() aligns them, a notebook shows a table, pandas.DataFrame(table)
    has a column for each field."""

    def __init__(self, rows: Sequence[Row], title: str = "") -> None:
        self._rows, self.title = list(rows), title

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Table[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Table[Row]:
        return Table(self._rows[index], self.title) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def _names(self) -> list[str]:
        first: Any = self._rows[0]
        return [f.name for f in dataclasses.fields(first)]

    def _cells(self) -> list[list[str]]:
        names = self._names()
        return [names, *([_shown(getattr(row, n)) for n in names] for row in self._rows)]

    def __repr__(self) -> str:
        if not self._rows:
            return f"{self.title}: nothing" if self.title else "(empty)"
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in cells]
        return "\n".join([self.title] * bool(self.title) + lines)

    def _repr_html_(self) -> str:
        if not self._rows:
            return html.escape(repr(self))
        head, *rows = ["".join(f"<t{'d' if k else 'h'}>{html.escape(c)}</t{'d' if k else 'h'}>" for c in row)
                       for k, row in enumerate(self._cells())]
        body = "".join(f"<tr>{r}</tr>" for r in rows)
        return f"<table><caption>{html.escape(self.title)}</caption><tr>{head}</tr>{body}</table>"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


@dataclasses.dataclass(frozen=True)
class Sent:
    """A kind of tensor that leaves this process.

    to: worker.  what: "input", "value", "gradient", "weights", "optimizer" or "failure".
    module, name: Remote, and its parameter (or the number of its input).  shape: shape[0] is the
    largest batch so far.  shows: what the tensor shows, as the program declares it.
    tensors, bytes: sent so far, without framing and TLS.
    """

    to: str
    what: str
    module: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    shows: str
    tensors: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Leaks:
    """What was still open when a runtime was closed. All 0 for a program that closes what it opens;
    Remotes and optimizers are the runtime's own and not counted. text: a line for each."""

    contexts: int = 0
    references: int = 0
    futures: int = 0
    kept: int = 0
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.contexts or self.references or self.futures or self.kept)
