/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/pointwise_int.h"

/* A NaN stays NaN, as in PyTorch, and gets no gradient. */
POINTWISE(clamp, x<p ? p : x> q ? q : x)
POINTWISE_BACKWARD(clamp, a->in[0], s >= p && s <= q ? dy : 0)

static clv_code clamp_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  if (s->attrs->min > s->attrs->max)
    return clv_fail(err, CLV_INVALID, "clamp: min %g is greater than max %g", s->attrs->min,
                    s->attrs->max);
  return clv_shape_of_input(s, ret, err);
}

CLV_OP_ROW(clamp) = {
    .name = "clamp",
    .doc = "y = min where x < min, max where x > max, else x (torch.clamp)",
    .torch_module = "",
    .no_torch_module = "torch.clamp is a function",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_MIN, .default_value = -FLT_MAX, .low = -FLT_MAX, .high = FLT_MAX},
              {.key = CLV_ATTR_MAX, .default_value = FLT_MAX, .low = -FLT_MAX, .high = FLT_MAX}},
    .formula_attr_offsets = {offsetof(clv_attrs, min), offsetof(clv_attrs, max)},
    .packing = CLV_PACKS_POSITIONS,
    .shape = clamp_shape,
    .elementwise = true,
    .forward = clamp_forward,
    .backward_input = clamp_backward,
    .saved_for_dx = CLV_SAVE_IN0,
};
