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

/* Arguments of im2col, which copies the values under each window of n_samples images to columns
 * [n_samples, n_channels * taps, oh * ow]. It reads n_channels adjacent channels of each image; the
 * images are sample_stride values apart. */
typedef struct cuda_im2col_args {
  clv_window window;
  size_t n_samples, n_channels, sample_stride;
} cuda_im2col_args;

clv_code clv_gpu_im2col(clv_gpu *g, const cuda_im2col_args *c, const float *x, void *columns,
                        bool bf16, clv_err *err) CLV_USE_RESULT;
/* Computes x: each value is the sum of the values of the columns to which im2col copies it. */
clv_code clv_gpu_col2im(clv_gpu *g, const cuda_im2col_args *c, const float *columns, float *x,
                        clv_err *err) CLV_USE_RESULT;
/* Adds the bias: y [n, channels, inner] += bias[channel], then applies a relu if has_relu.
 * channels_last: y is in GPU_CHANNELS_LAST. */
clv_code clv_gpu_add_bias(clv_gpu *g, bool channels_last, const float *bias, void *y, size_t n,
                          size_t channels, size_t inner, bool has_relu,
                          clv_err *err) CLV_USE_RESULT;

/* ---- channels last (conv_last.c, conv_last.cu) ----------------------------------------------- */

/* Arguments of im2col with channels last, which copies the values under each window of n_samples
 * images in GPU_CHANNELS_LAST to columns [n_samples * oh * ow, taps, n_channels]. It reads
 * n_channels adjacent channels of each image. */
typedef struct cuda_im2col_last_args {
  clv_window window;
  size_t n_samples, n_channels;
} cuda_im2col_last_args;

clv_code clv_gpu_im2col_last(clv_gpu *g, const cuda_im2col_last_args *c, const cuda_bf16 *x,
                             cuda_bf16 *columns, clv_err *err) CLV_USE_RESULT;
/* Computes x, with channels last: each value is the sum of the values of the columns to which
 * im2col copies it. */
clv_code clv_gpu_col2im_last(clv_gpu *g, const cuda_im2col_last_args *c, const float *columns,
                             cuda_bf16 *x, clv_err *err) CLV_USE_RESULT;

/* Tensors of one pass of a convolution, named as in clv_cuda_pass: x and y are the input and the
 * output of the convolution, or their gradients. The forward of a transposed convolution is the
 * pass that computes x from y. */
typedef struct cuda_conv_operands {
  void *x, *y;
} cuda_conv_operands;

/* The passes that an op needs, indexed by clv_cuda_pass. */
typedef struct cuda_wanted_passes {
  bool is_wanted[3];
} cuda_wanted_passes;

/* Functions of a convolution in GPU_CHANNELS_LAST, without its bias. clv_gpu_conv_last_open makes
 * the library objects and sets workspace_bytes and scratch_bytes. clv_gpu_conv_last_refresh
 * converts the weights. clv_gpu_conv_last_pass computes one pass. */
clv_ref_fn clv_gpu_conv_last_refresh;
clv_code clv_gpu_conv_last_open(cuda_kernel *k, const cuda_wanted_passes *p,
                                clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_conv_last_pass(const cuda_kernel *k, const clv_kernel_args *a, clv_cuda_pass pass,
                                cuda_conv_operands e, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
