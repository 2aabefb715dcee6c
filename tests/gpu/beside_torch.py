# SPDX-License-Identifier: Apache-2.0
"""Pieces of run.py that do the same steps in PyTorch: are the losses the same, and which is
faster."""
import json, os, sys, tempfile
from pieces import At, add_piece, beside, last_line, ours, run, told

# network -> batch and size, of a real run, of a dry one, and where numbers are compared
SHAPES = {"mlp": ((256, 1024), (4, 16), (32, 64)), "lstm": ((64, 64), (2, 3), (8, 12)),
          "resnet50": ((128, 224), (2, 64), (16, 64)), "bert": ((64, 512), (1, 8), (4, 32))}
KINDS = {"mlp": ("f32", "tf32"), "lstm": ("f32", "tf32"), "resnet50": ("f32", "tf32", "bf16"), "bert": ("bf16",)}
# Our step by that of PyTorch's, eager and compiled: what is wanted at most.
WANTED = {("mlp", "f32", "eager"): 0.4, ("lstm", "f32", "eager"): 0.4, ("resnet50", "bf16", "eager"): 1.0,
          ("resnet50", "bf16", "compile"): 1.15, ("bert", "bf16", "eager"): 0.9, ("bert", "bf16", "compile"): 1.1}
# How far ours may be from PyTorch's in f64, or how many times as far as PyTorch's own in f32. Where
# rounding turns a relu over, all gradients before it change: ResNet50's by some per cent. A row
# whose limit is the whole value judges nothing; so may one of FEW be.
NEAR, TIMES, FEW = 1e-4, 8, 10


def network_of(name, exact):
    """What both programs call it: a dry run has a small BERT, and the same numbers need one that
    drops nothing."""
    return name if name != "bert" else "bert-small" if exact or At.dry else name


def steps_of(network, shape, math, n, *file):
    """Our steps: what the program printed last, as JSON; or its end as a result."""
    done = ours("gpu/steps", network, *map(str, shape), math, str(n), *file)
    return answer(done)


def torch_steps(network, shape, math, n, how, *file):
    """PyTorch's, by the Python that runs this."""
    script = beside("torch_steps.py", "speed")
    env = dict(os.environ, HF_HUB_OFFLINE="1", CLEAVE_TORCH_ON="cpu" if At.dry else "cuda")
    return answer(run([sys.executable, script, network, *map(str, shape), math, str(n), how, *file], env=env))


def answer(done):
    if done.returncode == 0:
        return json.loads(last_line(done.stdout)), None
    return None, told(done, str)


def limit_of(own):
    """own: how far PyTorch's in f32 is. A NaN there gives ours no room."""
    return max(NEAR, TIMES * own)


def parity(network):
    """Losses of the same steps from the same numbers, and the parameters after the first."""
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
    """By the losses of all steps, and by each parameter after the first: PyTorch's in f64 say what
    is right, and its own in f32 how well that can be known."""
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
    """Our step, PyTorch's eager one and that of torch.compile, in one run."""
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
