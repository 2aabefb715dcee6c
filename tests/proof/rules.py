# SPDX-License-Identifier: Apache-2.0
"""The long proofs: the time of each, the files that it depends on, and how its figure is read from
its output. tests/check-proofs compares this table with the targets of the Makefile."""
import glob
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Callable

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from dependencies import reached

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SCRIPTS = sorted(os.path.relpath(p, ROOT) for p in glob.glob(os.path.join(ROOT, "tests/**/*.py"), recursive=True))
BREAKS = [p for p in SCRIPTS if p.startswith("tests/breaks")]


class Unreadable(Exception):
    """The output has no figure: the proof has failed, whatever its exit code."""


@dataclass(frozen=True)
class Proof:
    name: str  # make NAME
    target: str  # in words, for the table
    read: Callable  # its output's lines -> (figure, whether the target is met); raises Unreadable
    needs: tuple  # what it depends on besides the product: tracked files and folders
    full: dict = field(default_factory=dict)  # make variables of the whole proof
    # make variables of a short run, which only shows that the proof works
    short: dict = field(default_factory=dict)
    minutes: int = 10  # approximate time of the whole proof on two cores
    measures: bool = False  # a missed target is a result; of others a bad exit code is a failure

    def variables(self, scale):
        return dict(self.full, **self.short) if scale == "short" else self.full

    def length(self, scale):
        found = " ".join(f"{k}={v}" for k, v in self.variables(scale).items())
        return found or "whole"


# ---- reading -------------------------------------------------------------------------------------

def every(pattern, lines):
    return [m for m in (re.search(pattern, line) for line in lines) if m]


def last(pattern, lines):
    found = every(pattern, lines)
    if not found:
        raise Unreadable(f"no line like '{pattern}'")
    return found[-1]


