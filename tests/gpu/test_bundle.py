# SPDX-License-Identifier: Apache-2.0
"""run.py of the bundle, before a machine with a GPU is there: its pieces with tiny shapes, by the
programs of this build and gpu/cleave-worker's simulated device; it goes on where it stopped, or was
killed; what is missing is named."""
import ast, json, os, re, shutil, signal, subprocess, sys, tempfile, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "net", "lib"))
from cluster import BIN, SLOW, Suite

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "run.py")
RESULTS = tempfile.mkdtemp(prefix="cleave-bundle-")
# Of the build; tests/check-breaks makes what is named here.
NEEDED = ("gpu/cleave-worker", "tests/gpu/test_cuda", "tests/gpu/speed/steps", "tests/gpu/speed/shares")
suite = Suite()


def command(*args):
    return [sys.executable, SCRIPT, "--dry", BIN, "--out", RESULTS, *args]


def pieces(*args, env=None):
    """What run.py prints of each piece, its exit code, and the table."""
    done = subprocess.run(command(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          env=dict(os.environ, **(env or {})))
    with open(os.path.join(RESULTS, "results.md")) as f:
        return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line), done.returncode, f.read()


def known():
    try:
        with open(os.path.join(RESULTS, "results.json")) as f:
            return json.load(f)
    except FileNotFoundError:
        return {}


def forget():
    shutil.rmtree(RESULTS, ignore_errors=True)
    os.mkdir(RESULTS)


@suite.test
def each_piece_runs_on_the_simulated_device():
    for name in NEEDED:
        assert os.path.exists(os.path.join(BIN, name)), name
    forget()
    said, code, table = pieces("machine", "devices", "ops", "memcheck_ops_1", "racecheck_ops_2", "memcheck_lstm", "racecheck_kernels",
                               "racecheck_session", "parity_mlp", "parity_bert", "shares", "demo")
    assert code == 0, said
    for name in ("devices", "ops", "shares", "demo"):
        assert said[name].startswith("ok"), said
    for name in ("machine", "memcheck_ops_1", "racecheck_ops_2", "memcheck_lstm", "racecheck_kernels", "racecheck_session"):
        assert said[name].startswith("skipped: no "), said
    for name in ("parity_mlp", "parity_bert"):  # PyTorch is not everywhere
        assert said[name].startswith("ok") or "no PyTorch in " in said[name] or "no transformers in " in said[name], said
    assert table.count("did not run") >= 10 and "| demo | ok |" in table, table
    assert table.count("| shares: ") > 95 and re.search(r"^\| shares: adam \| +\| +\| \d+ % of a copy", table, re.M), table
    assert re.search(r"^did not run: .*\bsplit\b", table, re.M), table


# Kernels of the library that have no row in shares.
FEW_VALUES = {"note_length": "one thread looks at lengths", "put_running": "a value for each channel"}


