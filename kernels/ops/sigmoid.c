/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

POINTWISE(sigmoid, 1 / (1 + MATH(exp)(-x)))
POINTWISE_BACKWARD(sigmoid, a->out, dy *(1 - s) * s)

CLV_OP_ROW(sigmoid) = {
    .name = "sigmoid",
    .doc = "y = 1 / (1 + exp(-x)) (torch.sigmoid)",
    .torch_module = "Sigmoid()",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .forward = sigmoid_forward,
    .backward_input = sigmoid_backward,
    .saved_for_dx = CLV_SAVE_OUT,
    .in_place = true,
};
