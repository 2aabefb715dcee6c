/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/pointwise_int.h"

static clv_code leaky_relu_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0];
  REAL *y = a->out, factor = (REAL)k->d.attrs.factor;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] > 0 ? x[i] : factor * x[i];
  return CLV_OK;
}

static clv_code leaky_relu_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dx = a->din[0], factor = (REAL)k->d.attrs.factor;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = x[i] > 0 ? dy[i] : factor * dy[i];
  return CLV_OK;
}

CLV_OP_ROW(leaky_relu) = {
    .name = "leaky_relu",
    .doc = "y = x where x > 0, else factor x (torch.nn.functional.leaky_relu)",
    .torch_module = "LeakyReLU(factor=negative_slope)",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_FACTOR, .default_value = 0.01, .low = -FLT_MAX, .high = FLT_MAX}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = clv_shape_of_input,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = leaky_relu_forward,
    .backward_input = leaky_relu_backward,
    .saves_dx = CLV_SAVE_IN0,
};
