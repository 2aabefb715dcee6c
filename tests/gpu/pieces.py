# SPDX-License-Identifier: Apache-2.0
"""The pieces of run.py, and the functions with which they start programs. Pieces here: the machine,
the ops, the kernels, and all of them under compute-sanitizer. beside_torch.py and sessions.py have
the other pieces."""
import ctypes, glob, json, os, re, shutil, signal, subprocess, sys, sysconfig, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PIECES = {}
SKIPPED = 77
LIMIT_S = 540  # time limit of one program on a device
# Tests of the device besides those of ops -> what they test.
MORE = {"types": "Ops in bf16 and tf32, against ref in the same type.", "bf16": "Whole plans in bf16, cut in every way.",
        "together": "Ops that one kernel does together: the bits of the ops apart.",
        "recording": "Work that is recorded, and launched as a graph: the bits of the same in parts."}
TESTS = {"types": "test_cuda_types", "bf16": "test_cuda_bf16", "together": "test_together", "recording": "test_recording"}
# Programs for a device -> the same program for the simulated device, in a build's folder.
SIMULATED = {"gpu/on_device": "tests/gpu/test_cuda", "gpu/steps": "tests/gpu/speed/steps", "cleave-worker": "gpu/cleave-worker",
             "gpu/shares": "tests/gpu/speed/shares", **{f"gpu/{name}": f"tests/gpu/{name}" for name in TESTS.values()}}


class At:
    """Folders of the run. dry: the folder of a build, in a dry run, which uses the simulated
    device; else None. out: the folder of the results."""
    dry, out = None, HERE


def program(name):
    """The path of a program. In a dry run, programs without a simulated version are the bundle's
    own."""
    there = os.path.join(HERE, "bin", name)
    if At.dry:
        built = os.path.join(At.dry, SIMULATED.get(name, name))
        there = built if os.path.exists(built) or name in SIMULATED else there
    return there


def beside(name, *where):
    """The path of a file: in the bundle beside this script, in the tree at `where`."""
    there = os.path.join(HERE, name)
    return there if os.path.exists(there) else os.path.normpath(os.path.join(HERE, *where, name))


def piece(f):
    PIECES[f.__name__] = f
    return f


def add_piece(name, doc, function, *args):
    def run_it():
        return function(*args)
    run_it.__name__, run_it.__doc__ = name, doc
    piece(run_it)


def folders():
    """The folders with NVIDIA's libraries: of PyTorch's wheels, then of the toolkit."""
    wheels = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib"))
    return [f for f in wheels + ["/usr/local/cuda/lib64"]
            if glob.glob(os.path.join(f, "libcublasLt.so.13")) or glob.glob(os.path.join(f, "libcudnn.so.9"))]


def environment():
    """The environment with the paths of our libraries and NVIDIA's. PyTorch runs without it."""
    own = [os.path.join(HERE, "lib")] if os.path.isdir(os.path.join(HERE, "lib")) else []
    nvidia = [] if At.dry else folders()
    env = dict(os.environ, CLEAVE_CUDA_FOLDERS=":".join(nvidia))
    return dict(env, LD_LIBRARY_PATH=":".join(own + nvidia)) if own + nvidia else env


def end_with_parent():
    """Called between fork and exec: if run.py is killed, the kernel kills the program too."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(command, timeout=LIMIT_S, env=None, cwd=None):
    # the simulated device is slow on machines without memory protection keys
    timeout *= 10 if At.dry else 1
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env=env, timeout=timeout, cwd=cwd or HERE, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)


def ours(*command, timeout=LIMIT_S, before=(), cwd=None):
    """Runs one of our programs. Programs that read the cases of ops run in the folder above the
    cases."""
    root = os.path.dirname(beside("kernels", "../.."))
    # instead of the user's ledger
    ledger = {"XDG_STATE_HOME": os.path.join(cwd, "state")} if cwd else {}
    return run([*before, program(command[0]), *command[1:]], timeout, {**environment(), **ledger}, cwd or root)


def told(done, good):
    """The result of a piece: whether it succeeded, a line for the table, and the end of the
    output."""
    word = "skipped" if done.returncode == SKIPPED else "ok" if done.returncode == 0 else "FAILED"
    what = good(done.stdout) if word == "ok" else done.stdout[-300:].strip() or f"exit code {done.returncode}"
    return {"result": word, "what": what, "output": done.stdout[-40000:]}


def skipped(why):
    return {"result": "skipped", "what": why, "output": ""}


def asked(name, *args, good):
    """The result of one of our programs that may be missing: a build without the CUDA toolkit does
    not have it."""
    return told(ours(name, *args), good) if os.path.exists(program(name)) else skipped(f"no {name} in this build")


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


def no_device():
    """The reason why no session can run here, or None."""
    with tempfile.TemporaryDirectory() as folder:
        said = ours("cleave-worker", "devices", "--json", cwd=folder).stdout
    return None if re.search(r'"device":"cuda:\d+","name"', said) else "no device: " + last_line(said)[-200:]


# ---- the machine ----------------------------------------------------------------------------

@piece
def machine():
    """The card, the driver, and the folders of NVIDIA's libraries."""
    if not shutil.which("nvidia-smi"):
        return skipped("no nvidia-smi, no device")
    asked = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem"
    done = run(["nvidia-smi", asked, "--format=csv,noheader"])
    return told(done, lambda said: f"{said.strip()}; NVIDIA's libraries in {', '.join(folders()) or 'the usual folders'}")


@piece
def python():
    """This Python, and its packages that pieces compare with."""
    done = run([sys.executable, beside("torch_steps.py", "speed"), "versions"], env=dict(os.environ, HF_HUB_OFFLINE="1"))
    return told(done, last_line)


