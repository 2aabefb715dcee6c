#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/golden/scores.txt: outputs, labels and their scores by scikit-learn (Debian:
python3-sklearn). tests/unit/score/test_score.c reads it.

    make_scores.py

A case is a line `case NAME OUTPUTS COLUMNS ROWS`, a line per row (outputs, then the label or the
targets), and lines `value NAME NUMBER`. OUTPUTS is the number of clv_score_outputs.
"""
import os

import numpy as np
from scipy.special import expit, log_softmax, softmax
from sklearn import metrics
from sklearn.calibration import calibration_curve

LOGITS, PROBABILITY, LABEL_LOGITS, NUMBERS, LOG_NUMBERS = 0, 2, 5, 6, 7
SPECIFICITY, BINS = 0.8, 10


def ece(right, p):
    """The expected calibration error, from the bins of calibration_curve (which omits empty bins),
    weighted by their sizes."""
    share, mean = calibration_curve(right, p, n_bins=BINS)
    of = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], p)
    sizes = np.bincount(of, minlength=BINS)
    return float(np.abs(share - mean) @ sizes[sizes > 0] / len(p))


def sensitivity(y, p):
    fpr, tpr, _ = metrics.roc_curve(y, p, drop_intermediate=False)
    return float(tpr[1 - fpr >= SPECIFICITY].max())


def of_classes(y, x):
    p, answer, one_hot = softmax(x, 1), x.argmax(1), np.eye(x.shape[1])[y]
    return {"accuracy": metrics.accuracy_score(y, answer), "f1_micro": metrics.f1_score(y, answer, average="micro"),
            "f1_macro": metrics.f1_score(y, answer, average="macro"),
            "auc": metrics.roc_auc_score(y, p, multi_class="ovr"),
            "perplexity": np.exp(metrics.log_loss(y, np.exp(log_softmax(x, 1)), labels=range(x.shape[1]))),
            "average_precision": metrics.average_precision_score(one_hot, p, average="macro"),
            "sensitivity": np.mean([sensitivity(y == c, p[:, c]) for c in range(x.shape[1])]),
            "ece": ece(answer == y, p.max(1))}


def of_two(y, p):
    answer = p > 0.5
    return {"accuracy": metrics.accuracy_score(y, answer), "f1_macro": metrics.f1_score(y, answer, average="macro"),
            "auc": metrics.roc_auc_score(y, p), "average_precision": metrics.average_precision_score(y, p),
            "sensitivity": sensitivity(y, p), "ece": ece(y, p)}


def of_labels(y, x):
    p, answer, columns = expit(x), x > 0, range(x.shape[1])
    return {"accuracy": metrics.accuracy_score(y, answer), "f1_micro": metrics.f1_score(y, answer, average="micro"),
            "f1_macro": metrics.f1_score(y, answer, average="macro"),
            "auc": metrics.roc_auc_score(y, p, average="macro"),
            "average_precision": metrics.average_precision_score(y, p, average="macro"),
            "sensitivity": np.mean([sensitivity(y[:, c], p[:, c]) for c in columns])}


def of_numbers(t, x):
    root = np.mean(np.sqrt(metrics.mean_squared_error(t, x, multioutput="raw_values")))
    return {"mae": metrics.mean_absolute_error(t, x), "rmse": root, "r2": metrics.r2_score(t, x)}


def main():
    rng = np.random.default_rng(7)
    f4 = np.float32
    classes, y3 = rng.standard_normal((60, 3)).astype(f4) * 2, rng.integers(0, 3, 60)
    classes[np.arange(60), y3] += 1
    p = np.round(rng.random(50), 2).clip(0.01, 0.99).astype(f4)  # with ties
    y2 = (rng.random(50) < p).astype(int)
    logits, y4 = rng.standard_normal((40, 4)).astype(f4), rng.integers(0, 2, (40, 4))
    logits += y4
    t1, t3 = rng.standard_normal((30, 1)).astype(f4), rng.standard_normal((30, 3)).astype(f4) * 3
    x1, x3 = t1 + rng.standard_normal((30, 1)).astype(f4) / 2, t3 + rng.standard_normal((30, 3)).astype(f4)
    counts, rate = rng.poisson(4, (30, 1)).astype(f4), rng.standard_normal((30, 1)).astype(f4) / 3 + 1
    cases = [("classes", LOGITS, 3, classes, y3[:, None], of_classes(y3, classes.astype("f8"))),
             ("two", PROBABILITY, 2, p[:, None], y2[:, None], of_two(y2, p.astype("f8"))),
             ("labels", LABEL_LOGITS, 4, logits, y4, of_labels(y4, logits.astype("f8"))),
             ("numbers", NUMBERS, 1, x1, t1, of_numbers(t1.astype("f8"), x1.astype("f8"))),
             ("columns", NUMBERS, 3, x3, t3, of_numbers(t3.astype("f8"), x3.astype("f8"))),
             ("counts", LOG_NUMBERS, 1, rate, counts,
              of_numbers(counts.astype("f8"), np.exp(rate.astype("f8")).astype(f4).astype("f8")))]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "scores.txt"), "w") as f:
        for name, outputs, columns, x, y, values in cases:
            print("case", name, outputs, columns, len(x), file=f)
            for row in np.hstack([x, y]):
                print(*(f"{v:.9g}" for v in row), file=f)
            for key, value in values.items():
                print("value", key, f"{value:.17g}", file=f)


main()
