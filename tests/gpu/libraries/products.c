/* SPDX-License-Identifier: Apache-2.0
 *
 * Products as the simulation has them: plain loops, summed in double.
 */
#include "tests/gpu/sim/sim_int.h"

/* op(A) of m x k, one column after another. */
static double *columns(const float *a, bool transposed, int64_t ld, int64_t m, int64_t k) {
  double *all = sim_fresh_take((size_t)(m * k) * sizeof *all);
  for (int64_t j = 0; j < k; j++)
    for (int64_t i = 0; i < m; i++)
      all[j * m + i] = (double)(transposed ? a[i * ld + j] : a[j * ld + i]);
  return all;
}

static float finish_value(const clv_cuda_matmul_desc *d, double sum, const float *bias,
                          int64_t row) {
  if (d->after != CLV_CUDA_AFTER_NOTHING) sum += (double)bias[row];
  if (d->after == CLV_CUDA_AFTER_BIAS_RELU && sum < 0) sum = 0;
  return (float)sum;
}

static void product(const clv_cuda_matmul_desc *d, const float *a, const float *b,
                    const float *bias, float beta, float *out) {
  double *left = columns(a, d->a_t, d->lda, d->m, d->k);
  double *sums = sim_fresh_take((size_t)d->m * sizeof *sums);
  for (int64_t j = 0; j < d->n; j++) {
    float *column = out + j * d->ldd;
    for (int64_t i = 0; i < d->m; i++) sums[i] = beta != 0 ? (double)column[i] : 0;
    for (int64_t p = 0; p < d->k; p++) {
      double factor = (double)(d->b_t ? b[p * d->ldb + j] : b[j * d->ldb + p]);
      for (int64_t i = 0; i < d->m; i++) sums[i] += left[p * d->m + i] * factor;
    }
    for (int64_t i = 0; i < d->m; i++) column[i] = finish_value(d, sums[i], bias, i);
  }
  sim_fresh_give(left);
  sim_fresh_give(sums);
}

void sim_matmul_run(const sim_op *op) {
  const clv_cuda_matmul_desc *d = &op->desc.matmul;
  for (int64_t i = 0; i < d->batch; i++)
    product(d, op->operand[0] + i * d->stride_a, op->operand[1] + i * d->stride_b, op->operand[2],
            op->beta, op->operand[3] + i * d->stride_d);
}
