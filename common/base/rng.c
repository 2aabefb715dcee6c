/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox4x32-10 through Random123. The counter is (block, micro-batch, step low, step high). The
 * key mixes the seed with the layer, so that no two (layer, step, micro-batch) share a stream. The
 * upper half of the seed changes both counter and key, so a brute-force search has to try 128 bits,
 * not 64.
 */
#include "common/base/base.h"

#include <math.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <Random123/philox.h>
#pragma GCC diagnostic pop

static uint64_t read_u64(const uint8_t *bytes) {
  uint64_t v = 0;
  for (int i = 7; i >= 0; i--) v = v << 8 | bytes[i];
  return v;
}

clv_rng_key clv_rng_key_of(const clv_key *key) {
  return (clv_rng_key){.seed = read_u64(key->bytes), .seed_high = read_u64(key->bytes + 8)};
}

clv_rng_stream clv_rng_stream_of(const clv_rng_key *key) {
  uint64_t step = key->step ^ key->seed_high;
  philox4x32_key_t k = {{(uint32_t)key->seed, (uint32_t)(key->seed >> 32)}};
  /* Mixes in the layer with one more round of the generator: key = philox(layer; seed). */
  philox4x32_ctr_t layer = {
      {key->layer, 0x636c656bu, (uint32_t)key->seed_high, (uint32_t)(key->seed_high >> 32)}};
  philox4x32_ctr_t mixed_key = philox4x32(layer, k);
  return (clv_rng_stream){{key->micro_batch, (uint32_t)step, (uint32_t)(step >> 32)},
                          {mixed_key.v[0], mixed_key.v[1]}};
}

void clv_rng_stream_block(const clv_rng_stream *s, uint32_t index, uint32_t ret[4]) {
  philox4x32_ctr_t counter = {{index, s->counter[0], s->counter[1], s->counter[2]}};
  philox4x32_key_t k = {{s->key[0], s->key[1]}};
  philox4x32_ctr_t r = philox4x32(counter, k);
  for (int i = 0; i < 4; i++) ret[i] = r.v[i];
}

clv_rng_stream clv_rng_stream_row(const clv_rng_stream *s, uint32_t part, uint32_t row) {
  uint32_t w[4];
  clv_rng_stream_block(s, part, w);
  return (clv_rng_stream){{row, w[2], w[3]}, {w[0], w[1]}};
}

void clv_rng_block(const clv_rng_key *key, uint32_t index, uint32_t ret[4]) {
  clv_rng_stream s = clv_rng_stream_of(key);
  clv_rng_stream_block(&s, index, ret);
}

void clv_rng_uniform_from(const clv_rng_key *key, size_t from, float low, float high, float *dst,
                          size_t n) {
  uint32_t w[4] = {0};
  for (size_t i = 0; i < n; i++) {
    if (i % 4 == 0) clv_rng_block(key, (uint32_t)((from + i) / 4), w);
    dst[i] = low + (high - low) * ((float)(w[i % 4] >> 8) * 0x1p-24f);
  }
}

void clv_rng_uniform(const clv_rng_key *key, float low, float high, float *dst, size_t n) {
  clv_rng_uniform_from(key, 0, low, high, dst, n);
}

void clv_rng_normal_from(const clv_rng_key *key, size_t from, float mean, float std, float *dst,
                         size_t n) {
  uint32_t w[4] = {0};
  const double two_pi = 6.283185307179586476925;
  for (size_t i = 0; i < n; i++) {
    if (i % 4 == 0) clv_rng_block(key, (uint32_t)((from + i) / 4), w);
    size_t pair = (i % 4) & ~(size_t)1;
    double u = ((double)w[pair] + 1.0) * 0x1p-32, v = (double)w[pair + 1] * 0x1p-32;
    double radius = sqrt(-2.0 * log(u));
    double z = radius * ((i & 1) ? sin(two_pi * v) : cos(two_pi * v));
    dst[i] = mean + std * (float)z;
  }
}

void clv_rng_normal(const clv_rng_key *key, float mean, float std, float *dst, size_t n) {
  clv_rng_normal_from(key, 0, mean, std, dst, n);
}

__extension__ typedef unsigned __int128 u128;

void clv_rng_permutation(const clv_rng_key *key, uint32_t *dst, size_t n) {
  for (size_t i = 0; i < n; i++) dst[i] = (uint32_t)i;
  for (size_t i = n; i > 1; i--) {
    uint32_t w[4];
    clv_rng_block(key, (uint32_t)i, w);
    uint64_t r = ((uint64_t)w[0] << 32) | w[1];
    size_t j = (size_t)(((u128)r * i) >> 64);
    uint32_t t = dst[i - 1];
    dst[i - 1] = dst[j];
    dst[j] = t;
  }
}
