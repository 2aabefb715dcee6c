# SPDX-License-Identifier: Apache-2.0
"""Pieces of run.py that take the same steps in our programs and in PyTorch, and compare losses and
speed."""
import json, os, sys, tempfile
from pieces import At, add_piece, beside, last_line, ours, run, told

# network -> (batch, size) of a real run, of a dry run, and of the comparison of numbers
SHAPES = {"mlp": ((256, 1024), (4, 16), (32, 64)), "lstm": ((64, 64), (2, 3), (8, 12)),
          "resnet50": ((128, 224), (2, 64), (16, 64)), "bert": ((64, 512), (1, 8), (4, 32))}
KINDS = {"mlp": ("f32", "tf32"), "lstm": ("f32", "tf32"), "resnet50": ("f32", "tf32", "bf16"), "bert": ("bf16",)}
# Wanted maximum of the time of our step divided by that of PyTorch, eager and compiled.
WANTED = {("mlp", "f32", "eager"): 0.4, ("lstm", "f32", "eager"): 0.4, ("resnet50", "bf16", "eager"): 1.0,
          ("resnet50", "bf16", "compile"): 1.15, ("bert", "bf16", "eager"): 0.9, ("bert", "bf16", "compile"): 1.1}
# Ours may differ from PyTorch's in f64 by NEAR, or by TIMES the difference of PyTorch's own f32.
# Where rounding changes the sign before a relu, all gradients before it change: ResNet50's by some
# per cent. A row whose limit is as large as the value decides nothing; at most one row in FEW may
# be such.
NEAR, TIMES, FEW = 1e-4, 8, 10


def network_of(name, exact):
    """The network's name in both programs: a dry run has a small BERT, and equal numbers need one
    without dropout."""
    return name if name != "bert" else "bert-small" if exact or At.dry else name


def steps_of(network, shape, math, n, *file):
    """Runs our steps. Returns the program's last line as JSON; if it failed, a result that says
    so."""
    done = ours("gpu/steps", network, *map(str, shape), math, str(n), *file)
    return answer(done)


def torch_steps(network, shape, math, n, how, *file):
    """Runs PyTorch's steps, with the Python that runs this script."""
    script = beside("torch_steps.py", "speed")
    env = dict(os.environ, HF_HUB_OFFLINE="1", CLEAVE_TORCH_ON="cpu" if At.dry else "cuda")
    return answer(run([sys.executable, script, network, *map(str, shape), math, str(n), how, *file], env=env))


def answer(done):
    if done.returncode == 0:
        return json.loads(last_line(done.stdout)), None
    return None, told(done, str)


def limit_of(own):
    """The allowed difference. own: the difference of PyTorch's f32; if it is a NaN, the limit is
    NEAR."""
    return max(NEAR, TIMES * own)


def parity(network):
    """Compares the losses of the same steps from the same numbers, and the parameters after the
    first."""
    shape, n = SHAPES[network][1 if At.dry else 2], 2 if At.dry else 8
    network = network_of(network, True)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "numbers")
        mine, bad = steps_of(network, shape, "f32", n, file)
        if bad:
            return bad
        theirs, bad = torch_steps(network, shape, "f32", n, "eager", file)
        judge, bad = (None, bad) if bad else torch_steps(network, shape, "f64", n, "eager", file)
        if bad:
            return bad
    return judged(mine, theirs, judge)


def judged(mine, theirs, judge):
    """Judges the losses of all steps and each parameter after the first step. PyTorch's values in
    f64 are right, and those of its f32 show how exactly f32 can compute them."""
    losses = list(zip(mine["losses"], theirs["losses"], judge["losses"]))
    rows = [(f"the loss of step {i + 1}", abs(a - c) / abs(c), abs(b - c) / abs(c)) for i, (a, b, c) in enumerate(losses)]
    rows += [(f"the first step of {name}", ours, own) for name, ours, own in judge["apart"]]
    wrong = [row for row in rows if not row[1] <= limit_of(row[2])]
    vague = [name for name, _, own in rows if limit_of(own) >= 1]
    name, ours, own = wrong[0] if wrong else max(rows, key=lambda row: row[1] / limit_of(row[2]))
    why = "no parameter was compared; " if not judge["apart"] else \
          f"PyTorch's own f32 is too far from its f64 in {len(vague)} to judge by; " if len(vague) * FEW > len(rows) else ""
    return {"result": "FAILED" if wrong or why else "ok", "output": json.dumps([mine, theirs, judge]),
            "what": f"{why}{len(losses)} steps and {len(judge['apart'])} parameters: {len(wrong)} too far from PyTorch's in f64, {len(vague)} "
                    f"by which nothing is known; {'first' if wrong else 'farthest'} {name}: {ours:.1e}, limit {limit_of(own):.1e}"}


def compared(mine, theirs, wanted):
    ratio = mine["ms"] / theirs["ms"]
    goal = "" if wanted is None else f" (wanted: at most {wanted})" if At.dry else f" ({'met' if ratio <= wanted else 'MISSED'}: {wanted})"
    return f"torch {theirs['how']} {theirs['ms']:.3f} ms, ratio {ratio:.2f}{goal}"


def speed(network, math):
    """Compares our step with PyTorch's eager one and that of torch.compile, in one run."""
    shape, n = SHAPES[network][1 if At.dry else 0], 2 if At.dry else 60
    name = network_of(network, False)
    mine, bad = steps_of(name, shape, math, n)
    if bad:
        return bad
    said, output, word = [f"ours {mine['ms']:.3f} ms"], [mine], "ok"
    for how in ("eager", "compile"):
        theirs, bad = torch_steps(name, shape, math, n, how)
        output.append(theirs or bad)
        said.append(compared(mine, theirs, WANTED.get((network, math, how))) if theirs
                    else f"torch {how}: {bad['what'][-160:].strip()}")
        word = "FAILED" if bad and bad["result"] == "FAILED" else word
    return {"result": word, "what": "; ".join(said), "output": json.dumps(output)}


for each in SHAPES:
    add_piece(f"parity_{each}", "The same steps in PyTorch on the GPU, from the same numbers: losses, and parameters after the first.", parity, each)
for each, kinds in KINDS.items():
    for kind in kinds:
        add_piece(f"speed_{each}_{kind}", "A step's time beside PyTorch's, eager and compiled.", speed, each, kind)
