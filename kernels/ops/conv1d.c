/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/conv_int.h"

static clv_code conv1d_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return conv_shape("conv1d", 1, s, ret, err);
}

static int conv1d_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  return conv_slots(s, 1, s->attrs->out, s->in[0].dim[1], ret);
}

CLV_OP_ROW(conv1d) = {
    .name = "conv1d",
    .doc =
        "y[n,k,i] = b[k] + sum_{c,u} W[k,c,u] x[n,c,i*stride-pad+u*dilation], x: [N, C, L], "
        "W: [K, C/groups, kernel] (torch.nn.functional.conv1d)",
    .torch_module =
        "Conv1d(out=out_channels, kernel=kernel_size, stride=stride, pad=padding, "
        "dilation=dilation, groups=groups, bias=bias)",
    .torch_needs = "padding_mode='zeros'",
    .n_in = 1,
    .mixing = CLV_MIXES_ALL,
    .attrs = {CONV_ATTRS},
    .shape = conv1d_shape,
    .slots = conv1d_slots,
    .max_params = 2,
    .forward = conv_forward,
    .backward_input = conv_backward_input,
    .backward_weight = conv_backward_weight,
    .saved_for_dw = CLV_SAVE_IN0,
};
