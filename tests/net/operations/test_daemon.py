"""The worker as a daemon: configuration checks, the ready line, draining, audit lines, quotas;
initial weights from files and artifacts; loss and raw input at a worker only by permission."""
import hashlib, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import pyclient
from contexts import call, deliver, gradient, prepare
from pyclient import *

suite = Suite()
cluster = None
DATA = "data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
LAYERS = ["{op: conv2d, out: 4, kernel: 3}", "{op: batchnorm}", "{op: relu}", "{op: flatten}", "{op: dropout, p: 0.2}",
          "{op: linear, out: 10}"]


def body(first="master", rest="w1", steps=40, loss="{kind: cross_entropy}", extra="", weights="", micro=2):
    return (DATA + f"stages:\n  - {{name: a, at: {first}, layers: [{', '.join(LAYERS[:3])}]}}\n"
            f"  - {{name: b, at: {rest}, {weights}layers: [{', '.join(LAYERS[3:])}]}}\n"
            f"loss: {loss}\ntrain: {{epochs: 1000, max_steps: {steps}, batch: 24, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, clip_grad_norm: 1.0, "
            f"optimizer: {{kind: adam, lr: 0.003}}}}\npipeline: {{micro_batches: {micro}}}\n" + extra)


def train(name, text, *args, steps=40):
    done = cluster.train(cluster.session(name, text), *args)
    assert done.returncode == 0, done.stdout + done.stderr
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", name), steps)


def log_of(name):
    with open(os.path.join(cluster.dir, "runs", name, "metrics.jsonl")) as f:
        return [{k: v for k, v in json.loads(l).items() if k in ("step", "loss", "grad_norm", "lr")} for l in f]


_home = []


def at_home():
    """(weights, loss log) of the same session with everything at the master."""
    if not _home:
        _home.extend((train("home", body(rest="master")), log_of("home")))
        assert len(_home[1]) == 40 and _home[1][-1]["loss"] < 0.9 * _home[1][0]["loss"]
    return _home


def audit(since, word, name):
    """Audit lines of one kind about a session or identity."""
    lines = cluster.workers[0].text()[since:].splitlines()
    return [l for l in lines if f"audit {word} " in l and name in l]


# ---- configuration -----------------------------------------------------------------------------

def check(text, *args, command=("check",), name="check.yaml"):
    path = os.path.join(cluster.dir, name)
    with open(path, "w") as f:
        f.write(text)
    return run(WORKER, *command, "--config", path, *args, timeout=20)


GOOD = ("listen: 127.0.0.1:7443\ntls: {ca: certs/ca.pem, cert: certs/w1.pem, key: certs/w1.key}\n"
        "allow:\n  - {identity: \"spiffe://test/master\", role: master}\n")


@suite.test
def check_accepts_a_valid_config():
    for command in (("check",), ("serve", "-n"), ("serve", "--check")):
        done = check(GOOD, command=command)
        assert done.returncode == 0 and "configuration OK" in done.stdout and "spiffe://test/w1" in done.stdout, done
        assert re.search(r"ends in 36[45] days", done.stdout), done.stdout
    assert check(GOOD, "--set", "listen=127.0.0.1:1234").stdout.startswith("configuration OK: 127.0.0.1:1234")


