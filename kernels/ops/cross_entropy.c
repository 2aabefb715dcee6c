/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/loss_int.h"
#include "kernels/ops/softmax_int.h"

static clv_code cross_entropy_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return class_loss_shape("cross_entropy", s, ret, err);
}

static clv_code cross_entropy_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  double sum = 0;
  for (int64_t n = 0; n < batch; n++) {
    const REAL *x = (const REAL *)a->in[0] + n * classes;
    CLV_TRY(clv_check_label(a->in[1], n, classes, &label, err));
    double top = row_max(x, classes);
    sum += log(row_exp_sum(x, classes, top)) + top - x[label];
  }
  *(REAL *)a->out = (REAL)(sum / (double)batch);
  return CLV_OK;
}

/* dx = dout (softmax(x) - onehot(target)) / N */
static clv_code cross_entropy_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t batch = k->d.in[0].dim[0], classes = k->d.in[0].dim[1], label;
  double share = dout_of(a) / (double)batch;
  for (int64_t n = 0; n < batch; n++) {
    const REAL *x = (const REAL *)a->in[0] + n * classes;
    REAL *dx = (REAL *)a->din[0] + n * classes;
    CLV_TRY(clv_check_label(a->in[1], n, classes, &label, err));
    double top = row_max(x, classes), sum = row_exp_sum(x, classes, top);
    for (int64_t c = 0; c < classes; c++)
      dx[c] = (REAL)((exp(x[c] - top) / sum - (c == label)) * share);
  }
  return CLV_OK;
}

CLV_OP_ROW(cross_entropy) = {
    .name = "cross_entropy",
    .doc = "mean_n (log sum_j exp(x_nj) - x_n,target) (torch.nn.functional.cross_entropy)",
    .torch_module = "CrossEntropyLoss()",
    .torch_needs = "reduction='mean', weight=None, ignore_index=-100, label_smoothing=0.0",
    .n_in = 2,
    .shape = cross_entropy_shape,
    .loss = true,
    .labels = true,
    .forward = cross_entropy_forward,
    .backward_input = cross_entropy_backward,
    .saves_dx = SAVE_BOTH_IN,
};
