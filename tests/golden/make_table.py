#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes two small tables (tests/golden/table/train.csv, test.csv), the same tables as lines of
JSON and in an SQLite database (tables.db), and the values that scikit-learn computes from them.

Needs scikit-learn and pandas from PyPI. Writes tables.txt and tables.bin in the form of
make_golden.py: for each column of tests/unit/data/test_tables.c its values in both tables.
"""
import os, sqlite3
import numpy as np, pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, QuantileTransformer, StandardScaler

HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.Generator(np.random.PCG64(7))
# a generator of its own, so that the other columns do not change
days = np.random.Generator(np.random.PCG64(8))
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
    # includes days around 1970, 1900 (no leap year) and 2000 (a leap year)
    d["admitted"] = (pd.Timestamp("1899-12-25") + pd.to_timedelta(days.integers(0, 45000, n), "D")).strftime("%Y-%m-%d")
    d.loc[days.choice(n, n // 8, replace=False), "admitted"] = np.nan
    return d


def number(fill, scale):
    return make_pipeline(SimpleImputer(strategy=fill), scale)


# Writes JSON lines. A third of the records lack the keys of missing values; others have null.
def write_jsonl(path, d):
    with open(path, "w") as f:
        for i, (_, row) in enumerate(d.iterrows()):
            f.write((row if i % 3 else row.dropna()).to_json() + "\n")


def write_database(path, tables):
    if os.path.exists(path):
        os.remove(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size = 512")
    for name, d in tables.items():
        d.to_sql(name, db, index_label="record")
    db.commit()
    db.execute("VACUUM")
    db.close()


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
        write_jsonl(os.path.join(HERE, "table", name + ".jsonl"), d)
    write_database(os.path.join(HERE, "table", "tables.db"), tables)
    for column, pipeline in COLUMNS.items():
        pipeline.fit(tables["train"][[column]].to_numpy())
        for name, d in tables.items():
            w.add(f"{name}.{column}", pipeline.transform(d[[column]].to_numpy()))
    dates = {name: pd.to_datetime(d["admitted"]) for name, d in tables.items()}
    numbers = {name: ((t - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy()[:, None] for name, t in dates.items()}
    pipeline = number("mean", StandardScaler()).fit(numbers["train"])
    mean = pd.Timestamp(0) + pd.Timedelta(days=float(np.nanmean(numbers["train"])))
    for name, t in dates.items():
        t = t.fillna(mean)
        length = 365 + t.dt.is_leap_year
        turns = [(t.dt.day_of_year - 1) / length, (t.dt.month - 1) / 12, t.dt.day_of_week / 7]
        parts = [f(2 * np.pi * turn.to_numpy()) for turn in turns for f in (np.sin, np.cos)]
        w.add(f"{name}.admitted", np.hstack([pipeline.transform(numbers[name]), np.stack(parts, 1)]))
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