@suite.test
def check_error_names_the_position():
    def bad(text, position, *words, code=3):
        done = check(text)
        assert done.returncode == code, (done.returncode, done.stderr)
        assert f"check.yaml:{position}: " in done.stderr, done.stderr
        for w in words:
            assert w in done.stderr, (w, done.stderr)

    bad(GOOD + "limtis: {sessions: 3}\n", "5:1", "limtis", "did you mean 'limits'")
    bad(GOOD + "limits: {sesions: 3}\n", "5:10", "sesions", "did you mean 'sessions'")
    bad(GOOD + "limits: {sessions: many}\n", "5:20", "many")
    bad(GOOD + "limits: {sessions: 100000}\n", "5:20", "100000", "10000")
    bad(GOOD.replace("role: master", "role: mistress"), "4:46", "mistress", "master")
    bad(GOOD.replace("127.0.0.1:7443", "localhost"), "1:9", "localhost")
    bad(GOOD + 'metrics: {listen: "127.0.0.1:7443"}\n', "5:19", "takes the port of `listen`", "give it another")
    bad(GOOD + 'metrics: {listen: "0.0.0.0:7443"}\n', "5:19", "takes the port of `listen`, 127.0.0.1:7443")
    assert check(GOOD + 'metrics: {listen: "0.0.0.0:7443"}\n', command=("serve",)).returncode == 3
    assert check(GOOD + 'metrics: {listen: "127.0.0.1:7444"}\n').returncode == 0
    bad(GOOD.replace("spiffe://test/master", "master"), "4:16", "master")
    done = check(GOOD.replace("tls:", "tsl:"))
    assert done.returncode == 3 and "check.yaml:2:1: " in done.stderr and "did you mean 'tls'" in done.stderr, done.stderr
    done = check(GOOD.split("allow")[0])
    assert done.returncode == 3 and "allow" in done.stderr, done.stderr
    for command in (("check",), ("serve",)):
        done = check(GOOD + "device: cuda\n", command=command)
        assert done.returncode == 3 and "check.yaml: device cuda: " in done.stderr, done.stderr
        done = check(GOOD + "device: cuda:64\n", command=command)
        assert done.returncode == 3 and ":5:9: 'device' must be cpu, cuda, cuda:0 to" in done.stderr, done.stderr
    done = check(GOOD, "--set", "limits.sesions=3")
    assert done.returncode == 3 and "--set limits.sesions=3" in done.stderr and "sessions" in done.stderr
    done = run(WORKER, "check", "--config", os.path.join(cluster.dir, "absent.yaml"))
    assert done.returncode == 3 and "absent.yaml" in done.stderr, done
    assert run(WORKER, "serve").returncode == 2 and run(WORKER, "srve", "--config", "x").returncode == 2


@suite.test
def check_reports_a_damaged_artifact():
    with open(os.path.join(cluster.dir, "junk.safetensors"), "wb") as f:
        f.write(b"not safetensors")
    entry = "artifacts:\n  junk: {file: junk.safetensors, sha256: %s}\n"
    done = check(GOOD + entry % ("0" * 64))
    assert done.returncode == 7 and "check.yaml:6:" in done.stderr and "junk" in done.stderr, (done.returncode, done.stderr)


@suite.test
def ready_line_reports_address_identity_and_limits():
    line = [l for l in cluster.workers[0].text().splitlines() if " ready " in l]
    assert len(line) == 1, line
    shown = master("certs", "show", os.path.join(cluster.certs, "w1.pem"), "--json").stdout
    day = time.strftime("%Y-%m-%d", time.gmtime(json.loads(shown)[0]["not_after"]))
    for fact in (f"listen=127.0.0.1:{cluster.ports[0]}", f"port={cluster.ports[0]}", "identity=spiffe://test/w1",
                 f"certificate_expires={day}", "device=cpu", "sessions=3", "session_bytes=2.0 GiB", "version="):
        assert fact in line[0], (fact, line[0])
    # a second daemon on the port does not start, and gives the reason
    done = run(WORKER, "serve", "--config", cluster.workers[0].config, timeout=20)
    assert done.returncode == 4 and str(cluster.ports[0]) in done.stderr, done.stderr


# ---- sessions ----------------------------------------------------------------------------------

