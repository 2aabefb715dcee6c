#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What runs first on a machine with a GPU, from an unpacked bundle. Needs no network.

usage: run.py [--minutes N] [--again] [PIECE...]
Pieces run in order, and what has run is not run again (results.json). When the minutes are over it
ends after the piece at work; the next call goes on. The table of results is in results.md.
"""
import argparse, glob, json, os, re, shutil, subprocess, sys, sysconfig, time

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results.json")
PIECES = {}
SKIPPED = 77


def piece(f):
    PIECES[f.__name__] = f
    return f


def folders():
    """Where NVIDIA's libraries are: PyTorch's wheels, then the toolkit."""
    wheels = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib"))
    return [f for f in wheels + ["/usr/local/cuda/lib64"]
            if glob.glob(os.path.join(f, "libcublasLt.so.13")) or glob.glob(os.path.join(f, "libcudnn.so.9"))]


def ours(*command, timeout=540, before=()):
    """Runs one of our programs, with our libraries; PyTorch runs without them."""
    path = ":".join([os.path.join(HERE, "lib"), *folders()])
    env = dict(os.environ, LD_LIBRARY_PATH=path, CLEAVE_CUDA_FOLDERS=":".join(folders()))
    program = os.path.join(HERE, "bin", command[0])
    return subprocess.run([*before, program, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", env=env, timeout=timeout, cwd=HERE)


def told(done, good):
    """A result: whether it is good, a line for the table, and the end of the output."""
    word = "skipped" if done.returncode == SKIPPED else "ok" if done.returncode == 0 else "FAILED"
    return {"result": word, "what": good(done.stdout) if word == "ok" else done.stdout[-300:], "output": done.stdout[-40000:]}


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


@piece
def machine():
    """The card, the driver, the folders that were found."""
    if not shutil.which("nvidia-smi"):
        return {"result": "skipped", "what": "no nvidia-smi", "output": ""}
    asked = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem"
    done = subprocess.run(["nvidia-smi", asked, "--format=csv,noheader"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return told(done, lambda said: f"{said.strip()}; NVIDIA's libraries in {', '.join(folders()) or 'the usual folders'}")


@piece
def devices():
    """cleave-worker devices: what the library sees."""
    done = ours("cleave-worker", "devices", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [r for r in rows if r["device"].startswith("cuda:") and "missing" not in r]
    if not found:
        done.returncode = SKIPPED
    return told(done, lambda said: "; ".join(f"{r['device']} {r['name']}, {r['capability']}, {r['libraries']}" for r in found))


@piece
def plans():
    """cuDNN's plans of ResNet50 for the H200 of h200.json, by the cuDNN of this machine."""
    return told(ours("gpu/plan_convs", os.path.join(HERE, "h200.json")), last_line)


@piece
def plans_here():
    """The same for the card that is here; the output begins with what cuDNN knows of it."""
    return told(ours("gpu/plan_convs", "here"), last_line)


@piece
def ops():
    """Every op against ref, on the device, and the same bits again."""
    return told(ours("gpu/on_device"), lambda said: f"{len(re.findall(r'OK', said))} tests; {last_line(said)}")


@piece
def rates():
    """Copies, launches, products and convolutions: the ceilings for all that follows."""
    def table(said):
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return "; ".join(f"{r['what']}: {r.get('rate', 0):.3g} {r.get('unit', 'missing')}" for r in rows)
    return told(ours("gpu/rates"), table)


def sanitized(tool):
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(checker):
        return {"result": "skipped", "what": "no compute-sanitizer", "output": ""}
    done = ours("gpu/on_device", before=(checker, "--tool", tool, "--error-exitcode", "99"))
    return told(done, lambda said: last_line(said))


@piece
def memcheck():
    """The same under compute-sanitizer: accesses out of bounds."""
    return sanitized("memcheck")


@piece
def racecheck():
    """The same: races in shared memory."""
    return sanitized("racecheck")


def write(results):
    with open(RESULTS, "w") as f:
        json.dump(results, f, indent=1)
    with open(os.path.join(HERE, "results.md"), "w") as f:
        f.write("| piece | result | seconds | |\n|---|---|---|---|\n")
        for name, function in PIECES.items():
            r = results.get(name, {"result": "did not run", "seconds": 0, "what": function.__doc__.strip()})
            what = " ".join(r["what"].split()).replace("|", "/")[:290]
            f.write(f"| {name} | {r['result']} | {r['seconds']:.0f} | {what} |\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=9)
    p.add_argument("--again", action="store_true", help="forget what has run")
    p.add_argument("pieces", nargs="*", choices=[[], *PIECES])
    a = p.parse_args()
    results, begin = {}, time.monotonic()
    if os.path.exists(RESULTS) and not a.again:
        with open(RESULTS) as f:
            results = json.load(f)
    for name in a.pieces or PIECES:
        if time.monotonic() - begin > 60 * a.minutes:
            break
        if name in results and name not in a.pieces:
            continue
        at = time.monotonic()
        try:
            results[name] = PIECES[name]()
        except (OSError, subprocess.TimeoutExpired) as e:
            results[name] = {"result": "FAILED", "what": str(e), "output": ""}
        results[name]["seconds"] = time.monotonic() - at
        print(f"{name}: {results[name]['result']}: {results[name]['what'][:200]}", flush=True)
        write(results)
    write(results)
    sys.exit(any(r["result"] == "FAILED" for r in results.values()))


main()
