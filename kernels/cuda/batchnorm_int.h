/* SPDX-License-Identifier: Apache-2.0
 *
 * batchnorm_int: launchers of batch normalisation over [n, channels, inner]. saved: mean and
 * inverse deviation of each channel. parts: scratch of gpu_parts_bytes for the channel sums.
 */
#ifndef CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H
#define CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which gradients pass: all (GPU_OPEN), or only those whose output is above 0. GPU_BY_X recomputes
 * the output from x; GPU_BY_Y reads it. */
typedef enum cuda_gate { GPU_OPEN, GPU_BY_X, GPU_BY_Y } cuda_gate;

typedef struct cuda_batchnorm {
  cuda_sums sums;
  bool training, last; /* last: values and their gradients are in GPU_LAST */
  double eps, momentum;
  bool relu; /* a relu follows, after `other` is added */
} cuda_batchnorm;

/* Writes the batch's statistics to `saved` and updates the running statistics. */
clv_code clv_gpu_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x, void *parts,
                               double *saved, float *running_mean, float *running_var,
                               int64_t *tracked, clv_err *err) CLV_USE_RESULT;
/* Copies the running statistics to `saved`. */
clv_code clv_gpu_running_moments(clv_gpu *g, const cuda_batchnorm *b, const float *running_mean,
                                 const float *running_var, double *saved,
                                 clv_err *err) CLV_USE_RESULT;
/* Normalises x. other: added to each value, or NULL. */
clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const void *x, const float *w,
                           const float *bias, const double *saved, const void *other, void *y,
                           clv_err *err) CLV_USE_RESULT;

/* Inputs of both backward passes. */
typedef struct cuda_gradient {
  cuda_gate gate;
  const void *x, *y, *dy; /* y: read only with GPU_BY_Y */
  const float *w, *bias;
  const double *saved;
} cuda_gradient;

/* Writes the gradients of bias and weight, in this order, to totals (a cuda_pair for each channel),
 * and to db and dw unless dw is NULL. passed: receives the part of dy that the gate lets pass, or
 * NULL; may be dy. */
clv_code clv_gpu_batchnorm_totals(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                  void *parts, cuda_pair *totals, void *passed, float *dw,
                                  float *db, bool accumulate, clv_err *err) CLV_USE_RESULT;
/* Computes dx. totals: read only in training. dx may be dy. */
clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                const cuda_pair *totals, void *dx, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
