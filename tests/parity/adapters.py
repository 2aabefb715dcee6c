#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make peft-parity`: low-rank adapters of a session beside those of Hugging Face's peft.

A small network, in three stages of which a worker has one: outputs, the gradient of each adapter,
100 steps of AdamW. Files go both ways: a session begins with what peft saved, and peft opens what
`export` wrote, adapters and merged weights. PyTorch and peft come from PyPI, into
build/transformers.
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
import pypi  # noqa: E402

ENVIRONMENT = os.path.abspath(os.path.join(HERE, "../../build/transformers"))
ROWS, FEATURES, CLASSES, STEPS, RATE, DECAY = 32, 12, 5, 100, 0.01, 0.1
# largest differences, relative to the largest value of a tensor
OUTPUT_LIMIT, GRADIENT_LIMIT, UPDATE_LIMIT = 1e-5, 1e-5, 1e-4
CASES = {  # name: arguments of LoraConfig
    "plain": {"r": 4, "lora_alpha": 4},
    "scaled": {"r": 4, "lora_alpha": 10},
    "rslora": {"r": 4, "lora_alpha": 6, "use_rslora": True},
    "patterns": {"r": 4, "lora_alpha": 8, "rank_pattern": {"middle.query": 2}, "alpha_pattern": {"middle.query": 3}},
}


def network(torch):
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = nn.ModuleDict({"query": nn.Linear(FEATURES, 16)})
            self.middle = nn.ModuleDict({"query": nn.Linear(16, 14), "key": nn.Linear(14, 14)})
            self.classifier = nn.Linear(14, CLASSES)

        def forward(self, x):
            x = torch.tanh(self.front["query"](x))
            x = torch.nn.functional.gelu(self.middle["query"](x))
            return self.classifier(torch.relu(self.middle["key"](x)))

    return Net()


def settings(case, module):
    r = case.get("rank_pattern", {}).get(module, case["r"])
    alpha = case.get("alpha_pattern", {}).get(module, case["lora_alpha"])
    return f"r: {r}, alpha: {alpha}, rslora: {str(case.get('use_rslora', False)).lower()}"


def body(case, optimizer, steps, folder):
    """A session body in which front and middle have adapters, and the whole classifier is
    trained."""
    lora = lambda module: f"lora: {{targets: [query], {settings(case, module)}, from: {folder}/adapter}}"
    weights = f"weights: {{file: {folder}/base.safetensors}}"
    return ("data: {format: npy, root: data, train: [x.npy, y.npy], test: [x.npy, y.npy]}\n"
            "stages:\n  - {name: front, at: master, layers: [{op: linear, out: 16, name: front.query}, {op: tanh}], "
            f"{weights}, {lora('front.query')}}}\n"
            "  - {name: middle, at: w1, layers: [{op: linear, out: 14, name: middle.query}, {op: gelu}, "
            f"{{op: linear, out: 14, name: middle.key}}, {{op: relu}}], {weights}, {lora('middle.query')}}}\n"
            f"  - {{name: head, at: master, layers: [{{op: linear, out: {CLASSES}, name: classifier}}], {weights}}}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 1000, max_steps: {steps}, batch: {ROWS}, shuffle: false, optimizer: {optimizer}}}\n"
            "checkpoint: {every_steps: 100000}\n")


class Beside:
    """One case: a network of PyTorch with adapters of peft, and sessions of a cluster with the
    same."""

    def __init__(self, name, cluster):
        import numpy, peft, torch
        from safetensors.torch import save_file
        self.name, self.case, self.cluster = name, CASES[name], cluster
        self.torch, self.peft = torch, peft
        torch.manual_seed(sum(map(ord, name)))
        self.folder = os.path.join(cluster.dir, name)
        os.mkdir(self.folder)
        self.base = network(torch)
        save_file(self.base.state_dict(), f"{self.folder}/base.safetensors")
        self.x = torch.randn(ROWS, FEATURES)
        self.y = torch.randint(0, CLASSES, (ROWS,))
        numpy.save(f"{cluster.dir}/data/x.npy", self.x.numpy())
        numpy.save(f"{cluster.dir}/data/y.npy", self.y.numpy())

    def adapted(self):
        config = self.peft.LoraConfig(target_modules=["query"], modules_to_save=["classifier"], **self.case)
        return self.peft.get_peft_model(network_like(self.torch, self.base), config)

    def steps(self, model, optimizer, n):
        for _ in range(n):
            optimizer.zero_grad()
            self.torch.nn.functional.cross_entropy(model(self.x), self.y).backward()
            optimizer.step()

    def session(self, tag, optimizer, steps):
        """The trained tensors of a run, by the names of adapter_model.safetensors."""
        tensors, _, _ = self.cluster.trained(tag, body(self.case, optimizer, steps, self.folder), steps)
        as_tensor = lambda v: self.torch.frombuffer(bytearray(v[2]), dtype=self.torch.float32).reshape(v[1])
        return {k: as_tensor(v) for k, v in tensors.items()}

    def near(self, what, ours, theirs, limit):
        ours, theirs = ours.detach(), theirs.detach()
        off = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))
        worst[what] = max(worst.get(what, 0), off)
        assert off <= limit, f"{self.name}: {what}: {off:.2e} apart, at most {limit:.0e}"


