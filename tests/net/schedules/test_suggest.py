"""plan --suggest-cuts, and pipeline.micro_batches: auto over real daemons."""
import json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
DATA = "data: {format: npy, root: data, train: [train-x.npy, train-y.npy], test: [test-x.npy, test-y.npy]}\n"
NET = [
    ["{op: conv2d, out: 6, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}"],
    ["{op: conv2d, out: 10, kernel: 3, pad: 1}", "{op: batchnorm}", "{op: relu}", "{op: maxpool, kernel: 2}"],
    ["{op: flatten}", "{op: linear, out: 24}", "{op: relu}", "{op: linear, out: 10}"],
]
TESTING = {"CLEAVE_TEST_OPS": "1"}
PLACES = ["master", "w1", "w2"]
cluster = None


def stages_of(layers, extra=("", "", "")):
    return "stages:\n" + "".join(f"  - {{name: s{i}, at: {at}, {extra[i]}layers: [{', '.join(l)}]}}\n"
                                 for i, (at, l) in enumerate(zip(PLACES, layers)))


def body(stages, pipeline="micro_batches: 4", steps=12, more="", batch=24):
    return (DATA + stages + "loss: {kind: cross_entropy}\n" + more +
            f"train: {{epochs: 100, max_steps: {steps}, batch: {batch}, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, "
            "optimizer: {kind: adam, lr: 0.003}}\n"
            f"pipeline: {{{pipeline}}}\nlog: {{every: 100}}\ncheckpoint: {{every_steps: 4}}\n")


def suggest(name, text, *args, keys=READABLE):
    session = cluster.session(name, text, keys)
    done = master("plan", "--suggest-cuts", "--json", session, *args, cwd=cluster.dir)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), session


CONV = "{op: conv2d, out: 32, kernel: 3, pad: 1}"
# Twelve equal convolutions, divided badly, and links that are too fast to matter.
ALIKE = [[CONV] * 2, [CONV] * 9, [CONV, "{op: flatten}", "{op: linear, out: 10}"]]
QUICK = ("--link", "w1=0.1:100000", "--link", "w2=0.1:100000")


def convs(way):
    return [min(s["layers"][1], 11) - s["layers"][0] + 1 for s in way["stages"]]


@suite.test
def suggested_cuts_follow_layer_times_and_node_speeds():
    """With equal layers, the cuts make thirds; a node three times as fast gets most layers."""
    even, _ = suggest("even", body(stages_of(ALIKE), batch=64), *QUICK)
    assert even["complete"] and [s["at"] for s in even["best"][0]["stages"]] == PLACES
    assert even["now"]["micro_batches"] == 4 and convs(even["now"]) == [2, 9, 1]
    assert all(2 <= n <= 6 for n in convs(even["best"][0])), even["best"][0]
    assert even["best"][0]["step_s"] < 0.7 * even["now"]["step_s"], even
    fast, _ = suggest("fast", body(stages_of(ALIKE), batch=64), "--speed", "w1=3", *QUICK)
    assert convs(fast["best"][0])[1] > 6, fast["best"][0]


@suite.long
def suggested_stages_can_be_pasted_into_a_session():
    told, session = suggest("paste", body(stages_of(ALIKE), batch=64))
    best = told["best"][0]
    text = body(best["yaml"], f"micro_batches: {best['micro_batches']}", batch=64)
    again, _ = suggest("pasted", text)
    assert [s["layers"] for s in again["now"]["stages"]] == [s["layers"] for s in best["stages"]]
    assert abs(again["now"]["step_s"] - best["step_s"]) < 0.5 * best["step_s"], (again["now"], best)
    shown = master("plan", "--suggest-cuts", session, cwd=cluster.dir)
    assert shown.returncode == 0 and "as it is: " in shown.stdout and "\nstages:\n" in shown.stdout
    assert "w1 1 ms, 1000 Mbit/s (assumed)" in shown.stdout and "nothing was sent" in shown.stdout


@suite.test
def slow_link_moves_the_cut_to_the_smallest_tensor():
    """Over a slow link the cut is after the pooling, whatever the balance of the nodes."""
    net = [["{op: conv2d, out: 32, kernel: 3, pad: 1}"], ["{op: relu}", "{op: maxpool, kernel: 6}"],
           ["{op: flatten}", "{op: linear, out: 32}", "{op: relu}", "{op: linear, out: 10}"]]
    told, _ = suggest("slow", body(stages_of(net)), "--link", "w1=40:10", "--link", "w2=40:10")
    assert told["best"][0]["stages"][0]["layers"] == [0, 3], told["best"][0]
    assert told["best"][0]["stages"][0]["cut_bytes"] == 24 * 32 * 2 * 2 * 4
    assert "w1 40 ms, 10 Mbit/s" in told["links"]
    assert told["best"][0]["step_s"] < 0.5 * told["now"]["step_s"]


