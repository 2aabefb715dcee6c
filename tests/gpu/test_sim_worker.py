# SPDX-License-Identifier: Apache-2.0
"""The worker of the tests has a simulated device, whose memory is all free when the worker ends.
The installed worker has no simulated device."""
import json, os, re, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "net", "lib"))
import cluster as lib
from cluster import BIN, MASTER, SANITIZED, WORKER, Cluster, IMAGE_DATA, Suite, run, synthetic_images

SIM_WORKER = lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
BODY = IMAGE_DATA + """stages:
  - {name: a, at: master, layers: [{op: conv2d, out: 2, kernel: 3}, {op: relu}, {op: flatten}]}
  - {name: b, at: w1, layers: [{op: linear, out: 8}, {op: relu}]}
  - {name: c, at: w1, layers: [{op: linear, out: 10}]}
loss: {kind: cross_entropy}
train: {epochs: 1, max_steps: 2, batch: 4, seed: 1, optimizer: {kind: sgd, lr: 0.01}}
log: {every: 1}
"""
# With a sanitizer a handshake takes seconds; on a busy machine, longer than a worker waits.
PATIENT = "limits: {handshake_timeout: 60s}\n" if SANITIZED else ""
BODY += "limits: {connect_timeout: 120s}\n" if SANITIZED else ""
suite = Suite()


@suite.test
def a_simulated_device_is_listed():
    with Cluster(1, limits="device: auto\n") as c:
        done = run(SIM_WORKER, "devices", os.path.join(c.dir, "w1.yaml"), "--json",
                   env={**os.environ, "CLV_SIM_DEVICES": "2"})
    assert done.returncode == 0, done
    found = [d for d in map(json.loads, done.stdout.splitlines()) if d["device"] != "cpu"]
    assert [d["device"] for d in found] == ["cuda:0", "cuda:1"], found
    assert {d["name"] for d in found} == {"simulated device"}, found


@suite.test
def installed_programs_contain_no_simulated_device():
    for program, has in ((WORKER, False), (MASTER, False), (os.path.join(BIN, "libcleave.so.0"), False), (SIM_WORKER, True)):
        said = subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert " clv_backend_cpu" in said and (" clv_sim_make_vendor" in said) == has, program


@suite.test
def worker_exit_leaves_no_device_memory():
    for seed in ("0", "1", "2"):
        with Cluster(1, limits="device: cuda\n" + PATIENT, env={"CLV_SIM_SEED": seed}) as c:
            os.mkdir(os.path.join(c.dir, "data"))
            synthetic_images(os.path.join(c.dir, "data"))
            c.trained("left", BODY, 2)
            c.train(c.session("cut", BODY.replace("max_steps: 2", "max_steps: 100000")), "--set", "train.max_steps=3")
            code = c.workers[0].stop()
            assert code == 0, (code, c.workers[0].text())


# fault of worker.c -> {build: its message}
PLANTED = {
    "no_wait": {"tsan": "ThreadSanitizer: data race"},
    "default_stream": dict.fromkeys(("release", "debug", "asan", "tsan"), "cuda-sim: the default stream was used"),
    "given": dict.fromkeys(("release", "debug", "asan", "tsan"), "device memory that was given back"),
}


def to_the_log(name):
    """A sanitizer's options, with which it reports where the worker does."""
    supp = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tsan.supp")
    usual = f"suppressions={supp}:exitcode=66" if name == "TSAN_OPTIONS" else "detect_leaks=0"
    return re.sub(r":?log_path=[^:]*", "", os.environ.get(name) or usual)


@suite.test
def planted_fault_is_reported_by_the_sanitizer():
    """The build's sanitizer reports the fault, and reports nothing in the same session without
    it."""
    quiet = {name: to_the_log(name) for name in ("TSAN_OPTIONS", "ASAN_OPTIONS")}
    for plant, builds in PLANTED.items():
        said = builds.get(os.path.basename(os.path.abspath(BIN)))
        if not said:
            continue
        for env, found in ((quiet, False), ({**quiet, "CLV_SIM_PLANT": plant}, True)):
            with Cluster(1, limits="device: cuda\n" + PATIENT, env=env) as c:
                os.mkdir(os.path.join(c.dir, "data"))
                synthetic_images(os.path.join(c.dir, "data"))
                done = c.train(c.session("plant", BODY))
                code = c.workers[0].stop()
                assert found or done.returncode == 0, (plant, done.stderr)
                assert (said in c.workers[0].text()) == found and (code != 0) == found, (plant, code, done.stderr, c.workers[0].text()[-4000:])


suite.main()
