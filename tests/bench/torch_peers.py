# SPDX-License-Identifier: Apache-2.0
"""PyTorch at its best: Debian's version and the newest, each in the layouts that its peer script
supports. All are sides of a row; the one with the smallest median is the row's peer and is named in
the row's note.

mkldnn's own blocked layout is no peer: PyTorch has it for inference only (torch.utils.mkldnn turns
modules into ones without a backward); its convolutions convert their inputs to that layout
anyway."""
import functools

from harness import PYTHON, median, skip, torch
import newest

LAYOUTS = ("contiguous", "channels_last")
PLAIN = ("contiguous",)


@functools.lru_cache
def pythons(install=True):
    """{version: interpreter} with PyTorch: Debian's, and the newest if it can be installed."""
    python, reason = newest.python(install)
    if not python:
        skip("newest_torch", reason)
    return {"1.13": PYTHON, **({"newest": python} if python else {})}


class Peers:
    """Processes of a peer script, one for each version and layout. They end with the stack."""

    def __init__(self, stack, script, *args, layouts=PLAIN):
        extra = {"contiguous": (), "channels_last": ("channels_last",)}
        self.sides = {f"{version} {layout}": stack.enter_context(torch(script, *args, *extra[layout], python=python))
                      for version, python in pythons().items() for layout in layouts}

    def asking(self, figure, command):
        """One side for each process, for harness.interleave; runs `command` in it."""
        return [lambda side=side: figure(side.ask(command)) for side in self.sides.values()]

    def best(self, found, at=0):
        """found: the result of interleave, whose last figures are those of these processes. Returns
        ([((figure number `at`, figure of the best process), foreign share)], name of the best
        process)."""
        names = list(self.sides)
        wins = min(range(-len(names), 0), key=lambda k: median(f[k] for f, _ in found))
        return [((f[at], f[wins]), foreign) for f, foreign in found], f"peer: {names[wins]}"
