/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of factors packed as pairs of bf16 values (pairs_int.h), with AVX512-BF16. 8 x 32 sums
 * stay in 16 registers during the loop over k. A pair of a row is broadcast to a register and
 * multiplied with the pairs of 32 columns. The destination of the sums is prefetched at the start,
 * because 16 stores that wait for memory would delay the next sums.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/pairs_int.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { ROWS_AT_ONCE = 8 };

INLINE __m512bh broadcast_pair(const uint16_t *pair) {
  int32_t pair_bits;
  memcpy(&pair_bits, pair, sizeof pair_bits);
  return (__m512bh)_mm512_set1_epi32(pair_bits);
}

INLINE void multiply_rows(const cpu_pairs_block *p, size_t row) {
  const uint16_t *a = p->a + row / PAIRS_SIDE * p->a_strip_stride + row % PAIRS_SIDE * PAIRS_DEPTH;
  const uint16_t *b = p->b;
  const float *initial_sums = p->initial_sums + row * p->initial_row_stride;
  __m512 sum[ROWS_AT_ONCE][2];
  for (size_t r = 0; r < ROWS_AT_ONCE; r++)
    for (size_t j = 0; j < 2; j++) {
      sum[r][j] = _mm512_loadu_ps(initial_sums + r * p->initial_row_stride + j * PAIRS_SIDE);
      _mm_prefetch(p->c + (row + r) * p->c_row_stride + j * (2 * PAIRS_SIDE - 1), _MM_HINT_T0);
    }
  for (size_t k = 0; k < p->n_tiles; k++, a += PAIRS_TILE, b += PAIRS_TILE)
    for (size_t pair = 0; pair < PAIRS_SIDE; pair++) {
      __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + pair * PAIRS_DEPTH);
      __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + p->b_strip_stride + pair * PAIRS_DEPTH);
      for (size_t r = 0; r < ROWS_AT_ONCE; r++) {
        __m512bh x = broadcast_pair(a + r * PAIRS_DEPTH + 2 * pair);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
      }
    }
  float *c = p->c + row * p->c_row_stride;
  for (size_t r = 0; r < ROWS_AT_ONCE; r++)
    for (size_t j = 0; j < 2; j++)
      _mm512_storeu_ps(c + r * p->c_row_stride + j * PAIRS_SIDE, sum[r][j]);
}

static void do_nothing(void) {}

TARGET static void multiply_block(const cpu_pairs_block *p) {
  for (size_t row = 0; row < p->rows; row += ROWS_AT_ONCE) multiply_rows(p, row);
}

const cpu_pairs_impl *clv_cpu_pairs_avx512(void) {
  static const cpu_pairs_impl impl = {do_nothing, do_nothing, multiply_block,
                                      32,         1 << 19,    "avx512 bf16"};
  return &impl;
}
