/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the simulated cuBLAS's matrix products by plain loops, with sums in double.
 */
#include "tests/gpu/sim/sim_int.h"

/* Returns the matrix a, transposed if is_transposed is set, as doubles [rows, columns] in
 * column-major order. ld: leading dimension of a. */
static double *read_matrix(clv_cuda_math math, const void *a, bool is_transposed, int64_t ld,
                           int64_t rows, int64_t columns) {
  double *doubles = sim_allocate_fresh((size_t)(rows * columns) * sizeof *doubles);
  for (int64_t j = 0; j < columns; j++)
    for (int64_t i = 0; i < rows; i++)
      doubles[j * rows + i] =
          sim_get_factor(math, a, (size_t)(is_transposed ? i * ld + j : j * ld + i));
  return doubles;
}

static float apply_epilogue(const clv_cuda_matmul_desc *d, double sum, const float *bias,
                            int64_t row) {
  if (d->epilogue != CLV_CUDA_EPILOGUE_NONE) sum += (double)bias[row];
  return d->epilogue == CLV_CUDA_EPILOGUE_RELU_BIAS && (float)sum <= 0 ? 0 : (float)sum;
}

static void multiply_matrices(const clv_cuda_matmul_desc *d, const void *a, const void *b,
                              const float *bias, float beta, float *out) {
  double *left = read_matrix(d->math, a, d->a_is_transposed, d->lda, d->m, d->k);
  double *right = read_matrix(d->math, b, d->b_is_transposed, d->ldb, d->k, d->n);
  double *sums = sim_allocate_fresh((size_t)(d->m * d->n) * sizeof *sums);
  for (int64_t j = 0; j < d->n; j++)
    for (int64_t i = 0; i < d->m; i++)
      sums[j * d->m + i] = beta > 0 ? (double)out[j * d->ldd + i] : 0;
  sim_compute_product(&(sim_product){d->m, d->n, d->k, left, right, sums});
  for (int64_t j = 0; j < d->n; j++)
    for (int64_t i = 0; i < d->m; i++)
      out[j * d->ldd + i] = apply_epilogue(d, sums[j * d->m + i], bias, i);
  sim_free_fresh(left);
  sim_free_fresh(right);
  sim_free_fresh(sums);
}

void sim_matmul_run(const sim_op *op) {
  const clv_cuda_matmul_desc *d = &op->desc.matmul;
  size_t bytes = sim_get_factor_bytes(d->math);
  for (int64_t i = 0; i < d->batch; i++)
    multiply_matrices(d, (const char *)op->operands[0] + (size_t)(i * d->stride_a) * bytes,
                      (const char *)op->operands[1] + (size_t)(i * d->stride_b) * bytes,
                      op->operands[2], op->beta, (float *)op->operands[3] + i * d->stride_d);
}
