# SPDX-License-Identifier: Apache-2.0
"""Python packages that Debian does not have, from PyPI in virtual environments of their own."""
import os
import subprocess
import sys

SECONDS = 1800  # time limit of an installation: the newest PyTorch has 3 GB


def _do(*command):
    """Runs a command. Returns its error, or None."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"takes longer than {SECONDS} s"
    lines = done.stderr.strip().splitlines() or ["failed without a word"]
    return lines[-1] if done.returncode else None


def interpreter(folder):
    return os.path.join(folder, "bin/python")


def works(folder, *packages):
    """Whether the environment exists and has the packages."""
    return os.path.exists(interpreter(folder)) and not _do(interpreter(folder), "-c",
                                                           "import " + ", ".join(packages))


def install(folder, *packages, sources=([],)):
    """Makes the environment, and takes the packages from the first source (options of pip) that has
    them. Returns the error, or None."""
    wrong = _do(sys.executable, "-m", "venv", folder)
    if wrong:
        return f"no virtual environment (Debian: python3-venv): {wrong}"
    for source in sources:
        wrong = _do(interpreter(folder), "-m", "pip", "install", "--retries", "1", "--no-cache-dir",
                    *packages, *source)
        if not wrong:
            return None
    return f"pip does not install {' and '.join(packages)} here: {wrong}"
