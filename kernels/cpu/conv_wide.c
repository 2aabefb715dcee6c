/* SPDX-License-Identifier: Apache-2.0
 *
 * The weight gradient of convolutions three taps wide in channel blocks of 8, for AVX2, where
 * oneDNN 2.6 reaches two thirds of its forward's speed. The inner loop keeps 12 vectors of sums in
 * registers: 3 taps, 2 input channels, 2 blocks of output channels. So its 12 multiply-adds need
 * only 8 loads. The image is first copied into a frame of zeros.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/conv_int.h"

/* BLOCK_CHANNELS: channels of a block. WINDOW_WIDTH: width of the window. */
enum { BLOCK_CHANNELS = 8, WINDOW_WIDTH = 3 };

#define TARGET_FMA __attribute__((target("avx2,fma")))

bool clv_cpu_can_use_wide_conv(const clv_window *s, int block) {
  return block == BLOCK_CHANNELS && s->kernel[1] == WINDOW_WIDTH && s->dilation[0] == 1 &&
         s->dilation[1] == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

typedef struct wide_scratch {
  float *padded_image; /* image in a frame of zeros, [h + 2 * pad][w + 2 * pad][8] */
  /* sums of each output block, [kernel h][3][8 c][8 k]; output blocks are computed in pairs, so one
   * spare block follows, as partner of the last block of an odd number */
  float *sums;
} wide_scratch;

static size_t padded_image_size(const clv_window *s) {
  return (size_t)((s->h + 2 * s->pad[0]) * (s->w + 2 * s->pad[1])) * BLOCK_CHANNELS;
}

static size_t block_sums_size(const clv_window *s) {
  return (size_t)(s->kernel[0] * WINDOW_WIDTH * BLOCK_CHANNELS) * BLOCK_CHANNELS;
}

static size_t count_blocks(int64_t channels) {
  return (size_t)(channels + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS;
}

static size_t share_scratch_size(const clv_window *s) {
  return padded_image_size(s) + block_sums_size(s) * (count_blocks(s->k) + 1);
}

size_t clv_cpu_wide_conv_scratch_bytes(const clv_window *s, int threads) {
  return share_scratch_size(s) * (size_t)threads * sizeof(float);
}

/* Adds one image's sums for two output blocks, input channels c and c + 1 and the taps of window
 * row u. The sums are twelve variables, because compilers keep a copy of an array in memory. */
TARGET_FMA static void add_row_sums(const clv_window *s, const float *padded_image,
                                    const float *const dy[2], int64_t u, int c,
                                    float *const sums[2]) {
  int64_t width = (s->w + 2 * s->pad[1]) * BLOCK_CHANNELS, step = s->stride[1] * BLOCK_CHANNELS;
  const float *d = dy[0], *e = dy[1];
  __m256 a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5;
  a0 = a1 = a2 = a3 = a4 = a5 = b0 = b1 = b2 = b3 = b4 = b5 = _mm256_setzero_ps();
#define ADD_TAP(n, offset)                              \
  do {                                                  \
    __m256 x_value = _mm256_broadcast_ss(x + (offset)); \
    a##n = _mm256_fmadd_ps(dy_first, x_value, a##n);    \
    b##n = _mm256_fmadd_ps(dy_second, x_value, b##n);   \
  } while (0)
  for (int64_t i = 0; i < s->oh; i++) {
    const float *x = padded_image + (i * s->stride[0] + u) * width + c;
    for (int64_t o = 0; o < s->ow; o++, x += step, d += BLOCK_CHANNELS, e += BLOCK_CHANNELS) {
      __m256 dy_first = _mm256_loadu_ps(d), dy_second = _mm256_loadu_ps(e);
      ADD_TAP(0, 0);
      ADD_TAP(1, 1);
      ADD_TAP(2, BLOCK_CHANNELS);
      ADD_TAP(3, BLOCK_CHANNELS + 1);
      ADD_TAP(4, 2 * BLOCK_CHANNELS);
      ADD_TAP(5, 2 * BLOCK_CHANNELS + 1);
    }
  }
#undef ADD_TAP
  const __m256 tap_sums[2][2 * WINDOW_WIDTH] = {{a0, a1, a2, a3, a4, a5}, {b0, b1, b2, b3, b4, b5}};
  for (int k = 0; k < 2; k++)
    for (int n = 0; n < 2 * WINDOW_WIDTH; n++) {
      float *to =
          sums[k] + ((u * WINDOW_WIDTH + n / 2) * BLOCK_CHANNELS + c + n % 2) * BLOCK_CHANNELS;
      _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), tap_sums[k][n]));
    }
}

