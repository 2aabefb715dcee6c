#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Averages of the weights (train.ema): they have the same bits wherever the stages run, also in a
run that resumes from files at the worker, and `eval`, `predict` and `export` compute with them."""
import json, os, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
STEPS = 6
cluster = None


LAYERS = ("{op: flatten}", "{op: linear, out: 24, name: a}", "{op: relu}", "{op: linear, out: 16, name: b}",
          "{op: batchnorm, name: n}", "{op: relu}", "{op: linear, out: 10, name: c}")


class Keepers(Cluster):
    """Clusters whose worker keeps files of checkpoints."""

    def worker_config(self, i, extra=""):
        path = super().worker_config(i, extra)
        os.makedirs(os.path.join(self.dir, "kept"), exist_ok=True)
        with open(path) as f:
            text = f.read().replace('"spiffe://test/master", role: master}', '"spiffe://test/master", role: master, state_bytes: 16MiB}')
        with open(path, "w") as f:
            f.write(text + f"state_dir: {self.dir}/kept\n")
        return path


def body(at, ema="ema: 0.5, ema_warmup: true, ", home="end", first=3):
    """first: number of layers of the stage at the master; `at` has the others."""
    return (IMAGE_DATA + "model:\n  layers:\n" + "".join(f"    - {layer}\n" for layer in LAYERS) + "stages:\n"
            f"  - {{name: s0, at: master, layers: 0..{first - 1}}}\n  - {{name: s1, at: {at}, layers: {first}..6}}\n"
            "loss: {kind: cross_entropy}\n"
            f"train: {{epochs: 100, max_steps: {STEPS}, batch: 32, seed: {SEED}, {ema}"
            "freeze: [b.bias], optimizer: {kind: sgd, lr: 0.05, momentum: 0.9}}\n"
            f"checkpoint: {{every_steps: 100000, home: {home}}}\n")


def folder(run):
    return os.path.join(cluster.dir, "runs", run)


def state_of(run, step=STEPS):
    """{name: value} of the parameters and of the optimiser's state of a checkpoint."""
    return (checkpoint_tensors(folder(run), step),
            {name: value for (_, name), value in checkpoint_tensors(folder(run), step, "optimizer-").items()
             if name != "step"})


@suite.test
def averages_have_the_same_bits_at_every_place_and_change_no_weight():
    plain, plain_log, _ = cluster.trained("plain", body("master", ""), STEPS)
    home, home_log, _ = cluster.trained("home", body("master"), STEPS)
    away, away_log, _ = cluster.trained("away", body("w1"), STEPS)
    assert plain == home == away and plain_log == home_log == away_log
    weights, state = state_of("away")
    assert state == state_of("home")[1]
    averages = {name[:-4] for name in state if name.endswith(".ema")}
    assert averages == {name[:-16] for name in state if name.endswith(".momentum_buffer")}, state.keys()
    assert averages == {f"{layer}.{what}" for layer in "abnc" for what in ("weight", "bias")} - {"b.bias"}, averages
    assert all(state[f"{name}.ema"] != weights[name] for name in averages)


