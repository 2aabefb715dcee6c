"""The built programs can be shipped: they contain nothing of the tests, and no writable function
pointer between a tensor and the network could bypass the egress gate."""
import os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SHIPPED = ("cleave-master", "cleave-worker", "libcleave.so", "libcleave.a")
# archive -> the only writable symbols between a tensor and the network; none is called. Those of
# master_egress are tables of constants, which pthread_once fills.
BEFORE_THE_NETWORK = {"common_net_fair.a": set(), "common_net_link.a": set(), "common_engine_reference.a": set(), "common_engine.a": {"no_memory", "clv_shared_err_context_ended"}, "common_net_wire.a": set(), "common_net_rpc.a": {"n_checks.0", "forks"},
                      "master_api_core.a": set(), "master_api_extra.a": set(), "master_egress.a": {"complex_powers", "complex_powers_once", "random_factors", "random_factors_once"}, "worker_service.a": set()}


def symbols(*command):
    done = run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


@suite.test
def shipped_files_contain_no_test_hooks():
    for name in SHIPPED:
        hooks = re.findall(r"\S*(?:intercept|__wrap_|__real_)\S*", symbols("nm", os.path.join(BIN, name)))
        assert not hooks, (name, hooks)
    ours = symbols("nm", os.path.join(BIN, "faults", "cleave-master"))
    assert "__wrap_clv_link_send" in ours, "nm shows no symbols at all"


@suite.test
def code_before_the_gate_has_no_writable_globals():
    if SANITIZED:
        return "sanitizers keep writable notes of every file"
    for archive, known in BEFORE_THE_NETWORK.items():
        table = symbols("objdump", "-t", os.path.join(BIN, "lib", archive))
        rows = re.findall(r" O (\S+)\t\S+ (?:\.\w+ )?(\S+)$", table, re.M)
        assert rows, archive
        writable = {name for section, name in rows
                    if not section.startswith((".rodata", ".data.rel.ro"))}
        assert writable <= known, f"{archive}: {sorted(writable - known)} can be written while the program runs"


# Functions that may lack wide instructions. Only label smoothing uses this one.
NARROW = {"sum_smoothing_terms"}
# GCC 14 does not vectorize their doubles and selections; GCC 12 does.
NARROW_BY_GCC_14 = {"power", "power_back"}


@suite.test
def vectorized_loops_use_wide_instructions():
    """A function that is compiled for each vector width and multiplies single numbers also has wide
    instructions."""
    if SANITIZED or os.path.basename(os.path.abspath(BIN)) != "release":
        return "only a release's loops are wide"
    archive = os.path.join(BIN, "lib", "kernels_cpu.a")
    code = symbols("objdump", "-d", "--no-show-raw-insn", archive)
    compiler = re.search(r"GCC: \([^)]*\) (\d+)", symbols("readelf", "-p", ".comment", archive))
    allowed = NARROW | (NARROW_BY_GCC_14 if compiler and int(compiler[1]) >= 14 else set())
    loops = re.findall(r"^[0-9a-f]+ <(\w+)_(?:256|512)[.\w]*>:\n((?:.+\n)*)", code, re.M)
    narrow = {name for name, body in loops if re.search(r"\bvmuls[sd] ", body) and not re.search(r"\bvmulp[sd] .*%[yz]mm", body)}
    assert len(loops) > 100, len(loops)
    assert narrow <= allowed, sorted(narrow - allowed)


@suite.test
def programs_run_with_the_library_where_it_was_built():
    """Linked with -lcleave; the loader finds the library by the program's path or by
    LD_LIBRARY_PATH."""
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
    """pkg-config's options suffice, also for a prefix that the loader does not search."""
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


@suite.test
def programs_start_from_the_build_folder():
    """With pkg-config's options for a library that is not installed, in C and in C++, without a
    warning."""
    if SANITIZED:
        return "a program without a sanitizer cannot load a library with one"
    flags = run("pkg-config", "--cflags", "--libs", "cleave", env={"PKG_CONFIG_PATH": os.path.abspath(BIN)})
    assert flags.returncode == 0, flags.stderr
    strict = ("-Wall", "-Wextra", "-Werror", "-pedantic-errors")
    with tempfile.TemporaryDirectory() as folder:
        for compiler, name, standards in (("gcc", "shapes.c", ("c11", "c17")), ("g++", "shapes.cc", ("c++17", "c++20"))):
            source, program = (os.path.join(folder, n) for n in (name, "shapes"))
            with open(source, "w") as f:
                f.write(SHAPES)
            for standard in standards:
                done = run(compiler, f"-std={standard}", *strict, "-o", program, source, *flags.stdout.split())
                assert done.returncode == 0, (standard, done.stderr)
                done = run(program)
                assert done.returncode == 0 and done.stdout == "1 3 8 6\n", (standard, done)


