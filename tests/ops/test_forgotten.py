"""In each place that lists ops, a missing or an extra entry fails a test or check that names the
op. The fault is planted in a copy of the files in a scratch folder, and the programs run there."""
import json, os, re, shutil, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BIN = os.path.abspath(os.environ.get("CLEAVE_TEST_BIN", os.path.join(ROOT, "build/release")))
READ = ("kernels", "proto/PROTOCOL.md", "tests/golden/ops", "tests/check-ops")


def scratch(folder):
    for name in READ:
        source, target = os.path.join(ROOT, name), os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copytree(source, target) if os.path.isdir(source) else shutil.copy(source, target)


def program(name, *ops):
    return [os.path.join(BIN, "tests/ops", name), *ops]


CHECK = ["/usr/bin/python3", "tests/check-ops"]


def edit(folder, path, pattern, text, count=1):
    path = os.path.join(folder, path)
    with open(path) as f:
        before = f.read()
    after = re.sub(pattern, text, before, count=count, flags=re.M)
    assert after != before, f"{pattern} is not in {path}"
    with open(path, "w") as f:
        f.write(after)


def remove(folder, path):
    os.remove(os.path.join(folder, path))


def copy(folder, path, to):
    shutil.copy(os.path.join(folder, path), os.path.join(folder, to))


