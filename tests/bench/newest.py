# SPDX-License-Identifier: Apache-2.0
"""Installs the newest PyTorch beside Debian's: in a virtual environment under build/, from
PyTorch's index of builds without CUDA, or else from PyPI (several GiB, because those builds come
with CUDA)."""
import os

from harness import RESULTS
import pypi

FOLDER = os.path.abspath(os.path.join(RESULTS, "../newest-torch"))  # RESULTS may not be there yet
INSTALLED = pypi.interpreter(FOLDER)
PACKAGES = "torch", "numpy"  # PyTorch does not install NumPy
SOURCES = (["--index-url", "https://download.pytorch.org/whl/cpu"], [])


def python(install):
    """(the interpreter with the newest PyTorch, None), or (None, the reason why there is none)."""
    if pypi.works(FOLDER, *PACKAGES):
        return INSTALLED, None
    if not install:
        return None, "not installed, and --quick installs nothing"
    wrong = pypi.install(FOLDER, *PACKAGES, sources=SOURCES)
    return (None, wrong) if wrong else (INSTALLED, None)
