#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The slow links of other tests have the rates and delays that they claim, the layer that waits
instead of computing exists only in tests, and a session over slow links trains to the same bits."""
import select, socket, statistics, sys, threading, time
from cluster import *
from links import *

HERE = os.path.abspath(__file__)
suite = Suite()


# ---- an echo and a sink, in a namespace too -----------------------------------------------------

def serve(host):
    """Serves connections. After a first byte 'e' it echoes all bytes; after 's' it discards them,
    and answers with their number and the time from the first to the last."""
    listener = socket.socket()
    listener.bind((host, 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    while True:
        s, _ = listener.accept()
        threading.Thread(target=echo if s.recv(1) == b"e" else sink, args=(s,), daemon=True).start()


def echo(s):
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := s.recv(4096):
        s.sendall(data)


def sink(s):
    total, first = 0, None
    while data := s.recv(1 << 20):
        last = time.monotonic()
        if first is None:
            first = last
        else:
            total += len(data)
    s.sendall(f"{total} {last - first}\n".encode())
    s.close()


def blast(host, port, mib):
    """The rate from here to the sink, Mbit/s."""
    with socket.create_connection((host, port)) as s:
        s.sendall(b"s" + bytes(mib << 20))
        s.shutdown(socket.SHUT_WR)
        total, seconds = s.makefile().readline().split()
    return int(total) * 8e-6 / float(seconds)


def back(port, left):
    """The rate of a returning echo, Mbit/s."""
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(b"e")
        threading.Thread(target=s.sendall, args=(bytes(left),), daemon=True).start()
        first = None
        while left:
            left -= len(s.recv(min(left, 1 << 16)))
            first = first or (time.monotonic(), left)
        return first[1] * 8e-6 / (time.monotonic() - first[0])


class Server(Running):
    def __init__(self, at=(), host="127.0.0.1"):
        super().__init__([*at, "/usr/bin/python3", HERE, "serve", host])
        self.port = int(self.process.stdout.readline())


def round_trip_ms(port, n=15):
    """The median of n echoes of one byte, because the machine may be busy during some."""
    took = []
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(b"e")
        for _ in range(n):
            begin = time.monotonic()
            s.sendall(b"x")
            assert s.recv(1) == b"x"
            took.append((time.monotonic() - begin) * 1e3)
    return statistics.median(took)


def within(what, measure, low, high):
    """One of four measurements is in range: on a busy machine most are slow, on a wrong link all
    are."""
    got = []
    while len(got) < 4:
        got.append(measure())
        print(f"  {what}: {got[-1]:.2f} of {low:.4g} to {high:.4g}", flush=True)
        if low <= got[-1] <= high:
            return
    assert False, (what, low, high, got)


# ---- links ---------------------------------------------------------------------------------------

@suite.test
@alone("round trips within 2 ms")
def proxy_delay_can_change_at_run_time():
    with Server() as server, DelayProxy(server.port, 10) as proxy:
        for one_way in (10, 40, 0, 2.5):
            proxy.set_delay(one_way)
            within("round trip, ms", lambda: round_trip_ms(proxy.port), 2 * one_way, 2 * one_way + 2)


@suite.test
@alone("rates within 5 %")
def a_proxy_holds_its_rate_in_both_directions():
    with Server() as server, DelayProxy(server.port, 5, rate_mbit=80) as proxy:
        for rate, mib in ((80, 6), (200, 12)):
            proxy.set_rate(rate)
            within("Mbit/s", lambda: blast("127.0.0.1", proxy.port, mib), 0.95 * rate, 1.05 * rate)
        proxy.set_rate(40)
        within("Mbit/s back", lambda: back(proxy.port, 4 << 20), 0.95 * 40, 1.05 * 40)


@suite.test
@alone("a rate that needs a core of its own")
def latency_alone_does_not_limit_throughput():
    """Bytes in flight have no limit but memory: 16 MiB over 100 ms, well above 64 KiB a round
    trip."""
    with Server() as server, DelayProxy(server.port, 50) as proxy:
        within("Mbit/s", lambda: blast("127.0.0.1", proxy.port, 16), 100, 1e6)  # 5 with 64 KiB


@suite.test
def proxy_closes_when_its_server_closes():
    with Server() as server, DelayProxy(server.port, 1) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as s:
            s.settimeout(10 * SLOW)
            s.sendall(b"ex")
            assert s.recv(1) == b"x"
            server.process.kill()
            assert s.recv(1) == b""


@suite.test
@alone("rates within 10 %")
def namespaces_hold_their_rate():
    if reason := namespaces_missing():
        return reason
    with Namespaces(100) as n, Server(n.far, n.host) as server:
        blast_there = (*n.near, "/usr/bin/python3", HERE, "blast", n.host, str(server.port), "12")
        # payload: headers take 4 %
        within("Mbit/s", lambda: float(run(*blast_there).stdout), 90, 110)
    left = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True).stdout
    assert f"clv-{os.getpid()}-" not in left, left


# ---- sessions over them --------------------------------------------------------------------------

def body(extra=""):
    return ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
            "stages:\n"
            "  - {name: s0, at: master, layers: [{op: flatten}, {op: linear, out: 20}]}\n"
            f"  - {{name: s1, at: w1, transfer: direct, layers: [{{op: relu}}, {{op: linear, out: 16}}{extra}]}}\n"
            "  - {name: s2, at: w2, transfer: direct, layers: [{op: relu}, {op: linear, out: 10}]}\n"
            "loss: {kind: cross_entropy}\n"
            "train: {epochs: 1, max_steps: 6, batch: 16, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.1}}\n"
            "pipeline: {micro_batches: 2}\n")


def make_data(c):
    os.makedirs(os.path.join(c.dir, "data"))
    synthetic_images(os.path.join(c.dir, "data"), n=96, n_test=32)


def trained(c, text, env=None):
    make_data(c)
    return c.trained("slow", text, 6, env=env)[0]


@suite.test
def two_workers_20_ms_away_train_the_same_bits():
    with Cluster(2) as c:
        near = trained(c, body())
    with DelayedCluster(2, 20) as c:
        begin = time.monotonic()
        far = trained(c, body())
        assert time.monotonic() - begin > 6 * 0.02  # each step goes there and back at least once
        assert len(c.proxies) == 2
    assert len(near) == 6 and near == far


@suite.test
def a_session_over_100_mbit_trains_the_same_bits():
    if reason := namespaces_missing():
        return reason
    with Cluster(2) as c:
        near = trained(c, body())
    with Namespaces(100) as n, Cluster(2, near=n.near, far=n.far, host=n.host) as c:
        assert trained(c, body()) == near


# ---- the layer that waits ------------------------------------------------------------------------

WAIT = ", {op: wait, forward_ms: 10, input_ms: 10, weight_ms: 20}"
class LinkProgram(Running):
    """tests/bench/bench_link.c: one side of a link without anything on it."""

    def __init__(self, *args):
        super().__init__([os.path.join(BIN, "bench", "bench_link"), *args], stdin=subprocess.PIPE)
        self.first = self.process.stdout.readline().strip()
        assert self.first, args

    def ask(self, command, timeout):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        there, _, _ = select.select([self.process.stdout], [], [], timeout * SLOW)
        assert there, f"{command}: no answer in {timeout} s"
        return self.process.stdout.readline()


@suite.long
def link_that_is_never_idle_keeps_sending():
    """Every 10 s the window closes for a moment, to measure the empty link. The bytes in flight may
    then be more than the window, without a PING that asks whether they have arrived."""
    with Cluster(1) as c, LinkProgram("serve", c.certs, "w1") as serve, \
            LinkProgram("dial", c.certs, "master", serve.first, "spiffe://test/w1", "4") as dial:
        until, n = time.monotonic() + 14, 0
        while time.monotonic() < until:
            for size in (12 << 20, 40 << 20):
                dial.ask(f"tensor {size} 4", 20)
                n += 4
        print(f"  {n} tensors")


TESTING = {"CLEAVE_TEST_OPS": "1"}


def refused(c, env):
    make_data(c)
    done = c.train(c.session("denied", body(WAIT)), env=env)
    assert done.returncode != 0 and "wait is an op for tests" in done.stderr, done.stderr
    assert "CLEAVE_TEST_OPS=1" in done.stderr, done.stderr
    return done


@suite.test
def wait_op_takes_time_and_trains_its_weight():
    with Cluster(2, env=TESTING) as c:
        begin = time.monotonic()
        weights = trained(c, body(WAIT), env=TESTING)
        assert time.monotonic() - begin > 6 * 2 * 0.04
        (weight,) = struct.unpack("<f", weights["4.weight"][2])
        assert weight != 1 and abs(weight - 1) < 1, weight


@suite.test
def master_without_test_ops_refuses_the_wait_op():
    with Cluster(2, env=TESTING) as c:
        done = refused(c, None)
        assert "denied.yaml:" in done.stderr, done.stderr


@suite.test
def worker_without_test_ops_refuses_the_wait_op():
    with Cluster(2) as c:
        done = refused(c, TESTING)
        assert "w1" in done.stderr, done.stderr
        assert "CLEAVE_TEST_OPS=1" in c.workers[0].text(), c.workers[0].text()


if sys.argv[1:2] == ["serve"]:
    serve(sys.argv[2])
elif sys.argv[1:2] == ["blast"]:
    print(blast(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
else:
    suite.main()
