/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the optimisers' loops over blocks of parameters with formulas for one value, to the bit,
 * at lengths that leave every remainder of the vector width.
 */
#include "kernels/steps/steps.h"
#include "tests/unit/cpu/cpu_test.h"

enum { N = 61 };

static void run_step(const clv_step_args *a, float *p, const float *g, float *const m[], size_t n) {
  clv_backend_cpu()->step(clv_backend_cpu(), a, p, g, m, &(clv_extent){0, n}, 1);
}

static double sum_squares(const float *x, size_t n) {
  double ret;
  clv_err err;
  assert_int_equal(
      clv_backend_cpu()->sum_squares(clv_backend_cpu(), x, &(clv_extent){0, n}, 1, &ret, &err),
      CLV_OK);
  return ret;
}

static void sgd_step_one_value(const clv_step_args *a, float *p, float g, float *m) {
  float d = g * a->grad_scale;
  if (a->weight_decay != 0) d = fmaf(a->weight_decay, *p, d);
  if (m) {
    *m = a->is_first_step ? d : a->momentum * *m + d;
    d = a->nesterov ? fmaf(a->momentum, *m, d) : *m;
  }
  *p = fmaf(-a->step_size, d, *p);
}

static void test_sgd_matches_the_scalar_formula(void **state) {
  (void)state;
  for (int variant = 0; variant < 16; variant++)
    for (size_t n = N - 8; n <= N; n++) {
      clv_step_args a = {.kind = CLV_OPTIM_SGD,
                         .step_size = 0.07f,
                         .grad_scale = 0.3f,
                         .momentum = 0.9f,
                         .weight_decay = variant & 1 ? 0.01f : 0,
                         .nesterov = variant & 2,
                         .is_first_step = variant & 4};
      bool has_moment = variant & 8;
      float p[N], g[N], m[N], q[N], w[N];
      draw_normal(p, N, 1);
      draw_normal(g, N, 2);
      draw_normal(m, N, 3);
      memcpy(q, p, sizeof q);
      memcpy(w, m, sizeof w);
      run_step(&a, p, g, (float *[]){has_moment ? m : NULL, NULL, NULL}, n);
      for (size_t i = 0; i < n; i++) sgd_step_one_value(&a, &q[i], g[i], has_moment ? &w[i] : NULL);
      assert_same_bits("sgd parameters", p, q, N);
      assert_same_bits("sgd momentum", m, w, N);
    }
}

static void adam_step_one_value(const clv_optim_config *c, int t, float scale, float *p, float g,
                                float *m, float *v) {
  float beta1 = (float)c->beta1, beta2 = (float)c->beta2, decay = (float)c->weight_decay;
  float one_minus_beta1 = (float)(round((1 - (double)beta1) * 1e7) / 1e7);
  float one_minus_beta2 = (float)(round((1 - (double)beta2) * 1e7) / 1e7);
  float bias_correction1 = (float)(1 - pow(c->beta1, t)),
        bias_correction2 = (float)sqrt(1 - pow(c->beta2, t));
  float d = g * scale;
  bool has_decoupled_decay = c->kind == CLV_OPTIM_ADAMW;
  if (decay != 0 && has_decoupled_decay) *p *= (float)(1 - (double)(float)c->lr * decay);
  if (decay != 0 && !has_decoupled_decay) d = fmaf(decay, *p, d);
  *m = fmaf(one_minus_beta1, d, beta1 * *m);
  *v = fmaf(one_minus_beta2 * d, d, beta2 * *v);
  *p -= (float)((double)(float)c->lr / bias_correction1) * *m /
        (sqrtf(*v) / bias_correction2 + (float)c->eps);
}

static void test_adam_matches_the_scalar_formula(void **state) {
  (void)state;
  for (int variant = 0; variant < 4; variant++)
    for (size_t n = N - 8; n <= N; n++) {
      clv_optim_config c = {.kind = variant & 2 ? CLV_OPTIM_ADAMW : CLV_OPTIM_ADAM,
                            .lr = 0.001,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-8,
                            .weight_decay = variant & 1 ? 0.01 : 0};
      float p[N], g[N], m[N], v[N], q[N], w[N], u[N];
      clv_step_args a;
      draw_normal(p, N, 1);
      draw_normal(g, N, 2);
      draw_normal(m, N, 3);
      draw_normal(v, N, 4);
      for (size_t i = 0; i < N; i++) v[i] = fabsf(v[i]);
      memcpy(q, p, sizeof q);
      memcpy(w, m, sizeof w);
      memcpy(u, v, sizeof u);
      clv_step_prepare(&c, 2, c.lr, 0.5, &a);
      run_step(&a, p, g, (float *[]){m, v, NULL}, n);
      for (size_t i = 0; i < n; i++) adam_step_one_value(&c, 2, 0.5f, &q[i], g[i], &w[i], &u[i]);
      assert_same_bits("adam parameters", p, q, N);
      assert_same_bits("adam m", m, w, N);
      assert_same_bits("adam v", v, u, N);
    }
}

