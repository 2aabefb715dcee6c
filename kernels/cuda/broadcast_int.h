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

/* Which inputs and whether the output are bf16 with channels last; others are row-major f32. */
typedef struct cuda_bf16_flags {
  bool in[2], out;
} cuda_bf16_flags;

/* Computes y = x z if is_product, else y = x + z, with n values of y. The arithmetic is f32. */
clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, const cuda_bf16_flags *flags,
                           bool is_product, const void *x, const void *z, void *y, size_t n,
                           clv_err *err) CLV_USE_RESULT;

/* How the gradient of an input is summed over the dimensions in which the input is broadcast. The
 * output's dimensions are `rank` dimensions of the input and n_summed dimensions over which the
 * gradient is summed. A stride is the distance of neighbouring values of a dimension in the output,
 * or in the other input. */
typedef struct cuda_broadcast_sum {
  int rank, n_summed;
  /* [rank] dimensions of the input */
  size_t extent[CLV_MAX_RANK], out_stride[CLV_MAX_RANK], other_stride[CLV_MAX_RANK];
  /* [n_summed] dimensions that are summed */
  size_t summed_extent[CLV_MAX_RANK];
  size_t summed_out_stride[CLV_MAX_RANK], summed_other_stride[CLV_MAX_RANK];
  size_t n_values;           /* number of values of the input */
  size_t n_terms;            /* number of terms of the sum of one value */
  bool has_thread_per_value; /* a thread computes one value; false: a block of threads does */
  bool dx_is_bf16, other_is_bf16, dy_is_bf16;
} cuda_broadcast_sum;

/* Computes dx = sum of dy, or of dy * other if `other` is not NULL. Sums are double. */
clv_code clv_gpu_sum_broadcast(clv_gpu *g, const cuda_broadcast_sum *f, const void *dy,
                               const void *other, void *dx, clv_err *err) CLV_USE_RESULT;

/* Functions of the ops add and mul for inputs whose shapes differ (clv_has_broadcast_input).
 * clv_gpu_broadcast_open is called for every add and mul, and does nothing if the shapes are
 * equal. */
clv_code clv_gpu_broadcast_open(cuda_kernel *k, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_forward(const cuda_kernel *k, const clv_kernel_args *a,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_backward(const cuda_kernel *k, const clv_kernel_args *a,
                                    clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
