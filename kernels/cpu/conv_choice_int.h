/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_choice_int: the choice of a convolution's layouts.
 */
#ifndef CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H
#define CLEAVE_KERNELS_CPU_CONV_CHOICE_INT_H

#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/dnnl_int.h"

/* Layouts of a convolution's tensors, and the descriptions of oneDNN's primitives for these
 * layouts. src_layout, dst_layout, din_layout: layouts, without CLV_LAYOUT_BF16, of input, output
 * and input gradient. forward, backward_input, weight_grad: compute the output, the input gradient
 * and the weight gradient. row_major_weight: describes the weights as the parameters hold them. */
typedef struct clv_conv_choice {
  int src_layout, dst_layout, din_layout;
  bool has_few_channels; /* the convolution has fewer input channels than a channel block */
  bool needs_amx;        /* a primitive that does not use AMX does not count as fast */
  bool is_bf16;          /* input, output, output gradient and weights are bf16 */
  dnnl_primitive_desc_t forward, backward_input, weight_grad;
  cpu_memory_desc row_major_weight;
} clv_conv_choice;

/* Convolution for which to choose. has_bias: forward adds a bias. wants_bf16: choices in bf16 are
 * tried first. allows_blocks: tensors may be in channel blocks or channels last. */
typedef struct clv_conv_request {
  clv_window s;
  int64_t groups;
  bool has_bias, wants_bf16, allows_blocks;
} clv_conv_request;

/* Chooses the layouts of a convolution, and makes the descriptions of its primitives. The caller
 * frees *ret with clv_cpu_conv_choice_done. */
clv_code clv_cpu_conv_choose(const clv_conv_request *request, dnnl_primitive_attr_t attr,
                             clv_conv_choice *ret, clv_err *err) CLV_USE_RESULT;
void clv_cpu_conv_choice_done(clv_conv_choice *c);

#endif
