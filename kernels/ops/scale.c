/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include "kernels/ops/pointwise_int.h"

static clv_code scale_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0];
  REAL *y = a->out, factor = (REAL)k->d.attrs.factor;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = factor * x[i];
  return CLV_OK;
}

static clv_code scale_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0], factor = (REAL)k->d.attrs.factor;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = factor * dy[i];
  return CLV_OK;
}

CLV_OP_ROW(scale) = {
    .name = "scale",
    .doc = "y = factor x (torch.mul by a number)",
    .torch_module = "",
    .no_torch_module = "torch.mul is a function",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_FACTOR, .is_required = true, .low = -FLT_MAX, .high = FLT_MAX}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = scale_forward,
    .backward_input = scale_backward,
    .in_place = true,
};
