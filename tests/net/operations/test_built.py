"""What was built is what may be shipped: nothing of the tests is in it, and nothing that could be
hooked stands before the gate."""
import os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
SHIPPED = ("cleave-master", "cleave-worker", "libcleave.so", "libcleave.a")
# Between a tensor and the network nothing can be written but these, by archive and symbol; neither
# is called.
BEFORE_THE_NETWORK = {"common_fair.a": set(), "common_link.a": set(), "common_reference.a": set(), "common_engine.a": {"no_memory", "clv_shared_err_ended"}, "common_wire.a": set(), "common_rpc.a": {"count.0"},
                      "master_api.a": set(), "worker_service.a": set()}


def symbols(*command):
    done = run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


@suite.test
def shipped_files_have_nothing_of_the_tests():
    for name in SHIPPED:
        hooks = re.findall(r"\S*(?:intercept|__wrap_|__real_)\S*", symbols("nm", os.path.join(BIN, name)))
        assert not hooks, (name, hooks)
    ours = symbols("nm", os.path.join(BIN, "faults", "cleave-master"))
    assert "__wrap_clv_link_send" in ours, "nm shows no symbols at all"


@suite.test
def nothing_writable_stands_before_the_gate():
    if SANITIZED:
        return "sanitizers keep writable notes of every file"
    for archive, known in BEFORE_THE_NETWORK.items():
        table = symbols("objdump", "-t", os.path.join(BIN, "lib", archive))
        rows = re.findall(r" O (\S+)\t\S+ (?:\.\w+ )?(\S+)$", table, re.M)
        assert rows, archive
        writable = {name for section, name in rows
                    if not section.startswith((".rodata", ".data.rel.ro"))}
        assert writable <= known, f"{archive}: {sorted(writable - known)} can be written while the program runs"


@suite.test
def programs_run_with_the_library_where_it_was_built():
    """Linked with -lcleave; found by the path that the program names, or by LD_LIBRARY_PATH."""
    if SANITIZED:
        return "a program without a sanitizer cannot load a library with one"
    with tempfile.TemporaryDirectory() as folder:
        source, program = (os.path.join(folder, name) for name in ("version.c", "version"))
        with open(source, "w") as f:
            f.write('#include <cleave.h>\n#include <stdio.h>\nint main(void) { return puts(cleave_version()) < 0; }\n')
        built, headers = os.path.abspath(BIN), os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../master/api")
        for options, env in (([f"-Wl,-rpath,{built}"], {}), ([], {"LD_LIBRARY_PATH": built})):
            done = run("gcc", "-I" + headers, "-o", program, source, "-L" + built, "-lcleave", *options)
            assert done.returncode == 0, done.stderr
            done = run(program, env=env)
            assert done.returncode == 0 and re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout), done.stderr
        assert "libcleave.so.0 => " + built in symbols("env", "LD_LIBRARY_PATH=" + built, "ldd", program)


@suite.test
def programs_find_the_library_where_it_was_installed():
    """pkg-config's words alone are enough, also for a prefix that no loader knows."""
    if SANITIZED:
        return "a program without a sanitizer cannot load a library with one"
    tree = os.path.join(os.path.abspath(BIN), "tree/usr/local")
    with tempfile.TemporaryDirectory() as folder:
        source, program = (os.path.join(folder, name) for name in ("version.c", "version"))
        with open(source, "w") as f:
            f.write('#include <cleave.h>\n#include <stdio.h>\nint main(void) { return puts(cleave_version()) < 0; }\n')
        flags = run("pkg-config", "--define-variable=prefix=" + tree, "--cflags", "--libs", "cleave",
                    env={"PKG_CONFIG_PATH": os.path.join(tree, "lib/pkgconfig")})
        assert flags.returncode == 0, flags.stderr
        done = run("gcc", "-o", program, source, *flags.stdout.split())
        assert done.returncode == 0, done.stderr
        found = symbols("ldd", program)
        assert "libcleave.so.0 => " + tree in found, found


suite.main()
