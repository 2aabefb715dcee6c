# SPDX-License-Identifier: Apache-2.0
"""tests/run-tests with programs that are built with sanitizers: a race or a leak in a process
whose exit code no test checks fails the test that started it, and the report is shown. A failed
test is named, however many of its program's tests pass after it."""
import os, subprocess, sys, tempfile

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RACE = """#include <pthread.h>
#include <stdlib.h>
static int shared;
static void *add(void *of) { shared++; return of; }
int main(void) {
  pthread_t t;
  pthread_create(&t, 0, add, 0);
  if (getenv("WRONG")) add(0);
  return pthread_join(t, 0);
}
"""
LEAK = """#include <stdlib.h>
int main(void) { char *volatile p = malloc(77); if (!getenv("WRONG")) free(p); p = 0; return 0; }
"""
# stands for a leak of a library, which lsan.supp names, and only whole stacks reach
LIBRARY_LEAK = LEAK.replace("#include", "#include <string.h>\n#include", 1).replace(
    '!getenv("WRONG")', 'strstr(getenv("ASAN_OPTIONS"), "fast_unwind_on_malloc=0")')
SCRIPT = """import subprocess
subprocess.run([{0!r}])
print("ok it_begins_a_daemon")
"""
# name -> (program, its sanitizer, text in the report)
FAULTS = {"race": (RACE, "thread", "ThreadSanitizer: data race"),
          "leak": (LEAK, "address", "77 byte(s) leaked in 1 allocation(s)")}


# fails in its first test, and passes in more than are shown of an output
LONG_OUTPUT = """import sys
print("1 is not 2")
print("not ok first")
for i in range(200):
    print(f"ok test_{i}")
print("not ok last")
sys.exit(1)
"""


def script_of(folder, name, source, sanitizer):
    """A script that starts the program."""
    program, script = (os.path.join(folder, name + end) for end in ("", ".py"))
    subprocess.run(["gcc", "-x", "c", "-", "-g", f"-fsanitize={sanitizer}", "-pthread", "-o", program],
                   input=source, text=True, check=True)
    with open(script, "w") as f:
        f.write(SCRIPT.format(program))
    return script


def suite_of(folder, script, **more):
    """The output of tests/run-tests for the script."""
    env = {k: v for k, v in os.environ.items() if not k.endswith("SAN_OPTIONS")} | more
    done = subprocess.run([sys.executable, os.path.join(TESTS, "run-tests"), "--out", folder, script],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    return done.returncode, done.stdout


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="san-") as folder:
        for name, (source, sanitizer, report) in FAULTS.items():
            script = script_of(folder, name, source, sanitizer)
            code, said = suite_of(folder, script, WRONG="1")
            caught = code == 1 and report in said and "1 passed, 1 failed" in said
            code, clean = suite_of(folder, script)
            spared = code == 0 and "1 passed, 0 failed" in clean
            failed += not (caught and spared)
            print("ok" if caught and spared else "not ok", f"a_{name}_of_a_daemon_fails_its_test", flush=True)
            print("" if caught and spared else said + clean, end="")
        code, said = suite_of(folder, script_of(folder, "library", LIBRARY_LEAK, "address"))
        spared = code == 0 and "1 passed, 0 failed" in said
        failed += not spared
        print("ok" if spared else "not ok", "a_leak_is_looked_at_again_with_whole_stacks", flush=True)
        print("" if spared else said, end="")
        script = os.path.join(folder, "long.py")
        with open(script, "w") as f:
            f.write(LONG_OUTPUT)
        code, said = suite_of(folder, script)
        named = code == 1 and all(f"\n    {line}\n" in said for line in ("failed: first", "failed: last", "1 is not 2"))
        failed += not named
        print("ok" if named else "not ok", "a_failed_test_is_named_before_many_that_pass", flush=True)
        print("" if named else said, end="")
    return 1 if failed else 0


sys.exit(main())
