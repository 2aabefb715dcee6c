/* SPDX-License-Identifier: Apache-2.0
 *
 * steps: the formula of each optimiser of common/base/settings for one value, and the numbers that
 * all values of a step have in common. A backend calls clv_step_prepare once a step and loops over
 * the formulas clv_step_NAME.
 *
 * Operations and roundings are in the order of torch.optim's single-tensor loops. A value is
 * rounded to f32 where torch stores a tensor. Factors that torch computes in Python are computed in
 * double and rounded once. A product that torch's kernels add with a fused multiply-add is added
 * with one here. Each formula updates value i of p (parameters) and of the moments m0, m1, m2 from
 * g[i].
 */
#ifndef CLEAVE_STEPS_H
#define CLEAVE_STEPS_H

#include "kernels/kernels.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the numbers of step number `step`, counted from 1, at learning rate lr. `settings` must
 * have passed clv_optim_check. */
void clv_step_prepare(const clv_optim_config *settings, int64_t step, double lr, double grad_scale,
                      clv_step_args *ret);

/* The formulas are compiled for devices, too, as C++. */
#ifdef __CUDACC__
#define CLV_STEP_INLINE static __device__ inline
#else
#define CLV_STEP_INLINE static inline __attribute__((always_inline))
#endif
#define CLV_STEP_FORMULA(name)                                                                     \
  CLV_STEP_INLINE void clv_step_##name(const clv_step_args *a, size_t i, float *__restrict p,      \
                                       const float *__restrict g, CLV_UNUSED float *__restrict m0, \
                                       CLV_UNUSED float *__restrict m1,                            \
                                       CLV_UNUSED float *__restrict m2)
#define CLV_UNUSED __attribute__((unused))

/* Returns the scaled gradient, plus weight decay for optimisers that add it to the gradient. */
CLV_STEP_INLINE float clv_step_gradient(const clv_step_args *a, float p, float g) {
  float d = g * a->grad_scale;
  return a->weight_decay != 0 ? fmaf(a->weight_decay, p, d) : d;
}

CLV_STEP_FORMULA(sgd) {
  float d = clv_step_gradient(a, p[i], g[i]);
  if (m0) {
    m0[i] = a->is_first_step ? d : a->momentum * m0[i] + d;
    d = a->nesterov ? fmaf(a->momentum, m0[i], d) : m0[i];
  }
  p[i] = fmaf(-a->step_size, d, p[i]);
}

/* Updates the averages *m (of gradients) and *v (of their squares) from the gradient d, and returns
 * the new parameter, for Adam and AdamW. */
CLV_STEP_INLINE float clv_step_update_averages(const clv_step_args *a, float p, float d, float *m,
                                               float *v) {
  *m = fmaf(a->one_minus_decay[0], d, a->decay[0] * *m);
  *v = fmaf(a->one_minus_decay[1] * d, d, a->decay[1] * *v);
  return p - a->step_size * *m / (sqrtf(*v) / a->bias2_sqrt + a->eps);
}

CLV_STEP_FORMULA(adam) {
  p[i] = clv_step_update_averages(a, p[i], clv_step_gradient(a, p[i], g[i]), &m0[i], &m1[i]);
}

CLV_STEP_FORMULA(adamw) {
  float decayed_p = a->weight_decay != 0 ? p[i] * a->weight_factor : p[i];
  p[i] = clv_step_update_averages(a, decayed_p, g[i] * a->grad_scale, &m0[i], &m1[i]);
}

CLV_STEP_FORMULA(adagrad) {
  float d = clv_step_gradient(a, p[i], g[i]);
  m0[i] = fmaf(d, d, m0[i]);
  p[i] = p[i] - a->step_size * d / (sqrtf(m0[i]) + a->eps);
}

CLV_STEP_FORMULA(rmsprop) {
  float d = clv_step_gradient(a, p[i], g[i]), mean_square;
  m0[i] = fmaf(a->one_minus_decay[0] * d, d, a->decay[0] * m0[i]);
  mean_square = m0[i];
  if (m2) {
    m2[i] = fmaf(a->one_minus_decay[0], d, a->decay[0] * m2[i]);
    mean_square = fmaf(-m2[i], m2[i], mean_square);
  }
  float denominator = sqrtf(mean_square) + a->eps;
  if (m1) {
    m1[i] = a->momentum * m1[i] + d / denominator;
    p[i] = fmaf(-a->step_size, m1[i], p[i]);
  } else {
    p[i] = p[i] - a->step_size * d / denominator;
  }
}

CLV_STEP_FORMULA(adamax) {
  float d = clv_step_gradient(a, p[i], g[i]);
  float decayed_max = a->decay[1] * m1[i], magnitude = fabsf(d) + a->eps;
  m0[i] = fmaf(a->one_minus_decay[0], d, a->decay[0] * m0[i]);
  m1[i] = decayed_max > magnitude ? decayed_max : magnitude;
  p[i] = p[i] - a->step_size * m0[i] / m1[i];
}

#ifdef __cplusplus
}
#endif
#endif
