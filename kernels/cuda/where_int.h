/* SPDX-License-Identifier: Apache-2.0
 *
 * where_int: launcher of the op where.
 */
#ifndef CLEAVE_KERNELS_CUDA_WHERE_INT_H
#define CLEAVE_KERNELS_CUDA_WHERE_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y = a where x > threshold, else b, over n values. NULL for a or b stands for zeros. y
 * may be a or b. */
clv_code clv_gpu_where(clv_gpu *g, const float *x, float threshold, const float *a, const float *b,
                       float *y, size_t n, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
