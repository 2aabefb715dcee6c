/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinball loss (Koenker and Bassett, 1978): the prediction that minimises its mean is the quantile
 * p of the targets.
 */
#include "kernels/ops/loss_int.h"

static double quantile_term(double x, double t, double p) {
  double underestimate_loss = p * (t - x), overestimate_loss = (p - 1) * (t - x);
  /* a NaN stays a NaN */
  return overestimate_loss >= underestimate_loss ? overestimate_loss : underestimate_loss;
}

/* Returns the derivative of the term by x. Where x = t it is the mean of the derivatives on both
 * sides, as the gradient of torch.maximum is. */
static double quantile_dx(double x, double t, double p) {
  return x < t ? -p : x > t ? 1 - p : x == t ? 0.5 - p : x - t; /* a NaN stays a NaN */
}

DEFINE_PARAMETRIC_LOSS(quantile, p)

CLV_OP_ROW(quantile) = {
    .name = "quantile",
    .doc =
        "mean of max(p (t - x), (p - 1) (t - x)), the pinball loss "
        "(sklearn.metrics.mean_pinball_loss; torch.maximum of both terms)",
    .torch_module = "",
    .no_torch_module = "PyTorch has no pinball loss",
    .attrs = {{.key = CLV_ATTR_P, .default_value = 0.5, .low = 0, .high = 1}},
    .n_in = 2,
    .shape = quantile_shape,
    .is_loss = true,
    .forward = quantile_forward,
    .backward_input = quantile_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
