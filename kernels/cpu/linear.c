/* SPDX-License-Identifier: Apache-2.0
 *
 * linear: y = x W^T + b, x [rows, F], W [out, F]; dx = dy W, dW = dy^T x, db = column sums of dy.
 */
#include "kernels/cpu/cpu_int.h"

/* From this many rows on the weight gradient goes to OpenBLAS; see gemm.c. */
enum { LONG_SUM = 256 };

typedef struct linear_kernel {
  cpu_kernel k;
  cpu_gemm forward, backward_input, backward_weight;
} linear_kernel;

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_kernel *k = (const linear_kernel *)base;
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(clv_cpu_gemm(&k->forward, a->in[0], a->param[CLV_SLOT_WEIGHT], 0, a->out, err));
  if (k->k.d.attrs.bias)
    clv_cpu_add_bias(a->out, a->param[CLV_SLOT_BIAS], (size_t)k->forward.m, (size_t)k->forward.n);
  return CLV_OK;
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_kernel *k = (const linear_kernel *)base;
  clv_cpu_set_threads(k->k.threads);
  return clv_cpu_gemm(&k->backward_input, a->dout, a->param[CLV_SLOT_WEIGHT], 0, a->din[0], err);
}

static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_kernel *k = (const linear_kernel *)base;
  clv_cpu_set_threads(k->k.threads);
  bool t = k->k.d.attrs.transposed; /* dW^T = x^T dy */
  CLV_TRY(clv_cpu_gemm(&k->backward_weight, t ? a->in[0] : a->dout, t ? a->dout : a->in[0],
                       a->accumulate ? 1 : 0, a->dparam[CLV_SLOT_WEIGHT], err));
  if (k->k.d.attrs.bias)
    clv_cpu_column_sums(a->dout, (size_t)k->forward.m, (size_t)k->forward.n,
                        a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}

static clv_code linear_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const clv_shape *in = &d->in[0];
  linear_kernel *k;
  if (d->bf16) return clv_cpu_linear_bf16(d, ret, err);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  int64_t features = in->dim[in->rank - 1], out = d->attrs.out;
  bool t = d->attrs.transposed;
  int64_t rows = features ? (int64_t)k->k.n_in / features : 0;
  k->forward = (cpu_gemm){.m = rows, .n = out, .k = features, .b_t = !t};
  k->backward_input = (cpu_gemm){.m = rows, .n = features, .k = out, .b_t = t};
  k->backward_weight =
      (cpu_gemm){.m = t ? features : out, .n = t ? out : features, .k = rows, .a_t = true};
  k->backward_weight.blas = k->k.threads == 1 && rows >= LONG_SUM && clv_cpu_blas_is_as_wide();
  k->k.base.forward = linear_forward;
  k->k.base.backward_input = d->need_dx[0] ? linear_backward_input : NULL;
  k->k.base.backward_weight = d->need_dw ? linear_backward_weight : NULL;
  k->k.base.saves = k->k.base.saves_for_dw = d->need_dw ? CLV_SAVE_IN0 : 0;
  k->k.base.impl = k->backward_weight.blas ? "sgemm, OpenBLAS" : "sgemm";
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(linear, linear_prepare)
