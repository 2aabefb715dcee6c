/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/resample_int.h"

static clv_code image_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return upsample_shape("upsample_nearest", s, ret, err);
}

CLV_OP_ROW(upsample_nearest) = {
    .name = "upsample_nearest",
    .doc =
        "y[o] = x[floor(o s)] along each axis, "
        "where s is 1 / scale_factor or in / out, x: [N, C, H, W] or [N, C, L] "
        "(torch.nn.functional.interpolate, mode='nearest')",
    .torch_module = "",
    .no_torch_module = "Upsample has either a size or a factor, and the other is None",
    .n_in = 1,
    .attrs = {SIZE_ATTRS},
    .shape = image_shape,
    .forward = resample_forward,
    .backward_input = resample_backward,
};
