# SPDX-License-Identifier: Apache-2.0
"""The newest PyTorch, beside Debian's: in a virtual environment of its own under build/, from PyTorch's
index of builds for processors, or else from PyPI (several GiB, as those come with CUDA)."""
import os
import subprocess

from harness import PYTHON, RESULTS

FOLDER = os.path.join(RESULTS, "../newest-torch")
INSTALLED = os.path.join(FOLDER, "bin/python")
SOURCES = (["--index-url", "https://download.pytorch.org/whl/cpu"], [])


def _do(*command):
    """What went wrong, or None."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        return "takes longer than 900 s"
    lines = done.stderr.strip().splitlines() or ["failed without a word"]
    return lines[-1] if done.returncode else None


def _works():
    return os.path.exists(INSTALLED) and not _do(INSTALLED, "-c", "import torch")


def _install():
    wrong = _do(PYTHON, "-m", "venv", FOLDER)
    if wrong:
        return f"no virtual environment (Debian: python3-venv): {wrong}"
    for source in SOURCES:
        wrong = _do(INSTALLED, "-m", "pip", "install", "--retries", "1", "--no-cache-dir", "torch",
                    *source)
        if not wrong:
            return None
    return f"pip does not install it here: {wrong}"


def python(install):
    """(its interpreter, None), or (None, why there is none)."""
    if _works():
        return INSTALLED, None
    if not install:
        return None, "not installed, and --quick installs nothing"
    wrong = _install()
    return (None, wrong) if wrong else (INSTALLED, None)
