/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch and layer normalisation over REAL.
 *
 * batchnorm (Ioffe & Szegedy, ICML 2015; numbers of torch.nn.BatchNorm1d/2d).
 * x is [N, C] or [N, C, H, W]. `saved` keeps mean and 1/sqrt(var + eps) of each channel in double:
 * what forward used, whichever mode, and so what backward must use.
 */

typedef struct norm_site {
  int64_t n, c, inner; /* batch, channels, values of one channel in one sample */
  double count;        /* values of one channel */
} norm_site;

static norm_site norm_of(const ref_kernel *k) {
  norm_site s = {k->d.in[0].dim[0], k->d.in[0].dim[1], 1, 0};
  for (int i = 2; i < k->d.in[0].rank; i++) s.inner *= k->d.in[0].dim[i];
  s.count = (double)(s.n * s.inner);
  return s;
}

static void channel_statistics(const norm_site *s, const REAL *x, int64_t c, double *ret_mean,
                               double *ret_square_sum) {
  double sum = 0, squares = 0;
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t i = 0; i < s->inner; i++) sum += x[(n * s->c + c) * s->inner + i];
  double mean = sum / s->count;
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t i = 0; i < s->inner; i++) {
      double d = x[(n * s->c + c) * s->inner + i] - mean;
      squares += d * d;
    }
  *ret_mean = mean;
  *ret_square_sum = squares;
}

/* Mean and biased variance of channel c; in training those of the batch, which also move the
 * running ones (there the variance is the unbiased one). */
static void channel_moments(const ref_kernel *k, const clv_kernel_args *a, const norm_site *s,
                            int64_t c, double *ret_mean, double *ret_var) {
  REAL *running_mean = a->param[CLV_SLOT_MEAN], *running_var = a->param[CLV_SLOT_VAR];
  double m = k->d.attrs.momentum, squares;
  if (!k->d.training) {
    *ret_mean = running_mean[c];
    *ret_var = running_var[c];
    return;
  }
  channel_statistics(s, a->in[0], c, ret_mean, &squares);
  *ret_var = squares / s->count;
  running_mean[c] = (REAL)(m * *ret_mean + (1 - m) * running_mean[c]);
  running_var[c] = (REAL)(m * (squares / (s->count - 1)) + (1 - m) * running_var[c]);
}

static clv_code batchnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  norm_site s = norm_of(k);
  const REAL *x = a->in[0], *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  REAL *y = a->out;
  double *saved = a->saved, mean, var;
  (void)err;
  for (int64_t c = 0; c < s.c; c++) {
    channel_moments(k, a, &s, c, &mean, &var);
    double inverse = 1 / sqrt(var + k->d.attrs.eps);
    for (int64_t i = 0; i < s.n * s.inner; i++) {
      int64_t at = (i / s.inner * s.c + c) * s.inner + i % s.inner;
      y[at] = (REAL)((x[at] - mean) * inverse * w[c] + b[c]);
    }
    if (!k->learns) continue;
    saved[2 * c] = mean;
    saved[2 * c + 1] = inverse;
  }
  if (k->d.training) ++*(int64_t *)a->param[CLV_SLOT_TRACKED];
  return CLV_OK;
}

static size_t batchnorm_saved(const ref_kernel *k) {
  return (size_t)k->d.in[0].dim[1] * 2 * sizeof(double);
}

/* sum dy and sum dy (x - mean) / sqrt(var + eps) over channel c: the gradients of bias, weight. */
static void channel_gradients(const norm_site *s, const clv_kernel_args *a, int64_t c,
                              double *ret_bias, double *ret_weight) {
  const REAL *x = a->in[0], *dy = a->dout;
  const double *saved = a->saved;
  double bias = 0, weight = 0;
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t i = 0; i < s->inner; i++) {
      int64_t at = (n * s->c + c) * s->inner + i;
      bias += dy[at];
      weight += dy[at] * ((x[at] - saved[2 * c]) * saved[2 * c + 1]);
    }
  *ret_bias = bias;
  *ret_weight = weight;
}

/* Training: dx = w inverse (dy - mean(dy) - xhat mean(dy xhat)); else the statistics are constants:
 * dx = w inverse dy. */
