/* SPDX-License-Identifier: Apache-2.0
 *
 * axis_int: ops along one dimension, seen as [outer, extent, inner].
 */
#ifndef CLEAVE_OPS_AXIS_INT_H
#define CLEAVE_OPS_AXIS_INT_H

#include "kernels/ops/op_int.h"

static inline clv_code axis_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                  clv_err *err) {
  int axis;
  CLV_TRY(clv_find_axis(op, s, &axis, err));
  return clv_shape_of_input(s, ret, err);
}

/* Computes y[e] = x[(first + step * e) mod extent] along the op's dimension, where step is 1 or -1.
 */
static inline void reorder_along_axis(const clv_ref_kernel *k, int64_t first, int64_t step,
                                      const REAL *x, REAL *y) {
  clv_axis s = clv_axis_extents(&k->d.attrs, &k->d.in[0]);
  int64_t extent = (int64_t)s.extent;
  for (size_t i = 0; i < k->n_in; i++) {
    int64_t e = (int64_t)(i / s.inner % s.extent), source = (first + step * e) % extent;
    source += source < 0 ? extent : 0;
    y[i] = x[(i / s.inner / s.extent * s.extent + (size_t)source) * s.inner + i % s.inner];
  }
}

#endif