static void fill_padded_image(const clv_window *s, const float *x, float *padded_image) {
  int64_t width = s->w + 2 * s->pad[1];
  for (int64_t h = 0; h < s->h; h++)
    memcpy(padded_image + ((h + s->pad[0]) * width + s->pad[1]) * BLOCK_CHANNELS,
           x + h * s->w * BLOCK_CHANNELS, (size_t)(s->w * BLOCK_CHANNELS) * sizeof *x);
}

/* Adds the sums of image n for the input block that the padded image holds and for output blocks
 * [begin, end). */
static void sum_image(const cpu_weight_grad_job *j, int64_t n, size_t begin, size_t end,
                      const wide_scratch *p) {
  const clv_window *s = &j->s;
  size_t image_size = (size_t)(s->oh * s->ow) * BLOCK_CHANNELS;
  for (size_t k_block = begin; k_block < end; k_block += 2) {
    size_t partner_offset = k_block + 1 < end ? 1 : 0;
    const float *first_dy = j->dy + ((size_t)n * count_blocks(s->k) + k_block) * image_size;
    const float *const dy[2] = {first_dy, first_dy + partner_offset * image_size};
    float *const sums[2] = {p->sums + k_block * block_sums_size(s),
                            p->sums + (k_block + 1) * block_sums_size(s)};
    for (int64_t u = 0; u < s->kernel[0]; u++)
      for (int c = 0; c < BLOCK_CHANNELS; c += 2) add_row_sums(s, p->padded_image, dy, u, c, sums);
  }
}

static void store_sum(float *dst, float value, bool accumulate) {
  *dst = accumulate ? *dst + value : value;
}

static void store_block(const cpu_weight_grad_job *j, size_t c_block, size_t k_block,
                        const float *sums) {
  const clv_window *s = &j->s;
  int64_t taps = s->kernel[0] * WINDOW_WIDTH, first_k = (int64_t)k_block * BLOCK_CHANNELS,
          first_channel = (int64_t)c_block * BLOCK_CHANNELS;
  for (int64_t k = first_k; k < CLV_MIN(first_k + BLOCK_CHANNELS, s->k); k++)
    for (int64_t c = first_channel; c < CLV_MIN(first_channel + BLOCK_CHANNELS, s->c); c++)
      for (int64_t t = 0; t < taps; t++)
        store_sum(&j->dw[(k * s->c + c) * taps + t],
                  sums[(t * BLOCK_CHANNELS + c - first_channel) * BLOCK_CHANNELS + k - first_k],
                  j->accumulate);
}

/* Computes the weight gradients of input block c_block and of pairs [begin, end) of output blocks.
 */
static void compute_input_block(const cpu_weight_grad_job *j, size_t c_block, size_t begin,
                                size_t end, const wide_scratch *p) {
  const clv_window *s = &j->s;
  size_t first_block = begin * 2, end_block = CLV_MIN(end * 2, count_blocks(s->k));
  size_t image_size = (size_t)(s->h * s->w) * BLOCK_CHANNELS;
  memset(p->padded_image, 0, share_scratch_size(s) * sizeof(float));
  for (int64_t n = 0; n < s->n; n++) {
    fill_padded_image(s, j->x + ((size_t)n * count_blocks(s->c) + c_block) * image_size,
                      p->padded_image);
    sum_image(j, n, first_block, end_block, p);
  }
  for (size_t k_block = first_block; k_block < end_block; k_block++)
    store_block(j, c_block, k_block, p->sums + k_block * block_sums_size(s));
}

/* Computes shares [begin, end) of the weight gradient, one share for each thread. A share is a
 * range of the combinations of an input block and a pair of output blocks, and has its own part of
 * scratch. */
static void compute_weight_grad_shares(void *arg, size_t begin, size_t end) {
  const cpu_weight_grad_job *j = arg;
  size_t n_k_pairs = (count_blocks(j->s.k) + 1) / 2,
         n_combinations = count_blocks(j->s.c) * n_k_pairs;
  for (size_t share = begin; share < end; share++) {
    wide_scratch p = {j->scratch + share * share_scratch_size(&j->s), NULL};
    p.sums = p.padded_image + padded_image_size(&j->s);
    size_t at = n_combinations * share / (size_t)j->threads,
           share_end = n_combinations * (share + 1) / (size_t)j->threads;
    while (at < share_end) {
      size_t c_block = at / n_k_pairs,
             end_of_input_block = CLV_MIN((c_block + 1) * n_k_pairs, share_end);
      compute_input_block(j, c_block, at % n_k_pairs, end_of_input_block - c_block * n_k_pairs, &p);
      at = end_of_input_block;
    }
  }
}

void clv_cpu_wide_conv_compute_dw(const cpu_weight_grad_job *job) {
  cpu_weight_grad_job j = *job;
  clv_cpu_parallel(j.threads, (size_t)j.threads, compute_weight_grad_shares, &j);
}
