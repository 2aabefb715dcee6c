/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox4x32-10 (Salmon et al., SC'11), several blocks at a time. Word i of all blocks is one
 * vector. The blocks are in such an order in the lanes that a transposition of the four vectors, in
 * groups of four lanes, gives the blocks in ascending order.
 */
#include "kernels/cpu/draw_int.h"

#include <immintrin.h>

#define TARGET_512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define TARGET_256 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))

enum { N_ROUNDS = 10 };
static const uint32_t multipliers[2] = {0xD2511F53u, 0xCD9E8D57u},
                      key_increments[2] = {0x9E3779B9u, 0xBB67AE85u};

uint32_t clv_cpu_dropout_threshold(double p) {
  uint32_t limit = (uint32_t)(p * 0x1p24);
  return (double)limit * 0x1p-24 < p ? limit + 1 : limit;
}

/* ---- random words with AVX-512 --------------------------------------------------------------- */

TARGET_512 INLINE void multiply_512(__m512i x, uint32_t multiplier, __m512i *ret_high,
                                    __m512i *ret_low) {
  __m512i m = _mm512_set1_epi32((int)multiplier), even_products = _mm512_mul_epu32(x, m);
  __m512i odd_products = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  *ret_low = _mm512_mask_blend_epi32(0xAAAA, even_products, _mm512_slli_epi64(odd_products, 32));
  *ret_high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even_products, 32), odd_products);
}

TARGET_512 static void draw_words_512(const clv_rng_stream *s, uint32_t first_block,
                                      uint32_t *ret) {
  const __m512i block_order =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i c0 = _mm512_add_epi32(block_order, _mm512_set1_epi32((int)first_block)), high[2], low[2];
  __m512i c1 = _mm512_set1_epi32((int)s->counter[0]), c2 = _mm512_set1_epi32((int)s->counter[1]);
  __m512i c3 = _mm512_set1_epi32((int)s->counter[2]);
  uint32_t key[2] = {s->key[0], s->key[1]};
  for (int round = 0; round < N_ROUNDS; round++) {
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

TARGET_256 INLINE four_blocks make_counters_256(const clv_rng_stream *s, uint32_t first_block) {
  __m256i block_order = _mm256_setr_epi64x(0, 2, 1, 3);
  four_blocks w = {{_mm256_add_epi32(block_order, _mm256_set1_epi64x((int64_t)first_block))}};
  for (int i = 0; i < 3; i++) w.c[i + 1] = _mm256_set1_epi64x((int64_t)s->counter[i]);
  return w;
}

TARGET_256 INLINE void do_round_256(four_blocks *w, const __m256i key[2]) {
  __m256i a = _mm256_mul_epu32(w->c[0], _mm256_set1_epi64x((int64_t)multipliers[0]));
  __m256i b = _mm256_mul_epu32(w->c[2], _mm256_set1_epi64x((int64_t)multipliers[1]));
  w->c[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), w->c[1]), key[0]);
  w->c[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), w->c[3]), key[1]);
  w->c[1] = b;
  w->c[3] = a;
}

TARGET_256 INLINE void store_words_256(const four_blocks *w, uint32_t *ret) {
  __m256i a = _mm256_blend_epi32(w->c[0], _mm256_slli_epi64(w->c[1], 32), 0xAA);
  __m256i b = _mm256_blend_epi32(w->c[2], _mm256_slli_epi64(w->c[3], 32), 0xAA);
  _mm256_storeu_si256((__m256i *)(void *)ret, _mm256_unpacklo_epi64(a, b));
  _mm256_storeu_si256((__m256i *)(void *)(ret + 8), _mm256_unpackhi_epi64(a, b));
}

/* Writes the words of eight blocks, from block first_block on. */
TARGET_256 static void draw_words_256(const clv_rng_stream *s, uint32_t first_block,
                                      uint32_t *ret) {
  four_blocks first_four = make_counters_256(s, first_block),
              last_four = make_counters_256(s, first_block + 4);
  __m256i key[2];
  for (int i = 0; i < 2; i++) key[i] = _mm256_set1_epi64x((int64_t)s->key[i]);
  for (int round = 0; round < N_ROUNDS; round++) {
    do_round_256(&first_four, key);
    do_round_256(&last_four, key);
    for (int i = 0; i < 2; i++)
      key[i] = _mm256_add_epi32(key[i], _mm256_set1_epi64x((int64_t)key_increments[i]));
  }
  store_words_256(&first_four, ret);
  store_words_256(&last_four, ret + 16);
}

/* ---- random words on any processor ----------------------------------------------------------- */

void clv_cpu_draw_words(const clv_rng_stream *s, uint32_t first_block,
                        uint32_t ret[CPU_RANDOM_WORDS]) {
  int width = clv_cpu_vector_width();
  if (width == CPU_AVX512) {
    draw_words_512(s, first_block, ret);
  } else if (width == CPU_AVX2) {
    draw_words_256(s, first_block, ret);
    draw_words_256(s, first_block + 8, ret + CPU_RANDOM_WORDS / 2);
  } else {
    for (uint32_t b = 0; b < CPU_RANDOM_WORDS / 4; b++)
      clv_rng_stream_block(s, first_block + b, ret + 4 * b);
  }
}
