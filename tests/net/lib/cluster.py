"""Real daemons with real certificates for the process-level tests. Standard library only."""
import atexit, fcntl, functools, json, os, random, re, shutil, signal, socket, struct, subprocess, sys, tempfile, time

BIN = os.environ.get("CLEAVE_TEST_BIN", os.path.join(os.path.dirname(__file__), "../../../build/release"))
MASTER, WORKER = os.path.join(BIN, "cleave-master"), os.path.join(BIN, "cleave-worker")
# their memory and pace differ from the program's
BUILD = os.path.basename(os.path.normpath(BIN))
SANITIZED = BUILD in ("asan", "tsan")
SLOW = float(os.environ.get("CLV_TEST_SLOW", "1"))
# what run-tests loads into Python under a sanitizer; programs have it from their linker
SANITIZER = os.environ.pop("LD_PRELOAD", "")


def preloaded(library):
    """The variables with which a program loads this library first. ASan would rather be first, and
    would see what the library stores as lost. TSan would make the folder of its log by a function
    of the library, before it is ready for one."""
    options = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"} if BUILD == "asan" else {}
    if "tsan" in BIN:
        options = {"TSAN_OPTIONS": re.sub(r":?log_path=[^:]*", "", os.environ.get("TSAN_OPTIONS", ""))}
    return {"LD_PRELOAD": library, **options}


# Tests use no ledger of keys of the user; each cluster begins with a ledger of its own.
os.environ.pop("STATE_DIRECTORY", None)
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="cleave-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], True)


def below_ephemeral():
    """The ports that the kernel does not use for port 0 or for outgoing connections."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        lowest = int(f.read().split()[0])
    return range(max(1024, lowest - 16384), lowest) or range(20000, 32768)


def claimed(port):
    """Whether this process could claim the port. The claim is an abstract socket, which ends with
    the process. It keeps other tests away even while no server listens, because servers of gRPC
    would share a port silently."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0cleave-test-port-{port}")
        with socket.socket() as s:
            s.bind(("0.0.0.0", port))
    except OSError:
        claim.close()
        return False
    CLAIMS.append(claim)
    return True


CLAIMS = []


def free_port():
    """A port that no other test uses while this process lives."""
    ports = below_ephemeral()
    begin = random.SystemRandom().randrange(len(ports))
    return next(p for p in (*ports[begin:], *ports[:begin]) if claimed(p))


def run(*args, timeout=120, env=None, cwd=None):
    e = {k: v for k, v in os.environ.items() if not k.startswith("CLEAVE_")}
    e.update(env or {})
    return subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=timeout * SLOW, env=e, cwd=cwd, stdin=subprocess.DEVNULL)


def master(*args, **kw):
    return run(MASTER, *args, **kw)


# fixed, so that runs have equal bits; 128 bits, like a secret seed
SEED = "5eed5eed5eed5eed5eed5eed5eed5eed"


