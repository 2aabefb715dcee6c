/* SPDX-License-Identifier: Apache-2.0
 *
 * Scratch holds the parts of a sum, and behind them the saved statistics of a forward that saves
 * nothing, or the totals of a backward.
 */
#include "kernels/cuda/batchnorm_int.h"

static cuda_batchnorm site_of(const cuda_kernel *k) {
  const int64_t *dim = k->r.d.in[0].dim;
  size_t n = (size_t)dim[0], channels = (size_t)dim[1];
  size_t inner = n && channels ? k->r.n_in / n / channels : 1;
  return (cuda_batchnorm){.sums = gpu_sums_of(n, channels, inner),
                          .training = k->r.d.training,
                          .eps = k->r.d.attrs.eps,
                          .momentum = k->r.d.attrs.momentum};
}

static void *after_parts(const cuda_batchnorm *b, const clv_kernel_args *a) {
  return (char *)a->scratch + gpu_parts_bytes(&b->sums);
}

static clv_code batchnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_batchnorm b = site_of(k);
  double *saved = k->r.learns ? a->saved : after_parts(&b, a);
  if (b.training)
    CLV_TRY(clv_gpu_batch_moments(k->gpu, &b, a->in[0], a->scratch, saved, a->param[CLV_SLOT_MEAN],
                                  a->param[CLV_SLOT_VAR], a->param[CLV_SLOT_TRACKED], err));
  else
    CLV_TRY(clv_gpu_running_moments(k->gpu, &b, a->param[CLV_SLOT_MEAN], a->param[CLV_SLOT_VAR],
                                    saved, err));
  return clv_gpu_batchnorm(k->gpu, &b, a->in[0], a->param[CLV_SLOT_WEIGHT], a->param[CLV_SLOT_BIAS],
                           saved, a->out, err);
}

static clv_code batchnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_batchnorm b = site_of(k);
  if (b.training)
    CLV_TRY(clv_gpu_batchnorm_sums(k->gpu, &b, a->in[0], a->dout, a->saved, a->scratch, err));
  return clv_gpu_batchnorm_back(k->gpu, &b, a->in[0], a->param[CLV_SLOT_WEIGHT], a->dout, a->saved,
                                a->scratch, after_parts(&b, a), a->din[0], err);
}

static clv_code batchnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_batchnorm b = site_of(k);
  CLV_TRY(clv_gpu_batchnorm_sums(k->gpu, &b, a->in[0], a->dout, a->saved, a->scratch, err));
  return clv_gpu_batchnorm_weights_back(k->gpu, &b, a->scratch, a->dparam[CLV_SLOT_WEIGHT],
                                        a->dparam[CLV_SLOT_BIAS], a->accumulate, err);
}

static clv_code batchnorm_open(cuda_kernel *k, clv_err *err) {
  cuda_batchnorm b = site_of(k);
  (void)err;
  k->r.base.scratch_bytes = gpu_parts_bytes(&b.sums) + b.sums.channels * sizeof(cuda_pair);
  return CLV_OK;
}

CLV_CUDA_OP(batchnorm) = {.forward = batchnorm_forward,
                          .backward_input = batchnorm_backward_input,
                          .backward_weight = batchnorm_backward_weight,
                          .open = batchnorm_open};
