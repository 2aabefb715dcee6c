#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make python-test`: every Python block of README.md and deploy/PYTHON.md runs as it stands, one
behind the other. So does each cell of deploy/python/example.ipynb; its last expression is shown as
in a notebook.
"""
import ast, json, os, re, sys, traceback
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, IMAGE_DATA, Cluster, synthetic_images
sys.path.insert(0, os.path.abspath(os.path.join(BIN, "python")))
from torch_pretrained import write_llama  # noqa: E402

DEPLOY = os.path.abspath(os.path.join(HERE, "../../deploy"))
BODY = IMAGE_DATA + """stages:
  - {name: front, at: master, layers: [{op: conv2d, out: 4, kernel: 3}, {op: relu}, {op: flatten}]}
  - {name: back, at: worker-1, layers: [{op: linear, out: 16}, {op: relu}]}
  - {name: head, at: master, layers: [{op: linear, out: 10}]}
loss: {kind: cross_entropy}
train: {epochs: 2, batch: 32, optimizer: {kind: adam, lr: 0.001}}
"""


def blocks(page):
    """(line, program) of each Python block."""
    for m in re.finditer(r"^```python\n(.*?)^```", page, re.M | re.S):
        yield page.count("\n", 0, m.start(1)) + 1, m[1]


def cells(path):
    """(number, program) of each cell, with its last expression shown."""
    with open(path) as f:
        notebook = json.load(f)
    for k, cell in enumerate(notebook["cells"]):
        body = ast.parse("".join(cell["source"]) if cell["cell_type"] == "code" else "").body
        if body and isinstance(body[-1], ast.Expr):
            body[-1] = ast.Assign([ast.Name("_", ast.Store())], body[-1].value)
            body += ast.parse("print((getattr(_, '_repr_html_', None) or _.__repr__)()[:300])").body
        yield k, ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))


def fails(name, program, path, names):
    try:
        exec(compile(program, path, "exec"), names)
        print(f"ok {name}", flush=True)
        return 0
    except BaseException as e:
        traceback.print_exc()
        print(f"not ok {name} ({type(e).__name__}: {e})", flush=True)
        return 1


def main():
    failed = 0
    with Cluster(2) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        with open(c.session("session", BODY)) as f:
            text = f.read().replace("  w1:", "  worker-1:").replace("  w2:", "  worker-2:")
        with open(os.path.join(c.dir, "session.yaml"), "w") as f:
            f.write(text)
        write_llama(os.path.join(c.dir, "llama"))
        os.chdir(c.dir)
        for path in (os.path.join(DEPLOY, "../README.md"), os.path.join(DEPLOY, "PYTHON.md")):
            with open(path) as f:
                page, names = f.read(), {"__name__": "page"}
            for line, program in blocks(page):
                failed += fails(f"block_of_line_{line}_of_{os.path.basename(path)}", "\n" * (line - 1) + program, path, names)
        path, names = os.path.join(DEPLOY, "python/example.ipynb"), {"__name__": "notebook"}
        for k, program in cells(path):
            failed += fails(f"cell_{k}", program, path, names)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
