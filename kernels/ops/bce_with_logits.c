/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/loss_int.h"

static clv_code bce_with_logits_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return equal_inputs_loss_shape("bce_with_logits", s, ret, err);
}

/* Returns max(x, 0) - x t + log(1 + exp(-|x|)), which does not overflow, because exp is taken of
 * numbers up to 0 only. */
static double bce_with_logits_term(double x, double t) {
  return (x <= 0 ? 0 : x) - x * t + log1p(exp(-fabs(x)));
}
static double bce_with_logits_dx(double x, double t) { return 1 / (1 + exp(-x)) - t; }
static double bce_with_logits_dt(double x, double t) {
  (void)t;
  return -x;
}

MEAN_LOSS(bce_with_logits) {
  (void)err;
  return mean_forward((const clv_ref_kernel *)base, a, bce_with_logits_term);
}

CLV_OP_ROW(bce_with_logits) = {
    .name = "bce_with_logits",
    .doc =
        "mean max(x, 0) - x t + log(1 + exp(-|x|)) "
        "(torch.nn.functional.binary_cross_entropy_with_logits)",
    .torch_module = "BCEWithLogitsLoss()",
    .torch_needs = "reduction='mean', weight=None, pos_weight=None",
    .n_in = 2,
    .shape = bce_with_logits_shape,
    .is_loss = true,
    .forward = bce_with_logits_forward,
    .backward_input = bce_with_logits_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
