# SPDX-License-Identifier: Apache-2.0
"""Sessions of cleave-master: trained without torch, from a session file."""
from __future__ import annotations

import contextlib
import dataclasses
import json
import keyword
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _errors, _lib
from ._errors import Code
from ._tables import Table

# Exit codes of cleave-master; 1 and others are UNKNOWN.
CODES = {2: Code.INVALID, 3: Code.INVALID, 4: Code.UNAVAILABLE, 5: Code.DEADLINE, 6: Code.UNAVAILABLE, 7: Code.INVALID,
         8: Code.NOT_FOUND, 9: Code.ABORTED, 11: Code.PROTOCOL_VIOLATION, 70: Code.INTERNAL}
INTERRUPTED = 130


def program() -> str:
    """cleave-master: of the wheel, of the build tree that the package is part of, or in PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, "bin"), os.path.join(here, "../..")]
    found = next((p for p in (os.path.join(d, "cleave-master") for d in places) if os.access(p, os.X_OK)), None)
    found = found or shutil.which("cleave-master")
    if not found:
        raise _errors.make(Code.NOT_FOUND, "cleave-master is neither beside this package nor in PATH", hint="install Cleave, or build it with `make`")
    return found


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table[Any]:
    """A table of JSON objects: a column for each name that is a number or text in one of them;
    `from` is from_."""
    names = list(dict.fromkeys(k for row in rows for k, v in row.items() if k.isidentifier() and not isinstance(v, dict)))
    columns = [n + "_" * keyword.iskeyword(n) for n in names]
    kind = dataclasses.make_dataclass("Row", [(c, Any, None) for c in columns], frozen=True)
    return Table([kind(*(_cell(row.get(n)) for n in names)) for row in rows], title)


def _cell(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _lines(path: str) -> list[dict[str, Any]]:
    """Objects of a JSON lines file; a line that is being written is left out."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as f:
        for line in f:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


# ---- callbacks -----------------------------------------------------------------------------------

class Callback:
    """Base of what Session.train calls; each function may be left out."""

    def begin(self, session: Session) -> None:
        """Before the first step."""

    def progress(self, event: Mapping[str, Any]) -> None:
        """A few times a second: step, epoch, loss, samples_per_s, up_MBps, down_MBps, wait (share
        of time), eta_s."""

    def evaluation(self, event: Mapping[str, Any]) -> None:
        """Validation and test: event ("validation" or "test"), step, loss, accuracy, samples."""

    def end(self, run: Run) -> None:
        """Behind the last step, however it went."""


class Progress(Callback):
    """A progress bar in a terminal or notebook: tqdm's if it is installed, else a line now and
    then on standard error."""

    def __init__(self) -> None:
        self._bar: Any = None

    def begin(self, session: Session) -> None:
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            return
        self._bar = tqdm(unit="step", desc=session.name)

    def progress(self, event: Mapping[str, Any]) -> None:
        shown = {"loss": f"{event.get('loss', 0):.4f}", "samples/s": f"{event.get('samples_per_s', 0):.0f}"}
        if self._bar is None:
            print(f"step {event['step']}  " + "  ".join(f"{k} {v}" for k, v in shown.items()), file=sys.stderr)
            return
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(event["step"] - self._bar.n)

    def end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.close()


# ---- results -------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Plan:
    """What a session will do. stages: a row each, sizes in bytes.  egress: tensors that leave the
    master, with what they show.  details: all of `plan --json`."""

    stages: Table[Any]
    egress: Table[Any]
    details: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder. state: as `cleave-master runs` says it, "none" if there is no such run."""

    name: str
    folder: str
    state: str

    @property
    def steps(self) -> Table[Any]:
        """A row for each step: step, loss, grad_norm, lr, applied, accuracy, and its pace."""
        pace = {row["step"]: row for row in _lines(os.path.join(self.folder, "pace.jsonl")) if "step" in row}
        rows = [{**row, **pace.get(row["step"], {})} for row in _lines(os.path.join(self.folder, "metrics.jsonl")) if "step" in row]
        return table(rows, f"steps of {self.name}")

    @property
    def evaluations(self) -> Table[Any]:
        """A row for each validation and test."""
        return table(_lines(os.path.join(self.folder, "evaluations.jsonl")), f"evaluations of {self.name}")

    @property
    def egress(self) -> Table[Any]:
        """What has left, by the run's record, as `cleave-master egress` prints it."""
        rows = [o for o in _call(["egress", self.folder, "--json"]) if o.get("event") == "row"]
        return table(rows, f"left by {self.name}")


