/* SPDX-License-Identifier: Apache-2.0
 *
 * Layer normalisation of rows of `width` values. Sums over a row are computed in double, value i
 * into the partial sum i % 8. Sums over rows, for the gradients of weight and bias, are computed
 * in order, in double.
 */
#include <math.h>

#include "kernels/cpu/cpu_int.h"

enum { LANES = 8, COLUMNS_AT_ONCE = 64 }; /* LANES: number of partial sums of a row */

typedef struct layernorm_kernel {
  cpu_kernel k;
  size_t rows, width;
} layernorm_kernel;

typedef struct layernorm_job {
  const layernorm_kernel *k;
  const clv_kernel_args *a;
} layernorm_job;

/* ---- sums and gradients of one row ----------------------------------------------------------- */

CPU_INLINE double add_lane_sums(double *lane_sums) {
  for (int width = LANES / 2; width; width /= 2)
    for (int l = 0; l < width; l++) lane_sums[l] += lane_sums[l + width];
  return lane_sums[0];
}

/* Computes the sum of x_i - shift, and the sum of (x_i - shift)^2. */
CPU_INLINE void compute_row_sums_body(const float *x, size_t n, double shift, double *sum,
                                      double *squares) {
  double s[LANES] = {0}, q[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
#pragma GCC unroll 1 /* otherwise GCC 14 unrolls the loop, and then does not vectorise it */
    for (size_t l = 0; l < LANES; l++) {
      double d = x[i + l] - shift;
      s[l] += d;
      q[l] += d * d;
    }
  for (size_t l = 0; i + l < n; l++) {
    double d = x[i + l] - shift;
    s[l] += d;
    q[l] += d * d;
  }
  *sum = add_lane_sums(s);
  *squares = add_lane_sums(q);
}

/* Computes the sum of g and of g (x - mean), where g = dy w. */
CPU_INLINE void compute_row_grad_sums_body(const float *x, const float *dy, const float *w,
                                           size_t n, double mean, double *sum,
                                           double *sum_g_distance) {
  double s[LANES] = {0}, q[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) {
      double g = (double)dy[i + l] * w[i + l];
      s[l] += g;
      q[l] += g * (x[i + l] - mean);
    }
  for (size_t l = 0; i + l < n; l++) {
    double g = (double)dy[i + l] * w[i + l];
    s[l] += g;
    q[l] += g * (x[i + l] - mean);
  }
  *sum = add_lane_sums(s);
  *sum_g_distance = add_lane_sums(q);
}

/* Coefficients of a row. The mean is mean_high + mean_low, because a float has too few digits: if
 * the mean is large, x - mean_high is exact. mean_g, slope: coefficients of compute_row_dx, of
 * which mean_g is the mean of g = dy w. */
typedef struct row_coefficients {
  float mean_high, mean_low, inverse_std, mean_g, slope;
} row_coefficients;

static row_coefficients make_row_coefficients(double mean, double inverse_std) {
  return (row_coefficients){.mean_high = (float)mean,
                            .mean_low = (float)(mean - (float)mean),
                            .inverse_std = (float)inverse_std};
}

CPU_INLINE void normalize_row_body(const float *x, size_t n, const row_coefficients *v,
                                   const float *w, const float *b, float *y) {
  row_coefficients u = *v;
  for (size_t i = 0; i < n; i++)
    y[i] = ((x[i] - u.mean_high) - u.mean_low) * u.inverse_std * w[i] + b[i];
}

/* Computes dx = inverse_std (g - mean_g - (x - mean) slope), where g = dy w. */
CPU_INLINE void compute_row_dx_body(const float *x, const float *dy, const float *w, size_t n,
                                    const row_coefficients *v, float *dx) {
  row_coefficients u = *v;
  for (size_t i = 0; i < n; i++)
    dx[i] =
        (dy[i] * w[i] - u.mean_g - ((x[i] - u.mean_high) - u.mean_low) * u.slope) * u.inverse_std;
}

CPU_CLONES(compute_row_sums, (const float *x, size_t n, double shift, double *sum, double *squares),
           (x, n, shift, sum, squares))
CPU_CLONES(compute_row_grad_sums,
           (const float *x, const float *dy, const float *w, size_t n, double mean, double *sum,
            double *sum_g_distance),
           (x, dy, w, n, mean, sum, sum_g_distance))
CPU_CLONES(normalize_row,
           (const float *restrict x, size_t n, const row_coefficients *v, const float *restrict w,
            const float *restrict b, float *restrict y),
           (x, n, v, w, b, y))
CPU_CLONES(compute_row_dx,
           (const float *restrict x, const float *restrict dy, const float *restrict w, size_t n,
            const row_coefficients *v, float *restrict dx),
           (x, dy, w, n, v, dx))

/* ---- forward --------------------------------------------------------------------------------- */

/* Computes the mean of a row and 1 / sqrt(var + eps). The mean is computed first, in a pass of its
 * own: squares of distances from the mean lose no digits if the mean is large, unlike squares of x.
 */
static void compute_moments(const layernorm_kernel *k, const float *x, double *ret_mean,
                            double *ret_inverse_std) {
  double sum, squares, n = (double)k->width;
  compute_row_sums(x, k->width, 0, &sum, &squares);
  *ret_mean = sum / n;
  compute_row_sums(x, k->width, *ret_mean, &sum, &squares);
  *ret_inverse_std = 1 / sqrt(squares / n + k->k.d.attrs.eps);
}

static void forward_rows(void *arg, size_t begin, size_t end) {
  const layernorm_job *j = arg;
  size_t width = j->k->width;
  double *saved = j->a->saved, mean, inverse_std;
  for (size_t r = begin; r < end; r++) {
    const float *x = (const float *)j->a->in[0] + r * width;
    compute_moments(j->k, x, &mean, &inverse_std);
    row_coefficients v = make_row_coefficients(mean, inverse_std);
    normalize_row(x, width, &v, j->a->param[CLV_SLOT_WEIGHT], j->a->param[CLV_SLOT_BIAS],
                  (float *)j->a->out + r * width);
    if (!j->k->k.has_backward) continue;
    saved[2 * r] = mean;
    saved[2 * r + 1] = inverse_std;
  }
}

static clv_code layernorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const layernorm_kernel *k = (const layernorm_kernel *)base;
  layernorm_job j = {k, a};
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 4 * k->k.n_in), k->rows, forward_rows, &j);
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Computes dx of rows [begin, end). With g = dy w and xhat = (x - mean) inverse_std:
 * dx = inverse_std (g - mean(g) - xhat mean(g xhat)). */
