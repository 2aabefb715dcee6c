/* SPDX-License-Identifier: Apache-2.0
 *
 * batchnorm_int: launchers of batch normalisation over [n, channels, inner]. saved: mean and
 * inverse of each channel. parts: gpu_parts_bytes of the site's sums.
 */
#ifndef CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H
#define CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What passes of a gradient: all, or that of outputs above 0, which are made again of x or read. */
typedef enum cuda_gate { GPU_OPEN, GPU_BY_X, GPU_BY_Y } cuda_gate;

typedef struct cuda_batchnorm {
  cuda_sums sums;
  bool training, last; /* last: values and their gradients are in GPU_LAST */
  double eps, momentum;
  bool relu; /* behind it, and behind what is added to it */
} cuda_batchnorm;

/* The statistics of the batch into saved, and the running ones moved towards them. */
clv_code clv_gpu_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x, void *parts,
                               double *saved, float *running_mean, float *running_var,
                               int64_t *tracked, clv_err *err) CLV_USE_RESULT;
/* The running statistics into saved. */
clv_code clv_gpu_running_moments(clv_gpu *g, const cuda_batchnorm *b, const float *running_mean,
                                 const float *running_var, double *saved,
                                 clv_err *err) CLV_USE_RESULT;
/* other: added to each value, or NULL. */
clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const void *x, const float *w,
                           const float *bias, const double *saved, const void *other, void *y,
                           clv_err *err) CLV_USE_RESULT;

/* What both ways back read. */
typedef struct cuda_gradient {
  cuda_gate gate;
  const void *x, *y, *dy; /* y: GPU_BY_Y alone */
  const float *w, *bias;
  const double *saved;
} cuda_gradient;

/* Gradients of bias and weight, in this order, into totals (a cuda_pair for each channel), and into
 * db and dw where dw is not NULL. passed: what of dy the gate lets through, or NULL; may be dy. */
clv_code clv_gpu_batchnorm_totals(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                  void *parts, cuda_pair *totals, void *passed, float *dw,
                                  float *db, bool accumulate, clv_err *err) CLV_USE_RESULT;
/* totals: read in training alone. dx may be dy. */
clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                const cuda_pair *totals, void *dx, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
