/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_int: launchers around convolutions.
 */
#ifndef CLEAVE_KERNELS_CUDA_CONV_INT_H
#define CLEAVE_KERNELS_CUDA_CONV_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `samples` images with `channels` of each side by side, whose samples lie `stride` values apart:
 * what a window sees of them. columns [samples, channels * taps, oh * ow]. */
typedef struct cuda_columns {
  clv_window window;
  size_t samples, channels, stride;
} cuda_columns;

clv_code clv_gpu_to_columns(clv_gpu *g, const cuda_columns *c, const float *x, float *columns,
                            clv_err *err) CLV_USE_RESULT;
/* The sum of what each value of x was copied to. */
clv_code clv_gpu_from_columns(clv_gpu *g, const cuda_columns *c, const float *columns, float *x,
                              clv_err *err) CLV_USE_RESULT;
/* y [n, channels, inner] += bias[channel], and of that the relu. */
clv_code clv_gpu_add_bias(clv_gpu *g, const float *bias, float *y, size_t n, size_t channels,
                          size_t inner, bool relu, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
