/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the three parts of a training, several times in one process: a run is opened, restored from
 * a checkpoint, and trained. Weights, moments, dropout and the order of the records follow from the
 * checkpoint alone.
 */
#include "master/run/run_int.h"
#include "tests/unit/scratch.h"

enum { ROWS = 24, COLUMNS = 4 };

static const char session[] =
    "version: 1\n"
    "name: r\n"
    "data: {format: npy, train: [x.npy, y.npy], validation: {fraction: 0.2}}\n"
    "stages:\n"
    "  - {name: a, at: master, layers: [{op: linear, out: 8}, {op: dropout, p: 0.5},\n"
    "     {op: linear, out: 3}]}\n"
    "loss: {kind: cross_entropy}\n"
    "train: {batch: 4, epochs: 3, seed: 7, optimizer: {kind: adam, lr: 0.01}}\n";

static void write_npy_file(const char *name, const char *descr, const char *shape, const void *data,
                           size_t len) {
  char head[129];
  FILE *f = fopen(name, "wb");
  assert_non_null(f);
  snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': (%s)}", descr,
           shape);
  fwrite("\x93NUMPY\x01\0\x76\0", 1, 10, f);
  fprintf(f, "%-117s\n", head);
  fwrite(data, 1, len, f);
  fclose(f);
}

static int setup(void **state) {
  float x[ROWS * COLUMNS];
  uint8_t y[ROWS];
  if (scratch_setup(state) != 0 || chdir(scratch) != 0) return -1;
  for (size_t i = 0; i < CLV_COUNT(x); i++) x[i] = (float)(i * i % 17) / 17;
  for (size_t i = 0; i < ROWS; i++) y[i] = (uint8_t)(i % 3);
  write_npy_file("x.npy", "<f4", "24, 4", x, sizeof x);
  write_npy_file("y.npy", "|u1", "24,", y, sizeof y);
  return 0;
}

static clv_session_config *parse_config(void) {
  clv_session_config *c = NULL;
  clv_err err = {0};
  assert_ok(clv_session_config_parse("s.yaml", session, strlen(session), NULL, &c, &err), &err);
  return c;
}

static void open_run(clv_run *r) {
  clv_err err = {0};
  if (clv_run_open(r, &err) != CLV_EXIT_OK) fail_msg("%s", err.text);
  assert_ok(clv_run_open_trainer(r, &err), &err);
}

static void restore_run(clv_run *r, uint64_t step) {
  clv_err err = {0};
  assert_ok(clv_run_restore(r, &err), &err);
  assert_int_equal(clv_trainer_step_count(r->trainer), step);
}

static void run_until_step(clv_run *r, uint64_t step) {
  clv_err err = {0};
  r->steps.stop_step = step;
  assert_ok(clv_run_loop(r, &err), &err);
  assert_int_equal(clv_trainer_step_count(r->trainer), step);
}

static clv_bytes read_file(const char *path) {
  clv_bytes text = {0};
  clv_err err = {0};
  assert_ok(clv_file_read(path, 1 << 20, &text, &err), &err);
  return text;
}

static void assert_same_files(const char *folder, const char *other_folder) {
  char command[200];
  snprintf(command, sizeof command,
           "for f in %s/*.safetensors; do cmp $f %s/${f##*/} || exit 1; done", folder,
           other_folder);
  assert_int_equal(system(command), 0);
}

static size_t count_lines(const char *path) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = read_file(path);
  size_t n = 0;
  for (size_t i = 0; i < text.len; i++) n += text.data[i] == '\n';
  return n;
}

