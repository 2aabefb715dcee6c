/* SPDX-License-Identifier: Apache-2.0
 *
 * axis_int: launchers of ops along one dimension, seen as [outer, extent, inner].
 */
#ifndef CLEAVE_KERNELS_CUDA_AXIS_INT_H
#define CLEAVE_KERNELS_CUDA_AXIS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y[e] = x[(first + step * e) mod extent] along the dimension, where step is 1 or -1. */
clv_code clv_gpu_reorder_along_axis(clv_gpu *g, const clv_axis *s, int64_t first, int64_t step,
                                    const float *x, float *y, clv_err *err) CLV_USE_RESULT;
/* Computes the running sums y[e] = sum of x[0..e] along the dimension; if `sums_from_end`, y[e] is
 * the sum of x[e] and all later values. */
clv_code clv_gpu_cumsum(clv_gpu *g, const clv_axis *s, bool sums_from_end, const float *x, float *y,
                        clv_err *err) CLV_USE_RESULT;
/* Computes the variances y [outer, inner] of x. If dy is not NULL, computes the gradient of x from
 * dy instead, and writes it to y. */
clv_code clv_gpu_var(clv_gpu *g, const clv_axis *s, double divisor, const float *x, const float *dy,
                     float *y, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
