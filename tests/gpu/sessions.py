# SPDX-License-Identifier: Apache-2.0
"""Pieces of run.py that are whole sessions over TLS: a master here, workers on `device: cuda`."""
import array, json, os, random, re, shutil, signal, socket, subprocess, sys, tempfile, time
from beside_torch import SHAPES
from pieces import (FOUND, HERE, LIMIT_S, NO_TOOL, TOOLS, At, add_piece, beside, checker, end_with_parent, environment,
                    folders, no_device, ours, piece, program, run, skipped, told, under)

START_S = 60  # time limit for the start of a worker; ten times as long under compute-sanitizer


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def below(pid):
    """A process and all its descendants."""
    found = [pid]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        if parent == pid:
            found += below(int(name))
    return found


class Session:
    """A master here and workers, over mutual TLS on loopback, in a folder of its own. before: words
    before the workers' commands."""

    def __init__(self, workers=2, before=()):
        self.before, self.n, self.workers, self.ports = list(before), workers, [], []
        self.folder = tempfile.mkdtemp(prefix="session-", dir=At.out)

    def __enter__(self):
        try:
            self.master("certs", "init", "--dir", "certs")
            self.issue("master")
            self.ports = [free_port() for _ in range(self.n)]
            for i in range(self.n):
                self.issue(f"w{i + 1}")
            for i in range(self.n):
                self.start(i)
            return self
        except BaseException:
            self.__exit__()
            raise

    def master(self, *command, timeout=LIMIT_S):
        return ours("cleave-master", *command, cwd=self.folder, timeout=timeout)

    def issue(self, name):
        done = self.master("certs", "issue", name, "--dir", "certs", "--uri", f"spiffe://gpu/{name}", "--ip", "127.0.0.1")
        if done.returncode:
            raise OSError(done.stdout[-500:])

    def config(self, i):
        name, others = f"w{i + 1}", [k for k in range(len(self.ports)) if k != i]
        text = (f"name: {name}\nlisten: 127.0.0.1:{self.ports[i]}\ndevice: cuda\n"
                f"tls: {{ca: certs/ca.pem, cert: certs/{name}.pem, key: certs/{name}.key}}\n"
                "allow:\n  - {identity: \"spiffe://gpu/master\", role: master}\n")
        text += "".join(f"  - {{identity: \"spiffe://gpu/w{k + 1}\", role: peer}}\n" for k in others)
        text += "peers:\n" if others else ""
        text += "".join(f"  - {{name: w{k + 1}, address: \"127.0.0.1:{self.ports[k]}\", identity: "
                        f"\"spiffe://gpu/w{k + 1}\"}}\n" for k in others)
        return text + (f"cuda: {{folders: {json.dumps(folders())}}}\n" if folders() and not At.dry else "")

    def said(self, i):
        with open(os.path.join(self.folder, f"w{i + 1}.log"), errors="replace") as f:
            return f.read()

    def start(self, i):
        path, log = (os.path.join(self.folder, f"w{i + 1}{end}") for end in (".yaml", ".log"))
        with open(path, "w") as f:
            f.write(self.config(i))
        with open(log, "w") as f:
            self.workers.append(subprocess.Popen([*self.before, program("cleave-worker"), "serve", "--config", path], stdout=f, stderr=f,
                                                 env=environment(), stdin=subprocess.DEVNULL, preexec_fn=end_with_parent))
        late = time.monotonic() + START_S * (10 if self.before else 1)
        while " ready " not in self.said(i) and self.workers[-1].poll() is None and time.monotonic() < late:
            time.sleep(0.1)
        if " ready " not in self.said(i):
            raise OSError(f"w{i + 1} did not start: {self.said(i)[-300:]}")

    def train(self, name, body, *options, table="metrics", timeout=LIMIT_S):
        """(output of train, rows of one of its tables)"""
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

    def end_workers(self):
        """Ends the workers. Returns their exit codes; a tool before a worker reports when that
        ends."""
        for w in self.workers:
            for pid in below(w.pid)[1 if self.before else 0:]:
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    pass
        codes = []
        for w in self.workers:
            try:
                codes.append(w.wait(START_S))
            except subprocess.TimeoutExpired:
                w.kill()
                codes.append(w.wait())
        self.workers = []
        return codes

    def __exit__(self, *_):
        self.end_workers()
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- sessions -------------------------------------------------------------------------------

@piece
def demo():
    """The demo: master on the processor, both workers on the GPU."""
    why = no_device()
    if why:
        return skipped(why)
    with open(beside("fashion-mnist.yaml", "../../deploy/sessions")) as f:
        body = f.read().partition("\ndata:")[2].replace("at: worker-", "at: w")
    data = next((d for d in (os.path.join(HERE, "data"), "/usr/share/datasets/fashion-mnist") if os.path.isdir(d)), None)
    if not data:
        return skipped("no Fashion-MNIST")
    cut = ("--set=train.max_steps=3", "--set=train.batch=8", "--set=data.limit_test=16") if At.dry else ()
    with Session() as s:
        done, rows = s.train("demo", "data:" + re.sub(r"root: .*", f"root: {data}", body), *cut)
    found = re.search(r"test accuracy ([\d.]+) %", done.stdout)
    if done.returncode == 0 and not (found and rows):
        done.returncode = 1
    r = told(done, lambda said: f"{found[1]} % after {rows[-1]['step']} steps, wanted: at least 86 %")
    if r["result"] == "ok" and not At.dry and float(found[1]) < 86:
        r["result"] = "FAILED"
    return r