static void rewound_and_reopened_runs_give_the_same_checkpoint(void **state) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_config();
  const clv_run_options start_options = {0}, resume_options = {.resume = true};
  (void)state;
  {
    CLV_AUTO(clv_run_done) clv_run r = {.config = c, .o = &start_options};
    open_run(&r);
    assert_null(r.steps.loader);
    restore_run(&r, 0);
    run_until_step(&r, 3);
    run_until_step(&r, 7); /* step 7 is in the second epoch, after a validation */
    assert_int_equal(count_lines("runs/r/metrics.jsonl"), 7);
    assert_int_equal(system("mv runs/r/checkpoint-7 first"), 0);
    restore_run(&r, 3);
    assert_int_equal(r.steps.restored_step, 3);
    run_until_step(&r, 7);
    assert_int_equal(r.steps.n_weight_changes, 4);
    assert_int_equal(count_lines("runs/r/metrics.jsonl"), 7);
    assert_same_files("first", "runs/r/checkpoint-7");
    assert_int_equal(system("rm -r runs/r/checkpoint-7"), 0);
    clv_run_lock_end(r.lock, CLV_RUN_STOPPED, CLV_EXIT_INTERRUPTED, "");
  }
  CLV_AUTO(clv_run_done) clv_run reopened = {.config = c, .o = &resume_options};
  open_run(&reopened);
  restore_run(&reopened, 3);
  run_until_step(&reopened, 7);
  assert_same_files("first", "runs/r/checkpoint-7");
}

static clv_session_config *parse_config_as(const char *name_set) {
  const clv_config_overrides overrides = {.sets = &name_set, .n_sets = 1};
  clv_session_config *c = NULL;
  clv_err err = {0};
  assert_ok(clv_session_config_parse("s.yaml", session, strlen(session), &overrides, &c, &err),
            &err);
  return c;
}

/* Trains to step 3 and on to step 7, writes a checkpoint at each of them, and marks the run as
 * finished. */
static void train_to_step_7(const clv_session_config *c) {
  const clv_run_options o = {0};
  CLV_AUTO(clv_run_done) clv_run r = {.config = c, .o = &o};
  open_run(&r);
  restore_run(&r, 0);
  run_until_step(&r, 3);
  run_until_step(&r, 7);
  clv_run_lock_end(r.lock, CLV_RUN_FINISHED, 0, "");
}

static void run_resumes_from_a_named_checkpoint_and_deletes_later_ones(void **state) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_config_as("name=back");
  const clv_run_options resume_from_3 = {.resume = true, .checkpoint = "3"};
  (void)state;
  train_to_step_7(c);
  assert_int_equal(system("cp -r runs/back/checkpoint-7 before"), 0);
  CLV_AUTO(clv_run_done) clv_run r = {.config = c, .o = &resume_from_3};
  open_run(&r);
  /* the later checkpoint stays until the state of step 3 is restored */
  assert_int_equal(access("runs/back/checkpoint-7", F_OK), 0);
  restore_run(&r, 3);
  assert_int_not_equal(access("runs/back/checkpoint-7", F_OK), 0);
  assert_int_equal(count_lines("runs/back/metrics.jsonl"), 3);
  run_until_step(&r, 7);
  assert_same_files("before", "runs/back/checkpoint-7");
  /* a recovery resumes from the newest checkpoint, although the options name checkpoint 3 */
  restore_run(&r, 7);
}

static void sealed_copy_of_a_later_step_is_removed_when_a_run_goes_back(void **state) {
  const char *sets[] = {"name=sealed",
                        "checkpoint.escrow={every: 1h, key: escrow.key, dir: copies}"};
  const clv_config_overrides overrides = {.sets = sets, .n_sets = CLV_COUNT(sets)};
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_seal_key_done) clv_seal_key key = {0};
  CLV_AUTO(clv_stores_freep) clv_stores *stores = NULL;
  const clv_run_options resume_from_3 = {.resume = true, .checkpoint = "3"};
  clv_escrow_location copy_place;
  char id[33];
  uint64_t bytes;
  clv_err err = {0};
  (void)state;
  assert_ok(clv_session_config_parse("s.yaml", session, strlen(session), &overrides, &c, &err),
            &err);
  train_to_step_7(c);
  assert_ok(clv_run_find_escrow_location(c, id, &copy_place, &err), &err);
  assert_ok(clv_seal_key_read(c->checkpoint.escrow.key, &key, &err), &err);
  assert_ok(clv_stores_new(c, &stores, &err), &err);
  assert_ok(clv_escrow_write_copy(&copy_place, &key, "runs/sealed", 7, stores, NULL, &bytes, &err),
            &err);
  assert_int_equal(clv_escrow_newest_step(&copy_place), 7);
  CLV_AUTO(clv_run_done) clv_run r = {.config = c, .o = &resume_from_3};
  open_run(&r);
  restore_run(&r, 3);
  assert_int_equal(clv_escrow_newest_step(&copy_place), CLV_CHECKPOINT_NONE);
}

