/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes products and convolutions over copies that the host has made. No check and no sanitizer
 * observes these loops.
 */
#include <math.h>
#include <string.h>

#include "tests/gpu/sim/sim_int.h"

size_t sim_get_factor_bytes(clv_cuda_math math) {
  return math == CLV_CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
}

uint16_t sim_round_to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static double widen_bf16(const uint16_t *p) {
  uint32_t bits = (uint32_t)*p << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

/* Rounds to the nearest, ties to even, with 10 bits of fraction (tf32). */
static double round_to_tf32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isfinite(x)) bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

double sim_get_factor(clv_cuda_math math, const void *p, size_t i) {
  if (math == CLV_CUDA_BF16) return widen_bf16((const uint16_t *)p + i);
  float x = ((const float *)p)[i];
  return math == CLV_CUDA_TF32 ? round_to_tf32(x) : (double)x;
}

void sim_compute_product(const sim_product *p) {
  for (int64_t j = 0; j < p->n; j++)
    for (int64_t q = 0; q < p->k; q++) {
      const double *left = p->left_factor + q * p->m;
      double factor = p->right_factor[j * p->k + q], *sums = p->product + j * p->m;
      for (int64_t i = 0; i < p->m; i++) sums[i] += left[i] * factor;
    }
}

/* ---- convolutions, as sums over weights ------------------------------------------------------ */

/* The products of one weight w with a row of an image: y[i] += w * x[i * stride] for i < n, or the
 * gradient of x or w of this formula. */
typedef struct row {
  double *x, *w, *y;
  int64_t n, stride;
} row;

/* find_first_output and find_end_of_outputs return the range of outputs (first <= index < end)
 * whose input, at position `offset` of the window, is inside the image. */
static int64_t find_first_output(int64_t stride, int64_t pad, int64_t offset) {
  int64_t position = pad - offset;
  return position > 0 ? (position + stride - 1) / stride : 0;
}

static int64_t find_end_of_outputs(int64_t stride, int64_t pad, int64_t offset, int64_t extent,
                                   int64_t n_outputs) {
  int64_t last_position = extent - 1 + pad - offset;
  return last_position < 0 ? 0 : CLV_MIN(last_position / stride + 1, n_outputs);
}

static void run_row(clv_cuda_pass pass, const row *r) {
  double w = *r->w;
  if (pass == CLV_CUDA_FORWARD)
    for (int64_t i = 0; i < r->n; i++) r->y[i] += r->x[i * r->stride] * w;
  else if (pass == CLV_CUDA_GRAD_INPUT)
    for (int64_t i = 0; i < r->n; i++) r->x[i * r->stride] += r->y[i] * w;
  else
    for (int64_t i = 0; i < r->n; i++) *r->w += r->x[i * r->stride] * r->y[i];
}

/* Adds the products of one weight, of output channel k and input channel c at (ky, kx), over all of
 * image n. */
static void add_products_of_weight(const clv_cuda_conv_desc *d, double *const operand[3], int64_t n,
                                   int64_t k, int64_t c, int64_t ky, int64_t kx) {
  const clv_window *s = &d->window;
  int64_t channels_per_group = s->c / d->groups,
          input_channel = k / (s->k / d->groups) * channels_per_group + c;
  int64_t row_offset = ky * s->dilation[0], column_offset = kx * s->dilation[1];
  int64_t first_output = find_first_output(s->stride[1], s->pad[1], column_offset);
  int64_t end_of_outputs = find_end_of_outputs(s->stride[1], s->pad[1], column_offset, s->w, s->ow);
  double *x = operand[0] + (n * s->c + input_channel) * s->h * s->w,
         *y = operand[2] + (n * s->k + k) * s->oh * s->ow;
  double *w = operand[1] + ((k * channels_per_group + c) * s->kernel[0] + ky) * s->kernel[1] + kx;
  int64_t oy = find_first_output(s->stride[0], s->pad[0], row_offset);
  for (; oy < find_end_of_outputs(s->stride[0], s->pad[0], row_offset, s->h, s->oh); oy++) {
    int64_t at = (oy * s->stride[0] - s->pad[0] + row_offset) * s->w + first_output * s->stride[1] -
                 s->pad[1] + column_offset;
    run_row(d->pass, &(row){x + at, w, y + oy * s->ow + first_output, end_of_outputs - first_output,
                            s->stride[1]});
  }
}

void sim_compute_convolution(const clv_cuda_conv_desc *d, double *const operand[3]) {
  const clv_window *s = &d->window;
  int64_t channels_per_group = s->c / d->groups,
          n_weights_per_channel = s->kernel[0] * s->kernel[1];
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t k = 0; k < s->k; k++)
      for (int64_t i = 0; i < channels_per_group * n_weights_per_channel; i++)
        add_products_of_weight(d, operand, n, k, i / n_weights_per_channel,
                               i % n_weights_per_channel / s->kernel[1], i % s->kernel[1]);
}
