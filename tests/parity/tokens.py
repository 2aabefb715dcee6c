#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make token-parity`: real texts of this machine, licences, documents and manual pages in all
their languages, through our tokenizers and through Hugging Face's. Every token must be the same.

Vocabularies are those of tests/golden/tokens, or files given by --vocabulary (several times).
"""
import argparse
import glob
import gzip
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../golden"))
import make_tokens  # noqa: E402

ACCENTS = {None: "auto", False: "keep", True: "strip"}
PATTERNS = ("/usr/share/common-licenses/*", "/usr/share/doc/*/*", "/usr/share/man/*/man*/*", "/usr/share/man/man*/*",
            "/usr/share/perl/*/unicore/*.txt", "/usr/share/i18n/locales/*")


def texts(most):
    """Contents that are UTF-8, each once."""
    total, seen = 0, set()
    for path in sorted(p for pattern in PATTERNS for p in glob.glob(pattern)):
        if os.path.isdir(path) or not os.path.exists(path):
            continue
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            data = f.read(1 << 20)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        if data and data not in seen and total + len(data) <= most:
            seen.add(data)
            total += len(data)
            yield path, text


def ours(out, way, paths):
    name, lower, accents = make_tokens.WAYS[way]
    command = [f"{out}/parity/print_tokens", os.path.join(make_tokens.FOLDER, name), "cased" if lower is False else "lower",
               ACCENTS[accents], *paths]
    started = time.process_time(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return [list(map(int, line.split())) for line in done.stdout.splitlines()], time.monotonic() - started[1]


def compare(out, way, paths, found):
    mine, seconds = ours(out, way, paths)
    peer = make_tokens.load(way)
    wrong = tokens = 0
    for (path, text), ids in zip(found, mine):
        want = peer.encode(text, add_special_tokens=False).ids
        tokens += len(want)
        if ids != want:
            wrong += 1
            at = next((i for i, (a, b) in enumerate(zip(ids, want)) if a != b), min(len(ids), len(want)))
            print(f"{way}: {path}: token {at}: {ids[at:at + 4]}, expected {want[at:at + 4]}")
    size = sum(len(text.encode()) for _, text in found)
    print(f"{way}: {len(found)} texts, {size} bytes, {tokens} tokens, {wrong} texts differ; {size / seconds / 1e6:.1f} MB/s")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="build/release")
    parser.add_argument("--bytes", type=int, default=20 << 20)
    options = parser.parse_args()
    found = list(texts(options.bytes))
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, (_, text) in enumerate(found):
            paths.append(f"{folder}/{i}")
            with open(paths[-1], "wb") as f:
                f.write(text.encode())
        wrong = sum(compare(options.out, way, paths, found) for way in make_tokens.WAYS)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    make_tokens.with_the_library(os.path.abspath(__file__))
    main()
