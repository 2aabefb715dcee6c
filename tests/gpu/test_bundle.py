# SPDX-License-Identifier: Apache-2.0
"""run.py of the bundle without a GPU: its pieces with tiny shapes, with the programs of this build
and the simulated device of gpu/cleave-worker. It continues where it stopped or was killed, and
names what is missing."""
import ast, json, os, re, shutil, signal, subprocess, sys, tempfile, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "net", "lib"))
from cluster import BIN, SLOW, Suite
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import beside_torch
from pieces import end_with_parent

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "run.py")
RESULTS = tempfile.mkdtemp(prefix="cleave-bundle-")
# Programs of the build. tests/check-breaks builds the programs named here.
NEEDED = ("gpu/cleave-worker", "tests/gpu/test_cuda", "tests/gpu/speed/steps", "tests/gpu/speed/shares")
suite = Suite()


def command(*args):
    return [sys.executable, SCRIPT, "--dry", BIN, "--out", RESULTS, *args]


def pieces(*args, env=None):
    """(run.py's line for each piece, its exit code, its table). run.py ends with this test, also if
    a time limit ends the test."""
    done = subprocess.run(command(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          env=dict(os.environ, **(env or {})), preexec_fn=end_with_parent)
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


@suite.long
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
    for name in ("parity_mlp", "parity_bert"):  # a machine may have no PyTorch
        assert said[name].startswith("ok") or "no PyTorch in " in said[name] or "no transformers in " in said[name], said
    assert table.count("did not run") >= 10 and "| demo | ok |" in table, table
    assert table.count("| shares: ") > 95 and re.search(r"^\| shares: adam \| +\| +\| \d+ % of a copy", table, re.M), table
    assert re.search(r"^did not run: .*\bsplit\b", table, re.M), table


def judgement(ours=(1e-6, 1e-6), own=(1e-6, 1e-6), losses=(2.0, 1.0), parameters=2):
    """The judgement of two steps with right losses of 2 and 1, and of parameters at these
    distances."""
    apart = [[f"p{i}", ours[i], own[i]] for i in range(parameters)]
    r = beside_torch.judged({"losses": list(losses)}, {"losses": [2.0, 1.000001]}, {"losses": [2.0, 1.0], "apart": apart})
    return r["result"], r["what"]


@suite.test
def parity_is_compared_with_pytorch_in_f64():
    """The limit follows from the error of PyTorch's f32; if that error is too large, nothing is
    judged."""
    nan = float("nan")
    assert judgement()[0] == judgement(ours=(9e-5, 0.1), own=(1e-6, 0.02))[0] == "ok"
    for of, name in ((dict(losses=(2.0, 1.001)), "the loss of step 2"), (dict(losses=(nan, 1.0)), "the loss of step 1"),
                     (dict(ours=(1e-6, 2e-4)), "the first step of p1"), (dict(ours=(0.2, 1e-6), own=(0.02, 1e-6)), "the first step of p0"),
                     (dict(ours=(nan, 1e-6), own=(nan, 1e-6)), "the first step of p0")):
        result, what = judgement(**of)
        assert result == "FAILED" and f"1 too far from PyTorch's in f64, 0 by which nothing is known; first {name}: " in what, what
    assert "no parameter was compared" in judgement(parameters=0)[1] and judgement(parameters=0)[0] == "FAILED"
    result, what = judgement(own=(0.2, 0.2))
    assert result == "FAILED" and "PyTorch's own f32 is too far from its f64 in 2 to judge by" in what, what
    result, what = judgement(ours=[1e-6] * 39, own=[0.2] * 3 + [1e-6] * 36, parameters=39)
    assert result == "ok" and "3 by which nothing is known" in what, what


@suite.test
def predicted_launch_counts_match_the_real_ones():
    """Launches of a step of an MLP, and of a BERT with fewer blocks."""
    for network, *shape in (("mlp", "4", "16", "f32"), ("bert-small-drops", "2", "8", "bf16")):
        done = subprocess.run([os.path.join(BIN, "tests/gpu/speed/steps"), network, *shape, "2"], stdout=subprocess.PIPE, text=True, check=True)
        said = json.loads(done.stdout)
        predicted = subprocess.run([sys.executable, os.path.join(HERE, "predict.py"), "--launches", network], stdout=subprocess.PIPE,
                                   text=True, check=True).stdout
        assert predicted.split() == [str(said["kernels"]), str(said["products"])], (network, predicted, said)


# Kernels of the library without a row in shares, and the reason.
NO_ROW = {"record_bad_length": "one thread looks at lengths", "compute_first_rows": "one thread adds lengths", "put_running_moments": "a value for each channel",
          **{f"gpu_sum_columns_kernel<{term}>": "all values are one channel, which gpu_sum_slabs_kernel sums"
             for term in ("class_term", "loss_term<bce> ", "loss_term<bce_with_logits> ", "loss_term<mse> ", "loss_term<poisson> ",
                          "parametric_term<huber> ", "parametric_term<quantile> ", "parametric_term<smooth_l1> ", "product_term")}}


def kernels_of(program):
    """{address relative to main: name} of the kernels that a program may launch. Each type of a
    template is a kernel."""
    listed = subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    # GCC 14 marks `auto` parameters in symbols, which c++filt of binutils 2.44 cannot read
    said = subprocess.run(["c++filt"], input=listed.replace("ITnDaX", "IX"), stdout=subprocess.PIPE, text=True, check=True).stdout
    symbols = {name: int(at, 16) for at, name in re.findall(r"^([0-9a-f]+) [tT] (.*)", said, re.M)}
    named = re.compile(r"gpu_call<&\(?(?:void )?\(?(?:\(anonymous namespace\)::)?(\w+(?:<[^(]*>)?)\(")
    return {at - symbols["main"]: named.search(name)[1] for name, at in symbols.items() if "gpu_call<&" in name}


@suite.test
def every_kernel_has_a_row_in_shares():
    """Each kernel of the library, by the program's symbols, has a row or a reason in NO_ROW."""
    program = os.path.join(BIN, "tests/gpu/speed/shares")
    own = kernels_of(program)
    done = subprocess.run([program, "2", "4", "8", "32"], stdout=subprocess.PIPE, text=True, check=True)
    ran = set(json.loads(done.stdout.splitlines()[-1])["kernels"])
    assert len(own) > 140 and ran <= set(own), (len(own), ran - set(own))
    without = {name for at, name in own.items() if at not in ran}
    assert without == set(NO_ROW), f"without a row in tests/gpu/speed/shares_more.c: {sorted(without - set(NO_ROW))}"


@suite.test
def next_run_resumes_at_the_first_missing_piece():
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
    except (FileNotFoundError, ProcessLookupError):
        return False


def at_work_on(pid, program):
    """The processes that pid has started and that already run the program."""
    found = []
    for child in children(pid):
        try:
            found += [child] if os.path.basename(os.readlink(f"/proc/{child}/exe")) == program else []
        except FileNotFoundError:
            pass
    return found


def in_the_middle_of(name, program="steps"):
    """run.py in the middle of a piece, and the programs of the piece, stopped so that they do not
    end."""
    # A shell's background processes ignore SIGINT, and so do their children.
    at_work = subprocess.Popen(command(name), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    late, programs = time.monotonic() + 60 * max(SLOW, 1), []
    while not programs:
        assert at_work.poll() is None and time.monotonic() < late, "it ended before it was stopped"
        programs = at_work_on(at_work.pid, program)
        for pid in programs:
            os.kill(pid, signal.SIGSTOP)
    return at_work, programs


def killed(name, program="steps"):
    """run.py, killed in the middle of a piece."""
    at_work, programs = in_the_middle_of(name, program)
    try:
        other = subprocess.run(command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert other.returncode and "another one is at work in" in other.stdout, other
        os.kill(at_work.pid, signal.SIGKILL)
        at_work.wait()
        late = time.monotonic() + 10 * max(SLOW, 1)
        while any(map(is_alive, programs)):
            assert time.monotonic() < late, "what it has started goes on"
            time.sleep(0.01)
    finally:
        for pid in filter(is_alive, programs):
            os.kill(pid, signal.SIGKILL)
    assert known()[name]["result"] == "interrupted", known()


@suite.long
def next_run_repeats_the_piece_that_was_killed():
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
def piece_that_was_killed_twice_is_marked_failed():
    forget()
    for _ in range(2):
        killed("memcheck_lstm")
    _, code, table = pieces("--minutes", "0")
    assert code == 1 and re.search(r"^\| memcheck_lstm \| FAILED \| 0 \| began 2 times and did not end", table, re.M), table


@suite.test
def missing_pytorch_build_or_piece_is_named():
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
    os.mkdir(os.path.join(RESULTS, "results.json.new"))
    done = subprocess.run(command("machine"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and "results cannot be written: " in done.stdout and "Traceback" not in done.stdout, done
    os.rmdir(os.path.join(RESULTS, "results.json.new"))
    with open(os.path.join(RESULTS, "results.json"), "w") as f:
        f.write("{half")
    done = subprocess.run(command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and "is damaged" in done.stdout and "Traceback" not in done.stdout, done


@suite.test
def programs_that_do_not_start_are_reported_first():
    """For example because the C library is older, or programs may not be executed there."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "gpu"))
        for name in ("cleave-master", "gpu/cleave-worker"):
            with open(os.path.join(folder, name), "w") as f:
                f.write("#!/bin/sh\necho version GLIBC_2.36 not found; exit 1\n")
        for mode, why in ((0o755, "cleave-master does not start: version GLIBC_2.36 not found: BUNDLE.md says what"), (0o644, "does not start: ")):
            os.chmod(os.path.join(folder, "cleave-master"), mode)
            done = subprocess.run([sys.executable, SCRIPT, "--dry", folder, "machine"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 1 and why in done.stdout and "Traceback" not in done.stdout, done


@suite.test
def interrupt_names_the_piece_without_a_traceback():
    forget()
    at_work, programs = in_the_middle_of("memcheck_lstm")
    time.sleep(0.5)  # until run.py has recorded its child
    at_work.send_signal(signal.SIGINT)
    try:
        said = at_work.communicate(timeout=60 * max(SLOW, 1))[0]
    finally:
        for pid in filter(is_alive, programs):
            os.kill(pid, signal.SIGKILL)
    assert at_work.returncode == 1 and "stopped in memcheck_lstm: the next call begins with it" in said and "Traceback" not in said, said


@suite.test
def old_python_gets_a_version_error():
    """The file that prints the error must have no syntax that is new to the old Python."""
    with open(SCRIPT) as f:
        text = f.read()
    old = f"import sys; sys.version_info = (3, 6); exec(compile({text!r}, 'run.py', 'exec'))"
    done = subprocess.run([sys.executable, "-c", old], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and done.stdout.startswith("run.py needs Python 3.8 or later, and this is "), done
    new = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.JoinedStr, ast.NamedExpr, ast.AnnAssign))]
    assert not new and "print " not in text, [n.lineno for n in new]


@suite.test
def promises_in_bundle_md_name_existing_tests():
    """The last table of BUNDLE.md names scripts and programs, and tests in them."""
    with open(os.path.join(HERE, "BUNDLE.md")) as f:
        table = re.findall(r"^\| [^|`]*(?:`\w+`[^|`]*)*\| (.*) \|$", f.read().partition("## Where each promise")[2], re.M)
    named = [name for row in table for name in re.findall(r"`([\w/.]+)`(?!\w)", row)]
    text, tests = "", 0
    for name in named:
        paths = [os.path.join(HERE, name), os.path.join(HERE, "..", name)]
        path = next((p for p in paths if os.path.isfile(p)), None)
        if path:
            with open(path) as f:
                text = f.read()
        elif "/" not in name and "." not in name:
            assert re.search(rf"\b{name}\b", text), f"{name} is in none of the files before it"
            tests += 1
    assert tests > 35, tests


def rows():
    """The pieces in the table."""
    with open(os.path.join(RESULTS, "results.md")) as f:
        return [line.split("|")[1].strip() for line in f.read().splitlines()[2:] if line.startswith("|")]


@suite.test
def bundle_has_and_documents_every_required_piece():
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
