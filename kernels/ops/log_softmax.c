/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/softmax_int.h"

static clv_code log_softmax_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return last_dim_shape("log_softmax", s, ret, err);
}

static clv_code log_softmax_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t n = row_length(k), n_rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < n_rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * n;
    REAL *y = (REAL *)a->out + r * n;
    double largest = row_max(x, n), log_sum = log(sum_row_exps(x, n, largest));
    for (int64_t i = 0; i < n; i++) y[i] = (REAL)(x[i] - largest - log_sum);
  }
  return CLV_OK;
}

/* Computes dx_i = dy_i - exp(y_i) sum_j dy_j. */
static clv_code log_softmax_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t n = row_length(k), n_rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < n_rows; r++) {
    const REAL *y = (const REAL *)a->out + r * n, *dy = (const REAL *)a->dout + r * n;
    REAL *dx = (REAL *)a->din[0] + r * n;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += dy[i];
    for (int64_t i = 0; i < n; i++) dx[i] = (REAL)(dy[i] - exp(y[i]) * sum);
  }
  return CLV_OK;
}

CLV_OP_ROW(log_softmax) = {
    .name = "log_softmax",
    .doc =
        "y_i = x_i - log sum_j exp(x_j) over the last dimension "
        "(torch.nn.functional.log_softmax, dim=-1)",
    .torch_module = "LogSoftmax()",
    .torch_needs = "dim=-1",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = log_softmax_shape,
    .forward = log_softmax_forward,
    .backward_input = log_softmax_backward,
    .saved_for_dx = CLV_SAVE_OUT,
    .in_place = true,
};
