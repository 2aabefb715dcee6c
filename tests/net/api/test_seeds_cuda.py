#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The programs of the seeds over workers that compute on a simulated device (`device: cuda`), with
mutual TLS: PyTorch's figures, within the programs' own limits."""
import os, re, sys, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *

lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
suite = Suite()

# Programs that do not run here, and the reason.
LEFT_OUT = {
    "seed001_cpu_gpu_hybrid": "names two devices of a worker: below",
    "seed002_tensor_parallel": "compares bits with the master's, and these are of one kind of device",
    "seed003_rpc_pipeline": "ResNet50: too many values for a simulated device",
    "seed004_spanning_backward": "names two devices: below",
}

# test_cuda.py has convolutions at workers, too.
LONGER = set(SEED_PROGRAMS) - {"seed002_single", "seed002_pipeline"}


def ran(name, cluster, session, env=None):
    """Runs a program, which must pass. Returns the lines before its last one."""
    done = run(os.path.abspath(os.path.join(BIN, "seeds", name)), session, cwd=ROOT, env=env)
    *before, line = done.stdout.splitlines() or [done.stderr[-2000:]]
    print("   ", line)
    assert done.returncode == 0 and re.match(rf"PASS {name}: .*\d", line), (done.returncode, before, line)
    return before


def passes(name):
    def test():
        ran(name, cluster, session)
        for w in cluster.workers:
            assert w.process.poll() is None, f"{w.name} is gone:\n{w.text()[-3000:]}"
    test.__name__ = name
    (suite.long if name in LONGER else suite.test)(test)


for program in SEED_PROGRAMS:
    if program not in LEFT_OUT:
        passes(program)


def moved(port):
    """{way: bytes} that modules of the worker have passed to other modules there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    return {way: int(float(n)) for way, n in re.findall(r'^cleave_worker_device_copy_bytes_total\{way="(.*)"\} (\S+)', text, re.M)}


def on_two_devices(check, sim_seed):
    port = free_port()
    with Cluster(1, limits=f"device: cuda\nmetrics: {{listen: \"127.0.0.1:{port}\"}}\n",
                 env={"CLV_SIM_DEVICES": "2", "CLV_SIM_SEED": str(sim_seed)}) as c:
        before = [{"device": 0, "peer": 0, "host": 0}]

        def went(name, places):
            lines = ran(name, c, c.session("two", ""), env={"PLACES": places})
            now = moved(port)
            by_way = {way: now[way] - before[0][way] for way in now}
            before[0] = now
            return lines, by_way
        check(went)


@suite.test
def seed004_copies_between_devices_without_the_host():
    """Values between two devices do not pass through the host, and have the same bits as on one
    device."""
    # bytes of a value in one direction; its gradient has the same
    hidden, scores = 24 * 32 * 4, 24 * 10 * 4

    def check(went):
        digests = set()
        ways = {"w1/cuda:0 w1/cuda:1": {"device": 2 * scores, "peer": 2 * hidden, "host": 0},
                "w1/cuda:1 w1/cuda:0": {"device": 2 * scores, "peer": 2 * hidden, "host": 0},
                "w1/cuda:1 w1/cuda:1": {"device": 2 * (scores + hidden), "peer": 0, "host": 0}}
        for places, expected in chosen(ways, "w1/cuda:1 w1/cuda:0", "w1/cuda:1 w1/cuda:1").items():
            lines, by_way = went("seed004_spanning_backward", places)
            assert by_way == expected, (places, by_way)
            assert f"gradient of 2.bias: at w1 on {places.split('/')[-1]}" in lines, lines
            digests.add(lines[-1])
        assert len(digests) == 1 and digests.pop().startswith("digest "), digests
    for sim_seed in (0, 1, 5) if LONG else (5,):
        on_two_devices(check, sim_seed)


@suite.test
def seed001_copies_between_devices_without_the_host():
    def check(went):
        _, by_way = went("seed001_cpu_gpu_hybrid", "w1/cuda:0 w1/cuda:1")
        assert by_way["peer"] and not by_way["host"], by_way
    on_two_devices(check, 0)


@suite.test
def every_excluded_seed_exists():
    assert not set(LEFT_OUT) - set(SEED_PROGRAMS), LEFT_OUT


@suite.test
def worker_modules_ran_on_the_device():
    """The workers' modules were on the device, not on the processor beside it."""
    for w in cluster.workers:
        assert "cuda:0" in w.text(), w.text()[-3000:]


with Cluster(3, limits="device: cuda\n") as cluster:
    session = cluster.session("seeds", "")
    suite.main()
