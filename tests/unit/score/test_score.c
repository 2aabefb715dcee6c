/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares scores of small inputs with values computed by hand, and with those of scikit-learn
 * (tests/golden/make_scores.py). tests/net/training/test_places.py compares scores of many classes
 * and positions with NumPy.
 */
#include <math.h>

#include "master/score/score.h"
#include "tests/unit/scratch.h"

enum { ALL_SCORES = CLV_SCORE_F1 | CLV_SCORE_AUC | CLV_SCORE_CONFUSION | CLV_SCORE_PERPLEXITY };

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
  clv_score_options o = {
      .score_bits = ALL_SCORES, .n_classes = 3, .has_ignored_label = true, .ignored_label = -100};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  (void)state;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  for (int round = 0; round < 2; round++) {
    clv_score_reset(s);
    assert_ok(clv_score_add(s, 0, x, y, 2, &err), &err);
    assert_ok(clv_score_add(s, 0, x + 6, y + 2, 4, &err), &err);
    CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
    assert_int_equal(r.n_positions, 5);
    assert_int_equal(r.classes[0].n_labels, 2);
    NEAR(r.values[CLV_VALUE_ACCURACY], 0.6);
    NEAR(r.values[CLV_VALUE_F1_MICRO], 0.6);
    NEAR(r.classes[0].f1, 0.5);
    NEAR(r.classes[1].precision, 0.5);
    NEAR(r.classes[1].recall, 1);
    NEAR(r.classes[2].f1, 2.0 / 3);
    NEAR(r.values[CLV_VALUE_F1_MACRO], (0.5 + 2.0 / 3 + 2.0 / 3) / 3);
    assert_memory_equal(r.confusion, confusion, sizeof confusion);
    /* AUC of class 0: its positions score 0.67 and 0.21, the others 0.04, 0.01 and 0.58 */
    NEAR(r.classes[0].auc, 5.0 / 6);
    NEAR(r.classes[1].auc, 1);
  }
}

/* AUC counts a pair of a positive and a negative record with equal scores as half. */
static void binary_scores_match_hand_computation(void **state) {
  static const float p[] = {0.9f, 0.4f, 0.4f, 0.6f};
  static const int64_t y[] = {1, 1, 0, 0};
  clv_score_options o = {
      .score_bits = ALL_SCORES, .outputs = CLV_SCORE_PROBABILITY, .n_classes = 2};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  (void)state;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  assert_ok(clv_score_add(s, 0, p, y, 4, &err), &err);
  CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
  NEAR(r.values[CLV_VALUE_AUC], 2.5 / 4);
  NEAR(r.values[CLV_VALUE_ACCURACY], 0.5);
  double sum = log((double)p[0]) + log((double)p[1]) + log1p(-(double)p[2]) + log1p(-(double)p[3]);
  NEAR(r.values[CLV_VALUE_PERPLEXITY], exp(-sum / 4));
}

static void absent_classes_are_left_out_of_averages(void **state) {
  static const float x[] = {1, 0, 0, 0, 5, 0, 0, 0};
  static const int64_t y[] = {0, 0};
  clv_score_options o = {.score_bits = ALL_SCORES, .n_classes = 4};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0}, json = {0}, table = {0};
  (void)state;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  assert_ok(clv_score_add(s, 0, x, y, 2, &err), &err);
  CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
  NEAR(r.values[CLV_VALUE_F1_MACRO], 1);
  assert_true(isnan(r.values[CLV_VALUE_AUC]));
  clv_scores_append_line(&r, &line);
  assert_non_null(strstr(line.data, "F1 micro 1.0000, macro 1.0000, AUC not defined"));
  clv_scores_append_json(&r, NULL, NULL, &json);
  assert_non_null(strstr(json.data, "\"auc\":null"));
  assert_non_null(strstr(json.data, "\"confusion\":[[2,0,0,0],[0,0,0,0],"));
  clv_scores_append_table(&r, NULL, NULL, &table);
  assert_null(strstr(table.data, "\n     1  1 "));
}

static void invalid_options_and_labels_are_refused(void **state) {
  clv_score_options o = {.score_bits = ALL_SCORES, .n_classes = 1};
  clv_score *s = NULL;
  static const float x[2] = {0};
  (void)state;
  assert_int_equal(clv_score_new(&o, &s, &err), CLV_INVALID);
  o.n_classes = CLV_SCORE_MAX_CONFUSION_CLASSES + 1;
  assert_int_equal(clv_score_new(&o, &s, &err), CLV_INVALID);
  o.n_classes = 2;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  assert_int_equal(clv_score_add(s, 0, x, &(int64_t){2}, 1, &err), CLV_INVALID);
  assert_int_equal(clv_score_add(s, 0, x, &(int64_t){-100}, 1, &err), CLV_INVALID);
  clv_score_free(s);
}

/* ---- comparison with scikit-learn ------------------------------------------------------------ */

enum { MAX_COLUMNS = 4 };

static clv_score_value find_value(const char *name) {
  int v = 0;
  while (v < CLV_SCORE_VALUES && strcmp(clv_score_value_row_of((clv_score_value)v)->name, name))
    v++;
  assert_true(v < CLV_SCORE_VALUES);
  return (clv_score_value)v;
}

static void add_golden_row(clv_score *s, FILE *f, bool has_classes, size_t n_outputs,
                           size_t n_targets, size_t record_index) {
  float x[MAX_COLUMNS], t[MAX_COLUMNS];
  for (size_t k = 0; k < n_outputs; k++) assert_int_equal(fscanf(f, "%f", &x[k]), 1);
  for (size_t k = 0; k < n_targets; k++) assert_int_equal(fscanf(f, "%f", &t[k]), 1);
  if (has_classes)
    assert_ok(clv_score_add(s, record_index, x, &(int64_t){(int64_t)t[0]}, 1, &err), &err);
  else
    assert_ok(clv_score_add_targets(s, record_index, x, t, &err), &err);
}

