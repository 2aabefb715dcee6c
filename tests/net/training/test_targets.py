#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A table with several targets: each has a loss, a weight in the sum and scores of its own. Losses
and weights are PyTorch's, scores are scikit-learn's, and `check`, `eval`, `predict`, `report` and
checkpoint.best name the targets."""
import csv, glob, json, os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import golden
import numpy as np

suite = Suite()
WIDTH, RECORDS, KEPT, TESTS, BATCH, STEPS, RATE = 4, 32, 24, 20, 8, 4, 0.05
GRADES = ("high", "low", "none")  # classes are numbered by name
POS_WEIGHT, SMOOTHING, DELTA = 3.0, 0.1, 2.0
WEIGHTS = {"grade": 1.0, "died": 2.0, "days in bed": 0.25, "visits": 0.5}
TARGETS = (f"    grade: {{kind: cross_entropy, classes: 3, label_smoothing: {SMOOTHING}, scores: [f1, auc, confusion]}}\n"
           f"    died: {{kind: bce_with_logits, pos_weight: {POS_WEIGHT}, loss_weight: {WEIGHTS['died']}, scores: [auc, average_precision]}}\n"
           f"    days in bed: {{kind: huber, delta: {DELTA}, loss_weight: {WEIGHTS['days in bed']}, scores: [mae, r2]}}\n"
           f"    visits: {{kind: poisson, loss_weight: {WEIGHTS['visits']}}}\n")
STAGES = ("stages:\n"
          "  - {name: front, at: master, layers: [{op: linear, out: 10}, {op: relu}]}\n"
          "  - {name: middle, at: w1, layers: [{op: linear, out: 8}, {op: relu}]}\n"
          "  - {name: head, at: master, layers: [{op: linear, out: 6}]}\n")


def table(n, seed):
    """(inputs [n, WIDTH], labels by target) of a table."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, WIDTH)).astype("f4").round(4)
    grade = np.digitize(x[:, 0], (-0.4, 0.4))
    died = (x[:, 1] + 0.5 * rng.standard_normal(n) > 0.5).astype("f8")
    days = (3 * x[:, 2] + rng.standard_normal(n)).round(3)
    return x, {"grade": grade, "died": died, "days in bed": days, "visits": rng.poisson(2, n).astype("f8")}


