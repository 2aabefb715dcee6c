"""Texts made from the option tables: manual pages, completions, help. Also lines on standard error
as JSON, and exit codes with the page that explains them."""
import functools, json, os, pty, re, select, shutil, signal, socket, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
PAGES = {"cleave-master.1": [MASTER, "man"], "cleave-worker.1": [WORKER, "man"],
         "cleave-session.yaml.5": [MASTER, "man", "cleave-session.yaml"],
         "cleave-egress.policy.yaml.5": [MASTER, "man", "cleave-egress.policy.yaml"],
         "cleave-worker.yaml.5": [WORKER, "man", "cleave-worker.yaml"]}
BODY = ("stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 8}, {op: relu}]}\n"
        "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 1}\n"
        "train: {epochs: 1000, max_steps: 4, batch: 32, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.1}}\n"
        "checkpoint: {every_steps: 2}\n")


@functools.cache
def helped(program):
    """Every command of a program, with the options that its help lists."""
    text = run(program, "--help").stdout
    names = re.findall(r"^  ((?:[a-z]+ ){1,2}) *", text.split("Commands:")[1].split("\n\n")[0], re.M)
    commands = {}
    for name in (n.strip() for n in names):
        words = name.split()
        done = run(program, *words, "--help")
        if done.returncode:  # a command of one word: the second word begins its description
            name, words = words[0], words[:1]
            done = run(program, *words, "--help")
        assert done.returncode == 0, (words, done.stderr)
        commands[name] = re.findall(r"^  (?:-., |    )(--[a-z-]+)", done.stdout, re.M)
    return commands


# ---- manual pages ------------------------------------------------------------------------------

@suite.test
def manual_pages_render_without_warnings():
    for page, command in PAGES.items():
        path = os.path.join(cluster.dir, page)
        with open(path, "w") as f:
            f.write(run(*command).stdout)
        done = run("man", "--warnings", "-E", "UTF-8", "-l", path,
                   env={"LC_ALL": "C.UTF-8", "MANWIDTH": "100"})
        assert done.returncode == 0 and not done.stderr, (page, done.stderr)
        for section in ("NAME", "DESCRIPTION", "SEE ALSO"):
            assert section in done.stdout, (page, section)
    shown = open(os.path.join(cluster.dir, "cleave-master.1")).read().replace("\\-", "-")
    for name, options in helped(MASTER).items():
        assert f".SS {name}\n" in shown and all(o in shown for o in options), name
    for kind, page in (("session", "cleave-session.yaml.5"), ("worker", "cleave-worker.yaml.5")):
        shown = open(os.path.join(cluster.dir, page)).read().replace("\\-", "-")
        folder = os.path.join(cluster.dir, "for-" + kind)
        os.mkdir(folder)
        assert master("init", "--all", cwd=folder).returncode == 0
        keys = set(re.findall(r"^ *#?([a-z_]+):", open(os.path.join(folder, kind + ".yaml")).read(), re.M))
        assert len(keys) > 20
        for key in keys:
            assert re.search(rf"^\\fB(.*\.)?{key}\\fR", shown, re.M), (page, key)
    done = master("man", "cleave-sesion")
    assert done.returncode == 2 and "cleave-session.yaml" in done.stderr, done.stderr


@suite.test
def installed_help_files_match_the_programs():
    share = os.path.join(BIN, "share")
    if not os.path.isdir(share):
        return "the build folder has no share/ (make all)"
    for page, command in PAGES.items():
        with open(os.path.join(share, "man", "man" + page[-1], page)) as f:
            assert f.read() == run(*command).stdout, page
    for program in (MASTER, WORKER):
        name = os.path.basename(program)
        for path, shell in ((f"bash-completion/completions/{name}", "bash"), (f"zsh/site-functions/_{name}", "zsh")):
            with open(os.path.join(share, path)) as f:
                assert f.read() == run(program, "completion", shell).stdout, path


# ---- completion --------------------------------------------------------------------------------

BASH = "/usr/share/bash-completion/bash_completion"


@functools.cache
def scripts():
    """Makes a data folder with both completion scripts, as installed."""
    folder = os.path.join(cluster.dir, "share")
    where = os.path.join(folder, "bash-completion", "completions")
    os.makedirs(where, exist_ok=True)
    for program in (MASTER, WORKER):
        with open(os.path.join(where, os.path.basename(program)), "w") as f:
            f.write(run(program, "completion", "bash").stdout)
    return folder


def cut(line):
    """The words of a line as readline separates them."""
    return re.findall(r"[=:]+|[^\s=:]+|(?<= )$", line)