/* Reads a case from f, scores its outputs, and compares the scores with those in f. Returns the
 * number of compared scores. */
static int check_golden_case(FILE *f, int kind, size_t columns, size_t rows) {
  unsigned rank_score_bits =
               CLV_SCORE_F1 | CLV_SCORE_AUC | CLV_SCORE_AVERAGE_PRECISION | CLV_SCORE_SENSITIVITY,
           class_score_bits = rank_score_bits | CLV_SCORE_PERPLEXITY | CLV_SCORE_ECE,
           number_score_bits = CLV_SCORE_MAE | CLV_SCORE_RMSE | CLV_SCORE_R2;
  bool is_multilabel = kind == CLV_SCORE_LABEL_LOGITS;
  clv_score_options o = {.outputs = (clv_score_outputs)kind,
                         .score_bits = kind >= CLV_SCORE_NUMBERS ? number_score_bits
                                       : is_multilabel           ? rank_score_bits
                                                                 : class_score_bits,
                         .n_classes = columns,
                         .specificity = 0.8,
                         .has_intervals = true};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  char name[32];
  double want;
  int n = 0;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  for (size_t i = 0; i < rows; i++)
    add_golden_row(s, f, clv_score_has_classes(s), kind == CLV_SCORE_PROBABILITY ? 1 : columns,
                   clv_score_has_classes(s) ? 1 : columns, i);
  CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
  for (; fscanf(f, " value %31s %lf", name, &want) == 2; n++) {
    clv_score_value v = find_value(name);
    if (!(fabs(r.values[v] - want) < 1e-9))
      fail_msg("%s of outputs %d is %.17g, not %.17g", name, kind, r.values[v], want);
    /* the confidence interval must contain scikit-learn's value */
    if (!(r.intervals[v].low < want && want < r.intervals[v].high) && v != CLV_VALUE_ECE)
      fail_msg("%s: %g is outside %g to %g", name, want, r.intervals[v].low, r.intervals[v].high);
  }
  return n;
}

static void scores_are_those_of_scikit_learn(void **state) {
  FILE *f = fopen("tests/golden/scores.txt", "r");
  char name[32];
  int kind, n = 0;
  size_t columns, rows;
  (void)state;
  assert_non_null(f);
  while (fscanf(f, " case %31s %d %zu %zu", name, &kind, &columns, &rows) == 4)
    n += check_golden_case(f, kind, columns, rows);
  assert_int_equal(n, 29);
  fclose(f);
}

/* 200 records of which 160 are right: the standard error of the accuracy is 0.028. */
static void interval_is_reproducible_and_has_the_expected_width(void **state) {
  clv_score_options o = {.n_classes = 2, .has_intervals = true};
  clv_interval intervals[2];
  (void)state;
  for (int k = 0; k < 2; k++) {
    CLV_AUTO(clv_score_freep) clv_score *s = NULL;
    assert_ok(clv_score_new(&o, &s, &err), &err);
    for (int64_t i = 0; i < 200; i++)
      assert_ok(
          clv_score_add(s, 0, i % 5 ? (float[]){0, 1} : (float[]){1, 0}, &(int64_t){1}, 1, &err),
          &err);
    CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
    intervals[k] = r.intervals[CLV_VALUE_ACCURACY];
    assert_true(isnan(r.intervals[CLV_VALUE_AUC].low));
  }
  assert_memory_equal(&intervals[0], &intervals[1], sizeof intervals[0]);
  assert_true(fabs(intervals[0].low - (0.8 - 1.96 * 0.0283)) < 0.012);
  assert_true(fabs(intervals[0].high - (0.8 + 1.96 * 0.0283)) < 0.012);
}

static void the_records_with_the_largest_losses_are_kept_in_order(void **state) {
  clv_score_options o = {.score_bits = CLV_SCORE_MAE, .outputs = CLV_SCORE_NUMBERS, .n_classes = 2};
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  (void)state;
  assert_ok(clv_score_new(&o, &s, &err), &err);
  for (size_t i = 0; i < 30; i++)
    assert_ok(
        clv_score_add_targets(s, 100 + i, (float[]){(float)(i * 7 % 30), 0}, (float[]){0, 0}, &err),
        &err);
  CLV_AUTO(clv_scores_done) clv_scores r = finish_score(s);
  assert_int_equal(r.n_worst_records, CLV_SCORE_MAX_WORST_RECORDS);
  for (size_t i = 0; i < r.n_worst_records; i++) {
    assert_true(r.worst_records[i].loss == (double)(29 - i));
    assert_int_equal((r.worst_records[i].record - 100) * 7 % 30, 29 - i);
  }
  clv_scores_append_worst_json(&r, NULL, NULL, NULL, false, &json);
  assert_non_null(strstr(json.data, "{\"id\":\"117\",\"loss\":29},\n{\"id\":"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(three_class_scores_match_hand_computation),
      cmocka_unit_test(binary_scores_match_hand_computation),
      cmocka_unit_test(absent_classes_are_left_out_of_averages),
      cmocka_unit_test(invalid_options_and_labels_are_refused),
      cmocka_unit_test(scores_are_those_of_scikit_learn),
      cmocka_unit_test(interval_is_reproducible_and_has_the_expected_width),
      cmocka_unit_test(the_records_with_the_largest_losses_are_kept_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