@suite.test
def audit_log_has_open_and_close_of_a_session():
    since = len(cluster.workers[0].text())
    with Caller(cluster.ports[0], cluster.certs) as c:
        s = c.open(name="audited")
        s.load(mlp(4, 2), [2, 3])
        lane = s.attach()
        lane.send(call(1, 9, 0, [(5, True, f32([1] * 6), [2, 3])]))
        lane.send(deliver(1, 9))
        assert lane.recv().kind == pb.VALUE
        totals = s.close()
        opened, closed = audit(since, "open", "session=audited"), audit(since, "close", "session=audited")
        assert len(opened) == len(closed) == 1, cluster.workers[0].text()[since:]
        assert "identity=spiffe://test/master" in opened[0] and 'reason="ok"' in opened[0]
        assert "identity=spiffe://test/master" in closed[0] and "closed by its master" in closed[0]
        assert f"bytes_in={totals.bytes_in} bytes_out={totals.bytes_out}" in closed[0], closed
        assert totals.bytes_in > 24 and totals.bytes_out > 16
        # a master vanishes: its session ends too, and the audit line says how
        s = c.open(name="vanished")
        s.attach()
    until = time.monotonic() + 5 * SLOW
    while not audit(since, "close", "session=vanished") and time.monotonic() < until:
        time.sleep(0.02)
    gone = audit(since, "close", "session=vanished")
    assert gone and "master's stream ended" in gone[0], gone


@suite.test
def sessions_over_an_identity_quota_are_refused():
    since = len(cluster.workers[0].text())
    with Caller(cluster.ports[0], cluster.certs) as c, Caller(cluster.ports[0], cluster.certs, name="small") as small:
        first = small.open(name="one")
        try:
            small.open(name="two")
            raise AssertionError("the quota of one session was exceeded")
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "limit is 1" in e.details(), e
        denied = audit(since, "deny", "session=two")
        assert denied and "identity=spiffe://test/small" in denied[0] and "limit is 1" in denied[0], denied
        # identities without a quota have the worker's own limit
        mine = [c.open(name=f"m{i}") for i in range(3)]
        try:
            c.open(name="m3")
            raise AssertionError("the limit of three sessions was exceeded")
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, e
        try:  # an id that is open
            c.stub.CloseSession(pb.CloseSessionRequest(session=mine[2].id, epoch=1))
            c.open(session=mine[0].id)
            raise AssertionError("one id twice")
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.ALREADY_EXISTS, e
        first.close()
        small.open(name="again").close()
        # the quota of bytes of an identity refuses a module above it, and accepts one below
        s = small.open(name="bytes")
        assert s.granted.granted.session_bytes == 8 << 20, s.granted
        try:
            s.load(mlp(2048, 2048), [2, 16])
            raise AssertionError("16 MiB of weights in 8 MiB")
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, e
        s.load(mlp(64, 8), [2, 16])
        s.close()
        for s in mine[:2]:
            s.close()


@suite.test
def each_refused_request_logs_one_line():
    """Each request that is refused before a stream is open has one line in the log, and no other
    line."""
    def new_lines(count):
        time.sleep(0.3)  # a second line would come with the first
        lines = cluster.workers[0].text()[since:].splitlines()
        assert len(lines) == count, lines
        return lines
    with Caller(cluster.ports[0], cluster.certs, name="small") as c, Caller(cluster.ports[0], cluster.certs, name="watch") as w:
        s = c.open(name="loud")
        since = len(cluster.workers[0].text())
        for attempt in (lambda: s.load(mlp(2048, 2048), [2, 16]), lambda: c.open(name="more"), lambda: w.open(name="none")):
            try:
                attempt()
                raise AssertionError("it was not refused")
            except grpc.RpcError:
                pass
        load, opened, method = new_lines(3)
        assert re.search(r" warn +session loud: module 0 '.*' was not loaded: .*allow\[\]\.bytes", load), load
        assert "audit deny session=more" in opened and "audit deny identity=spiffe://test/watch" in method, (opened, method)
        s.close()


@suite.test
def observer_may_only_read_status():
    with Caller(cluster.ports[0], cluster.certs) as c, Caller(cluster.ports[0], cluster.certs, name="watch") as w:
        s = c.open(name="seen")
        w.hello()
        assert [x.name for x in w.stub.Status(pb.StatusRequest()).sessions] == ["seen"]
        for method, request in (("OpenSession", pb.OpenSessionRequest(session=bytes(16), config_digest=bytes(32))),
                                ("CloseSession", pb.CloseSessionRequest(session=s.id, epoch=1)),
                                ("LoadModule", pb.LoadModuleRequest(session=s.id, epoch=1))):
            code, _ = w.raw(method, request.SerializeToString())
            assert code == grpc.StatusCode.PERMISSION_DENIED, (method, code)
        with Caller(cluster.ports[0], cluster.certs, name="small") as small:
            small.hello()
            assert not small.stub.Status(pb.StatusRequest()).sessions  # not its own
        s.close()


