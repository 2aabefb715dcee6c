"""Sessions whose workers compute on `device: cuda`, here the simulated device, with real daemons,
mutual TLS and the backend's own kernels. A seed draws the order of the device's work."""
import json, os, re, struct, sys, tempfile, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import cluster as lib
from cluster import *

lib.WORKER = os.path.join(BIN, "gpu/cleave-worker")
suite = Suite()
STEPS = 4

NET = [
    ["{op: conv2d, out: 4, kernel: 3, pad: 1}", "{op: relu}", "{op: maxpool, kernel: 2}"],
    ["{op: conv2d, out: 6, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}", "{op: dropout, p: 0.25}"],
    ["{op: flatten}", "{op: linear, out: 12}", "{op: gelu}", "{op: layernorm}"],
    ["{op: linear, out: 10}"],
]
ONE, TWO, CPU = ["master", "w1", "w1", "w1"], ["master", "w1", "w2", "w2"], ["master"] * 4


def body(places, loss="cross_entropy", steps=STEPS, optimizer="{kind: adam, lr: 0.003}", rate="optimizer", net=None):
    text = IMAGE_DATA + "stages:\n"
    for i, (at, layers) in enumerate(zip(places, net or NET)):
        text += f"  - {{name: s{i}, at: {at}, layers: [{', '.join(layers)}]}}\n"
    return text + (f"loss: {{kind: {loss}}}\n"
                   f"train: {{epochs: 1, max_steps: {steps}, batch: 12, seed: {SEED}, clip_grad_norm: 1.0,"
                   f" {rate}: {optimizer}}}\n"
                   "pipeline: {micro_batches: 2}\nlog: {every: 1}\ncheckpoint: {every_steps: 100000}\n")


def on_device(tag, places, n=2, steps=STEPS, limits="", env=None, **options):
    """(weights, losses of the steps) of a run on new workers with the simulated device."""
    with Cluster(n, limits="device: cuda\n" + limits, env=env) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        weights, log, _ = c.trained(tag, body(places, steps=steps, **options), steps)
        return weights, [json.loads(line)["loss"] for line in log.splitlines()], [w.text() for w in c.workers]


@suite.test
def any_placement_and_any_order_give_the_same_bits():
    one, losses, _ = on_device("one", ONE)
    for tag, env in chosen({"again": {"CLV_SIM_SEED": "7"}, "late": {"CLV_SIM_SEED": "1234567"}}, "late").items():
        two, again, _ = on_device(tag, TWO, env=env)
        assert one == two and losses == again, (tag, losses, again)


@suite.test
def device_losses_are_close_to_the_processors():
    """Equal bits are promised only on one kind of device; those of the other kind are close."""
    weights, losses, _ = on_device("device", TWO)
    others, reference, _ = on_device("processor", CPU)
    assert weights != others, "the device computed nothing"
    assert all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(losses, reference)), (losses, reference)


@suite.long
def losses_without_cudnn_are_close():
    """Without cuDNN, convolutions write columns and multiply them."""
    _, losses, _ = on_device("library", TWO)
    _, other, _ = on_device("columns", TWO, env={"CLV_SIM_NO_CUDNN": "1"})
    assert all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(losses, other)), (losses, other)


# Reads each image as a sequence of rows. The first layers mix the image, so that no record leaves
# as it is.
LSTM = [
    ["{op: flatten}", "{op: linear, out: 120}", "{op: reshape, shape: [12, 10]}"],
    ["{op: lstm, out: 8, layers: 2}", "{op: mean, dim: 1}"],
    ["{op: linear, out: 12}", "{op: relu}"],
    ["{op: linear, out: 10}"],
]


