/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares scores of small inputs with values computed by hand. tests/net/training/test_places.py
 * compares scores of many classes and positions with NumPy.
 */
#include <math.h>

#include "master/score/score.h"
#include "tests/unit/scratch.h"

enum { ALL = CLV_SCORE_F1 | CLV_SCORE_AUC | CLV_SCORE_CONFUSION | CLV_SCORE_PERPLEXITY };

static clv_err err;

static clv_scores finish_score(clv_score *s) {
  clv_scores r;
  assert_ok(clv_score_finish(s, &r, &err), &err);
  return r;
}

#define NEAR(a, b) assert_true(fabs((a) - (b)) < 1e-12)

/* The predictions are 0, 1, 1, 2, 0 for the labels 0, 1, 0, 2, 2. One position is ignored. */
static void three_class_scores_match_hand_computation(void **state) {
  static const float x[] = {2, 1, 0, 0, 3, 1, 0, 1, 0, 0, 0, 5, 1, 0, 0, 9, 0, 0};
  static const int64_t y[] = {0, 1, 0, 2, 2, -100};
  static const uint64_t confusion[] = {1, 1, 0, 0, 1, 0, 1, 0, 1};
  clv_score_options o = {.wanted = ALL, .classes = 3, .has_ignored = true, .ignored_label = -100};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  (void)state;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  for (int again = 0; again < 2; again++) {
    clv_score_reset(s);
    assert_ok(clv_score_add(s, x, y, 2, &err), &err);
    assert_ok(clv_score_add(s, x + 6, y + 2, 4, &err), &err);
    CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
    assert_int_equal(r.places, 5);
    NEAR(r.accuracy, 0.6);
    NEAR(r.f1_micro, 0.6);
    NEAR(r.classes[0].f1, 0.5);
    NEAR(r.classes[1].precision, 0.5);
    NEAR(r.classes[1].recall, 1);
    NEAR(r.classes[2].f1, 2.0 / 3);
    NEAR(r.f1_macro, (0.5 + 2.0 / 3 + 2.0 / 3) / 3);
    assert_memory_equal(r.confusion, confusion, sizeof confusion);
    /* for class 0, its own positions have the scores 0.67 and 0.21, the others 0.04, 0.01 and 0.58
 */
    NEAR(r.classes[0].auc, 5.0 / 6);
    NEAR(r.classes[1].auc, 1);
  }
}

/* Records with equal scores count half in the AUC. */
static void binary_scores_match_hand_computation(void **state) {
  static const float p[] = {0.9f, 0.4f, 0.4f, 0.6f};
  static const int64_t y[] = {1, 1, 0, 0};
  clv_score_options o = {.wanted = ALL, .outputs = CLV_SCORE_PROBABILITY, .classes = 2};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  (void)state;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  assert_ok(clv_score_add(s, p, y, 4, &err), &err);
  CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
  NEAR(r.auc, 2.5 / 4);
  NEAR(r.accuracy, 0.5);
  double sum = log((double)p[0]) + log((double)p[1]) + log1p(-(double)p[2]) + log1p(-(double)p[3]);
  NEAR(r.perplexity, exp(-sum / 4));
}

static void absent_classes_are_left_out_of_averages(void **state) {
  static const float x[] = {1, 0, 0, 0, 5, 0, 0, 0};
  static const int64_t y[] = {0, 0};
  clv_score_options o = {.wanted = ALL, .classes = 4};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0}, json = {0}, table = {0};
  (void)state;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  assert_ok(clv_score_add(s, x, y, 2, &err), &err);
  CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
  NEAR(r.f1_macro, 1);
  assert_true(isnan(r.auc));
  clv_scores_line(&r, &line);
  assert_non_null(strstr(line.data, "F1 micro 1.0000, macro 1.0000, AUC not defined"));
  clv_scores_json(&r, NULL, NULL, &json);
  assert_non_null(strstr(json.data, "\"auc\":null"));
  assert_non_null(strstr(json.data, "\"confusion\":[[2,0,0,0],[0,0,0,0],"));
  clv_scores_table(&r, NULL, NULL, &table);
  assert_null(strstr(table.data, "\n     1  1 "));
}

static void invalid_options_and_labels_are_refused(void **state) {
  clv_score_options o = {.wanted = ALL, .classes = 1};
  clv_score *s = NULL;
  static const float x[2] = {0};
  (void)state;
  assert_int_equal(clv_score_new(&o, &s, &err), CLV_INVALID);
  o.classes = CLV_SCORE_MAX_CONFUSION + 1;
  assert_int_equal(clv_score_new(&o, &s, &err), CLV_INVALID);
  o.classes = 2;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  assert_int_equal(clv_score_add(s, x, &(int64_t){2}, 1, &err), CLV_INVALID);
  assert_int_equal(clv_score_add(s, x, &(int64_t){-100}, 1, &err), CLV_INVALID);
  clv_score_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(three_class_scores_match_hand_computation),
      cmocka_unit_test(binary_scores_match_hand_computation),
      cmocka_unit_test(absent_classes_are_left_out_of_averages),
      cmocka_unit_test(invalid_options_and_labels_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
