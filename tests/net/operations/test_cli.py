"""Wrong input: every error has file, line, a suggestion and the documented exit code."""
import glob, json, os, re, resource, shutil, signal, socket, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
DATA = "data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
TAIL = ("loss: {kind: cross_entropy}\n"
        "train: {epochs: 1, max_steps: 4, batch: 32, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.1}}\n"
        "checkpoint: {every_steps: 2}\n")
STAGES = ("stages:\n"
          "  - {name: a, at: master, layers: [{op: conv2d, out: 4, kernel: 3}, {op: relu}]}\n"
          "  - {name: b, at: w1, layers: [{op: flatten}, {op: linear, out: 10}]}\n")


def refused(name, body, code, *texts, command="check", args=(), keys=READABLE):
    session = cluster.session(name, body, keys)
    done = master(command, session, *args, cwd=cluster.dir)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    for t in texts:
        assert re.search(t, done.stderr), (t, done.stderr)
    return done


@suite.test
def good_session_passes_check_and_plan():
    session = cluster.session("good", DATA + STAGES + TAIL.replace(SEED, "5"))
    done = master("check", session, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    done = master("plan", session, cwd=cluster.dir)
    assert done.returncode == 0 and "leaves the private network" in done.stdout, done.stdout + done.stderr
    assert "labels: READABLE by w1 from the gradient for stage 'b'" in done.stdout, done.stdout
    assert "train.seed can be tried out" in done.stdout, done.stdout
    assert re.search(r"activation of stage 'a'.*\[32, 4, 10, 10\].*50.0 KiB/step.*spiffe://test/w1", done.stdout), done.stdout
    rows = json.loads(master("plan", "--json", session, cwd=cluster.dir).stdout)["egress"]
    assert rows[0]["bytes_per_step"] == 32 * 4 * 10 * 10 * 4, rows


@suite.test
def plan_marks_layers_computed_by_ref():
    session = cluster.session("ref", DATA + STAGES.replace("{op: linear, out: 10}", "{op: linear, out: 10}, {op: reshape, shape: [2, 5]}, {op: prepend}, {op: flatten}, {op: linear, out: 10}, {op: log_softmax}") +
                              TAIL.replace("cross_entropy", "nll"))
    text = master("plan", session, cwd=cluster.dir).stdout
    assert re.search(r"prepend .*\[32, 3, 5\]  ref$", text, re.M), text
    assert not re.search(r"(conv2d|relu|linear|log_softmax) .*  ref$", text, re.M), text
    stages = json.loads(master("plan", "--json", session, cwd=cluster.dir).stdout)["stages"]
    assert [s["fallback_layers"] for s in stages] == [[], [5]], stages


def registered(backend):
    """The ops for which the sources of a backend have a kernel."""
    found = set()
    for path in glob.glob(os.path.join(ROOT, f"kernels/{backend}/*.c")):
        with open(path) as f:
            found |= set(re.findall(rf"^CLV_{backend.upper()}_OP\((\w+)", f.read(), re.M))
    for path in glob.glob(os.path.join(ROOT, f"kernels/{backend}/pointwise.def")):
        with open(path) as f:
            found |= set(re.findall(r"^POINTWISE\((\w+)", f.read(), re.M))
    return found


@suite.test
def ops_command_matches_the_op_tables():
    numbers = {int(n): name for n, name in re.findall(r"^OP\((\d+), \w+, (\w+)\)", open(os.path.join(ROOT, "kernels/ops.def")).read(), re.M)}
    rows = [json.loads(line) for line in master("ops", "--json", cwd=cluster.dir).stdout.splitlines()]
    assert {r["number"]: r["name"] for r in rows} == numbers
    conv = next(r for r in rows if r["name"] == "conv2d")
    assert conv["parameters"] == ["weight", "bias"] and conv["backends"] == ["ref", "cpu", "cuda"], conv
    assert {r["name"] for r in rows if "cuda" in r["backends"]} == registered("cuda"), rows
    assert {r["name"] for r in rows if "cpu" in r["backends"]} == registered("cpu"), rows
    assert {a["name"]: (a["required"], a["default"]) for a in conv["attributes"]} == {
        "out": (True, None), "kernel": (True, None), "stride": (False, 1), "pad": (False, 0), "dilation": (False, 1),
        "groups": (False, 1), "bias": (False, True), "kaiming_normal": (False, False)}, conv
    assert "of kaiming_normal_" in master("ops", "conv2d", cwd=cluster.dir).stdout
    page = master("man", "cleave-ops", cwd=cluster.dir).stdout
    assert all(f"\n.SS {name}\n" in page for name in numbers.values()), page
    done = master("ops", "gelo", cwd=cluster.dir)
    assert done.returncode == 2 and "did you mean 'gelu'" in done.stderr, done.stderr


@suite.test
def unknown_key_is_refused_with_a_suggestion():
    refused("unknown-key", DATA + STAGES + TAIL.replace("epochs", "epoch"), 3,
            r"unknown-key\.yaml:\d+:\d+: .*epoch", r"did you mean 'epochs'")


@suite.test
def wrong_type_is_refused_with_its_position():
    refused("wrong-type", DATA + STAGES + TAIL.replace("batch: 32", "batch: many"), 3,
            r"wrong-type\.yaml:\d+:\d+: .*many")


@suite.test
def unknown_worker_is_refused_with_a_suggestion():
    refused("unknown-worker", DATA + STAGES.replace("at: w1", "at: w11") + TAIL, 3,
            r"unknown-worker\.yaml:\d+:\d+: .*w11", "did you mean 'w1'")


@suite.test
def unknown_op_and_attribute_are_refused():
    refused("unknown-op", DATA + STAGES.replace("conv2d", "conv2") + TAIL, 3, r":\d+:\d+: .*conv2", "did you mean 'conv2d'")
    refused("unknown-attr", DATA + STAGES.replace("kernel", "kernal") + TAIL, 3, r":\d+:\d+: .*kernal", "did you mean 'kernel'")


@suite.test
def impossible_shape_is_refused_with_its_position():
    refused("no-flatten", DATA + STAGES.replace("{op: flatten}, ", "") + TAIL, 3,
            r"no-flatten\.yaml:\d+:\d+: .*flatten")
    refused("big-kernel", DATA + STAGES.replace("kernel: 3", "kernel: 30") + TAIL, 3, r"big-kernel\.yaml:\d+:\d+:")


@suite.test
def raw_input_needs_permission():
    refused("raw", DATA + STAGES.replace("at: master", "at: w1") + TAIL, 3, "raw_input_leaves")
    refused("labels", DATA + STAGES + TAIL.replace("{kind: cross_entropy}", "{kind: cross_entropy, at: w1}"), 3, "labels_leave")


@suite.test
def readable_labels_and_records_need_permission():
    """The demo's earlier layout, a first stage that only scales, a public front, a short seed:
    every command refuses each until the session allows it; then `plan` reports it."""
    secret = TAIL.replace(f"seed: {SEED}, ", "")
    said = r"labels\.yaml:\d+:\d+: stage 'b' at 'w1' can read the labels .*labels_readable: true"
    for command in ("check", "plan", "train", "eval"):
        refused("labels", DATA + STAGES + secret, 3, said, command=command, keys="")
    refused("labels", DATA + STAGES + secret, 3, said, command="plan", args=("--suggest-cuts",), keys="")
    u_shape = STAGES + "  - {name: c, at: master, layers: [{op: relu}, {op: linear, out: 10}]}\n"
    scale = u_shape.replace("{op: conv2d, out: 4, kernel: 3}", "{op: scale, factor: 2}")
    refused("scale", DATA + scale + secret, 3, r"raw_input_leaves: true; the path: 0 \(scale\) -> 1 \(relu\)", keys="")
    refused("short", DATA + u_shape + TAIL.replace(SEED, "5"), 3, "front_known: true; .*0 has weights from a train.seed", keys="")

    def told(name, body, keys):
        session = cluster.session(name, body, keys)
        text = master("plan", session, cwd=cluster.dir)
        assert text.returncode == 0, text.stderr
        facts = json.loads(master("plan", "--json", session, cwd=cluster.dir).stdout)
        return text.stdout, facts["privacy"], [r["shows"] for r in facts["egress"]]

    text, facts, shows = told("u", DATA + u_shape + secret, "")
    assert "labels: not sent; they can be inferred: 1 secret layer" in text and "99.98 %" in text, text
    assert facts == {"labels": "inferable", "head_layers": 1, "single_output": False, "records": "picture",
                     "findings": ["picture"], "picture": {"min_places": 9, "least": 9, "places": 144}, "seed_guessable": False}, facts
    assert shows == ["PICTURE", "", ""] and "is made of 9 of the 144 places" in text, (shows, text)
    text, facts, shows = told("raw-told", DATA + scale + secret, "raw_input_leaves: true")
    assert "records: RAW INPUT LEAVES" in text and re.search(r"activation of stage 'a'.*, RAW INPUT\n", text), text
    assert facts["records"] == "raw_input" and shows[0] == "RAW INPUT", (facts, shows)


@suite.test
def missing_or_damaged_data_file_is_named():
    refused("no-file", DATA.replace("train-x", "trian-x") + STAGES + TAIL, 7, "trian-x.npy")
    with open(os.path.join(cluster.dir, "data", "train-x.npy"), "rb") as f:
        whole = f.read()
    for name, bytes_, text in (("cut", whole[:-100], "cut-x.npy"), ("magic", b"XXXX" + whole[4:], "magic-x.npy")):
        with open(os.path.join(cluster.dir, "data", name + "-x.npy"), "wb") as f:
            f.write(bytes_)
        refused("data-" + name, DATA.replace("train-x", name + "-x") + STAGES + TAIL, 7, text)


@suite.test
def command_line_mistakes_are_refused():
    assert master().returncode == 2
    done = master("trian", "x.yaml")
    assert done.returncode == 2 and "did you mean 'train'" in done.stderr, done.stderr
    assert master("train").returncode == 2
    for words, why in ((("train", "x.yaml", "--resume", "--fresh"), "--fresh starts over and --resume continues"),
                       (("plan", "x.yaml", "--output", "f"), "--output f: plan writes a file with --schedule alone"),
                       (("plan", "x.yaml", "--points", "3"), "--points has an effect with --random alone"),
                       (("eval", "x.yaml", "--checkpoint", "foo"), "--checkpoint: 'foo' is not the number of a step")):
        done = master(*words)
        assert done.returncode == 2 and why in done.stderr, done.stderr
    assert master("train", "nothing.yaml").returncode == 3
    session = cluster.session("set", DATA + STAGES + TAIL)
    done = master("check", session, "--set", "train.bacth=3", cwd=cluster.dir)
    assert done.returncode == 3 and "--set train.bacth=3" in done.stderr and "batch" in done.stderr, done.stderr
    done = master("check", session, cwd=cluster.dir, env={"CLEAVE_TRAIN__BATCH": "zero"})
    assert done.returncode == 3 and "CLEAVE_TRAIN__BATCH" in done.stderr, done.stderr


def first_session(name, *options):
    """The session that `init` writes to an empty folder, with a port that is free here."""
    folder = os.path.join(cluster.dir, name)
    os.mkdir(folder)
    done = master("init", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "PICTURE" in done.stdout, done.stdout
    port = str(free_port())
    for file in ("session.yaml", "worker.yaml"):
        with open(os.path.join(folder, file)) as f:
            text = f.read()
        assert text.count("7443") == 1 and text.count("\n") <= 40, text
        with open(os.path.join(folder, file), "w") as f:
            f.write(text.replace("7443", port))
    return folder, done.stdout


@suite.test
def init_files_train_without_editing():
    for name, options in chosen({"first": [], "first-made": ["--make-data"]}, "first-made").items():
        folder, said = first_session(name, *options)
        assert "cleave-worker serve --config worker.yaml &\n  cleave-master train session.yaml\n" in said, said
        done = master("check", "session.yaml", cwd=folder)
        assert done.returncode == 0, done.stderr
        config = os.path.join(folder, "worker.yaml")
        done = run(WORKER, "check", "--config", config)
        assert done.returncode == 0, done.stderr
        with open(os.path.join(folder, "worker.log"), "w") as log:
            serving = subprocess.Popen([WORKER, "serve", "--config", config], stderr=log, stdin=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 20 * SLOW
            while " ready " not in open(os.path.join(folder, "worker.log")).read() and time.monotonic() < until:
                time.sleep(0.02)
            for command in (["doctor"], ["train", "--max-steps", "1"]):
                done = master(command[0], "session.yaml", *command[1:], cwd=folder)
                assert done.returncode == 0, done.stdout + done.stderr
        finally:
            serving.terminate()
            serving.wait()
    assert re.search(r"test accuracy \d", done.stdout), done.stdout
    assert os.path.isdir(os.path.join(folder, "data")) and "data made: 2000 images" in said, said


@suite.test
def init_does_not_overwrite_files():
    def refused(files, *options):
        folder = os.path.join(cluster.dir, "kept")
        os.mkdir(folder)
        for file in files:
            open(os.path.join(folder, file), "w").close()
        done = master("init", *options, cwd=folder)
        assert done.returncode == 1 and f"{files[0]} exists already; no file was written" in done.stderr, done.stderr
        assert sorted(os.listdir(folder)) == sorted(files)
        shutil.rmtree(folder)
    refused(["session.yaml"])
    refused(["worker.yaml"], "--all")
    refused(["data"], "--make-data")
    folder = os.path.join(cluster.dir, "own-certs")
    os.mkdir(folder)
    assert master("certs", "init", cwd=folder).returncode == 0
    own = open(os.path.join(folder, "certs", "ca.pem")).read()
    done = master("init", cwd=folder)
    assert done.returncode == 0 and "certs is there already" in done.stdout, done
    assert open(os.path.join(folder, "certs", "ca.pem")).read() == own
    assert master("init", "--all", "--make-data", cwd=cluster.dir).returncode == 2


@suite.test
def init_all_writes_files_that_load():
    folder = os.path.join(cluster.dir, "init")
    os.mkdir(folder)
    assert master("init", "--all", cwd=folder).returncode == 0
    assert not os.path.exists(os.path.join(folder, "certs"))
    assert os.path.getsize(os.path.join(folder, "session.yaml")) > 500
    done = master("plan", "session.yaml", "--set", "data.format=npy", "--set", f"data.root={cluster.dir}/data", "--set",
                  "data.train=[train-x.npy, train-y.npy]", "--set", "data.test=[test-x.npy, test-y.npy]", cwd=folder)
    assert done.returncode == 0 and "to worker-1 (spiffe://example.net/worker/worker-1)" in done.stdout, done


@suite.test
def denied_master_is_shown_the_allow_entry_to_add():
    cluster.issue("nobody", "spiffe://test/nobody")
    done = cluster.train(cluster.session("denied", DATA + STAGES + TAIL), "--set", "tls.cert=certs/nobody.pem",
                         "--set", "tls.key=certs/nobody.key")
    assert done.returncode == 4 and "not in its allow table: add identity spiffe://test/nobody to `allow`" in done.stderr, done.stderr
    assert done.stderr.count(cluster.address(0)) == 1, done.stderr


@suite.test
def eval_and_predict_match_training():
    session = cluster.session("life", DATA + STAGES + TAIL)
    done = cluster.train(session, "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(l) for l in done.stdout.splitlines() if l.startswith("{")]
    test = [e for e in events if e["event"] == "test"][0]
    again = master("eval", session, "--json", cwd=cluster.dir)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["loss"] == test["loss"]
    out = os.path.join(cluster.dir, "p.npy")
    done = master("predict", session, "--out", out, cwd=cluster.dir)
    assert done.returncode == 0 and "[128, 10]" in done.stdout, done.stdout + done.stderr
    assert os.path.getsize(out) > 128 * 10 * 4
    record = os.path.join(cluster.dir, "runs/life/egress.jsonl")
    before = os.path.getsize(record)
    done = master("predict", session, "--output", "nowhere/p.csv", cwd=cluster.dir)
    assert done.returncode == 1 and "cannot be written to nowhere/" in done.stderr, done.stderr
    assert os.path.getsize(record) == before  # so nothing was sent
    repeat = cluster.train(session)
    assert repeat.returncode == 3 and "--resume" in repeat.stderr and "--fresh" in repeat.stderr, repeat.stderr
    assert cluster.train(session, "--fresh").returncode == 0


@suite.test
def egress_change_is_refused_on_resume():
    session = cluster.session("egress", DATA + STAGES + TAIL)
    assert cluster.train(session, "--max-steps", "2").returncode == 0
    moved = DATA + STAGES.replace("kernel: 3", "kernel: 3, pad: 1") + TAIL
    session = cluster.session("egress", moved)
    done = cluster.train(session, "--resume")
    assert done.returncode == 3 and "--accept-egress" in done.stderr, done.stderr
    assert re.search(r"egress\.table\): now activation of stage .*; when the run began activation of stage ", done.stderr), done.stderr


@suite.test
def doctor_names_the_step_and_the_fix():
    session = cluster.session("doctor", DATA + STAGES + TAIL)
    done = master("doctor", session, cwd=cluster.dir)
    assert done.returncode == 0 and "all in order" in done.stdout, done.stdout
    assert re.search(r"computes with oneDNN .*, as this master", done.stdout), done.stdout
    port = free_port()
    done = master("doctor", session, "--set", f"workers.w1.address=127.0.0.1:{port}", cwd=cluster.dir)
    assert done.returncode == 4 and "connect" in done.stdout and "fix:" in done.stdout, done.stdout
    done = master("doctor", session, "--set", "workers.w1.identity=spiffe://test/other", cwd=cluster.dir)
    assert done.returncode == 4 and "identity" in done.stdout, done.stdout
    done = cluster.train(session, "--set", f"workers.w1.address=127.0.0.1:{port}")
    assert done.returncode == 4 and "w1" in done.stderr, done.stderr


@suite.test
def interrupt_writes_a_checkpoint():
    body = DATA + STAGES + TAIL.replace("epochs: 1, max_steps: 4", "epochs: 100000")
    session = cluster.session("ctrlc", body)
    p = subprocess.Popen([MASTER, "train", session], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cluster.dir)
    until_checkpoint("ctrlc")
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 130 and "--resume" in out, (p.returncode, out, err)
    steps = [int(d.split("-")[1]) for d in os.listdir(os.path.join(cluster.dir, "runs", "ctrlc")) if d.startswith("checkpoint-")]
    done = cluster.train(session, "--resume", "--max-steps", str(max(steps) + 2))
    assert done.returncode == 0, done.stderr


def connecting(name, port, timeout):
    """A master whose worker accepts connections but sends nothing."""
    session = cluster.session(name, DATA + STAGES + TAIL + f"limits: {{connect_timeout: {timeout}}}\n")
    return [session, "--set", f"workers.w1.address=127.0.0.1:{port}"]


@suite.test
def connecting_fails_at_the_connect_timeout():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for command in (["train"], ["plan", "--ask"], ["status"]):
            began = time.monotonic()
            done = run(MASTER, *command, *connecting("mute", mute.getsockname()[1], "2s"), cwd=cluster.dir)
            took = time.monotonic() - began
            assert done.returncode in (4, 5) and "within 2" in done.stdout + done.stderr, (command, done)
            assert 1.9 < took < 2 + 1.5 * SLOW, (command, took)


@suite.test
def interrupt_ends_connecting_at_once():
    assert cluster.train(cluster.session("mute", DATA + STAGES + TAIL)).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for command in (["train", "--fresh"], ["eval"], ["predict"], ["plan", "--ask"], ["doctor"]):
            p = subprocess.Popen([MASTER, *command, *connecting("mute", mute.getsockname()[1], "30s")],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=cluster.dir)
            held = mute.accept()[0]
            time.sleep(0.2 * SLOW)
            began = time.monotonic()
            p.send_signal(signal.SIGINT)
            _, errors = p.communicate(timeout=20 * SLOW)
            assert p.returncode == 130 and time.monotonic() - began < 2 * SLOW, (command, p.returncode, errors)
            held.close()


@suite.test
def interrupt_does_not_wait_for_a_silent_worker():
    """It waits for a worker that answers, at most for a step."""
    body = DATA + STAGES + TAIL.replace("epochs: 1, max_steps: 4", "epochs: 100000")
    p = subprocess.Popen([MASTER, "train", cluster.session("silent", body)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, cwd=cluster.dir)
    worker = cluster.workers[0].process
    until_checkpoint("silent")
    worker.send_signal(signal.SIGSTOP)
    try:
        time.sleep(0.5)
        began = time.monotonic()
        p.send_signal(signal.SIGINT)
        out, errors = p.communicate(timeout=40 * SLOW)
        took = time.monotonic() - began
    finally:
        worker.send_signal(signal.SIGCONT)
    assert p.returncode == 130 and took < 6 * SLOW, (p.returncode, took, out, errors)
    assert "it does not answer" in errors and re.search("checkpoint of step .* is complete", errors), errors
    done = master("runs", "--json", cwd=cluster.dir)
    assert '"interrupted"' in done.stdout, done.stdout


@suite.test
def low_open_file_limit_is_named():
    """The error names the limit, not the certificates that could not be opened."""
    session = cluster.session("files", DATA + STAGES + TAIL)
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    done = subprocess.run([MASTER, "train", session], cwd=cluster.dir, capture_output=True, text=True, preexec_fn=few)
    assert done.returncode == 1 and "may have 20 files open" in done.stderr and "ulimit -n" in done.stderr, done
    soft = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 1024))
    done = subprocess.run([MASTER, "train", session], cwd=cluster.dir, capture_output=True, text=True, preexec_fn=soft)
    assert done.returncode == 0, done.stderr


@suite.test
def divergence_ends_the_run():
    session = cluster.session("hot", DATA + STAGES + TAIL.replace("epochs: 1, max_steps: 4", "epochs: 1000"))
    done = cluster.train(session, "--set", "train.optimizer.kind=sgd", "--set", "train.optimizer.lr=1e30", timeout=60 * SLOW)
    assert done.returncode == 9 and "train.optimizer.lr" in done.stderr, (done.returncode, done.stderr)
    with open(os.path.join(cluster.dir, "runs", "hot", "metrics.jsonl")) as f:
        losses = [json.loads(l)["loss"] for l in f]  # JSON has no NaN
    assert losses[0] is not None and losses[-1] is None, losses


@suite.test
def lr_schedule_ends_with_the_run():
    """Also when the run is stopped half-way and resumed: --max-steps does not shorten it."""
    session = cluster.session("falling", DATA + STAGES + TAIL.replace("max_steps: 4", "max_steps: 8, schedule: {kind: linear}"))
    assert cluster.train(session, "--max-steps", "3").returncode == 0
    done = cluster.train(session, "--resume")
    assert done.returncode == 0, done.stderr
    with open(os.path.join(cluster.dir, "runs", "falling", "metrics.jsonl")) as f:
        rates = [json.loads(l)["lr"] for l in f if '"step"' in l]
    assert len(rates) == 8, rates
    for k, rate in enumerate(rates):
        assert abs(rate / rates[0] - (1 - k / 8)) < 1e-5, rates


def until_checkpoint(name):
    """Waits until the run has completed a checkpoint: its manifest is written last."""
    folder = os.path.join(cluster.dir, "runs", name)
    until = time.monotonic() + 30 * SLOW
    while not glob.glob(os.path.join(folder, "checkpoint-*", "MANIFEST.json")):
        assert time.monotonic() < until, f"{name} did not start"
        time.sleep(0.02)


@suite.test
def lost_worker_is_named():
    body = DATA + STAGES + TAIL.replace("epochs: 1, max_steps: 4", "epochs: 100000").replace("every_steps: 2", "every_steps: 50")
    session = cluster.session("lost", body)
    p = subprocess.Popen([MASTER, "train", session], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cluster.dir)
    until_checkpoint("lost")
    begin = time.monotonic()
    cluster.workers[0].kill()
    out, err = p.communicate(timeout=40 * SLOW)
    assert time.monotonic() - begin < 15 * SLOW
    assert p.returncode == 6 and "'w1'" in err and re.search(r"step \d+", err) and "--resume" in err, (p.returncode, err)
    assert "schedule.failed" not in err, err
    cluster.restart(0)
    steps = [int(d.split("-")[1]) for d in os.listdir(os.path.join(cluster.dir, "runs", "lost")) if d.startswith("checkpoint-")]
    done = cluster.train(session, "--resume", "--max-steps", str(max(steps) + 3))
    assert done.returncode == 0, done.stderr


with Cluster(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
