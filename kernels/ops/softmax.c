/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/softmax_int.h"

static clv_code softmax_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return last_dim_shape("softmax", s, ret, err);
}

static clv_code softmax_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t n = row_length(k), n_rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < n_rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * n;
    REAL *y = (REAL *)a->out + r * n;
    double largest = row_max(x, n), sum = sum_row_exps(x, n, largest);
    for (int64_t i = 0; i < n; i++) y[i] = (REAL)(exp((double)x[i] - largest) / sum);
  }
  return CLV_OK;
}

/* Computes dx_i = y_i (dy_i - sum_j dy_j y_j). */
static clv_code softmax_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t n = row_length(k), n_rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < n_rows; r++) {
    const REAL *y = (const REAL *)a->out + r * n, *dy = (const REAL *)a->dout + r * n;
    REAL *dx = (REAL *)a->din[0] + r * n;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)dy[i] * y[i];
    for (int64_t i = 0; i < n; i++) dx[i] = (REAL)(y[i] * (dy[i] - sum));
  }
  return CLV_OK;
}

CLV_OP_ROW(softmax) = {
    .name = "softmax",
    .doc =
        "y_i = exp(x_i) / sum_j exp(x_j) over the last dimension "
        "(torch.nn.functional.softmax, dim=-1)",
    .torch_module = "Softmax()",
    .torch_needs = "dim=-1",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = softmax_shape,
    .forward = softmax_forward,
    .backward_input = softmax_backward,
    .saved_for_dx = CLV_SAVE_OUT,
    .in_place = true,
};
