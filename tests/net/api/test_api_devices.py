#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Devices of one node, for programs and session files: the devices of values and gradients, the
errors if devices differ, and the memory account of each device."""
import os, re, sys, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

PROGRAM = os.path.join(BIN, "net", "api_devices")
suite = Suite()


@suite.test
def values_on_two_devices_of_one_node_cannot_be_mixed():
    """At the master and at a worker, with the same bits."""
    digests = set()
    with Cluster(2, limits="cpu_devices: 2\n") as c:
        for node, other in (("master", "w1"), ("w1", "master"), ("w2", "w1")):
            done = run(PROGRAM, c.session("devices", "transfer: direct\n"), node, other)
            assert done.returncode == 0 and done.stdout.count("ok ") == 2, done.stdout + done.stderr
            digests.add(done.stdout.splitlines()[-1])
    assert len(digests) == 1, digests


def device_bytes(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    return {d: float(n) for d, n in re.findall(r'^cleave_worker_device_memory_bytes\{device="(.*)"\} (\S+)', text, re.M)}


def devices_shown(c):
    """(bytes, limit) of each device of the worker, as status has them."""
    done = master("status", c.session("accounts", ""), "--json")
    assert done.returncode == 0, done.stderr
    return {d["device"]: (d["memory_bytes"], d["memory_limit_bytes"]) for d in json.loads(done.stdout)["devices"]}


@suite.test
def each_device_has_its_own_memory_account():
    port = free_port()
    with Cluster(1, limits=f"cpu_devices: 2\ndevice_memory: 7MiB\nmetrics: {{listen: \"127.0.0.1:{port}\"}}\n") as c:
        program = subprocess.Popen([PROGRAM, c.session("accounts", ""), "w1", "large"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = program.stdout.readline()
        assert line == "placed\n", line + program.communicate("\n")[0]
        held = device_bytes(port)
        assert set(held) == {"cpu", "cpu:0", "cpu:1"} and held["cpu"] == 0, held
        assert 4e6 < held["cpu:0"] == held["cpu:1"] < 7 << 20, held
        shown = devices_shown(c)
        assert shown == {d: (n, 7 << 20) for d, n in held.items()}, (shown, held)
        text = master("status", c.session("accounts", "")).stdout
        assert re.search(r"device cpu:0: \d\.\d MiB of 7\.0 MiB", text), text
        out = program.communicate("\n")[0]
        assert program.returncode == 0, out
        until(lambda: set(device_bytes(port).values()) == {0.0})


@suite.test
def activations_are_charged_to_their_device():
    """Of the calls of two programs. A closed context returns its bytes."""
    port = free_port()
    with Cluster(1, limits=f"cpu_devices: 2\ndevice_memory: 16MiB\nmetrics: {{listen: \"127.0.0.1:{port}\"}}\n") as c:
        done = run(PROGRAM, c.session("activations", ""), "w1", "activations")
        assert done.returncode == 0, done.stdout + done.stderr
        until(lambda: set(device_bytes(port).values()) == {0.0})


STAGES = """data: {{format: npy, root: data, train: [x.npy, y.npy]}}
stages:
  - {{name: a, at: {at}, device: {first}, layers: [{{op: linear, out: 4}}]}}
  - {{name: b, at: {at}, device: {second}, layers: [{{op: tanh}}, {{op: linear, out: 2}}]}}
loss: {{kind: mse}}
privacy: {{raw_input_leaves: true}}
train: {{epochs: 1, batch: 8, shuffle: false, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {{kind: sgd, lr: 0.1}}}}
"""


@suite.test
def stage_devices_in_the_session_file_change_no_loss():
    losses = set()
    with Cluster(1, limits="cpu_devices: 2\n") as c:
        os.mkdir(os.path.join(c.dir, "data"))
        for name, shape in (("x", (16, 3)), ("y", (16, 2))):
            write_npy(os.path.join(c.dir, "data", name + ".npy"), shape, "<f4",
                      b"".join(struct.pack("<f", (i * 37 % 19) / 19) for i in range(shape[0] * shape[1])))
        for name, at, first, second in (("plain", "w1", "cpu", "cpu"), ("two", "w1", "cpu:0", "cpu:1"),
                                        ("home", "master", "cpu:1", "cpu:0")):
            done = c.train(c.session(name, STAGES.format(at=at, first=first, second=second)))
            assert done.returncode == 0, done.stderr
            with open(os.path.join(c.dir, "runs", name, "metrics.jsonl")) as f:
                losses.add(str(re.findall(r'"loss": *([0-9.e-]+)', f.read())))
        done = master("check", c.session("odd", STAGES.format(at="w1", first="cpu:9", second="cpu")), cwd=c.dir)
        assert done.returncode == 3 and "'stages.0.device' must be cpu, cpu:0 to cpu:7" in done.stderr, done.stderr
        done = c.train(c.session("none", STAGES.format(at="w1", first="cpu:5", second="cpu")))
        assert done.returncode and "no device 'cpu:5'; it has: cpu, cpu:0, cpu:1" in done.stderr, done.stderr
    assert len(losses) == 1 and "[]" not in losses, losses


suite.main()
