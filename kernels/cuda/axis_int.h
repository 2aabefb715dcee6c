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

/* Writes to y[e] the value x[(first + step e) mod extent], where e is the index along the
 * dimension; step: 1 or -1. */
clv_code clv_gpu_move_along(clv_gpu *g, const clv_axis *s, int64_t first, int64_t step,
                            const float *x, float *y, clv_err *err) CLV_USE_RESULT;
/* Writes to y[e] the sum of x[0..e] along the dimension, or of x[e..] if `from_end`. */
clv_code clv_gpu_cumsum(clv_gpu *g, const clv_axis *s, bool from_end, const float *x, float *y,
                        clv_err *err) CLV_USE_RESULT;
/* Computes the variances y [outer, inner], or where dy is not NULL the gradient y of x. */
clv_code clv_gpu_var(clv_gpu *g, const clv_axis *s, double divisor, const float *x, const float *dy,
                     float *y, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
