# SPDX-License-Identifier: Apache-2.0
"""libcleave_cuda.so without a device: its exported and needed symbols, its errors if something is
missing, that kernels which spill registers fail the build, and cuDNN's plans for a device that is
only described."""
import json, os, re, shutil, subprocess, sys, tempfile
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "net", "lib"))
from cluster import BIN, SANITIZED, Suite

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
LIBRARY = os.path.join(BIN, "libcleave_cuda.so")
SPILLS = os.path.join(ROOT, "kernels/cuda/nvidia/spills")
# Symbols of the system that the library may need: of the C and C++ libraries and their start-up
# code.
SYSTEM = re.compile(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_[0-9.]+$|^(_ITM_|__gmon_start__)")
UNAVAILABLE = 14
suite = Suite()


def needs_toolkit(f, add=suite.test):
    """A test that counts as skipped where the library was not built."""
    def wrapped():
        return f() if os.path.exists(LIBRARY) else "no libcleave_cuda.so: built without nvcc (CUDA=0)"
    wrapped.__name__ = f.__name__
    return add(wrapped)


def symbols(*options):
    said = subprocess.run(["nm", "-D", *options, LIBRARY], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split()[-1] for line in said.splitlines()]


# Program for a process of its own, because the library remembers the first answer.
ASK = """
import ctypes, sys
class Err(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("where", ctypes.c_char_p), ("text", ctypes.c_char * 480), ("rest", ctypes.c_char * 96)]
COUNT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(Err))
LIBRARIES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Err))
LOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
class Library(ctypes.Structure):
    _fields_ = [("abi", ctypes.c_uint32), ("size", ctypes.c_uint32), ("set_folders", LOOK), ("set_plan_store", ctypes.c_void_p), ("count", COUNT),
                ("libraries", LIBRARIES), ("describe", ctypes.c_void_p), ("open", ctypes.c_void_p), ("close", ctypes.c_void_p)]
entry = ctypes.CDLL(sys.argv[1]).clv_cuda_entry
entry.argtypes, entry.restype = [ctypes.c_uint32], ctypes.POINTER(Library)
found = entry(int(sys.argv[2]))
if not found:
    sys.exit("NULL")
assert found.contents.size == ctypes.sizeof(Library), found.contents.size
found.contents.set_folders(sys.argv[3].encode() or None)
n, err = ctypes.c_int(-1), Err()
code = found.contents.count(n, err)
print(code, n.value, err.text.decode() if code else "")
with open("/proc/self/maps") as f:
    opened = "libcublasLt" in f.read()
code = found.contents.libraries(err)
print("opened" if opened else "not yet opened", err.text.decode() if code else "")
"""


def interface():
    """The number CLV_CUDA_ABI of the headers."""
    numbers = {}
    for path in ("kernels/kernels.h", "kernels/load/load.h"):
        with open(os.path.join(ROOT, path)) as f:
            numbers.update(re.findall(r"(CLV_KERNELS_ABI|CLV_CUDA_INTERFACE) = (\d+)", f.read()))
    return int(numbers["CLV_KERNELS_ABI"]) * 1000 + int(numbers["CLV_CUDA_INTERFACE"])


def ask(abi, folders="", env=None):
    return subprocess.run([sys.executable, "-c", ASK, LIBRARY, str(abi), folders], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env=dict(os.environ, **(env or {})))


def commands(cuda):
    """The commands that make would run in an empty build folder."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "-n", "-B", f"CUDA={cuda}", "OUT=build/none", "all"], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 0, done.stdout[-300:]
    return set(done.stdout.splitlines())


def without_cuda_all_else_is_built_alike():
    """So the numbers computed on the processor have the same bits."""
    without, with_it = commands(0), commands(1)
    assert len(without) > 500 and not without - with_it, without - with_it
    more = [line for line in with_it - without if not re.search(r"nvcc|kernels/cuda/nvidia|libcleave_cuda|NVCC", line)]
    assert len(with_it) - len(without) > 20 and not more, more


needs_toolkit(without_cuda_all_else_is_built_alike, suite.long)


@needs_toolkit
def it_exports_one_symbol():
    assert symbols("--defined-only") == ["clv_cuda_entry"], symbols("--defined-only")


@needs_toolkit
def it_needs_the_system_alone():
    other = [s for s in symbols("--undefined-only") if not SYSTEM.search(s)]
    assert SANITIZED or not other, other  # symbols of a sanitizer have no version
    said = subprocess.run(["readelf", "-d", LIBRARY], stdout=subprocess.PIPE, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(\w+)", said))
    assert needed <= {"libc", "libm", "libstdc", "libgcc_s", "ld", "libasan", "libubsan", "libtsan"}, needed


@needs_toolkit
def it_asks_the_runtime_for_nothing_that_waits_unseen():
    """It calls no function that waits for a whole device or that uses the default stream."""
    folder = os.path.join(BIN, "kernels/cuda/nvidia")
    said = subprocess.run(["nm", "-u", *(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".o"))],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    calls = set(re.findall(r"\bcuda[A-Z]\w+", said))
    assert {"cudaMemcpyAsync", "cudaStreamSynchronize", "cudaEventSynchronize"} <= calls, calls
    waits = {c for c in calls if re.match(r"cuda(Mem(cpy|set)|Malloc$|Free$|StreamCreate$)", c) and "Async" not in c}
    assert not waits | (calls & {"cudaDeviceSynchronize", "cudaCtxSynchronize", "cudaDeviceReset"}), calls


@needs_toolkit
def another_version_is_refused():
    if SANITIZED:
        return "a sanitized library does not go into this process"
    done = ask(interface() + 1)
    assert done.returncode == 1 and "NULL" in done.stderr, done
    assert ask(interface()).returncode == 0, done


@needs_toolkit
def without_a_driver_the_answer_is_clean():
    if SANITIZED:
        return "a sanitized library does not go into this process"
    code, n, text = ask(interface()).stdout.split(maxsplit=2)
    if int(code) == 0:
        return f"there are {n} devices here"
    assert int(code) == UNAVAILABLE and "NVIDIA's driver" in text, text
    assert "\nnot yet opened" in text, f"{text}: half a GiB for a process that computes on the processor"


@needs_toolkit
def a_driver_that_is_none_is_named():
    """The toolkit's stub under the driver's name, and a driver that lacks functions."""
    if SANITIZED:
        return "a sanitized library does not go into this process"
    stub = "/usr/local/cuda/lib64/stubs/libcuda.so"
    if not os.path.exists(stub):
        return f"no {stub}"
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(stub, os.path.join(folder, "libcuda.so.1"))
        said = ask(interface(), env={"LD_LIBRARY_PATH": folder}).stdout
        assert said.startswith(f"{UNAVAILABLE} ") and "cudaGetDeviceCount: CUDA driver is a stub library" in said, said
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["gcc", "-shared", "-x", "c", "-o", os.path.join(folder, "libcuda.so.1"), "/dev/null"], check=True)
        said = ask(interface(), env={"LD_LIBRARY_PATH": folder}).stdout
        assert said.startswith(f"{UNAVAILABLE} ") and "driver" in said, said


# Source of a driver of an older CUDA, with the functions that the runtime calls before it gives up.
OLD_DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
static int nothing(void) { return 500; } /* not found: who says 0 has to fill in what was asked for */
int cuGetProcAddress_v2(const char *name, void **ret, int version, unsigned long long flags, void *status) {
  (void)version, (void)flags, (void)status;
  *ret = strcmp(name, "cuDriverGetVersion") == 0 ? (void *)cuDriverGetVersion : strcmp(name, "cuInit") == 0 ? (void *)cuInit :
         strncmp(name, "cuGetProcAddress", 16) == 0 ? (void *)cuGetProcAddress_v2 : (void *)nothing;
  return 0;
}
"""


@needs_toolkit
def a_driver_that_is_too_old_is_named():
    if SANITIZED:
        return "a sanitized library does not go into this process"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", os.path.join(folder, "libcuda.so.1")], input=OLD_DRIVER,
                       text=True, check=True)
        said = subprocess.run([os.path.abspath(os.path.join(BIN, "cleave-worker")), "devices"], stdout=subprocess.PIPE, text=True, cwd=folder,
                              env=dict(os.environ, LD_LIBRARY_PATH=folder)).stdout
        assert re.search(r"^cuda  none: .*libcuda\.so\.1\) is for CUDA 12\.2: CUDA 13\.\d needs a newer one", said, re.M), said


