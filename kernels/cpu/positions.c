/* SPDX-License-Identifier: Apache-2.0
 *
 * positions: y = x + W[offset..], a row of S F values for each sample; dW sums over the samples.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

typedef struct positions_job {
  const float *x, *w;
  float *y;
  size_t extent;
} positions_job;

static size_t extent_of(const cpu_kernel *k, size_t *ret_before) {
  const int64_t *dim = k->d.in[0].dim;
  *ret_before = (size_t)(k->d.attrs.offset * dim[2]);
  return (size_t)(dim[1] * dim[2]);
}

CPU_INLINE void sum_body(const float *x, const float *w, float *y, size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = x[i] + w[i];
}

CPU_CLONES(sum, (const float *x, const float *w, float *y, size_t n), (x, w, y, n))

static void add_samples(void *arg, size_t begin, size_t end) {
  const positions_job *j = arg;
  for (size_t i = begin; i < end; i++)
    sum(j->x + i * j->extent, j->w, j->y + i * j->extent, j->extent);
}

static clv_code positions_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  size_t before;
  positions_job j = {.x = a->in[0], .y = a->out, .extent = extent_of(k, &before)};
  j.w = (const float *)a->param[CLV_SLOT_WEIGHT] + before;
  (void)err;
  clv_cpu_parallel(clv_cpu_worth(k->threads, k->n_in), (size_t)k->d.in[0].dim[0], add_samples, &j);
  return CLV_OK;
}

static clv_code positions_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  if (a->din[0] != a->dout) memcpy(a->din[0], a->dout, k->n_out * sizeof(float));
  return CLV_OK;
}

static clv_code positions_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  const int64_t *dim = k->d.in[0].dim;
  size_t before, extent = extent_of(k, &before);
  float *dw = a->dparam[CLV_SLOT_WEIGHT];
  (void)err;
  if (!a->accumulate) memset(dw, 0, (size_t)(k->d.attrs.rows * dim[2]) * sizeof(float));
  clv_cpu_set_threads(k->threads);
  clv_cpu_column_sums(a->dout, (size_t)dim[0], extent, dw + before, true);
  return CLV_OK;
}

static clv_code positions_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->base.forward = positions_forward;
  k->base.backward_input = d->need_dx[0] ? positions_backward_input : NULL;
  k->base.backward_weight = d->need_dw ? positions_backward_weight : NULL;
  k->base.in_place = true;
  k->base.din_in_place = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(positions, positions_prepare)
