/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_choice_int: the choice of a convolution's layouts.
 */
#ifndef CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H
#define CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H

#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/dnnl_int.h"

/* Layouts of a convolution's tensors, and oneDNN's primitives for them. src, dst, din: channel
 * blocks of input, output and input gradient. */
typedef struct clv_conv_choice {
  int src, dst, din;
  bool has_few_channels; /* the convolution has fewer input channels than a channel block */
  bool bf16;             /* input, output, output gradient and weights are bf16 */
  dnnl_primitive_desc_t forward, data, weight;
} clv_conv_choice;

typedef struct clv_conv_mds {
  dnnl_memory_desc_t src, din, weight, dweight, plain_weight, bias, dst;
  const dnnl_memory_desc_t *bias_or_null;
  dnnl_dims_t strides, pads, dilates; /* dilates: number of positions between two taps */
} clv_conv_mds;

/* Request for a choice. bias: forward adds a bias, and the weight gradient computes the bias
 * gradient. allows_blocks: tensors may be in channel blocks. */
typedef struct clv_conv_request {
  clv_window s;
  int64_t groups;
  bool bias, bf16, allows_blocks;
} clv_conv_request;

/* Chooses the layouts of a convolution, and makes the descriptions of its primitives and memory.
 * The caller frees *ret with clv_cpu_conv_choice_done. */
clv_code clv_cpu_conv_choose(const clv_conv_request *what, dnnl_primitive_attr_t attr,
                             clv_conv_choice *ret, clv_conv_mds *ret_mds,
                             clv_err *err) CLV_USE_RESULT;
void clv_cpu_conv_choice_done(clv_conv_choice *c);

#endif
