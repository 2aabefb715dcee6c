#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Identities that lose access, beside a training run: an identity that is taken out of `allow`
while it trains, and 300 connections of a certificate that is revoked while it holds them.

usage: attack_revoke.py [SECONDS]      of each attack; default: 6 (`make attacks`)
"""
import os, re, signal, subprocess, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from honest import *

suite = Suite()
cluster = honest = spent = None
HERE = os.path.dirname(os.path.abspath(__file__))
TLS = "key: certs/w1.key"


def reload(allow, says="certificates reloaded"):
    cluster.extra_allow = allow
    path = cluster.worker_config(0)
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace(TLS, TLS + ", crl: certs/crl.pem"))
    since = len(cluster.workers[0].text())
    cluster.workers[0].kill(signal.SIGHUP)
    until(lambda: says in cluster.workers[0].text()[since:])
    return cluster.workers[0].text()[since:]


def revoke(*names):
    done = master("certs", "revoke", *names, "--dir", cluster.certs)
    assert done.returncode == 0, done.stderr


def training_as(who, name):
    path = cluster.session(name, BODY)
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace("certs/master.", f"certs/{who}."))
    return Running([MASTER, "train", path], cwd=cluster.dir, stderr=subprocess.STDOUT)


@suite.test
@measured
def identity_removed_during_a_run_is_stopped():
    """Its run ends after a step, and its later attempts slow the honest run only a little."""
    reload(ALLOW)
    before = honest.rate(2)
    with training_as("other", f"removed-{time.monotonic_ns()}") as r:
        assert trains(r.process)
        at = time.monotonic()
        reload(ALLOW.replace("spiffe://test/other", "spiffe://test/nobody"))
        said = r.process.stdout.read()
        assert r.process.wait(60 * SLOW) != 0 and "is no longer allowed" in said, said
        gone = time.monotonic() - at
    flood = [sys.executable, os.path.join(HERE, "attack_connections.py"), "flood", str(cluster.ports[0]), cluster.certs,
             "other", "300", ""]
    inside, after = beside(honest, before, flood, SECONDS)
    spent.check()
    print(f"# identity_removed_during_a_run_is_stopped: gone in {gone:.1f} s, {inside:.2f} of the rate inside, {after:.2f} after")


@suite.test
@measured
def revoked_certificate_loses_its_300_connections():
    """The reload ends its open connections, and new ones are refused."""
    cluster.issue("other", "spiffe://test/other", "--force")
    reload(ALLOW)
    before = honest.rate(2)
    flood = [sys.executable, os.path.join(HERE, "attack_connections.py"), "flood", str(cluster.ports[0]), cluster.certs,
             "other", "300", ""]
    holder = subprocess.Popen(flood, stdin=subprocess.DEVNULL)
    try:
        time.sleep(4)
        revoke("other")
        said = reload(ALLOW, "end connections=")
        ended = int(re.search(r"end connections=(\d+)", said)[1])
        assert ended >= 16, ended
    finally:
        holder.kill()
        holder.wait()
    inside, after = beside(honest, before, flood, SECONDS)
    spent.check()
    print(f"# revoked: {ended} connections ended, {inside:.2f} of the rate inside, {after:.2f} after")


@suite.test
def honest_run_keeps_its_bits_and_a_small_log():
    print(f"# log: {spent.log_an_hour() / 1024:.0f} KiB an hour")
    assert spent.log_an_hour() < LOG
    honest.same_bits()


if __name__ == "__main__":
    SECONDS = float(sys.argv.pop(1)) if sys.argv[1:2] and sys.argv[1][0].isdigit() else 6.0
    if pyclient.MISSING:
        print("skip attack_revoke:", pyclient.MISSING)
        sys.exit(0)
    with start() as cluster:
        revoke()
        honest = Honest(cluster, "honest")
        spent = Spent(cluster.workers[0])
        suite.main()
