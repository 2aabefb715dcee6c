/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax and log_softmax of rows, in double. Sums of a row are 16 partial sums, value i into the
 * partial sum i % 16.
 */
#include <math.h>

#include "kernels/cpu/math_int.h"
#include "kernels/cpu/rows_int.h"

enum { LANES = 16 }; /* number of partial sums of a row */

CPU_INLINE double add_lane_sums(double *lane_sums) {
  for (size_t width = LANES / 2; width; width /= 2)
    for (size_t l = 0; l < width; l++) lane_sums[l] += lane_sums[l + width];
  return lane_sums[0];
}

CPU_INLINE float larger_of(float largest, float x) { return x > largest ? x : largest; }

CPU_INLINE void find_row_max_body(const float *x, size_t n, float *ret) {
  float lane_max[LANES];
  size_t i = 0;
  for (size_t l = 0; l < LANES; l++) lane_max[l] = x[0];
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane_max[l] = larger_of(lane_max[l], x[i + l]);
  for (; i < n; i++) lane_max[0] = larger_of(lane_max[0], x[i]);
  for (size_t l = 1; l < LANES; l++) lane_max[0] = larger_of(lane_max[0], lane_max[l]);
  *ret = lane_max[0];
}

CPU_INLINE void sum_row_exps_body(const float *x, size_t n, double max_x, double *ret) {
  double lane_sums[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane_sums[l] += double_exp_of(x[i + l] - max_x);
  for (size_t l = 0; i + l < n; l++) lane_sums[l] += double_exp_of(x[i + l] - max_x);
  *ret = add_lane_sums(lane_sums);
}

CPU_INLINE void compute_row_softmax_body(const float *x, size_t n, double max_x, double inverse_sum,
                                         float *y) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = (float)(double_exp_of(x[i] - max_x) * inverse_sum);
}

CPU_INLINE void compute_row_log_softmax_body(const float *x, size_t n, double max_x, double log_sum,
                                             float *y) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = (float)(x[i] - max_x - log_sum);
}

/* Computes the sum of dy, or of dy y if y is not NULL, over a row. */
CPU_INLINE void sum_row_gradients_body(const float *dy, const float *y, size_t n, double *ret) {
  double lane_sums[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane_sums[l] += y ? (double)dy[i + l] * y[i + l] : dy[i + l];
  for (size_t l = 0; i + l < n; l++) lane_sums[l] += y ? (double)dy[i + l] * y[i + l] : dy[i + l];
  *ret = add_lane_sums(lane_sums);
}

CPU_INLINE void compute_row_softmax_dx_body(const float *y, const float *dy, size_t n, double sum,
                                            float *dx) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) dx[i] = (float)(y[i] * (dy[i] - sum));
}

CPU_INLINE void compute_row_log_softmax_dx_body(const float *y, const float *dy, size_t n,
                                                double sum, float *dx) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) dx[i] = (float)(dy[i] - double_exp_of(y[i]) * sum);
}

CPU_CLONES(find_row_max, (const float *x, size_t n, float *ret), (x, n, ret))
CPU_CLONES(sum_row_exps, (const float *x, size_t n, double max_x, double *ret), (x, n, max_x, ret))
CPU_CLONES(compute_row_softmax,
           (const float *x, size_t n, double max_x, double inverse_sum, float *y),
           (x, n, max_x, inverse_sum, y))
CPU_CLONES(compute_row_log_softmax,
           (const float *x, size_t n, double max_x, double log_sum, float *y),
           (x, n, max_x, log_sum, y))
CPU_CLONES(sum_row_gradients, (const float *dy, const float *y, size_t n, double *ret),
           (dy, y, n, ret))
CPU_CLONES(compute_row_softmax_dx,
           (const float *y, const float *dy, size_t n, double sum, float *dx), (y, dy, n, sum, dx))
CPU_CLONES(compute_row_log_softmax_dx,
           (const float *y, const float *dy, size_t n, double sum, float *dx), (y, dy, n, sum, dx))

float clv_cpu_find_row_max(const float *x, size_t n) {
  float largest;
  find_row_max(x, n, &largest);
  return largest;
}

double clv_cpu_sum_row_exps(const float *x, size_t n, double max_x) {
  double sum;
  sum_row_exps(x, n, max_x, &sum);
  return sum;
}

/* ---- loops over all rows --------------------------------------------------------------------- */

typedef struct softmax_job {
  const clv_kernel_args *a;
  size_t width;
  bool is_log_softmax;
} softmax_job;

static void forward_rows(void *arg, size_t begin, size_t end) {
  const softmax_job *j = arg;
  for (size_t r = begin; r < end; r++) {
    const float *x = (const float *)j->a->in[0] + r * j->width;
    float *y = (float *)j->a->out + r * j->width;
    double max_x = clv_cpu_find_row_max(x, j->width),
           sum = clv_cpu_sum_row_exps(x, j->width, max_x);
    if (j->is_log_softmax)
      compute_row_log_softmax(x, j->width, max_x, log(sum), y);
    else
      compute_row_softmax(x, j->width, max_x, 1 / sum, y);
  }
}

/* Computes dx of rows [begin, end): dx = y (dy - sum dy y) for softmax; dx = dy - exp(y) sum dy for
 * log_softmax. */
static void backward_rows(void *arg, size_t begin, size_t end) {
  const softmax_job *j = arg;
  double sum;
  for (size_t r = begin; r < end; r++) {
    const float *y = (const float *)j->a->out + r * j->width;
    const float *dy = (const float *)j->a->dout + r * j->width;
    float *dx = (float *)j->a->din[0] + r * j->width;
    sum_row_gradients(dy, j->is_log_softmax ? NULL : y, j->width, &sum);
    (j->is_log_softmax ? compute_row_log_softmax_dx : compute_row_softmax_dx)(y, dy, j->width, sum,
                                                                              dx);
  }
}

static void run_rows(clv_kernel *base, const clv_kernel_args *a, clv_cpu_range_fn *fn) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  softmax_job j = {a, (size_t)k->d.in[0].dim[k->d.in[0].rank - 1], k->d.op == CLV_OP_LOG_SOFTMAX};
  size_t rows = j.width ? k->n_in / j.width : 0;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, 8 * k->n_in), rows, fn, &j);
}

static clv_code softmax_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  run_rows(base, a, forward_rows);
  return CLV_OK;
}

static clv_code softmax_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  run_rows(base, a, backward_rows);
  return CLV_OK;
}

static clv_code softmax_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->base.forward = softmax_forward;
  k->base.backward_input = d->need_dx[0] ? softmax_backward : NULL;
  k->base.saved_flags = d->need_dx[0] ? CLV_SAVE_OUT : 0;
  k->base.in_place = true;
  k->base.din_in_place_mask = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(softmax, softmax_prepare)
CLV_CPU_OP(log_softmax, softmax_prepare)
