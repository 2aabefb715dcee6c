#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Pipelines train as well as PyTorch: ResNet18 on Fashion-MNIST in four stages over three nodes
(the shipped session), synchronous and asynchronous, against PyTorch unsplit after the same steps
from the same weights; accuracy on all 10,000 test images, the mean over seeds. `make learns` runs
it. PyTorch from a first layer that differs by a millionth ends 0.4 points apart (1f1b, root mean
square of four seeds), so by chance the mean of 12 seeds differs by 0.12 points (standard error) and
that of 4 seeds by 0.2. Each core trains a seed of its own, with one thread of PyTorch.

usage: learns.py [--seeds N] [SCHEDULE...]     CLEAVE_TEST_BIN is the folder of the binaries
"""
import argparse
import concurrent.futures
import multiprocessing
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../net/lib"), os.path.join(HERE, "../golden")]

import numpy as np
import torch

import resnet
from cluster import Cluster
from load_checkpoint import fashion
from states import export

SESSION = os.path.join(HERE, "../../deploy/sessions/resnet18-fashion-mnist.yaml")
# (micro-batches, which batch norms see; rate; momentum), points from PyTorch at most, seeds, more
# of the session. Asynchronous stages step with gradients of up to three steps ago, which a large
# effective rate, and so momentum at the rate of the others, does not forgive: PyTorch's run has
# what pipedream's has.
CASES = {
    "1f1b": ((4, 0.02, 0.9), 0.3, 12, []),
    "pipedream": ((1, 0.05, 0.0), 1.0, 4, ["pipeline.flush_every=25"]),
}
LEAST = 80  # least accuracy in percent, because a run that learns nothing proves nothing


def sets_of(cluster, weights, schedule):
    how, _, _, more = CASES[schedule]
    sets = resnet.fashion_sets(weights, schedule, *how) + more + [f"run.dir={cluster.dir}/runs"]
    sets += [f"tls.{k}={cluster.dir}/certs/{f}"
             for k, f in (("ca", "ca.pem"), ("cert", "master.pem"), ("key", "master.key"))]
    for i, port in enumerate(cluster.ports, 1):
        sets += [f"workers.worker-{i}.address=127.0.0.1:{port}",
                 f"workers.worker-{i}.identity=spiffe://test/w{i}"]
    return [a for s in sets for a in ("--set", s)]


def our_accuracy(cluster, weights, schedule):
    done = cluster.train(SESSION, "--fresh", *sets_of(cluster, weights, schedule), timeout=900)
    assert done.returncode == 0, done.stderr
    found = re.search(r"test accuracy (\d+\.\d\d) %  \(.*10000 samples\)", done.stdout)
    assert found, done.stdout
    return float(found.group(1))


def accuracies(schedule, seed):
    """(ours, PyTorch's) in percent, from the same weights."""
    net = resnet.fashion_net(seed)
    with Cluster(2) as cluster:
        weights = os.path.join(cluster.dir, "start.safetensors")
        export.write_safetensors(weights, export.state_arrays(net))
        ours = our_accuracy(cluster, weights, schedule)
    resnet.fashion_torch(net, *fashion("train"), *CASES[schedule][0])
    return ours, resnet.accuracy(net, *fashion("t10k"))


def learns(pool, schedule, seeds):
    """Whether the mean accuracies over the seeds are close enough."""
    pairs, begin, limit = [], time.monotonic(), CASES[schedule][1]
    tried = range(1, (seeds or CASES[schedule][2]) + 1)
    for seed, pair in zip(tried, pool.map(accuracies, [schedule] * len(tried), tried)):
        pairs.append(pair)
        print(f"  {schedule}, seed {seed}: {pair[0]:.2f} %, PyTorch {pair[1]:.2f} %", flush=True)
    ours, theirs = np.mean(pairs, axis=0)
    ok = abs(ours - theirs) <= limit and theirs > LEAST
    print(f"{'ok' if ok else 'not ok'} {schedule}: {ours:.2f} %, PyTorch {theirs:.2f} %, apart "
          f"{abs(ours - theirs):.2f} of {limit} points ({time.monotonic() - begin:.0f}s)", flush=True)
    return ok


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seeds", type=int, help="seeds of each schedule (12 and 4)")
    p.add_argument("schedules", nargs="*", metavar="SCHEDULE", default=list(CASES))
    args = p.parse_args()
    if unknown := set(args.schedules) - set(CASES):
        p.error(f"no schedule {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    with concurrent.futures.ProcessPoolExecutor(
            os.cpu_count(), multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        good = [learns(pool, schedule, args.seeds) for schedule in args.schedules]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
