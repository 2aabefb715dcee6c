/* SPDX-License-Identifier: Apache-2.0
 *
 * batchnorm_int: launchers of batch normalisation over [n, channels, inner]. saved: mean and
 * inverse deviation of each channel. partial_sums: scratch of gpu_partial_sums_bytes, for the
 * channel sums.
 */
#ifndef CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H
#define CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which gradients pass the relu: all (GPU_OPEN), or only those whose output is above 0. GPU_BY_X
 * recomputes the output from x; GPU_BY_Y reads it. */
typedef enum cuda_gate { GPU_OPEN, GPU_BY_X, GPU_BY_Y } cuda_gate;

typedef struct cuda_batchnorm {
  cuda_sums sums;
  bool is_training;
  bool channels_last; /* values and their gradients are in GPU_CHANNELS_LAST */
  double eps, momentum;
  bool has_relu; /* a relu is applied, after `other` is added */
} cuda_batchnorm;

/* Writes the batch's mean and inverse deviation of each channel to `saved`, and updates the running
 * statistics. partial_sums: gpu_partial_sums_bytes of scratch. */
clv_code clv_gpu_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x,
                               void *partial_sums, double *saved, float *running_mean,
                               float *running_var, int64_t *tracked, clv_err *err) CLV_USE_RESULT;
/* Writes the mean and inverse deviation of the running statistics to `saved`. */
clv_code clv_gpu_running_moments(clv_gpu *g, const cuda_batchnorm *b, const float *running_mean,
                                 const float *running_var, double *saved,
                                 clv_err *err) CLV_USE_RESULT;
/* Normalises x with the statistics in `saved`. other: added to each value, or NULL. */
clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const void *x, const float *w,
                           const float *bias, const double *saved, const void *other, void *y,
                           clv_err *err) CLV_USE_RESULT;

/* Inputs of both passes of backward: clv_gpu_batchnorm_totals, then clv_gpu_batchnorm_back. */
typedef struct cuda_gradient {
  cuda_gate gate;
  const void *x, *y, *dy; /* y: read only with GPU_BY_Y */
  const float *w, *bias;
  const double *saved;
} cuda_gradient;

/* Computes the gradients of bias and weight and writes them, in this order, to totals (a cuda_pair
 * for each channel), and to db and dw unless dw is NULL. gated_dy: receives the part of dy that
 * passes the gate, or NULL; may be dy. partial_sums: gpu_partial_sums_bytes of scratch. */
clv_code clv_gpu_batchnorm_totals(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                  void *partial_sums, cuda_pair *totals, void *gated_dy, float *dw,
                                  float *db, bool accumulate, clv_err *err) CLV_USE_RESULT;
/* Computes dx. totals: written by clv_gpu_batchnorm_totals, read only in training. dx may be dy. */
clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                const cuda_pair *totals, void *dx, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
