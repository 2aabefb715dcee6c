/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

#define SQRT_2_OVER_PI ((REAL)(M_SQRT2 * M_2_SQRTPI * 0.5)) /* sqrt(2 / pi) */

static REAL tanh_term(REAL x) {
  return MATH(tanh)(SQRT_2_OVER_PI * (x + (REAL)0.044715 * x * x * x));
}

/* Returns the derivative of y at x, where t is the value of the tanh in the formula of y. */
static REAL derivative_at(REAL x, REAL t) {
  REAL inner = SQRT_2_OVER_PI * (1 + (REAL)0.134145 * x * x);
  return (REAL)0.5 * (1 + t) + (REAL)0.5 * x * (1 - t) * (1 + t) * inner;
}

POINTWISE(gelu_tanh, (REAL)0.5 * x * (1 + tanh_term(x)))
POINTWISE_BACKWARD(gelu_tanh, a->in[0], dy *derivative_at(s, tanh_term(s)))

CLV_OP_ROW(gelu_tanh) = {
    .name = "gelu_tanh",
    .doc =
        "y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) "
        "(torch.nn.functional.gelu, approximate='tanh')",
    .torch_module = "GELU()",
    .torch_needs = "approximate='tanh'",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = gelu_tanh_forward,
    .backward_input = gelu_tanh_backward,
    .saved_for_dx = CLV_SAVE_IN0,
};
