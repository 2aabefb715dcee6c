"""Callers that take many connections: strangers, an identity over its quota, callers that send
nothing. Others still get connections, the worker logs its refusals in few lines, and a refused
caller gets the reason. tests/net/attacks has longer versions."""
import os, re, socket, ssl, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
from pyclient import *

suite = Suite()
cluster = None
PLACES, QUOTA = 32, 6
CONFIG = f"limits: {{connections: {PLACES}, handshake_timeout: 30s}}\n"
ALLOW = (f"  - {{identity: \"spiffe://test/small\", role: master, connections: {QUOTA}}}\n"
         "  - {identity: \"spiffe://test/eye\", role: observer}\n")
REFUSED = {"sslv3 alert handshake failure", "tlsv1 alert internal error"}


def handshake(name):
    """A TLS connection of identity `name` on which HTTP/2 has begun; the text of the alert if the
    worker refused it; None if the worker only closed it."""
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname = False
    c.load_verify_locations(os.path.join(cluster.certs, "ca.pem"))
    c.load_cert_chain(os.path.join(cluster.certs, name + ".pem"), os.path.join(cluster.certs, name + ".key"))
    c.set_alpn_protocols(["h2"])
    s = socket.create_connection(("127.0.0.1", cluster.ports[0]), 30 * SLOW)
    try:
        t = c.wrap_socket(s)
        return t if t.recv(1) else None
    except ssl.SSLError as e:
        return str(e)
    except OSError:
        return None


def answers(name="master"):
    with Caller(cluster.ports[0], cluster.certs, name=name) as c:
        try:
            return c.hello()
        except grpc.RpcError:
            return None


def new_lines(since, pattern):
    return re.findall(pattern, cluster.workers[0].text()[since:])


def last_error():
    with Caller(cluster.ports[0], cluster.certs, name="eye") as c:
        return c.stub.Status(pb.StatusRequest()).last_error.text


@suite.test
def identity_not_in_allow_holds_no_connections():
    """However often it dials; it gets the reason."""
    since = len(cluster.workers[0].text())
    got = [handshake("stranger") for _ in range(2 * PLACES)]
    assert all(isinstance(g, str) and "handshake failure" in g for g in got), got
    assert answers()
    assert 1 <= len(new_lines(since, "audit deny identity=spiffe://test/stranger .*not in allow")) <= 10
    until(lambda: "spiffe://test/stranger was refused: identity not in allow" in last_error())


@suite.test
def connections_over_an_identity_quota_are_refused():
    """Other identities can use the rest, and closed connections free places."""
    held = [handshake("small") for _ in range(QUOTA)]
    try:
        assert all(isinstance(h, ssl.SSLSocket) for h in held), held
        over = [handshake("small") for _ in range(3)]
        assert all(isinstance(g, str) and "internal error" in g for g in over), over
        assert answers()
        until(lambda: "over its quota of connections" in last_error())
    finally:
        for h in held:
            if isinstance(h, ssl.SSLSocket):
                h.close()
    until(lambda: answers("small"))


@suite.test
def one_identity_cannot_take_all_connections():
    """`master` has a large quota; the places that are reserved for others stop it."""
    held = [handshake("master") for _ in range(2 * PLACES)]
    try:
        n = sum(isinstance(h, ssl.SSLSocket) for h in held)
        assert PLACES // 2 <= n <= PLACES - PLACES // 8 - 3, n
        assert answers("small") and answers("eye")
    finally:
        for h in held:
            if isinstance(h, ssl.SSLSocket):
                h.close()
    until(answers)


@suite.test
def connections_without_tls_are_evicted():
    """A connection that never begins TLS is closed when another caller needs its place."""
    silent = [socket.create_connection(("127.0.0.1", cluster.ports[0])) for _ in range(2 * PLACES)]
    try:
        assert answers() and answers("small")
    finally:
        for s in silent:
            s.close()
    assert new_lines(0, r"audit deny address=127\.0\.0\.1 reason=.all connections are in use")


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def requests(block, flags=5, behind=lambda stream: b""):
    """Yields the bytes of a hundred requests at a time, each followed by behind(stream)."""
    stream = 1
    while True:
        yield b"".join(frame(1, flags, stream + 2 * i, block) + behind(stream + 2 * i) for i in range(100))
        stream += 200


def again(data, first=b""):
    yield first
    while True:
        yield data


