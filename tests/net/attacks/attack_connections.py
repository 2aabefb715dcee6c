#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Floods of connections beside a training run, each from processes of its own: by a caller
that is not in `allow`, by one that is, and by one that sends nothing; with connections that stay
open or that are dialled again and again.

usage: attack_connections.py [SECONDS]      of each flood; default: 6 (`make attacks`)
"""
import os, socket, ssl, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from honest import *

suite = Suite()
cluster = honest = spent = None
PAUSE = 0.005  # seconds between dials
FLOODS = {  # name: (caller, number of open connections, whether they are dialled again)
    "300_from_a_stranger": ("stranger", 300, False),
    "300_from_a_listed_one": ("other", 300, False),
    "half_of_all_places_silent": ("", 128, False),
    "300_silent": ("", 300, True),
    "a_stranger_dials_again": ("stranger", 1, True),
    "a_listed_one_dials_again": ("other", 1, True),
}


# ---- the attacker --------------------------------------------------------------------------------

def dial(port, context):
    s = socket.create_connection(("127.0.0.1", port), 10)
    return context.wrap_socket(s) if context else s


def flood(port, certs, who, n, again):
    """Holds n connections, or dials them again and again, until the process is killed."""
    context = None
    if who:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(os.path.join(certs, who + ".pem"), os.path.join(certs, who + ".key"))
        context.set_alpn_protocols(["h2"])
    held = []
    while True:
        try:
            held.append(dial(port, context))
        except OSError:
            pass
        time.sleep(PAUSE)
        while len(held) > n:
            held.pop(0).close()
        while not again and len(held) == n:
            time.sleep(0.1)
            held = [s for s in held if is_open(s)]


def is_open(s):
    try:
        s.setblocking(False)
        return s.recv(4096) != b""
    except (ssl.SSLWantReadError, BlockingIOError):
        return True
    except OSError:
        return False


# ---- beside it -----------------------------------------------------------------------------------

def attack(name):
    who, n, again = FLOODS[name]

    @measured
    def test():
        command = [sys.executable, os.path.abspath(__file__), "flood", str(cluster.ports[0]), cluster.certs, who, str(n),
                   "again" if again else ""]
        inside, after = beside(honest, honest.rate(2), command, SECONDS)
        spent.check()
        print(f"# {name}: {inside:.2f} of the rate inside, {after:.2f} after")
    test.__name__ = name
    suite.test(test)


@suite.test
def connection_flood_leaves_same_bits_and_a_small_log():
    a_minute = max(0, 60 - (time.monotonic() - spent.at))  # the log limits its lines by the minute
    time.sleep(a_minute)
    grown = spent.log_an_hour()
    step = honest.same_bits()
    print(f"# equal bits after {step} steps; {grown / 1024:.0f} KiB of log an hour")
    assert grown < LOG, f"{grown:.0f} bytes of log an hour"


if sys.argv[1:2] == ["flood"]:
    flood(int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), bool(sys.argv[6]))
elif pyclient.MISSING:
    print("skip attack_connections:", pyclient.MISSING)
else:
    SECONDS = float(sys.argv.pop(1)) if sys.argv[1:2] and sys.argv[1][0].isdigit() else 6.0
    last = suite.tests.pop()
    for each in FLOODS:
        attack(each)
    suite.tests.append(last)
    with start() as cluster:
        honest = Honest(cluster, "honest")
        spent = Spent(cluster.workers[0])
        suite.main()
