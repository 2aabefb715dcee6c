/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/positions_int.h"

static size_t count_sample_values(const cuda_kernel *k, size_t *ret_w_offset) {
  const clv_shape *in = &k->r.d.in[0];
  int64_t packed_steps = k->r.d.attrs.packed, features = in->dim[in->rank - 1];
  *ret_w_offset = (size_t)(k->r.d.attrs.offset * features);
  return (size_t)((packed_steps ? packed_steps : in->dim[1]) * features);
}

static size_t row_width(const cuda_kernel *k) {
  return (size_t)k->r.d.in[0].dim[k->r.d.in[0].rank - 1];
}

static clv_code packed_forward(const cuda_kernel *k, const clv_kernel_args *a, const float *w,
                               clv_err *err) {
  cuda_packed p;
  CLV_TRY(clv_gpu_find_first_rows(k, a, a->scratch, &p, err));
  return clv_gpu_add_to_packed(k->gpu, &p, a->in[0], w, a->out, row_width(k), err);
}

static clv_code positions_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  size_t w_offset, sample_size = count_sample_values(k, &w_offset);
  const float *w = (const float *)a->param[CLV_SLOT_WEIGHT] + w_offset;
  if (k->r.d.attrs.packed) return packed_forward(k, a, w, err);
  return clv_gpu_add_to_samples(k->gpu, a->in[0], w, a->out, k->r.n_in, sample_size, err);
}

static clv_code positions_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (a->din[0] == a->dout) return CLV_OK;
  return k->gpu->vendor->copy(k->gpu->stream, a->din[0], a->dout, k->r.n_in * sizeof(float), err);
}

static cuda_sum_layout describe_sums(const cuda_kernel *k) {
  size_t w_offset, sample_size = count_sample_values(k, &w_offset);
  return gpu_sum_layout_of((size_t)k->r.d.in[0].dim[0], sample_size, 1);
}

static clv_code packed_backward(const cuda_kernel *k, const clv_kernel_args *a, float *dw,
                                clv_err *err) {
  cuda_packed p;
  CLV_TRY(clv_gpu_find_first_rows(k, a, a->scratch, &p, err));
  return clv_gpu_sum_packed_grads(k->gpu, &p, a->dout, dw, row_width(k), err);
}

static clv_code positions_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  size_t w_offset, n_values = (size_t)k->r.d.attrs.rows * row_width(k);
  cuda_sum_layout s = describe_sums(k);
  count_sample_values(k, &w_offset);
  float *dw = a->dparam[CLV_SLOT_WEIGHT];
  if (!a->accumulate)
    CLV_TRY(k->gpu->vendor->fill(k->gpu->stream, dw, 0, n_values * sizeof *dw, err));
  if (k->r.d.attrs.packed) return packed_backward(k, a, dw + w_offset, err);
  return clv_gpu_sum_channels(k->gpu, &s, false, a->dout, a->scratch, dw + w_offset, true, err);
}

static clv_code positions_open(cuda_kernel *k, clv_err *err) {
  cuda_sum_layout s = describe_sums(k);
  (void)err;
  size_t sums_bytes = k->r.d.need_dw ? gpu_partial_sums_bytes(&s) : 0;
  k->r.base.scratch_bytes = k->r.d.attrs.packed ? gpu_packed_bytes(k) : sums_bytes;
  return CLV_OK;
}

CLV_CUDA_OP(positions) = {.forward = positions_forward,
                          .backward_input = positions_backward_input,
                          .backward_weight = positions_backward_weight,
                          .open = positions_open};
