# SPDX-License-Identifier: Apache-2.0
"""Instruction sets that the programs of a test can use. oneDNN obeys ONEDNN_MAX_CPU_ISA of the
environment, or else DNNL_MAX_CPU_ISA, so a suite can run as on an older processor."""
import os

WITH_BF16 = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16", "ALL", "DEFAULT")


def most_isa():
    """The limit on instruction sets in the environment, in capitals."""
    return (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL").upper()


def cpu_flags():
    with open("/proc/cpuinfo") as f:
        return next((set(line.split(":")[1].split()) for line in f if line.startswith("flags")), set())


def is_intel():
    with open("/proc/cpuinfo") as f:
        return "GenuineIntel" in f.read()


def lacks_bf16():
    """The reason why this machine cannot compute in bf16, or None."""
    if "avx512_bf16" not in cpu_flags():
        return "this processor has no AVX512-BF16"
    return None if most_isa() in WITH_BF16 else f"the environment limits oneDNN to {most_isa()}, which has no bf16"
