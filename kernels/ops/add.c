/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

static clv_code add_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char a[160], b[160];
  if (!clv_shape_equal(&s->in[0], &s->in[1]))
    return clv_fail(err, CLV_INVALID, "add needs two inputs of one shape, got %s and %s",
                    clv_shape_format(&s->in[0], a, sizeof a),
                    clv_shape_format(&s->in[1], b, sizeof b));
  return clv_same_shape(s, ret, err);
}

static clv_code add_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *z = a->in[1];
  REAL *y = a->out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] + z[i];
  return CLV_OK;
}

CLV_OP_ROW(add) = {
    .name = "add",
    .doc = "y = a + b, one shape, no broadcasting (torch.add)",
    .torch_module = "",
    .no_torch_module = "torch.add is a function",
    .n_in = 2,
    .shape = add_shape,
    .elementwise = true,
    .zero_stays = true,
    .forward = add_forward,
    .backward_input = pass_backward,
    .in_place = true,
};
