/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/avgpool_int.h"

static clv_code avgpool_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return pool_shape("avgpool", 4, s, ret, err);
}

CLV_OP_ROW(avgpool) = {
    .name = "avgpool",
    .doc =
        "y = sum over the window / (kh kw), padding counts as 0 "
        "(torch.nn.functional.avg_pool2d, count_include_pad=True)",
    .torch_module = "AvgPool2d(kernel=kernel_size, stride=stride, pad=padding)",
    .torch_needs = "ceil_mode=False, divisor_override=None, count_include_pad=True",
    .n_in = 1,
    .attrs = WINDOW_ATTRS,
    .shape = avgpool_shape,
    .stride_is_kernel = true,
    .forward = avgpool_forward,
    .backward_input = avgpool_backward,
};
