/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/moves_int.h"

/* ---- the op concat --------------------------------------------------------------------------- */

static clv_code concat_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis all = clv_axis_extents(&k->r.d.attrs, &k->r.d.out);
  size_t at = 0, stride = all.extent * all.inner;
  for (int i = 0; i < k->r.d.n_in; i++) {
    size_t run = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[i]).extent * all.inner;
    CLV_TRY(clv_gpu_copy_runs(k->gpu, a->in[i], run, (float *)a->out + at, stride, all.outer, run,
                              err));
    at += run;
  }
  return CLV_OK;
}

static clv_code concat_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis all = clv_axis_extents(&k->r.d.attrs, &k->r.d.out);
  size_t at = 0, stride = all.extent * all.inner;
  for (int i = 0; i < k->r.d.n_in; i++) {
    size_t run = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[i]).extent * all.inner;
    if (a->din[i])
      CLV_TRY(clv_gpu_copy_runs(k->gpu, (const float *)a->dout + at, stride, a->din[i], run,
                                all.outer, run, err));
    at += run;
  }
  return CLV_OK;
}

CLV_CUDA_OP(concat) = {.forward = concat_forward, .backward_input = concat_backward};

/* ---- the op slice ---------------------------------------------------------------------------- */

/* Returns the index of the slice's first value in an outer row of in[0]. *ret_run: number of values
 * of the slice in an outer row. */
static size_t slice_offset(const cuda_kernel *k, const clv_axis *s, size_t *ret_run) {
  int64_t stop, start = clv_slice_start(&k->r.d.attrs, (int64_t)s->extent, &stop);
  *ret_run = (size_t)(stop - start) * s->inner;
  return (size_t)start * s->inner;
}

static clv_code slice_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  size_t run, at = slice_offset(k, &s, &run);
  return clv_gpu_copy_runs(k->gpu, (const float *)a->in[0] + at, s.extent * s.inner, a->out, run,
                           s.outer, run, err);
}

static clv_code slice_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  size_t run, at = slice_offset(k, &s, &run);
  CLV_TRY(k->gpu->vendor->fill(k->gpu->stream, a->din[0], 0, k->r.n_in * sizeof(float), err));
  return clv_gpu_copy_runs(k->gpu, a->dout, run, (float *)a->din[0] + at, s.extent * s.inner,
                           s.outer, run, err);
}

CLV_CUDA_OP(slice) = {.forward = slice_forward, .backward_input = slice_backward};

/* ---- the op embedding ------------------------------------------------------------------------ */

static cuda_lookup describe_lookup(const cuda_kernel *k, const clv_kernel_args *a) {
  return (cuda_lookup){
      .l = clv_row_numbers_of(&k->r.d), .out = (size_t)k->r.d.attrs.out, .layer = a->key.layer};
}

static clv_code embedding_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_lookup l = describe_lookup(k, a);
  return clv_gpu_lookup(k->gpu, &l, a->in[0], a->param[CLV_SLOT_WEIGHT], a->out, err);
}

/* True if all row numbers are 0, because a column is subtracted from itself, and row 0 gets a
 * gradient. That gradient is then a sum over all positions. */
static bool is_lookup_always_row_0(const clv_row_numbers *l) {
  return l->minus == l->column && l->padding != 0;
}

static cuda_sums describe_row_0_sums(const clv_row_numbers *l, size_t out) {
  return gpu_sums_of(l->n, out, 1);
}

static clv_code row_0_backward(const cuda_kernel *k, const cuda_lookup *l, const clv_kernel_args *a,
                               clv_err *err) {
  cuda_sums s = describe_row_0_sums(&l->l, l->out);
  float *dw = a->dparam[CLV_SLOT_WEIGHT];
  size_t bytes = (size_t)l->l.rows * l->out * sizeof *dw;
  if (!a->accumulate) CLV_TRY(k->gpu->vendor->fill(k->gpu->stream, dw, 0, bytes, err));
  return clv_gpu_channel_sums(k->gpu, &s, false, a->dout, a->scratch, dw, true, err);
}

static clv_code embedding_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_lookup l = describe_lookup(k, a);
  if (is_lookup_always_row_0(&l.l)) return row_0_backward(k, &l, a, err);
  return clv_gpu_lookup_back(k->gpu, &l, a->in[0], a->dout, a->scratch, a->dparam[CLV_SLOT_WEIGHT],
                             a->accumulate, err);
}

static clv_code embedding_open(cuda_kernel *k, clv_err *err) {
  clv_row_numbers l = clv_row_numbers_of(&k->r.d);
  cuda_sums s = describe_row_0_sums(&l, (size_t)k->r.d.attrs.out);
  if (l.n > UINT32_MAX)
    return clv_fail(
        err, CLV_EXHAUSTED,
        "embedding of %zu row numbers, a device supports at most %u: use a smaller batch", l.n,
        UINT32_MAX);
  size_t bytes = is_lookup_always_row_0(&l) ? gpu_partial_sums_bytes(&s)
                                            : gpu_count_keys(l.n) * sizeof(uint64_t);
  k->r.base.scratch_bytes = k->r.d.need_dw ? bytes : 0;
  return CLV_OK;
}

CLV_CUDA_OP(embedding) = {.forward = embedding_forward,
                          .backward_weight = embedding_backward_weight,
                          .open = embedding_open};
