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

/* Which of the values are bf16, with channels last: what an input has that has more than one value
 * a channel, and the output. One value a channel lies alike in all layouts, and is f32. */
typedef struct cuda_bf16_flags {
  bool in[2], out;
} cuda_bf16_flags;

/* y[o] = x z or x + z of n values, in f32 before they are written. */
clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, const cuda_bf16_flags *few,
                           bool product, const void *x, const void *z, void *y, size_t n,
                           clv_err *err) CLV_USE_RESULT;

/* What a value of one input stands for: `rank` dimensions of the output for what it has, and
 * `n_summed` for what is summed, each with the steps in the output and in the other input. A value
 * is a block's, or where `alone` a thread's. */
typedef struct cuda_fold {
  int rank, n_summed;
  size_t n[CLV_MAX_RANK], out[CLV_MAX_RANK], other[CLV_MAX_RANK];
  size_t summed[CLV_MAX_RANK], summed_out[CLV_MAX_RANK], summed_other[CLV_MAX_RANK];
  size_t values, terms; /* of the input; of each of them */
  bool alone;
  bool dx_bf16, other_bf16, dy_bf16; /* see cuda_bf16_flags */
} cuda_fold;

/* dx = sum of dy, times `other` where it is given. Sums are double. */
clv_code clv_gpu_fold(clv_gpu *g, const cuda_fold *f, const void *dy, const void *other, void *dx,
                      clv_err *err) CLV_USE_RESULT;

/* The op's functions where clv_broadcasts says so; open: of all add and mul. */
clv_code clv_gpu_broadcast_open(cuda_kernel *k, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_forward(const cuda_kernel *k, const clv_kernel_args *a,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_backward(const cuda_kernel *k, const clv_kernel_args *a,
                                    clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
