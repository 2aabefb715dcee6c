"""Certificates that a list revokes: refused in handshakes of masters and workers, and between
workers; a reload ends open connections. A missing list is an error and admits no certificate."""
import os, re, signal, socket, ssl, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
from pyclient import *

suite = Suite()
cluster = None
LINEAR = "layers: [{op: linear, out: 10}]"
BODY = (IMAGE_DATA + "stages:\n  - {name: a, at: w1, layers: [{op: flatten}, {op: linear, out: 10}]}\n"
        "  - {name: b, at: w2, " + LINEAR + "}\n  - {name: c, at: master, " + LINEAR + "}\n"
        "loss: {kind: cross_entropy}\n"
        "train: {epochs: 1000000, batch: 16, seed: 5, optimizer: {kind: sgd, lr: 0.05}}\n"
        "transfer: direct\nprivacy: {raw_input_leaves: true}\n")


def hup(i, says="certificates reloaded", crl="crl.pem"):
    path = cluster.worker_config(i)
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace(f"key: certs/w{i + 1}.key", f"key: certs/w{i + 1}.key, crl: certs/{crl}"))
    worker = cluster.workers[i]
    since = len(worker.text())
    worker.kill(signal.SIGHUP)
    until(lambda: re.search(says, worker.text()[since:]))
    return worker.text()[since:]


def revoke(*names):
    done = master("certs", "revoke", *names, "--dir", cluster.certs)
    assert done.returncode == 0, done.stderr


def session(name, who="master", extra=""):
    path = cluster.session(name, BODY)
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace("certs/master.", f"certs/{who}.").replace(f"{who}.key}}", f"{who}.key{extra}}}"))
    return path


def running(path):
    return Running([MASTER, "train", path], cwd=cluster.dir, stderr=subprocess.STDOUT)


def answers(name, port=0):
    with Caller(cluster.ports[port], cluster.certs, name=name) as c:
        try:
            return c.hello()
        except grpc.RpcError:
            return None


def alert(name):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    c.load_cert_chain(os.path.join(cluster.certs, name + ".pem"), os.path.join(cluster.certs, name + ".key"))
    c.set_alpn_protocols(["h2"])
    try:
        c.wrap_socket(socket.create_connection(("127.0.0.1", cluster.ports[0]), 30 * SLOW)).recv(1)
    except OSError as e:
        return str(e)


@suite.test
def missing_crl_file_fails_the_reload():
    said = hup(0, "NOT reloaded", "none.pem")
    assert "none.pem" in said and "tls.crl" in said, said
    assert answers("master")
    revoke()
    hup(0)
    hup(1)
    assert answers("master") and answers("guest")


@suite.test
def revoked_caller_is_disconnected_at_once():
    with running(session("guest", "guest")) as r, Caller(cluster.ports[0], cluster.certs, name="guest") as standing:
        assert trains(r.process)
        standing.hello()
        revoke("guest")
        assert "end connections=" in hup(0)
        said = r.process.stdout.read()
        assert r.process.wait(60 * SLOW) != 0, said
        try:
            standing.hello()
            raise AssertionError("a call of a revoked certificate was let in")
        except grpc.RpcError:
            pass
    until(lambda: "close session=guest" in cluster.workers[0].text())
    assert "certificate revoked" in alert("guest")
    assert answers("master") and not answers("guest")
    done = run(MASTER, "doctor", session("asks", "guest"), cwd=cluster.dir)
    assert "our certificate is revoked" in done.stdout, done.stdout
    shown = master("certs", "show", os.path.join(cluster.certs, "guest.pem"))
    assert "REVOKED" in shown.stdout, shown.stdout


@suite.test
def revoked_worker_is_refused_by_master_and_peers():
    """By its master, and by a worker that has a link to it."""
    with running(session("direct")) as r:
        assert trains(r.process)
        revoke("w2")
        hup(0)
        said = r.process.stdout.read()
        assert r.process.wait(60 * SLOW) != 0 and "w2" in said, said
    done = cluster.train(session("refuses", extra=", crl: certs/crl.pem"))
    assert done.returncode == 4 and "revoked" in done.stderr, (done.returncode, done.stderr)
    done = cluster.train(session("through"))
    assert done.returncode != 0 and "w2" in done.stderr, (done.returncode, done.stderr)


@suite.test
def doctor_reports_the_crl_expiry():
    path = session("listed", extra=", crl: certs/crl.pem")
    done = run(MASTER, "doctor", path, cwd=cluster.dir)
    assert "the list holds for " in done.stdout, done.stdout
    master("certs", "revoke", "--dir", cluster.certs, "--days", "3")
    done = run(MASTER, "doctor", path, cwd=cluster.dir)
    assert re.search("FAIL  revoked certificates.*[23] more days", done.stdout), done.stdout
    hup(0, "the list of tls.crl expires in 7[12] hours")


if pyclient.MISSING:
    print("skip revoke:", pyclient.MISSING)
else:
    with Cluster(2, extra_allow='  - {identity: "spiffe://test/guest", role: master}\n') as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=64, n_test=16, side=8)
        cluster.issue("guest", "spiffe://test/guest")
        suite.main()
