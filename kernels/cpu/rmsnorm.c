/* SPDX-License-Identifier: Apache-2.0
 *
 * Root-mean-square normalisation of rows of `width` values. Sums over a row are computed in
 * double, value i into the partial sum i % 8. Sums over rows, for the gradient of weight, are
 * computed in order, in double.
 */
#include <math.h>

#include "kernels/cpu/cpu_int.h"

enum { LANES = 8, COLUMNS_AT_ONCE = 64 }; /* LANES: number of partial sums of a row */

typedef struct rmsnorm_kernel {
  cpu_kernel k;
  size_t rows, width;
} rmsnorm_kernel;

typedef struct rmsnorm_job {
  const rmsnorm_kernel *k;
  const clv_kernel_args *a;
} rmsnorm_job;

/* ---- sums and gradients of one row ----------------------------------------------------------- */

CPU_INLINE double add_lane_sums(double *lane_sums) {
  for (int width = LANES / 2; width; width /= 2)
    for (int l = 0; l < width; l++) lane_sums[l] += lane_sums[l + width];
  return lane_sums[0];
}

CPU_INLINE void sum_squares_body(const float *x, size_t n, double *ret) {
  double s[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) s[l] += (double)x[i + l] * x[i + l];
  for (size_t l = 0; i + l < n; l++) s[l] += (double)x[i + l] * x[i + l];
  *ret = add_lane_sums(s);
}

/* Computes the sum of dy w x of a row. */
CPU_INLINE void sum_products_body(const float *x, const float *dy, const float *w, size_t n,
                                  double *ret) {
  double s[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) s[l] += (double)dy[i + l] * w[i + l] * x[i + l];
  for (size_t l = 0; i + l < n; l++) s[l] += (double)dy[i + l] * w[i + l] * x[i + l];
  *ret = add_lane_sums(s);
}

CPU_INLINE void normalize_row_body(const float *x, size_t n, float inverse_rms, const float *w,
                                   float *y) {
  for (size_t i = 0; i < n; i++) y[i] = x[i] * inverse_rms * w[i];
}

/* Computes dx = dy w inverse_rms - x slope of a row. slope: inverse_rms^3 mean(dy w x). */
CPU_INLINE void compute_row_dx_body(const float *x, const float *dy, const float *w, size_t n,
                                    float inverse_rms, float slope, float *dx) {
  for (size_t i = 0; i < n; i++) dx[i] = dy[i] * w[i] * inverse_rms - x[i] * slope;
}

CPU_CLONES(sum_squares, (const float *x, size_t n, double *ret), (x, n, ret))
CPU_CLONES(sum_products, (const float *x, const float *dy, const float *w, size_t n, double *ret),
           (x, dy, w, n, ret))
CPU_CLONES(normalize_row,
           (const float *restrict x, size_t n, float inverse_rms, const float *restrict w,
            float *restrict y),
           (x, n, inverse_rms, w, y))
CPU_CLONES(compute_row_dx,
           (const float *restrict x, const float *restrict dy, const float *restrict w, size_t n,
            float inverse_rms, float slope, float *restrict dx),
           (x, dy, w, n, inverse_rms, slope, dx))

/* ---- loops over all rows --------------------------------------------------------------------- */

static void forward_rows(void *arg, size_t begin, size_t end) {
  const rmsnorm_job *j = arg;
  size_t width = j->k->width;
  double *saved = j->a->saved, sum;
  for (size_t r = begin; r < end; r++) {
    const float *x = (const float *)j->a->in[0] + r * width;
    sum_squares(x, width, &sum);
    double inverse_rms = 1 / sqrt(sum / (double)width + j->k->k.d.attrs.eps);
    normalize_row(x, width, (float)inverse_rms, j->a->param[CLV_SLOT_WEIGHT],
                  (float *)j->a->out + r * width);
    if (j->k->k.has_backward) saved[r] = inverse_rms;
  }
}

/* Computes dx of rows [begin, end). With g = dy w: dx = inverse_rms g - x inverse_rms^3 mean(g x).
 */
