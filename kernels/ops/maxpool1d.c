/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/maxpool_int.h"

static clv_code maxpool1d_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return pool_shape("maxpool1d", 3, s, ret, err);
}

CLV_OP_ROW(maxpool1d) = {
    .name = "maxpool1d",
    .doc =
        "y = max over the window, padding counts as -inf, the first of equal values takes the "
        "gradient, x: [N, C, L] (torch.nn.functional.max_pool1d)",
    .torch_module = "MaxPool1d(kernel=kernel_size, stride=stride, pad=padding)",
    .torch_needs = "dilation=1, ceil_mode=False, return_indices=False",
    .n_in = 1,
    .attrs = WINDOW_ATTRS,
    .shape = maxpool1d_shape,
    .stride_is_kernel = true,
    .forward = maxpool_forward,
    .backward_input = maxpool_backward,
    .saved_bytes = maxpool_saved_bytes,
};
