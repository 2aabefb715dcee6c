# SPDX-License-Identifier: Apache-2.0
"""Split learning from Python: modules at workers of other machines that train with those at home.

    import cleave, torch
    with cleave.open("session.yaml") as rt:
        far = cleave.Remote(torch.nn.Linear(64, 64), at="w1", example=torch.zeros(32, 64))
        model = torch.nn.Sequential(front, far, head)
        opt = cleave.Optimizer(torch.optim.AdamW, model, lr=1e-3)

torch, numpy and pandas are imported when they are used, never by `import cleave`.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._errors import (Code, DeadlineError, DeniedError, Error, ExhaustedError, InvalidError, NotFoundError, PreconditionError,
                      UnavailableError, UnimplementedError)
from ._lib import VERSION as __version__
from ._lib import Library, libraries
from ._runtime import Batch, Runtime, open
from ._tables import Leaks, Sent, Table

if TYPE_CHECKING:
    from ._export import Model, export
    from ._optimizer import Optimizer
    from ._pretrained import pretrained
    from ._remote import Remote
    from ._session import Callback, Plan, Progress, Run, Session, runs
    from ._training import Future, Training

# Names that need torch, or a program beside this package: imported by their first use.
_LAZY = {"Model": "._export", "export": "._export", "Optimizer": "._optimizer", "pretrained": "._pretrained", "Remote": "._remote",
         **dict.fromkeys(("Callback", "Plan", "Progress", "Run", "Session", "runs"), "._session"),
         **dict.fromkeys(("Future", "Training"), "._training")}

__all__ = ["Batch", "Callback", "Code", "DeadlineError", "DeniedError", "Error", "ExhaustedError", "Future", "InvalidError",
           "Leaks", "Library", "Model", "NotFoundError", "Optimizer", "Plan", "PreconditionError", "Progress",
           "Remote", "Run", "Runtime", "Sent", "Session", "Table", "Training", "UnavailableError",
           "UnimplementedError", "__version__", "export", "libraries", "open", "pretrained",
           "runs"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'cleave' has no attribute '{name}'")
    value = getattr(importlib.import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
