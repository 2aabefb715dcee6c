# SPDX-License-Identifier: Apache-2.0
"""tests/run-tests adds up the processor time of the tests of the simulated device, children
included, and fails above a limit; all tests of that device are among those it counts. It counts a
program that cannot be started as failed, and continues."""
import glob, os, re, subprocess, sys, tempfile

TESTS = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, TESTS)
import suite

SCRIPT = """import subprocess, sys
# {0}
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.2: pass"], check=True)
print("ok it_computes")
"""
COUNTED = ("net/training/test_cuda.py", "net/training/test_demo_cuda.py", "net/api/test_seeds_cuda.py",
           "gpu/test_sim_worker.py", "gpu/plants/test_plants.py")


def said(folder, names, most="180", pace="1000"):
    """The runner's output for one script, with a limit of `most` seconds, if the machine's test
    loop takes `pace` seconds."""
    script = os.path.join(folder, "test_it.py")
    with open(script, "w") as f:
        f.write(SCRIPT.format(names))
    return runner(folder, script, CLV_TEST_SIMULATED_S=most, CLV_TEST_PACE_S=pace)


def runner(folder, *programs, **env):
    done = subprocess.run([sys.executable, os.path.join(TESTS, "run-tests"), "--out", folder, *programs], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=dict(os.environ, **env))
    return done.returncode, done.stdout


def main():
    with tempfile.TemporaryDirectory(prefix="sim-") as folder:
        worker = "gpu/" + "cleave-worker"
        results = {"within": said(folder, worker), "over": said(folder, worker, "0.15"),
                   "slow": said(folder, worker, "0.15", "0.0001"), "another": said(folder, "no device")}
        missing = runner(folder, os.path.join(folder, "gone"), os.path.join(folder, "test_it.py"))
    programs = glob.glob(os.path.join(TESTS, "gpu", "test_*.c"))
    good = {
        "a_test_within_its_time_passes": results["within"][0] == 0
        and re.search(r"^simulated device: 0\.[2-9] s of a core in 1 programs", results["within"][1], re.M),
        "a_test_that_takes_more_fails": results["over"][0] == 1 and "FAIL simulated device" in results["over"][1]
        and "1 passed, 1 failed" in results["over"][1],
        "a_slow_machine_is_told_and_given_more": results["slow"][0] == 0
        and re.search(r"wanted: at most 0\.15 x \d+\.\d+ = \d+ s \(the pace of this machine now\)", results["slow"][1]),
        "a_fast_one_is_not_given_less": "at most 180 x 1.00 = 180 s" in results["within"][1],
        "other_tests_are_not_counted": results["another"][0] == 0 and "simulated" not in results["another"][1],
        "a_program_that_cannot_be_started_has_failed": missing[0] == 1 and "cannot be started: " in missing[1]
        and "1 passed, 1 failed" in missing[1],
        "the_tests_of_the_device_are_counted": len(programs) > 2 and
        all(suite.on_simulation(os.path.join(TESTS, path), "build") for path in (*COUNTED, *programs)),
    }
    for name, fine in good.items():
        print("ok" if fine else "not ok", name)
    print("" if all(good.values()) else results)
    return not all(good.values())


sys.exit(main())
