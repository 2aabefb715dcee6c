#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on a table of LARGE_TABLE_GB GB (20) with 1 GiB of memory.

    large_table.py [GB] [--folder FOLDER] [--memory MIB]

The table is a gzip file of that many bytes of CSV: numbers, words, a class and a long note, which
is not read. Its parts of 8,000 records repeat, in an order from a seed, so that it is made in a
minute and takes a tenth of its size on the disk; cells and inputs take a third. The master has
RLIMIT_DATA, which counts all memory that a process could write to: the system refuses it more. The
pages of files that it maps are not counted, and the system drops them when memory is short. The
last line has the highest RssAnon in /proc/PID/status, sampled ten times a second, which is the
memory in use without pages of files."""
import argparse, os, random, resource, subprocess, sys, tempfile, time, zlib
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as clusters
from cluster import *

PARTS, PART_RECORDS, NUMBERS, NOTE_BYTES = 40, 8000, 30, 1700
SITES = [f"hospital of the {word} quarter" for word in ("north", "south", "east", "west", "old", "new")]


def make_part(rng, sentences):
    lines = []
    for _ in range(PART_RECORDS):
        numbers = [rng.gauss(50, 20) for _ in range(NUMBERS)]
        ill = numbers[0] + numbers[1] + rng.gauss(0, 10) > 100
        cells = [f"{v:.4f}" if rng.random() > 0.02 else "" for v in numbers]
        note = ""
        while len(note) < NOTE_BYTES:
            note += rng.choice(sentences)
        lines.append(",".join([*cells, rng.choice(SITES), rng.choice(("yes", "no")), "ill" if ill else "well", note]))
    return ("\n".join(lines) + "\n").encode()


def gzipped(data):
    c = zlib.compressobj(1, zlib.DEFLATED, 31)
    return c.compress(data) + c.flush()


def write_table(path, n_bytes):
    """Returns the number of bytes of the CSV, and of records."""
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(400)]
    sentences = [" ".join(rng.choices(words, k=12)) + ". " for _ in range(200)]
    parts = []
    for _ in range(PARTS):
        data = make_part(rng, sentences)
        parts.append((len(data), gzipped(data)))
    header = (",".join([*(f"n{i}" for i in range(NUMBERS)), "site", "smoker", "outcome", "note"]) + "\n").encode()
    size = records = 0
    with open(path, "wb") as f:
        f.write(gzipped(header))
        while size < n_bytes:
            length, packed = rng.choice(parts)
            f.write(packed)
            size += length
            records += PART_RECORDS
    return size, records


def session_of(path):
    columns = [f"n{i}: {{as: number, missing: mean}}" for i in range(NUMBERS - 2)]
    columns += [f"n{NUMBERS - 2}: {{as: number, missing: median, scale: quantile, indicator: true}}",
                f"n{NUMBERS - 1}: {{as: number, missing: most_frequent, scale: min_max}}",
                "site: {as: category}", "smoker: {as: boolean}", "outcome: {as: target}", "note: {as: ignore}"]
    return ("data:\n  format: table\n" f"  train: [{path}]\n" "  validation: {fraction: 0.02}\n  table:\n    storage: disk\n"
            "    columns:\n" + "".join(f"      {c}\n" for c in columns)
            + "stages:\n  - {name: front, at: master, layers: [{op: linear, out: 32}, {op: relu}]}\n"
            "  - {name: middle, at: w1, layers: [{op: linear, out: 16}, {op: relu}]}\n"
            "  - {name: head, at: master, layers: [{op: linear, out: 2}]}\n"
            "loss: {kind: cross_entropy, at: master}\n"
            f"train: {{epochs: 1, batch: {BATCH}, seed: {SEED}, optimizer: {{kind: adam, lr: 0.003}}}}\n")


BATCH = 4096


def anonymous_kib(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return next((int(line.split()[1]) for line in f if line.startswith("RssAnon")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def limited_run(command, folder, mib):
    """Runs a command with a limit of memory. Returns its output, seconds and highest RssAnon."""
    began, highest = time.monotonic(), 0
    with open(os.path.join(folder, "output"), "w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (mib << 20, mib << 20)))
        while process.poll() is None:
            highest = max(highest, anonymous_kib(process.pid))
            time.sleep(0.1)
        out.seek(0)
        text = out.read()
    assert process.returncode == 0, text[-4000:]
    return text, time.monotonic() - began, highest


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("gb", nargs="?", type=float, default=20)
    a.add_argument("--folder", default=None)
    a.add_argument("--memory", type=int, default=1024)
    a = a.parse_args()
    tempfile.tempdir = a.folder
    with Cluster(1) as c:
        path = os.path.join(c.dir, "table.csv.gz")
        began = time.monotonic()
        size, records = write_table(path, int(a.gb * 1e9))
        print(f"table: {os.path.getsize(path) / 1e9:.2f} GB packed, made in {time.monotonic() - began:.0f} s", flush=True)
        session = c.session("large", session_of(path), keys="labels_readable: true")
        text, seconds, highest = limited_run([clusters.MASTER, "train", session], c.dir, a.memory)
        print(text[-1500:])
        cells = folder_bytes(os.path.join(c.dir, "runs", "tables.cache"))
        print(f"large-table: {size / 1e9:.1f} GB, {records:,} records, cells of {cells / 1e9:.2f} GB; "
              f"{highest / 1024:.0f} MiB at most, of {a.memory} MiB, {seconds:.0f} s")


if __name__ == "__main__":
    main()
