# SPDX-License-Identifier: Apache-2.0
"""`cleave-worker devices`, and `device` of worker.yaml: each missing thing is named, and a worker
that may compute on the processor does so."""
import json, os, re, shutil, subprocess, sys, tempfile
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "net", "lib"))
from cluster import BIN, WORKER, Cluster, Suite, run

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
suite = Suite()
cluster = Cluster(1, limits="device: auto\n")
FILE = os.path.join(cluster.dir, "devices.yaml")

# Source of a library that has one device, or none, for the loader.
FAKE = """
#include <string.h>
#include "kernels/load/load.h"
static char folders[4096];
static void set_folders(const char *text) { strcpy(folders, text ? text : ""); }
static clv_code count(int *ret, clv_err *err) { (void)err; *ret = 1; return CLV_OK; }
static clv_code libraries(clv_err *err) { strcpy(err->text, "no library"); return CLV_UNAVAILABLE; }
static clv_code describe(int device, clv_device_info *ret, clv_err *err) {
  (void)device; (void)err;
  *ret = (clv_device_info){.name = "Test \\"card\\"", .capability = 90, .memory_bytes = (size_t)141 << 30};
  strcpy(ret->libraries, folders);
  return CLV_OK;
}
static const char *text(const clv_backend *b) { (void)b; return "fake"; }
static clv_code open_device(int device, clv_backend **ret, clv_err *err) {
  static clv_backend b = {.abi = CLV_KERNELS_ABI, .size = sizeof b, .name = "cuda", .device = "cuda:0", .isa = text,
                          .libraries = text};
  (void)device; (void)err;
  *ret = &b;
  return CLV_OK;
}
static void close_device(clv_backend *b) { (void)b; }
const clv_cuda_library *clv_cuda_entry(uint32_t abi) {
  static const clv_cuda_library l = {.abi = CLV_CUDA_ABI, .size = sizeof l, .set_folders = set_folders, .count = count,
                                     .libraries = libraries, .describe = describe, .open = open_device, .close = close_device};
  return abi == CLV_CUDA_ABI ? &l : NULL;
}
"""
NO_DEVICE = FAKE.replace("(void)err; *ret = 1; return CLV_OK;", '(void)ret; strcpy(err->text, "no driver"); return CLV_UNAVAILABLE;')


def shared(path, source):
    """Compiles the source to a library at `path`."""
    subprocess.run(["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{ROOT}", "-x", "c", "-", "-o", path], input=source,
                   text=True, check=True)
    return path


def devices(config="", *options, env=None, worker=WORKER):
    """The output of `devices` with a worker.yaml that ends with `config`."""
    with open(os.path.join(cluster.dir, "w1.yaml")) as f:
        text = f.read().replace("device: auto\n", "")
    with open(FILE, "w") as f:
        f.write(text + config)
    done = run(worker, "devices", FILE, *options, env=env)
    assert done.returncode == 0 and "cpu" in done.stdout, done
    return done.stdout


@suite.test
def unusable_cuda_library_error_names_the_cause():
    with tempfile.TemporaryDirectory() as folder:
        def said(name, source):
            return devices(f"cuda: {{library: {shared(os.path.join(folder, name), source)}}}\n")
        alone = shutil.copy(WORKER, folder)
        assert f"libcleave_cuda.so is neither in {folder}/ nor in " in devices(worker=alone)
        assert "cuda.library: cannot read /absent.so" in devices("cuda: {library: /absent.so}\n")
        text = os.path.join(folder, "text.so")
        with open(text, "w") as f:
            f.write("no library")
        assert "libcleave_cuda.so does not load: " in devices(f"cuda: {{library: {text}}}\n")
        assert "has no function clv_cuda_entry" in said("empty.so", "int clv_other;")
        other = said("other.so", FAKE.replace("abi == CLV_CUDA_ABI ?", "abi != CLV_CUDA_ABI ?"))
        assert re.search(r"other\.so is of another version than this program, which needs interface \d+", other), other
        larger = said("larger.so", FAKE.replace(".size = sizeof l", ".size = sizeof l + 8"))
        assert "larger.so is of another version" in larger, larger


@suite.test
def devices_are_listed():
    with tempfile.TemporaryDirectory() as folder:
        config = f"cuda: {{library: {shared(os.path.join(folder, 'one.so'), FAKE)}, folders: [/a b, /c]}}\n"
        said = devices(config)
        assert re.search(r'^cuda:0  Test "card", 141(\.0)? GiB, compute capability 9\.0, /a b:/c$', said, re.M), said
        cpu, cuda = map(json.loads, devices(config, "--json").splitlines())
        assert cpu["device"] == "cpu" and cpu["cores"] >= 1, cpu
        assert cuda == {"device": "cuda:0", "name": 'Test "card"', "memory_bytes": 141 << 30, "capability": "9.0",
                        "libraries": "/a b:/c"}, cuda
        for device, code, why in (("cuda:1", 3, "device cuda:1: this host has only 1 NVIDIA device"),
                                  ("cuda", 0, ""), ("cuda:0", 0, ""), ("auto", 0, "")):
            devices(config + f"device: {device}\n")
            done = run(WORKER, "check", "--config", FILE)
            assert done.returncode == code and why in done.stderr, (device, done)


@suite.test
def a_worker_offers_its_devices():
    with tempfile.TemporaryDirectory() as folder:
        cuda = f"cuda: {{library: {shared(os.path.join(folder, 'one.so'), FAKE)}}}\n"
        for device, first in (("cuda", "cuda:0"), ("auto", "cuda:0"), ("cpu", "cpu")):
            with Cluster(1, limits=f"device: {device}\n{cuda}") as c:
                assert f"device={first} " in c.workers[0].text(), c.workers[0].text()


@suite.test
def missing_cublas_library_is_named():
    if not os.path.exists(os.path.join(BIN, "libcleave_cuda.so")):
        return "no libcleave_cuda.so: built without nvcc (CUDA=0)"
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "libcublasLt.so.13"), "w").close()
        said = devices(env={"LD_LIBRARY_PATH": folder})
        assert re.search(r"^cuda  none: .*libcublasLt\.so\.13 was not opened: ", said, re.M), said
        assert json.loads(devices("", "--json", env={"LD_LIBRARY_PATH": folder}).splitlines()[1])["device"] == "cuda"


@suite.test
def device_auto_falls_back_to_cpu_without_a_gpu():
    """At once: it does not open the libraries of devices, which takes long."""
    assert "device auto computes on cpu: " in cluster.workers[0].text(), cluster.workers[0].text()
    with tempfile.TemporaryDirectory() as folder:
        cuda = f"cuda: {{library: {shared(os.path.join(folder, 'none.so'), NO_DEVICE)}}}\n"
        assert re.search(r"^cuda  none: no driver; and no library$", devices(cuda), re.M), devices(cuda)
        done = run(WORKER, "check", "--config", FILE, "--set", "device=cuda")
        assert done.returncode == 3 and "device cuda: no driver; and no library\n" in done.stderr, done
        with Cluster(1, limits=f"device: auto\n{cuda}") as c:
            assert "device auto computes on cpu: no driver\n" in c.workers[0].text(), c.workers[0].text()


with cluster:
    suite.main()
