/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimiser steps, in the order of operations and roundings of torch.optim's single-tensor loops:
 * every value is rounded to f32 where torch stores a tensor, factors that torch computes in Python
 * are computed in double and rounded once, and a product that torch's kernels add with a fused
 * multiply-add is added with one here.
 */
#include "kernels/ref/ref_int.h"

#include <math.h>

void clv_ref_sgd(const clv_sgd_args *a, float *p, const float *g, float *m, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float d = g[i] * a->grad_scale;
    if (a->weight_decay != 0) d = fmaf(a->weight_decay, p[i], d);
    if (m) {
      m[i] = a->first ? d : a->momentum * m[i] + d;
      d = a->nesterov ? fmaf(a->momentum, m[i], d) : m[i];
    }
    p[i] = fmaf(-a->lr, d, p[i]);
  }
}

/* 1 - beta for a beta of at most 7 decimals, as if beta had never been rounded to f32: 1 - 0.999f
 * is 1.3e-5 off 0.001, and every second moment would be too. */
static float rest_of(double beta) { return (float)(round((1 - beta) * 1e7) / 1e7); }

void clv_ref_adam(const clv_adam_args *a, float *p, const float *g, float *m, float *v, size_t n) {
  float rest1 = rest_of(a->beta1), rest2 = rest_of(a->beta2);
  float shrink = (float)(1 - (double)a->lr * a->weight_decay);
  float step = (float)((double)a->lr / a->bias1);
  for (size_t i = 0; i < n; i++) {
    float d = g[i] * a->grad_scale;
    if (a->weight_decay != 0) {
      if (a->decoupled)
        p[i] *= shrink;
      else
        d = fmaf(a->weight_decay, p[i], d);
    }
    m[i] = fmaf(rest1, d, a->beta1 * m[i]);
    v[i] = fmaf(rest2 * d, d, a->beta2 * v[i]);
    float denominator = sqrtf(v[i]) / a->bias2_sqrt + a->eps;
    p[i] = p[i] - step * m[i] / denominator;
  }
}