@needs_toolkit
def a_missing_library_is_named():
    """A damaged library, then one that lacks a function, is found before the installed one."""
    if SANITIZED:
        return "a sanitized library does not go into this process"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "libcublasLt.so.13")
        open(path, "w").close()
        hidden = {"LD_LIBRARY_PATH": folder}
        said = ask(interface(), env=hidden).stdout
        assert "libcublasLt.so.13" in said and "was not opened" in said, said
        subprocess.run(["gcc", "-shared", "-x", "c", "-o", path, "/dev/null"], check=True)
        said = ask(interface(), env=hidden).stdout
        assert "has no function cublasLtCreate" in said, said
        said = ask(interface(), folders=folder).stdout
        assert "has no function cublasLtCreate" in said, said


def plan_convs(env=None):
    """Runs without leak detection: NVIDIA's libraries leak handles if there is no driver."""
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0", **(env or {}))
    return subprocess.run([os.path.join(BIN, "gpu", "plan_convs"), os.path.join(HERE, "..", "h200.json")],
                          stdout=subprocess.PIPE, text=True, env=env)


@needs_toolkit
def a_cudnn_that_is_too_old_is_named():
    with open(os.path.join(ROOT, "kernels/cuda/nvidia/functions.def")) as f:
        names = re.findall(r"^CUDNN\((\w+)\)", f.read(), re.M)
    source = "".join(f"long {n}(void) {{ return 90700; }}\n" for n in names)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", os.path.join(folder, "libcudnn.so.9")],
                       input=source, text=True, check=True)
        done = plan_convs({"LD_LIBRARY_PATH": folder})
        assert done.returncode == 77 and "libcudnn.so.9 is of version 90700, older than 90800" in done.stdout, done


