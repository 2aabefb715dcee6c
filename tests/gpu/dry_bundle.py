#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make gpu-dry`: unpacks the bundle as a user would, in an empty folder and without a network, and
runs every piece of run.py on the simulated device, beside the newest PyTorch.

usage: dry_bundle.py OUT [PIECE...]   OUT has gpu-bundle.tar.xz
PyTorch and transformers come from PyPI, into build/transformers.
"""
import os, re, subprocess, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
import pypi

ENVIRONMENT = os.path.abspath(os.path.join(HERE, "../../build/transformers"))
PACKAGES = ("torch", "transformers", "numpy")
MOST = 60 << 20
# Runs a command in a network namespace that has only the loopback interface.
ALONE = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def main():
    packed = os.path.join(os.path.abspath(sys.argv[1]), "gpu-bundle.tar.xz")
    wrong = None if pypi.works(ENVIRONMENT, *PACKAGES) else pypi.install(ENVIRONMENT, *PACKAGES)
    if wrong:
        sys.exit(wrong)
    alone = ALONE if subprocess.run([*ALONE, "true"], stderr=subprocess.DEVNULL).returncode == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-C", folder, "-xf", packed], check=True)
        bundle = os.path.join(folder, "gpu-bundle")
        subprocess.run([*alone, pypi.interpreter(ENVIRONMENT), "run.py", "--dry", "sim", "--minutes", "600", *sys.argv[2:]], cwd=bundle,
                       env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": folder})
        with open(os.path.join(bundle, "sim/gpu-dry/results.md")) as f:
            words = re.findall(r"^\| \w+ \| (ok|skipped|FAILED|interrupted) \|", f.read(), re.M)
    size, failed = os.path.getsize(packed), len(words) - words.count("ok") - words.count("skipped")
    network = "no network" if alone else "with a network: to have none needs root"
    print(f"{words.count('ok')} ok, {words.count('skipped')} skipped, {failed} failed; {size / (1 << 20):.1f} of {MOST >> 20} MiB; {network}")
    sys.exit(1 if failed or size > MOST else 0)


main()
