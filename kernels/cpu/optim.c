/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops over whole parameter blocks, with the formulas and roundings of the reference backend
 * (kernels/ref). The optimiser's steps compute eight values at a time if the processor has AVX2 and
 * fused multiply-add. Otherwise fmaf gives the same bits, slowly.
 */
#include "kernels/cpu/cpu_int.h"
#include "kernels/steps/steps.h"

CPU_INLINE void add_f32_body(float *dst, const float *src, size_t n) {
  for (size_t i = 0; i < n; i++) dst[i] += src[i];
}

CPU_CLONES(add_f32, (float *restrict dst, const float *restrict src, size_t n), (dst, src, n))

void clv_cpu_add_to(clv_dtype dtype, void *dst, const void *src, size_t n) {
  if (dtype == CLV_F32) {
    add_f32(dst, src, n);
    return;
  }
  for (size_t i = 0; i < n; i++) ((double *)dst)[i] += ((const double *)src)[i];
}

CPU_INLINE void sum_squares_in_lanes_body(const float *x, size_t n, double *lane_sums) {
  size_t i = 0;
  double sum[8] = {0};
  for (; i + 8 <= n; i += 8)
    for (size_t j = 0; j < 8; j++) sum[j] += (double)x[i + j] * x[i + j];
  for (; i < n; i++) sum[i % 8] += (double)x[i] * x[i];
  for (size_t j = 0; j < 8; j++) lane_sums[j] = sum[j];
}

CPU_CLONES(sum_squares_in_lanes, (const float *x, size_t n, double *lane_sums), (x, n, lane_sums))

static double sum_of_squares(const float *x, size_t n) {
  double lane_sums[8];
  sum_squares_in_lanes(x, n, lane_sums);
  for (int width = 4; width; width /= 2)
    for (int i = 0; i < width; i++) lane_sums[i] += lane_sums[i + width];
  return lane_sums[0];
}

clv_code clv_cpu_sum_squares(const clv_backend *b, const float *x, const clv_extent *ranges,
                             size_t n_ranges, double *ret, clv_err *err) {
  (void)b, (void)err;
  for (size_t i = 0; i < n_ranges; i++) ret[i] = sum_of_squares(x + ranges[i].at, ranges[i].n);
  return CLV_OK;
}

/* ---- optimiser steps ------------------------------------------------------------------------- */

/* FORMULA_LOOP is the loop over a formula of kernels/steps. The step's numbers are copied, so that
 * the compiler knows that no store changes them. FORMULA_LOOPS chooses a loop in which a moment
 * that the optimiser does not have is the constant NULL, so that the loop has no branches. */
#define FORMULA_LOOP(name, m1, m2)                                           \
  {                                                                          \
    const clv_step_args k = *a;                                              \
    CPU_INDEPENDENT                                                          \
    for (size_t i = 0; i < n; i++) clv_step_##name(&k, i, p, g, m0, m1, m2); \
  }
#define FORMULA_LOOPS(name)      \
  if (m1 && m2)                  \
    FORMULA_LOOP(name, m1, m2)   \
  else if (m1)                   \
    FORMULA_LOOP(name, m1, NULL) \
  else if (m2)                   \
    FORMULA_LOOP(name, NULL, m2) \
  else                           \
    FORMULA_LOOP(name, NULL, NULL)
#define STEP_PARAMS                                                                        \
  (const clv_step_args *a, float *restrict p, const float *restrict g, float *restrict m0, \
   float *restrict m1, float *restrict m2, size_t n)
#define CLV_OPTIMIZER(NAME, name, ...)                                                            \
  __attribute__((target("avx2,fma"))) static void name##_wide STEP_PARAMS { FORMULA_LOOPS(name) } \
  static void name##_plain STEP_PARAMS { FORMULA_LOOPS(name) }
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER

typedef void step_fn STEP_PARAMS;

static float *moment_at(float *moment, const clv_extent *r) {
  return moment ? moment + r->at : NULL;
}

void clv_cpu_step(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                  float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
                  size_t n_ranges) {
  static step_fn *const step_fns[][2] = {
#define CLV_OPTIMIZER(NAME, name, ...) [CLV_OPTIM_##NAME] = {name##_plain, name##_wide},
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  };
  (void)b;
  bool has_avx2_and_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  for (const clv_extent *r = ranges; r < ranges + n_ranges; r++)
    step_fns[a->kind][has_avx2_and_fma](a, p + r->at, g + r->at, moment_at(moments[0], r),
                                        moment_at(moments[1], r), moment_at(moments[2], r), r->n);
}
