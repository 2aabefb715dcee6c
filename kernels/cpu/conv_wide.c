/* SPDX-License-Identifier: Apache-2.0
 *
 * The weight gradient of convolutions three taps wide in channel blocks of 8, for AVX2, where
 * oneDNN 2.6 reaches two thirds of its forward's speed. One step holds 12 vectors of sums, 3 taps
 * of 2 input channels for 2 blocks of output channels, so that 12 multiply-adds need 8 loads. The
 * image is first copied into a frame of zeros.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/conv_int.h"

enum { B = 8, TAPS = 3 };

#define FMA_CLONE __attribute__((target("avx2,fma")))

bool clv_cpu_wide_conv_fits(const clv_window *s, int block) {
  return block == B && s->kernel[1] == TAPS && s->dilation[0] == 1 && s->dilation[1] == 1 &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

typedef struct wide_scratch {
  float *frame; /* image in a frame of zeros, [h + 2 pad][w + 2 pad][8] */
  /* Sums of each output block, [kernel h][3][8 c][8 k]. Output blocks are computed in pairs, so
   * there is one spare block for the partner of an odd last one. */
  float *sums;
} wide_scratch;

static size_t frame_size(const clv_window *s) {
  return (size_t)((s->h + 2 * s->pad[0]) * (s->w + 2 * s->pad[1])) * B;
}

static size_t block_size(const clv_window *s) { return (size_t)(s->kernel[0] * TAPS * B) * B; }

static size_t count_blocks(int64_t channels) { return (size_t)(channels + B - 1) / B; }

static size_t part_size(const clv_window *s) {
  return frame_size(s) + block_size(s) * (count_blocks(s->k) + 1);
}

size_t clv_cpu_wide_conv_scratch(const clv_window *s, int threads) {
  return part_size(s) * (size_t)threads * sizeof(float);
}

/* Adds one image's sums for two output blocks, input channels c and c + 1 and the taps of window
 * row u. The sums have twelve names, because compilers keep a copy of an array in memory. */
FMA_CLONE static void row_sums(const clv_window *s, const float *frame, const float *const dy[2],
                               int64_t u, int c, float *const sums[2]) {
  int64_t width = (s->w + 2 * s->pad[1]) * B, step = s->stride[1] * B;
  const float *d = dy[0], *e = dy[1];
  __m256 a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5;
  a0 = a1 = a2 = a3 = a4 = a5 = b0 = b1 = b2 = b3 = b4 = b5 = _mm256_setzero_ps();
#define ADD(n, offset)                              \
  do {                                              \
    __m256 one = _mm256_broadcast_ss(x + (offset)); \
    a##n = _mm256_fmadd_ps(first, one, a##n);       \
    b##n = _mm256_fmadd_ps(second, one, b##n);      \
  } while (0)
  for (int64_t i = 0; i < s->oh; i++) {
    const float *x = frame + (i * s->stride[0] + u) * width + c;
    for (int64_t o = 0; o < s->ow; o++, x += step, d += B, e += B) {
      __m256 first = _mm256_loadu_ps(d), second = _mm256_loadu_ps(e);
      ADD(0, 0);
      ADD(1, 1);
      ADD(2, B);
      ADD(3, B + 1);
      ADD(4, 2 * B);
      ADD(5, 2 * B + 1);
    }
  }
#undef ADD
  const __m256 all[2][2 * TAPS] = {{a0, a1, a2, a3, a4, a5}, {b0, b1, b2, b3, b4, b5}};
  for (int k = 0; k < 2; k++)
    for (int n = 0; n < 2 * TAPS; n++) {
      float *to = sums[k] + ((u * TAPS + n / 2) * B + c + n % 2) * B;
      _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), all[k][n]));
    }
}

