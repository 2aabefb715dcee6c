"""Convolutions in bf16 over real daemons: they have the bits of one process and a loss close to
that of f32; a processor without bf16 refuses them."""
import json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
from processor import cpu_flags, is_intel, lacks_bf16

suite = Suite()
LACKS = lacks_bf16()
ALL_SETS = {"ONEDNN_MAX_CPU_ISA": "ALL", "DNNL_MAX_CPU_ISA": "ALL"}
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}
OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "DNNL_MAX_CPU_ISA": "AVX512_CORE"}
NET = [
    ["{op: conv2d, out: 16, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}"],
    ["{op: conv2d, out: 32, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}",
     "{op: maxpool, kernel: 2}"],
    ["{op: conv2d, out: 32, kernel: 1}", "{op: batchnorm}", "{op: relu}", "{op: flatten}",
     "{op: linear, out: 10}"],
]
cluster = None


def body(places, dtype, steps, pipeline="micro_batches: 2, schedule: 1f1b"):
    text = IMAGE_DATA + "privacy: {raw_input_leaves: true}\nstages:\n"
    for i, (at, layers) in enumerate(zip(places, NET)):
        text += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(layers)}]}}\n"
    return text + ("loss: {kind: cross_entropy}\n"
                   f"train: {{epochs: 100, max_steps: {steps}, batch: 32, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, dtype: {dtype}, "
                   "optimizer: {kind: sgd, lr: 0.01}}\n"
                   f"pipeline: {{{pipeline}}}\nlog: {{every: 1}}\n"
                   "checkpoint: {every_steps: 100000}\n")


def trained(tag, places, dtype, steps):
    weights, log, _ = cluster.trained(tag, body(places, dtype, steps), steps)
    return weights, [json.loads(line)["loss"] for line in log.splitlines()]


@suite.test
def split_run_gives_the_same_bits_as_unsplit():
    if LACKS:
        return LACKS
    reference, losses = trained("whole", ["master"] * 3, "bf16", 20)
    for tag, places in (("split", ["master", "w1", "w2"]), ("far", ["w1", "w2", "w2"])):
        weights, other = trained(tag, places, "bf16", 20)
        for name in reference:
            assert weights[name] == reference[name], f"{tag}: {name} differs"
        assert other == losses, f"{tag}: the losses differ"


@suite.long
def bf16_loss_is_close_to_f32():
    if LACKS:
        return LACKS
    plain, slow = trained("f32", ["master", "w1", "w2"], "f32", 200)
    short, fast = trained("bf16", ["master", "w1", "w2"], "bf16", 200)
    a, b = sum(slow[-20:]) / 20, sum(fast[-20:]) / 20
    print(f"# mean loss of the last 20 of 200 steps: f32 {a:.6f}, bf16 {b:.6f}")
    assert len(slow) == len(fast) == 200
    assert 0 < abs(a - b) <= 0.01 * a, f"f32 {a}, bf16 {b}"
    assert plain != short, "bf16 computed what f32 does"


@suite.test
def plan_shows_the_bf16_ops():
    if LACKS:
        return LACKS
    session = cluster.session("said", body(["master", "w1", "w2"], "bf16", 20))
    done = run(MASTER, "plan", session, cwd=cluster.dir, env=ALL_SETS)
    assert re.search(r"conv2d(, | and )linear.* in bf16", done.stdout), done.stdout + done.stderr
    assert ("with AMX on this processor" in done.stdout) == ("amx_bf16" in cpu_flags()), done.stdout
    done = run(MASTER, "plan", session, cwd=cluster.dir, env=WITHOUT_AMX)
    assert "AVX512-BF16 without AMX" in done.stdout, done.stdout + done.stderr
    slower = "on this processor conv2d takes up to" in done.stdout
    assert slower == is_intel(), "bf16 without AMX is slower than f32 on processors of Intel: " + done.stdout
    listed = json.loads(run(MASTER, "plan", session, "--json", cwd=cluster.dir, env=WITHOUT_AMX).stdout)["slower_in_bf16"]
    assert [row["op"] for row in listed][:1] == ["conv2d"] * slower and all(row["times"] > 1.05 for row in listed), listed
    assert '"dtype":"bf16"' in run(MASTER, "plan", session, "--json", cwd=cluster.dir).stdout


@suite.test
def master_without_bf16_is_refused():
    session = cluster.session("here", body(["master", "w1", "w2"], "bf16", 20))
    for verb in ("check", "plan", "train"):
        done = run(MASTER, verb, session, cwd=cluster.dir, env=OLDER)
        said = done.stdout + done.stderr
        assert done.returncode != 0, f"{verb}: {said}"
        for word in ("here.yaml:", "master: bf16 needs a processor with AVX512-BF16",
                     "use train.dtype: f32"):
            assert word in said, f"{verb} should say '{word}': {said}"


@suite.test
def worker_without_bf16_is_named():
    with Cluster(1, env=OLDER) as old:
        os.symlink(os.path.join(cluster.dir, "data"), os.path.join(old.dir, "data"))
        done = old.train(old.session("there", body(["w1"] * 3, "bf16", 20)))
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        for word in ("w1", "bf16 needs a processor with AVX512-BF16", "use train.dtype: f32"):
            assert word in said, f"it should say '{word}': {said}"


@suite.test
def processors_whose_bits_may_differ_are_named():
    """A BLAS with the kernels of another processor adds in another order. The test sets the kernels
    of each process, because OpenBLAS chooses them by the machine: 0.3.21 uses Prescott's on an
    Intel Xeon of model 207."""
    one, other = ({"OPENBLAS_CORETYPE": name} for name in ("Nehalem", "Prescott"))
    said = r"oneDNN [0-9.]+, OpenBLAS [0-9.]+ "
    more = r"(?: \(not used: vectors too narrow\))?, choices [0-9a-f]{12}"
    notice = rf"worker w1 computes with {said}Prescott{more}, this master with {said}Nehalem{more}: results will not be bit-identical"
    again = rf"was computed with {said}Prescott{more}, this machine has {said}Nehalem{more}: not bit-identical"
    with Cluster(1, env=other) as there:
        os.symlink(os.path.join(cluster.dir, "data"), os.path.join(there.dir, "data"))
        done = there.train(there.session("there", body(["master", "w1", "w1"], "f32", 1)), env=one)
        assert done.returncode == 0 and re.search(notice, done.stdout + done.stderr), done.stdout + done.stderr
        said = run(MASTER, "plan", os.path.join(there.dir, "there.yaml"), cwd=there.dir, env=other).stdout
        unused = re.search(r"on this processor OpenBLAS \S+ Prescott is not used, because its vectors are too narrow", said)
        assert bool(unused) == ("avx2" in cpu_flags()), said
        session = there.session("alike", body(["master", "w1", "w1"], "f32", 2))
        done = there.train(session, "--max-steps", "1", env=other)
        assert done.returncode == 0 and "bit-identical" not in done.stdout + done.stderr, done.stdout + done.stderr
        done = there.train(session, "--resume", env=one)
        assert done.returncode == 0 and re.search(again, done.stdout + done.stderr), done.stdout + done.stderr


with Cluster(2) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
