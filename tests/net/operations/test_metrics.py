"""Metrics for Prometheus: its own tools accept them, a Prometheus scrapes workers and a master that
trains, the scraped values agree with the run, and the alerts and the dashboard use only existing
metrics."""
import json, math, os, re, signal, ssl, sys, threading, urllib.parse, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from forge import forge
from links import DelayProxy
from measured import *
import pyclient
from pyclient import *

suite = Suite()
cluster = prometheus = None
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
RULES, TEST_RULES = "deploy/prometheus/alerts.yaml", "tests/net/operations/alerts_test.yaml"
ENDLESS = 1000000
ME, OTHER = 'identity="spiffe://test/master"', 'identity="spiffe://test/other"'


def counters(found):
    return {k: v for k, v in found.items() if re.match(r"[a-z_]+_(total|bucket|count|sum)(\{|$)", k)}


class Training(Running):
    """A run in the background, with a page port. A run without end waits in each step and so uses
    little processor time, unless the test measures its pace."""

    def __init__(self, name, steps, more="", set=(), port=None, pace_ms=None):
        self.name, self.port = name, port or free_port()
        pace_ms = (4 if steps == ENDLESS else 0) if pace_ms is None else pace_ms
        session = cluster.session(name, body(steps, self.port, more, pace_ms))
        sets = [word for s in set for word in ("--set", s)]
        super().__init__([MASTER, "train", session, *sets], cwd=cluster.dir)

    def numbers(self):
        """The metrics of the run; {} while the port does not answer."""
        try:
            return numbers(self.port)
        except OSError:
            return {}

    def wait_for_step(self, step):
        until(lambda: self.numbers().get("cleave_master_step", 0) >= step or self.process.poll() is not None)
        return self.numbers()

    def log(self):
        with open(os.path.join(cluster.dir, "runs", self.name, "metrics.jsonl")) as f:
            return {l["step"]: l for l in map(json.loads, f)}


# ---- Prometheus itself ---------------------------------------------------------------------------

def promtool(*args, text=None):
    return subprocess.run(["promtool", *args], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, cwd=ROOT)


class Prometheus(Running):
    """A real Prometheus, with its data in the cluster's folder. It scrapes the workers and a master
    at the port `master` if there is one. It begins after five seconds."""

    def __init__(self):
        self.port, self.master, path = free_port(), free_port(), os.path.join(cluster.dir, "prometheus.yaml")
        targets = {"cleave-worker": cluster.pages, "cleave-master": [self.master]}
        jobs = [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{p}" for p in ports]}]}
                for job, ports in targets.items()]
        with open(path, "w") as f:  # JSON is valid YAML
            json.dump({"global": {"scrape_interval": "2s" if SANITIZED else "250ms", "evaluation_interval": "500ms"},
                       "rule_files": [os.path.join(ROOT, RULES)], "scrape_configs": jobs}, f)
        super().__init__(["prometheus", f"--config.file={path}", f"--storage.tsdb.path={cluster.dir}/tsdb",
                          f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"],
                         stderr=subprocess.STDOUT)

    def ask(self, path, **query):
        try:
            url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=10) as r:
                return json.load(r)["data"]
        except OSError:
            return None  # Prometheus is still starting

    def query(self, expression):
        data = self.ask("query", query=expression)
        return [(r["metric"], float(r["value"][1])) for r in data["result"]] if data else []


# ---- numbers that agree with the run -------------------------------------------------------------

class Watcher(threading.Thread):
    """A thread that scrapes all ports repeatedly."""

    def __init__(self, run):
        super().__init__()
        self.run_, self.master, self.workers, self.ended = run, [], [], False
        self.start()

    def run(self):
        while not self.ended:
            self.master.append(self.run_.numbers())
            self.workers.append([numbers(p) for p in cluster.pages])
            time.sleep(0.01)


