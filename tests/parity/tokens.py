#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make token-parity`: texts through our tokenizers and through Hugging Face's. Every token must be
the same.

Real texts of this machine, licences, documents and manual pages in all their languages, go through
the tokenizers of tests/golden/tokens. Texts that are hard to cut go through each kind of
tests/parity/token_kinds.py; --kind names some of them. Fewer go through tokenizers whose sections
are drawn.
"""
import argparse
import collections
import glob
import gzip
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../golden"))
import make_tokens  # noqa: E402
import token_kinds  # noqa: E402

# seconds of a core for a text of a MiB; it takes a quarter of that on a machine of its own
LONG_S = 2
DRAWN, DRAWN_TEXTS = 400, 100  # tokenizers with drawn sections, texts of each
ACCENTS = {None: "auto", False: "keep", True: "strip"}
PATTERNS = ("/usr/share/common-licenses/*", "/usr/share/doc/*/*", "/usr/share/man/*/man*/*", "/usr/share/man/man*/*",
            "/usr/share/perl/*/unicore/*.txt", "/usr/share/i18n/locales/*")


def texts(most):
    """The contents of files that are UTF-8, each once."""
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


def ids_of(peer, text):
    """With the tokens around a text, and why the library does not encode it."""
    try:
        return peer.encode(text).ids, None
    except Exception as wrong:  # pylint: disable=broad-except
        return [], str(wrong)


def compare_kind(out, name, tokenizer, paths, found):
    """The number of texts whose tokens differ. A refused kind is printed, and must not be a
    supported one."""
    import tokenizers
    path = os.path.join(os.path.dirname(paths[0]), "tokenizer.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tokenizer, f, ensure_ascii=False)
    peer = tokenizers.Tokenizer.from_file(path)
    done = subprocess.run([f"{out}/parity/print_tokens", path, "--ends", "auto", *paths], capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: refused: {done.stderr.strip()}")
        return len(found)
    wrong = tokens = 0
    for text, line in zip(found, done.stdout.splitlines()):
        mine, (want, why) = list(map(int, line.split())), ids_of(peer, text)
        tokens += len(want)
        if mine != want:
            wrong += 1
            if wrong <= 3:
                print(f"{name}: {text!r}: {mine}, expected {why or want}")
    print(f"{name}: {len(found)} texts, {sum(len(x.encode()) for x in found)} bytes, {tokens} tokens, {wrong} texts differ")
    return wrong


def compare_all_characters(out, name, tokenizer, around, folder):
    """The number of characters whose tokens differ, of those in the tables of both libraries."""
    import tokenizers
    path, lines = f"{folder}/tokenizer.json", f"{folder}/lines"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tokenizer, f, ensure_ascii=False)
    every = token_kinds.characters()
    texts_of_all = [around[0] + c + around[1] for c in every]
    with open(lines, "wb") as f:
        f.write("".join(x + "\n" for x in texts_of_all).encode())
    done = subprocess.run([f"{out}/parity/print_tokens", path, "--lines", "auto", lines], capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: refused: {done.stderr.strip()}")
        return len(every)
    peer = tokenizers.Tokenizer.from_file(path)
    wrong, newer = [], []
    for c, encoded, line in zip(every, peer.encode_batch_fast(texts_of_all), done.stdout.split("\n")):
        if encoded.ids != list(map(int, line.split())):
            (wrong if token_kinds.known(c) else newer).append(f"U+{ord(c):04X}")
    print(f"{name}: {len(every)} characters, {len(wrong)} differ {' '.join(wrong[:20])}; and {len(newer)} newer ones {' '.join(newer[:8])}")
    return len(wrong)


def compare_drawn(out, count, paths, found):
    """How many texts differ of tokenizers with drawn sections. Those that are refused are counted
    by what the message says, with its numbers and names left out."""
    import tokenizers
    path, refused, wrong, done_at_all = os.path.join(os.path.dirname(paths[0]), "tokenizer.json"), collections.Counter(), 0, 0
    for seed in range(count):
        drawn = token_kinds.drawn(random.Random(seed))
        with open(path, "w", encoding="utf-8") as f:
            json.dump(drawn, f, ensure_ascii=False)
        done = subprocess.run([f"{out}/parity/print_tokens", path, "--ends", "auto", *paths], capture_output=True, text=True)
        if done.returncode:
            refused[re.sub(r"'[^']*'|\d+", "*", done.stderr.strip().split(": ", 1)[1])] += 1
            continue
        try:
            peer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # pylint: disable=broad-except
            print(f"drawn {seed}: the library refuses it: {error}")
            wrong += len(found)
            continue
        done_at_all += 1
        for text, line in zip(found, done.stdout.splitlines()):
            mine, (want, why) = list(map(int, line.split())), ids_of(peer, text)
            if mine != want:
                wrong += 1
                print(f"drawn {seed}: {text!r}: {mine}, expected {why or want}")
                break
    for message, times in refused.most_common():
        print(f"drawn ones refused: {times} times: {message}")
    size = sum(len(x.encode()) for x in found)
    print(f"drawn: {done_at_all * len(found)} texts, {done_at_all * size} bytes, 0 tokens, {wrong} texts differ")
    return wrong


def compare_long(out, folder):
    """The number of texts of a MiB without a space that differ, or take more than LONG_S of a
    core."""
    rng, wrong = random.Random(2), 0
    for name, text in (("a", "a" * (1 << 20)), ("letters", "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(1 << 20))), ("marks", "e\u0301\u0323" * (1 << 18))):
        path = f"{folder}/long"
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        for way in make_tokens.WAYS:
            began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            (mine,), _ = ours(out, way, [path])
            took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began
            want = make_tokens.load(way).encode(text, add_special_tokens=False).ids
            bad = mine != want or took > LONG_S
            wrong += bad
            print(f"long {way} {name}: 1 texts, {len(text.encode())} bytes, {len(want)} tokens, {int(bad)} texts differ; {took:.2f} s")
    return wrong


def compare_kinds(out, only, count, folder):
    found = token_kinds.nasty(count)
    paths = []
    for i, text in enumerate(found):
        paths.append(f"{folder}/n{i}")
        with open(paths[-1], "wb") as f:
            f.write(text.encode())
    wrong = sum(compare_kind(out, name, t, paths, found) for name, t in token_kinds.kinds() if not only or any(word in name for word in only))
    return wrong + (compare_drawn(out, DRAWN, paths[:DRAWN_TEXTS], found[:DRAWN_TEXTS]) if not only or "drawn" in only else 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="build/release")
    parser.add_argument("--bytes", type=int, default=20 << 20)
    parser.add_argument("--nasty", type=int, default=2000, help="texts of each kind")
    parser.add_argument("--kind", action="append", help="only kinds whose name has this word, and no real texts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = compare_kinds(options.out, options.kind, options.nasty, folder)
        if not options.kind or "long" in options.kind:
            wrong += compare_long(options.out, folder)
        for name, t, around in token_kinds.sweeps():
            if not options.kind or any(word in name for word in options.kind):
                wrong += compare_all_characters(options.out, name, t, around, folder)
    if options.kind:
        sys.exit(wrong != 0)
    found = list(texts(options.bytes))
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, (_, text) in enumerate(found):
            paths.append(f"{folder}/{i}")
            with open(paths[-1], "wb") as f:
                f.write(text.encode())
        wrong += sum(compare(options.out, way, paths, found) for way in make_tokens.WAYS)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    make_tokens.with_the_library(os.path.abspath(__file__))
    main()
