/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares learning-rate schedules and the clipping factor with torch.optim.lr_scheduler and
 * torch.nn.utils.clip_grad_norm_ (tests/golden/make_golden.py).
 */
#include "common/model/optim/optim.h"
#include "tests/golden/golden_int.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

static golden numbers;

static void test_learning_rates_match_torch(void **state) {
  static const struct {
    const char *name;
    clv_lr_schedule schedule;
  } curves[] = {
      {"step", {.curve = CLV_LR_CURVE_STEP, .step_size = 7, .gamma = 0.3}},
      {"cosine", {.curve = CLV_LR_CURVE_COSINE, .total_steps = 25}},
      {"linear", {.curve = CLV_LR_CURVE_LINEAR, .total_steps = 25}},
      {"warm", {.curve = CLV_LR_CURVE_CONSTANT, .warmup_steps = 5}},
      {"warm_step", {.curve = CLV_LR_CURVE_STEP, .warmup_steps = 5, .step_size = 4, .gamma = 0.5}},
      {"warm_cosine", {.curve = CLV_LR_CURVE_COSINE, .warmup_steps = 5, .total_steps = 25}},
      {"zero_linear",
       {.curve = CLV_LR_CURVE_LINEAR,
        .warmup_steps = 5,
        .total_steps = 25,
        .starts_at_zero = true}},
      {"zero_cosine",
       {.curve = CLV_LR_CURVE_COSINE,
        .warmup_steps = 5,
        .total_steps = 25,
        .starts_at_zero = true}},
  };
  (void)state;
  for (size_t c = 0; c < CLV_COUNT(curves); c++) {
    golden_tensor t;
    assert_true(golden_find_tensor(&numbers, "lr", curves[c].name, &t));
    for (size_t i = 0; i < t.n; i++) {
      double want = ((const double *)t.data)[i], got = clv_lr_at(&curves[c].schedule, 0.05, i);
      if (!(fabs(got - want) <= 1e-12))
        fail_msg("%s at step %zu is %.15g, torch has %.15g", curves[c].name, i, got, want);
    }
  }
}

static void test_degenerate_schedules_give_their_expected_rates(void **state) {
  const clv_lr_schedule constant = {0}, without_end = {.curve = CLV_LR_CURVE_COSINE};
  const clv_lr_schedule cosine = {.curve = CLV_LR_CURVE_COSINE, .total_steps = 10};
  const clv_lr_schedule only_warm_up = {
      .curve = CLV_LR_CURVE_LINEAR, .warmup_steps = 10, .total_steps = 10};
  const clv_lr_schedule without_step_size = {.curve = CLV_LR_CURVE_STEP, .gamma = 0.1};
  (void)state;
  assert_true(clv_lr_at(&constant, 0.25, UINT64_MAX) == 0.25);
  assert_true(clv_lr_at(&without_end, 0.25, 1000) == 0.25);
  assert_true(clv_lr_at(&cosine, 0.25, 0) == 0.25);
  assert_true(clv_lr_at(&cosine, 0.25, 10) == 0);
  assert_true(clv_lr_at(&cosine, 0.25, 15) == 0);
  assert_true(clv_lr_at(&only_warm_up, 0.25, 9) == 0.25);
  assert_true(clv_lr_at(&only_warm_up, 0.25, 10) == 0);
  assert_true(clv_lr_at(&without_step_size, 0.25, 1000) == 0.25);
}

static void test_clip_scale_matches_torch(void **state) {
  static const char *const names[] = {"clip.cut", "clip.pass"};
  (void)state;
  for (size_t c = 0; c < CLV_COUNT(names); c++) {
    golden_tensor grads, max_norm, norm, clipped;
    double sum = 0;
    assert_true(golden_find_tensor(&numbers, names[c], "grads", &grads) &&
                golden_find_tensor(&numbers, names[c], "max_norm", &max_norm) &&
                golden_find_tensor(&numbers, names[c], "norm", &norm) &&
                golden_find_tensor(&numbers, names[c], "after", &clipped));
    const float *g = grads.data, *want = clipped.data;
    for (size_t i = 0; i < grads.n; i++) sum += (double)g[i] * g[i];
    assert_true(fabs(sqrt(sum) / *(const double *)norm.data - 1) < 1e-6);
    double scale = clv_clip_scale(sum, *(const double *)max_norm.data);
    for (size_t i = 0; i < grads.n; i++) assert_true(fabs(g[i] * scale - want[i]) < 1e-6);
    assert_true(c == 0 ? scale < 0.5 : scale == 1);
  }
  assert_true(clv_clip_scale(4, 1) == 1 / (2 + 1e-6));
  assert_true(clv_clip_scale(1e30, 0) == 1);
  assert_true(clv_clip_scale(0, 1) == 1);
  assert_true(isnan(clv_clip_scale(NAN, 1)));
  assert_true(clv_clip_scale(INFINITY, 1) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_learning_rates_match_torch),
      cmocka_unit_test(test_degenerate_schedules_give_their_expected_rates),
      cmocka_unit_test(test_clip_scale_matches_torch),
  };
  golden_open(&numbers, "optim");
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  golden_close(&numbers);
  return failed;
}