def suites(n):
    """n summaries `N passed, M failed, K skipped`."""
    def read(lines):
        found = every(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?", lines)
        if len(found) != n:
            raise Unreadable(f"{len(found)} summaries instead of {n}")
        passed, failed, skipped = (sum(int(m[k] or 0) for m in found) for k in (1, 2, 3))
        return f"{passed} passed, {failed} failed, {skipped} skipped", passed > 0 and failed == 0
    return read


def oks(lines):
    """Scripts that print `ok NAME`, `not ok NAME` and `skip NAME`."""
    good, bad, skipped = (len(every(rf"^{word} \S", lines)) for word in ("ok", "not ok", "skip"))
    if not good + bad:
        raise Unreadable("no line begins with ok or not ok")
    return f"{good} passed, {bad} failed, {skipped} skipped", good > 0 and bad == 0


def learns(lines):
    found = every(r"^(ok|not ok) (\S+): .* apart ([\d.]+) of ([\d.]+) points", lines)
    if not found:
        raise Unreadable("no accuracies")
    said = "; ".join(f"{m[2]} {m[3]} of {m[4]} points apart" for m in found)
    return said, all(m[1] == "ok" for m in found)


def exports(lines):
    m = last(r"^(\d+) of (\d+) networks exported as written, (\d+) refused, (\d+) wrong", lines)
    n, of, _, wrong = (int(m[k]) for k in (1, 2, 3, 4))
    return m[0], wrong == 0 and n >= 0.9 * of


def seed_000(lines):
    f1 = last(r"^(ok|not ok) micro F1, mean of \d+ seeds?: (.*)", lines)
    end = last(r"^(ok|not ok) seed 000", lines)
    return f1[2], f1[1] == end[1] == "ok"


def fuzz(lines):
    targets = every(r"^== (\S+)", lines)
    runs = [int(m[1]) for m in every(r"number_of_executed_units:\s*(\d+)", lines)]
    findings = len(every(r"ERROR|SUMMARY", lines))
    if not targets or len(runs) != len(targets):
        raise Unreadable(f"{len(targets)} targets began and {len(runs)} ended")
    return (f"{len(targets)} targets, {sum(runs):,} executions, {findings} findings",
            findings == 0 and min(runs) > 0)


def coverage(lines):
    rows = [float(m[1]) for m in every(r"^\S+\s+\S+\s+\d+ lines\s+([\d.]+) %", lines)]
    end = last(r"^(?:every parser is above its floor|(\d+) below their floor)$", lines)
    if not rows:
        raise Unreadable("no parser has a row")
    return f"{len(rows)} files, lowest {min(rows):g} %, {end[1] or 0} below their floor", end[1] is None


def readers(lines):
    rows = [(int(m[1].replace(",", "")), float(m[2])) for m in every(r"^\S+ +([\d,]+) inputs, \d+ s, ([\d.]+) % of its lines", lines)]
    end = last(r"^(\d+) of (\d+) readers without findings", lines)
    if len(rows) != int(end[2]):
        raise Unreadable(f"{len(rows)} readers instead of {end[2]}")
    return (f"{end[1]} of {end[2]} readers, {min(n for n, _ in rows):,} inputs at least, lowest {min(p for _, p in rows):g} % of lines",
            end[1] == end[2])


def hf_parity(lines):
    m = last(r"^(\d+ configs of \d+ families, \d+ cuts) with the bits of one part$", lines)
    figure, met = suites(1)(lines)
    return f"{m[1]}: {figure}", met


def tokens(lines):
    rows = every(r"^.+: (\d+) texts, (\d+) bytes, (\d+) tokens, (\d+) texts differ", lines)
    sweeps = every(r"^all .+: (\d+) characters, (\d+) differ", lines)
    refused = every(r"^(.+): refused: ", lines)
    if not rows or not sweeps:
        raise Unreadable("no way to cut a text has a row, or none was tried with all characters")
    differ = sum(int(m[4]) for m in rows) + sum(int(m[2]) for m in sweeps)
    return (f"{len(rows)} ways, {sum(int(m[1]) for m in rows):,} texts of {sum(int(m[2]) for m in rows):,} bytes, {len(sweeps)} with all characters, "
            f"{differ} differ, {len(refused)} are refused", differ == 0 and not refused)


def mutants(lines):
    caught, survive, skipped = map(int, last(r"^(\d+) breaks caught, (\d+) not, (\d+) skipped", lines).groups())
    said = f", {skipped} skipped" if skipped else ""
    return f"{caught} breaks on purpose caught, {survive} survive{said}", survive == 0


def dry_run(lines):
    m = last(r"^(\d+) ok, (\d+) skipped, (\d+) failed; ([\d.]+) of (\d+) MiB; (no network|with a network)", lines)
    good, failed, size, most = int(m[1]), int(m[3]), float(m[4]), float(m[5])
    return m[0], good > 0 and failed == 0 and size <= most and m[6] == "no network"


def look(lines):
    m = last(r"^(\d+) fronts and heads, (\d+) above a limit within the error of 32 records, (\d+) above", lines)
    needs = [last(rf"^a key is needed for {what}: (\d+) of", lines)[1] for what in ("records", "labels")]
    said = f"{m[1]} fronts and heads, {m[3]} above, {m[2]} within the error; {needs[0]} need a key for records, {needs[1]} for labels"
    return said, m[3] == "0" < m[1]


def references(lines):
    m = last(r"^(\d+) runs \(.*\), (\d+) failed: (\d+) operations", lines)
    return f"{m[1]} runs, {int(m[3]):,} operations, {m[2]} failed", m[2] == "0" and int(m[1]) > 0


def simulate(lines):
    m = last(r"^(\d+) runs \(.*\), (\d+) failed: (\d+) lines", lines)
    return f"{m[1]} runs, {int(m[3]):,} lines of programs, {m[2]} failed", m[2] == "0" and int(m[1]) > 0


def programs(lines):
    found = every(r"(\d+) programs \(.*\), (\d+) failed: (\d+) lines.*, (\d+) workers lost", lines)
    if len(found) != 2:
        raise Unreadable(f"{len(found)} summaries instead of 2")
    whole, lossy = ([int(n) for n in m.groups()] for m in found)
    said = f"{whole[0]} programs and {lossy[0]} with a lost worker, {whole[2] + lossy[2]:,} lines, {whole[1] + lossy[1]} failed"
    return said, whole[1] + lossy[1] == 0 < min(whole[0], lossy[3])


def faults(lines):
    demo = last(r"^ok the demo under faults: (.*? files alike)", lines)
    figure, met = oks(lines)
    return f"{figure}; demo {demo[1]}", met


def soak(lines):
    m = last(r"^(ok|not ok) (\d+)_steps_leave_nothing_behind ?(.*)", lines)
    return f"{m[2]} steps, grown: {m[3] or 'nothing'}", m[1] == "ok"


def soak_mixed(lines):
    if every(r"too few to tell", lines):
        raise Unreadable("too few quiet moments to tell whether anything grows")
    seconds = last(r"^seed \d+, (\S+) s$", lines)[1]
    m = last(r"^(ok|not ok) mixed_sessions_leave_nothing_behind \(seed (\d+)\)", lines)
    return f"{seconds} s, seed {m[2]}, {'nothing grows' if m[1] == 'ok' else 'FAILED'}", m[1] == "ok"


def soak_kill(lines):
    m = last(r"^(\d+ kills in \d+ runs of \d+ networks, \d+ recoveries, .*? differ) \(seed \d+\)$", lines)
    return m[1], bool(every(r"^ok killed_runs_change_no_bit", lines))


def model(lines):
    held, caught = every(r"^ok (\w+)_hold .*?(\d+) states, (\d+) transitions", lines), every(r"^ok \w+_catches_", lines)
    bad = every(r"^not ok ", lines)
    if not held:
        raise Unreadable("no model holds")
    states, transitions = (sum(int(m[k]) for m in held) for k in (2, 3))
    return f"{states:,} states, {transitions:,} transitions; {len(caught)} mistakes found, {len(bad)} failed", not bad and len(caught) > 9


def kill_walk(lines):
    found = every(r"^(\d+ runs(?: with a spare)?, \d+ points of \d+ processes, \d+ reached), .*?, (\d+) problems", lines)
    if len(found) != 2:
        raise Unreadable(f"{len(found)} summaries instead of 2")
    problems = sum(int(m[2]) for m in found)
    return f"{found[0][1]}; {found[1][1]}; {problems} problems", problems == 0 and bool(every(r"^ok each_failpoint_changes_no_bit", lines))


def outages(lines):
    back = every(r"^(?:not )?ok (packets dropped for .*|another address|connections forgotten .*): steps go on after ([\d.]+) s", lines)
    resets, pause = last(r"^(?:not )?ok (\d+ resets): ", lines), last(r"the longest pause between two steps was ([\d.]+) s", lines)
    said = "; ".join(f"{m[1]}: {m[2]} s" for m in back)
    return f"{said}; {resets[1]}: at most {pause[1]} s", len(back) >= 4 and not every("^not ok", lines)


def checkpoint_cost(lines):
    m = last(r"^(\d+ MiB every 10 s: .*)$", lines)
    return m[1], bool(every(r"^ok checkpoints_take_at_most_3_percent_with_auto", lines))


def large_table(lines):
    m = last(r"^large-table: (.* GB, .* records, .*; (\d+) MiB at most, of (\d+) MiB, .*)$", lines)
    return m[1], int(m[2]) <= int(m[3])


def kill_writes(lines):
    m = last(r"^(\d+ kills while .*?) \(.*?\), (\d+) went on from another .*?, ((?:the same|other) bits, \d+ unfinished files)", lines)
    return f"{m[1]}, {m[2]} of another checkpoint, {m[3]}", bool(every(r"^ok killed_writes_change_no_bit", lines))


def bench(lines):
    m = last(r"^(\d+) of (\d+) targets met", lines)
    missed = every(r"^(missed strictly|not judged): .*", lines)
    said = "".join(f"; {x[0]}" for x in missed)
    return f"{m[1]} of {m[2]} targets met{said}", m[1] == m[2] != "0"


# ---- the proofs ----------------------------------------------------------------------------------

LIB = "tests/net/lib"
OPERATIONS = "tests/net/operations"
FAULTS = ("tests/faults", "tests/seeds", "tests/golden", LIB)
BENCH = ("tests/bench", LIB)
NONE_FAILED = "none fails"

PROOFS = (
    Proof("parity", NONE_FAILED, suites(1), (*reached("tests/parity/parity.py"), "tests/parity/stages.c", "tests/golden", "tests/seeds", LIB),
          short={"PARITY_ARGS": "step_parity_mlp_sgd"}, minutes=25),
    Proof("exports", "90 % as written, none wrong", exports, ("tests/parity/exports.py", "tests/parity/networks.py", "tests/parity/exported.c", "deploy/export_torch.py",
                                                             "deploy/export_traced.py", "deploy/export_rules.py", "deploy/export_values.py", "deploy/export_joined.py", "tests/parity/drawn_nets.py"),
          short={"PARITY_ARGS": "lenet unet transformer siamese"}, minutes=40),
    Proof("token-parity", "no text differs", tokens, ("tests/parity/tokens.py", "tests/parity/token_kinds.py", "tests/golden/make_tokens.py", "master/tokens"), minutes=25),
    Proof("hf-parity", NONE_FAILED, hf_parity, ("tests/parity/hf.py", "tests/parity/hf_step.c", "tests/parity/hf_ways.c", "common/model/hf"), {"HF_CONFIGS": "40"}, {"HF_CONFIGS": "4"},
          minutes=8),
    Proof("hf-keys", NONE_FAILED, suites(1), ("tests/parity/hf_keys.py", "tests/parity/hf_keys.c", "tests/parity/hf.py", "tests/golden/make_tokens.py", "common/model/hf",
                                          "common/model/weights/peft.c", "master/tokens"), minutes=20),
    Proof("peft-parity", NONE_FAILED, suites(1), ("tests/parity/adapters.py", "common/model/weights/peft.c", "common/model/graph/lora.c"), minutes=2),
    Proof("hf-base", NONE_FAILED, suites(1), ("tests/parity/hf_base.py", "tests/parity/hf.py", "common/model/hf", LIB), minutes=6),
    Proof("hf-files", NONE_FAILED, suites(1), ("tests/parity/exchange.py", "tests/parity/hf.py", "common/model/hf", "common/model/weights", LIB), minutes=5),
    Proof("seed-000", "within the points of PyTorch", seed_000, ("tests/seeds", "deploy/sessions", LIB), short={"SEED_ARGS": "--quick --seeds 1"}, minutes=10),
    Proof("learns", "within the points of PyTorch", learns, (*reached("tests/parity/learns.py"), LIB),
          short={"LEARNS_ARGS": "--seeds 1 1f1b"}, minutes=60),
    Proof("fuzz", "no finding", fuzz, ("tests/fuzz",), {"FUZZ_SECONDS": "60"}, {"FUZZ_SECONDS": "2"}, 35),
    Proof("fuzz-coverage", "none below its floor", coverage, ("tests/fuzz",), minutes=8),
    Proof("fuzz-readers", "no finding, 90 % of lines", readers, ("tests/fuzz", "master/data"), {"FUZZ_RUNS": "10000000"}, {"FUZZ_RUNS": "10000"}, 120),
    Proof("mutate", "none survives", mutants, (*BREAKS, "tests/unit", "tests/faults"), minutes=60),
    Proof("long", NONE_FAILED, suites(1), ("tests",), minutes=25),
    Proof("sanitize", NONE_FAILED, suites(2), ("tests",), minutes=45),
    Proof("test-trixie", NONE_FAILED, suites(1), ("tests", "deploy/packages"), minutes=30),
    Proof("gpu-dry", "no piece fails, at most 60 MiB", dry_run, ("tests/gpu", "tests/bench/peers", "deploy/sessions"),
          short={"GPU_DRY_ARGS": "devices parity_mlp"}, minutes=20),
    Proof("schedules", NONE_FAILED, oks, (*reached("tests/net/training/test_packed_sessions.py", "tests/net/training/test_packed_cuda.py"), "tests/net/api", "tests/net/schedules", LIB),
          {"API_SCHEDULES": "250", "SESSION_SCHEDULES": "50", "EVERY_CUT": "1"},
          {"API_SCHEDULES": "5", "SESSION_SCHEDULES": "2", "EVERY_CUT": "0"}, 40),
    Proof("look-proof", "nothing called mixed is read", look, ("tests/proof/look.py", LIB), {"LOOK_RUNS": "200"}, {"LOOK_RUNS": "5"}, 10),
    Proof("references", "no run fails", references, ("tests/faults",), {"REFERENCE_RUNS": "10000"},
          {"REFERENCE_RUNS": "300"}, 5),
    Proof("simulate", "no run fails", simulate, ("tests/simulate",), {"SIMULATE_RUNS": "10000"},
          {"SIMULATE_RUNS": "300"}, 5),
    Proof("programs", "no program fails", programs, ("tests/simulate", LIB), {"PROGRAM_RUNS": "5000"},
          {"PROGRAM_RUNS": "200"}, 45),
    Proof("faults", "the same bytes", faults, FAULTS, minutes=15),
    Proof("soak", "nothing grows", soak, ("tests/net/api", LIB), {"SOAK_STEPS": "100000"}, {"SOAK_STEPS": "2000"},
          20),
    Proof("soak-mixed", "nothing grows", soak_mixed, (*reached(f"{OPERATIONS}/mixed_soak.py"), "tests/net/api", LIB), {"SOAK_SECONDS": "1800"},
          {"SOAK_SECONDS": "300"}, 32),
    Proof("soak-kill", "no bit differs", soak_kill, (*reached(f"{OPERATIONS}/kill_soak.py"), LIB), {"KILLS": "1000"}, {"KILLS": "60"}, 15),
    Proof("outages", "the same bits, within 5 s", outages, (*reached(f"{OPERATIONS}/outages.py"), LIB), {"RESETS": "1000"}, {"RESETS": "50", "OUTAGE_ARGS": "--seconds 1 --long 0"}, 25),
    Proof("checkpoint-cost", "at most 3 % with `auto`", checkpoint_cost, (*reached(f"{OPERATIONS}/checkpoint_cost.py"), LIB), {"COST_MIB": "1024"}, {"COST_MIB": "128"}, 15, measures=True),
    Proof("large-table", "at most 1 GiB of memory", large_table, (*reached(f"{OPERATIONS}/large_table.py"), LIB), {"LARGE_TABLE_GB": "20"}, {"LARGE_TABLE_GB": "0.2"}, 30),
    Proof("kill-writes", "the same bits, an earlier checkpoint", kill_writes, (*reached(f"{OPERATIONS}/kill_writes.py"), LIB), {"WRITE_KILLS": "30"}, {"WRITE_KILLS": "4"}, 5),
    Proof("recut", "no bit differs", oks, (*reached("tests/net/training/test_recut.py"), LIB), {"RECUT_PAIRS": "20"}, {"RECUT_PAIRS": "3"}, 3),
    Proof("model", "every rule holds, every mistake is found", model, ("tests/model",), minutes=1),
    Proof("kill-walk", "no bit differs", kill_walk, (*reached(f"{OPERATIONS}/kill_walk.py"), "tests/failpoints", LIB), short={"WALK_ARGS": "--points checkpoint"}, minutes=11),
    Proof("attacks", NONE_FAILED, oks, ("tests/net/attacks", LIB), {"ATTACK_SECONDS": "6", "NOISE_SECONDS": "75"},
          {"ATTACK_SECONDS": "2", "NOISE_SECONDS": "5"}, 6),
    Proof("bench", "all targets met", bench, BENCH, {"STRICT": "1"}, {"STRICT": "", "BENCH_ARGS": "mlp"}, 60,
          measures=True),
    Proof("bench-pipeline", "all targets met", bench, BENCH, {"STRICT": "1"},
          {"STRICT": "", "BENCH_ARGS": "--quick bubbles"}, 70, measures=True),
    Proof("bench-transformers", "all targets met", bench, BENCH, {"STRICT": "1"},
          {"STRICT": "", "BENCH_ARGS": "--quick short"}, 60, measures=True),
)
