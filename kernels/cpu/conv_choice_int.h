/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_choice_int: the choice of a convolution's layouts.
 */
#ifndef CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H
#define CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H

#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/dnnl_int.h"

/* One choice of layouts, and the library's primitives for it. */
typedef struct clv_conv_choice {
  int src, dst, din;
  bool few;  /* fewer input channels than a block */
  bool bf16; /* src, dst, the gradient of dst and the weights are bf16 */
  dnnl_primitive_desc_t forward, data, weight;
} clv_conv_choice;

typedef struct clv_conv_mds {
  dnnl_memory_desc_t src, din, weight, dweight, plain_weight, bias, dst;
  const dnnl_memory_desc_t *maybe_bias;
  dnnl_dims_t strides, pads, dilates; /* dilates: positions between two taps */
} clv_conv_mds;

/* Request for a choice. bias: forward adds a bias, and the weight gradient computes its gradient.
 * blocks: tensors may be in channel blocks. */
typedef struct clv_conv_request {
  clv_window s;
  int64_t groups;
  bool bias, bf16, blocks;
} clv_conv_request;

/* Chooses layouts for the request, with their implementations and memory descriptions. */
clv_code clv_cpu_conv_choose(const clv_conv_request *what, dnnl_primitive_attr_t attr,
                             clv_conv_choice *ret, clv_conv_mds *ret_mds,
                             clv_err *err) CLV_USE_RESULT;
void clv_cpu_conv_choice_done(clv_conv_choice *c);

#endif
