/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/pointwise_int.h"

/* Differs from the op clamp in one point: a value that equals a bound gets no gradient. */
POINTWISE(hardtanh, x<p ? p : x> q ? q : x)
POINTWISE_BACKWARD(hardtanh, a->in[0], s <= p || s >= q ? 0 : dy)

static clv_code hardtanh_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  if (s->attrs->min_val >= s->attrs->max_val)
    return clv_fail(err, CLV_INVALID, "hardtanh: min_val %g is not less than max_val %g",
                    s->attrs->min_val, s->attrs->max_val);
  return clv_shape_of_input(s, ret, err);
}

CLV_OP_ROW(hardtanh) = {
    .name = "hardtanh",
    .doc =
        "y = min_val where x < min_val, max_val where x > max_val, else x; ReLU6 has 0 and 6 "
        "(torch.nn.functional.hardtanh)",
    .torch_module = "Hardtanh|ReLU6(min_val=min_val, max_val=max_val)",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_MIN_VAL, .default_value = -1, .low = -FLT_MAX, .high = FLT_MAX},
              {.key = CLV_ATTR_MAX_VAL, .default_value = 1, .low = -FLT_MAX, .high = FLT_MAX}},
    .formula_attr_offsets = {offsetof(clv_attrs, min_val), offsetof(clv_attrs, max_val)},
    .packing = CLV_PACKS_POSITIONS,
    .shape = hardtanh_shape,
    .elementwise = true,
    .forward = hardtanh_forward,
    .backward_input = hardtanh_backward,
    .saved_for_dx = CLV_SAVE_IN0,
};
