#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills the worker, the master or both while the worker writes the files of a checkpoint: after a
part of the file that a seed draws, or while it is hashed or synced. A kill counts if the unfinished
file exists when the process is dead. The run continues each time from the checkpoint before, and
ends with the weights, moments and losses of an undisturbed run.

usage: kill_writes.py [KILLS [SEED]]     30 kills; files of 64 MiB
"""
import datetime, os, random, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
SEED_OF_KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 31)
WIDTH, EVERY = 4096, 4
STEPS, BYTES = EVERY * (2 * KILLS + 8), 4 * WIDTH * WIDTH
BODY = (IMAGE_DATA + "stages:\n"
        f"  - {{name: a, at: master, layers: [{{op: flatten}}, {{op: linear, out: {WIDTH}}}, {{op: relu}}]}}\n"
        f"  - {{name: b, at: w1, layers: [{{op: linear, out: {WIDTH}}}, {{op: relu}}, {{op: dropout, p: 0.2}}, {{op: linear, out: 10}}]}}\n"
        "loss: {kind: cross_entropy}\nlog: {every: 1}\n"
        f"train: {{epochs: 100000, max_steps: {STEPS}, batch: 8, seed: {SEED}, optimizer: {{kind: sgd, lr: 0.001, momentum: 0.9}}}}\n"
        f"checkpoint: {{every_steps: {EVERY}, keep: 2}}\nrecovery: {{attempts: 1000000, wait: 100ms, give_up_after: 120s}}\n")
r = random.Random(SEED_OF_KILLS)


class Keeping(Cluster):
    """A worker that keeps its files over a restart."""

    def worker_config(self, i, extra=""):
        os.makedirs(self.kept(), exist_ok=True)
        path = super().worker_config(i, extra + f"state_dir: {self.kept()}\n")
        with open(path) as f:
            config = f.read().replace("role: master}", "role: master, state_bytes: 1GiB}")
        with open(path, "w") as f:
            f.write(config)
        return path

    def kept(self):
        return os.path.join(self.dir, "kept")


def unfinished():
    """The bytes of the file that the worker is writing, or None."""
    for folder, _, names in os.walk(cluster.kept()):
        for name in names:
            if name.endswith(".tmp"):
                try:
                    return os.path.getsize(os.path.join(folder, name))
                except OSError:
                    pass
    return None


def complete(folder):
    """The steps whose checkpoints have a manifest."""
    return [int(n.split("-")[1]) for n in os.listdir(folder)
            if n.startswith("checkpoint-") and os.path.exists(os.path.join(folder, n, "MANIFEST.json"))] if os.path.exists(folder) else []


def start(session):
    with open(session + ".out", "ab") as out:
        return subprocess.Popen([MASTER, "train", "--resume", session], cwd=cluster.dir, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def result(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        losses = [(m["step"], m["loss"]) for m in map(json.loads, f)]
    return [checkpoint_tensors(folder, STEPS, prefix) for prefix in ("model-", "optimizer-")], losses


def returns(folder):
    """[(time, step)] of the checkpoints from which the run continued."""
    with open(os.path.join(folder, "log.jsonl")) as f:
        events = [e for e in map(json.loads, f) if e["event"] in ("recovered", "resumed")]
    return [(datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")).timestamp(), e["step"]) for e in events]


def wait_for_write(folder, master, above):
    """Waits for the middle of a write while a checkpoint above step `above` exists. Returns false
    if the run has ended."""
    part = r.choice((0, r.random(), r.random(), 1))
    while master.poll() is None:
        n = unfinished()
        if n is not None and n >= part * BYTES and max(complete(folder), default=0) > above:
            time.sleep(r.choice((0, 0, 0.1)))
            return True
        time.sleep(0.002)
    return False


def kill(process):
    process.kill()
    process.wait()


def killed_run(session, folder):
    """A run with KILLS kills. Returns [(time, who, step of the last complete checkpoint)] and the
    exit code."""
    master, kills, above = start(session), [], 0
    while wait_for_write(folder, master, above):
        if len(kills) == KILLS:
            break
        who, now = r.choice(("worker", "master", "both")), time.time()
        if who != "master":
            kill(cluster.workers[0].process)
        if who != "worker":
            kill(master)
        above = max(complete(folder))
        if unfinished() is not None:  # else the write had ended
            kills.append((now, who, above))
        if who != "worker":
            master = start(session)
        if who != "master":
            cluster.restart(0)
    return kills, master.wait()


with Keeping(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"), n=256, n_test=16, side=8)
    whole, folder = (os.path.join(cluster.dir, "runs", name) for name in ("whole", "killed"))
    done = cluster.train(cluster.session("whole", BODY), timeout=900)
    assert done.returncode == 0, done.stderr
    wanted, begin = result(whole), time.monotonic()
    shutil.rmtree(whole)
    session = cluster.session("killed", BODY)
    kills, code = killed_run(session, folder)
    with open(session + ".out") as f:
        assert code == 0, f"the run ended with {code} after {len(kills)} kills:\n{f.read()[-3000:]}"
    back = returns(folder)
    late = [(who, above, next((step for when, step in back if when > killed), None)) for killed, who, above in kills]
    wrong, same = [k for k in late if k[1] != k[2]], result(folder) == wanted
    print("\n".join(f"# a kill of the {who} with a complete checkpoint of step {a}: the run went on from {b}" for who, a, b in wrong))
    who = {w: sum(k[1] == w for k in kills) for w in ("worker", "master", "both")}
    print(f"{len(kills)} kills while files of {BYTES >> 20} MiB were written ({', '.join(f'{n} of {w}' for w, n in who.items())}), {len(wrong)} went on from another "
          f"checkpoint than the one before, {'the same' if same else 'other'} bits, {unfinished() is not None:d} unfinished files left, {time.monotonic() - begin:.0f} s "
          f"(seed {SEED_OF_KILLS})")
    good = same and not wrong and len(kills) == KILLS and unfinished() is None
    print("ok" if good else "not ok", "killed_writes_change_no_bit", flush=True)
sys.exit(0 if good else 1)
