/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

POINTWISE(tanh, MATH(tanh)(x))
POINTWISE_BACKWARD(tanh, a->out, dy *(1 - s * s))

CLV_OP_ROW(tanh) = {
    .name = "tanh",
    .doc = "y = tanh(x) (torch.tanh)",
    .torch_module = "Tanh()",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = tanh_forward,
    .backward_input = tanh_backward,
    .saved_for_dx = CLV_SAVE_OUT,
    .in_place = true,
};