@suite.test
def suggestion_does_not_move_input_or_pinned_cuts():
    """Without weights before the first cut the input would leave; a frozen stage is not changed."""
    flat = [["{op: maxpool, kernel: 2}", "{op: flatten}", "{op: linear, out: 64}"],
            ["{op: relu}", "{op: linear, out: 64}", "{op: relu}"], ["{op: linear, out: 64}", "{op: linear, out: 10}"]]
    told, _ = suggest("home", body(stages_of(flat)), "--speed", "w1=1000", "--speed", "w2=1000")
    assert all(way["stages"][0]["layers"][1] >= 3 for way in told["best"]), told["best"]
    leaves, _ = suggest("leaves", body(stages_of(flat), more="privacy: {raw_input_leaves: true}\n")
                        .replace("at: master", "at: w1"), "--speed", "w2=1000")
    assert any(way["stages"][0]["layers"][1] < 2 for way in leaves["best"]), leaves["best"]
    told, session = suggest("frozen", body(stages_of(NET, ("", "freeze: true, ", ""))))
    assert [s["layers"] for s in told["best"][0]["stages"]] == [[0, 2], [3, 6], [7, 10]]
    shown = master("plan", "--suggest-cuts", session, cwd=cluster.dir)
    assert "the cut between 's0' and 's1' stays" in shown.stdout, shown.stdout
    one = master("plan", "--suggest-cuts", session, "--set", "pipeline.micro_batches=24", cwd=cluster.dir).stdout
    assert re.search(r"batch norm would see [0-9.]+ samples at a time instead of 1\n", one), one


@suite.test
def suggestion_never_violates_privacy():
    """Even workers a thousand times as fast do not get the layers that must hide records or labels
    from
    them: the first convolution, and the last layer that trains from secret weights."""
    net = [["{op: scale, factor: 2}", "{op: conv2d, out: 6, kernel: 3, pad: 1}", "{op: relu}", CONV],
           ["{op: flatten}", "{op: linear, out: 24}"],
           ["{op: relu}", "{op: linear, out: 24}", "{op: relu}", "{op: linear, out: 10}", "{op: relu}"]]
    stages = stages_of(net).replace("at: w2", "at: master")
    text = body(stages).replace(f"seed: {SEED}, ", "")
    told, session = suggest("kept", text, "--speed", "w1=1000", keys="")
    assert all(way["stages"][0]["layers"][1] >= 1 and way["stages"][2]["layers"][0] <= 9 for way in told["best"]), told
    shown = master("plan", "--suggest-cuts", session, cwd=cluster.dir).stdout
    # with a short seed labels are safe only if no gradient is sent, so layers that train stay at
    # the master
    net = [[CONV], ["{op: flatten}", "{op: linear, out: 24}"],
           ["{op: relu}", "{op: linear, out: 24}", "{op: relu}", "{op: linear, out: 10}"]]
    frozen = body(stages_of(net).replace("at: w2", "at: master")).replace(f"seed: {SEED}, ", "seed: 5, freeze: [\"[0-2].*\"], ")
    told, _ = suggest("frozen-front", frozen, keys="front_known: true")
    assert told["best"] and all(way["stages"][2]["layers"][0] <= 4 for way in told["best"]), told
    assert "the master keeps layers 0..1 at least" in shown and "the master keeps layer 9 and" in shown, shown


@suite.test
def invalid_suggest_options_are_refused():
    session = cluster.session("clumsy", body(stages_of(NET)))

    def refused(code, text, *args):
        done = master("plan", session, *args, cwd=cluster.dir)
        assert done.returncode == code and re.search(text, done.stderr), (done.returncode, done.stderr)

    refused(2, "no worker 'w11', did you mean 'w1'", "--suggest-cuts", "--link", "w11=1:1")
    for arg in ("w1", "=1:1", "w1=", "w1=1", "w1=1:", "w1=1:0", "w1=-1:1", "w1=1:1x", "w1=nan:1", "w1=1e3:1",
                "w1=99999:1", "w1+w1=1:1", "w1=1:1:1"):
        refused(2, r"--link ", "--suggest-cuts", "--link", arg)
    for arg in ("w1=0", "w1=fast", "w9=2", "w1=1e99", "w1"):
        refused(2, r"--speed", "--suggest-cuts", "--speed", arg)
    refused(2, "belong to plan --suggest-cuts", "--link", "w1=1:1")
    refused(2, "--schedule or --suggest-cuts", "--suggest-cuts", "--schedule")
    one = cluster.session("one", body("stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 10}]}\n"))
    done = master("plan", "--suggest-cuts", one, cwd=cluster.dir)
    assert done.returncode == 3 and re.search(r"one\.yaml:\d+:\d+: .*nothing to cut", done.stderr), done.stderr
    few = cluster.session("few", body(stages_of([["{op: flatten}"], ["{op: linear, out: 10}"], ["{op: relu}"]]),
                                      more="privacy: {raw_input_leaves: true}\n"))
    done = master("plan", "--suggest-cuts", few, cwd=cluster.dir)
    assert done.returncode == 3 and re.search(r"few\.yaml:\d+:\d+: .*1 place where", done.stderr), done.stderr
    for schedule in ("pipedream", "pipedream-2bw"):
        bad = cluster.session("bad", body(stages_of(NET), f"micro_batches: auto, schedule: {schedule}"))
        done = master("check", bad, cwd=cluster.dir)
        assert done.returncode == 3 and "auto is not possible with schedule" in done.stderr, done.stderr


