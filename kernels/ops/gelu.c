/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

static REAL gelu_cdf(REAL x) { return (REAL)0.5 * (1 + MATH(erf)(x * (REAL)M_SQRT1_2)); }

static REAL gelu_pdf(REAL x) {
  return MATH(exp)(x * x * (REAL)-0.5) * (REAL)(M_2_SQRTPI * M_SQRT1_2 * 0.5);
}

POINTWISE(gelu, x *gelu_cdf(x))
POINTWISE_BACKWARD(gelu, a->in[0], dy *(gelu_cdf(s) + s * gelu_pdf(s)))

CLV_OP_ROW(gelu) = {
    .name = "gelu",
    .doc = "y = x/2 (1 + erf(x / sqrt 2)) (torch.nn.functional.gelu, approximate='none')",
    .torch_module = "GELU()",
    .torch_needs = "approximate='none'",
    .n_in = 1,
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = gelu_forward,
    .backward_input = gelu_backward,
    .saved_for_dx = CLV_SAVE_IN0,
};
