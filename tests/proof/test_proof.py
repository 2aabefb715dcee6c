#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make proof` with proofs that take no time: proofs that are run again after a kill or a change,
valid figures, and the lines of real proofs with their figures."""
import contextlib
import glob
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../net/lib")]
import proof
import rules
from cluster import Suite
from rules import Proof

suite = Suite()
FAKES = (Proof("quick", "none fails", rules.suites(1), ("tests/own",)),
         Proof("slow", "none fails", rules.suites(1), (), {"N": "9"}, {"N": "1"}),
         Proof("ratio", "all targets met", rules.bench, (), measures=True))
MAKEFILE = r"""
quick:
	@echo ran quick >> ran
	@cat quick.says
slow:
	@echo ran slow $(N) >> ran
	@[ ! -e hang ] || { touch hanging; sleep 60; }
	@echo '2 passed, 0 failed'
ratio:
	@echo ran ratio >> ran
	@cat ratio.says; exit $$(cat ratio.code)
"""


class Tree:
    """A repository whose Makefile has fake proofs."""

    def __init__(self, folder):
        self.root = folder
        for path, text in (("Makefile", MAKEFILE), ("product.c", "int x;\n"), ("page.md", "a page\n"),
                           ("tests/own/a", "own\n"), ("tests/other/b", "other\n"),
                           ("quick.says", "3 passed, 0 failed\n"), ("ratio.says", "2 of 2 targets met\n"),
                           ("ratio.code", "0\n")):
            self.write(path, text)
        for args in (("init", "-q"), ("add", "-A")):
            subprocess.run(["git", "-C", folder, *args], check=True)
        self.write(".git/info/exclude", "ran\nhang*\n*.says\n*.code\n")
        subprocess.run(["git", "-C", folder, "rm", "-q", "--cached", "quick.says", "ratio.says", "ratio.code"],
                       check=True)

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)

    def command(self):
        """`make proof` as a process of its own, which a test can kill."""
        script = (f"import sys; sys.path.insert(0, {HERE!r}); sys.path.insert(0, {HERE + '/../net/lib'!r})\n"
                  f"import proof, test_proof\nsys.exit(proof.main(test_proof.FAKES, {self.root!r}, []))")
        return [sys.executable, "-c", script]

    def prove(self, *args, code=0, **env):
        """Runs `make proof` there: its output, and which proofs it ran."""
        self.write("ran", "")
        said = io.StringIO()
        with unittest.mock.patch.dict(os.environ, env), contextlib.redirect_stdout(said):
            try:
                ended = proof.main(FAKES, self.root, list(args))
            except SystemExit as e:
                print(e.code)
                ended = 1
        assert ended == code, said.getvalue()
        with open(os.path.join(self.root, "ran")) as f:
            return said.getvalue(), [line.split()[1] for line in f]

    def rows(self):
        return proof.read_table(os.path.join(self.root, "tests/PROOFS.md"))


def in_tree(test):
    def run():
        with tempfile.TemporaryDirectory(prefix="cleave-proof-") as folder:
            test(Tree(folder))
    run.__name__ = test.__name__
    suite.test(run)


@in_tree
def proofs_run_once(tree):
    assert tree.prove()[1] == ["quick", "slow", "ratio"]
    assert tree.prove()[1] == []
    row = tree.rows()["slow"]
    assert (row["met"], row["length"], row["figure"]) == ("yes", "N=9", "2 passed, 0 failed, 0 skipped"), row
    said, ran = tree.prove("--status")
    assert not ran and "3 of 3 proofs are fresh" in said, said
    assert tree.prove(PROOF="quick")[1] == ["quick"]
    said, ran = tree.prove("--names", PROOF="nosuch", code=1)
    assert not ran and "PROOF=nosuch: there are quick slow ratio" in said, said
    assert tree.prove("--names", PROOF="quick") == ("", [])


@suite.test
def an_unknown_proof_is_refused_before_packages_are_installed():
    with open(os.path.join(HERE, "../proofs.mk")) as f:
        made = recipe(f.read(), "proof")
    assert 0 < made.index("proof.py --names") < made.index("deps-parity"), made


@suite.test
def help_and_help_all_have_each_target_once():
    said = [set(re.findall(r"^make (\S+)", subprocess.run(["make", "-sC", os.path.join(HERE, "../.."), target], text=True,
                                                          stdout=subprocess.PIPE, timeout=60).stdout, re.M))
            for target in ("help", "help-all")]
    assert "deps" in said[0] and "deps-test" in said[1] and not said[0] & said[1], said


@suite.test
def packages_have_names_on_known_systems_and_others_learn_what_to_do():
    def named(system, *uses):
        run = subprocess.run([os.path.join(HERE, "../install-packages"), "--print", *uses], text=True, timeout=20,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, DISTRIBUTION=system))
        return run.returncode, run.stdout.split(), run.stderr
    names = {system: named(system, "build", "test")[1] for system in ("debian-12", "debian-13", "ubuntu-24.04")}
    assert all(len(of) > 35 and not {"-", "="} & set(of) for of in names.values()), names
    runtimes = {name for of in names.values() for name in of if "clang-rt" in name}
    assert runtimes == {f"libclang-rt-{version}-dev" for version in (14, 18, 19)}, runtimes
    code, out, err = named("fedora-41", "build")
    assert code == 1 and not out, (code, out)
    assert all(word in err for word in ("fedora-41", "debian-13 ubuntu-24.04", "DISTRIBUTION=none", "libdnnl-dev")), err
    assert named("none", "build") == (0, [], "")
    code, out, err = named("debian-12", "nftables")
    assert code == 1 and not out and "no packages for the use 'nftables'; its uses are: build test" in err, (code, out, err)


@suite.test
def packages_that_the_makefiles_install_are_in_the_table():
    tree = os.path.join(HERE, "../..")
    found = set()
    for path in [p for folder in ("tests", "deploy") for p in glob.glob(os.path.join(tree, folder, "**/*.mk"), recursive=True)]:
        with open(path) as f:
            found |= {use for uses in re.findall(r"install-packages ((?:[a-z]+ ?)+)$", f.read(), re.M) for use in uses.split()}
    assert {"build", "outages", "trixie"} <= found, found
    done = subprocess.run([os.path.join(HERE, "../install-packages"), "--print", *found], text=True, timeout=20,
                          stderr=subprocess.PIPE, env=dict(os.environ, DISTRIBUTION="debian-12"), stdout=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr


@in_tree
def proofs_go_on_after_a_kill(tree):
    """Killed in the second: the first keeps its row, the second is run again and says why."""
    tree.write("hang", "")
    process = subprocess.Popen(tree.command(), stdout=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 30
    while not os.path.exists(os.path.join(tree.root, "hanging")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.remove(os.path.join(tree.root, "hang"))
    assert set(tree.rows()) == {"quick"}, tree.rows()
    assert "was interrupted" in tree.prove("--status")[0]
    said, ran = tree.prove()
    assert ran == ["slow", "ratio"] and "slow (interrupted)" in said, (said, ran)


@in_tree
def proofs_get_stale_by_what_they_depend_on(tree):
    tree.prove()
    for path, stale in (("tests/other/b", []), ("page.md", []), ("tests/own/a", ["quick"]),
                        ("product.c", ["quick", "slow", "ratio"])):
        tree.write(path, "changed\n")
        said = tree.prove("--status")[0]
        assert said.count("STALE") == len(stale), (path, said)
        assert tree.prove()[1] == stale, path
    os.remove(os.path.join(tree.root, "product.c"))
    assert tree.prove("--status")[0].count("STALE") == 3


@in_tree
def proofs_without_a_figure_have_failed(tree):
    for says in ("", "all went well\n", "3 passed\n", "1 passed, 0 failed\n1 passed, 0 failed\n"):
        tree.write("quick.says", says)
        said, ran = tree.prove(code=1, PROOF="quick")
        assert tree.rows()["quick"]["met"] == "failed" and "unreadable" in said, (says, said)
    tree.write("quick.says", "2 passed, 1 failed\n")
    assert "quick" in tree.prove(code=1)[1] and tree.rows()["quick"]["met"] == "failed"
    assert tree.prove(code=1)[1] == ["quick"], "what has failed is run again, nothing else"
    tree.write("quick.says", "3 passed, 0 failed\n")
    assert tree.prove()[1] == ["quick"] and tree.rows()["quick"]["met"] == "yes"


@in_tree
def proofs_that_measure_may_miss(tree):
    """A missed target is a valid result; a met target with a bad exit code is none."""
    tree.write("ratio.says", "missed strictly: row\n1 of 2 targets met\n")
    tree.write("ratio.code", "1\n")
    tree.prove()
    assert tree.rows()["ratio"]["met"] == "no" and tree.prove()[1] == []
    tree.write("ratio.says", "2 of 2 targets met\n")
    tree.prove(code=1, PROOF="ratio")
    assert tree.rows()["ratio"]["met"] == "failed"


@in_tree
def proofs_that_were_short_are_run_whole(tree):
    tree.prove(PROOF_SCALE="short")
    assert tree.rows()["slow"]["length"] == "N=1" and tree.prove(PROOF_SCALE="short")[1] == []
    assert tree.prove()[1] == ["slow"] and tree.rows()["slow"]["length"] == "N=9"
    assert tree.prove(PROOF_SCALE="short")[1] == []


@in_tree
def proofs_are_asked_for_by_name(tree):
    assert "there are quick slow ratio" in tree.prove(code=1, PROOF="quikc")[0]
    assert "full or short" in tree.prove(code=1, PROOF_SCALE="tiny")[0]


SAMPLES = {  # what each prints when it is well, and what has to count against it
    "parity": ("16 passed, 0 failed, 1 skipped", "15 passed, 1 failed"),
    "hf-parity": ("16 configs of 4 families, 99 cuts with the bits of one part\n16 passed, 0 failed",
                  "16 configs of 4 families, 99 cuts with the bits of one part\n15 passed, 1 failed"),
    "peft-parity": ("16 passed, 0 failed", "15 passed, 1 failed"),
    "hf-keys": ("2900 passed, 0 failed", "2899 passed, 1 failed"),
    "hf-base": ("2 passed, 0 failed", "1 passed, 1 failed"),
    "hf-files": ("32 passed, 0 failed, 1 skipped", "31 passed, 1 failed, 1 skipped"),
    "seed-000": ("ok micro F1, mean of 3 seeds: 97.00 %, PyTorch 97.10 %, apart -0.10 points, at least -0.5\nok seed 000",
                 "not ok micro F1, mean of 3 seeds: 92.00 %, PyTorch 97.10 %, apart -5.10 points, at least -0.5\nnot ok seed 000; micro F1"),
    "large-table": ("large-table: 20.0 GB, 9,928,000 records, cells of 2.54 GB; 298 MiB at most, of 1024 MiB, 477 s",
                    "large-table: 20.0 GB, 9,928,000 records, cells of 2.54 GB; 1298 MiB at most, of 1024 MiB, 477 s"),
    "exports": ("73 of 77 networks exported as written, 4 refused, 0 wrong", "73 of 77 networks exported as written, 3 refused, 1 wrong"),
    "learns": ("ok gpipe: 88.10 %, PyTorch 88.00 %, apart 0.10 of 0.50 points (9s)",
               "not ok gpipe: 80.10 %, PyTorch 88.00 %, apart 7.90 of 0.50 points (9s)"),
    "fuzz": ("== fuzz_wire\nstat::number_of_executed_units: 900\nstat::average_exec_per_sec:     15",
             "== fuzz_wire\nSUMMARY: libFuzzer: deadly signal\nstat::number_of_executed_units: 900"),
    "fuzz-coverage": ("wire           common/net/wire/frame.c     310 lines   91.0 %\nevery parser is above its floor",
                      "wire           common/net/wire/frame.c     310 lines   11.0 %  BELOW 90 %\n1 below their floor"),
    "fuzz-readers": ("table        10,000,000 inputs, 900 s, 96.5 % of its lines, 0 findings\n1 of 1 readers without findings, with 90 % of their lines",
                     "table        10 inputs, 9 s, 0.0 % of its lines, 1 findings\n0 of 1 readers without findings, with 90 % of their lines"),
    "mutate": ("7 breaks caught, 0 not, 1 skipped", "7 breaks caught, 1 not, 0 skipped"),
    "long": ("400 passed, 0 failed, 1 skipped", "400 passed, 1 failed"),
    "sanitize": ("400 passed, 0 failed\n400 passed, 0 failed, 2 skipped", "400 passed, 0 failed\n1 passed, 3 failed"),
    "test-trixie": ("test accuracy 84.1 %\n400 passed, 0 failed, 2 skipped", "400 passed, 2 failed"),
    "gpu-dry": ("23 ok, 20 skipped, 0 failed; 41.0 of 60 MiB; no network", "22 ok, 20 skipped, 1 failed; 41.0 of 60 MiB; no network"),
    "schedules": ("ok random (3s)\nok damaged (4s)", "ok random (3s)\nnot ok damaged (AssertionError: x)"),
    "references": ("10000 runs (900 a second), 0 failed: 12345 operations, 3 messages\nok references",
                   "10000 runs (900 a second), 2 failed: 12345 operations, 3 messages\nnot ok references"),
    "simulate": ("10000 runs (60 a second), 0 failed: 12345 lines, 3 bytes equal\nok simulate",
                 "10000 runs (60 a second), 2 failed: 12345 lines, 3 bytes equal\nnot ok simulate"),
    "programs": ("5000 programs (4.0 a second), 0 failed: 12345 lines, 3 bytes equal, 0 workers lost, 0 errors after that\n"
                 "1250 programs (1.0 a second), 0 failed: 345 lines, 3 bytes equal, 1250 workers lost, 9 errors after that",
                 "5000 programs (4.0 a second), 0 failed: 12345 lines, 3 bytes equal, 0 workers lost, 0 errors after that\n"
                 "1250 programs (1.0 a second), 1 failed: 345 lines, 3 bytes equal, 1250 workers lost, 9 errors after that"),
    "faults": ("ok seeds (3s)\nok the demo under faults: 80.1 % and 80.1 %, 9 files alike, messages",
               "not ok seeds (AssertionError: x)\nok the demo under faults: 80.1 % and 80.1 %, 9 files alike, messages"),
    "soak": ("ok 100000_steps_leave_nothing_behind", "not ok 100000_steps_leave_nothing_behind w1: RSS 1 -> 9"),
    "soak-mixed": ("seed 17, 1800 s\nok mixed_sessions_leave_nothing_behind (seed 17)",
                   "seed 17, 1800 s\nnot ok mixed_sessions_leave_nothing_behind (seed 17)"),
    "recut": ("ok random_pairs_of_cuts_change_no_bit (20 pairs)\nok master_holds_16_mib_of_what_moves",
              "not ok random_pairs_of_cuts_change_no_bit (pair 3)\nok master_holds_16_mib_of_what_moves"),
    "model": ("ok lanes_hold (2000 states, 9000 transitions)\nok runs_hold (600 states, 700 transitions)\n" +
              "\n".join(f"ok lanes_catches_{n}" for n in range(17)),
              "ok lanes_hold (2000 states, 9000 transitions)\nnot ok runs_catches_0"),
    "kill-walk": ("195 runs, 31 points of 3 processes, 195 reached, 9 masters and 9 workers started again, 0 problems\n"
                  "26 runs with a spare, 18 points of 3 processes, 26 reached, 10 masters and 7 workers started again, 0 problems\nok each_failpoint_changes_no_bit",
                  "195 runs, 31 points of 3 processes, 195 reached, 9 masters and 9 workers started again, 0 problems\n"
                  "26 runs with a spare, 18 points of 3 processes, 25 reached, 10 masters and 7 workers started again, 1 problems\nnot ok each_failpoint_changes_no_bit"),
    "outages": ("ok packets dropped for 1 s: steps go on after 0.8 s\nok packets dropped for 10 s: steps go on after 0.8 s\nok another address: steps go on after 3.9 s\n"
                "ok packets dropped for 300 s: steps go on after 6.5 s\nok 1000 resets: the same bits, no recoveries\nok resets: the longest pause between two steps was 0.7 s",
                "ok packets dropped for 1 s: steps go on after 0.8 s\nok packets dropped for 10 s: steps go on after 0.8 s\nnot ok another address: steps go on after 14.9 s\n"
                "ok packets dropped for 300 s: steps go on after 6.5 s\nok 1000 resets: the same bits, no recoveries\nok resets: the longest pause between two steps was 0.7 s"),
    "checkpoint-cost": ("1024 MiB every 10 s: 14.0 % of the time; every: auto: 2.1 %; the disk writes 490 and 471 MB/s\nok checkpoints_take_at_most_3_percent_with_auto",
                        "1024 MiB every 10 s: 14.0 % of the time; every: auto: 5.1 %; the disk writes 490 and 471 MB/s\nnot ok checkpoints_take_at_most_3_percent_with_auto"),
    "kill-writes": ("30 kills while files of 64 MiB were written (7 of worker, 13 of master, 10 of both), 0 went on from another checkpoint than the one before, "
                    "the same bits, 0 unfinished files left, 75 s (seed 7)\nok killed_writes_change_no_bit",
                    "30 kills while files of 64 MiB were written (7 of worker, 13 of master, 10 of both), 1 went on from another checkpoint than the one before, "
                    "other bits, 1 unfinished files left, 75 s (seed 7)\nnot ok killed_writes_change_no_bit"),
    "soak-kill": ("1000 kills in 70 runs of 5 networks, 150 recoveries, median 0.7 s, 99 of 100 within 1.1 s, 0 differ (seed 8)\n"
                  "ok killed_runs_change_no_bit (900.1s)",
                  "1000 kills in 70 runs of 5 networks, 150 recoveries, median 0.7 s, 99 of 100 within 1.1 s, 1 differ (seed 8)\n"
                  "not ok killed_runs_change_no_bit (AssertionError: ['cnn-3'])"),
    "token-parity": ("bert: 435 texts, 20000000 bytes, 5000000 tokens, 0 texts differ\nall Bert: 1112064 characters, 0 differ",
                     "bert: 435 texts, 20000000 bytes, 5000000 tokens, 3 texts differ\nall Bert: 1112064 characters, 0 differ"),
    "look-proof": ("a key is needed for records: 40 of 200 (20 %)\na key is needed for labels: 72 of 200 (36 %)\n"
                   "200 fronts and heads, 1 above a limit within the error of 32 records, 0 above",
                   "a key is needed for records: 40 of 200 (20 %)\na key is needed for labels: 72 of 200 (36 %)\n"
                   "200 fronts and heads, 1 above a limit within the error of 32 records, 2 above"),
    "attacks": ("ok 300_silent (8s)", "ok 300_silent (8s)\nnot ok noise_leaves_a_small_log (AssertionError: x)"),
    "bench": ("9 of 9 targets met; details in build/bench", "missed strictly: a\n8 of 9 targets met; details"),
    "bench-pipeline": ("9 of 9 targets met, 1 rows skipped; details", "8 of 9 targets met; details"),
    "bench-transformers": ("8 of 8 targets met; details", "7 of 8 targets met; details"),
}


def recipe(makefile, target):
    """The lines of a target's rule."""
    begin = re.search(rf"^{target}:.*\n", makefile, re.M).end()
    return re.match(r"(?:\t.*\n)*", makefile[begin:])[0]


