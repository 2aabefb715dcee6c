# SPDX-License-Identifier: Apache-2.0
"""Time that metrics add to a step: the same training with metrics ports at both programs, scraped
every second, and without them, in turns. Run by hand: CLEAVE_TEST_BIN=build/release
tests/bench/metrics_overhead.py [PAIRS]"""
import json, os, resource, statistics, subprocess, sys, threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../net/lib"))
from cluster import *
from measured import BATCH, Measured, body, get

# name, steps, micro-batches
CASES = (("one micro-batch", 1600, 1), ("three micro-batches", 800, 3))


def processor(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scrape(ports, stop):
    while not stop.wait(1):
        for port in ports:
            try:
                get(port)
            except OSError:
                pass


def train(cluster, steps, micro):
    """(milliseconds of a step by the clock, the median of the intervals; milliseconds of processor
    time of a step, of all processes together)"""
    on = isinstance(cluster, Measured)
    port, stop = free_port() if on else None, threading.Event()
    text = body(steps, port, "log: {every: 50, json: true}\ncheckpoint: {every_steps: 1000000}\n")
    session = cluster.session("run", text.replace("micro_batches: 3", f"micro_batches: {micro}"))
    before = sum(processor(w.process.pid) for w in cluster.workers)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.Popen([MASTER, "train", session, "--fresh"], cwd=cluster.dir, stdout=subprocess.PIPE, text=True)
    if on:
        threading.Thread(target=scrape, args=((*cluster.pages, port), stop), daemon=True).start()
    rates = [json.loads(l)["samples_per_s"] for l in run.stdout if '"event":"progress"' in l]
    assert run.wait() == 0
    stop.set()
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    busy += sum(processor(w.process.pid) for w in cluster.workers) - before
    return 1e3 * BATCH / statistics.median(rates[2:]), 1e3 * busy / steps


def compare(with_ports, without, name, steps, micro, pairs):
    found = {True: [], False: []}
    for i in range(pairs):
        for on in ((True, False) if i % 2 else (False, True)):
            found[on].append(train(with_ports if on else without, steps, micro))
    for k, what in ((0, "clock"), (1, "processors")):
        on, off = ([f[k] for f in found[x]] for x in (True, False))
        ratios = sorted(a / b for a, b in zip(on, off))
        print(f"{name:20} {what:11} on {statistics.median(on):.3f} ms, best {min(on):.3f}; "
              f"off {statistics.median(off):.3f} ms, best {min(off):.3f}; "
              f"ratio {statistics.median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}]", flush=True)


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with Measured(2) as with_ports, Cluster(2) as without:
        for c in (with_ports, without):
            os.makedirs(os.path.join(c.dir, "data"))
            synthetic_images(os.path.join(c.dir, "data"), n=20 * BATCH)
        for name, steps, micro in CASES:
            compare(with_ports, without, name, steps, micro, pairs)


if __name__ == "__main__":
    main()
