#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the lines of each parser that its fuzz target reaches with the checked-in corpus with
the minimum in coverage.txt. Nothing is fuzzed here, so the numbers are the same each time.

usage: coverage.py OUT [--lines] [--adopt FOUND] [TARGET...]
  --lines   shows the lines that are not reached
  --adopt   first copies to the corpus the smallest inputs of FOUND/fuzz_TARGET that reach further
            lines
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def floors():
    """{target: [(parser file, minimum per cent of its lines)]}"""
    table = {}
    for line in open(os.path.join(HERE, "coverage.txt")):
        words = line.split("#")[0].split()
        if words:
            table.setdefault(words[0], []).append((words[1], float(words[2])))
    return table


def replay(out, target, inputs):
    """{file: {line: number of times it ran}} when the target runs these inputs, files or
    folders."""
    program, raw = f"{out}/fuzz/fuzz_{target}", f"{out}/fuzz/{target}.profraw"
    env = dict(os.environ, LLVM_PROFILE_FILE=raw, LSAN_OPTIONS=f"suppressions={ROOT}/tests/lsan.supp")
    done = subprocess.run([program, "-runs=0", "-timeout=60", *inputs], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace")
    if done.returncode:
        sys.exit(f"{done.stdout}\nfuzz_{target}: exit code {done.returncode}")
    data = raw[:-3] + "data"
    subprocess.run(["llvm-profdata", "merge", "-o", data, raw], check=True)
    text = subprocess.run(["llvm-cov", "export", "-format=lcov", "-instr-profile", data, program],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    files = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "SF":
            lines = files.setdefault(os.path.relpath(value, ROOT), {})
        elif key == "DA":
            number, times = value.split(",")[:2]
            lines[int(number)] = int(times)
    return files


def reached(out, target, inputs, parsers):
    files = replay(out, target, inputs)
    return {(name, n) for name in parsers for n, times in files.get(name, {}).items() if times}


def adopt(out, target, found, parsers):
    """Copies inputs that reach new lines. Halves the found inputs parsed_again and parsed_again,
    and keeps a half while it reaches a new line."""
    corpus = f"{HERE}/corpus/{target}"
    known = reached(out, target, [corpus], parsers)

    def take(paths):
        new = reached(out, target, paths, parsers) - known
        if not new:
            return
        if len(paths) > 1:
            take(paths[:len(paths) // 2])
            take(paths[len(paths) // 2:])
            return
        known.update(new)
        name = "found_" + hashlib.sha256(open(paths[0], "rb").read()).hexdigest()[:8]
        shutil.copyfile(paths[0], f"{corpus}/{name}")
        print(f"{target}: {name} reaches {len(new)} lines more")

    paths = [os.path.join(found, f) for f in os.listdir(found)] if os.path.isdir(found) else []
    if paths:
        take(sorted(paths, key=os.path.getsize))


def runs(numbers):
    """[1, 2, 3, 7] as "1-3 7"."""
    text, begin = [], None
    for at, n in enumerate(numbers):
        begin = n if begin is None else begin
        if at + 1 == len(numbers) or numbers[at + 1] != n + 1:
            text.append(f"{begin}-{n}" if n > begin else str(n))
            begin = None
    return " ".join(text)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("target", nargs="*")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--adopt")
    return parser.parse_intermixed_args()


def main():
    args, table, low = arguments(), floors(), []
    sources = {f[5:-2] for f in os.listdir(HERE) if f.startswith("fuzz_") and f.endswith(".c")}
    if sources != set(table):
        sys.exit(f"coverage.txt and tests/fuzz differ: {sorted(sources ^ set(table))}")
    for target in args.target or sorted(table):
        if args.adopt:
            adopt(args.out, target, f"{args.adopt}/fuzz_{target}", [name for name, _ in table[target]])
        files = replay(args.out, target, [f"{HERE}/corpus/{target}"])
        for name, floor in table[target]:
            lines = files.get(name, {})
            missed = sorted(n for n, times in lines.items() if not times)
            percent = 100 * (1 - len(missed) / len(lines)) if lines else 0
            below = percent < floor
            low += [name] if below else []
            print(f"{target:14} {name:36} {len(lines):5} lines {percent:6.1f} %"
                  f"{f'  BELOW {floor:g} %' if below else ''}", flush=True)
            if args.lines and missed:
                print("    not reached:", runs(missed))
    print(f"{len(low)} below their floor" if low else "every parser is above its floor")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
