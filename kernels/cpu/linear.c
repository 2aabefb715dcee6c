/* SPDX-License-Identifier: Apache-2.0
 *
 * linear: y = x W^T + b, x [rows, F], W [out, F]; dx = dy W, dW = dy^T x, db = column sums of dy.
 *
 * A weight in bf16 is not trained. As many of its rows as stay in a cache are widened to f32 in
 * scratch, and multiplied, before the next rows are, so that the full weight never exists in f32. A
 * row of W gives one output feature in forward, and one term of each sum in backward; if W is
 * stored transposed, it is the reverse.
 */
#include "kernels/cpu/choices_int.h"

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
  bool is_transposed = k->k.d.attrs.transposed; /* W^T is stored, so dW^T = x^T dy */
  CLV_TRY(clv_cpu_gemm(&k->backward_weight, is_transposed ? a->in[0] : a->dout,
                       is_transposed ? a->dout : a->in[0], a->accumulate ? 1 : 0,
                       a->dparam[CLV_SLOT_WEIGHT], err));
  if (k->k.d.attrs.bias)
    clv_cpu_sum_columns(a->dout, (size_t)k->forward.m, (size_t)k->forward.n,
                        a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}

/* ---- linear with a weight in bf16 ------------------------------------------------------------ */

/* Size of the rows that are widened at a time. At least MIN_WIDENED_ROWS rows are widened, because
 * products with fewer rows are slow. */
enum { MAX_WIDENED_BYTES = 1 << 20, MIN_WIDENED_ROWS = 256 };

typedef struct bf16_weight_kernel {
  cpu_kernel k;
  int64_t rows;              /* number of rows of the input */
  int64_t w_rows, w_columns; /* W is stored as [w_rows][w_columns] */
  int64_t max_widened_rows;  /* most rows of W that are widened at a time */
} bf16_weight_kernel;

/* Converts n rows of W from row `first` on to f32, in scratch. */
static const float *widen_rows(const bf16_weight_kernel *k, const clv_kernel_args *a,
                               int64_t first_row, int64_t n) {
  const uint16_t *w = (const uint16_t *)a->param[CLV_SLOT_WEIGHT] + first_row * k->w_columns;
  clv_cpu_convert_type(w, 1 | CLV_LAYOUT_BF16, a->scratch, (size_t)(n * k->w_columns));
  return a->scratch;
}

/* Computes y [rows][w_rows] = x [rows][w_columns] W^T. */
static clv_code multiply_by_w_transposed(const bf16_weight_kernel *k, const clv_kernel_args *a,
                                         const float *x, float *y, clv_err *err) {
  for (int64_t first_row = 0; first_row < k->w_rows; first_row += k->max_widened_rows) {
    int64_t n = CLV_MIN(k->w_rows - first_row, k->max_widened_rows);
    const cpu_gemm g = {.m = k->rows, .n = n, .k = k->w_columns, .b_is_transposed = true};
    CLV_TRY(clv_cpu_gemm_strided(&g, x, k->w_columns, widen_rows(k, a, first_row, n), 0,
                                 y + first_row, k->w_rows, err));
  }
  return CLV_OK;
}

/* Computes y [rows][w_columns] = x [rows][w_rows] W. */
static clv_code multiply_by_w(const bf16_weight_kernel *k, const clv_kernel_args *a, const float *x,
                              float *y, clv_err *err) {
  for (int64_t first_row = 0; first_row < k->w_rows; first_row += k->max_widened_rows) {
    int64_t n = CLV_MIN(k->w_rows - first_row, k->max_widened_rows);
    const cpu_gemm g = {.m = k->rows, .n = k->w_columns, .k = n};
    CLV_TRY(clv_cpu_gemm_strided(&g, x + first_row, k->w_rows, widen_rows(k, a, first_row, n),
                                 first_row ? 1 : 0, y, k->w_columns, err));
  }
  return CLV_OK;
}

