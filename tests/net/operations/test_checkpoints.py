#!/usr/bin/python3
"""The commands on checkpoints: listing, comparing, fetching and removing files that are at workers,
messages about workers that cannot be reached, and sealed copies."""
import glob, hashlib, json, os, re, shutil, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from measured import get

suite = Suite()
URI = "spiffe://test/master"
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 16}, {op: relu}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 9000}, {op: relu}]}\n"
        "  - {name: c, at: w2, layers: [{op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\n"
        f"train: {{epochs: 100000, max_steps: 30, batch: 8, seed: {SEED}, optimizer: {{kind: adam, lr: 0.003}}}}\n"
        "checkpoint: {every_steps: 10, home: always}\n")
# Allows the op `wait`, which makes a run long by the clock, until the test ends it.
OPS = {"CLEAVE_TEST_OPS": "1"}
os.environ.update(OPS)
ENDLESS = BODY.replace("max_steps: 30", "max_steps: 1000000").replace("{op: linear, out: 9000}", "{op: linear, out: 9000}, {op: wait, forward_ms: 5}")


class Keeping(Cluster):
    """Workers that keep files for the master."""

    def worker_config(self, i, extra=""):
        path = super().worker_config(i, extra)
        with open(path) as f:
            text = f.read().replace(f'"{URI}", role: master}}', f'"{URI}", role: master, state_bytes: 64MiB}}')
        with open(path, "w") as f:
            f.write(text + f"state_dir: {self.kept(i, '')}\n")
        return path

    def kept(self, i, name):
        """The path of a file that worker i keeps, or of its state_dir."""
        folder = os.path.join(self.dir, f"kept{i}")
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, "states", hashlib.sha256(URI.encode()).hexdigest(), name + ".safetensors") if name else folder


def tool(*args, code=0):
    done = run(MASTER, "checkpoint", *args, cwd=cluster.dir, env=OPS)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def objects(*args, code=0):
    return [json.loads(line) for line in tool(*args, "--json", code=code).stdout.splitlines()]


def write_manifest(folder, change):
    """Writes a manifest with changed rows and the right digest."""
    path = os.path.join(folder, "MANIFEST.json")
    with open(path) as f:
        lines = f.read().splitlines(True)[:-2]
    text = "".join(lines)
    m = json.loads(text.rstrip().rstrip(",") + "}")
    change(m["files"])
    head = text[:text.index('  "files": {')]
    rows = ",\n".join(f'    "{name}": {json.dumps(row)}' for name, row in sorted(m["files"].items()))
    text = head + '  "files": {\n' + rows + "\n  },\n"
    with open(path, "w") as f:
        f.write(text + f'  "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n')


def trained(name, body=BODY):
    """A run with checkpoints 10, 20 and 30, whose files are at the master."""
    if not hasattr(trained, "dir"):
        done = cluster.train(cluster.session("first", BODY))
        assert done.returncode == 0, done.stderr
        trained.dir = os.path.join(cluster.dir, "runs", "first")
    folder = os.path.join(cluster.dir, "runs", name)
    shutil.copytree(trained.dir, folder)
    return folder, cluster.session(name, body)


def move_away(folder, step, stages=((2, 0), (3, 1))):
    """Moves files of stages to their workers, as training leaves them there. Returns the names at
    the workers, and the bytes of all files."""
    path, kept, contents = os.path.join(folder, f"checkpoint-{step}"), {}, {}

    def change(files):
        for n, worker in stages:
            for kind in ("model", "optimizer"):
                name = f"{kind}-{n:05}-of-00003.safetensors"
                at = f"{'5' * 32}.{step}.{n - 1}.{kind[0].replace('m', 'w')}"
                with open(os.path.join(path, name), "rb") as f:
                    contents[name] = f.read()
                os.makedirs(os.path.dirname(cluster.kept(worker, at)), exist_ok=True)
                shutil.move(os.path.join(path, name), cluster.kept(worker, at))
                files[name].update(place=f"spiffe://test/w{worker + 1}", kept=at)
                kept[name] = cluster.kept(worker, at)
    write_manifest(path, change)
    return kept, contents


def at_home(folder, step, contents):
    for name, data in contents.items():
        with open(os.path.join(folder, f"checkpoint-{step}", name), "rb") as f:
            assert f.read() == data, name


# ---- ls and verify -------------------------------------------------------------------------------

