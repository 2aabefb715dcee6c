#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What runs first on a machine with a GPU, from an unpacked bundle. Needs no network.

usage: run.py [--minutes N] [--again] [--dry BUILD] [PIECE...]
Pieces run in order, and what has run is not run again (results.json). When the minutes are over it
ends after the piece at work; the next call goes on. The table of results is in results.md.
--dry: every piece with tiny shapes, by the programs of a build and on the simulated device; what
needs a GPU says so by name. The results are in BUILD/gpu-dry. Nothing that it prints is a speed.
"""
import argparse, glob, json, os, re, shutil, socket, subprocess, sys, sysconfig, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = HERE   # where results go
DRY = None   # the folder of a build, where the simulated device stands for the real one
PIECES = {}
SKIPPED = 77
SIMULATED = {"gpu/on_device": "tests/gpu/test_cuda", "gpu/steps": "tests/gpu/speed/steps", "cleave-worker": "gpu/cleave-worker",
             "gpu/shares": "tests/gpu/speed/shares"}
# The tests of the device beside those of ops -> what they say.
MORE = {"types": "Ops in bf16 and tf32, against ref in the same type.", "bf16": "Whole plans in bf16, cut in every way.",
        "together": "Ops that one kernel does together: the bits of the ops apart.",
        "recording": "Work that is recorded, and launched as a graph: the bits of the same in parts."}
TESTS = {"types": "test_cuda_types", "bf16": "test_cuda_bf16", "together": "test_together", "recording": "test_recording"}
SIMULATED.update((f"gpu/{name}", f"tests/gpu/{name}") for name in TESTS.values())


def program(name):
    if not DRY:
        return os.path.join(HERE, "bin", name)
    return os.path.join(DRY, SIMULATED.get(name, name))


def beside(name, *where):
    """A file of ours: in the bundle beside this one, in the tree where it is."""
    there = os.path.join(HERE, name)
    return there if os.path.exists(there) else os.path.normpath(os.path.join(HERE, *where, name))


def piece(f):
    PIECES[f.__name__] = f
    return f


def folders():
    """Where NVIDIA's libraries are: PyTorch's wheels, then the toolkit."""
    wheels = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib"))
    return [f for f in wheels + ["/usr/local/cuda/lib64"]
            if glob.glob(os.path.join(f, "libcublasLt.so.13")) or glob.glob(os.path.join(f, "libcudnn.so.9"))]


def environment():
    """With our libraries and NVIDIA's; PyTorch runs without them."""
    if DRY:
        return dict(os.environ)
    path = ":".join([os.path.join(HERE, "lib"), *folders()])
    return dict(os.environ, LD_LIBRARY_PATH=path, CLEAVE_CUDA_FOLDERS=":".join(folders()))


def run(command, timeout=540, env=None, cwd=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env=env, timeout=timeout, cwd=cwd or HERE, stdin=subprocess.DEVNULL)


def ours(*command, timeout=540, before=(), cwd=None):
    """Runs one of our programs; those that look for the cases of ops, from the folder above
    these."""
    root = os.path.dirname(beside("kernels", "../.."))
    return run([*before, program(command[0]), *command[1:]], timeout, environment(), cwd or root)


def told(done, good):
    """A result: whether it is good, a line for the table, and the end of the output."""
    word = "skipped" if done.returncode == SKIPPED else "ok" if done.returncode == 0 else "FAILED"
    return {"result": word, "what": good(done.stdout) if word == "ok" else done.stdout[-300:], "output": done.stdout[-40000:]}


def skipped(why):
    return {"result": "skipped", "what": why, "output": ""}


def asked(name, *args, good):
    """One of our programs that may not be here: a build without CUDA's toolkit has no such."""
    return told(ours(name, *args), good) if os.path.exists(program(name)) else skipped(f"no {name} in this build")


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