def offered(lines, package):
    """The completions of bash at the end of each line, all in one shell."""
    script = [f". {BASH}; " if package else ""]
    for name in ("cleave-master", "cleave-worker"):
        script.append(f"_completion_loader {name}" if package else f". {scripts()}/bash-completion/completions/{name}")
    for line in lines:
        words = cut(line)
        quoted = " ".join("'" + w + "'" for w in words)
        script.append(f"f=$(complete -p {words[0]}); f=${{f#*-F }}; f=${{f%% *}}; COMP_LINE='{line}'; COMP_POINT={len(line)}\n"
                      f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; $f; printf '%s\\n' \"${{COMPREPLY[@]}}\"; echo ---")
    done = run("bash", "--norc", "--noprofile", "-c", "\n".join(script), cwd=os.path.join(cluster.dir, "files"),
               env={"XDG_DATA_DIRS": scripts(), "HOME": cluster.dir})
    assert not done.stderr, done.stderr
    return [set(part.split("\n")) - {""} for part in done.stdout.split("---\n")[:-1]]


FILES, YAML = {"notes.txt", "mine.yaml", "a.pem", "my folder"}, {"mine.yaml", "my folder"}
OFFERS = {
    "cleave-master tra": {"train"}, "cleave-master certs ": {"init", "issue", "revoke", "show"},
    "cleave-master --verbose certs is": {"issue"}, "cleave-master train --re": {"--resume"},
    **{"cleave-master " + line: {"text", "json"}
       for line in ("train --log-format ", "train --log-format=", "--log-format=", "--log-format ")},
    "cleave-master train x.yaml --log-format=js": {"json"}, "cleave-master completion ": {"bash", "zsh"},
    "cleave-master train ": YAML, "cleave-master train --set a=b --max-steps 3 mi": {"mine.yaml"},
    "cleave-master train --max-steps ": set(), "cleave-master train --trace=n": {"notes.txt"},
    "cleave-master train --trace ": FILES, "cleave-master train mine.yaml ": set(),
    "cleave-master certs show ": {"a.pem", "my folder"}, "cleave-master certs init --dir ": {"my folder"},
    "cleave-worker serve --config ": YAML, "cleave-worker serve -c m": YAML,
    "cleave-master train --set pipeline.mi": {"pipeline.micro_batches="},
    **{"cleave-master train " + line: {"true", "false"} for line in ("--set log.json=", "--set=log.json=", "-s log.json=")},
    "cleave-worker serve --set log.level=w": {"warn"}, "cleave-worker serve --set listen=": set(),
}


def completes(package):
    expected = dict(OFFERS)
    for program, name in ((MASTER, "cleave-master"), (WORKER, "cleave-worker")):
        expected[name + " "] = {command.split()[0] for command in helped(program)}
        for command, options in helped(program).items():
            expected[f"{name} {command} --"] = set(options)
    for (line, wanted), got in zip(expected.items(), offered(expected, package)):
        assert got == wanted, (line, got, wanted)
    keys = offered(["cleave-master train --set train."], package)[0]
    assert {"train.batch=", "train.seed=", "train.optimizer.kind="} <= keys and all(k.startswith("train.") for k in keys)


@suite.test
def bash_completes_without_bash_completion():
    completes(False)


@suite.test
def bash_completes_with_bash_completion():
    if not os.path.exists(BASH):
        return "bash-completion is not installed"
    completes(True)


class Terminal:
    """An interactive shell on a pseudo-terminal, which gets typed text."""

    def __init__(self, *shell):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(os.path.join(cluster.dir, "files"))
            os.execvpe(shell[0], shell, {"PATH": os.environ["PATH"], "PS1": "", "TERM": "dumb", "HOME": cluster.dir})
        self.seen = b""

    def type(self, keys, until):
        os.write(self.fd, keys.encode())
        end = time.monotonic() + 20 * SLOW
        while until.encode() not in self.seen and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 65536)
        assert until.encode() in self.seen, self.seen.decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


ECHO = "cleave-master() { printf '<%s>' \"$@\"; echo .; }; cleave-worker() { cleave-master \"$@\"; }; echo rea''dy\n"


@suite.test
def bash_completes_typed_keys():
    """With real keys: the line after TAB, with the shell's own separation of words."""
    with Terminal("bash", "--norc", "--noprofile", "-i") as t:
        where = f"{scripts()}/bash-completion/completions"
        t.type(f". {where}/cleave-master; . {where}/cleave-worker; bind 'set bell-style none'\n" + ECHO, "ready")
        t.type("cleave-master tra\t--log-f\tjs\tmi\t--set train.bat\t3 --max\t4\n",
               "<train><--log-format><json><mine.yaml><--set><train.batch=3><--max-steps><4>.")
        t.type("cleave-master certs init --dir=my\t\n", "<certs><init><--dir=my folder/>.")
        t.type("cleave-worker ser\t--set log.lev\tde\t\n", "<serve><--set><log.level=debug>.")


