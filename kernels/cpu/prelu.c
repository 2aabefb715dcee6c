/* SPDX-License-Identifier: Apache-2.0
 *
 * prelu over values [n, channels, row_length]; a row is the row_length values of one channel of one
 * sample. With a single weight, `channels` is 1, and a row is a whole sample. If row_length is 1,
 * loops run over the channels instead.
 */
#include "kernels/cpu/cpu_int.h"

typedef struct prelu_job {
  const float *x, *w, *dy;
  float *dst;
  size_t n, channels, row_length;
  bool accumulate;
} prelu_job;

/* Computes y[i] = z[i] where x[i] is above 0, else w z[i]. z is x in forward, and dy in backward.
 */
CPU_INLINE void apply_weight_body(const float *x, const float *z, float w, float *y, size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = x[i] > 0 ? z[i] : w * z[i];
}
CPU_CLONES(apply_weight, (const float *x, const float *z, float w, float *y, size_t n),
           (x, z, w, y, n))

/* As apply_weight, but with a weight w[i] for each value. */
CPU_INLINE void apply_weights_body(const float *x, const float *z, const float *w, float *y,
                                   size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = x[i] > 0 ? z[i] : w[i] * z[i];
}
CPU_CLONES(apply_weights, (const float *x, const float *z, const float *w, float *y, size_t n),
           (x, z, w, y, n))

/* Adds the gradient of a weight over n values to eight partial sums: value i to sum[i % 8]. */
CPU_INLINE void add_weight_grads_body(const float *x, const float *dy, double *sum, size_t n) {
  size_t n_full = n / 8 * 8;
  double lane_sums[8] = {0};
  for (size_t i = 0; i < n_full; i += 8)
    for (size_t j = 0; j < 8; j++)
      lane_sums[j] += x[i + j] > 0 ? 0 : (double)x[i + j] * (double)dy[i + j];
  for (size_t i = n_full; i < n; i++)
    lane_sums[i - n_full] += x[i] > 0 ? 0 : (double)x[i] * (double)dy[i];
  for (size_t j = 0; j < 8; j++) sum[j] += lane_sums[j];
}
CPU_CLONES(add_weight_grads, (const float *x, const float *dy, double *sum, size_t n),
           (x, dy, sum, n))

static void run_rows(void *arg, size_t begin, size_t end) {
  const prelu_job *j = arg;
  const float *z = j->dy ? j->dy : j->x;
  for (size_t r = begin; r < end; r++) {
    size_t at = r * j->row_length;
    if (j->row_length == 1)
      apply_weights(j->x + r * j->channels, z + r * j->channels, j->w, j->dst + r * j->channels,
                    j->channels);
    else
      apply_weight(j->x + at, z + at, j->w[r % j->channels], j->dst + at, j->row_length);
  }
}

static void compute_weight_grads(void *arg, size_t begin, size_t end) {
  const prelu_job *j = arg;
  for (size_t c = begin; c < end; c++) {
    double sum[8] = {0};
    for (size_t r = c; r < j->n * j->channels; r += j->channels)
      add_weight_grads(j->x + r * j->row_length, j->dy + r * j->row_length, sum, j->row_length);
    double total =
        ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    j->dst[c] = j->accumulate ? j->dst[c] + (float)total : (float)total;
  }
}

static prelu_job make_job(const cpu_kernel *k, const clv_kernel_args *a) {
  prelu_job j = {.x = a->in[0],
                 .w = a->param[CLV_SLOT_WEIGHT],
                 .n = (size_t)k->d.in[0].dim[0],
                 .channels = (size_t)k->d.attrs.num_parameters};
  j.row_length = k->n_in / j.n / j.channels;
  return j;
}

static clv_code run_job(const cpu_kernel *k, prelu_job *j) {
  int threads = clv_cpu_useful_threads(k->threads, k->n_in);
  clv_cpu_parallel(threads, j->row_length == 1 ? j->n : j->n * j->channels, run_rows, j);
  return CLV_OK;
}

static clv_code prelu_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  prelu_job j = make_job(k, a);
  (void)err;
  j.dst = a->out;
  return run_job(k, &j);
}

static clv_code prelu_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  prelu_job j = make_job(k, a);
  (void)err;
  j.dy = a->dout;
  j.dst = a->din[0];
  return run_job(k, &j);
}

static clv_code prelu_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  prelu_job j = make_job(k, a);
  (void)err;
  j.dy = a->dout;
  j.dst = a->dparam[CLV_SLOT_WEIGHT];
  j.accumulate = a->accumulate;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.channels, compute_weight_grads,
                   &j);
  return CLV_OK;
}

static clv_code prelu_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->base.forward = prelu_forward;
  k->base.backward_input = d->need_dx[0] ? prelu_backward_input : NULL;
  k->base.backward_weight = d->need_dw ? prelu_backward_weight : NULL;
  k->base.saved_flags = d->need_dx[0] || d->need_dw ? CLV_SAVE_IN0 : 0;
  k->base.saved_flags_for_dw = d->need_dx[0] ? 0 : k->base.saved_flags;
  k->base.din_in_place_mask = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(prelu, prelu_prepare)
