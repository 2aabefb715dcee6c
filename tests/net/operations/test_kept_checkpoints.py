#!/usr/bin/python3
"""Checkpoints whose files stay at the workers: which files the master fetches, what a lost worker
or disk leaves, which files are removed, and which are fetched at the end of a run."""
import functools, hashlib, os, re, shutil, signal, subprocess, sys, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS, URI = 80, "spiffe://test/master"
# Runs are long by the clock without using a core, so that a test can act before their end.
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}, {op: dropout, p: 0.3}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 480}, {op: relu}, {op: wait, forward_ms: 10}]}\n"
        "  - {name: c, at: w2, layers: [{op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 20}\ntransfer: direct\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 16, seed: {SEED}, optimizer: {{kind: adam, lr: 0.003}}}}\n"
        "checkpoint: {every_steps: 10, keep: 2, home: HOME}\nrecovery: {wait: 200ms, give_up_after: 60s}\n")
# Allows the op `wait`.
OPS = {"CLEAVE_TEST_OPS": "1"}
os.environ.update(OPS)


class Keeping(Cluster):
    """Workers that keep files; quota: bytes for the master, by worker."""
    quota = ["16MiB", "16MiB"]

    def worker_config(self, i, extra=""):
        path = super().worker_config(i, extra)
        os.makedirs(self.kept(i), exist_ok=True)
        with open(path) as f:
            text = f.read().replace(f'"{URI}", role: master}}', f'"{URI}", role: master, state_bytes: {self.quota[i]}}}')
        with open(path, "w") as f:
            f.write(text + f"state_dir: {self.kept(i)}\n")
        return path

    def kept(self, i):
        return os.path.join(self.dir, f"kept{i}")

    def files(self, i, run):
        """Names of the files of a run that worker i keeps, without the session's id."""
        folder = os.path.join(self.kept(i), "states", hashlib.sha256(URI.encode()).hexdigest())
        names = os.listdir(folder) if os.path.exists(folder) else []
        mine = run.record()["session_id"] + "."
        return sorted(n.removeprefix(mine).removesuffix(".safetensors") for n in names if n.startswith(mine))