@piece
def machine():
    """The card, the driver, the folders that were found."""
    if not shutil.which("nvidia-smi"):
        return skipped("no nvidia-smi, no device")
    asked = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem"
    done = subprocess.run(["nvidia-smi", asked, "--format=csv,noheader"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return told(done, lambda said: f"{said.strip()}; NVIDIA's libraries in {', '.join(folders()) or 'the usual folders'}")


@piece
def devices():
    """cleave-worker devices: what the library sees."""
    with tempfile.TemporaryDirectory() as folder:
        done = ours("cleave-worker", "devices", "--json", cwd=folder)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [r for r in rows if r["device"].startswith("cuda:") and "missing" not in r]
    if not found:
        done.returncode = SKIPPED
    return told(done, lambda said: "; ".join(f"{r['device']} {r['name']}, {r['capability']}, {r['libraries']}" for r in found))


@piece
def plans():
    """cuDNN's plans of ResNet50 for the H200 of h200.json, by the cuDNN of this machine."""
    return asked("gpu/plan_convs", os.path.join(HERE, "h200.json"), good=last_line)


@piece
def plans_here():
    """The same for the card that is here; the output begins with what cuDNN knows of it."""
    return asked("gpu/plan_convs", "here", good=last_line)


@piece
def ops():
    """Every op against ref, on the device, and the same bits again."""
    only = ("relu",) if DRY else ()
    return asked("gpu/on_device", *only, good=lambda said: f"{len(re.findall(r'OK', said))} tests; {last_line(said)}")


def more_tests(name):
    only = ("relu",) if DRY and name == "types" else ()
    return asked(f"gpu/{TESTS[name]}", *only, good=lambda said: f"{len(re.findall(r'OK', said))} tests; {last_line(said)}")


@piece
def rates():
    """Copies, launches, products and convolutions: the ceilings for all that follows."""
    def table(said):
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return "; ".join(f"{r['what']}: {r.get('rate', 0):.3g} {r.get('unit', 'missing')}" for r in rows)
    return asked("gpu/rates", good=table)


ENOUGH = 0.85  # of a copy's bandwidth


@piece
def shares():
    """How much of a copy's bandwidth our own kernels reach that memory limits; 85 % is wanted."""
    small = ("2", "4", "8", "32") if DRY else ()
    r = asked("gpu/shares", *small, good=last_line)
    if r["result"] != "ok":
        return r
    rows = [json.loads(line) for line in r["output"].splitlines() if line.startswith("{")]
    copy, own = rows[0]["rate"], sorted(rows[1:], key=lambda row: row["share"])
    few = [row for row in own if row["share"] < ENOUGH]
    r["rows"] = [(row["what"], "" if DRY else "ok" if row["share"] >= ENOUGH else "below",
                  f"{100 * row['share']:.0f} % of a copy, {row['rate']:.3g} B/s") for row in own]
    r["what"] = f"a copy has {copy:.3g} B/s; {len(own) - len(few)} of {len(own)} kernels have {100 * ENOUGH:.0f} % of that"
    if DRY:
        r["what"] = f"{len(own)} kernels ran; no device, so no share is one"
    return r


# What compute-sanitizer looks at: the programs, with shapes that are small.
SANITIZED = {
    "": ("every op", ("gpu/on_device",)),
    "_kernels": ("every kernel that memory limits, among them optimisers, cells of an LSTM and attention's weights",
                 ("gpu/shares", "2", "4", "8", "32")),
    "_together": ("ops that one kernel does together", ("gpu/test_together",)),
    "_recording": ("graphs: work that is launched as a whole", ("gpu/test_recording",)),
    "_lstm": ("steps of an LSTM and its optimiser", ("gpu/steps", "lstm", "2", "3", "f32", "2")),
}


def sanitized(tool, command):
    """In a dry run without the tool: that the programs take what they are given."""
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if DRY and len(command) > 1:
        done = ours(*command)
        return told(done, str) if done.returncode else skipped(f"no device; {command[0]} takes its arguments")
    if DRY or not os.path.exists(checker):
        return skipped("no device" if DRY else "no compute-sanitizer")
    done = ours(*command, before=(checker, "--tool", tool, "--error-exitcode", "99"))
    return told(done, last_line)


def add_piece(name, doc, function, *args):
    def run_it():
        return function(*args)
    run_it.__name__, run_it.__doc__ = name, doc
    piece(run_it)


for tool, finds in (("memcheck", "accesses out of bounds"), ("racecheck", "races in shared memory")):
    for end, (what, command) in SANITIZED.items():
        add_piece(tool + end, f"Under compute-sanitizer, {finds}: {what}.", sanitized, tool, command)


# ---- steps beside PyTorch's ---------------------------------------------------------------

# network -> batch and size, of a real run, of a dry one, and where numbers are compared
SHAPES = {"mlp": ((256, 1024), (4, 16), (32, 64)), "lstm": ((64, 64), (2, 3), (8, 12)),
          "resnet50": ((128, 224), (2, 32), (4, 64))}
NEAR = 1e-3  # of a loss of PyTorch's


def steps_of(network, shape, math, n, *file):
    """Our steps: what the program printed last, as JSON; or its end as a result."""
    done = ours("gpu/steps", network, *map(str, shape), math, str(n), *file)
    return answer(done)


def torch_steps(network, shape, math, n, how, *file):
    """PyTorch's, by the Python that runs this."""
    script = beside("torch_steps.py", "speed")
    return answer(run([sys.executable, script, network, *map(str, shape), math, str(n), how, *file]))


def answer(done):
    if done.returncode == 0:
        return json.loads(last_line(done.stdout)), None
    return None, told(done, str)


def parity(network):
    """Losses of the same steps from the same numbers."""
    shape, n = SHAPES[network][1 if DRY else 2], 3 if DRY else 8
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "numbers")
        mine, bad = steps_of(network, shape, "f32", n, file)
        if bad:
            return bad
        theirs, bad = torch_steps(network, shape, "f32", n, "eager", file)
        if bad:
            return bad
    apart = max(abs(a - b) / abs(b) for a, b in zip(mine["losses"], theirs["losses"]))
    return {"result": "ok" if apart <= NEAR else "FAILED", "output": json.dumps([mine, theirs]),
            "what": f"{n} steps: losses at most {apart:.1e} of PyTorch's apart, limit {NEAR:.0e}"}


def speed(network, math):
    """Our step, PyTorch's eager one and that of torch.compile, in one run."""
    shape, n = SHAPES[network][1 if DRY else 0], 2 if DRY else 60
    mine, bad = steps_of(network, shape, math, n)
    if bad:
        return bad
    said, output = [f"ours {mine['ms']:.3f} ms"], [mine]
    for how in ("eager", "compile"):
        theirs, bad = torch_steps(network, shape, math, n, how)
        output.append(theirs or bad)
        said.append(f"torch {how} {theirs['ms']:.3f} ms, ratio {mine['ms'] / theirs['ms']:.2f}" if theirs
                    else f"torch {how}: {bad['what'][-100:].strip()}")
    return {"result": "ok", "what": "; ".join(said), "output": json.dumps(output)}


for each in SHAPES:
    add_piece(f"parity_{each}", "The same steps in PyTorch on the GPU, from the same numbers: their losses.", parity, each)
for each, what in MORE.items():
    add_piece(each, what, more_tests, each)
for each, kinds in (("mlp", ("f32", "tf32")), ("lstm", ("f32", "tf32")), ("resnet50", ("f32", "tf32", "bf16"))):
    for kind in kinds:
        add_piece(f"speed_{each}_{kind}", "A step's time beside PyTorch's, eager and compiled.", speed, each, kind)


# ---- sessions over TLS --------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Session:
    """A master here and workers on `device: cuda`, over mutual TLS on loopback, in a folder of its
    own."""

    def __init__(self, workers=2):
        self.folder, self.workers, self.ports = tempfile.mkdtemp(prefix="cleave-gpu-"), [], []
        self.master("certs", "init", "--dir", "certs")
        self.issue("master")
        self.ports = [free_port() for _ in range(workers)]
        for i in range(workers):
            self.issue(f"w{i + 1}")
        for i in range(workers):
            self.start(i)

    def master(self, *command, timeout=540):
        return ours("cleave-master", *command, cwd=self.folder, timeout=timeout)

    def issue(self, name):
        done = self.master("certs", "issue", name, "--dir", "certs", "--uri", f"spiffe://gpu/{name}", "--ip", "127.0.0.1")
        if done.returncode:
            raise OSError(done.stdout[-500:])

    def start(self, i):
        name, others = f"w{i + 1}", [k for k in range(len(self.ports)) if k != i]
        path, log = (os.path.join(self.folder, name + end) for end in (".yaml", ".log"))
        with open(path, "w") as f:
            f.write(f"name: {name}\nlisten: 127.0.0.1:{self.ports[i]}\ndevice: cuda\n"
                    f"tls: {{ca: certs/ca.pem, cert: certs/{name}.pem, key: certs/{name}.key}}\n"
                    "allow:\n  - {identity: \"spiffe://gpu/master\", role: master}\n")
            f.write("".join(f"  - {{identity: \"spiffe://gpu/w{k + 1}\", role: peer}}\n" for k in others))
            f.write("peers:\n" if others else "")
            f.write("".join(f"  - {{name: w{k + 1}, address: \"127.0.0.1:{self.ports[k]}\", identity: "
                            f"\"spiffe://gpu/w{k + 1}\"}}\n" for k in others))
            f.write(f"cuda: {{folders: {json.dumps(folders())}}}\n" if folders() and not DRY else "")
        with open(log, "w") as f:
            self.workers.append(subprocess.Popen([program("cleave-worker"), "serve", "--config", path], stdout=f, stderr=f,
                                                 env=environment(), stdin=subprocess.DEVNULL))
        for _ in range(600):
            with open(log) as f:
                said = f.read()
            if " ready " in said or self.workers[-1].poll() is not None:
                break
            time.sleep(0.1)
        if " ready " not in said:
            raise OSError(f"{name}: {said[-300:]}")

    def train(self, name, body, *options, table="metrics", timeout=540):
        """What train says, and the rows of one of its tables."""
        path = os.path.join(self.folder, name + ".yaml")
        with open(path, "w") as f:
            f.write(f"version: 1\nname: {name}\ntls: {{ca: certs/ca.pem, cert: certs/master.pem, key: certs/master.key}}\nworkers:\n")
            f.write("".join(f"  w{i + 1}: {{address: \"127.0.0.1:{port}\", identity: \"spiffe://gpu/w{i + 1}\"}}\n"
                            for i, port in enumerate(self.ports)))
            f.write(body)
        done = self.master("train", path, *options, timeout=timeout)
        rows = os.path.join(self.folder, "runs", name, table + ".jsonl")
        if done.returncode or not os.path.exists(rows):
            return done, []
        with open(rows) as f:
            return done, [json.loads(line) for line in f]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for w in self.workers:
            w.terminate()
        for w in self.workers:
            w.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


def no_device():
    """Why no session can run here."""
    with tempfile.TemporaryDirectory() as folder:
        said = ours("cleave-worker", "devices", "--json", cwd=folder).stdout
    return None if re.search(r'"device":"cuda:\d+","name"', said) else "no device"


@piece
def demo():
    """The demo: master on the processor, both workers on the GPU."""
    if no_device():
        return skipped(no_device())
    with open(beside("fashion-mnist.yaml", "../../deploy/sessions")) as f:
        body = f.read().partition("\ndata:")[2].replace("at: worker-", "at: w")
    data = next((d for d in (os.path.join(HERE, "data"), "/usr/share/datasets/fashion-mnist") if os.path.isdir(d)), None)
    if not data:
        return skipped("no Fashion-MNIST")
    cut = ("--set=train.max_steps=3", "--set=train.batch=8", "--set=data.limit_test=16") if DRY else ()
    with Session() as s:
        done, rows = s.train("demo", "data:" + re.sub(r"root: .*", f"root: {data}", body), *cut)
    found = re.search(r"test accuracy ([\d.]+) %", done.stdout)
    r = told(done, lambda said: f"{found and found[1]} % after {rows[-1]['step']} steps, wanted: at least 86 %")
    if r["result"] == "ok" and not DRY and float(found[1]) < 86:
        r["result"] = "FAILED"
    return r


def resnet_session(stages, batch, chunks):
    places = "".join(f"  - {{name: p{i}, at: {at}, layers: {layers}}}\n" for i, (at, layers) in enumerate(stages))
    return ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy]}\n"
            f"model: {{arch: {'resnet18' if DRY else 'resnet50'}, classes: 1000}}\n"
            f"stages:\n{places}loss: {{kind: mse}}\nprivacy: {{raw_input_leaves: true, front_known: true, labels_readable: true}}\n"
            f"train: {{epochs: 1000, max_steps: {2 if DRY else 40}, batch: {batch}, shuffle: false, seed: {'5eed' * 8}, "
            "optimizer: {kind: sgd, lr: 0.05}}\ntransfer: direct\n"
            f"pipeline: {{micro_batches: {chunks}}}\nlimits: {{step_timeout: 300s, credit: 256MiB}}\nlog: {{every: 1}}\n"
            "checkpoint: {every_steps: 100000}\n")