@suite.test
def simulated_device_is_tested_under_both_sanitizers():
    """Its plants, and whole sessions on it: SIMULATION.md promises them."""
    makefile = ""
    for name in ("gpu.mk", "proofs.mk", "tests.mk"):
        with open(os.path.join(HERE, "..", name)) as f:
            makefile += f.read()
    builds = re.findall(r"BUILD=(\w+) test$", recipe(makefile, "sanitize"), re.M)
    assert builds == ["asan", "tsan"], builds
    assert "run-tests --suite --out $(OUT) $(UNIT_PROGRAMS)" in recipe(makefile, "test")
    assert re.search(r"^UNIT_PROGRAMS \+= \$\(GPU_TESTS\)", makefile, re.M)
    for script in ("plants/test_plants.py", "test_sim_worker.py"):  # the suite has every test_*.py
        assert os.path.exists(os.path.join(HERE, "../gpu", script)), script


def with_own_headers(path):
    """A test's text and that of the tests' headers it includes."""
    with open(path) as f:
        text = f.read()
    tree = os.path.join(HERE, "../..")
    headers = re.findall(r'^#include "(tests/unit/\w+/\w+\.h)"', text, re.M)
    return text + "".join(open(os.path.join(tree, h)).read() for h in headers)


@suite.test
def tests_reduced_under_tsan_are_listed_in_simulation_md():
    """SIMULATION.md has a row for each program that does less there; under address sanitizer none
    does."""
    folder = os.path.join(HERE, "../gpu")
    with open(os.path.join(folder, "SIMULATION.md")) as f:
        rows = set(re.findall(r"^\| `(test_\w+)`", f.read(), re.M))
    tests = {name[:-2]: with_own_headers(os.path.join(folder, name))
             for name in os.listdir(folder) if re.fullmatch(r"test_\w+\.c", name)}
    assert {name for name, text in tests.items() if "CLV_THREAD_SANITIZED" in text} == rows, rows
    assert not [name for name, text in tests.items() if re.search(r"\bCLV_SANITIZED\b", text)]


@suite.test
def every_proof_rule_tells_good_output_from_bad():
    assert {p.name for p in rules.PROOFS} == set(SAMPLES), "each proof has a sample"
    for p in rules.PROOFS:
        well, ill = (text.splitlines() for text in SAMPLES[p.name])
        assert proof.judge(p, 0, well)[1] == "yes", (p.name, proof.judge(p, 0, well))
        assert not proof.cell(proof.judge(p, 0, well)[0]).endswith("..."), f"{p.name}: the figure is wider than its cell"
        assert proof.judge(p, 1, ill)[1] == ("no" if p.measures else "failed"), p.name
        assert proof.judge(p, 0, ill)[1] != "yes", p.name
        assert proof.judge(p, 1, well)[1] == "failed", p.name
        assert proof.judge(p, 0, ["make: nothing to be done"])[1] == "failed", p.name


if __name__ == "__main__":
    suite.main()
