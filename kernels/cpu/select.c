/* SPDX-License-Identifier: Apache-2.0
 *
 * mean, concat and slice: tensors seen as [outer, extent, inner] around one dimension. mean adds in
 * double: along the last dimension value i into the partial sum i % 16, along others in order.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

typedef struct select_kernel {
  cpu_kernel k;
  clv_axis in[CLV_MAX_IN], out; /* extents of each input, and of the output (not used by mean) */
  size_t slice_start;           /* of slice: index of the first value in an outer row */
} select_kernel;

/* ---- the op mean ----------------------------------------------------------------------------- */

enum { COLUMNS_AT_ONCE = 64, LANES = 16 }; /* LANES: number of partial sums of a row */

/* Computes the means of up to COLUMNS_AT_ONCE neighbouring columns of one [extent, inner] block. */
CPU_INLINE void compute_column_means_body(const float *x, size_t extent, size_t inner, size_t n,
                                          float *y) {
  double sum[COLUMNS_AT_ONCE] = {0};
  for (size_t e = 0; e < extent; e++)
    for (size_t i = 0; i < n; i++) sum[i] += x[e * inner + i];
  for (size_t i = 0; i < n; i++) y[i] = (float)(sum[i] / (double)extent);
}

CPU_INLINE void compute_row_mean_body(const float *x, size_t n, float *y) {
  double sum[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) sum[l] += x[i + l];
  for (size_t l = 0; i + l < n; l++) sum[l] += x[i + l];
  for (size_t width = LANES / 2; width; width /= 2)
    for (size_t l = 0; l < width; l++) sum[l] += sum[l + width];
  *y = (float)(sum[0] / (double)n);
}

/* Computes the input gradients of one [extent, inner] block of a mean: dy / extent. */
CPU_INLINE void spread_gradient_body(const float *dy, size_t extent, size_t inner, float *dx) {
  for (size_t e = 0; e < extent; e++)
    for (size_t i = 0; i < inner; i++) dx[e * inner + i] = dy[i] / (float)extent;
}

CPU_INLINE void fill_run_body(float value, size_t n, float *dst) {
  for (size_t i = 0; i < n; i++) dst[i] = value;
}

CPU_CLONES(compute_column_means,
           (const float *restrict x, size_t extent, size_t inner, size_t n, float *restrict y),
           (x, extent, inner, n, y))
CPU_CLONES(compute_row_mean, (const float *restrict x, size_t n, float *restrict y), (x, n, y))
CPU_CLONES(spread_gradient,
           (const float *restrict dy, size_t extent, size_t inner, float *restrict dx),
           (dy, extent, inner, dx))
CPU_CLONES(fill_run, (float value, size_t n, float *restrict dst), (value, n, dst))

typedef struct select_job {
  const select_kernel *k;
  const clv_kernel_args *a;
} select_job;

static void compute_mean_blocks(void *arg, size_t begin, size_t end) {
  const select_job *j = arg;
  const clv_axis *s = &j->k->in[0];
  for (size_t o = begin; o < end; o++) {
    const float *x = (const float *)j->a->in[0] + o * s->extent * s->inner;
    float *y = (float *)j->a->out + o * s->inner;
    if (s->inner == 1) compute_row_mean(x, s->extent, y);
    for (size_t i = 0; s->inner > 1 && i < s->inner; i += COLUMNS_AT_ONCE)
      compute_column_means(x + i, s->extent, s->inner, CLV_MIN(s->inner - i, COLUMNS_AT_ONCE),
                           y + i);
  }
}

static void compute_mean_grad_blocks(void *arg, size_t begin, size_t end) {
  const select_job *j = arg;
  const clv_axis *s = &j->k->in[0];
  for (size_t o = begin; o < end; o++) {
    const float *dy = (const float *)j->a->dout + o * s->inner;
    float *dx = (float *)j->a->din[0] + o * s->extent * s->inner;
    if (s->inner == 1)
      fill_run(*dy / (float)s->extent, s->extent, dx);
    else
      spread_gradient(dy, s->extent, s->inner, dx);
  }
}

static clv_code run_blocks(const select_kernel *k, const clv_kernel_args *a, clv_cpu_range_fn *fn) {
  select_job j = {k, a};
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, k->k.n_in), k->in[0].outer, fn, &j);
  return CLV_OK;
}

