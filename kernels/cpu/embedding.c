/* SPDX-License-Identifier: Apache-2.0
 *
 * embedding: y = W[x], x [N, ...] of row numbers, W [rows, out]. Gradients are added in the
 * order of the positions in x. Each thread adds its own columns, so that the number of threads
 * does not change the bits.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

typedef struct rows_job {
  clv_row_numbers positions;
  const int64_t *row_numbers;
  const float *src; /* forward: the weight; backward: the gradient of the output */
  float *dst;       /* forward: the output; backward: the gradient of the weight */
  size_t row_size;  /* values of a row of the weight */
} rows_job;

static void copy_rows(void *arg, size_t begin, size_t end) {
  const rows_job *j = arg;
  for (size_t i = begin; i < end; i++)
    memcpy(j->dst + i * j->row_size,
           j->src + (size_t)clv_row_number_at(&j->positions, j->row_numbers, i) * j->row_size,
           j->row_size * sizeof(float));
}

static clv_code embedding_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  rows_job j = {clv_row_numbers_of(&k->d), a->in[0], a->param[CLV_SLOT_WEIGHT], a->out,
                (size_t)k->d.attrs.out};
  CLV_TRY(clv_check_rows(&j.positions, j.row_numbers, err));
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_out), j.positions.n, copy_rows, &j);
  return CLV_OK;
}

CPU_INLINE void add_row_body(const float *src, float *dst, size_t n) {
  for (size_t i = 0; i < n; i++) dst[i] += src[i];
}

CPU_CLONES(add_row, (const float *restrict src, float *restrict dst, size_t n), (src, dst, n))

static void add_gradient_columns(void *arg, size_t begin, size_t end) {
  const rows_job *j = arg;
  for (size_t i = 0; i < j->positions.n; i++) {
    int64_t row = clv_row_number_at(&j->positions, j->row_numbers, i);
    if (row == j->positions.padding) continue;
    add_row(j->src + i * j->row_size + begin, j->dst + (size_t)row * j->row_size + begin,
            end - begin);
  }
}

static clv_code embedding_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  rows_job j = {clv_row_numbers_of(&k->d), a->in[0], a->dout, a->dparam[CLV_SLOT_WEIGHT],
                (size_t)k->d.attrs.out};
  CLV_TRY(clv_check_rows(&j.positions, j.row_numbers, err));
  if (!a->accumulate) memset(j.dst, 0, (size_t)k->d.attrs.rows * j.row_size * sizeof(float));
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_out), j.row_size, add_gradient_columns,
                   &j);
  return CLV_OK;
}

static clv_code embedding_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->base.forward = embedding_forward;
  k->base.backward_weight = d->need_dw ? embedding_backward : NULL;
  k->base.saved_flags = d->need_dw ? CLV_SAVE_IN0 : 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(embedding, embedding_prepare)
