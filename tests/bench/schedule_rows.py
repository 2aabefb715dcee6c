# SPDX-License-Identifier: Apache-2.0
"""Rows of bench_pipeline.py: schedules over stages that wait 10 ms for each of forward, input
gradient and weight gradient (the op `wait`), so that any number of them can run at once. Compares
bubbles with the formula on loopback, and step times with the simulator on links of high latency or
low rate."""
import contextlib
import os
import re
import struct

from harness import Meter, enter, interleave, median, program, skip
from cluster import Cluster, write_npy
from links import DelayedCluster, Namespaces, namespaces_missing

MS, SAMPLES = 10, 64
TESTING = {"CLEAVE_TEST_OPS": "1"}  # allows the op `wait` in sessions
WAIT = f"{{op: wait, forward_ms: {MS}, input_ms: {MS}, weight_ms: {MS}}}"


def make_data(c):
    folder = os.path.join(c.dir, "data")
    os.makedirs(folder, exist_ok=True)
    for name, by in (("x", 7), ("y", 5)):
        values = [((i * by) % 13) / 13 for i in range(4 * SAMPLES)]
        write_npy(os.path.join(folder, f"{name}.npy"), (SAMPLES, 4), "<f4",
                  struct.pack(f"<{4 * SAMPLES}f", *values))


def session(c, name, places, pipeline, batch, width=4):
    """width: values of a sample at the first cut. Because of the linear layer in front, the first
    stage's `wait` computes an input gradient too; the linear layer at the end changes the last
    output to the four values of the labels."""
    stages = ""
    for i, at in enumerate(places):
        first = [f"{{op: linear, out: {width}}}"] if i == 0 else []
        last = ["{op: linear, out: 4}"] if i == len(places) - 1 else []
        stages += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(first + [WAIT] + last)}]}}\n"
    return c.session(name, "data: {format: npy, root: data, train: [x.npy, y.npy]}\n"
                     "privacy: {raw_input_leaves: true, labels_leave: true}\n"
                     f"stages:\n{stages}loss: {{kind: mse, at: {places[-1]}}}\n"
                     f"train: {{epochs: 100000, batch: {batch}, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, "
                     f"optimizer: {{kind: sgd, lr: 1.0e-9}}}}\npipeline: {{{pipeline}}}\ntransfer: direct\n"
                     "log: {every: 100000}\ncheckpoint: {every_steps: 100000}\n")


# ---- bubbles -------------------------------------------------------------------------------------

# A round is a batch in micro-batches, or several batches of an asynchronous schedule.
# (keys of the session file, samples of a batch, steps)
SCHEDULES = {
    "naive": ("micro_batches: 8, schedule: naive", 8, 4),
    "gpipe": ("micro_batches: 16, schedule: gpipe", 16, 6),
    "1f1b": ("micro_batches: 16, schedule: 1f1b, window: textbook", 16, 6),
    "interleaved": ("micro_batches: 16, schedule: interleaved", 16, 6),
    "zb-h1": ("micro_batches: 16, schedule: zb-h1", 16, 6),
    "pipedream": ("schedule: pipedream, flush_every: 16", 1, 80),
    # at most as many micro-batches in a step as there are stages, because more would have to wait:
    # there are only two versions of the weights
    "pipedream-2bw": ("micro_batches: 8, schedule: pipedream-2bw, flush_every: 2", 8, 10),
}


def micro_batches_of(kind, nodes):
    """The number of micro-batches of a round. With interleaving a multiple of the number of
    nodes."""
    return 18 if kind == "interleaved" and nodes in (3, 6) else 16


def measured_bubble(c, kind, nodes):
    """(measured bubble, bubble by the formula), in per cent."""
    pipeline, batch, steps = SCHEDULES[kind]
    if kind == "interleaved":
        batch = micro_batches_of(kind, nodes)
        pipeline = pipeline.replace("16", str(batch))
    places = [f"w{i + 1}" for i in range(nodes)] * (2 if kind == "interleaved" else 1)
    done = c.train(session(c, f"{kind}-{nodes}", places, pipeline, batch), "--profile",
                   "--max-steps", str(steps), env=TESTING)
    assert done.returncode == 0, done.stderr
    found = re.search(r"bubble ([0-9.]+) % .* links ([0-9.]+) % \(textbook", done.stdout)
    return float(found[1]), float(found[2])


def points_apart(ours, formula):
    """Difference in percentage points. Both bubbles assume that the gradient of the input is sent
    before that of the weights is computed."""
    return abs(ours - formula)


