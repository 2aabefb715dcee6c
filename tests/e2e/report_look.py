#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Look at a report in a headless browser: at 400 and 1,400 pixels, light and dark, and printed.

    report_look.py --out build/release [--keep FOLDER]

Trains two runs at the master, on a table with hostile ids and classes, and reports them. Each
picture has to show the page: light or dark as requested, with curves in colour. A message of the
browser about the page's content policy is an error. --keep leaves the page and the pictures in
FOLDER, to view them.
"""
import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

SESSION = """version: 1
name: demo
data:
  format: table
  train: [patients.csv]
  test: [patients.csv]
  validation: {fraction: 0.2}
  table: {columns: {id: {as: id}, age: {as: number}, bmi: {as: number}, outcome: {as: target}}}
stages:
  - {name: a, at: master, layers: [{op: linear, out: 8}, {op: relu}, {op: linear, out: 2}]}
loss: {kind: cross_entropy, scores: [f1, auc, confusion, average_precision, sensitivity, ece]}
train: {batch: 32, epochs: 8, seed: 00112233445566778899aabbccddeeff, optimizer: {kind: adam, lr: 0.02}}
"""


def write_table(path):
    rng = random.Random(1)
    with open(path, "w") as f:
        print("id,age,bmi,outcome", file=f)
        for i in range(300):
            age, bmi = rng.gauss(50, 12), rng.gauss(27, 4)
            ill = age / 12 + bmi / 4 + rng.gauss(0, 1.5) > 11.2
            print(f"<img onerror=x>{i},{age:.1f},{bmi:.1f},{'ill' if ill else '<script>alert(1)'}", file=f)


def pixels(path):
    """Rows of a PNG of 8 bits, RGB or RGBA, as lists of (r, g, b): every 4th row and column."""
    data = open(path, "rb").read()
    width, height, _, kind = struct.unpack(">IIBB", data[16:26])
    bytes_per, at, packed = {2: 3, 6: 4}[kind], 8, b""
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at + 8])
        if name == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += size + 12
    raw, line, rows = zlib.decompress(packed), bytearray(width * bytes_per), []
    for y in range(height):
        start = y * (width * bytes_per + 1)
        how, new = raw[start], bytearray(raw[start + 1:start + 1 + width * bytes_per])
        for i in range(len(new)):
            a = new[i - bytes_per] if i >= bytes_per else 0
            b, c = line[i], line[i - bytes_per] if i >= bytes_per else 0
            if how == 1: new[i] = new[i] + a & 255
            elif how == 2: new[i] = new[i] + b & 255
            elif how == 3: new[i] = new[i] + (a + b) // 2 & 255
            elif how == 4:
                pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                new[i] = new[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c) & 255
        line = new
        if y % 4 == 0:
            rows.append([tuple(new[x:x + 3]) for x in range(0, len(new), 4 * bytes_per)])
    return rows


def browse(browser, folder, page, *args):
    done = subprocess.run([browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
                           f"--user-data-dir={folder}/profile", *args, f"file://{page}"], capture_output=True, text=True, timeout=120)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line or "Refused" in line or "Content Security" in line]
    assert not said, said


def check_picture(path, dark):
    seen = [p for row in pixels(path) for p in row]
    light = sum(sum(p) for p in seen) / len(seen) / 3
    assert (light < 90) if dark else (light > 200), f"{path}: brightness {light:.0f}"
    colours = {p for p in seen if max(p) - min(p) > 60}
    assert len(colours) > 3, f"{path}: no curve is drawn in colour"
    edge = [row[-1] for row in pixels(path)]
    assert len(set(edge)) < 6, f"{path}: something reaches over the edge"
    print(f"ok {os.path.basename(path)}: brightness {light:.0f}, {len(colours)} colours")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="build/release")
    parser.add_argument("--keep")
    args = parser.parse_args()
    browser = shutil.which("chromium")
    if not browser:
        sys.exit("report_look.py: there is no chromium: apt-get install chromium")
    folder = args.keep or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    master = os.path.abspath(os.path.join(args.out, "cleave-master"))
    run = lambda *a: subprocess.run([master, *a], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    write_table(os.path.join(folder, "patients.csv"))
    with open(os.path.join(folder, "s.yaml"), "w") as f:
        f.write(SESSION)
    for more in ([], ["--fresh", "--set", "train.optimizer.lr=0.005"]):
        run("train", "s.yaml", *more)
    run("eval", "s.yaml", "--intervals")
    run("report", "demo", "demo.1")
    page = os.path.join(folder, "report.html")
    assert os.stat(page).st_mode & 0o777 == 0o600
    text = open(page).read()
    assert "<script" not in text and "<img" not in text and "&lt;img onerror=x&gt;" in text
    for width in (400, 1400):
        for dark in (False, True):
            shot = os.path.join(folder, f"{width}-{'dark' if dark else 'light'}.png")
            browse(browser, folder, page, f"--window-size={width},1600", f"--screenshot={shot}", *(["--force-dark-mode"] if dark else []))
            check_picture(shot, dark)
    pdf = os.path.join(folder, "report.pdf")
    browse(browser, folder, page, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    size = os.stat(pdf).st_size
    assert size > 20000, size
    print(f"ok report.pdf: {size} bytes")
    if not args.keep:
        shutil.rmtree(folder)


main()
