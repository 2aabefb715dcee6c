/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

static clv_code mul_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char a[160], b[160];
  if (!clv_shape_equal(&s->in[0], &s->in[1]))
    return clv_fail(err, CLV_INVALID, "mul needs two inputs of one shape, got %s and %s",
                    clv_shape_format(&s->in[0], a, sizeof a),
                    clv_shape_format(&s->in[1], b, sizeof b));
  return clv_same_shape(s, ret, err);
}

static clv_code mul_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *z = a->in[1];
  REAL *y = a->out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] * z[i];
  return CLV_OK;
}

static clv_code mul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *dy = a->dout;
  (void)err;
  for (int i = 0; i < 2; i++) {
    const REAL *other = a->in[1 - i];
    REAL *dx = a->din[i];
    for (size_t j = 0; dx && j < k->n_in; j++) dx[j] = dy[j] * other[j];
  }
  return CLV_OK;
}

CLV_OP_ROW(mul) = {
    .name = "mul",
    .doc = "y = a b, one shape, no broadcasting (torch.mul)",
    .torch_module = "",
    .no_torch_module = "torch.mul is a function",
    .n_in = 2,
    .shape = mul_shape,
    .elementwise = true,
    .zero_stays = true,
    .forward = mul_forward,
    .backward_input = mul_backward,
    .saves_dx = SAVE_BOTH_IN,
};