def bubble_rows(node_counts):
    samples = {kind: [] for kind in SCHEDULES}
    for nodes in node_counts:
        with Cluster(nodes, env=TESTING) as c:
            make_data(c)
            for kind in SCHEDULES:
                with Meter() as meter:
                    bubble = measured_bubble(c, kind, nodes)
                samples[kind].append((bubble, meter.foreign))
    for kind, found in samples.items():
        single = " ".join(f"{n}: {m:g}/{f:g}" for n, ((m, f), _) in zip(node_counts, found))
        enter(f"bubble_{kind}_vs_formula", "%", found, 5, True,
              f"points apart, the most; stages: measured/formula {single}", points_apart, max)


# ---- links ---------------------------------------------------------------------------------------

class Link:
    """The link between the first stage, at the master, and the second one, which has the loss."""

    def __init__(self, name, round_trip_ms=0.0, rate_mbit=0, on_link_ms=0, proxied=True):
        self.name, self.proxied, self.rate = name, proxied, rate_mbit
        self.latency, self.on_link = round_trip_ms / 2e3, on_link_ms / 1e3
        self.round_trip_ms, self.width = round_trip_ms, max(4, int(rate_mbit * on_link_ms * 1e3 / 32))

    @contextlib.contextmanager
    def cluster(self):
        if self.proxied:
            with DelayedCluster(1, self.round_trip_ms, self.rate or None, env=TESTING) as c:
                yield c
        else:
            with Namespaces(self.rate) as n, \
                    Cluster(1, near=n.near, far=n.far, host=n.host, env=TESTING) as c:
                yield c


LINKS = (Link("20ms", 20), Link("80ms", 80), Link("80ms_100mbit", 80, 100, 10),
         Link("80ms_100mbit_large", 80, 100, 30), Link("1gbit", 0, 1000, 5, proxied=False),
         Link("100mbit", 0, 100, 20, proxied=False))
WINDOWED = "1f1b_windowed"
KINDS = {  # schedule: (keys of the session file, arguments of the simulator)
    "naive": ("schedule: naive", "naive 0"),
    "gpipe": ("schedule: gpipe", "gpipe 0"),
    "1f1b_textbook": ("schedule: 1f1b, window: textbook", "1f1b 0"),
    WINDOWED: ("schedule: 1f1b, window: auto", "1f1b auto"),
}
SETTLE = 20  # steps until the window has been chosen and checked once more


def simulated(sched, link, kind, micro_batches):
    """(milliseconds of a round, the window), both by the simulator."""
    stage = f"{MS * 1e-3} " * 3 + "0 "
    edge = f"{link.latency} {link.on_link} {link.on_link}"
    seconds, window, _ = sched.ask(f"seconds {KINDS[kind][1]} {micro_batches} 3 "
                                   f"0 {stage} {edge} 1 {stage} 0 0 0 1 0 0 0 0 0 0 0")
    return 1e3 * seconds, int(window)


def measure_link(link, micro_batches, rounds):
    """([({kind: ms}, foreign share)], the window that was chosen)."""
    with link.cluster() as c, contextlib.ExitStack() as stack:
        make_data(c)
        sides = {kind: stack.enter_context(program("bench_train", session(
            c, kind, ["master", "w1"], f"micro_batches: {micro_batches}, {words}", micro_batches,
            link.width), at=c.near)) for kind, (words, _) in KINDS.items()}
        sides[WINDOWED].ask(f"steps {SETTLE}")
        found = interleave([lambda side=side: median(side.ask("steps 1")) for side in sides.values()],
                           rounds, rounds + rounds // 2)
        (window,) = sides[WINDOWED].ask("window")
    return [(dict(zip(sides, figures)), foreign) for figures, foreign in found], int(window)


def link_rows(links, micro_batches, rounds):
    os.environ.update(TESTING)  # bench_train is a master
    missing = namespaces_missing()
    with program("bench_sched") as sched:
        for link in links:
            if missing and not link.proxied:
                skip(f"link_{link.name}", missing)
                continue
            rows_of_link(sched, link, micro_batches, rounds)


def distance(ours, expected):
    return abs(ours / expected - 1)


def rows_of_link(sched, link, micro_batches, rounds):
    found, window = measure_link(link, micro_batches, rounds)
    for kind in KINDS:
        expected, wanted = simulated(sched, link, kind, micro_batches)
        note = f"window {window}, the simulator's {wanted}" if kind == WINDOWED else ""
        enter(f"link_{link.name}_{kind}_vs_simulated", "ms",
              [((f[kind], expected), foreign) for f, foreign in found], 0.1, True,
              note, distance)
    enter(f"link_{link.name}_{WINDOWED}_vs_best", "ms",
          [((f[WINDOWED], min(f["gpipe"], f["1f1b_textbook"])), foreign) for f, foreign in found],
          1.02, True, "the better of gpipe and textbook 1f1b")
