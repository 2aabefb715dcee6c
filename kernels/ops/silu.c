/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

static REAL sigmoid_of(REAL x) { return 1 / (1 + MATH(exp)(-x)); }

POINTWISE(silu, x *sigmoid_of(x))
POINTWISE_BACKWARD(silu, a->in[0], dy *sigmoid_of(s) * (1 + s * (1 - sigmoid_of(s))))

CLV_OP_ROW(silu) = {
    .name = "silu",
    .doc = "y = x / (1 + exp(-x)) (torch.nn.functional.silu)",
    .torch_module = "SiLU()",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = silu_forward,
    .backward_input = silu_backward,
    .saved_for_dx = CLV_SAVE_IN0,
};
