/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/op_int.h"

static clv_code class_loss_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                 clv_err *err) {
  char a[160], b[160];
  CLV_TRY(clv_need_rank(op, &s->in[0], 2, "[N, classes]", "", err));
  if (s->in[1].rank != 1 || s->in[1].dim[0] != s->in[0].dim[0])
    return clv_fail(err, CLV_INVALID,
                    "%s needs one class index per sample ([%lld] i64) for predictions %s, got %s",
                    op, (long long)s->in[0].dim[0], clv_shape_format(&s->in[0], a, sizeof a),
                    clv_shape_format(&s->in[1], b, sizeof b));
  *ret = (clv_shape){0};
  return CLV_OK;
}

static clv_code same_loss_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                clv_err *err) {
  char a[160], b[160];
  if (!clv_shape_equal(&s->in[0], &s->in[1]))
    return clv_fail(err, CLV_INVALID, "%s needs targets shaped as the predictions %s, got %s", op,
                    clv_shape_format(&s->in[0], a, sizeof a),
                    clv_shape_format(&s->in[1], b, sizeof b));
  *ret = (clv_shape){0};
  return CLV_OK;
}

#define SHAPE_RULE(name, rule)                                                       \
  static clv_code name##_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) { \
    return rule(#name, s, ret, err);                                                 \
  }
SHAPE_RULE(cross_entropy, class_loss_shape)
SHAPE_RULE(nll, class_loss_shape)
SHAPE_RULE(mse, same_loss_shape)
SHAPE_RULE(bce, same_loss_shape)
SHAPE_RULE(bce_with_logits, same_loss_shape)

static const clv_op_def ops[] = {
    {.op = CLV_OP_CROSS_ENTROPY,
     .name = "cross_entropy",
     .doc = "mean_n (log sum_j exp(x_nj) - x_n,target) (torch.nn.functional.cross_entropy)",
     .n_in = 2,
     .loss = true,
     .labels = true,
     .shape = cross_entropy_shape},
    {.op = CLV_OP_NLL,
     .name = "nll",
     .doc = "mean_n -x_n,target (torch.nn.functional.nll_loss)",
     .n_in = 2,
     .loss = true,
     .labels = true,
     .shape = nll_shape},
    {.op = CLV_OP_MSE,
     .name = "mse",
     .doc = "mean (x - t)^2 (torch.nn.functional.mse_loss)",
     .n_in = 2,
     .loss = true,
     .shape = mse_shape},
    {.op = CLV_OP_BCE,
     .name = "bce",
     .doc = "mean -(t log x + (1 - t) log(1 - x)), logs held at -100 or above "
            "(torch.nn.functional.binary_cross_entropy)",
     .n_in = 2,
     .loss = true,
     .shape = bce_shape},
    {.op = CLV_OP_BCE_WITH_LOGITS,
     .name = "bce_with_logits",
     .doc = "mean max(x, 0) - x t + log(1 + exp(-|x|)) "
            "(torch.nn.functional.binary_cross_entropy_with_logits)",
     .n_in = 2,
     .loss = true,
     .shape = bce_with_logits_shape},
};

const clv_op_family clv_family_loss = {ops, CLV_COUNT(ops)};
