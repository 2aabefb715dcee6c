"""cleave-master status: three sessions on two of three workers (one computes, one waits for a slow
link, one is idle and belongs to another identity), seen by a master and by an observer; a dead
worker; --watch on a terminal and without."""
import fcntl, json, os, pty, re, select, signal, ssl, struct, subprocess, sys, termios, threading, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from forge import forge
from links import DelayProxy
import pyclient

suite = Suite()
TESTING = {"CLEAVE_TEST_OPS": "1"}
ALLOW = ('  - {identity: "spiffe://test/other", role: master}\n'
         '  - {identity: "spiffe://test/eye", role: observer}\n')
ODD = 'q"\\ {x="1"} \u202e \u00e9 <b>' + "n" * 40  # a module's name
EYE = ("--set", "tls.cert=certs/eye.pem", "--set", "tls.key=certs/eye.key")


def body(worker, layer, out, batch, extra=""):
    return (IMAGE_DATA + "stages:\n"
            f"  - {{name: front, at: master, layers: [{{op: flatten}}, {{op: linear, out: {out}}}]}}\n"
            f"  - {{name: back, at: {worker}, layers: [{layer}, {{op: linear, out: 10}}]}}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 1000000, batch: {batch}, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {{kind: sgd, lr: 1e-6}}}}\n"
            "pipeline: {micro_batches: 1}\n" + extra)