/* Takes a step by the formula of the optimiser a->kind, one value at a time. CLV_OPTIMIZER is
 * expanded for each optimiser of optimizers.def. */
static void step_by_formula(const clv_step_args *a, float *p, const float *g, float *const m[],
                            size_t n) {
  for (size_t i = 0; i < n; i++) {
#define CLV_OPTIMIZER(NAME, name, ...) \
  if (a->kind == CLV_OPTIM_##NAME) clv_step_##name(a, i, p, g, m[0], m[1], m[2]);
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  }
}

/* Compares the loops of an optimiser with its formula for one value, bit by bit, over n values. */
static void check_against_formula(const clv_optim_config *c, size_t n) {
  float p[2][N], g[N], m[2][CLV_OPTIM_MAX_MOMENTS][N];
  draw_normal(g, N, 2);
  for (int b = 0; b < 2; b++) {
    float *moments[CLV_OPTIM_MAX_MOMENTS];
    clv_step_args a;
    clv_step_prepare(c, 3, c->lr, 0.5, &a);
    draw_normal(p[b], N, 1);
    for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) {
      draw_normal(m[b][i], N, (unsigned)(3 + i));
      for (size_t k = 0; k < N; k++)
        m[b][i][k] = fabsf(m[b][i][k]) * (i == 2 ? 0.01f : 1) + (i == 0);
      moments[i] = clv_optim_moment_mask(c) >> i & 1 ? m[b][i] : NULL;
    }
    (b ? run_step : step_by_formula)(&a, p[b], g, moments, n);
  }
  assert_same_bits("parameters", p[1], p[0], N);
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) assert_same_bits("moment", m[1][i], m[0][i], N);
}

static void test_every_optimizer_matches_its_scalar_formula(void **state) {
  (void)state;
  for (int kind = 0; kind < CLV_OPTIM_COUNT; kind++)
    for (int variant = 0; variant < 8; variant++)
      for (size_t n = N - 8; n <= N; n++) {
        clv_optim_config c = clv_optimizer_row_of((clv_optim_kind)kind)->defaults;
        c.kind = (clv_optim_kind)kind;
        c.lr = 0.01;
        c.weight_decay = variant & 1 ? 0.02 : 0;
        c.momentum = variant & 2 ? 0.9 : 0;
        c.centered = variant & 4;
        c.lr_decay = 0.1;
        check_against_formula(&c, n);
      }
}

static void test_sum_of_squares_adds_in_eight_lane_order(void **state) {
  (void)state;
  float x[N];
  draw_normal(x, N, 5);
  for (size_t n = 0; n <= N; n++) {
    double lane[8] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 8] += (double)x[i] * x[i];
    double want =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    assert_true(sum_squares(x, n) == want);
  }
  x[3] = NAN;
  assert_true(isnan(sum_squares(x, N)));
  x[3] = INFINITY;
  assert_true(isinf(sum_squares(x, N)));
}

static void test_add_accumulates_f32_and_f64(void **state) {
  (void)state;
  float a[N], b[N];
  double c[3] = {1, 2, 3}, d[3] = {10, 20, 30};
  draw_normal(a, N, 6);
  draw_normal(b, N, 7);
  float want = a[N - 1] + b[N - 1];
  clv_backend_cpu()->add(clv_backend_cpu(), CLV_F32, a, b, N);
  assert_true(a[N - 1] == want);
  clv_backend_cpu()->add(clv_backend_cpu(), CLV_F64, c, d, 3);
  assert_true(c[0] == 11 && c[1] == 22 && c[2] == 33);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sgd_matches_the_scalar_formula),
      cmocka_unit_test(test_adam_matches_the_scalar_formula),
      cmocka_unit_test(test_every_optimizer_matches_its_scalar_formula),
      cmocka_unit_test(test_sum_of_squares_adds_in_eight_lane_order),
      cmocka_unit_test(test_add_accumulates_f32_and_f64),
  };
  return cmocka_run_group_tests_name("cpu optim", tests, NULL, NULL);
}