def daemon(name, extra):
    """Starts a further worker, which a test may stop."""
    port, path = free_port(), os.path.join(cluster.dir, name + ".yaml")
    cluster.issue(name, "spiffe://test/" + name)
    with open(path, "w") as f:
        f.write(f"name: {name}\nlisten: 127.0.0.1:{port}\n"
                f"tls: {{ca: certs/ca.pem, cert: certs/{name}.pem, key: certs/{name}.key}}\n"
                "allow:\n  - {identity: \"spiffe://test/master\", role: master}\n" + extra)
    return Worker(cluster, name, path), port


@suite.test
def full_connection_table_evicts_the_longest_silent():
    """If all places are taken, the connection that has been silent for longest is closed; with free
    places again, none is."""
    w, port = daemon("w8", "limits: {connections: 24, handshake_timeout: 30s}\n")
    held = []
    try:
        for _ in range(40):
            held.append(socket.create_connection(("127.0.0.1", port)))
            held[-1].settimeout(5 * SLOW)
            time.sleep(0.01)

        def is_closed(s):
            s.setblocking(False)
            try:
                # else it begins with what HTTP/2 would say behind TLS: nothing
                return s.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        until(lambda: sum(map(is_closed, held)) == 16)
        time.sleep(0.3)
        assert [is_closed(s) for s in held] == [True] * 16 + [False] * 24
    finally:
        for s in held:
            s.close()
    until(lambda: answers(port))
    assert w.stop() == 0


def answers(port):
    with Caller(port, cluster.certs) as caller:
        try:
            return caller.hello()
        except grpc.RpcError:
            return None


def a_step(lane, context):
    """A call of mlp(4, 2), its backward, a vote and the optimiser's step."""
    value, answers = 10 * context, []
    for f, kinds in (
            (call(context, value, 0, [(5, True, f32([1] * 6), [2, 3])]), []),
            (deliver(context, value), [pb.VALUE]),
            (prepare(context, 1, [(value, 1, False, [(0, 5, 0, 0)])], vote=True), []),
            (gradient(context, 1, value, f32([1] * 4), [2, 2]), [pb.GRADIENT, pb.FINISHED]),
            (pb.Frame(kind=pb.APPLY, context=context, message=7, module=ALL,
                      commit=pb.Commit(scale=1, lr=0.1, apply=True)), [pb.APPLIED])):
        lane.send(f)
        for kind in kinds:
            answers.append(lane.recv())
            assert answers[-1].kind == kind, answers[-1]
    return answers[0].payload


@suite.test
def sigterm_lets_running_sessions_finish():
    """A running session continues, a new one is UNAVAILABLE, and the daemon exits with 0 after the
    session. It waits 2 s for a session whose master is not connected."""
    w, port = daemon("w9", "drain_timeout: 20s\n")
    with Caller(port, cluster.certs) as c:
        s = c.open(name="running")
        s.load(mlp(4, 2), [2, 3])
        lane = s.attach()
        c.open(name="left")
        w.kill(signal.SIGTERM)
        begin = time.monotonic()
        until = time.monotonic() + 5 * SLOW
        while "draining" not in w.text() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        assert a_step(lane, 1) != a_step(lane, 2)  # the first step was taken
        try:
            c.open(name="late")
            raise AssertionError("a draining worker opened a session")
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.UNAVAILABLE and "draining" in e.details(), e
        check = c.channel.unary_unary("/grpc.health.v1.Health/Check", lambda b: b, lambda b: b)
        assert check(b"", timeout=20) == b"\x08\x02"  # NOT_SERVING
        while "audit close session=left" not in w.text() and time.monotonic() < begin + 10 * SLOW:
            time.sleep(0.02)
        assert 1.5 < time.monotonic() - begin < 8 * SLOW and "the master is not connected" in w.text(), w.text()
        assert w.process.poll() is None
        s.close()
    assert w.process.wait(10 * SLOW) == 0, w.text()
    assert "audit close session=running" in w.text() and w.text().rstrip().endswith("stopped"), w.text()
    w.stop()


