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
    done = master("plan", cluster.session("targets", body()), cwd=cluster.dir)
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
    refused(r"bad\.csv:6:16: the target 'died' is missing: set `missing: mask` of its column", 7, csv_line=row.format("low", "", 1, 2))
    refused(r"bad\.csv:6:16: column 'died' has 'maybe', which is no boolean", 7, csv_line=row.format("low", "maybe", 1, 2))
    refused(r"bad\.csv:6:20: column 'days in bed' has 'long', which is no number", 7, csv_line=row.format("low", "yes", "long", 2))
    refused(r"bad\.yaml:\d+:\d+: .*'grade' has 4 classes, up to 'odd', and loss.targets says classes: 3", 3, csv_line=row.format("odd", "yes", 1, 2))
    refused(r"bad\.yaml:\d+:\d+: loss targets: the outputs of the model are \[\d+, 5\], and loss.targets needs \[N, 6\]", 3,
            body().replace("out: 6", "out: 5"))
    refused(r"bad\.yaml:\d+:\d+: .*best: loss.targets has no 'dead'", 3, body().replace("validation.died", "validation.dead"))


# ---- labels that are missing ---------------------------------------------------------------------

MASKED = {"ce": f"{{kind: cross_entropy, classes: 3, label_smoothing: {SMOOTHING}, scores: [f1, auc, confusion]}}",
          "fo": "{kind: focal, classes: 3, gamma: 1.5, loss_weight: 0.5}", "nl": "{kind: nll, classes: 3}",
          "lo": f"{{kind: bce_with_logits, pos_weight: {POS_WEIGHT}, scores: [auc, average_precision]}}",
          "pr": "{kind: bce, loss_weight: 2}", "ms": "{kind: mse, scores: [mae, r2]}", "sm": "{kind: smooth_l1, beta: 0.5}",
          "hu": "{kind: huber, delta: 0.3}", "qu": "{kind: quantile, quantile: 0.3}", "po": "{kind: poisson, loss_weight: 0.25}"}
MASKED_WEIGHTS = {"fo": 0.5, "pr": 2.0, "po": 0.25}
CLASSES, LABELS = ("ce", "fo", "nl"), ("lo", "pr")


