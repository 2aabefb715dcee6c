#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package without torch: open and close, exceptions, signals, fork, pickle."""
import copy, json, os, pickle, signal, subprocess, sys, threading, time
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, SANITIZER, SLOW, Cluster, Suite
import policies
PACKAGE = os.path.abspath(os.path.join(BIN, "python"))
WITH_PACKAGE = {"PYTHONPATH": PACKAGE, "LD_PRELOAD": SANITIZER}
sys.path.insert(0, PACKAGE)
import cleave  # noqa: E402: build/*/python has it
from cleave._lib import ffi, lib  # noqa: E402

suite = Suite()
# a shell starts background jobs with it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)


def python(program, **env):
    """Runs a program with the package; CompletedProcess."""
    return subprocess.run([sys.executable, "-c", program], env={**os.environ, **WITH_PACKAGE, **env}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * SLOW)


def raised(kind, function, *args, **options):
    """The exception of class `kind` that the call raises."""
    try:
        function(*args, **options)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


@suite.test
def import_needs_neither_torch_nor_numpy():
    done = python("import sys, cleave; print([m for m in ('torch', 'numpy', 'pandas', 'tqdm') if m in sys.modules], 'Error' in dir(cleave))")
    assert done.stdout.strip() == "[] True", done


@suite.test
def libraries_are_named_by_who_runs_them():
    rows = {row.name: row for row in cleave.libraries()}
    assert list(rows) == ["OpenSSL", "gRPC core", "oneDNN", "OpenBLAS"] and all(row.of == "system" for row in rows.values()), rows
    with open("/proc/self/maps") as f:
        maps = f.read()
    for row in rows.values():
        assert row.version[0].isdigit() and os.path.realpath(row.path) in maps, row


@suite.test
def library_of_a_folder_without_one_is_named():
    done = python("import cleave", CLEAVE_LIBRARY_DIR="/nowhere")
    assert "ImportError: CLEAVE_LIBRARY_DIR=/nowhere" in done.stderr, done
    done = python("import cleave; print(cleave.__version__)", CLEAVE_LIBRARY_DIR=os.path.abspath(BIN))
    assert done.stdout.strip() == cleave.__version__, done


@suite.test
def runtime_opens_lists_nodes_and_closes_without_leaks():
    with cleave.open(session) as rt:
        assert rt.nodes() == ["master", "w1", "w2"]
        assert len(rt.egress()) == 0 and "nothing" in repr(rt.egress())
    assert rt.leaks == cleave.Leaks() and not rt.leaks
    e = raised(cleave.PreconditionError, rt.nodes)
    assert "closed" in str(e) and "cleave.open" in e.hint
    with cleave.open(session, workers=["w2"]) as rt:
        assert rt.nodes() == ["master", "w2"]


@suite.test
def failures_are_errors_and_built_in_exceptions():
    wrong = cluster.session("wrong", "tranfer: direct\n")
    e = raised(ValueError, cleave.open, wrong)
    assert isinstance(e, cleave.Error) and e.code == cleave.Code.INVALID and "wrong.yaml:" in str(e), e
    e = raised(ConnectionError, cleave.open, unreached, deadline=5)
    assert isinstance(e, cleave.UnavailableError) and "w1" in str(e) and "hint: " in str(e), e
    raised(LookupError, cleave.open, session, workers=["w9"])
    raised(ValueError, cleave.open, session, deadline=-1)
    e = raised(cleave.PreconditionError, cleave.open, session, run=session)
    again = pickle.loads(pickle.dumps(e))
    assert type(again) is cleave.PreconditionError and str(again) == str(e)
    assert not cleave._runtime._open


@suite.test
def run_keeps_a_record_of_what_leaves():
    folder = os.path.join(cluster.dir, "runs", "mine")
    with cleave.open(session, run=folder) as rt:
        rt.epoch()
    with open(os.path.join(folder, "egress.jsonl")) as f:
        begin, end = map(json.loads, f)
    assert begin["command"] == "program" and begin["run"] == folder and not begin["policy"], begin
    assert end["event"] == "end" and end["code"] == end["bytes"] == 0, end