@suite.test
def drain_ends_at_its_timeout():
    w, port = daemon("w10", "drain_timeout: 500ms\n")
    with Caller(port, cluster.certs) as c:
        s = c.open(name="stays")
        s.attach()
        begin = time.monotonic()
        w.kill(signal.SIGTERM)
        assert w.process.wait(10 * SLOW) == 0
        assert 0.4 < time.monotonic() - begin < 5 * SLOW
        assert "the worker is stopping" in w.text(), w.text()
    w.stop()


# ---- initial weights ---------------------------------------------------------------------------

def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return hashlib.sha256(read(path)).hexdigest()


def given_weights():
    r = __import__("random").Random(4)
    n = 4 * 6 * 6
    return {"5.weight": ("F32", (10, n), f32([r.uniform(-0.1, 0.1) for _ in range(10 * n)])),
            "5.bias": ("F32", (10,), f32([r.uniform(-0.1, 0.1) for _ in range(10)]))}


@suite.test
def weights_file_at_the_master_gives_the_same_bits():
    given = given_weights()
    write_safetensors(os.path.join(cluster.dir, "tail.safetensors"), given)
    weights = "weights: {file: tail.safetensors}, "
    home = train("file-home", body(rest="master", weights=weights))
    assert home != at_home()[0]  # the file was used
    assert train("file-w1", body(weights=weights)) == home
    assert log_of("file-w1") == log_of("file-home")
    digest = hashlib.sha256(read(os.path.join(cluster.dir, "tail.safetensors"))).hexdigest()
    train("file-sum", body(weights=f"weights: {{file: tail.safetensors, sha256: {digest}}}, "))
    bad = digest.replace(digest[0], "0" if digest[0] != "0" else "1", 1)
    done = cluster.train(cluster.session("file-bad", body(weights=f"weights: {{file: tail.safetensors, sha256: {bad}}}, ")))
    assert done.returncode == 7 and "SHA-256" in done.stderr and "stage 'b'" in done.stderr, (done.returncode, done.stderr)


def normed(at_b, weights=""):
    """A session whose batchnorm is in stage b."""
    return (DATA + f"stages:\n  - {{name: a, at: master, layers: [{LAYERS[0]}]}}\n"
            f"  - {{name: b, at: {at_b}, {weights}layers: [{', '.join(LAYERS[1:])}]}}\n"
            "loss: {kind: cross_entropy}\ntrain: {epochs: 1000, max_steps: 4, batch: 24, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, "
            "optimizer: {kind: sgd, lr: 0.01}}\n")


