"""Faulty disks of the master and of a worker: full, read-only, slow, with a flipped bit, or with
only the synced bytes after a power cut. A checkpoint that cannot be written is skipped, the earlier
one is used, the message gives its name and the reason, and the run ends with the weights and losses
of a good disk."""
import datetime, hashlib, os, re, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../disks"))
from cluster import *
from power_cut import Disk

suite = Suite()
OPS = {"CLEAVE_TEST_OPS": "1"}  # for `wait`
DISK, STEPS, EVERY = os.path.join(BIN, "disks", "disk.so"), 60, 12
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}]}\n"
        "  - {name: b, at: w1, layers: [{op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 20}\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 16, seed: {SEED}, optimizer: {{kind: adam, lr: 0.003}}}}\n"
        f"checkpoint: {{every_steps: {EVERY}, keep: 2}}\nrecovery: {{wait: 200ms, give_up_after: 20s}}\n")


def folder_of(name):
    return os.path.join(cluster.dir, "runs", name)


def train(name, *args, disk="", log="", code=0):
    """Trains with a disk with these faults. Returns the output."""
    env = preloaded(DISK) if disk or log else {}
    env.update({"CLEAVE_TEST_DISK": disk} if disk else {}, **({"CLEAVE_TEST_DISK_LOG": log} if log else {}))
    done = cluster.train(cluster.session(name, BODY), *args, env=env)
    assert done.returncode == code, (name, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def result(name):
    with open(os.path.join(folder_of(name), "metrics.jsonl")) as f:
        losses = [(m["step"], m["loss"]) for m in map(json.loads, f)]
    return [checkpoint_tensors(folder_of(name), STEPS, prefix) for prefix in ("model-", "optimizer-")], losses


def events(name, *kinds):
    with open(os.path.join(folder_of(name), "log.jsonl")) as f:
        return [e for e in map(json.loads, f) if e["event"] in kinds]


def good():
    if not hasattr(good, "result"):
        train("good")
        good.result = result("good")
    return good.result


@suite.test
def checkpoint_that_the_disk_refuses_is_skipped():
    for name, disk, why in (("full", "write:checkpoint-24/:1:1:ENOSPC", "No space left on device"),
                            ("quota", "mkdir:checkpoint-24:1:1:EDQUOT", "Disk quota exceeded"),
                            ("broken", "fsync:checkpoint-24/optimizer:2:1:EIO", "Input/output error"),
                            ("readonly", "rename:checkpoint-24/MANIFEST:1:1:EROFS", "Read-only file system")):
        text = train(name, disk=disk)
        assert "the checkpoint of step 24 could not be written: " in text and why in text, text
        assert "the one of step 12 stays, and the run goes on" in text, text
        assert result(name) == good() and not events(name, "lost"), name
        assert sorted(os.listdir(folder_of(name))) == sorted(os.listdir(folder_of("good"))), name


@suite.test
def last_checkpoint_that_the_disk_refuses_ends_the_run():
    text = train("last", disk=f"write:checkpoint-{STEPS}/:1:0:ENOSPC", code=1)
    assert f"checkpoint-{STEPS}/" in text and "No space left on device" in text, text
    assert "the checkpoint of step 48 is complete: train --resume goes on from it" in text, text
    train("last", "--resume")
    assert result("last") == good()


@suite.test
def lines_that_the_disk_refuses_wait_in_memory():
    text = train("lines", disk="write:metrics.jsonl:5:9:ENOSPC")
    assert text.count("metrics.jsonl: write: No space left on device; its lines wait in memory") == 1, text
    assert result("lines") == good()
    text = train("record", disk="rename:run.json:2:2:EIO")
    assert "cannot write the record of the run: " in text and result("record") == good(), text


@suite.test
def slow_disk_changes_no_bit():
    train("slow", disk="fsync:checkpoint:1:0:SLOW")
    assert result("slow") == good()


@suite.test
def flipped_bit_falls_back_to_the_earlier_checkpoint():
    good()
    train("flipped", "--max-steps", "48")
    path = os.path.join(folder_of("flipped"), "checkpoint-48", "model-00002-of-00002.safetensors")
    with open(path, "r+b") as f:
        f.seek(-7, 2)
        byte = f.read(1)
        f.seek(-7, 2)
        f.write(bytes([byte[0] ^ 4]))
    text = train("flipped", "--resume")
    assert re.search(r"checkpoint-48 refused: .*model-00002-of-00002.safetensors: damaged: SHA-256 is", text), text
    assert "resumed from the checkpoint of step 36" in text and result("flipped") == good(), text


def committed(disk):
    """{step: whether all listed files are on the disk undamaged} of the manifests on the disk."""
    files, found = disk.files(), {}
    for path, content in files.items():
        if os.path.basename(path) == "MANIFEST.json" and content:
            with open(content) as f:
                manifest = json.load(f)
            found[manifest["step"]] = all(
                (kept := files.get(os.path.join(os.path.dirname(path), name))) is not None
                and hashlib.sha256(open(kept, "rb").read()).hexdigest() == row["sha256"] for name, row in manifest["files"].items())
    return found


@suite.test
def power_cut_leaves_each_committed_checkpoint():
    """After every operation of a run, each checkpoint whose manifest is on the disk is complete
    there, and a committed one is not removed before the next is committed. The run is resumed from
    three of these moments."""
    good()
    log, runs = os.path.join(cluster.dir, "log-cut"), os.path.join(cluster.dir, "runs")
    os.mkdir(log)
    train("cut", log=log)
    with open(os.path.join(log, "log")) as f:
        lines = f.readlines()
    disk, newest, moments = Disk(runs), 0, 0
    cuts = {len(lines) // 3, len(lines) // 2, len(lines) - 25}
    for i, line in enumerate(lines):
        disk.apply(line)
        if line.startswith(("fsyncdir", "fsync\t")) and "checkpoint" in line:
            there = committed(disk)
            assert all(there.values()), (i, line, there)
            assert not newest or max(there) >= newest, (i, line, there, newest)
            newest, moments = max(there, default=0), moments + 1
        if i in cuts:
            shutil.rmtree(folder_of("cut"))
            os.rename(runs, runs + ".aside")
            disk.write(runs)
            for name in os.listdir(runs + ".aside"):
                if name != "cut":
                    shutil.move(os.path.join(runs + ".aside", name), os.path.join(runs, name))
            os.rmdir(runs + ".aside")
            train("cut", "--resume")
            assert result("cut") == good(), (i, newest)
    assert moments > 40 and newest == STEPS, (moments, newest)


@suite.test
def full_file_system_is_left_and_used_again():
    """A real file system of one MiB, which is full until the first checkpoint has been skipped."""
    good()
    if os.geteuid() != 0:
        return "only root mounts a file system"
    folder = folder_of("tmpfs")
    os.makedirs(folder)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        return "this machine mounts no tmpfs"
    try:
        with open(os.path.join(folder, "filler"), "wb") as f:
            f.write(bytes(940 << 10))
        with Running([MASTER, "train", cluster.session("tmpfs", BODY)], cwd=cluster.dir, stderr=subprocess.STDOUT) as run:
            text = ""
            for line in run.process.stdout:
                text += line
                if "could not be written" in line and "filler" in os.listdir(folder):
                    os.unlink(os.path.join(folder, "filler"))
            assert run.process.wait(60) == 0 and "No space left on device" in text, text
        assert result("tmpfs") == good()
    finally:
        subprocess.run(["umount", folder], check=True)


class Keeping(Cluster):
    """A worker that keeps files of state, on a disk with these faults and with this quota."""

    def __init__(self, disk="", quota="16MiB", log=""):
        self.quota, settings = quota, {"CLEAVE_TEST_DISK": disk, "CLEAVE_TEST_DISK_LOG": log}
        super().__init__(1, env=OPS if not disk + log else {**preloaded(DISK), **OPS, **{k: v for k, v in settings.items() if v}})
        shutil.copytree(os.path.join(cluster.dir, "data"), os.path.join(self.dir, "data"))

    def worker_config(self, i, extra=""):
        os.makedirs(self.kept_dir(), exist_ok=True)
        path = super().worker_config(i, extra + f"state_dir: {self.kept_dir()}\n")
        with open(path) as f:
            config = f.read().replace("role: master}", f"role: master, state_bytes: {self.quota}}}")
        with open(path, "w") as f:
            f.write(config)
        return path

    def kept_dir(self):
        return os.path.join(self.dir, "kept")

    def kept(self, name):
        """The path of a kept file."""
        return next(os.path.join(folder, name + ".safetensors") for folder, _, names in os.walk(self.kept_dir())
                    if name + ".safetensors" in names)

    def run(self, name, *args, body=BODY):
        """Trains a run. Returns the output."""
        done = self.train(self.session(name, body.replace("keep: 2", "keep: 2, home: never")), *args, env=OPS)
        assert done.returncode == 0, (name, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def result(self, name):
        """As the function result(), with files at the master or at the worker."""
        folder, tensors = os.path.join(self.dir, "runs", name), ({}, {})
        with open(os.path.join(folder, f"checkpoint-{STEPS}", "MANIFEST.json")) as f:
            rows = json.load(f)["files"]
        for file, row in sorted(rows.items()):
            if file.endswith(".safetensors"):
                path = self.kept(row["kept"]) if "place" in row else os.path.join(folder, f"checkpoint-{STEPS}", file)
                model = file.startswith("model-")
                tensors[not model].update({k if model else (file, k): v for k, v in safetensors(path).items()})
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            return list(tensors), [(m["step"], m["loss"]) for m in map(json.loads, f)]


@suite.test
def worker_whose_disk_refuses_keeps_no_files():
    """The master fetches the files, and logs the reason."""
    for disk, quota, why in (("write:/states/:5:1:ENOSPC", "16MiB", "the worker's disk is full"),
                             ("fsync:/states/:6:1:EIO", "16MiB", "the worker's disk reported an I/O error"),
                             ("open:/states/:3:0:EROFS", "16MiB", "the worker's disk is mounted read-only"),
                             ("", "4KiB", "exceed the quota of files of state")):
        with Keeping(disk, quota) as far:
            text = far.run("far")
            assert "cannot keep the files of stage 'b'" in text and why in text, (disk, text)
            assert far.result("far") == good(), disk


@suite.test
def slow_disk_of_a_worker_delays_no_step():
    """While the disk syncs the files of step 24, steps continue and checkpoints wait."""
    with Keeping("fsync:/states/:5:1:STUCK") as far:
        begin = time.monotonic()
        far.run("far")
        assert time.monotonic() - begin > 2 and far.result("far") == good()
        with open(os.path.join(far.dir, "runs", "far", "log.jsonl")) as f:
            times = [e["time"] for e in map(json.loads, f) if e["event"] == "progress"]
        first, last = (datetime.datetime.fromisoformat(t.replace("Z", "+00:00")).timestamp() for t in (times[0], times[-1]))
        assert last - first < 2 or SLOW > 1, times


@suite.test
def power_cut_of_a_worker_leaves_each_committed_checkpoint():
    """Power is cut directly after a manifest, in the middle of a write, and again after a manifest.
    The run continues from the newest checkpoint with a manifest."""
    log, paced = os.path.join(cluster.dir, "log-worker"), BODY.replace("{op: dropout, p: 0.2}", "{op: wait, forward_ms: MS}, {op: dropout, p: 0.2}")
    os.mkdir(log)
    with Keeping(log=log) as far:
        far.run("whole", body=paced.replace("MS", "1"))
        disk, applied, folder, found = Disk(far.kept_dir()), 0, os.path.join(far.dir, "runs", "cut"), []
        session = far.session("cut", paced.replace("MS", "60").replace("keep: 2", "keep: 2, home: never"))

        def newest():
            there = os.listdir(folder) if os.path.exists(folder) else []
            return max((int(n.split("-")[1]) for n in there if os.path.exists(os.path.join(folder, n, "MANIFEST.json"))), default=0)

        def writes():
            return any(n.endswith(".tmp") for _, _, names in os.walk(far.kept_dir()) for n in names)
        with Running([MASTER, "train", session], cwd=far.dir, stderr=subprocess.STDOUT, env={**os.environ, **OPS}) as run:
            for is_there in (lambda: newest() >= 12, lambda: newest() >= 24 and (writes() or newest() >= 36),
                             lambda: newest() >= found[-1] + 12):
                until(lambda: is_there() or run.process.poll() is not None, 30)
                far.workers[0].kill()
                far.workers[0].process.wait()
                found.append(newest())
                with open(os.path.join(log, "log")) as f:
                    lines = f.readlines()
                for line in lines[applied:]:
                    disk.apply(line)
                applied = len(lines)
                shutil.rmtree(far.kept_dir())
                disk.cut()
                disk.write(far.kept_dir())
                far.restart(0)
            printed = run.process.stdout.read()
            assert run.process.wait(60) == 0, printed
        with open(os.path.join(folder, "log.jsonl")) as f:
            back = [e["step"] for e in map(json.loads, f) if e["event"] == "recovered"]
        assert back == found, (back, found, printed)
        assert far.result("cut") == far.result("whole")


@suite.test
def kept_file_with_a_flipped_bit_is_not_used():
    with Keeping() as far:
        far.run("far", "--max-steps", "48")
        with open(os.path.join(far.dir, "runs", "far", "checkpoint-48", "MANIFEST.json")) as f:
            kept = next(row["kept"] for row in json.load(f)["files"].values() if "place" in row)
        with open(far.kept(kept), "r+b") as f:
            f.seek(-7, 2)
            byte = f.read(1)
            f.seek(-7, 2)
            f.write(bytes([byte[0] ^ 4]))
        text = far.run("far", "--resume")
        # a checkpoint that is due while the disk writes another is left out or written later
        resumed = re.search(r"resumed from the checkpoint of step (\d+):", text)
        assert kept in text and resumed and int(resumed[1]) < 48, text
        assert far.result("far") == good()


with Cluster(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=16, side=8)
    suite.main()
