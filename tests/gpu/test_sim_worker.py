# SPDX-License-Identifier: Apache-2.0
"""The worker of the tests has a simulated device; the one that is installed cannot have it."""
import json, os, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "net", "lib"))
from cluster import BIN, MASTER, WORKER, Cluster, Suite, run

SIM_WORKER = os.path.join(BIN, "gpu/cleave-worker")
suite = Suite()
cluster = Cluster(1, limits="device: auto\n")


def devices(**env):
    done = run(SIM_WORKER, "devices", os.path.join(cluster.dir, "w1.yaml"), "--json", env={**os.environ, **env})
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


@suite.test
def a_simulated_device_is_listed():
    found = [d for d in devices(CLV_SIM_DEVICES="2") if d["device"] != "cpu"]
    assert [d["device"] for d in found] == ["cuda:0", "cuda:1"], found
    assert {d["name"] for d in found} == {"simulated device"}, found


@suite.test
def no_installed_program_has_it():
    for program, has in ((WORKER, False), (MASTER, False), (os.path.join(BIN, "libcleave.so.0"), False), (SIM_WORKER, True)):
        said = subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert " clv_backend_cpu" in said and (" clv_sim_vendor" in said) == has, program


with cluster:
    suite.main()
