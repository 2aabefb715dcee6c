#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of corpus/session and corpus/worker_config: files with one valid or refused choice
each. Further seeds there are older."""
from seeds.corpus import write

SECTIONS = {"data": "{format: npy, train: [a, b]}", "loss": "{kind: cross_entropy}",
            "train": "{batch: 4, optimizer: {kind: sgd, lr: 0.1}}",
            "stages": "[{name: a, at: master, layers: [{op: linear, out: 3}]}]"}
TRAIN = "{batch: 4, optimizer: {kind: sgd, lr: 0.1}, "
TEXT = "{format: text, train: [a.csv], tokenizer: {file: "
LAYERS = "layers: [{op: linear, out: 3}]"


def session(**changes):
    sections = {"version": "1", "name": "s", **SECTIONS, **changes}
    return "".join(f"{key}: {value}\n" for key, value in sections.items())


def stage(options):
    return session(stages=f"[{{name: a, at: master, {LAYERS}, {options}}}]")


def with_spares(names):
    """The workers w, which runs a stage and has these spares, busy, which runs another, and x."""
    address = "address: 'h:1', identity: 'spiffe://c/"
    workers = f"{{w: {{{address}w', spares: [{names}]}}, busy: {{{address}b'}}, x: {{{address}x'}}}}"
    stages = ", ".join(f"{{name: {name}, at: {at}, {LAYERS}}}" for name, at in (("a", "master"), ("b", "w"), ("c", "busy")))
    return session(tls="{ca: a, cert: b, key: c}", workers=workers, stages=f"[{stages}]")


def overridden(text, *overrides):
    """The file, and overrides of its keys: --set, environment, --set and so on."""
    return text + "".join("\0" + o for o in overrides) + "\0"


SESSIONS = {
    "spares": with_spares("x"), "spares_unknown": with_spares("y"), "spares_busy": with_spares("busy"),
    "spares_twice": with_spares("x, x"),
    "class_weights_and_weight": session(loss="{kind: cross_entropy, class_weights: balanced, weight: [1, 2, 3]}"),
    "weights_new_alone": stage("weights: {file: f, new: [a]}"),
    "recompute_twice": stage("recompute: true, recompute_blocks: [0..1]"),
    "ignore_keys_alone": session(model="{ignore_keys: [auto_map]}"),
    "ema": session(train=TRAIN + "ema: 0.9, ema_warmup: true}"), "ema_of_1": session(train=TRAIN + "ema: 1}"),
    "ema_warmup_alone": session(train=TRAIN + "ema_warmup: true}"),
    "normalize_tokens": session(data=TEXT + "v.txt}, normalize: {mean: [0], std: [1]}}"),
    "normalize_columns": session(data="{format: table, train: [a.csv], scale: 2, table: {columns: {t: {as: target}}}}"),
    "tokenizer_case": session(data=TEXT + "t.json, lower_case: false}}"),
    "tokenizer_accents": session(data=TEXT + "t.json, accents: strip}}"), "tokenizer_json": session(data=TEXT + "t.json}}"),
    "objective_of_arrays": session(data="{format: npy, train: [a, b], objective: masked}"),
    "images_of_arrays": session(data="{format: npy, train: [a, b], images: {crop: 8}}"),
    "escrow": session(checkpoint="{escrow: {every: 30m, key: k}}"),
    "escrow_folder": session(checkpoint="{escrow: {every: 30m, key: k, dir: d}}"),
    "escrow_often": session(checkpoint="{escrow: {every: 10ms, key: k}}"),
    "escrow_word": session(checkpoint="{escrow: {every: daily, key: k}}"),
    "escrow_long_path": session(checkpoint=f"{{dir: {'/d' * 2045}, escrow: {{every: 1h, key: k}}}}"),
    "every": session(checkpoint="{every: 5m}"), "every_auto": session(checkpoint="{every: auto}"),
    "every_word": session(checkpoint="{every: often}"), "every_twice": session(checkpoint="{every: 5m, every_steps: 9}"),
    "lease_long": session(limits="{lease: 400s}"), "lease_lowered": session(limits="{reference_lease: 60s}"),
    "format_near": session(data="{format: imageset, train: [a, b]}"), "seed_word": session(train=TRAIN + "seed: x}"),
    "best_of_a_target": session(checkpoint="{best: validation.died.nothing}"),
    "credentials_none": session(tls="{ca: '${CREDENTIALS_DIRECTORY}/a', cert: b, key: c}"),
    "many_inputs": session(data="{format: npy, train: [a, b], inputs: [a, b, c, d, e, f, g, h, i]}"),
    "key_of_a_worker": session(listen="'127.0.0.1:1'"), "key_begun": session(privacy="{labels: true}"),
    "old_name": session(limits="{credit: 1MiB}"), "old_name_twice": session(limits="{credit: 1MiB, receive_window: 1MiB}"),
    "old_name_overridden": overridden(session(limits="{receive_window: 1MiB}"), "limits.credit=2MiB"),
    "override_twice": overridden(session(), "limits={credit: 1MiB, credit: 2MiB}"),
    "utf16": session().encode("utf-16"), "many_entries": session(data=f"{{format: npy, train: [{'1,' * 4097}]}}"),
}
WORKER = """tls: {ca: a, cert: b, key: c}
allow: [{identity: 'spiffe://c/m', role: master}]
"""
WORKERS = {
    "artifact": WORKER + "artifacts: {a: {file: f}, b: {folder: f}}\n",
    "artifact_twice": WORKER + "artifacts: {a: {file: f, folder: f}}\n", "artifact_of_nothing": WORKER + "artifacts: {a: {}}\n",
    "lease_short": WORKER + "limits: {lease: 10s, peer_timeout: 20s}\n", "key_of_a_session": WORKER + "stages: []\n",
}
for name, text in SESSIONS.items():
    write("session", name, text)
for name, text in WORKERS.items():
    write("worker_config", name, text)
