/* SPDX-License-Identifier: Apache-2.0
 *
 * pointwise_int: loops of ops that compute each value separately, by the expressions of PyTorch's
 * CPU kernels.
 */
#ifndef CLEAVE_OPS_POINTWISE_INT_H
#define CLEAVE_OPS_POINTWISE_INT_H

#include "kernels/ops/op_int.h"

/* Defines a forward function that computes y[i] = `expression` of x = x[i] and of p and q, the
 * attributes that the op's row names (clv_formula_numbers). */
#define POINTWISE(name, expression)                                                                \
  extern const clv_op_def OP_ROW_NAME(name);                                                       \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {       \
    const clv_ref_kernel *k = (const clv_ref_kernel *)base;                                        \
    const REAL *in = a->in[0];                                                                     \
    REAL *out = a->out;                                                                            \
    const clv_formula_numbers by = clv_op_formula_numbers_of_row(&OP_ROW_NAME(name), &k->d.attrs); \
    const REAL p = (REAL)by.p, q = (REAL)by.q;                                                     \
    (void)err, (void)p, (void)q;                                                                   \
    for (size_t i = 0; i < k->n_in; i++) {                                                         \
      REAL x = in[i];                                                                              \
      out[i] = (expression);                                                                       \
    }                                                                                              \
    return CLV_OK;                                                                                 \
  }

/* Defines a backward function that computes dx[i] = `expression` of dy = dy[i], of s, value i of
 * the saved array `saved_array`, which is the input or the output, and of p and q. */
#define POINTWISE_BACKWARD(name, saved_array, expression)                                          \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {      \
    const clv_ref_kernel *k = (const clv_ref_kernel *)base;                                        \
    const REAL *keep = (saved_array), *dout = a->dout;                                             \
    REAL *din = a->din[0];                                                                         \
    const clv_formula_numbers by = clv_op_formula_numbers_of_row(&OP_ROW_NAME(name), &k->d.attrs); \
    const REAL p = (REAL)by.p, q = (REAL)by.q;                                                     \
    (void)err, (void)p, (void)q;                                                                   \
    for (size_t i = 0; i < k->n_in; i++) {                                                         \
      REAL s = keep[i], dy = dout[i];                                                              \
      din[i] = (expression);                                                                       \
    }                                                                                              \
    return CLV_OK;                                                                                 \
  }

/* POINTWISE_ROW(name, .doc = ..., ...) defines the row of an elementwise op of one input, whose
 * functions POINTWISE and POINTWISE_BACKWARD have defined. */
#define POINTWISE_ROW(op, ...)         \
  CLV_OP_ROW(op) = {                   \
      .name = #op,                     \
      .n_in = 1,                       \
      .packing = CLV_PACKS_POSITIONS,  \
      .shape = clv_shape_of_input,     \
      .elementwise = true,             \
      .forward = op##_forward,         \
      .backward_input = op##_backward, \
      __VA_ARGS__,                     \
  }

/* Copies dout to the gradient of each input, for ops such as add and reshape, and for dropout
 * outside training. */
static inline clv_code identity_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++)
    if (a->din[i]) memmove(a->din[i], a->dout, k->n_out * sizeof(REAL));
  return CLV_OK;
}

static inline clv_code identity_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  memmove(a->out, a->in[0], ((const clv_ref_kernel *)base)->n_in * sizeof(REAL));
  return CLV_OK;
}

#endif
