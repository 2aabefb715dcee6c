# SPDX-License-Identifier: Apache-2.0
"""The demo's session, shortened: the master on its processor and both workers on `device: cuda`,
here the simulated device. It learns as with workers on processors."""
import json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *

SESSION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy/sessions/fashion-mnist.yaml")
WORKERS = {"cpu": lib.WORKER, "cuda": os.path.join(BIN, "gpu/cleave-worker")}
STEPS, TESTED, REACHES = 24, 256, 0.70
CUT = {"data.limit_train": STEPS * 64, "data.limit_test": TESTED, "data.limit_by": "first", "train.batch": 64, "train.epochs": 1,
       "train.seed": SEED, "log.every": 1}
suite = Suite()


def demo(device):
    """(losses, test accuracy, logs of the workers) of the run."""
    lib.WORKER = WORKERS[device]
    with open(SESSION) as f:
        text = f.read()
    body = text[text.index("\ndata:"):].replace("at: worker-", "at: w")
    with Cluster(2, limits=f"device: {device}\n", env={"CLV_SIM_SEED": "5"}) as c:
        done = c.train(c.session("demo", body, keys=""), *(f"--set={k}={v}" for k, v in CUT.items()), timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        with open(os.path.join(c.dir, "runs/demo/metrics.jsonl")) as f:
            losses = [json.loads(line)["loss"] for line in f]
        accuracy = re.search(r"test accuracy (\d+\.\d+) %", done.stdout)
        return losses, float(accuracy[1]) / 100, [w.text() for w in c.workers]


@suite.long
def the_demo_learns_on_devices():
    begin = os.times()
    losses, accuracy, logs = demo("cuda")
    end = os.times()
    seconds = sum(end[2:4]) - sum(begin[2:4])
    reference, other, _ = demo("cpu")
    print(f"    loss {losses[0]:.4f} to {losses[-1]:.4f}, {100 * accuracy:.1f} % after {STEPS} steps, {seconds:.1f} s of a core;"
          f" on processors {reference[-1]:.4f}, {100 * other:.1f} %")
    assert all("device=cuda:0" in log for log in logs), logs
    assert len(losses) == STEPS and all(abs(a - b) < 1e-3 * b for a, b in zip(losses, reference)), (losses, reference)
    assert accuracy >= REACHES and abs(accuracy - other) <= 2 / TESTED, (accuracy, other)


suite.main()
