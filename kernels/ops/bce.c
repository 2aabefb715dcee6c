/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/loss_int.h"

static clv_code bce_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return equal_inputs_loss_shape("bce", s, ret, err);
}

/* Clamps a logarithm of the loss at -100, as PyTorch does. */
static double clamp_log(double log_x) { return log_x < -100 ? -100 : log_x; }
static double bce_term(double x, double t) {
  return (t - 1) * clamp_log(log1p(-x)) - t * clamp_log(log(x));
}
/* Returns the gradient of the prediction x. Its denominator is at least 1e-12, as in PyTorch. */
static double bce_dx(double x, double t) {
  double variance = (1 - x) * x;
  return (x - t) / (variance < 1e-12 ? 1e-12 : variance);
}
/* Returns the gradient of the target t, whose logarithms are not clamped, as in PyTorch. */
static double bce_dt(double x, double t) {
  (void)t;
  return log1p(-x) - log(x);
}

/* Computes the loss. Fails for a prediction outside 0..1. A prediction NaN is accepted, and makes
 * the loss NaN. */
MEAN_LOSS(bce) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0];
  for (size_t i = 0; i < k->n_in; i++)
    if (x[i] < 0 || x[i] > 1) {
      clv_fail(err, CLV_INVALID,
               "bce: prediction %zu is outside 0..1; put a sigmoid before the loss or use "
               "bce_with_logits",
               i);
      return clv_err_set_offending_value(err, "%g", (double)x[i]);
    }
  return mean_forward(k, a, bce_term);
}

CLV_OP_ROW(bce) = {
    .name = "bce",
    .doc =
        "mean -(t log x + (1 - t) log(1 - x)), logs clamped at -100 "
        "(torch.nn.functional.binary_cross_entropy)",
    .torch_module = "BCELoss()",
    .torch_needs = "reduction='mean', weight=None",
    .n_in = 2,
    .shape = bce_shape,
    .is_loss = true,
    .forward = bce_forward,
    .backward_input = bce_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
