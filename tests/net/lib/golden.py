"""Numbers that PyTorch gave for a test's own inputs, kept in tests/golden/training. Tests compare
with them and need no PyTorch; `TEST.py --golden` computes them anew, with PyTorch."""
import hashlib, json, os, sys
import numpy as np

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/training")


def digest(inputs):
    """A digest of {name: array}, with types and shapes."""
    h = hashlib.sha256()
    for name in sorted(inputs):
        a = np.ascontiguousarray(inputs[name])
        h.update(f"{name} {a.dtype.str} {a.shape}".encode() + a.tobytes())
    return h.hexdigest()


def write(name, inputs, numbers):
    with open(os.path.join(FOLDER, f"{name}.json"), "w") as f:
        json.dump({"inputs": digest(inputs), "numbers": numbers}, f)
        f.write("\n")


def numbers(name, inputs, compute):
    """The stored result of compute() for these inputs, as lists and numbers."""
    if "--golden" in sys.argv:
        write(name, inputs, compute())
    with open(os.path.join(FOLDER, f"{name}.json")) as f:
        kept = json.load(f)
    assert kept["inputs"] == digest(inputs), f"tests/golden/training/{name}.json is of other inputs: make golden"
    return kept["numbers"]
