/* SPDX-License-Identifier: Apache-2.0
 *
 * The op matmul. Row-major [m, k] is column-major [k, m], so the products have their factors in
 * reverse order: y' = b' a'. In bf16 both factors of a product are first rounded into scratch.
 */
#include "kernels/cuda/bf16_int.h"

enum { FORWARD_PRODUCT, GRAD_A_PRODUCT, GRAD_B_PRODUCT };

/* Numbers of values of the factors a and b and of the output y. */
typedef struct matmul_value_counts {
  size_t a, b, y;
} matmul_value_counts;

static matmul_value_counts count_values(const cuda_kernel *k) {
  clv_matmul s = clv_matmul_of(&k->r.d);
  return (matmul_value_counts){(size_t)(s.batch * s.m * s.k), (size_t)(s.batch * s.k * s.n),
                               (size_t)(s.batch * s.m * s.n)};
}

/* Buffers in scratch for factors rounded to bf16; y: for the output's gradient. */
typedef struct matmul_buffers {
  cuda_bf16 *a, *b, *y;
} matmul_buffers;

static matmul_buffers find_buffers(const cuda_kernel *k, const clv_kernel_args *args) {
  matmul_value_counts n = count_values(k);
  char *address = gpu_scratch(k, args);
  matmul_buffers r = {.a = (cuda_bf16 *)address};
  r.b = (cuda_bf16 *)(address += gpu_factor_bytes(k, n.a));
  r.y = (cuda_bf16 *)(address + gpu_factor_bytes(k, n.b));
  return r;
}

static clv_code matmul_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  matmul_value_counts n = count_values(k);
  matmul_buffers r = find_buffers(k, a);
  cuda_product_args f = {.d = a->out};
  CLV_TRY(clv_gpu_prepare_factor(k, a->in[0], n.a, r.a, &f.b, err));
  CLV_TRY(clv_gpu_prepare_factor(k, a->in[1], n.b, r.b, &f.a, err));
  return clv_gpu_multiply(k, FORWARD_PRODUCT, &f, a, err);
}

static clv_code matmul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  matmul_value_counts n = count_values(k);
  matmul_buffers r = find_buffers(k, a);
  const void *dy;
  cuda_product_args da = {.d = a->din[0]}, db = {.d = a->din[1]};
  CLV_TRY(clv_gpu_prepare_factor(k, a->dout, n.y, r.y, &dy, err));
  da.b = db.a = dy;
  if (a->din[0]) CLV_TRY(clv_gpu_prepare_factor(k, a->in[1], n.b, r.b, &da.a, err));
  if (a->din[0]) CLV_TRY(clv_gpu_multiply(k, GRAD_A_PRODUCT, &da, a, err));
  if (!a->din[1]) return CLV_OK;
  CLV_TRY(clv_gpu_prepare_factor(k, a->in[0], n.a, r.a, &db.b, err));
  return clv_gpu_multiply(k, GRAD_B_PRODUCT, &db, a, err);
}

static clv_code matmul_open(cuda_kernel *k, clv_err *err) {
  clv_matmul s = clv_matmul_of(&k->r.d);
  int64_t a = s.m * s.k, b = s.k * s.n, y = s.m * s.n;
  const clv_cuda_matmul_desc products[] = {
      [FORWARD_PRODUCT] = {false, false, s.n, s.m, s.k, s.n, s.k, s.n, s.batch, b, a, y,
                           CLV_CUDA_EPILOGUE_NONE, CLV_CUDA_F32},
      [GRAD_A_PRODUCT] = {true, false, s.k, s.m, s.n, s.n, s.n, s.k, s.batch, b, y, a,
                          CLV_CUDA_EPILOGUE_NONE, CLV_CUDA_F32},
      [GRAD_B_PRODUCT] = {false, true, s.n, s.k, s.m, s.n, s.k, s.n, s.batch, y, a, b,
                          CLV_CUDA_EPILOGUE_NONE, CLV_CUDA_F32},
  };
  const bool is_needed[] = {true, k->r.d.need_dx[0], k->r.d.need_dx[1]};
  for (int i = FORWARD_PRODUCT; i <= GRAD_B_PRODUCT; i++)
    if (is_needed[i]) CLV_TRY(clv_gpu_new_product(k, i, &products[i], err));
  matmul_value_counts n = count_values(k);
  k->r.base.scratch_bytes = k->workspace_bytes + gpu_factor_bytes(k, n.a) +
                            gpu_factor_bytes(k, n.b) +
                            (k->r.has_backward ? gpu_factor_bytes(k, n.y) : 0);
  return CLV_OK;
}

CLV_CUDA_OP(matmul) = {.forward = matmul_forward,
                       .backward_input = matmul_backward,
                       .open = matmul_open,
                       .bf16 = true};
