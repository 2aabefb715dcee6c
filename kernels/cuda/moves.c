/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/moves_int.h"

/* ---- the op concat --------------------------------------------------------------------------- */

static clv_code concat_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis out_axis = clv_axis_extents(&k->r.d.attrs, &k->r.d.out);
  size_t offset = 0, stride = out_axis.extent * out_axis.inner;
  for (int i = 0; i < k->r.d.n_in; i++) {
    size_t values_per_row = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[i]).extent * out_axis.inner;
    CLV_TRY(clv_gpu_copy_runs(k->gpu, a->in[i], values_per_row, (float *)a->out + offset, stride,
                              out_axis.outer, values_per_row, err));
    offset += values_per_row;
  }
  return CLV_OK;
}

static clv_code concat_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis out_axis = clv_axis_extents(&k->r.d.attrs, &k->r.d.out);
  size_t offset = 0, stride = out_axis.extent * out_axis.inner;
  for (int i = 0; i < k->r.d.n_in; i++) {
    size_t values_per_row = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[i]).extent * out_axis.inner;
    if (a->din[i])
      CLV_TRY(clv_gpu_copy_runs(k->gpu, (const float *)a->dout + offset, stride, a->din[i],
                                values_per_row, out_axis.outer, values_per_row, err));
    offset += values_per_row;
  }
  return CLV_OK;
}

CLV_CUDA_OP(concat) = {.forward = concat_forward, .backward_input = concat_backward};

/* ---- the op slice ---------------------------------------------------------------------------- */

/* Returns the index at which the slice starts in each outer row of in[0], which has all values at
 * one index of the axes before the sliced one. *ret_values_per_row: number of values of the slice
 * in an outer row. */
static size_t get_slice_offset(const cuda_kernel *k, const clv_axis *s,
                               size_t *ret_values_per_row) {
  int64_t stop, start = clv_slice_start(&k->r.d.attrs, (int64_t)s->extent, &stop);
  *ret_values_per_row = (size_t)(stop - start) * s->inner;
  return (size_t)start * s->inner;
}

static clv_code slice_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  size_t values_per_row, offset = get_slice_offset(k, &s, &values_per_row);
  return clv_gpu_copy_runs(k->gpu, (const float *)a->in[0] + offset, s.extent * s.inner, a->out,
                           values_per_row, s.outer, values_per_row, err);
}

static clv_code slice_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
  size_t values_per_row, offset = get_slice_offset(k, &s, &values_per_row);
  CLV_TRY(k->gpu->vendor->fill(k->gpu->stream, a->din[0], 0, k->r.n_in * sizeof(float), err));
  return clv_gpu_copy_runs(k->gpu, a->dout, values_per_row, (float *)a->din[0] + offset,
                           s.extent * s.inner, s.outer, values_per_row, err);
}

CLV_CUDA_OP(slice) = {.forward = slice_forward, .backward_input = slice_backward};

/* ---- the op embedding ------------------------------------------------------------------------ */

static cuda_lookup describe_lookup(const cuda_kernel *k, const clv_kernel_args *a) {
  return (cuda_lookup){.l = clv_row_numbers_of(&k->r.d),
                       .row_size = (size_t)k->r.d.attrs.out,
                       .layer = a->key.layer};
}

static clv_code embedding_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_lookup l = describe_lookup(k, a);
  return clv_gpu_look_up_rows(k->gpu, &l, a->in[0], a->param[CLV_SLOT_WEIGHT], a->out, err);
}

/* Returns true if all row numbers are 0, because a column is subtracted from itself, and row 0 is
 * not the padding row. The gradient of row 0 is then the sum over all positions. */
static bool is_lookup_always_row_0(const clv_row_numbers *l) {
  return l->minus == l->column && l->padding != 0;
}

static cuda_sum_layout describe_row_0_sums(const clv_row_numbers *l, size_t row_size) {
  return gpu_sum_layout_of(l->n, row_size, 1);
}

static clv_code compute_row_0_grad(const cuda_kernel *k, const cuda_lookup *l,
                                   const clv_kernel_args *a, clv_err *err) {
  cuda_sum_layout s = describe_row_0_sums(&l->l, l->row_size);
  float *dw = a->dparam[CLV_SLOT_WEIGHT];
  size_t bytes = (size_t)l->l.rows * l->row_size * sizeof *dw;
  if (!a->accumulate) CLV_TRY(k->gpu->vendor->fill(k->gpu->stream, dw, 0, bytes, err));
  return clv_gpu_sum_channels(k->gpu, &s, false, a->dout, a->scratch, dw, true, err);
}

static clv_code embedding_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_lookup l = describe_lookup(k, a);
  if (is_lookup_always_row_0(&l.l)) return compute_row_0_grad(k, &l, a, err);
  return clv_gpu_look_up_rows_back(k->gpu, &l, a->in[0], a->dout, a->scratch,
                                   a->dparam[CLV_SLOT_WEIGHT], a->accumulate, err);
}

static clv_code embedding_open(cuda_kernel *k, clv_err *err) {
  clv_row_numbers l = clv_row_numbers_of(&k->r.d);
  cuda_sum_layout s = describe_row_0_sums(&l, (size_t)k->r.d.attrs.out);
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