@suite.test
def weights_without_batch_counts_start_at_0():
    """As PyTorch accepts an old state_dict without batch counts. Any other missing parameter is
    refused by name."""
    four = lambda *values: ("F32", (4,), f32(values))
    whole = {**given_weights(), "1.weight": four(1, 2, 3, 4), "1.bias": four(4, 3, 2, 1), "1.running_mean": four(1, 0, 1, 0),
             "1.running_var": four(1, 2, 1, 2), "1.num_batches_tracked": ("I64", (), struct.pack("<q", 0))}
    less = lambda name: {k: v for k, v in whole.items() if k != name}
    files = {"whole": whole, "count": less("1.num_batches_tracked"), "mean": less("1.running_mean")}
    sums = {name: write_safetensors(os.path.join(cluster.dir, name + ".safetensors"), tensors)
            for name, tensors in files.items()}
    cluster.limits = cluster.limits.split("artifacts:")[0] + "artifacts:\n" + "".join(
        f"  {name}: {{file: {name}.safetensors, sha256: {digest}}}\n" for name, digest in sums.items())
    cluster.restart(0)
    want = train("counts-whole", normed("w1", "weights: {file: whole.safetensors}, "), steps=4)
    assert want["1.num_batches_tracked"][2] == struct.pack("<q", 4), want["1.num_batches_tracked"]

    def start(name, weights, at="w1", code=0, command=cluster.train):
        session = cluster.session(name, normed(at, f"weights: {{{weights}}}, "))
        done = command(session)
        assert done.returncode == code, (done.returncode, done.stderr)
        return done.stderr, session
    says = "has no '1.num_batches_tracked'; it is 0, as in PyTorch"
    for at in ("w1", "master"):
        said, session = start("counts-" + at, "file: count.safetensors", at)
        assert said.count(says) == said.count("\n") == 1, said
        assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "counts-" + at), 4) == want
        assert says in master("log", "counts-" + at, cwd=cluster.dir).stdout, "it is in the run's journal"
        assert master("check", session, cwd=cluster.dir).stderr.count(says) == 1
    assert "'1.running_mean'" in start("counts-mean", "file: mean.safetensors", code=7)[0]

    since = len(cluster.workers[0].text())
    assert not start("counts-artifact", f"artifact: count, sha256: {sums['count']}")[0]
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs", "counts-artifact"), 4) == want
    said = [l for l in cluster.workers[0].text()[since:].splitlines() if "num_batches_tracked" in l]
    assert len(said) == 1 and "artifact 'count' lacks 1 count of module 1" in said[0], said
    assert "'1.running_mean'" in start("counts-art-mean", f"artifact: mean, sha256: {sums['mean']}", code=7)[0]


@suite.test
def artifact_at_the_worker_gives_the_same_bits():
    given = given_weights()
    digest = write_safetensors(os.path.join(cluster.dir, "tail.safetensors"), given)
    partial = write_safetensors(os.path.join(cluster.dir, "part.safetensors"), {"5.bias": given["5.bias"]})
    damaged = write_safetensors(os.path.join(cluster.dir, "later.safetensors"), given)
    cluster.limits = cluster.limits.split("artifacts:")[0] + (
        "artifacts:\n"
        f"  tail-v1: {{file: tail.safetensors, sha256: {digest}}}\n"
        f"  part-v1: {{file: part.safetensors, sha256: {partial}}}\n"
        f"  later-v1: {{file: later.safetensors, sha256: {damaged}}}\n")
    cluster.restart(0)
    use = lambda name, sha: f"weights: {{artifact: {name}, sha256: {sha}}}, "
    home = train("art-home", body(rest="master", weights="weights: {file: tail.safetensors}, "))
    assert train("art-w1", body(weights=use("tail-v1", digest))) == home
    rows = egress_rows(os.path.join(cluster.dir, "runs", "art-w1"))
    # the worker had them already
    assert rows and not any(r["kind"] == "weights" for r in rows), rows

    def fails(name, text, code, *words):
        done = cluster.train(cluster.session(name, text))
        assert done.returncode == code, (done.returncode, done.stderr)
        for w in ("w1", "'b'") + words:
            assert w in done.stderr, (w, done.stderr)
        # the message has no paths of the worker
        assert cluster.dir not in done.stderr.replace(os.path.join(cluster.dir, name), ""), done.stderr

    fails("art-sum", body(weights=use("tail-v1", "1" * 64)), 7, "SHA-256")
    fails("art-none", body(weights=use("tail-v2", digest)), 7, "tail-v2")
    fails("art-part", body(weights=use("part-v1", partial)), 7, "5.weight")
    with open(os.path.join(cluster.dir, "later.safetensors"), "r+b") as f:
        f.seek(-1, 2)
        f.write(b"\x77")
    fails("art-damaged", body(weights=use("later-v1", damaged)), 7, "damaged")
    done = run(WORKER, "check", "--config", cluster.workers[0].config)
    assert done.returncode == 7 and "later-v1" in done.stderr and "SHA-256" in done.stderr, done