class Worker:
    def __init__(self, cluster, name, config, env=None):
        self.name, self.config, self.log_path = name, config, os.path.join(cluster.dir, name + ".log")
        self.log = open(self.log_path, "ab")
        # a restarted worker appends to its log; its own lines begin here
        self.begin = self.log.tell()
        e = dict(os.environ)
        e.update(env or {})
        self.process = subprocess.Popen([*cluster.far, WORKER, "serve", "--config", config], stdout=self.log,
                                        stderr=self.log, env=e, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20 * SLOW
        while " ready " not in self.text()[self.begin:]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start{self.doing()}:\n{self.text()}")
            time.sleep(0.02)

    def doing(self):
        """The state of a process that takes too long, for the error message."""
        if self.process.poll() is not None:
            return f" (it ended with {self.process.returncode})"
        with open(f"/proc/{self.process.pid}/stat") as f:
            of = f.read().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return (f" (state {of[0]}, {int(of[11]) / ticks:.1f} + {int(of[12]) / ticks:.1f} s of a core, {of[9]} pages read, "
                f"{len(os.listdir(f'/proc/{self.process.pid}/task'))} threads; loads {' '.join(map(str, os.getloadavg()))})")

    def text(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def rss(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * 4096

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20 * SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode


# The folder of certificates and images that are made once for a whole test run: tests/run-tests
# sets CLV_TEST_ONCE.
CERTS = os.environ.get("CLV_TEST_ONCE") or tempfile.mkdtemp(prefix="cleave-certs-")
if "CLV_TEST_ONCE" not in os.environ:
    atexit.register(shutil.rmtree, CERTS, True)


def take_certs(folder, name):
    """Copies a certificate and its key: `ca`, or NAME for spiffe://test/NAME. Each is made once, by
    the first test that needs it, because a process for each certificate would take longer than many
    tests."""
    with open(os.path.join(CERTS, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(CERTS, "ca.pem")):
            assert master("certs", "init", "--dir", CERTS).returncode == 0
        if not os.path.exists(os.path.join(CERTS, name + ".pem")):
            done = master("certs", "issue", name, "--dir", CERTS, "--uri", f"spiffe://test/{name}", "--ip", "127.0.0.1")
            assert done.returncode == 0, done.stderr
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for ending in (".pem", ".key"):
        assert not os.path.exists(to := os.path.join(folder, name + ending)), to
        shutil.copy2(os.path.join(CERTS, name + ending), to)


READABLE = "labels_readable: true, front_known: true, tokens_readable: true"


def with_keys(body, keys):
    if "stages:" not in body:
        return body
    if "privacy: {" in body:
        return body.replace("privacy: {", f"privacy: {{{keys}, " if keys else "privacy: {", 1)
    return body + ("" if body.endswith("\n") else "\n") + (f"privacy: {{{keys}}}\n" if keys else "")


class Cluster:
    """A CA, a master identity and n workers, in a temporary folder. near, far: words before the
    commands of the master and of workers (links.Namespaces). host: the address at which workers
    listen. env: further environment of the workers. own_ca: whether the cluster has a CA of its
    own; others share one."""

    def __init__(self, n=2, limits="", extra_allow="", near=(), far=(), host="127.0.0.1", env=None, own_ca=False):
        self.own_ca = own_ca
        self.near, self.far, self.host, self.env = near, far, host, env
        self.dir = tempfile.mkdtemp(prefix="cleave-test-")
        self.certs = os.path.join(self.dir, "certs")
        os.environ["XDG_STATE_HOME"] = os.path.join(self.dir, "state")
        if own_ca:
            assert master("certs", "init", "--dir", self.certs).returncode == 0
        else:
            take_certs(self.certs, "ca")
        self.issue("master", "spiffe://test/master")
        self.ports = [free_port() for _ in range(n)]
        self.workers, self.limits, self.extra_allow = [], limits, extra_allow
        for i in range(n):
            self.issue(f"w{i + 1}", f"spiffe://test/w{i + 1}")
        for i in range(n):
            self.workers.append(Worker(self, f"w{i + 1}", self.worker_config(i), env))

    def issue(self, name, uri, *args):
        if uri == f"spiffe://test/{name}" and not args and not self.own_ca:
            return take_certs(self.certs, name)
        done = master("certs", "issue", name, "--dir", self.certs, "--uri", uri, "--ip", "127.0.0.1", *args)
        assert done.returncode == 0, done.stderr

    def address(self, i):
        """The address of worker i for the master."""
        return f"{self.host}:{self.ports[i]}"

    def peer_address(self, i):
        """The address of worker i for other workers."""
        return self.address(i)

    def worker_config(self, i, extra=""):
        path = os.path.join(self.dir, f"w{i + 1}.yaml")
        others = [k for k in range(len(self.ports)) if k != i]
        with open(path, "w") as f:
            f.write(f"name: w{i + 1}\nlisten: {self.host}:{self.ports[i]}\n"
                    f"tls: {{ca: certs/ca.pem, cert: certs/w{i + 1}.pem, key: certs/w{i + 1}.key}}\n"
                    "allow:\n  - {identity: \"spiffe://test/master\", role: master}\n" + self.extra_allow)
            for k in others:
                f.write(f"  - {{identity: \"spiffe://test/w{k + 1}\", role: peer}}\n")
            if others:
                f.write("peers:\n")
            for k in others:
                f.write(f"  - {{name: w{k + 1}, address: \"{self.peer_address(k)}\", "
                        f"identity: \"spiffe://test/w{k + 1}\"}}\n")
            f.write(self.limits + extra)
        return path

    def restart(self, i):
        self.workers[i].stop()
        self.workers[i] = Worker(self, f"w{i + 1}", self.worker_config(i), self.env)

    def session(self, name, body, keys=READABLE):
        """Writes a session file. keys: keys of `privacy`, besides the body's. By default everything
        may be readable, because most tests have short seeds or the last stage at a worker.
        Programs, whose body has no `train`, get equal bits in every run. A lost worker ends the
        run, unless the body has `recovery`."""
        path = os.path.join(self.dir, name + ".yaml")
        body += "" if "recovery:" in body else ("" if body.endswith("\n") else "\n") + "recovery: off\n"
        body += "" if "train:" in body else f"train: {{seed: {SEED}}}\n"
        workers = "".join(f"  w{i + 1}: {{address: \"{self.address(i)}\", identity: \"spiffe://test/w{i + 1}\"}}\n"
                          for i in range(len(self.ports)))
        with open(path, "w") as f:
            f.write(f"version: 1\nname: {name}\n"
                    "tls: {ca: certs/ca.pem, cert: certs/master.pem, key: certs/master.key}\n"
                    + (f"workers:\n{workers}" if workers else "") + with_keys(body, keys))
        return path

    def train(self, session, *args, timeout=120, env=None):
        return run(*self.near, MASTER, "train", session, *args, timeout=timeout, env=env, cwd=self.dir)

    def trained(self, name, body, steps, **options):
        """Trains a run, which must succeed. Returns its weights, metrics.jsonl and output."""
        done = self.train(self.session(name, body), **{"timeout": 240, **options})
        assert done.returncode == 0, done.stdout + done.stderr
        run_dir = os.path.join(self.dir, "runs", name)
        with open(os.path.join(run_dir, "metrics.jsonl")) as f:
            return checkpoint_tensors(run_dir, steps), f.read(), done.stdout

    def close(self):
        codes = [w.stop() for w in self.workers]
        shutil.rmtree(self.dir, ignore_errors=True)
        return codes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def open_files(pid):
    """The number of open files of a process; 0 if only root may see them."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return 0


def egress_rows(run_dir, attempt=None):
    """The egress record of a run, all of it settled: a row for each kind of tensor, of all attempts
    or of one."""
    rows, allowed = {}, {}
    with open(os.path.join(run_dir, "egress.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    for line in lines:
        if line["event"] == "allow":
            allowed[line["attempt"], line["id"]] = line
        elif line["event"] == "settle" and attempt in (None, line["attempt"]):
            of = allowed.pop((line["attempt"], line["id"]))
            key = tuple(of[k] for k in ("from", "to", "kind", "stage", "name"))
            row = rows.setdefault(key, dict({k: of[k] for k in ("from", "to", "kind", "stage", "name")},
                                            tensors=0, bytes=0))
            row["tensors"] += line["tensors"]
            row["bytes"] += line["bytes"]
    assert lines[-1]["event"] == "end", lines[-1]
    return list(rows.values())


# ---- files ---------------------------------------------------------------------------------------

# The `data` section for the files that synthetic_images writes to the folder `data` of a cluster.
IMAGE_DATA = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], "
              "test: [test-x.npy, test-y.npy]}\n")


def measured(test):
    """Decorates a test of times. It passes if one of three tries does, because the machine may be
    busy. Under a sanitizer it also runs at the end, alone."""
    @functools.wraps(test)
    def tries():
        for left in (2, 1, 0):
            try:
                return test()
            except AssertionError as e:
                if not left:
                    raise
                print(f"  once more: {str(e)[:200]}", flush=True)
    tries.alone = SANITIZED
    return tries


def alone(reason):
    """Decorates a test that other work on the machine would disturb: it runs at the end, alone."""
    assert reason

    def mark(test):
        test.alone = True
        return test
    return mark


# Programs of tests/seeds, which need three workers.
SEED_PROGRAMS = ("seed001_two_part_cnn", "seed001_three_part_lstm", "seed001_cpu_gpu_hybrid",
                 "seed002_single", "seed002_data_parallel", "seed002_tensor_parallel",
                 "seed002_pipeline", "seed003_rpc_pipeline", "seed004_spanning_backward")


def until(what, seconds=20):
    """Waits until what() is true. Returns its value."""
    end = time.monotonic() + seconds * SLOW * (5 if SANITIZED else 1)
    while not (found := what()):
        assert time.monotonic() < end, f"not within {seconds} s: {found}"
        time.sleep(0.02)
    return found


def trains(process):
    """Reads the output of `train` up to its first step. Returns whether that came."""
    return any(line.startswith(b"step " if isinstance(line, bytes) else "step ") for line in process.stdout)


class Running:
    """A program beside the cluster that is ended with the block, by a signal on which it closes its
    session, so that workers do not keep the session until the lease ends."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.stdin and self.process.stdin.closed:
            self.process.stdin = None  # otherwise communicate() would flush it
        self.process.terminate()
        try:
            self.process.communicate(timeout=5 * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def write_npy(path, shape, dtype, raw):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({','.join(map(str, shape))},), }}"
    header += " " * ((64 - (10 + len(header) + 1) % 64) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + raw)


def synthetic_images(folder, n=512, n_test=128, side=12, classes=10, channels=1, seed=1):
    """Writes a small learnable set of images, which the first test that needs it draws."""
    drawn = os.path.join(CERTS, f"images-{n}-{n_test}-{side}-{classes}-{channels}-{seed}")
    if not os.path.exists(drawn):
        made = tempfile.mkdtemp(dir=CERTS)
        draw_images(made, n, n_test, side, classes, channels, seed)
        try:
            os.rename(made, drawn)
        except OSError:  # another test was faster
            shutil.rmtree(made)
    for name in os.listdir(drawn):
        shutil.copyfile(os.path.join(drawn, name), os.path.join(folder, name))


def draw_images(folder, n, n_test, side, classes, channels, seed):
    """Each class is a fixed pattern plus noise."""
    r = random.Random(seed)
    size = channels * side * side
    patterns = [[r.random() for _ in range(size)] for _ in range(classes)]
    for name, count in (("train", n), ("test", n_test)):
        xs, ys = bytearray(), []
        for _ in range(count):
            y = r.randrange(classes)
            ys.append(y)
            xs += bytes(min(255, int(255 * (0.7 * p + 0.3 * r.random()))) for p in patterns[y])
        write_npy(os.path.join(folder, f"{name}-x.npy"), (count, channels, side, side), "|u1", bytes(xs))
        write_npy(os.path.join(folder, f"{name}-y.npy"), (count,), "<i8", struct.pack(f"<{count}q", *ys))


def safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], tuple(v["shape"]), data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in header.items()}


def checkpoint_tensors(run_dir, step, prefix="model-"):
    folder = os.path.join(run_dir, f"checkpoint-{step}")
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.startswith(prefix) and name.endswith(".safetensors"):
            for k, v in safetensors(os.path.join(folder, name)).items():
                found[(name, k) if prefix != "model-" else k] = v
    return found


# ---- reporting -----------------------------------------------------------------------------------

def core_seconds():
    """Seconds of processor time of this process and of children it has waited for."""
    of = os.times()
    return of.user + of.system + of.children_user + of.children_system


# set by `make long`, which also runs what `make test` omits
LONG = os.environ.get("CLV_TEST_LONG") == "1"


def chosen(everything, *keys):
    """In `make long` the whole table, in `make test` the rows with these keys."""
    return everything if LONG else {k: everything[k] for k in keys}


class Suite:
    """Runs named test functions; prints `ok`, `not ok` or `skip` lines for the runner."""

    def __init__(self):
        self.tests, self.failed = [], 0

    def test(self, f):
        self.tests.append(f)
        return f

    def long(self, f):
        """A test that runs in `make long`, or if it is named on the command line."""
        return self.test(f) if LONG or f.__name__ in sys.argv[1:] else f

    def main(self):
        wanted, part = [a for a in sys.argv[1:] if a != "--golden"], os.environ.get("CLV_TEST_PART")
        for f in self.tests:
            if wanted and f.__name__ not in wanted:
                continue
            if part and (part == "alone") != getattr(f, "alone", False):
                continue
            begin, busy = time.monotonic(), core_seconds()
            try:
                reason = f()
            except Exception as e:  # a failing test must not hide the others
                import traceback
                traceback.print_exc()
                print(f"not ok {f.__name__} ({type(e).__name__}: {e})", flush=True)
                self.failed += 1
                continue
            if isinstance(reason, str):
                print(f"skip {f.__name__}: {reason}", flush=True)
            else:
                print(f"ok {f.__name__} ({time.monotonic() - begin:.1f}s, {core_seconds() - busy:.1f}s of a core)", flush=True)
        sys.exit(1 if self.failed else 0)