@suite.long
def lstm_losses_are_close_with_and_without_cudnn():
    """Both are close to the losses of the processor, and each has other bits."""
    _, reference, _ = on_device("processor", CPU, net=LSTM)
    runs = [on_device("lstm", TWO, net=LSTM, env=env) for env in ({}, {"CLV_SIM_SEED": "5"}, {"CLV_SIM_NO_CUDNN": "1"})]
    (library, _, _), (again, _, _), (products, _, _) = runs
    for _, losses, _ in runs:
        assert all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(losses, reference)), (losses, reference)
    assert library == again, "the bits depend on the order"
    assert library != products, "the library's calls were not asked"


@suite.long
def plan_folder_changes_no_bit():
    """The simulation has no plans to store; the tests of kernels/load show the use of the folder.
    Here the key is accepted, and nothing is written."""
    plain, losses, _ = on_device("plain", TWO, net=LSTM)
    with tempfile.TemporaryDirectory() as folder:
        kept, same, _ = on_device("kept", TWO, net=LSTM, limits=f"cuda: {{plans: {json.dumps(folder)}}}\n")
        assert os.listdir(folder) == [], os.listdir(folder)
    assert plain == kept and losses == same, (losses, same)


FALLS = "schedule: {kind: step, step_size: 2, gamma: 0.5}, optimizer"
GRAPHS = 8  # number of steps: in the first two, the parts of a step are captured to graphs


def with_graphs(tag, key="", env=None):
    """A run with dropout and a falling learning rate, and the logs of its workers."""
    limits = f"log: {{level: debug}}\n{key}"
    weights, losses, said = on_device(tag, TWO, steps=GRAPHS, limits=limits, env=env, rate=FALLS)
    return (weights, losses), "".join(said)


@suite.test
def graphs_change_no_bit():
    plain, said = with_graphs("parts", "cuda: {graphs: false}\n")
    assert "repeats is" not in said, said
    for seed in ("0", "5", "10") if LONG else ("5",):
        run, said = with_graphs("graphs" + seed, env={"CLV_SIM_SEED": seed})
        assert "repeated work is recorded: about" in said and "not recorded" not in said, said
        assert run == plain, (run[1], plain[1])


@suite.long
def failed_graph_capture_changes_no_bit():
    plain, _ = with_graphs("plain", "cuda: {graphs: false}\n")
    run, said = with_graphs("refused", env={"CLV_SIM_NO_GRAPHS": "1"})
    assert "repeated work is not recorded: no captures, as planned" in said, said
    assert run == plain, (run[1], plain[1])


def graph_counts(page):
    with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as reply:
        return [int(float(n)) for n in re.findall(r"^cleave_worker_cuda_graph_\w+_total{.*} (\S+)$", reply.read().decode(), re.M)]


@suite.test
def graph_launches_and_refusals_are_counted():
    for env, launches in ({}, True), ({"CLV_SIM_NO_GRAPHS": "1"}, False):
        page = free_port()
        with Cluster(1, limits=f"device: cuda\nmetrics: {{listen: \"127.0.0.1:{page}\"}}\n", env=env) as c:
            os.mkdir(os.path.join(c.dir, "data"))
            synthetic_images(os.path.join(c.dir, "data"))
            assert graph_counts(page) == [0, 0]
            c.trained("counted", body(ONE, steps=GRAPHS), GRAPHS)
            launched, refused = graph_counts(page)
            assert (launched > 0, refused > 0) == (launches, not launches), (launched, refused)


@suite.test
def worker_reports_its_device():
    with Cluster(1, limits="device: cuda\n") as c:
        ready = next(line for line in c.workers[0].text().splitlines() if " ready " in line)
        assert "device=cuda:0 " in ready and "isa=sm_" in ready, ready
        session = c.session("status", body(["master", "w1", "w1", "w1"]))
        shown = master("status", session, "--json")
        assert shown.returncode == 0, shown.stderr
        assert '"cuda:0"' in shown.stdout, shown.stdout


