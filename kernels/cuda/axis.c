/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/axis_int.h"

static clv_code flip_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_reorder_along_axis(k->gpu, &s, -1, -1, a->in[0], a->out, err);
}

static clv_code flip_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_reorder_along_axis(k->gpu, &s, -1, -1, a->dout, a->din[0], err);
}

CLV_CUDA_OP(flip) = {.forward = flip_forward, .backward_input = flip_backward};

static clv_code roll_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_reorder_along_axis(k->gpu, &s, -k->r.d.attrs.shifts, 1, a->in[0], a->out, err);
}

static clv_code roll_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_reorder_along_axis(k->gpu, &s, k->r.d.attrs.shifts, 1, a->dout, a->din[0], err);
}

CLV_CUDA_OP(roll) = {.forward = roll_forward, .backward_input = roll_backward};

static clv_code cumsum_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_cumsum(k->gpu, &s, false, a->in[0], a->out, err);
}

static clv_code cumsum_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_cumsum(k->gpu, &s, true, a->dout, a->din[0], err);
}

CLV_CUDA_OP(cumsum) = {.forward = cumsum_forward, .backward_input = cumsum_backward};

static double compute_divisor(const cuda_kernel *k, const clv_axis *s) {
  return (double)s->extent - (double)k->r.d.attrs.correction;
}

static clv_code var_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_var(k->gpu, &s, compute_divisor(k, &s), a->in[0], NULL, a->out, err);
}

static clv_code var_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  return clv_gpu_var(k->gpu, &s, compute_divisor(k, &s), a->in[0], a->dout, a->din[0], err);
}

CLV_CUDA_OP(var) = {.forward = var_forward, .backward_input = var_backward};
