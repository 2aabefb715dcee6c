"""Runs and the commands about them: one trainer in a folder, `runs`, `log` and `stop` over real
daemons, for each way in which a run ends; and event files, read with our own reader."""
import contextlib, glob, hashlib, json, os, re, signal, socket, struct, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import tfevents
from cluster import *

suite = Suite()
TIMEOUT_S = (240 if SANITIZED else 60) * SLOW
DATA = IMAGE_DATA.replace("}\n", ", validation: {fraction: 0.25}}\n")
STAGES = ("stages:\n"
          "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 16}, {op: relu}]}\n"
          "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n")
TAIL = ("loss: {kind: cross_entropy}\n"
        "train: {epochs: 2, batch: 64, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.1}}\n"
        "log: {every: 3, tensorboard: true}\n"
        "checkpoint: {every_steps: 4}\n")
ENDLESS = ("--set", "train.epochs=1000000", "--set", "checkpoint.every_steps=1000", "--set", "log.every=50")


def tool(*args):
    return master(*args, cwd=cluster.dir)


def recorded(name):
    """The row of a run in `runs --json`."""
    done = tool("runs", "--json")
    assert done.returncode == 0, done.stderr
    return next(r for r in map(json.loads, done.stdout.splitlines()) if r["name"] == name)


def path(name, *parts):
    return os.path.join(cluster.dir, "runs", name, *parts)


def lines(name, file):
    with open(path(name, file)) as f:
        return [json.loads(line) for line in f]


def everything(name):
    return {f: (os.stat(f).st_mtime_ns, os.stat(f).st_ino) for f in glob.glob(path(name, "**"), recursive=True)}