static void missing_checkpoint_is_refused_and_nothing_removed(void **state) {
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c = parse_config_as("name=named"), *none = parse_config_as("name=new");
  const clv_run_options resume_from_5 = {.resume = true, .checkpoint = "5"},
                        resume_from_best = {.resume = true, .checkpoint = "best"};
  clv_err err = {0};
  (void)state;
  train_to_step_7(c);
  CLV_AUTO(clv_run_done) clv_run r = {.config = c, .o = &resume_from_5};
  assert_int_equal(clv_run_open(&r, &err), CLV_EXIT_CHECKPOINT);
  assert_says(&err, "there is no checkpoint of step 5; there are those of steps 7, 3");
  clv_run_done(&r);
  r = (clv_run){.config = c, .o = &resume_from_best};
  assert_int_equal(clv_run_open(&r, &err), CLV_EXIT_CHECKPOINT);
  assert_says(&err, "no checkpoint was kept as the best");
  assert_int_equal(access("runs/named/checkpoint-7", F_OK), 0);
  CLV_AUTO(clv_run_done) clv_run first = {.config = none, .o = &resume_from_5};
  assert_int_equal(clv_run_open(&first, &err), CLV_EXIT_CHECKPOINT);
}

static clv_session_config *parse_sampled_config(const char *name) {
  const char *sets[] = {name, "data.sampling_weights=[1, 5, 1]"};
  const clv_config_overrides overrides = {.sets = sets, .n_sets = CLV_COUNT(sets)};
  clv_session_config *c = NULL;
  clv_err err = {0};
  assert_ok(clv_session_config_parse("s.yaml", session, strlen(session), &overrides, &c, &err),
            &err);
  return c;
}

static void sampled_run_resumes_with_the_same_bits(void **state) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_sampled_config("name=drawn");
  CLV_AUTO(clv_session_config_freep) clv_session_config *d = parse_sampled_config("name=parts");
  CLV_AUTO(clv_session_config_freep) clv_session_config *plain = parse_config_as("name=plain");
  const clv_run_options start_options = {0}, resume_options = {.resume = true};
  char command[] =
      "cmp -s runs/drawn/checkpoint-7/model-00001-of-00001.safetensors "
      "runs/plain/checkpoint-7/model-00001-of-00001.safetensors";
  (void)state;
  train_to_step_7(c);
  train_to_step_7(plain);
  {
    CLV_AUTO(clv_run_done) clv_run r = {.config = d, .o = &start_options};
    open_run(&r);
    restore_run(&r, 0);
    run_until_step(&r, 5);
    clv_run_lock_end(r.lock, CLV_RUN_STOPPED, CLV_EXIT_INTERRUPTED, "");
  }
  CLV_AUTO(clv_run_done) clv_run again = {.config = d, .o = &resume_options};
  open_run(&again);
  restore_run(&again, 5);
  run_until_step(&again, 7);
  assert_same_files("runs/drawn/checkpoint-7", "runs/parts/checkpoint-7");
  assert_int_equal(system(command), 1 << 8); /* the files differ */
}

