#!/usr/bin/python3
"""A cache of a frozen front: the outputs of the front are sent once and kept by the worker after
it, under a quota and an expiry, until the run ends. The bits are those of a run without a cache if
all calls of the front round a row equally, that is, if calls have one size and a row's place in the
call does not matter. With AVX2, oneDNN rounds the last six rows of a call differently, but all rows
of a call of four equally. So calls have four records unless a test says otherwise."""
import json, os, random, re, signal, struct, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from measured import numbers

try:
    import numpy
except ImportError:
    numpy = None

suite = Suite()
RECORDS, WIDE, OUT = 110, 12, 32
# training records of 110, the rest is validation; records of a batch, which has two calls
TRAINED, BATCH = 88, 8
# the last calls of an epoch have one and two records
SHORT = {"batch": 12, "pipeline": "micro_batches: 3"}
ROLE = "role: master}"
FRONT = ["{op: linear, out: 48, name: one}", "{op: relu}", "{op: dropout, p: %s}",
         f"{{op: linear, out: {OUT}, name: two}}", "{op: layernorm, name: n}"]
REST = ["{op: linear, out: 16, name: three}", "{op: relu}", "{op: dropout, p: 0.1}", "{op: linear, out: 3, name: head}"]
cluster = None


class Keeping(Cluster):
    """A worker that keeps caches of a master up to `quota`, by default 64 KiB."""

    def __init__(self, quota="64KiB", more=""):
        self.quota, self.more, self.page = quota, more, free_port()
        super().__init__(1)
        make_data(os.path.join(self.dir, "data"))

    def worker_config(self, i, extra=""):
        path = super().worker_config(i, extra)
        os.makedirs(os.path.join(self.dir, "kept"), exist_ok=True)
        with open(path) as f:
            text = f.read().replace(ROLE, ROLE[:-1] + (f", cache_bytes: {self.quota}" if self.quota else "") + "}")
        with open(path, "w") as f:
            f.write(text + f"state_dir: kept\nmetrics: {{listen: \"127.0.0.1:{self.page}\"}}\n" + self.more)
        return path

    def files(self):
        return [os.path.join(at, f) for at, _, files in os.walk(os.path.join(self.dir, "kept", "cached")) for f in files]

    def came(self):
        """The worker's own counts of bytes received from its master, and of bytes of rows kept and
        read."""
        n = numbers(self.page)
        kept = "cleave_worker_cached_bytes_total"
        return (n['cleave_worker_link_bytes_total{link="master",direction="in"}'],
                n[kept + '{direction="in"}'], n[kept + '{direction="out"}'])


def make_data(folder):
    os.makedirs(folder)
    r = random.Random(5)
    for name, n in (("train", RECORDS), ("test", 20)):
        x = [r.uniform(-1, 1) for _ in range(n * WIDE)]
        y = [(x[i * WIDE] > 0) + (x[i * WIDE + 1] > 0) for i in range(n)]
        write_npy(os.path.join(folder, f"{name}-x.npy"), (n, WIDE), "<f4", struct.pack(f"<{n * WIDE}f", *x))
        write_npy(os.path.join(folder, f"{name}-y.npy"), (n,), "<i8", struct.pack(f"<{n}q", *y))


def body(cache=True, p=0, epochs=3, front="freeze: true", tail=False, more="", data="", batch=BATCH,
         pipeline="micro_batches: 2"):
    rest, last = (REST[:2], REST[2:]) if tail else (REST, [])
    keys = front + (", cache: true" if cache is True else f", {cache}" if cache else "")
    return (f"data: {{format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy], "
            f"validation: {{fraction: 0.2}}{data}}}\n"
            "stages:\n"
            f"  - {{name: front, at: master, {keys}, layers: [{', '.join(FRONT) % p}]}}\n"
            f"  - {{name: rest, at: w1, layers: [{', '.join(rest)}]}}\n"
            + (f"  - {{name: tail, at: master, layers: [{', '.join(last)}]}}\n" if last else "") +
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: {epochs}, batch: {batch}, eval_batch: 7, seed: {SEED},"
            " clip_grad_norm: 1.0, optimizer: {kind: adamw, lr: 0.01}}\n"
            f"pipeline: {{{pipeline}}}\n" + more)


