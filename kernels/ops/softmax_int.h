/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax_int: functions of a row along the last dimension. exp is taken after the row's largest
 * value is subtracted, so that no row of finite values overflows.
 */
#ifndef CLEAVE_OPS_SOFTMAX_INT_H
#define CLEAVE_OPS_SOFTMAX_INT_H

#include "kernels/ops/op_int.h"

static inline clv_code last_dim_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                      clv_err *err) {
  char text[160];
  if (s->in[0].rank < 2)
    return clv_fail(err, CLV_INVALID, "%s needs rank 2 or more ([N, ..., classes]), got %s", op,
                    clv_shape_format(&s->in[0], text, sizeof text));
  return clv_shape_of_input(s, ret, err);
}

static inline int64_t row_length(const clv_ref_kernel *k) {
  return k->d.in[0].dim[k->d.in[0].rank - 1];
}

static inline double row_max(const REAL *x, int64_t n) {
  double largest = x[0];
  for (int64_t i = 1; i < n; i++)
    if (x[i] > largest || isnan(x[i])) largest = x[i];
  return largest;
}

/* Returns sum_i exp(x_i - largest) of a row, whose largest value is `largest`. */
static inline double sum_row_exps(const REAL *x, int64_t n, double largest) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - largest);
  return sum;
}

#endif
