/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/axis_int.h"

static clv_code roll_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return axis_shape("roll", s, ret, err);
}

static clv_code roll_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  (void)err;
  reorder_along_axis(k, -k->d.attrs.shifts, 1, a->in[0], a->out);
  return CLV_OK;
}

static clv_code roll_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  (void)err;
  reorder_along_axis(k, k->d.attrs.shifts, 1, a->dout, a->din[0]);
  return CLV_OK;
}

CLV_OP_ROW(roll) = {
    .name = "roll",
    .doc =
        "y = x moved by `shifts` places along dimension dim, around its ends; dim is not 0 "
        "(torch.roll)",
    .torch_module = "",
    .no_torch_module = "torch.roll is a function",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_SHIFTS,
               .is_required = true,
               .low = -CLV_EXTENT_MAX,
               .high = CLV_EXTENT_MAX},
              DIM_ATTR(.is_required = true)},
    .shape = roll_shape,
    .forward = roll_forward,
    .backward_input = roll_backward,
};
