/* SPDX-License-Identifier: Apache-2.0
 *
 * pointwise_int: element-wise ops.
 */
#ifndef CLEAVE_KERNELS_CUDA_POINTWISE_INT_H
#define CLEAVE_KERNELS_CUDA_POINTWISE_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] of x[i], and of z[i] where there is a second; z may be NULL. */
typedef clv_code gpu_map(clv_gpu *g, const float *x, const float *z, float *y, size_t n,
                         clv_err *err);
gpu_map clv_gpu_relu, clv_gpu_relu_back, clv_gpu_sigmoid, clv_gpu_sigmoid_back, clv_gpu_tanh,
    clv_gpu_tanh_back, clv_gpu_gelu, clv_gpu_gelu_back;

#ifdef __cplusplus
}
#endif
#endif