# name of the fault: (function that plants it, program that must find it, its message)
FAULTS = {
    "no file of cases": (lambda d: remove(d, "kernels/ops/relu.cases"), program("test_grad", "relu"),
                         "kernels/ops/relu.cases: there is no such file"),
    "no case": (lambda d: edit(d, "kernels/ops/relu.cases", r"^relu_.*\n", "", 0), program("test_pair", "relu"),
                "kernels/ops/relu.cases: it has no case"),
    "no case for a golden": (lambda d: edit(d, "kernels/ops/relu.cases", r"^(relu_.*)$", r"\1 golden=0", 0),
                             program("test_golden", "relu"), "kernels/ops/relu.cases: it has no case for a golden"),
    "no PyTorch": (lambda d: edit(d, "kernels/ops/relu.cases", r"^torch:.*\n", ""), program("test_golden", "relu"),
                   "kernels/ops/relu.cases: it needs either 'torch: EXPRESSION' or 'none: REASON'"),
    "cases that no golden can be made of": (lambda d: remove(d, "kernels/ops/relu.cases"),
                                            [os.path.join(BIN, "ops/print_cases")],
                                            "kernels/ops/relu.cases: there is no such file"),
    "no golden": (lambda d: remove(d, "tests/golden/ops/relu.txt"), program("test_golden", "relu"),
                  "tests/golden/ops/relu.txt is missing"),
    "a case without golden": (lambda d: edit(d, "kernels/ops/relu.cases", r"\Z", "relu_more in=2x2\n"),
                              program("test_golden", "relu"), "relu_more.in0 is missing from the golden of relu"),
    "a golden without case": (lambda d: edit(d, "kernels/ops/relu.cases", r"^relu_flat.*\n", ""),
                              program("test_golden", "relu"), "the golden of relu has 16 tensors"),
    "a golden without op": (lambda d: copy(d, "tests/golden/ops/relu.txt", "tests/golden/ops/nosuch.txt"),
                            program("test_golden", "relu"), "tests/golden/ops/nosuch.txt: no op is called so"),
    "cases without op": (lambda d: copy(d, "kernels/ops/relu.cases", "kernels/ops/nosuch.cases"),
                         program("test_pair", "relu"), "kernels/ops/nosuch.cases: no op is called so"),
    "no refused shape": (lambda d: edit(d, "kernels/ops/mean.cases", r"^refused:.*\n", "", 0),
                         program("test_refusals", "mean"), "kernels/ops/mean.cases lacks 'refused:'"),
    "a fallback not listed": (lambda d: edit(d, "kernels/ops/bce.cases", r"^cpu: ref.*\n", ""),
                              program("test_pair", "bce"), "kernels/ops/bce.cases lacks 'cpu: ref'"),
    "a fallback that is none": (lambda d: edit(d, "kernels/ops/relu.cases", r"\n\n", "\ncpu: ref, for a test\n\n"),
                                program("test_pair", "relu"), "kernels/ops/relu.cases says 'cpu: ref'"),
    "a layout not listed": (lambda d: edit(d, "kernels/ops/relu.cases", r"^layout: any\n", ""),
                            program("test_any_layout", "relu"), "kernels/ops/relu.cases lacks 'layout: any'"),
    "a layout that is not taken": (lambda d: edit(d, "kernels/ops/conv2d.cases", r"\n\n", "\nlayout: any\n\n"),
                                   program("test_any_layout", "conv2d"), "conv2d.cases has 'layout: any'"),
    "a number without op": (lambda d: edit(d, "kernels/ops.def", r"\Z", "OP(999, NOSUCH, nosuch)\n"), CHECK,
                            "nosuch: is in kernels/ops.def and has no kernels/ops/nosuch.c"),
    "an op without number": (lambda d: edit(d, "kernels/ops.def", r"^OP\(\d+, RELU, relu\)\n", ""), CHECK,
                             "relu: has a row in kernels/ops/relu.c and is not in kernels/ops.def"),
    "a kernel without op": (lambda d: edit(d, "kernels/cpu/relu.c", r"^CLV_CPU_OP\(relu,", "CLV_CPU_OP(nosuch,"), CHECK,
                            "nosuch: kernels/cpu/relu.c registers it for cpu and it is not in kernels/ops.def"),
    "no kernel for cuda": (lambda d: edit(d, "kernels/cuda/pointwise.def", r"^POINTWISE\(gelu,.*\n", ""), CHECK,
                           "gelu: no file of kernels/cuda registers a kernel by CLV_CUDA_OP(gelu)"),
    "no numbers of PyTorch": (lambda d: remove(d, "tests/golden/ops/relu.txt"), CHECK, "relu: tests/golden/ops has no numbers"),
    "no kernel for cpu": (lambda d: remove(d, "kernels/cpu/relu.c"), CHECK,
                          "relu: kernels/ops/relu.cases says 'cpu: ref, REASON' exactly where"),
    "a table of before": (lambda d: edit(d, "kernels/OPS.md", r"^\| relu \| 4", "| relu | 3"), CHECK,
                          "kernels/OPS.md: its table of ops is not what the files say"),
    "an attribute without golden": (lambda d: edit(d, "kernels/ops/rmsnorm.cases", r" eps=\S+", "", 0), program("test_golden", "rmsnorm"),
                                    "kernels/ops/rmsnorm.cases: no golden case gives the attribute eps"),
    "an attribute not in PROTOCOL": (lambda d: edit(d, "proto/PROTOCOL.md", r"^\| 16 factor \|.*\n", ""), CHECK,
                                     "factor: proto/PROTOCOL.md has the attribute key None"),
    "an attribute of PROTOCOL alone": (lambda d: edit(d, "kernels/ops/ops.h", r"^  CLV_ATTR_FACTOR = .*\n", ""), CHECK,
                                       "factor: proto/PROTOCOL.md has the attribute key 16"),
}


def find(folder, plant, command, says):
    scratch(folder)
    before = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert before.returncode == 0, f"it fails before the fault is there:\n{before.stdout}"
    plant(folder)
    # a test that fails keeps what it has allocated
    env = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
    after = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    assert after.returncode != 0 and says in after.stdout, f"'{says}' is not in:\n{after.stdout}"


def main():
    """Every third fault in `make test`, all of them in `make long`."""
    failed, step = 0, 1 if os.environ.get("CLV_TEST_LONG") == "1" else 3
    for what, (plant, command, says) in list(FAULTS.items())[::step]:
        name = what.replace(" ", "_")
        with tempfile.TemporaryDirectory(prefix="cleave-test-") as folder:
            try:
                find(folder, plant, command, says)
                print("ok", name, flush=True)
            except AssertionError as e:
                print(f"{e}\nnot ok {name}", flush=True)
                failed += 1
    return 1 if failed else 0


sys.exit(main())