static clv_code batchnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  norm_site s = norm_of(k);
  const REAL *x = a->in[0], *dy = a->dout, *w = a->param[CLV_SLOT_WEIGHT];
  const double *saved = a->saved;
  REAL *dx = a->din[0];
  (void)err;
  for (int64_t c = 0; c < s.c; c++) {
    double bias = 0, weight = 0, mean = saved[2 * c], inverse = saved[2 * c + 1];
    if (k->d.training) channel_gradients(&s, a, c, &bias, &weight);
    for (int64_t i = 0; i < s.n * s.inner; i++) {
      int64_t at = (i / s.inner * s.c + c) * s.inner + i % s.inner;
      double common = (bias + (x[at] - mean) * inverse * weight) / s.count;
      dx[at] = (REAL)((dy[at] - common) * inverse * w[c]);
    }
  }
  return CLV_OK;
}

static clv_code batchnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  norm_site s = norm_of((const ref_kernel *)base);
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT], *db = a->dparam[CLV_SLOT_BIAS];
  double bias, weight;
  (void)err;
  for (int64_t c = 0; c < s.c; c++) {
    channel_gradients(&s, a, c, &bias, &weight);
    put(&dw[c], weight, a->accumulate);
    put(&db[c], bias, a->accumulate);
  }
  return CLV_OK;
}

/* ---- layernorm (Ba, Kiros & Hinton, 2016) ------------------------------------------------------
 *
 * x is rows of `width` values; `saved` keeps mean and 1/sqrt(var + eps) of each row in double.
 */

static size_t row_width(const ref_kernel *k) { return clv_layout_numel(&k->d.attrs.shape, 1); }

static size_t layernorm_saved(const ref_kernel *k) {
  return k->n_in / row_width(k) * 2 * sizeof(double);
}

static void row_moments(const REAL *x, size_t n, double eps, double *ret_mean,
                        double *ret_inverse) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < n; i++) sum += x[i];
  double mean = sum / (double)n;
  for (size_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
  *ret_mean = mean;
  *ret_inverse = 1 / sqrt(squares / (double)n + eps);
}

static clv_code layernorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  double *saved = a->saved, mean, inverse;
  size_t width = row_width(k);
  (void)err;
  for (size_t r = 0; r < k->n_in / width; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width;
    REAL *y = (REAL *)a->out + r * width;
    row_moments(x, width, k->d.attrs.eps, &mean, &inverse);
    for (size_t i = 0; i < width; i++) y[i] = (REAL)((x[i] - mean) * inverse * w[i] + b[i]);
    if (!k->learns) continue;
    saved[2 * r] = mean;
    saved[2 * r + 1] = inverse;
  }
  return CLV_OK;
}

/* With g = dy w and xhat = (x - mean) inverse: dx = inverse (g - mean(g) - xhat mean(g xhat)). */
static clv_code layernorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  const double *saved = a->saved;
  size_t width = row_width(k);
  (void)err;
  for (size_t r = 0; r < k->n_in / width; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width, *dy = (const REAL *)a->dout + r * width;
    REAL *dx = (REAL *)a->din[0] + r * width;
    double sum = 0, with_x = 0, mean = saved[2 * r], inverse = saved[2 * r + 1];
    for (size_t i = 0; i < width; i++) {
      sum += (double)dy[i] * w[i];
      with_x += (double)dy[i] * w[i] * ((x[i] - mean) * inverse);
    }
    for (size_t i = 0; i < width; i++)
      dx[i] = (REAL)(inverse * ((double)dy[i] * w[i] -
                                (sum + (x[i] - mean) * inverse * with_x) / (double)width));
  }
  return CLV_OK;
}

static clv_code layernorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT], *db = a->dparam[CLV_SLOT_BIAS];
  const double *saved = a->saved;
  size_t width = row_width(k);
  (void)err;
  for (size_t i = 0; i < width; i++) {
    double weight = 0, bias = 0;
    for (size_t r = 0; r < k->n_in / width; r++) {
      bias += dy[r * width + i];
      weight += dy[r * width + i] * ((x[r * width + i] - saved[2 * r]) * saved[2 * r + 1]);
    }
    put(&dw[i], weight, a->accumulate);
    put(&db[i], bias, a->accumulate);
  }
  return CLV_OK;
}
