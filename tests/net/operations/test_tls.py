"""Access by certificates: every bad certificate is refused with a reason in the log while other
callers keep working; certificates are replaced while a session runs. Bad certificates are made with
openssl(1)."""
import os, re, ssl, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import forge as certificates
import pyclient
from pyclient import *

suite = Suite()
cluster = None
NAMES = {"URI": "spiffe://test/master"}


def forge(name, san, folder=None, **options):
    """Makes a certificate of the test's CA with any alternative names and any dates."""
    certificates.forge(folder or cluster.certs, name, san, **options)


def logged_after(worker, before, pattern, seconds=3):
    """Waits for a line that matches in the worker's log after position `before`."""
    until = time.monotonic() + seconds * SLOW
    while time.monotonic() < until:
        if re.search(pattern, worker.text()[before:]):
            return
        time.sleep(0.02)
    raise AssertionError(f"nothing like {pattern!r} in:\n{worker.text()[before:]}")


class Others:
    """Checks that an earlier caller and a later one are served."""

    def __enter__(self):
        self.caller = Caller(cluster.ports[0], cluster.certs)
        self.session = self.caller.open(name="bystander")
        self.lane = self.session.attach()
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.lane.send(pb.Frame(kind=pb.PING, message=1))
                assert self.lane.recv().kind == pb.PONG
                with Caller(cluster.ports[0], cluster.certs) as late:
                    late.hello()
                self.session.close()
        finally:
            self.caller.close()


def refused(code, log, name="bad", certs=None, ca="ca.pem"):
    worker = cluster.workers[0]
    before = len(worker.text())
    with Others(), Caller(cluster.ports[0], certs or cluster.certs, name=name, ca=ca) as c:
        try:
            c.hello()
            raise AssertionError("HELLO was answered")
        except grpc.RpcError as e:
            assert e.code() == code, (e.code(), e.details())
            text = e.details()
        logged_after(worker, before, log)
    assert "audit open session=py" not in worker.text()
    return text


@suite.test
def client_of_another_ca_is_refused():
    other = os.path.join(cluster.dir, "other")
    if not os.path.isdir(other):
        master("certs", "init", "--dir", other)
        master("certs", "issue", "master", "--dir", other, "--uri", NAMES["URI"])
        shutil.copy(os.path.join(cluster.certs, "ca.pem"), os.path.join(other, "servers-ca.pem"))
    refused(grpc.StatusCode.UNAVAILABLE, "certificate verify failed", "master", other, "servers-ca.pem")


@suite.test
def missing_client_certificate_is_refused():
    refused(grpc.StatusCode.UNAVAILABLE, "peer did not return a certificate", None)


@suite.test
def expired_client_certificate_is_refused():
    forge("expired", [("URI", NAMES["URI"])], end="20210101000000Z")
    refused(grpc.StatusCode.UNAVAILABLE, "certificate verify failed", "expired")
    forge("future", [("URI", NAMES["URI"])], begin="20480101000000Z")
    refused(grpc.StatusCode.UNAVAILABLE, "certificate verify failed", "future")
    # the same certificate with valid dates: only the dates made the difference
    forge("forged", [("URI", NAMES["URI"])])
    with Caller(cluster.ports[0], cluster.certs, name="forged") as c:
        c.hello()


@suite.test
def identity_not_in_allow_is_refused():
    """Already the handshake fails."""
    cluster.issue("stranger", "spiffe://test/stranger")
    text = refused(grpc.StatusCode.UNAVAILABLE,
                   "audit deny identity=spiffe://test/stranger .*not in allow", "stranger")
    # the caller does not learn which identities are allowed
    assert "stranger" not in text and "master" not in text
    for near in ("spiffe://test/maste", "spiffe://test/master2", "spiffe://test/Master", "spiffe://test/master/"):
        forge("near", [("URI", near)])
        refused(grpc.StatusCode.UNAVAILABLE, f"audit deny identity={near} ", "near")


@suite.test
def dns_name_spelled_like_an_allowed_uri_is_refused():
    forge("dns", [("DNS", NAMES["URI"])])
    refused(grpc.StatusCode.UNAVAILABLE, "audit deny identity=. address=127.0.0.1 .*one URI", "dns")
    forge("both", [("URI", "spiffe://test/stranger"), ("DNS", NAMES["URI"])])
    refused(grpc.StatusCode.UNAVAILABLE, "audit deny identity=spiffe://test/stranger ", "both")
    forge("mail", [("email", NAMES["URI"])])
    refused(grpc.StatusCode.UNAVAILABLE, "audit deny identity=. address=127.0.0.1 .*one URI", "mail")
    forge("cn", [], cn=NAMES["URI"])
    refused(grpc.StatusCode.UNAVAILABLE, "audit deny identity=. address=127.0.0.1 .*one URI", "cn")