def write(path, x, y, **more):
    with open(path, "w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["id", *(f"x{k}" for k in range(WIDTH)), *y, *more])
        for i, r in enumerate(x):
            rows.writerow([f"p{i}", *(f"{v:.4f}" for v in r), GRADES[y["grade"][i]], ("no", "yes")[int(y["died"][i])],
                           y["days in bed"][i], int(y["visits"][i]), *(v[i] for v in more.values())])


def body(steps=STEPS, targets=TARGETS, more="", data="", columns=""):
    names = [*(f"x{k}: {{as: number, scale: none}}" for k in range(WIDTH)), "id: {as: id}",
             *(f"{t}: {{as: target}}" for t in WEIGHTS)]
    return ("data:\n  format: table\n  root: t\n  train: [train.csv]\n  test: [test.csv]\n"
            f"  validation: {{fraction: 0.25, by: last}}\n{data}  table:\n    columns:\n"
            + "".join(f"      {c}\n" for c in names) + columns + STAGES + "loss:\n  kind: targets\n  targets:\n" + targets
            + f"pipeline: {{micro_batches: 3}}\ncheckpoint: {{best: validation.died.auc, keep: 9}}\n"
            f"train: {{epochs: 99, max_steps: {steps}, batch: {BATCH}, shuffle: false, seed: {SEED}, "
            f"optimizer: {{kind: sgd, lr: {RATE}}}, schedule: {{kind: linear, warmup_steps: 1, from_zero: true, total_steps: 9}}{more}}}\n")


def outcome(state):
    """(losses of the steps, parameters behind them, losses and scores by target of the test
    records) in PyTorch, all in f64, and in scikit-learn."""
    import torch
    import torch.nn.functional as F
    from sklearn import metrics
    p = {k: torch.from_numpy(v.astype("f8")).requires_grad_() for k, v in state.items()}

    def forward(x):
        h = F.relu(F.linear(torch.from_numpy(x.astype("f8")), p["0.weight"], p["0.bias"]))
        h = F.relu(F.linear(h, p["2.weight"], p["2.bias"]))
        return F.linear(h, p["4.weight"], p["4.bias"])

    def losses(z, y):
        y = {k: torch.from_numpy(v) for k, v in y.items()}
        return {"grade": F.cross_entropy(z[:, :3], y["grade"], label_smoothing=SMOOTHING),
                "died": F.binary_cross_entropy_with_logits(z[:, 3], y["died"], pos_weight=torch.tensor(POS_WEIGHT, dtype=torch.float64)),
                "days in bed": F.huber_loss(z[:, 4], y["days in bed"], delta=DELTA),
                "visits": F.poisson_nll_loss(z[:, 5], y["visits"])}

    optimiser = torch.optim.SGD(list(p.values()), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: (9 - t) / 8 if t else 0.0)
    total = []
    for step in range(STEPS):
        at = step * BATCH % KEPT
        by_target = losses(forward(X[at:at + BATCH]), {k: v[at:at + BATCH] for k, v in Y.items()})
        loss = sum(WEIGHTS[k] * v for k, v in by_target.items())
        total.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        z = forward(TEST_X)
        found = {k: {"loss": v.item()} for k, v in losses(z, TEST_Y).items()}
    prob, z = torch.softmax(z[:, :3], 1).numpy(), z.numpy()
    answer, died, days = z[:, :3].argmax(1), TEST_Y["died"], TEST_Y["days in bed"]
    found["grade"].update(accuracy=metrics.accuracy_score(TEST_Y["grade"], answer),
                          f1=metrics.f1_score(TEST_Y["grade"], answer, average="macro"),
                          auc=metrics.roc_auc_score(TEST_Y["grade"], prob, multi_class="ovr"))
    found["died"].update(accuracy=metrics.accuracy_score(died, z[:, 3] > 0), auc=metrics.roc_auc_score(died, z[:, 3]),
                         average_precision=metrics.average_precision_score(died, z[:, 3]))
    found["days in bed"].update(mae=metrics.mean_absolute_error(days, z[:, 4]), r2=metrics.r2_score(days, z[:, 4]))
    return total, {k: v.tolist() for k, v in p.items()}, found


def arrays(values):
    return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (_, shape, data) in values.items()}


def assert_close(got, want, by=1e-6):
    got, want = np.array(got, "f8"), np.array(want, "f8")
    assert np.abs(got - want).max() <= by * max(1, np.abs(want).max()), (got, want)


def evaluations(folder):
    with open(os.path.join(cluster.dir, "runs", folder, "evaluations.jsonl")) as f:
        return [json.loads(line) for line in f]


@suite.test
def losses_weights_and_scores_equal_torch_and_sklearn():
    # the rate of the first step is 0
    state = arrays(cluster.trained("first", body(1), 1)[0])
    inputs = {**state, "x": X, "test x": TEST_X, **{f"y {k}": v for k, v in Y.items()}, **{f"test {k}": v for k, v in TEST_Y.items()}}
    losses, after, found = golden.numbers("targets", inputs, lambda: outcome(state))
    values, log, said = cluster.trained("targets", body(), STEPS)
    rows = [json.loads(line) for line in log.splitlines()]
    assert_close([r["loss"] for r in rows], losses)
    for name, v in arrays(values).items():
        assert_close(v, after[name])
    test = evaluations("targets")[-1]
    assert_close(test["loss"], sum(WEIGHTS[k] * v["loss"] for k, v in found.items()))
    for target, want in found.items():
        got = dict(test["scores"]["targets"][target])
        got["f1"] = got["f1"]["macro"] if "f1" in got else None
        for score, number in want.items():
            assert_close(got[score], number)
    assert re.search(r"\n  died: loss 1?\.?\d.*, accuracy [\d.]+ %, AUC 0\.", said), said
    assert re.search(r"\n  days in bed: loss [\d.]+, MAE [\d.]+, R2 ", said), said