def steps(epochs, batch=BATCH):
    return epochs * -(-TRAINED // batch)


def same(one, other):
    assert one[0].keys() == other[0].keys()
    for k in one[0]:
        assert one[0][k] == other[0][k], k
    assert one[1] == other[1], "the loss log differs"


def near(one, other):
    """Whether all numbers of two loss logs are close. Rows differ by 1e-7, which ten steps may
    increase."""
    words = [re.split(r"[^\d.e+-]+", log) for log in (one[1], other[1])]
    assert len(words[0]) == len(words[1]), words
    for a, b in zip(*words):
        assert a == b or abs(float(a) - float(b)) <= 1e-4 * abs(float(a)), (a, b)


@suite.test
def equal_batches_give_the_same_bits_as_without_cache():
    """Equal losses, validations and weights, in both shapes. Dropout in the front is off, and works
    as always in other layers."""
    for tail in (False, True) if LONG else (True,):
        plain = cluster.trained(f"plain{tail}", body(False, tail=tail), steps(3))
        cached = cluster.trained(f"cached{tail}", body(True, 0.5, tail=tail), steps(3))
        same(plain, cached)
        assert "worker 'w1' has deleted its cache of 110 rows" in cached[2], cached[2]
        assert not cluster.files()


@suite.test
def short_batches_are_close_to_those_without_cache():
    plain = cluster.trained("short-plain", body(False, **SHORT), steps(3, 12))
    cached = cluster.trained("short-cached", body(True, 0.5, **SHORT), steps(3, 12))
    near(plain, cached)
    assert "worker 'w1' has deleted its cache of 110 rows" in cached[2], cached[2]


@suite.test
def later_epochs_send_only_row_numbers():
    """By the worker's count, the rows of all records come once; after the first epoch only 8 bytes
    of each record, and its share of the frames, come."""
    row, came, per_epoch = OUT * 4, {}, {}
    for kind, cache in (("plain", False), ("cached", True)):
        for epochs in (1, 5):
            before = cluster.came()
            cluster.trained(f"count-{kind}{epochs}", body(cache, epochs=epochs), steps(epochs))
            came[kind, epochs] = [b - a for a, b in zip(before, cluster.came())]
        per_epoch[kind] = (came[kind, 5][0] - came[kind, 1][0]) / 4
    assert came["cached", 1][1:] == [RECORDS * row, 0], came
    assert came["cached", 5][1:] == [RECORDS * row, 4 * RECORDS * row], came
    assert came["plain", 5][1:] == [0, 0], came
    saved = per_epoch["plain"] - per_epoch["cached"]
    assert saved > RECORDS * (row - 8) - 22 * 3 * 60, (came, per_epoch)


@suite.test
def plan_and_egress_page_show_the_cache():
    said = run(MASTER, "plan", cluster.session("said", body(True, 0.5)), cwd=cluster.dir).stdout
    for text in ("CACHED activation of stage 'front', once", "CACHED: numbers of its records",
                 "activations of stage 'front' stay on the disk of w1 until the run ends, or 86400 s after",
                 "w1 always receives the same activation for a record", "runs as in evaluations: dropout is off"):
        assert text in said, (text, said)
    cluster.trained("page", body(True, epochs=2, front="freeze: true, cache_ttl: 90m"), steps(2))
    page = run(MASTER, "egress", "runs/page", "--json", cwd=cluster.dir).stdout
    rows = [json.loads(line) for line in page.splitlines()]
    kept = {r["name"]: r for r in rows if r.get("kind") == "cached"}
    assert kept["kept there, unused for at most 5400 s"]["bytes"] == RECORDS * OUT * 4, kept
    assert kept["numbers of records"]["bytes"] == 2 * RECORDS * 8, kept
    assert len(kept) == 2
    activations = [r for r in rows if r.get("kind") == "activation"]
    assert [r["bytes"] for r in activations] == [20 * OUT * 4], activations  # the test


def refused(text, *args, code=3, on=None, **kw):
    at = on or cluster
    done = run(MASTER, "plan" if code == 3 else "train", at.session("refused", body(*args, **kw)), cwd=at.dir)
    assert done.returncode == code and text in done.stderr, (done.returncode, done.stdout, done.stderr)


@suite.test
def unsupported_cache_settings_are_refused():
    refused("cannot be cached: it learns: add `freeze: true`", front="threads: 1")
    path = cluster.session("async", body(pipeline="micro_batches: 1, schedule: pipedream").replace(" clip_grad_norm: 1.0,", ""))
    done = run(MASTER, "plan", path, cwd=cluster.dir)
    assert done.returncode == 3 and "pipeline.schedule is an asynchronous one" in done.stderr, done.stderr
    refused("pipeline.micro_batches is auto", pipeline="micro_batches: auto")
    for at, text in (("front, at: w1", "it is not at the master"), ("rest, at: master", "not at a worker")):
        which = at.split(",")[0]
        path = cluster.session("moved", re.sub(f"name: {which}, at: \\w+", "name: " + at, body(more="privacy: {raw_input_leaves: true}\n")))
        done = run(MASTER, "plan", path, cwd=cluster.dir)
        assert done.returncode == 3 and text in done.stderr, done.stderr
    path = cluster.session("late", body(False).replace("at: w1,", "at: w1, cache: true,"))
    done = run(MASTER, "plan", path, cwd=cluster.dir)
    assert done.returncode == 3 and "only the first stage can" in done.stderr, done.stderr
    raw = body().replace(", ".join(FRONT) % 0, "{op: relu}")
    done = run(MASTER, "plan", cluster.session("raw", raw + "privacy: {raw_input_leaves: true}\n"), cwd=cluster.dir)
    assert done.returncode == 3 and "are the records themselves" in done.stderr, done.stderr


@suite.test
def cache_without_a_worker_quota_is_refused():
    with Keeping(quota="") as c:
        path = c.session("none", body())
        for command in (("train",), ("plan", "--ask")):
            done = run(MASTER, command[0], path, *command[1:], cwd=c.dir)
            assert done.returncode in (3, 4) and "worker 'w1' keeps no caches for this identity" in done.stderr, done
        assert not c.files()


@suite.test
def cache_over_its_quota_ends_the_run():
    """It ends before a row is kept, and the worker continues."""
    with Keeping(quota="20KiB") as c:
        done = c.train(c.session("much", body()))
        assert done.returncode not in (0, 3) and "allow[].cache_bytes" in done.stderr, (done.returncode, done.stderr)
        assert "step 1" in done.stderr and not c.files(), done.stderr
        c.trained("plain", body(False, epochs=1), steps(1))


class Full(Keeping):
    """A worker whose state_dir is on a file system that is almost full."""

    def worker_config(self, i, extra=""):
        folder = os.path.join(self.dir, "kept")
        os.makedirs(folder)
        self.mounted = run("mount", "-t", "tmpfs", "-o", "size=16k", "none", folder).returncode == 0
        return super().worker_config(i, extra)

    def __exit__(self, *args):
        try:
            return super().__exit__(*args)
        finally:
            if self.mounted:
                run("umount", "-l", os.path.join(self.dir, "kept"))


@suite.test
def full_cache_disk_ends_the_run():
    """It ends at its first step and leaves nothing there, and the worker continues."""
    with Full() as c:
        if not c.mounted:
            return "no tmpfs here"
        done = c.train(c.session("full", body()))
        assert done.returncode not in (0, 3) and "the worker's disk is full" in done.stderr, (done.returncode, done.stderr)
        assert "step 1" in done.stderr and not c.files(), (done.stderr, c.files())
        c.trained("plain", body(False, epochs=1), steps(1))


class Running:
    """A run without end that is beyond its first epochs."""

    def __init__(self, c, name, **kw):
        session = c.session(name, body(epochs=100000, more="checkpoint: {every_steps: 11}\nlog: {every: 1, json: true}\n", **kw))
        self.process = subprocess.Popen([MASTER, "train", session], cwd=c.dir, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for line in self.process.stdout:
            if '"step":40,' in line:
                break
        self.session = session

    def end(self, sig):
        self.process.send_signal(sig)
        return self.rest()

    def rest(self):
        out, err = self.process.communicate(timeout=60 * SLOW)
        return self.process.returncode, out, err


@suite.test
def damaged_cache_row_ends_the_run_and_is_resent():
    r = Running(cluster, "damaged")
    (path,) = cluster.files()
    assert os.stat(path).st_mode & 0o777 == 0o600
    with open(path, "r+b") as f:
        f.seek(8192 + 5)
        f.write(b"\xff" * (OUT * 4 * RECORDS - 10))
    code, out, err = r.rest()
    assert code == 1 and "is damaged in the cache" in err, (code, err)
    assert not cluster.files()
    again = run(MASTER, "train", r.session, "--resume", "--max-steps", "120", cwd=cluster.dir)
    assert again.returncode == 0, again.stderr
    plain = cluster.session("undamaged", body(False, epochs=100000))
    assert run(MASTER, "train", plain, "--max-steps", "120", cwd=cluster.dir).returncode == 0
    one, other = (checkpoint_tensors(os.path.join(cluster.dir, "runs", n), 120) for n in ("damaged", "undamaged"))
    assert one == other


def resumed(r, name):
    """Resumes the run, which must have the bits of an uninterrupted one. Returns the bytes of rows
    sent."""
    before = cluster.came()
    done = run(MASTER, "train", r.session, "--resume", "--max-steps", "120", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    run(MASTER, "cache", r.session, "--delete", cwd=cluster.dir)  # the cache of another key
    assert not cluster.files()
    plain = cluster.session("plain-" + name, body(False, epochs=100000))
    assert run(MASTER, "train", plain, "--max-steps", "120", cwd=cluster.dir).returncode == 0
    one, other = (checkpoint_tensors(os.path.join(cluster.dir, "runs", n), 120) for n in (name, "plain-" + name))
    assert one == other
    return cluster.came()[1] - before[1], "has the cached rows of all records: none is sent again" in done.stdout + done.stderr


@suite.test
def resumed_run_reuses_the_cached_rows():
    r = Running(cluster, "goes-on")
    r.end(signal.SIGKILL)
    assert resumed(r, "goes-on") == (0, True)


@suite.test
def row_numbers_do_not_reveal_record_positions():
    """The worker's file has each row under the number that came with it. The test finds the record
    of a row with the front, which no worker has: the record's index in data.train must differ from
    the number."""
    if numpy is None:
        return "python3-numpy is needed"
    r = Running(cluster, "numbers")
    (path,) = cluster.files()
    r.end(signal.SIGKILL)
    with open(path, "rb") as f:
        rows = numpy.frombuffer(f.read()[8192:8192 + RECORDS * OUT * 4], "<f4").reshape(RECORDS, OUT)
    with open(os.path.join(cluster.dir, "data/train-x.npy"), "rb") as f:
        x = numpy.load(f)
    run(MASTER, "cache", r.session, "--delete", cwd=cluster.dir)
    at = max(int(name.rpartition("-")[2]) for name in os.listdir(os.path.join(cluster.dir, "runs/numbers"))
             if re.fullmatch(r"checkpoint-\d+", name))
    w = {k: numpy.frombuffer(raw, "<f4").reshape(dims)
         for k, (_, dims, raw) in checkpoint_tensors(os.path.join(cluster.dir, "runs/numbers"), at).items()}
    h = numpy.maximum(x @ w["one.weight"].T + w["one.bias"], 0) @ w["two.weight"].T + w["two.bias"]
    h = (h - h.mean(1, keepdims=True)) / numpy.sqrt(h.var(1, keepdims=True) + 1e-5) * w["n.weight"] + w["n.bias"]
    far = numpy.abs(h[None] - rows[:, None]).max(2)  # [number, record]
    record = far.argmin(1)
    assert far.min(1).max() < 1e-3 and sorted(record) == list(range(RECORDS)), far.min(1)
    assert abs(numpy.corrcoef(record, range(RECORDS))[0, 1]) < 0.5, record
    assert sum(record == range(RECORDS)) < RECORDS / 10, record


@suite.long
def incomplete_or_outdated_cache_is_resent():
    """If a row is missing, or if the data have changed."""
    def drop_a_row(path):
        with open(path, "r+b") as f:
            f.seek(4096 + 8 * 7)
            f.write(bytes(8))

    def touch_data(path):
        data = os.path.join(cluster.dir, "data/train-x.npy")
        os.utime(data, (1, 1))

    for name, change in (("row-missing", drop_a_row), ("data-touched", touch_data)):
        r = Running(cluster, name)
        r.end(signal.SIGKILL)
        change(*cluster.files())
        sent, said = resumed(r, name)
        assert (sent, said) == (RECORDS * OUT * 4, False), (name, sent, said)


@suite.test
def cache_of_a_killed_run_can_be_listed_and_deleted():
    r = Running(cluster, "killed")
    r.end(signal.SIGKILL)
    shown = run(MASTER, "cache", r.session, "--json", cwd=cluster.dir)
    (one,) = [json.loads(line) for line in shown.stdout.splitlines()]
    assert (one["worker"], one["records"], one["rows"], one["row_bytes"]) == ("w1", RECORDS, RECORDS, OUT * 4), one
    assert one["disk_bytes"] == os.stat(cluster.files()[0]).st_size and 86000 < one["expires_s"] <= 86400, one
    text = run(MASTER, "cache", r.session, cwd=cluster.dir).stdout
    assert "110 of 110 rows" in text and "unless it is used" in text, text
    deleted = run(MASTER, "cache", r.session, "--delete", cwd=cluster.dir)
    assert deleted.returncode == 0 and "deleted" in deleted.stdout and not cluster.files(), deleted
    assert "no cache" in run(MASTER, "cache", r.session, cwd=cluster.dir).stdout
    interrupted = Running(cluster, "interrupted")
    code, out, err = interrupted.end(signal.SIGINT)
    assert code == 130 and "has deleted its cache of 110 rows" in out + err and not cluster.files(), (code, out, err)


@suite.test
def unused_cache_expires():
    """After the session's or the worker's time, in a running worker and in one that was
    restarted."""
    def gone(c):
        deadline, caches = time.monotonic() + 20 * SLOW, os.path.join(c.dir, "kept", "cached")
        while os.listdir(caches) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not os.listdir(caches), c.files()

    r = Running(cluster, "expires", front="freeze: true, cache_ttl: 2s")
    r.end(signal.SIGKILL)
    gone(cluster)
    with Keeping(more="cache_ttl: 3s\n") as c:
        r = Running(c, "restarted")
        c.workers[0].kill()
        r.rest()
        assert c.files()
        time.sleep(3)
        c.restart(0)
        gone(c)


if __name__ == "__main__":
    with Keeping() as cluster:
        suite.main()
