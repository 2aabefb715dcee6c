/* SPDX-License-Identifier: Apache-2.0
 *
 * loss_int: losses, all with reduction "mean". in[0] is the prediction, in[1] the target; out and
 * dout are scalars. The loops compute in double and round the result once.
 */
#ifndef CLEAVE_OPS_LOSS_INT_H
#define CLEAVE_OPS_LOSS_INT_H

#include "kernels/ops/op_int.h"

static inline double read_dout(const clv_kernel_args *a) { return *(const REAL *)a->dout; }

/* ---- class labels: x [N, classes], target [N] i64 -------------------------------------------- */

static inline clv_code class_loss_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                        clv_err *err) {
  char input_text[160], label_text[160];
  CLV_TRY(clv_check_rank(op, &s->in[0], 2, "[N, classes]",
                         "; for a class of each place there is cross_entropy, [N, places, classes]",
                         err));
  CLV_TRY(clv_check_no_empty_dim(op, &s->in[0], err));
  if (s->in[1].rank != 1 || s->in[1].dim[0] != s->in[0].dim[0])
    return clv_fail(err, CLV_INVALID,
                    "%s needs one class index per sample ([%lld] i64) for predictions %s, got %s",
                    op, (long long)s->in[0].dim[0],
                    clv_shape_format(&s->in[0], input_text, sizeof input_text),
                    clv_shape_format(&s->in[1], label_text, sizeof label_text));
  *ret = (clv_shape){0};
  return CLV_OK;
}

/* ---- targets shaped as the prediction -------------------------------------------------------- */

static inline clv_code equal_inputs_loss_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                               clv_err *err) {
  char input_text[160], target_text[160];
  if (!clv_shape_equal(&s->in[0], &s->in[1]))
    return clv_fail(err, CLV_INVALID, "%s needs targets shaped as the predictions %s, got %s", op,
                    clv_shape_format(&s->in[0], input_text, sizeof input_text),
                    clv_shape_format(&s->in[1], target_text, sizeof target_text));
  *ret = (clv_shape){0};
  return CLV_OK;
}

/* A function of prediction x and target t: the term of a loss, or the term's derivative by x or t.
 * The loss is the mean of its terms. */
typedef double clv_loss_term(double x, double t);

static inline clv_code mean_forward(const clv_ref_kernel *k, const clv_kernel_args *a,
                                    clv_loss_term *term) {
  const REAL *x = a->in[0], *t = a->in[1];
  double sum = 0;
  for (size_t i = 0; i < k->n_in; i++) sum += term(x[i], t[i]);
  *(REAL *)a->out = (REAL)(sum / (double)k->n_in);
  return CLV_OK;
}

static inline clv_code mean_backward(const clv_ref_kernel *k, const clv_kernel_args *a,
                                     clv_loss_term *derivative_by_x,
                                     clv_loss_term *derivative_by_t) {
  const REAL *x = a->in[0], *t = a->in[1];
  clv_loss_term *const derivatives[] = {derivative_by_x, derivative_by_t};
  double dloss_per_term = read_dout(a) / (double)k->n_in;
  for (int input = 0; input < 2; input++) {
    REAL *d = a->din[input];
    if (!d) continue;
    for (size_t i = 0; i < k->n_in; i++)
      d[i] = (REAL)(derivatives[input](x[i], t[i]) * dloss_per_term);
  }
  return CLV_OK;
}

/* As clv_loss_term, for a loss that has a parameter, such as beta. */
typedef double clv_parametric_loss_term(double x, double t, double loss_parameter);

static inline clv_code parametric_mean_forward(const clv_ref_kernel *k, const clv_kernel_args *a,
                                               clv_parametric_loss_term *term,
                                               double loss_parameter) {
  const REAL *x = a->in[0], *t = a->in[1];
  double sum = 0;
  for (size_t i = 0; i < k->n_in; i++) sum += term(x[i], t[i], loss_parameter);
  *(REAL *)a->out = (REAL)(sum / (double)k->n_in);
  return CLV_OK;
}

/* Computes the gradients of prediction and target. dx: derivative of the term by the prediction x.
 * The derivative by the target t is -dx, because the term depends on x - t alone. */
static inline clv_code parametric_mean_backward(const clv_ref_kernel *k, const clv_kernel_args *a,
                                                clv_parametric_loss_term *dx,
                                                double loss_parameter) {
  const REAL *x = a->in[0], *t = a->in[1];
  double dloss_per_term = read_dout(a) / (double)k->n_in;
  for (int input = 0; input < 2; input++) {
    REAL *d = a->din[input];
    double sign = input ? -1 : 1;
    if (!d) continue;
    for (size_t i = 0; i < k->n_in; i++)
      d[i] = (REAL)(sign * dx(x[i], t[i], loss_parameter) * dloss_per_term);
  }
  return CLV_OK;
}

/* Defines the functions of a loss whose parameter is the attribute `field`, from NAME_term and
 * NAME_dx. */
#define DEFINE_PARAMETRIC_LOSS(name, field)                                                   \
  static clv_code name##_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {          \
    return equal_inputs_loss_shape(#name, s, ret, err);                                       \
  }                                                                                           \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {  \
    const clv_ref_kernel *k = (const clv_ref_kernel *)base;                                   \
    (void)err;                                                                                \
    return parametric_mean_forward(k, a, name##_term, k->d.attrs.field);                      \
  }                                                                                           \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    const clv_ref_kernel *k = (const clv_ref_kernel *)base;                                   \
    (void)err;                                                                                \
    return parametric_mean_backward(k, a, name##_dx, k->d.attrs.field);                       \
  }

/* Defines the backward function of a loss from NAME_dx and NAME_dt, and begins its forward
 * function, whose body follows. */
#define MEAN_LOSS(name)                                                                       \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    (void)err;                                                                                \
    return mean_backward((const clv_ref_kernel *)base, a, name##_dx, name##_dt);              \
  }                                                                                           \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err)

#endif
