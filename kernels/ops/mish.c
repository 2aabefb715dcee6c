/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

/* Returns tanh(log(1 + e^x)), which is n / (n + 2) with n = e^x (e^x + 2). For x above 40 the
 * quotient is 1. */
static REAL tanh_softplus(REAL x) {
  REAL e = MATH(exp)(x > 40 ? 40 : x), n = e * (e + 2);
  return n / (n + 2);
}

/* Returns the derivative. The factor of x is the square of the hyperbolic secant of log(1 + e^x),
 * times the sigmoid of x. */
static REAL mish_derivative(REAL x) {
  REAL e = MATH(exp)(x > 40 ? 40 : x), n = e * (e + 2), t = n / (n + 2);
  return t + x * (1 + t) * (2 / (n + 2)) * (e / (1 + e));
}

POINTWISE(mish, x *tanh_softplus(x))
POINTWISE_BACKWARD(mish, a->in[0], dy *mish_derivative(s))

POINTWISE_ROW(mish, .doc = "y = x tanh(log(1 + e^x)) (torch.nn.functional.mish)",
              .torch_module = "Mish()", .maps_zero_to_zero = true, .saved_for_dx = CLV_SAVE_IN0);
