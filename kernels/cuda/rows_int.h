/* SPDX-License-Identifier: Apache-2.0
 *
 * rows_int: launchers of ops that compute each row of `width` values separately, with one block of
 * threads for each row.
 */
#ifndef CLEAVE_KERNELS_CUDA_ROWS_INT_H
#define CLEAVE_KERNELS_CUDA_ROWS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y = softmax of each row of x, or its logarithm if `is_log_softmax`. */
clv_code clv_gpu_softmax(clv_gpu *g, const float *x, float *y, size_t rows, size_t width,
                         bool is_log_softmax, clv_err *err) CLV_USE_RESULT;
/* Computes dx of softmax, or of its logarithm if `is_log_softmax`, from the outputs y and their
 * gradients dy. */
clv_code clv_gpu_softmax_back(clv_gpu *g, const float *y, const float *dy, float *dx, size_t rows,
                              size_t width, bool is_log_softmax, clv_err *err) CLV_USE_RESULT;

/* A normalisation of rows: layer, group or root-mean-square normalisation. The last is not centred
 * and has no bias b. saved: mean, or 0, and inverse standard deviation of each row; NULL: not
 * written. */
typedef struct cuda_norm {
  size_t rows, width;
  size_t groups;   /* groups of a sample, of which each is a row; 1: not a group normalisation */
  size_t inner;    /* values of a channel, which have one weight; 1: each value has its own */
  bool is_centred; /* the mean is subtracted */
  double eps;
} cuda_norm;

/* Returns the layout of the sums that give the gradients of weights and biases. */
static inline cuda_sum_layout gpu_norm_sum_layout(const cuda_norm *n) {
  return gpu_sum_layout_of(n->rows / n->groups, n->groups * n->width / n->inner, n->inner);
}

clv_code clv_gpu_normalise_rows(clv_gpu *g, const cuda_norm *n, const float *x, const float *w,
                                const float *b, float *y, double *saved,
                                clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_normalise_rows_back(clv_gpu *g, const cuda_norm *n, const float *x, const float *w,
                                     const float *dy, const double *saved, float *dx,
                                     clv_err *err) CLV_USE_RESULT;
/* Computes dw, and db unless it is NULL. partial_sums: scratch of gpu_partial_sums_bytes for
 * gpu_norm_sum_layout(n). */
clv_code clv_gpu_norm_param_grads(clv_gpu *g, const cuda_norm *n, const float *x, const float *dy,
                                  const double *saved, void *partial_sums, float *dw, float *db,
                                  bool accumulate, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
