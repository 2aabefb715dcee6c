/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch normalisation. Scratch holds the partial sums, and after them the statistics of a forward
 * that saves nothing, or the totals of a backward.
 *
 * With a relu and nothing added, backward recomputes from x which outputs were above 0. With an
 * added input it reads the output instead, and the pass that sums the totals also writes the
 * gradient that passes the relu. That is the gradient of the added input, from which the second
 * pass computes dx.
 */
#include "kernels/cuda/batchnorm_int.h"
#include "kernels/cuda/pointwise_int.h"

static cuda_batchnorm describe_batchnorm(const cuda_kernel *k) {
  const int64_t *dim = k->r.d.in[0].dim;
  size_t n = (size_t)dim[0], channels = (size_t)dim[1];
  size_t channel_size = n && channels ? k->r.n_in / n / channels : 1;
  return (cuda_batchnorm){.sums = (k->channels_last ? gpu_sum_layout_channels_last
                                                    : gpu_sum_layout_of)(n, channels, channel_size),
                          .channels_last = k->channels_last,
                          .is_training = k->r.d.training,
                          .eps = k->r.d.attrs.eps,
                          .momentum = k->r.d.attrs.momentum,
                          .has_relu = k->r.d.tail & CLV_TAIL_RELU};
}

static void *totals_address(const cuda_batchnorm *b, const clv_kernel_args *a) {
  return (char *)a->scratch + gpu_partial_sums_bytes(&b->sums);
}

static clv_code batchnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_batchnorm b = describe_batchnorm(k);
  double *saved = k->r.has_backward ? a->saved : totals_address(&b, a);
  if (b.is_training)
    CLV_TRY(clv_gpu_compute_batch_moments(k->gpu, &b, a->in[0], a->scratch, saved,
                                          a->param[CLV_SLOT_MEAN], a->param[CLV_SLOT_VAR],
                                          a->param[CLV_SLOT_TRACKED], err));
  else
    CLV_TRY(clv_gpu_read_running_moments(k->gpu, &b, a->param[CLV_SLOT_MEAN],
                                         a->param[CLV_SLOT_VAR], saved, err));
  return clv_gpu_batchnorm(k->gpu, &b, a->in[0], a->param[CLV_SLOT_WEIGHT], a->param[CLV_SLOT_BIAS],
                           saved, a->in[1], a->out, err);
}

static cuda_gradient describe_gradient(const cuda_kernel *k, const clv_kernel_args *a) {
  unsigned tail = k->r.d.tail;
  return (cuda_gradient){.gate = tail & CLV_TAIL_ADD ? GPU_RELU_BY_Y
                                 : tail              ? GPU_RELU_BY_X
                                                     : GPU_NO_RELU,
                         .x = a->in[0],
                         .w = a->param[CLV_SLOT_WEIGHT],
                         .bias = a->param[CLV_SLOT_BIAS],
                         .y = a->out,
                         .dy = a->dout,
                         .saved = a->saved};
}

static clv_code batchnorm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_batchnorm b = describe_batchnorm(k);
  cuda_gradient grad = describe_gradient(k, a);
  void *gated_dy = k->r.d.tail & CLV_TAIL_ADD ? a->din[1] : NULL;
  bool needs_dw = k->r.d.need_dw;
  if (needs_dw || (b.is_training && a->din[0]))
    CLV_TRY(clv_gpu_batchnorm_param_grads(k->gpu, &b, &grad, a->scratch, totals_address(&b, a),
                                          gated_dy, needs_dw ? a->dparam[CLV_SLOT_WEIGHT] : NULL,
                                          needs_dw ? a->dparam[CLV_SLOT_BIAS] : NULL, a->accumulate,
                                          err));
  else if (gated_dy)
    CLV_TRY(clv_gpu_relu_back(k->gpu, k->channels_last, a->out, a->dout, gated_dy, k->r.n_in,
                              (cuda_formula_numbers){0}, err));
  if (!a->din[0]) return CLV_OK;
  if (gated_dy) {
    grad.dy = gated_dy;
    grad.gate = GPU_NO_RELU;
  }
  return clv_gpu_batchnorm_back(k->gpu, &b, &grad, totals_address(&b, a), a->din[0], err);
}

static clv_code batchnorm_open(cuda_kernel *k, clv_err *err) {
  cuda_batchnorm b = describe_batchnorm(k);
  (void)err;
  k->r.base.scratch_bytes = gpu_partial_sums_bytes(&b.sums) + b.sums.channels * sizeof(cuda_pair);
  if (k->r.has_backward && k->r.d.tail & CLV_TAIL_ADD) k->r.base.saved_flags |= CLV_SAVE_OUT;
  k->r.base.din_in_place_mask = k->r.d.n_in == 2 ? 1u << 1 : 1u << 0;
  return CLV_OK;
}

CLV_CUDA_OP(batchnorm) = {.forward = batchnorm_forward,
                          .backward_input = batchnorm_backward,
                          .open = batchnorm_open,
                          .tails = CLV_TAIL_ADD | CLV_TAIL_RELU,
                          .fused_grads = true,
                          .channels_last = true};