worst = {}


def network_like(torch, base):
    net = network(torch)
    net.load_state_dict(base.state_dict())
    return net


def learned(model, saved=True):
    """{the session's name: parameter} of the parameters that are trained."""
    found = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            name = name.removeprefix("base_model.model.").replace(".default", "").replace(".modules_to_save", "")
            found[name] = p
    return found


def predictions(beside, tag):
    import numpy
    path = f"{beside.folder}/{tag}.npy"
    done = beside.cluster.predict(tag, path)
    assert done.returncode == 0, done.stderr
    return beside.torch.from_numpy(numpy.load(path))


def compare(beside):
    torch, peft, name = beside.torch, beside.peft, beside.name
    model = beside.adapted()
    with torch.no_grad():  # in a new adapter B is 0, and so A would have no gradient
        for p in learned(model).values():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(f"{beside.folder}/adapter")
    with_head = dict(beside.base.state_dict())
    with_head.update({f"classifier.{k}": learned(model)[f"classifier.{k}"].detach().clone() for k in ("weight", "bias")})
    from safetensors.torch import save_file
    save_file(with_head, f"{beside.folder}/base.safetensors")

    # One step of SGD with a rate of 1 subtracts exactly the gradient.
    before = {k: v.detach().clone() for k, v in learned(model).items()}
    ours = beside.session(f"{name}-sgd", "{kind: sgd, lr: 1}", 1)
    torch.nn.functional.cross_entropy(model(beside.x), beside.y).backward()
    for key, p in learned(model).items():
        beside.near("gradients", before[key] - ours[key], p.grad, GRADIENT_LIMIT * 10)

    ours = beside.session(f"{name}-adamw", f"{{kind: adamw, lr: {RATE}, weight_decay: {DECAY}}}", STEPS)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=DECAY)
    beside.steps(model, optimizer, STEPS)
    for key, p in learned(model).items():
        beside.near("values after 100 steps", ours[key], p, UPDATE_LIMIT)
    for key, p in beside.base.state_dict().items():
        assert key.startswith("classifier") or torch.equal(ours[key], p), f"{key} has moved"
    model.eval()
    outputs = predictions(beside, f"{name}-adamw")
    beside.near("outputs", outputs, model(beside.x), UPDATE_LIMIT)

    # Back: exports the trained adapters for peft, and as merged weights.
    done = beside.cluster.export(f"{name}-adamw", f"{beside.folder}/back", f"{beside.folder}/merged")
    assert done.returncode == 0, done.stderr
    head = network_like(torch, beside.base)
    back = peft.PeftModel.from_pretrained(head, f"{beside.folder}/back").eval()
    keys = lambda m: set(peft.get_peft_model_state_dict(m))
    assert keys(back) == keys(model), keys(back) ^ keys(model)
    beside.near("outputs of exported adapters", back(beside.x), outputs, OUTPUT_LIMIT)
    from safetensors.torch import load_file
    merged = network(torch)
    merged.load_state_dict(load_file(f"{beside.folder}/merged/model.safetensors"))
    beside.near("outputs of merged weights", merged(beside.x), outputs, OUTPUT_LIMIT)
    theirs = back.merge_and_unload()
    for key, p in load_file(f"{beside.folder}/merged/model.safetensors").items():
        beside.near("merged weights", p, theirs.state_dict()[key], OUTPUT_LIMIT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="build/release")
    parser.add_argument("cases", nargs="*", default=[], help="of " + ", ".join(CASES))
    args = parser.parse_args()
    os.environ["CLEAVE_TEST_BIN"] = os.path.abspath(args.out)
    in_environment()
    import cluster

    class Cluster(cluster.Cluster):
        def predict(self, tag, path):
            return cluster.master("predict", os.path.join(self.dir, tag + ".yaml"), "--output", path, cwd=self.dir)

        def export(self, run, adapters, merged):
            return cluster.master("export", run, "--adapters", adapters, "--merge", merged, cwd=self.dir)

    with Cluster(1) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        for name in args.cases or CASES:
            compare(Beside(name, c))
            print(f"ok {name}", flush=True)
    for what, off in worst.items():
        print(f"   {what}: {off:.1e} apart at most")
    print(f"{len(args.cases or CASES)} passed, 0 failed")


def in_environment():
    """Goes on in the environment, which is made first."""
    packages = ("torch", "peft", "safetensors", "numpy")
    if os.path.abspath(sys.prefix) == ENVIRONMENT:
        return
    wrong = None if pypi.works(ENVIRONMENT, *packages) else pypi.install(ENVIRONMENT, *packages, "transformers")
    if wrong:
        sys.exit(wrong)
    os.execv(pypi.interpreter(ENVIRONMENT), [pypi.interpreter(ENVIRONMENT), *sys.argv])


if __name__ == "__main__":
    main()