def images_session(places, model, batch, steps, chunks=1):
    stages = "".join(f"  - {{name: p{i}, at: {at}, layers: {layers}}}\n" for i, (at, layers) in enumerate(places))
    return ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy]}\n"
            f"{model}stages:\n{stages}loss: {{kind: mse}}\nprivacy: {{raw_input_leaves: true, front_known: true, labels_readable: true}}\n"
            f"train: {{epochs: 1000, max_steps: {steps}, batch: {batch}, shuffle: false, seed: {'5eed' * 8}, "
            "optimizer: {kind: sgd, lr: 0.05}}\ntransfer: direct\n"
            f"pipeline: {{micro_batches: {chunks}}}\nlimits: {{step_timeout: 300s, receive_window: 256MiB}}\nlog: {{every: 1}}\n"
            "checkpoint: {every_steps: 100000}\n")


WHOLE, CUT = [("w1", "conv1..fc")], [("w1", "conv1..layer2"), ("w2", "layer3..fc")]


@piece
def split():
    """ResNet50 cut in two on one card, over TLS, beside the same uncut at one worker."""
    why = no_device()
    if why:
        return skipped(why)
    (batch, side), said, ms = SHAPES["resnet50"][1 if At.dry else 0], [], []
    model = f"model: {{arch: {'resnet18' if At.dry else 'resnet50'}, classes: 1000}}\n"
    with Session() as s:
        script = beside("random_data.py", "../../deploy")
        done = run([sys.executable, script, os.path.join(s.folder, "data"), "--samples", str(batch), "--shape", "3", str(side), str(side)])
        if "No module named 'numpy'" in done.stdout:
            return skipped(f"no NumPy in {sys.executable}: start run.py with the Python that has it")
        if done.returncode:
            return told(done, str)
        for name, places, chunks in (("whole", WHOLE, 1), ("split", CUT, 1 if At.dry else 4)):
            done, rows = s.train(name, images_session(places, model, batch, 2 if At.dry else 40, chunks), table="pace")
            if not rows:
                return told(done, str) if done.returncode else {"result": "FAILED", "what": "no table of its pace", "output": done.stdout}
            late = sorted(batch / r["samples_per_s"] for r in rows[len(rows) // 2:])
            ms.append(1e3 * late[len(late) // 2])
            said.append(f"{name} {ms[-1]:.1f} ms")
    return {"result": "ok", "what": f"{', '.join(said)}; ratio {ms[1] / ms[0]:.2f}, wanted: at most 1.8", "output": ""}


# ---- a daemon under compute-sanitizer -------------------------------------------------------

SIDE, CLASSES, RECORDS = 8, 4, 16
LAYERS = ("[{op: conv2d, out: 4, kernel: 3, pad: 1}, {op: batchnorm}, {op: relu}, {op: maxpool, kernel: 2}]",
          "[{op: flatten}, {op: linear, out: 12}, {op: gelu}, {op: dropout, p: 0.5}, {op: layernorm}, {op: linear, out: 4}]")


def write_npy(path, shape, values):
    """Writes a .npy file without NumPy."""
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': %r, }" % (shape,)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        array.array("f", values).tofile(f)


def records(folder):
    drawn = random.Random(1)
    os.mkdir(folder)
    write_npy(os.path.join(folder, "train-x.npy"), (RECORDS, 3, SIDE, SIDE), (drawn.gauss(0, 1) for _ in range(RECORDS * 3 * SIDE * SIDE)))
    write_npy(os.path.join(folder, "train-y.npy"), (RECORDS, CLASSES), (float(i % 5 == 0) for i in range(RECORDS * CLASSES)))


def sanitized_session(tool):
    """Runs two workers under the tool, which reports its findings when they end."""
    why = no_device() or (None if At.dry or checker() else NO_TOOL)
    if why:
        return skipped(why)
    with Session(before=() if At.dry else under(tool)) as s:
        records(os.path.join(s.folder, "data"))
        done, rows = s.train("small", images_session(list(zip(("w1", "w2"), LAYERS)), "", 8, 6))
        codes = s.end_workers()
        done.stdout += "".join(s.said(i) for i in range(2))
    if FOUND in codes or done.returncode == 0 and (any(codes) or len(rows) < 6):
        done.returncode = FOUND
    if At.dry and done.returncode == 0:
        return skipped("no device; the session runs")
    return told(done, lambda said: f"{len(rows)} steps; {'; '.join(re.findall('ERROR SUMMARY.*|RACECHECK SUMMARY.*', said))}")


for tool, finds in TOOLS.items():
    add_piece(f"{tool}_session", f"Under compute-sanitizer, {finds}: two daemons in a session, its calls recorded as graphs.",
              sanitized_session, tool)
