/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions as the simulation has them: plain loops, summed in double.
 */
#include "tests/gpu/sim/sim_int.h"

void sim_conv_counts(const clv_cuda_conv_desc *d, size_t ret[3]) {
  const clv_window *s = &d->window;
  ret[0] = (size_t)(s->n * s->c * s->h * s->w);
  ret[1] = (size_t)(s->k * (s->c / d->groups) * s->kernel[0] * s->kernel[1]);
  ret[2] = (size_t)(s->n * s->k * s->oh * s->ow);
}

static const int written[] = {
    [CLV_CUDA_FORWARD] = 2, [CLV_CUDA_GRAD_INPUT] = 0, [CLV_CUDA_GRAD_WEIGHT] = 1};

static double *doubles(clv_cuda_math math, const void *x, size_t n, bool zero) {
  double *d = sim_fresh_take(n * sizeof *d);
  for (size_t i = 0; i < n; i++) d[i] = zero ? 0 : sim_factor(math, x, i);
  return d;
}

void sim_conv_run(const sim_op *op) {
  const clv_cuda_conv_desc *d = &op->desc.conv;
  int out = written[d->pass];
  double *operand[3];
  size_t n[3];
  sim_conv_counts(d, n);
  for (int i = 0; i < 3; i++)
    operand[i] = doubles(i == out ? CLV_CUDA_F32 : d->math, op->operand[i], n[i],
                         i == out && !(op->beta > 0));
  sim_convolution(d, operand);
  for (size_t i = 0; i < n[out]; i++) ((float *)op->operand[out])[i] = (float)operand[out][i];
  for (int i = 0; i < 3; i++) sim_fresh_give(operand[i]);
}
