/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/moves_int.h"

typedef struct prepend_extents {
  size_t n_samples, features;
  size_t sample_size; /* number of values of one sample of x */
} prepend_extents;

static prepend_extents describe_prepend(const cuda_kernel *k) {
  const int64_t *dim = k->r.d.in[0].dim;
  return (prepend_extents){(size_t)dim[0], (size_t)dim[2], (size_t)(dim[1] * dim[2])};
}

/* Returns the size in bytes of the gradients of the prepended step of all samples. */
static size_t count_gathered_bytes(const prepend_extents *s) {
  return clv_align_up(s->n_samples * s->features * sizeof(float), sizeof(double));
}

static clv_code prepend_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  prepend_extents s = describe_prepend(k);
  size_t stride = s.sample_size + s.features;
  CLV_TRY(clv_gpu_copy_runs(k->gpu, a->param[CLV_SLOT_WEIGHT], 0, a->out, stride, s.n_samples,
                            s.features, err));
  return clv_gpu_copy_runs(k->gpu, a->in[0], s.sample_size, (float *)a->out + s.features, stride,
                           s.n_samples, s.sample_size, err);
}

static clv_code prepend_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  prepend_extents s = describe_prepend(k);
  return clv_gpu_copy_runs(k->gpu, (const float *)a->dout + s.features, s.sample_size + s.features,
                           a->din[0], s.sample_size, s.n_samples, s.sample_size, err);
}

static clv_code prepend_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  prepend_extents s = describe_prepend(k);
  cuda_sum_layout sums = gpu_sum_layout_of(s.n_samples, s.features, 1);
  float *gathered_dy = a->scratch;
  void *partial_sums = (char *)a->scratch + count_gathered_bytes(&s);
  CLV_TRY(clv_gpu_copy_runs(k->gpu, a->dout, s.sample_size + s.features, gathered_dy, s.features,
                            s.n_samples, s.features, err));
  return clv_gpu_sum_channels(k->gpu, &sums, false, gathered_dy, partial_sums,
                              a->dparam[CLV_SLOT_WEIGHT], a->accumulate, err);
}

static clv_code prepend_open(cuda_kernel *k, clv_err *err) {
  prepend_extents s = describe_prepend(k);
  cuda_sum_layout sums = gpu_sum_layout_of(s.n_samples, s.features, 1);
  (void)err;
  k->r.base.scratch_bytes =
      k->r.d.need_dw ? count_gathered_bytes(&s) + gpu_partial_sums_bytes(&sums) : 0;
  return CLV_OK;
}

CLV_CUDA_OP(prepend) = {.forward = prepend_forward,
                        .backward_input = prepend_backward_input,
                        .backward_weight = prepend_backward_weight,
                        .open = prepend_open};
