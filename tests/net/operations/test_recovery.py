"""Recovery: a run that loses a worker or its master continues by itself. It ends with the weights
and losses of an undisturbed run, its record has the attempts, and a loss from which it cannot
recover ends it with the reason."""
import os, re, signal, subprocess, sys, time, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
STEPS = 120
# Allows the op `wait`, which makes runs long by the clock without using a core, so that a test can
# act before their end.
os.environ["CLEAVE_TEST_OPS"] = "1"
BODY = (IMAGE_DATA + "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 32}, {op: relu}, {op: dropout, p: 0.3}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 16}, {op: relu}, {op: wait, forward_ms: 10}]}\n"
        "  - {name: c, at: w2, layers: [{op: dropout, p: 0.2}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 10}\ntransfer: direct\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 16, seed: {SEED}, ema: 0.9, optimizer: {{kind: adam, lr: 0.003}}}}\n"
        "checkpoint: {every_steps: 15}\nrecovery: {wait: 200ms, give_up_after: 60s}\n")


class Run:
    """A `train` in its own process. written: the path of a session file, to use instead of the
    body."""

    def __init__(self, name, *args, written=None, body=BODY, **options):
        self.name, self.dir = name, os.path.join(cluster.dir, "runs", name)
        self.session = written or cluster.session(name, body)
        self.process = subprocess.Popen([*cluster.near, MASTER, "train", self.session, *args], cwd=cluster.dir, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options)

    def at(self, step):
        """Waits until the run has written the checkpoint of this step."""
        kept = os.path.join(self.dir, f"checkpoint-{step}", "MANIFEST.json")
        until(lambda: os.path.exists(kept) or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.process.communicate()
        return self

    def ends(self, code=0):
        self.out, self.err = self.process.communicate(timeout=120 * SLOW)
        assert self.process.returncode == code, (self.process.returncode, self.out, self.err)
        return self

    def result(self):
        """Weights and moments of the last checkpoint, and the losses of all steps."""
        kept = [checkpoint_tensors(self.dir, STEPS, prefix) for prefix in ("model-", "optimizer-")]
        return kept, [(m["step"], m["loss"]) for m in self.lines("metrics.jsonl")]

    def lines(self, name):
        with open(os.path.join(self.dir, name)) as f:
            return [json.loads(line) for line in f]

    def events(self, *names):
        return [e for e in self.lines("log.jsonl") if e["event"] in names]

    def record(self):
        with open(os.path.join(self.dir, "run.json")) as f:
            return json.load(f)

    def attempts(self):
        return self.record()["attempts"]


def killed(i):
    cluster.workers[i].kill()
    cluster.workers[i].process.wait()


def undisturbed():
    if not hasattr(undisturbed, "result"):
        undisturbed.result = Run("alone").ends().result()
    return undisturbed.result


@suite.test
def killed_workers_that_restart_change_no_bit():
    """One is killed before the first checkpoint, one after it, and both at once."""
    undisturbed()
    run = Run("killed", "--set", "checkpoint.every_steps=30")
    until(lambda: os.path.exists(os.path.join(run.dir, "metrics.jsonl")), 30)
    for step, those in ((0, [0]), (30, [1]), (90, [0, 1])):
        if step:
            run.at(step)
        for i in those:
            killed(i)
        for i in those:
            cluster.restart(i)
    assert run.ends().result() == undisturbed()
    lost, back = run.events("lost"), run.events("recovered")
    assert len(lost) == len(back) >= 3, (lost, back)
    assert lost[0]["checkpoint"] == 0 and "'w1'" in lost[0]["message"] and "its beginning" in lost[0]["message"], lost
    assert lost[1]["checkpoint"] == 30 and "'w2'" in lost[1]["message"], lost
    assert all(e["step"] == l["checkpoint"] and e["replayed"] == max(0, l["step"] - e["step"]) for l, e in zip(lost, back)), (lost, back)
    attempts = run.attempts()
    # a worker that still has the session only accepts a higher epoch
    assert run.record()["epoch"] >= len(attempts), run.record()
    assert [a["status"] for a in attempts] == ["recovered"] * len(lost) + ["finished"], attempts
    assert attempts[0]["code"] == 6 and attempts[0]["text"] in lost[0]["message"] and not attempts[-1]["text"], attempts
    begun = [e for e in run.lines("egress.jsonl") if e["event"] == "attempt"]
    assert len(begun) == len(attempts) and len({e["table_sha256"] for e in begun}) == 1, begun


@suite.test
def stopped_worker_that_comes_back_changes_no_bit():
    """A worker that was silent for longer than limits.lease has an old session, which the new one
    ends."""
    slow = ("--set", "limits.peer_timeout=2s", "--set", "limits.step_timeout=30s", "--set", "limits.connect_timeout=1s",
            "--set", "limits.lease=2s")
    run = Run("silent", *slow).at(15)
    process = cluster.workers[1].process
    process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: run.events("lost"), 30)
        until(lambda: run.events("waiting"), 30)
        listed = run_tool("runs").stdout
        assert "recovering: " in listed and "running" in listed, listed
    finally:
        process.send_signal(signal.SIGCONT)
    assert run.ends().result() == undisturbed()
    assert len(run.events("recovered")) == 1


