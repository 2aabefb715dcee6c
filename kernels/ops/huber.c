/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/loss_int.h"

static double huber_term(double x, double t, double delta) {
  double d = fabs(x - t);
  return d < delta ? 0.5 * d * d : delta * (d - 0.5 * delta);
}

static double huber_dx(double x, double t, double delta) {
  double d = x - t;
  if (fabs(d) < delta) return d;
  return d > 0 ? delta : d < 0 ? -delta : d; /* a NaN stays a NaN */
}

DEFINE_PARAMETRIC_LOSS(huber, beta)

CLV_OP_ROW(huber) = {
    .name = "huber",
    .doc =
        "mean of d^2 / 2 where d = |x - t| is below beta, else beta (d - beta / 2) "
        "(torch.nn.functional.huber_loss, whose delta is beta)",
    .torch_module = "HuberLoss(beta=delta)",
    .torch_needs = "reduction='mean'",
    .attrs = {{.key = CLV_ATTR_BETA, .default_value = 1, .low = 1e-6, .high = 1e6}},
    .n_in = 2,
    .shape = huber_shape,
    .is_loss = true,
    .forward = huber_forward,
    .backward_input = huber_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
