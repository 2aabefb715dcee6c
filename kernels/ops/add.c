/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/broadcast_int.h"

static clv_code add_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return broadcast_shape("add", s, ret, err);
}

DEFINE_BROADCAST_FORWARD(add, x + z)

static clv_code add_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  if (!clv_has_broadcast_input(&k->d)) return identity_backward(base, a, err);
  for (int j = 0; j < 2; j++)
    if (a->din[j]) compute_broadcast_gradient(k, a, j, NULL);
  return CLV_OK;
}

CLV_OP_ROW(add) = {
    .name = "add",
    .doc =
        "y = a + b; a dimension of 1 in one input is broadcast to the other's "
        "(torch.add)",
    .torch_module = "",
    .no_torch_module = "torch.add is a function",
    .n_in = 2,
    .packing = CLV_PACKS_POSITIONS,
    .shape = add_shape,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = add_forward,
    .backward_input = add_backward,
    .scratch_bytes = broadcast_scratch_bytes,
    .in_place = true,
};