static clv_code mean_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  return run_blocks((const select_kernel *)base, a, compute_mean_blocks);
}

static clv_code mean_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  return run_blocks((const select_kernel *)base, a, compute_mean_grad_blocks);
}

/* ---- concat and slice: copies of runs -------------------------------------------------------- */

/* Copies n runs of run_size values. src_step, dst_step: values from one run to the next. */
static void copy_runs(const float *src, size_t src_step, float *dst, size_t dst_step, size_t n,
                      size_t run_size) {
  for (size_t i = 0; i < n; i++)
    memcpy(dst + i * dst_step, src + i * src_step, run_size * sizeof *dst);
}

static clv_code concat_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const select_kernel *k = (const select_kernel *)base;
  size_t row_size = k->out.extent * k->out.inner, run_offset = 0;
  (void)err;
  for (int i = 0; i < k->k.d.n_in; i++) {
    size_t run_size = k->in[i].extent * k->in[i].inner;
    copy_runs(a->in[i], run_size, (float *)a->out + run_offset, row_size, k->out.outer, run_size);
    run_offset += run_size;
  }
  return CLV_OK;
}

static clv_code concat_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const select_kernel *k = (const select_kernel *)base;
  size_t row_size = k->out.extent * k->out.inner, run_offset = 0;
  (void)err;
  for (int i = 0; i < k->k.d.n_in; i++) {
    size_t run_size = k->in[i].extent * k->in[i].inner;
    if (a->din[i])
      copy_runs((const float *)a->dout + run_offset, row_size, a->din[i], run_size, k->out.outer,
                run_size);
    run_offset += run_size;
  }
  return CLV_OK;
}

static clv_code slice_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const select_kernel *k = (const select_kernel *)base;
  size_t run_size = k->out.extent * k->out.inner, row_size = k->in[0].extent * k->in[0].inner;
  (void)err;
  copy_runs((const float *)a->in[0] + k->slice_start, row_size, a->out, run_size, k->out.outer,
            run_size);
  return CLV_OK;
}

static clv_code slice_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const select_kernel *k = (const select_kernel *)base;
  size_t run_size = k->out.extent * k->out.inner, row_size = k->in[0].extent * k->in[0].inner;
  (void)err;
  memset(a->din[0], 0, k->k.n_in * sizeof(float));
  copy_runs(a->dout, run_size, (float *)a->din[0] + k->slice_start, row_size, k->out.outer,
            run_size);
  return CLV_OK;
}

/* ---- preparing the kernels ------------------------------------------------------------------- */

typedef clv_code kernel_fn(clv_kernel *k, const clv_kernel_args *a, clv_err *err);

static clv_code new_select_kernel(const clv_node_desc *d, kernel_fn *forward, kernel_fn *backward,
                                  const char *impl, select_kernel **ret, clv_err *err) {
  select_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  for (int i = 0; i < d->n_in; i++) k->in[i] = clv_axis_extents(&d->attrs, &d->in[i]);
  k->k.base.forward = forward;
  k->k.base.backward_input = k->k.has_backward ? backward : NULL;
  k->k.base.impl = impl;
  *ret = k;
  return CLV_OK;
}

static clv_code mean_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  select_kernel *k;
  CLV_TRY(new_select_kernel(d, mean_forward, mean_backward, "simd", &k, err));
  *ret = &k->k.base;
  return CLV_OK;
}

static clv_code concat_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  select_kernel *k;
  CLV_TRY(new_select_kernel(d, concat_forward, concat_backward, "copy", &k, err));
  k->out = clv_axis_extents(&d->attrs, &d->out);
  *ret = &k->k.base;
  return CLV_OK;
}

static clv_code slice_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  select_kernel *k;
  int64_t stop;
  CLV_TRY(new_select_kernel(d, slice_forward, slice_backward, "copy", &k, err));
  k->out = clv_axis_extents(&d->attrs, &d->out);
  k->slice_start =
      (size_t)clv_slice_start(&d->attrs, (int64_t)k->in[0].extent, &stop) * k->in[0].inner;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(mean, mean_prepare)
CLV_CPU_OP(concat, concat_prepare)
CLV_CPU_OP(slice, slice_prepare)
