/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/loss_int.h"

/* With beta 0 the term is |x - t|. */
static double smooth_l1_term(double x, double t, double beta) {
  double d = fabs(x - t);
  return d < beta ? 0.5 * d * d / beta : d - 0.5 * beta;
}

static double smooth_l1_dx(double x, double t, double beta) {
  double d = x - t;
  if (fabs(d) < beta) return d / beta;
  return d > 0 ? 1 : d < 0 ? -1 : d; /* a NaN stays a NaN */
}

DEFINE_PARAMETRIC_LOSS(smooth_l1, beta)

CLV_OP_ROW(smooth_l1) = {
    .name = "smooth_l1",
    .doc =
        "mean of d^2 / (2 beta) where d = |x - t| is below beta, else d - beta / 2 "
        "(torch.nn.functional.smooth_l1_loss)",
    .torch_module = "SmoothL1Loss(beta=beta)",
    .torch_needs = "reduction='mean'",
    .attrs = {{.key = CLV_ATTR_BETA, .default_value = 1, .low = 0, .high = 1e6}},
    .n_in = 2,
    .shape = smooth_l1_shape,
    .is_loss = true,
    .forward = smooth_l1_forward,
    .backward_input = smooth_l1_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
