#!/usr/bin/python3
"""Real processes whose control messages are dropped, doubled, delayed and so reordered by
tests/faults/faults.c: the results have the same bits as without."""
import os, re, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
import cluster as net
from cluster import *

ROOT = os.path.join(HERE, "../..")
FAULTY = os.path.join(BIN, "faults")
KEPT = os.path.join(BIN, "net", "api_kept")
# Seed, percent dropped, percent doubled, maximum delay in milliseconds.
MILD, LATE, HARSH = "3:10:30:40", "2:10:50:150", "5:40:40:60"
STEPS = 12
TRAINING = IMAGE_DATA + f"""privacy: {{raw_input_leaves: true}}
transfer: direct
stages:
  - {{name: s0, at: w1, layers: [{{op: conv2d, out: 6, kernel: 3, pad: 1}}, {{op: batchnorm}}, {{op: relu}}]}}
  - {{name: s1, at: w2, layers: [{{op: flatten}}, {{op: dropout, p: 0.25}}, {{op: linear, out: 10}}]}}
loss: {{kind: cross_entropy}}
train: {{epochs: 100, max_steps: {STEPS}, batch: 32, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {{kind: adam, lr: 0.003}}}}
pipeline: {{micro_batches: 4, schedule: 1f1b}}
log: {{every: 100}}
checkpoint: {{every_steps: 100000}}
"""
suite = Suite()


def in_cluster(plan, work, workers=2):
    """The result of work(cluster, environment), and the processes' own counts of messages that they
    dropped, doubled and delayed."""
    folder = BIN if plan is None else FAULTY
    net.MASTER, net.WORKER = (os.path.join(folder, "cleave-" + which) for which in ("master", "worker"))
    env = {} if plan is None else {"CLEAVE_TEST_FAULTS": plan}
    done = []
    with Cluster(workers, limits="cpu_devices: 2\n", env=env) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"), n=128, n_test=64)
        found = work(c, env, done)
        for w in c.workers:
            w.process.terminate()
            w.process.wait(20 * SLOW)
            done.append(w.text())
    counts = {}
    for kind, *numbers in re.findall(r"^faults (\w+) (\d+) dropped (\d+) doubled (\d+) delayed (\d+)$",
                                     "\n".join(done), re.M):
        counts[kind] = [a + int(b) for a, b in zip(counts.get(kind, [0] * 4), numbers)]
    return found, counts


def program(env, done, *command, cwd=None):
    # searched before the program's own library path
    library = {"LD_LIBRARY_PATH": os.path.abspath(FAULTY)} if env else {}
    p = run(*command, env={**env, **library}, cwd=cwd, timeout=600)
    done.append(p.stderr)
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    return p.stdout


def kept(way):
    def work(c, env, done):
        out = program(env, done, KEPT, c.session(way, f"transfer: {way}\n"), "w1", "w2", "few")
        return [line for line in out.splitlines() if line.startswith("digest ")]
    return work


def seeds(c, env, done):
    """The last lines of programs of tests/seeds, which have the losses."""
    session = c.session("seed", "transfer: direct\n")
    return [program(env, done, os.path.abspath(os.path.join(BIN, "seeds", name)), session, cwd=ROOT).splitlines()[-1]
            for name in (SEED_PROGRAMS if LONG else SEED_PROGRAMS[:1])]


def training(c, env, done):
    p = c.train(c.session("train", TRAINING), env=env)
    done.append(p.stderr)
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    run_dir = os.path.join(c.dir, "runs", "train")
    with open(os.path.join(run_dir, "metrics.jsonl")) as f:
        return checkpoint_tensors(run_dir, STEPS), f.read()


def was_busy(counts, kinds):
    for kind in kinds:
        assert kind in counts, f"no {kind} was seen: {counts}"
    sums = [sum(n) for n in zip(*counts.values())]
    print("   ", " ".join(f"{kind}:{'/'.join(map(str, n))}" for kind, n in sorted(counts.items())))
    assert all(sums), f"the injector was idle: {counts}"


def same_under_faults(work, plan, *kinds, workers=2):
    wanted, none = in_cluster(None, work, workers)
    assert not none
    got, counts = in_cluster(plan, work, workers)
    assert got == wanted, f"plan {plan}: {str(got)[:300]} instead of {str(wanted)[:300]}"
    was_busy(counts, kinds)


REFERENCES = ("REF_KEEP", "REF_USE", "REF_FORK", "REF_ACCEPT", "REF_DELETE", "REF_FETCH", "REF_ACK")


@suite.test
def references_over_a_direct_link_give_the_same_bits():
    same_under_faults(kept("direct"), MILD, *REFERENCES, "END_CONTEXT", "ENDED")


@suite.long
def references_via_the_master_give_the_same_bits():
    same_under_faults(kept("via_master"), LATE, *REFERENCES, "END_CONTEXT", "ENDED")


@suite.long
def the_seed_programs_give_the_same_losses():
    same_under_faults(seeds, "5:4:30:10" if LONG else HARSH, "END_CONTEXT", "ENDED", workers=3)


@suite.long
def training_gives_the_same_weights():
    same_under_faults(training, HARSH, "END_CONTEXT", "ENDED")


suite.main()
