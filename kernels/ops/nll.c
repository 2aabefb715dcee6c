/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/loss_int.h"

static clv_code nll_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return class_loss_shape("nll", s, ret, err);
}

static clv_code nll_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  double sum = 0;
  for (int64_t n = 0; n < batch; n++) {
    CLV_TRY(clv_check_label(a->in[1], n, classes, &label, err));
    sum -= ((const REAL *)a->in[0])[n * classes + label];
  }
  *(REAL *)a->out = (REAL)(sum / (double)batch);
  return CLV_OK;
}

static clv_code nll_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  REAL *dx = a->din[0];
  for (int64_t i = 0; i < batch * classes; i++) dx[i] = 0;
  for (int64_t n = 0; n < batch; n++) {
    CLV_TRY(clv_check_label(a->in[1], n, classes, &label, err));
    dx[n * classes + label] = (REAL)(-read_dout(a) / (double)batch);
  }
  return CLV_OK;
}

CLV_OP_ROW(nll) = {
    .name = "nll",
    .doc = "mean_n -x_n,target (torch.nn.functional.nll_loss)",
    .torch_module = "NLLLoss()",
    .torch_needs = "reduction='mean', weight=None, ignore_index=-100",
    .n_in = 2,
    .shape = nll_shape,
    .is_loss = true,
    .takes_labels = true,
    .forward = nll_forward,
    .backward_input = nll_backward,
    .saved_for_dx = CLV_SAVE_IN1,
};