GET = bytes.fromhex("828684") + header(b":authority", b"x")
POST = bytes.fromhex("8387") + header(b":authority", b"x") + header(b":path", b"/cleave.v1.Worker/LoadModule")
GRPC = POST + header(b"te", b"trailers") + header(b"content-type", b"application/grpc")
FLOODS = {  # name -> the endless bytes of a new connection after the preface
    "gets": lambda: requests(GET),
    "reset": lambda: requests(GET, 4, lambda stream: frame(3, 0, stream, bytes(4))),
    "empty": lambda: requests(b""),
    "typeless": lambda: requests(POST),
    "data": lambda: requests(GET, 4, lambda stream: frame(0, 0, stream, bytes(500))),
    "calls": lambda: requests(GRPC),
    "settings": lambda: again(100 * frame(4, 0, 0)),
    "pings": lambda: again(100 * frame(6, 0, 0, bytes(8))),
    "priority": lambda: again(100 * frame(2, 0, 3, bytes(5))),
    "unknown": lambda: again(frame(77, 0, 1, bytes(16000))),
    "windows": lambda: again(1000 * frame(8, 0, 0, b"\0\0\0\1")),
    "headers": lambda: again(frame(9, 0, 1, header(b"a", bytes(100)) * 100), frame(1, 0, 1, GET)),
    "pieces": lambda: again(1000 * frame(0, 0, 1, b"x"), frame(1, 4, 1, GRPC)),
}


def flooded(name):
    """The number of bytes until the worker ended the connection."""
    s, n = handshake("flood-" + name), 0
    assert isinstance(s, ssl.SSLSocket), (name, s)
    s.settimeout(5 * SLOW)
    try:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        for data in FLOODS[name]():
            s.sendall(data)
            n += len(data)
            assert n < 64 << 20, f"{name}: nothing ended it"
    except (ssl.SSLError, OSError):
        return n
    finally:
        s.close()


@suite.test
def http2_frame_floods_close_the_connection():
    """Floods of frames that gRPC itself answers, and for which it keeps memory until the answer is
    sent. The identity is then refused for a while; others are not."""
    before, since = cluster.workers[0].rss(), len(cluster.workers[0].text())
    for name in FLOODS:
        flooded(name)
        if name in ("gets", "empty", "settings", "headers"):  # now, because it ends after a while
            until(lambda: new_lines(since, f"deny identity=spiffe://test/flood-{name} .*its connection was cut: it sent"))
            assert "internal error" in str(handshake("flood-" + name)), name
    grown = cluster.workers[0].rss() - before
    freed = 256 if SANITIZED else 0  # MiB that the sanitizer keeps of what was freed
    assert grown < (64 + freed) << 20, f"{grown >> 20} MiB more"
    assert answers()


def run_as(name, *command):
    path = os.path.join(cluster.dir, f"as-{name}.yaml")
    with open(path, "w") as f:
        f.write(f"version: 1\nname: asks\ntls: {{ca: certs/ca.pem, cert: certs/{name}.pem, key: certs/{name}.key}}\n"
                f"workers:\n  w1: {{address: \"127.0.0.1:{cluster.ports[0]}\", identity: \"spiffe://test/w1\"}}\n"
                + IMAGE_DATA + "stages:\n  - {name: a, at: w1, layers: [{op: flatten}, {op: linear, out: 10}]}\n"
                "loss: {kind: cross_entropy}\n"
                "train: {epochs: 1, max_steps: 1, batch: 8, seed: 1, optimizer: {kind: sgd, lr: 0.1}}\n"
                "privacy: {raw_input_leaves: true, labels_readable: true}\n")
    done = run(MASTER, command[0], path, *command[1:], cwd=cluster.dir, timeout=60)
    return done.stdout + done.stderr


@suite.test
def refused_caller_gets_the_reason():
    denied = "the worker refuses this identity: it is not in its allow table"
    for command in (("train",), ("doctor",), ("status",)):
        said = run_as("stranger", *command)
        assert denied in said, (command, said)
    held = [handshake("small") for _ in range(QUOTA)]
    try:
        for command in (("train",), ("doctor",), ("status",)):
            said = run_as("small", *command)
            assert "limits.identity_connections" in said, (command, said)
    finally:
        for h in held:
            h.close()


if pyclient.MISSING:
    print("skip connections:", pyclient.MISSING)
else:
    ALLOW += "".join(f"  - {{identity: \"spiffe://test/flood-{name}\", role: master}}\n" for name in FLOODS)
    with Cluster(1, limits=CONFIG, extra_allow=ALLOW) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=32, n_test=8, side=4)
        for who in ("small", "eye", "stranger", *("flood-" + name for name in FLOODS)):
            cluster.issue(who, f"spiffe://test/{who}")
        suite.main()