def weights(tag, step):
    return checkpoint_tensors(os.path.join(cluster.dir, "runs", tag), step)


def number_of(tag):
    with open(os.path.join(cluster.dir, "runs", tag, "session.effective.yaml")) as f:
        return int(re.search(r"micro_batches: (\d+)", f.read()).group(1))


@suite.long
def auto_micro_batches_are_chosen_once():
    """Runs with auto, with the chosen number, and with an interruption have the same bits."""
    session = cluster.session("auto", body(stages_of(NET), "micro_batches: auto"))
    done = cluster.train(session)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"^micro_batches: (\d+), by trial steps with 1, 4: ", done.stdout, re.M)
    assert said and number_of("auto") == int(said.group(1)), done.stdout
    session = cluster.session("number", body(stages_of(NET), f"micro_batches: {said.group(1)}"))
    assert cluster.train(session).returncode == 0
    assert weights("number", 12) == weights("auto", 12)

    session = cluster.session("broken", body(stages_of(NET), "micro_batches: auto"))
    first = cluster.train(session, "--max-steps", "5")
    assert first.returncode == 0, first.stderr
    path = os.path.join(cluster.dir, "runs", "broken", "session.effective.yaml")
    with open(path) as f:  # a number that no trial would choose, so that its use shows
        then = f.read()
    chosen = number_of("broken")
    assert "by trial steps" in first.stdout
    rest = cluster.train(session, "--resume")
    assert rest.returncode == 0 and "by trial steps" not in rest.stdout, rest.stdout + rest.stderr
    assert number_of("broken") == chosen
    if chosen == number_of("auto"):
        assert weights("broken", 12) == weights("auto", 12)
    whole = cluster.session("whole", body(stages_of(NET), f"micro_batches: {chosen}"))
    assert cluster.train(whole).returncode == 0
    assert weights("whole", 12) == weights("broken", 12)
    os.unlink(path)
    lost = cluster.train(session, "--resume", "--set", "train.max_steps=13")
    assert lost.returncode == 8 and "give the number" in lost.stderr, (lost.returncode, lost.stderr)
    with open(path, "w") as f:
        f.write(re.sub(r"micro_batches: \d+", "micro_batches: 3", then))
    # micro-batches now have another size
    more = cluster.train(session, "--resume", "--accept-egress")
    assert more.returncode == 0 and number_of("broken") == 3, (more.stdout, more.stderr)


def chosen_for(name, net):
    session = cluster.session(name, body(stages_of(net), "micro_batches: auto", steps=2, batch=64))
    done = cluster.train(session, "--json", env=TESTING)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "egress", events
    return next(e for e in events if e["event"] == "micro_batches")


@suite.long
def auto_uses_micro_batches_only_for_long_compute():
    """The op `wait` takes as long for few samples as for many, so it gets one micro-batch.
    Convolutions get several."""
    net = [["{op: conv2d, out: 2, kernel: 3}", "{op: wait, forward_ms: 5, input_ms: 5, weight_ms: 5}"],
           ["{op: relu}"], ["{op: flatten}", "{op: linear, out: 10}"]]
    assert chosen_for("brief", net)["micro_batches"] == 1
    big = [[CONV] * 4, [CONV] * 4, [CONV] * 4 + ["{op: flatten}", "{op: linear, out: 10}"]]
    for i in range(3):  # a busy machine may have no second free core
        event = chosen_for(f"big{i}", big)
        assert event["step_s"] <= event["step_of_1_s"], event
        if event["micro_batches"] > 1:
            break
    assert event["micro_batches"] > 1, event


with Cluster(2, env=TESTING) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
