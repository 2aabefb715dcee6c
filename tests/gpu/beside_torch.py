# SPDX-License-Identifier: Apache-2.0
"""Pieces of run.py that do the same steps in PyTorch: are the losses the same, and which is
faster."""
import json, os, sys, tempfile
from pieces import At, add_piece, beside, last_line, ours, run, told

# network -> batch and size, of a real run, of a dry one, and where numbers are compared
SHAPES = {"mlp": ((256, 1024), (4, 16), (32, 64)), "lstm": ((64, 64), (2, 3), (8, 12)),
          "resnet50": ((128, 224), (4, 32), (16, 64)), "bert": ((64, 512), (1, 8), (4, 32))}
KINDS = {"mlp": ("f32", "tf32"), "lstm": ("f32", "tf32"), "resnet50": ("f32", "tf32", "bf16"), "bert": ("bf16",)}
# Our step by that of PyTorch's, eager and compiled: what is wanted at most.
WANTED = {("mlp", "f32", "eager"): 0.4, ("lstm", "f32", "eager"): 0.4, ("resnet50", "bf16", "eager"): 1.0,
          ("resnet50", "bf16", "compile"): 1.15, ("bert", "bf16", "eager"): 0.9, ("bert", "bf16", "compile"): 1.15}
# Of a loss of PyTorch's in f64: ours may be so far from it, or so many times as far as PyTorch's in
# f32. After a step of ResNet50 rounding alone is a per cent of the loss.
NEAR, TIMES = 1e-3, 8


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


def apart(losses, judge):
    return [abs(a - b) / abs(b) for a, b in zip(losses, judge)]


def parity(network):
    """Losses of the same steps from the same numbers."""
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
    ours_off, theirs_off = (apart(losses["losses"], judge["losses"]) for losses in (mine, theirs))
    good = all(a <= max(NEAR, TIMES * b) for a, b in zip(ours_off, theirs_off))
    return {"result": "ok" if good else "FAILED", "output": json.dumps([mine, theirs, judge]),
            "what": f"{n} steps: losses at most {max(ours_off):.1e} of PyTorch's in f64 apart, its own in f32 {max(theirs_off):.1e}; "
                    f"limit {NEAR:.0e} or {TIMES} times that"}


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
    add_piece(f"parity_{each}", "The same steps in PyTorch on the GPU, from the same numbers: their losses.", parity, each)
for each, kinds in KINDS.items():
    for kind in kinds:
        add_piece(f"speed_{each}_{kind}", "A step's time beside PyTorch's, eager and compiled.", speed, each, kind)
