/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-major [m, k] is column-major [k, m], so the products have their factors the other way round:
 * y' = b' a'.
 */
#include "kernels/cuda/gpu_int.h"

enum { FORWARD, GRAD_A, GRAD_B };

static clv_code matmul_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  cuda_factors f = {.a = a->in[1], .b = a->in[0], .d = a->out};
  return clv_gpu_multiply(gpu_kernel_of(base), FORWARD, &f, a, err);
}

static clv_code matmul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_factors da = {.a = a->in[1], .b = a->dout, .d = a->din[0]};
  cuda_factors db = {.a = a->dout, .b = a->in[0], .d = a->din[1]};
  if (a->din[0]) CLV_TRY(clv_gpu_multiply(k, GRAD_A, &da, a, err));
  return a->din[1] ? clv_gpu_multiply(k, GRAD_B, &db, a, err) : CLV_OK;
}

static clv_code matmul_open(cuda_kernel *k, clv_err *err) {
  clv_matmul s = clv_matmul_of(&k->r.d);
  int64_t a = s.m * s.k, b = s.k * s.n, y = s.m * s.n;
  const clv_cuda_matmul_desc products[] = {
      [FORWARD] = {false, false, s.n, s.m, s.k, s.n, s.k, s.n, s.batch, b, a, y,
                   CLV_CUDA_AFTER_NOTHING, CLV_CUDA_F32},
      [GRAD_A] = {true, false, s.k, s.m, s.n, s.n, s.n, s.k, s.batch, b, y, a,
                  CLV_CUDA_AFTER_NOTHING, CLV_CUDA_F32},
      [GRAD_B] = {false, true, s.n, s.k, s.m, s.n, s.k, s.n, s.batch, y, a, b,
                  CLV_CUDA_AFTER_NOTHING, CLV_CUDA_F32},
  };
  const bool wanted[] = {true, k->r.d.need_dx[0], k->r.d.need_dx[1]};
  for (int i = FORWARD; i <= GRAD_B; i++)
    if (wanted[i]) CLV_TRY(clv_gpu_product(k, i, &products[i], err));
  k->r.base.scratch_bytes = k->workspace;
  return CLV_OK;
}

CLV_CUDA_OP(matmul) = {
    .forward = matmul_forward, .backward_input = matmul_backward, .open = matmul_open};
