/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/broadcast_int.h"

static clv_code mul_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return broadcast_shape("mul", s, ret, err);
}

DEFINE_BROADCAST_FORWARD(mul, x *z)

static clv_code mul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *dy = a->dout;
  (void)err;
  for (int i = 0; i < 2; i++) {
    const REAL *other = a->in[1 - i];
    REAL *dx = a->din[i];
    if (dx && clv_has_broadcast_input(&k->d)) {
      compute_broadcast_gradient(k, a, i, other);
      continue;
    }
    for (size_t j = 0; dx && j < k->n_in; j++) dx[j] = dy[j] * other[j];
  }
  return CLV_OK;
}

CLV_OP_ROW(mul) = {
    .name = "mul",
    .doc =
        "y = a b; a dimension of 1 in one input is broadcast to the other's "
        "(torch.mul)",
    .torch_module = "",
    .no_torch_module = "torch.mul is a function",
    .n_in = 2,
    .packing = CLV_PACKS_POSITIONS,
    .shape = mul_shape,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = mul_forward,
    .backward_input = mul_backward,
    .scratch_bytes = broadcast_scratch_bytes,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
