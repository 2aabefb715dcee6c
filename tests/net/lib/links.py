# SPDX-License-Identifier: Apache-2.0
"""Links that are slower than loopback: a proxy that delays (DelayProxy, DelayedCluster) and two
network namespaces with a token bucket on either end (Namespaces). Standard library only."""
import os, subprocess
from cluster import BIN, Cluster

PROXY = os.path.join(BIN, "net", "delay_proxy")


class DelayProxy:
    """A port of 127.0.0.1 that passes connections on to another port: each byte arrives one_way_ms
    later, in both directions, at rate_mbit in each direction if given. Connections share the rate,
    and with a queue_ms larger than 5 also a queue. TLS is not disturbed, because the peer is
    identified by its certificate's URI."""

    def __init__(self, target_port, one_way_ms, rate_mbit=None, queue_ms=None, host="127.0.0.1"):
        command = [PROXY, "0", f"{host}:{target_port}", "--one-way-ms", str(one_way_ms)]
        command += ["--rate-mbit", str(rate_mbit)] if rate_mbit else []
        command += ["--queue-ms", str(queue_ms)] if queue_ms else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        word, port = self.process.stdout.readline().split()
        assert word == "listening", word
        self.port = int(port)

    def _set(self, what, value):
        self.process.stdin.write(f"{what} {value}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer == "ok\n", answer

    def set_delay(self, one_way_ms):
        """Sets the delay of bytes that arrive from now on."""
        self._set("delay", one_way_ms)

    def set_rate(self, rate_mbit):
        """Sets the rate; 0: no limit."""
        self._set("rate", rate_mbit)

    def close(self):
        self.process.stdin.close()  # its end of input ends the process
        self.process.wait(20)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class DelayedCluster(Cluster):
    """A Cluster in which the master and other workers dial worker i through its DelayProxy,
    self.proxies[i]."""

    def __init__(self, n=2, round_trip_ms=20, rate_mbit=None, **options):
        self.proxies, self.delay_ms, self.rate_mbit = {}, round_trip_ms / 2, rate_mbit
        super().__init__(n, **options)

    def address(self, i):
        if i not in self.proxies:
            self.proxies[i] = DelayProxy(self.ports[i], self.delay_ms, self.rate_mbit)
        return f"127.0.0.1:{self.proxies[i].port}"

    def close(self):
        codes = super().close()
        for proxy in self.proxies.values():
            proxy.close()
        return codes


def namespaces_missing():
    """The reason why this machine cannot make namespaces, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"clv-{os.getpid()}-try"
    for command in (["ip", "netns", "add", name], ["ip", "netns", "del", name], ["tc", "-V"]):
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except FileNotFoundError:
            return f"no program '{command[0]}' (Debian: iproute2)"
        if done.returncode:
            return f"`{' '.join(command)}` failed: {done.stdout.strip()}"
    return None


class Namespaces:
    """Two network namespaces with a switch between them, in a third: rate_mbit each way, with a
    queue of latency_ms in the switch, where no sender's TCP can see it. `near` and `far` are the
    commands that run a program at either end; `host` is the far end's address. Cluster(near=n.near,
    far=n.far, host=n.host) has its workers at the far end. congestion: TCP's congestion control at
    both ends; None: the machine's. The end of the with block removes everything."""

    def __init__(self, rate_mbit, latency_ms=50, congestion=None):
        self.names = {end: f"clv-{os.getpid()}-{end}" for end in ("near", "far", "switch")}
        self.near, self.far = (("ip", "netns", "exec", self.names[end]) for end in ("near", "far"))
        self.host, self.rate, self.latency, self.congestion = "10.91.0.2", rate_mbit, latency_ms, congestion

    def _do(self, *command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"

    def _attach(self, end, address):
        """Connects one end to a port of the switch, which limits bytes towards that end to
        `rate`."""
        name, switch = self.names[end], self.names["switch"]
        self._do("ip", "link", "add", "lan0", "netns", name, "type", "veth", "peer", "name", end, "netns", switch)
        self._do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "lan0")
        for at, link in ((name, "lo"), (name, "lan0"), (switch, end)):
            self._do("ip", "-n", at, "link", "set", link, "up")
        self._do("ip", "-n", switch, "link", "set", end, "master", "switch")
        # a burst of 2 ms, because a timer of 1 kHz is that late
        self._do("tc", "-n", switch, "qdisc", "add", "dev", end, "root", "tbf", "rate", f"{self.rate}mbit",
                 "burst", f"{max(16, self.rate // 4)}kb", "latency", f"{self.latency}ms")
        if self.congestion:
            self._do("ip", "-n", name, "route", "change", "10.91.0.0/24", "dev", "lan0", "congctl", self.congestion)

    def __enter__(self):
        try:
            for name in self.names.values():
                self._do("ip", "netns", "add", name)
            self._do("ip", "-n", self.names["switch"], "link", "add", "switch", "type", "bridge")
            self._do("ip", "-n", self.names["switch"], "link", "set", "switch", "up")
            self._attach("near", "10.91.0.1")
            self._attach("far", self.host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names.values():  # which removes cables and switch too
            subprocess.run(["ip", "netns", "del", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
