/* SPDX-License-Identifier: Apache-2.0
 *
 * cross_entropy and nll, the losses of classes: see kernels/ops/cross_entropy.c for the formula.
 * The term of each position is computed in double, then all terms are added in order, as in ref.
 * Backward recomputes the exponentials from the largest value and the sum that forward saved.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/math_int.h"
#include "kernels/cpu/rows_int.h"

enum { LANES = 16 }; /* number of partial sums over the classes */

typedef struct class_loss_kernel {
  cpu_kernel k;
  size_t n_positions, positions_per_sample, n_classes;
  double weight_sum;          /* sum of the class weights, or the number of classes */
  const float *class_weights; /* weights of the classes; NULL: all are 1 */
} class_loss_kernel;

/* Numbers saved for each position: its largest input, the sum of exp(x - max_x) over its classes,
 * and its term of the loss. */
typedef struct saved_class_position {
  double max_x, exp_sum, loss_term;
} saved_class_position;

typedef struct class_loss_job {
  const class_loss_kernel *k;
  const clv_kernel_args *a;
  /* gradient of the loss, divided by the total weight of the counted positions */
  double gradient_scale;
} class_loss_job;

static double class_weight(const class_loss_kernel *k, size_t c) {
  return k->class_weights ? (double)k->class_weights[c] : 1;
}

static bool is_position_counted(const class_loss_kernel *k, int64_t label) {
  return k->k.d.op == CLV_OP_NLL || label != k->k.d.attrs.ignore_index;
}

/* Computes the total weight of the counted positions. Fails for labels outside the classes. */
static clv_code sum_counted_weights(const class_loss_kernel *k, const int64_t *labels, double *ret,
                                    clv_err *err) {
  int64_t label;
  *ret = 0;
  for (size_t i = 0; i < k->n_positions; i++) {
    if (!is_position_counted(k, labels[i])) continue;
    CLV_TRY(clv_check_position_label(labels, (int64_t)i, (int64_t)k->positions_per_sample,
                                     (int64_t)k->n_classes, &label, err));
    *ret += class_weight(k, (size_t)label);
  }
  return CLV_OK;
}

/* ---- loops over the classes of one position -------------------------------------------------- */

/* Computes sum_c w_c (log_sum_exp - x_c), where term i is added to the partial sum i % LANES. w
 * may be NULL: all weights are 1. */
CPU_INLINE void sum_smoothing_terms_body(const float *x, const float *w, size_t n,
                                         double log_sum_exp, double *ret) {
  double lane_sums[LANES] = {0};
  for (size_t i = 0; i < n; i += LANES)
    for (size_t l = 0; l < LANES && i + l < n; l++)
      lane_sums[l] += w ? w[i + l] * (log_sum_exp - x[i + l]) : log_sum_exp - x[i + l];
  for (size_t width = LANES / 2; width; width /= 2)
    for (size_t l = 0; l < width; l++) lane_sums[l] += lane_sums[l + width];
  *ret = lane_sums[0];
}

/* Computes dx_c = gradient_scale target_weight p_c, where p_c = exp(x_c - max_x) inverse_sum.
 * target_weight: weight of the target's class, times 1 - label_smoothing. gradient_scale: see
 * class_loss_job. */
CPU_INLINE void compute_plain_grads_body(const float *x, size_t n, double max_x, double inverse_sum,
                                         double target_weight, double gradient_scale, float *dx) {
  for (size_t i = 0; i < n; i++)
    dx[i] = (float)(target_weight * (double_exp_of(x[i] - max_x) * inverse_sum) * gradient_scale);
}

/* Computes dx_c = gradient_scale (target_weight p_c + smoothing_per_class (p_c weight_sum - w_c)),
 * where p_c = exp(x_c - max_x) inverse_sum. w may be NULL: all weights are 1. v: max_x,
 * inverse_sum, target_weight, smoothing_per_class, weight_sum, gradient_scale. */
