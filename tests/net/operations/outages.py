"""Outages of a real network: a master and two workers in network namespaces, whose switch drops all
packets for a while, and whose workers get another address behind their name; then resets of single
connections. Each run ends with the bits of an undisturbed one, in one attempt. Needs root.

usage: outages.py [RESETS [SECONDS...]]      1000 resets; packets dropped for 1, 10 and 60 s
"""
import os, random, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from links import Namespaces, namespaces_missing
from relays import RelayedCluster

RATE = 1000  # Mbit/s
NAME, OTHER_ADDRESS = "worker.test", "10.91.0.3"
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 512}, {op: relu}, {op: dropout, p: 0.3}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 512}, {op: relu}]}\n"
        "  - {name: c, at: w2, layers: [{op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 1}\ntransfer: direct\nlimits: {step_timeout: 20s}\n"
        "checkpoint: {every_steps: 100}\n")
TRAIN = "train: {{epochs: 100000, max_steps: {steps}, batch: 64, seed: %s, optimizer: {{kind: adam, lr: 0.003}}}}\n" % SEED


class Named(Cluster):
    """Workers are dialled by name."""

    def address(self, i):
        return f"{NAME}:{self.ports[i]}"


class Hosts:
    """/etc/hosts of some namespaces."""

    def __init__(self, names, address):
        self.files = [f"/etc/netns/{n}/hosts" for n in names]
        for path in self.files:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self.set(address)

    def set(self, address):
        for path in self.files:
            with open(path, "w") as f:  # in place: it is mounted
                f.write(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for path in self.files:
            shutil.rmtree(os.path.dirname(path), True)


class Run:
    def __init__(self, cluster, name, steps):
        self.cluster, self.steps, self.dir = cluster, steps, os.path.join(cluster.dir, "runs", name)
        session = cluster.session(name, BODY + TRAIN.format(steps=steps))
        self.process = subprocess.Popen([*cluster.near, MASTER, "train", session], cwd=cluster.dir, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def step(self):
        try:
            with open(os.path.join(self.dir, "metrics.jsonl")) as f:
                return f.read().count("\n")
        except FileNotFoundError:
            return 0

    def is_over(self):
        return self.process.poll() is not None

    def past(self, step, seconds=60):
        until(lambda: self.step() > step or self.is_over(), seconds)
        return self

    def back(self):
        """Seconds until steps are taken again."""
        before, began = self.step(), time.monotonic()
        self.past(before + 1)
        return time.monotonic() - began

    def result(self):
        out, err = self.process.communicate(timeout=600 * SLOW)
        assert self.process.returncode == 0, (self.process.returncode, out, err)
        with open(os.path.join(self.dir, "run.json")) as f:
            assert len(json.load(f)["attempts"]) == 1
        with open(os.path.join(self.dir, "metrics.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        kept = [checkpoint_tensors(self.dir, self.steps, prefix) for prefix in ("model-", "optimizer-")]
        return kept, [(m["step"], m["loss"]) for m in lines]


def data_of(cluster):
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=16, side=8)


def drop(net, seconds):
    """The switch forgets the master's port: cables stay up, and nothing answers."""
    switch = net.names["switch"]
    net._do("ip", "-n", switch, "link", "set", "near", "nomaster")
    time.sleep(seconds)
    net._do("ip", "-n", switch, "link", "set", "near", "master", "switch")


def change_address(net, hosts):
    far = net.names["far"]
    net._do("ip", "-n", far, "addr", "del", f"{net.host}/24", "dev", "lan0")
    net._do("ip", "-n", far, "addr", "add", f"{OTHER_ADDRESS}/24", "dev", "lan0")
    hosts.set(OTHER_ADDRESS)


def namespaces(seconds):
    steps = 3000
    with Namespaces(RATE) as net, Hosts([net.names["near"], net.names["far"]], net.host) as hosts, \
            Named(2, near=net.near, far=net.far, host="0.0.0.0") as cluster:
        data_of(cluster)
        bits = Run(cluster, "alone", steps).result()
        run = Run(cluster, "dropped", steps).past(5)
        for s in seconds:
            drop(net, s)
            print(f"packets dropped for {s:g} s: steps go on after {run.back():.1f} s", flush=True)
        change_address(net, hosts)
        print(f"another address: steps go on after {run.back():.1f} s", flush=True)
        assert run.result() == bits
        print("ok the same bits, one attempt", flush=True)


def resets(most):
    with RelayedCluster(2) as cluster:
        data_of(cluster)
        steps = max(400, most * 4)
        bits = Run(cluster, "alone", steps).result()
        run, draw, n = Run(cluster, "reset", steps).past(5), random.Random(7), 0
        while n < most and not run.is_over():
            n += cluster.relays[draw.randrange(2)].reset(draw.choice([1, 1, None]))
            time.sleep(draw.random() / 5)
        assert run.result() == bits
        print(f"ok {n} resets: the same bits, one attempt", flush=True)


missing = namespaces_missing()
if missing:
    print(f"skip namespaces: {missing}")
else:
    namespaces([float(s) for s in sys.argv[2:]] or [1, 10, 60])
resets(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
