/* SPDX-License-Identifier: Apache-2.0
 *
 * pools_int: launchers of ops that slide a window over images, or compute a mean.
 */
#ifndef CLEAVE_KERNELS_CUDA_POOLS_INT_H
#define CLEAVE_KERNELS_CUDA_POOLS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* channels_last: x, y and their gradients are in GPU_CHANNELS_LAST, except the outputs of a mean.
 * argmax: receives the index in its image of each maximum, or NULL. */
clv_code clv_gpu_maxpool(clv_gpu *g, bool channels_last, const clv_window *s, const void *x,
                         void *y, int64_t *argmax, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_maxpool_back(clv_gpu *g, bool channels_last, const clv_window *s, const void *dy,
                              const int64_t *argmax, void *dx, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_avgpool(clv_gpu *g, bool channels_last, const clv_window *s, const void *x,
                         void *y, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_avgpool_back(clv_gpu *g, bool channels_last, const clv_window *s, const void *dy,
                              void *dx, clv_err *err) CLV_USE_RESULT;

/* Computes y, the resampled x, or with clv_gpu_resample_back dx from dy. */
clv_code clv_gpu_resample(clv_gpu *g, bool channels_last, const clv_resample *r, const void *x,
                          void *y, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_resample_back(clv_gpu *g, bool channels_last, const clv_resample *r,
                               const void *dy, void *dx, clv_err *err) CLV_USE_RESULT;

/* Computes the mean of x [outer, extent, inner] over extent: y [outer, inner]. */
clv_code clv_gpu_mean(clv_gpu *g, bool channels_last, const clv_axis *s, const void *x, float *y,
                      clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_mean_back(clv_gpu *g, bool channels_last, const clv_axis *s, const float *dy,
                           void *dx, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