@suite.test
def programs_with_names_before_0_9_still_build():
    """In C and in C++, without a warning; the library has each old function beside the new one."""
    if SANITIZED:
        return "a program without a sanitizer cannot load a library with one"
    flags = run("pkg-config", "--cflags", "--libs", "cleave", env={"PKG_CONFIG_PATH": os.path.abspath(BIN)})
    assert flags.returncode == 0, flags.stderr
    strict = ("-Wall", "-Wextra", "-Werror", "-pedantic-errors")
    with tempfile.TemporaryDirectory() as folder:
        for compiler, name, standard in (("gcc", "old.c", "c11"), ("g++", "old.cc", "c++17")):
            source, program = (os.path.join(folder, n) for n in (name, "old"))
            with open(source, "w") as f:
                f.write(OLD_NAMES)
            done = run(compiler, f"-std={standard}", *strict, "-o", program, source, *flags.stdout.split())
            assert done.returncode == 0, (standard, done.stderr)
            done = run(program)
            assert done.returncode == 0 and done.stdout == "17 3 4 front 2 1 1 1 1\n", (standard, done)
    pairs = re.findall(r"^CLEAVE_OLD_FUNCTION_\((\w+), (\w+)\);", symbols("cat", f"{ROOT}/master/api/cleave.h"), re.M)
    at = {name: address for address, name in re.findall(r"^(\w+) T (\w+)$", symbols("nm", "-D", os.path.join(BIN, "libcleave.so")), re.M)}
    assert len(pairs) == 9 and all(at[old] == at[now] for old, now in pairs), pairs


OLD_NAMES = """#include <cleave.h>
#include <stdio.h>
#include <string.h>
struct cleave_stepped;
static cleave_status (*const there[])(cleave_runtime *, cleave_module *, cleave_state_kind, const char *, uint64_t,
                                      cleave_state_file *, cleave_error *) = {cleave_state_save_there, cleave_state_load_there};
static cleave_status (*const there_async[])(cleave_runtime *, cleave_module *, cleave_state_kind, const char *, uint64_t,
                                            cleave_future *, cleave_error *) = {cleave_state_save_there_async,
                                                                                cleave_state_load_there_async};
int main(void) {
  cleave_error error;
  cleave_counts counts = {1, 1, 1};
  struct cleave_stepped stepped = {true, 1, 1, 1};
  cleave_named named = {"w", {CLEAVE_F32, 0, {0}, NULL, 0}};
  cleave_module_options where;
  cleave_group group;
  cleave_future none = {0};
  const char *one = "w";
  memset(&error, 0, sizeof error);
  memset(&where, 0, sizeof where);
  memset(&group, 0, sizeof group);
  strcpy(error.hop, "front");
  where.fresh = &one;
  where.n_fresh = 2;
  where.fixed = where.any_device = group.final = true;
  cleave_count(NULL, &counts);
  if (counts.bytes_up || cleave_module_weight(NULL, 0) || named.name[0] != 'w' || where.initialized != &one) return 1;
  if (cleave_future_stepped(NULL, none, &stepped, NULL) != CLEAVE_INVALID) return 2;
  if (cleave_state_remove_there(NULL, NULL, "x", 0, NULL) != CLEAVE_INVALID) return 3;
  if (cleave_state_remove_there_async(NULL, NULL, "x", 0, &none, NULL) != CLEAVE_INVALID) return 4;
  if (!there[0] || !there[1] || !there_async[0] || !there_async[1]) return 5;
  printf("%d %d %d %s %d %d %d %d %d\\n", CLEAVE_ANSWER, CLEAVE_EVENT_INPUT, CLEAVE_EVENT_WEIGHT, error.place,
         (int)where.n_initialized, where.frozen_is_final, where.copies_inputs, group.no_rollback, stepped.applied);
  return 0;
}
"""

SHAPES = """#include <cleave.h>
#include <stdio.h>
#include <string.h>
#if CLEAVE_VERSION_NUMBER < CLEAVE_VERSION_AT(0, 6, 0) || CLEAVE_VERSION_NUMBER >= CLEAVE_VERSION_AT(1, 0, 0)
#error "the header is of another version"
#endif
int main(void) {
  float numbers[6] = {0};
  cleave_tensor flat = CLEAVE_TENSOR_F32(numbers, 6);
  cleave_input image = CLEAVE_INPUT(CLEAVE_F32, 1, 2, 3), most = CLEAVE_INPUT(CLEAVE_F32, 1, 1, 1, 1, 1, 1, 1, 2);
  if (strcmp(CLEAVE_VERSION, cleave_version()) != 0) return 1;
  printf("%d %d %d %d\\n", flat.rank, image.rank, most.rank, (int)cleave_tensor_count(&flat));
  return 0;
}
"""

suite.main()
