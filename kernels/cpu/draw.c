/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox4x32-10 (Salmon et al., SC'11), several blocks at a time. Word i of all blocks is one
 * vector. The order of the blocks in the lanes is such that transposing the four vectors in groups
 * of four gives the blocks in order.
 */
#include "kernels/cpu/draw_int.h"

#include <immintrin.h>

#define TARGET_512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define TARGET_256 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))

enum { ROUNDS = 10 };
static const uint32_t multipliers[2] = {0xD2511F53u, 0xCD9E8D57u},
                      key_increments[2] = {0x9E3779B9u, 0xBB67AE85u};

uint32_t clv_cpu_dropout_threshold(double p) {
  uint32_t limit = (uint32_t)(p * 0x1p24);
  return (double)limit * 0x1p-24 < p ? limit + 1 : limit;
}

/* ---- random words with AVX-512 --------------------------------------------------------------- */

TARGET_512 INLINE void multiply_512(__m512i x, uint32_t by, __m512i *ret_high, __m512i *ret_low) {
  __m512i m = _mm512_set1_epi32((int)by), even = _mm512_mul_epu32(x, m);
  __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  *ret_low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  *ret_high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}

TARGET_512 static void words_512(const clv_rng_stream *s, uint32_t first, uint32_t *ret) {
  const __m512i blocks = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i c0 = _mm512_add_epi32(blocks, _mm512_set1_epi32((int)first)), high[2], low[2];
  __m512i c1 = _mm512_set1_epi32((int)s->counter[0]), c2 = _mm512_set1_epi32((int)s->counter[1]);
  __m512i c3 = _mm512_set1_epi32((int)s->counter[2]);
  uint32_t key[2] = {s->key[0], s->key[1]};
  for (int round = 0; round < ROUNDS; round++) {
    multiply_512(c0, multipliers[0], &high[0], &low[0]);
    multiply_512(c2, multipliers[1], &high[1], &low[1]);
    c0 = _mm512_xor_si512(_mm512_xor_si512(high[1], c1), _mm512_set1_epi32((int)key[0]));
    c2 = _mm512_xor_si512(_mm512_xor_si512(high[0], c3), _mm512_set1_epi32((int)key[1]));
    c1 = low[1];
    c3 = low[0];
    for (int i = 0; i < 2; i++) key[i] += key_increments[i];
  }
  __m512i a = _mm512_unpacklo_epi32(c0, c1), b = _mm512_unpackhi_epi32(c0, c1);
  __m512i c = _mm512_unpacklo_epi32(c2, c3), d = _mm512_unpackhi_epi32(c2, c3);
  _mm512_storeu_si512(ret, _mm512_unpacklo_epi64(a, c));
  _mm512_storeu_si512(ret + 16, _mm512_unpackhi_epi64(a, c));
  _mm512_storeu_si512(ret + 32, _mm512_unpacklo_epi64(b, d));
  _mm512_storeu_si512(ret + 48, _mm512_unpackhi_epi64(b, d));
}

/* ---- random words with AVX2 ------------------------------------------------------------------ */

/* The four words of four Philox blocks: word i of each block is the lower half of 64 bits of c[i].
 * The upper halves hold remainders of products, which no code reads. */
typedef struct four_blocks {
  __m256i c[4];
} four_blocks;

TARGET_256 INLINE four_blocks counters_256(const clv_rng_stream *s, uint32_t first) {
  __m256i block = _mm256_setr_epi64x(0, 2, 1, 3);
  four_blocks w = {{_mm256_add_epi32(block, _mm256_set1_epi64x((int64_t)first))}};
  for (int i = 0; i < 3; i++) w.c[i + 1] = _mm256_set1_epi64x((int64_t)s->counter[i]);
  return w;
}

TARGET_256 INLINE void round_256(four_blocks *w, const __m256i key[2]) {
  __m256i a = _mm256_mul_epu32(w->c[0], _mm256_set1_epi64x((int64_t)multipliers[0]));
  __m256i b = _mm256_mul_epu32(w->c[2], _mm256_set1_epi64x((int64_t)multipliers[1]));
  w->c[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), w->c[1]), key[0]);
  w->c[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), w->c[3]), key[1]);
  w->c[1] = b;
  w->c[3] = a;
}

TARGET_256 INLINE void put_256(const four_blocks *w, uint32_t *ret) {
  __m256i a = _mm256_blend_epi32(w->c[0], _mm256_slli_epi64(w->c[1], 32), 0xAA);
  __m256i b = _mm256_blend_epi32(w->c[2], _mm256_slli_epi64(w->c[3], 32), 0xAA);
  _mm256_storeu_si256((__m256i *)(void *)ret, _mm256_unpacklo_epi64(a, b));
  _mm256_storeu_si256((__m256i *)(void *)(ret + 8), _mm256_unpackhi_epi64(a, b));
}

/* Writes the words of eight blocks, from block `first` on. */
TARGET_256 static void words_256(const clv_rng_stream *s, uint32_t first, uint32_t *ret) {
  four_blocks low = counters_256(s, first), high = counters_256(s, first + 4);
  __m256i key[2];
  for (int i = 0; i < 2; i++) key[i] = _mm256_set1_epi64x((int64_t)s->key[i]);
  for (int round = 0; round < ROUNDS; round++) {
    round_256(&low, key);
    round_256(&high, key);
    for (int i = 0; i < 2; i++)
      key[i] = _mm256_add_epi32(key[i], _mm256_set1_epi64x((int64_t)key_increments[i]));
  }
  put_256(&low, ret);
  put_256(&high, ret + 16);
}

/* ---- random words on any processor ----------------------------------------------------------- */

void clv_cpu_random_words(const clv_rng_stream *s, uint32_t first, uint32_t ret[CPU_WORDS]) {
  int width = clv_cpu_vector_width();
  if (width == CPU_AVX512) {
    words_512(s, first, ret);
  } else if (width == CPU_AVX2) {
    words_256(s, first, ret);
    words_256(s, first + 8, ret + CPU_WORDS / 2);
  } else {
    for (uint32_t b = 0; b < CPU_WORDS / 4; b++) clv_rng_stream_block(s, first + b, ret + 4 * b);
  }
}