@needs_toolkit
def a_cudnn_without_lstms_is_named():
    with open(os.path.join(ROOT, "kernels/cuda/nvidia/functions.def")) as f:
        names = re.findall(r"^CUDNN\((\w+)\)", f.read(), re.M)
    names.remove("cudnnRNNForward")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", os.path.join(folder, "libcudnn.so.9")],
                       input="".join(f"long {n}(void) {{ return 0; }}\n" for n in names), text=True, check=True)
        done = plan_convs({"LD_LIBRARY_PATH": folder})
        assert done.returncode == 77 and "libcudnn.so.9 has no function cudnnRNNForward" in done.stdout, done


def a_part_of_cudnn_that_is_damaged_is_named():
    """Of the libraries beside libcudnn.so.9, this one is also in the loader's own list."""
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "libcudnn_ops.so.9"), "w").close()
        done = plan_convs({"LD_LIBRARY_PATH": folder})
        if done.returncode == 77:
            return done.stdout.strip()
        assert "a part of cuDNN is missing, damaged or of another version" in done.stdout, done.stdout[-400:]


def an_lstm_whose_sums_may_differ_is_refused():
    done = plan_convs({"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"})
    if done.returncode == 77:
        return done.stdout.strip()
    assert done.returncode == 1 and "CUBLAS_WORKSPACE_CONFIG is :4096:2:16:8: an LSTM of cuDNN needs one size" in done.stdout, done


# Each of these tests loads half a GiB of NVIDIA's libraries.
needs_toolkit(a_part_of_cudnn_that_is_damaged_is_named, suite.long)
needs_toolkit(an_lstm_whose_sums_may_differ_is_refused, suite.long)


