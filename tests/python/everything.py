#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make python-test`: mypy over the package, and each tests/python/*.py with the newest torch of
PyPI, then with Debian's where it is installed.

usage: everything.py [--env FOLDER] [NAME...]    NAME: torch_remote, mypy, ...
"""
import argparse, glob, os, subprocess, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
import pypi

PACKAGES = ("torch", "numpy", "cffi", "mypy", "tqdm", "pandas", "transformers", "peft", "ipykernel", "jupyter_client")
CPU = "--extra-index-url", "https://download.pytorch.org/whl/cpu"


def scripts(names):
    found = sorted(glob.glob(os.path.join(HERE, "torch_*.py")) + glob.glob(os.path.join(HERE, "test_*.py")))
    return [p for p in found if not names or os.path.basename(p)[:-3] in names]


def mypy(python):
    """Strictly, over the package as it is in the tree."""
    with tempfile.TemporaryDirectory() as cache:
        return subprocess.run([python, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", cache],
                              cwd=os.path.join(ROOT, "deploy/python")).returncode


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    p.add_argument("--env", default=os.path.join(ROOT, "build/python-env"))
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    a.env = os.path.abspath(a.env)  # mypy runs in another folder
    wrong = None if pypi.works(a.env, *PACKAGES) else pypi.install(a.env, *PACKAGES, sources=(CPU, []))
    if wrong:
        sys.exit(f"everything.py: {wrong}")
    pythons = [pypi.interpreter(a.env)]
    if not subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        pythons.append(sys.executable)
    failed = [] if a.names and "mypy" not in a.names or not mypy(pythons[0]) else ["mypy"]
    for python in pythons:
        for path in scripts(a.names):
            print(f"== {os.path.basename(path)} with {python}", flush=True)
            # freed memory is overwritten, so that what reads it is wrong each time; not where times
            # count
            env = {**os.environ, "PYTHONFAULTHANDLER": "1", **({} if path.endswith("_pace.py") else {"PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "85"})}
            if subprocess.run([python, path], env=env).returncode:
                failed.append(f"{os.path.basename(path)} with {python}")
    print("\n".join(f"FAIL {f}" for f in failed) or "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
