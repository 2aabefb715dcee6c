"""A stopped process: a pause changes no bit, even if it is longer than limits.peer_timeout. A pause
longer than limits.lease ends the run with the reason, and --resume reaches the same bits. The
message of a run that ends names damaged and closed connections."""
import functools, os, signal, socket, sys, threading, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

TIMEOUT = 4 * max(1, SLOW)
STEPS = 160
# Allows the op `wait`, which makes runs long by the clock without using a core.
os.environ["CLEAVE_TEST_OPS"] = "1"
BODY = (IMAGE_DATA + "stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 10}, {op: wait, forward_ms: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 10}\n"
        f"limits: {{peer_timeout: {TIMEOUT:g}s, step_timeout: {TIMEOUT / 2 - 0.4:g}s, lease: {4 * TIMEOUT:g}s}}\n"
        "recovery: off\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 16, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.01}}}}\n"
        "checkpoint: {every_steps: 20}\n")
suite = Suite()


class Run:
    def __init__(self, name, *args, session=None):
        self.dir = os.path.join(the.cluster.dir, "runs", name)
        session = session or the.cluster.session(name, BODY)
        self.process = subprocess.Popen([MASTER, "train", session, *args], cwd=the.cluster.dir, text=True,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def has_begun(self):
        kept = os.path.join(self.dir, "checkpoint-20", "MANIFEST.json")
        until(lambda: os.path.exists(kept) or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.process.stderr.read()
        return self

    def weights(self):
        errors = self.process.communicate(timeout=120 * SLOW)[1]
        assert self.process.returncode == 0, errors
        return checkpoint_tensors(self.dir, STEPS)

    def failed(self, *words):
        errors = self.process.communicate(timeout=60 * SLOW)[1]
        assert self.process.returncode == 6, (self.process.returncode, errors)
        assert all(w in errors for w in words), (errors, words)


class the:
    cluster = None


@functools.cache
def undisturbed():
    return Run("alone").weights()


def pause(process, seconds):
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


@suite.test
def a_short_pause_changes_no_bit():
    run = Run("paused").has_begun()
    # longer than step_timeout, but the master reads its links before it checks the time
    pause(run.process, TIMEOUT / 2)
    pause(the.cluster.workers[0].process, TIMEOUT / 6)
    assert run.weights() == undisturbed()


@suite.test
def pause_over_the_peer_timeout_changes_no_bit():
    session = the.cluster.session("long", BODY.replace("step_timeout: ", "step_timeout: 6"))
    run = Run("long", session=session).has_begun()
    pause(the.cluster.workers[0].process, 2 * TIMEOUT)
    assert run.weights() == undisturbed()


@suite.test
def pause_over_the_lease_ends_the_run():
    session = the.cluster.session("silent", BODY.replace("step_timeout: ", "step_timeout: 6").replace(
        f"lease: {4 * TIMEOUT:g}s", "lease: 2s"))
    run, worker = Run("silent", session=session).has_begun(), the.cluster.workers[0].process
    worker.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    try:
        until(lambda: run.process.poll() is not None, 60)
    finally:
        worker.send_signal(signal.SIGCONT)
    assert time.monotonic() - begin > 2, "a run waits for the lease"
    run.failed(f"the peer was silent for {min(TIMEOUT, 3):g} s",
               "not connected again within 2 s (limits.lease)")
    assert Run("silent", "--resume", session=session).weights() == undisturbed()


class Proxy:
    """A proxy to the worker that damages answers once `damage` is set."""

    def __init__(self, port):
        self.port, self.to, self.damage = free_port(), port, False
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, far = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.to))
            for s in (near, far):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for a, b, back in ((near, far, False), (far, near, True)):
                threading.Thread(target=self.carry, args=(a, b, back), daemon=True).start()

    def carry(self, a, b, back):
        try:
            while data := bytearray(a.recv(65536)):
                if back and self.damage:
                    data[-1] ^= 1
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@suite.test
def damaged_bytes_are_reported_as_damage():
    proxy = Proxy(the.cluster.ports[0])
    session = the.cluster.session("damaged", BODY)
    with open(session) as f:
        text = f.read().replace(f":{the.cluster.ports[0]}\"", f":{proxy.port}\"")
    with open(session, "w") as f:
        f.write(text)
    run = Run("damaged", session=session).has_begun()
    proxy.damage = True
    run.failed("damaged in transit")


@suite.test
def killed_worker_ends_the_run_at_once():
    run = Run("killed").has_begun()
    the.cluster.workers[0].kill()
    begin = time.monotonic()
    run.failed("ended")
    assert time.monotonic() - begin < TIMEOUT or SLOW > 1


with Cluster(1, limits=f"limits: {{peer_timeout: {TIMEOUT:g}s, lease: {5 * TIMEOUT:g}s}}\n") as the.cluster:
    os.mkdir(os.path.join(the.cluster.dir, "data"))
    synthetic_images(os.path.join(the.cluster.dir, "data"), n=512, n_test=16, side=8)
    suite.main()