@suite.test
def each_kernel_has_its_share():
    """All that the library launches, by the program's own symbols; a new one is named here."""
    program = os.path.join(BIN, "tests/gpu/speed/shares")
    symbols = subprocess.run(["nm", "-C", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    own = set(re.findall(r"gpu_call<&\(?(?:void )?\(?(?:\(anonymous namespace\)::)?(\w+)", symbols))
    done = subprocess.run([program, "2", "4", "8", "32"], stdout=subprocess.PIPE, text=True, check=True)
    ran = {name.strip("(").partition("<")[0] for name in json.loads(done.stdout.splitlines()[-1])["kernels"]}
    assert len(own) > 80, sorted(own)
    assert own - ran == set(FEW_VALUES), f"without a row in tests/gpu/speed/shares_more.c: {sorted(own - ran - set(FEW_VALUES))}"


@suite.test
def it_goes_on_where_it_stopped():
    forget()
    before, _, _ = pieces("--minutes", "0")
    assert not before, before
    pieces("machine")
    so_far = known()
    assert list(so_far) == ["machine"], so_far
    so_far.update((name, {"result": "ok", "what": "", "output": "", "seconds": 0}) for name in rows() if name != "devices")
    with open(os.path.join(RESULTS, "results.json"), "w") as f:
        json.dump(so_far, f)
    said, code, _ = pieces()
    assert list(said) == ["devices"] and code == 0, said


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(p) for p in f.read().split()]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def killed(name):
    """run.py, killed in the middle of a piece."""
    at_work = subprocess.Popen(command(name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    late = time.monotonic() + 60 * max(SLOW, 1)
    while not children(at_work.pid):
        assert at_work.poll() is None and time.monotonic() < late, "it ended before it was killed"
        time.sleep(0.01)
    programs = children(at_work.pid)
    other = subprocess.run(command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert other.returncode and "another one is at work in" in other.stdout, other
    os.kill(at_work.pid, signal.SIGKILL)
    at_work.wait()
    while any(map(is_alive, programs)):
        assert time.monotonic() < late, "what it has started goes on"
        time.sleep(0.01)
    assert known()[name]["result"] == "interrupted", known()


@suite.test
def it_goes_on_where_it_was_killed():
    forget()
    pieces("machine")
    killed("memcheck_lstm")
    os.mkdir(os.path.join(RESULTS, "session-left"))
    done = dict(known(), **{name: {"result": "ok", "what": "", "output": "", "seconds": 0} for name in rows() if name not in known()})
    with open(os.path.join(RESULTS, "results.json"), "w") as f:
        json.dump(done, f)
    said, code, _ = pieces()
    assert list(said) == ["memcheck_lstm"] and said["memcheck_lstm"].startswith("skipped: no device") and code == 0, said
    assert not os.path.exists(os.path.join(RESULTS, "session-left"))


@suite.test
def a_piece_that_never_ends_is_left():
    forget()
    for _ in range(2):
        killed("memcheck_lstm")
    _, code, table = pieces("--minutes", "0")
    assert code == 1 and re.search(r"^\| memcheck_lstm \| FAILED \| 0 \| began 2 times and did not end", table, re.M), table


@suite.test
def what_is_missing_is_named():
    forget()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "torch.py"), "w") as f:
            f.write("raise ImportError('none is here')")
        said, code, _ = pieces("python", "parity_mlp", env={"PYTHONPATH": folder})
        for name in ("python", "parity_mlp"):
            assert said[name].startswith("skipped: no PyTorch in ") and "start run.py with the Python that has it" in said[name], said
        assert code == 0
        for args, why in ((("--dry", folder), "--dry needs the folder of a build"), ((), "runs in an unpacked bundle, or with --dry"),
                          (("--dry", BIN, "walk"), "there is no piece walk: --list says which there are"),
                          (("--dry", BIN, "--out", "/proc/none"), "name another folder with --out")):
            done = subprocess.run([sys.executable, SCRIPT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode and why in done.stdout and "Traceback" not in done.stdout, done
    with open(os.path.join(RESULTS, "results.json"), "w") as f:
        f.write("{half")
    done = subprocess.run(command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and "is damaged" in done.stdout and "Traceback" not in done.stdout, done


@suite.test
def an_old_python_is_told_so():
    """What is new to it must not stand in the file that says so."""
    with open(SCRIPT) as f:
        text = f.read()
    old = f"import sys; sys.version_info = (3, 6); exec(compile({text!r}, 'run.py', 'exec'))"
    done = subprocess.run([sys.executable, "-c", old], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and done.stdout.startswith("run.py needs Python 3.8 or later, and this is "), done
    new = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.JoinedStr, ast.NamedExpr, ast.AnnAssign))]
    assert not new and "print " not in text, [n.lineno for n in new]


def rows():
    """All pieces, by the table."""
    with open(os.path.join(RESULTS, "results.md")) as f:
        return [line.split("|")[1].strip() for line in f.read().splitlines()[2:] if line.startswith("|")]


@suite.test
def the_pieces_are_those_that_a_gpu_is_waited_for_with():
    pieces("--minutes", "0", "--again")
    under = ("ops_1", "ops_4", "kernels", "together", "recording", "bf16", "lstm", "bert", "session")
    want = {*(f"{tool}_{what}" for tool in ("memcheck", "racecheck") for what in under), "machine", "python", "devices", "plans", "plans_here",
            "ops", "rates", "shares", "types", "bf16", "together", "recording", "demo", "split",
            *(f"parity_{n}" for n in ("mlp", "lstm", "resnet50", "bert")),
            "speed_mlp_f32", "speed_lstm_f32", "speed_resnet50_f32", "speed_resnet50_bf16", "speed_bert_bf16"}
    assert want <= set(rows()), want - set(rows())
    with open(os.path.join(HERE, "BUNDLE.md")) as f:
        page = f.read()
    missing = [name for name in rows() if f"{name.rpartition('_')[0]}_" not in page and name.split("_")[0] not in page]
    assert not missing, missing
    listed = subprocess.run(command("--list"), stdout=subprocess.PIPE, text=True, check=True).stdout
    ops = {os.path.splitext(n)[0] for n in os.listdir(os.path.join(HERE, "../../kernels/ops")) if n.endswith(".cases")}
    checked = re.findall(r"^memcheck_ops_\d+: .*?bounds: (.*)\.$", listed, re.M)
    assert {op for line in checked for op in line.split(", ")} == ops, checked


try:
    suite.main()
finally:
    shutil.rmtree(RESULTS, ignore_errors=True)
