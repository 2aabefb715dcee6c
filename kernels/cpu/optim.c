/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops over whole parameter blocks: the formulas and roundings of ref's, eight values at a time
 * where the processor has AVX2 and fused multiply-add. Without them fmaf gives the same bits,
 * slowly.
 */
#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/cpu_int.h"

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

CPU_INLINE void square_lanes_body(const float *x, size_t n, double *lane) {
  size_t i = 0;
  double sum[8] = {0};
  for (; i + 8 <= n; i += 8)
    for (size_t j = 0; j < 8; j++) sum[j] += (double)x[i + j] * x[i + j];
  for (; i < n; i++) sum[i % 8] += (double)x[i] * x[i];
  for (size_t j = 0; j < 8; j++) lane[j] = sum[j];
}

CPU_CLONES(square_lanes, (const float *x, size_t n, double *lane), (x, n, lane))

double clv_cpu_sum_squares(const float *x, size_t n) {
  double lane[8];
  square_lanes(x, n, lane);
  for (int width = 4; width; width /= 2)
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  return lane[0];
}

static bool has_fma(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#define FMA_CLONE __attribute__((target("avx2,fma")))

/* ---- SGD ------------------------------------------------------------------------------------- */

static void sgd_scalar(const clv_sgd_args *a, float *p, const float *g, float *m, size_t n) {
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

FMA_CLONE static size_t sgd_wide(const clv_sgd_args *a, float *p, const float *g, float *m,
                                 size_t n) {
  __m256 scale = _mm256_set1_ps(a->grad_scale), decay = _mm256_set1_ps(a->weight_decay);
  __m256 momentum = _mm256_set1_ps(a->momentum), lr = _mm256_set1_ps(-a->lr);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 w = _mm256_loadu_ps(p + i), d = _mm256_mul_ps(_mm256_loadu_ps(g + i), scale);
    if (a->weight_decay != 0) d = _mm256_fmadd_ps(decay, w, d);
    if (m) {
      __m256 v = d;
      if (!a->first) v = _mm256_add_ps(_mm256_mul_ps(momentum, _mm256_loadu_ps(m + i)), d);
      _mm256_storeu_ps(m + i, v);
      d = a->nesterov ? _mm256_fmadd_ps(momentum, v, d) : v;
    }
    _mm256_storeu_ps(p + i, _mm256_fmadd_ps(lr, d, w));
  }
  return i;
}

void clv_cpu_sgd(const clv_sgd_args *a, float *p, const float *g, float *m, size_t n) {
  size_t i = has_fma() ? sgd_wide(a, p, g, m, n) : 0;
  sgd_scalar(a, p + i, g + i, m ? m + i : NULL, n - i);
}

/* ---- Adam, AdamW ----------------------------------------------------------------------------- */

typedef struct adam_factors {
  float rest1, rest2, shrink, step;
} adam_factors;

/* 1 - beta as if beta had never been rounded to f32, as ref. */
static float rest_of(double beta) { return (float)(round((1 - beta) * 1e7) / 1e7); }

static void adam_scalar(const clv_adam_args *a, const adam_factors *f, float *p, const float *g,
                        float *m, float *v, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float d = g[i] * a->grad_scale;
    if (a->weight_decay != 0) {
      if (a->decoupled)
        p[i] *= f->shrink;
      else
        d = fmaf(a->weight_decay, p[i], d);
    }
    m[i] = fmaf(f->rest1, d, a->beta1 * m[i]);
    v[i] = fmaf(f->rest2 * d, d, a->beta2 * v[i]);
    float denominator = sqrtf(v[i]) / a->bias2_sqrt + a->eps;
    p[i] = p[i] - f->step * m[i] / denominator;
  }
}

FMA_CLONE static size_t adam_wide(const clv_adam_args *a, const adam_factors *f, float *p,
                                  const float *g, float *m, float *v, size_t n) {
  __m256 scale = _mm256_set1_ps(a->grad_scale), decay = _mm256_set1_ps(a->weight_decay);
  __m256 rest1 = _mm256_set1_ps(f->rest1), rest2 = _mm256_set1_ps(f->rest2);
  __m256 beta1 = _mm256_set1_ps(a->beta1), beta2 = _mm256_set1_ps(a->beta2);
  __m256 shrink = _mm256_set1_ps(f->shrink), step = _mm256_set1_ps(f->step);
  __m256 bias2 = _mm256_set1_ps(a->bias2_sqrt), eps = _mm256_set1_ps(a->eps);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 w = _mm256_loadu_ps(p + i), d = _mm256_mul_ps(_mm256_loadu_ps(g + i), scale);
    if (a->weight_decay != 0) {
      if (a->decoupled)
        w = _mm256_mul_ps(w, shrink);
      else
        d = _mm256_fmadd_ps(decay, w, d);
    }
    __m256 m1 = _mm256_fmadd_ps(rest1, d, _mm256_mul_ps(beta1, _mm256_loadu_ps(m + i)));
    __m256 v1 =
        _mm256_fmadd_ps(_mm256_mul_ps(rest2, d), d, _mm256_mul_ps(beta2, _mm256_loadu_ps(v + i)));
    __m256 denominator = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(v1), bias2), eps);
    _mm256_storeu_ps(m + i, m1);
    _mm256_storeu_ps(v + i, v1);
    _mm256_storeu_ps(p + i, _mm256_sub_ps(w, _mm256_div_ps(_mm256_mul_ps(step, m1), denominator)));
  }
  return i;
}

void clv_cpu_adam(const clv_adam_args *a, float *p, const float *g, float *m, float *v, size_t n) {
  adam_factors f = {rest_of(a->beta1), rest_of(a->beta2),
                    (float)(1 - (double)a->lr * a->weight_decay),
                    (float)((double)a->lr / a->bias1)};
  size_t i = has_fma() ? adam_wide(a, &f, p, g, m, v, n) : 0;
  adam_scalar(a, &f, p + i, g + i, m + i, v + i, n - i);
}
