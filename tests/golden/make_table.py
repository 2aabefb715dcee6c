#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two small tables (tests/golden/table/train.csv, test.csv) and what scikit-learn makes of them.

Needs scikit-learn and pandas from PyPI. Writes tables.txt and tables.bin in the form of
make_golden.py: for each column of tests/unit/data/test_tables.c its places in both tables.
"""
import os
import numpy as np, pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, QuantileTransformer, StandardScaler

HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.Generator(np.random.PCG64(7))
ROWS = {"train": 60, "test": 20}


def make(n, sites):
    d = pd.DataFrame({
        "age": rng.integers(20, 90, n).astype(float), "dose": np.round(rng.lognormal(0, 2, n), 4),
        "grade": rng.integers(1, 4, n).astype(float), "weight": np.round(rng.normal(70, 12, n), 2),
        "same": np.full(n, 4.0), "site": rng.choice(sites, n), "smoker": rng.choice(["yes", "no"], n)})
    for column in ("age", "grade", "weight", "site"):
        d.loc[rng.choice(n, n // 8, replace=False), column] = np.nan
    d["outcome"] = np.where(rng.random(n) < 0.4, "ill", "well")
    d["cost"] = np.round(rng.normal(0, 100, n), 3)
    return d


def number(fill, scale):
    return make_pipeline(SimpleImputer(strategy=fill), scale)


COLUMNS = {
    "age": number("mean", StandardScaler()),
    "dose": make_pipeline(FunctionTransformer(np.log1p), StandardScaler()),
    "grade": number("most_frequent", QuantileTransformer(n_quantiles=ROWS["train"])),
    "weight": number("median", MinMaxScaler()),
    "same": StandardScaler(),
}


class Writer:
    def __init__(self):
        self.index, self.values = [], bytearray()

    def add(self, key, a):
        a = np.ascontiguousarray(a, dtype=np.float64)
        self.index.append(" ".join(map(str, [key, "f64", len(self.values), a.ndim, *a.shape])))
        self.values += a.tobytes()


def main():
    tables = {"train": make(60, ["north", "south", "east, old"]), "test": make(20, ["north", "west", "south"])}
    w = Writer()
    for name, d in tables.items():
        d.to_csv(os.path.join(HERE, "table", name + ".csv"), index=False, lineterminator="\r\n" if name == "test" else "\n")
    for column, pipeline in COLUMNS.items():
        pipeline.fit(tables["train"][[column]].to_numpy())
        for name, d in tables.items():
            w.add(f"{name}.{column}", pipeline.transform(d[[column]].to_numpy()))
    sites = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(tables["train"][["site"]].dropna().to_numpy())
    for name, d in tables.items():
        known = sites.transform(d[["site"]].fillna("").to_numpy())
        missing = d[["site"]].isna().to_numpy().astype(float)
        unseen = 1 - known.sum(1, keepdims=True) - missing
        w.add(f"{name}.site", np.hstack([known, unseen, missing]))
        w.add(f"{name}.smoker", (d["smoker"] == "yes").to_numpy()[:, None])
        w.add(f"{name}.missing", d[["age"]].isna().to_numpy())
    with open(os.path.join(HERE, "tables.txt"), "w") as f:
        f.write("\n".join(w.index) + "\n")
    with open(os.path.join(HERE, "tables.bin"), "wb") as f:
        f.write(w.values)


main()
