/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/op_int.h"

#include <float.h>

static clv_code add_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char a[160], b[160];
  if (!clv_shape_equal(&s->in[0], &s->in[1]))
    return clv_fail(err, CLV_INVALID, "add needs two inputs of one shape, got %s and %s",
                    clv_shape_format(&s->in[0], a, sizeof a),
                    clv_shape_format(&s->in[1], b, sizeof b));
  return clv_same_shape(s, ret, err);
}

#define POINTWISE(number, text, formula) \
  { .op = number, .name = text, .doc = formula, .n_in = 1, .shape = clv_same_shape }

static const clv_op_def ops[] = {
    POINTWISE(CLV_OP_RELU, "relu", "y = max(x, 0) (torch.nn.functional.relu)"),
    POINTWISE(CLV_OP_SIGMOID, "sigmoid", "y = 1 / (1 + exp(-x)) (torch.sigmoid)"),
    POINTWISE(CLV_OP_TANH, "tanh", "y = tanh(x) (torch.tanh)"),
    POINTWISE(CLV_OP_GELU, "gelu",
              "y = x/2 (1 + erf(x / sqrt 2)) (torch.nn.functional.gelu, approximate='none')"),
    {.op = CLV_OP_DROPOUT,
     .name = "dropout",
     .doc = "training: y = 0 with probability p, else x / (1 - p); evaluation: y = x "
            "(torch.nn.functional.dropout; other random numbers)",
     .n_in = 1,
     .identity_in_eval = true,
     .attrs = {{.key = CLV_ATTR_P, .fallback = 0.5, .low = 0, .high = 1}},
     .shape = clv_same_shape},
    {.op = CLV_OP_SCALE,
     .name = "scale",
     .doc = "y = factor x (torch.mul by a number)",
     .n_in = 1,
     .attrs = {{.key = CLV_ATTR_FACTOR, .required = true, .low = -FLT_MAX, .high = FLT_MAX}},
     .shape = clv_same_shape},
    {.op = CLV_OP_ADD,
     .name = "add",
     .doc = "y = a + b, one shape, no broadcasting (torch.add)",
     .n_in = 2,
     .shape = add_shape},
};

const clv_op_family clv_family_pointwise = {ops, CLV_COUNT(ops)};