@suite.test
def plan_says_which_device_determines_the_bits():
    with Cluster(1, limits="device: cuda\n") as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        session = c.session("plan", body(ONE).replace("{name: s2, at: w1,", "{name: s2, at: w1, device: cuda,"))
        said = master("plan", session, cwd=c.dir).stdout
        assert said.count("computes on cuda: its bits are those of such devices, and so is its memory") == 1, said
        assert re.search(r"  s2 [^\n]*\n    computes on cuda:", said), said
        shown = json.loads(master("plan", session, "--json", cwd=c.dir).stdout)
        assert [s["device"] for s in shown["stages"]] == ["auto", "auto", "cuda", "auto"], shown
        c.trained("named", body(ONE).replace("{name: s2, at: w1,", "{name: s2, at: w1, device: cuda,"), STEPS)


ROWS = 14


def tied(places):
    """A session with the decoder tied to the table of tokens, in a stage of its own, and the layers
    between at `places`."""
    rows = [["{op: embedding, rows: %d, out: 8, name: words}" % ROWS], ["{op: linear, out: 8, name: middle}", "{op: gelu}"],
            ["{op: linear, out: %d, bias: false, name: back, tied: words}" % ROWS]]
    stages = "".join(f"  - {{name: s{i}, at: {at}, layers: {run}}}\n" for i, (at, run) in enumerate(zip(places, ("words", "middle..2", "back"))))
    layers = "".join(f"    - {row}\n" for run in rows for row in run)
    return ("data: {format: npy, root: data, inputs: [ids], train: [ids.npy, next.npy]}\nmodel:\n  layers:\n" + layers + "stages:\n" + stages +
            f"loss: {{kind: cross_entropy}}\nprivacy: {{raw_input_leaves: true}}\ntrain: {{epochs: 9, max_steps: {STEPS}, batch: 8, seed: {SEED},"
            " clip_grad_norm: 1.0, optimizer: {kind: adam, lr: 0.01}}\npipeline: {micro_batches: 2}\nlog: {every: 1}\ncheckpoint: {every_steps: 100000}\n")


def tokens(c):
    os.mkdir(os.path.join(c.dir, "data"))
    ids = [(i * i + 3 * i) % ROWS for i in range(24 * 5)]
    for name, values in (("ids", ids), ("next", [(5 * i) % ROWS for i in ids])):
        write_npy(os.path.join(c.dir, "data", name + ".npy"), (24, 5), "<i8", struct.pack(f"<{len(values)}q", *values))


def tied_run(tag, places, limits="device: cuda\n"):
    with Cluster(2, limits=limits) as c:
        tokens(c)
        weights, log, _ = c.trained(tag, tied(places), STEPS)
        return weights, [json.loads(line)["loss"] for line in log.splitlines()]


@suite.test
def tied_weights_on_a_device_give_the_same_bits():
    """Both tied stages are on one worker's device, with the layers between there or elsewhere. A
    tie across devices is refused."""
    one, losses = tied_run("tied-one", ["w1"] * 3)
    assert sorted(one) == ["middle.bias", "middle.weight", "words.weight"], one.keys()
    assert tied_run("tied-between", ["w1", "w2", "w1"]) == (one, losses)
    _, near = tied_run("tied-cpu", ["w1"] * 3, "")
    assert losses != near and all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(losses, near)), (losses, near)
    with Cluster(2, limits="device: cuda\n", env={"CLV_SIM_DEVICES": "2"}) as c:
        tokens(c)
        text = tied(["w1"] * 3)
        for stage, device in (("s0", 0), ("s2", 1)):
            text = text.replace(f"name: {stage}, at: w1", f"name: {stage}, at: w1, device: \"cuda:{device}\"")
        done = master("plan", c.session("apart", text), cwd=c.dir)
        assert done.returncode == 3 and "put both on one device" in done.stderr, done.stderr


def in_bf16(places, loss="cross_entropy"):
    """The session in bf16, with all stages on devices, because the processor may lack bf16."""
    return "privacy: {raw_input_leaves: true}\n" + body(places, loss).replace("train: {", "train: {dtype: bf16, ")


