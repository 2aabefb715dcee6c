/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses of classes: see kernels/ops/cross_entropy.c for the formula. The term of each position is
 * computed in double, then all terms are added in order, as in ref. Backward recomputes the
 * exponentials from the largest value and the sum that forward saved.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/math_int.h"
#include "kernels/cpu/rows_int.h"

enum { LANES = 16 };

typedef struct class_kernel {
  cpu_kernel k;
  size_t places, per_sample, classes;
  double weights;      /* sum of the class weights */
  const float *weight; /* NULL: all 1 */
} class_kernel;

/* Saved numbers of a position: its largest value, its sum of exponentials, its term of the loss. */
typedef struct class_place {
  double top, sum, term;
} class_place;

typedef struct class_job {
  const class_kernel *k;
  const clv_kernel_args *a;
  double share; /* gradient of the loss for each unit of weight */
} class_job;

static double weight_of(const class_kernel *k, size_t c) {
  return k->weight ? (double)k->weight[c] : 1;
}

static bool is_counted(const class_kernel *k, int64_t label) {
  return k->k.d.op == CLV_OP_NLL || label != k->k.d.attrs.ignore_index;
}

/* Computes the total weight of the counted positions; refuses labels outside the classes. */
static clv_code check_labels(const class_kernel *k, const int64_t *labels, double *ret,
                             clv_err *err) {
  int64_t label;
  *ret = 0;
  for (size_t i = 0; i < k->places; i++) {
    if (!is_counted(k, labels[i])) continue;
    CLV_TRY(clv_check_place_label(labels, (int64_t)i, (int64_t)k->per_sample, (int64_t)k->classes,
                                  &label, err));
    *ret += weight_of(k, (size_t)label);
  }
  return CLV_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* sum_c w_c (over - x_c), value i into the partial sum i % LANES; w may be NULL. */
CPU_INLINE void smooth_sum_body(const float *x, const float *w, size_t n, double over,
                                double *ret) {
  double lane[LANES] = {0};
  for (size_t i = 0; i < n; i += LANES)
    for (size_t l = 0; l < LANES && i + l < n; l++)
      lane[l] += w ? w[i + l] * (over - x[i + l]) : over - x[i + l];
  for (size_t width = LANES / 2; width; width /= 2)
    for (size_t l = 0; l < width; l++) lane[l] += lane[l + width];
  *ret = lane[0];
}

/* dx_c = share one p_c */
CPU_INLINE void plain_back_body(const float *x, size_t n, double top, double inverse, double one,
                                double share, float *dx) {
  for (size_t i = 0; i < n; i++) dx[i] = (float)(one * (wide_exp_of(x[i] - top) * inverse) * share);
}

/* dx_c = share (one p_c + smooth (p_c weights - w_c)); w may be NULL. */
CPU_INLINE void smooth_back_body(const float *x, const float *w, size_t n, const double v[6],
                                 float *dx) {
  double top = v[0], inverse = v[1], one = v[2], smooth = v[3], weights = v[4], share = v[5];
  for (size_t i = 0; i < n; i++) {
    double p = wide_exp_of(x[i] - top) * inverse;
    dx[i] = (float)((one * p + smooth * (p * weights - (w ? w[i] : 1))) * share);
  }
}

CPU_CLONES(smooth_sum, (const float *x, const float *w, size_t n, double over, double *ret),
           (x, w, n, over, ret))
CPU_CLONES(plain_back,
           (const float *restrict x, size_t n, double top, double inverse, double one, double share,
            float *restrict dx),
           (x, n, top, inverse, one, share, dx))
CPU_CLONES(smooth_back,
           (const float *restrict x, const float *restrict w, size_t n, const double *v,
            float *restrict dx),
           (x, w, n, v, dx))

/* ---- cross_entropy --------------------------------------------------------------------------- */

static double term_of(const class_kernel *k, const float *x, size_t label, const class_place *p) {
  double e = k->k.d.attrs.label_smoothing, over = log(p->sum) + p->top, all;
  double one = weight_of(k, label) * (over - x[label]);
  if (e == 0) return one;
  smooth_sum(x, k->weight, k->classes, over, &all);
  return (1 - e) * one + e / (double)k->classes * all;
}

static void forward_places(void *arg, size_t begin, size_t end) {
  const class_job *j = arg;
  const int64_t *labels = j->a->in[1];
  class_place *places = j->a->saved;
  for (size_t i = begin; i < end; i++) {
    const float *x = (const float *)j->a->in[0] + i * j->k->classes;
    class_place p = {0};
    if (is_counted(j->k, labels[i])) {
      p.top = clv_cpu_row_max(x, j->k->classes);
      p.sum = clv_cpu_row_exp_sum(x, j->k->classes, p.top);
      p.term = term_of(j->k, x, (size_t)labels[i], &p);
    }
    places[i] = p;
  }
}

static clv_code cross_entropy_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_kernel *k = (const class_kernel *)base;
  class_job j = {k, a, 0};
  const class_place *places = a->saved;
  double all, sum = 0;
  CLV_TRY(check_labels(k, a->in[1], &all, err));
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 8 * k->k.n_in), k->places, forward_places,
                   &j);
  for (size_t i = 0; i < k->places; i++) sum += places[i].term;
  *(float *)a->out = all == 0 ? 0 : (float)(sum / all);
  return CLV_OK;
}

