# SPDX-License-Identifier: Apache-2.0
"""What the suite consists of, found in the tree: programs of C, scripts, checks; and what each file
says of how it wants to be run. For tests/run-tests and tests/one-test."""
import fnmatch, glob, os, re, subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PYTHON = "/usr/bin/python3"

# `# runs alone: REASON` (C: `/* runs alone: REASON`) at the begin of a line: the whole file.
FILE_ALONE = re.compile(r"^(?:#|/\*| \*) runs alone: \S", re.M)
# @alone("REASON") before a test of a script: that test (lib: cluster.Suite).
TEST_ALONE = re.compile(r"^@alone\(", re.M)
# @measured before a test of times of a script: under a sanitizer that test, too.
TEST_OF_TIMES = re.compile(r"^@measured$", re.M)
# `# in make check alone: REASON` at the begin of a line of a check: `make test` leaves it out.
CHECK_ALONE = re.compile(r"^# in make check alone: \S", re.M)
# What computes on the simulated device names its header, its worker or its planted faults.
ON_SIMULATION = re.compile(r"tests/gpu/sim\.h|gpu/cleave-worker|plants/plants")

# These scripts test nothing that depends on a kernel: what numbers they have they compare with each
# other. There `make test` has oneDNN take the kernels of SSE4.1. It makes all of them for products
# of matrices at once, in 45 ms of a core for AVX-512, 5 ms for SSE4.1, in each process.
NO_NUMBERS = ("faults/*", "gpu/*", "net/api/test_[ar]*", "net/api/test_seeds_cuda.py", "net/contexts/*", "net/hostile/*",
              "net/lib/*", "net/operations/*", "net/schedules/*schedules.py", "python/*", "simulate/*",
              *(f"net/training/test_{what}.py" for what in (
                  "cache", "cuda", "device_memory", "documents", "export", "habits", "hf", "images", "inputs", "lora",
                  "memory", "optimizers", "packed_cuda", "places", "pretrained_weights", "recut", "text", "tied")))
SOON_READY = {"ONEDNN_MAX_CPU_ISA": "SSE41"}


def sanitizer(out):
    """'asan' or 'tsan' if the folder of binaries has such a build; None for others."""
    name = os.path.basename(os.path.normpath(out))
    return name if name in ("asan", "tsan") else None


def with_sanitizer(env, program):
    """Python loads the library late, and what sanitizes it has to be there from the begin. What
    Python keeps until its end is no leak of ours."""
    name = sanitizer(env["CLEAVE_TEST_BIN"])
    if name and os.path.basename(os.path.dirname(os.path.abspath(program))) == "python":
        env["LD_PRELOAD"] = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return env


def scripts():
    """Tests of whole processes: every tests/**/test_*.py."""
    return sorted(glob.glob(os.path.join(HERE, "**", "test_*.py"), recursive=True))


def checks():
    """What holds for the tree itself: every executable tests/check-*."""
    return sorted(p for p in glob.glob(os.path.join(HERE, "check-*")) if os.access(p, os.X_OK))


def quick_checks():
    """Those that `make test` runs as well."""
    return [p for p in checks() if not CHECK_ALONE.search(text(p))]


def source(program, out):
    """The file a program is made of: tests/NAME.c for OUT/tests/NAME and for OUT/NAME."""
    inside = os.path.relpath(os.path.abspath(program), os.path.abspath(out))
    inside = inside[len("tests/"):] if inside.startswith("tests/") else inside
    path = os.path.join(HERE, inside + ".c")
    return path if os.path.exists(path) else program


def text(path):
    with open(path, errors="replace") as f:
        return f.read()


def parts(program, out):
    """The runs of one program, as (beside others or alone) -> what CLV_TEST_PART says to it."""
    path = source(program, out)
    found = "" if path == program and not program.endswith(".py") else text(path)
    if FILE_ALONE.search(found):
        return {"alone": ""}
    if TEST_ALONE.search(found) or (sanitizer(out) and TEST_OF_TIMES.search(found)):
        return {"beside": "beside", "alone": "alone"}
    return {"beside": ""}


def on_simulation(program, out):
    """Whether a test computes on the simulated device (tests/gpu/SIMULATION.md)."""
    path = source(program, out)
    return path.endswith((".c", ".py")) and ON_SIMULATION.search(text(path)) is not None


def has_no_numbers(program):
    """Whether a script is among NO_NUMBERS."""
    path = os.path.relpath(os.path.abspath(program), HERE)
    return any(fnmatch.fnmatch(path, of) for of in NO_NUMBERS)