@suite.test
def bf16_is_close_to_f32_and_equal_in_any_placement():
    whole, cut = ["w1"] * 4, ["w1", "w2", "w1", "w2"]
    found = []
    for tag, text, env in (("f32", in_bf16(whole).replace("dtype: bf16", "dtype: f32"), None),
                           ("whole", in_bf16(whole), {"CLV_SIM_SEED": "3"}),
                           ("cut", in_bf16(cut), {"CLV_SIM_SEED": "4"}),
                           *([("columns", in_bf16(cut), {"CLV_SIM_NO_CUDNN": "1"})] if LONG else [])):
        with Cluster(2, limits="device: cuda\n", env=env) as c:
            os.mkdir(os.path.join(c.dir, "data"))
            synthetic_images(os.path.join(c.dir, "data"))
            weights, log, _ = c.trained(tag, text, STEPS)
        found.append((weights, [json.loads(line)["loss"] for line in log.splitlines()]))
    (exact, reference), whole, cut, *columns = found
    assert whole == cut, "the bits depend on the placement"
    assert whole[0] != exact, "bf16 computed what f32 does"
    for _, losses in (cut, *columns):
        assert all(abs(a - b) < 2e-2 * abs(b) for a, b in zip(losses, reference)), (losses, reference)


ADAPTED = [
    ["{op: flatten}", "{op: linear, out: 24}", "{op: relu}"],
    ["{op: linear, out: 20, name: middle.query}", "{op: gelu}", "{op: linear, out: 18, name: middle.key}"],
    ["{op: relu}", "{op: linear, out: 16, name: back.query}"],
    ["{op: linear, out: 10}"],
]
NARROW = {"middle.query.weight", "middle.key.weight", "back.query.weight"}


def adapters(text, base):
    """The session with adapters at layers of s1 and s2, whose weights have the type `base`."""
    return re.sub(r"(name: s[12], at: \w+, )", rf"\1lora: {{targets: [query], r: 2, dropout: 0.1, base: {base}}}, ", text)


def adapted(tag, places, base="bf16", dtype="f32", device="cuda", env=None):
    text = adapters(body(places, net=ADAPTED), base).replace("train: {", f"train: {{dtype: {dtype}, ")
    with Cluster(2, limits=f"device: {device}\n", env=env) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        weights, log, _ = c.trained(tag, "privacy: {raw_input_leaves: true}\n" + text, STEPS)
    return weights, [json.loads(line)["loss"] for line in log.splitlines()]


@suite.long
def bf16_base_on_a_device_gives_the_same_bits_anywhere():
    """A base in bf16 gives the same bits for all places of the stages and any order of the device's
    work. They are close to the processor's, and differ from those of the base in f32."""
    one, losses = adapted("half-one", ONE)
    for tag, seed in chosen({"half-again": "7", "half-late": "3"}, "half-late").items():
        assert adapted(tag, TWO, env={"CLV_SIM_SEED": seed}) == (one, losses), tag
    assert {name for name, tensor in one.items() if tensor[0] == "BF16"} == NARROW, one.keys()
    _, exact = adapted("half-none", ONE, base="f32")
    there, near = adapted("half-cpu", TWO, device="cpu")
    assert all(one[name] == there[name] for name in NARROW)
    assert all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(losses, near)) and one != there, (losses, near)
    assert all(0 < abs(a - b) < 2e-2 * abs(b) for a, b in zip(losses, exact)), (losses, exact)


@suite.long
def bf16_base_in_a_bf16_session_gives_the_same_bits():
    """Its weights are factors of products without a conversion."""
    whole = adapted("both-whole", ["w1"] * 4, dtype="bf16")
    assert whole == adapted("both-cut", ["w1", "w2", "w1", "w2"], dtype="bf16", env={"CLV_SIM_SEED": "3"})
    _, f32 = adapted("both-f32", ["w1"] * 4)
    assert whole[1] != f32 and all(abs(a - b) < 2e-2 * abs(b) for a, b in zip(whole[1], f32)), (whole[1], f32)


