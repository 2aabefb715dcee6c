#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz target of each reader of data for a number of inputs, and prints a line for each:
inputs, seconds, lines of the reader that were reached, findings. A run that ends early is continued
by the next, as long as the target's program is the same.

usage: readers.py OUT RUNS [TARGET...]
"""
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import time

import coverage

PORTION = 500000  # inputs between two entries in the record of what is done
# All but each fourth portion have inputs of at most 1 KiB, which run two to three times as fast.
SHORT, LONG_EACH = 1024, 4
# stack traces of allocations are a fifth of the time; a finding has them when it is replayed
ASAN = "malloc_context_size=2:quarantine_size_mb=16"
LOWEST = 90  # per cent of a reader's lines
INTERRUPTED = (72, -2, -15)  # libFuzzer's exit code after SIGINT and SIGTERM, and these signals
# The files of each reader, which have rows in coverage.txt. Opening folders is for the tests of
# these.
READERS = {
    "table": "cells_csv cells_jsonl cell_fields cell_source dates table table_encoder table_learnt table_targets",
    "cell_files": "cell_files", "cells": "cells_json", "query": "cells_sqlite query_text", "npy": "npy source", "idx": "idx",
    "image": "image jpeg png image_view", "text": "broken_records csv key_list record_lines texts", "pages": "page_lines class_names kept_pages",
    "words": "bbox document_builder tsv windows", "cache": "cache_header",
}


def files_of(target):
    """The files of a reader, from the root of the tree."""
    rows = {os.path.basename(name): name for name, _ in coverage.floors()[target]}
    return [rows[name + ".c"] for name in READERS[target].split()]


class Reader:
    def __init__(self, out, target):
        self.target, self.program = target, f"{out}/fuzz/fuzz_{target}"
        self.found, self.corpus = f"{out}/found/fuzz_{target}", f"{coverage.HERE}/corpus/{target}"
        self.state = f"{out}/readers/{target}.json"
        for folder in (self.found, os.path.dirname(self.state)):
            os.makedirs(folder, exist_ok=True)
        with open(self.program, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        self.done = {"program": digest, "inputs": 0, "seconds": 0.0, "findings": []}
        if os.path.exists(self.state):
            with open(self.state) as f:
                before = json.load(f)
            self.done = before if before["program"] == digest else self.done

    def save(self):
        with open(self.state + ".new", "w") as f:
            json.dump(self.done, f)
        os.replace(self.state + ".new", self.state)

    def run_portion(self, n):
        """Runs n new inputs besides those that were found before. False: a person ended the run."""
        begin = time.monotonic()
        n_old = sum(len(os.listdir(folder)) for folder in (self.found, self.corpus)) + 1
        is_long = self.done["inputs"] // PORTION % LONG_EACH == LONG_EACH - 1
        env = dict(os.environ, LLVM_PROFILE_FILE="/dev/null", ASAN_OPTIONS=ASAN, LSAN_OPTIONS=f"suppressions={coverage.ROOT}/tests/lsan.supp")
        ended = subprocess.run([self.program, f"-runs={n + n_old}", *([] if is_long else [f"-max_len={SHORT}"]), "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1",
                                f"-artifact_prefix={self.found}-", self.found, self.corpus], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, errors="replace")
        if ended.returncode in INTERRUPTED:
            return False
        units = re.search(r"number_of_executed_units:\s*(\d+)", ended.stdout)
        if ended.returncode:
            fault = re.search(r"^.*(?:never:|runtime error|ERROR:).*$", ended.stdout, re.M)
            unit = re.search(r"Test unit written to (\S+)", ended.stdout)
            self.done["findings"].append(f"{fault[0] if fault else 'no message'} ({unit[1] if unit else 'no input'})")
        self.done["inputs"] += max(int(units[1]) - n_old, 0) if units else 0
        self.done["seconds"] += time.monotonic() - begin
        self.save()
        return True

    def lines(self, out):
        """Per cent of the reader's lines that the corpus and the found inputs reach."""
        reached = coverage.replay(out, self.target, [self.corpus, self.found])
        times = [n for name in files_of(self.target) for n in reached.get(name, {}).values()]
        return 100 * sum(n > 0 for n in times) / max(len(times), 1)

    def run(self, out, runs):
        while self.done["inputs"] < runs and not self.done["findings"]:
            if not self.run_portion(min(PORTION, runs - self.done["inputs"])):
                return False
        percent = 0 if self.done["findings"] else self.lines(out)
        n_findings = len(self.done["findings"])
        print(f"{self.target:12} {self.done['inputs']:,} inputs, {self.done['seconds']:.0f} s, {percent:.1f} % of its lines, {n_findings} findings", flush=True)
        for finding in self.done["findings"]:
            print(f"    {finding}", flush=True)
        self.done["findings"] = []
        self.save()
        return n_findings == 0 and percent >= LOWEST


def main():
    out, runs, targets = os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(READERS)
    readers = [Reader(out, target) for target in targets]
    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            good = list(pool.map(lambda reader: reader.run(out, runs), readers))
    except KeyboardInterrupt:
        sys.exit("ended early: the next run goes on from here")
    print(f"{sum(good)} of {len(good)} readers without findings, with {LOWEST} % of their lines")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
