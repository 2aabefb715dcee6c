/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of small matrices. A tile of outputs is kept in registers during the loop over k: 8 x 32
 * outputs with AVX-512, 6 x 16 with AVX2. Columns after the last are masked. With AVX-512 the
 * destination of the sums is prefetched, because stores that wait for memory delay the next tile.
 */
#include "kernels/cpu/tiles_int.h"

#include <immintrin.h>
#include <math.h>

#define TARGET_512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define TARGET_256 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline))

/* ---- products with AVX-512 ------------------------------------------------------------------- */

enum { TILE_ROWS_512 = 8, TILE_COLUMNS_512 = 32 };

/* Computes the tile of `rows` rows at row i and column j. */
TARGET_512 INLINE void compute_tile_512(const cpu_tile_product *t, size_t i, size_t j, int rows) {
  size_t n_left = t->n - j;
  __mmask16 low_mask = (__mmask16)(n_left >= 16 ? 0xFFFF : (1u << n_left) - 1);
  __mmask16 high_mask = (__mmask16)(n_left >= 32  ? 0xFFFF
                                    : n_left > 16 ? (1u << (n_left - 16)) - 1
                                                  : 0);
  const float *a = t->a + i * t->a_row_stride, *b = t->b + j;
  float *c = t->c + i * t->c_row_stride + j;
  __m512 sum[TILE_ROWS_512][2];
  for (int r = 0; r < rows; r++) {
    const float *c_row = c + (size_t)r * t->c_row_stride;
    sum[r][0] = t->accumulate ? _mm512_maskz_loadu_ps(low_mask, c_row) : _mm512_setzero_ps();
    sum[r][1] = t->accumulate ? _mm512_maskz_loadu_ps(high_mask, c_row + 16) : _mm512_setzero_ps();
    _mm_prefetch(c_row, _MM_HINT_T0);
    _mm_prefetch(c_row + TILE_COLUMNS_512 - 1, _MM_HINT_T0);
  }
  for (size_t l = 0; l < t->k; l++, a += t->a_column_stride, b += t->b_row_stride) {
    __m512 b0 = _mm512_maskz_loadu_ps(low_mask, b), b1 = _mm512_maskz_loadu_ps(high_mask, b + 16);
    for (int r = 0; r < rows; r++) {
      __m512 x = _mm512_set1_ps(a[(size_t)r * t->a_row_stride]);
      sum[r][0] = _mm512_fmadd_ps(x, b0, sum[r][0]);
      sum[r][1] = _mm512_fmadd_ps(x, b1, sum[r][1]);
    }
  }
  for (int r = 0; r < rows; r++) {
    _mm512_mask_storeu_ps(c + (size_t)r * t->c_row_stride, low_mask, sum[r][0]);
    _mm512_mask_storeu_ps(c + (size_t)r * t->c_row_stride + 16, high_mask, sum[r][1]);
  }
}

TARGET_512 static void multiply_512(const cpu_tile_product *t) {
  for (size_t j = 0; j < t->n; j += TILE_COLUMNS_512) {
    size_t i = 0;
    for (; i + TILE_ROWS_512 <= t->m; i += TILE_ROWS_512) compute_tile_512(t, i, j, TILE_ROWS_512);
    for (; i + 4 <= t->m; i += 4) compute_tile_512(t, i, j, 4);
    for (; i < t->m; i++) compute_tile_512(t, i, j, 1);
  }
}

/* ---- products with AVX2 ---------------------------------------------------------------------- */

enum { TILE_ROWS_256 = 6, TILE_COLUMNS_256 = 16 };

/* Columns of a tile of two vectors. The masks exclude columns after the last column of the product.
 * Full tiles use no masks, because masked stores are slow. */
typedef struct tile_columns_256 {
  bool is_full;
  __m256i low_mask, high_mask;
} tile_columns_256;

TARGET_256 INLINE __m256i make_mask_256(size_t n_left) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)CLV_MIN(n_left, 8)), lanes);
}

