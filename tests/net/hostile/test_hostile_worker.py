"""The master also treats workers as hostile: a worker with a good certificate that answers nonsense
or nothing before a step, and an honest one that is stopped for a while."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import liar
from liar import *

suite = Suite()


@suite.test
def run_with_the_unmodified_fake_worker_succeeds():
    """Without a twist the master trains to the end, as with a real worker. Each test below changes
    one thing."""
    met, log = honest()
    calls = [f.context for f in log if f.kind == pb.CALL and f.flags & pb.FLAG_TRAINING]
    steps = [f.context for f in log if f.kind == pb.END_CONTEXT and f.commit.apply]
    assert calls == steps == list(range(1, STEPS + 1)), (calls, steps)
    assert len(met.notices) == 1, met.notices
    kept = master("log", met.name, cwd=liar.cluster.dir).stdout
    assert len(NOTICE.findall(kept)) == 1, kept
    done = liar.cluster.train(liar.cluster.session("really", SESSION))
    assert done.returncode == 0, done.stderr
    fakes, reals = weights(met.name), weights("really")
    assert fakes.keys() == reals.keys()
    for name, (dtype, dims, raw) in fakes.items():
        a, b = (numpy.frombuffer(r, numpy.float32) for r in (raw, reals[name][2]))
        assert reals[name][:2] == (dtype, dims) and numpy.allclose(a, b, 1e-5, 1e-6), name


OLD = "worker w1 speaks protocol 8: a lost connection ends its link; upgrade it"


@suite.test
def worker_of_protocol_8_trains_without_acks():
    """The worker refuses a Hello of protocol 9; the master then uses protocol 8."""
    args = ["--set", "train.max_steps=60"]
    with fake(protocol=8) as old, fake() as new:
        met, other = Met(old, args), Met(new, args)
    assert met.code == other.code == 0, met.said
    assert met.said.count(OLD) == 1 and OLD not in other.said, met.said
    asked = [pb.HelloRequest.FromString(raw).about.protocol for method, raw in old.heard if method == "Hello"]
    assert asked == [9, 8], asked
    assert not old.got(pb.ACK) and len(old.got(pb.CALL)) >= 60
    old, new = (checkpoint_tensors(os.path.join(liar.cluster.dir, "runs", m.name), 60) for m in (met, other))
    assert old == new


@suite.test
def worker_that_knows_no_averages_is_refused():
    with fake() as worker:
        met = Met(worker, ["--set", "train.ema=0.9"])
    assert met.code and "cannot keep an average of the weights (train.ema)" in met.said and "update it" in met.said, met.said
    assert "LoadModule" not in {method for method, _ in worker.heard}, worker.heard


@suite.test
def worker_of_protocol_8_is_lost_with_its_connection():
    def hangs_up(f):
        if f.kind == pb.VALUE and f.context > 2:
            raise ConnectionError
        return [f]
    with fake(protocol=8, twist=hangs_up) as worker:
        met = Met(worker)
    assert met.code == 6 and "was lost" in met.said, met.said
    lanes = [pb.Frame.FromString(raw).attach for method, raw in worker.heard if method == "Session"]
    assert not any(a.again for a in lanes), lanes


@suite.test
def doctor_and_plan_name_a_worker_of_protocol_8():
    with fake(protocol=8) as worker:
        session = liar.cluster.session("old", SESSION)
        for command in (["doctor"], ["plan", "--ask"]):
            done = run(MASTER, *command, session, "--set", f"workers.w1.address=127.0.0.1:{worker.port}",
                       cwd=liar.cluster.dir)
            said = done.stdout + done.stderr
            assert said.count("speaks protocol 8: a lost connection ends its link; upgrade it") == 1, said
            # the error is about the processor
            assert said.count("FAIL") == (command == ["doctor"]), said


@suite.test
def worker_of_protocol_7_is_refused_by_name():
    meets([4], "this worker uses protocol 7, the caller 9", protocol=7)
    meets([4], "speaks protocol 7, this side speaks 8 to 9: upgrade", Hello=lambda r: hello_reply(CREDIT, protocol=7))


@suite.test
def fake_worker_handles_micro_batches_and_credit():
    with fake() as worker:
        met = Met(worker, ["--set", f"pipeline.micro_batches={ROWS}"])
    assert met.code == 0, met.said
    assert len(worker.got(pb.CALL)) > STEPS * ROWS
    with fake(credit=16 << 10) as worker:
        met = Met(worker, ["--set", "train.max_steps=40"])
    assert met.code == 0, met.said


# ---- before a step -----------------------------------------------------------------------------

def never(request):
    time.sleep(6 * PACE)
    return b""


@suite.test
def too_small_message_limits_are_named_before_the_session():
    """The error comes before a session is opened, not when a piece of weights is lost; doctor also
    reports it."""
    for name, small in (("message_bytes", 300_000), ("chunk_bytes", 65536)):
        limits = limits_of(CREDIT)
        setattr(limits, name, small)
        reply = lambda r: hello_reply(CREDIT, limits=limits)
        meets([4], f"it accepts {name[:-6]}s of at most {small} bytes", Hello=reply)
        with fake(Hello=reply) as worker:
            session = liar.cluster.session("fits", SESSION)
            done = run(MASTER, "doctor", session, "--set", f"workers.w1.address=127.0.0.1:{worker.port}",
                       cwd=liar.cluster.dir)
            assert done.returncode == 4 and f"at most {small} bytes" in done.stdout + done.stderr, done


@suite.test
def invalid_hello_reply_is_refused():
    says = lambda codes, *words, **kw: lambda: meets(
        codes, *words, Hello=lambda r: hello_reply(CREDIT, **kw))
    is_bytes = lambda codes, raw: lambda: meets(codes, Hello=lambda r: raw)
    short = hello_reply(CREDIT)
    short.incarnation = bytes(3)
    all_hold(some({
        "bytes": is_bytes([11], b"\xff" * 100),
        "empty": is_bytes([11], b""),
        "random": is_bytes([11], os.urandom(100_000)),
        "too long": is_bytes([1, 4, 11], bytes(10 * MIB)),
        "incarnation": is_bytes([11], short),
        "another protocol": says([4], "protocol 10", protocol=10),
        "an older protocol": says([4], "protocol 7", protocol=7),
        "escape": says([11], software="\x1b[2J" * 20),
        "capabilities": says([11], "capabilities", capabilities=["codec.bf16"] * 65),
        "never": lambda: meets([5], Hello=never)}))


@suite.test
def lease_is_requested_only_if_the_worker_supports_it():
    lease, asked = ("--set", "limits.reference_lease=5s"), []
    meets([4], r"\(fake\) has no other reference lease than 300 s", "limits.reference_lease", args=lease)

    def opens(request):
        asked.append(pb.OpenSessionRequest.FromString(request).reference_lease_ms)
        return pb.OpenSessionReply(incarnation=bytes(16), granted=limits_of(CREDIT))
    hello = lambda r: hello_reply(CREDIT, capabilities=["chunks", "reference_lease"])
    for args in (lease, ()):
        with fake(Hello=hello, OpenSession=opens) as worker:
            met = Met(worker, args)
        assert met.code == 0, met.said
    assert asked == [5000, 300000], asked


@suite.test
def invalid_setup_replies_are_refused():
    def loads(codes, change, *words):
        """A case in which the reply to LoadModule has another list of parameters."""
        def answer(request):
            good = loaded(Linear(pb.LoadModuleRequest.FromString(request)))
            params = change(list(good.params))
            good.ClearField("params")
            good.params.extend(params)
            return good
        return lambda: meets(codes, *words, LoadModule=answer)

    def replies(words, change):
        def answer(request):
            reply = loaded(Linear(pb.LoadModuleRequest.FromString(request)))
            change(reply)
            return reply
        return lambda: meets([11], words, LoadModule=answer)

    def renamed(params):
        params[0].name = "3.wait"
        return params

    def reshaped(params):
        params[1].spec.dims.append(1)
        return params

    all_hold(some({
        "open": lambda: meets([11], OpenSession=lambda r: b"\x0a\x03abc"),
        "open never": lambda: meets([5], OpenSession=never),
        "load": lambda: meets([11], LoadModule=lambda r: b"\x0b" * 1000),
        "load never": lambda: meets([5], LoadModule=never),
        "another process": lambda: meets([11], "another process answered", OpenSession=lambda r: (
            pb.OpenSessionReply(incarnation=bytes(15) + b"\1", granted=limits_of(CREDIT)))),
        "another name": loads([11], renamed, "parameter 0 is not '3.weight'"),
        "another shape": loads([11], reshaped, "parameter 1 is not '3.bias'"),
        "another output": replies("another output", lambda r: r.outputs[0].dims.append(2)),
        "no output": replies("another output", lambda r: r.ClearField("outputs")),
        "huge": replies("takes 18446744073709551615 bytes",
                        lambda r: setattr(r, "memory_bytes", (1 << 64) - 1)),
        "too few": loads([11], lambda params: params[:1], "parameters"),
        "too many": loads([11], lambda params: params * 20, "parameters"),
        "far too many": loads([11], lambda params: params * 3000)}))


@suite.test
def invalid_attach_reply_is_refused():
    def silent(first, w):
        w.over.wait(6 * PACE)
        yield b""

    answers = lambda codes, frames, *words: lambda: meets(
        codes, *words, attached=lambda first, w: frames)
    credit = lambda n: [pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=n))]
    all_hold(some({
        "silent": lambda: meets([5], "attach", attached=silent),
        "nothing": answers([5], [], "attach"),
        "bytes": answers([11], [b"\xff\xff\xff"]),
        "PING": answers([11], [pb.Frame(kind=pb.PING, message=1)]),
        "too much credit": answers([11], credit(1 << 60)),
        "no credit": answers([1], credit(0), "credit of 0 bytes"),
        "too little": answers([1], credit(100), "credit of 100 bytes")}))


# ---- silence -----------------------------------------------------------------------------------

def deaf(frames, w):
    for _ in frames:
        pass
    yield from ()


@suite.test
def missing_answer_times_out_and_names_the_worker():
    """For each answer that the master waits for."""
    missing = lambda kind, *words, when=lambda f: True: lambda: meets(
        [5], "last heard of worker 'w1'", *words, twist=on(kind, nothing, when))
    silent = lambda lane0, *words: lambda: meets(
        [5], "last heard of worker 'w1'", *words, lane0=lane0)
    all_hold(some({
        **{pb.FrameKind.Name(kind): missing(kind, "step 1") for kind in (V, G, F)},
        "the last test": missing(V, "the training is done, and its checkpoint of step 3 is complete",
                                 "train --resume", when=lambda f: f.context > STEPS),
        "all": silent(starts(deaf), "step 1", "no checkpoint yet: train --resume starts again at step 1"),
        "set up": silent(deaf),
        "STATE_ITEM": missing(pb.STATE_ITEM, "checkpoint of step 3", "state of module 'b'"),
        "STATE_DONE": missing(pb.STATE_DONE, "checkpoint of step 3", "state of module 'b'",
                              when=lambda f: f.reply_to > STEPS)}))


@suite.test
def missing_ended_frame_does_not_block_the_run():
    """Even if no ENDED ever comes, the master does not keep everything."""
    ignore_all({"ENDED": on(pb.ENDED, nothing)})
    with fake(twist=on(pb.ENDED, nothing)) as worker:
        met = Met(worker, ["--set", "train.max_steps=1500"], seconds=60)
    assert met.code in (0, 1, 5) and (met.code == 0 or "w1" in met.said), (met.code, met.said)
    is_small(met, 12 * MIB)


@suite.test
def slow_answers_exceed_the_step_timeout():
    def slow(f):
        time.sleep(0.5 * PACE)
        return [f]

    begin = time.monotonic()
    with fake(twist=slow) as worker:
        met = Met(worker, ["--set", "pipeline.micro_batches=16"])
    assert met.code == 5 and time.monotonic() - begin < 9 * PACE, (met.code, met.said)
    assert re.search(r"step 1: backward .* took longer than %d ms \(limits.step_timeout\)" % TIMEOUT, met.said), met.said
    left = re.search(r"the schedule of the failed step is in (\S+/schedule.failed)", met.said)
    with open(os.path.join(liar.cluster.dir, left[1])) as f:
        text = f.read()
    assert "micro-batches 16" in text and all(f" {what}15@" in text for what in "FB"), text


@suite.test
def reported_outage_stops_the_clock_for_the_lease():
    """A worker reports in each PONG that it is restoring its link to another worker, and never
    finishes. A report stops the clock only for limits.lease and the silence before it, so the run
    still ends."""
    def mends(f):
        f.measure.mending_links = 1
        return [] if f.kind == pb.FINISHED else [f]

    begin, lease, silence, limit = time.monotonic(), 2 * PACE, PACE, 0.6 * PACE
    with fake(twist=lambda f: mends(f) if f.kind in (pb.PONG, pb.FINISHED) else [f]) as worker:
        met = Met(worker, [x for k, v in (("lease", lease), ("peer_timeout", silence), ("step_timeout", limit))
                           for x in ("--set", f"limits.{k}={v * 1000:.0f}ms")])
    took = time.monotonic() - begin
    assert met.code == 5 and "(limits.step_timeout)" in met.said, (met.code, met.said)
    assert lease < took < 3 * (lease + silence + limit), took


@suite.test
def missing_credit_times_out_and_names_the_worker():
    meets([5], "last heard of worker 'w1'", credit=16 << 10, twist=on(pb.CREDIT, nothing),
          args=["--set", "train.max_steps=40"])


# ---- stopped workers ---------------------------------------------------------------------------

BIG = (DATA + "stages:\n"
       "  - {name: a, at: master,"
       " layers: [{op: flatten}, {op: linear, out: 2048}, {op: relu}]}\n"
       "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n"
       "loss: {kind: cross_entropy}\npipeline: {micro_batches: 8, schedule: gpipe}\n"
       "train: {epochs: 1000, max_steps: %d, batch: 256, seed: 5eed5eed5eed5eed5eed5eed5eed5eed,"
       " optimizer: {kind: sgd, lr: 0.01}}\n"
       "log: {every: 1, json: true}\ncheckpoint: {every_steps: 10}\n")


@suite.test
def unsolicited_errors_are_logged_ten_times_a_minute():
    """The master logs at most ten unsolicited errors of a worker in a minute."""
    def loud(f):
        return [failing(pb.ERROR, 9, f"complaint {i}") for i in range(500)] + [f]
    with fake(twist=on(pb.FINISHED, loud)) as worker:
        met = Met(worker)
    assert met.code == 0 and trained(met.name) == trained(honest()[0].name), (met.code, met.said)
    assert met.said.count("complaint ") == 10 and len(met.said) < 4000, met.said


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


@suite.test
def unknown_device_error_lists_the_workers_devices():
    """Both doctor and train ask the worker, and do not rely on their own file."""
    with fake(Hello=lambda r: hello_reply(CREDIT, devices=["cuda:0", "fpga"])) as worker:
        at = ["--set", f"workers.w1.address=127.0.0.1:{worker.port}"]
        on = ["--set", "stages.1.device=cpu"]
        met = Met(worker, on)
        done = master("doctor", liar.cluster.session("devices", SESSION), *at, *on, cwd=liar.cluster.dir)
    said = "no device 'cpu'.*; it has: cuda:0, fpga"
    assert met.code in (1, 3) and re.search(said, met.said) and not worker.log, (met.code, met.said)
    assert done.returncode and re.search(said, done.stdout), done.stdout + done.stderr


def gradients_of(worker, name):
    """The output of the program gradient_place for a module at the worker."""
    session = liar.cluster.session(name, SESSION)
    with open(session) as f:
        text = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{worker.port}", f.read())
    with open(session, "w") as f:
        f.write(text)
    return subprocess.run([os.path.join(BIN, "net", "gradient_place"), session, "w1"],
                          capture_output=True, text=True, timeout=60 * SLOW)


def linear_at(device):
    """A LoadModule method of a worker that has a linear layer on `device`."""
    def loads(request):
        reply = loaded(Linear(pb.LoadModuleRequest.FromString(request)))
        worker[0].modules.modules[0] = Linear(pb.LoadModuleRequest.FromString(request))
        reply.device = device
        return reply
    worker = []
    return worker, loads


@suite.test
def gradient_location_comes_from_its_owner():
    at, loads = linear_at("fpga:1")
    with fake(LoadModule=loads) as worker:
        at.append(worker)
        worker.modules.device = "fpga:2"
        done = gradients_of(worker, "place")
    assert done.stdout.split("\n")[:3] == ["module w1 fpga:1", "gradient w1 fpga:2", "list 2"], done.stdout + done.stderr


@suite.test
def gradient_list_that_differs_from_the_module_is_refused():
    """With another name, order, number or shape, in the second answer, to the request for the
    list."""
    def order(items, done):
        items[0].state.index, items[1].state.index = 1, 0

    def rename(items, done):
        items[1].state.name = "0.bais"

    def fewer(items, done):
        done.state.count = 1
        del items[1]

    def reshape(items, done):
        del items[0].tensors[0].dims[:]
        items[0].tensors[0].dims.extend([1, items[0].tensors[0].bytes // 4])

    for twist in (order, rename, fewer, reshape):
        at, loads = linear_at("cpu")
        with fake(LoadModule=loads) as worker:
            at.append(worker)
            answer, asked = worker.modules.on_state_get, []

            def lies(f, twist=twist, answer=answer, asked=asked):
                *items, done = answer(f)
                asked.append(f)
                if len(asked) > 1:
                    twist(items, done)
                yield from (*items, done)
            worker.modules.on_state_get = lies
            done = gradients_of(worker, "list_" + twist.__name__)
        assert done.returncode == 1 and "gradient w1" in done.stdout, (twist, done.stdout, done.stderr)
        assert "worker 'w1' sent other gradients than those of module 'm'" in done.stderr, (twist, done.stderr)


@suite.test
def worker_gets_only_code_and_place_of_a_master_failure():
    """An invalid prediction, computed from a record that never leaves the master: the user at the
    master sees it, and no frame to the worker has a digit of it."""
    folder = os.path.join(liar.cluster.dir, "data")
    write_npy(os.path.join(folder, "odd.npy"), (64, 8), "<f4", numpy.full((64, 8), 7, "<f4").tobytes())
    write_npy(os.path.join(folder, "odd-y.npy"), (64, CLASSES), "<f4", bytes(64 * CLASSES * 4))
    with fake() as worker:
        met = Met(worker, ["--set", "data.train=[odd.npy, odd-y.npy]", "--set", "data.test=[odd.npy, odd-y.npy]",
                           "--set", "loss.kind=bce"])
    assert met.code == 1, (met.code, met.said)
    found = re.search(r"\(bce\), forward: .* outside 0\.\.1; .* \((-?[0-9.e+-]+)\)", met.said)
    assert found, met.said
    told = [f for f in worker.log if f.HasField("failure")]
    secret = found.group(1).encode()
    assert told and not any(secret in f.failure.text.encode() for f in told), worker.log
    for f in told:
        assert f.failure.code == 3 and re.fullmatch(r"module \d+, layer \d+ \(bce\), forward", f.failure.hop), f
        assert re.fullmatch(r"invalid argument at module \d+, layer \d+ \(bce\), forward, step 1 \(failure 1 of the "
                            r"master\)", f.failure.text), f


@suite.test
def stopped_worker_times_out_and_resume_gives_same_bits():
    """A step has 2 MiB of activations, the credit is 1 MiB. The worker is stopped while the master
    sends. After the peer timeout the master fails, and --resume reaches the same bits."""
    seconds, steps = (75, 60) if LONG else (4, 30)
    w = liar.cluster.workers[0]
    alone = liar.cluster.train(liar.cluster.session("moving", BIG % steps))
    assert alone.returncode == 0, alone.stderr
    session = liar.cluster.session("still", BIG % steps)
    process = subprocess.Popen([MASTER, "train", session], cwd=liar.cluster.dir, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")),
                              daemon=True)
    reader.start()
    until = time.monotonic() + 30 * SLOW
    while sum('"step":' in l for l in lines) < 15 and time.monotonic() < until:
        time.sleep(0.005)
    w.kill(signal.SIGSTOP)
    try:
        before = peak = rss(process.pid)
        until = time.monotonic() + seconds
        while time.monotonic() < until and process.poll() is None:
            peak = max(peak, rss(process.pid))
            time.sleep(0.02)
        count = sum('"step":' in l for l in lines)
    finally:
        w.kill(signal.SIGCONT)
    errors = process.stderr.read()
    process.wait(60 * SLOW)
    reader.join()
    assert count < steps, "the run was over before the worker stopped"
    assert SANITIZED or peak - before <= MIB + 3 * MIB, (before, peak)
    if process.returncode != 0:
        # limits.step_timeout and limits.peer_timeout are both 60 s: either may end the run
        assert LONG and process.returncode in (5, 6) and "w1" in errors, (process.returncode, errors)
        again = liar.cluster.train(session, "--resume")
        assert again.returncode == 0, again.stderr
    runs = os.path.join(liar.cluster.dir, "runs")
    a, b = (checkpoint_tensors(os.path.join(runs, name), steps) for name in ("moving", "still"))
    assert a == b


liar.main(suite)
