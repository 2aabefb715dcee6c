# SPDX-License-Identifier: Apache-2.0
"""A small tree for the test of a check: plants faults in it, one at a time."""
import importlib, os, runpy, shutil, sys, tempfile, traceback

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def put(path, text, how="a"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, how) as f:
        f.write(text)


def plant(folder, changes):
    """changes: (path, text to append). A text of None removes the file; with `=` before the path
    the text replaces the file. Returns the earlier contents."""
    before = {}
    for path, text in changes:
        how, path = "w" if path[:1] == "=" else "a", os.path.join(folder, path.lstrip("="))
        before[path] = None
        if os.path.exists(path):
            with open(path) as f:
                before[path] = f.read()
        if text is None:
            os.remove(path)
        else:
            put(path, text, how)
    return before


def put_back(before):
    for path, text in before.items():
        if text is None:
            os.remove(path)
        else:
            put(path, text, "w")


def execute(folder, command):
    """Runs a script of Python in this process. Returns its exit code."""
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        os.environ.pop(name, None)
    os.environ["CLEAVE_TEST_BIN"] = os.path.join(folder, "build/release")
    sys.argv = command
    os.chdir(folder)
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as e:
        if isinstance(e.code, str):
            print(e.code)
        return e.code if isinstance(e.code, int) else 1 if e.code else 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(folder, command):
    """(exit code, output) of a script. It runs in a fork of this process, because the start of an
    interpreter takes longer than most checks."""
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            for fd in (1, 2):
                os.dup2(output.fileno(), fd)
            code = execute(folder, command)
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read().decode()


def judge(files, scripts, cases):
    """cases: name -> (changes, command, exit code, text in the output). Returns 0 if all cases are
    as wanted."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="cleave-test-") as folder:
        for path, text in files.items():
            put(os.path.join(folder, path), text)
        for name in scripts:
            shutil.copy(os.path.join(TESTS, name), os.path.join(folder, "tests", name))
        sys.path.insert(0, os.path.join(folder, "tests"))
        sys.dont_write_bytecode = True  # the next planted file may have the same size and time
        for name in scripts:
            if name.endswith(".py"):
                importlib.import_module(name[:-len(".py")])
        for what, (changes, command, code, says) in cases.items():
            before = plant(folder, changes)
            got, output = run(folder, command)
            put_back(before)
            good = got == code and says in output
            failed += not good
            print(("ok " if good else f"{output}\n'{says}' is not there, or exit {got}\nnot ok ") + what.replace(" ", "_"), flush=True)
    return 1 if failed else 0
