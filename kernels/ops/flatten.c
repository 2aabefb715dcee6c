/* SPDX-License-Identifier: Apache-2.0
 *
 * The op flatten changes the shape only: no arithmetic, and no copy if the input is row-major.
 */
#include "kernels/ops/pointwise_int.h"

static clv_code flatten_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char text[160];
  const clv_shape *in = &s->in[0];
  if (in->rank < 2)
    return clv_fail(err, CLV_INVALID, "flatten needs rank 2 or more, got %s",
                    clv_shape_format(in, text, sizeof text));
  int64_t features = 1; /* no overflow: the caller checked the input's size */
  for (int i = 1; i < in->rank; i++) features *= in->dim[i];
  *ret = CLV_SHAPE(in->dim[0], features);
  return CLV_OK;
}

CLV_OP_ROW(flatten) = {
    .name = "flatten",
    .doc = "[N, ...] -> [N, product of the rest] (torch.flatten, start_dim=1)",
    .torch_module = "Flatten()",
    .torch_needs = "start_dim=1, end_dim=-1",
    .n_in = 1,
    .shape = flatten_shape,
    .is_alias = true,
    .forward = identity_forward,
    .backward_input = identity_backward,
    .in_place = true,
};
