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

/* Which tensors are bf16 with channels last: the output, and each input that has more than one
 * value a channel. An input of one value a channel is f32, because it has the same order in all
 * layouts. */
typedef struct cuda_bf16_flags {
  bool in[2], out;
} cuda_bf16_flags;

/* Computes y = x z with `is_product`, else x + z, over n values of y; computes in f32 and rounds
 * the result. */
clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, const cuda_bf16_flags *flags,
                           bool is_product, const void *x, const void *z, void *y, size_t n,
                           clv_err *err) CLV_USE_RESULT;

/* How the gradient of an input is summed over the dimensions in which the input is broadcast.
 * `rank` dimensions are the input's own and `n_summed` are summed; out and other are their steps in
 * the output and in the other input. A block of threads computes one value, or with
 * `has_thread_per_value` a thread does. */
typedef struct cuda_broadcast_sum {
  int rank, n_summed;
  size_t n[CLV_MAX_RANK], out[CLV_MAX_RANK], other[CLV_MAX_RANK];
  size_t summed[CLV_MAX_RANK], summed_out[CLV_MAX_RANK], summed_other[CLV_MAX_RANK];
  /* values: number of the input's values; terms: number of terms summed for each */
  size_t values, terms;
  bool has_thread_per_value;
  bool dx_bf16, other_bf16, dy_bf16; /* which of dx, the other input and dy are bf16 */
} cuda_broadcast_sum;

/* Computes dx = sum of dy, or of dy * other if `other` is not NULL. Sums are double. */
clv_code clv_gpu_sum_broadcast(clv_gpu *g, const cuda_broadcast_sum *f, const void *dy,
                               const void *other, void *dx, clv_err *err) CLV_USE_RESULT;

/* Functions of add and mul for inputs whose shapes differ (clv_has_broadcast_input). _open is
 * called for every add and mul, and does nothing if the shapes are equal. */
clv_code clv_gpu_broadcast_open(cuda_kernel *k, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_forward(const cuda_kernel *k, const clv_kernel_args *a,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_broadcast_backward(const cuda_kernel *k, const clv_kernel_args *a,
                                    clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
