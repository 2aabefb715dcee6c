# SPDX-License-Identifier: Apache-2.0
"""A small tree in which faults of a check are planted, one at a time."""
import os, shutil, subprocess, sys, tempfile

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def put(path, text, how="a"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, how) as f:
        f.write(text)


def plant(folder, changes):
    """(path, text to append; None: removed; `=` before the path: instead of what is there). Returns
    what stood there."""
    before = {}
    for path, text in changes:
        how, path = "w" if path[:1] == "=" else "a", os.path.join(folder, path.lstrip("="))
        before[path] = None
        if os.path.exists(path):
            with open(path) as f:
                before[path] = f.read()
        if text is None:
            os.remove(path)
        else:
            put(path, text, how)
    return before


def put_back(before):
    for path, text in before.items():
        if text is None:
            os.remove(path)
        else:
            put(path, text, "w")


def run(folder, command):
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    env["CLEAVE_TEST_BIN"] = os.path.join(folder, "build/release")
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # what is planted next may have the same size and second
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def judge(files, scripts, cases):
    """cases: what -> (changes, command, exit code, what the output has). 0 when all are as
    wanted."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="cleave-test-") as folder:
        for path, text in files.items():
            put(os.path.join(folder, path), text)
        for name in scripts:
            shutil.copy(os.path.join(TESTS, name), os.path.join(folder, "tests", name))
        for what, (changes, command, code, says) in cases.items():
            before = plant(folder, changes)
            got, output = run(folder, command)
            put_back(before)
            good = got == code and says in output
            failed += not good
            print(("ok " if good else f"{output}\n'{says}' is not there, or exit {got}\nnot ok ") + what.replace(" ", "_"), flush=True)
    return 1 if failed else 0