@suite.test
def best_checkpoint_and_early_stopping_follow_a_target():
    run = os.path.join(cluster.dir, "runs/targets")
    with open(os.path.join(run, "checkpoint.best")) as f:
        kept = re.fullmatch(r"validation\.auc ([\d.]+) step \d+ of died\n", f.read())
    validations = [e for e in evaluations("targets") if e["event"] == "validation"]
    assert_close(float(kept[1]), max(e["scores"]["targets"]["died"]["auc"] for e in validations))
    stops = ", early_stopping: {score: validation.days in bed.mae, patience: 1, min_delta: 1000}"
    done = cluster.train(cluster.session("stops", body(30, more=stops)))
    assert done.returncode == 0 and "without a better validation.days in bed.mae" in done.stdout, done.stdout + done.stderr
    whole = checkpoint_tensors(os.path.join(cluster.dir, "runs/stops"), 6)
    session = cluster.session("resumed", body(30, more=stops))
    for more in (["--max-steps", "4"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs/resumed"), 6) == whole


@suite.test
def predictions_and_reports_name_the_targets():
    session, out = os.path.join(cluster.dir, "targets.yaml"), os.path.join(cluster.dir, "p.csv")
    done = master("predict", session, "--output", out, "--probabilities", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    with open(out, newline="") as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == ["id", "grade", *(f"probability_grade_{g}" for g in GRADES), "died", "probability_died",
                             "days in bed", "visits"], rows[0]
    for r in rows:
        share = [float(r[f"probability_grade_{g}"]) for g in GRADES]
        assert abs(sum(share) - 1) < 1e-6 and r["grade"] == GRADES[int(np.argmax(share))], r
        assert r["died"] == ("yes" if float(r["probability_died"]) > 0.5 else "no") and float(r["visits"]) > 0, r
    done = master("predict", session, "--output", out + ".jsonl", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    with open(out + ".jsonl") as f:
        first = json.loads(f.readline())["targets"]
    assert first["died"]["name"] == rows[0]["died"] and abs(first["days in bed"]["number"] - float(rows[0]["days in bed"])) < 1e-6, first
    done = master("eval", session, "--json", "--intervals", cwd=cluster.dir)
    of_died = json.loads(done.stdout.splitlines()[-1])["scores"]["targets"]["died"]
    assert of_died["intervals"]["auc"][0] <= of_died["auc"] <= of_died["intervals"]["auc"][1], of_died
    page = os.path.join(cluster.dir, "page.html")
    done = master("report", os.path.join(cluster.dir, "runs/targets"), "--output", page, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    with open(page) as f:
        text = f.read()
    assert "<h3>Target grade</h3>" in text and "days in bed: mae" in text and "(died)</td>" in text


@suite.test
def targets_in_another_order_than_trained_are_refused():
    lines = TARGETS.splitlines(keepends=True)
    session = os.path.join(cluster.dir, "targets.yaml")
    with open(session) as f:
        text = f.read()
    with open(session, "w") as f:
        f.write(text.replace(TARGETS, "".join(lines[:1] + lines[2:3] + lines[1:2] + lines[3:])))
    for command in ("eval", "predict"):
        done = master(command, session, cwd=cluster.dir)
        assert done.returncode == 7 and re.search(r"targets\.yaml:\d+:5: loss.targets has 'days in bed' where the run was trained with 'died'", done.stderr), done.stderr
    with open(session, "w") as f:
        f.write(text)


@suite.test
def targets_with_an_index_and_weights_are_the_same_on_disk():
    wards, weights = [f"ward {i % 3}" for i in range(RECORDS)], [i % 4 for i in range(RECORDS)]
    write(os.path.join(cluster.dir, "t/wards.csv"), X, Y, ward=wards, chance=weights)
    write(os.path.join(cluster.dir, "t/ward-tests.csv"), TEST_X, TEST_Y, ward=wards[:TESTS], chance=weights[:TESTS])
    text = body(data="  sampling: column\n", columns="      ward: {as: index}\n      chance: {as: weight}\n")
    text = text.replace("train.csv", "wards.csv").replace("test.csv", "ward-tests.csv").replace("shuffle: false", "shuffle: true")
    text = text.replace("{op: linear, out: 10}", "{op: embedding, name: rows, rows: 4, out: 2, from: [ward]}, "
                        "{op: concat, dim: 1, from: [input, rows]}, {op: linear, out: 10}")
    want = cluster.trained("in-memory", text, STEPS)[0]
    assert cluster.trained("on-disk", text.replace("  table:\n", "  table:\n    storage: disk\n"), STEPS)[0] == want
    assert evaluations("on-disk")[-1]["scores"] == evaluations("in-memory")[-1]["scores"]
    assert glob.glob(os.path.join(cluster.dir, "runs/tables.cache/*/cells.json"))
    done = master("check", os.path.join(cluster.dir, "on-disk.yaml"), cwd=cluster.dir)
    n = np.bincount(Y["grade"][:KEPT], minlength=3)
    assert f"  grade: 'high' {n[0]}, 'low' {n[1]}, 'none' {n[2]} in training; " in done.stdout, done.stdout + done.stderr
    done = master("check", cluster.session("small", text.replace("rows: 4", "rows: 3")), cwd=cluster.dir)
    assert done.returncode == 3 and "this index needs 4 rows" in done.stderr, done.stderr


@suite.test
def check_and_plan_say_what_the_targets_are():
    write(os.path.join(cluster.dir, "t/odd.csv"), X, {**Y, "visits": np.full(RECORDS, 2.0)}, told=2 * Y["days in bed"] + 1)
    session = cluster.session("odd", body(columns="      told: {as: number}\n"))
    done = master("check", session, "--set", "data.train=[odd.csv]", "--set", "data.test=[odd.csv]", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    n = np.bincount(Y["grade"][:KEPT], minlength=3)
    assert f"  grade: 'high' {n[0]}, 'low' {n[1]}, 'none' {n[2]} in training; " in done.stdout, done.stdout
    said = done.stdout + done.stderr
    assert "column 'told' says nearly what the target says: would it be known in time? (target 'days in bed')" in said, said
    assert "column 'visits' has one label in all training records" in said, said
    done = master("plan", os.path.join(cluster.dir, "targets.yaml"), cwd=cluster.dir)
    assert "  target died: bce_with_logits of output 3, times 2, pos_weight 3\n" in done.stdout, done.stdout
    assert "labels" not in re.findall(r"\n  (\S+) of the loss", done.stdout)


@suite.test
def faults_of_targets_are_refused_with_their_place():
    def refused(text, code, changed=None, csv_line=None):
        session = cluster.session("bad", changed or body())
        options = ()
        if csv_line:
            with open(os.path.join(cluster.dir, "t/train.csv")) as f:
                lines = f.readlines()
            lines[5] = csv_line
            with open(os.path.join(cluster.dir, "t/bad.csv"), "w") as f:
                f.writelines(lines)
            options = ("--set", "data.train=[bad.csv]")
        done = master("check", session, *options, cwd=cluster.dir)
        assert done.returncode == code and re.search(text, done.stderr), (text, done.returncode, done.stderr)

    row = "p4,0,0,0,0,{},{},{},{}\n"
    refused(r"bad\.csv:6:16: the target 'died' is missing", 7, csv_line=row.format("low", "", 1, 2))
    refused(r"bad\.csv:6:16: column 'died' has 'maybe', which is no boolean", 7, csv_line=row.format("low", "maybe", 1, 2))
    refused(r"bad\.csv:6:20: column 'days in bed' has 'long', which is no number", 7, csv_line=row.format("low", "yes", "long", 2))
    refused(r"bad\.yaml:\d+:\d+: .*'grade' has 4 classes, up to 'odd', and loss.targets says classes: 3", 3, csv_line=row.format("odd", "yes", 1, 2))
    refused(r"bad\.yaml:\d+:\d+: loss targets: the outputs of the model are \[\d+, 5\], and loss.targets needs \[N, 6\]", 3,
            body().replace("out: 6", "out: 5"))
    refused(r"bad\.yaml:\d+:\d+: .*best: loss.targets has no 'dead'", 3, body().replace("validation.died", "validation.dead"))


if __name__ == "__main__":
    with Cluster(1) as cluster:
        os.mkdir(os.path.join(cluster.dir, "t"))
        (X, Y), (TEST_X, TEST_Y) = table(RECORDS, 5), table(TESTS, 6)
        write(os.path.join(cluster.dir, "t/train.csv"), X, Y)
        write(os.path.join(cluster.dir, "t/test.csv"), TEST_X, TEST_Y)
        suite.main()
