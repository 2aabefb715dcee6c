/* SPDX-License-Identifier: Apache-2.0
 *
 * Poisson loss: the term exp(x) - t x, where the prediction x is the logarithm of the rate. It
 * leaves out log t!, which does not depend on x.
 */
#include "kernels/ops/loss_int.h"

static clv_code poisson_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return equal_inputs_loss_shape("poisson", s, ret, err);
}

static double poisson_term(double x, double t) { return exp(x) - t * x; }
static double poisson_dx(double x, double t) { return exp(x) - t; }
static double poisson_dt(double x, double t) {
  (void)t;
  return -x;
}

MEAN_LOSS(poisson) {
  (void)err;
  return mean_forward((const clv_ref_kernel *)base, a, poisson_term);
}

CLV_OP_ROW(poisson) = {
    .name = "poisson",
    .doc =
        "mean exp(x) - t x, for counts t whose rate is exp(x) "
        "(torch.nn.functional.poisson_nll_loss)",
    .torch_module = "PoissonNLLLoss()",
    .torch_needs = "log_input=True, full=False, reduction='mean'",
    .n_in = 2,
    .shape = poisson_shape,
    .is_loss = true,
    .forward = poisson_forward,
    .backward_input = poisson_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
