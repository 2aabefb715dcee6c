/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/cpu_int.h"

typedef struct matmul_kernel {
  cpu_kernel k;
  clv_matmul s;
} matmul_kernel;

/* Computes y = x z for each pair of matrices of the batch; all matrices are dense. */
static clv_code multiply_batch(const matmul_kernel *k, const cpu_gemm *g, const float *x,
                               const float *z, float *y, clv_err *err) {
  clv_cpu_set_threads(k->k.threads);
  for (int64_t b = 0; b < k->s.batch; b++)
    CLV_TRY(clv_cpu_gemm(g, x + b * g->m * g->k, z + b * g->k * g->n, 0, y + b * g->m * g->n, err));
  return CLV_OK;
}

static clv_code matmul_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const matmul_kernel *k = (const matmul_kernel *)base;
  const clv_matmul *s = &k->s;
  cpu_gemm g = {.m = s->m, .n = s->n, .k = s->k};
  return multiply_batch(k, &g, a->in[0], a->in[1], a->out, err);
}

static clv_code matmul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const matmul_kernel *k = (const matmul_kernel *)base;
  const clv_matmul *s = &k->s;
  cpu_gemm da_product = {.m = s->m, .n = s->k, .k = s->n, .b_is_transposed = true};
  cpu_gemm db_product = {.m = s->k, .n = s->n, .k = s->m, .a_is_transposed = true};
  if (a->din[0]) CLV_TRY(multiply_batch(k, &da_product, a->dout, a->in[1], a->din[0], err));
  return a->din[1] ? multiply_batch(k, &db_product, a->in[0], a->dout, a->din[1], err) : CLV_OK;
}

static clv_code matmul_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  matmul_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->s = clv_matmul_of(d);
  k->k.base.forward = matmul_forward;
  k->k.base.backward_input = k->k.has_backward ? matmul_backward : NULL;
  k->k.base.saved_flags = k->k.has_backward ? CLV_SAVE_IN0 | CLV_SAVE_IN1 : 0;
  k->k.base.impl = "sgemm";
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(matmul, matmul_prepare)
