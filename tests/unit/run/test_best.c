/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which checkpoint is the best, and which contents of the file that names it are accepted.
 */
#include <math.h>

#include "master/run/run_int.h"
#include "tests/unit/scratch.h"

static int setup(void **state) {
  if (scratch_setup(state) != 0) return -1;
  return chdir(scratch);
}

static void write_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void make_checkpoint(uint64_t step) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  clv_trainer_state s = {.global_step = step};
  clv_err err = {0};
  assert_ok(clv_checkpoint_begin("run", step, 1, &w, &err), &err);
  assert_ok(clv_checkpoint_add_stage(w, 0, NULL, 0, NULL, 0, &err), &err);
  assert_ok(clv_checkpoint_add_state(w, &s, &err), &err);
  assert_ok(clv_checkpoint_commit(w, "", 1, NULL, &err), &err);
}

static void only_a_finite_strict_improvement_is_better(void **state) {
  static const struct {
    double new_value, old_value;
    clv_best_mode mode;
    bool is_better;
  } cases[] = {
      {1, 2, CLV_BEST_MIN, true},          {2, 1, CLV_BEST_MIN, false},
      {1, 1, CLV_BEST_MIN, false},         {2, 1, CLV_BEST_MAX, true},
      {1, 2, CLV_BEST_MAX, false},         {NAN, 2, CLV_BEST_MIN, false},
      {-INFINITY, 2, CLV_BEST_MIN, false}, {INFINITY, 2, CLV_BEST_MAX, false},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    const clv_best_checkpoint new_best = {.value = cases[i].new_value, .step = 2},
                              old_best = {.value = cases[i].old_value, .step = 1};
    assert_int_equal(clv_is_better_checkpoint(&new_best, &old_best, cases[i].mode),
                     cases[i].is_better);
  }
  const clv_best_checkpoint no_best = {.step = CLV_CHECKPOINT_NONE},
                            nan_best = {.value = NAN, .step = 1},
                            first_best = {.value = 5, .step = 1};
  assert_true(clv_is_better_checkpoint(&first_best, &no_best, CLV_BEST_MIN));
  assert_false(clv_is_better_checkpoint(&nan_best, &no_best, CLV_BEST_MAX));
}

static void best_file_line_is_parsed_strictly(void **state) {
  static const char *const bad_texts[] = {
      "",
      "\n",
      "validation.loss 0.25 step 120",
      "validation.loss 0.25 step 120\n\n",
      "validation.loss 0.250 step 120\n",
      "validation.loss  0.25 step 120\n",
      "validation.loss 0.25 step 0120\n",
      "validation.loss 0.25 step -1\n",
      "validation.loss 0.25 step 18446744073709551616\n",
      "validation.loss nan step 1\n",
      "validation.loss inf step 1\n",
      "validation.loss 1e999 step 1\n",
      "validation.lossy 0.25 step 1\n",
      "test.loss 0.25 step 1\n",
      " step 1\n",
      "0 step 1\n",
      "validation.loss 0.25 ../../x\n",
  };
  clv_best_checkpoint b = {0};
  clv_err err = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(bad_texts); i++) {
    assert_int_equal(clv_best_checkpoint_parse(bad_texts[i], strlen(bad_texts[i]), "it", &b, &err),
                     CLV_DATA_LOSS);
    assert_says(&err, "it is damaged");
  }
  const char *text_with_nul = "validation.loss 0.25 step 120\n\0x";
  assert_int_equal(clv_best_checkpoint_parse(text_with_nul, 32, "it", &b, &err), CLV_DATA_LOSS);
  assert_ok(clv_best_checkpoint_parse(text_with_nul, 30, "it", &b, &err), &err);
  assert_true(b.metric == CLV_BEST_LOSS && b.value == 0.25 && b.step == 120);
  const char *accuracy_text = "validation.accuracy 0.10000000000000001 step 0\n";
  assert_ok(clv_best_checkpoint_parse(accuracy_text, strlen(accuracy_text), "it", &b, &err), &err);
  assert_true(b.metric == CLV_BEST_ACCURACY && b.value == 0.1 && b.step == 0);
  const char *f1_text = "validation.f1_macro 0.5 step 9\n";
  assert_ok(clv_best_checkpoint_parse(f1_text, strlen(f1_text), "it", &b, &err), &err);
  assert_true(b.metric == CLV_BEST_F1_MACRO && b.step == 9);
}

