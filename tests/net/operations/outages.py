"""Outages of a real network: a master and two workers in network namespaces. Packets are dropped
for a while, a NAT between them forgets its connections, the name of the workers gets another
address, or a relay resets single connections. None of these runs repeats a step or needs a
recovery; each ends with the bits of an undisturbed one, and steps continue within 5 s. An outage
longer than limits.lease needs one recovery. Namespaces need root.

usage: outages.py [--resets N] [--seconds S,S...] [--long S] [CASE...]

Cases: dropped (packets, for 1, 10 and 60 s), nat, address, long (packets dropped for 300 s), resets
(1000).
"""
import argparse, datetime, os, random, subprocess, sys, time, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from links import Namespaces, namespaces_missing
from relays import RelayedCluster

RATE, WITHIN_S = 1000, 5  # rate of the network, Mbit/s; maximum pause after the end of an outage
NAME, OTHER_ADDRESS = "worker.test", "10.91.0.3"
os.environ["CLEAVE_TEST_OPS"] = "1"  # `wait` makes a run long by the clock alone
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 512}, {op: relu}, {op: dropout, p: 0.3}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 512}, {op: relu}, {op: wait, forward_ms: %d}]}\n"
        "  - {name: c, at: w2, layers: [{op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 1}\ntransfer: direct\nrecovery: {wait: 5s}\n"
        "checkpoint: {every_steps: 100}\n")
TRAIN = "train: {epochs: 100000, max_steps: %d, batch: 64, seed: %s, optimizer: {kind: adam, lr: 0.003}}\n"
ALONE_MS, PACED_MS = 1, 20  # minimum time of a step, by the clock: undisturbed, disturbed
failed = []


def say(good, text):
    print("ok" if good else "not ok", text, flush=True)
    failed.extend([] if good else [text])


