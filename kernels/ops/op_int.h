/* SPDX-License-Identifier: Apache-2.0
 *
 * op_int: macros and functions for the files that define ops. ops.h says how these files are
 * compiled.
 */
#ifndef CLEAVE_OPS_OP_INT_H
#define CLEAVE_OPS_OP_INT_H

#include <math.h>
#include <string.h>

#include "kernels/ops/ops.h"

#ifndef REAL
#error "this op has no line in kernels/ops.def"
#endif

#define OP_CAT_(a, b) a##b
#define OP_CAT(a, b) OP_CAT_(a, b)

/* CLV_OP_ROW(name) = {...} defines the row of the op `name`, which must be listed in
 * kernels/ops.def. */
#define OP_SUFFIX_float _f32
#define OP_SUFFIX_double _f64
#define OP_ROW_NAME(name) OP_CAT(clv_op_row_##name, OP_CAT(OP_SUFFIX_, REAL))
#define CLV_OP_ROW(name)                                       \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0"); \
  extern const clv_op_def OP_ROW_NAME(name);                   \
  const clv_op_def OP_ROW_NAME(name)

/* MATH(exp)(x) calls expf if REAL is float, exp if REAL is double. */
#define OP_MATH_float(function) function##f
#define OP_MATH_double(function) function
#define MATH(function) OP_CAT(OP_MATH_, REAL)(function)

enum { SAVE_BOTH_INPUTS = CLV_SAVE_IN0 | CLV_SAVE_IN1 };

static inline void store_or_add(REAL *dst, double value, bool accumulate) {
  *dst = accumulate ? *dst + (REAL)value : (REAL)value;
}

/* ---- attributes of several ops --------------------------------------------------------------- */

#define OUT_ATTR \
  { .key = CLV_ATTR_OUT, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX }
#define INIT_STD_ATTR \
  { .key = CLV_ATTR_INIT_STD, .low = 0, .high = 10 }
#define BIAS_ATTR \
  { .key = CLV_ATTR_BIAS, .default_value = 1, .low = 0, .high = 1 }
#define INIT_ZERO_ATTR \
  { .key = CLV_ATTR_INIT_ZERO, .low = 0, .high = 1 }
#define EPS_ATTR \
  { .key = CLV_ATTR_EPS, .default_value = 1e-5, .low = 1e-30, .high = 1 }
#define PACKED_ATTR \
  { .key = CLV_ATTR_PACKED, .low = 0, .high = CLV_EXTENT_MAX }
#define DIM_ATTR(...) \
  { .key = CLV_ATTR_DIM, .low = -CLV_MAX_RANK, .high = CLV_MAX_RANK - 1, __VA_ARGS__ }

#endif
