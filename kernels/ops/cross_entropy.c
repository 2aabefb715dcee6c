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

#include "kernels/ops/loss_int.h"
#include "kernels/ops/softmax_int.h"

/* Accepts labels [N] with predictions [N, classes], or [N, places] with [N, places, classes]. */
static clv_code cross_entropy_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *x = &s->in[0];
  char a[160], b[160], c[160];
  if (x->rank != 2 && x->rank != 3)
    return clv_fail(err, CLV_INVALID,
                    "cross_entropy needs [N, classes], or [N, places, classes] for a class of each "
                    "place, got %s: put a flatten or a reshape before it",
                    clv_shape_format(x, a, sizeof a));
  if (x->rank == 2) CLV_TRY(class_loss_shape("cross_entropy", s, ret, err));
  CLV_TRY(clv_check_no_empty("cross_entropy", x, err));
  clv_shape want = *x;
  want.dim[--want.rank] = 0;
  if (!clv_shape_equal(&s->in[1], &want))
    return clv_fail(err, CLV_INVALID,
                    "cross_entropy needs one class index per place (%s i64) for predictions %s, "
                    "whose last dimension is the classes, got %s",
                    clv_shape_format(&want, a, sizeof a), clv_shape_format(x, b, sizeof b),
                    clv_shape_format(&s->in[1], c, sizeof c));
  int n = s->attrs->class_weights.n;
  if (n && n != x->dim[x->rank - 1])
    return clv_fail(err, CLV_INVALID, "cross_entropy: class_weights has %d numbers, not %lld", n,
                    (long long)x->dim[x->rank - 1]);
  *ret = (clv_shape){0};
  return CLV_OK;
}

/* Numbers that all positions have in common. */
typedef struct site {
  int64_t places, per_sample, classes;
  double smooth;       /* e / C */
  const float *weight; /* NULL: all 1 */
  double weights;      /* sum of the class weights */
} site;

static site site_of(const clv_ref_kernel *k) {
  const clv_attrs *t = &k->d.attrs;
  const clv_shape *x = &k->d.in[0];
  site s = {.per_sample = x->rank == 3 ? x->dim[1] : 1, .classes = row_length(k)};
  s.places = x->dim[0] * s.per_sample;
  s.smooth = t->label_smoothing / (double)s.classes;
  s.weight = t->class_weights.n ? t->class_weights.of : NULL;
  s.weights = (double)s.classes;
  if (s.weight) s.weights = 0;
  for (int64_t c = 0; s.weight && c < s.classes; c++) s.weights += (double)s.weight[c];
  return s;
}

static double weight_of(const site *s, int64_t c) { return s->weight ? (double)s->weight[c] : 1; }

/* Writes the label of position i to *ret; -1: the position is not counted. */
static clv_code label_at(const clv_ref_kernel *k, const site *s, const int64_t *labels, int64_t i,
                         int64_t *ret, clv_err *err) {
  *ret = -1;
  if (labels[i] == k->d.attrs.ignore_index) return CLV_OK;
  return clv_check_place_label(labels, i, s->per_sample, s->classes, ret, err);
}

/* Computes W, the total weight of the counted positions. */
static clv_code counted(const clv_ref_kernel *k, const site *s, const int64_t *labels, double *ret,
                        clv_err *err) {
  int64_t label;
  *ret = 0;
  for (int64_t i = 0; i < s->places; i++) {
    CLV_TRY(label_at(k, s, labels, i, &label, err));
    if (label >= 0) *ret += weight_of(s, label);
  }
  return CLV_OK;
}

static double term(const clv_attrs *t, const site *s, const REAL *x, int64_t label) {
  double top = row_max(x, s->classes), over = log(row_exp_sum(x, s->classes, top)) + top;
  double one = weight_of(s, label) * (over - x[label]), all = 0;
  if (t->label_smoothing == 0) return one;
  for (int64_t c = 0; c < s->classes; c++) all += weight_of(s, c) * (over - x[c]);
  return (1 - t->label_smoothing) * one + s->smooth * all;
}

static clv_code cross_entropy_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  site s = site_of(k);
  double sum = 0, all;
  int64_t label;
  CLV_TRY(counted(k, &s, a->in[1], &all, err));
  for (int64_t i = 0; i < s.places; i++) {
    CLV_TRY(label_at(k, &s, a->in[1], i, &label, err));
    if (label >= 0) sum += term(&k->d.attrs, &s, (const REAL *)a->in[0] + i * s.classes, label);
  }
  *(REAL *)a->out = (REAL)(all == 0 ? 0 : sum / all);
  return CLV_OK;
}

/* With p = softmax(x): dx_c = share ((1 - e) w_target (p_c - (c == target))
 *                                    + e / C (p_c sum_j w_j - w_c)) */
static void row_back(const clv_attrs *t, const site *s, const REAL *x, int64_t label, double share,
                     REAL *dx) {
  double top = row_max(x, s->classes), sum = row_exp_sum(x, s->classes, top),
         e = t->label_smoothing;
  double one = (1 - e) * weight_of(s, label);
  for (int64_t c = 0; c < s->classes; c++) {
    double p = exp(x[c] - top) / sum, d = one * (p - (c == label));
    if (e != 0) d += s->smooth * (p * s->weights - weight_of(s, c));
    dx[c] = (REAL)(d * share);
  }
}

static clv_code cross_entropy_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  site s = site_of(k);
  double all;
  int64_t label;
  CLV_TRY(counted(k, &s, a->in[1], &all, err));
  double share = all == 0 ? 0 : dout_of(a) / all;
  for (int64_t i = 0; i < s.places; i++) {
    REAL *dx = (REAL *)a->din[0] + i * s.classes;
    CLV_TRY(label_at(k, &s, a->in[1], i, &label, err));
    if (label < 0 || all == 0)
      memset(dx, 0, (size_t)s.classes * sizeof *dx);
    else
      row_back(&k->d.attrs, &s, (const REAL *)a->in[0] + i * s.classes, label, share, dx);
  }
  return CLV_OK;
}

CLV_OP_ROW(cross_entropy) = {
    .name = "cross_entropy",
    .doc =
        "mean over counted places of log sum_j exp(x_j) - x_target "
        "(torch.nn.functional.cross_entropy; classes are the last dimension)",
    .torch_module = "CrossEntropyLoss(ignore_index=ignore_index, label_smoothing=label_smoothing)",
    .torch_needs = "reduction='mean', weight=None",
    .n_in = 2,
    .attrs =
        {{.key = CLV_ATTR_IGNORE_INDEX, .fallback = -100, .low = -INT32_MAX, .high = INT32_MAX},
         {.key = CLV_ATTR_LABEL_SMOOTHING, .low = 0, .high = 1},
         {.key = CLV_ATTR_CLASS_WEIGHTS, .low = 0, .high = FLT_MAX}},
    .shape = cross_entropy_shape,
    .loss = true,
    .labels = true,
    .forward = cross_entropy_forward,
    .backward_input = cross_entropy_backward,
    .saves_dx = SAVE_BOTH_IN,
};
