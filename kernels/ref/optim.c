/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimiser steps: a plain loop over each formula of kernels/steps.
 */
#include "kernels/ref/ref_int.h"
#include "kernels/steps/steps.h"

#define CLV_OPTIMIZER(NAME, name, ...)                                                           \
  static void name(const clv_step_args *a, float *p, const float *g, float *const m[],           \
                   const clv_extent *r) {                                                        \
    for (size_t i = r->at; i < r->at + r->n; i++) clv_step_##name(a, i, p, g, m[0], m[1], m[2]); \
  }
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER

void clv_ref_step(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                  float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
                  size_t n_ranges) {
  static void (*const steps[])(const clv_step_args *, float *, const float *, float *const[],
                               const clv_extent *) = {
#define CLV_OPTIMIZER(NAME, name, ...) [CLV_OPTIM_##NAME] = name,
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  };
  (void)b;
  for (size_t i = 0; i < n_ranges; i++) steps[a->kind](a, p, g, moments, &ranges[i]);
}
