# SPDX-License-Identifier: Apache-2.0
"""run.py of the bundle, before a machine with a GPU is there: its pieces with tiny shapes, by the
programs of this build and gpu/cleave-worker's simulated device; it goes on where it stopped."""
import json, os, re, shutil, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "net", "lib"))
from cluster import BIN, Suite

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(BIN, "gpu-dry")
suite = Suite()


def pieces(*args):
    """What run.py prints of each piece, its exit code, and the table."""
    done = subprocess.run([sys.executable, os.path.join(HERE, "run.py"), "--dry", BIN, *args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)
    with open(os.path.join(RESULTS, "results.md")) as f:
        return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line), done.returncode, f.read()


@suite.test
def each_piece_runs_on_the_simulated_device():
    shutil.rmtree(RESULTS, ignore_errors=True)
    said, code, table = pieces("machine", "devices", "ops", "memcheck", "racecheck", "memcheck_lstm", "racecheck_kernels", "parity_mlp", "speed_lstm_f32", "shares", "demo")
    assert code == 0, said
    for name in ("devices", "ops", "shares", "demo"):
        assert said[name].startswith("ok"), said
    for name in ("machine", "memcheck", "racecheck", "memcheck_lstm", "racecheck_kernels"):
        assert said[name].startswith("skipped: no "), said
    for name in ("parity_mlp", "speed_lstm_f32"):  # PyTorch is not everywhere
        assert said[name].startswith("ok") or "PyTorch" in said[name], said
    assert table.count("did not run") >= 10 and "| demo | ok |" in table, table
    assert table.count("| shares: ") > 63 and re.search(r"^\| shares: adam \| +\| +\| \d+ % of a copy", table, re.M), table


@suite.test
def it_goes_on_where_it_stopped():
    shutil.rmtree(RESULTS, ignore_errors=True)
    before, _, _ = pieces("--minutes", "0")
    assert not before, before
    pieces("machine")
    with open(os.path.join(RESULTS, "results.json")) as f:
        known = json.load(f)
    assert list(known) == ["machine"], known
    known.update((name, {"result": "ok", "what": "", "output": "", "seconds": 0}) for name in rows() if name != "devices")
    with open(os.path.join(RESULTS, "results.json"), "w") as f:
        json.dump(known, f)
    said, code, _ = pieces()
    assert list(said) == ["devices"] and code == 0, said


def rows():
    """All pieces, by the table."""
    with open(os.path.join(RESULTS, "results.md")) as f:
        return [line.split("|")[1].strip() for line in f.read().splitlines()[2:]]


@suite.test
def the_pieces_are_those_that_a_gpu_is_waited_for_with():
    pieces("--minutes", "0", "--again")
    want = {*(f"{tool}_{what}" for tool in ("memcheck", "racecheck") for what in ("kernels", "together", "recording", "lstm")), "devices", "ops", "memcheck", "racecheck", "rates", "shares", "types", "bf16", "together", "recording", "demo", "split", *(f"parity_{n}" for n in ("mlp", "lstm", "resnet50")),
            "speed_mlp_f32", "speed_lstm_f32", "speed_resnet50_f32", "speed_resnet50_bf16"}
    assert want <= set(rows()), want - set(rows())
    with open(os.path.join(HERE, "BUNDLE.md")) as f:
        page = f.read()
    missing = [name for name in rows() if f"{name.rpartition('_')[0]}_" not in page and name.split("_")[0] not in page]
    assert not missing, missing


suite.main()