@suite.test
def certificate_with_two_uris_is_refused():
    forge("two", [("URI", NAMES["URI"]), ("URI", "spiffe://test/stranger")])
    refused(grpc.StatusCode.UNAVAILABLE, "audit deny identity=. address=127.0.0.1 .*one URI", "two")
    forge("twice", [("URI", NAMES["URI"]), ("URI", NAMES["URI"])])
    refused(grpc.StatusCode.UNAVAILABLE, "audit deny identity=. address=127.0.0.1 .*one URI", "twice")


@suite.test
def certificate_without_client_usage_is_refused():
    """OpenSSL accepts a certificate without an extended key usage; the worker refuses it with a
    reason for the caller."""
    forge("plain", [("URI", NAMES["URI"])], use=None)
    refused(grpc.StatusCode.UNAVAILABLE, "audit deny identity=.*test/master .*TLS client in an extended key usage", "plain")
    forge("onlyserver", [("URI", NAMES["URI"])], use="serverAuth")
    refused(grpc.StatusCode.UNAVAILABLE, "certificate verify failed", "onlyserver")
    for name in ("plain", "onlyserver"):
        with socket.create_connection(("127.0.0.1", cluster.ports[0]), 10) as s:
            with context(ssl.TLSVersion.TLSv1_3, name).wrap_socket(s) as t:
                try:
                    t.recv(1)
                    raise AssertionError("no alert")
                except ssl.SSLError as e:
                    assert "UNSUPPORTED_CERTIFICATE" in str(e).upper(), e


def context(version, name="master", server=False):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    c.minimum_version = c.maximum_version = version
    c.load_verify_locations(os.path.join(cluster.certs, "ca.pem"))
    c.load_cert_chain(os.path.join(cluster.certs, name + ".pem"), os.path.join(cluster.certs, name + ".key"))
    c.verify_mode = ssl.CERT_REQUIRED
    c.check_hostname = False
    c.set_alpn_protocols(["h2"])
    return c


def server_certificate(version=ssl.TLSVersion.TLSv1_3):
    """The worker's certificate in a new handshake."""
    with socket.create_connection(("127.0.0.1", cluster.ports[0]), 10) as s:
        with context(version).wrap_socket(s) as t:
            assert t.version() == {ssl.TLSVersion.TLSv1_3: "TLSv1.3"}.get(version, t.version())
            return t.getpeercert(True)


@suite.test
def tls_1_2_client_is_refused():
    worker = cluster.workers[0]
    before = len(worker.text())
    with Others():
        assert server_certificate()  # the same client with 1.3
        try:
            server_certificate(ssl.TLSVersion.TLSv1_2)
            raise AssertionError("TLS 1.2 was accepted")
        except (ssl.SSLError, ConnectionError):
            pass
        logged_after(worker, before, "unsupported protocol")
        done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{cluster.ports[0]}", "-tls1_2",
                               "-cert", f"{cluster.certs}/master.pem", "-key", f"{cluster.certs}/master.key"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode != 0 and "Cipher is (NONE)" in done.stdout, done.stdout


@suite.test
def plaintext_http2_is_refused():
    with Others():
        with socket.create_connection(("127.0.0.1", cluster.ports[0]), 10) as s:
            s.settimeout(10 * SLOW)
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            got = b"x"
            while got and not got.startswith(b"\x15"):  # the worker sends at most an alert
                got = s.recv(4096)


# ---- the master's side -------------------------------------------------------------------------

STAGES = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
          "stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 16}, {op: relu}]}\n"
          "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n"
          "loss: {kind: cross_entropy}\nlimits: {connect_timeout: 3s}\n"
          "train: {epochs: 100, max_steps: %d, batch: 16, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.05}}\n")


class Impostor(threading.Thread):
    """A TLS 1.3 server with a good certificate of the CA, which keeps the received bytes."""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.context, self.received, self.handshakes = context(ssl.TLSVersion.TLSv1_3, name, True), b"", 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                s = self.listener.accept()[0]
            except OSError:
                return
            try:
                s.settimeout(5 * SLOW)
                with self.context.wrap_socket(s, server_side=True) as t:
                    self.handshakes += 1
                    while data := t.recv(65536):
                        self.received += data
            except (OSError, ssl.SSLError):
                pass


