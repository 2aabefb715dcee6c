/* SPDX-License-Identifier: Apache-2.0
 *
 * linear: y = x W^T + b, x [rows, F], W [out, F]; dx = dy W, dW = dy^T x, db = column sums of dy.
 *
 * A weight in bf16 is not trained. Its rows are widened in scratch, as many as stay in a cache, and
 * multiplied there, so the full weight never exists in f32. The rows are outputs in forward and
 * terms of the sum in backward; if W is stored transposed, the reverse.
 */
#include "kernels/cpu/cpu_int.h"

/* Number of rows from which OpenBLAS computes the weight gradient; see gemm.c. */
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

/* ---- a weight in bf16 ------------------------------------------------------------------------ */

/* Size of a part of widened rows, which has at least LEAST_ROWS, because fewer rows make
 * the products slow. */
enum { PART_BYTES = 1 << 20, LEAST_ROWS = 256 };

typedef struct linear_narrow {
  cpu_kernel k;
  int64_t rows;       /* rows of the input */
  int64_t high, wide; /* W is [high][wide] */
  int64_t high_at_once;
} linear_narrow;

static const float *widened(const linear_narrow *k, const clv_kernel_args *a, int64_t first,
                            int64_t n) {
  const uint16_t *w = (const uint16_t *)a->param[CLV_SLOT_WEIGHT] + first * k->wide;
  clv_cpu_convert(w, 1 | CLV_LAYOUT_BF16, a->scratch, (size_t)(n * k->wide));
  return a->scratch;
}

/* y [rows][high] = x [rows][wide] W^T */
static clv_code outputs_in_parts(const linear_narrow *k, const clv_kernel_args *a, const float *x,
                                 float *y, clv_err *err) {
  for (int64_t first = 0; first < k->high; first += k->high_at_once) {
    int64_t n = CLV_MIN(k->high - first, k->high_at_once);
    const cpu_gemm g = {.m = k->rows, .n = n, .k = k->wide, .b_t = true};
    CLV_TRY(
        clv_cpu_gemm_within(&g, x, k->wide, widened(k, a, first, n), 0, y + first, k->high, err));
  }
  return CLV_OK;
}

/* y [rows][wide] = x [rows][high] W */
static clv_code sums_in_parts(const linear_narrow *k, const clv_kernel_args *a, const float *x,
                              float *y, clv_err *err) {
  for (int64_t first = 0; first < k->high; first += k->high_at_once) {
    int64_t n = CLV_MIN(k->high - first, k->high_at_once);
    const cpu_gemm g = {.m = k->rows, .n = k->wide, .k = n};
    CLV_TRY(clv_cpu_gemm_within(&g, x + first, k->high, widened(k, a, first, n), first ? 1 : 0, y,
                                k->wide, err));
  }
  return CLV_OK;
}

static clv_code narrow_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_narrow *k = (const linear_narrow *)base;
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY(
      (k->k.d.attrs.transposed ? sums_in_parts : outputs_in_parts)(k, a, a->in[0], a->out, err));
  if (k->k.d.attrs.bias)
    clv_cpu_add_bias(a->out, a->param[CLV_SLOT_BIAS], (size_t)k->rows, (size_t)k->k.d.attrs.out);
  return CLV_OK;
}

static clv_code narrow_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_narrow *k = (const linear_narrow *)base;
  clv_cpu_set_threads(k->k.threads);
  return (k->k.d.attrs.transposed ? outputs_in_parts : sums_in_parts)(k, a, a->dout, a->din[0],
                                                                      err);
}

/* Computes the gradient of the bias. */
static clv_code narrow_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_narrow *k = (const linear_narrow *)base;
  (void)err;
  if (k->k.d.attrs.bias)
    clv_cpu_column_sums(a->dout, (size_t)k->rows, (size_t)k->k.d.attrs.out,
                        a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}

static clv_code narrow_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const clv_shape *in = &d->in[0];
  int64_t features = in->dim[in->rank - 1];
  linear_narrow *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  clv_kernel *base = &k->k.base;
  k->rows = features ? (int64_t)k->k.n_in / features : 0;
  k->high = d->attrs.transposed ? features : d->attrs.out;
  k->wide = d->attrs.transposed ? d->attrs.out : features;
  int64_t fit = PART_BYTES / (int64_t)sizeof(float) / CLV_MAX(k->wide, (int64_t)1);
  k->high_at_once = CLV_MIN(CLV_MAX(fit, (int64_t)LEAST_ROWS), k->high);
  base->scratch_bytes = (size_t)(k->high_at_once * k->wide) * sizeof(float);
  base->forward = narrow_forward;
  base->backward_input = d->need_dx[0] ? narrow_backward_input : NULL;
  base->backward_weight = d->need_dw ? narrow_backward_weight : NULL;
  base->impl = "sgemm, weight in bf16";
  *ret = base;
  return CLV_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

static clv_code linear_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const clv_shape *in = &d->in[0];
  linear_kernel *k;
  if (d->bf16) return clv_cpu_linear_bf16(d, ret, err);
  if (d->bf16_weight) return narrow_prepare(d, ret, err);
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
