# SPDX-License-Identifier: Apache-2.0
"""TensorBoard itself, from PyPI in a virtual environment of its own under build/ (Debian has none),
as a reader of our event files: by its library, and through the pages that it serves."""
import json
import math
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]

import tfevents
import pypi
from cluster import IMAGE_DATA, SLOW, free_port

FOLDER = os.path.join(HERE, "../../build/tensorboard")
INSTALLED = pypi.interpreter(FOLDER)
BODY = (IMAGE_DATA.replace("}\n", ", validation: {fraction: 0.25}}\n") +
        "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 16}, {op: relu}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\n"
        "train: {epochs: 4, batch: 32, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.1}}\n"
        "checkpoint: {every_steps: 5}\n")


# ---- installing ----------------------------------------------------------------------------------

def python():
    """(an interpreter that has TensorBoard, None), or (None, why there is none)."""
    if pypi.works(FOLDER, "tensorboard"):
        return INSTALLED, None
    wrong = pypi.install(FOLDER, "tensorboard")
    return (None, wrong) if wrong else (INSTALLED, None)


# ---- runs ----------------------------------------------------------------------------------------

def runs(cluster, logs):
    """(name, run folder) of runs with event files under `logs`."""
    places = ("--set", f"log.tensorboard={logs}")

    def train(name, code, *args):
        done = cluster.train(cluster.session(name, BODY), *places, *args, timeout=240)
        assert done.returncode == code, (done.returncode, done.stderr)

    def folder(name):
        return os.path.join(cluster.dir, "runs", name)

    train("resumed", 0, "--max-steps", "28")
    os.rename(os.path.join(folder("resumed"), "checkpoint-28"), os.path.join(cluster.dir, "lost-28"))
    train("resumed", 0, "--resume")
    train("diverged", 9, "--set", "train.optimizer.lr=1e30")
    return [(name, folder(name)) for name in ("resumed", "diverged")]


# ---- reading -------------------------------------------------------------------------------------

LIBRARY = """
import json, sys
from tensorboard.backend.event_processing import event_accumulator
a = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
a.Reload()
texts = {e.step: e.tensor_proto.string_val[0].decode() for e in a.Tensors("session")}
assert a.SummaryMetadata("session").plugin_data.plugin_name == "text"
print(json.dumps({"curves": {t: [[e.step, e.value] for e in a.Scalars(t)] for t in a.Tags()["scalars"]},
                  "texts": texts}))
"""


def by_library(python_path, folder):
    done = subprocess.run([python_path, "-c", LIBRARY, folder], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["texts"] and all("lr: " in text for text in found["texts"].values()), found["texts"]
    assert not any(".pem" in text or "data:/" in text for text in found["texts"].values())
    return found["curves"]


def fetch(port, page, **query):
    """A page of TensorBoard's as JSON, as soon as there is something on it."""
    until = time.monotonic() + 60 * SLOW
    url = f"http://127.0.0.1:{port}/data/{page}?{urllib.parse.urlencode(query)}"
    while True:
        try:
            with urllib.request.urlopen(url) as reply:
                found = json.loads(reply.read())
                if found:
                    return found
        except (urllib.error.URLError, ConnectionError):
            pass
        assert time.monotonic() < until, f"TensorBoard has nothing at {url}"
        time.sleep(0.3)


def curves_of(port, name):
    tags = fetch(port, "plugin/scalars/tags").get(name, {})
    return {tag: [[step, value] for _, step, value in
                  fetch(port, "plugin/scalars/scalars", run=name, tag=tag)] for tag in tags}


def last_steps(curves):
    return {tag: points[-1][0] for tag, points in curves.items()}


def by_pages(python_path, logs, name, want):
    """Reads the curves from TensorBoard's pages, as soon as they end at the same step as `want`."""
    port = free_port()
    server = subprocess.Popen([python_path, "-m", "tensorboard.main", "--logdir", logs, "--port",
                               str(port), "--samples_per_plugin", "scalars=100000"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60 * SLOW
    try:
        found = curves_of(port, name)
        while last_steps(found) != last_steps(want) and time.monotonic() < until:
            time.sleep(0.3)
            found = curves_of(port, name)
        return found
    finally:
        server.terminate()
        server.wait()


def read(python_path, logs, name):
    """{way of reading: {tag: [[step, value]]}}. What is served keeps what a resumed run has not
    repeated, here the test of the first attempt: its fast reader knows no START."""
    known = by_library(python_path, os.path.join(logs, name))
    served = by_pages(python_path, logs, name, known)
    for tag in served:
        if tag.startswith("test/"):
            served[tag] = served[tag][-1:]
    return {"library": known, "served": served}


# ---- comparing -----------------------------------------------------------------------------------

def finite(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


def compare(curves, run_dir):
    """The largest relative difference from the run's own files. Asserts equal tags and steps, and
    no finite value where the files have none."""
    want, worst = tfevents.expected(run_dir), 0.0
    assert set(curves) == set(want), set(curves) ^ set(want)
    for tag, steps in want.items():
        assert [s for s, _ in curves[tag]] == sorted(steps), (tag, curves[tag], sorted(steps))
        for step, value in curves[tag]:
            assert finite(value) == (steps[step] is not None), (tag, step, value, steps[step])
            if finite(value):
                worst = max(worst, abs(value - steps[step]) / max(1.0, abs(steps[step])))
    return worst