static void early_stopping_counts_validations_without_a_larger_gain(void **state) {
  clv_train_config c = {.early_stopping = {.score = CLV_BEST_AUC, .patience = 2, .min_delta = 0.1}};
  static const struct {
    double value;
    uint64_t n_without_improvement;
  } cases[] = {{NAN, 1}, {0.5, 0}, {0.6, 1}, {0.61, 0}, {INFINITY, 1}, {0.2, 2}};
  clv_early_stopping_state s = {0};
  (void)state;
  for (uint64_t i = 0; i < CLV_COUNT(cases); i++) {
    assert_false(clv_early_stopping_is_due(&s, &c));
    clv_early_stopping_count_validation(&s, &c, cases[i].value, i);
    assert_int_equal(s.n_without_improvement, cases[i].n_without_improvement);
  }
  assert_true(clv_early_stopping_is_due(&s, &c));
  assert_true(s.best == 0.61 && s.best_step == 3);
  c.early_stopping.patience = 3;
  assert_false(clv_early_stopping_is_due(&s, &c));
  /* the stored count belongs to another score, so counting begins again */
  c.early_stopping.score = CLV_BEST_LOSS;
  c.early_stopping.patience = 1;
  assert_false(clv_early_stopping_is_due(&s, &c));
  clv_early_stopping_count_validation(&s, &c, 2, 6);
  clv_early_stopping_count_validation(&s, &c, 1.95, 7);
  assert_true(clv_early_stopping_is_due(&s, &c) && s.best == 2);
  c.early_stopping.score = CLV_BEST_NONE;
  clv_early_stopping_count_validation(&s, &c, 1, 8);
  assert_false(clv_early_stopping_is_due(&s, &c));
}

static void early_stopping_is_read_from_its_exact_text_alone(void **state) {
  static const char *const bad_texts[] = {"",
                                          "validation.loss",
                                          "validation.loss 1 behind",
                                          "validation.loss 1 behind 0.5 step",
                                          "validation.loss 01 behind 0.5 step 3",
                                          "validation.loss 1 behind nan step 3",
                                          "validation.loss 1 behind 1e999 step 3",
                                          "validation.lossy 1 behind 0.5 step 3",
                                          "validation.loss 1 behind 0.5 step 3 ",
                                          "validation.loss -1",
                                          "validation.loss 1 behind 0.50 step 3"};
  const clv_early_stopping_state valid_states[] = {{CLV_BEST_LOSS, true, 0.1, 12, 3, ""},
                                                   {CLV_BEST_AUC, true, 0.9, 6, 2, "days in bed"},
                                                   {CLV_BEST_F1_MACRO, false, 0, 0, 4, ""}};
  char text[CLV_EARLY_STOPPING_TEXT_BYTES];
  clv_early_stopping_state s = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(bad_texts); i++)
    assert_false(clv_early_stopping_parse(bad_texts[i], &s));
  for (size_t i = 0; i < CLV_COUNT(valid_states); i++) {
    clv_early_stopping_format(&valid_states[i], text);
    assert_true(clv_early_stopping_parse(text, &s));
    assert_true(s.score == valid_states[i].score && s.has_best == valid_states[i].has_best &&
                s.best == valid_states[i].best && s.best_step == valid_states[i].best_step &&
                s.n_without_improvement == valid_states[i].n_without_improvement &&
                strcmp(s.target, valid_states[i].target) == 0);
  }
  clv_early_stopping_format(&(clv_early_stopping_state){0}, text);
  assert_string_equal(text, "");
}

/* Returns the best checkpoint that a resumed run takes over. */
static clv_best_checkpoint restore_best(clv_best_metric metric, bool resume) {
  clv_session_config config = {.name = "run"};
  clv_run r = {.config = &config, .is_resumed = resume};
  config.checkpoint.best = metric;
  clv_bytes_puts(&r.dir, "run");
  clv_run_read_best_checkpoint(&r);
  clv_bytes_done(&r.dir);
  return r.best_checkpoint;
}

static void resumed_run_restores_its_best_checkpoint(void **state) {
  (void)state;
  make_checkpoint(4);
  make_checkpoint(8);
  assert_int_equal(restore_best(CLV_BEST_LOSS, true).step, CLV_CHECKPOINT_NONE);
  write_file("run/" CLV_RUN_BEST_FILE, "validation.loss 0.25 step 4\n");
  assert_int_equal(restore_best(CLV_BEST_LOSS, true).step, 4);
  assert_true(restore_best(CLV_BEST_LOSS, true).value == 0.25);
  /* the file also counts if the session names no metric for the best checkpoint */
  assert_int_equal(restore_best(CLV_BEST_NONE, true).step, 4);
  write_file("run/" CLV_RUN_BEST_FILE, "validation.loss 0.25 step 5\n");
  assert_int_equal(restore_best(CLV_BEST_LOSS, true).step, CLV_CHECKPOINT_NONE);
  write_file("run/" CLV_RUN_BEST_FILE, "validation.loss");
  assert_int_equal(restore_best(CLV_BEST_LOSS, true).step, CLV_CHECKPOINT_NONE);
  write_file("run/" CLV_RUN_BEST_FILE, "validation.loss 0.25 step 4\n");
  assert_int_equal(restore_best(CLV_BEST_ACCURACY, true).step, CLV_CHECKPOINT_NONE);
  /* the file is deleted, because it is of another metric */
  assert_int_not_equal(access("run/" CLV_RUN_BEST_FILE, F_OK), 0);
  write_file("run/" CLV_RUN_BEST_FILE, "validation.loss 0.25 step 4\n");
  assert_int_equal(restore_best(CLV_BEST_LOSS, false).step, CLV_CHECKPOINT_NONE);
  /* the file is deleted, because it is of another run */
  assert_int_not_equal(access("run/" CLV_RUN_BEST_FILE, F_OK), 0);
}

