/* SPDX-License-Identifier: Apache-2.0
 *
 * positions: y = x + W[offset..]. A sample of S positions and F features is one row of S * F
 * values. dW is a sum over the samples.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

typedef struct positions_job {
  const float *x, *w;
  float *y;
  size_t sample_size;
  const int64_t *lengths; /* lengths of the packed sequences; NULL: not packed */
  size_t features;
} positions_job;

static size_t count_features(const cpu_kernel *k) {
  return (size_t)k->d.in[0].dim[k->d.in[0].rank - 1];
}

/* Returns the number of values of a sample, or of a padded sequence. *ret_w_offset: index of the
 * first value of W that is added. */
static size_t get_sample_size(const cpu_kernel *k, size_t *ret_w_offset) {
  int64_t max_packed_steps = k->d.attrs.packed;
  *ret_w_offset = (size_t)k->d.attrs.offset * count_features(k);
  return (size_t)(max_packed_steps ? max_packed_steps : k->d.in[0].dim[1]) * count_features(k);
}

CPU_INLINE void add_values_body(const float *x, const float *w, float *y, size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = x[i] + w[i];
}

CPU_CLONES(add_values, (const float *x, const float *w, float *y, size_t n), (x, w, y, n))

static void add_w_to_samples(void *arg, size_t begin, size_t end) {
  const positions_job *j = arg;
  for (size_t i = begin; i < end; i++)
    add_values(j->x + i * j->sample_size, j->w, j->y + i * j->sample_size, j->sample_size);
}

static void add_w_to_sequences(void *arg, size_t begin, size_t end) {
  const positions_job *j = arg;
  size_t at = (size_t)clv_packed_rows_before(j->lengths, (int64_t)begin) * j->features;
  for (size_t i = begin, n; i < end; i++, at += n) {
    n = (size_t)j->lengths[i] * j->features;
    add_values(j->x + at, j->w, j->y + at, n);
  }
}

/* Adds the table of positions, W, to each packed sequence. Rows that belong to no sequence are
 * copied unchanged. */
static clv_code add_w_to_packed(const cpu_kernel *k, const clv_kernel_args *a, positions_job *j,
                                clv_err *err) {
  const clv_node_desc *d = &k->d;
  int64_t n = d->in[1].dim[0];
  j->lengths = a->in[1];
  j->features = count_features(k);
  CLV_TRY(clv_check_packed(j->lengths, n, d->attrs.packed, d->in[0].dim[0], err));
  size_t n_used_values = (size_t)clv_packed_rows_before(j->lengths, n) * j->features;
  if (j->y != j->x)
    memcpy(j->y + n_used_values, j->x + n_used_values, (k->n_in - n_used_values) * sizeof *j->y);
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), (size_t)n, add_w_to_sequences, j);
  return CLV_OK;
}

/* Adds the gradients of each position to dw, over the sequences that have this position, in order.
 */
static void sum_packed_gradients(const cpu_kernel *k, const clv_kernel_args *a, float *dw) {
  const int64_t *lengths = a->in[1];
  const float *dy = a->dout;
  size_t features = count_features(k);
  for (int64_t n = 0; n < k->d.in[1].dim[0]; n++) {
    size_t n_values = (size_t)lengths[n] * features;
    add_values(dw, dy, dw, n_values);
    dy += n_values;
  }
}

static clv_code positions_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  size_t w_offset;
  positions_job j = {.x = a->in[0], .y = a->out, .sample_size = get_sample_size(k, &w_offset)};
  j.w = (const float *)a->param[CLV_SLOT_WEIGHT] + w_offset;
  if (k->d.attrs.packed) return add_w_to_packed(k, a, &j, err);
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), (size_t)k->d.in[0].dim[0],
                   add_w_to_samples, &j);
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
  size_t w_offset, extent = get_sample_size(k, &w_offset);
  float *dw = a->dparam[CLV_SLOT_WEIGHT];
  (void)err;
  if (!a->accumulate) memset(dw, 0, (size_t)k->d.attrs.rows * count_features(k) * sizeof(float));
  clv_cpu_set_threads(k->threads);
  if (k->d.attrs.packed)
    sum_packed_gradients(k, a, dw + w_offset);
  else
    clv_cpu_sum_columns(a->dout, (size_t)dim[0], extent, dw + w_offset, true);
  return CLV_OK;
}

static clv_code positions_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->base.forward = positions_forward;
  k->base.backward_input = d->need_dx[0] ? positions_backward_input : NULL;
  k->base.backward_weight = d->need_dw ? positions_backward_weight : NULL;
  if (d->need_dw && d->attrs.packed)
    k->base.saved_flags_for_dw = k->base.saved_flags = CLV_SAVE_IN1;
  k->base.in_place = true;
  k->base.din_in_place_mask = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(positions, positions_prepare)
