# SPDX-License-Identifier: Apache-2.0
"""The simulated device finds faults in the use of a device, and names the line. plants.c and
plants.cu have the faults; a comment "planted: NAME" marks the line. The table below says which
faults each build must find; `make sanitize` runs this for builds with sanitizers.
"""
import os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.environ.get("CLEAVE_TEST_BIN", os.path.join(HERE, "../../../build/release"))
PROGRAM = os.path.join(OUT, "tests/gpu/plants/plants")
SEEDS = range(12)

RACE = "ThreadSanitizer: data race"
UNWRITTEN = "that nothing has written"
# fault -> {build: its message}; a build that is not named need not find the fault
FAULTS = {
    "omit_event": {"plain": UNWRITTEN, "tsan": RACE},
    "read_old_values": {"tsan": RACE},
    "read_without_barrier": {"plain": "of its block that no thread has written", "tsan": RACE},
    "race_between_blocks": {"tsan": RACE},
    "change_memory_during_copy": {"tsan": RACE},
    "pass_host_pointer": dict.fromkeys(("plain", "asan", "tsan"), "argument 0 of add_one is at .* not device memory"),
    "pass_nested_host_pointer": {"plain": "a kernel reads 4 bytes of the host"},
    "read_device_memory_on_host": dict.fromkeys(("plain", "asan", "tsan"), "device memory was touched where it may not be"),
    "free_in_use_memory": {"plain": "where there is no allocation, or none any more",
                   "asan": "AddressSanitizer: use-after-poison", "tsan": RACE},
    "use_after_free": dict.fromkeys(("plain", "asan", "tsan"), "in device memory that was given back"),
    "copy_to_peer_too_early": {"plain": UNWRITTEN},
    "copy_old_values": {"tsan": RACE},
    "read_before_peer_copy": {"plain": UNWRITTEN, "tsan": RACE},
    "free_source_early": dict.fromkeys(("plain", "asan", "tsan"), "was given back before it was copied"),
    "overwrite_source_early": {"tsan": RACE},
    "read_undefined": {"plain": UNWRITTEN},
    "write_behind_end": {"plain": "where there is no allocation", "asan": "AddressSanitizer: use-after-poison"},
    "write_misaligned_value": {"plain": "where its type does not lie", "asan": "runtime error: .* misaligned address"},
    "diverge_at_barrier": dict.fromkeys(("plain", "asan", "tsan"), "ended while others wait at"),
    "copy_pageable_memory": dict.fromkeys(("plain", "asan", "tsan"), "is not page-locked memory"),
}

# Faults that `make test`, without a sanitizer, has to find: SIMULATION.md promises it.
IN_CI = ("omit_event", "read_without_barrier", "pass_host_pointer", "read_device_memory_on_host", "free_in_use_memory", "read_undefined")


def run(name, seed=0, **env):
    done = subprocess.run([PROGRAM, name, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "TSAN_OPTIONS": "exitcode=66 report_bugs=1", "ASAN_OPTIONS": "detect_leaks=0", **env})
    return done.returncode, done.stdout


def planted():
    """fault -> FILE:LINE"""
    found = {}
    for name in ("plants.cu", "plants.c"):
        for number, line in enumerate(open(os.path.join(HERE, name)), 1):
            m = re.search(r"/\* planted: (.*) \*/", line)
            for fault in m[1].split() if m else ():
                found[fault] = f"{name}:{number}"
    return found


def finds(fault, text, place, **env):
    """The message with which a fault was found, or the other output."""
    said = ""
    for seed in SEEDS:
        code, said = run(fault, seed, **env)
        if code and re.search(text, said) and re.search(re.escape(place) + r"\b", said):
            return f"seed {seed}", None
    return None, said


def main():
    build, lines, bad = run("print_sanitizer")[1].strip(), planted(), 0
    for fault, builds in FAULTS.items():
        if build not in builds:
            continue
        how, said = finds(fault, builds[build], lines[fault])
        bad += not how
        print(f"ok {fault} {lines[fault]} {build}: {how}" if how else f"not ok {fault} {lines[fault]} {build}\n{said}")
    how, said = finds("read_device_memory_on_host", FAULTS["read_device_memory_on_host"][build], lines["read_device_memory_on_host"], CLV_SIM_NO_KEYS="1")
    bad += not how
    print(f"ok read_device_memory_on_host_without_keys: {how}" if how else f"not ok read_device_memory_on_host_without_keys\n{said}")
    for seed in SEEDS:
        code, said = run("run_without_fault", seed)
        bad += code != 0
        if code:
            print(f"not ok run_without_fault, seed {seed}: {code}\n{said}")
    promised = all("plain" in FAULTS[fault] for fault in IN_CI)
    bad += not promised
    print(f"{'ok' if promised else 'not ok'} what_ci_has_to_find_is_asked_of_the_plain_build")
    code, said = run("leak_memory")
    print(f"{'ok' if code == 4 else 'not ok'} leaks_are_counted")
    sys.exit(bad != 0 or code != 4)


main()
