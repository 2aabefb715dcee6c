/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/rows_int.h"

/* ---- softmax, log_softmax -------------------------------------------------------------------- */

static size_t row_width(const cuda_kernel *k) {
  return (size_t)k->r.d.in[0].dim[k->r.d.in[0].rank - 1];
}

static clv_code run_softmax(const cuda_kernel *k, const clv_kernel_args *a, bool is_log_softmax,
                            clv_err *err) {
  size_t width = row_width(k);
  return clv_gpu_softmax(k->gpu, a->in[0], a->out, k->r.n_in / width, width, is_log_softmax, err);
}

static clv_code run_softmax_back(const cuda_kernel *k, const clv_kernel_args *a,
                                 bool is_log_softmax, clv_err *err) {
  size_t width = row_width(k);
  return clv_gpu_softmax_back(k->gpu, a->out, a->dout, a->din[0], k->r.n_in / width, width,
                              is_log_softmax, err);
}

#define SOFTMAX(name, is_log_softmax)                                                         \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {  \
    return run_softmax(gpu_kernel_of(base), a, is_log_softmax, err);                          \
  }                                                                                           \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    return run_softmax_back(gpu_kernel_of(base), a, is_log_softmax, err);                     \
  }

SOFTMAX(softmax, false)
CLV_CUDA_OP(softmax) = {.forward = softmax_forward, .backward_input = softmax_backward};

SOFTMAX(log_softmax, true)
CLV_CUDA_OP(log_softmax) = {.forward = log_softmax_forward, .backward_input = log_softmax_backward};

/* ---- layernorm, rmsnorm, groupnorm ----------------------------------------------------------- */

static cuda_norm describe_norm(const cuda_kernel *k) {
  bool is_instancenorm = k->r.d.op == CLV_OP_INSTANCENORM,
       is_grouped = is_instancenorm || k->r.d.op == CLV_OP_GROUPNORM;
  size_t n_weights = is_instancenorm ? (size_t)k->r.d.in[0].dim[1]
                                     : clv_layout_numel(&k->r.d.param[CLV_SLOT_WEIGHT], 1);
  cuda_norm n = {.groups = is_instancenorm ? n_weights
                           : is_grouped    ? (size_t)k->r.d.attrs.groups
                                           : 1,
                 .inner = is_grouped ? k->r.n_in / (size_t)k->r.d.in[0].dim[0] / n_weights : 1,
                 .is_centred = k->r.d.op != CLV_OP_RMSNORM,
                 .eps = k->r.d.attrs.eps};
  n.width = n_weights / n.groups * n.inner;
  n.rows = k->r.n_in / n.width;
  return n;
}

static clv_code norm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_norm n = describe_norm(k);
  return clv_gpu_normalise_rows(k->gpu, &n, a->in[0], a->param[CLV_SLOT_WEIGHT],
                                n.is_centred ? a->param[CLV_SLOT_BIAS] : NULL, a->out,
                                k->r.has_backward ? a->saved : NULL, err);
}

static clv_code norm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_norm n = describe_norm(k);
  return clv_gpu_normalise_rows_back(k->gpu, &n, a->in[0], a->param[CLV_SLOT_WEIGHT], a->dout,
                                     a->saved, a->din[0], err);
}

static clv_code norm_weights_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_norm n = describe_norm(k);
  return clv_gpu_norm_param_grads(
      k->gpu, &n, a->in[0], a->dout, a->saved, a->scratch, a->dparam[CLV_SLOT_WEIGHT],
      n.is_centred ? a->dparam[CLV_SLOT_BIAS] : NULL, a->accumulate, err);
}

static clv_code norm_open(cuda_kernel *k, clv_err *err) {
  cuda_norm n = describe_norm(k);
  cuda_sum_layout s = gpu_norm_sum_layout(&n);
  (void)err;
  k->r.base.saved_bytes = k->r.has_backward ? 2 * n.rows * sizeof(double) : 0;
  k->r.base.scratch_bytes = k->r.d.need_dw ? gpu_partial_sums_bytes(&s) : 0;
  return CLV_OK;
}

#define NORM_FNS                                                \
  {                                                             \
    .forward = norm_forward, .backward_input = norm_backward,   \
    .backward_weight = norm_weights_backward, .open = norm_open \
  }
CLV_CUDA_OP(layernorm) = NORM_FNS;
CLV_CUDA_OP(rmsnorm) = NORM_FNS;
CLV_CUDA_OP(groupnorm) = NORM_FNS;
CLV_CUDA_OP(instancenorm) = NORM_FNS;
