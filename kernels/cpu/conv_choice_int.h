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
  dnnl_dims_t strides, pads;
} clv_conv_mds;

/* Layouts for d, whose window is s, their implementations and their memory descriptions. */
clv_code clv_cpu_conv_choose(const clv_node_desc *d, const clv_window *s,
                             dnnl_primitive_attr_t attr, clv_conv_choice *ret,
                             clv_conv_mds *ret_mds, clv_err *err) CLV_USE_RESULT;
void clv_cpu_conv_choice_done(clv_conv_choice *c);

#endif
