/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what --resume does with the run that it finds: nothing if the run is finished, and a new
 * start if there is no checkpoint. Also tests with which egress table it continues.
 */
#include <sys/stat.h>

#include "master/run/run_int.h"
#include "tests/unit/scratch.h"

enum { ROWS = 10, BATCH = 4, EPOCHS = 2, STEPS = 6 };

static int setup(void **state) {
  if (scratch_setup(state) != 0) return -1;
  return chdir(scratch);
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

/* Makes a run of `step` steps with this final status. */
static void make_run(uint64_t step, clv_run_status status) {
  const clv_run_lock_info info = {.name = "run", .session = "/s.yaml"};
  clv_run_lock *c = NULL;
  clv_err err = {0};
  assert_int_equal(system("rm -rf run"), 0);
  assert_ok(clv_run_lock_new("run", &c, &err), &err);
  assert_ok(clv_run_lock_begin(c, &info, &err), &err);
  clv_run_lock_note_start(c, 0, STEPS, &(clv_sha256){{1}});
  make_checkpoint(step);
  clv_run_lock_end(c, status, 0, "");
  clv_run_lock_free(c);
}

/* True if a command with the options `o` finds that the run is finished. */
static bool is_run_finished(uint64_t epochs, uint64_t max_steps, const clv_run_options *o) {
  uint32_t index[ROWS] = {0};
  clv_session_config config = {.name = "run"};
  clv_run r = {.config = &config, .o = o};
  clv_err err = {0};
  config.train.epochs = epochs;
  config.train.max_steps = max_steps;
  config.train.batch = BATCH;
  r.data.train_rows = (clv_subset){index, ROWS};
  clv_bytes_puts(&r.dir, "run");
  assert_ok(clv_run_lock_new("run", &r.lock, &err), &err);
  assert_ok(clv_run_check_finished(&r, &r.is_finished, &err), &err);
  clv_run_lock_free(r.lock);
  clv_bytes_done(&r.dir);
  return r.is_finished;
}

static void resume_of_a_finished_run_changes_nothing(void **state) {
  const clv_run_options resume = {.resume = true},
                        resume_with_max_steps = {.resume = true, .max_steps = 100},
                        start_fresh = {.fresh = true}, start_again = {0};
  struct stat before, after;
  (void)state;
  make_run(STEPS, CLV_RUN_FINISHED);
  assert_int_equal(stat("run/run.json", &before), 0);
  assert_true(is_run_finished(EPOCHS, 0, &resume));
  /* without --max-steps, the length in the session counts */
  assert_true(is_run_finished(EPOCHS, 0, &resume_with_max_steps));
  assert_true(is_run_finished(EPOCHS, 5, &resume));
  assert_false(is_run_finished(EPOCHS + 1, 0, &resume));
  assert_false(is_run_finished(EPOCHS, 0, &start_fresh));
  assert_false(is_run_finished(EPOCHS, 0, &start_again));
  assert_int_equal(stat("run/run.json", &after), 0);
  assert_int_equal(before.st_ino, after.st_ino);
}

static void partly_finished_run_is_resumed(void **state) {
  const clv_run_options resume_to_session_length = {.resume = true},
                        resume_to_step_3 = {.resume = true, .max_steps = 3};
  (void)state;
  make_run(3, CLV_RUN_FINISHED); /* a run that finished with --max-steps 3 */
  assert_true(is_run_finished(EPOCHS, 0, &resume_to_step_3));
  assert_false(is_run_finished(EPOCHS, 0, &resume_to_session_length));
  make_run(STEPS, CLV_RUN_FAILED); /* a run that failed in its last evaluation */
  assert_false(is_run_finished(EPOCHS, 0, &resume_to_session_length));
  make_run(STEPS, CLV_RUN_FINISHED);
  make_checkpoint(3);
  assert_int_equal(truncate("run/checkpoint-6/MANIFEST.json", 10), 0);
  /* the manifest of the last checkpoint is damaged, so the run is not finished */
  assert_false(is_run_finished(EPOCHS, 0, &resume_to_session_length));
}

/* Runs find_start on the folder. *ret_has_checkpoint: true if the run resumes from a checkpoint. */
static clv_code find_start(bool *ret_has_checkpoint, clv_err *err) {
  const clv_run_options o = {.resume = true};
  const clv_session_config config = {0}; /* a session without checkpoint.escrow */
  clv_run r = {.o = &o, .config = &config};
  clv_bytes_puts(&r.dir, "run");
  assert_ok(clv_run_lock_new("run", &r.lock, err), err);
  clv_code code = clv_run_find_start(&r, err);
  *ret_has_checkpoint = r.is_resumed;
  clv_run_lock_free(r.lock);
  clv_bytes_done(&r.dir);
  return code;
}

static void resume_without_checkpoint_starts_over(void **state) {
  bool has_checkpoint;
  clv_err err = {0};
  (void)state;
  assert_int_equal(system("rm -rf run"), 0);
  assert_ok(find_start(&has_checkpoint, &err), &err);
  assert_false(has_checkpoint);
  assert_int_equal(system("mkdir -p run/checkpoint-3; touch run/checkpoint-3/state"), 0);
  /* the run was killed while it wrote its first checkpoint */
  assert_ok(find_start(&has_checkpoint, &err), &err);
  assert_false(has_checkpoint);
  assert_false(clv_checkpoint_has_any("run"));
  make_run(3, CLV_RUN_FAILED);
  assert_ok(find_start(&has_checkpoint, &err), &err);
  assert_true(has_checkpoint);
  assert_int_equal(truncate("run/checkpoint-3/MANIFEST.json", 10), 0);
  /* the checkpoint is damaged, which is reported only when it is read */
  assert_ok(find_start(&has_checkpoint, &err), &err);
  assert_true(has_checkpoint);
}

static void resume_with_lost_checkpoints_is_refused(void **state) {
  const clv_run_lock_info info = {.name = "run", .session = "/s.yaml", .is_resume = true};
  clv_run_lock *c = NULL;
  bool has_checkpoint;
  clv_err err = {0};
  (void)state;
  make_run(3, CLV_RUN_FAILED);
  assert_ok(clv_run_lock_new("run", &c, &err), &err);
  assert_ok(clv_run_lock_begin(c, &info, &err), &err); /* the run's record lists this attempt */
  clv_run_lock_free(c);
  assert_int_equal(system("rm -r run/checkpoint-3"), 0);
  assert_int_equal(find_start(&has_checkpoint, &err), CLV_NOT_FOUND);
  assert_says(&err, "though run.json lists some");
}

/* True if a resume is refused because the egress table in the run folder differs. */
static bool is_resume_refused(bool accepts_egress) {
  const clv_run_options o = {.resume = true, .accept_egress = accepts_egress};
  clv_blueprint none = {0};
  clv_run r = {.o = &o, .blueprint = &none};
  clv_err err = {0};
  clv_bytes_puts(&r.dir, "run");
  clv_code code = clv_run_compare_egress_table(&r, &err);
  clv_bytes_done(&r.dir);
  if (code != CLV_OK) assert_non_null(strstr(err.text, "--accept-egress"));
  return code != CLV_OK;
}

static void unreadable_egress_table_counts_as_changed(void **state) {
  clv_err err = {0};
  (void)state;
  make_run(3, CLV_RUN_FAILED);
  assert_true(is_resume_refused(false)); /* the run has checkpoints but no table */
  assert_false(is_resume_refused(true));
  assert_ok(clv_file_write_durable("run/egress.table", "", 0, 0644, &err), &err);
  assert_false(is_resume_refused(false));
  assert_ok(clv_file_write_durable("run/egress.table", "a row\n", 6, 0644, &err), &err);
  assert_true(is_resume_refused(false));
  assert_int_equal(truncate("run/egress.table", (1 << 20) + 1), 0);
  assert_true(is_resume_refused(false));
  assert_int_equal(system("rm -rf run/egress.table run/checkpoint-*"), 0);
  assert_false(is_resume_refused(false)); /* the run has no checkpoint */
  assert_int_equal(mkdir("run/egress.table", 0755), 0);
  assert_true(is_resume_refused(false));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unreadable_egress_table_counts_as_changed),
      cmocka_unit_test(resume_of_a_finished_run_changes_nothing),
      cmocka_unit_test(partly_finished_run_is_resumed),
      cmocka_unit_test(resume_without_checkpoint_starts_over),
      cmocka_unit_test(resume_with_lost_checkpoints_is_refused),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