static void backward_rows(void *arg, size_t begin, size_t end) {
  const rmsnorm_job *j = arg;
  size_t width = j->k->width;
  const float *w = j->a->param[CLV_SLOT_WEIGHT];
  const double *saved = j->a->saved;
  for (size_t r = begin; r < end; r++) {
    const float *x = (const float *)j->a->in[0] + r * width;
    const float *dy = (const float *)j->a->dout + r * width;
    double inverse_rms = saved[r], sum;
    sum_products(x, dy, w, width, &sum);
    double slope = inverse_rms * inverse_rms * inverse_rms * sum / (double)width;
    compute_row_dx(x, dy, w, width, (float)inverse_rms, (float)slope,
                   (float *)j->a->din[0] + r * width);
  }
}

/* Adds the sums of dy x inverse_rms, over `rows` rows `step` values apart, for n columns, at most
 * COLUMNS_AT_ONCE. saved: inverse_rms of each row. */
CPU_INLINE void add_column_products_body(const float *x, const float *dy, const double *saved,
                                         size_t rows, size_t step, size_t n, double *sum) {
  for (size_t r = 0; r < rows; r++)
    for (size_t i = 0; i < n; i++) sum[i] += dy[r * step + i] * (x[r * step + i] * saved[r]);
}

CPU_CLONES(add_column_products,
           (const float *restrict x, const float *restrict dy, const double *restrict saved,
            size_t rows, size_t step, size_t n, double *restrict sum),
           (x, dy, saved, rows, step, n, sum))

static void backward_columns(void *arg, size_t begin, size_t end) {
  const rmsnorm_job *j = arg;
  const clv_kernel_args *a = j->a;
  for (size_t block = begin; block < end; block++) {
    double sum[COLUMNS_AT_ONCE] = {0};
    size_t at = block * COLUMNS_AT_ONCE, n = CLV_MIN(j->k->width - at, COLUMNS_AT_ONCE);
    float *dw = (float *)a->dparam[CLV_SLOT_WEIGHT] + at;
    add_column_products((const float *)a->in[0] + at, (const float *)a->dout + at, a->saved,
                        j->k->rows, j->k->width, n, sum);
    for (size_t i = 0; i < n; i++) dw[i] = a->accumulate ? dw[i] + (float)sum[i] : (float)sum[i];
  }
}

/* ---- making and running the kernel ----------------------------------------------------------- */

static void run_job(clv_kernel *base, const clv_kernel_args *a, size_t n_items,
                    clv_cpu_range_fn *fn) {
  const rmsnorm_kernel *k = (const rmsnorm_kernel *)base;
  rmsnorm_job j = {k, a};
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 4 * k->k.n_in), n_items, fn, &j);
}

static clv_code rmsnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  run_job(base, a, ((const rmsnorm_kernel *)base)->rows, forward_rows);
  return CLV_OK;
}

static clv_code rmsnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  run_job(base, a, ((const rmsnorm_kernel *)base)->rows, backward_rows);
  return CLV_OK;
}

static clv_code rmsnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  size_t width = ((const rmsnorm_kernel *)base)->width;
  (void)err;
  run_job(base, a, (width + COLUMNS_AT_ONCE - 1) / COLUMNS_AT_ONCE, backward_columns);
  return CLV_OK;
}

static clv_code rmsnorm_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  rmsnorm_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->width = clv_layout_numel(&d->param[CLV_SLOT_WEIGHT], 1);
  k->rows = k->k.n_in / k->width;
  k->k.base.forward = rmsnorm_forward;
  k->k.base.backward_input = d->need_dx[0] ? rmsnorm_backward_input : NULL;
  k->k.base.backward_weight = d->need_dw ? rmsnorm_backward_weight : NULL;
  k->k.base.saved_flags = k->k.has_backward ? CLV_SAVE_IN0 : 0;
  k->k.base.saved_bytes = k->k.has_backward ? k->rows * sizeof(double) : 0;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(rmsnorm, rmsnorm_prepare)