@suite.test
def checkpoints_are_listed_with_their_places():
    folder, session = trained("listed")
    kept, _ = move_away(folder, 30)
    os.mkdir(os.path.join(folder, "checkpoint-40"))
    listed = tool("ls", session).stdout
    assert "checkpoint-30  9 files" in listed and "home" in listed and "w1 " in listed and "complete, newest" in listed, listed
    assert "checkpoint-40  not usable\n    " in listed and "was never finished" in listed, listed
    assert "checkpoint-40: not finished" in tool("verify", session, "--quick").stdout
    assert "was never finished" in tool("verify", session, "--step", "40", code=7).stdout
    by = {o["step"]: o for o in objects("ls", session)}
    assert [o["complete"] for o in by.values()] == [False, True, True, True] and by[30]["newest"] and not by[30]["home"], by
    rows = {f["name"]: f for f in by[30]["files"]}
    assert {n for n, f in rows.items() if "place" in f} == set(kept) and rows["model-00002-of-00003.safetensors"]["worker"] == "w1", rows
    assert by[20]["home"] and all("place" not in f for f in by[20]["files"])
    assert sum(f["bytes"] for f in by[30]["files"]) == sum(f["bytes"] for f in by[20]["files"])


@suite.test
def every_file_is_verified_wherever_it_is():
    folder, session = trained("verified")
    kept, _ = move_away(folder, 30)
    for more in ((), ("--quick",)):
        ok = objects("verify", session, *more)
        assert [(o["step"], o["ok"], o["files"]) for o in ok] == [(30, True, 9), (20, True, 9), (10, True, 9)], ok
    assert "checkpoint-20: all 9 files are in order" in tool("verify", session, "--step", "20").stdout
    with open(kept["model-00002-of-00003.safetensors"], "r+b") as f:  # the last byte of a weight
        f.seek(-1, 2)
        last = f.read(1)
        f.seek(-1, 2)
        f.write(bytes([last[0] ^ 1]))
    os.unlink(kept["optimizer-00003-of-00003.safetensors"])
    with open(os.path.join(folder, "checkpoint-20", "trainer_state.json"), "a") as f:
        f.write(" ")
    for more in ((), ("--quick",)):
        bad = {o["step"]: {p["file"]: p["message"] for p in o["problems"]} for o in objects("verify", session, *more, code=7)}
        assert set(bad[30]) == {"model-00002-of-00003.safetensors", "optimizer-00003-of-00003.safetensors"}, bad
        assert "worker 'w1'" in bad[30]["model-00002-of-00003.safetensors"] and "damaged" in bad[30]["model-00002-of-00003.safetensors"], bad
        assert "worker 'w2'" in bad[30]["optimizer-00003-of-00003.safetensors"], bad
        assert "the manifest says" in bad[20]["trainer_state.json"] and not bad[10], bad


@suite.test
def bad_input_is_refused_by_name():
    _, session = trained("bad")
    assert "train first" in tool("ls", cluster.session("nothing", BODY), code=8).stderr
    assert "no checkpoint of step 25; there are those of steps " in tool("verify", session, "--step", "25", code=8).stderr
    assert "no checkpoint was kept as the best; checkpoint.best in the session" in tool("gather", session, "--step", "best", code=8).stderr
    assert "--step: 'x' is not the number of a step" in tool("rm", session, "--step", "x", code=2).stderr
    assert "--step or --orphans" in tool("rm", session, code=2).stderr
    with open(os.path.join(cluster.dir, "runs", "bad", "checkpoint-30", "MANIFEST.json"), "a") as f:
        f.write("x")
    assert "damaged" in tool("verify", session, "--step", "30", code=7).stdout
    assert "damaged" in tool("gather", session, "--step", "30", code=7).stderr
    assert [o["newest"] for o in objects("ls", session)] == [False, True, False]
    with open(os.path.join(cluster.dir, "runs", "bad", "kept.orphans"), "w") as f:
        f.write("../x 5 spiffe://test/w1\n")
    assert "kept.orphans: damaged: line 1" in tool("ls", session, code=7).stderr


# ---- gather --------------------------------------------------------------------------------------

