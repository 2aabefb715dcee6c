"""The window of 1f1b adapts to the links: stages take time without computing (the op `wait`),
workers are behind proxies with a delay, and the delay changes in the middle of a run."""
import json, os, re, struct, subprocess, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from links import DelayedCluster

suite = Suite()
TESTING = {"CLEAVE_TEST_OPS": "1"}
MS, MICRO = 8, 12  # time of each part of a stage in ms; number of micro-batches
FLOOR = MICRO * 3 * MS  # computing time of a stage in a step, ms


def body(pipeline, steps):
    stages = "".join(f"  - {{name: s{i}, at: w{i + 1}, layers: [{{op: wait, forward_ms: {MS}, input_ms: {MS}, "
                     f"weight_ms: {MS}}}]}}\n" for i in range(2))
    return ("data: {format: npy, root: data, train: [x.npy, y.npy]}\nprivacy: {raw_input_leaves: true, labels_leave: true}\n"
            f"stages:\n{stages}loss: {{kind: mse, at: w2}}\n"
            f"train: {{epochs: 100000, max_steps: {steps}, batch: {MICRO}, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {{kind: sgd, lr: 0.01}}}}\n"
            f"pipeline: {{micro_batches: {MICRO}, {pipeline}}}\nlog: {{every: 1, json: true}}\n"
            "checkpoint: {every_steps: 100000}\n")


def make_data(cluster, n=64):
    folder = os.path.join(cluster.dir, "data")
    os.makedirs(folder, exist_ok=True)
    for name, by in (("x", 7), ("y", 5)):
        values = [((i * by) % 13) / 13 for i in range(4 * n)]
        write_npy(os.path.join(folder, f"{name}.npy"), (n, 4), "<f4", struct.pack(f"<{4 * n}f", *values))


class Run:
    """A training in the background. lines: its output so far."""

    def __init__(self, cluster, tag, pipeline, steps):
        make_data(cluster)
        session = cluster.session(tag, body(pipeline, steps))
        self.process = subprocess.Popen(
            [os.path.join(BIN, "cleave-master"), "train", session], cwd=cluster.dir, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **TESTING})
        self.lines, self.changed = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(json.loads(line) if line[0] == "{" else {"message": line})
                self.changed.notify_all()
        with self.changed:
            self.lines.append({"event": "end"})
            self.changed.notify_all()

    def wait_for(self, what, timeout=60):
        with self.changed:
            there = self.changed.wait_for(lambda: any(what(l) for l in self.lines) or self.lines[-1:] == [
                {"event": "end"}], timeout * SLOW)
        assert there and any(what(l) for l in self.lines), (self.lines[-3:], self.process.poll())

    def finish(self):
        assert self.process.wait(60 * SLOW) == 0, self.process.stderr.read()
        return self.lines

    def windows(self):
        return [int(re.match(r"window (\d+)", l["message"]).group(1)) for l in self.lines if l.get("event") == "window"]


def step_is(n):
    return lambda line: line.get("step", 0) >= n


@suite.test
@alone("times of steps and of links")
@measured
def auto_window_adapts_to_a_changed_delay():
    """Without a delay the textbook's window of 2 is about right. With a round trip of 80 ms to each
    worker (and so 80 ms from one to the other) it would idle most of the time."""
    with DelayedCluster(2, round_trip_ms=0, env=TESTING) as cluster:
        run = Run(cluster, "changing", "window: auto", 40)
        run.wait_for(step_is(8))
        before = (run.windows() or [2])[-1]
        for proxy in cluster.proxies.values():
            proxy.set_delay(40)
        run.wait_for(lambda l: l.get("event") == "window" and
                     int(re.match(r"window (\d+)", l["message"]).group(1)) > before + 2)
        run.wait_for(step_is(30))
        after = run.windows()[-1]
        # one micro-batch computes for 24 ms, and (2 * 80 ms + 24 ms) / 24 ms are in flight or at
        # the other stage
        assert before <= 5 and 7 <= after <= 11, run.lines
        for proxy in cluster.proxies.values():
            proxy.set_delay(0)
        lines = run.finish()
        texts = [l["message"] for l in lines if l.get("event") == "window"]
        assert any("takes 8" in t and "ms instead of" in t for t in texts), texts


suite.main()