TARGET_256 INLINE void load_columns_256(const float *x, const tile_columns_256 *at, __m256 ret[2]) {
  ret[0] = at->is_full ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, at->low_mask);
  ret[1] = at->is_full ? _mm256_loadu_ps(x + 8) : _mm256_maskload_ps(x + 8, at->high_mask);
}

TARGET_256 INLINE void store_columns_256(float *x, const tile_columns_256 *at, const __m256 y[2]) {
  if (at->is_full) {
    _mm256_storeu_ps(x, y[0]);
    _mm256_storeu_ps(x + 8, y[1]);
  } else {
    _mm256_maskstore_ps(x, at->low_mask, y[0]);
    _mm256_maskstore_ps(x + 8, at->high_mask, y[1]);
  }
}

TARGET_256 INLINE void compute_tile_256(const cpu_tile_product *t, size_t i, size_t j, int rows,
                                        const tile_columns_256 *at) {
  const float *a = t->a + i * t->a_row_stride, *b = t->b + j;
  float *c = t->c + i * t->c_row_stride + j;
  __m256 sum[TILE_ROWS_256][2] = {0}, y[2];
  for (int r = 0; r < rows && t->accumulate; r++)
    load_columns_256(c + (size_t)r * t->c_row_stride, at, sum[r]);
  for (size_t l = 0; l < t->k; l++, a += t->a_column_stride, b += t->b_row_stride) {
    load_columns_256(b, at, y);
    for (int r = 0; r < rows; r++) {
      __m256 x = _mm256_set1_ps(a[(size_t)r * t->a_row_stride]);
      sum[r][0] = _mm256_fmadd_ps(x, y[0], sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(x, y[1], sum[r][1]);
    }
  }
  for (int r = 0; r < rows; r++) store_columns_256(c + (size_t)r * t->c_row_stride, at, sum[r]);
}

/* Computes all rows of one tile column. Tiles of four rows are as fast as tiles of six, but tiles
 * of two rows or one are slower, so eight rows are computed as two fours. */
TARGET_256 INLINE void compute_rows_256(const cpu_tile_product *t, size_t j,
                                        const tile_columns_256 *at) {
  size_t i = 0;
  for (; t->m - i >= TILE_ROWS_256 && t->m - i != 8; i += TILE_ROWS_256)
    compute_tile_256(t, i, j, TILE_ROWS_256, at);
  for (; i + 4 <= t->m; i += 4) compute_tile_256(t, i, j, 4, at);
  for (; i < t->m; i++) compute_tile_256(t, i, j, 1, at);
}

TARGET_256 static void multiply_256(const cpu_tile_product *t) {
  size_t j = 0;
  for (; j + TILE_COLUMNS_256 <= t->n; j += TILE_COLUMNS_256)
    compute_rows_256(t, j, &(tile_columns_256){.is_full = true});
  size_t n_left = t->n - j;
  tile_columns_256 at = {false, make_mask_256(n_left), make_mask_256(n_left > 8 ? n_left - 8 : 0)};
  if (n_left) compute_rows_256(t, j, &at);
}

/* ---- products on any processor --------------------------------------------------------------- */

static void multiply_plain(const cpu_tile_product *t) {
  for (size_t i = 0; i < t->m; i++)
    for (size_t j = 0; j < t->n; j++) {
      float *c = t->c + i * t->c_row_stride + j, sum = t->accumulate ? *c : 0;
      for (size_t l = 0; l < t->k; l++)
        sum = fmaf(t->a[i * t->a_row_stride + l * t->a_column_stride],
                   t->b[l * t->b_row_stride + j], sum);
      *c = sum;
    }
}

void clv_cpu_tiles_multiply(const cpu_tile_product *t) {
  int width = clv_cpu_vector_width();
  if (width == CPU_AVX512)
    multiply_512(t);
  else if (width == CPU_AVX2 && __builtin_cpu_supports("fma"))
    multiply_256(t);
  else
    multiply_plain(t);
}