@suite.test
def gathered_files_are_those_that_were_kept():
    folder, session = trained("gathered")
    kept, contents = move_away(folder, 30)
    refused = run(MASTER, "export", folder, "--merge", os.path.join(cluster.dir, "out"), cwd=cluster.dir)
    assert refused.returncode == 1 and "checkpoint gather" in refused.stderr, refused
    # parts of earlier gathers: one that is damaged, and one of less than a range
    large = "optimizer-00002-of-00003.safetensors"
    assert len(contents[large]) > 1 << 20
    for name, data in ((large, bytes(1 << 20)), ("model-00002-of-00003.safetensors", bytes(9))):
        with open(os.path.join(folder, "checkpoint-30", name + ".part"), "wb") as f:
            f.write(data)
    done = objects("gather", session)
    assert [o["file"] for o in done if o["event"] == "fetched"] == sorted(kept), done
    assert len([o for o in done if o["event"] == "removed"]) == 4, done
    at_home(folder, 30, contents)
    assert not any(os.path.exists(p) for p in kept.values())
    assert all(o["home"] and "orphan" not in o for o in objects("ls", session))
    assert not [n for n in os.listdir(os.path.join(folder, "checkpoint-30")) if n.endswith(".part")]
    assert run(MASTER, "export", folder, "--merge", os.path.join(cluster.dir, "out"), cwd=cluster.dir).returncode == 0
    assert objects("gather", session) == []


@suite.test
def worker_that_is_away_is_named_with_its_files():
    folder, session = trained("away")
    kept, contents = move_away(folder, 30)
    move_away(folder, 10)
    cluster.workers[0].stop()
    try:
        said = tool("gather", session, code=4).stdout
        assert said.count("stays at w1: worker 'w1'") == 2 and said.count("fetched from w2") == 2, said
        assert len([f for f in objects("ls", session)[0]["files"] if "place" in f]) == 2
        assert "worker 'w1'" in tool("verify", session, "--step", "30", code=4).stdout
        said = tool("rm", session, "--step", "10", code=4).stdout
        assert said.count("w1: " + "5" * 32 + ".10.1.") == 2 and "--orphans` tries again" in said and "checkpoint-10 is deleted" in said, said
        assert [o["worker"] for o in objects("ls", session) if "orphan" in o] == ["w1", "w1"]
    finally:
        cluster.restart(0)
    assert not os.path.exists(cluster.kept(1, "5" * 32 + ".10.2.w")) and os.path.exists(cluster.kept(0, "5" * 32 + ".10.1.w"))
    assert tool("rm", session, "--orphans").stdout.count("is removed") == 2
    assert not os.path.exists(cluster.kept(0, "5" * 32 + ".10.1.w")) and not os.path.exists(os.path.join(folder, "kept.orphans"))
    assert "all files are in the run folder" in tool("gather", session).stdout
    at_home(folder, 30, contents)


@suite.test
def damaged_file_stays_where_it_is():
    folder, session = trained("damaged")
    kept, contents = move_away(folder, 30)
    name = "model-00002-of-00003.safetensors"
    with open(kept[name], "r+b") as f:
        f.seek(-1, 2)
        f.write(b"!")
    with open(os.path.join(folder, "checkpoint-30", "optimizer-00002-of-00003.safetensors.part"), "wb") as f:
        # as after a gather that was killed
        f.write(contents["optimizer-00002-of-00003.safetensors"][:(1 << 20) + 5])
    said = tool("gather", session, code=7).stdout
    assert f"{name} stays at w1" in said and "damaged" in said, said
    assert not os.path.exists(os.path.join(folder, "checkpoint-30", name)) and os.path.exists(kept[name])
    with open(kept[name], "wb") as f:
        f.write(contents[name])
    tool("gather", session)
    at_home(folder, 30, contents)


@suite.test
def newest_checkpoint_is_deleted_by_force_alone():
    folder, session = trained("removed")
    kept, _ = move_away(folder, 30)
    assert "is the newest" in tool("rm", session, "--step", "latest", code=1).stderr
    assert all(os.path.exists(p) for p in kept.values())
    said = tool("rm", session, "--step", "30", "--force").stdout
    assert said.count("is removed") == 4 and not any(os.path.exists(p) for p in kept.values()), said
    assert [o["step"] for o in objects("ls", session)] == [20, 10]