def grew(list_of):
    """Checks that no counter ever fell or vanished."""
    for before, after in zip(list_of, list_of[1:]):
        for k, v in counters(before).items():
            assert after.get(k, -1) >= v, (k, v, after.get(k))


@suite.test
def counters_agree_with_the_run():
    before = [numbers(p) for p in cluster.pages]
    steps, since = 80, len(cluster.workers[0].text())
    with Training("agree", steps, "checkpoint: {every_steps: 32}\n") as run:
        watcher = Watcher(run)
        assert run.process.wait(120 * SLOW) == 0
        watcher.ended = True
        watcher.join()
    log = run.log()
    seen = [m for m in watcher.master if m.get("cleave_master_step")]
    assert len({m["cleave_master_step"] for m in seen}) > 3, len(seen)
    grew(seen)
    for m in seen:
        step = m["cleave_master_step"]
        assert m['cleave_master_steps_total{result="applied"}'] == step == m["cleave_master_step_seconds_count"], m
        assert m['cleave_master_steps_total{result="skipped"}'] == 0 and m["cleave_master_target_steps"] == steps
        assert m["cleave_master_samples_total"] == step * BATCH
        line = log[step]
        for name, key in (("loss", "loss"), ("learning_rate", "lr"), ("gradient_norm", "grad_norm")):
            assert math.isclose(m["cleave_master_" + name], line[key], rel_tol=1e-8), (name, m, line)
        phases = [v for k, v in m.items() if k.startswith("cleave_master_step_phase_seconds_total")]
        assert len(phases) == 4 and math.isclose(sum(phases), m["cleave_master_step_seconds_sum"], rel_tol=1e-9)
        assert m.get("cleave_master_checkpoint_step", 0) == min(step // 32 * 32, 64) or step in (32, 64, 80), m
    workers = [[w[i] for w in watcher.workers] for i in (0, 1)]
    for i in (0, 1):
        grew([before[i], *workers[i], numbers(cluster.pages[i])])
    now = [numbers(p) for p in cluster.pages]
    change = lambda i, name: now[i][name] - before[i].get(name, 0)
    for i in (0, 1):
        assert change(i, f"cleave_worker_steps_total{{{ME}}}") == steps
        assert change(i, f"cleave_worker_backwards_total{{{ME}}}") == steps * MICRO
        assert change(i, f"cleave_worker_forwards_total{{{ME}}}") == steps * MICRO
        assert change(i, f"cleave_worker_compute_seconds_total{{{ME}}}") > 0
        assert change(i, f"cleave_worker_input_wait_seconds_total{{{ME}}}") > 0
        assert now[i][f"cleave_worker_sessions{{{ME}}}"] == 0 == now[i][f"cleave_worker_memory_bytes{{{ME}}}"]
        assert max(w[f"cleave_worker_sessions{{{ME}}}"] for w in workers[i]) == 1
        assert max(w[f"cleave_worker_memory_bytes{{{ME}}}"] for w in workers[i]) > 1000
        # no label has the name of a session, which its master chooses
        assert "agree" not in get(cluster.pages[i])[1]
    # Bytes equal those of the audit line and of the other end, and are at least those of the
    # tensors.
    link = lambda i, peer, way: change(i, f'cleave_worker_link_bytes_total{{link="{peer}",direction="{way}"}}')
    audit = re.search(r"audit close session=agree .*bytes_in=(\d+) bytes_out=(\d+)", cluster.workers[0].text()[since:])
    for way, bytes_ in (("in", int(audit.group(1))), ("out", int(audit.group(2)))):
        total = link(0, "master", way) + link(0, "w2", way)
        assert 0 <= total - bytes_ < 4096, (way, total, bytes_)
    for a, b in ((0, 1), (1, 0)):
        out, came = link(a, f"w{b + 1}", "out"), link(b, f"w{a + 1}", "in")
        assert abs(out - came) < 4096, (a, out, came)  # difference: messages at the end of the run
    rows = egress_rows(os.path.join(cluster.dir, "runs", "agree"))
    sent = sum(r["bytes"] for r in rows if r["from"] == "master")
    came = link(0, "master", "in") + link(1, "master", "in")
    assert sent > 100000 and sent <= came < 1.05 * sent + 1500 * steps, (sent, came)


def windows_of(port, windows):
    """(steps, wake-ups, received messages, sent messages, seconds) of a worker in consecutive
    windows."""
    def look():
        n = numbers(port)
        messages = [n[f'cleave_worker_link_messages_total{{link="master",direction="{way}"}}'] for way in ("in", "out")]
        return n[f"cleave_worker_steps_total{{{ME}}}"], n[f"cleave_worker_thread_wakeups_total{{{ME}}}"], *messages, time.monotonic()
    seen = [look()]
    for _ in range(windows):
        time.sleep(0.08)
        seen.append(look())
    return [tuple(b - a for a, b in zip(*pair)) for pair in zip(seen, seen[1:])]


@suite.test
def small_step_takes_two_messages_each_way_and_two_wakeups():
    """A step sends a message with the input, its CALL, its PREPARE and the end of the step before,
    and one with the gradient. The worker answers with the value and ENDED, and with the gradient
    and FINISHED. Further messages: up to five steps a second are traced, and the master waits for
    their end; CREDIT frames; and separate messages for work that takes long on a busy machine."""
    if SANITIZED:
        return "a sanitized program is slow, and what rides is split"
    write_npy(os.path.join(cluster.dir, "data", "mlp_x.npy"), (320, 16), "<f4", struct.pack("<5120f", *(i % 97 / 97 for i in range(5120))))
    write_npy(os.path.join(cluster.dir, "data", "mlp_y.npy"), (320, 1), "<f4", struct.pack("<320f", *[0, 1] * 160))
    session = cluster.session("wakes", "data: {format: npy, root: data, train: [mlp_x.npy, mlp_y.npy]}\n"
                              "stages:\n  - {name: a, at: master, layers: [{op: linear, out: 8}, {op: relu}]}\n"
                              "  - {name: b, at: w1, layers: [{op: linear, out: 1}, {op: sigmoid}]}\n"
                              "loss: {kind: bce}\ntrain: {batch: 32, epochs: 1000000, optimizer: {kind: sgd, lr: 0.5}}\n"
                              "privacy: {raw_input_leaves: true, labels_readable: true}\n", keys="")
    key = f"cleave_worker_steps_total{{{ME}}}"
    before = numbers(cluster.pages[0])[key]
    with Running([MASTER, "train", session], cwd=cluster.dir):
        until(lambda: numbers(cluster.pages[0])[key] > before + 50)
        windows = [w for w in windows_of(cluster.pages[0], 16) if w[0] > 4]
    wakes = sorted((wakes - 100 * s - 2 * (1 + 5 * s)) / steps for steps, wakes, _, _, s in windows)
    assert windows and wakes[len(wakes) // 2] <= 2.1, windows
    for way in (2, 3):
        messages = sorted((w[way] - 4 * (1 + 5 * w[4])) / w[0] for w in windows)
        assert messages[len(messages) // 2] <= 2.5, (way, windows)


@suite.test
def counters_never_fall_when_a_session_is_cut_off():
    with Training("cut", ENDLESS, set=[waiting(150)]) as run:
        run.wait_for_step(1)
        seen = [numbers(cluster.pages[0])]
        run.process.kill()
        until(lambda: seen.append(numbers(cluster.pages[0])) or seen[-1][f"cleave_worker_sessions{{{ME}}}"] == 0)
        for _ in range(40):  # the session's thread still computes
            seen.append(numbers(cluster.pages[0]))
            time.sleep(0.01)
    grew(seen)


@suite.test
def status_matches_the_metrics():
    with Training("same", ENDLESS) as run, Caller(cluster.ports[0], cluster.certs, "watch") as c:
        run.wait_for_step(3)
        before = numbers(cluster.pages[0])
        run.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(0.3)  # for messages in flight
            said, n = c.stub.Status(pb.StatusRequest(), timeout=20 * SLOW), numbers(cluster.pages[0])
        finally:
            run.process.send_signal(signal.SIGCONT)
        s, = said.sessions
        assert said.open_sessions == 1 and s.memory_bytes > 0 and s.modules[0].forwards > 0
        same = {"sessions": 1, "memory_bytes": s.memory_bytes, "contexts": s.contexts, "values": s.values,
                "owned_references": s.references_owned, "used_references": s.references_used,
                "pending_reference_messages": s.references_pending, "calls_waiting": s.calls_waiting}
        for name, value in same.items():
            assert n[f"cleave_worker_{name}{{{ME}}}"] == value, (name, value, n)
        assert n["cleave_worker_certificate_expiry_timestamp_seconds"] == said.certificate_ends
        assert n["cleave_worker_connections"] == said.connections > 1
        failed = sum(v for k, v in n.items() if k.startswith("cleave_worker_handshake_failures_total"))
        assert failed == said.handshake_failures
        for l in s.links:  # allows for the PING of status itself
            for way, value in (("in", l.bytes_in), ("out", l.bytes_out)):
                key = f'cleave_worker_link_bytes_total{{link="{l.peer or "master"}",direction="{way}"}}'
                assert n[key] >= value and before[key] <= n[key], (key, n[key], value)


def phases_of(name, steps, **options):
    with Training(name, ENDLESS, "checkpoint: {every_steps: 1000000}\n", pace_ms=0, **options) as run:
        # by these steps the metrics have been read
        first, m = run.wait_for_step(6), run.wait_for_step(6 + steps)
        run.process.send_signal(signal.SIGINT)
        run.process.wait(30 * SLOW)
    key = 'cleave_master_step_phase_seconds_total{phase="%s"}'
    found = {k: m[key % k] - first[key % k] for k in ("compute", "network", "peer", "other")}
    return {k: v / sum(found.values()) for k, v in found.items()}, m


def waiting(ms):
    """A session body whose stage at w1 takes `ms` for forward and for backward each."""
    return ("stages.1.layers=[{op: conv2d, out: 4, kernel: 3}, {op: relu}, "
            f"{{op: wait, forward_ms: {ms}, input_ms: {ms}, weight_ms: 0}}]")


@suite.test
def phase_metric_names_what_the_master_waits_for():
    if SANITIZED:
        return "a sanitized program waits for itself"
    share, m = phases_of("slow-peer", 8, set=[waiting(10), "pipeline.window=textbook"])
    assert share["peer"] > 0.6, share
    with DelayProxy(cluster.ports[0], 20) as one, DelayProxy(cluster.ports[1], 20) as two:
        share, m = phases_of("slow-network", 5, set=[f"workers.w1.address=127.0.0.1:{one.port}",
                                                      f"workers.w2.address=127.0.0.1:{two.port}"])
    assert share["network"] > 0.6, share
    assert m['cleave_master_link_round_trip_seconds{worker="w1"}'] >= 0.04, m


# ---- TLS and quotas ------------------------------------------------------------------------------

def tls(name="master", ca="ca.pem", certs=None, version=ssl.TLSVersion.TLSv1_3):
    """A handshake as a client, whose result the worker counts."""
    certs = certs or cluster.certs
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname = False
    c.minimum_version = c.maximum_version = version
    c.load_verify_locations(os.path.join(certs, ca))
    if name:
        c.load_cert_chain(os.path.join(certs, name + ".pem"), os.path.join(certs, name + ".key"))
    c.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", cluster.ports[0]), 10) as s, c.wrap_socket(s) as t:
            t.settimeout(10 * SLOW)
            t.recv(100)
    except OSError:
        pass


def plain(data, wait=True):
    with socket.create_connection(("127.0.0.1", cluster.ports[0]), 10) as s:
        s.settimeout(30 * SLOW)
        s.sendall(data)
        while wait and s.recv(4096):
            pass


def failures():
    return {re.search(r'reason="([a-z_]+)"', k).group(1): v for k, v in numbers(cluster.pages[0]).items()
            if k.startswith('cleave_worker_handshake_failures_total{side="caller"')}


@suite.test
def failed_handshakes_are_counted_by_reason():
    forge(cluster.certs, "expired", [("URI", "spiffe://test/master")], end="20210101000000Z")
    forge(cluster.certs, "future", [("URI", "spiffe://test/master")], begin="20480101000000Z")
    other = os.path.join(cluster.dir, "other-ca")
    assert master("certs", "init", "--dir", other).returncode == 0
    assert master("certs", "issue", "master", "--dir", other, "--uri", "spiffe://test/master").returncode == 0
    shutil.copy(os.path.join(cluster.certs, "ca.pem"), os.path.join(other, "right-ca.pem"))
    cases = [("expired", lambda: tls("expired")),
             ("bad_certificate", lambda: tls("future")),
             ("unknown_ca", lambda: tls("master", "right-ca.pem", other)),
             ("no_certificate", lambda: tls(None)),
             ("tls_version", lambda: tls(version=ssl.TLSVersion.TLSv1_2)),
             ("refused_by_peer", lambda: tls("master", "ca.pem", other)),
             ("closed", lambda: plain(b"GET / HTTP/1.1\r\n\r\n")),
             ("closed", lambda: plain(b"", wait=False)),
             ("timeout", lambda: plain(b""))]
    done = numbers(cluster.pages[0])["cleave_worker_handshakes_total"]
    for reason, do in cases:
        before = failures()
        do()
        changed = until(lambda: {k: v - before[k] for k, v in failures().items() if v != before[k]})
        assert changed == {reason: 1}, (reason, changed)
    assert numbers(cluster.pages[0])["cleave_worker_handshakes_total"] == done


def refused_calls(reason):
    return numbers(cluster.pages[0])[f'cleave_worker_refused_calls_total{{reason="{reason}"}}']


@suite.test
def refused_calls_and_sessions_are_counted():
    forge(cluster.certs, "two", [("URI", "spiffe://test/master"), ("URI", "spiffe://test/stranger")])
    cluster.issue("stranger", "spiffe://test/stranger")
    for name, ask in (("two", Caller.hello), ("stranger", Caller.hello), ("watch", Caller.open)):
        def count():
            return refused_calls("not_allowed") if name == "watch" else failures()["not_allowed"]
        before = count()
        with Caller(cluster.ports[0], cluster.certs, name=name) as c:
            try:
                ask(c)
                raise AssertionError("it was answered")
            except grpc.RpcError:
                pass
        until(lambda: count() == before + 1)
    # identity with a quota of one session
    with Caller(cluster.ports[0], cluster.certs, name="other") as c:
        c.hello()
        held = c.open(name='x"} 1 y{z="')
        # the worker is done with a call a moment after its caller
        until(lambda: numbers(cluster.pages[0])["cleave_worker_active_calls"] == 0)
        n = numbers(cluster.pages[0])
        assert n[f"cleave_worker_identity_sessions_limit{{{OTHER}}}"] == 1, n
        assert n[f"cleave_worker_identity_memory_limit_bytes{{{OTHER}}}"] == 256 << 20, n
        assert f"cleave_worker_identity_sessions_limit{{{ME}}}" not in n, n
        assert n[f"cleave_worker_sessions{{{OTHER}}}"] == 1 and n["cleave_worker_active_calls"] == 0, n
        try:
            c.open(name="second")
            raise AssertionError("a second session was opened")
        except grpc.RpcError:
            pass
        assert numbers(cluster.pages[0])['cleave_worker_refused_sessions_total{reason="quota"}'] == 1
        held.close()


@suite.test
def reloads_are_counted():
    name = 'cleave_worker_reloads_total{result="%s"}'
    end = "cleave_worker_certificate_expiry_timestamp_seconds"
    before = numbers(cluster.pages[0])
    assert 364 < (before[end] - time.time()) / 86400 < 366
    cluster.issue("w1", "spiffe://test/w1", "--days", "10", "--force")
    cluster.workers[0].kill(signal.SIGHUP)
    after = until(lambda: (lambda n: n[name % "ok"] == 1 and n)(numbers(cluster.pages[0])))
    assert 9 < (after[end] - time.time()) / 86400 <= 10, after[end]
    os.rename(os.path.join(cluster.certs, "w1.key"), os.path.join(cluster.certs, "away.key"))
    cluster.workers[0].kill(signal.SIGHUP)
    until(lambda: numbers(cluster.pages[0])[name % "failed"] == 1)
    assert numbers(cluster.pages[0])[end] == after[end]
    os.rename(os.path.join(cluster.certs, "away.key"), os.path.join(cluster.certs, "w1.key"))


# ---- health, other requests to the port ----------------------------------------------------------

@suite.test
def metrics_port_serves_only_three_pages():
    page = cluster.pages[0]
    assert get(page, "/healthz")[:2] == (200, "ok\n") and get(page, "/readyz")[:2] == (200, "ready\n")
    assert get(page, "/")[0] == get(page, "/metrics/")[0] == get(page, "/debug/pprof")[0] == 404
    assert get(page, "/metrics", "POST")[0] == get(page, "/healthz", "DELETE")[0] == 405
    status, text, _ = get(page, "/metrics", "HEAD")
    assert status == 200 and text == ""


@suite.test
def a_draining_worker_is_not_ready():
    with Training("drained", ENDLESS) as run:
        run.wait_for_step(2)
        worker, page = cluster.workers[1], cluster.pages[1]
        worker.kill(signal.SIGTERM)
        until(lambda: get(page, "/readyz")[0] == 503)
        assert get(page, "/readyz")[1] == "draining: takes no new sessions, 1 open\n"
        assert get(page, "/healthz")[0] == 200 and numbers(page)["cleave_worker_ready"] == 0
        assert run.numbers()["cleave_master_step"] > 0  # the run continues
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(30 * SLOW) == 130
        assert worker.process.wait(10 * SLOW) == 0
    cluster.restart(1)


@suite.test
def metrics_port_is_closed_by_default():
    def listening(pid):
        sockets = {}
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{table}") as f:
                rows = [l.split() for l in f.readlines()[1:]]
            sockets.update({r[9]: int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A"})
        descriptors = f"/proc/{pid}/fd"
        fds = [os.readlink(os.path.join(descriptors, fd)) for fd in os.listdir(descriptors)]
        return {port for inode, port in sockets.items() if f"socket:[{inode}]" in fds}
    if not os.access(f"/proc/{cluster.workers[0].process.pid}/fd", os.R_OK):
        return "only root may see the descriptors of a process that cannot be dumped"
    assert listening(cluster.workers[0].process.pid) == {cluster.ports[0], cluster.pages[0]}
    with Training("listens", ENDLESS) as run:
        run.wait_for_step(1)
        assert listening(run.process.pid) == {run.port}
    session = cluster.session("silent", body(ENDLESS))
    with Running([MASTER, "train", session], cwd=cluster.dir) as run:
        until(lambda: os.path.exists(os.path.join(cluster.dir, "runs", "silent", "egress.jsonl")))
        assert not listening(run.process.pid)
        with open(f"/proc/{run.process.pid}/maps") as f:
            assert "libmicrohttpd" not in f.read()


@suite.test
def public_metrics_address_gives_a_warning():
    for command in ("check", "plan"):
        for host, told in (("0.0.0.0", True), ("127.0.0.1", False), ("[::1]", False), ("localhost", False)):
            done = master(command, cluster.session("open", body(1) + listen(9102, host)), cwd=cluster.dir)
            assert done.returncode == 0, done.stderr
            warned = re.search(r"warning: .*open.yaml:\d+:\d+: metrics.listen is 0.0.0.0:9102", done.stderr)
            assert bool(warned) == told, done.stderr
            assert told or not done.stderr, done.stderr
    done = master("check", cluster.session("wrong", body(1) + "metrics: {port: 1}\n"), cwd=cluster.dir)
    assert done.returncode == 3 and "listen" in done.stderr, done.stderr
    done = cluster.train(cluster.session("taken", body(1, cluster.pages[0])))
    assert done.returncode == 4 and f"metrics.listen: cannot listen on '127.0.0.1:{cluster.pages[0]}'" in done.stderr, done.stderr
    config = os.path.join(cluster.dir, "w1.yaml")
    done = run(WORKER, "serve", "--config", config, "--set", "listen=127.0.0.1:0")
    assert done.returncode == 4 and f"metrics.listen: cannot listen on '127.0.0.1:{cluster.pages[0]}'" in done.stderr, done.stderr


# ---- alerts and the dashboard --------------------------------------------------------------------

def exposed():
    """{sample name: labels in Prometheus} of each metric with a HELP line, of workers and of a
    master."""
    with Training("names", ENDLESS, "checkpoint: {every_steps: 1}\n") as run:
        late = {"cleave_master_checkpoint_step", 'cleave_master_link_round_trip_seconds{worker="w1"}'}
        until(lambda: late <= set(run.numbers()))
        texts = [get(p)[1] for p in (*cluster.pages, run.port)]
    kinds = dict(m for t in texts for m in re.findall(r"^# TYPE (\S+) (\S+)$", t, re.M))
    # Metrics that are omitted if worker.yaml does not have their key.
    kinds["cleave_worker_memory_limit_bytes"] = "gauge"
    kinds["cleave_worker_revocation_list_expiry_timestamp_seconds"] = "gauge"
    labels = {k + s: {"instance", "job"} for k, kind in kinds.items()
              for s in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))}
    for line in "".join(texts).splitlines():
        if not line.startswith("#"):
            name, inside, _ = SAMPLE.match(line).groups()
            labels[name] |= set(re.findall(r'([a-z_]+)="', inside or ""))
    return labels


def names_used(expression):
    return set(re.findall(r"\b(?:cleave|process)_[a-z_]+\b", re.sub(r'"[^"]*"', "", expression)))


@suite.test
def alerts_and_dashboard_use_existing_metrics():
    for command in (("check", "config", "deploy/prometheus/prometheus.yaml"), ("test", "rules", TEST_RULES)):
        done = promtool(*command)
        assert done.returncode == 0 and "FAILED" not in done.stdout, done.stdout
    labels = exposed()
    there = set(labels)
    with open(os.path.join(ROOT, RULES)) as f:
        text = f.read()
    alerts = set(re.findall(r"alert: (\w+)", text))
    with open(os.path.join(ROOT, TEST_RULES)) as f:
        assert alerts == set(re.findall(r"alertname: (\w+)", f.read()))
    with open(os.path.join(ROOT, "deploy/grafana/cleave.json")) as f:
        board = json.load(f)
    expressions = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
    expressions += [v["query"] for v in board["templating"]["list"]]
    assert len(expressions) > 30
    for used in [names_used(e) for e in expressions] + [names_used(re.sub(r"annotations:.*", "", text))]:
        assert used <= there, used - there
    for t in (t for p in board["panels"] for t in p.get("targets", [])):
        has = set.intersection(*(labels[n] for n in names_used(t["expr"]))) if names_used(t["expr"]) else {"instance"}
        needs = set(re.findall(r"{{(\w+)}}", t["legendFormat"])) | set(re.findall(r"[{,] *(\w+)=", t["expr"]))
        needs |= {l.strip() for g in re.findall(r"by \(([^)]*)\)", t["expr"]) for l in g.split(",")}
        assert needs <= has, (t, needs - has)
    asked = [t["expr"].replace("$worker", "w").replace("$master", "m") for p in board["panels"] for t in p.get("targets", [])]
    path = os.path.join(cluster.dir, "asked.yaml")
    with open(path, "w") as f:
        json.dump({"groups": [{"name": "x", "rules": [{"record": f"x{i}", "expr": e} for i, e in enumerate(asked)]}]}, f)
    done = promtool("check", "rules", RULES, path)
    assert done.returncode == 0, done.stdout


@suite.test
def a_prometheus_scrapes_workers_and_a_master():
    p = prometheus
    with Training("scraped", ENDLESS, port=p.master) as run:
        run.wait_for_step(20)
        for port in (*cluster.pages, run.port):
            done = promtool("check", "metrics", text=get(port)[1])
            assert done.returncode == 0 and not done.stdout, done.stdout
        until(lambda: len(p.query("up == 1")) == 3)
        targets = p.ask("targets")["activeTargets"]
        assert all(t["health"] == "up" and not t["lastError"] for t in targets), targets
        speed = until(lambda: [v for _, v in p.query("sum(rate(cleave_master_steps_total[10s]))") if v > 0])
        assert speed[0] < 10000
        assert 0 < p.query("histogram_quantile(0.5, cleave_master_step_seconds_bucket)")[0][1] < 10
        direct = until(lambda: p.query(f'cleave_worker_link_bytes_total{{instance="127.0.0.1:{cluster.pages[0]}", '
                                       'link="w2", direction="out"} > 0'))
        assert direct[0][0]["job"] == "cleave-worker", direct
        about = p.ask("metadata", metric="cleave_master_step_phase_seconds_total")
        assert [m["type"] for m in about["cleave_master_step_phase_seconds_total"]] == ["counter"], about
        rules = [r for g in p.ask("rules")["groups"] for r in g["rules"]]
        until(lambda: all(r["health"] == "ok" for g in p.ask("rules")["groups"] for r in g["rules"]))
        firing = {r["name"] for r in rules if r["state"] == "firing"}
        # Alerts due to the tests before: a certificate of ten days, a reload without a key, a
        # quota.
        before = {"CleaveCertificateExpires", "CleaveReloadFailed", "CleaveSessionsRefused"}
        assert len(rules) == 14 and firing <= before, firing
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(30 * SLOW) == 130


if __name__ == "__main__":
    if pyclient.MISSING:
        print("skip metrics:", pyclient.MISSING)
    elif not shutil.which("prometheus") or not shutil.which("promtool"):
        print("skip metrics: prometheus and promtool are needed (Debian: prometheus)")
    else:
        allow = "  - {identity: \"spiffe://test/other\", role: master, sessions: 1}\n"
        allow += "  - {identity: \"spiffe://test/watch\", role: observer}\n"
        timeout_ms = int(500 * SLOW * (10 if SANITIZED else 1))
        with Measured(2, f"limits: {{handshake_timeout: {timeout_ms}ms, peer_timeout: {3 * SLOW:g}s, lease: {5 * SLOW:g}s}}\ndrain_timeout: 60s\n",
                      extra_allow=allow.replace("sessions: 1", "sessions: 1, bytes: 256MiB"),
                      env={"CLEAVE_TEST_OPS": "1"}) as cluster:
            os.environ["CLEAVE_TEST_OPS"] = "1"
            for name in ("other", "watch"):
                cluster.issue(name, f"spiffe://test/{name}")
            os.makedirs(os.path.join(cluster.dir, "data"))
            synthetic_images(os.path.join(cluster.dir, "data"), n=20 * BATCH)
            with Prometheus() as prometheus:
                suite.main()