NO_ZSH = None if shutil.which("zsh") else "zsh is not installed"


@suite.test
def zsh_completion_has_valid_syntax():
    if NO_ZSH:
        return NO_ZSH
    for program in (MASTER, WORKER):
        path = os.path.join(cluster.dir, "zsh", "_" + os.path.basename(program))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(run(program, "completion", "zsh").stdout)
        done = run("zsh", "-n", path)
        assert done.returncode == 0 and not done.stderr, done.stderr


@suite.test
def zsh_completes_typed_keys():
    if NO_ZSH:
        return NO_ZSH
    zsh_completion_has_valid_syntax()  # writes the scripts
    with Terminal("zsh", "-f", "-i") as t:
        t.type(f"fpath=({cluster.dir}/zsh $fpath); autoload -U compinit; compinit -u -D; unsetopt beep\n" + ECHO, "ready")
        t.type("cleave-master trai\t--log-f\tjs\tmi\t--set train.bat\t3 --max\t4\n",
               "<train><--log-format=json><mine.yaml><--set><train.batch=3><--max-steps=4>.")
        t.type("cleave-master --verb\tcerts iss\tme --ur\tx --forc\t\n", "<--verbose><certs><issue><me><--uri=x><--force>.")
        t.type("cleave-master completion ba\t\n", "<completion><bash>.")
    with Terminal("zsh", "-f", "-i") as t:  # the script is sourced for this shell only
        t.type(f"autoload -U compinit; compinit -u -D; unsetopt beep; source {cluster.dir}/zsh/_cleave-master\n" + ECHO,
               "ready")
        t.type("cleave-master trai\t--log-f\tjs\tmi\t\n", "<train><--log-format=json><mine.yaml>.")


# ---- JSON --------------------------------------------------------------------------------------

def objects(text):
    found = [json.loads(line) for line in text.splitlines()]
    for o in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", o["time"]), o
        assert o["level"] in ("error", "warn", "info", "debug") and o["event"], o
    return found


def json_worker(name, *args, extra="", env=None):
    """Starts a worker with the arguments. Returns (process, first line of its stderr, port)."""
    port, path = free_port(), os.path.join(cluster.dir, name + ".yaml")
    with open(path, "w") as f:
        f.write(f"listen: 127.0.0.1:{port}\ntls: {{ca: certs/ca.pem, cert: certs/w1.pem, key: certs/w1.key}}\n"
                "allow:\n  - {identity: \"spiffe://test/master\", role: master}\n" + extra)
    process = subprocess.Popen([WORKER, "serve", "--config", path, *args], stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **(env or {})})
    first = process.stderr.readline()
    return process, first, port


@suite.test
def run_with_json_log_prints_only_json():
    process, first, port = json_worker("json", "--log-format", "json", "--verbose")
    ready = json.loads(first)
    assert ready["event"] == "ready" and ready["level"] == "info" and f"port={port}" in ready["message"], ready
    session = cluster.session("json", IMAGE_DATA + BODY)
    at = ["--set", f"workers.w1.address=127.0.0.1:{port}"]
    done = cluster.train(session, "--log-format=json", "-v", *at)
    assert done.returncode == 0, done.stderr
    said = objects(done.stdout)
    assert [o["step"] for o in said if o["event"] == "progress"] == [1, 2, 3, 4], said
    assert {"note", "test"} <= {o["event"] for o in said}, said
    objects(done.stderr)
    refused = cluster.train(session, "--log-format=json", *at)
    told = objects(refused.stderr)
    assert refused.returncode == 3 and told[0]["event"] == "failed" and "--resume" in told[0]["message"], told
    gone = cluster.train(session, "--resume", "--log-format=json", "--set", "train.max_steps=9", "--set", f"workers.w1.address=127.0.0.1:{free_port()}")
    assert gone.returncode == 4 and "EXIT-CODES.md#exit-4" in objects(gone.stderr)[0]["message"], gone.stderr
    with socket.create_connection(("127.0.0.1", port)) as s:
        # no TLS: the libraries' errors about it are JSON too
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        s.recv(100)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.4)
    process.terminate()
    _, rest = process.communicate(timeout=30 * SLOW)
    life = objects(first + rest)
    events = [o["event"] for o in life]
    for event in ("ready", "audit", "certificates", "draining", "stopped"):
        assert event in events, (event, life)
    assert process.returncode == 0 and "audit" not in life[0]["message"]


