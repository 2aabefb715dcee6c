/* SPDX-License-Identifier: Apache-2.0
 *
 * Focal loss (Lin et al., 2017) over the softmax: with p the probability of a position's label, w
 * its class's weight and g = exponent, the term of a counted position is w (1 - p)^g (-log p). The
 * loss is the sum of the terms over W, the sum of w over the counted positions: with g = 0 it is
 * cross_entropy. With W = 0 loss and gradient are 0.
 */
#include <float.h>

#include "kernels/ops/class_loss_int.h"

static clv_code focal_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return class_position_loss_shape("focal", s, ret, err);
}

/* Returns the term, without its weight, of a position with nll = -log p. */
static double focal_term(double nll, double g) { return pow(-expm1(-nll), g) * nll; }

/* Returns the derivative of the term by nll: (1 - p)^g + g p (1 - p)^(g - 1) nll. */
static double focal_slope(double nll, double g) {
  double one_minus_p = -expm1(-nll);
  if (one_minus_p <= 0) return g == 0;
  return pow(one_minus_p, g) + g * (1 - one_minus_p) * pow(one_minus_p, g - 1) * nll;
}

static double position_nll(const clv_loss_constants *s, const REAL *x, int64_t label) {
  double largest = row_max(x, s->n_classes),
         nll = log(sum_row_exps(x, s->n_classes, largest)) + largest - x[label];
  return nll < 0 ? 0 : nll; /* rounding may have made nll less than 0 */
}

static clv_code focal_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_loss_constants s = make_loss_constants(k);
  double sum = 0, total_weight;
  int64_t label;
  CLV_TRY(sum_counted_weights(k, &s, a->in[1], &total_weight, err));
  for (int64_t i = 0; i < s.n_positions; i++) {
    const REAL *x = (const REAL *)a->in[0] + i * s.n_classes;
    CLV_TRY(read_label(k, &s, a->in[1], i, &label, err));
    if (label < 0) continue;
    sum += class_weight(&s, label) * focal_term(position_nll(&s, x, label), k->d.attrs.exponent);
  }
  *(REAL *)a->out = (REAL)(total_weight == 0 ? 0 : sum / total_weight);
  return CLV_OK;
}

/* Computes dx of a position: dx_c = dloss_per_weight w slope (softmax(x)_c - (c == label)),
 * where slope is focal_slope at the position. */
static void compute_position_grad(const clv_attrs *t, const clv_loss_constants *s, const REAL *x,
                                  int64_t label, double dloss_per_weight, REAL *dx) {
  double largest = row_max(x, s->n_classes), sum = sum_row_exps(x, s->n_classes, largest);
  double weighted_slope = class_weight(s, label) *
                          focal_slope(position_nll(s, x, label), t->exponent) * dloss_per_weight;
  for (int64_t c = 0; c < s->n_classes; c++)
    dx[c] = (REAL)(weighted_slope * (exp(x[c] - largest) / sum - (c == label)));
}

static clv_code focal_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return class_loss_backward((const clv_ref_kernel *)base, a, compute_position_grad, err);
}

CLV_OP_ROW(focal) = {
    .name = "focal",
    .doc =
        "mean over counted places of (1 - p)^exponent (-log p), p the softmax of x at the target "
        "(Lin et al., 2017; classes are the last dimension; torch has none)",
    .torch_module = "",
    .no_torch_module = "PyTorch has no focal loss; torchvision has one of sigmoids",
    .n_in = 2,
    .attrs = {{.key = CLV_ATTR_EXPONENT, .default_value = 2, .low = 0, .high = 100},
              {.key = CLV_ATTR_IGNORE_INDEX,
               .default_value = -100,
               .low = -INT32_MAX,
               .high = INT32_MAX},
              {.key = CLV_ATTR_CLASS_WEIGHTS, .low = 0, .high = FLT_MAX}},
    .shape = focal_shape,
    .is_loss = true,
    .takes_labels = true,
    .forward = focal_forward,
    .backward_input = focal_backward,
    .saved_for_dx = SAVE_BOTH_INPUTS,
};
