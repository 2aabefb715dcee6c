/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses over REAL, all with reduction "mean". in[0] is the prediction, in[1] the target; out and
 * dout are scalars. Computed in double and rounded once.
 */

static double dout_of(const clv_kernel_args *a) { return *(const REAL *)a->dout; }

/* ---- class labels: x [N, classes], target [N] i64 ----------------------------------------------
 */

static clv_code cross_entropy_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  double sum = 0;
  for (int64_t n = 0; n < batch; n++) {
    const REAL *x = (const REAL *)a->in[0] + n * classes;
    CLV_TRY(clv_ref_label(a->in[1], n, classes, &label, err));
    double top = row_max(x, classes);
    sum += log(row_exp_sum(x, classes, top)) + top - x[label];
  }
  *(REAL *)a->out = (REAL)(sum / (double)batch);
  return CLV_OK;
}

/* dx = dout (softmax(x) - onehot(target)) / N */
static clv_code cross_entropy_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  double share = dout_of(a) / (double)batch;
  for (int64_t n = 0; n < batch; n++) {
    const REAL *x = (const REAL *)a->in[0] + n * classes;
    REAL *dx = (REAL *)a->din[0] + n * classes;
    CLV_TRY(clv_ref_label(a->in[1], n, classes, &label, err));
    double top = row_max(x, classes), sum = row_exp_sum(x, classes, top);
    for (int64_t c = 0; c < classes; c++)
      dx[c] = (REAL)((exp(x[c] - top) / sum - (c == label)) * share);
  }
  return CLV_OK;
}

static clv_code nll_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  double sum = 0;
  for (int64_t n = 0; n < batch; n++) {
    CLV_TRY(clv_ref_label(a->in[1], n, classes, &label, err));
    sum -= ((const REAL *)a->in[0])[n * classes + label];
  }
  *(REAL *)a->out = (REAL)(sum / (double)batch);
  return CLV_OK;
}

static clv_code nll_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  REAL *dx = a->din[0];
  for (int64_t i = 0; i < batch * classes; i++) dx[i] = 0;
  for (int64_t n = 0; n < batch; n++) {
    CLV_TRY(clv_ref_label(a->in[1], n, classes, &label, err));
    dx[n * classes + label] = (REAL)(-dout_of(a) / (double)batch);
  }
  return CLV_OK;
}

/* ---- targets shaped as the prediction ----------------------------------------------------------
 */

/* The mean of term(x, t) and the gradients dx(x, t), dt(x, t) of one term. */
typedef double loss_term(double x, double t);

static clv_code mean_forward(const ref_kernel *k, const clv_kernel_args *a, loss_term *term) {
  const REAL *x = a->in[0], *t = a->in[1];
  double sum = 0;
  for (size_t i = 0; i < k->n_in; i++) sum += term(x[i], t[i]);
  *(REAL *)a->out = (REAL)(sum / (double)k->n_in);
  return CLV_OK;
}

static clv_code mean_backward(const ref_kernel *k, const clv_kernel_args *a, loss_term *wrt_x,
                              loss_term *wrt_t) {
  const REAL *x = a->in[0], *t = a->in[1];
  loss_term *const gradient[] = {wrt_x, wrt_t};
  double share = dout_of(a) / (double)k->n_in;
  for (int side = 0; side < 2; side++) {
    REAL *d = a->din[side];
    if (!d) continue;
    for (size_t i = 0; i < k->n_in; i++) d[i] = (REAL)(gradient[side](x[i], t[i]) * share);
  }
  return CLV_OK;
}

#define MEAN_LOSS(name)                                                                       \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    (void)err;                                                                                \
    return mean_backward((const ref_kernel *)base, a, name##_dx, name##_dt);                  \
  }                                                                                           \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err)

static double mse_term(double x, double t) { return (x - t) * (x - t); }
static double mse_dx(double x, double t) { return 2 * (x - t); }
static double mse_dt(double x, double t) { return 2 * (t - x); }

MEAN_LOSS(mse) {
  (void)err;
  return mean_forward((const ref_kernel *)base, a, mse_term);
}

/* torch holds both logarithms at -100 or above, the denominator of the prediction's gradient at
 * 1e-12, and does neither for the target's gradient. */
static double bce_log(double log_x) { return log_x < -100 ? -100 : log_x; }
static double bce_term(double x, double t) {
  return (t - 1) * bce_log(log1p(-x)) - t * bce_log(log(x));
}
static double bce_dx(double x, double t) {
  double variance = (1 - x) * x;
  return (x - t) / (variance < 1e-12 ? 1e-12 : variance);
}
static double bce_dt(double x, double t) {
  (void)t;
  return log1p(-x) - log(x);
}

/* NaN is no probability either, but it is let through: the loss shows it. */
MEAN_LOSS(bce) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0];
  for (size_t i = 0; i < k->n_in; i++)
    if (x[i] < 0 || x[i] > 1)
      return clv_fail(
          err, CLV_INVALID,
          "bce: prediction %zu is %g, outside 0..1; put a sigmoid before the loss or use "
          "bce_with_logits",
          i, (double)x[i]);
  return mean_forward(k, a, bce_term);
}

/* The form that never overflows: exp only of negative numbers. */
static double bce_with_logits_term(double x, double t) {
  return (x <= 0 ? 0 : x) - x * t + log1p(exp(-fabs(x)));
}
static double bce_with_logits_dx(double x, double t) { return 1 / (1 + exp(-x)) - t; }
static double bce_with_logits_dt(double x, double t) {
  (void)t;
  return -x;
}

MEAN_LOSS(bce_with_logits) {
  (void)err;
  return mean_forward((const ref_kernel *)base, a, bce_with_logits_term);
}
