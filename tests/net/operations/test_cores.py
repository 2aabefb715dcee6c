"""Threads that compute stay on the cores that worker.yaml names, the kernels' own threads too."""
import os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
BODY = ("data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
        "privacy: {raw_input_leaves: true}\n"
        "stages: [{name: all, at: w1, threads: 2, layers: [{op: conv2d, out: 32, kernel: 3, pad: 1}, {op: flatten},"
        " {op: linear, out: 10}]}]\n"
        "loss: {kind: cross_entropy}\ntrain: {epochs: 6, batch: 64, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {kind: sgd, lr: 0.01}}\n"
        "log: {every: 1000}\ncheckpoint: {every_steps: 100000}\n")


def allowed(pid):
    """{allowed cores: number of threads of the process}"""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/status") as f:
                where = re.search(r"Cpus_allowed_list:\s*(\S+)", f.read()).group(1)
        except (FileNotFoundError, ProcessLookupError):  # it has ended since the folder was read
            continue
        found[where] = found.get(where, 0) + 1
    return found


def while_training(more):
    """The results of allowed() before and while a session of two threads computes."""
    with Cluster(1, limits=more) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"))
        before, most = allowed(cluster.workers[0].process.pid), {}
        session = cluster.session("cores", BODY)
        master_ = subprocess.Popen([os.path.join(BIN, "cleave-master"), "train", session], cwd=cluster.dir,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while master_.poll() is None:
            for where, n in allowed(cluster.workers[0].process.pid).items():
                most[where] = max(most.get(where, 0), n)
            time.sleep(0.005)
        assert master_.returncode == 0, master_.stderr.read()
        return before, most


@suite.test
def compute_threads_stay_on_the_configured_cores():
    # not the first core, because libraries may have put threads of their own there
    one = str(max(os.sched_getaffinity(0)))
    before, free = while_training("")
    if one in before:
        return "this process may use one core alone: staying there shows nothing"
    assert one not in free, free
    _, pinned = while_training(f"cores: [{one}]\n")
    assert pinned.get(one, 0) >= 2, pinned  # the session's thread and one of the kernels'


suite.main()
