"""The worker as a service: its notifications to the service manager, keys as credentials or from
files, and the unit itself under systemd's own checks. Most tests act as the service manager
themselves."""
import os, re, shutil, signal, socket, ssl, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEMD = os.path.join(HERE, "../../../deploy/systemd")
UNIT = os.path.join(SYSTEMD, "cleave-worker.service")


class Manager:
    """A notify socket, in the file system or abstract, and a worker that uses it."""

    def __init__(self, name, abstract=False, env=None, extra="", tls="certs/"):
        self.path = ("\0" if abstract else "") + os.path.join(cluster.dir, name + ".sock")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard, self.port = [], free_port()
        config = os.path.join(cluster.dir, name + ".yaml")
        with open(config, "w") as f:
            f.write(f"listen: 127.0.0.1:{self.port}\ntls:\n  ca: {tls}ca.pem\n  cert: {tls}w1.pem\n  key: {tls}w1.key\n"
                    "allow:\n  - {identity: \"spiffe://test/master\", role: master}\n" + extra)
        self.process = subprocess.Popen(
            [WORKER, "serve", "--config", config], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "NOTIFY_SOCKET": self.path.replace("\0", "@"), **(env or {})})

    def until(self, wanted, seconds=10):
        """Waits for the next message with a line that matches. Appends all messages to `heard`."""
        end = time.monotonic() + seconds * SLOW
        while time.monotonic() < end:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                message = self.socket.recv(4096).decode()
            except TimeoutError:
                break
            self.heard.append(message)
            if any(re.fullmatch(wanted, line) for line in message.split("\n")):
                return message
        raise AssertionError((wanted, self.heard, self.process.poll()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.socket.close()


def life(abstract):
    with Manager("life" + str(int(abstract)), abstract) as m:
        ready = m.until("READY=1")
        assert f"STATUS=listening on port {m.port}" in ready, ready
        socket.create_connection(("127.0.0.1", m.port)).close()  # the port is open
        assert f"STATUS=port {m.port}: 0 sessions, 0 contexts" in m.until("STATUS=port.*")
        m.process.send_signal(signal.SIGHUP)
        reloading = m.until("RELOADING=1")
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert 0 <= now - int(re.search(r"MONOTONIC_USEC=(\d+)", reloading).group(1)) < 5_000_000 * SLOW, reloading
        m.until("READY=1")
        m.until("STATUS=port.*")  # sent again, because READY replaced the status line
        m.process.terminate()
        stopping = m.until("STOPPING=1")
        assert "STATUS=draining" in stopping and int(re.search(r"EXTEND_TIMEOUT_USEC=(\d+)", stopping).group(1)) >= 30_000_000
        assert m.process.wait(20 * SLOW) == 0
        assert not any("WATCHDOG" in h for h in m.heard)


@suite.test
def worker_notifies_a_file_system_socket():
    life(False)


@suite.test
def worker_notifies_an_abstract_socket():
    life(True)


@suite.test
def status_line_counts_sessions():
    with Manager("status") as m:
        m.until("READY=1")
        session = cluster.session("status-run", IMAGE_DATA + (
            "stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 8}]}\n"
            "  - {name: b, at: w1, layers: [{op: linear, out: 10}]}\n"
            "loss: {kind: cross_entropy}\n"
            "train: {epochs: 100000, batch: 32, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.1}}\n"))
        with Running([MASTER, "train", session, "--set", f"workers.w1.address=127.0.0.1:{m.port}"], cwd=cluster.dir):
            m.until(r"STATUS=port \d+: 1 session, \d+ contexts?")
            # waits until it has attached, because a session without a stream stays for its lease
            time.sleep(SLOW)
        m.until(r"STATUS=port \d+: 0 sessions, 0 contexts")


@suite.test
def watchdog_is_notified_while_the_main_loop_runs():
    """Twice in the watchdog's time while the main loop runs; not if the watchdog is for another
    process."""
    with Manager("dog", env={"WATCHDOG_USEC": "400000"}) as m:
        m.until("READY=1")
        times = []
        for _ in range(3):
            m.until("WATCHDOG=1", 2)
            times.append(time.monotonic())
        assert all(b - a < 0.4 * SLOW for a, b in zip(times, times[1:])), times
        m.process.send_signal(signal.SIGSTOP)  # a loop that hangs
        time.sleep(0.2)
        while True:
            try:
                m.socket.settimeout(0.01)
                m.socket.recv(4096)
            except TimeoutError:
                break
        try:
            m.until("WATCHDOG=1", 0.6 / SLOW)
            raise RuntimeError("a stopped worker fed the watchdog")
        except AssertionError:
            m.process.send_signal(signal.SIGCONT)
    with Manager("other-dog", env={"WATCHDOG_USEC": "600000", "WATCHDOG_PID": "1"}) as m:
        m.until("READY=1")
        m.until("STATUS=port.*")
        try:
            m.until("WATCHDOG=1", 0.5)
            raise RuntimeError("another process's watchdog was fed")
        except AssertionError:
            pass


@suite.test
def missing_notify_socket_is_ignored():
    for path in (os.path.join(cluster.dir, "nobody.sock"), "@nobody", "relative", "/" + "x" * 200, "@", ""):
        with Manager("alone", env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1"}) as m:
            assert "ready" in m.process.stderr.readline()
            m.process.terminate()
            assert m.process.wait(20 * SLOW) == 0
            os.unlink(m.path)


# ---- keys --------------------------------------------------------------------------------------

def presented(port):
    """The worker's certificate in a new connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(os.path.join(cluster.certs, "master.pem"), os.path.join(cluster.certs, "master.key"))
    with socket.create_connection(("127.0.0.1", port), timeout=10 * SLOW) as raw, context.wrap_socket(raw) as s:
        return s.getpeercert(True)


def service_manager_copies(name):
    """Copies credentials as LoadCredential= does at a service's start. Access lists appear as group
    rights."""
    folder = os.path.join(cluster.dir, name)
    os.mkdir(folder)
    for file in ("ca.pem", "w1.pem", "w1.key"):
        shutil.copy(os.path.join(cluster.certs, file), folder)
        os.chmod(os.path.join(folder, file), 0o440)
    os.chmod(folder, 0o500)
    return folder


@suite.test
def credentials_stay_until_a_restart_and_files_reload():
    credentials = service_manager_copies("credentials-1")
    with Manager("by-credential", env={"CREDENTIALS_DIRECTORY": credentials}, tls="${CREDENTIALS_DIRECTORY}/") as one, \
            Manager("by-file") as two:
        for m in (one, two):
            m.until("READY=1")
        old = presented(one.port)
        assert presented(two.port) == old
        cluster.issue("w1", "spiffe://test/w1", "--force")  # the operator's new key
        for m in (one, two):
            m.process.send_signal(signal.SIGHUP)
            m.until("RELOADING=1")
            m.until("READY=1")
        # the reload read systemd's copies, which are still the old ones
        assert presented(one.port) == old
        new = presented(two.port)
        assert new != old
        one.process.terminate()
        assert one.process.wait(20 * SLOW) == 0
    with Manager("by-credential-again", env={"CREDENTIALS_DIRECTORY": service_manager_copies("credentials-2")},
                 tls="${CREDENTIALS_DIRECTORY}/") as three:
        three.until("READY=1")
        assert presented(three.port) == new


@suite.test
def invalid_credentials_directory_is_refused():
    folder = service_manager_copies("credentials-3")
    config = os.path.join(cluster.dir, "where.yaml")

    def check(tls, env):
        with open(config, "w") as f:
            f.write(f"tls:\n  ca: {tls}/ca.pem\n  cert: {tls}/w1.pem\n  key: {tls}/w1.key\n"
                    "allow: [{identity: \"spiffe://test/master\", role: master}]\n")
        return run(WORKER, "check", "--config", config, env=env)

    inside = "${CREDENTIALS_DIRECTORY}"
    assert check(inside, {"CREDENTIALS_DIRECTORY": folder}).returncode == 0
    for env in ({}, {"CREDENTIALS_DIRECTORY": ""}, {"CREDENTIALS_DIRECTORY": "relative"}, {"CREDENTIALS_DIRECTORY": "/a\nb"}):
        done = check(inside, env)
        assert done.returncode == 3 and "where.yaml:2:" in done.stderr and "LoadCredential" in done.stderr, done.stderr
    # group rights are accepted only in that folder, where they come from an access list
    done = check(folder, {})
    assert done.returncode == 4 and "0440" in done.stderr, done.stderr
    done = check(folder, {"CREDENTIALS_DIRECTORY": cluster.dir + "/elsewhere"})
    assert done.returncode == 4, done.stderr
    os.chmod(folder, 0o700)
    os.chmod(os.path.join(folder, "w1.key"), 0o444)
    done = check(inside, {"CREDENTIALS_DIRECTORY": folder})
    assert done.returncode == 4 and "0444" in done.stderr, done.stderr


# ---- the unit ----------------------------------------------------------------------------------

def settings(path):
    with open(path) as f:
        return [tuple(line.strip().split("=", 1)) for line in f if re.match(r"[A-Za-z]+=", line)]


def analyze(*args, **options):
    return run("systemd-analyze", *args, env={"SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8", **options.pop("env", {})}, **options)


NO_ANALYZE = None if shutil.which("systemd-analyze") else "systemd-analyze is missing (package systemd)"


def exposure(path):
    done = analyze("security", "--offline=true", "--threshold=20", "--no-pager", path)
    level = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout).group(1))
    assert (done.returncode == 0) == (level <= 2.0), (level, done.returncode)
    return level


@suite.test
def unit_has_a_systemd_exposure_of_at_most_2():
    if NO_ANALYZE:
        return NO_ANALYZE
    assert exposure(UNIT) <= 2.0
    weak = os.path.join(cluster.dir, "cleave-worker.service")
    with open(UNIT) as f, open(weak, "w") as g:
        g.write(re.sub(r"(?m)^(SystemCallFilter|CapabilityBoundingSet|PrivateDevices|PrivateUsers)=.*\n", "", f.read()))
    assert exposure(weak) > 2.0  # the number depends on the settings of the unit


def hosted(folder, drop_in=None, unit=UNIT):
    """The unit as installed on a host, with these programs."""
    os.makedirs(folder)
    path = os.path.join(folder, os.path.basename(unit))
    with open(unit) as f, open(path, "w") as g:
        g.write(f.read().replace("/usr/local/bin/", os.path.abspath(BIN) + "/"))
    if drop_in:
        os.mkdir(path + ".d")
        shutil.copy(os.path.join(SYSTEMD, drop_in), path + ".d")
    return path


@suite.test
def unit_passes_systemd_analyze_verify():
    if NO_ANALYZE:
        return NO_ANALYZE
    manuals = os.path.join(os.path.abspath(BIN), "share", "man")
    for name in (None, "keys-from-files.conf"):
        path = hosted(os.path.join(cluster.dir, "unit-" + str(name)), name)
        done = analyze("verify", path, env={"MANPATH": manuals})
        assert done.returncode == 0 and not done.stderr, (name, done.stderr)
    train = hosted(os.path.join(cluster.dir, "unit-train"), unit=os.path.join(SYSTEMD, "cleave-train@.service"))
    done = analyze("verify", train, env={"MANPATH": manuals})
    assert done.returncode == 0 and not done.stderr, done.stderr
    with open(path, "a") as f:
        f.write("[Service]\nProtectSytem=strict\n")
    assert "ProtectSytem" in analyze("verify", path, env={"MANPATH": manuals}).stderr


@suite.test
def unit_settings_match_what_the_tests_emulate():
    """The settings that the tests above emulate are those of the unit."""
    said = settings(UNIT)
    assert ("Type", "notify") in said and ("DynamicUser", "yes") in said and dict(said)["WatchdogSec"] == "30"
    loaded = [v.split(":")[0] for k, v in said if k == "LoadCredential"]
    with open(UNIT) as f:
        named = re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", f.read())
    assert sorted(loaded) == sorted(named), (loaded, named)
    assert ("LoadCredential", "") in settings(os.path.join(SYSTEMD, "keys-from-files.conf"))
    assert int(dict(said)["TimeoutStopSec"]) > 30  # drain_timeout's default


# ---- the unit, run by a systemd of its own ------------------------------------------------------

# In namespaces of their own (mounts, processes, cgroups, host name) systemd is process 1 over a
# tree whose changes are thrown away, and starts the unit as `make install` puts it. The network is
# this host's.
INIT = """set -e
hold() { mkdir -p /run/new$1/up /run/new$1/work
         mount -t overlay overlay -o lowerdir=$1,upperdir=/run/new$1/up,workdir=/run/new$1/work $1; }
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
for folder in /etc /usr/local; do hold $folder; done
mkdir -p /etc/cleave /usr/local/bin /run/units
cp {bin}/cleave-worker /usr/local/bin/
cp {unit} /run/units/cleave-worker.service
cp {dir}/unit.yaml /etc/cleave/worker.yaml
cp {dir}/certs/ca.pem /etc/cleave/
cp {dir}/certs/w1.pem /etc/cleave/worker.pem
cp {dir}/certs/w1.key /etc/cleave/worker.key
chmod 644 /etc/cleave/worker.yaml
for target in basic sysinit network-online shutdown sockets default; do
  printf '[Unit]\nDefaultDependencies=no\n' > /run/units/$target.target
done
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t cgroup2 none /sys/fs/cgroup
exec env -i container=test PATH=$PATH SYSTEMD_UNIT_PATH=/run/units /lib/systemd/systemd --system --unit=default.target
"""


class Host:
    """A systemd that runs the unit."""

    def __init__(self, worker_yaml):
        with open(os.path.join(cluster.dir, "unit.yaml"), "w") as f:
            f.write(worker_yaml)
        init = os.path.join(cluster.dir, "init.sh")
        with open(init, "w") as f:
            f.write(INIT.replace("{bin}", os.path.abspath(BIN)).replace("{unit}", UNIT).replace("{dir}", cluster.dir))
        self.outside = subprocess.Popen(["unshare", "-fpmiuC", "--kill-child", "--mount-proc", "bash", init],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        end = time.monotonic() + 10 * SLOW
        while self.outside.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            with open(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children") as f:
                self.init = f.read().strip()
            if self.init and self("systemctl", "is-system-running", "--wait").stdout.strip() in ("running", "degraded"):
                return
        self.outside.kill()
        raise OSError(f"no systemd in namespaces: {self.outside.communicate()[0].strip()[-200:]}")

    def __call__(self, *command):
        return run("nsenter", "-t", self.init, "-m", "-p", "-i", "-u", "-C", *command, timeout=30)

    def show(self, name):
        return self("systemctl", "show", "-p", name, "--value", "cleave-worker").stdout.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.outside.kill()
        self.outside.wait()
        self.outside.stdout.close()


def cannot_host():
    if os.geteuid() != 0 or SANITIZED:
        return "only root can, and sanitizers need what the unit takes away"
    if os.path.isdir("/run/systemd/system"):
        return "a systemd is in charge here"
    return None if os.access("/lib/systemd/systemd", os.X_OK) else "systemd is missing"


def trains(port):
    session = cluster.session("under-systemd", IMAGE_DATA + (
        "stages:\n  - {name: a, at: master, layers: [{op: conv2d, out: 4, kernel: 3}, {op: relu}]}\n"
        "  - {name: b, at: w1, layers: [{op: conv2d, out: 4, kernel: 3}, {op: flatten}, {op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\ntrain: {epochs: 1, batch: 32, optimizer: {kind: sgd, lr: 0.1}}\n"))
    done = cluster.train(session, "--set", f"workers.w1.address=127.0.0.1:{port}")
    assert done.returncode == 0, done.stderr


def is_confined(host):
    with open(f"/proc/{host.init}/root/proc/{host.show('MainPID')}/status") as f:
        status = dict(line.rstrip().split(":\t", 1) for line in f if ":\t" in line)
    assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0, status
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2" and status["Uid"].split()[0] != "0", status


def takes_new_certificates_at_a_restart(host, port):
    """A reload reads systemd's copies again, which were made at the start."""
    old = presented(port)
    cluster.issue("w1", "spiffe://test/w1", "--force")
    for name, file in (("w1.pem", "worker.pem"), ("w1.key", "worker.key")):
        with open(os.path.join(cluster.certs, name)) as f:
            host("sh", "-c", f"cat > /etc/cleave/{file} <<'E'\n{f.read()}E")
    assert host("systemctl", "reload", "cleave-worker").returncode == 0
    assert host.show("ActiveState") == "active" and presented(port) == old
    assert host("systemctl", "restart", "cleave-worker").returncode == 0
    assert presented(port) != old
    assert re.match(r"(listening on )?port", host.show("StatusText")), host.show("StatusText")


def is_killed_when_it_hangs(host):
    host("sh", "-c", "mkdir /run/units/cleave-worker.service.d; printf '[Service]\\nWatchdogSec=1\\nRestartSec=0\\n' > "
                     "/run/units/cleave-worker.service.d/w.conf; systemctl daemon-reload; systemctl restart cleave-worker")
    time.sleep(1.5)
    assert host.show("NRestarts") == "0"  # the watchdog is notified
    host("kill", "-STOP", host.show("MainPID"))
    end = time.monotonic() + 20 * SLOW
    state = lambda: (host.show("NRestarts"), host.show("ActiveState"))
    while state() != ("1", "active") and time.monotonic() < end:
        time.sleep(0.1)
    assert state() == ("1", "active"), state()


@suite.test
def unit_starts_reloads_and_stops_under_systemd():
    """The unit is started, used for training, reloaded, killed by the watchdog when it hangs, and
    stopped."""
    why, port = cannot_host(), free_port()
    if why:
        return why
    try:
        host = Host(f"listen: 127.0.0.1:{port}\ntls:\n  ca: ${{CREDENTIALS_DIRECTORY}}/ca.pem\n"
                    "  cert: ${CREDENTIALS_DIRECTORY}/worker.pem\n  key: ${CREDENTIALS_DIRECTORY}/worker.key\n"
                    "allow: [{identity: \"spiffe://test/master\", role: master}]\ncores: [0]\n")
    except OSError as e:
        return str(e)
    with host:
        started = host("systemctl", "start", "cleave-worker")
        assert started.returncode == 0, (started.stderr, host("systemctl", "status", "cleave-worker").stdout)
        trains(port)
        is_confined(host)
        takes_new_certificates_at_a_restart(host, port)
        is_killed_when_it_hangs(host)
        assert host("systemctl", "stop", "cleave-worker").returncode == 0
        assert [host.show(x) for x in ("Result", "ExecMainStatus")] == ["success", "0"], host.show("Result")


with Cluster(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=32, side=8)
    suite.main()
