/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/loss_int.h"

static clv_code mse_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return equal_inputs_loss_shape("mse", s, ret, err);
}

static double mse_term(double x, double t) { return (x - t) * (x - t); }
static double mse_dx(double x, double t) { return 2 * (x - t); }
static double mse_dt(double x, double t) { return 2 * (t - x); }

MEAN_LOSS(mse) {
  (void)err;
  return mean_forward((const clv_ref_kernel *)base, a, mse_term);
}

CLV_OP_ROW(mse) = {
    .name = "mse",
    .doc = "mean (x - t)^2 (torch.nn.functional.mse_loss)",
    .torch_module = "MSELoss()",
    .torch_needs = "reduction='mean'",
    .n_in = 2,
    .shape = mse_shape,
    .is_loss = true,
    .forward = mse_forward,
    .backward_input = mse_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
