/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests orphans (files at workers whose checkpoint the master has deleted) and encrypted copies of
 * checkpoints, without workers: the content of their files after each call, and after a crash
 * between two calls.
 */
#include <sys/stat.h>

#include "master/checkpoints/checkpoints.h"
#include "tests/unit/files.h"

static clv_session_config config;
static clv_stores *stores;
static clv_seal_key key;
static char copies_dir[200];

static int setup(void **state) {
  clv_err err;
  if (scratch_setup(state) != 0) return -1;
  snprintf(copies_dir, sizeof copies_dir, "%s", at("copies"));
  config = (clv_session_config){.file = (char *)"session.yaml"};
  return clv_stores_new(&config, &stores, &err) == CLV_OK &&
                 clv_seal_key_create(at("key"), &key, &err) == CLV_OK
             ? 0
             : -1;
}

static int teardown(void **state) {
  clv_stores_free(stores);
  clv_seal_key_done(&key);
  return scratch_teardown(state);
}

/* Writes a checkpoint of one stage into the run folder "run". */
static void make_checkpoint(uint64_t step) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  clv_err err;
  static float weights[50000];
  weights[0] = (float)step;
  const clv_weights_tensor t = {
      .name = "w", .dtype = CLV_F32, .shape = {.rank = 1, .dim = {50000}}, .data = weights};
  assert_ok(clv_checkpoint_begin(at("run"), step, 1, &w, &err), &err);
  assert_ok(clv_checkpoint_add_stage(w, 0, &t, 1, NULL, 0, &err), &err);
  assert_ok(clv_checkpoint_add_state(w, &(clv_trainer_state){.global_step = step}, &err), &err);
  assert_ok(clv_checkpoint_commit(w, "", 8, NULL, &err), &err);
}

/* Changes the manifest of a checkpoint so that it says that a worker stores the model's file, and
 * deletes the local file. */
static void move_to_worker(uint64_t step) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  clv_err err;
  char folder[64], file[100];
  snprintf(folder, sizeof folder, "run/checkpoint-%d", (int)step);
  assert_ok(clv_checkpoint_read_manifest(at("run"), step, &m, &err), &err);
  clv_manifest_file *f = &m.files[0];
  while (strncmp(f->name, "model-", 6) != 0) f++;
  snprintf(file, sizeof file, "%s/%s", folder, f->name);
  assert_int_equal(unlink(at(file)), 0);
  assert_ok(clv_strdup("spiffe://test/w1", &f->keeper_identity, &err), &err);
  assert_ok(clv_strdup("55.1.0.w", &f->kept_file_name, &err), &err);
  assert_ok(clv_manifest_write(at(folder), &m, &err), &err);
}

static void clear_run(void) {
  clv_err err;
  if (clv_checkpoint_has_any(at("run")))
    assert_ok(clv_checkpoint_remove_all(at("run"), &err), &err);
  unlink(at("run/" CLV_ORPHANS_FILE));
}

/* ---- orphans: files at workers whose checkpoint is deleted ----------------------------------- */

static unsigned n_reported;

static void count_report(void *user, const clv_orphan *o, const clv_err *why) {
  (void)user;
  n_reported++;
  assert_string_equal(o->kept_file_name, "55.1.0.w");
  assert_non_null(why); /* the removal is refused, because the session has no worker */
}

static void orphan_is_listed_until_its_worker_has_removed_the_file(void **state) {
  (void)state;
  CLV_AUTO(clv_orphans_done) clv_orphans l = {0}, again = {0};
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  clv_err err;
  clear_run();
  make_checkpoint(1);
  move_to_worker(1);
  assert_ok(clv_checkpoint_read_manifest(at("run"), 1, &m, &err), &err);
  assert_ok(clv_orphans_add_manifest_files(at("run"), &m, &err), &err);
  /* simulates a crash after the file is listed as an orphan and before its checkpoint is deleted:
   * the file must not be removed */
  n_reported = 0;
  assert_ok(clv_orphans_remove_files(at("run"), stores, count_report, NULL, &err), &err);
  assert_int_equal(n_reported, 0);
  assert_ok(clv_checkpoint_abandon(at("run"), 1, &err), &err);
  assert_ok(clv_orphans_read(at("run"), &l, &err), &err);
  assert_int_equal(l.n, 1);
  assert_string_equal(l.list[0].keeper_identity, "spiffe://test/w1");
  assert_int_equal(clv_orphans_remove_files(at("run"), stores, count_report, NULL, &err),
                   CLV_NOT_FOUND);
  assert_int_equal(n_reported, 1);
  assert_says(&err, "session.yaml has no worker with the identity 'spiffe://test/w1'");
  assert_ok(clv_orphans_read(at("run"), &again, &err), &err);
  assert_int_equal(again.n, 1);
}

