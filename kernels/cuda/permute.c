/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/permute_int.h"

/* ---- the op permute -------------------------------------------------------------------------- */

static clv_code run_permutation(const cuda_kernel *k, const void *from, void *to, bool is_backward,
                                clv_err *err) {
  cuda_permutation o = {.out = k->r.d.out, .n = k->r.n_out};
  clv_permuted_strides(&k->r.d.in[0], &k->r.d.attrs.order, o.step);
  return clv_gpu_permute(k->gpu, &o, from, to, is_backward, err);
}

static clv_code permute_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_permutation(gpu_kernel_of(base), a->in[0], a->out, false, err);
}

static clv_code permute_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_permutation(gpu_kernel_of(base), a->dout, a->din[0], true, err);
}

CLV_CUDA_OP(permute) = {.forward = permute_forward, .backward_input = permute_backward};

/* ---- the op rotary --------------------------------------------------------------------------- */

static clv_code run_rotation(const cuda_kernel *k, const clv_kernel_args *a, const void *x, void *y,
                             double sign, clv_err *err) {
  const clv_shape *in = &k->r.d.in[0];
  size_t heads = (size_t)k->r.d.attrs.heads;
  cuda_rotary r = {.n = k->r.n_in,
                   .steps = (size_t)in->dim[1],
                   .heads = heads,
                   .width = (size_t)in->dim[in->rank - 1] / heads,
                   .angles = clv_rotary_angles_of(&k->r.d.attrs),
                   .sign = sign};
  cuda_packed p;
  if (!k->r.d.attrs.packed) return clv_gpu_rotate(k->gpu, &r, x, y, err);
  CLV_TRY(clv_gpu_find_first_rows(k, a, a->scratch, &p, err));
  return clv_gpu_rotate_packed(k->gpu, &p, &r, x, y, err);
}

static clv_code rotary_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_rotation(gpu_kernel_of(base), a, a->in[0], a->out, 1, err);
}

static clv_code rotary_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_rotation(gpu_kernel_of(base), a, a->dout, a->din[0], -1, err);
}

static clv_code rotary_open(cuda_kernel *k, clv_err *err) {
  (void)err;
  k->r.base.scratch_bytes = gpu_packed_bytes(k);
  return CLV_OK;
}

CLV_CUDA_OP(rotary) = {
    .forward = rotary_forward, .backward_input = rotary_backward, .open = rotary_open};