class Run:
    def __init__(self, name, home="end", *args, body=BODY):
        self.name, self.dir = name, os.path.join(cluster.dir, "runs", name)
        self.session = cluster.session(name, body.replace("HOME", home))
        self.process = subprocess.Popen([MASTER, "train", self.session, *args], cwd=cluster.dir, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def at(self, step):
        """Waits until the run has written the checkpoint of that step or of a later one, which may
        have replaced it."""
        def is_there():
            steps = self.steps() if os.path.exists(self.dir) else []
            return any(os.path.exists(os.path.join(self.dir, f"checkpoint-{s}", "MANIFEST.json")) for s in steps if s >= step)
        until(lambda: is_there() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.process.communicate()
        return self

    def ends(self, code=0):
        self.out, self.err = self.process.communicate(timeout=120 * SLOW)
        assert self.process.returncode == code, (self.process.returncode, self.out, self.err)
        return self

    def manifest(self, step):
        with open(os.path.join(self.dir, f"checkpoint-{step}", "MANIFEST.json")) as f:
            return json.load(f)["files"]

    def places(self, step):
        """{file: (worker, kept name)} of the files that are not at the master."""
        return {name: (row["place"], row["kept"]) for name, row in self.manifest(step).items() if "place" in row}

    def record(self):
        with open(os.path.join(self.dir, "run.json")) as f:
            return json.load(f)

    def lines(self, name):
        with open(os.path.join(self.dir, name)) as f:
            return [json.loads(line) for line in f]

    def steps(self):
        return sorted(int(n.split("-")[1]) for n in os.listdir(self.dir) if n.startswith("checkpoint-"))

    def result(self):
        kept = [checkpoint_tensors(self.dir, STEPS, prefix) for prefix in ("model-", "optimizer-")]
        return kept, [(m["step"], m["loss"]) for m in self.lines("metrics.jsonl")]


def killed(i):
    cluster.workers[i].kill()
    cluster.workers[i].process.wait()


@functools.cache
def undisturbed():
    """The run whose checkpoint files are all fetched by the master."""
    run = Run("alone", "always").ends()
    assert not run.places(STEPS) and not any(cluster.files(i, run) for i in (0, 1))
    return run


def same_state(run, whole=None):
    """Checks that the files at the workers have the tensors of the undisturbed run `whole`, and
    that losses are equal."""
    whole = whole or undisturbed()
    for name, (place, kept) in run.places(STEPS).items():
        i = int(place[-1]) - 1
        path = os.path.join(cluster.kept(i), "states", hashlib.sha256(URI.encode()).hexdigest(), kept + ".safetensors")
        assert safetensors(path) == safetensors(os.path.join(whole.dir, f"checkpoint-{STEPS}", name)), name
    assert run.lines("metrics.jsonl") and [m["loss"] for m in run.lines("metrics.jsonl")] == \
        [m["loss"] for m in whole.lines("metrics.jsonl")]


@functools.cache
def kept_at_workers():
    """A run whose files all stay at the workers. While it runs, they have those of checkpoint.keep
    checkpoints, of one that is written and of one that is removed."""
    run = Run("stay", "never").at(50)
    steps = {name.split(".")[0] for name in cluster.files(0, run)}
    assert len(steps) <= 4, steps
    return run.ends()


@suite.test
def files_stay_at_workers_and_are_pruned_there():
    run = kept_at_workers()
    names = [f"{step}.{{}}.{kind}" for step in (70, 80) for kind in "ow"]
    assert run.steps() == [70, 80], run.steps()
    assert [cluster.files(i, run) for i in (0, 1)] == [[n.format(i + 1) for n in names] for i in (0, 1)]
    assert sorted(run.places(80)) == [f"{k}-0000{i}-of-00003.safetensors" for k in ("model", "optimizer") for i in (2, 3)]
    same_state(run)


def kept_folder(i):
    return os.path.join(cluster.kept(i), "states", hashlib.sha256(URI.encode()).hexdigest())


def leave(name, i=0):
    """Puts a file among those that worker i keeps."""
    with open(path := os.path.join(kept_folder(i), name + ".safetensors"), "w") as f:
        f.write("left")
    return path


@suite.test
def eval_and_predict_use_what_workers_keep():
    found = []
    for run in (kept_at_workers(), undisturbed()):
        done, out = run_tool("eval", run.session, "--json"), os.path.join(cluster.dir, run.name + ".npy")
        assert done.returncode == 0, done
        predicted = run_tool("predict", run.session, "--output", out)
        assert predicted.returncode == 0, predicted
        with open(out, "rb") as f:
            found.append((json.loads(done.stdout)["loss"], f.read(), len(run.places(STEPS))))
    assert found[0][:2] == found[1][:2] and [n for *_, n in found] == [4, 0], [(loss, n) for loss, _, n in found]


def needed_bytes(session, *args):
    """{worker: bytes of the quota of state that `plan` says it needs}"""
    done = run_tool("plan", session, "--json", *args)
    assert done.returncode == 0, done
    return {o["worker"]: o["state_bytes"] for o in json.loads(done.stdout)["checkpoints_at_workers"]}


@suite.test
def quota_below_what_checkpoints_need_is_found_before_the_run():
    session = cluster.session("small", BODY.replace("HOME", "never"))
    need = needed_bytes(session)
    run = kept_at_workers()
    kept = sum(os.path.getsize(os.path.join(kept_folder(0), n)) for n in os.listdir(kept_folder(0)) if run.record()["session_id"] in n)
    assert kept * 3 // 2 <= need["w1"] < kept * 3 // 2 + 9000, (kept, need)
    check = run_tool("check", session)
    assert "checkpoints of 'b' stay at worker 'w1'" in check.stdout and "for 3 of them (checkpoint.keep + 1)" in check.stdout, check
    assert {o["worker"] for o in json.loads(run_tool("check", session, "--json").stdout)["checkpoints_at_workers"]} == {"w1", "w2"}
    assert needed_bytes(session, "--set", "checkpoint.home=always") == {}
    good = run_tool("doctor", session)
    assert good.returncode == 0 and good.stdout.count("grants 16.0 MiB for files of state") == 2, good
    cluster.quota[0] = str(need["w1"] - 1)
    cluster.restart(0)
    bad = run_tool("doctor", session)
    home = run_tool("doctor", session, "--set", "checkpoint.home=always")
    cluster.quota[0] = "16MiB"
    cluster.restart(0)
    assert bad.returncode == 1 and f"raise allow[].state_bytes in worker.yaml to {need['w1']}, lower checkpoint.keep" in bad.stdout, bad
    assert home.returncode == 0, home


@suite.test
def killed_workers_load_what_they_kept():
    """And a recovery removes files that no checkpoint lists."""
    run = Run("killed", "never").at(20)
    killed(0)
    left = leave(run.record()["session_id"] + ".77.1.w")
    cluster.restart(0)
    run.at(40)
    assert not os.path.exists(left)
    killed(0)
    killed(1)
    cluster.restart(0)
    cluster.restart(1)
    run.ends()
    assert [e["event"] for e in run.lines("log.jsonl") if e["event"] in ("lost", "recovered")].count("recovered") >= 2
    same_state(run)
    state = [e for e in run.lines("egress.jsonl") if e["event"] == "allow" and e["kind"] in ("weights", "state")]
    assert not state, state


@suite.test
def newest_checkpoint_is_gathered_at_the_end():
    run = Run("ended").ends()
    assert not run.places(STEPS) and len(run.places(70)) == 4, (run.places(STEPS), run.places(70))
    assert run.result() == undisturbed().result()
    assert f"checkpoint-{STEPS}: " in run.out and "fetched from the workers" in run.out, run.out
    assert "checkpoint-70: files stay at the workers" in run.out, run.out
    assert [cluster.files(i, run) for i in (0, 1)] == [[f"70.{i + 1}.{k}" for k in "ow"] for i in (0, 1)]


@suite.test
def interrupted_run_is_gathered_and_goes_on():
    run = Run("interrupted").at(20)
    run.process.send_signal(signal.SIGINT)
    run.ends(130)
    step = run.steps()[-1]
    assert not run.places(step) and "fetched from the workers" in run.out, run.out
    again = Run("interrupted", "end", "--resume").ends()
    assert again.result() == undisturbed().result()


@suite.test
def what_killed_attempts_left_is_removed():
    """At the start of the attempt that resumes the run, and at its end. Files of others stay."""
    endless = "--set", "train.max_steps=100000"
    run = Run("left", "never", *endless).at(20)
    run.process.kill()
    run.process.communicate()
    mine = run.record()["session_id"]
    early, orphan, other = leave(f"{mine}.77.1.w"), leave("5" * 32 + ".3.1.w"), leave("6" * 32 + ".3.1.w")
    with open(os.path.join(run.dir, "kept.orphans"), "w") as f:
        f.write("5" * 32 + ".3.1.w 4 spiffe://test/w1\n")
    again = Run("left", "never", "--resume", *endless)
    until(lambda: not os.path.exists(early) and not os.path.exists(orphan), 30)
    assert again.process.poll() is None and os.path.exists(other)
    late = leave(f"{mine}.78.2.o", 1)
    again.process.send_signal(signal.SIGINT)
    again.ends(130)
    assert not os.path.exists(late) and os.path.exists(other) and not os.path.exists(os.path.join(run.dir, "kept.orphans"))
    assert [len(cluster.files(i, again)) for i in (0, 1)] == [4, 4], [cluster.files(i, again) for i in (0, 1)]
    os.remove(other)


@suite.long
def worker_that_cannot_be_reached_is_named_with_its_files():
    run = Run("away", "end", "--set", "recovery=off").at(10)
    killed(1)
    run.ends(6)
    cluster.restart(1)
    step = run.steps()[-1]
    stays = [line for line in run.err.splitlines() if "stays at worker 'w2'" in line]
    assert len(stays) == 2 and f"{step}.2.w" in run.err and "checkpoint gather" in stays[0], run.err
    assert {place for place, _ in run.places(step).values()} == {"spiffe://test/w2"}, run.places(step)


@suite.test
def run_that_goes_back_leaves_no_later_file_at_workers():
    Run("back", "never", "--set", "train.max_steps=30").ends()
    run = Run("back", "never", "--resume", "--checkpoint", "20", "--set", "train.max_steps=25").ends()
    assert "the run goes back to the checkpoint of step 20; removed: step 30" in run.err, run.err
    assert run.steps() == [20, 25], run.steps()
    names = [f"{step}.{{}}.{kind}" for step in (20, 25) for kind in "ow"]
    assert [cluster.files(i, run) for i in (0, 1)] == [[n.format(i + 1) for n in names] for i in (0, 1)]
    assert not os.path.exists(os.path.join(run.dir, "kept.orphans"))


@suite.test
def lost_file_falls_back_to_an_older_checkpoint():
    run = Run("older", "never").at(30)
    killed(1)
    until(lambda: [e for e in run.lines("log.jsonl") if e["event"] == "lost"], 30)
    newest = max(step for step in run.steps() if os.path.exists(os.path.join(run.dir, f"checkpoint-{step}", "MANIFEST.json")))
    for name in os.listdir(kept_folder(1)):
        if name.startswith(run.record()["session_id"]) and f".{newest}.2.w" in name:
            os.remove(os.path.join(kept_folder(1), name))
    cluster.restart(1)
    run.ends()
    assert f"checkpoint-{newest} refused: stage 'c' of step {newest} is lost" in run.err and "'w2'" in run.err, run.err
    same_state(run)


@suite.test
def empty_disk_ends_the_run_by_name():
    run = Run("empty", "never").at(20)
    killed(1)
    shutil.rmtree(kept_folder(1))
    cluster.restart(1)
    done = run.process.communicate(timeout=60 * SLOW)
    assert run.process.returncode not in (0, None), done
    assert re.search(r"stage 'c' of step \d+ is lost: its file '\S+' was kept by worker 'w2' alone", done[1]), done
    assert "no older checkpoint can be used" in done[1], done


@suite.test
def full_quota_keeps_the_earlier_checkpoint_and_fetches_later_ones():
    cluster.quota[0] = "700KiB"  # a checkpoint has 198 KiB there, and three are needed
    cluster.restart(0)
    run = Run("quota", "never", "--set", "checkpoint.keep=5").ends()
    cluster.quota[0] = "16MiB"
    cluster.restart(0)
    told = [line for line in run.err.splitlines() if "cannot keep the files of stage 'b'" in line]
    assert len(told) == 1 and "allow[].state_bytes" in told[0] and "fetches them from now on" in told[0], run.err
    assert {place for place, _ in run.places(STEPS).values()} == {"spiffe://test/w2"}, run.places(STEPS)
    same_state(run)


@suite.test
def adapters_of_an_artifact_resume_from_what_workers_keep():
    plain = BODY.replace("{op: linear, out: 480}", "{op: linear, out: 24, name: query}")
    source = Run("source", "always", "--set", "train.max_steps=10", body=plain).ends()
    file = os.path.join(source.dir, "checkpoint-10", "model-00002-of-00003.safetensors")
    with open(file, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    cluster.limits += f"artifacts:\n  base: {{file: {file}, sha256: {digest}}}\n"
    cluster.restart(0)
    more = f"lora: {{targets: [query], r: 2, alpha: 4, dropout: 0.1}}, weights: {{artifact: base, sha256: {digest}}}}}\n  - {{name: c"
    adapted = plain.replace("}\n  - {name: c", ", " + more)
    whole = Run("adapted", "always", body=adapted).ends()
    Run("adapted-halves", "never", "--max-steps", "25", body=adapted).ends()
    halves = Run("adapted-halves", "never", "--resume", body=adapted).ends()
    assert len(halves.places(STEPS)) == 4 and halves.manifest(STEPS)["model-00002-of-00003.safetensors"]["bytes"] < 2048
    assert "resumed from the checkpoint of step 25" in halves.out, halves.out
    same_state(halves, whole)


@suite.test
def checkpoints_bring_no_weights_home():
    """Measures the bytes from the workers beyond those of the steps, for each checkpoint and
    stage."""
    port = free_port()
    run = Run("bytes", "never", "--set", f"metrics.listen=127.0.0.1:{port}", "--set", "checkpoint.every_steps=10",
              "--set", "train.max_steps=100000").at(50)
    steps = run.lines("pace.jsonl")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        down = [float(line.split()[1]) for line in page.read().decode().splitlines()
                if line.startswith("cleave_master_link_bytes_total") and 'direction="in"' in line]
    run.process.send_signal(signal.SIGINT)
    run.ends(130)
    assert len(down) == 2, down
    each = (sum(down) - sum(s["bytes_down"] for s in steps)) / (2 * len(steps) // 10)
    assert each < 65536, each


@suite.test
def master_that_lost_its_run_while_workers_wrote_commits_nothing():
    """The master had requested the files before another process began an attempt."""
    cluster.env = {**preloaded(os.path.join(BIN, "disks", "disk.so")), "CLEAVE_TEST_DISK": f"fsync:.{STEPS}.2.w:1:1:STUCK"}
    cluster.restart(1)
    run = Run("zombie", "never")
    folder, path = os.path.join(run.dir, f"checkpoint-{STEPS}"), os.path.join(run.dir, "run.json")
    until(lambda: os.path.exists(os.path.join(folder, "trainer_state.json")) or run.process.poll() is not None, 60)
    with open(path) as f:
        text = f.read()
    with open(path + ".new", "w") as f:
        f.write(re.sub(r'"epoch": (\d+)', lambda m: f'"epoch": {int(m[1]) + 1}', text, count=1))
    os.rename(path + ".new", path)
    run.ends(1)
    cluster.env = None
    cluster.restart(1)
    assert "files of checkpoints stay at the workers: " in run.err, run.err
    assert "another process trains there" in run.err and not os.path.exists(os.path.join(folder, "MANIFEST.json")), run.err
    assert run.steps()[0] in (60, 70), run.steps()


@suite.test
def time_between_checkpoints():
    run = Run("timed", "never", "--set", "checkpoint.every=1s", "--set", "checkpoint.every_steps=none", "--set", "train.max_steps=100000",
              "--set", "checkpoint.keep=100")
    until(lambda: os.path.exists(run.dir) and len(run.steps()) >= 3, 60)
    run.process.kill()
    run.process.communicate()
    both = run_tool("plan", run.session, "--set", "checkpoint.every=auto")
    assert both.returncode == 3 and "exclude each other" in both.stderr, both


def run_tool(*args):
    return master(*args, cwd=cluster.dir, env=OPS)


with Keeping(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=16, side=8)
    suite.main()