@suite.test
def commands_beside_a_run_read_only():
    session = cluster.session("busy", ENDLESS)
    with Running([MASTER, "train", session], cwd=cluster.dir, stderr=subprocess.DEVNULL) as running:
        until(lambda: glob.glob(os.path.join(cluster.dir, "runs", "busy", "checkpoint-*", "MANIFEST.json")))
        assert objects("ls", session) and all(o["ok"] for o in objects("verify", session))
        for command in (("gather",), ("rm", "--step", "latest", "--force")):
            assert "trains in" in tool(command[0], session, *command[1:], code=1).stderr
        assert running.process.poll() is None


# ---- sealed copies -------------------------------------------------------------------------------

ESCROW = ENDLESS.replace("{every_steps: 10, home: always}", "{every_steps: 25, home: always, escrow: {every: 1s, key: KEY, dir: ESCROW}}").replace("optimizer:", "ema: 0.9, optimizer:")


def sealed_run():
    """A run with a sealed copy, ended by a kill."""
    if hasattr(sealed_run, "of"):
        return sealed_run.of
    copies, key, port = os.path.join(cluster.dir, "escrow.copies"), os.path.join(cluster.dir, "escrow.key"), free_port()
    session = cluster.session("escrow", ESCROW.replace("KEY", key).replace("ESCROW", copies) + f'metrics: {{listen: "127.0.0.1:{port}"}}\n')
    with Running([MASTER, "train", session], cwd=cluster.dir, stderr=subprocess.PIPE) as running:
        until(lambda: copy_in(copies))
        numbers = until(lambda: dict(re.findall(r"^cleave_master_escrow_(\w+) (\S+)$", text, re.M))
                        if "cleave_master_escrow_bytes " in (text := get(port)[1]) else None)
        assert float(numbers["step"]) >= 25 and float(numbers["bytes"]) > 1000 and numbers["failures_total"] == "0", numbers
        assert abs(float(numbers["timestamp_seconds"]) - time.time()) < 60 * SLOW, numbers
        row = json.loads(master("status", session, "--json", "--interval", "0.1", cwd=cluster.dir, env=OPS).stdout.splitlines()[0])
        assert row["escrow"]["step"] >= 25 and row["escrow"]["bytes"] > 1000 and row["escrow"]["last_error"] is None, row
        running.process.kill()
        said = running.process.stderr.read()
        running.process.stderr.close()
    assert "made the key" in said and oct(os.stat(key).st_mode & 0o777) == "0o600", said
    sealed_run.of = os.path.join(cluster.dir, "runs", "escrow"), copies, key
    return sealed_run.of


def copy_in(copies):
    """The folder of the finished sealed copy."""
    return next((d for d, _, files in os.walk(copies) if "MANIFEST.json.sealed" in files), None)


def escrowed(name):
    """Copies the sealed run under another name, with copies and a key of its own. Returns its
    folder, its session file, the folder of copies and the step of the copy."""
    folder, copies, key = (os.path.join(cluster.dir, n) for n in (f"runs/{name}", name + ".copies", name + ".key"))
    for source, to in zip(sealed_run(), (folder, copies, key)):
        (shutil.copytree if os.path.isdir(source) else shutil.copy2)(source, to)
    copy = copy_in(copies)
    return folder, cluster.session(name, ESCROW.replace("KEY", key).replace("ESCROW", copies)), copy, int(copy.rpartition("-")[2])


def emptied(folder, keep=()):
    for name in os.listdir(folder):
        if name.startswith("checkpoint-") and name not in keep:
            shutil.rmtree(os.path.join(folder, name))


@suite.long
def sealed_copy_restores_a_run_that_lost_its_files():
    folder, session, copy, step = escrowed("sealed")
    with open(os.path.join(copy, "model-00001-of-00003.safetensors.sealed"), "rb") as f:
        assert f.read(7) == b"CLVSEAL"
    emptied(folder, [f"checkpoint-{step}"])
    kept, contents = move_away(folder, step)
    for path in kept.values():  # both workers lose their disks
        os.unlink(path)
    done = cluster.train(session, "--resume", "--set", f"train.max_steps={step + 5}", env=OPS)
    assert done.returncode == 0, done.stderr
    assert f"checkpoint-{step} is restored from its sealed copy" in done.stderr, done.stderr
    at_home(folder, step, contents)
    emptied(folder)  # the run folder loses its checkpoints, too
    done = cluster.train(session, "--resume", "--set", f"train.max_steps={step + 10}", env=OPS)
    assert done.returncode == 0 and "is restored from its sealed copy" in done.stderr, done.stderr


