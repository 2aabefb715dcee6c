/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/pointwise_int.h"

POINTWISE(elu, x <= 0 ? p * MATH(expm1)(x) : x)
POINTWISE_BACKWARD(elu, a->in[0], s <= 0 ? dy * p * MATH(exp)(s) : dy)

POINTWISE_ROW(
    elu, .doc = "y = x where x > 0, else alpha (e^x - 1) (torch.nn.functional.elu)",
    .torch_module = "ELU(alpha=alpha)",
    .attrs = {{.key = CLV_ATTR_ALPHA, .default_value = 1, .low = -FLT_MAX, .high = FLT_MAX}},
    .formula_attr_offsets = {offsetof(clv_attrs, alpha)}, .maps_zero_to_zero = true,
    .saved_for_dx = CLV_SAVE_IN0);