@piece
def devices():
    """cleave-worker devices: the devices that the library sees."""
    with tempfile.TemporaryDirectory() as folder:
        done = ours("cleave-worker", "devices", "--json", cwd=folder)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [r for r in rows if r["device"].startswith("cuda:") and "missing" not in r]
    if done.returncode == 0 and not found:
        done.returncode = SKIPPED
    return told(done, lambda said: "; ".join(f"{r['device']} {r['name']}, {r['capability']}, {r['libraries']}" for r in found))


@piece
def plans():
    """cuDNN's plans of ResNet50 for the H200 of h200.json, by the cuDNN of this machine."""
    return asked("gpu/plan_convs", os.path.join(HERE, "h200.json"), good=last_line)


@piece
def plans_here():
    """The same for the card of this machine; the output begins with what cuDNN knows of it."""
    why = no_device()
    if why:
        return skipped(why)
    return asked("gpu/plan_convs", "here", good=last_line)


# ---- numbers --------------------------------------------------------------------------------

@piece
def ops():
    """Every op on the device against ref, and the same bits in a second run."""
    only = ("relu",) if At.dry else ()
    return asked("gpu/on_device", *only, good=lambda said: f"{len(re.findall(r'OK', said))} tests; {last_line(said)}")


def more_tests(name):
    only = ("relu",) if At.dry and name == "types" else ()
    return asked(f"gpu/{TESTS[name]}", *only, good=lambda said: f"{len(re.findall(r'OK', said))} tests; {last_line(said)}")


for each, what in MORE.items():
    add_piece(each, what, more_tests, each)


@piece
def rates():
    """Rates of copies, launches, products and convolutions: the limits for all later pieces."""
    def table(said):
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return "; ".join(f"{r['what']}: {r.get('rate', 0):.3g} {r.get('unit', 'missing')}" for r in rows)
    return asked("gpu/rates", good=table)


ENOUGH = 0.85  # wanted share of a copy's bandwidth
SMALL = ("2", "4", "8", "32")  # arguments of shares for its smallest shape


@piece
def shares():
    """The share of a copy's bandwidth that our memory-bound kernels reach; 85 % is wanted."""
    r = asked("gpu/shares", *(SMALL if At.dry else ()), good=last_line)
    if r["result"] != "ok":
        return r
    rows = [json.loads(line) for line in r["output"].splitlines() if line.startswith('{"what"')]
    copy, own = rows[0]["rate"], sorted(rows[1:], key=lambda row: row["share"])
    few = [row for row in own if row["share"] < ENOUGH]
    r["rows"] = [(row["what"], "" if At.dry else "ok" if row["share"] >= ENOUGH else "below",
                  f"{100 * row['share']:.0f} % of a copy, {row['rate']:.3g} B/s") for row in own]
    r["what"] = f"a copy has {copy:.3g} B/s; {len(own) - len(few)} of {len(own)} kernels have {100 * ENOUGH:.0f} % of that"
    if At.dry:
        r["what"] = f"{len(own)} kernels ran; no device, so no share is one"
    return r


# ---- under compute-sanitizer ----------------------------------------------------------------

TOOLS = {"memcheck": "accesses out of bounds", "racecheck": "races in shared memory"}
FOUND = 99  # exit code if a tool has found something
GROUP = 12  # number of ops in one piece


def checker():
    """The tool, or what is missing."""
    there = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return there if os.path.exists(there) else None


def under(tool):
    """The words before a command that run it under the tool."""
    return [checker(), "--tool", tool, "--error-exitcode", str(FOUND)]


NO_TOOL = "no compute-sanitizer in PATH or /usr/local/cuda/bin"


def all_ops():
    """The names of all ops, by their files of cases."""
    paths = glob.glob(os.path.join(beside("kernels", "../.."), "ops", "*.cases"))
    return sorted(os.path.basename(p)[:-len(".cases")] for p in paths)


# name -> (description, command with small shapes)
SANITIZED = {
    "kernels": ("every kernel that memory limits, among them optimisers, cells of an LSTM and attention's weights",
                ("gpu/shares", *SMALL)),
    "together": ("ops that one kernel does together", ("gpu/test_together",)),
    "recording": ("graphs: work that is launched as a whole", ("gpu/test_recording",)),
    "bf16": ("whole plans in bf16", ("gpu/test_cuda_bf16",)),
    "lstm": ("steps of an LSTM and its optimiser", ("gpu/steps", "lstm", "2", "3", "f32", "2")),
    "bert": ("steps of a small BERT and its optimiser", ("gpu/steps", "bert-small", "2", "8", "bf16", "2")),
}


def sanitized(tool, command):
    """Runs a command under the tool. In a dry run without the tool, only checks that the program
    accepts its arguments."""
    if At.dry:
        done = ours(*command)
        return told(done, str) if done.returncode else skipped(f"no device; {command[0]} takes its arguments")
    if not checker():
        return skipped(NO_TOOL)
    return told(ours(*command, before=under(tool)), last_line)


def sanitized_ops(tool, at):
    names = all_ops()[at:at + GROUP]
    return sanitized(tool, ("gpu/on_device", *(["relu"] if At.dry else names)))


for tool, finds in TOOLS.items():
    for at in range(0, len(all_ops()), GROUP):
        add_piece(f"{tool}_ops_{at // GROUP + 1}", f"Under compute-sanitizer, {finds}: {', '.join(all_ops()[at:at + GROUP])}.",
                  sanitized_ops, tool, at)
    for end, (what, command) in SANITIZED.items():
        add_piece(f"{tool}_{end}", f"Under compute-sanitizer, {finds}: {what}.", sanitized, tool, command)
