# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a Remote show, as a program declares it."""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Union

from . import _errors

# The words of `cleave-master plan`, and their numbers in cleave.h.
SHOWS = {"labels": 32, "labels readable": 16, "raw input": 8, "tokens": 4, "front known": 2, "picture": 1, "mixed": 64}
WORST = {"f32": "the worst: raw records", "i64": "the worst: labels or tokens"}
KEYS = ("inputs", "gradient", "hiding_layers")

Sends = Union[str, Sequence[str], Mapping[str, Any], None]


@dataclasses.dataclass(frozen=True)
class Declared:
    """inputs: a set of cleave_shows for each input, and gradient: one for the gradient of the
    output; 0: the worst.  hiding_layers: layers of this process in front that hide the record."""

    inputs: tuple[int, ...]
    gradient: int = 0
    hiding_layers: int = 0

    def text(self, index: int, dtype: str) -> str:
        """For the column `shows` of egress()."""
        return f"declared by the program: {words_of(self.inputs[index])}" if self.inputs[index] else WORST[dtype]

    @property
    def of_value(self) -> int:
        """What a value shows that the inputs alone make: all of theirs, or the worst."""
        every = 0
        for shows in self.inputs:
            every |= shows
        return (every & ~SHOWS["mixed"] or SHOWS["mixed"]) if all(self.inputs) else 0


def words_of(shows: int) -> str:
    """ "RAW INPUT, PICTURE" of a set."""
    return ", ".join(word.upper() for word, number in SHOWS.items() if shows & number)


def shows_of(words: object, what: str) -> int:
    """The set of a text such as "tokens, picture"; None: the worst."""
    if words is None:
        return 0
    if not isinstance(words, str) or not words.strip():
        raise _errors.invalid(f"{what}={words!r}: it is a text of one or more of {', '.join(SHOWS)}, or None for the worst")
    found = 0
    for word in words.split(","):
        name = " ".join(word.replace("_", " ").lower().split())
        if name not in SHOWS:
            raise _errors.invalid(f"{what}={words!r}: {word.strip()!r} is none of {', '.join(SHOWS)}")
        found |= SHOWS[name]
    if found > SHOWS["mixed"]:
        raise _errors.invalid(f"{what}={words!r}: 'mixed' means none of the others")
    return found


def declared(sends: Sends, n_inputs: int) -> Declared:
    """sends= of a Remote with so many inputs."""
    given: Mapping[str, Any] = sends if isinstance(sends, Mapping) else {"inputs": sends}
    if unknown := set(given) - set(KEYS):
        raise _errors.invalid(f"sends={{{min(unknown)!r}: ...}}; there are {', '.join(KEYS)}")
    inputs, layers = given.get("inputs"), given.get("hiding_layers", 0)
    each = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs] * n_inputs
    if len(each) != n_inputs:
        raise _errors.invalid(f"sends has {len(each)} texts for {n_inputs} inputs", "give one text, or one for each input")
    if not isinstance(layers, int) or not 0 <= layers < 1 << 31:
        raise _errors.invalid(f"sends={{'hiding_layers': {layers!r}}}: it is a number of layers")
    return Declared(tuple(shows_of(one, "sends") for one in each), shows_of(given.get("gradient"), "sends['gradient']"), layers)
