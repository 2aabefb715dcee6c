/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the simulated cuDNN's convolutions by plain loops, with sums in double.
 */
#include "tests/gpu/sim/sim_int.h"

/* Shape of an operand x, w or y: [n_outer, n_channels, n_positions]. n_outer counts samples, or
 * output channels of w. n_positions counts pixels of an image, or of a kernel. */
typedef struct extents {
  size_t n_outer, n_channels, n_positions;
} extents;

static extents get_extents(const clv_cuda_conv_desc *d, int i) {
  const clv_window *s = &d->window;
  const extents extents_of_operands[] = {
      {(size_t)s->n, (size_t)s->c, (size_t)(s->h * s->w)},
      {(size_t)s->k, (size_t)(s->c / d->groups), (size_t)(s->kernel[0] * s->kernel[1])},
      {(size_t)s->n, (size_t)s->k, (size_t)(s->oh * s->ow)}};
  return extents_of_operands[i];
}

static size_t count_values(extents e) { return e.n_outer * e.n_channels * e.n_positions; }

void sim_conv_count_values(const clv_cuda_conv_desc *d, size_t ret[3]) {
  for (int i = 0; i < 3; i++) ret[i] = count_values(get_extents(d, i));
}

static const int written_operand[] = {
    [CLV_CUDA_FORWARD] = 2, [CLV_CUDA_GRAD_INPUT] = 0, [CLV_CUDA_GRAD_WEIGHT] = 1};

/* Returns the position in memory of value i of the row-major order. In bf16, channels are the last
 * dimension. */
static size_t find_position(clv_cuda_math math, extents e, size_t i) {
  if (math != CLV_CUDA_BF16) return i;
  size_t position_index = i % e.n_positions, channel = i / e.n_positions % e.n_channels;
  return (i / e.n_positions / e.n_channels * e.n_positions + position_index) * e.n_channels +
         channel;
}

static double *copy_to_doubles(clv_cuda_math math, const void *x, extents e, bool is_zeroed) {
  double *d = sim_allocate_fresh(count_values(e) * sizeof *d);
  for (size_t i = 0; i < count_values(e); i++)
    d[i] = is_zeroed ? 0 : sim_get_factor(math, x, find_position(math, e, i));
  return d;
}

static void copy_from_doubles(clv_cuda_math math, const double *from, extents e, void *x) {
  for (size_t i = 0; i < count_values(e); i++)
    if (math == CLV_CUDA_BF16)
      ((uint16_t *)x)[find_position(math, e, i)] = sim_round_to_bf16((float)from[i]);
    else
      ((float *)x)[i] = (float)from[i];
}

void sim_conv_run(const sim_op *op) {
  const clv_cuda_conv_desc *d = &op->desc.conv;
  int out = written_operand[d->pass];
  double *operand[3];
  for (int i = 0; i < 3; i++) {
    clv_cuda_math math = i == out && d->math == CLV_CUDA_TF32 ? CLV_CUDA_F32 : d->math;
    operand[i] =
        copy_to_doubles(math, op->operands[i], get_extents(d, i), i == out && !(op->beta > 0));
  }
  sim_compute_convolution(d, operand);
  copy_from_doubles(d->math, operand[out], get_extents(d, out), op->operands[out]);
  for (int i = 0; i < 3; i++) sim_free_fresh(operand[i]);
}
