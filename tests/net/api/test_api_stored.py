#!/usr/bin/python3
"""Files of state that workers keep, over real daemons: they have the same bytes as those that the
master writes, survive a restart, belong to one identity, fit its quota, and are never outside
state_dir."""
import hashlib, os, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, Worker, free_port
from measured import numbers

PROGRAM = os.path.join(BIN, "net", "api_stored")
MASTER_URI, OTHER_URI = "spiffe://test/master", "spiffe://test/other"
ROLE = '"spiffe://test/master", role: master}'


class Stored(Cluster):
    """Workers with a state_dir of their own, where identities keep 64 KiB, 64 KiB and nothing."""
    homeless, page = False, None

    def worker_config(self, i, extra=""):
        path, at = super().worker_config(i, extra), self.state_dir(i)
        os.makedirs(at, exist_ok=True)
        with open(path) as f:
            text = f.read().replace(ROLE, ROLE[:-1] + ", state_bytes: 64KiB}")
        with open(path, "w") as f:
            f.write(text + ("" if self.homeless else f"state_dir: {at}\n"))
            if i == 0:
                self.page = free_port()
                f.write(f"metrics: {{listen: \"127.0.0.1:{self.page}\"}}\n")
        return path

    def state_dir(self, i):
        return os.path.join(self.dir, f"state{i}")

    def stored(self, node, uri, name):
        return os.path.join(self.state_dir(int(node[1:]) - 1), "states", hashlib.sha256(uri.encode()).hexdigest(),
                            name + ".safetensors")


def sha(path):
    with open(path, "rb") as f:
        whole = f.read()
    return len(whole), hashlib.sha256(whole).hexdigest()


def do(c, what):
    path = c.stored("w2", MASTER_URI, "b.adam")
    if what == "kill":
        c.workers[1].kill()
        c.workers[1].process.wait()
        with open(c.stored("w2", MASTER_URI, "b") + ".tmp", "w") as f:
            f.write("half")  # as if the worker had died in the middle of a write
    elif what == "start":
        c.workers[1] = Worker(c, "w2", c.worker_config(1))
    elif what == "damage":
        os.rename(path, path + ".whole")
        with open(path + ".whole", "rb") as f, open(path, "wb") as g:
            g.write(f.read()[:-3])
    elif what == "block":
        os.makedirs(os.path.join(c.stored("w2", MASTER_URI, "blocked"), "x"))
    else:
        os.rename(path + ".whole", path)


class Run:
    """The program, and the workers' messages about files by node and name."""

    def __init__(self, c, name, when, identity="master"):
        self.files, self.failed = {}, 0
        session = c.session(name, "")
        with open(session) as f:
            text = f.read().replace("certs/master", f"certs/{identity}")
        with open(session, "w") as f:
            f.write(text)
        folder = os.path.join(c.dir, name + "-files")
        os.makedirs(folder)
        p = subprocess.Popen([PROGRAM, session, "w1", "w2", folder, when], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
        for line in p.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "ask":
                do(c, rest)
                p.stdin.write("done\n")
                p.stdin.flush()
            elif word == "file":
                node, of, size, digest = rest.split()
                self.files[node, of] = int(size), digest
            else:
                print(line.strip(), flush=True)
        self.failed += p.wait() != 0
        self.folder = folder

    def here(self, name):
        return sha(os.path.join(self.folder, name + ".safetensors"))


def check(name, *facts):
    ok = all(facts)
    print("ok" if ok else "not ok", name, "" if ok else facts, flush=True)
    return not ok


def everything(c):
    """Every file below the folders of the workers, by its path."""
    return sorted(os.path.relpath(os.path.join(at, f), c.dir) for i in range(2)
                  for at, _, files in os.walk(c.state_dir(i)) for f in files)


def main():
    failed = 0
    extra = "".join(f'  - {{identity: "spiffe://test/{who}", role: master{quota}}}\n'
                    for who, quota in (("other", ", state_bytes: 64KiB"), ("poor", "")))
    with Stored(2, extra_allow=extra) as c:
        for who in ("other", "poor"):
            c.issue(who, f"spiffe://test/{who}")
        first = Run(c, "first", "first")
        names = [("w1", "a"), ("w1", "a.adam"), ("w2", "b"), ("w2", "b.adam")]
        failed += check("they_are_the_files_that_the_master_writes", all(
            first.files[n] == sha(c.stored(n[0], MASTER_URI, n[1])) == first.here(n[1]) for n in names))
        n = numbers(c.page)
        there = [sha(os.path.join(c.dir, p))[0] for p in everything(c) if p.startswith("state0/states") and "." in p]
        failed += check("metrics_count_files_and_writes", n["cleave_worker_kept_files"] == len(there),
                        n["cleave_worker_kept_bytes"] == sum(there), n["cleave_worker_pending_state_writes"] == 0,
                        n['cleave_worker_state_writes_total{result="ok"}'] >= len(there),
                        n["cleave_worker_last_state_write_seconds"] > 0)
        mine = os.path.dirname(c.stored("w2", MASTER_URI, "b"))
        with open(os.path.join(mine, "identity")) as f:
            told = f.read()
        failed += check("the_folder_says_whose_it_is", told == MASTER_URI + "\n", os.stat(mine).st_mode & 0o777 == 0o700)
        failed += check("what_was_half_written_goes", not [p for p in everything(c) if p.endswith(".tmp")])
        for i in range(2):
            c.restart(i)
        later = Run(c, "later", "later")
        failed += check("they_outlive_session_and_daemon", all(later.files[n] == first.files[n] for n in names))
        before = {p: sha(os.path.join(c.dir, p)) for p in everything(c)}
        stranger = Run(c, "stranger", "stranger", "other")
        failed += check("another_identity_has_its_own", stranger.files["w1", "stranger"] != first.files["w1", "a"])
        poor = Run(c, "poor", "poor", "poor")
        after = {p: sha(os.path.join(c.dir, p)) for p in everything(c)}
        added = {p for p in after if p not in before}
        failed += check("nobody_has_touched_them", all(after.get(p) == before[p] for p in before if "epochs" not in p),
                        all(p.endswith("/identity") for p in added))
        failed += check("nothing_is_anywhere_else", all("/states/" in p or p.endswith("/epochs") for p in after))
        c.homeless = True
        c.restart(1)
        homeless = Run(c, "homeless", "homeless")
        failed += sum(r.failed for r in (first, later, stranger, poor, homeless))
    return 1 if failed else 0


sys.exit(main())
