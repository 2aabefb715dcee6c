# SPDX-License-Identifier: Apache-2.0
"""Make the C source of cleave._ffi from cleave.h and shim.h. Needs cffi and a C compiler.

    build_ffi.py --header DIR --out _ffi.c
"""
import argparse
import os
import re
import subprocess
import tempfile

import cffi

HERE = os.path.dirname(os.path.abspath(__file__))
HEADERS = ("stdbool.h", "stddef.h", "stdint.h")
# cffi reads no macros, so the C compiler gives it the values of these.
CONSTANTS = ("CLEAVE_VERSION_MAJOR", "CLEAVE_VERSION_MINOR", "CLEAVE_VERSION_PATCH")


def preprocessed(folder, compiler):
    """The declarations of both headers, without those of the system's."""
    with tempfile.TemporaryDirectory() as empty:
        for name in HEADERS:
            with open(os.path.join(empty, name), "w") as f:
                f.write("\n")
        command = [compiler, "-E", "-P", "-nostdinc", f"-I{empty}", f"-I{folder}", "-D__attribute__(x)=",
                   os.path.join(HERE, "shim.h")]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def declarations(folder, compiler="gcc"):
    """The same for cffi: aliases of old names are macros of the compiler, which it does not
    know."""
    text = re.sub(r"^[^;]*\b__typeof__\b[^;]*;", "", preprocessed(folder, compiler), flags=re.M)
    return text + "".join(f"\n#define {name} ...\n" for name in CONSTANTS)


def builder(folder):
    ffi = cffi.FFI()
    ffi.cdef(declarations(folder))
    ffi.set_source("cleave._ffi", '#include "shim.h"', py_limited_api=True)
    return ffi


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--header", required=True, metavar="DIR", help="the folder of cleave.h")
    p.add_argument("--out", required=True, metavar="FILE.c")
    a = p.parse_args()
    builder(a.header).emit_c_code(a.out)


if __name__ == "__main__":
    main()