@suite.test
def log_format_option_overrides_the_config():
    """The option overrides either value of log.json. Errors have its format too."""
    for extra, args, json_form in (("log: {json: true}\n", (), True), ("log: {json: true}\n", ("--log-format=text",), False),
                                   ("", ("--log-format=json",), True), ("", (), False),
                                   ("log: {json: false}\n", ("--set", "log.json=true"), True)):
        process, first, _ = json_worker("form", *args, extra=extra)
        process.terminate()
        process.communicate(timeout=30 * SLOW)
        assert first.startswith("{") == json_form and "ready" in first, (extra, args, first)
    session = cluster.session("form-master", IMAGE_DATA + BODY.replace("every: 1", "every: 1, json: true"))
    wrong = ("--set", "workers.w1.identity=spiffe://test/other")
    for args, json_form in (((), True), (("--log-format=text",), False)):
        done = cluster.train(session, *args, *wrong)
        assert done.returncode == 4 and done.stderr.startswith("{") == json_form, done.stderr
    for args in (("train", "--log-format", "json", "--nonsense"), ("--nonsense", "x", "--log-format=json"),
                 ("eval", "absent.yaml", "--log-format=json"), ("--log-format=json",)):
        done = master(*args)
        assert objects(done.stderr)[0]["level"] == "error" and done.returncode in (2, 3), (args, done.stderr)
    broken = os.path.join(cluster.dir, "broken.yaml")
    with open(broken, "w") as f:
        f.write("tls: {\n  - [\n\t}")
    assert "broken.yaml:" in objects(master("check", broken, "--log-format=json").stderr)[0]["message"]
    for command, setting, what in (("check", "metrics.listen=0.0.0.0:9102", "without a password"),
                                   ("status", "tls.key=certs/absent.key", "absent.key")):
        said = objects(master(command, session, "--log-format=json", "--set", setting, cwd=cluster.dir).stderr)
        assert len(said) == 1 and what in said[0]["message"], said
    # hostile bytes
    done = run(WORKER, "check", "--log-format=json", "--config", b"/no\xff\"such\n.yaml")
    assert "such" in objects(done.stderr)[0]["message"] and done.returncode == 3


@suite.test
def journal_stream_adds_priorities():
    """Only if JOURNAL_STREAM names this stream."""
    read, write = os.pipe()
    st = os.fstat(write)
    for stream, prefixed in ((f"{st.st_dev}:{st.st_ino}", True), (f"{st.st_dev}:{st.st_ino + 1}", False)):
        for form in ("text", "json"):
            subprocess.run([MASTER, "frob", "--log-format", form], stderr=write, env={**os.environ, "JOURNAL_STREAM": stream})
            line = os.read(read, 4096).decode().splitlines()[0]
            assert line.startswith("<3>") == prefixed, (stream, line)
            assert form == "text" or json.loads(line[3 if prefixed else 0:])["event"] == "usage"
    os.close(read), os.close(write)


# ---- exit codes --------------------------------------------------------------------------------

def session_of(name, body=BODY):
    return cluster.session(name, IMAGE_DATA + body)


