/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

POINTWISE(pow, MATH(pow)(x, p))
POINTWISE_BACKWARD(pow, a->in[0], p == 0 ? 0 : dy * p * MATH(pow)(s, p - 1))

POINTWISE_ROW(pow, .doc = "y = x^exponent (torch.pow with a number as exponent)",
              .torch_module = "", .no_torch_module = "torch.pow is a function",
              .attrs = {{.key = CLV_ATTR_EXPONENT, .is_required = true, .low = -64, .high = 64}},
              .formula_attr_offsets = {offsetof(clv_attrs, exponent)},
              .saved_for_dx = CLV_SAVE_IN0);
