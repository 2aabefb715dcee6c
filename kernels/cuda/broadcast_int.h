/* SPDX-License-Identifier: Apache-2.0
 *
 * broadcast_int: launchers of add and mul with broadcast inputs.
 */
#ifndef CLEAVE_KERNELS_CUDA_BROADCAST_INT_H
#define CLEAVE_KERNELS_CUDA_BROADCAST_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which values are bf16 with channels last: the output, and each input that has more than one value
 * a channel. An input of one value a channel has the same order in all layouts, and is f32. */
typedef struct cuda_bf16_flags {
  bool in[2], out;
} cuda_bf16_flags;

/* y = x z, or x + z, over n values; computed in f32, then rounded. */
clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, const cuda_bf16_flags *flags,
                           bool product, const void *x, const void *z, void *y, size_t n,
                           clv_err *err) CLV_USE_RESULT;

/* How a gradient is summed over the dimensions where an input is broadcast. `rank` dimensions are
 * the input's own and `n_summed` are summed, each with its steps in the output and in the other
 * input. A block computes one value, or with `per_thread` a thread does. */
typedef struct cuda_fold {
  int rank, n_summed;
  size_t n[CLV_MAX_RANK], out[CLV_MAX_RANK], other[CLV_MAX_RANK];
  size_t summed[CLV_MAX_RANK], summed_out[CLV_MAX_RANK], summed_other[CLV_MAX_RANK];
  size_t values, terms; /* number of the input's values; terms summed in each */
  bool per_thread;
  bool dx_bf16, other_bf16, dy_bf16; /* see cuda_bf16_flags */
} cuda_fold;

/* dx = sum of dy, or of dy * other if `other` is not NULL. Sums are double. */
clv_code clv_gpu_fold(clv_gpu *g, const cuda_fold *f, const void *dy, const void *other, void *dx,
                      clv_err *err) CLV_USE_RESULT;

/* Functions of add and mul for inputs that clv_broadcasts; open is called for all add and mul. */
clv_code clv_gpu_broadcast_open(cuda_kernel *k, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_forward(const cuda_kernel *k, const clv_kernel_args *a,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_backward(const cuda_kernel *k, const clv_kernel_args *a,
                                    clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