CPU_INLINE void compute_smoothed_grads_body(const float *x, const float *w, size_t n,
                                            const double v[6], float *dx) {
  double max_x = v[0], inverse_sum = v[1], target_weight = v[2], smoothing_per_class = v[3],
         weight_sum = v[4], gradient_scale = v[5];
  for (size_t i = 0; i < n; i++) {
    double p = double_exp_of(x[i] - max_x) * inverse_sum;
    dx[i] = (float)((target_weight * p + smoothing_per_class * (p * weight_sum - (w ? w[i] : 1))) *
                    gradient_scale);
  }
}

CPU_CLONES(sum_smoothing_terms,
           (const float *x, const float *w, size_t n, double log_sum_exp, double *ret),
           (x, w, n, log_sum_exp, ret))
CPU_CLONES(compute_plain_grads,
           (const float *restrict x, size_t n, double max_x, double inverse_sum,
            double target_weight, double gradient_scale, float *restrict dx),
           (x, n, max_x, inverse_sum, target_weight, gradient_scale, dx))
CPU_CLONES(compute_smoothed_grads,
           (const float *restrict x, const float *restrict w, size_t n, const double *v,
            float *restrict dx),
           (x, w, n, v, dx))

/* ---- cross_entropy --------------------------------------------------------------------------- */

static double compute_loss_term(const class_loss_kernel *k, const float *x, size_t label,
                                const saved_class_position *p) {
  double label_smoothing = k->k.d.attrs.label_smoothing, log_sum_exp = log(p->exp_sum) + p->max_x,
         smoothing_loss;
  double target_loss = class_weight(k, label) * (log_sum_exp - x[label]);
  if (label_smoothing == 0) return target_loss;
  sum_smoothing_terms(x, k->class_weights, k->n_classes, log_sum_exp, &smoothing_loss);
  return (1 - label_smoothing) * target_loss +
         label_smoothing / (double)k->n_classes * smoothing_loss;
}

static void forward_positions(void *arg, size_t begin, size_t end) {
  const class_loss_job *j = arg;
  const int64_t *labels = j->a->in[1];
  saved_class_position *positions = j->a->saved;
  for (size_t i = begin; i < end; i++) {
    const float *x = (const float *)j->a->in[0] + i * j->k->n_classes;
    saved_class_position p = {0};
    if (is_position_counted(j->k, labels[i])) {
      p.max_x = clv_cpu_find_row_max(x, j->k->n_classes);
      p.exp_sum = clv_cpu_sum_row_exps(x, j->k->n_classes, p.max_x);
      p.loss_term = compute_loss_term(j->k, x, (size_t)labels[i], &p);
    }
    positions[i] = p;
  }
}

static clv_code cross_entropy_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_loss_kernel *k = (const class_loss_kernel *)base;
  class_loss_job j = {k, a, 0};
  const saved_class_position *positions = a->saved;
  double total_weight, sum = 0;
  CLV_TRY(sum_counted_weights(k, a->in[1], &total_weight, err));
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 8 * k->k.n_in), k->n_positions,
                   forward_positions, &j);
  for (size_t i = 0; i < k->n_positions; i++) sum += positions[i].loss_term;
  *(float *)a->out = total_weight == 0 ? 0 : (float)(sum / total_weight);
  return CLV_OK;
}

static void backward_at_position(const class_loss_job *j, size_t i, size_t label, float *dx) {
  const class_loss_kernel *k = j->k;
  const saved_class_position *p = (const saved_class_position *)j->a->saved + i;
  const float *x = (const float *)j->a->in[0] + i * k->n_classes;
  double label_smoothing = k->k.d.attrs.label_smoothing,
         target_weight = (1 - label_smoothing) * class_weight(k, label),
         smoothing_per_class = label_smoothing / (double)k->n_classes, inverse_sum = 1 / p->exp_sum;
  double dx_target = double_exp_of(x[label] - p->max_x) * inverse_sum;
  if (label_smoothing == 0)
    compute_plain_grads(x, k->n_classes, p->max_x, inverse_sum, target_weight, j->gradient_scale,
                        dx);
  else
    compute_smoothed_grads(x, k->class_weights, k->n_classes,
                           (const double[]){p->max_x, inverse_sum, target_weight,
                                            smoothing_per_class, k->weight_sum, j->gradient_scale},
                           dx);
  dx_target = target_weight * (dx_target - 1) +
              (label_smoothing == 0
                   ? 0
                   : smoothing_per_class * (dx_target * k->weight_sum - class_weight(k, label)));
  dx[label] = (float)(dx_target * j->gradient_scale);
}