@suite.test
def words_of_sends_are_those_of_plan():
    said = cleave._sends.declared({"inputs": ["tokens, PICTURE", None], "gradient": "labels_readable", "hiding_layers": 2}, 2)
    assert (said.inputs, said.gradient, said.hiding_layers, said.of_value) == ((5, 0), 16, 2, 0), said
    assert said.text(0, "f32") == "declared by the program: TOKENS, PICTURE" and "worst" in said.text(1, "i64")
    assert cleave._sends.declared("mixed", 2).of_value == 64 and cleave._sends.declared(None, 1).inputs == (0,)
    for wrong in ("harmless", "mixed, tokens", "", 7, ["mixed"], {"input": "mixed"}, {"hiding_layers": -1}):
        raised(cleave.InvalidError, cleave._sends.declared, wrong, 2)


@suite.test
def policy_of_the_host_decides_on_programs():
    """Needs root: without it the test does nothing."""
    if policies.missing():
        return policies.missing()
    host = policies.Host(cluster.dir)
    policy = ("version: 1\nworkers: [\"spiffe://test/w1\"]\nkinds: [activation]\nlargest_shape: [64, 64]\ndtypes: [f32]\n"
              "bytes_per_epoch: 4MiB\n")
    program = os.path.join(cluster.dir, "opens.py")
    with open(program, "w") as f:
        f.write(f"import sys; sys.path.insert(0, {PACKAGE!r})\n"
                "import cleave\n"
                "for run in (None, 'held'):\n"
                "    try:\n"
                f"        with cleave.open({session!r}, workers=['w1'], run=run) as rt:\n"
                "            rt._declare(cleave.Sent('w1', 'input', 'far', '0', 'f32', (4, 3), '', 0, 0), 64)\n"
                "            rt._declare(cleave.Sent('w1', 'input', 'far', '1', 'f32', (4, 3), '', 0, 0))\n"
                "    except cleave.Error as e:\n"
                "        print(type(e).__name__, e.text)\n")
    said = []
    for text in (policy, policy + "programs: declared\n"):
        host.decree(text)
        said.append(subprocess.run([*host.near, "env", f"LD_PRELOAD={SANITIZER}", sys.executable, program], text=True, cwd=cluster.dir, capture_output=True))
    refused, held = (done.stdout.splitlines() for done in said)
    assert len(refused) == 2 and all("DeniedError" in line and "programs: declared" in line for line in refused), said[0]
    assert "PreconditionError" in held[0] and "DeniedError" in held[1] and "input 1 of" in held[1] and "allow.raw" in held[1], said[1]


def interrupted(function):
    """Seconds from Ctrl-C to the KeyboardInterrupt in a blocking call."""
    sent = []

    def press():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.4, press)
    timer.start()
    raised(KeyboardInterrupt, function)
    return time.monotonic() - sent[0]


@suite.test
def interrupt_ends_open_close_and_waits():
    """With a stopped worker each of these would wait for its deadline."""
    rt = cleave.open(session, deadline=8)
    cluster.workers[0].kill(signal.SIGSTOP)
    try:
        assert (took := interrupted(lambda: cleave.open(session, deadline=8))) < 0.1 * max(1, SLOW), took
        assert (took := interrupted(rt.close)) < 0.1 * max(1, SLOW), took
    finally:
        cluster.workers[0].kill(signal.SIGCONT)


def linear(rt, at):
    """A loaded linear layer at that node."""
    module, error = ffi.new("cleave_module **"), ffi.new("cleave_error *")
    texts = [ffi.new("char[]", at.encode()), ffi.new("char[]", b"far")]
    options = ffi.new("cleave_module_options *", {"size": ffi.sizeof("cleave_module_options"), "at": texts[0], "name": texts[1]})
    given = ffi.new("cleave_input *", {"dtype": 1, "rank": 2, "shape": [4, 8]})
    status = lib.cleave_load_layers(rt._handle, options, b"[{op: linear, out: 8}]", given, module, error)
    assert status == 0, ffi.string(error.text)
    return module[0]