@suite.long
def gather_takes_a_sealed_copy_of_files_that_are_lost():
    folder, session, _, step = escrowed("unsealed")
    emptied(folder, [f"checkpoint-{step}"])
    kept, contents = move_away(folder, step)
    for name, path in kept.items():
        if "kept0" in path:
            with open(path, "r+b") as f:
                f.write(b"!")
    key = os.path.join(cluster.dir, "unsealed.key")
    os.chmod(key, 0o640)
    assert "mode 0640" in tool("gather", session, code=3).stderr
    os.chmod(key, 0o600)
    said = tool("gather", session).stdout
    assert said.count("stays at w1") == 2 and "restored from its sealed copy" in said, said
    at_home(folder, step, contents)
    assert not any(os.path.exists(p) for p in kept.values()) and objects("verify", session)[0]["ok"]


@suite.test
def worker_that_lost_its_disk_is_restored_from_a_copy():
    """The files stay at the workers, and a thread of the master copies them while the run
    trains."""
    copies, key = os.path.join(cluster.dir, "disk.copies"), os.path.join(cluster.dir, "disk.key")
    keys = f"{{every_steps: 20, keep: 2, home: never, escrow: {{every: 1s, key: {key}, dir: {copies}}}}}"
    session = cluster.session("disk", ENDLESS.replace("{every_steps: 10, home: always}", keys) + "recovery: {wait: 200ms}\n")
    log = os.path.join(cluster.dir, "runs", "disk", "log.txt")

    def said(what):
        with open(log) as f:
            return what in f.read()
    with Running([MASTER, "train", session], cwd=cluster.dir, stderr=subprocess.DEVNULL) as running:
        until(lambda: os.path.exists(log) and said("is sealed in"))
        assert any("place" in f for o in objects("ls", session) for f in o["files"])
        cluster.workers[0].kill()
        cluster.workers[0].process.wait()
        shutil.rmtree(os.path.join(cluster.kept(0, ""), "states"))
        cluster.restart(0)
        until(lambda: said("recovered after"))
        assert said("is restored from its sealed copy")
        assert running.process.poll() is None


@suite.test
def fresh_run_names_the_files_that_it_orphans():
    folder, session, _, step = escrowed("fresh")
    emptied(folder, [f"checkpoint-{step}"])
    kept, _ = move_away(folder, step)
    done = cluster.train(session, "--fresh", "--set", "train.max_steps=3", env=OPS)
    assert done.returncode == 0, done.stderr
    for i in (0, 1):
        named = [line for line in done.stderr.splitlines() if f"worker 'w{i + 1}' still has 2 files (" in line]
        assert len(named) == 1 and all(os.path.basename(p)[:-12] in named[0] for n, p in kept.items() if f"kept{i}" in p), done.stderr
    assert all(os.path.exists(p) for p in kept.values())
    assert "4 files that no checkpoint needs" in tool("ls", session).stdout
    assert tool("rm", session, "--orphans").stdout.count("is removed") == 4
    assert not any(os.path.exists(p) for p in kept.values())


@suite.test
def lost_and_wrong_keys_are_named():
    folder, session, copy, step = escrowed("keys")
    key = os.path.join(cluster.dir, "keys.key")
    resume = ("--resume", "--set", f"train.max_steps={step + 5}")
    soon = cluster.train(session, "--set", "checkpoint.escrow.every=5ms", env=OPS)
    assert soon.returncode == 3 and "checkpoint.escrow.every is a time from 1s to 720h" in soon.stderr, soon
    os.rename(key, key + ".away")
    lost = cluster.train(session, *resume, env=OPS)
    assert lost.returncode == 3 and "keys.key does not exist, and the copies in" in lost.stderr and not os.path.exists(key), lost
    with open(key, "w") as f:
        f.write("00" * 32 + "\n")
    os.chmod(key, 0o600)
    wrong = cluster.train(session, *resume, env=OPS)
    assert wrong.returncode == 3 and "are sealed with key" in wrong.stderr and "keys.key holds key" in wrong.stderr, wrong
    os.chmod(key, 0o644)
    readable = cluster.train(session, *resume, env=OPS)
    assert readable.returncode == 3 and "mode 0644" in readable.stderr and "chmod 600" in readable.stderr, readable
    os.rename(key + ".away", key)
    assert cluster.train(session, *resume, env=OPS).returncode == 0


if __name__ == "__main__":
    with Keeping(2) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"))
        suite.main()
