/* SPDX-License-Identifier: Apache-2.0
 *
 * The weight gradient of a convolution over few channels. It is computed for one block of output
 * channels and one input channel at a time: each tap has a vector of sums, which stays in a
 * register while the image is read. The image is first copied into a frame of zeros, so that no tap
 * is outside.
 */
#include <string.h>

#include "kernels/cpu/conv_int.h"

enum { MAX_TAPS = 9 }; /* number of taps whose sums are in registers at a time: a 3x3 window */

/* Returns the size in floats of the padded image, which is the image in a frame of zeros. In
 * scratch the sums of all taps for one output block and one input channel follow. */
static size_t padded_image_size(const clv_window *s) {
  return (size_t)((s->h + 2 * s->pad[0]) * (s->w + 2 * s->pad[1]));
}

static size_t sums_size(const clv_window *s, int block) {
  return (size_t)(s->kernel[0] * s->kernel[1]) * (size_t)block;
}

static size_t share_scratch_size(const clv_window *s, int block) {
  return clv_align_up(padded_image_size(s) + sums_size(s, block), 16);
}

size_t clv_cpu_small_conv_scratch_bytes(const clv_window *s, int block, int threads) {
  return share_scratch_size(s, block) * (size_t)threads * sizeof(float);
}

static void fill_padded_image(const clv_window *s, const float *x, float *padded_image) {
  int64_t width = s->w + 2 * s->pad[1];
  for (int64_t h = 0; h < s->h; h++)
    memcpy(padded_image + (h + s->pad[0]) * width + s->pad[1], x + h * s->w,
           (size_t)s->w * sizeof *x);
}

/* DEFINE_TAP_SUMS defines functions for channel blocks of B, compiled for TARGET. sum_taps adds to
 * sums[first + t] the sum over one image of dy times the padded image at tap first + t, for t below
 * `taps`. sum_image does so for all taps. */
#define DEFINE_TAP_SUMS(B, vf, W, TARGET)                                                    \
  TARGET CPU_INLINE void sum_taps_##B##_##W(const clv_window *s, const float *padded_image,  \
                                            const float *dy_plane, int64_t first,            \
                                            const int64_t taps, float *sums) {               \
    const vf *dy = (const vf *)dy_plane;                                                     \
    int64_t width = s->w + 2 * s->pad[1], step = s->stride[1];                               \
    const float *at[MAX_TAPS];                                                               \
    vf acc[MAX_TAPS];                                                                        \
    for (int64_t t = 0; t < taps; t++) {                                                     \
      at[t] = padded_image + (first + t) / s->kernel[1] * s->dilation[0] * width +           \
              (first + t) % s->kernel[1] * s->dilation[1];                                   \
      acc[t] = (vf){0};                                                                      \
    }                                                                                        \
    for (int64_t i = 0; i < s->oh; i++) {                                                    \
      int64_t row = i * s->stride[0] * width;                                                \
      for (int64_t o = 0; o < s->ow; o++, dy++)                                              \
        for (int64_t t = 0; t < taps; t++) acc[t] += *dy * at[t][row + o * step];            \
    }                                                                                        \
    for (int64_t t = 0; t < taps; t++) *((vf *)sums + first + t) += acc[t];                  \
  }                                                                                          \
  TARGET static void sum_image_##B##_##W(const clv_window *s, const float *padded_image,     \
                                         const float *dy, float *sums) {                     \
    int64_t n_taps = s->kernel[0] * s->kernel[1], first = 0;                                 \
    for (; first + MAX_TAPS <= n_taps; first += MAX_TAPS)                                    \
      sum_taps_##B##_##W(s, padded_image, dy, first, MAX_TAPS, sums);                        \
    for (; first + 4 <= n_taps; first += 4)                                                  \
      sum_taps_##B##_##W(s, padded_image, dy, first, 4, sums);                               \
    for (; first < n_taps; first++) sum_taps_##B##_##W(s, padded_image, dy, first, 1, sums); \
  }

DEFINE_TAP_SUMS(8, cpu_vf8, PLAIN, CPU_TARGET_PLAIN)
DEFINE_TAP_SUMS(8, cpu_vf8, 256, CPU_TARGET_256)
DEFINE_TAP_SUMS(8, cpu_vf8, 512, CPU_TARGET_512)
DEFINE_TAP_SUMS(16, cpu_vf16, PLAIN, CPU_TARGET_PLAIN)
DEFINE_TAP_SUMS(16, cpu_vf16, 256, CPU_TARGET_256)
DEFINE_TAP_SUMS(16, cpu_vf16, 512, CPU_TARGET_512)

typedef void sum_image_fn(const clv_window *s, const float *padded_image, const float *dy,
                          float *sums);

/* The three compilations of a function, indexed by clv_cpu_vector_width(). */
#define FNS_BY_WIDTH(name) \
  { [CPU_PLAIN] = name##_PLAIN, [CPU_AVX2] = name##_256, [CPU_AVX512] = name##_512 }

/* Functions that sum one image, for channel blocks 8 and 16, indexed by block / 16. */
static sum_image_fn *const sum_image_fns[2][3] = {[8 / 16] = FNS_BY_WIDTH(sum_image_8),
                                                  [16 / 16] = FNS_BY_WIDTH(sum_image_16)};

static void store_sum(float *dst, float value, bool accumulate) {
  *dst = accumulate ? *dst + value : value;
}

/* Computes the weight gradients between output channel block k_block and input channel c. */
static void compute_block_pair(const cpu_weight_grad_job *j, int64_t k_block, int64_t c,
                               float *scratch) {
  const clv_window *s = &j->s;
  int64_t n_k_blocks = (s->k + j->block - 1) / j->block, image_size = s->oh * s->ow * j->block;
  int64_t taps = s->kernel[0] * s->kernel[1];
  float *padded_image = scratch, *sums = scratch + padded_image_size(s);
  memset(scratch, 0, (padded_image_size(s) + sums_size(s, j->block)) * sizeof *scratch);
  for (int64_t n = 0; n < s->n; n++) {
    const float *dy = j->dy + (n * n_k_blocks + k_block) * image_size;
    fill_padded_image(s, j->x + (n * s->c + c) * s->h * s->w, padded_image);
    sum_image_fns[j->block / 16][clv_cpu_vector_width()](s, padded_image, dy, sums);
  }
  for (int64_t l = 0, k = k_block * j->block; l < j->block && k < s->k; l++, k++)
    for (int64_t t = 0; t < taps; t++)
      store_sum(&j->dw[(k * s->c + c) * taps + t], sums[t * j->block + l], j->accumulate);
}

/* Computes shares [begin, end) of the weight gradient, one share for each thread: every
 * `threads`-th pair of an output block and an input channel. Each share has its own part of
 * scratch. */
static void compute_weight_grad_shares(void *arg, size_t begin, size_t end) {
  const cpu_weight_grad_job *j = arg;
  size_t n_pairs = (size_t)((j->s.k + j->block - 1) / j->block * j->s.c);
  for (size_t share = begin; share < end; share++)
    for (size_t p = share; p < n_pairs; p += (size_t)j->threads)
      compute_block_pair(j, (int64_t)p / j->s.c, (int64_t)p % j->s.c,
                         j->scratch + share * share_scratch_size(&j->s, j->block));
}

void clv_cpu_small_conv_compute_dw(const cpu_weight_grad_job *job) {
  cpu_weight_grad_job j = *job;
  clv_cpu_parallel(j.threads, (size_t)j.threads, compute_weight_grad_shares, &j);
}