@suite.test
def register_spill_fails_and_names_the_kernel():
    with tempfile.NamedTemporaryFile("w", suffix=".ptxas") as f:
        report = ("ptxas info    : Compiling entry function '_Z4goodPf' for 'sm_90'\n"
                  "ptxas info    : Function properties for _Z4goodPf\n"
                  "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                  "ptxas info    : Used 12 registers, used 0 barriers\n")
        f.write(report)
        f.flush()
        assert subprocess.run([SPILLS, f.name]).returncode == 0
        f.write(report.replace("_Z4goodPf", "_Z3badPf").replace("0 bytes spill stores", "16 bytes spill stores"))
        f.flush()
        done = subprocess.run([SPILLS, f.name], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and "bad spills 16 bytes" in done.stderr and "good" not in done.stderr, done


@needs_toolkit
def no_kernel_of_the_library_spills():
    folder = os.path.join(BIN, "nvcc", "kernels", "cuda")
    reports = [os.path.join(folder, n) for n in sorted(os.listdir(folder)) if n.endswith(".ptxas")]
    assert subprocess.run([SPILLS, *reports]).returncode == 0
    table = subprocess.run([SPILLS, "--table", *reports], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert table.count("\n") > 20 and "sm_80" in table and "sm_90" in table, table


@needs_toolkit
def cudnn_plans_every_convolution_of_resnet50():
    done = plan_convs()
    if done.returncode == 77:
        return done.stdout.strip()
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d{3} planned, 0 failed$", done.stdout, re.M), done.stdout[-400:]
    assert re.search(r"^\d{3} different ones made in [0-9.]+ ms, found again in [0-9.]+ ms$", done.stdout, re.M), done.stdout[-400:]
    with open(os.path.join(HERE, "..", "h200.json")) as f:
        assert json.JSONDecoder().raw_decode(done.stdout)[0] == json.load(f), done.stdout[:1500]


PAGE, PREDICT = os.path.join(ROOT, "tests/bench/GPU.md"), os.path.join(ROOT, "tests/gpu/predict.py")


def stale(page=PAGE):
    """The output of predict.py --check for a page that is older than the sources."""
    return subprocess.run([sys.executable, PREDICT, "--check", page], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, CLEAVE_TEST_BIN=os.path.abspath(BIN))).stdout


def toolkit():
    """The version of nvcc; compiled kernels differ between versions."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return re.search(r"release (\d+\.\d+)", subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, text=True).stdout)[1]


@suite.test
def page_matches_the_current_predictions():
    """Checks the predictions of steps, and those of kernels if the page's toolkit compiled the
    library."""
    with open(PAGE) as f:
        of = re.search(r"`ptxas`, CUDA (\d+\.\d+)", f.read())[1]
    said = stale()
    if os.path.exists(LIBRARY) and toolkit() != of:
        said = "".join(line for line in said.splitlines() if not line.startswith("compiled otherwise"))
    assert not said, said


@suite.test
def stale_page_is_reported_line_by_line():
    with open(PAGE) as f:
        page = f.read()
    adam, gone = (re.search(rf"^\| `{name}` \| (\d+) .*\n", page, re.M) for name in ("adam", "add_w_to_samples"))
    page = re.sub(r"^\| MLP: (.*?)\| \d+", r"| MLP: \1| 99", page, flags=re.M)
    page = page.replace(adam[0], adam[0].replace(f"| {adam[1]} |", "| 99 |", 1) + adam[0].replace("`adam`", "`eve`"))
    why = ["predicted now: | MLP: ", "compiled otherwise: | `adam` |", "a new kernel: | `add_w_to_samples` |", "compiled no more: eve"]
    with tempfile.NamedTemporaryFile("w", suffix=".md") as f:
        f.write(page.replace(gone[0], ""))
        f.flush()
        said = stale(f.name)
    for words in (*why[:4 if os.path.exists(LIBRARY) else 1], "predict.py --write"):
        assert words in said, (words, said)


LATER = ("types", "bf16", "together", "recording", "rates", "shares", "memcheck_session")
# Runs a command in a network namespace that has only the loopback interface.
ALONE = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
BARE = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def unpacked(folder):
    """Makes the bundle of this build, unpacked, in `folder`. make gpu-dry also packs it."""
    for name in ("cleave-master", "cleave-worker", "libcleave_cuda.so", "gpu", "tests"):
        os.symlink(os.path.join(os.path.abspath(BIN), name), os.path.join(folder, name))
    done = subprocess.run([os.path.join(ROOT, "tests/gpu/bundle"), "--plain", folder], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and re.search(r"gpu-bundle: \d+ libraries", done.stdout), done
    for name in ("cleave-master", "cleave-worker", "libcleave_cuda.so", "gpu", "tests"):
        os.remove(os.path.join(folder, name))
    return os.path.join(folder, "gpu-bundle")


def pieces_of(bundle, results, before, *args):
    """{piece: result} from the table of run.py. Fails if the table has a Python traceback."""
    done = subprocess.run([*before, "/usr/bin/python3", os.path.join(bundle, "run.py"), *args], stdout=subprocess.PIPE, text=True,
                          env=dict(BARE, HOME=bundle))
    with open(os.path.join(bundle, results, "results.md")) as f:
        page = f.read()
    assert done.returncode == 0 and "Traceback" not in page, page
    return dict(re.findall(r"^\| (\w+) \| ([\w ]+) \|", page, re.M))


def the_bundle_runs_without_a_device():
    """Also without a network and without the other files of this tree. Pieces that need a device
    are skipped with a reason; pieces on the simulated device run."""
    if SANITIZED:
        return "a sanitized build is not packed"
    alone = ALONE if subprocess.run([*ALONE, "true"], stderr=subprocess.DEVNULL).returncode == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        bundle = unpacked(folder)
        rows = pieces_of(bundle, "", alone, "machine", "devices", "plans", "ops", *LATER)
        assert rows["memcheck_ops_1"] == "did not run", rows
        assert {rows[name] for name in ("ops", "plans", *LATER)} <= {"ok", "skipped"}, rows
        rows = pieces_of(bundle, "sim/gpu-dry", alone, "--dry", os.path.join(bundle, "sim"), "devices", "together", "demo")
        assert rows["devices"] == rows["together"] == rows["demo"] == "ok", rows
        if not alone:
            return "it has a network: this needs root"


needs_toolkit(the_bundle_runs_without_a_device, suite.long)


suite.main()
