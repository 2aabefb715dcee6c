/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/cpu_int.h"

int clv_cpu_vector_width(void) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return CPU_AVX512;
  return __builtin_cpu_supports("avx2") ? CPU_AVX2 : CPU_PLAIN;
}