static void fill_frame(const clv_window *s, const float *x, float *frame) {
  int64_t width = s->w + 2 * s->pad[1];
  for (int64_t h = 0; h < s->h; h++)
    memcpy(frame + ((h + s->pad[0]) * width + s->pad[1]) * B, x + h * s->w * B,
           (size_t)(s->w * B) * sizeof *x);
}

/* Adds the sums of image n: the input block that is in the frame, and output blocks [begin, end).
 */
static void sum_image(const cpu_weight_job *j, int64_t n, size_t begin, size_t end,
                      const wide_scratch *p) {
  const clv_window *s = &j->s;
  size_t image = (size_t)(s->oh * s->ow) * B;
  for (size_t kb = begin; kb < end; kb += 2) {
    size_t second = kb + 1 < end ? 1 : 0;
    const float *first = j->dy + ((size_t)n * count_blocks(s->k) + kb) * image;
    const float *const dy[2] = {first, first + second * image};
    float *const sums[2] = {p->sums + kb * block_size(s), p->sums + (kb + 1) * block_size(s)};
    for (int64_t u = 0; u < s->kernel[0]; u++)
      for (int c = 0; c < B; c += 2) row_sums(s, p->frame, dy, u, c, sums);
  }
}

static void store_sum(float *dst, float value, bool accumulate) {
  *dst = accumulate ? *dst + value : value;
}

static void store_block(const cpu_weight_job *j, size_t cb, size_t kb, const float *sums) {
  const clv_window *s = &j->s;
  int64_t taps = s->kernel[0] * TAPS, first = (int64_t)kb * B, c0 = (int64_t)cb * B;
  for (int64_t k = first; k < CLV_MIN(first + B, s->k); k++)
    for (int64_t c = c0; c < CLV_MIN(c0 + B, s->c); c++)
      for (int64_t t = 0; t < taps; t++)
        store_sum(&j->dw[(k * s->c + c) * taps + t], sums[(t * B + c - c0) * B + k - first],
                  j->accumulate);
}

/* Computes the weight gradients of input block cb and of pairs [begin, end) of output blocks. */
static void run_input_block(const cpu_weight_job *j, size_t cb, size_t begin, size_t end,
                            const wide_scratch *p) {
  const clv_window *s = &j->s;
  size_t first = begin * 2, last = CLV_MIN(end * 2, count_blocks(s->k));
  size_t image = (size_t)(s->h * s->w) * B;
  memset(p->frame, 0, part_size(s) * sizeof(float));
  for (int64_t n = 0; n < s->n; n++) {
    fill_frame(s, j->x + ((size_t)n * count_blocks(s->c) + cb) * image, p->frame);
    sum_image(j, n, first, last, p);
  }
  for (size_t kb = first; kb < last; kb++) store_block(j, cb, kb, p->sums + kb * block_size(s));
}

/* Computes shares [begin, end) of the weight gradient, one for each thread: a range of the
 * combinations of an input block and two output blocks. Share i uses part i of scratch. */
static void compute_weight_grad_shares(void *arg, size_t begin, size_t end) {
  const cpu_weight_job *j = arg;
  size_t pairs = (count_blocks(j->s.k) + 1) / 2, n_combinations = count_blocks(j->s.c) * pairs;
  for (size_t share = begin; share < end; share++) {
    wide_scratch p = {j->scratch + share * part_size(&j->s), NULL};
    p.sums = p.frame + frame_size(&j->s);
    size_t at = n_combinations * share / (size_t)j->threads,
           share_end = n_combinations * (share + 1) / (size_t)j->threads;
    while (at < share_end) {
      size_t cb = at / pairs, next = CLV_MIN((cb + 1) * pairs, share_end);
      run_input_block(j, cb, at % pairs, next - cb * pairs, &p);
      at = next;
    }
  }
}

void clv_cpu_wide_conv_weight(const cpu_weight_job *job) {
  cpu_weight_job j = *job;
  clv_cpu_parallel(j.threads, (size_t)j.threads, compute_weight_grad_shares, &j);
}
