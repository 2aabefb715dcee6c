/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between f32 and bf16, the upper half of an f32's bits.
 */
#include <dnnl.h>

#include "kernels/cpu/math_int.h"

enum { PAIRED_ROW_WIDTH = 16 }; /* values in each row that clv_cpu_pair_rows reads */

clv_code clv_cpu_check_bf16(const clv_backend *b, clv_err *err) {
  unsigned bf16_isa_bits = dnnl_cpu_isa_avx512_core_bf16;
  if (((unsigned)dnnl_get_effective_cpu_isa() & bf16_isa_bits) == bf16_isa_bits) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "bf16 needs a processor with AVX512-BF16, but oneDNN (which heeds "
                  "ONEDNN_MAX_CPU_ISA) finds %s; use train.dtype: f32",
                  clv_backend_isa(b));
}

CPU_INLINE void convert_to_bf16_body(const float *restrict x, size_t n, uint16_t *restrict y) {
  for (size_t i = 0; i < n; i++) y[i] = round_to_bf16(x[i]);
}

CPU_INLINE void convert_from_bf16_body(const uint16_t *restrict x, size_t n, float *restrict y) {
  for (size_t i = 0; i < n; i++) y[i] = float_from_bits((uint32_t)x[i] << 16);
}

CPU_INLINE void pair_rows_body(const float *restrict x, size_t rows, uint32_t *restrict y) {
  for (size_t r = 0; r < rows; r += 2)
    for (size_t l = 0; l < PAIRED_ROW_WIDTH; l++)
      y[r / 2 * PAIRED_ROW_WIDTH + l] =
          round_bits_to_bf16(x[r * PAIRED_ROW_WIDTH + l]) >> 16 |
          (round_bits_to_bf16(x[(r + 1) * PAIRED_ROW_WIDTH + l]) & 0xffff0000u);
}

CPU_CLONES(convert_to_bf16, (const float *restrict x, size_t n, uint16_t *restrict y), (x, n, y))
CPU_CLONES(convert_from_bf16, (const uint16_t *restrict x, size_t n, float *restrict y), (x, n, y))
CPU_CLONES(pair_rows, (const float *restrict x, size_t rows, uint32_t *restrict y), (x, rows, y))

void clv_cpu_convert_to_bf16(const float *x, size_t n, uint16_t *y) { convert_to_bf16(x, n, y); }
void clv_cpu_convert_from_bf16(const uint16_t *x, size_t n, float *y) {
  convert_from_bf16(x, n, y);
}

void clv_cpu_pair_rows(const float *x, size_t rows, uint16_t *y) {
  pair_rows(x, rows, (uint32_t *)(void *)y);
}

typedef struct convert_job {
  const void *src;
  void *dst;
} convert_job;

static void round_range_to_bf16(void *arg, size_t begin, size_t end) {
  const convert_job *j = arg;
  convert_to_bf16((const float *)j->src + begin, end - begin, (uint16_t *)j->dst + begin);
}

static void widen_range_to_f32(void *arg, size_t begin, size_t end) {
  const convert_job *j = arg;
  convert_from_bf16((const uint16_t *)j->src + begin, end - begin, (float *)j->dst + begin);
}

void clv_cpu_convert_type(const void *src, int src_layout, void *dst, size_t n) {
  convert_job j = {src, dst};
  int threads = clv_cpu_useful_threads(clv_cpu_get_threads(), n);
  clv_cpu_parallel(threads, n,
                   clv_layout_is_bf16(src_layout) ? widen_range_to_f32 : round_range_to_bf16, &j);
}
