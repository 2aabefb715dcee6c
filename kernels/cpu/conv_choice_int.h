/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_choice_int: which layouts a convolution computes in.
 */
#ifndef CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H
#define CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H

#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/dnnl_int.h"

/* One choice of layouts, and what the library makes of it. */
typedef struct clv_conv_choice {
  int src, dst, din;
  bool few;  /* channels in */
  bool bf16; /* factors; src, dst and the gradient of dst */
  dnnl_primitive_desc_t forward, data, weight;
} clv_conv_choice;

typedef struct clv_conv_mds {
  dnnl_memory_desc_t src, din, weight, dweight, plain_weight, bias, dst;
  const dnnl_memory_desc_t *maybe_bias;
  dnnl_dims_t strides, pads, dilates; /* dilates: places between two taps */
} clv_conv_mds;

/* What a convolution is asked with. bias: that forward adds one, and the weight gradient makes its.
 * blocks: tensors may lie in channel blocks. */
typedef struct clv_conv_request {
  clv_window s;
  int64_t groups;
  bool bias, bf16, blocks;
} clv_conv_request;

/* Layouts for it, their implementations and their memory descriptions. */
clv_code clv_cpu_conv_choose(const clv_conv_request *what, dnnl_primitive_attr_t attr,
                             clv_conv_choice *ret, clv_conv_mds *ret_mds,
                             clv_err *err) CLV_USE_RESULT;
void clv_cpu_conv_choice_done(clv_conv_choice *c);

#endif