@suite.test
def an_older_device_refuses_bf16():
    with Cluster(1, limits="device: cuda\n", env={"CLV_SIM_CAPABILITY": "75"}) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        done = c.train(c.session("old", in_bf16(["w1"] * 4)))
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        for word in ("w1", "bf16 needs a device of NVIDIA of capability 8.0 or above, and cuda:0 has 7.5",
                     "use train.dtype: f32"):
            assert word in said, f"it should say '{word}': {said}"


def rounding(text, stage):
    """The session with tf32 allowed for a stage."""
    return text.replace(f"{{name: {stage}, at", f"{{name: {stage}, tf32: true, at")


@suite.long
def factors_are_rounded_to_tf32_where_the_file_allows_it():
    weights, losses, _ = on_device("exact", TWO)
    found = []
    for tag, places in (("rounded", TWO), ("again", ONE)):
        with Cluster(2, limits="device: cuda\n", env={"CLV_SIM_SEED": "5"}) as c:
            os.mkdir(os.path.join(c.dir, "data"))
            synthetic_images(os.path.join(c.dir, "data"))
            text = rounding(rounding(rounding(body(places), "s1"), "s2"), "s3")
            other, log, _ = c.trained(tag, text, STEPS)
        near = [json.loads(line)["loss"] for line in log.splitlines()]
        assert other != weights, "tf32 computed what f32 does"
        assert all(abs(a - b) < 5e-3 * abs(b) for a, b in zip(near, losses)), (near, losses)
        found.append(other)
    assert found[0] == found[1], "the bits depend on the placement"


@suite.test
def tf32_for_a_processor_stage_is_refused():
    with Cluster(1) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        for stage, verb, where in (("s0", "check", "stage 's0'"), ("s0", "plan", "stage 's0'"),
                                   ("s1", "train", "module 's1' at w1")):
            text = rounding(body(ONE), stage)
            path = c.session("refused", text)
            with open(path) as f:
                line = 1 + next(i for i, row in enumerate(f) if "tf32" in row)
            done = master(verb, path, cwd=c.dir)
            said = done.stdout + done.stderr
            assert done.returncode != 0, f"{verb}: {said}"
            for word in (f"refused.yaml:{line}:", where, "capability 8.0 or above, but cpu is a processor",
                         "leave tf32 out"):
                assert word in said, f"{verb} should say '{word}': {said}"


@suite.test
def an_older_device_refuses_tf32():
    with Cluster(1, limits="device: cuda\n", env={"CLV_SIM_CAPABILITY": "75"}) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        path = c.session("old", rounding(body(ONE), "s1"))
        assert "stage 's1' may round factors to tf32" in master("plan", path, cwd=c.dir).stdout
        done = c.train(path)
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        for word in ("w1", "capability 8.0 or above, and cuda:0 has 7.5", "leave tf32 out"):
            assert word in said, f"it should say '{word}': {said}"


@suite.test
def too_little_memory_ends_the_session_and_not_the_daemon():
    with Cluster(1, limits="device: cuda\n", env={"CLV_SIM_MEMORY": str(3 << 20)}) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        big = body(ONE).replace("out: 12}", "out: 4096}").replace("batch: 12", "batch: 64")
        done = c.train(c.session("big", big))
        assert done.returncode != 0 and "cuda:0" in done.stderr + done.stdout, done.stderr + done.stdout
        c.trained("small", body(ONE), STEPS)


@suite.test
def lost_device_ends_the_session_and_not_the_daemon():
    with Cluster(1, limits="device: cuda\n", env={"CLV_SIM_FAIL_LAUNCH": "200"}) as c:
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"))
        done = c.train(c.session("falls", body(ONE)))
        assert done.returncode not in (0, 101) and "cuda:0" in done.stderr + done.stdout, done.stderr
        shown = master("status", c.session("after", body(ONE)))
        assert shown.returncode == 0, shown.stderr


suite.main()
