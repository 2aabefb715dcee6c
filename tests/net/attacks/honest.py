"""An honest training session beside an attack: its bits, its rate before, during and after, and
the memory and log that the worker uses meanwhile. For the scripts of `make attacks`."""
import os, re, signal, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
from pyclient import *

# least share of the rate during an attack, after it; seconds until it has recovered
INSIDE, OUTSIDE, RECOVERY = 0.25, 0.9, 5.0
# maximum growth of the worker's memory; maximum bytes of its log in an hour
MEMORY, LOG = 96 << 20, 1 << 20
BODY = (IMAGE_DATA + "stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 64}, {op: relu}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 64}, {op: relu}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\n"
        "train: {epochs: 1000000, batch: 16, seed: 5, optimizer: {kind: sgd, lr: 0.05}}\n")
ALLOW = ('  - {identity: "spiffe://test/other", role: master}\n'
         '  - {identity: "spiffe://test/eye", role: observer}\n')


class Honest:
    """A run that continues until it is stopped, and its number of steps."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.log = os.path.join(cluster.dir, "runs", name, "metrics.jsonl")
        self.process = subprocess.Popen([MASTER, "train", cluster.session(name, BODY)], cwd=cluster.dir,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until(lambda: self.steps() > 50)

    def steps(self):
        try:
            with open(self.log, "rb") as f:
                return f.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def rate(self, seconds):
        steps, at = self.steps(), time.monotonic()
        time.sleep(seconds)
        return (self.steps() - steps) / (time.monotonic() - at)

    def stop(self):
        """Ends the run after a checkpoint. Returns the step of the checkpoint."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=60 * SLOW)
        found = [int(m[1]) for n in os.listdir(os.path.dirname(self.log)) if (m := re.match(r"checkpoint-(\d+)$", n))]
        assert found, errors
        return max(found)

    def same_bits(self):
        """Whether the weights have the bits of an undisturbed run."""
        step = self.stop()
        weights, _, _ = self.alone(step)
        assert weights == checkpoint_tensors(os.path.dirname(self.log), step), f"other bits at step {step}"
        return step

    def alone(self, step):
        name = self.name + "-alone"
        body = BODY.replace("epochs: 1000000", f"epochs: 1000000, max_steps: {step}")
        return self.cluster.trained(name, body, step)


class Spent:
    """The growth of the worker's memory and log since the object was made."""

    def __init__(self, worker):
        self.worker, self.rss, self.log, self.at = worker, worker.rss(), len(worker.text()), time.monotonic()

    def check(self):
        rss = self.worker.rss() - self.rss
        assert SANITIZED or rss < MEMORY, f"{rss >> 20} MiB more memory"

    def log_an_hour(self):
        return (len(self.worker.text()) - self.log) * 3600 / (time.monotonic() - self.at)


def beside(honest, before, attack, seconds):
    """(rate during the attack, best rate within RECOVERY after it), as shares of `before`. attack:
    a command that runs until it is killed."""
    flood = subprocess.Popen(attack, stdin=subprocess.DEVNULL)
    try:
        time.sleep(1)
        inside = honest.rate(seconds) / before
        came = comes_in(honest.cluster)
    finally:
        flood.kill()
        flood.wait()
    end, after = time.monotonic() + RECOVERY * SLOW, 0.0
    while after < OUTSIDE and time.monotonic() < end:
        after = max(after, honest.rate(1) / before)
    if after < OUTSIDE:  # the machine may have slowed down for everybody
        after *= before / min(before, honest.rate(5))
    assert came, "another caller did not get in"
    assert inside >= INSIDE, f"{inside:.2f} of the rate inside"
    assert after >= OUTSIDE, f"{after:.2f} of the rate {RECOVERY} s after it"
    return inside, after


def comes_in(cluster, tries=5):
    for _ in range(tries):
        with Caller(cluster.ports[0], cluster.certs, name="eye") as c:
            try:
                return c.hello()
            except grpc.RpcError:
                pass
    return None


def start(limits=""):
    """A cluster of one worker with identities to attack as."""
    c = Cluster(1, limits=limits, extra_allow=ALLOW)
    os.mkdir(os.path.join(c.dir, "data"))
    synthetic_images(os.path.join(c.dir, "data"), n=512, n_test=16, side=8)
    for who in ("other", "eye", "stranger"):
        c.issue(who, f"spiffe://test/{who}")
    return c