class Dying(Impostor):
    """An impostor that ends directly after the first handshake."""

    def run(self):
        s = self.listener.accept()[0]
        with self.context.wrap_socket(s, server_side=True):
            self.handshakes += 1
            self.listener.close()


def dial(impostor, identity):
    session = cluster.session("impostor", STAGES % 5)
    done = cluster.train(session, "--set", f"workers.w1.address=127.0.0.1:{impostor.port}",
                         "--set", f"workers.w1.identity={identity}", timeout=60)
    assert done.returncode in (4, 5), (done.returncode, done.stderr)
    assert "'w1'" in done.stderr, done.stderr
    return done


@suite.test
def server_with_another_identity_receives_nothing():
    """The server's certificate is good but has another identity: the master sends no byte."""
    cluster.issue("elsewhere", "spiffe://test/elsewhere")
    impostor = Impostor("elsewhere")
    done = dial(impostor, "spiffe://test/w1")
    assert impostor.handshakes >= 1 and impostor.received == b"", impostor.received
    assert done.returncode == 4, done.returncode
    assert "spiffe://test/w1" in done.stderr and "spiffe://test/elsewhere" in done.stderr, done.stderr
    forge("srvtwo", [("URI", "spiffe://test/w1"), ("URI", "spiffe://test/x"), ("IP", "127.0.0.1")])
    impostor = Impostor("srvtwo")
    dial(impostor, "spiffe://test/w1")
    assert impostor.handshakes >= 1 and impostor.received == b"", impostor.received
    forge("srvdns", [("DNS", "spiffe://test/w1"), ("IP", "127.0.0.1")])
    impostor = Impostor("srvdns")
    dial(impostor, "spiffe://test/w1")
    assert impostor.handshakes >= 1 and impostor.received == b"", impostor.received
    impostor = Impostor("elsewhere")  # the master does send to the same server under its own name
    dial(impostor, "spiffe://test/elsewhere")
    assert impostor.received.startswith(b"PRI * HTTP/2.0"), impostor.received[:40]


@suite.test
def server_of_another_ca_receives_nothing():
    other = os.path.join(cluster.dir, "foreign")
    master("certs", "init", "--dir", other)
    master("certs", "issue", "w1", "--dir", other, "--uri", "spiffe://test/w1", "--ip", "127.0.0.1")
    for suffix in (".pem", ".key"):
        shutil.copy(os.path.join(other, "w1" + suffix), os.path.join(cluster.certs, "foreign" + suffix))
    impostor = Impostor("foreign")
    done = dial(impostor, "spiffe://test/w1")
    assert impostor.received == b"" and "ertificate" in done.stderr, (impostor.received, done.stderr)


@suite.test
def dying_server_is_not_reported_as_a_refusal():
    """Its connection ends like one of a server that refuses our certificate."""
    impostor = Dying("w1")
    done = dial(impostor, "spiffe://test/w1")
    assert impostor.handshakes == 1, impostor.handshakes
    assert "no process listens on this address" in done.stderr and "certificate" not in done.stderr, done.stderr


# ---- the master's own files --------------------------------------------------------------------

def bad_identities():
    """{name: options} for session files with an unusable certificate, key or authority."""
    uri, certs = [("URI", "spiffe://test/master")], cluster.certs
    forge("m-ended", uri, end="20210101000000Z")
    forge("m-early", uri, begin="20480101000000Z")
    forge("m-server", uri, use="serverAuth")
    other = os.path.join(cluster.dir, "another")
    master("certs", "init", "--dir", other)
    shutil.copy(os.path.join(other, "ca.pem"), os.path.join(certs, "another-ca.pem"))
    shutil.copy(os.path.join(certs, "master.key"), os.path.join(certs, "m-open.key"))
    os.chmod(os.path.join(certs, "m-open.key"), 0o644)
    of = lambda name: ["--set", f"tls.cert={certs}/{name}.pem", "--set", f"tls.key={certs}/{name}.key"]
    key = lambda name: ["--set", f"tls.key={certs}/{name}"]
    return {"ended": of("m-ended"), "early": of("m-early"), "for servers": of("m-server"),
            "open key": key("m-open.key"), "no key": key("none.key"), "another's key": key("w1.key"),
            "another authority": ["--set", f"tls.ca={certs}/another-ca.pem"],
            "no list": ["--set", f"tls.crl={certs}/none-crl.pem"]}