/* ---- encrypted copies of checkpoints --------------------------------------------------------- */

static clv_escrow_location get_copy_location(void) {
  return (clv_escrow_location){copies_dir, "1234"};
}

static void write_encrypted_copy(uint64_t step) {
  const clv_escrow_location p = get_copy_location();
  uint64_t bytes;
  clv_err err;
  assert_ok(clv_escrow_write_copy(&p, &key, at("run"), step, stores, NULL, &bytes, &err), &err);
}

static void only_the_newest_copy_stays(void **state) {
  (void)state;
  const clv_escrow_location p = get_copy_location();
  clear_run();
  assert_int_equal(clv_escrow_newest_step(&p), CLV_CHECKPOINT_NONE);
  for (uint64_t step = 1; step < 4; step++) {
    make_checkpoint(step);
    write_encrypted_copy(step);
    assert_int_equal(clv_escrow_newest_step(&p), step);
  }
  assert_int_equal(access(at("copies/1234/checkpoint-2"), F_OK), -1);
  assert_int_equal(access(at("copies/1234/checkpoint-3/MANIFEST.json.sealed"), F_OK), 0);
}

static void copy_restores_all_files_of_a_checkpoint(void **state) {
  (void)state;
  const clv_escrow_location p = get_copy_location();
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  clv_err err;
  uint64_t step = 0;
  clear_run();
  make_checkpoint(7);
  write_encrypted_copy(7);
  for (int loses_all = 0; loses_all < 2; loses_all++) {
    if (loses_all)
      clear_run();
    else
      move_to_worker(7);
    assert_ok(clv_escrow_restore_checkpoint(&p, &key, at("run"), &step, &err), &err);
    assert_int_equal(step, 7);
    clv_checkpoint_freep(&c);
    assert_ok(clv_checkpoint_load_step(at("run"), 7, &c, &err), &err);
    assert_true(clv_manifest_has_all_files(clv_checkpoint_manifest(c)));
  }
}

static void damaged_or_foreign_copy_restores_nothing(void **state) {
  (void)state;
  const clv_escrow_location p = get_copy_location(), other_place = {copies_dir, "5678"};
  CLV_AUTO(clv_seal_key_done) clv_seal_key wrong = {0};
  clv_err err;
  char id[17];
  uint64_t step;
  clear_run();
  make_checkpoint(9);
  write_encrypted_copy(9);
  clear_run();
  assert_ok(clv_seal_key_create(at("wrong.key"), &wrong, &err), &err);
  assert_int_equal(clv_escrow_restore_checkpoint(&p, &wrong, at("run"), &step, &err), CLV_DENIED);
  assert_says(&err, key.id);
  assert_ok(clv_escrow_key_id(&p, id, &err), &err);
  assert_string_equal(id, key.id);
  assert_int_equal(rename(at("copies/1234"), at("copies/5678")), 0);
  assert_int_equal(clv_escrow_restore_checkpoint(&other_place, &key, at("run"), &step, &err),
                   CLV_DATA_LOSS);
  assert_says(&err, "it is not 5678/checkpoint-9/MANIFEST.json");
  assert_int_equal(rename(at("copies/5678"), at("copies/1234")), 0);
  assert_int_equal(unlink(at("copies/1234/checkpoint-9/model-00001-of-00001.safetensors.sealed")),
                   0);
  assert_int_equal(clv_escrow_restore_checkpoint(&p, &key, at("run"), &step, &err), CLV_DATA_LOSS);
  assert_says(&err, "is missing in the sealed copy");
  assert_false(clv_checkpoint_has_manifest(at("run")));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(orphan_is_listed_until_its_worker_has_removed_the_file),
      cmocka_unit_test(only_the_newest_copy_stays),
      cmocka_unit_test(copy_restores_all_files_of_a_checkpoint),
      cmocka_unit_test(damaged_or_foreign_copy_restores_nothing),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
