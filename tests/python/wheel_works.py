#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed into a fresh virtual environment: its programs train over a worker, its
module imports, and only its own libraries run. Takes cffi from PyPI, or from a folder.

usage: wheel_works.py WHEEL [PYTHON [FOLDER]]     FOLDER: has the wheels of cffi and pycparser
"""
import glob, json, os, re, shutil, signal, subprocess, sys, tempfile, time, zipfile

WHEEL, PYTHON = os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "/usr/bin/python3"
SOURCE = ["--no-index", "--find-links", os.path.abspath(sys.argv[3])] if len(sys.argv) > 3 else []
MOST_BYTES, NEWEST_GLIBC = 40 << 20, (2, 34)
TLS = """
import socket, ssl, sys, threading
import cleave
assert all(row.of == "wheel" for row in cleave.libraries()), cleave.libraries()
with cleave.open("session.yaml"):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain("certs/worker-1.pem", "certs/worker-1.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    a, b = socket.socketpair()
    threading.Thread(target=lambda: server.wrap_socket(b, server_side=True), daemon=True).start()
    print(client.wrap_socket(a).version())
"""
passed, failed = 0, 0


def test(function):
    global passed, failed
    try:
        function()
    except Exception as e:
        failed += 1
        print(f"not ok {function.__name__}\n    {e}", flush=True)
    else:
        passed += 1
        print(f"ok {function.__name__}", flush=True)


def do(*command, code=0, **env):
    """A command without this machine's settings."""
    done = subprocess.run(command, cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": folder, **env}, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    env = os.path.join(folder, "env")
    master, worker, python = (os.path.join(env, "bin", n) for n in ("cleave-master", "cleave-worker", "python"))
    do(PYTHON, "-m", "venv", env)
    do(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *SOURCE, WHEEL)
    with open(os.path.join(folder, "openssl.cnf"), "w") as f:
        f.write("openssl_conf = a\n[a]\nproviders = b\n[b]\nnone = c\n[c]\nactivate = 1\nmodule = /nowhere.so\n")

    @test
    def programs_say_their_version():
        for program in (master, worker):
            assert re.fullmatch(r"cleave-\w+ \d+\.\d+\.\d+\n", do(program, "--version"))

    do(master, "init")
    serving = subprocess.Popen([worker, "serve", "--config", "worker.yaml"], cwd=folder, stderr=subprocess.DEVNULL,
                               env={"PATH": "/usr/bin:/bin", "HOME": folder, "OPENSSL_CONF": os.path.join(folder, "openssl.cnf")})
    time.sleep(2)

    @test
    def only_libraries_of_the_wheel_run():
        rows = [json.loads(line) for line in do(master, "doctor", "--json", "session.yaml").splitlines()]
        said = {r["subject"]: r["text"] for r in rows if r["subject"] in ("OpenSSL", "gRPC core", "oneDNN", "OpenBLAS")}
        assert len(said) == 4 and all("the wheel's" in text for text in said.values()), said

    @test
    def session_trains_whatever_the_openssl_cnf_of_the_host_says():
        out = do(master, "train", "session.yaml", "--set", "train.max_steps=20", OPENSSL_CONF=os.path.join(folder, "openssl.cnf"))
        assert "accuracy" in out, out

    @test
    def ssl_of_python_still_speaks_tls_1_2():
        assert do(python, "-c", TLS).strip().endswith("TLSv1.2")

    @test
    def size_and_symbols_are_within_the_tag():
        assert os.path.getsize(WHEEL) <= MOST_BYTES, os.path.getsize(WHEEL)
        needed = {}
        with zipfile.ZipFile(WHEEL) as z:
            for name in z.namelist():
                data = z.read(name)
                for found in re.finditer(rb"\0GLIBC_(\d+)\.(\d+)", data if data[:4] == b"\x7fELF" else b""):
                    needed.setdefault((int(found[1]), int(found[2])), set()).add(name)
        assert (2, 2) < max(needed) <= NEWEST_GLIBC, (max(needed), needed[max(needed)])

    @test
    def library_of_another_version_is_refused_by_name():
        """A copy of the wheel's libcleave with another version in its text."""
        version = do(python, "-c", "import cleave; print(cleave.__version__)").strip()
        (found,) = glob.glob(f"{env}/lib/python3*/site-packages/cleave/lib/libcleave.so.0")
        other = os.path.join(os.path.dirname(found), "../other")  # as far from its libraries
        os.mkdir(other)
        with open(found, "rb") as f:
            data = f.read()
        with open(os.path.join(other, "libcleave.so.0"), "wb") as f:
            f.write(data.replace(version.encode() + b"\0", b"9" + version.encode()[1:] + b"\0"))
        try:
            said = do(python, "-c", "import cleave", code=1, CLEAVE_LIBRARY_DIR=other)
        finally:
            shutil.rmtree(other)
        assert f"built with cleave.h {version}" in said and f"is 9{version[1:]}" in said, said

    @test
    def each_library_has_its_licence():
        with zipfile.ZipFile(WHEEL) as z:
            names = z.namelist()
            (bom,) = [json.loads(z.read(n)) for n in names if n == "cleave/sbom.cdx.json"]
        texts = {n.split("/")[-2] for n in names if n.endswith("/copyright")}
        parts = {c["name"] for c in bom["components"]}
        assert parts == texts and {"libssl3", "libgrpc29", "libdnnl2", "libopenblas0-pthread"} <= parts, parts ^ texts
        assert not any(n.endswith((".pkl", ".pickle")) for n in names)

    serving.send_signal(signal.SIGTERM)
    serving.wait(30)
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