static clv_code choose_checkpoint(const char *choice, uint64_t *ret_step, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  clv_session_config config = {.name = "run", .checkpoint = {.dir = "run"}};
  const clv_run_options o = {.checkpoint = choice};
  const clv_run r = {.config = &config, .o = &o};
  CLV_TRY(clv_run_open_checkpoint(&r, &c, &notes, err));
  *ret_step = clv_checkpoint_manifest(c)->step;
  return CLV_OK;
}

static void checkpoint_is_chosen_by_step_latest_or_best(void **state) {
  static const struct {
    const char *choice;
    uint64_t step;
    const char *says;
  } cases[] = {{NULL, 8, NULL},
               {"latest", 8, NULL},
               {"4", 4, NULL},
               {"best", 4, NULL},
               {"5", 0, "no checkpoint of step 5; there are those of steps 8, 4"}};
  uint64_t step = 0;
  clv_err err = {0};
  (void)state;
  make_checkpoint(4);
  make_checkpoint(8);
  assert_int_equal(choose_checkpoint("best", &step, &err), CLV_NOT_FOUND);
  assert_says(&err, "no checkpoint was kept as the best");
  write_file("run/" CLV_RUN_BEST_FILE, "validation.accuracy 1 step 4\n");
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_code code = choose_checkpoint(cases[i].choice, &step, &err);
    assert_int_equal(code, cases[i].says ? CLV_NOT_FOUND : CLV_OK);
    if (cases[i].says)
      assert_says(&err, cases[i].says);
    else
      assert_int_equal(step, cases[i].step);
  }
  write_file("run/" CLV_RUN_BEST_FILE, "4");
  assert_int_equal(choose_checkpoint("best", &step, &err), CLV_DATA_LOSS);
}

static void checkpoint_names_are_validated(void **state) {
  static const char *const valid_names[] = {"latest", "best", "0", "12", "9223372036854775807"};
  static const char *const bad_names[] = {"",   "Best", "-1", "+1",   " 1",
                                          "01", "1 ",   "1x", "../1", "9223372036854775808"};
  (void)state;
  assert_true(clv_is_checkpoint_name(NULL));
  for (size_t i = 0; i < CLV_COUNT(valid_names); i++)
    assert_true(clv_is_checkpoint_name(valid_names[i]));
  for (size_t i = 0; i < CLV_COUNT(bad_names); i++)
    assert_false(clv_is_checkpoint_name(bad_names[i]));
}

/* Automatic checkpoints take at most 3 % of the time. Their interval is between 10 s and 30 min. */
static void automatic_interval_follows_the_cost(void **state) {
  static const struct {
    uint64_t cost_ms, interval_ms;
  } cases[] = {{0, 10000},
               {300, 10000},
               {301, 10033},
               {3000, 100000},
               {54000, 1800000},
               {54100, 1800000},
               {UINT64_MAX / 1000000, 1800000}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++)
    assert_int_equal(clv_checkpoint_interval_ns(cases[i].cost_ms * 1000000) / 1000000,
                     cases[i].interval_ms);
}

/* The first rounds are left out of the usual time of a round, because one that takes five times as
 * long would hide the cost of the first checkpoints. */
static void first_rounds_do_not_count_as_usual(void **state) {
  static const struct {
    bool is_saving;
    uint64_t round_ns, cost_ns;
  } rounds[] = {{false, 5000, 0},  {false, 2000, 0}, {false, 1000, 0},
                {true, 1500, 500}, {true, 900, 500}, {true, 1100, 600}};
  clv_run_save_state s = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(rounds); i++) {
    clv_checkpoint_note_round(&s, rounds[i].is_saving, rounds[i].round_ns);
    assert_int_equal(s.present_cost_ns, rounds[i].cost_ns);
  }
}

static int remove_run(void **state) {
  (void)state;
  return system("rm -rf run");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(first_rounds_do_not_count_as_usual),
      cmocka_unit_test(only_a_finite_strict_improvement_is_better),
      cmocka_unit_test(best_file_line_is_parsed_strictly),
      cmocka_unit_test(early_stopping_counts_validations_without_a_larger_gain),
      cmocka_unit_test(early_stopping_is_read_from_its_exact_text_alone),
      cmocka_unit_test_teardown(resumed_run_restores_its_best_checkpoint, remove_run),
      cmocka_unit_test_teardown(checkpoint_is_chosen_by_step_latest_or_best, remove_run),
      cmocka_unit_test(checkpoint_names_are_validated),
      cmocka_unit_test(automatic_interval_follows_the_cost),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
