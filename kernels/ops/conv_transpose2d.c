/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/conv_int.h"

static clv_code conv_transpose2d_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return conv_transpose_shape("conv_transpose2d", 2, s, ret, err);
}

static int conv_transpose2d_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  return conv_slots(s, 2, s->in[0].dim[1], s->attrs->out, ret);
}

CLV_OP_ROW(conv_transpose2d) = {
    .name = "conv_transpose2d",
    .doc =
        "y[n,k,i*stride-pad+u*dilation,j*stride-pad+v*dilation] += W[c,k,u,v] x[n,c,i,j], "
        "and b[k] everywhere, x: [N, C, H, W], W: [C, K/groups, kh, kw], OH = (H-1) stride - 2 pad "
        "+ dilation (kh-1) "
        "+ output_pad + 1 (torch.nn.functional.conv_transpose2d)",
    .torch_module =
        "ConvTranspose2d(out=out_channels, kernel=kernel_size, stride=stride, pad=padding, "
        "output_pad=output_padding, dilation=dilation, groups=groups, bias=bias)",
    .torch_needs = "padding_mode='zeros'",
    .n_in = 1,
    .mixing = CLV_MIXES_ALL,
    .count_inputs_per_output = conv_transpose_fan_in,
    .attrs = {CONV_ATTRS, WINDOW_ATTR(OUTPUT_PAD)},
    .shape = conv_transpose2d_shape,
    .slots = conv_transpose2d_slots,
    .max_params = 2,
    .forward = conv_transpose_forward,
    .backward_input = conv_transpose_backward_input,
    .backward_weight = conv_transpose_backward_weight,
    .saved_for_dw = CLV_SAVE_IN0,
};
