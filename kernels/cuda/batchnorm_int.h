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

typedef struct cuda_batchnorm {
  cuda_sums sums;
  bool training;
  double eps, momentum;
} cuda_batchnorm;

/* The statistics of the batch into saved, and the running ones moved towards them. */
clv_code clv_gpu_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const float *x, void *parts,
                               double *saved, float *running_mean, float *running_var,
                               int64_t *tracked, clv_err *err) CLV_USE_RESULT;
/* The running statistics into saved. */
clv_code clv_gpu_running_moments(clv_gpu *g, const cuda_batchnorm *b, const float *running_mean,
                                 const float *running_var, double *saved,
                                 clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const float *x, const float *w,
                           const float *bias, const double *saved, float *y,
                           clv_err *err) CLV_USE_RESULT;

/* The sums that both backward functions need, in parts. */
clv_code clv_gpu_batchnorm_sums(clv_gpu *g, const cuda_batchnorm *b, const float *x,
                                const float *dy, const double *saved, void *parts,
                                clv_err *err) CLV_USE_RESULT;
/* totals: a cuda_pair for each channel. */
clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const float *x, const float *w,
                                const float *dy, const double *saved, const void *parts,
                                cuda_pair *totals, float *dx, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_batchnorm_weights_back(clv_gpu *g, const cuda_batchnorm *b, const void *parts,
                                        float *dw, float *db, bool accumulate,
                                        clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
