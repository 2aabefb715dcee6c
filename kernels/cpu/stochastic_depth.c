/* SPDX-License-Identifier: Apache-2.0
 *
 * stochastic_depth: dropout of whole records. Every layout has the records outermost, so the kernel
 * takes any.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

typedef struct stochastic_depth_job {
  const float *x;
  float *y, factor;
  /* whether each record is kept, [records]; NULL: evaluation, in which the values are copied */
  const uint8_t *is_kept;
  size_t record_size;
} stochastic_depth_job;

CPU_INLINE void scale_record_body(const float *x, float factor, float *y, size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = factor * x[i];
}
CPU_CLONES(scale_record, (const float *x, float factor, float *y, size_t n), (x, factor, y, n))

static void scale_records(void *arg, size_t begin, size_t end) {
  const stochastic_depth_job *j = arg;
  for (size_t n = begin; n < end; n++) {
    size_t at = n * j->record_size;
    if (j->is_kept)
      scale_record(j->x + at, j->is_kept[n] ? j->factor : 0, j->y + at, j->record_size);
    else if (j->x != j->y)
      memcpy(j->y + at, j->x + at, j->record_size * sizeof *j->y);
  }
}

static clv_code scale_all_records(const cpu_kernel *k, const float *x, const uint8_t *is_kept,
                                  float *y) {
  size_t n = (size_t)k->d.in[0].dim[0];
  double p = k->d.attrs.p;
  stochastic_depth_job j = {x, y, (float)(p < 1 ? 1 / (1 - p) : 0), k->d.training ? is_kept : NULL,
                            k->n_in / n};
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), n, scale_records, &j);
  return CLV_OK;
}

static clv_code depth_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  uint8_t *is_kept = a->saved;
  uint32_t random_words[4] = {0};
  (void)err;
  for (size_t n = 0; k->d.training && n < (size_t)k->d.in[0].dim[0]; n++) {
    if (n % 4 == 0) clv_rng_block(&a->key, (uint32_t)(n / 4), random_words);
    is_kept[n] = (random_words[n % 4] >> 8) * 0x1p-24 >= k->d.attrs.p;
  }
  return scale_all_records(k, a->in[0], is_kept, a->out);
}

static clv_code depth_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  return scale_all_records((const cpu_kernel *)base, a->dout, a->saved, a->din[0]);
}

static clv_code depth_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = depth_forward;
  k->base.backward_input = d->need_dx[0] ? depth_backward : NULL;
  k->base.saved_bytes = d->training ? (size_t)d->in[0].dim[0] : 0;
  k->base.in_place = true;
  k->base.din_in_place_mask = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(stochastic_depth, depth_prepare)
