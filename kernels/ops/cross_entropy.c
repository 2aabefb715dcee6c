/* SPDX-License-Identifier: Apache-2.0
 *
 * Classes are the last dimension. A position whose label is ignore_index is not counted. The loss
 * of a counted position, with the weight w of each class, e = label_smoothing and C classes, is
 *
 * (1 - e) w_target (log sum_j exp(x_j) - x_target) + e / C sum_c w_c (log sum_j exp(x_j) - x_c)
 *
 * The loss is the sum of these over W, the sum of w_target over the counted positions (without
 * weights, their number). With W = 0 loss and gradient are 0, where PyTorch has NaN.
 */
#include <float.h>

#include "kernels/ops/class_loss_int.h"

static clv_code cross_entropy_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return class_position_loss_shape("cross_entropy", s, ret, err);
}

/* Returns the loss of one position; the comment at the top of this file has the formula. */
static double position_loss(const clv_attrs *t, const clv_loss_constants *s, const REAL *x,
                            int64_t label) {
  double largest = row_max(x, s->n_classes),
         log_sum_exp = log(sum_row_exps(x, s->n_classes, largest)) + largest;
  double target_loss = class_weight(s, label) * (log_sum_exp - x[label]), total_weight = 0;
  if (t->label_smoothing == 0) return target_loss;
  for (int64_t c = 0; c < s->n_classes; c++)
    total_weight += class_weight(s, c) * (log_sum_exp - x[c]);
  return (1 - t->label_smoothing) * target_loss + s->smoothing_share * total_weight;
}

static clv_code cross_entropy_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_loss_constants s = make_loss_constants(k);
  double sum = 0, total_weight;
  int64_t label;
  CLV_TRY(sum_counted_weights(k, &s, a->in[1], &total_weight, err));
  for (int64_t i = 0; i < s.n_positions; i++) {
    CLV_TRY(read_label(k, &s, a->in[1], i, &label, err));
    if (label >= 0)
      sum += position_loss(&k->d.attrs, &s, (const REAL *)a->in[0] + i * s.n_classes, label);
  }
  *(REAL *)a->out = (REAL)(total_weight == 0 ? 0 : sum / total_weight);
  return CLV_OK;
}

/* Computes dx of a position: with p = softmax(x), e = label_smoothing and C classes, dx_c =
 * dloss_per_weight ((1 - e) w_target (p_c - (c == target)) + e / C (p_c sum_j w_j - w_c)). */
static void compute_position_grad(const clv_attrs *t, const clv_loss_constants *s, const REAL *x,
                                  int64_t label, double dloss_per_weight, REAL *dx) {
  double largest = row_max(x, s->n_classes), sum = sum_row_exps(x, s->n_classes, largest),
         e = t->label_smoothing;
  double target_weight = (1 - e) * class_weight(s, label);
  for (int64_t c = 0; c < s->n_classes; c++) {
    double p = exp(x[c] - largest) / sum, d = target_weight * (p - (c == label));
    if (e != 0) d += s->smoothing_share * (p * s->weight_sum - class_weight(s, c));
    dx[c] = (REAL)(d * dloss_per_weight);
  }
}

static clv_code cross_entropy_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return class_loss_backward((const clv_ref_kernel *)base, a, compute_position_grad, err);
}

CLV_OP_ROW(cross_entropy) = {
    .name = "cross_entropy",
    .doc =
        "mean over counted places of log sum_j exp(x_j) - x_target "
        "(torch.nn.functional.cross_entropy; classes are the last dimension)",
    .torch_module = "CrossEntropyLoss(ignore_index=ignore_index, label_smoothing=label_smoothing)",
    .torch_needs = "reduction='mean', weight=None",
    .n_in = 2,
    .attrs = {{.key = CLV_ATTR_IGNORE_INDEX,
               .default_value = -100,
               .low = -INT32_MAX,
               .high = INT32_MAX},
              {.key = CLV_ATTR_LABEL_SMOOTHING, .low = 0, .high = 1},
              {.key = CLV_ATTR_CLASS_WEIGHTS, .low = 0, .high = FLT_MAX}},
    .shape = cross_entropy_shape,
    .is_loss = true,
    .takes_labels = true,
    .forward = cross_entropy_forward,
    .backward_input = cross_entropy_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
