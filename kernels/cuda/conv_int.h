/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_int: launchers of the copies and sums around the products of convolutions.
 */
#ifndef CLEAVE_KERNELS_CUDA_CONV_INT_H
#define CLEAVE_KERNELS_CUDA_CONV_INT_H

#include "kernels/cuda/bf16_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments of im2col: the values under each window, of `samples` images with `channels` adjacent
 * channels each; samples are `stride` values apart. columns: [samples, channels * taps, oh * ow].
 */
typedef struct cuda_columns {
  clv_window window;
  size_t samples, channels, stride;
} cuda_columns;

clv_code clv_gpu_to_columns(clv_gpu *g, const cuda_columns *c, const float *x, void *columns,
                            bool bf16, clv_err *err) CLV_USE_RESULT;
/* Does col2im: adds each value of the columns to the value of x from which im2col copies it. */
clv_code clv_gpu_from_columns(clv_gpu *g, const cuda_columns *c, const float *columns, float *x,
                              clv_err *err) CLV_USE_RESULT;
/* Adds the bias: y [n, channels, inner] += bias[channel], then applies a relu if `relu`.
 * channels_last: y is in GPU_CHANNELS_LAST. */
clv_code clv_gpu_add_bias(clv_gpu *g, bool channels_last, const float *bias, void *y, size_t n,
                          size_t channels, size_t inner, bool relu, clv_err *err) CLV_USE_RESULT;

/* ---- channels last (conv_last.c, conv_last.cu) ----------------------------------------------- */

/* Arguments of im2col with channels last, over `channels` of the window's channels, of `samples`
 * images in GPU_CHANNELS_LAST. columns: [samples * oh * ow, taps, channels]. */
typedef struct cuda_last_columns {
  clv_window window;
  size_t samples, channels;
} cuda_last_columns;

clv_code clv_gpu_to_columns_last(clv_gpu *g, const cuda_last_columns *c, const cuda_bf16 *x,
                                 cuda_bf16 *columns, clv_err *err) CLV_USE_RESULT;
/* Does col2im with channels last: adds each value of the columns to the value of x from which
 * im2col copies it. */
clv_code clv_gpu_from_columns_last(clv_gpu *g, const cuda_last_columns *c, const float *columns,
                                   cuda_bf16 *x, clv_err *err) CLV_USE_RESULT;

/* Tensors of a convolution's pass: forward computes y from x, the input gradient computes x from y,
 * the weight gradient reads both. A transposed convolution reads y and computes x. */
typedef struct cuda_conv_operands {
  void *x, *y;
} cuda_conv_operands;

/* The passes that an op needs, indexed by clv_cuda_pass. */
typedef struct cuda_passes {
  bool is_wanted[3];
} cuda_passes;

/* A convolution in GPU_CHANNELS_LAST, without its bias. open makes the library objects, and sets
 * workspace_bytes and scratch_bytes; refresh converts the weights; pass computes one pass. */
clv_ref_fn clv_gpu_conv_last_refresh;
clv_code clv_gpu_conv_last_open(cuda_kernel *k, const cuda_passes *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_conv_last_pass(const cuda_kernel *k, const clv_kernel_args *a, clv_cuda_pass pass,
                                cuda_conv_operands e, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
