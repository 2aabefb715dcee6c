/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/op_int.h"

static clv_code last_dim_shape(const char *op, const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char text[160];
  if (s->in[0].rank < 2)
    return clv_fail(err, CLV_INVALID, "%s needs rank 2 or more ([N, ..., classes]), got %s", op,
                    clv_shape_format(&s->in[0], text, sizeof text));
  return clv_same_shape(s, ret, err);
}

static clv_code softmax_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return last_dim_shape("softmax", s, ret, err);
}

static clv_code log_softmax_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return last_dim_shape("log_softmax", s, ret, err);
}

static const clv_op_def ops[] = {
    {.op = CLV_OP_SOFTMAX,
     .name = "softmax",
     .doc = "y_i = exp(x_i) / sum_j exp(x_j) over the last dimension "
            "(torch.nn.functional.softmax, dim=-1)",
     .n_in = 1,
     .shape = softmax_shape},
    {.op = CLV_OP_LOG_SOFTMAX,
     .name = "log_softmax",
     .doc = "y_i = x_i - log sum_j exp(x_j) over the last dimension "
            "(torch.nn.functional.log_softmax, dim=-1)",
     .n_in = 1,
     .shape = log_softmax_shape},
};

const clv_op_family clv_family_softmax = {ops, CLV_COUNT(ops)};