static clv_code bf16_weight_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const bf16_weight_kernel *k = (const bf16_weight_kernel *)base;
  clv_cpu_set_threads(k->k.threads);
  CLV_TRY((k->k.d.attrs.transposed ? multiply_by_w : multiply_by_w_transposed)(k, a, a->in[0],
                                                                               a->out, err));
  if (k->k.d.attrs.bias)
    clv_cpu_add_bias(a->out, a->param[CLV_SLOT_BIAS], (size_t)k->rows, (size_t)k->k.d.attrs.out);
  return CLV_OK;
}

static clv_code bf16_weight_backward_input(clv_kernel *base, const clv_kernel_args *a,
                                           clv_err *err) {
  const bf16_weight_kernel *k = (const bf16_weight_kernel *)base;
  clv_cpu_set_threads(k->k.threads);
  return (k->k.d.attrs.transposed ? multiply_by_w_transposed : multiply_by_w)(k, a, a->dout,
                                                                              a->din[0], err);
}

/* Computes the gradient of the bias; a weight in bf16 is not trained. */
static clv_code bf16_weight_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                            clv_err *err) {
  const bf16_weight_kernel *k = (const bf16_weight_kernel *)base;
  (void)err;
  if (k->k.d.attrs.bias)
    clv_cpu_sum_columns(a->dout, (size_t)k->rows, (size_t)k->k.d.attrs.out,
                        a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}

static clv_code bf16_weight_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const clv_shape *in = &d->in[0];
  int64_t features = in->dim[in->rank - 1];
  bf16_weight_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  clv_kernel *base = &k->k.base;
  k->rows = features ? (int64_t)k->k.n_in / features : 0;
  k->w_rows = d->attrs.transposed ? features : d->attrs.out;
  k->w_columns = d->attrs.transposed ? d->attrs.out : features;
  int64_t rows_that_fit =
      MAX_WIDENED_BYTES / (int64_t)sizeof(float) / CLV_MAX(k->w_columns, (int64_t)1);
  k->max_widened_rows = CLV_MIN(CLV_MAX(rows_that_fit, (int64_t)MIN_WIDENED_ROWS), k->w_rows);
  base->scratch_bytes = (size_t)(k->max_widened_rows * k->w_columns) * sizeof(float);
  base->forward = bf16_weight_forward;
  base->backward_input = d->need_dx[0] ? bf16_weight_backward_input : NULL;
  base->backward_weight = d->need_dw ? bf16_weight_backward_weight : NULL;
  base->impl = "sgemm, weight in bf16";
  *ret = base;
  return CLV_OK;
}

/* ---- making the kernel ----------------------------------------------------------------------- */

static clv_code linear_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const clv_shape *in = &d->in[0];
  linear_kernel *k;
  if (d->bf16) return clv_cpu_linear_bf16(d, ret, err);
  if (d->bf16_weight) return bf16_weight_prepare(d, ret, err);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  int64_t features = in->dim[in->rank - 1], out = d->attrs.out;
  bool is_transposed = d->attrs.transposed;
  int64_t rows = features ? (int64_t)k->k.n_in / features : 0;
  k->forward = (cpu_gemm){.m = rows, .n = out, .k = features, .b_is_transposed = !is_transposed};
  k->backward_input =
      (cpu_gemm){.m = rows, .n = features, .k = out, .b_is_transposed = is_transposed};
  k->backward_weight = (cpu_gemm){.m = is_transposed ? features : out,
                                  .n = is_transposed ? out : features,
                                  .k = rows,
                                  .a_is_transposed = true};
  k->backward_weight.uses_blas =
      k->k.threads == 1 && clv_cpu_blas_vectors_are_wide_enough() &&
      clv_cpu_choose(CPU_LINEAR_WEIGHT, clv_cpu_class_of_linear(rows)) == CPU_OPENBLAS;
  k->k.base.forward = linear_forward;
  k->k.base.backward_input = d->need_dx[0] ? linear_backward_input : NULL;
  k->k.base.backward_weight = d->need_dw ? linear_backward_weight : NULL;
  k->k.base.saved_flags = k->k.base.saved_flags_for_dw = d->need_dw ? CLV_SAVE_IN0 : 0;
  k->k.base.impl = k->backward_weight.uses_blas ? "sgemm, OpenBLAS" : "sgemm";
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(linear, linear_prepare)
