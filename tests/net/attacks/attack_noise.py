#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Callers whose requests write log lines without end, beside a training run: calls that are
denied, sessions that are opened and closed, modules that cannot be loaded, handshakes that are
refused. The log stays small and says how much it left out.

usage: attack_noise.py [SECONDS]      default: 75 (`make attacks`)
"""
import os, ssl, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from honest import *

suite = Suite()
cluster = honest = None


# ---- the attacker --------------------------------------------------------------------------------

def denied(port, certs):
    with Caller(port, certs, name="eye") as c:
        while True:
            c.raw("OpenSession", b"")
            time.sleep(0.001)


def opens(port, certs):
    with Caller(port, certs, name="other") as c:
        while True:
            try:
                s = c.open(name="again")
                c.raw("LoadModule", pb.LoadModuleRequest(session=s.id, epoch=1, name="none").SerializeToString())
                c.raw("CloseSession", pb.CloseSessionRequest(session=s.id, epoch=1).SerializeToString())
            except grpc.RpcError:
                time.sleep(0.01)


def strangers(port, certs):
    while True:
        with Caller(port, certs, name="stranger") as c:
            c.raw("Hello", b"", timeout=2)
        time.sleep(0.005)


def make_noise(port, certs):
    for what in (denied, opens, strangers):
        threading.Thread(target=what, args=(port, certs), daemon=True).start()
    threading.Event().wait()


# ---- beside it -----------------------------------------------------------------------------------

@suite.test
def repeated_refusals_leave_a_small_log():
    worker = cluster.workers[0]
    before, spent = honest.rate(3), Spent(worker)
    command = [sys.executable, os.path.abspath(__file__), "noise", str(cluster.ports[0]), cluster.certs]
    inside, after = beside(honest, before, command, SECONDS)
    spent.check()
    grown, step = spent.log_an_hour(), honest.same_bits()
    print(f"# {inside:.2f} of the rate inside, {after:.2f} after; {grown / 1024:.0f} KiB of log an hour; "
          f"equal bits after {step} steps")
    # a shorter run has little but the first line of each kind, which is written at once
    if SECONDS > 60:
        assert grown < LOG, f"{grown:.0f} bytes of log an hour"
        for what in ("denied calls of spiffe://test/eye", "refused connections of spiffe://test/stranger"):
            assert re.search(r"\.\.\. and [\d,]+ more like it in the last minute: " + what, worker.text()), what


if sys.argv[1:2] == ["noise"]:
    make_noise(int(sys.argv[2]), sys.argv[3])
elif pyclient.MISSING:
    print("skip attack_noise:", pyclient.MISSING)
else:
    SECONDS = float(sys.argv.pop(1)) if sys.argv[1:2] and sys.argv[1][0].isdigit() else 75.0
    with start() as cluster:
        honest = Honest(cluster, "honest")
        suite.main()
