/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

/* A NaN stays NaN, as in PyTorch. */
POINTWISE(relu, x <= 0 ? 0 : x)
POINTWISE_BACKWARD(relu, a->out, s <= 0 ? 0 : dy)

CLV_OP_ROW(relu) = {
    .name = "relu",
    .doc = "y = max(x, 0) (torch.nn.functional.relu)",
    .torch_module = "ReLU()",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = relu_forward,
    .backward_input = relu_backward,
    .saved_for_dx = CLV_SAVE_OUT,
    .in_place = true,
};