def run_tool(*args):
    return run(MASTER, *args, cwd=cluster.dir, env={"CLEAVE_TEST_OPS": "1"})


@suite.test
def killed_master_and_worker_go_on_by_the_same_command():
    """`train --resume` begins a run that does not exist, and waits for a worker that has not
    started yet."""
    first = Run("both", "--resume").at(30)
    first.process.kill()
    first.process.communicate()
    killed(0)
    again = Run("both", "--resume")
    until(lambda: again.events("waiting"), 30)
    cluster.restart(0)
    assert again.ends().result() == undisturbed()
    assert [a["status"] for a in again.attempts()] == ["running", "finished"], again.attempts()


@suite.test
def worker_that_stays_away_ends_the_run():
    run = Run("away", "--set", "recovery.give_up_after=1s").at(15)
    killed(0)
    run.ends(6)
    cluster.restart(0)
    assert "given up after 1 s (recovery.give_up_after)" in run.err and "train --resume goes on from it" in run.err, run.err
    assert run.attempts()[-1]["status"] == "failed" and run.attempts()[-1]["code"] == 6, run.attempts()
    assert not LONG or Run("away", "--resume").ends().result() == undisturbed()


@suite.test
def losses_without_a_newer_checkpoint_end_the_run():
    run = Run("again", "--set", "recovery.attempts=1", "--set", "checkpoint.every_steps=1000000")
    until(lambda: os.path.exists(os.path.join(run.dir, "metrics.jsonl")), 30)
    killed(0)
    cluster.restart(0)
    until(lambda: run.events("recovered"), 30)
    killed(0)
    run.ends(6)
    cluster.restart(0)
    assert "1 losses in a row without a newer checkpoint, which is recovery.attempts" in run.err, run.err


@suite.test
def interrupt_ends_the_wait_for_a_worker():
    run = Run("impatient").at(15)
    killed(1)
    until(lambda: run.events("waiting"), 30)
    begin = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    run.ends(130)
    cluster.restart(1)
    assert time.monotonic() - begin < 3 * SLOW and "--resume goes on from runs/impatient" in run.out, run.out
    assert run.attempts()[-1]["status"] == "interrupted", run.attempts()
    assert not LONG or Run("impatient", "--resume").ends().result() == undisturbed()


@suite.test
def master_whose_run_was_taken_over_writes_nothing_more():
    """Two hosts that share a folder may both have its lock: the one with the lower epoch ends at
    its next checkpoint. Two that begin at once have the same epoch; then the process id in the
    record decides."""
    for name, key in (("stolen", "epoch"), ("twin", "pid")):
        run = Run(name, "--set", "train.max_steps=100000").at(15)
        path, mine = os.path.join(run.dir, "run.json"), re.compile(rf'"{key}": (\d+)')
        with open(path) as f:
            stolen = int(mine.search(f.read())[1]) + 1
        # it may have been writing its record, and writes it once more
        while run.process.poll() is None:
            with open(path) as f:
                text = f.read()
            if int(mine.search(text)[1]) != stolen:
                with open(path + ".new", "w") as f:
                    f.write(mine.sub(f'"{key}": {stolen}', text, count=1))
                os.rename(path + ".new", path)
            time.sleep(0.05)
        run.ends(1)
        with open(path) as f:
            assert int(mine.search(f.read())[1]) == stolen, run.record()
        assert "another process trains there" in run.err, run.err


@suite.test
def run_that_was_killed_behind_its_last_checkpoint_is_pruned():
    undisturbed()
    run = Run("behind", "--set", "checkpoint.keep=1").ends()
    left, path = os.path.join(run.dir, "checkpoint-105"), os.path.join(run.dir, "run.json")
    os.mkdir(left)
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace('"finished"', '"running"', 1))
    assert Run("behind", "--resume").ends().result() == undisturbed()
    assert not os.path.exists(left), os.listdir(run.dir)


