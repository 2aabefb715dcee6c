/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/pools_int.h"

/* ---- windows --------------------------------------------------------------------------------- */

static clv_code maxpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_maxpool(k->gpu, &s, a->in[0], a->out, k->r.learns ? a->saved : NULL, err);
}

static clv_code maxpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_maxpool_back(k->gpu, &s, a->dout, a->saved, a->din[0], err);
}

CLV_CUDA_OP(maxpool) = {.forward = maxpool_forward, .backward_input = maxpool_backward};

static clv_code avgpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_avgpool(k->gpu, &s, a->in[0], a->out, err);
}

static clv_code avgpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_avgpool_back(k->gpu, &s, a->dout, a->din[0], err);
}

CLV_CUDA_OP(avgpool) = {.forward = avgpool_forward, .backward_input = avgpool_backward};

/* ---- means ----------------------------------------------------------------------------------- */

static clv_axis axis_of(const cuda_kernel *k) {
  size_t image = k->r.n_out ? k->r.n_in / k->r.n_out : 1;
  if (k->r.d.op == CLV_OP_GLOBALAVGPOOL) return (clv_axis){k->r.n_out, image, 1};
  return clv_axis_around(&k->r.d.attrs, &k->r.d.in[0]);
}

static clv_code mean_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = axis_of(k);
  return clv_gpu_mean(k->gpu, &s, a->in[0], a->out, err);
}

static clv_code mean_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = axis_of(k);
  return clv_gpu_mean_back(k->gpu, &s, a->dout, a->din[0], err);
}

CLV_CUDA_OP(globalavgpool) = {.forward = mean_forward, .backward_input = mean_backward};
CLV_CUDA_OP(mean) = {.forward = mean_forward, .backward_input = mean_backward};
