"""deploy/export_torch.py: a sequence model from PyTorch is exported to a session, trained, and
loaded back; other models are refused. The parity tests do the same with images (make parity)."""
import importlib.util, json, os, re, struct, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
EXPORTER = os.path.join(ROOT, "deploy/export_torch.py")
OPS = os.path.join(os.path.abspath(BIN), "share/cleave/ops.json")
# rows of the table, steps of a sequence, values of a step, values of the output
ROWS, STEPS, FEATURES, OUT = 23, 5, 6, 4
MODEL = f"""
import torch
from torch import nn

def net():
    torch.manual_seed(7)
    return nn.Sequential(nn.Embedding({ROWS}, {FEATURES}), nn.LSTM({FEATURES}, 8, 2, batch_first=True),
                         nn.LayerNorm(8, eps=1e-4), nn.Linear(8, {OUT}), nn.GELU(approximate='tanh'))

def bare():
    return nn.Sequential(nn.LSTM(3, 4, bias=False, batch_first=True))

lstm = lambda **more: lambda: nn.Sequential(nn.LSTM(3, 4, **more))
both_ways = lstm(batch_first=True, bidirectional=True)
projected = lstm(batch_first=True, proj_size=2)
dropping = lstm(batch_first=True, num_layers=2, dropout=0.5)
time_first = lstm()
behind_sequences = lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
before_sequences = lambda: nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(), nn.Conv1d(3, 4, 3))
behind_a_table = lambda: nn.Sequential(nn.Embedding(9, 4), nn.ReLU(), nn.BatchNorm1d(5), nn.Flatten(), nn.Linear(20, 2))
behind_an_lstm = lambda: nn.Sequential(nn.LSTM(3, 4, batch_first=True), nn.BatchNorm1d(5))
flat_image = lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Conv2d(4, 4, 3))
many_layers = lambda: nn.Sequential(nn.LSTM(3, 4, 9, batch_first=True))
no_eps = lambda: nn.Sequential(nn.LayerNorm(4, eps=0))
plain_norm = lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False))
a_loss = lambda: nn.Sequential(nn.Linear(2, 2), nn.MSELoss())
rnn = lambda: nn.Sequential(nn.Linear(2, 2), nn.RNN(2, 2), nn.Bilinear(2, 2, 2))
"""
REFUSED = {"both_ways": "layer '0': LSTM with bidirectional=True", "projected": "LSTM with proj_size=2",
           "dropping": "LSTM with dropout=0.5", "time_first": "LSTM with batch_first=False",
           "flat_image": "layer '2': Conv2d with an input of rank 2; it takes", "no_eps": "LayerNorm with eps=0; the op layernorm takes 1e-30 to 1",
           "many_layers": "layer '0': LSTM with layers=9; the op lstm takes 1 to 8",
           "plain_norm": "LayerNorm with elementwise_affine=False",
           "a_loss": "layer '1': MSELoss with no place among layers: a loss goes under loss:",
           "rnn": "layer '1': RNN is not supported; what can be exported: .* Flatten, GELU, GRU, GroupNorm, "}


def export(folder, attribute, *args, script=EXPORTER):
    source = os.path.join(folder, "model.py")
    with open(source, "w") as f:
        f.write(MODEL)
    return run(sys.executable, script, "--from", f"{source}:{attribute}", *args)


