/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/pointwise_int.h"

POINTWISE(leaky_relu, x > 0 ? x : p * x)
POINTWISE_BACKWARD(leaky_relu, a->in[0], s > 0 ? dy : p * dy)

POINTWISE_ROW(
    leaky_relu, .doc = "y = x where x > 0, else factor x (torch.nn.functional.leaky_relu)",
    .torch_module = "LeakyReLU(factor=negative_slope)",
    .attrs = {{.key = CLV_ATTR_FACTOR, .default_value = 0.01, .low = -FLT_MAX, .high = FLT_MAX}},
    .formula_attr_offsets = {offsetof(clv_attrs, factor)}, .maps_zero_to_zero = true,
    .saved_for_dx = CLV_SAVE_IN0);
