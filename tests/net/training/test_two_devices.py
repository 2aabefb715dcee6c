#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions over two simulated devices of one worker: they give the bits of one device, and copy
values without the host. If one device has too little memory, or is lost, sessions on the other
continue."""
import concurrent.futures, contextlib, json, os, re, sys, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *

lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
suite = Suite()
STEPS, BATCH, SLICES = 4, 12, 2
NET = ["{op: conv2d, out: 4, kernel: 3, pad: 1}, {op: relu}, {op: maxpool, kernel: 2}",
       "{op: conv2d, out: 6, kernel: 3, pad: 1}, {op: batchnorm}, {op: relu}",
       "{op: flatten}, {op: linear, out: WIDTH}, {op: gelu}",
       "{op: linear, out: 10}"]
# Where the second and the third stage are; the others are at the master. U shape.
FIRST, SECOND, BOTH, BACK = [f"cuda:{i}" for i in "00"], [f"cuda:{i}" for i in "11"], ["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]


def body(devices, steps=STEPS, width=12):
    places = ["at: master", *(f"at: w1, device: \"{d}\"" for d in devices), "at: master"]
    stages = "".join(f"  - {{name: s{i}, {at}, layers: [{layers.replace('WIDTH', str(width))}]}}\n"
                     for i, (at, layers) in enumerate(zip(places, NET)))
    return (f"{IMAGE_DATA}stages:\n{stages}loss: {{kind: cross_entropy}}\n"
            f"train: {{epochs: 9, max_steps: {steps}, batch: {BATCH}, seed: {SEED}, optimizer: {{kind: adam, lr: 0.003}}}}\n"
            f"pipeline: {{micro_batches: {SLICES}}}\nlog: {{every: 1}}\ncheckpoint: {{every_steps: 100000}}\n")


@contextlib.contextmanager
def two_devices(limits="", **env):
    """A cluster with such a worker, and the port of its metrics."""
    port = free_port()
    with Cluster(1, limits=f"device: cuda\nmetrics: {{listen: \"127.0.0.1:{port}\"}}\n{limits}",
                 env={"CLV_SIM_DEVICES": "2", **env}) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        yield c, port


def metric(port, name, label):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        return {k: float(n) for k, n in re.findall(rf'^{name}\{{{label}="(.*)"\}} (\S+)', page.read().decode(), re.M)}


def moved(port):
    return metric(port, "cleave_worker_device_copy_bytes_total", "way")


def held(port):
    return metric(port, "cleave_worker_device_memory_bytes", "device")


@suite.test
def stages_on_two_devices_give_the_bits_of_one_device():
    found = []
    with two_devices() as (c, port):
        ways = {"first": (FIRST, "device"), "both": (BOTH, "peer"), "back": (BACK, "peer"), "second": (SECOND, "device")}
        for tag, (devices, way) in chosen(ways, "first", "both").items():
            before = moved(port)
            weights, log, _ = c.trained(tag, body(devices), STEPS)
            found.append((weights, [json.loads(line)["loss"] for line in log.splitlines()]))
            grown = {k: n - before[k] for k, n in moved(port).items()}
            assert grown[way] > 0 and grown["host"] == 0 and sum(grown.values()) == grown[way], (tag, grown)
        until(lambda: not any(held(port).values()))
    with two_devices(CLV_SIM_SEED="7") as (c, _):
        weights, log, _ = c.trained("late", body(BOTH), STEPS)
        found.append((weights, [json.loads(line)["loss"] for line in log.splitlines()]))
    assert all(f == found[0] for f in found[1:]), [f[1] for f in found]


def refused(c, tag, text, *words):
    done = c.train(c.session(tag, text))
    said = done.stdout + done.stderr
    assert done.returncode not in (0, 101) and all(w in said for w in words), said


@suite.test
def each_device_is_charged_for_its_own_modules():
    """A module that is too large for the first device is on the second, and the first has no bytes
    of it."""
    with two_devices("device_memory: 3MiB\n") as (c, port):
        refused(c, "large", body(BOTH, width=4096), "cuda:1", "device_memory")
        until(lambda: not any(held(port).values()))
        c.trained("small", body(BOTH), STEPS)


@suite.long
def out_of_memory_on_one_device_fails_only_its_session():
    with two_devices(CLV_SIM_MEMORY=str(3 << 20)) as (c, _), concurrent.futures.ThreadPoolExecutor() as beside:
        other = beside.submit(c.trained, "beside", body(FIRST, steps=12), 12)
        refused(c, "large", body(BOTH, width=4096), "cuda:1")
        beside_it = other.result()[0]
        assert beside_it == c.trained("alone", body(FIRST, steps=12), 12)[0]
        c.trained("small", body(BOTH), STEPS)


@suite.test
def lost_device_does_not_affect_sessions_on_the_other():
    with two_devices(CLV_SIM_FAIL_LAUNCH="60", CLV_SIM_FAILING="2") as (c, _), concurrent.futures.ThreadPoolExecutor() as beside:
        other = beside.submit(c.trained, "beside", body(FIRST, steps=12), 12)
        refused(c, "falls", body(BOTH, steps=12), "device 1")
        beside_it = other.result()[0]
        assert beside_it == c.trained("alone", body(FIRST, steps=12), 12)[0]
        refused(c, "gone", body(SECOND), "device 1")
        assert c.workers[0].process.poll() is None, c.workers[0].text()[-3000:]


def modules_shown(c):
    """stage -> device, of the sessions that the worker has."""
    shown = json.loads(master("status", c.session("kinds", mixed()), "--json", env=TESTING).stdout)
    return {m["stage"]: m["device"] for s in shown["sessions"] for m in s["modules"]}


TESTING = {"CLEAVE_TEST_OPS": "1"}  # the op that waits


def mixed():
    """It goes on until somebody ends it, ten steps a second, so that two cores have time to
    look."""
    text = body(["cuda", "cpu"], steps=1000000).replace("epochs: 9", "epochs: 100000")
    return text.replace(NET[3], f"{{op: wait, forward_ms: 50}}, {NET[3]}")


@suite.test
def doctor_shows_the_device_of_each_stage():
    """Its processor has an instruction set that the master's has not, and its device a capability
    that nobody else has named. Both instruction sets are set, since the suite may run as on an
    older processor."""
    older, newer = ({"ONEDNN_MAX_CPU_ISA": isa, "DNNL_MAX_CPU_ISA": isa} for isa in ("SSE41", "ALL"))
    host = {**TESTING, **newer}
    with two_devices(CLV_SIM_CAPABILITY="75", **older) as (c, _):
        done = master("doctor", c.session("kinds", mixed()), cwd=c.dir, env=host)
        assert done.returncode == 1, done.stdout + done.stderr
        for words in (r"ok +w1 +stages on cuda:0: s1\n", r"ok +w1 +computes on cuda:0: cuda-sim, sm_75, simulation; ",
                      r"ok +w1 +stages on cpu: s2\n", r"FAIL +w1 +computes with sse41, this master with (?!sse41)"):
            assert re.search(words, done.stdout), (words, done.stdout)
        plan = master("plan", c.session("kinds", mixed()), "--ask", cwd=c.dir, env=host)
        assert plan.returncode == 0, plan.stdout + plan.stderr
        for words in (r"stage 's0' computes on cpu of master: cpu, (?!sse41)\w+, ", r"stage 's2' computes on cpu of w1: cpu, sse41, ",
                      r"stage 's1' computes on cuda:0 of w1: cuda-sim, sm_75, simulation\n"):
            assert re.search(words, plan.stdout), (words, plan.stdout)
        plan = master("plan", c.session("kinds", mixed()), "--ask", "--json", cwd=c.dir, env=host).stdout.splitlines()
        assert json.loads(plan[-2]) == {"stage": "s1", "node": "w1", "device": "cuda:0", "kind": "cuda-sim",
                                        "isa": "sm_75", "libraries": "simulation"}, plan
        train = subprocess.Popen([MASTER, "train", c.session("kinds", mixed())], cwd=c.dir, text=True, env={**os.environ, **TESTING},
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            until(lambda: modules_shown(c) == {"s1": "cuda:0", "s2": "cpu"})
            text = master("status", c.session("kinds", mixed()), env=TESTING).stdout
            assert "stage s1 on cuda:0 " in text and "stage s2 " in text, text
            assert re.search(r"device cuda:1 \(cuda-sim, sm_75\): ", text), text
        finally:
            train.send_signal(signal.SIGINT)
            said = train.communicate()[0]
        assert "worker w1 computes on cuda:0 (cuda-sim, sm_75): " in said, said


suite.main()