class Train:
    """A run that continues until the end of the block."""

    def __init__(self, c, name, text):
        self.session = c.session(name, text)
        self.log = open(os.path.join(c.dir, name + ".out"), "w+")
        self.process = subprocess.Popen([MASTER, "train", self.session], cwd=c.dir, stdout=self.log, stderr=self.log,
                                        env=dict(os.environ, **TESTING), stdin=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def status(*args, code=0, session="busy", interval="0.3"):
    done = master("status", os.path.join(c.dir, session + ".yaml"), "--interval", interval, *args, cwd=c.dir)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def look(*args, **options):
    """{worker: row} of status --json."""
    return {row["worker"]: row for row in map(json.loads, status("--json", *args, **options).splitlines())}


def sessions(rows, worker):
    return {s["session"]: s for s in rows[worker]["sessions"]}


def diagnosis_of(name, worker, pattern, interval):
    def ask():
        s = sessions(look(code=4, interval=interval), worker).get(name)
        return s if s and re.search(pattern, s["diagnosis"]) else None
    return until(ask)


@suite.test
def computing_session_is_diagnosed_as_computing():
    def once_pinged():  # a link has no round-trip time until its first PONG
        s = diagnosis_of("busy", "w1", r"^computing (9\d|100) %", "0.3")
        return s if s["links"][0]["round_trip_ms"] is not None else None

    s = until(once_pinged)
    assert s["identity"] == "spiffe://test/master" and s["attached"] and s["last_error"] is None, s
    assert s["computing"] > 0.9 and s["waiting"] < 0.1, s
    (m,) = s["modules"]
    assert m["stage"] == m["name"] == "back" and m["module"] == 1 and m["forwards"] > 0 and m["computing"] > 0.8, m
    (link,) = s["links"]
    assert link["peer"] == "master" and 0 < link["round_trip_ms"] < 80, link
    assert s["memory_bytes"] > 1024 and s["memory_limit_bytes"] == 64 << 30, s


@suite.test
@alone("a link's round trip and speed")
@measured
def a_slow_link_is_named_with_its_speed_and_round_trip():
    s = diagnosis_of("slow", "w2", r"^waiting for the master \d+ %: link .* round trip", "1")
    match = re.search(r"link (?:([\d.]+) Mbit/s in)?(?:, )?(?:([\d.]+) Mbit/s out)?, (\d+) ms round trip", s["diagnosis"])
    assert match, s["diagnosis"]
    speeds = [float(v) for v in match.groups()[:2] if v]
    assert speeds and all(4 <= v <= 40 for v in speeds), s["diagnosis"]  # of 12, over a second
    assert 80 <= int(match.group(3)), s["diagnosis"]
    link = s["links"][0]
    assert link["round_trip_ms"] >= 80 and link["waiting"] > 0.2, link
    assert link["receiving"] + link["sending"] > 0.49 * link["waiting"], link


@suite.test
def counters_grow_between_two_calls():
    until(lambda: all(sessions(look(code=4), worker).get(name, {}).get("modules")
                      for name, worker in (("busy", "w1"), ("slow", "w2"))))
    first = look(code=4)
    second = look(code=4)
    for name, worker in (("busy", "w1"), ("slow", "w2")):
        a, b = sessions(first, worker)[name], sessions(second, worker)[name]
        assert b["bytes_in"] > a["bytes_in"] and b["bytes_out"] > a["bytes_out"], (a, b)
        assert b["age_s"] > a["age_s"] and b["modules"][0]["steps"] >= a["modules"][0]["steps"], (a, b)
    w = second["w1"]
    assert w["name"] == "w1" and w["software"].startswith("cleave ") and w["protocol"] >= 2, w
    assert w["device"] == "cpu" and w["cores"] >= 1 and w["isa"] and w["uptime_s"] > 0, w
    assert re.fullmatch(r"oneDNN \S+, .*OpenBLAS.*, choices [0-9a-f]{12}", w["libraries"]), w
    assert w["sessions_limit"] == 8 and 300 < w["certificate_days"] < 370 and not w["draining"], w
    eye = look(*EYE, code=4)["w1"]
    assert eye["connections"] >= 3 and eye["connections_limit"] == 256 and eye["resident_bytes"] > 1 << 20, eye


@suite.test
def modules_show_the_names_of_their_programs():
    """Names of a run of another session file, and of another program. Special characters in a name
    neither reach a terminal nor break the JSON; a name that is no text or too long is refused."""
    (m,) = until(lambda: sessions(look(*EYE, code=4), "w2").get("slow", {}).get("modules"))
    assert m["name"] == "back" and m["stage"] is None, m
    text = status(*EYE, code=4)
    assert re.search(r"^    module back  \d+ steps?, ", text, re.M), text
    assert re.search(r"^    stage back  \d+ steps?, ", text, re.M), text
    if pyclient.MISSING:
        return pyclient.MISSING
    (m,) = sessions(look(*EYE, code=4), "w1")["idle"]["modules"]
    assert m["name"] == ODD and m["stage"] is None, m
    assert "module " + "".join(c if " " <= c <= "~" else "?" * len(c.encode()) for c in ODD) in text, text
    for name, why in (("n" * 129, "129 bytes of module name"), ("a\033[2Jb", "control character"),
                      ("a\nb", "control character"), ("\u009b31m", "control character")):
        try:
            other.load(pyclient.mlp(4, 2), [4, 3], module=9, name=name)
            raise AssertionError(f"{name!r} was accepted")
        except pyclient.grpc.RpcError as e:
            assert why in e.details(), e.details()


@suite.test
def status_command_matches_the_status_reply():
    """The figures equal those that another client gets in StatusReply."""
    if pyclient.MISSING:
        return pyclient.MISSING
    with pyclient.Caller(c.ports[0], c.certs, "eye") as eye:
        reply = eye.stub.Status(pyclient.pb.StatusRequest(), timeout=20 * SLOW)
    by_name = {s.name: s for s in reply.sessions}
    assert reply.sees_all and sorted(by_name) == ["busy", "idle"], reply
    busy = by_name["busy"]
    total = busy.busy_ns + busy.idle_ns + busy.turn_ns
    assert 0.5 < total / (busy.age_ms * 1e6) <= 1.01, busy  # its thread began with the first module
    assert busy.links[0].peer == "" and busy.links[0].measured_ns > 0 and busy.links[0].awaits > 0, busy


@suite.test
def every_status_key_is_documented():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy/STATUS.md")) as f:
        explained = set(re.findall(r"`(\w+)`", f.read()))
    w = look(code=4)["w1"]
    s = w["sessions"][0]
    for said in (w, s, s["modules"][0], s["links"][0]):
        assert not said.keys() - explained, said.keys() - explained


@suite.test
def master_sees_its_own_sessions_and_an_observer_all():
    text = status("--json", code=4)
    # neither the identity nor the name
    assert "test/other" not in text and '"idle"' not in text, text
    rows = look(code=4)
    assert sorted(sessions(rows, "w1")) == ["busy"] and rows["w1"]["sessions_open"] == 1, rows
    assert not rows["w1"]["sees_all_sessions"]
    for key in ("resident_bytes", "connections", "connections_limit", "handshake_failures"):
        assert rows["w1"][key] is None, (key, rows["w1"])
    assert rows["w1"]["memory_bytes"] == sessions(rows, "w1")["busy"]["memory_bytes"], rows
    rows = look(*EYE, code=4)
    seen = sessions(rows, "w1")
    assert sorted(seen) == ["busy", "idle"] and rows["w1"]["sees_all_sessions"], rows
    assert rows["w1"]["sessions_open"] == 2, rows
    assert seen["idle"]["identity"] == "spiffe://test/other", seen
    assert seen["idle"]["diagnosis"] == "idle: its master asks for nothing", seen
    text = status(code=4)
    assert "of others" not in text and "resident" not in text and "connections" not in text, text
    assert "resident" in (text := status(*EYE, code=4)) and "connections" in text, text


@suite.test
def errors_are_shown_only_to_their_owner_and_observers():
    """The refusal of a stranger is shown to the observer and not to the master. The failure of
    another's session is shown to its master and the observer."""
    done = master("status", os.path.join(c.dir, "busy.yaml"), "--set", "tls.cert=certs/nobody.pem",
                  "--set", "tls.key=certs/nobody.key", cwd=c.dir)
    said = re.sub(r"\s+", " ", done.stdout)
    assert done.returncode == 4 and "add identity spiffe://test/nobody to `allow`" in said, done
    assert "REFUSES US" in said and said.count("DOES NOT ANSWER") == 1, done  # w3 is dead
    assert "spiffe://test/nobody" in look(*EYE, code=4)["w1"]["last_error"]["text"]
    assert look(code=4)["w1"]["last_error"] is None
    if pyclient.MISSING:
        return pyclient.MISSING
    other.lanes[0].send(pyclient.pb.Frame(kind=pyclient.pb.CALL, context=9, message=99, module=77,
                                          call=pyclient.pb.Call(args=[pyclient.pb.Arg(value=1)])))
    other.lanes[0].send(pyclient.pb.Frame(kind=pyclient.pb.DELIVER, context=9, message=99))
    told = until(lambda: sessions(look(*EYE, code=4), "w1")["idle"]["last_error"])
    assert "module 77 is not loaded at this node" in told["text"] and told["age_s"] < 20 * SLOW, told
    assert "module 77" not in status("--json", code=4)


@suite.test
def a_dead_worker_has_a_row_with_the_fix():
    rows = look(code=4)
    assert not rows["w3"]["ok"] and "no process listens on this address" in rows["w3"]["error"], rows["w3"]
    assert "cleave-master doctor" in rows["w3"]["fix"] and rows["w3"]["sessions"] == [], rows["w3"]
    assert rows["w1"]["ok"] and rows["w2"]["ok"]
    text = status(code=4)
    assert re.search(r"^w3  127.0.0.1:\d+  DOES NOT ANSWER$", text, re.M) and "fix:" in text, text
    assert re.search(r"^  session busy  of spiffe://test/master", text, re.M), text
    # exit code 0: both workers of that session answer
    assert status(session="two").count("DOES NOT") == 0


@suite.test
def silent_worker_does_not_delay_the_others():
    """A port that accepts connections but sends nothing has a row, and the other workers answer
    without delay."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        at = f"workers.w3.address=127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        rows = look("--set", at, "--set", "limits.connect_timeout=1s", code=4)
        assert time.monotonic() - begin < 6 * SLOW
        assert rows["w1"]["ok"] and not rows["w3"]["ok"], rows["w3"]


@suite.test
def worker_stopped_during_watch_is_shown_as_not_answering():
    command = [MASTER, "status", os.path.join(c.dir, "two.yaml"), "--watch", "--json", "--interval", "0.2",
               "--set", "limits.connect_timeout=500ms"]
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=c.dir)
    pid = c.workers[1].process.pid
    try:
        until(lambda: (row := json.loads(p.stdout.readline()))["worker"] == "w2" and row["ok"])
        os.kill(pid, signal.SIGSTOP)
        once = subprocess.Popen([*command[:3], "--json"], stdout=subprocess.DEVNULL, cwd=c.dir)
        row = until(lambda: (r := json.loads(p.stdout.readline()))["worker"] == "w2" and not r["ok"] and r)
        once.send_signal(signal.SIGINT)  # Ctrl-C does not wait for an answer
        assert once.wait(timeout=2 * SLOW) == -signal.SIGINT
    finally:
        os.kill(pid, signal.SIGCONT)
        p.terminate()
        p.communicate()
    assert "no answer within 0.5 s" in row["error"] and "stopped" in row["fix"], row


class ExpiredServer:
    """A TLS server with an expired certificate, with which no worker would start."""

    def __init__(self, cluster, name):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(cluster.certs, name + ".pem"), os.path.join(cluster.certs, name + ".key"))
        context.set_alpn_protocols(["h2"])
        self.socket, self.context = socket.socket(), context
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                accepted, _ = self.socket.accept()
            except OSError:
                return
            try:
                self.context.wrap_socket(accepted, server_side=True).close()
            except OSError:
                pass

    def __enter__(self):
        return self.socket.getsockname()[1]

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@suite.test
def each_connection_error_shows_a_fix():
    """A worker of another CA, the wrong worker, one with an expired certificate, a host that does
    not exist, a draining worker, and files that are no session."""
    def refused(error, fix, *args):
        row = look(*args, session="two", interval="0.1", code=4)["w2"]
        assert re.search(error, row["error"]) and re.search(fix, row["fix"]), row

    which = r"cleave-master doctor .*two\.yaml` says which"
    forge(c.certs, "late", [("URI", "spiffe://test/w2"), ("IP", "127.0.0.1")], end="20210101000000Z")
    with Cluster(1, own_ca=True) as strange:
        trust = [w for key, file in (("ca", "ca.pem"), ("cert", "master.pem"), ("key", "master.key"))
                 for w in ("--set", f"tls.{key}={strange.certs}/{file}")]
        refused("not from our CA, or not valid at this time", which, *trust)
    refused("the server is not 'spiffe://test/w9': its certificate names 'spiffe://test/w2'", which,
            "--set", "workers.w2.identity=spiffe://test/w9")
    refused("the name cannot be resolved", r"correct the host in workers\.w2\.address of .*two\.yaml",
            "--set", "workers.w2.address=no-such-host.invalid:7443")
    done = master("status", os.path.join(c.dir, "two.yaml"), "--set", "tls.cert=certs/late.pem",
                  "--set", "tls.key=certs/late.key", cwd=c.dir)
    assert done.returncode == 4 and "expired" in done.stderr and "late.pem" in done.stderr, done
    with ExpiredServer(c, "late") as port:
        refused("not from our CA, or not valid at this time", which, "--set", f"workers.w2.address=127.0.0.1:{port}")
    for text, code, why in ((b"\0\1\2", 3, "odd:1:1: a control character"), (b"- a\n- b\n", 3, "odd:1:"),
                            (b"", 3, "odd:1:1: the file is empty"), (None, 3, "odd: not a regular file")):
        path = os.path.join(c.dir, "odd")
        if text is None:
            os.remove(path)
            os.mkdir(path)
        else:
            with open(path, "wb") as f:
                f.write(text)
        done = master("status", "odd", cwd=c.dir)
        assert done.returncode == code and why in done.stderr, (text, done.stderr)
    done = master("status", "w1.yaml", cwd=c.dir)
    assert done.returncode == 3 and "'listen', which is one of a worker's configuration" in done.stderr, done.stderr
    done = master("status", "a\033[31mb", cwd=c.dir)
    assert done.returncode == 3 and "a?[31mb: No such file" in done.stderr, done


@suite.test
def draining_worker_is_shown_as_draining():
    with Cluster(1) as ending:
        session = ending.session("late", body("w1", "{op: relu}", 8, 32))
        os.mkdir(os.path.join(ending.dir, "data"))
        synthetic_images(os.path.join(ending.dir, "data"), n=64, n_test=8)
        with Train(ending, "long", body("w1", "{op: relu}", 8, 32)):
            def asked():
                return json.loads(master("status", session, "--json", "--interval", "0.1", cwd=ending.dir).stdout)
            until(lambda: asked()["sessions_open"] == 1)
            ending.workers[0].process.terminate()
            until(lambda: asked()["draining"])
            done = master("train", session, cwd=ending.dir)
            assert done.returncode == 4 and "draining: it takes no new sessions until" in done.stderr, done.stderr
        ending.workers[0].process.wait(40 * SLOW)


class Terminal:
    """A program on a terminal of a given width. Does not use fork(), in which the gRPC of Debian 13
    waits for its own threads."""

    def __init__(self, columns, *command, rows=40):
        self.fd, inside = pty.openpty()
        self.process = subprocess.Popen(["setsid", "--ctty", *command], stdin=inside, stdout=inside, stderr=inside, cwd=c.dir,
                                        env=dict(os.environ, TERM="xterm"))
        self.pid = self.process.pid
        os.close(inside)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.text = ""

    def read_until(self, done, seconds=20):
        end = time.monotonic() + seconds * SLOW
        while not done(self.text):
            assert time.monotonic() < end, self.text
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode()
                except OSError:  # the program has ended
                    break

    def finish(self):
        self.read_until(lambda text: False)
        os.close(self.fd)
        return self.process.wait()


@suite.test
def watch_fits_narrow_terminals():
    """Lines are broken at the real width down to 20 columns; below that the terminal cuts them, and
    does not scroll."""
    for columns, most in ((60, 60), (30, 30), (20, 20), (8, 20)):
        t = Terminal(columns, MASTER, "status", os.path.join(c.dir, "two.yaml"), "--watch", "--interval", "0.2")
        frames = lambda text: [f for f in text.split("\033[H")[1:] if "session" in f and "\033[J" in f]
        t.read_until(lambda text: len(frames(text)) >= 2)
        lines = [re.sub(r"\033\[[JK]", "", l) for l in frames(t.text)[-1].split("\r\n")]
        assert max(map(len, lines)) <= most, (columns, lines)
        assert max(map(len, lines)) > most - 8, (columns, lines)  # and uses it
        os.write(t.fd, b"\x03")
        code = t.finish()
        # 4: a worker did not answer in its second
        assert code == 0 or SANITIZED and code == 4, code
        assert t.text.index("\033[?7l") < t.text.index("\033[H") < t.text.index("\033[?7h"), t.text


@suite.test
def watch_redraws_in_place_and_restores_the_terminal():
    t = Terminal(60, MASTER, "status", os.path.join(c.dir, "two.yaml"), "--watch", "--interval", "0.3")
    full = lambda text: [f for f in text.split("\033[H")[1:] if "2 of 2 workers answer" in f and "\033[J" in f]
    t.read_until(lambda text: len(full(text)) >= 3)
    frames = full(t.text)
    lines = [re.sub(r"\033\[[JK]", "", l) for l in frames[-1].split("\r\n")]
    assert max(map(len, lines)) <= 60 and any("session" in l for l in lines), lines
    assert t.text.startswith("\033[?1049h\033[?25l"), t.text[:40]
    os.write(t.fd, b"\x03")
    begin = time.monotonic()
    assert t.finish() == 0
    assert time.monotonic() - begin < 5 * SLOW
    end = t.text[t.text.index("\033[?25h\033[?1049l"):]
    # the last view stays on the screen
    assert "2 of 2 workers answer" in end and "\033[H" not in end, end


@suite.test
def low_window_shows_the_diagnosis_of_every_session():
    """In a low window the details of sessions are omitted before a session is; they are printed
    when the view ends."""
    t = Terminal(80, MASTER, "status", os.path.join(c.dir, "two.yaml"), "--watch", "--interval", "0.3", rows=16)
    whole = lambda text: [f for f in text.split("\033[H")[1:] if "2 of 2 workers answer" in f and "\033[J" in f]
    t.read_until(lambda text: len(whole(text)) >= 3)
    page = whole(t.text)[-1]
    lines = page.split("\r\n")
    assert len(lines) <= 16 and "more lines" not in page and "link to" not in page and "in short" in page, page
    assert re.search(r"session busy.*\n    (computing|waiting)", page) and re.search(r"session slow.*\n    \w", page), page
    os.write(t.fd, b"\x03")
    assert t.finish() == 0
    assert "link to the master" in t.text[t.text.index("\033[?25h\033[?1049l"):]


@suite.test
def watch_without_a_terminal_prints_plain_blocks():
    p = subprocess.Popen([MASTER, "status", os.path.join(c.dir, "two.yaml"), "--watch", "--interval", "0.2"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=c.dir)
    time.sleep(1.2 * min(SLOW, 2))  # a pipe that nobody reads holds a few seconds of it
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=20 * SLOW)
    assert (p.returncode == 0 or SANITIZED and p.returncode == 4) and not err, (p.returncode, err)
    assert "\033" not in out and out.count("2 of 2 workers answer") >= 2, out


@suite.test
def sessions_that_share_a_core_wait_for_it():
    wait = "{op: wait, forward_ms: 15, input_ms: 15, weight_ms: 15}"
    with Cluster(1, limits="cores: [0]\n", env=TESTING) as shared:
        os.mkdir(os.path.join(shared.dir, "data"))
        synthetic_images(os.path.join(shared.dir, "data"), n=64, n_test=8)
        with Train(shared, "one", body("w1", wait, 8, 32)) as one, Train(shared, "two", body("w1", wait, 8, 32)):
            def both():
                done = master("status", one.session, "--json", "--interval", "0.5", cwd=shared.dir)
                seen = sessions({row["worker"]: row for row in map(json.loads, done.stdout.splitlines())}, "w1")
                waiting = [s for s in seen.values() if s["waiting_for_cores"] > 0.3 and s["computing"] > 0.3]
                return seen if len(waiting) == 2 else None
            seen = until(both)
            assert any(re.search(r"waiting for the cores \d+ %: session (one|two) computes", s["diagnosis"])
                       for s in seen.values()), seen


@suite.test
def watch_ends_when_its_output_is_closed():
    """The view ends when its reader has closed, and reports that it cannot write. With a closed
    standard output, the first connection does not get its descriptor."""
    command = [MASTER, "status", os.path.join(c.dir, "two.yaml"), "--watch", "--interval", "0.2"]
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=c.dir)
    assert "2 of 2 workers answer" in p.stdout.readline()
    p.stdout.close()
    assert p.wait(timeout=20 * SLOW) == 0 and not p.stderr.read()
    p.stderr.close()
    for to in (">/dev/full", ">&-"):
        done = subprocess.run(["bash", "-c", f'"$@" {to}', "bash", *command], capture_output=True, text=True, cwd=c.dir,
                              timeout=20 * SLOW)
        assert done.returncode == 1 and "standard output cannot be written" in done.stderr, (to, done)


@suite.test
def invalid_status_options_are_refused():
    done = master("status", os.path.join(c.dir, "two.yaml"), "--interval", "soon", cwd=c.dir)
    assert done.returncode == 2 and "from 0.1 to 3600" in done.stderr, done.stderr
    assert master("status").returncode == 2
    path = c.session("keyless", body("w1", "{op: relu}", 8, 32))
    done = master("status", path, "--set", "tls.key=certs/nothing.key", cwd=c.dir)
    assert done.returncode == 4 and "nothing.key" in done.stderr, done.stderr
    with open(path) as f:
        whole = f.read()
    with open(os.path.join(c.dir, "program.yaml"), "w") as f:  # of a program on libcleave
        f.write(whole[:whole.index("data:")])
    assert "2 of 3 workers answer" in status(session="program", code=4)
    with open(os.path.join(c.dir, "typo.yaml"), "w") as f:
        f.write(whole.replace("batch", "bacth"))
    done = master("status", os.path.join(c.dir, "typo.yaml"), cwd=c.dir)
    assert done.returncode == 3 and "bacth" in done.stderr, done.stderr
    home = os.path.join(c.dir, "home.yaml")
    with open(home, "w") as f:
        f.write(re.sub(r"(?ms)^tls:.*?^data:", "data:", open(path).read()).replace("at: w1", "at: master"))
    done = master("status", home, cwd=c.dir)
    assert done.returncode == 0 and "has no workers to ask" in done.stdout, done


def two(path):
    """Writes the session without its third worker, and with missing data, which status does not
    read."""
    with open(path) as f:
        text = re.sub(r"(?m)^  w3: .*\n", "", f.read()).replace("root: data", "root: nowhere")
    with open(os.path.join(c.dir, "two.yaml"), "w") as f:
        f.write(text)


with Cluster(3, extra_allow=ALLOW, env=TESTING) as c:
    for name in ("other", "eye", "nobody"):
        c.issue(name, f"spiffe://test/{name}")
    os.mkdir(os.path.join(c.dir, "data"))
    synthetic_images(os.path.join(c.dir, "data"), n=256, n_test=8)
    c.workers[2].kill()
    wait = "{op: wait, forward_ms: 60, input_ms: 60, weight_ms: 60}"
    with DelayProxy(c.ports[1], 40, 12) as proxy, Train(c, "busy", body("w1", wait, 8, 32)) as busy:
        direct, c.ports[1] = c.ports[1], proxy.port
        text = body("w2", "{op: relu}", 2048, 64)  # 512 KiB each way
        with Train(c, "slow", text):
            c.ports[1] = direct
            two(busy.session)
            if pyclient.MISSING:
                suite.main()
            with pyclient.Caller(c.ports[0], c.certs, "other") as caller:
                other = caller.open(name="idle")
                other.load(pyclient.mlp(4, 2), [4, 3], name=ODD)
                other.attach()
                suite.main()
