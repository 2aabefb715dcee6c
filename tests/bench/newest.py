# SPDX-License-Identifier: Apache-2.0
"""The newest PyTorch, beside Debian's: in a virtual environment of its own under build/, from
PyTorch's index of builds for processors, or else from PyPI (several GiB, as those come with
CUDA)."""
import os

from harness import RESULTS
import pypi

FOLDER = os.path.join(RESULTS, "../newest-torch")
INSTALLED = pypi.interpreter(FOLDER)
SOURCES = (["--index-url", "https://download.pytorch.org/whl/cpu"], [])


def python(install):
    """(its interpreter, None), or (None, why there is none)."""
    if pypi.works(FOLDER, "torch"):
        return INSTALLED, None
    if not install:
        return None, "not installed, and --quick installs nothing"
    wrong = pypi.install(FOLDER, "torch", SOURCES)
    return (None, wrong) if wrong else (INSTALLED, None)