@suite.test
def commands_without_a_valid_identity_exit_with_4():
    """Each command that needs an identity. A finished run is not changed and needs none. In `make
    test` all commands try one bad identity, and one command tries all."""
    session = cluster.session("ours", STAGES % 2)
    assert cluster.train(session).returncode == 0
    before = sorted(os.listdir(os.path.join(cluster.dir, "runs")))
    for name, options in bad_identities().items():
        for command in (["train", "--fresh"], ["check"], ["doctor"], ["status"], ["plan", "--ask"], ["eval"],
                        ["predict"])[:7 if LONG or name == "another authority" else 1]:
            done = run(MASTER, command[0], session, *command[1:], *options, cwd=cluster.dir)
            assert done.returncode == 4, (name, command, done.returncode, done.stdout[-300:], done.stderr)
    assert sorted(os.listdir(os.path.join(cluster.dir, "runs"))) == before
    again = run(MASTER, "train", session, "--resume", *bad_identities()["ended"], cwd=cluster.dir)
    assert again.returncode == 0, again.stderr


@suite.test
def expired_worker_certificate_exits_with_4():
    """In each command that connects."""
    forge("w-ended", [("URI", "spiffe://test/w1"), ("IP", "127.0.0.1")], end="20210101000000Z")
    session = cluster.session("ours2", STAGES % 2)
    assert cluster.train(session).returncode == 0
    for command in (["doctor"], ["status"], ["plan", "--ask"], ["eval"], ["predict"], ["train", "--fresh"]):
        impostor = Impostor("w-ended")
        done = run(MASTER, command[0], session, *command[1:], "--set",
                   f"workers.w1.address=127.0.0.1:{impostor.port}", cwd=cluster.dir)
        assert done.returncode == 4 and "ertificate" in done.stdout + done.stderr, (command, done)


# ---- the worker's own files --------------------------------------------------------------------

def start_up(**tls):
    """`cleave-worker serve` with other files: (exit code, what it said)."""
    files = dict(ca="ca.pem", cert="w1.pem", key="w1.key")
    files.update(tls)
    path = os.path.join(cluster.dir, "other-worker.yaml")
    with open(path, "w") as f:
        f.write(f"listen: 127.0.0.1:{free_port()}\ntls: {{"
                + ", ".join(f"{k}: certs/{v}" for k, v in files.items()) + "}\n"
                "allow:\n  - {identity: \"spiffe://test/master\", role: master}\n")
    done = run(WORKER, "serve", "--config", path, timeout=10)
    assert " ready " not in done.stderr, done.stderr
    return done.returncode, done.stderr


@suite.test
def worker_with_an_unusable_certificate_does_not_start():
    forge("old", [("URI", "spiffe://test/w1"), ("IP", "127.0.0.1")], end="20210101000000Z")
    code, text = start_up(cert="old.pem", key="old.key")
    assert code == 4 and "expired" in text and "old.pem" in text and "2021" in text, (code, text)
    forge("early", [("URI", "spiffe://test/w1")], begin="20480101000000Z")
    code, text = start_up(cert="early.pem", key="early.key")
    assert code == 4 and "early.pem" in text and "2048" in text, (code, text)
    shutil.copy(os.path.join(cluster.certs, "w1.key"), os.path.join(cluster.certs, "open.key"))
    os.chmod(os.path.join(cluster.certs, "open.key"), 0o644)
    code, text = start_up(key="open.key")
    assert code == 4 and "open.key" in text and "chmod" in text, (code, text)
    code, text = start_up(key="master.key")
    assert code == 4 and "master.key" in text, (code, text)
    forge("onlyclient", [("URI", "spiffe://test/w1")], use="clientAuth")
    code, text = start_up(cert="onlyclient.pem", key="onlyclient.key")
    assert code == 4 and "TLS server" in text, (code, text)
    forge("nouri", [("DNS", "spiffe://test/w1")])
    code, text = start_up(cert="nouri.pem", key="nouri.key")
    assert code == 4 and "URI" in text, (code, text)
    code, text = start_up(cert="absent.pem")
    assert code == 4 and "absent.pem" in text, (code, text)


# ---- reload ------------------------------------------------------------------------------------