def loaded(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def converted(model, ops=OPS):
    """The layers as YAML, or the exporter's error. Runs in this process, because the import of
    PyTorch is slow."""
    exporter = loaded(EXPORTER)
    exporter.chosen = ops
    try:
        return [exporter.layer_yaml(layer) for layer in exporter.convert(model)]
    except exporter.Unsupported as e:
        return str(e)


def model_of(attribute):
    scope = {}
    exec(MODEL, scope)
    return scope[attribute]()


def body(yaml, weights):
    return ("data: {format: npy, root: data, train: [x.npy, y.npy], test: [x.npy, y.npy]}\n" + yaml + "stages:\n"
            f"  - {{name: front, at: master, layers: 0..0, weights: {{file: {weights}}}}}\n"
            f"  - {{name: back, at: w1, layers: 1..4, weights: {{file: {weights}}}}}\n"
            "loss: {kind: mse}\ntrain: {epochs: 100, batch: 8, shuffle: false, optimizer: {kind: sgd, lr: 0.5}}\n"
            "checkpoint: {every_steps: 1000}\n")


def make_data(folder, n=32):
    tokens = [(i * i + 3 * i) % ROWS for i in range(n * STEPS)]
    wanted = [((i * 37) % 101) / 50 - 1 for i in range(n * STEPS * OUT)]
    os.makedirs(folder, exist_ok=True)
    write_npy(os.path.join(folder, "x.npy"), (n, STEPS), "<i8", struct.pack(f"<{len(tokens)}q", *tokens))
    write_npy(os.path.join(folder, "y.npy"), (n, STEPS, OUT), "<f4", struct.pack(f"<{len(wanted)}f", *wanted))


def forward(net, x):
    """As the exported layers: of the LSTM the output, without the states."""
    for m in net:
        x = m(x)
        x = x[0] if isinstance(x, tuple) else x
    return x


def torch_losses(torch, net, x, y, steps):
    opt, found = torch.optim.SGD(net.parameters(), lr=0.5), []
    for step in range(steps):
        opt.zero_grad()
        part = slice(8 * step, 8 * step + 8)
        loss = torch.nn.functional.mse_loss(forward(net, x[part]), y[part])
        loss.backward()
        opt.step()
        found.append(loss.item())
    return found


def load_back(torch, net, run_dir, steps):
    state = {name: torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(shape)
             for name, (_, shape, raw) in checkpoint_tensors(run_dir, steps).items()}
    net.load_state_dict(state)
    return net


def near(ours, theirs, limit):
    far = float((ours - theirs).norm() / theirs.norm())
    assert far <= limit, far


@suite.long
def exported_sequence_model_trains_and_loads_back():
    import numpy as np, torch
    torch.set_num_threads(1)
    with Cluster(1) as cluster:
        make_data(os.path.join(cluster.dir, "data"))
        weights = os.path.join(cluster.dir, "net.safetensors")
        done = export(cluster.dir, "net", "--weights", weights, "--ops", OPS)
        assert done.returncode == 0, done.stderr
        assert "{op: embedding, rows: 23, out: 6}" in done.stdout, done.stdout
        assert "{op: lstm, out: 8, layers: 2}" in done.stdout, done.stdout
        assert "{op: layernorm, shape: [8], eps: 0.0001}" in done.stdout, done.stdout
        session = cluster.session("exported", body(done.stdout, weights))
        checked = master("check", session, cwd=cluster.dir)
        assert checked.returncode == 0, checked.stderr
        done = cluster.train(session, "--max-steps", "3")
        assert done.returncode == 0, done.stdout + done.stderr

        x, y = (torch.from_numpy(np.load(os.path.join(cluster.dir, "data", n + ".npy"))) for n in "xy")
        run_dir, net = os.path.join(cluster.dir, "runs", "exported"), model_of("net")
        wanted = torch_losses(torch, net, x, y, 3)
        with open(os.path.join(run_dir, "metrics.jsonl")) as f:
            losses = [line["loss"] for line in map(json.loads, f) if "loss" in line]
        near(torch.tensor(losses[:3]), torch.tensor(wanted), 1e-6)

        back = load_back(torch, model_of("net"), run_dir, 3)
        for ours, theirs in zip(back.parameters(), net.parameters()):
            near(ours, theirs, 1e-6)
        out = os.path.join(cluster.dir, "predictions.npy")
        done = master("predict", session, "--out", out, cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        with torch.no_grad():
            near(torch.from_numpy(np.load(out)), forward(back, x), 1e-6)


@suite.test
def export_keeps_tensor_names_and_settings():
    with Cluster(0) as cluster:
        weights = os.path.join(cluster.dir, "net.safetensors")
        for path in (*(EXPORTER.replace("torch", n) for n in ("torch", "rules", "traced", "values", "joined")), OPS):
            shutil.copy(path, cluster.dir)
        script = os.path.join(cluster.dir, "export_torch.py")
        done = export(cluster.dir, "bare", "--weights", weights, script=script)
        assert done.returncode == 0 and "{op: lstm, out: 4, bias: false}" in done.stdout, done.stdout + done.stderr
        assert set(safetensors(weights)) == {"0.weight_ih_l0", "0.weight_hh_l0"}


@suite.long
def a_refused_model_leaves_no_file():
    with Cluster(0) as cluster:
        weights = os.path.join(cluster.dir, "none.safetensors")
        done = export(cluster.dir, "rnn", "--weights", weights, "--ops", OPS)
        assert done.returncode == 1 and "layer '1': RNN is not supported" in done.stderr, done.stderr
        assert not os.path.exists(weights)


@suite.test
def batchnorm_takes_sequences_wherever_they_come_from():
    for attribute in ("behind_sequences", "before_sequences", "behind_a_table", "behind_an_lstm"):
        found = converted(model_of(attribute))
        assert not isinstance(found, str), (attribute, found)


@suite.test
def unsupported_modules_are_refused_by_name():
    for attribute, says in REFUSED.items():
        found = converted(model_of(attribute))
        assert isinstance(found, str) and re.search(says, found), (attribute, found)
    for model, says in loaded("tests/parity/nets.py").REFUSED:
        found = converted(model)
        assert isinstance(found, str) and re.search(says, found), (model, found)


@suite.test
def export_keeps_image_layer_settings():
    found = converted(loaded("tests/parity/nets.py").everything())
    assert found[0] == '{op: conv2d, out: 8, kernel: 3, pad: 1, bias: false, name: "stem.0"}', found
    assert found[3:7] == ['{op: maxpool, kernel: 3, stride: 2, pad: 1, name: "pool"}',
                          '{op: conv_transpose2d, out: 8, kernel: 3, stride: 2, pad: 1, output_pad: 1, groups: 2, name: "open"}',
                          '{op: conv2d, out: 8, kernel: 3, stride: 2, pad: 2, dilation: 2, name: "apart"}',
                          '{op: conv2d, out: 12, kernel: [3, 1], stride: [2, 1], pad: [1, 0], groups: 4, '
                          'name: "mix.0"}'], found
    assert found[16:18] == ['{op: conv1d, out: 5, kernel: 3, pad: 2, dilation: 2, name: "line"}',
                            '{op: conv_transpose1d, out: 6, kernel: 2, stride: 2, bias: false, name: "long"}'], found
    assert found[19] == '{op: reshape, shape: [6, 2, 4], name: "fold"}' and len(found) == 25, found


@suite.test
def export_keeps_the_padding_index():
    from torch import nn
    for padding, says in ((None, ""), (0, ", padding_idx: 0"), (-1, ", padding_idx: 3")):
        found = converted(nn.Sequential(nn.Embedding(4, 2, padding_idx=padding)))
        assert found == [f"{{op: embedding, rows: 4, out: 2{says}}}"], found


@suite.test
def traced_setting_out_of_range_is_refused():
    from torch import nn

    class Endless(nn.Module):
        def forward(self, x):
            return x * float("inf")

    exporter = loaded(EXPORTER)
    exporter.chosen = OPS
    try:
        found = exporter.traced(Endless(), [exporter.input_of("x:f32:4")])
    except exporter.Unsupported as e:
        found = str(e)
    assert "layer 'mul': factor=inf; the op scale takes" in found, found


@suite.test
def each_refused_operation_has_a_line():
    import torch

    class Two(torch.nn.Module):
        def forward(self, x):
            return torch.cumprod(x + torch.randn_like(x), 1)

    exporter = loaded(EXPORTER)
    exporter.chosen = OPS
    try:
        found = str(exporter.traced(Two(), [exporter.input_of("x:f32:4")]))
    except exporter.Unsupported as e:
        found = str(e)
    assert [line.split(" ")[0] for line in found.split("\n")] == ["'randn_like'", "'cumprod'"], found


# Networks of tests/parity/networks.py: what is refused says so, and the others are exported.
ORDINARY = {"lenet": "", "cifar resnet": "", "unet": "", "lstm series": "", "lstm tagger": "", "text cnn 2d": "", "transformer steps first": "", "einsum attention": "",
            "vit layer scale": "", "tabnet": "", "deep and wide": "", "siamese": "", "calibrated": "", "poems": "",
            "frames": "", "drawn tagger": "", "drawn towers": "", "drawn crnn": "", "drawn wavenet": "",
            "drawn tcn": r"^'network.0.conv1' \(drawn_nets.py:\d+, and 5 more times\): hooks \(torch.nn.utils.remove_weight_norm leaves the plain weight\)",
            "vae": r"^'randn_like' \(networks.py:\d+\): random numbers .* Make them an input of their own, --input noise:f32:EXTENTS, with records that were drawn before$",
            "siamese norm": r"'cnn.2' \(networks.py:\d+\): a second use of the parameters of 'cnn.2' \(BatchNorm2d\)"}


def networks():
    sys.path.insert(0, os.path.join(ROOT, "tests/parity"))
    rows = {row[0]: row for file in ("networks", "drawn_nets") for row in loaded(f"tests/parity/{file}.py").NETWORKS}
    exporter = loaded(EXPORTER)
    exporter.chosen = OPS
    return rows, exporter


@suite.test
def ordinary_networks_are_exported_as_written():
    rows, exporter = networks()
    for name, says in ORDINARY.items():
        _, make, inputs, more = rows[name]
        try:
            exporter.followed(make(), [exporter.input_of(i) for i in inputs], more.get("output"))
            found = ""
        except exporter.Unsupported as e:
            found = str(e)
        assert re.search(says or "^$", found), (name, found)


def write_checkpoint(exporter, folder, arrays):
    """Writes a checkpoint of two files and an index, like a run of two stages."""
    files = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(arrays))}
    for file in set(files.values()):
        exporter.write_safetensors(os.path.join(folder, file), {n: a for n, a in arrays.items() if files[n] == file})
    with open(os.path.join(folder, exporter.INDEX), "w") as f:
        json.dump({"weight_map": files}, f)


