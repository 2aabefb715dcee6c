# SPDX-License-Identifier: Apache-2.0
"""The commands `cleave-master` and `cleave-worker` that the wheel installs."""
from __future__ import annotations

import os
import sys


def _become(name: str) -> None:
    """Replaces this process by the program of that name that the wheel carries."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"{name}: {path} does not start: {e.strerror}. Install the wheel again")


def master() -> None:
    _become("cleave-master")


def worker() -> None:
    _become("cleave-worker")
