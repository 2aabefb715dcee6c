/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops over parameter blocks against the one-value formulas, to the bit, at lengths that leave
 * every remainder.
 */
#include "tests/unit/cpu/cpu_test.h"

enum { N = 61 };

static void sgd_one(const clv_sgd_args *a, float *p, float g, float *m) {
  float d = g * a->grad_scale;
  if (a->weight_decay != 0) d = fmaf(a->weight_decay, *p, d);
  if (m) {
    *m = a->first ? d : a->momentum * *m + d;
    d = a->nesterov ? fmaf(a->momentum, *m, d) : *m;
  }
  *p = fmaf(-a->lr, d, *p);
}

static void test_sgd(void **state) {
  (void)state;
  for (int variant = 0; variant < 16; variant++)
    for (size_t n = N - 8; n <= N; n++) {
      clv_sgd_args a = {.lr = 0.07f,
                        .grad_scale = 0.3f,
                        .momentum = 0.9f,
                        .weight_decay = variant & 1 ? 0.01f : 0,
                        .nesterov = variant & 2,
                        .first = variant & 4};
      bool moment = variant & 8;
      float p[N], g[N], m[N], q[N], w[N];
      draw(p, N, 1);
      draw(g, N, 2);
      draw(m, N, 3);
      memcpy(q, p, sizeof q);
      memcpy(w, m, sizeof w);
      clv_backend_cpu()->sgd(&a, p, g, moment ? m : NULL, n);
      for (size_t i = 0; i < n; i++) sgd_one(&a, &q[i], g[i], moment ? &w[i] : NULL);
      assert_same_bits("sgd parameters", p, q, N);
      assert_same_bits("sgd momentum", m, w, N);
    }
}

static void adam_one(const clv_adam_args *a, float *p, float g, float *m, float *v) {
  float rest1 = (float)(round((1 - (double)a->beta1) * 1e7) / 1e7);
  float rest2 = (float)(round((1 - (double)a->beta2) * 1e7) / 1e7);
  float d = g * a->grad_scale;
  if (a->weight_decay != 0 && a->decoupled) *p *= (float)(1 - (double)a->lr * a->weight_decay);
  if (a->weight_decay != 0 && !a->decoupled) d = fmaf(a->weight_decay, *p, d);
  *m = fmaf(rest1, d, a->beta1 * *m);
  *v = fmaf(rest2 * d, d, a->beta2 * *v);
  *p -= (float)((double)a->lr / a->bias1) * *m / (sqrtf(*v) / a->bias2_sqrt + a->eps);
}

static void test_adam(void **state) {
  (void)state;
  for (int variant = 0; variant < 4; variant++)
    for (size_t n = N - 8; n <= N; n++) {
      clv_adam_args a = {.lr = 0.001f,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .eps = 1e-8f,
                         .weight_decay = variant & 1 ? 0.01f : 0,
                         .grad_scale = 0.5f,
                         .bias1 = 0.19f,
                         .bias2_sqrt = 0.0447f,
                         .decoupled = variant & 2};
      float p[N], g[N], m[N], v[N], q[N], w[N], u[N];
      draw(p, N, 1);
      draw(g, N, 2);
      draw(m, N, 3);
      draw(v, N, 4);
      for (size_t i = 0; i < N; i++) v[i] = fabsf(v[i]);
      memcpy(q, p, sizeof q);
      memcpy(w, m, sizeof w);
      memcpy(u, v, sizeof u);
      clv_backend_cpu()->adam(&a, p, g, m, v, n);
      for (size_t i = 0; i < n; i++) adam_one(&a, &q[i], g[i], &w[i], &u[i]);
      assert_same_bits("adam parameters", p, q, N);
      assert_same_bits("adam m", m, w, N);
      assert_same_bits("adam v", v, u, N);
    }
}

static void test_sum_squares(void **state) {
  (void)state;
  float x[N];
  draw(x, N, 5);
  for (size_t n = 0; n <= N; n++) {
    double lane[8] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 8] += (double)x[i] * x[i];
    double want =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    assert_true(clv_backend_cpu()->sum_squares(x, n) == want);
  }
  x[3] = NAN;
  assert_true(isnan(clv_backend_cpu()->sum_squares(x, N)));
  x[3] = INFINITY;
  assert_true(isinf(clv_backend_cpu()->sum_squares(x, N)));
}

static void test_add(void **state) {
  (void)state;
  float a[N], b[N];
  double c[3] = {1, 2, 3}, d[3] = {10, 20, 30};
  draw(a, N, 6);
  draw(b, N, 7);
  float want = a[N - 1] + b[N - 1];
  clv_backend_cpu()->add(CLV_F32, a, b, N);
  assert_true(a[N - 1] == want);
  clv_backend_cpu()->add(CLV_F64, c, d, 3);
  assert_true(c[0] == 11 && c[1] == 22 && c[2] == 33);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sgd),
      cmocka_unit_test(test_adam),
      cmocka_unit_test(test_sum_squares),
      cmocka_unit_test(test_add),
  };
  return cmocka_run_group_tests_name("cpu optim", tests, NULL, NULL);
}