@suite.test
def spare_takes_the_place_of_a_worker_that_stays_away():
    """The spare gets the weights that the egress table has listed for it from the start; later the
    worker itself gets them again."""
    three = cluster.session("spared", BODY.replace("recovery: {", "recovery: {replace_after: 300ms, "))
    with open(three) as f:
        text = f.read()
    with open(three, "w") as f:
        f.write(re.sub(r"(w2: \{.*)\}\n", r"\1, spares: [w3]}\n", text, count=1))
    plan = run_tool("plan", three)
    assert "to spare w3 (spiffe://test/w3)" in plan.stdout, plan.stdout + plan.stderr
    run = Run("spared", written=three).at(15)
    killed(1)
    until(lambda: run.events("recovered"), 30)
    assert [(e["worker"], e["spare"]) for e in run.events("replaced")] == [("w2", "w3")], run.events("replaced")
    killed(2)
    cluster.restart(1)
    assert run.ends().result() == undisturbed()
    assert run.events("replaced")[-1]["spare"] == "w2", run.events("replaced")
    rows = [(e["kind"], e["to"]) for e in run.lines("egress.jsonl") if e["event"] == "allow"]
    assert {to for kind, to in rows if kind == "weights"} == {"w1", "w2", "w3"}, rows
    assert len({e["table_sha256"] for e in run.lines("egress.jsonl") if e["event"] == "attempt"}) == 1
    cluster.restart(2)
    for spares, why in (("[w4]", "'w4' is not in `workers`"), ("[w1]", "'w1' has a stage of its own"), ("[w3, w3]", "is there twice")):
        wrong = run_tool("plan", three, "--set", f"workers.w2.spares={spares}")
        assert wrong.returncode == 3 and why in wrong.stderr, wrong


@suite.test
def recovery_is_in_metrics_and_plan():
    port = free_port()
    run = Run("measured", "--set", f"metrics.listen=127.0.0.1:{port}", "--set", "train.max_steps=100000").at(15)

    def metric(name):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
            return next(float(line.split()[1]) for line in page.read().decode().splitlines() if line.startswith(name + " "))
    assert metric("cleave_master_recovering") == metric("cleave_master_recoveries_total") == 0
    killed(0)
    until(lambda: metric("cleave_master_recovering") == 1)
    until(lambda: "'w1'" in run.attempts()[-1]["text"])  # what a run is recovering from
    cluster.restart(0)
    until(lambda: metric("cleave_master_recoveries_total") == 1)
    until(lambda: not run.attempts()[-1]["text"])
    assert metric("cleave_master_recovering") == 0 and metric("cleave_master_recovery_seconds") > 0
    run.process.kill()
    run.process.communicate()
    plan = run_tool("plan", run.session)
    assert "a lost worker: the run connects again for up to 60 s" in plan.stdout, plan
    assert json.loads(run_tool("plan", run.session, "--json").stdout)["recovery"]["give_up_after_s"] == 60
    off = run_tool("plan", run.session, "--json", "--set", "recovery=off")
    assert off.returncode == 0 and json.loads(off.stdout)["recovery"] is None, off
    wrong = run_tool("plan", run.session, "--set", "recovery=true")
    assert wrong.returncode == 3 and "'recovery' must be" in wrong.stderr and "leave the key out" in wrong.stderr, wrong


@suite.test
def slurm_script_requeues_an_interrupted_job():
    """A script `scontrol` that records its arguments stands for Slurm."""
    folder, script = os.path.join(cluster.dir, "runs/queued"), os.path.join(ROOT, "deploy/slurm/train.sbatch")
    # so many steps that the interrupt always comes before the last one
    session = cluster.session("queued", BODY.replace(f"max_steps: {STEPS}", "max_steps: 1000000"))
    tools = os.path.join(cluster.dir, "slurm")
    os.mkdir(tools)
    with open(os.path.join(tools, "scontrol"), "w") as f:
        f.write(f"#!/bin/sh\necho \"$@\" >> {tools}/told\n")
    os.chmod(os.path.join(tools, "scontrol"), 0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.path.abspath(BIN)}:{os.environ['PATH']}", "SESSION": session, "SLURM_JOB_ID": "17"}
    # a shell that starts with SIGINT ignored, as under `make test &`, cannot trap it
    first = subprocess.Popen(["sh", script], cwd=cluster.dir, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    until(lambda: os.path.exists(f"{folder}/checkpoint-15/MANIFEST.json"), 30)
    first.send_signal(signal.SIGINT)
    assert first.wait(30 * SLOW) == 0, first.stderr.read()
    with open(os.path.join(tools, "told")) as f:
        assert f.read() == "requeue 17\n"
    done = max(int(c.split("-")[1]) for c in os.listdir(folder) if re.fullmatch("checkpoint-[0-9]+", c))
    with open(session) as f:
        text = f.read()
    with open(session, "w") as f:
        f.write(text.replace("max_steps: 1000000", f"max_steps: {done + 20}"))
    again = subprocess.run(["sh", script], cwd=cluster.dir, env=env, capture_output=True, text=True, timeout=60 * SLOW)
    assert again.returncode == 0 and f"resumed from the checkpoint of step {done}" in again.stdout, again
    with open(f"{folder}/metrics.jsonl") as f:
        assert [json.loads(line)["step"] for line in f] == list(range(1, done + 21))


with Cluster(3) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=512, n_test=16, side=8)
    suite.main()
