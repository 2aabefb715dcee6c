/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/pointwise_int.h"

static cuda_sum_layout describe_channels(const cuda_kernel *k) {
  size_t n = (size_t)k->r.d.in[0].dim[0], channels = (size_t)k->r.d.attrs.num_parameters;
  return gpu_sum_layout_of(n, channels, k->r.n_in / n / channels);
}

static clv_code prelu_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_sum_layout s = describe_channels(k);
  return clv_gpu_prelu(k->gpu, &s, a->in[0], a->param[CLV_SLOT_WEIGHT], NULL, a->out, err);
}

static clv_code prelu_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_sum_layout s = describe_channels(k);
  return clv_gpu_prelu(k->gpu, &s, a->in[0], a->param[CLV_SLOT_WEIGHT], a->dout, a->din[0], err);
}

static clv_code prelu_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_sum_layout s = describe_channels(k);
  return clv_gpu_prelu_weight_grads(k->gpu, &s, a->in[0], a->dout, a->scratch,
                                    a->dparam[CLV_SLOT_WEIGHT], a->accumulate, err);
}

static clv_code prelu_open(cuda_kernel *k, clv_err *err) {
  cuda_sum_layout s = describe_channels(k);
  (void)err;
  k->r.base.scratch_bytes = k->r.d.need_dw ? gpu_partial_sums_bytes(&s) : 0;
  return CLV_OK;
}

CLV_CUDA_OP(prelu) = {.forward = prelu_forward,
                      .backward_input = prelu_backward_input,
                      .backward_weight = prelu_backward_weight,
                      .open = prelu_open};
