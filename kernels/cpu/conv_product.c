/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight gradients of 1x1 convolutions in bf16 with channels last, as our own products: dW = dy^T
 * x, where x and dy are matrices of positions by channels. oneDNN 2.6 computes them row of an image
 * by row, which takes up to eight times as long where rows are short.
 */
#include <string.h>

#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/pairs_int.h"

static size_t count_positions(const clv_window *s) { return (size_t)(s->n * s->oh * s->ow); }

static bool skips_positions(const clv_window *s) { return s->stride[0] != 1 || s->stride[1] != 1; }

bool clv_cpu_product_conv_fits(const clv_window *s, int64_t groups) {
  bool fits = groups == 1;
  for (int i = 0; i < 2; i++) fits = fits && s->kernel[i] == 1 && s->pad[i] == 0;
  return fits;
}

/* Scratch: the left factor, the right factor, and x without the positions that the stride skips. */
size_t clv_cpu_product_conv_scratch(const clv_window *s, int threads) {
  size_t n = count_positions(s);
  size_t bytes = clv_cpu_pairs_scratch_bytes(threads, (size_t)s->k, n);
  bytes += clv_cpu_pairs_bytes((size_t)s->c, n);
  if (skips_positions(s)) bytes += clv_align_up(n * (size_t)s->c * sizeof(uint16_t), 64);
  return bytes;
}

/* Copies the positions of x that the convolution reads. */
static void pick_positions(const clv_window *s, const uint16_t *x, uint16_t *ret) {
  size_t c = (size_t)s->c;
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t i = 0; i < s->oh; i++)
      for (int64_t o = 0; o < s->ow; o++, ret += c) {
        int64_t position = (n * s->h + i * s->stride[0]) * s->w + o * s->stride[1];
        memcpy(ret, x + (size_t)position * c, c * sizeof *x);
      }
}

void clv_cpu_product_conv_weight(const cpu_weight_job *job) {
  const clv_window *s = &job->s;
  size_t n = count_positions(s), c = (size_t)s->c, k = (size_t)s->k;
  char *right = (char *)job->scratch + clv_cpu_pairs_scratch_bytes(job->threads, k, n);
  const uint16_t *x = (const void *)job->x;
  if (skips_positions(s)) {
    uint16_t *picked = (void *)(right + clv_cpu_pairs_bytes(c, n));
    pick_positions(s, x, picked);
    x = picked;
  }
  const cpu_pairs_factor in = {.bf16 = x, .rows = n, .columns = c, .is_right = true};
  clv_cpu_pairs_pack(job->threads, &in, (void *)right);
  clv_cpu_pairs_multiply(job->threads,
                         &(cpu_pairs_product){.left_factor = {.bf16 = (const void *)job->dy,
                                                              .rows = n,
                                                              .columns = k,
                                                              .is_transposed = true},
                                              .m = k,
                                              .n = c,
                                              .k = n,
                                              .right_packed = (const void *)right,
                                              .scratch = (void *)job->scratch,
                                              .c = job->dw,
                                              .accumulate = job->accumulate,
                                              .sums = job->db});
}
