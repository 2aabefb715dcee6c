/* SPDX-License-Identifier: Apache-2.0
 *
 * broadcast_int: launchers of add and mul whose inputs stand for several values.
 */
#ifndef CLEAVE_KERNELS_CUDA_BROADCAST_INT_H
#define CLEAVE_KERNELS_CUDA_BROADCAST_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[o] = x z or x + z of n values. */
clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, bool product, const float *x,
                           const float *z, float *y, size_t n, clv_err *err) CLV_USE_RESULT;

/* What a value of one input stands for: `rank` dimensions of the output for what it has, and
 * `n_summed` for what is summed, each with the steps in the output and in the other input. A value
 * is a block's, or where `alone` a thread's. */
typedef struct cuda_fold {
  int rank, n_summed;
  size_t n[CLV_MAX_RANK], out[CLV_MAX_RANK], other[CLV_MAX_RANK];
  size_t summed[CLV_MAX_RANK], summed_out[CLV_MAX_RANK], summed_other[CLV_MAX_RANK];
  size_t values, terms; /* of the input; of each of them */
  bool alone;
} cuda_fold;

/* dx = sum of dy, times `other` where it is given. */
clv_code clv_gpu_fold(clv_gpu *g, const cuda_fold *f, const float *dy, const float *other,
                      float *dx, clv_err *err) CLV_USE_RESULT;

/* The op's functions where clv_broadcasts says so. */
clv_code clv_gpu_broadcast_forward(const cuda_kernel *k, const clv_kernel_args *a,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_backward(const cuda_kernel *k, const clv_kernel_args *a,
                                    clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