def masked_table(n, seed):
    """(inputs, labels by target with NaN where one is missing): no record of the first batch has a
    label of ce, lo and ms, and two of five others are missing."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, WIDTH)).astype("f4").round(4)
    y = {}
    for t in MASKED:
        y[t] = (rng.integers(0, 3, n) if t in CLASSES else rng.integers(0, 2, n) if t in LABELS else rng.poisson(1.5, n)).astype("f8")
        y[t][rng.random(n) < 0.4] = np.nan
        if t in ("ce", "lo", "ms"):
            y[t][:BATCH] = np.nan
    return x, y


def write_masked(path, x, y):
    def cell(t, v, i):
        if np.isnan(v):
            return ("", "NA")[i % 2]
        return GRADES[int(v)] if t in CLASSES else ("no", "yes")[int(v)] if t in LABELS else f"{v:g}"

    with open(path, "w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["id", *(f"x{k}" for k in range(WIDTH)), *y])
        for i, r in enumerate(x):
            rows.writerow([f"p{i}", *(f"{v:.4f}" for v in r), *(cell(t, v[i], i) for t, v in y.items())])


def masked_body(missing="mask", train="masked.csv", steps=STEPS, at="w1"):
    text = body(steps, "".join(f"    {t}: {spec}\n" for t, spec in MASKED.items()))
    for t in WEIGHTS:
        text = text.replace(f"      {t}: {{as: target}}\n", "")
    text = text.replace("      id: {as: id}\n", "      id: {as: id}\n" + "".join(f"      {t}: {{as: target, missing: {missing}}}\n" for t in MASKED))
    text = text.replace("{op: linear, out: 6}", "{op: linear, out: 16}, {op: sigmoid}").replace("validation.died.auc", "validation.lo.auc")
    return text.replace("[train.csv]", f"[{train}]").replace("[test.csv]", "[masked-tests.csv]").replace("at: w1", f"at: {at}")


def masked_losses(z, y, weights):
    """Losses by target of outputs z, each the mean over the records that have a label, or 0.
    weights: those of the classes, by target."""
    import torch
    import torch.nn.functional as F
    found, at = {}, 0
    for t in MASKED:
        width = 3 if t in CLASSES else 1
        known = ~torch.isnan(y[t])
        x, l = z[known, at:at + width], y[t][known]
        at += width
        if not len(l):
            found[t] = 0 * z.sum()
            continue
        v, error = x[:, 0], l - x[:, 0]
        nll = lambda: F.cross_entropy(x, l.long(), reduction="none")
        w = torch.tensor(weights.get(t, [1, 1, 1]), dtype=z.dtype)
        share = lambda: w[l.long()] / w[l.long()].sum()
        found[t] = {"ce": lambda: F.cross_entropy(x, l.long(), weight=w, label_smoothing=SMOOTHING),
                    "fo": lambda: ((1 - torch.exp(-nll())) ** 1.5 * nll() * share()).sum(), "nl": lambda: F.nll_loss(x, l.long()),
                    "lo": lambda: F.binary_cross_entropy_with_logits(v, l, pos_weight=torch.tensor(POS_WEIGHT, dtype=z.dtype)),
                    "pr": lambda: F.binary_cross_entropy(v, l), "ms": lambda: F.mse_loss(v, l),
                    "sm": lambda: F.smooth_l1_loss(v, l, beta=0.5), "hu": lambda: F.huber_loss(v, l, delta=0.3),
                    "qu": lambda: torch.maximum(0.3 * error, -0.7 * error).mean(), "po": lambda: F.poisson_nll_loss(v, l)}[t]()
    return found


def masked_outcome(state, weights={}):
    """As outcome, for the tables with missing labels; the sum of a step is of per-target means."""
    import torch
    import torch.nn.functional as F
    from sklearn import metrics
    p = {k: torch.from_numpy(v.astype("f8")).requires_grad_() for k, v in state.items()}

    def forward(x):
        h = F.relu(F.linear(torch.from_numpy(x.astype("f8")), p["0.weight"], p["0.bias"]))
        h = F.relu(F.linear(h, p["2.weight"], p["2.bias"]))
        return torch.sigmoid(F.linear(h, p["4.weight"], p["4.bias"]))

    optimiser = torch.optim.SGD(list(p.values()), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: (9 - t) / 8 if t else 0.0)
    total = []
    for step in range(STEPS):
        at = step * BATCH % KEPT
        found = masked_losses(forward(MX[at:at + BATCH]), {k: torch.from_numpy(v[at:at + BATCH]) for k, v in MY.items()}, weights)
        loss = sum(MASKED_WEIGHTS.get(k, 1.0) * v for k, v in found.items())
        total.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        z = forward(MASKED_TEST_X)
        found = {k: {"loss": v.item()} for k, v in masked_losses(z, {k: torch.from_numpy(v) for k, v in MASKED_TEST_Y.items()}, weights).items()}
    known = {k: ~np.isnan(v) for k, v in MASKED_TEST_Y.items()}
    z, y = z.numpy(), {k: v[known[k]] for k, v in MASKED_TEST_Y.items()}
    prob = np.exp(z[known["ce"], :3]) / np.exp(z[known["ce"], :3]).sum(1, keepdims=True)
    lo, ms = z[known["lo"], 9], z[known["ms"], 11]
    found["ce"].update(accuracy=metrics.accuracy_score(y["ce"], prob.argmax(1)), auc=metrics.roc_auc_score(y["ce"], prob, multi_class="ovr"))
    found["lo"].update(auc=metrics.roc_auc_score(y["lo"], lo), average_precision=metrics.average_precision_score(y["lo"], lo))
    found["ms"].update(mae=metrics.mean_absolute_error(y["ms"], ms), r2=metrics.r2_score(y["ms"], ms))
    return total, {k: v.tolist() for k, v in p.items()}, found


def trained_masked_session():
    """The session of the tables with missing labels, which has a run."""
    path = os.path.join(cluster.dir, "masked.yaml")
    if not os.path.exists(path):
        cluster.trained("masked", masked_body(), STEPS)
    return path


@suite.test
def losses_and_scores_without_some_labels_equal_torch_and_sklearn():
    state = arrays(cluster.trained("masked-first", masked_body(steps=1), 1)[0])
    inputs = {**state, "x": MX, "test x": MASKED_TEST_X, **{f"y {k}": v for k, v in MY.items()}, **{f"test {k}": v for k, v in MASKED_TEST_Y.items()}}
    losses, after, found = golden.numbers("targets_masked", inputs, lambda: masked_outcome(state))
    values, log, said = cluster.trained("masked", masked_body(), STEPS)
    assert_close([json.loads(line)["loss"] for line in log.splitlines()], losses)
    for name, v in arrays(values).items():
        assert_close(v, after[name])
    assert cluster.trained("masked-here", masked_body(at="master"), STEPS)[0] == values
    session = cluster.session("masked-resumed", masked_body())
    for more in (["--max-steps", "2"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs/masked-resumed"), STEPS) == checkpoint_tensors(os.path.join(cluster.dir, "runs/masked"), STEPS)
    test = evaluations("masked")[-1]
    assert_close(test["loss"], sum(MASKED_WEIGHTS.get(k, 1) * v["loss"] for k, v in found.items()))
    for target, want in found.items():
        got = test["scores"]["targets"][target]
        n = int((~np.isnan(MASKED_TEST_Y[target])).sum())
        assert got["labelled"] == n and f"\n  {target}: loss {got['loss']:.6f} over {n} of {TESTS} records" in said, (target, got, said)
        for score, number in want.items():
            assert_close(got[score], number)
    assert sum(map(sum, test["scores"]["targets"]["ce"]["confusion"])) == test["scores"]["targets"]["ce"]["labelled"]


@suite.test
def masks_without_a_missing_label_change_no_bit():
    full = {t: np.nan_to_num(v) for t, v in MY.items()}
    write_masked(os.path.join(cluster.dir, "t/full.csv"), MX, full)
    masked = cluster.trained("full-masked", masked_body(train="full.csv"), STEPS)[0]
    text = masked_body("refuse", "full.csv").replace("masked-tests.csv", "full.csv")
    assert cluster.trained("full", text, STEPS)[0] == masked


@suite.test
def records_without_labels_are_counted_predicted_and_reported():
    session, out = trained_masked_session(), os.path.join(cluster.dir, "masked.csv")
    done = master("check", session, cwd=cluster.dir)
    missing = np.isnan(MY["ms"][:KEPT]).sum()
    n = [np.sum(MY["ce"][:KEPT] == c) for c in range(3)]
    assert f"  ms: with a label {KEPT - missing}, without a label {missing} in training; " in done.stdout, done.stdout + done.stderr
    assert f"  ce: 'high' {n[0]}, 'low' {n[1]}, 'none' {n[2]}, without a label {KEPT - sum(n)} in training; " in done.stdout, done.stdout
    found = json.loads(master("check", session, "--json", cwd=cluster.dir).stdout.splitlines()[-1])["targets"]
    assert found["ms"]["training"] == [{"name": None, "records": missing}] and found["ce"]["training"][-1] == {"name": None, "records": KEPT - sum(n)}, found
    assert "labels: a record without labels (missing: mask) has shorter gradients" in done.stdout and "weight of a target" not in done.stdout, done.stdout
    done = master("predict", session, "--output", out, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    with open(out, newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == TESTS and all(r[t] != "" for r in rows for t in MASKED), rows[0]
    done = master("eval", session, "--json", "--intervals", cwd=cluster.dir)
    lo = json.loads(done.stdout.splitlines()[-1])["scores"]["targets"]["lo"]
    assert lo["intervals"]["auc"][0] <= lo["auc"] <= lo["intervals"]["auc"][1], lo
    page = os.path.join(cluster.dir, "masked.html")
    assert master("report", os.path.join(cluster.dir, "runs/masked"), "--output", page, cwd=cluster.dir).returncode == 0
    with open(page) as f:
        assert "lo: labelled" in f.read()


@suite.test
def sets_without_any_label_of_a_target_are_refused_or_named():
    none = {**MY, "hu": np.full(RECORDS, np.nan), "nl": np.full(RECORDS, np.nan)}
    write_masked(os.path.join(cluster.dir, "t/none.csv"), MX, none)
    done = master("check", cluster.session("none", masked_body(train="none.csv")), cwd=cluster.dir)
    assert done.returncode == 7 and re.search(r"none\.yaml:\d+:5: data.train: none of its 24 records has a label of target 'nl'", done.stderr), done.stderr
    session = trained_masked_session()
    done = master("eval", session, "--set", "data.test=[none.csv]", cwd=cluster.dir)
    assert done.returncode == 0 and "data.test: none of its 32 records has a label of target 'hu', so it has no loss" in done.stdout + done.stderr, done.stdout + done.stderr
    assert "\n  hu: no record has a label" in done.stdout and "\n  nl: no record has a label" in done.stdout, done.stdout


WEIGHED = "[1, 2.5, 0.5]"


def weighed_body(at="w1"):
    """The session of the tables with missing labels, with weights of the classes of ce and fo."""
    text = masked_body(at=at).replace("ce: {kind: cross_entropy", f"ce: {{weight: {WEIGHED}, kind: cross_entropy")
    return text.replace("fo: {kind: focal", "fo: {class_weights: balanced, kind: focal")


@suite.test
def weights_of_the_classes_of_targets_equal_torch():
    known = MY["fo"][:KEPT][~np.isnan(MY["fo"][:KEPT])]
    counts = np.bincount(known.astype("i8"), minlength=3)
    weights = {"ce": json.loads(WEIGHED), "fo": (len(known) / (3 * counts)).tolist()}
    state = arrays(cluster.trained("weighed-first", masked_body(steps=1), 1)[0])
    inputs = {**state, "x": MX, "test x": MASKED_TEST_X, **{f"y {k}": v for k, v in MY.items()}, **{f"weights {k}": np.array(v) for k, v in weights.items()}}
    losses, after, found = golden.numbers("targets_weighed", inputs, lambda: masked_outcome(state, weights))
    values, log, _ = cluster.trained("weighed", weighed_body(), STEPS)
    assert_close([json.loads(line)["loss"] for line in log.splitlines()], losses)
    for name, v in arrays(values).items():
        assert_close(v, after[name])
    test = evaluations("weighed")[-1]["scores"]["targets"]
    for target in ("ce", "fo", "ms"):
        assert_close(test[target]["loss"], found[target]["loss"])
    # eval has no training records, and takes the weights of the run
    done = master("eval", os.path.join(cluster.dir, "weighed.yaml"), "--json", cwd=cluster.dir)
    assert_close(json.loads(done.stdout.splitlines()[-1])["scores"]["targets"]["fo"]["loss"], found["fo"]["loss"])
    with open(os.path.join(cluster.dir, "runs/weighed/session.effective.yaml")) as f:
        assert "class_weights" not in f.read()
    done = master("predict", os.path.join(cluster.dir, "weighed.yaml"), "--output", os.path.join(cluster.dir, "weighed.csv"), cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    done = master("plan", os.path.join(cluster.dir, "weighed.yaml"), cwd=cluster.dir)
    assert "labels: weight of a target in loss.targets makes gradients of some classes longer" in done.stdout, done.stdout
    session = cluster.session("weighed-resumed", weighed_body())
    for more in (["--max-steps", "2"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert checkpoint_tensors(os.path.join(cluster.dir, "runs/weighed-resumed"), STEPS) == checkpoint_tensors(os.path.join(cluster.dir, "runs/weighed"), STEPS)


@suite.test
def records_are_drawn_and_held_back_by_the_classes_of_a_target():
    text = masked_body().replace("fraction: 0.25, by: last", "fraction: 0.25, target: fo").replace("shuffle: false", "shuffle: true")
    session = cluster.session("drawn", text.replace("  format: table\n", "  format: table\n  sampling: balanced\n  sampling_target: lo\n"))
    done = master("check", session, cwd=cluster.dir)
    n, missing = np.bincount(MY["fo"][~np.isnan(MY["fo"])].astype("i8")), np.isnan(MY["fo"]).sum()
    found = re.search(r"  fo: .* in training; 'high' (\d+), 'low' (\d+), 'none' (\d+), without a label (\d+) in validation", done.stdout)
    assert found and all(abs(int(a) - b / 4) < 1 for a, b in zip(found.groups(), [*n, missing])), done.stdout + done.stderr
    assert "each class of data.validation.target by its share" in done.stdout + done.stderr, done.stdout + done.stderr
    text = text.replace("target: fo", "target: ms")
    done = master("check", cluster.session("numbers", text), cwd=cluster.dir)
    assert done.returncode == 3 and "data.validation.target: the labels of 'ms' are numbers (mse)" in done.stderr, done.stderr
    done = cluster.train(session)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    with Cluster(1) as cluster:
        os.mkdir(os.path.join(cluster.dir, "t"))
        (X, Y), (TEST_X, TEST_Y) = table(RECORDS, 5), table(TESTS, 6)
        write(os.path.join(cluster.dir, "t/train.csv"), X, Y)
        write(os.path.join(cluster.dir, "t/test.csv"), TEST_X, TEST_Y)
        (MX, MY), (MASKED_TEST_X, MASKED_TEST_Y) = masked_table(RECORDS, 7), masked_table(TESTS, 8)
        write_masked(os.path.join(cluster.dir, "t/masked.csv"), MX, MY)
        write_masked(os.path.join(cluster.dir, "t/masked-tests.csv"), MASKED_TEST_X, MASKED_TEST_Y)
        suite.main()
