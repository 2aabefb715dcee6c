/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/avgpool_int.h"

static clv_code avgpool1d_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return pool_shape("avgpool1d", 3, s, ret, err);
}

CLV_OP_ROW(avgpool1d) = {
    .name = "avgpool1d",
    .doc =
        "y = sum over the window / kernel, padding counts as 0, x: [N, C, L] "
        "(torch.nn.functional.avg_pool1d, count_include_pad=True)",
    .torch_module = "AvgPool1d(kernel=kernel_size, stride=stride, pad=padding)",
    .torch_needs = "ceil_mode=False, count_include_pad=True",
    .n_in = 1,
    .attrs = WINDOW_ATTRS,
    .shape = avgpool1d_shape,
    .stride_is_kernel = true,
    .forward = avgpool_forward,
    .backward_input = avgpool_backward,
};
