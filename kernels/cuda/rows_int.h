/* SPDX-License-Identifier: Apache-2.0
 *
 * rows_int: launchers of ops that compute each row of `width` values separately, one block a row.
 */
#ifndef CLEAVE_KERNELS_CUDA_ROWS_INT_H
#define CLEAVE_KERNELS_CUDA_ROWS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y = softmax of each row of x, or its logarithm if `is_log`. */
clv_code clv_gpu_softmax(clv_gpu *g, const float *x, float *y, size_t rows, size_t width,
                         bool is_log, clv_err *err) CLV_USE_RESULT;
/* Computes dx from the outputs y and their gradients dy. */
clv_code clv_gpu_softmax_back(clv_gpu *g, const float *y, const float *dy, float *dx, size_t rows,
                              size_t width, bool is_log, clv_err *err) CLV_USE_RESULT;

/* Extents of layer normalisation (is_centred), root-mean-square normalisation (not centred, b is
 * NULL), or group normalisation. saved: receives mean (or 0) and inverse deviation of each row; may
 * be NULL. */
typedef struct cuda_norm {
  size_t rows, width;
  /* In group normalisation a row is one of the `groups` groups of a sample, and each channel has
   * `inner` values. Otherwise both are 1, and each value of a row has its own weight. */
  size_t groups, inner;
  bool is_centred;
  double eps;
} cuda_norm;

/* Returns how the sums of the weight gradients are computed. */
static inline cuda_sums gpu_norm_sums(const cuda_norm *n) {
  return gpu_sums_of(n->rows / n->groups, n->groups * n->width / n->inner, n->inner);
}

clv_code clv_gpu_norm(clv_gpu *g, const cuda_norm *n, const float *x, const float *w,
                      const float *b, float *y, double *saved, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_norm_back(clv_gpu *g, const cuda_norm *n, const float *x, const float *w,
                           const float *dy, const double *saved, float *dx,
                           clv_err *err) CLV_USE_RESULT;
/* Computes dw, and db unless it is NULL. partial_sums: gpu_partial_sums_bytes of gpu_norm_sums. */
clv_code clv_gpu_norm_weights_back(clv_gpu *g, const cuda_norm *n, const float *x, const float *dy,
                                   const double *saved, void *partial_sums, float *dw, float *db,
                                   bool accumulate, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