static void back_place(const class_job *j, size_t i, size_t label, float *dx) {
  const class_kernel *k = j->k;
  const class_place *p = (const class_place *)j->a->saved + i;
  const float *x = (const float *)j->a->in[0] + i * k->classes;
  double e = k->k.d.attrs.label_smoothing, one = (1 - e) * weight_of(k, label),
         smooth = e / (double)k->classes, inverse = 1 / p->sum;
  double of = wide_exp_of(x[label] - p->top) * inverse;
  if (e == 0)
    plain_back(x, k->classes, p->top, inverse, one, j->share, dx);
  else
    smooth_back(x, k->weight, k->classes,
                (const double[]){p->top, inverse, one, smooth, k->weights, j->share}, dx);
  of = one * (of - 1) + (e == 0 ? 0 : smooth * (of * k->weights - weight_of(k, label)));
  dx[label] = (float)(of * j->share);
}

static void backward_places(void *arg, size_t begin, size_t end) {
  const class_job *j = arg;
  const int64_t *labels = j->a->in[1];
  for (size_t i = begin; i < end; i++) {
    float *dx = (float *)j->a->din[0] + i * j->k->classes;
    if (is_counted(j->k, labels[i]))
      back_place(j, i, (size_t)labels[i], dx);
    else
      memset(dx, 0, j->k->classes * sizeof *dx);
  }
}

static clv_code cross_entropy_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_kernel *k = (const class_kernel *)base;
  class_job j = {k, a, 0};
  double all;
  CLV_TRY(check_labels(k, a->in[1], &all, err));
  if (all == 0) {
    memset(a->din[0], 0, k->k.n_in * sizeof(float));
    return CLV_OK;
  }
  j.share = *(const float *)a->dout / all;
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 8 * k->k.n_in), k->places, backward_places,
                   &j);
  return CLV_OK;
}

/* ---- nll ------------------------------------------------------------------------------------- */

static clv_code nll_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_kernel *k = (const class_kernel *)base;
  const int64_t *labels = a->in[1];
  double all, sum = 0;
  CLV_TRY(check_labels(k, labels, &all, err));
  for (size_t i = 0; i < k->places; i++)
    sum -= ((const float *)a->in[0])[i * k->classes + (size_t)labels[i]];
  *(float *)a->out = (float)(sum / all);
  return CLV_OK;
}

static clv_code nll_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const class_kernel *k = (const class_kernel *)base;
  const int64_t *labels = a->in[1];
  double all;
  CLV_TRY(check_labels(k, labels, &all, err));
  memset(a->din[0], 0, k->k.n_in * sizeof(float));
  for (size_t i = 0; i < k->places; i++)
    ((float *)a->din[0])[i * k->classes + (size_t)labels[i]] =
        (float)(-(double)*(const float *)a->dout / all);
  return CLV_OK;
}

/* ---- preparing ------------------------------------------------------------------------------- */

static clv_code class_new(const clv_node_desc *d, class_kernel **ret, clv_err *err) {
  const clv_shape *x = &d->in[0];
  class_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->per_sample = x->rank == 3 ? (size_t)x->dim[1] : 1;
  k->places = (size_t)x->dim[0] * k->per_sample;
  k->classes = (size_t)x->dim[x->rank - 1];
  *ret = k;
  return CLV_OK;
}

static clv_code cross_entropy_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  class_kernel *k;
  CLV_TRY(class_new(d, &k, err));
  k->weight = k->k.d.attrs.class_weights.n ? k->k.d.attrs.class_weights.of : NULL;
  k->weights = k->weight ? 0 : (double)k->classes;
  for (size_t c = 0; k->weight && c < k->classes; c++) k->weights += (double)k->weight[c];
  k->k.base.forward = cross_entropy_forward;
  k->k.base.backward_input = d->need_dx[0] ? cross_entropy_backward : NULL;
  k->k.base.saves = d->need_dx[0] ? CLV_SAVE_IN0 | CLV_SAVE_IN1 : 0;
  k->k.base.saved_bytes = k->places * sizeof(class_place);
  *ret = &k->k.base;
  return CLV_OK;
}

static clv_code nll_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  class_kernel *k;
  CLV_TRY(class_new(d, &k, err));
  k->k.base.forward = nll_forward;
  k->k.base.backward_input = d->need_dx[0] ? nll_backward : NULL;
  k->k.base.saves = d->need_dx[0] ? CLV_SAVE_IN1 : 0;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(cross_entropy, cross_entropy_prepare)
CLV_CPU_OP(nll, nll_prepare)
