/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax and log_softmax over REAL, along the last dimension. The row's largest value is
 * subtracted before exp, so that no finite row overflows.
 */

static int64_t row_length(const ref_kernel *k) { return k->d.in[0].dim[k->d.in[0].rank - 1]; }

static double row_max(const REAL *x, int64_t n) {
  double top = x[0];
  for (int64_t i = 1; i < n; i++)
    if (x[i] > top || isnan(x[i])) top = x[i];
  return top;
}

/* sum_i exp(x_i - top) */
static double row_exp_sum(const REAL *x, int64_t n, double top) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
  return sum;
}

static clv_code softmax_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t n = row_length(k), rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * n;
    REAL *y = (REAL *)a->out + r * n;
    double top = row_max(x, n), sum = row_exp_sum(x, n, top);
    for (int64_t i = 0; i < n; i++) y[i] = (REAL)(exp((double)x[i] - top) / sum);
  }
  return CLV_OK;
}

/* dx_i = y_i (dy_i - sum_j dy_j y_j) */
static clv_code softmax_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t n = row_length(k), rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < rows; r++) {
    const REAL *y = (const REAL *)a->out + r * n, *dy = (const REAL *)a->dout + r * n;
    REAL *dx = (REAL *)a->din[0] + r * n;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)dy[i] * y[i];
    for (int64_t i = 0; i < n; i++) dx[i] = (REAL)(y[i] * (dy[i] - sum));
  }
  return CLV_OK;
}

static clv_code log_softmax_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t n = row_length(k), rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * n;
    REAL *y = (REAL *)a->out + r * n;
    double top = row_max(x, n), log_sum = log(row_exp_sum(x, n, top));
    for (int64_t i = 0; i < n; i++) y[i] = (REAL)(x[i] - top - log_sum);
  }
  return CLV_OK;
}

/* dx_i = dy_i - exp(y_i) sum_j dy_j */
static clv_code log_softmax_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t n = row_length(k), rows = (int64_t)k->n_in / n;
  (void)err;
  for (int64_t r = 0; r < rows; r++) {
    const REAL *y = (const REAL *)a->out + r * n, *dy = (const REAL *)a->dout + r * n;
    REAL *dx = (REAL *)a->din[0] + r * n;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += dy[i];
    for (int64_t i = 0; i < n; i++) dx[i] = (REAL)(dy[i] - exp(y[i]) * sum);
  }
  return CLV_OK;
}