def interrupted():
    p = subprocess.Popen([MASTER, "train", session_of("code-130", BODY.replace("max_steps: 4, ", "")), "--set",
                          "train.epochs=100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cluster.dir)
    assert trains(p)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60 * SLOW)
    return p.returncode


def interrupted_twice():
    """The second interrupt ends the run at once, while a step waits for a stopped worker."""
    p = subprocess.Popen([MASTER, "train", session_of("code-130-twice"), "--set", "train.max_steps=100000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cluster.dir)
    assert trains(p)
    cluster.workers[0].kill(signal.SIGSTOP)
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert p.poll() is None, p.communicate()
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=5 * SLOW)
    cluster.workers[0].kill(signal.SIGCONT)
    return p.returncode


def lost():
    """The worker dies in the middle of a run."""
    p = subprocess.Popen([MASTER, "train", session_of("code-6", BODY.replace("max_steps: 4, ", "")), "--set",
                          "train.epochs=100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cluster.dir)
    assert trains(p)
    cluster.workers[0].kill()
    _, err = p.communicate(timeout=60 * SLOW)
    cluster.restart(0)
    assert "EXIT-CODES.md#exit-6" in err, err
    return p.returncode


def silent():
    """The worker's address accepts connections, but sends nothing."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(8)
        return cluster.train(session_of("code-5"), "--set", f"workers.w1.address=127.0.0.1:{s.getsockname()[1]}",
                             "--set", "limits.connect_timeout=300ms").returncode


def crippled():
    """OpenSSL without any algorithms."""
    path = os.path.join(cluster.dir, "openssl.cnf")
    with open(path, "w") as f:
        f.write("openssl_conf = all\n[all]\nproviders = some\n[some]\nnull = on\n[on]\nactivate = 1\n")
    return master("certs", "init", "--dir", os.path.join(cluster.dir, "none"), env={"OPENSSL_CONF": path}).returncode


def full(*command):
    with open("/dev/full", "w") as f:
        return subprocess.run([MASTER, *command], stdout=f, stderr=subprocess.DEVNULL, cwd=cluster.dir).returncode


def worker_config(text):
    path = os.path.join(cluster.dir, "code.yaml")
    with open(path, "w") as f:
        f.write("tls: {ca: certs/ca.pem, cert: certs/w1.pem, key: certs/w1.key}\n"
                "allow: [{identity: \"spiffe://test/master\", role: master}]\n" + text)
    return run(WORKER, "check", "--config", path).returncode


# exit code -> a command that ends with it, or a text with the reason why none does here.
MASTER_CODES = {
    0: lambda: master("check", session_of("code-0"), cwd=cluster.dir).returncode,
    1: lambda: full("completion", "bash"),
    2: lambda: master("frob").returncode,
    3: lambda: master("check", "absent.yaml").returncode,
    4: lambda: cluster.train(session_of("code-4"), "--set", f"workers.w1.address=127.0.0.1:{free_port()}").returncode,
    5: silent,
    6: lost,
    7: lambda: master("check", session_of("code-7"), "--set", "data.train=[absent.npy, train-y.npy]", cwd=cluster.dir).returncode,
    8: lambda: master("eval", session_of("code-8"), cwd=cluster.dir).returncode,
    9: lambda: cluster.train(session_of("code-9"), "--set", "train.optimizer.lr=1e30", "--set", "train.max_steps=100").returncode,
    11: "no worker of ours answers so: test_hostile_worker.py has one that does",
    70: crippled,
    130: lambda: interrupted() and interrupted_twice(),
}
WORKER_CODES = {
    0: lambda: worker_config(""),
    1: "the runtime fails to start only without memory or threads",
    2: lambda: run(WORKER, "frob").returncode,
    3: lambda: worker_config("nonsense: 1\n"),
    # its port is taken
    4: lambda: run(WORKER, "serve", "--config", cluster.workers[0].config).returncode,
    7: lambda: worker_config(f"artifacts: {{x: {{file: absent, sha256: {'0' * 64}}}}}\n"),
}


def in_the_enum():
    with open(os.path.join(ROOT, "common/base/cli/cli.h")) as f:
        return {int(n) for n in re.findall(r"CLV_EXIT_[A-Z_]+ = (\d+)", f.read())}


@suite.test
def every_exit_code_is_documented():
    with open(os.path.join(ROOT, "deploy/EXIT-CODES.md")) as f:
        page = f.read()
    sections = re.split(r"^## Exit (\d+)$", page, flags=re.M)
    anchors = {int(n): text for n, text in zip(sections[1::2], sections[2::2])}
    assert set(anchors) == in_the_enum() == set(MASTER_CODES), (set(anchors), in_the_enum())
    for code, text in anchors.items():
        assert code == 0 or "What to do" in text, code
    listed = {int(n) for n in re.findall(r"^ +(\d+)  ", run(WORKER, "--help").stdout.split("Exit codes")[1], re.M)}
    assert listed == set(WORKER_CODES), listed


@suite.test
def full_stdout_device_exits_with_1():
    path = session_of("unheard")
    for command in (["check", path], ["plan", path], ["train", path, "--max-steps", "1"], ["runs"], ["--help"]):
        assert full(*command) == 1, command


@suite.test
def closed_stdout_pipe_exits_with_0():
    p = subprocess.Popen([MASTER, "plan", session_of("left")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.close()
    assert p.wait(timeout=20) == 0 and not p.stderr.read()
    p.stderr.close()


@suite.test
def every_exit_code_is_produced():
    for codes in (MASTER_CODES, WORKER_CODES):
        for code, produce in codes.items():
            if not isinstance(produce, str):
                assert produce() == code, (code, "master" if codes is MASTER_CODES else "worker")


with Cluster(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=32, side=8)
    os.makedirs(os.path.join(cluster.dir, "files", "my folder"))
    for name in ("mine.yaml", "notes.txt", "a.pem"):
        open(os.path.join(cluster.dir, "files", name), "w").close()
    suite.main()