@suite.test
def killed_worker_raises_within_a_second():
    with cleave.open(session) as rt:
        module, error = linear(rt, "w2"), ffi.new("cleave_error *")
        assert lib.cleave_module_place(rt._handle, module, False, 0, error) == 0, ffi.string(error.text)
        cluster.workers[1].kill()
        begin = time.monotonic()
        e = raised(ConnectionError, rt._wait, lambda rt, future, e: lib.cleave_state_read_async(rt, module, 1, 0, future, e))
        took = time.monotonic() - begin
        lib.cleave_module_release(rt._handle, module, ffi.NULL)
        cluster.restart(1)
        assert took < max(1, SLOW) and "w2" in str(e), (took, e)


@suite.test
def forked_child_is_refused_in_words_and_harms_nobody():
    with cleave.open(session) as rt:
        child = os.fork()
        if not child:
            code = 1
            try:
                rt.nodes()
            except cleave.PreconditionError as e:
                code = 0 if "forked" in str(e) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert rt.nodes() == ["master", "w1", "w2"]


@suite.test
def handles_are_neither_pickled_nor_copied():
    with cleave.open(session) as rt:
        for function in (pickle.dumps, copy.deepcopy, copy.copy):
            assert "cannot pickle or copy a Runtime" in str(raised(TypeError, function, rt))


@suite.test
def open_runtime_is_closed_at_exit():
    done = python(f"import cleave; rt = cleave.open({session!r}); print(rt)")
    assert done.returncode == 0 and done.stdout.endswith("open>\n") and not done.stderr, done


HOLDS = ("import cleave, os, sys; rt = cleave.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()\n"
         "os.execv(sys.executable, [sys.executable, '-c', sys.argv[2], sys.argv[1]])")
TAKES_OVER = """
import sys, time, cleave
begin = time.monotonic()
cleave.open(sys.argv[1], deadline=20).close()
print(time.monotonic() - begin)
"""


@suite.test
def restarted_notebook_finds_its_workers():
    """A kernel with an open runtime is killed, or replaced by execv without its end. Workers keep
    its session for a while, as after any lost connection, and serve the next one beside it."""
    env = {**os.environ, **WITH_PACKAGE}
    for is_killed in (True, False):
        first = subprocess.Popen([sys.executable, "-c", HOLDS, session, TAKES_OVER], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert first.stdout.readline() == "open\n"
        if is_killed:
            first.kill()
            first.communicate()
            said = subprocess.run([sys.executable, "-c", TAKES_OVER, session], env=env, text=True, stdout=subprocess.PIPE, timeout=60 * SLOW).stdout
        else:
            said = first.communicate(timeout=60 * SLOW)[0]
        # an open that waited for the killed session's end would reach its deadline of 20 s
        assert float(said) < (2 if SLOW <= 1 else 5 * SLOW), (is_killed, said)


@suite.test
def killed_program_leaves_its_only_session_to_the_next():
    """A worker takes one session. The next open of the same session gets that of a killed program
    after 2 s; another session does not, and one whose program lives is kept."""
    state, env = os.environ["XDG_STATE_HOME"], {**os.environ, **WITH_PACKAGE}
    try:
        with Cluster(1, limits="limits: {sessions: 1}\n") as one:
            own, other = one.session("notebook", ""), one.session("other", "")
            first = subprocess.Popen([sys.executable, "-c", HOLDS, own, TAKES_OVER], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert first.stdout.readline() == "open\n"
            raised(cleave.ExhaustedError, cleave.open, own)
            first.kill()
            first.communicate()
            raised(cleave.ExhaustedError, cleave.open, other)
            begin = time.monotonic()
            cleave.open(own).close()
            assert time.monotonic() - begin < 4 * max(1, SLOW)
            assert "a newer one has taken its place" in one.workers[0].text(), one.workers[0].text()
    finally:
        os.environ["XDG_STATE_HOME"] = state


if __name__ == "__main__":
    with Cluster(2) as cluster:
        session = cluster.session("python", "")
        with open(session) as f:
            text = f.read()
        unreached = os.path.join(cluster.dir, "unreached.yaml")
        with open(unreached, "w") as f:
            f.write(text.replace(cluster.address(0), "127.0.0.1:1"))
        suite.main()
