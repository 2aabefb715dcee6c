"""The asynchronous schedules against an interpreter of their instruction lists: numpy runs what
`plan --schedule --out` wrote, with a copy of the weights for each micro-batch, and has to get the
weights and losses of `train`. Staleness and number of versions are those that `plan` states and
that the trace shows."""
import json, os, re, signal, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
try:
    import numpy as np
except ImportError as e:
    pyclient.MISSING = f"python3-numpy is needed ({e})"

suite = Suite()
WIDTHS = (6, 7, 6, 5, 4)
PLACES = ("master", "w1", "w2", "w1")
ROWS, BATCH, LR = 96, 8, 0.2
cluster = None


def write_data(folder):
    r = np.random.default_rng(92)
    x = r.standard_normal((ROWS, WIDTHS[0])).astype("<f4")
    y = np.tanh(x @ r.standard_normal((WIDTHS[0], WIDTHS[-1]))).astype("<f4")
    for name in ("train", "test"):
        write_npy(os.path.join(folder, name + "-x.npy"), x.shape, "<f4", x.tobytes())
        write_npy(os.path.join(folder, name + "-y.npy"), y.shape, "<f4", y.tobytes())
    return x.astype(float), y.astype(float)


def first_weights(folder):
    """Writes initial weights of each stage to its file, and returns them."""
    r, found = np.random.default_rng(93), []
    for i, (a, b) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        w = {f"{2 * i}.weight": r.standard_normal((b, a)).astype("<f4") * np.float32(0.6),
             f"{2 * i}.bias": r.standard_normal(b).astype("<f4") * np.float32(0.1)}
        header, raw = {}, b""
        for name, v in w.items():
            header[name] = {"dtype": "F32", "shape": list(v.shape), "data_offsets": [len(raw), len(raw) + v.nbytes]}
            raw += v.astype("<f4").tobytes()
        text = json.dumps(header).encode()
        with open(os.path.join(folder, f"stage{i}.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + raw)
        found.append([w[f"{2 * i}.weight"].astype(float), w[f"{2 * i}.bias"].astype(float)])
    return found


def body(pipeline, steps, momentum=0.0, recompute=False):
    text = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
            "privacy: {raw_input_leaves: true}\nstages:\n")
    for i, at in enumerate(PLACES):
        text += (f"  - {{name: s{i}, at: {at}, recompute: {str(recompute).lower()}, "
                 f"weights: {{file: stage{i}.safetensors}}, "
                 f"layers: [{{op: linear, out: {WIDTHS[i + 1]}}}, {{op: tanh}}]}}\n")
    return text + ("loss: {kind: mse}\n"
                   f"train: {{epochs: 100, max_steps: {steps}, batch: {BATCH}, shuffle: false, "
                   f"optimizer: {{kind: sgd, lr: {LR}, momentum: {momentum}}}}}\n"
                   f"pipeline: {{{pipeline}}}\nlog: {{every: 1}}\n")


# ---- the interpreter -----------------------------------------------------------------------------

class Stage:
    def __init__(self, weights, momentum):
        self.now, self.before = weights, weights  # present weights, weights before the last step
        self.v, self.momentum = [np.zeros_like(p) for p in weights], momentum
        self.used, self.saved, self.steps, self.alive, self.staleness, self.versions = {}, {}, 0, {}, 0, 1
        self.gradient = [np.zeros_like(p) for p in weights]

    def count(self):
        self.versions = max(self.versions, len(set(self.alive.values()) | {self.steps}))

    def forward(self, k, x, age):
        self.used[k], self.alive[k] = self.before if age else self.now, self.steps - age
        w, b = self.used[k]
        self.saved[k] = x, np.tanh(x @ w.T + b)
        self.count()
        return self.saved[k][1]

    def backward(self, k, dy):
        x, y = self.saved.pop(k)
        self.staleness = max(self.staleness, self.steps - self.alive.pop(k))
        dz = dy * (1 - y * y)
        self.gradient = [g + d for g, d in zip(self.gradient, (dz.T @ x, dz.sum(0)))]
        return dz @ self.used.pop(k)[0]

    def step(self):
        self.v = [self.momentum * v + g for v, g in zip(self.v, self.gradient)]
        self.before, self.now = self.now, [p - LR * v for p, v in zip(self.now, self.v)]
        self.gradient = [np.zeros_like(p) for p in self.now]
        self.steps += 1
        self.count()


def run_round(stages, lists, x, y, shares):
    """Runs the lists of one round over its micro-batches. Returns the loss of each."""
    n, at, losses, out, back = len(stages), [0] * len(lists), {}, {}, {}
    for k, part in enumerate(x):
        out[-1, k] = part

    def run(word):
        kind, k, s, age = re.fullmatch(r"([A-Za-z]+)(\d+)@(\d+)(?:-(\d+))?", word).groups()
        k, s = int(k), int(s)
        if kind in ("sf", "rf", "sb", "rb"):
            return {"sf": (s, k) in out, "rf": (s - 1, k) in out, "sb": (s, k) in back, "rb": (s + 1, k) in back}[kind]
        if kind == "F" and (s - 1, k) not in out or kind == "B" and s < n and (s + 1, k) not in back:
            return False
        if s == n:
            error = out[n - 1, k] - y[k]
            losses[k] = (error ** 2).mean()
            out[n, k], back[n, k] = losses[k], shares[k] * 2 * error / error.size
        elif kind == "F":
            out[s, k] = stages[s].forward(k, out[s - 1, k], int(age or 0))
        elif kind == "B":
            back[s, k] = stages[s].backward(k, back[s + 1, k])
        else:
            assert kind == "S", word
            stages[s].step()
        return True

    while any(i < len(l) for i, l in zip(at, lists)):
        moved = False
        for r, words in enumerate(lists):
            while at[r] < len(words) and run(words[at[r]]):
                at[r] += 1
                moved = True
        assert moved, "the lists stand still"
    return [losses[k] for k in range(len(x))]


def interpreted(lists, x, y, weights, rounds, per_round, micro, momentum):
    stages = [Stage([p.copy() for p in w], momentum) for w in weights]
    losses = []
    for i in range(rounds):
        for s in stages:  # in a round, "before the last step" means before the round
            s.before, s.steps = s.now, 0
        parts = [np.array_split(np.arange(b * BATCH % ROWS, b * BATCH % ROWS + BATCH), micro)
                 for b in range(i * per_round, (i + 1) * per_round)]
        parts = [p for batch in parts for p in batch]
        got = run_round(stages, lists, [x[p] for p in parts], [y[p] for p in parts], [len(p) / BATCH for p in parts])
        losses += [sum(got[j] * len(parts[j]) / BATCH for j in range(b * micro, b * micro + micro))
                   for b in range(per_round)]
    return stages, losses


# ---- comparison with train------------------------------------------------------------------------

def planned(session, path):
    done = master("plan", "--schedule", "--json", "--out", path, session)
    assert done.returncode == 0, done.stderr
    with open(path) as f:
        lists = [l.split(":", 1)[1].split() for l in f if l.startswith("rank")]
    return lists, json.loads(done.stdout)["stages"]


def compare(tag, kind, micro, per_round, rounds, momentum=0.0, recompute=False):
    steps = per_round * rounds
    session = cluster.session(tag, body(f"schedule: {kind}, micro_batches: {micro}, flush_every: {per_round}", steps,
                                        momentum, recompute))
    lists, stated = planned(session, os.path.join(cluster.dir, tag + ".sched"))
    trace = os.path.join(cluster.dir, tag + ".trace")
    done = cluster.train(session, "--trace", trace, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = os.path.join(cluster.dir, "runs", tag)
    stages, losses = interpreted(lists, the_x, the_y, the_weights, rounds, per_round, micro, momentum)
    got = checkpoint_tensors(run_dir, steps)
    for i, s in enumerate(stages):
        for name, want in zip((f"{2 * i}.weight", f"{2 * i}.bias"), s.now):
            found = np.frombuffer(got[name][2], "<f4").reshape(want.shape)
            error = np.linalg.norm(found - want) / np.linalg.norm(want)
            moved = np.linalg.norm(the_weights[i][name.endswith("bias")] - want) / np.linalg.norm(want)
            assert error < 1e-5 < 1e-2 < moved, (tag, name, error, moved)
    with open(os.path.join(run_dir, "metrics.jsonl")) as f:
        logged = [row["loss"] for row in map(json.loads, f) if "loss" in row]
    assert len(logged) == steps and np.allclose(logged, losses, rtol=1e-5, atol=1e-7), (tag, logged, losses)
    for i, s in enumerate(stages):
        want = (stated[i]["versions"], stated[i]["staleness"])
        assert (s.versions, s.staleness) == want, (tag, i, s.versions, s.staleness, stated[i])
    return stages, computed(trace)


def computed(path):
    """{(round, stage): [(begin, letter, micro-batch, version)]} of the computed parts, by time."""
    with open(path) as f:
        events = json.load(f)
    found = {}
    for e in events["traceEvents"] if isinstance(events, dict) else events:
        a = e.get("args", {})
        if e["ph"] == "X":
            row = (e["ts"], e["name"][0], a["micro_batch"], a.get("weights"))
            found.setdefault((a["step"], a["stage"]), []).append(row)
    return {k: sorted(v) for k, v in found.items()}


def versions_alive(rows):
    """The maximum number of versions alive at once: those of micro-batches between F and B (or W),
    and the newest."""
    alive, newest, most = {}, None, 0
    for _, letter, k, version in rows:
        if letter == "F":
            alive[k] = version
            newest = version if newest is None else max(newest, version)
        if letter == "S":
            newest = version
        most = max(most, len(set(alive.values()) | {newest}))
        if letter in "BW":
            alive.pop(k)
    return most


@suite.test
def pipedream_matches_its_instruction_list():
    for momentum in (0.0, 0.9) if LONG else (0.9,):
        stages, trace = compare(f"pipedream{int(10 * momentum)}", "pipedream", 1, 6, 3, momentum)
        assert [s.staleness for s in stages] == [3, 2, 1, 0], [s.staleness for s in stages]
        for (step, stage), rows in trace.items():
            if stage < 4:
                assert versions_alive(rows) == stages[stage].versions == 4 - stage, (step, stage, rows)


@suite.test
def pipedream_2bw_matches_its_list_and_keeps_two_versions():
    for momentum, micro in ((0.0, 4), (0.9, 4), (0.0, 5)) if LONG else ((0.9, 5),):
        stages, trace = compare(f"2bw{int(10 * momentum)}-{micro}", "pipedream-2bw", micro, 4, 3, momentum)
        assert all(s.staleness == 1 and s.versions == 2 for s in stages), [(s.staleness, s.versions) for s in stages]
        assert trace
        for (step, stage), rows in trace.items():
            if stage < 4:
                assert versions_alive(rows) == 2, (step, stage, rows)


@suite.test
def asynchronous_schedules_with_recompute_match_their_lists():
    compare("pipedream-again", "pipedream", 1, 5, 2, 0.9, recompute=True)
    compare("2bw-again", "pipedream-2bw", 3, 4, 2, 0.0, recompute=True)


@suite.test
def zb_h1_runs_weight_gradients_after_later_input_gradients():
    session = cluster.session("zb", body("schedule: zb-h1, micro_batches: 8", 4))
    path = os.path.join(cluster.dir, "zb.trace")
    done = cluster.train(session, "--trace", path, timeout=60)
    assert done.returncode == 0, done.stderr
    trace = computed(path)
    assert len(trace) >= 4 * 4
    for (step, stage), rows in trace.items():
        order = [f"{letter}{k}" for _, letter, k, _ in rows]
        # not for the loss stage; later micro-batches are the drain
        for k in range(4 * (stage < 4)):
            assert order.index(f"W{k}") > order.index(f"I{k + stage}"), (step, stage, k, order)


# ---- ends of rounds ------------------------------------------------------------------------------

FLUSH, STEPS = 5, 30  # twelve batches in an epoch: its rounds end after 5, 10 and 12 of them


def rounds_session(tag, checkpoint, steps=STEPS):
    text = body(f"schedule: pipedream, micro_batches: 1, flush_every: {FLUSH}", steps, 0.9)
    return cluster.session(tag, text + f"checkpoint: {{every_steps: {checkpoint}, keep: 100}}\n")


def saved(tag):
    """The steps of a run that have a checkpoint."""
    names = os.listdir(os.path.join(cluster.dir, "runs", tag))
    return sorted(int(n[11:]) for n in names if re.fullmatch(r"checkpoint-\d+", n))


def weights_of(tag, step=STEPS):
    return {k: v[2] for k, v in checkpoint_tensors(os.path.join(cluster.dir, "runs", tag), step).items()}


def trained_in_rounds(tag, checkpoint, *options):
    done = cluster.train(rounds_session(tag, checkpoint), *options, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@suite.test
def rounds_end_only_at_flush_every_and_epoch_end():
    """Checkpoints wait for the end of a round, and the weights do not depend on them."""
    wanted = {500: [30], 1: [5, 10, 12, 17, 22, 24, 29, 30], 7: [10, 17, 22, 29, 30], 12: [12, 24, 30]}
    for every, steps in chosen(wanted, 500, 7).items():
        trained_in_rounds(f"every{every}", every)
        assert saved(f"every{every}") == steps, (every, saved(f"every{every}"))
        assert weights_of(f"every{every}") == weights_of("every500"), every


@suite.test
def interrupt_waits_for_the_end_of_a_round():
    trained_in_rounds("undisturbed", 500)
    for at, end in ((3, 5), (11, 12), (13, 17)) if LONG else ((11, 12),):
        trained_in_rounds(f"stop{at}", 500, "--max-steps", str(at))
        assert saved(f"stop{at}") == [end], (at, saved(f"stop{at}"))
        trained_in_rounds(f"stop{at}", 500, "--resume")
        assert weights_of(f"stop{at}") == weights_of("undisturbed"), at
    session = rounds_session("ctrl-c", 100000, 1200)
    with Running([MASTER, "train", session], stderr=subprocess.STDOUT, cwd=cluster.dir) as run:
        assert trains(run.process)
        run.process.send_signal(signal.SIGINT)
        out = run.process.communicate(timeout=60 * SLOW)[0]
    (step,) = saved("ctrl-c")
    assert step % 12 in (0, 5, 10) and f"interrupted after step {step};" in out, (step, out)


if pyclient.MISSING:
    print("skip async_schedules:", pyclient.MISSING)
else:
    with Cluster(2) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        the_x, the_y = write_data(os.path.join(cluster.dir, "data"))
        the_weights = first_weights(cluster.dir)
        suite.main()
