/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/axis_int.h"

static clv_code flip_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return axis_shape("flip", s, ret, err);
}

static clv_code flip_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  (void)err;
  reorder_along_axis(k, -1, -1, a->in[0], a->out);
  return CLV_OK;
}

static clv_code flip_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  (void)err;
  reorder_along_axis(k, -1, -1, a->dout, a->din[0]);
  return CLV_OK;
}

CLV_OP_ROW(flip) = {
    .name = "flip",
    .doc = "y = x in reverse order along dimension dim, which is not 0 (torch.flip)",
    .torch_module = "",
    .no_torch_module = "torch.flip is a function",
    .n_in = 1,
    .attrs = {DIM_ATTR(.is_required = true)},
    .shape = flip_shape,
    .forward = flip_forward,
    .backward_input = flip_backward,
};
