/* SPDX-License-Identifier: Apache-2.0
 *
 * pools_int: launchers of pools, resampling and means.
 */
#ifndef CLEAVE_KERNELS_CUDA_POOLS_INT_H
#define CLEAVE_KERNELS_CUDA_POOLS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launchers of pools. In all functions of this file, channels_last: x, y and their gradients are in
 * GPU_CHANNELS_LAST, except the outputs of a mean. argmax: receives the index of each maximum in
 * its image; NULL: not written. */
clv_code clv_gpu_maxpool(clv_gpu *g, bool channels_last, const clv_window *s, const void *x,
                         void *y, int64_t *argmax, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_maxpool_back(clv_gpu *g, bool channels_last, const clv_window *s, const void *dy,
                              const int64_t *argmax, void *dx, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_avgpool(clv_gpu *g, bool channels_last, const clv_window *s, const void *x,
                         void *y, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_avgpool_back(clv_gpu *g, bool channels_last, const clv_window *s, const void *dy,
                              void *dx, clv_err *err) CLV_USE_RESULT;

/* clv_gpu_resample computes y, the resampled x; clv_gpu_resample_back computes dx from dy. */
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