@suite.test
def a_trained_run_goes_back_into_its_module():
    """Joined projections, one parameter of two names, a table that is another shape in the session,
    counters, and a buffer that no layer has."""
    import torch
    rows, exporter = networks()
    for name, kept in (("transformer", {"pos_encoder.pe"}), ("siamese", set()), ("poems", set()), ("calibrated", {"mean", "std"}), ("cifar resnet", set())):
        _, make, inputs, more = rows[name]
        net = make()
        t = exporter.followed(net, [exporter.input_of(i) for i in inputs], more.get("output"))
        with Cluster(0) as cluster:
            path, constants = os.path.join(cluster.dir, "net.pt"), exporter.constants_of(t)
            write_checkpoint(exporter, cluster.dir, {n: a if n in constants else a + 1 for n, a in t.arrays.items()})
            exporter.write_state(net, t.arrays, cluster.dir, path)
            back = make()
            back.load_state_dict(torch.load(path), strict=True)
        for key, value in net.state_dict().items():
            wanted = value if key in kept else value + 1
            assert torch.equal(back.state_dict()[key], wanted), (name, key)


@suite.test
def a_parameter_with_a_long_name_goes_back():
    """As MaxViT has them: a layer's name has 63 characters at most."""
    import torch
    _, exporter = networks()
    name = "relative_position_bias_table_of_the_window_attention_in_a_long_path"

    class Long(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 3)
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(3)))

        def forward(self, x):
            return self.fc(x) * getattr(self, name)

    net = Long()
    t = exporter.followed(net, [exporter.input_of("x:f32:3")])
    state = exporter.state_of(net, t.arrays, {n: torch.from_numpy(a + 1) for n, a in t.arrays.items()})
    assert len(name) > 63 and not t.notes and torch.equal(state[name], torch.ones(3)), (t.notes, state)