def runs(folder: str | os.PathLike[str] = "runs") -> Table[Any]:
    """The runs of a folder and how each ended, the newest last."""
    return table(_call(["runs", os.fspath(folder), "--json"]), f"runs in {os.fspath(folder)}")


# ---- the program ---------------------------------------------------------------------------------

def _call(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Objects that the program prints."""
    objects = []
    with _started(arguments) as process:
        objects = list(_objects(process))
        _check(process)
    return objects


class _Process:
    """cleave-master, apart from this terminal: Ctrl-C is passed on by who waits."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.child = subprocess.Popen([program(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors,
                                      text=True, start_new_session=True)
        self.lines: list[str] = []
        self.ended, self.news = False, threading.Condition()
        threading.Thread(target=self._read, name="cleave-master", daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout
        for line in self.child.stdout:
            with self.news:
                self.lines.append(line)
                self.news.notify_all()
        self.child.wait()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def said(self) -> str:
        """Standard error, without the program's name."""
        self.errors.seek(0)
        lines = [line.rstrip() for line in self.errors if line.strip()]
        return "\n".join(line.partition("cleave-master: ")[2] or line for line in lines[-20:])


@contextlib.contextmanager
def _started(arguments: Sequence[str]) -> Iterator[_Process]:
    process = _Process(arguments)
    try:
        yield process
    except BaseException:
        if not process.ended:
            with contextlib.suppress(ProcessLookupError):
                process.child.send_signal(signal.SIGINT)
        raise


def _objects(process: _Process) -> Iterator[dict[str, Any]]:
    """Each object as it comes."""
    at = 0
    while True:
        with process.news:
            while at == len(process.lines) and not process.ended:
                process.news.wait(_lib.SLICE_MS / 1000)
            if at == len(process.lines):
                return
            line = process.lines[at]
        at += 1
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found


def _check(process: _Process, allowed: Sequence[int] = ()) -> int:
    code = int(process.child.wait())
    if code and code not in allowed:
        text = process.said() or f"cleave-master ended with {code}"
        raise _errors.make(CODES.get(code, Code.UNKNOWN), text)
    return code


def _settings(sections: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """"train.epochs=3" of {"train": {"epochs": 3}}."""
    for key, value in sections.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{prefix}{key}.")
        elif isinstance(value, (str, os.PathLike)):
            yield f"{prefix}{key}={os.fspath(value)}"
        else:
            yield f"{prefix}{key}={json.dumps(value)}"


class Session:
    """A session file, and what cleave-master does with it. Run folders are in ./runs.

    path: session.yaml.  sections: keys that are stronger than the file's, a dict for each section:
    Session("session.yaml", train={"epochs": 3}, privacy={"labels_readable": True}).

    Each function raises the Error that fits the program's exit code, with its message: InvalidError
    for a wrong file or wrong data, UnavailableError for a worker that is lost or not reached,
    NotFoundError without a usable checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str], **sections: Any) -> None:
        self.path = os.fspath(path)
        if not os.path.isfile(self.path):
            raise _errors.make(Code.NOT_FOUND, f"{self.path}: there is no such file")
        self._sets = [a for s in _settings(sections) for a in ("--set", s)]
        self._process: _Process | None = None
        self._name: str | None = None

    @property
    def name(self) -> str:
        """The session's name, which its run folder has."""
        if self._name is None:
            self._name = str(self.plan().details["session"])
        return self._name

    def __repr__(self) -> str:
        return f"<cleave.Session {self.path}>"

    def _arguments(self, command: str, *more: str) -> list[str]:
        return [command, self.path, "--json", *self._sets, *more]

    def _run(self, command: str, *more: str) -> list[dict[str, Any]]:
        self._finish()
        return _call(self._arguments(command, *more))

    def _finish(self) -> None:
        """Waits for a training that Ctrl-C has stopped and that writes its checkpoint."""
        while self._process and not self._process.ended:
            with self._process.news:
                self._process.news.wait(_lib.SLICE_MS / 1000)

    def check(self, *, quick: bool = False) -> dict[str, Any]:
        """Checks the file, the shapes and all records, as numbers of records and classes. Nothing
        is sent. quick: looks at 1,000 records of each file."""
        return self._run("check", *["--quick"] * quick)[0]

    def plan(self) -> Plan:
        """Stages, their memory, and what leaves the master. Nothing is sent."""
        found = self._run("plan")[0]
        return Plan(table(found["stages"], "stages"), table(found["egress"], "leaves the master"), found)

    def train(self, *, callbacks: Iterable[Callback] = (), resume: bool = False, fresh: bool = False, max_steps: int | None = None) -> Run:
        """Trains to the end, or to step max_steps. resume: continues from the newest checkpoint.
        fresh: starts over. Ctrl-C raises KeyboardInterrupt at once; the run ends its step, writes a
        checkpoint, and the next call on this session waits for that."""
        self._finish()
        listeners = list(callbacks)
        name, arguments = self.name, self._arguments("train", *["--resume"] * resume, *["--fresh"] * fresh)
        arguments += ["--max-steps", str(max_steps)] if max_steps is not None else []
        for c in listeners:
            c.begin(self)
        try:
            with _started(arguments) as process:
                self._process = process
                for event in _objects(process):
                    _tell(listeners, event)
                _check(process, (INTERRUPTED,))
            run = self.run()
        except BaseException:  # at once: nothing is asked of the program
            run = Run(name, os.path.join("runs", name), "unknown")
            raise
        finally:
            for c in listeners:
                c.end(run)
        return run

    def run(self) -> Run:
        """The session's run folder, as it is now."""
        rows = _call(["runs", "runs", "--json"]) if os.path.isdir("runs") else []
        state = next((str(row["state"]) for row in rows if row.get("name") == self.name), "none")
        return Run(self.name, os.path.join("runs", self.name), state)

    def stop(self, *, now: bool = False) -> None:
        """Ends the run, in whatever process it is, after a checkpoint; now: without one."""
        _call(["stop", self.name, "--json", *["--now"] * now])

    def evaluate(self, *, checkpoint: int | str | None = None) -> dict[str, Any]:
        """Loss, accuracy and scores of a checkpoint on data.test. checkpoint: a step, "latest"
        (also None) or "best"."""
        found = self._run("eval", *_checkpoint(checkpoint))
        return next(o for o in reversed(found) if o.get("event") in ("test", "eval"))

    def predict(self, output: str | os.PathLike[str] | None = None, *, checkpoint: int | str | None = None) -> Any:
        """Outputs of a checkpoint for the records of data.test: a NumPy array [records, ...] f32,
        or None with output, a file .csv, .jsonl or .npy that gets them."""
        if output is not None:
            self._run("predict", "--output", os.fspath(output), *_checkpoint(checkpoint))
            return None
        import numpy
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "outputs.npy")
            self._run("predict", "--output", path, *_checkpoint(checkpoint))
            return numpy.load(path, allow_pickle=False)


def _checkpoint(given: int | str | None) -> list[str]:
    return [] if given is None else ["--checkpoint", str(given)]


def _tell(listeners: Iterable[Callback], event: dict[str, Any]) -> None:
    kind = event.get("event")
    for c in listeners:
        if kind == "progress":
            c.progress(event)
        elif kind in ("test", "validation"):
            c.evaluation(event)
