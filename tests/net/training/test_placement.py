"""One session, placed in every way, gives the same bits: dropout and batch norm in the net."""
import json, os, re, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 96 if LONG else 48  # epochs of 24

NET = [
    ["{op: conv2d, out: 6, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}", "{op: maxpool, kernel: 2}"],
    ["{op: conv2d, out: 20, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}", "{op: dropout, p: 0.25}"],
    ["{op: avgpool, kernel: 2}", "{op: flatten}", "{op: linear, out: 24}", "{op: relu}", "{op: dropout, p: 0.5}"],
    ["{op: linear, out: 10}"],
]


def body(places, micro, transfer="via_master", steps=STEPS, extra="", name_dir=None):
    text = IMAGE_DATA + "stages:\n"
    for i, (at, layers) in enumerate(zip(places, NET)):
        text += f"  - {{name: s{i}, at: {at}, transfer: {transfer}, layers: [{', '.join(layers)}]}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 100, max_steps: {steps}, batch: 22, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, clip_grad_norm: 1.0,"
                   " optimizer: {kind: adam, lr: 0.003}}\n"
                   f"pipeline: {{micro_batches: {micro}}}\n"
                   "log: {every: 100}\n"
                   f"checkpoint: {{every_steps: 100000}}\n" + extra)


PLACEMENTS = {
    "unsplit": (["master"] * 4, "via_master"),
    "one": (["master", "w1", "w1", "w1"], "via_master"),
    "two_direct": (["master", "w1", "w2", "w2"], "direct"),
    "two_via": (["master", "w1", "w2", "w2"], "via_master"),
    "u_shape": (["master", "w1", "w2", "master"], "direct"),
}
cluster = None


def trained(tag, places, transfer, micro, steps=STEPS):
    return cluster.trained(tag, body(places, micro, transfer, steps), steps)


def compare(micro, placements):
    reference = None
    for tag, (places, transfer) in placements.items():
        weights, log, out = trained(f"{tag}-m{micro}", places, transfer, micro)
        if reference is None:
            reference, reference_log = weights, log
            first, last = json.loads(log.splitlines()[0]), json.loads(log.splitlines()[-1])
            assert last["loss"] < 0.7 * first["loss"], (first, last)  # it learns something
            # 512 samples make 23 batches of 22 and one of 6, which torch.chunk cuts into 3, not 4
            short = STEPS // 24 if micro == 4 else 0
            assert int.from_bytes(weights["1.num_batches_tracked"][2], "little") == STEPS * micro - short
            continue
        assert weights.keys() == reference.keys()
        for k in reference:
            assert weights[k] == reference[k], f"{tag}, {micro} micro-batches: {k} differs"
        assert log == reference_log, f"{tag}: the loss log differs"


@suite.long
def one_micro_batch_gives_the_same_bits_anywhere():
    compare(1, chosen(PLACEMENTS, "unsplit", "two_direct"))


@suite.test
def four_micro_batches_give_the_same_bits_anywhere():
    compare(4, chosen(PLACEMENTS, "unsplit", "two_direct", "two_via", "u_shape"))


@suite.test
def workers_computed_the_planned_calls():
    """Counters read in the worker processes: forwards = steps x micro-batches; nothing through the
    master on a direct edge."""
    calls = STEPS * 4 - STEPS // 24  # short batches have three micro-batches
    for w, modules in zip(cluster.workers, (1, 2)):
        closes = [l for l in w.text().splitlines() if "audit close session=two_direct-m4 " in l]
        assert len(closes) == 1, w.text()
        counted = {k: int(n) for k, n in re.findall(r"(\w+)=(\d+)", closes[0].split('" ')[-1])}
        assert counted["forwards"] == counted["backwards"] == calls * modules, closes
        assert counted["bytes_in"] > 0 and counted["bytes_out"] > 0, closes
    run_dir = os.path.join(cluster.dir, "runs", "two_direct-m4")
    rows = egress_rows(run_dir)
    sent = lambda rows, stage: {r["from"]: r["tensors"] for r in rows
                                if (r["kind"], r["stage"]) == ("activation", stage)}
    forward = calls + 6  # the 128 samples of the test are 6 batches more
    assert sent(rows, "s0") == {"master": forward}, rows
    assert sent(rows, "s1") == {"w1": forward}, rows  # planned: the master does not see it
    via = egress_rows(os.path.join(cluster.dir, "runs", "two_via-m4"))
    assert sent(via, "s1") == {"master": forward}, via


@suite.test
def two_masters_at_once_give_the_same_bits():
    alone, _, _ = trained("alone", ["master", "w1", "w2", "w2"], "direct", 4, steps=STEPS - 18)
    results, errors = {}, []

    def go(tag):
        try:
            results[tag] = trained(tag, ["master", "w1", "w2", "w2"], "direct", 4, steps=STEPS - 18)[0]
        except AssertionError as e:
            errors.append(e)

    threads = [threading.Thread(target=go, args=(f"both{i}",)) for i in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors, errors
    for tag, weights in results.items():
        assert weights == alone, tag


@suite.test
def resume_is_exact():
    """Half of the steps, and the other half: the same bits, loss log included."""
    places, transfer = PLACEMENTS["two_direct"]
    session = cluster.session("resumed", body(places, 4, transfer))
    first = cluster.train(session, "--max-steps", str(STEPS // 2))
    assert first.returncode == 0, first.stderr
    second = cluster.train(session, "--resume", timeout=240)
    assert second.returncode == 0, second.stderr
    run_dir = os.path.join(cluster.dir, "runs", "resumed")
    whole_dir = os.path.join(cluster.dir, "runs", "two_direct-m4")
    assert checkpoint_tensors(run_dir, STEPS) == checkpoint_tensors(whole_dir, STEPS)
    optim = [checkpoint_tensors(d, STEPS, "optimizer-") for d in (run_dir, whole_dir)]
    assert optim[0] == optim[1] and len(optim[0]) > 20
    logs = [open(os.path.join(d, "metrics.jsonl")).read() for d in (run_dir, whole_dir)]
    assert logs[0] == logs[1] and logs[0].count("\n") == STEPS


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