@suite.test
def a_module_that_asks_for_its_version_gets_it_from_a_pt_file():
    """As torchvision's MNASNet does."""
    import torch

    class Versioned(torch.nn.Module):
        _version = 2

        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x)

        def _load_from_state_dict(self, state, prefix, metadata, *rest):
            if metadata.get("version") != 2:
                raise ValueError("no version")
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    _, exporter = networks()
    net = Versioned()
    t = exporter.followed(net, [exporter.input_of("x:f32:3")])
    with Cluster(0) as cluster:
        write_checkpoint(exporter, cluster.dir, t.arrays)
        path = os.path.join(cluster.dir, "net")
        exporter.write_state(net, t.arrays, cluster.dir, path + ".pt")
        net.load_state_dict(torch.load(path + ".pt"), strict=True)
        try:
            exporter.write_state(net, t.arrays, cluster.dir, path + ".safetensors")
            found = ""
        except exporter.Unsupported as e:
            found = str(e)
        assert "Versioned does not load it (no version); name a .pt, which has the versions of its modules" in found, found
        assert not os.path.exists(path + ".safetensors")


@suite.test
def a_run_of_another_module_does_not_go_back():
    rows, exporter = networks()
    net, other = rows["lenet"][1](), rows["mnist"][1]()
    with Cluster(0) as cluster:
        write_checkpoint(exporter, cluster.dir, exporter.state_arrays(other))
        try:
            exporter.write_state(net, exporter.state_arrays(net), cluster.dir, os.path.join(cluster.dir, "net.pt"))
            found = ""
        except exporter.Unsupported as e:
            found = str(e)
        assert "'conv1.weight' [6, 1, 5, 5] of 'conv1.weight' is not in the run, which has [32, 1, 3, 3]" in found, found
        assert not os.path.exists(os.path.join(cluster.dir, "net.pt"))


