#!/usr/bin/python3
"""Modules that end, in the C API, over real daemons: their memory, names and indexes are free
again, at the workers and at the master, and calls that still need them are not disturbed. Their
state is saved to files that other libraries can read, and files of other libraries are read or
refused. The numbers must not depend on the placement."""
import json, os, struct, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import ways
from cluster import LONG, MASTER, SANITIZED, SLOW, Cluster, chosen, run

PROGRAM = ways.program("api_modules")
LOADS = "960" if LONG else "120"
PLACEMENTS = chosen({"one_worker": ["w1", "w1", "10000" if LONG else LOADS], "two_workers": ["w1", "w2", LOADS],
                     "half_and_half": ["w1", "master", LOADS], "at_home": ["master", "master", LOADS]},
                    "one_worker", "half_and_half")
MIB = 1 << 20
# allowed growth of resident memory, over half as many loads as would take 2 MiB
GROWS_MIB = 2 if LONG else 1


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


def accounted(session):
    """(bytes, number of modules) of the session at its workers, by their own counts."""
    done = run(MASTER, "status", session, "--json")
    assert done.returncode == 0, done.stderr
    sessions = [s for w in map(json.loads, done.stdout.splitlines()) for s in w["sessions"]]
    return sum(s["memory_bytes"] for s in sessions), sum(len(s["modules"]) for s in sessions)


# ---- files, read by the page of the format without code of Cleave --------------------------------

SIZES = {"F32": 4, "F16": 2, "I64": 8}
SHAPES = {"0.weight": ("F32", [5, 3]), "0.bias": ("F32", [5]), "1.weight": ("F32", [5]), "1.bias": ("F32", [5]),
          # without num_batches_tracked, as from an old PyTorch
          "1.running_mean": ("F32", [5]), "1.running_var": ("F32", [5])}


def write(path, shapes):
    header, data = {}, b""
    for name, (dtype, shape) in reversed(shapes.items()):
        n = 1
        for d in shape:
            n *= d
        raw = struct.pack(f"<{n}f", *(i + 0.5 for i in range(n))) if dtype == "F32" else bytes(n * SIZES[dtype])
        header[name] = {"shape": shape, "data_offsets": [len(data), len(data) + len(raw)], "dtype": dtype}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """Shapes by name; every byte belongs to one tensor."""
    with open(path, "rb") as f:
        whole = f.read()
    n = struct.unpack("<Q", whole[:8])[0]
    header, at = json.loads(whole[8:8 + n]), 0
    header.pop("__metadata__", None)
    for e in sorted(header.values(), key=lambda e: e["data_offsets"]):
        assert e["data_offsets"][0] == at, header
        at = e["data_offsets"][1]
    assert at == len(whole) - 8 - n, (at, len(whole), n)
    return {name: (e["dtype"], e["shape"]) for name, e in header.items()}


def prepare(folder):
    os.makedirs(folder)
    at = lambda name: os.path.join(folder, name + ".safetensors")
    write(at("others"), SHAPES)
    write(at("lacks"), {k: v for k, v in SHAPES.items() if k != "0.bias"})
    write(at("more"), {**SHAPES, "2.bias": ("F32", [5])})
    write(at("shape"), {**SHAPES, "0.weight": ("F32", [3, 5])})
    write(at("dtype"), {**SHAPES, "1.running_var": ("F16", [5])})
    with open(at("others"), "rb") as whole, open(at("cut"), "wb") as cut:
        cut.write(whole.read()[:-7])
    with open(at("junk"), "wb") as f:
        f.write(b"\xff" * 100)
    return folder


def are_read_by_others(name, folder):
    """The files of the program are valid, and the folder has no incomplete file."""
    count = ("I64", [])
    weights, moments = (read(os.path.join(folder, n + ".safetensors")) for n in ("weights", "moments"))
    learning = {k: v for k, v in SHAPES.items() if "running" not in k}
    ok = weights == {**SHAPES, "1.num_batches_tracked": count} and moments == {
        "step": count, **{f"{k}.{m}": v for k, v in learning.items() for m in ("exp_avg", "exp_avg_sq")}}
    ok = ok and not [n for n in os.listdir(folder) if n.endswith(".tmp")]
    print("ok" if ok else "not ok", f"{name}: files_are_read_by_others", *([] if ok else [weights, moments]))
    return ok


# ---- memory --------------------------------------------------------------------------------------

class Done:
    def __init__(self, stdout, stderr, returncode):
        self.stdout, self.stderr, self.returncode = stdout, stderr, returncode


def watched(cluster, session, where):
    """Runs the program. Returns it and the memory that was measured each time it asked for it."""
    seen, text = {}, ""
    with open(os.path.join(cluster.dir, "stderr"), "w+") as err:
        p = subprocess.Popen([PROGRAM, session, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
                             text=True)
        for line in p.stdout:
            if line.startswith("at "):
                seen[line.split()[1]] = (rss(p.pid), *[w.rss() for w in cluster.workers], *accounted(session))
                p.stdin.write("\n")
                p.stdin.flush()
            else:
                text += line
        code = p.wait(60 * SLOW)
        err.seek(0)
        return Done(text, err.read(), code), seen


def flat(name, seen):
    """Checks that resident memory at the master and the workers and the bytes charged at the
    workers do not grow, and that the workers have no module left."""
    *begin, charged, _ = seen["begin"]
    *end, charged_then, modules = seen["end"]
    grown = [(b - a) / MIB for a, b in zip(begin, end)]
    left, bytes_left = seen["close"][-1], seen["close"][-2]
    # workers remember up to 2,048 ended contexts, so the comparison begins at 2,500
    settled = LONG and name == "one_worker"
    ok = charged_then <= charged + (not settled) * MIB and bytes_left <= charged + MIB and modules == left == 0
    ok = ok and (SANITIZED or max(grown) < GROWS_MIB)
    print("ok" if ok else "not ok", f"{name}: memory_stays", *[f"{g:+.2f}" for g in grown], "MiB,", charged, charged_then,
          bytes_left, "charged,", modules, left, "modules")
    return ok


def falls(name, seen):
    """Checks the bytes of a call at the worker: six values of 4 x 4096, or the scratch of one
    block."""
    before, again, kept = (seen[k][-2] for k in ("before", "again", "kept"))
    ok = name == "at_home" or (kept - again) - (again - before) >= 2 * 4 * 4096 * 4
    print("ok" if ok else "not ok", f"{name}: blocks_need_less", before, again, kept)
    return ok


def main():
    failed, digests = 0, {}
    with Cluster(2) as c:
        for name, where in PLACEMENTS.items():
            session = c.session(name, ways.DIRECT)
            folder = prepare(os.path.join(c.dir, name + "-files"))
            done, seen = watched(c, session, [*where, folder])
            digests[name] = ways.told(name, done)
            failed += done.returncode != 0 or not flat(name, seen) or not falls(name, seen) or not are_read_by_others(name, folder)
    return 1 if failed or not ways.agree(digests) else 0


sys.exit(main())