static void backward_positions(void *arg, size_t begin, size_t end) {
  const class_loss_job *j = arg;
  const int64_t *labels = j->a->in[1];
  for (size_t i = begin; i < end; i++) {
    float *dx = (float *)j->a->din[0] + i * j->k->n_classes;
    if (is_position_counted(j->k, labels[i]))
      backward_at_position(j, i, (size_t)labels[i], dx);
    else
      memset(dx, 0, j->k->n_classes * sizeof *dx);
  }
}

static clv_code cross_entropy_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_loss_kernel *k = (const class_loss_kernel *)base;
  class_loss_job j = {k, a, 0};
  double total_weight;
  CLV_TRY(sum_counted_weights(k, a->in[1], &total_weight, err));
  if (total_weight == 0) {
    memset(a->din[0], 0, k->k.n_in * sizeof(float));
    return CLV_OK;
  }
  j.gradient_scale = *(const float *)a->dout / total_weight;
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 8 * k->k.n_in), k->n_positions,
                   backward_positions, &j);
  return CLV_OK;
}

/* ---- nll ------------------------------------------------------------------------------------- */

static clv_code nll_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_loss_kernel *k = (const class_loss_kernel *)base;
  const int64_t *labels = a->in[1];
  double total_weight, sum = 0;
  CLV_TRY(sum_counted_weights(k, labels, &total_weight, err));
  for (size_t i = 0; i < k->n_positions; i++)
    sum -= ((const float *)a->in[0])[i * k->n_classes + (size_t)labels[i]];
  *(float *)a->out = (float)(sum / total_weight);
  return CLV_OK;
}

static clv_code nll_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_loss_kernel *k = (const class_loss_kernel *)base;
  const int64_t *labels = a->in[1];
  double total_weight;
  CLV_TRY(sum_counted_weights(k, labels, &total_weight, err));
  memset(a->din[0], 0, k->k.n_in * sizeof(float));
  for (size_t i = 0; i < k->n_positions; i++)
    ((float *)a->din[0])[i * k->n_classes + (size_t)labels[i]] =
        (float)(-(double)*(const float *)a->dout / total_weight);
  return CLV_OK;
}

/* ---- preparing the kernels ------------------------------------------------------------------- */

static clv_code new_class_loss_kernel(const clv_node_desc *d, class_loss_kernel **ret,
                                      clv_err *err) {
  const clv_shape *x = &d->in[0];
  class_loss_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->positions_per_sample = x->rank == 3 ? (size_t)x->dim[1] : 1;
  k->n_positions = (size_t)x->dim[0] * k->positions_per_sample;
  k->n_classes = (size_t)x->dim[x->rank - 1];
  *ret = k;
  return CLV_OK;
}

static clv_code cross_entropy_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  class_loss_kernel *k;
  CLV_TRY(new_class_loss_kernel(d, &k, err));
  k->class_weights = k->k.d.attrs.class_weights.n ? k->k.d.attrs.class_weights.of : NULL;
  k->weight_sum = k->class_weights ? 0 : (double)k->n_classes;
  for (size_t c = 0; k->class_weights && c < k->n_classes; c++)
    k->weight_sum += (double)k->class_weights[c];
  k->k.base.forward = cross_entropy_forward;
  k->k.base.backward_input = d->need_dx[0] ? cross_entropy_backward : NULL;
  k->k.base.saved_flags = d->need_dx[0] ? CLV_SAVE_IN0 | CLV_SAVE_IN1 : 0;
  k->k.base.saved_bytes = k->n_positions * sizeof(saved_class_position);
  *ret = &k->k.base;
  return CLV_OK;
}

static clv_code nll_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  class_loss_kernel *k;
  CLV_TRY(new_class_loss_kernel(d, &k, err));
  k->k.base.forward = nll_forward;
  k->k.base.backward_input = d->need_dx[0] ? nll_backward : NULL;
  k->k.base.saved_flags = d->need_dx[0] ? CLV_SAVE_IN1 : 0;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(cross_entropy, cross_entropy_prepare)
CLV_CPU_OP(nll, nll_prepare)
