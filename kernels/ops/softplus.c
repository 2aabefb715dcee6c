/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/pointwise_int.h"

/* Returns log(1 + e^x), also where e^x overflows. */
static REAL softplus_of(REAL x) { return (x > 0 ? x : 0) + MATH(log1p)(MATH(exp)(x > 0 ? -x : x)); }

POINTWISE(softplus, p *x > q ? x : softplus_of(p * x) / p)
POINTWISE_BACKWARD(softplus, a->in[0], p *s > q ? dy : dy / (1 + MATH(exp)(-p * s)))

POINTWISE_ROW(
    softplus,
    .doc =
        "y = log(1 + exp(beta x)) / beta, or x where beta x > threshold "
        "(torch.nn.functional.softplus)",
    .torch_module = "Softplus(beta=beta, threshold=threshold)",
    .attrs = {{.key = CLV_ATTR_BETA, .default_value = 1, .low = 1e-6, .high = 1e6},
              {.key = CLV_ATTR_THRESHOLD, .default_value = 20, .low = -FLT_MAX, .high = FLT_MAX}},
    .formula_attr_offsets = {offsetof(clv_attrs, beta), offsetof(clv_attrs, threshold)},
    .saved_for_dx = CLV_SAVE_IN0);
