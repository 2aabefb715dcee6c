/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/conv_int.h"

static clv_code conv2d_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return conv_shape("conv2d", 2, s, ret, err);
}

static int conv2d_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  return conv_slots(s, 2, s->attrs->out, s->in[0].dim[1], ret);
}

CLV_OP_ROW(conv2d) = {
    .name = "conv2d",
    .doc =
        "y[n,k,i,j] = b[k] + sum_{c,u,v} W[k,c,u,v] x[n,c,i*stride-pad+u*dilation,"
        "j*stride-pad+v*dilation], "
        "x: [N, C, H, W], W: [K, C/groups, kh, kw] (torch.nn.functional.conv2d)",
    .torch_module =
        "Conv2d(out=out_channels, kernel=kernel_size, stride=stride, pad=padding, "
        "dilation=dilation, groups=groups, bias=bias)",
    .torch_needs = "padding_mode='zeros'",
    .n_in = 1,
    .mixing = CLV_MIXES_ALL,
    .attrs = {CONV_ATTRS,
              {.key = CLV_ATTR_KAIMING_NORMAL, .default_value = 0, .low = 0, .high = 1}},
    .shape = conv2d_shape,
    .slots = conv2d_slots,
    .max_params = 2,
    .computes_in_bf16 = true,
    .forward = conv_forward,
    .backward_input = conv_backward_input,
    .backward_weight = conv_backward_weight,
    .saved_for_dw = CLV_SAVE_IN0,
};