static void backward_rows(void *arg, size_t begin, size_t end) {
  const layernorm_job *j = arg;
  size_t width = j->k->width;
  const float *w = j->a->param[CLV_SLOT_WEIGHT];
  const double *saved = j->a->saved;
  double sum, sum_g_distance, n = (double)width;
  for (size_t r = begin; r < end; r++) {
    const float *x = (const float *)j->a->in[0] + r * width;
    const float *dy = (const float *)j->a->dout + r * width;
    double mean = saved[2 * r], inverse_std = saved[2 * r + 1];
    compute_row_grad_sums(x, dy, w, width, mean, &sum, &sum_g_distance);
    row_coefficients v = make_row_coefficients(mean, inverse_std);
    v.mean_g = (float)(sum / n);
    v.slope = (float)(sum_g_distance * inverse_std * inverse_std / n);
    compute_row_dx(x, dy, w, width, &v, (float *)j->a->din[0] + r * width);
  }
}

static clv_code layernorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const layernorm_kernel *k = (const layernorm_kernel *)base;
  layernorm_job j = {k, a};
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 4 * k->k.n_in), k->rows, backward_rows, &j);
  return CLV_OK;
}

/* Adds the sums of dy, and of dy (x - mean) inverse_std, over `rows` rows `step` values apart, for
 * n columns, at most COLUMNS_AT_ONCE. saved: mean and inverse_std of each row. */
CPU_INLINE void add_column_sums_body(const float *x, const float *dy, const double *saved,
                                     size_t rows, size_t step, size_t n, double *dbias,
                                     double *dweight) {
  for (size_t r = 0; r < rows; r++)
    for (size_t i = 0; i < n; i++) {
      double g = dy[r * step + i];
      dbias[i] += g;
      dweight[i] += g * ((x[r * step + i] - saved[2 * r]) * saved[2 * r + 1]);
    }
}

CPU_CLONES(add_column_sums,
           (const float *restrict x, const float *restrict dy, const double *restrict saved,
            size_t rows, size_t step, size_t n, double *restrict dbias, double *restrict dweight),
           (x, dy, saved, rows, step, n, dbias, dweight))

static void store_column_sums(float *dst, const double *src, size_t n, bool accumulate) {
  for (size_t i = 0; i < n; i++) dst[i] = accumulate ? dst[i] + (float)src[i] : (float)src[i];
}

static void backward_columns(void *arg, size_t begin, size_t end) {
  const layernorm_job *j = arg;
  const clv_kernel_args *a = j->a;
  for (size_t block = begin; block < end; block++) {
    double dbias[COLUMNS_AT_ONCE] = {0}, dweight[COLUMNS_AT_ONCE] = {0};
    size_t at = block * COLUMNS_AT_ONCE, n = CLV_MIN(j->k->width - at, COLUMNS_AT_ONCE);
    add_column_sums((const float *)a->in[0] + at, (const float *)a->dout + at, a->saved, j->k->rows,
                    j->k->width, n, dbias, dweight);
    store_column_sums((float *)a->dparam[CLV_SLOT_WEIGHT] + at, dweight, n, a->accumulate);
    store_column_sums((float *)a->dparam[CLV_SLOT_BIAS] + at, dbias, n, a->accumulate);
  }
}

static clv_code layernorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const layernorm_kernel *k = (const layernorm_kernel *)base;
  layernorm_job j = {k, a};
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 4 * k->k.n_in),
                   (k->width + COLUMNS_AT_ONCE - 1) / COLUMNS_AT_ONCE, backward_columns, &j);
  return CLV_OK;
}

static clv_code layernorm_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  layernorm_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->width = clv_layout_numel(&d->param[CLV_SLOT_WEIGHT], 1);
  k->rows = k->k.n_in / k->width;
  k->k.base.forward = layernorm_forward;
  k->k.base.backward_input = d->need_dx[0] ? layernorm_backward_input : NULL;
  k->k.base.backward_weight = d->need_dw ? layernorm_backward_weight : NULL;
  k->k.base.saved_flags = k->k.has_backward ? CLV_SAVE_IN0 : 0;
  k->k.base.saved_bytes = k->k.has_backward ? 2 * k->rows * sizeof(double) : 0;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(layernorm, layernorm_prepare)