@suite.test
def secret_weights_that_a_worker_has_are_refused():
    """train fails before it sends anything, and doctor reports it."""
    r = __import__("random").Random(5)
    tensors = {"0.weight": ("F32", (4, 1, 3, 3), f32([r.uniform(-1, 1) for _ in range(36)])),
               "0.bias": ("F32", (4,), f32([0] * 4))}
    digest = write_safetensors(os.path.join(cluster.dir, "front.safetensors"), tensors)
    front = "{name: a, at: master, weights: {file: front.safetensors, secret: true}, layers: [" + LAYERS[0] + "]}"
    text = (DATA + f"stages:\n  - {front}\n  - {{name: b, at: w1, layers: [{{op: flatten}}, {{op: linear, out: 9}}]}}\n"
            "  - {name: c, at: master, layers: [{op: linear, out: 10}]}\nloss: {kind: cross_entropy}\n"
            "train: {epochs: 1, max_steps: 1, batch: 24, optimizer: {kind: sgd, lr: 0.01}}\n")
    cluster.limits = cluster.limits.split("artifacts:")[0]
    cluster.restart(0)
    session = cluster.session("secret", text, "")
    done = cluster.train(session)
    assert done.returncode == 0, done.stderr
    cluster.limits += f"artifacts:\n  public: {{file: front.safetensors, sha256: {digest}}}\n"
    cluster.restart(0)
    for command in ("doctor", "train"):
        done = master(command, session, *(["--fresh"] if command == "train" else []), cwd=cluster.dir)
        assert done.returncode == 7, (done.returncode, done.stdout, done.stderr)
        assert re.search(r"secret\.yaml:\d+:\d+: stage 'a': worker 'w1' has the file as its artifact 'public'",
                         done.stdout + done.stderr), (done.stdout, done.stderr)


# ---- privacy by permission ---------------------------------------------------------------------

@suite.test
def loss_at_a_worker_gives_the_same_bits():
    weights, log = at_home()
    extra = "privacy: {labels_leave: true}\n"
    assert train("labels", body(loss="{kind: cross_entropy, at: w1}", extra=extra)) == weights
    assert log_of("labels") == log
    rows = egress_rows(os.path.join(cluster.dir, "runs", "labels"))
    labels = [r for r in rows if r["kind"] == "labels"]
    assert labels and labels[0]["bytes"] > 40 * 20 * 8 and labels[0]["to"] == "w1", rows
    plan = master("plan", os.path.join(cluster.dir, "labels.yaml"), cwd=cluster.dir).stdout
    assert "labels: stay on the master" not in plan, plan


@suite.test
def raw_input_at_a_worker_gives_the_same_bits():
    weights, log = at_home()
    extra = "privacy: {raw_input_leaves: true}\n"
    assert train("raw", body(first="w1", rest="master", extra=extra)) == weights
    assert train("raw-all", body(first="w1", rest="w1", extra=extra)) == weights
    assert log_of("raw") == log_of("raw-all") == log
    both = "privacy: {raw_input_leaves: true, labels_leave: true}\n"
    assert train("raw-labels", body(first="w1", loss="{kind: cross_entropy, at: w1}", extra=both)) == weights


if pyclient.MISSING:
    print("skip daemon:", pyclient.MISSING)
else:
    with Cluster(0) as cluster:
        cluster.issue("small", "spiffe://test/small")
        cluster.issue("watch", "spiffe://test/watch")
        cluster.issue("w1", "spiffe://test/w1")
        cluster.ports = [free_port()]
        cluster.limits = "limits: {sessions: 3, session_bytes: 2GiB}\n"
        cluster.extra_allow = ("  - {identity: \"spiffe://test/small\", role: master, sessions: 1, bytes: 8MiB}\n"
                               "  - {identity: \"spiffe://test/watch\", role: observer}\n")
        cluster.workers = [Worker(cluster, "w1", cluster.worker_config(0, "device: auto\n"))]
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=32, side=8)
        suite.main()
