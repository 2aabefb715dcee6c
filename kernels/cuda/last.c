/* SPDX-License-Identifier: Apache-2.0
 *
 * The op `last`: copies one position of each sequence, of padded or of packed sequences.
 */
#include "kernels/cuda/moves_int.h"

/* Describes the packed sequences, of which the kernel copies one row each. */
static clv_code describe_last_packed(const cuda_kernel *k, const clv_kernel_args *a,
                                     cuda_last_packed *ret, clv_err *err) {
  ret->takes_first = k->r.d.attrs.first;
  ret->features = (size_t)k->r.d.in[0].dim[1];
  return clv_gpu_find_first_rows(k, a, a->scratch, &ret->p, err);
}

static clv_code packed_forward(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  cuda_last_packed e;
  CLV_TRY(describe_last_packed(k, a, &e, err));
  return clv_gpu_copy_packed_ends(k->gpu, &e, a->in[0], a->out, err);
}

static clv_code packed_backward(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  cuda_last_packed e;
  CLV_TRY(describe_last_packed(k, a, &e, err));
  return clv_gpu_copy_packed_ends_back(k->gpu, &e, a->dout, a->din[0], err);
}

static cuda_last_extents describe_last(const cuda_kernel *k, const clv_kernel_args *a) {
  const int64_t *dim = k->r.d.in[0].dim;
  return (cuda_last_extents){(size_t)dim[0], (size_t)dim[1], (size_t)dim[2], a->key.layer};
}

static clv_code last_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (k->r.d.attrs.packed) return packed_forward(k, a, err);
  cuda_last_extents l = describe_last(k, a);
  return clv_gpu_copy_last_steps(k->gpu, &l, a->in[0], a->in[1], a->out, err);
}

static clv_code last_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (k->r.d.attrs.packed) return packed_backward(k, a, err);
  cuda_last_extents l = describe_last(k, a);
  return clv_gpu_copy_last_steps_back(k->gpu, &l, a->dout, a->in[1], a->din[0], err);
}

static clv_code last_open(cuda_kernel *k, clv_err *err) {
  (void)err;
  k->r.base.scratch_bytes = gpu_packed_bytes(k);
  return CLV_OK;
}

CLV_CUDA_OP(last) = {.forward = last_forward, .backward_input = last_backward, .open = last_open};
