/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the scores of runs, which are read from their folders, and the table of these scores.
 */
#include <math.h>
#include <stdlib.h>

#include "master/sweep/sweep_int.h"
#include "tests/unit/files.h"

static clv_err err;

static const char evaluation_lines[] =
    "{\"step\":2,\"epoch\":0,\"event\":\"validation\",\"loss\":0.5,\"scores\":{\"f1\":{\"micro\":0."
    "1,"
    "\"macro\":0.25},\"auc\":null}}\n"
    "{\"step\":4,\"epoch\":1,\"event\":\"validation\",\"loss\":0.25,\"scores\":{\"f1\":{\"macro\":"
    "0."
    "75},\"auc\":0.5}}\n"
    "{\"step\":6,\"epoch\":2,\"event\":\"validation\",\"loss\":0.375,\"scores\":{\"f1\":{\"macro\":"
    "0."
    "5},\"auc\":0.375}}\n"
    "{\"step\":6,\"epoch\":2,\"event\":\"test\",\"loss\":0.125}\n{\"step\":8,\"event\":\"valid";

static void assert_score(clv_best_metric metric, bool takes_best, double want, uint64_t step) {
  sweep_score score = {metric, takes_best, ""};
  sweep_run r = {.folder = scratch};
  write_scratch_file("evaluations.jsonl", evaluation_lines, sizeof evaluation_lines - 1);
  assert_ok(sweep_score_read(&score, &r, &err), &err);
  assert_true(r.value == want);
  assert_int_equal(r.step, step);
}

static void last_validation_counts_or_the_best_and_no_test(void **state) {
  (void)state;
  assert_score(CLV_BEST_LOSS, false, 0.375, 6);
  assert_score(CLV_BEST_LOSS, true, 0.25, 4);
  assert_score(CLV_BEST_F1_MACRO, true, 0.75, 4);
  assert_score(CLV_BEST_AUC, true, 0.5, 4);
  assert_score(CLV_BEST_AUC, false, 0.375, 6);
}

/* Scores of other targets, and those of the evaluation itself, do not count. */
static void score_of_a_target_is_read_by_its_name(void **state) {
  static const char line[] =
      "{\"step\":4,\"event\":\"validation\",\"loss\":0.25,\"auc\":0.1,\"scores\":{\"targets\":{"
      "\"died\":{\"loss\":0.75,\"f1\":{\"macro\":0.5},\"auc\":0.875},\"days\":{\"loss\":2,"
      "\"auc\":0.2}}}}\n";
  const struct {
    sweep_score score;
    double want;
  } cases[] = {{{CLV_BEST_AUC, false, "died"}, 0.875},
               {{CLV_BEST_F1_MACRO, true, "died"}, 0.5},
               {{CLV_BEST_LOSS, false, "died"}, 0.75},
               {{CLV_BEST_LOSS, false, ""}, 0.25}};
  (void)state;
  write_scratch_file("evaluations.jsonl", line, sizeof line - 1);
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    sweep_run r = {.folder = scratch};
    assert_ok(sweep_score_read(&cases[i].score, &r, &err), &err);
    assert_true(r.value == cases[i].want);
  }
}

static void damaged_lines_are_refused_with_their_place(void **state) {
  (void)state;
  sweep_score score = {CLV_BEST_LOSS, false, ""};
  sweep_run r = {.folder = scratch};
  write_scratch_file("evaluations.jsonl", "{}\n{\"loss\":x}\n", 14);
  assert_int_not_equal(sweep_score_read(&score, &r, &err), CLV_OK);
  assert_says(&err, "evaluations.jsonl:2:9");
}

/* Returns a sweep over two keys, whose session was not read from a file. */
static sweep_work make_sweep(sweep_run *runs, size_t n_runs, size_t n_points,
                             clv_sweep_options *o) {
  static sweep_key keys[] = {{.name = "a"}, {.name = "b"}};
  static char *values[] = {"1", "x,y", "2", "[\"q\"]", "3", "z"};
  static clv_session_config base_config = {.name = "s"};
  return (sweep_work){.o = o,
                      .base_session = &base_config,
                      .points = {.keys = keys, .n_keys = 2, .values = values, .n_points = n_points},
                      .runs = runs,
                      .n_runs = n_runs,
                      .score = {CLV_BEST_ACCURACY, false}};
}

static void table_lists_best_runs_first_and_unfinished_runs_last(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  sweep_run runs[] = {{.point_index = 0,
                       .state = SWEEP_RUN_FINISHED,
                       .value = 0.5,
                       .step = 8,
                       .folder = "runs/s-001"},
                      {.point_index = 1,
                       .state = SWEEP_RUN_FAILED,
                       .value = 0.99,
                       .exit_code = 9,
                       .folder = "runs/s-002"},
                      {.point_index = 2,
                       .state = SWEEP_RUN_FINISHED,
                       .value = 0.75,
                       .step = 4,
                       .folder = "runs/s-003"}};
  clv_sweep_options o = {.format = CLV_SWEEP_CSV};
  sweep_work s = make_sweep(runs, 3, 3, &o);
  assert_ok(sweep_table_format(&s, &out, &err), &err);
  assert_string_equal(out.data,
                      "point,validation.accuracy,step,state,a,b\n"
                      "s-003,0.75,4,finished,3,z\n"
                      "s-001,0.5,8,finished,1,\"x,y\"\n"
                      "s-002,,,failed (exit 9),2,\"[\"\"q\"\"]\"\n");
  o.format = CLV_SWEEP_JSON;
  out.len = 0;
  assert_ok(sweep_table_format(&s, &out, &err), &err);
  assert_non_null(strstr(out.data,
                         "{\"point\":\"s-002\",\"state\":\"failed (exit 9)\",\"score\":"
                         "\"validation.accuracy\",\"value\":null,\"step\":0,\"runs\":"
                         "[\"runs/s-002\"],\"set\":{\"a\":\"2\",\"b\":\"[\\\"q\\\"]\"}}\n"));
}

static void folds_have_a_mean_once_all_are_finished(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  sweep_run runs[] = {{.point_index = 0, .fold = 1, .state = SWEEP_RUN_FINISHED, .value = 0.5},
                      {.point_index = 0, .fold = 2, .state = SWEEP_RUN_FINISHED, .value = 0.75},
                      {.point_index = 1, .fold = 1, .state = SWEEP_RUN_FINISHED, .value = 1},
                      {.point_index = 1, .fold = 2, .state = SWEEP_RUN_WAITING, .value = 1}};
  clv_sweep_options o = {.format = CLV_SWEEP_CSV, .folds = 2};
  sweep_work s = make_sweep(runs, 4, 2, &o);
  assert_ok(sweep_table_format(&s, &out, &err), &err);
  assert_string_equal(out.data,
                      "point,validation.accuracy,deviation,state,a,b\n"
                      "s-001,0.625,0.176777,finished,1,\"x,y\"\n"
                      "s-002,,,1 of 2 folds,2,\"[\"\"q\"\"]\"\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(last_validation_counts_or_the_best_and_no_test),
      cmocka_unit_test(score_of_a_target_is_read_by_its_name),
      cmocka_unit_test(damaged_lines_are_refused_with_their_place),
      cmocka_unit_test(table_lists_best_runs_first_and_unfinished_runs_last),
      cmocka_unit_test(folds_have_a_mean_once_all_are_finished),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