/* The last 5 of the 24 records are validation records. All five are of class 2. */
static void balanced_weights_follow_from_the_training_records_alone(void **state) {
  uint8_t y[ROWS];
  for (size_t i = 0; i < ROWS; i++) y[i] = i < 10 ? 0 : i < 16 ? 1 : 2;
  write_npy_file("z.npy", "|u1", "24,", y, sizeof y);
  static const double want[] = {19.0 / 30, 19.0 / 18, 19.0 / 9};
  const char *sets[] = {"name=balanced", "loss={kind: focal, class_weights: balanced}",
                        "data.train=[x.npy, z.npy]", "data.validation.by=last"};
  const clv_config_overrides overrides = {.sets = sets, .n_sets = CLV_COUNT(sets)};
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  const clv_run_options o = {0};
  clv_err err = {0};
  (void)state;
  assert_ok(clv_session_config_parse("s.yaml", session, strlen(session), &overrides, &c, &err),
            &err);
  CLV_AUTO(clv_run_done) clv_run r = {.config = c, .o = &o}, later_run = {.config = c, .o = &o};
  open_run(&r);
  restore_run(&r, 0);
  run_until_step(&r, 2);
  const clv_graph *loss = r.blueprint->stages[r.blueprint->n_stages].graph;
  const clv_attrs *attrs = &loss->nodes[loss->output_node].attrs;
  assert_true(attrs->exponent == 2 && attrs->class_weights.n == 3);
  assert_true(attrs->class_weights.of[2] == (float)want[2]);
  /* a command that opens no training records takes the class weights from the run's folder */
  assert_ok(clv_run_resolve_class_weights(&later_run, &err), &err);
  const clv_number_list *lists[] = {&r.config->loss.weight, &later_run.config->loss.weight};
  for (size_t k = 0; k < CLV_COUNT(lists); k++) {
    assert_int_equal(lists[k]->n, 3);
    for (size_t i = 0; i < 3; i++) assert_true(lists[k]->items[i] == want[i]);
  }
}

/* Returns the session of a run of six epochs. No validation counts as better than the first, so the
 * run stops after the third epoch, at step 15. */
static clv_session_config *parse_stopping_config(const char *name) {
  const char *sets[] = {
      name, "train.epochs=6",
      "train.early_stopping={score: validation.loss, patience: 2, min_delta: 100}"};
  const clv_config_overrides overrides = {.sets = sets, .n_sets = CLV_COUNT(sets)};
  clv_session_config *c = NULL;
  clv_err err = {0};
  assert_ok(clv_session_config_parse("s.yaml", session, strlen(session), &overrides, &c, &err),
            &err);
  return c;
}

static void early_stop_comes_at_the_same_step_with_the_same_bits_after_a_resume(void **state) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_stopping_config("name=one");
  CLV_AUTO(clv_session_config_freep) clv_session_config *d = parse_stopping_config("name=two");
  const clv_run_options begin = {0}, resume = {.resume = true};
  clv_err err = {0};
  (void)state;
  CLV_AUTO(clv_run_done) clv_run straight = {.config = c, .o = &begin};
  open_run(&straight);
  restore_run(&straight, 0);
  assert_int_equal(straight.steps.stop_step, 30);
  assert_ok(clv_run_loop(&straight, &err), &err);
  assert_int_equal(clv_trainer_step_count(straight.trainer), 15);
  {
    CLV_AUTO(clv_run_done) clv_run r = {.config = d, .o = &begin};
    open_run(&r);
    restore_run(&r, 0);
    run_until_step(&r, 12);
    clv_run_lock_end(r.lock, CLV_RUN_STOPPED, CLV_EXIT_INTERRUPTED, "");
  }
  CLV_AUTO(clv_run_done) clv_run again = {.config = d, .o = &resume};
  open_run(&again);
  restore_run(&again, 12);
  assert_int_equal(again.steps.early_stopping_state.n_without_improvement, 1);
  assert_ok(clv_run_loop(&again, &err), &err);
  assert_int_equal(clv_trainer_step_count(again.trainer), 15);
  assert_same_files("runs/one/checkpoint-15", "runs/two/checkpoint-15");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rewound_and_reopened_runs_give_the_same_checkpoint),
      cmocka_unit_test(run_resumes_from_a_named_checkpoint_and_deletes_later_ones),
      cmocka_unit_test(sealed_copy_of_a_later_step_is_removed_when_a_run_goes_back),
      cmocka_unit_test(missing_checkpoint_is_refused_and_nothing_removed),
      cmocka_unit_test(sampled_run_resumes_with_the_same_bits),
      cmocka_unit_test(balanced_weights_follow_from_the_training_records_alone),
      cmocka_unit_test(early_stop_comes_at_the_same_step_with_the_same_bits_after_a_resume)};
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