def hup(pattern):
    worker = cluster.workers[0]
    before = len(worker.text())
    worker.kill(signal.SIGHUP)
    logged_after(worker, before, pattern)


def put(name, data):
    path = os.path.join(cluster.certs, name)
    with open(path + ".new", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(data)
    os.replace(path + ".new", path)


def pem(name):
    return read(os.path.join(cluster.certs, name))


class Paused:
    """A run that is stopped after its first steps, so that it has not ended when the block ends."""

    def __init__(self, session, name):
        log = os.path.join(cluster.dir, "runs", name, "metrics.jsonl")
        self.process = subprocess.Popen([MASTER, "train", session], cwd=cluster.dir, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 20 * SLOW
        while not (os.path.exists(log) and os.path.getsize(log)) and time.monotonic() < end:
            time.sleep(0.005)

    def __enter__(self):
        self.process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)


def broken_files_change_nothing(first, old):
    """After each broken file the old certificate stays in use, and the log has the reason."""
    forge("past", [("URI", "spiffe://test/w1"), ("IP", "127.0.0.1")], end="20210101000000Z")
    forge("nameless", [("IP", "127.0.0.1")])
    forge("client", [("URI", "spiffe://test/w1"), ("IP", "127.0.0.1")], use="clientAuth")
    others = [(pem(n + ".pem"), pem(n + ".key")) for n in ("past", "nameless", "client")]
    for bad in ({"w1.pem": b"garbage\n"}, {"w1.key": pem("master.key")}, {"ca.pem": b""},
                *({"w1.pem": cert, "w1.key": key} for cert, key in others)):
        for name, data in bad.items():
            put(name, data)
        hup("certificates NOT reloaded, the old ones stay in use")
        for name in bad:
            put(name, old[name])
        assert server_certificate() == first
    hup("certificates reloaded")
    assert server_certificate() == first


def a_new_certificate_is_shown(first, old):
    """In the first handshake after the reload, not before."""
    cluster.issue("w1", "spiffe://test/w1", "--force")
    assert pem("w1.pem") != old["w1.pem"]
    assert server_certificate() == first
    hup("certificates reloaded")
    assert server_certificate() != first
    leaf = pem("w1.pem").decode().split("-----END")[0] + "-----END CERTIFICATE-----\n"
    assert server_certificate() == ssl.PEM_cert_to_DER_cert(leaf)


def another_ca_is_believed_while_it_is_there(old):
    other = os.path.join(cluster.dir, "second")
    master("certs", "init", "--dir", other)
    master("certs", "issue", "master", "--dir", other, "--uri", NAMES["URI"])
    put("../second/servers-ca.pem", old["ca.pem"])
    refused(grpc.StatusCode.UNAVAILABLE, "certificate verify failed", "master", other, "servers-ca.pem")
    put("ca.pem", old["ca.pem"] + read(os.path.join(other, "ca.pem")))
    hup("certificates reloaded")
    with Caller(cluster.ports[0], other, ca="servers-ca.pem") as c:
        c.hello()
    put("ca.pem", old["ca.pem"])
    hup("certificates reloaded")
    refused(grpc.StatusCode.UNAVAILABLE, "certificate verify failed", "master", other, "servers-ca.pem")


@suite.test
def certificate_reload_keeps_a_running_session():
    steps, worker = 600, cluster.workers[0]
    alone = cluster.train(cluster.session("alone", STAGES % steps))
    assert alone.returncode == 0, alone.stderr
    with Paused(cluster.session("reloaded", STAGES % steps), "reloaded") as run:
        assert "session=reloaded" in worker.text() and "close session=reloaded" not in worker.text()
        first = server_certificate()
        old = {name: pem(name) for name in ("w1.pem", "w1.key", "ca.pem")}
        broken_files_change_nothing(first, old)
        a_new_certificate_is_shown(first, old)
        another_ca_is_believed_while_it_is_there(old)
        assert "close session=reloaded" not in worker.text()
    out, errors = run.process.communicate(timeout=60 * SLOW)
    assert run.process.returncode == 0, errors
    runs = [os.path.join(cluster.dir, "runs", n) for n in ("alone", "reloaded")]
    assert checkpoint_tensors(runs[0], steps) == checkpoint_tensors(runs[1], steps)


if pyclient.MISSING:
    print("skip tls:", pyclient.MISSING)
else:
    with Cluster(1, limits="log: {level: debug}\n") as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=32, side=8)
        suite.main()
