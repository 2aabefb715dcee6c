/* SPDX-License-Identifier: Apache-2.0
 *
 * class_loss_int: code that the losses cross_entropy and focal have in common. Each position has a
 * class label; classes have weights; positions with the label ignore_index do not count.
 */
#ifndef CLEAVE_OPS_CLASS_LOSS_INT_H
#define CLEAVE_OPS_CLASS_LOSS_INT_H

#include "kernels/ops/loss_int.h"
#include "kernels/ops/softmax_int.h"

/* Computes the shape of the loss, a scalar. Labels are [N] for predictions [N, classes], or [N,
 * positions] for [N, positions, classes]. */
static inline clv_code class_position_loss_shape(const char *op, const clv_op_site *s,
                                                 clv_shape *ret, clv_err *err) {
  const clv_shape *x = &s->in[0];
  char expected_text[160], input_text[160], given_text[160];
  if (x->rank != 2 && x->rank != 3)
    return clv_fail(err, CLV_INVALID,
                    "%s needs [N, classes], or [N, places, classes] for a class of each "
                    "place, got %s: put a flatten or a reshape before it",
                    op, clv_shape_format(x, input_text, sizeof input_text));
  if (x->rank == 2) CLV_TRY(class_loss_shape(op, s, ret, err));
  CLV_TRY(clv_check_no_empty_dim(op, x, err));
  clv_shape expected_labels = *x;
  expected_labels.dim[--expected_labels.rank] = 0;
  if (!clv_shape_equal(&s->in[1], &expected_labels))
    return clv_fail(err, CLV_INVALID,
                    "%s needs one class index per place (%s i64) for predictions %s, "
                    "whose last dimension is the classes, got %s",
                    op, clv_shape_format(&expected_labels, expected_text, sizeof expected_text),
                    clv_shape_format(x, input_text, sizeof input_text),
                    clv_shape_format(&s->in[1], given_text, sizeof given_text));
  int n = s->attrs->class_weights.n;
  if (n && n != x->dim[x->rank - 1])
    return clv_fail(err, CLV_INVALID,
                    "%s: class_weights has %d numbers, not %lld: give one for each class", op, n,
                    (long long)x->dim[x->rank - 1]);
  *ret = (clv_shape){0};
  return CLV_OK;
}

/* Values of a loss that do not depend on the position. */
typedef struct clv_loss_constants {
  int64_t n_positions;          /* positions of all samples */
  int64_t positions_per_sample; /* 1 for predictions [N, classes] */
  int64_t n_classes;            /* number of classes */
  double smoothing_share;       /* label smoothing divided by the number of classes */
  const float *class_weights;   /* weights of the classes; NULL: all are 1 */
  double weight_sum;            /* sum of the class weights, or the number of classes */
} clv_loss_constants;

static inline clv_loss_constants make_loss_constants(const clv_ref_kernel *k) {
  const clv_attrs *t = &k->d.attrs;
  const clv_shape *x = &k->d.in[0];
  clv_loss_constants s = {.positions_per_sample = x->rank == 3 ? x->dim[1] : 1,
                          .n_classes = row_length(k)};
  s.n_positions = x->dim[0] * s.positions_per_sample;
  s.smoothing_share = t->label_smoothing / (double)s.n_classes;
  s.class_weights = t->class_weights.n ? t->class_weights.of : NULL;
  s.weight_sum = (double)s.n_classes;
  if (s.class_weights) s.weight_sum = 0;
  for (int64_t c = 0; s.class_weights && c < s.n_classes; c++)
    s.weight_sum += (double)s.class_weights[c];
  return s;
}

static inline double class_weight(const clv_loss_constants *s, int64_t c) {
  return s->class_weights ? (double)s->class_weights[c] : 1;
}

/* Writes the label of position i to *ret; -1 if the label is ignore_index. */
static inline clv_code read_label(const clv_ref_kernel *k, const clv_loss_constants *s,
                                  const int64_t *labels, int64_t i, int64_t *ret, clv_err *err) {
  *ret = -1;
  if (labels[i] == k->d.attrs.ignore_index) return CLV_OK;
  return clv_check_position_label(labels, i, s->positions_per_sample, s->n_classes, ret, err);
}

/* Computes the total weight of the positions whose label is not ignore_index. Fails for any other
 * label outside the classes. */
static inline clv_code sum_counted_weights(const clv_ref_kernel *k, const clv_loss_constants *s,
                                           const int64_t *labels, double *ret, clv_err *err) {
  int64_t label;
  *ret = 0;
  for (int64_t i = 0; i < s->n_positions; i++) {
    CLV_TRY(read_label(k, s, labels, i, &label, err));
    if (label >= 0) *ret += class_weight(s, label);
  }
  return CLV_OK;
}

/* Computes dx of one position whose label is not ignore_index. dloss_per_weight: gradient of the
 * loss, divided by the total weight of such positions. */
typedef void clv_position_gradient(const clv_attrs *t, const clv_loss_constants *s, const REAL *x,
                                   int64_t label, double dloss_per_weight, REAL *dx);

/* Computes dx of all positions. It is 0 for a position whose label is ignore_index, and for all
 * positions if their total weight is 0. */
static inline clv_code class_loss_backward(const clv_ref_kernel *k, const clv_kernel_args *a,
                                           clv_position_gradient *compute_position_grad,
                                           clv_err *err) {
  clv_loss_constants s = make_loss_constants(k);
  double total_weight;
  int64_t label;
  CLV_TRY(sum_counted_weights(k, &s, a->in[1], &total_weight, err));
  double dloss_per_weight = total_weight == 0 ? 0 : read_dout(a) / total_weight;
  for (int64_t i = 0; i < s.n_positions; i++) {
    REAL *dx = (REAL *)a->din[0] + i * s.n_classes;
    CLV_TRY(read_label(k, &s, a->in[1], i, &label, err));
    if (label < 0 || total_weight == 0)
      memset(dx, 0, (size_t)s.n_classes * sizeof *dx);
    else
      compute_position_grad(&k->d.attrs, &s, (const REAL *)a->in[0] + i * s.n_classes, label,
                            dloss_per_weight, dx);
  }
  return CLV_OK;
}

#endif
