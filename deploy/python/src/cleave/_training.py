# SPDX-License-Identifier: Apache-2.0
"""Training: the verbs of a remote training service, with futures, over a model with Remotes."""
from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from . import _errors
from ._export import exporter
from ._optimizer import KINDS, Optimizer, Step
from ._remote import Remote

T = TypeVar("T")
BY_NAME = {kind.__name__.lower(): kind for kind in KINDS}


class Future(concurrent.futures.Future[T], Generic[T]):
    """A result that comes later: result(timeout in seconds), or `await`."""

    def __await__(self) -> Generator[Any, None, T]:
        return (yield from asyncio.wrap_future(self).__await__())


@dataclasses.dataclass(frozen=True)
class ForwardBackward:
    """loss: mean over the batch.  output: what the model gave, [batch, ...], without a graph."""

    loss: float
    output: torch.Tensor


class Training:
    """Trains a model of Remotes and modules of this process by two verbs. Calls return at once, and
    take effect one after the other in a thread of their own.

    net: the model.
    optimizer: as train.optimizer of a session file, {"kind": "adamw", "lr": 1e-4}; other keys are
        those of the torch class.
    loss: loss(output, labels) -> a scalar; None: cross entropy, over the last dimension of token
        models too, with labels of -100 left out.
    clip_grad_norm: as of cleave.Optimizer.
    """

    def __init__(self, net: nn.Module, *, optimizer: Mapping[str, Any], loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
                 clip_grad_norm: float = 0) -> None:
        given = dict(optimizer)
        kind = BY_NAME.get(str(given.pop("kind", "")).lower())
        if kind is None:
            raise _errors.invalid(f"optimizer={dict(optimizer)}: kind is one of {', '.join(BY_NAME)}")
        self.net, self._loss = net, loss or _cross_entropy
        self._optimizer = Optimizer(kind, net, clip_grad_norm=clip_grad_norm, **given)
        self._jobs: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._news, self._is_closed = threading.Condition(), False
        threading.Thread(target=self._work, name="cleave-training", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._jobs and not self._is_closed:
                    self._news.wait()
                if not self._jobs:
                    return
                job, future = self._jobs.pop(0)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as e:
                future.set_exception(e)

    def _later(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._news:
            if self._is_closed:
                raise _errors.precondition("the Training is closed")
            self._jobs.append((job, future))
            self._news.notify()
        return future

    def forward_backward(self, *batch: torch.Tensor) -> Future[ForwardBackward]:
        """Adds the gradients of a batch to those since the last step. batch: the model's inputs,
        then the labels."""
        if len(batch) < 2:
            raise _errors.invalid("forward_backward takes the model's inputs and the labels")

        def job() -> ForwardBackward:
            self.net.train()
            output = self.net(*batch[:-1])
            loss = self._loss(output, batch[-1])
            loss.backward()  # type: ignore[no-untyped-call]
            return ForwardBackward(loss.item(), output.detach())
        return self._later(job)

    def forward(self, *inputs: torch.Tensor) -> Future[torch.Tensor]:
        """The output in eval mode."""
        def job() -> torch.Tensor:
            self.net.eval()
            with torch.no_grad():
                output: torch.Tensor = self.net(*inputs)
            return output
        return self._later(job)

    def optim_step(self, *, lr: float | None = None) -> Future[Step]:
        """Steps all nodes, or none, and forgets the gradients. lr: another rate, from now on."""
        def job() -> Step:
            if lr is not None:
                for group in self._optimizer.param_groups:
                    group["lr"] = lr
            self._optimizer.step()
            self._optimizer.zero_grad()
            assert self._optimizer.last
            return self._optimizer.last
        return self._later(job)

    def save_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Writes the adapters of all Remotes with lora as peft does: PeftModel.from_pretrained(net,
        folder) opens them. Waits for the calls before."""
        self._later(lambda: _save_adapters(self.net, os.fspath(folder))).result()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state_dict of the whole model as a safetensors file. Waits for the calls
        before."""
        def job() -> None:
            state = {k: v.detach().cpu().contiguous().numpy() for k, v in self.net.state_dict().items()}
            exporter().write_safetensors(os.fspath(path), state)
        self._later(job).result()

    def close(self) -> None:
        """Does what was called, and takes no more."""
        with self._news:
            self._is_closed = True
            self._news.notify()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), labels.reshape(-1))


def _save_adapters(net: nn.Module, folder: str) -> None:
    found = [(f"{at}." if at else "", m) for at, m in net.named_modules() if isinstance(m, Remote) and m.lora]
    if not found:
        raise _errors.precondition("the model has no Remote with lora={...}")
    if len({json.dumps(m.lora, sort_keys=True) for _, m in found}) > 1:
        raise _errors.unimplemented("adapters of several ranks or targets in one folder")
    tensors = {f"base_model.model.{at}{name}": value.numpy() for at, m in found for name, value in m.state_dict().items() if ".lora_" in name}
    lora = found[0][1].lora or {}
    config = {"peft_type": "LORA", "r": lora["r"], "lora_alpha": lora.get("alpha", lora["r"]), "lora_dropout": lora.get("dropout", 0.0), "bias": "none",
              "target_modules": sorted({name.rpartition(".lora_")[0].removeprefix("base_model.model.") for name in tensors}), "task_type": None,
              "use_rslora": bool(lora.get("rslora", False)), "inference_mode": True, "base_model_name_or_path": None}
    os.makedirs(folder, exist_ok=True)
    exporter().write_safetensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
