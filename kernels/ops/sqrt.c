/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

POINTWISE(sqrt, MATH(sqrt)(x))
POINTWISE_BACKWARD(sqrt, a->out, dy / (2 * s))

POINTWISE_ROW(sqrt, .doc = "y = the square root of x (torch.sqrt)", .torch_module = "",
              .no_torch_module = "torch.sqrt is a function", .maps_zero_to_zero = true,
              .saved_for_dx = CLV_SAVE_OUT, .in_place = true);
