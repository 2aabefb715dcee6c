"""Runs a master against a worker whose answers are wrong, missing or endless, for
test_hostile_worker.py, test_hostile_answers.py and test_hostile_state.py."""
import functools, itertools, os, re, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
from fake_worker import *

cluster = None  # set while main runs
CREDIT = 4 * MIB
PACE = SLOW * (2 if SANITIZED else 1)
TIMEOUT = round(2000 * PACE)  # ms
# Full stack traces of allocations, which only leak reports need, would cost a sanitized master
# seconds.
QUICK = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") +
         ":fast_unwind_on_malloc=1:detect_leaks=0"}
ROWS, CLASSES, WIDE, STEPS = 16, 10, 24, 3

DATA = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy],"
        " test: [test-x.npy, test-y.npy]}\n")
SESSION = (f"{DATA}stages:\n"
           f"  - {{name: a, at: master,"
           f" layers: [{{op: flatten}}, {{op: linear, out: {WIDE}}}, {{op: relu}}]}}\n"
           f"  - {{name: b, at: w1, layers: [{{op: linear, out: {CLASSES}}}],"
           " weights: {file: b.safetensors}}\n"
           "loss: {kind: cross_entropy}\n"
           f"limits: {{connect_timeout: {TIMEOUT}ms, step_timeout: {TIMEOUT}ms,"
           f" receive_window: {CREDIT}}}\n"
           f"train: {{epochs: 100, max_steps: {STEPS}, batch: {ROWS}, seed: 5eed5eed5eed5eed5eed5eed5eed5eed,"
           " optimizer: {kind: sgd, lr: 0.05}}\n")


def write_weights(path):
    """Writes initial weights of stage b, so that a real and a fake worker begin with the same."""
    draw, header, raw = numpy.random.default_rng(3), {}, b""
    for name, dims in (("3.weight", [CLASSES, WIDE]), ("3.bias", [CLASSES])):
        part = draw.uniform(-0.2, 0.2, dims).astype(numpy.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": dims,
                        "data_offsets": [len(raw), len(raw) + len(part)]}
        raw += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + raw)


# ---- a master and its worker -------------------------------------------------------------------

def fake(credit=CREDIT, **twisted):
    return FakeWorker(cluster.certs, credit, **twisted)


def weights(name):
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", name), STEPS)


def trained(name):
    """(weights, loss of each step) of a finished run."""
    with open(os.path.join(cluster.dir, "runs", name, "metrics.jsonl")) as f:
        return weights(name), [json.loads(line)["loss"] for line in f]


NOTICE = re.compile("worker w1 computes with x, ")  # a notice with the fake's own description


class Met:
    """A run of a master with the fake worker: exit code, output, largest resident size."""
    number = itertools.count()

    def __init__(self, worker, args=(), seconds=15):
        self.name, self.peak = f"meets{next(self.number)}", 0
        self.process = subprocess.Popen(
            [MASTER, "train", cluster.session(self.name, SESSION), "--fresh",
             "--set", f"workers.w1.address=127.0.0.1:{worker.port}", *args],
            cwd=cluster.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, env={**os.environ, **QUICK})
        watchdog = threading.Timer(seconds * PACE, self.process.kill)
        watcher = threading.Thread(target=self.watch, daemon=True)
        watchdog.start()
        watcher.start()
        _, errors = self.process.communicate()
        watchdog.cancel()
        watcher.join()
        self.code = self.process.returncode
        lines = errors.splitlines(True)
        self.said = "".join(line for line in lines if not NOTICE.search(line))
        self.notices = [line for line in lines if NOTICE.search(line)]

    def watch(self):
        """Records the master's largest resident size while it runs."""
        while self.process.poll() is None:
            try:
                with open(f"/proc/{self.process.pid}/status") as f:
                    found = re.search(r"VmHWM:\s+(\d+) kB", f.read())
                self.peak = int(found.group(1)) * 1024 if found else self.peak
            except OSError:
                pass
            time.sleep(0.01)


@functools.cache
def honest():
    """A run with the unchanged fake, and the frames that it got, to compare others with."""
    with fake() as worker:
        met = Met(worker)
    assert met.code == 0, met.said
    return met, worker.log


def is_small(met, room):
    peak = honest()[0].peak
    assert SANITIZED or met.peak <= peak + room, (met.peak, peak)


def meets(codes, *words, args=(), room=CREDIT + 24 * MIB, **twisted):
    """Checks that the master exits with one of `codes` and names the reason and the worker; with
    code 0 it must have trained to the honest run's bits. It takes at most `room` bytes of memory
    more than that."""
    with fake(**twisted) as worker:
        met = Met(worker, args)
    assert met.code in codes, (met.code, met.said)  # a crash or the watchdog's kill is negative
    is_small(met, room)
    if met.code == 0:
        assert trained(met.name) == trained(honest()[0].name)
        return
    for word in ("w1", *words):
        assert re.search(word, met.said), (word, met.said)
    assert len(met.said) < 1000, met.said


def all_hold(checks):
    """Runs checks, {name: function}. Most wait for a deadline, so a few run at a time."""
    honest()
    with concurrent.futures.ThreadPoolExecutor(2 if SANITIZED else 3) as pool:
        running = {name: pool.submit(check) for name, check in checks.items()}
    problems = [f"{name}: {f.exception()}" for name, f in running.items() if f.exception()]
    assert not problems, "\n".join(problems)


def some(cases):
    """Every twelfth case in `make test`, all of them in `make long`."""
    return dict(list(cases.items())[::1 if LONG else 12])


# With such large batches some tensors may need chunks, so the master opens bulk lanes.
WITH_BULK_LANES = ("--set", "train.eval_batch=1024")


def meet_all(codes, *words, cases, args=()):
    """Calls meets() for each case. cases: {name: twist}."""
    all_hold({name: lambda t=twist: meets(codes, *words, args=args, twist=t) for name, twist in some(cases).items()})


def ignore_all(cases):
    """The master must train to the end, with the same bits, in each case."""
    meet_all([0], cases=cases)


def error_for(f, code=9, hop=""):
    return failing(V, code, "my head hurts", hop, context=f.context, message=f.message)


def main(suite):
    global cluster
    if pyclient.MISSING:
        print("skip hostile worker:", pyclient.MISSING)
        return
    with Cluster(1, limits="limits: {receive_window: 1MiB}\nstate_dir: .\n") as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=1024, n_test=ROWS, side=8)
        write_weights(os.path.join(cluster.dir, "b.safetensors"))
        suite.main()