def evaluated(run, *args):
    done = master("eval", os.path.join(cluster.dir, run + ".yaml"), "--json", *args, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@suite.test
def resumed_from_files_at_the_worker_the_averages_have_the_same_bits():
    """The worker keeps its stage's files, and loads them when the run is resumed and for `eval`."""
    session = cluster.session("kept", body("w1", home="never"))
    for more in (["--max-steps", "3"], ["--resume"]):
        done = cluster.train(session, *more)
        assert done.returncode == 0, done.stderr
    assert not os.path.exists(os.path.join(folder("kept"), f"checkpoint-{STEPS}/optimizer-00002-of-00002.safetensors"))
    at_worker = evaluated("kept", "--weights", "ema")
    done = master("checkpoint", "gather", session, cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    assert state_of("kept") == state_of("home")
    gathered = evaluated("kept", "--weights", "ema")
    assert at_worker["loss"] == gathered["loss"] == evaluated("home", "--weights", "ema")["loss"]
    assert gathered["weights"] == "ema" and evaluated("home")["loss"] != gathered["loss"]


@suite.test
def eval_predict_and_export_compute_with_the_averages():
    weights, state = state_of("home")
    for kind in ("trained", "ema"):
        done = master("export", "home", "--merge", f"out-{kind}", "--weights", kind, cwd=cluster.dir)
        assert done.returncode == 0 and ("averages" in done.stdout) == (kind == "ema"), done.stdout + done.stderr
        written = safetensors(os.path.join(cluster.dir, f"out-{kind}/model.safetensors"))
        assert written == {name: state.get(f"{name}.ema", value) if kind == "ema" else value
                           for name, value in weights.items()}
        done = master("predict", "home.yaml", "--weights", kind, "--output", f"{kind}.npy", cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
    files = [open(os.path.join(cluster.dir, f"{kind}.npy"), "rb").read() for kind in ("trained", "ema")]
    assert files[0] != files[1] and len(files[0]) == len(files[1])
    recut = cluster.session("recut", body("w1", first=4))
    done = master("eval", recut, "--json", "--weights", "ema", "--set", "checkpoint.dir=runs/away", "--accept-egress", cwd=cluster.dir)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["loss"] == evaluated("home", "--weights", "ema")["loss"]


@suite.test
def averages_begin_with_the_weights_of_an_older_checkpoint_and_may_end():
    def resumed(run, steps, ema, first=3):
        session = cluster.session(run, body("w1", f"ema: {ema}, ", "never", first))
        done = cluster.train(session, *["--resume"] * os.path.exists(folder(run)), "--set", f"train.max_steps={steps}", "--accept-egress")
        assert done.returncode == 0 and "refused" not in done.stderr + done.stdout, done.stderr
        return done.stdout + done.stderr

    def names(run, step):
        done = master("checkpoint", "gather", f"{run}.yaml", cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        return {name for name in state_of(run, step)[1] if name.endswith(".ema")}

    resumed("later", STEPS, 0)
    assert "they begin with its weights" in resumed("later", STEPS + 1, 0.5)
    assert "they begin" not in resumed("later", STEPS + 2, 0)
    assert not names("later", STEPS + 2)
    assert "they begin with its weights" in resumed("later", STEPS + 3, 0.5, first=4)
    assert names("later", STEPS + 3)
    before, (weights, state) = state_of("later", STEPS + 2)[0], state_of("later", STEPS + 3)
    for name in (name[:-4] for name in state if name.endswith(".ema")):
        old, new, average = (struct.unpack(f"<{len(x[2]) // 4}f", x[2]) for x in (before[name], weights[name], state[f"{name}.ema"]))
        assert all(abs(a - (o + w) / 2) <= 1e-6 * (abs(o) + abs(w)) for o, w, a in zip(old, new, average)), name
    resumed("later", STEPS + 4, 0, first=5)
    assert not names("later", STEPS + 4)


@suite.test
def plan_and_check_count_averages():
    def planned(name):
        done = master("plan", f"{name}.yaml", "--json", cwd=cluster.dir)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain, away = planned("plain"), planned("away")
    n = [24 * 144 + 24, 24 * 16 + 2 * 16 + 16 * 10 + 10]  # trained values of each stage
    assert away["ema"] == {"decay": 0.5, "warmup": True, "bytes": 4 * sum(n)} and "ema" not in plain, away["ema"]
    for k, a, p in zip(n, away["stages"], plain["stages"]):  # blocks are padded
        assert 4 * k <= a["optimizer_bytes"] - p["optimizer_bytes"] < 4 * k + 512, (k, a, p)
    done = master("check", "away.yaml", cwd=cluster.dir)
    assert done.returncode == 0 and "averages of the trained weights (train.ema 0.5, with warm-up): " in done.stdout, done.stdout + done.stderr


@suite.test
def runs_without_averages_are_refused_by_name():
    done = master("eval", "plain.yaml", "--weights", "ema", cwd=cluster.dir)
    assert done.returncode and "trained without train.ema: leave out --weights ema" in done.stderr, done.stderr
    done = master("export", "plain", "--merge", "none", "--weights", "ema", cwd=cluster.dir)
    assert done.returncode and "trained without train.ema" in done.stderr, done.stderr


with Keepers(1) as cluster:
    os.mkdir(os.path.join(cluster.dir, "data"))
    synthetic_images(os.path.join(cluster.dir, "data"))
    suite.main()