class Training:
    """A run beside the test. It has taken a step when the block begins."""

    def __init__(self, name, *args, tail=TAIL):
        self.name = name
        self.process = subprocess.Popen([MASTER, "train", cluster.session(name, DATA + STAGES + tail), *ENDLESS, *args],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cluster.dir)

    def __enter__(self):
        until = time.monotonic() + TIMEOUT_S
        while not (self.process.stdout.readline() if self.process.poll() is None else "").startswith("step "):
            assert self.process.poll() is None and time.monotonic() < until, self.process.communicate()
        return self

    def end(self):
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def follow(name, *args):
    return subprocess.Popen([MASTER, "log", name, "-f", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, cwd=cluster.dir)


# ---- ends ----------------------------------------------------------------------------------------

@suite.test
def finished_run_is_recorded():
    session = cluster.session("finished", DATA + STAGES + TAIL)
    before = 1000 * time.time() - 1
    done = cluster.train(session)
    assert done.returncode == 0, done.stderr
    r = recorded("finished")
    assert r["state"] == "finished" and r["code"] == 0 and r["step"] == r["total_steps"] == 12, r
    assert r["checkpoints"] == [12, 8, 4] and r["attempts"] == 1 and r["session"] == os.path.realpath(session), r
    assert before < r["began_ms"] < r["ended_ms"] < 1000 * time.time() + 1, r
    with open(path("finished", "session.effective.yaml"), "rb") as f:
        assert r["config_sha256"] == hashlib.sha256(f.read()).hexdigest()
    tested = lines("finished", "evaluations.jsonl")
    assert [e["event"] for e in tested] == ["validation", "validation", "test"], tested
    best = max(tested[:2], key=lambda e: e["accuracy"])
    assert r["best"]["step"] == best["step"] and abs(r["best"]["accuracy"] - best["accuracy"]) < 1e-6, (r, tested)
    assert tool("log", "finished").stdout == done.stdout
    told = [json.loads(line) for line in tool("log", "finished", "--json").stdout.splitlines()]
    assert [t["event"] for t in told][-3:] == ["validation", "note", "test"], told
    table = tool("runs").stdout.splitlines()
    assert re.match(r"RUN +STATE", table[0]) and re.match(r"finished +finished .* 12/12 ", table[1]), table
    ended = follow("finished")
    assert ended.communicate(timeout=TIMEOUT_S)[0] == done.stdout and ended.returncode == 0
    again = tool("stop", "finished")
    assert again.returncode == 1 and "does not run: finished" in again.stderr, again.stderr
    before = everything("finished")
    done = cluster.train(session, "--resume")
    assert done.returncode == 0 and "is finished after step 12, and no file was changed" in done.stdout, done
    assert everything("finished") == before


@suite.test
def the_best_checkpoint_is_kept():
    """However old it is, also by a resumed run; `eval` and `predict` use it by name."""
    tail = TAIL.replace("checkpoint: {", "checkpoint: {best: validation.loss, mode: min, keep: 1, ")
    tail = tail.replace("epochs: 2, batch: 64", "epochs: 6, batch: 64").replace("kind: sgd, lr: 0.1", "kind: sgd, lr: 3")
    # so that the best checkpoint is not the last
    data = DATA.replace("fraction: 0.25", "fraction: 0.25, by: last")
    session = cluster.session("best", data + STAGES + tail)
    whole = cluster.train(session)
    assert whole.returncode == 0, whole
    told = [e for e in lines("best", "evaluations.jsonl") if e["event"] == "validation"]
    assert [(e["step"], e["epoch"]) for e in told] == [(6 * i + 6, i) for i in range(6)], told
    assert re.search(r"validation accuracy .* samples, step 12, epoch 2\)", whole.stdout), whole.stdout
    assert re.search(r"step 3/36 .*  eta \d+s", whole.stdout), whole.stdout
    best = min((e for e in told if e["loss"] is not None), key=lambda e: (e["loss"], e["step"]))["step"]
    kept = sorted(glob.glob(path("best", "checkpoint-*")))
    assert kept == sorted({path("best", f"checkpoint-{s}") for s in (best, 36)}), (kept, best)
    text = open(path("best", "checkpoint.best")).read()
    assert cluster.train(session, "--fresh", "--max-steps", "14").returncode == 0
    assert cluster.train(session, "--resume").returncode == 0
    assert open(path("best", "checkpoint.best")).read() == text and re.search(f" step {best}$", text), text
    done = tool("eval", session, "--checkpoint", "best", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["step"] == best, done
    done = tool("eval", session, "--checkpoint", "latest")
    assert done.returncode == 0 and "samples, step 36)" in done.stdout, done
    assert tool("eval", session, "--checkpoint", "beste").returncode == 2
    done = tool("predict", session, "--set", "data.test=[test-x.npy]", "--output", "p.csv", "--checkpoint", "best")
    assert done.returncode == 0, done
    told = open(os.path.join(cluster.dir, "p.csv")).read().splitlines()
    assert told[0] == "id,class," + ",".join(f"output_{k}" for k in range(10)) and told[1].startswith("0,"), told[:2]
    done = tool("eval", session, "--set", "data.test=[test-x.npy]")
    assert done.returncode == 3 and "eval needs labels" in done.stderr, done


@suite.test
def log_command_repeats_what_the_run_printed():
    session = cluster.session("printed", DATA + STAGES + TAIL)
    done = cluster.train(session, "--json")
    assert done.returncode == 0, done.stderr
    assert tool("log", "printed", "--json").stdout == done.stdout
    assert all(json.loads(line)["time"] for line in done.stdout.splitlines())


@suite.test
def failed_run_is_recorded_with_its_cause():
    with Training("lost", "--set", "checkpoint.every_steps=100000000") as run, follow("lost") as log:
        cluster.workers[0].kill()
        code, _, err = run.end()
        said = log.communicate(timeout=TIMEOUT_S)[0]
    cluster.restart(0)
    assert code == log.returncode == 6, (code, log.returncode)
    assert "there is no checkpoint yet: train --resume starts again at step 1" in err, err
    r = recorded("lost")
    assert r["state"] == "failed" and r["code"] == 6 and "'w1'" in r["text"] and r["text"] in err, r
    assert r["text"] in said and "exit code 6: " + r["text"] in tool("runs").stdout
    assert any(t["event"] == "failed" and t["code"] == 6 for t in lines("lost", "log.jsonl"))


@suite.test
def run_that_never_connected_leaves_no_folder():
    """It leaves no folder, and an earlier run unchanged; a resumed run records the attempt."""
    session = cluster.session("unmet", DATA + STAGES + TAIL)
    nobody = ("--set", f"workers.w1.address=127.0.0.1:{free_port()}")
    for how in ((), ("--resume",), ("--fresh",)):
        done = cluster.train(session, *nobody, *how)
        assert done.returncode == 4 and not os.path.exists(path("unmet")), done
    assert cluster.train(session, "--max-steps", "4").returncode == 0
    before = everything("unmet")
    assert cluster.train(session, "--fresh", *nobody).returncode == 4
    assert {f: inode for f, (_, inode) in everything("unmet").items()} == {f: inode for f, (_, inode) in before.items()}
    assert not os.path.exists(path("unmet.1"))
    done = cluster.train(session, "--resume", *nobody)
    r = recorded("unmet")
    assert done.returncode == r["code"] == 4 and r["state"] == "failed" and r["text"] in done.stderr, r


@suite.test
def killed_fresh_run_leaves_the_earlier_run():
    """Also its seed, which determines the choice and the order of the records."""
    data = DATA.replace("{", "{limit_train: 200, ", 1)
    session = cluster.session("before", data + STAGES + TAIL.replace(f" seed: {SEED},", ""))
    assert cluster.train(session, "--max-steps", "2").returncode == 0
    r = json.load(open(path("before", "run.json")))
    r["attempts"][0]["status"] = "interrupted"  # a finished run would be kept under another name
    json.dump(r, open(path("before", "run.json"), "w"))
    with open(path("before", "run.key")) as f:
        key = f.read()
    os.makedirs(path("undisturbed"))
    shutil.copy(path("before", "run.key"), path("undisturbed"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        run = subprocess.Popen([MASTER, "train", session, "--fresh", "--set",
                                f"workers.w1.address=127.0.0.1:{silent.getsockname()[1]}"], cwd=cluster.dir,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        silent.settimeout(TIMEOUT_S)
        silent.accept()[0].close()  # all files from before the first step exist now
        run.kill()
        run.wait()
    assert open(path("before", "run.key")).read() != key and os.path.exists(path("before", "run.moving"))
    done = cluster.train(session, "--resume", "--max-steps", "4")
    assert done.returncode == 0 and open(path("before", "run.key")).read() == key, done
    done = cluster.train(cluster.session("undisturbed", data + STAGES + TAIL.replace(f" seed: {SEED},", "")), "--resume",
                         "--max-steps", "4")
    assert done.returncode == 0, done
    assert checkpoint_tensors(path("undisturbed"), 4) == checkpoint_tensors(path("before"), 4)


@suite.test
def killed_run_is_shown_as_died_and_resumes():
    with Training("killed", "--set", "checkpoint.every_steps=20") as run, follow("killed") as log:
        assert recorded("killed")["state"] == "running"
        run.process.kill()
        run.end()
        _, err = log.communicate(timeout=TIMEOUT_S)
    assert log.returncode == 1 and "left no word" in err, err
    r = recorded("killed")
    assert r["state"] == "died" and r["ended_ms"] == 0 and r["pid"] == run.process.pid, r
    assert "left no word" in tool("runs").stdout
    gone = tool("stop", "killed")
    assert gone.returncode == 1 and "its process died" in gone.stderr, gone.stderr
    # the kill may have come after the next checkpoint was written and before it was recorded
    last = r["checkpoints"][0] + 22
    done = cluster.train(os.path.join(cluster.dir, "killed.yaml"), *ENDLESS, "--resume", "--max-steps", str(last))
    assert done.returncode == 0, done.stderr
    r = recorded("killed")
    assert r["state"] == "finished" and r["step"] == last, r


@suite.test
def resume_after_repeated_kills_gives_the_same_bits():
    """Also after kills before and during the first checkpoint: it begins again at step 1, with the
    run's own seed, and reaches the bits of an undisturbed run."""
    tail = TAIL.replace("every_steps: 4", "every_steps: 100000000").replace(" seed: 5eed5eed5eed5eed5eed5eed5eed5eed,", "")
    session = cluster.session("early", DATA + STAGES + tail)
    for attempt in range(2):
        with Training("early", "--resume", "--set", "checkpoint.every_steps=100000000", tail=tail) as run:
            run.process.kill()
            run.end()
    os.makedirs(path("early", "checkpoint-9"))  # an unfinished checkpoint
    whole = ("--resume", "--max-steps", "9")
    done = cluster.train(session, *whole)
    assert done.returncode == 0 and "no checkpoint yet: the run begins at step 1" in done.stdout, done
    r = recorded("early")
    assert r["attempts"] == 3 and r["checkpoints"] == [9], r
    assert [x["step"] for x in lines("early", "metrics.jsonl")] == list(range(1, 10))
    os.makedirs(path("calm"))
    shutil.copy(path("early", "run.key"), path("calm"))
    done = cluster.train(cluster.session("calm", DATA + STAGES + tail), *whole)
    assert done.returncode == 0, done
    assert checkpoint_tensors(path("calm"), 9) == checkpoint_tensors(path("early"), 9)
    shutil.rmtree(path("early", "checkpoint-9"))  # the record still has this checkpoint
    for _ in range(2):
        done = cluster.train(session, *whole)
        assert done.returncode == 8 and "no usable checkpoint" in done.stderr and "--fresh" in done.stderr, done


@suite.test
def interrupted_run_is_recorded_with_a_checkpoint():
    with Training("ctrlc") as run:
        run.process.send_signal(signal.SIGINT)
        code, out, _ = run.end()
    r = recorded("ctrlc")
    assert code == r["code"] == 130 and r["state"] == "interrupted" and r["checkpoints"][0] == r["step"], r
    assert "interrupted after step" in out


# ---- stop ----------------------------------------------------------------------------------------

@suite.test
def stop_ends_a_run_after_a_checkpoint():
    with Training("stopped") as run, follow("stopped") as log:
        done = tool("stop", "stopped")
        code, out, err = run.end()
        log.communicate(timeout=TIMEOUT_S)
    r = recorded("stopped")
    assert done.returncode == 0 and code == log.returncode == 130, (done.stderr, code, err)
    assert r["state"] == "stopped" and r["checkpoints"][0] == r["step"] and "stopped after step" in out, (r, out)
    assert f"stopped after step {r['step']}; train --resume goes on from checkpoint {r['step']}" in done.stdout
    session = os.path.join(cluster.dir, "stopped.yaml")
    done = cluster.train(session, *ENDLESS, "--resume", "--set", "workers.w1.address=127.0.0.1:1")
    failed = recorded("stopped")
    assert done.returncode == 4 and failed["step"] == r["step"] and failed["state"] == "failed", (done, failed)
    with open(path("stopped", "log.txt")) as f:
        first = f.read()
    done = cluster.train(session, *ENDLESS, "--resume", "--max-steps", str(r["step"] + 50))
    assert done.returncode == 0, done.stderr
    assert f"resumed from the checkpoint of step {r['step']}: the first step is {r['step'] + 1}\n" in done.stdout, done.stdout
    again = recorded("stopped")
    assert again["state"] == "finished" and again["attempts"] == 3 and again["step"] == r["step"] + 50, again
    with open(path("stopped", "log.txt")) as f:
        assert f.read() == first + done.stdout  # the log has the output of all attempts
    done = cluster.train(session, "--fresh", "--max-steps", "4")
    assert done.returncode == 0 and recorded("stopped")["attempts"] == 1
    assert tool("log", "stopped").stdout == done.stdout
    assert f"the finished run that was here is in {os.path.realpath(path('stopped.1'))}" in done.stdout, done.stdout
    kept = recorded("stopped.1")
    assert kept["state"] == "finished" and kept["step"] == again["step"], kept
    done = tool("egress", "stopped.1")  # its egress record is in the folder of the later run
    assert done.returncode == 1 and "runs/stopped.1 has no record" in done.stderr, done.stderr
    assert tool("egress", "stopped").stdout.count("  train: ") == 4


@suite.test
def stop_now_leaves_no_checkpoint():
    with Training("now") as run:
        before = recorded("now")["checkpoints"]
        done = tool("stop", "now", "--now", "--json")
        code, _, _ = run.end()
    said = json.loads(done.stdout)
    assert done.returncode == 0 and code == -signal.SIGKILL and said["state"] == "stopped", (done, code)
    r = recorded("now")
    assert r["state"] == "stopped" and "at once" in r["text"], r
    assert r["checkpoints"] == before or max(r["checkpoints"]) % 1000 == 0, r


@suite.test
def log_follower_waits_for_the_record_of_a_kill():
    """As `stop --now` does: the kill comes first, its record a moment later."""
    with Training("word") as run, follow("word") as log:
        time.sleep(0.3 * SLOW)
        run.process.kill()
        run.end()
        time.sleep(0.4)
        text = open(path("word", "run.json")).read()
        with open(path("word", "run.json.new"), "w") as f:
            f.write(text.replace('"status": "running", "code": 0', '"status": "stopped", "code": 130'))
        os.rename(f.name, path("word", "run.json"))
        _, err = log.communicate(timeout=TIMEOUT_S)
    assert recorded("word")["state"] == "stopped" and log.returncode == 130 and not err, (log.returncode, err)


@suite.long
def killed_run_reports_its_last_step():
    with Training("far") as run:
        done = tool("stop", "far", "--now", "--json")
        run.end()
    last = lines("far", "metrics.jsonl")[-1]["step"]
    assert json.loads(done.stdout)["step"] == recorded("far")["step"] == last > 0, (done.stdout, last)


@suite.test
def repeated_stop_still_writes_the_checkpoint():
    """After two requests, sent as `stop` does, before the step ends."""
    with Training("twice") as run:
        asked = [subprocess.Popen([MASTER, "stop", "twice"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  cwd=cluster.dir) for _ in range(3)]
        code, _, _ = run.end()
        [p.communicate(timeout=TIMEOUT_S) for p in asked]
    r = recorded("twice")
    assert code == 130 and r["state"] == "stopped" and r["checkpoints"][0] == r["step"], (code, r)


# ---- one at a time -------------------------------------------------------------------------------

@suite.test
def second_trainer_in_a_run_folder_is_refused():
    with Training("both") as run:
        for how in ((), ("--resume",), ("--fresh",)):
            done = cluster.train(os.path.join(cluster.dir, "both.yaml"), *how)
            assert done.returncode == 1 and f"process {run.process.pid} trains in" in done.stderr, done.stderr
            assert "cleave-master stop" in done.stderr and "name=" in done.stderr, done.stderr
        assert recorded("both")["state"] == "running" and recorded("both")["attempts"] == 1
        assert tool("stop", "both").returncode == 0


# ---- wrong arguments, damage ---------------------------------------------------------------------

@suite.test
def wrong_run_names_get_a_suggestion():
    for command in ("log", "stop"):
        done = tool(command, "finishd")
        assert done.returncode == 1 and "did you mean 'finished'" in done.stderr, done.stderr
        assert tool(command).returncode == 2
    assert "give the folder" in tool("runs", "nowhere").stderr
    assert tool("runs", os.path.join(cluster.dir, "runs", "finished")).stdout.count("\n") == 2
    assert "no runs in" in tool("runs", "data").stdout
    assert "finished.yaml cannot be read: Not a directory" in tool("runs", "finished.yaml").stderr
    full = cluster.train(os.path.join(cluster.dir, "finished.yaml"), "--set", "run.dir=finished.yaml")
    assert full.returncode == 1 and "Not a directory" in full.stderr, full
    assert "the folder finished.yaml/finished cannot be made" in full.stderr and "run.dir" in full.stderr, full.stderr
    for command in ("runs", "log", "stop"):
        assert tool(command, "finished.yaml").returncode == 1
    for name in ("data", os.path.join(cluster.dir, "data"), "."):
        for command in ("log", "stop", "log -f"):
            done = tool(*command.split(), name)
            assert done.returncode == 1 and "is not the folder of a run: `cleave-master runs" in done.stderr, done
    for name in ("../finished", "runs/none", ""):
        done = tool("log", name)
        assert done.returncode == 1 and "give the name of a run as in `cleave-master runs`" in done.stderr, done.stderr
    odd = tool("stop", "a\x1b[31mb\x7f\xc2\x9bc")
    assert odd.returncode == 1 and "no run 'a?[31mb?" in odd.stderr and "\x1b" not in odd.stderr, odd.stderr
    ended = tool("log", "-f", "finished")
    assert ended.returncode == 0 and "test accuracy" in ended.stdout, ended
    again = tool("stop", "finished")
    assert again.returncode == 1 and "does not run: finished" in again.stderr, again.stderr
    os.makedirs(path("silent"))
    shutil.copy(path("finished", "run.json"), path("silent", "run.json"))
    mute = tool("log", "silent")
    assert mute.returncode == 1 and "log.txt does not exist: this run has printed nothing yet" in mute.stderr, mute
    shutil.rmtree(path("silent"))
    elsewhere = master("log", "finished", cwd="/")
    assert elsewhere.returncode == 1 and "the working folder has no folder runs" in elsewhere.stderr, elsewhere.stderr


@suite.test
def damaged_run_folders_are_reported_safely():
    whole = open(path("finished", "run.json")).read()
    cases = {"cut": whole[:200], "empty": "", "deep": "[" * 100000, "esc": whole.replace('"host": "', '"host": "\\u001b[2J'),
             "binary": "\0\xff" * 500, "large": whole + " " * (2 << 20)}
    for name, text in cases.items():
        os.makedirs(path("bad-" + name))
        with open(path("bad-" + name, "run.json"), "w") as f:
            f.write(text)
    os.makedirs(path("bad-fifo"))
    os.mkfifo(path("bad-fifo", "run.json"))
    os.mkfifo(path("bad-fifo", "log.txt"))
    os.makedirs(path("bad-two\nlines"))
    shutil.copy(path("finished", "run.json"), path("bad-two\nlines", "run.json"))
    os.makedirs(path("bad-\x1b[31mred"))
    for file in ("log.txt", "metrics.jsonl"):
        with open(path("bad-\x1b[31mred", file), "wb") as f:
            f.write(b"a\x1b[31mb\0c\xc2\x9bd\n")
    done = tool("runs")
    assert done.returncode == 0 and "\x1b" not in done.stdout, done
    for name in [*cases, "fifo"]:
        assert re.search(rf"^bad-{name} +damaged", done.stdout, re.M), (name, done.stdout)
        assert recorded("bad-" + name)["why"], name
        followed = follow("bad-" + name)
        followed.communicate(timeout=TIMEOUT_S)
        assert followed.returncode == 1, name
        assert tool("stop", "bad-" + name).returncode == 1
    assert re.search(r"^bad-two\?lines +finished", done.stdout, re.M), done.stdout
    assert recorded("bad- [31mred")["state"] == "no record"
    shown = tool("log", "bad-\x1b[31mred").stdout
    assert shown == "a?[31mb?c?d\n", shown


@contextlib.contextmanager
def disk(name, size):
    """Mounts a file system of that size; None if this process may not mount."""
    folder = os.path.join(cluster.dir, name)
    os.mkdir(folder)
    mounted = run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            run("umount", folder)


@suite.test
def full_disk_error_names_the_file():
    """Each command names the file that did not fit, and existing runs can still be shown."""
    with disk("tiny", "64k") as tiny:
        if not tiny:
            return "no tmpfs here"
        done = cluster.train(os.path.join(cluster.dir, "finished.yaml"), "--set", "run.dir=tiny")
        assert done.returncode == 1 and re.search(r"tiny/finished/\S+: write: No space left on device", done.stderr), done
        shown = tool("runs", "tiny")
        assert shown.returncode == 0 and re.search(r"^finished +(died|failed|no record)", shown.stdout, re.M), shown
        assert tool("stop", "tiny/finished").returncode == 1
        again = cluster.train(os.path.join(cluster.dir, "finished.yaml"), "--resume", "--set", "run.dir=tiny")
        assert again.returncode in (1, 8) and "No space left on device" in again.stderr, again


# ---- TensorBoard ---------------------------------------------------------------------------------

def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def agree(name, folder):
    read = tfevents.read(folder)
    about = read.pop("session")
    want = tfevents.expected(path(name))
    assert set(read) == set(want), set(read) ^ set(want)
    for tag, steps in want.items():
        assert set(read[tag]) == set(steps), (tag, read[tag], steps)
        for step, value in steps.items():
            assert abs(read[tag][step] - value) <= 1e-6 * max(1, abs(value)), (tag, step, read[tag][step], value)
    assert all(read["train/loss"][s] == f32(v) for s, v in want["train/loss"].items())
    return read, about


@suite.test
def event_files_show_what_the_run_did():
    read, about = agree("finished", path("finished", "tensorboard"))
    assert sorted(read["train/loss"]) == list(range(1, 13)) and sorted(read["test/loss"]) == [12]
    assert all(v > 64 * 16 * 4 for v in read["pace/bytes_up"].values()), read["pace/bytes_up"]
    text = about[0]
    assert "lr: 0.1" in text and "batch: 64" in text and "at: w1" in text, text
    for secret in (cluster.dir, "certs", "master.key", "127.0.0.1", "spiffe", ".npy"):
        assert secret not in text, (secret, text)


@suite.test
def resumed_run_writes_its_own_event_file():
    session = cluster.session("board", DATA + STAGES + TAIL)
    places = ("--set", f"log.tensorboard={cluster.dir}/boards")
    assert cluster.train(session, *places, "--max-steps", "7").returncode == 0
    os.rename(path("board", "checkpoint-7"), path("board", "gone"))  # back to 4, as after a crash
    assert cluster.train(session, *places, "--resume").returncode == 0
    folder = os.path.join(cluster.dir, "boards", "board")
    files = sorted(glob.glob(os.path.join(folder, "*")))
    assert len(files) == 2
    second = list(tfevents.events(files[1]))
    assert second[0] == (5, True, []) and second[1][0] == 4, second[:2]
    read, about = agree("board", folder)
    assert sorted(read["train/loss"]) == list(range(1, 13)) and sorted(about) == [0, 4]
    assert cluster.train(session, *places, "--fresh", "--max-steps", "2").returncode == 0
    read, about = agree("board", folder)
    assert sorted(read["train/loss"]) == [1, 2] and sorted(about) == [0]


@suite.test
def full_disk_for_event_files_is_a_warning():
    """Event files on a file system of two pages: the run succeeds, and warns once."""
    with disk("small", "8k") as small:
        if not small:
            return "no tmpfs here"
        done = cluster.train(cluster.session("full", DATA + STAGES + TAIL), "--set", f"log.tensorboard={small}",
                             "--set", "train.epochs=20", "--set", "checkpoint.every_steps=1000")
        assert done.returncode == 0 and done.stderr.count("No space left on device") == 1, (done.returncode, done.stderr)
        kept = tfevents.read(os.path.join(small, "full"))["train/loss"]
        assert 1 < len(kept) < 120 and sorted(kept) == list(range(1, len(kept) + 1)), sorted(kept)


@suite.test
def event_files_are_off_by_default():
    session = cluster.session("plain", DATA + STAGES + TAIL)
    assert cluster.train(session, "--set", "log.tensorboard=false").returncode == 0
    assert not os.path.exists(path("plain", "tensorboard"))
    done = cluster.train(session, "--fresh", "--set", f"log.tensorboard={path('plain', 'log.txt')}")
    assert done.returncode != 0 and "log.txt" in done.stderr, done


with Cluster(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
