#!/usr/bin/python3
"""The functions of the C API for pipelines and for runtimes over real daemons: two programs with
their modules at the master, on one worker, on two, direct and through the master, each with and
without a thread for the master's node. Then runtimes as such, a worker that is down, weights on a
worker's disk, a worker that dies, and the counters of a worker while a window limits
micro-batches."""
import hashlib, json, os, struct, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient, ways

PIPELINE, RUNTIME = ways.program("api_pipeline"), ways.program("api_runtime")
PLACEMENTS = {
    "at_home": ("", ["master", "master", "alone"]),
    "half_and_half": ("transfer: direct\n", ["master", "w1", "direct"]),
    "other_half": ("", ["w2", "master", "via_master"]),
    "two_workers": ("transfer: direct\n", ["w1", "w2", "direct"]),
    "via_master": ("transfer: via_master\n", ["w2", "w1", "via_master"]),
    "one_worker": ("", ["w1", "w1", "via_master"]),
}
# program: the (placement, threads) that `make test` runs.
SHORT = {PIPELINE: {("two_workers", "threads"), ("at_home", "single")},
         RUNTIME: {("via_master", "single"), ("at_home", "threads")}}
cluster, wanted, failed = None, sys.argv[1:], 0


def said(good, name, *more):
    global failed
    failed += not good
    print("ok" if good else "not ok", name, *more, flush=True)


def program(path, name, body, *where, driving="threads"):
    global failed
    done = run(path, cluster.session(name, body), *where[:3], driving, *where[3:])
    failed += done.returncode != 0
    return ways.told(name, done)


def placements():
    global failed
    for path in (PIPELINE, RUNTIME):
        digests = {}
        for name, (body, where) in PLACEMENTS.items():
            for driving in ("threads", "single"):
                if not LONG and (name, driving) not in SHORT[path]:
                    continue
                title = name if driving == "threads" else f"{name}_single"
                digests[title] = program(path, title, body, *where, driving=driving)
        failed += not ways.agree(digests, f"{os.path.basename(path)}:numbers_depend_neither_on_the_placement_nor_on_the_threads")


def options():
    ways_of = {"options_direct": "transfer: direct\n", "options_via": "transfer: via_master\n"}
    for name, body in chosen(ways_of, "options_direct").items():
        program(RUNTIME, name, body, "w2" if name.endswith("via") else "w1", "w2", name[8:], "options")


# ---- weights on a worker's disk ----------------------------------------------------------------

def write_safetensors(name, tensors):
    header, data = {}, b""
    for key, (shape, raw) in tensors.items():
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(cluster.dir, name)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def artifacts():
    tensors = {"0.weight": ([5, 3], struct.pack("<15f", *range(15))),
               "0.bias": ([5], struct.pack("<5f", *range(0, -5, -1)))}
    good = write_safetensors("numbers.safetensors", tensors)
    bad = write_safetensors("damaged.safetensors", dict(tensors, **{"0.bias": ([5], bytes(20))}))
    before = cluster.limits
    cluster.limits += ("artifacts:\n"
                       f"  numbers: {{file: numbers.safetensors, sha256: {good}}}\n"
                       f"  damaged: {{file: damaged.safetensors, sha256: {bad}}}\n")
    cluster.restart(0)
    with open(os.path.join(cluster.dir, "damaged.safetensors"), "r+b") as f:
        f.seek(-1, 2)
        f.write(b"\x77")
    program(RUNTIME, "artifact", "", "w1", "w2", "via_master", "artifact", good, bad)
    cluster.limits = before


# ---- the counters of a worker ------------------------------------------------------------------

class Watched:
    """The program, which pauses at named places, and the status of its module at w1 and w2 as an
    observer sees it."""

    def __init__(self, watch, name, width):
        self.watch = watch
        where = [cluster.session(name, "transfer: direct\n"), "w1", "w2", "direct", "threads"]
        self.p = subprocess.Popen([PIPELINE, *where, "window", str(width)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def until(self, word):
        line = self.p.stdout.readline()
        assert line == word + "\n", line

    def go_on(self):
        self.p.stdin.write("\n")
        self.p.stdin.flush()

    def sessions(self):
        return [w.stub.Status(pyclient.pb.StatusRequest(), timeout=20 * SLOW).sessions for w in self.watch]

    def settles(self, index, **want):
        """Waits until the counters of the only session at worker `index` have these values."""
        deadline = time.monotonic() + 10 * SLOW
        while True:
            s = self.sessions()[index][0]
            m = s.modules[0]
            seen = dict(forwards=m.forwards, backwards=m.backwards, steps=m.steps,
                        calls_waiting=s.calls_waiting, contexts=s.contexts, values=s.values)
            if all(seen[k] == v for k, v in want.items()):
                return
            assert time.monotonic() < deadline, (want, seen)
            time.sleep(0.01)

    def end(self):
        out, _ = self.p.communicate(timeout=30 * SLOW)
        assert self.p.returncode == 0 and "not ok" not in out, out


def counts_of_a_window(watch, width):
    """Six micro-batches: with a window, `width` of them run and the others wait until the
    backward."""
    ran = width or 6
    w = Watched(watch, f"window_{width}", width)
    for step in (0, 1):
        w.until("called")
        w.settles(0, forwards=6 * step + ran, backwards=6 * step, calls_waiting=6 - ran, steps=step,
                  contexts=1)
        w.settles(1, forwards=6 * step + ran, backwards=6 * step, calls_waiting=6 - ran)
        w.go_on()
        w.until("stepped")
        w.settles(0, forwards=6 * step + 6, backwards=6 * step + 6, calls_waiting=0, contexts=1,
                  steps=step)  # a final step goes with the end of its context
        w.go_on()
        w.until("ended")
        for index in (0, 1):  # the program has waited for nothing and closed nothing
            w.settles(index, contexts=0, values=0, calls_waiting=0, steps=step + 1)
        w.go_on()
    w.end()


def windows():
    if pyclient.MISSING:
        print("skip windows:", pyclient.MISSING)
        return
    watch = [pyclient.Caller(port, cluster.certs, name="watch") for port in cluster.ports]
    for w in watch:
        w.hello()
    for width in (0, 1, 2) if LONG else (1,):
        try:
            counts_of_a_window(watch, width)
            said(True, f"a_window_of_{width}_is_kept_at_the_worker")
        except AssertionError as e:
            said(False, f"a_window_of_{width}_is_kept_at_the_worker", e)
    for w in watch:
        w.close()


# ---- lost workers ------------------------------------------------------------------------------

def run_with_a_lost_worker():
    for where, driving in ((["w1", "w2"], "threads"), (["master", "w2"], "single")):
        program(RUNTIME, f"lost_{driving}", "", *where, "via_master", "lost",
                str(cluster.workers[1].process.pid), driving=driving)
        cluster.restart(1)


def run_with_one_worker_up():
    cluster.workers[1].stop()
    program(RUNTIME, "only", "limits: {connect_timeout: 2s}\n", "w1", "w2", "via_master", "only")
    cluster.workers[1] = Worker(cluster, "w2", cluster.worker_config(1))


with Cluster(2, limits="limits: {receive_window: 4MiB}\n",
             extra_allow="  - {identity: \"spiffe://test/watch\", role: observer}\n") as cluster:
    cluster.issue("watch", "spiffe://test/watch")
    for part in (placements, options, windows, run_with_a_lost_worker, run_with_one_worker_up, artifacts):
        if not wanted or part.__name__ in wanted:
            part()
sys.exit(1 if failed else 0)