class Hosts:
    """The file /etc/hosts of some namespaces."""

    def __init__(self, names, address):
        self.files = [f"/etc/netns/{n}/hosts" for n in names]
        for path in self.files:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self.set(address)

    def set(self, address):
        for path in self.files:
            with open(path, "w") as f:  # overwrites it in place, because it is mounted
                f.write(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def close(self):
        for path in self.files:
            shutil.rmtree(os.path.dirname(path), True)


class Nat(Namespaces):
    """Two networks with a router between them that translates the master's address. unknown: its
    treatment of packets of an unknown connection: `adopts` (Linux's default), `resets` or
    `drops`."""

    def __init__(self, rate_mbit, unknown):
        super().__init__(rate_mbit)
        self.router, self.unknown = self.names["switch"], unknown

    def _join(self, end, address, gateway):
        name = self.names[end]
        self._do("ip", "link", "add", "lan0", "netns", name, "type", "veth", "peer", "name", end, "netns", self.router)
        self._do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "lan0")
        self._do("ip", "-n", self.router, "addr", "add", f"{gateway}/24", "dev", end)
        for at, link in ((name, "lo"), (name, "lan0"), (self.router, end)):
            self._do("ip", "-n", at, "link", "set", link, "up")

    def _at_router(self, *command):
        self._do("ip", "netns", "exec", self.router, *command)

    def __enter__(self):
        rules = "table ip t { chain post { type nat hook postrouting priority 100; oifname far masquerade; }; "
        if self.unknown != "adopts":
            rules += ("chain forward { type filter hook forward priority 0; ct state invalid "
                      f"{'reject with tcp reset' if self.unknown == 'resets' else 'drop'}; }}; ")
        if self.unknown == "drops":
            rules += "chain input { type filter hook input priority 0; drop; }; "
        try:
            for name in self.names.values():
                self._do("ip", "netns", "add", name)
            self._join("near", "10.92.0.1", "10.92.0.254")
            self._join("far", self.host, "10.91.0.254")
            self._do("ip", "-n", self.names["near"], "route", "add", "10.91.0.0/24", "via", "10.92.0.254")
            self._at_router("sysctl", "-w", "net.ipv4.ip_forward=1", f"net.netfilter.nf_conntrack_tcp_loose={int(self.unknown == 'adopts')}")
            self._at_router("nft", rules + "}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def forget(self):
        """Lets the router forget its connections. Returns their number."""
        known = subprocess.run(["ip", "netns", "exec", self.router, "conntrack", "-L", "-p", "tcp", "--state", "ESTABLISHED"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.count("\n")
        self._at_router("conntrack", "-F")
        return known


class Run:
    def __init__(self, cluster, name, steps, ms=PACED_MS, more=""):
        self.cluster, self.steps, self.dir = cluster, steps, os.path.join(cluster.dir, "runs", name)
        session = cluster.session(name, BODY % ms + TRAIN % (steps, SEED) + more)
        self.process = subprocess.Popen([*cluster.near, MASTER, "train", session], cwd=cluster.dir, text=True, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def lines(self, name):
        with open(os.path.join(self.dir, name)) as f:
            return [json.loads(line) for line in f]

    def step(self):
        try:
            with open(os.path.join(self.dir, "metrics.jsonl"), "rb") as f:
                return f.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def is_over(self):
        return self.process.poll() is not None

    def past(self, step, seconds=60):
        until(lambda: self.step() > step or self.is_over(), seconds)
        assert not self.is_over(), self.process.communicate()
        return self

    def back(self, what, within=WITHIN_S):
        """Prints the seconds until the next step, which must be at most `within`."""
        before, began = self.step(), time.monotonic()
        self.past(before + 1)
        took = time.monotonic() - began
        say(took <= within, f"{what}: steps go on after {took:.1f} s")

    def longest_pause(self):
        """The longest time between two steps."""
        times = [datetime.datetime.fromisoformat(m["time"].replace("Z", "+00:00")).timestamp()
                 for m in self.lines("log.jsonl") if m["event"] == "progress"]
        return max(b - a for a, b in zip(times, times[1:]))

    def result(self, recoveries=0):
        """(weights, moments, losses). Asserts the number of recoveries, and without recoveries that
        no step was repeated."""
        err = self.process.communicate(timeout=900 * SLOW)[1]
        assert self.process.returncode == 0, (self.process.returncode, err)
        with open(os.path.join(self.dir, "run.json")) as f:
            attempts = [a["status"] for a in json.load(f)["attempts"]]
        assert attempts == ["recovered"] * recoveries + ["finished"], (attempts, err)
        taken = [m["step"] for m in self.lines("log.jsonl") if m["event"] == "progress"]
        assert recoveries or taken == list(range(1, self.steps + 1)), "a step was taken again"
        kept = [checkpoint_tensors(self.dir, self.steps, prefix) for prefix in ("model-", "optimizer-")]
        return kept, [(m["step"], m["loss"]) for m in self.lines("metrics.jsonl")]


def data_of(cluster):
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=16, side=8)
    return cluster


def drop(net, seconds):
    """Detaches the master's port from the switch: its interface stays up, but nothing answers."""
    switch = net.names["switch"]
    net._do("ip", "-n", switch, "link", "set", "near", "nomaster")
    time.sleep(seconds)
    net._do("ip", "-n", switch, "link", "set", "near", "master", "switch")


def change_address(cluster):
    net, far = cluster.net, cluster.net.names["far"]
    net._do("ip", "-n", far, "addr", "del", f"{net.host}/24", "dev", "lan0")
    net._do("ip", "-n", far, "addr", "add", f"{OTHER_ADDRESS}/24", "dev", "lan0")
    cluster.hosts.set(OTHER_ADDRESS)
    return ""


class Named(Cluster):
    """A cluster in namespaces whose workers are dialled by name."""

    def __init__(self, net):
        self.net, self.hosts = net, Hosts([net.names["near"], net.names["far"]], net.host)
        super().__init__(2, near=net.near, far=net.far, host="0.0.0.0")
        data_of(self)

    def address(self, i):
        return f"{NAME}:{self.ports[i]}"

    def close(self):
        self.hosts.close()
        return super().close()


def the_same(case, run, bits, more="", recoveries=0):
    same = run.result(recoveries) == bits
    say(same, f"{case}: {'the same bits' if same else 'other bits'}, {recoveries or 'no'} {'recovery' if recoveries == 1 else 'recoveries'}{more}")


def dropped(a):
    with Namespaces(RATE) as net, Named(net) as cluster:
        bits = Run(cluster, "alone", 800, ALONE_MS).result()
        run = Run(cluster, "dropped", 800).past(5)
        for s in a.seconds:
            drop(net, s)
            run.back(f"packets dropped for {s:g} s")
        the_same("dropped packets", run, bits)


def disturbed(net, what, disturb):
    """A run on this network during disturb(cluster). Prints its result as `what`."""
    with net, Named(net) as cluster:
        bits = Run(cluster, "alone", 400, ALONE_MS).result()
        run = Run(cluster, "disturbed", 400).past(5)
        run.back(what + disturb(cluster))
        the_same(what, run, bits)


def address(_):
    disturbed(Namespaces(RATE), "another address", change_address)


def forget(cluster):
    known = cluster.net.forget()
    assert known >= 2, f"the NAT knew {known} connections"
    return f", {known} of them"


def nat(_):
    for unknown in ("adopts", "resets", "drops"):
        disturbed(Nat(RATE, unknown), f"connections forgotten by a NAT that {unknown} unknown packets", forget)


def long(a):
    if not a.long:
        return
    with Namespaces(RATE) as net, Named(net) as cluster:
        bits = Run(cluster, "alone", 400, ALONE_MS).result()
        run = Run(cluster, "long", 400).past(150)
        drop(net, a.long)
        run.back(f"packets dropped for {a.long:g} s", 60)
        the_same("a long outage", run, bits, recoveries=1)
        back = [e for e in run.lines("log.jsonl") if e["event"] == "recovered"]
        print(f"# {len(back)} recovery, {back[0]['replayed']} steps taken again", flush=True)


def reconnects(port):
    """The number of reconnections of the master's links, by its metrics."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return sum(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith("cleave_master_link_reconnects_total"))


def resets(a):
    """Resets. Each ends a connection that has carried messages, at a moment that a seed draws, half
    of them in the middle of a message, or all connections of a worker at once. A step follows
    before the next reset."""
    with RelayedCluster(2) as cluster:
        steps, port = max(400, a.resets * 5), free_port()
        bits = Run(data_of(cluster), "alone", steps, ALONE_MS).result()
        run = Run(cluster, "reset", steps, more=f"metrics: {{listen: \"127.0.0.1:{port}\"}}\n").past(5)
        draw, relays = random.Random(7), list(cluster.relays.values())

        def done():
            return sum(relay.cut for relay in relays)
        while (before := done()) < a.resets:
            relay = draw.choice(relays)
            if draw.random() < 0.5:
                relay.after(draw.randrange(200_000))
            else:
                relay.reset(draw.choice([1, 1, None]), used=True)
            until(lambda: done() > before or relay.countdown is None or run.is_over())
            run.past(run.step() + 1 + draw.randrange(3))
        seen, n = reconnects(port), done()
        the_same(f"{n} resets", run, bits, f", {seen} connections made again by the master")
        say(run.longest_pause() <= WITHIN_S, f"resets: the longest pause between two steps was {run.longest_pause():.1f} s")


CASES = {f.__name__: f for f in (dropped, nat, address, resets, long)}
parser = argparse.ArgumentParser()
parser.add_argument("--resets", type=int, default=1000)
parser.add_argument("--seconds", type=lambda s: [float(x) for x in s.split(",")], default=[1, 10, 60])
parser.add_argument("--long", type=float, default=300)
parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES))
arguments, missing = parser.parse_args(), namespaces_missing()
for case in arguments.cases:
    if missing and case != "resets":
        print(f"skip {case}: {missing}")
    else:
        CASES[case](arguments)
sys.exit(bool(failed))
