#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the demo with control messages that are dropped, doubled and delayed: it gives the same
weights, losses and accuracy as without. `make faults` runs it.

usage: demo.py      CLEAVE_TEST_BIN is the folder of the binaries
"""
import glob, os, re, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
from cluster import BIN, run

SEED = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"  # the demo itself draws one
PLAN = "7:30:30:40"  # seed, percent dropped, percent doubled, maximum delay in milliseconds
DEMO = os.path.join(HERE, "../../deploy/demo.sh")


def with_seed(folder, scratch):
    """A folder of programs whose master has the seed; workers refuse what is for session files."""
    bin = os.path.join(scratch, "bin")
    os.mkdir(bin)
    os.symlink(os.path.abspath(os.path.join(folder, "cleave-worker")), os.path.join(bin, "cleave-worker"))
    master = os.path.join(bin, "cleave-master")
    with open(master, "w") as f:
        f.write(f'#!/bin/sh\nCLEAVE_TRAIN__SEED={SEED} exec "{os.path.abspath(folder)}/cleave-master" "$@"\n')
    os.chmod(master, 0o755)
    return bin


def demo(folder, **env):
    """({name: content} of the run's files, number of messages dropped, doubled or delayed)"""
    with tempfile.TemporaryDirectory(prefix="cleave-demo-") as scratch:
        done = run(DEMO, with_seed(folder, scratch), env={"TMPDIR": scratch, **env}, timeout=900)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        said = done.stdout + done.stderr
        found = {}
        for path in glob.glob(f"{scratch}/*/runs/**/*", recursive=True):
            if path.endswith((".safetensors", "metrics.jsonl", "evaluations.jsonl")):
                with open(path, "rb") as f:
                    found[path.split("/runs/")[1]] = f.read()
        for path in glob.glob(f"{scratch}/*/worker-*.log"):
            with open(path) as f:
                said += f.read()
    touched = re.findall(r"^faults \w+ \d+ dropped (\d+) doubled (\d+) delayed (\d+)$", said, re.M)
    accuracy = re.search(r"test accuracy (\d+\.\d+) %", said)
    return found, [sum(map(int, n)) for n in zip(*touched)], accuracy and accuracy.group(1)


def main():
    wanted, none, accuracy = demo(BIN)
    got, touched, again = demo(os.path.join(BIN, "faults"), CLEAVE_TEST_FAULTS=PLAN)
    assert wanted and not none and len(wanted) > 2, sorted(wanted)
    different = [name for name in sorted(wanted.keys() | got.keys()) if wanted.get(name) != got.get(name)]
    assert not different, f"other bytes in {different}"
    assert len(touched) == 3 and all(touched), f"the injector was idle: {touched}"
    print(f"ok the demo under faults: {accuracy} % and {again} %, {len(wanted)} files alike, messages dropped, "
          f"doubled, delayed: {touched}")


if __name__ == "__main__":
    main()
