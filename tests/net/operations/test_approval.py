"""The policy of the person responsible for the data: sessions that it refuses send nothing and dial
no worker. The commands run in a mount namespace with an /etc of their own; the paths are those of
any installation."""
import glob, os, re, socket, struct, subprocess, sys, threading, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
POLICY = ("version: 1\n"
          "workers: [\"spiffe://test/w1\"]\n"
          "kinds: [activation, gradient, weights]\n"
          "largest_shape: [64, 64, 12, 12]\n"
          "dtypes: [f32]\n"
          "bytes_per_epoch: 4MiB\n"
          "allow: {labels_readable: true, front_known: true}\n")
BODY = (IMAGE_DATA +
        "stages:\n"
        "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 64}]}\n"
        "  - {name: b, at: w1, layers: [{op: relu}, {op: linear, out: 32}]}\n"
        "  - {name: c, at: master, layers: [{op: linear, out: 10}]}\n"
        "loss: {kind: cross_entropy}\n"
        "train: {epochs: 1, batch: 64, eval_batch: 64, seed: 5, optimizer: {kind: sgd, lr: 0.1}}\n")
PATH = "/etc/cleave/egress.policy.yaml"


def shell(command):
    done = subprocess.run(command, shell=True, cwd=cluster.dir, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def sign(ca="approver"):
    shell(f"openssl cms -sign -binary -in etc/cleave/egress.policy.yaml -signer {ca}.pem -inkey {ca}.key "
          "-outform PEM -out etc/cleave/egress.policy.yaml.sig")


def decree(text, signed=True):
    """Installs this policy; None: removes the policy."""
    shell("rm -rf etc/cleave && mkdir etc/cleave && cp ca.pem etc/cleave/approver-ca.pem")
    if text is None:
        return
    with open(os.path.join(cluster.dir, "etc/cleave/egress.policy.yaml"), "w") as f:
        f.write(text)
    if signed:
        sign()


def here(command, session, *args):
    return run(*cluster.near, MASTER, command, session, *args, cwd=cluster.dir)


class Silent:
    """A server at a worker's address that counts connections and records the output printed so
    far."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        self.came, self.printed = 0, None
        self.output = None
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            peer, _ = self.socket.accept()
            self.came += 1
            if self.output and self.printed is None:
                os.set_blocking(self.output.fileno(), False)
                self.printed = os.read(self.output.fileno(), 65536).decode()
            peer.close()


def refused(session, *texts, commands=("check", "plan", "train", "eval", "predict"), args=()):
    nobody = Silent()
    for command in commands:
        done = here(command, session, *args, "--set", f"workers.w1.address={nobody.address}")
        assert done.returncode == 3, (command, done.returncode, done.stdout, done.stderr)
        for t in texts:
            assert re.search(t, done.stderr), (command, t, done.stderr)
    assert nobody.came == 0


@suite.test
def without_a_policy_the_privacy_section_decides():
    decree(None)
    done = here("plan", cluster.session("none", BODY))
    assert "no policy: `privacy` in the session file decides" in done.stdout, done.stdout + done.stderr
    assert json.loads(here("plan", cluster.session("none", BODY), "--json").stdout)["policy"] is None


@suite.test
def egress_table_is_printed_before_connecting():
    decree(POLICY)
    somebody = Silent()
    for args in ((), ("--json",), ("--set", "pipeline.micro_batches=auto")):
        somebody.printed = None
        p = subprocess.Popen([*cluster.near, MASTER, "train", cluster.session("table", BODY), *args, "--fresh", "--set",
                              f"workers.w1.address={somebody.address}", "--set", "limits.connect_timeout=5s"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=cluster.dir)
        somebody.output = p.stdout
        until(lambda: somebody.printed is not None)
        p.kill()
        p.wait()
        for t in ("activation of stage 'a'", "gradient for stage 'b'", PATH, "CN=approver"):
            assert t in somebody.printed, (args, t, somebody.printed)


@suite.test
def readable_share_over_max_read_is_refused():
    """Of ten classes nothing counts as readable without a policy; a strict policy refuses even
    these."""
    decree(POLICY + "max_read: {pixels: 0.5, tokens: 0.2, labels: 0.01}\n")
    refused(cluster.session("read", BODY), PATH + r":8:\d+: labels: the look read 0\.\d+ of them from what leaves, and the policy permits 0\.01",
            commands=("check", "plan", "train"))
    decree(POLICY + "max_read: {pixels: 0.5, tokens: 0.2, labels: 0.3}\n")
    done = here("plan", cluster.session("read", BODY))
    assert done.returncode == 0 and "the policy's limit is 0.3" in done.stdout, done.stdout + done.stderr


@suite.test
def signed_policy_is_enforced_and_named():
    decree(POLICY)
    session = cluster.session("signed", BODY)
    plan = here("plan", session)
    assert re.search(rf"policy: {PATH}, sha256 [0-9a-f]{{16}}\.\.\., signed by CN=approver", plan.stdout), plan
    done = here("train", session)
    assert done.returncode == 0, done.stderr
    assert f"policy: {PATH}" in done.stdout.split("\nstep ")[0], done.stdout
    for command in ("eval", "predict"):
        done = here(command, session)
        assert done.returncode == 0, (command, done.stderr)


@suite.test
def moved_layer_needs_the_release_of_the_policy():
    """The `release` of the session alone does not suffice."""
    decree(POLICY)
    first = BODY.replace("epochs: 1,", "epochs: 2,")
    assert here("train", cluster.session("moves", first), "--max-steps", "3").returncode == 0
    session = cluster.session("moves", first.replace("name: c, at: master", "name: c, at: w1") + "privacy: {release: ['*']}\n")
    refused(session, PATH + r":\d+:\d+: the policy does not permit layer '\S+' to move from the master to w1", commands=("train",), args=("--resume", "--accept-egress"))
    assert "train --resume will be refused: " in here("plan", session).stderr
    decree(POLICY + "release: ['*']\n")
    done = here("train", session, "--resume", "--accept-egress")
    assert done.returncode == 0, done.stderr


@suite.test
def without_permitted_weights_a_lost_worker_ends_the_run():
    decree(POLICY.replace(", weights]", "]"))
    session = cluster.session("kept", BODY.replace("epochs: 1,", "epochs: 100000,") + "checkpoint: {every_steps: 4}\nrecovery: {wait: 200ms}\n")
    done = here("plan", session)
    assert "so a worker that is lost after the first checkpoint ends the run" in done.stderr, done
    process = subprocess.Popen([*cluster.near, MASTER, "train", session], cwd=cluster.dir, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until(lambda: glob.glob(os.path.join(cluster.dir, "runs/kept/checkpoint-*/MANIFEST.json")))
    cluster.workers[0].kill()
    errors = process.communicate(timeout=60 * SLOW)[1]
    cluster.restart(0)
    assert process.returncode == 6 and "the run does not recover, since its weights may not be sent again" in errors, errors


@suite.test
def unsafe_policies_are_refused():
    session = cluster.session("unsafe", BODY)
    decree(POLICY, signed=False)
    refused(session, r"egress.policy.yaml.sig is missing: root could write any policy")
    decree(POLICY)
    sign("certs/master")  # signed by the authority that the session names
    refused(session, "the signature does not hold", commands=("train",))
    for spoil, why in (("chmod 666 egress.policy.yaml", "owned by root and writable by no other user"),
                       ("sed -i s/4MiB/9MiB/ egress.policy.yaml", "the signature does not hold"),
                       ("mv egress.policy.yaml x && ln -s x egress.policy.yaml", "is a symbolic link: put the file")):
        decree(POLICY)
        shell("cd etc/cleave && " + spoil)
        refused(session, why, commands=("train",))


@suite.test
def cached_rows_need_their_own_policy_entry():
    kept = BODY.replace("at: master, layers: [{op: flatten}", "at: master, freeze: true, cache: true, layers: [{op: flatten}")
    session = cluster.session("kept", kept)
    decree(POLICY)
    refused(session, rf"{PATH}:3:1: the policy permits no cached: CACHED activation of stage 'a'",
            commands=("check", "plan", "train"))
    more = POLICY.replace("weights]", "weights, cached]")
    decree(more)
    refused(session, rf"{PATH}:5:1: the policy permits no i64: CACHED: numbers", commands=("check", "plan", "train"))
    decree(more.replace("[f32]", "[f32, i64]"))
    done = here("plan", session)
    assert done.returncode == 0, done.stderr


@suite.test
def egress_outside_the_policy_names_the_policy_line():
    session = cluster.session("lines", BODY)
    for what, to, why in (
            ("test/w1", "test/w2", rf"{PATH}:2:1: the policy does not name spiffe://test/w1"),
            ("activation, ", "", rf"{PATH}:3:1: the policy permits no activation: activation of stage 'a'"),
            ("[64, 64, 12, 12]", "[64, 63]", rf"{PATH}:4:1: activation of stage 'a' .* is \[64, 64\]"),
            ("[f32]", "[i64]", rf"{PATH}:5:1: the policy permits no f32"),
            ("4MiB", "100KiB", rf"{PATH}:6:18: an epoch sends")):
        decree(POLICY.replace(what, to))
        refused(session, why, commands=("check", "train"))
    decree(POLICY.replace(", weights", ""))
    refused(session, rf"{PATH}:3:1: the policy permits no weights", commands=("eval", "predict"))
    assert here("check", session).returncode == 0  # a new run sends no state of the optimiser
    raw = cluster.session("raw", BODY.replace("name: a, at: master", "name: a, at: w1") +
                          "privacy: {raw_input_leaves: true}\n")
    decree(POLICY)
    refused(raw, rf"{PATH}:7:1: the policy does not permit RAW INPUT to w1: allow.raw is not true", commands=("check",))
    decree(POLICY.replace("version: 1", "version: 1\nkind: all"))
    refused(session, rf"{PATH}:2:1: unknown key 'kind', did you mean 'kinds'", commands=("plan",))


@suite.test
def gate_stops_at_the_policys_bytes_per_epoch():
    """The trials of micro_batches: auto and the first epoch together exceed the bytes of one
    epoch."""
    decree(POLICY.replace("4MiB", "300KiB"))
    session = cluster.session("bytes", BODY + "pipeline: {micro_batches: auto}\n")
    assert here("check", session).returncode == 0, here("check", session).stderr
    done = here("train", session)
    assert done.returncode == 3 and re.search(
        rf"egress refused: {PATH}:6:18: the policy permits 300 KiB \(307200 bytes\) in an epoch, and .* would exceed that; ask for",
        done.stderr), (done.returncode, done.stderr)


@suite.test
def resume_is_counted_with_what_the_optimiser_keeps():
    """Refused before any worker is dialled; `check`, `plan` and `doctor` report it earlier."""
    session = cluster.session("resume", BODY.replace("{kind: sgd, lr: 0.1}", "{kind: adam, lr: 0.01}"))
    limit = lambda n: decree(POLICY.replace("4MiB", str(n)))
    def needs(text):
        found = re.search(r"an epoch sends .*?\((\d+) bytes\)", text)
        assert found, text
        return int(found[1])
    limit(5000)
    done = here("check", session)
    assert done.returncode == 3, done
    first = needs(done.stderr)
    limit(first)
    for command in ("check", "plan", "plan --json"):
        done = here(*command.split()[:1], session, *command.split()[1:])
        assert done.returncode == 0 and "the policy will refuse train --resume: " in done.stderr, (command, done)
        assert "the policy will refuse eval" not in done.stderr, done.stderr
    again, weights = needs(done.stderr), 4 * (64 * 32 + 32)
    # difference: padding of weights
    assert again - first - 3 * weights - 8 in range(64), (first, again)
    rows = {r["tensor"]: r["bytes_per_step"] for r in json.loads(done.stdout)["egress"]}
    assert rows["optimiser of stage 'b' (resume)"] == 2 * weights + 8, rows
    assert "weights of stage 'b' (resume, eval, predict)" in rows, rows
    done = here("doctor", session)
    assert re.search(rf"ok    policy +{PATH} permits this training.*; train --resume will be refused: ", done.stdout), done.stdout
    assert here("train", session, "--max-steps", "2").returncode == 0
    limit(again - 1)
    with open(os.path.join(cluster.dir, "runs/resume/egress.table")) as f:
        assert "optimiser" not in f.read()  # as in the policy of older runs
    nobody = Silent()
    done = here("train", session, "--resume", "--set", f"workers.w1.address={nobody.address}")
    assert done.returncode == 3 and not nobody.came and f"({again} bytes), and bytes_per_epoch" in done.stderr, done.stderr
    limit(again)
    done = here("train", session, "--resume")
    assert done.returncode == 0, done.stderr
    decree(POLICY.replace(", weights", ""))
    for done in (here("check", session), here("plan", session)):
        for later in ("train --resume", "eval and predict"):
            assert f"the policy will refuse {later}: {PATH}:3:1: the policy permits no weights" in done.stderr, done.stderr
    decree(POLICY.replace("gradient, ", ""))
    done = here("doctor", session)
    assert done.returncode == 3 and re.search(r"FAIL  policy .*the policy permits no gradient", done.stdout), done.stdout


@suite.test
def egress_page_shows_each_attempt_and_its_policy():
    """Bytes that left, and the policy, for a training that was killed and resumed, and for an
    evaluation."""
    decree(POLICY.replace("4MiB", "900MiB"))
    session = cluster.session("page", BODY)
    p = subprocess.Popen([*cluster.near, MASTER, "train", session, "--set", "train.epochs=100000", "--set",
                          "checkpoint.every_steps=8"], stdout=subprocess.PIPE, text=True, cwd=cluster.dir)
    assert trains(p)
    until(lambda: any(n.startswith("checkpoint-") for n in os.listdir(os.path.join(cluster.dir, "runs/page"))))
    p.kill()
    p.communicate()
    decree(None)
    assert here("train", session, "--resume", "--max-steps", "100000").returncode == 0
    assert here("eval", session).returncode == 0
    text = here("egress", "page").stdout
    assert re.search(r"in all: at most .* was allowed and not settled, in 3 commands\n", text), text
    assert re.search(r"1  train: since .*; it goes on, or was cut off\n   policy " + PATH + ".* signed by CN=approver",
                     text), text
    assert re.search(r"2  train: .*ended with code 0\n   no policy", text), text
    assert re.search(r"3  eval: .*\n.*\n.*\n.*\n   weights of stage 'b', 2 names to w1", text), text
    html = here("egress", "--html", "runs/page").stdout
    assert html.startswith("<!DOCTYPE html>") and "spiffe://test/w1" in html and "signed by CN=approver" in html
    last = json.loads(here("egress", "page", "--json").stdout.splitlines()[-1])
    assert last["event"] == "total" and last["bytes"] > last["open"] > 0, last
    with open(os.path.join(cluster.dir, "runs/page/egress.jsonl"), "a") as f:
        f.write("{}\n")
    damaged = here("egress", "page")
    assert damaged.returncode == 7 and "egress.jsonl" in damaged.stderr and not damaged.stdout, damaged
    assert here("egress", "nothing").returncode == 1


def main():
    global cluster
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if os.geteuid() != 0 or probe.returncode != 0:
        print("skip approval: no mount namespaces here, or not root", flush=True)
        return
    with Cluster(1) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"))
        shell("mkdir etc && cp -a /etc/. etc/ && rm -rf etc/cleave")
        shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 30 "
              "-subj /CN=approvers && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "
              "approver.key -out approver.csr -subj /CN=approver && openssl x509 -req -in approver.csr -CA ca.pem "
              "-CAkey ca.key -CAcreateserial -days 30 -out approver.pem")
        cluster.near = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"',
                        os.path.join(cluster.dir, "etc")]
        suite.main()


main()
