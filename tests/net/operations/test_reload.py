"""SIGHUP: worker.yaml is read again completely. An identity that was removed from `allow` is
refused, and its session ends; an added one is admitted; a file with an error changes nothing."""
import os, re, signal, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
from pyclient import *

suite = Suite()
cluster = None
GUEST = '  - {identity: "spiffe://test/guest", role: master}\n'
BODY = (IMAGE_DATA + "stages:\n  - {name: a, at: w1, layers: [{op: flatten}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\n"
        "train: {epochs: 1000000, batch: 16, seed: 5, optimizer: {kind: sgd, lr: 0.05}}\n"
        "privacy: {raw_input_leaves: true}\n")


def reload(allow=GUEST, extra="", change=lambda text: text, says="certificates reloaded"):
    """Changes worker.yaml and sends SIGHUP. Returns the log from then on, up to the text `says`."""
    cluster.extra_allow = allow
    path = cluster.worker_config(0, extra)
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(change(text))
    worker = cluster.workers[0]
    since = len(worker.text())
    worker.kill(signal.SIGHUP)
    until(lambda: re.search(says, worker.text()[since:]))
    return worker.text()[since:]


def answers(name):
    with Caller(cluster.ports[0], cluster.certs, name=name) as c:
        try:
            return c.hello()
        except grpc.RpcError as e:
            assert e.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED), e
            return None


def running(name):
    path = cluster.session(name, BODY)
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace("certs/master.", "certs/guest."))
    return Running([MASTER, "train", path], cwd=cluster.dir, stderr=subprocess.STDOUT)


@suite.test
def removed_identity_is_cut_off_until_restored():
    assert answers("guest") and answers("master")
    with running("guest") as r, Caller(cluster.ports[0], cluster.certs, name="guest") as standing:
        assert trains(r.process)
        standing.hello()
        reload(allow="")
        assert not answers("guest") and answers("master")
        try:
            standing.hello()
            raise AssertionError("a call on a standing connection was let in")
        except grpc.RpcError as e:
            assert e.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED), e
        said = r.process.stdout.read()
        assert r.process.wait(60 * SLOW) != 0 and "spiffe://test/guest is no longer allowed" in said, said
    until(lambda: "close session=guest" in cluster.workers[0].text())
    reload()
    assert answers("guest")
    with running("again") as r:
        assert trains(r.process)


@suite.test
def reload_applies_new_quotas_and_limits():
    limits = "limits: {sessions: 3, session_bytes: 8MiB}\n"
    reload(extra=limits)
    about = answers("master").about
    assert (about.limits.sessions, about.limits.session_bytes) == (3, 8 << 20), about.limits
    reload(allow=GUEST.replace("role: master", "role: observer"))
    with Caller(cluster.ports[0], cluster.certs, name="guest") as c:
        assert c.stub.Status(pb.StatusRequest()).sees_all
    reload()
    assert answers("master").about.limits.sessions == 8


@suite.test
def invalid_reload_changes_nothing():
    said = reload(allow="", extra="limits: {session: 3}\n", says="NOT reloaded")
    assert "w1.yaml" in said and "session" in said, said
    assert answers("guest")
    said = reload(allow="", extra="artifacts: {a: {file: none, sha256: " + 64 * "0" + "}}\n", says="NOT reloaded")
    assert "artifact 'a'" in said and answers("guest"), said


@suite.test
def reload_names_keys_that_need_a_restart():
    said = reload(change=lambda t: t.replace("name: w1\n", "name: renamed\nlog: {level: debug}\n", 1))
    assert "name has changed and needs a restart" in said and "log.level has changed" in said, said
    assert answers("guest").worker == "w1"
    assert "needs a restart" not in reload()


if pyclient.MISSING:
    print("skip reload:", pyclient.MISSING)
else:
    with Cluster(1, extra_allow=GUEST) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=64, n_test=16, side=8)
        cluster.issue("guest", "spiffe://test/guest")
        suite.main()
