/* SPDX-License-Identifier: Apache-2.0
 *
 * wait_int: launchers of the op wait.
 */
#ifndef CLEAVE_KERNELS_CUDA_WAIT_INT_H
#define CLEAVE_KERNELS_CUDA_WAIT_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y = weight * x. weight: one number, in device memory. */
clv_code clv_gpu_mul_by_weight(clv_gpu *g, const float *x, const float *weight, float *y, size_t n,
                               clv_err *err) CLV_USE_RESULT;
/* Computes dw = sum of x dy, or adds the sum to dw if `accumulate`. partial_sums: scratch of
 * gpu_partial_sums_bytes for gpu_sum_layout_of(1, 1, n). */
clv_code clv_gpu_mul_by_weight_back(clv_gpu *g, const float *x, const float *dy, size_t n,
                                    void *partial_sums, float *dw, bool accumulate,
                                    clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