@suite.test
def page_lists_what_is_exported():
    """`test_export.py --write` writes the list of deploy/SESSIONS.md anew."""
    exporter, page = loaded(EXPORTER), os.path.join(ROOT, "deploy/SESSIONS.md")
    exporter.chosen = OPS
    with open(page) as f:
        text = f.read()
    before, rest = text.split("<!-- exports -->\n")
    wanted = f"{before}<!-- exports -->\n```\n{exporter.listing()}```\n<!-- /exports -->{rest.partition('<!-- /exports -->')[2]}"
    if "--write" in sys.argv:
        with open(page, "w") as f:
            f.write(wanted)
    assert "--write" in sys.argv or text == wanted, "deploy/SESSIONS.md: run tests/net/training/test_export.py page_lists_what_is_exported --write"


def settings_of(cls):
    import inspect
    found = set()
    for base in cls.__mro__:
        found |= set(getattr(base, "__constants__", ()))
        if "__init__" in vars(base) and base is not object:
            found |= set(inspect.signature(base.__init__).parameters)
    return found


@suite.test
def every_exporter_row_matches_its_module():
    """A setting that a row names is one of the module; what the op requires is named; and what the
    exporter says of single ops is of ops that exist."""
    from torch import nn
    exporter = loaded(EXPORTER)
    exporter.chosen = OPS
    with open(OPS) as f:
        required = {row["name"]: {a["name"] for a in row["attributes"] if a["required"]} for row in map(json.loads, f)}
    for row in exporter.rows():
        for name, pairs in row.modules:
            assert required[row.op] <= set(pairs) <= set(row.types), (row.op, pairs)
            if not hasattr(nn, name):
                print(f"{row.op}: this PyTorch has no nn.{name}")
                continue
            unknown = {*pairs.values(), *row.needs} - settings_of(getattr(nn, name))
            assert not unknown, (row.op, name, unknown)
    special = {op for op, _ in exporter.HARMLESS} | {*exporter.RANKS, *exporter.KEEP_RANK, *exporter.GIVE_RANK}
    assert special <= set(required), special - set(required)


def rows_with(path, **modules):
    """ops.json with other modules for some ops."""
    with open(OPS) as f, open(path, "w") as out:
        for row in map(json.loads, f):
            row["torch_module"] = modules.get(row["name"], row["torch_module"])
            out.write(json.dumps(row) + "\n")
    return path


@suite.test
def only_modules_with_a_row_are_exported():
    """Without the row of an op its module is refused; a module that a row has is taken."""
    with Cluster(0) as cluster:
        planted = rows_with(os.path.join(cluster.dir, "ops.json"), lstm="", relu="ReLU|RNN()")
        assert "layer '1': LSTM is not supported" in converted(model_of("net"), planted)
        found = converted(model_of("rnn"), planted)
        assert "RNN is" not in found and "Bilinear is not supported" in found, found
        assert "none.json" in converted(model_of("net"), os.path.join(cluster.dir, "none.json"))


if importlib.util.find_spec("torch") is None or importlib.util.find_spec("numpy") is None:
    print("skip export: python3-torch is not installed")
    sys.exit(0)
suite.main()