@piece
def split():
    """ResNet50 cut in two on one card, over TLS, beside the same uncut at one worker."""
    if no_device():
        return skipped(no_device())
    (batch, side), said, ms = SHAPES["resnet50"][1 if DRY else 0], [], []
    whole, two = [("w1", "conv1..fc")], [("w1", "conv1..layer2"), ("w2", "layer3..fc")]
    with Session() as s:
        script = beside("random_data.py", "../../deploy")
        done = run([sys.executable, script, os.path.join(s.folder, "data"), "--samples", str(batch), "--shape", "3", str(side), str(side)])
        if done.returncode:
            return dict(told(done, str), result="skipped" if "numpy" in done.stdout else "FAILED")
        for name, stages, chunks in (("whole", whole, 1), ("split", two, 1 if DRY else 4)):
            done, rows = s.train(name, resnet_session(stages, batch, chunks), table="pace")
            if not rows:
                return told(done, str) if done.returncode else {"result": "FAILED", "what": "no table of its pace", "output": done.stdout}
            late = sorted(batch / r["samples_per_s"] for r in rows[len(rows) // 2:])
            ms.append(1e3 * late[len(late) // 2])
            said.append(f"{name} {ms[-1]:.1f} ms")
    return {"result": "ok", "what": f"{', '.join(said)}; ratio {ms[1] / ms[0]:.2f}, wanted: at most 1.8", "output": ""}


def write(results):
    with open(os.path.join(OUT, "results.json"), "w") as f:
        json.dump(results, f, indent=1)
    with open(os.path.join(OUT, "results.md"), "w") as f:
        f.write("| piece | result | seconds | |\n|---|---|---|---|\n")
        for name, function in PIECES.items():
            r = results.get(name, {"result": "did not run", "seconds": 0, "what": function.__doc__.strip()})
            what = " ".join(r["what"].split()).replace("|", "/")[:290]
            f.write(f"| {name} | {r['result']} | {r['seconds']:.0f} | {what} |\n")
            for kernel, word, share in r.get("rows", ()):
                f.write(f"| {name}: {kernel} | {word} | | {share} |\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=9)
    p.add_argument("--again", action="store_true", help="forget what has run")
    p.add_argument("pieces", nargs="*", choices=[[], *PIECES], metavar="PIECE")
    p.add_argument("--dry", metavar="BUILD", help="tiny shapes, on the simulated device of a build")
    a = p.parse_args()
    global DRY, OUT
    if a.dry:
        DRY = os.path.abspath(a.dry)
        OUT = os.path.join(DRY, "gpu-dry")
        os.makedirs(OUT, exist_ok=True)
    results, begin, before = {}, time.monotonic(), os.path.join(OUT, "results.json")
    if os.path.exists(before) and not a.again:
        with open(before) as f:
            results = json.load(f)
    for name in a.pieces or PIECES:
        if time.monotonic() - begin > 60 * a.minutes:
            break
        if name in results and name not in a.pieces:
            continue
        at = time.monotonic()
        try:
            results[name] = PIECES[name]()
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
            results[name] = {"result": "FAILED", "what": str(e), "output": ""}
        results[name]["seconds"] = time.monotonic() - at
        print(f"{name}: {results[name]['result']}: {' '.join(results[name]['what'].split())[:200]}", flush=True)
        write(results)
    write(results)
    sys.exit(any(r["result"] == "FAILED" for r in results.values()))


main()
