/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands plan, check and eval, and functions that they share with predict and train.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/net/tls/tls.h"
#include "master/run/run_int.h"

void clv_run_done(clv_run *r) {
  if (!r) return;
  clv_run_escrow_stop(r);
  clv_seal_key_done(&r->escrow_key);
  clv_loader_free(r->steps.loader);
  clv_reporter_close(r->reporter);
  clv_run_metrics_close(r->metrics);
  if (r->trainer) clv_trainer_record_direct_bytes(r->trainer);
  clv_trainer_close(r->trainer);
  clv_run_close_egress_record(r, r->exit_code);
  clv_profiler_free(r->profiler);
  clv_blueprint_free(r->blueprint);
  clv_run_free_scores(r);
  clv_policy_free(r->policy);
  clv_run_data_done(&r->data);
  free(r->class_weights);
  free(r->weighted_targets);
  free(r->sampling_sums);
  clv_bytes_done(&r->dir);
  clv_bytes_done(&r->changes);
  clv_journal_close(r->journal);
  clv_run_lock_free(
      r->lock); /* released last: the next process that gets the lock then finds complete files */
}

/* ---- making the blueprint of a command ------------------------------------------------------- */

clv_code clv_run_open_blueprint(clv_run *r, bool needs_train_set, clv_scan_scope scope,
                                clv_err *err) {
  bool config_sets_micro_batches = r->config->pipeline.micro_batches != CLV_MICRO_AUTO;
  r->purpose = needs_train_set ? RUN_TRAINING : RUN_EVALUATION;
  if (needs_train_set) clv_run_metrics_warn(r->config);
  CLV_TRY(clv_policy_find(&r->policy, err));
  if (!needs_train_set || r->o->resume) CLV_TRY(clv_run_read_learnt(r, &r->data.learnt, err));
  clv_run_report_table_reading(r);
  CLV_TRY(clv_run_data_open(r->config, needs_train_set, &r->data, err));
  if (scope) CLV_TRY(clv_run_scan_data(r, scope == CLV_SCAN_IMAGES, err));
  CLV_TRY(clv_run_resolve_class_weights(r, err));
  if (needs_train_set) CLV_TRY(clv_run_make_sampling(r, err));
  CLV_TRY(clv_run_make_blueprint(r, err));
  CLV_TRY(clv_run_data_check_fit(&r->data, r->blueprint, err));
  clv_run_data_measure_lengths(&r->data, r->blueprint);
  CLV_TRY(clv_run_make_scores(r, err));
  return needs_train_set && config_sets_micro_batches ? clv_pipeline_check(r->blueprint, err)
                                                      : CLV_OK;
}

static clv_code draw_schedule(const clv_run *r, clv_bytes *out, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_blueprint_draw_schedule(r->blueprint, r->o->json, out, &text, err));
  return r->o->out ? clv_file_write_durable(r->o->out, text.data, text.len, 0644, err) : CLV_OK;
}

static clv_exit_code suggest_cuts(clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_link_estimates_freep) clv_link_estimates *links = NULL;
  clv_err err;
  if (clv_link_estimates_parse(r->config, r->o, &links, &err) != CLV_OK)
    return clv_run_fail(r, CLV_EXIT_USAGE, &err);
  if (clv_run_open_blueprint(r, true, CLV_SCAN_NOTHING, &err) != CLV_OK ||
      clv_suggest_cuts(r->blueprint, links, r->o->json, &text, &err) != CLV_OK)
    return clv_run_fail(r, clv_run_setup_exit_code(&err), &err);
  fputs(text.data, stdout);
  return CLV_EXIT_OK;
}

static clv_exit_code exit_code_of_failed_device_query(clv_code code) {
  return code == CLV_NOT_FOUND ? CLV_EXIT_CONFIG : CLV_EXIT_CONNECT;
}

/* The command `plan`. With --ask, it asks the workers for their devices, and computes memory and
 * time of the stages for these devices. */
clv_exit_code clv_run_plan(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = o, .describes_only = !o->suggest_cuts};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, device_kinds = {0};
  clv_err err, device_query_err;
  clv_code device_query_code = CLV_OK;
  if (o->suggest_cuts) return suggest_cuts(&r);
  if (clv_run_open_blueprint(&r, true, CLV_SCAN_NOTHING, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  if (!o->schedule && clv_run_take_look_in_plan(&r, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  clv_run_find_moved_layers(&r);
  if (o->ask_workers)
    device_query_code =
        clv_query_device_kinds(r.blueprint, o->json, &device_kinds, &device_query_err);
  clv_code code = o->schedule ? draw_schedule(&r, &text, &err)
                              : clv_blueprint_describe(r.blueprint, o->json, &text, &err);
  if (code != CLV_OK) return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  if (!o->schedule && !o->json) clv_indexes_describe(r.data.train, &text);
  fputs(text.data, stdout);
  if (!o->schedule) clv_run_print_folds(&r);
  if (clv_blueprint_check_privacy(r.blueprint, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  if (device_query_code != CLV_OK)
    return (clv_exit_code)clv_exit_report(exit_code_of_failed_device_query(device_query_code),
                                          &device_query_err);
  fputs(device_kinds.data ? device_kinds.data : "", stdout);
  clv_run_print_later_refusals(&r);
  return CLV_EXIT_OK;
}

/* Writes " in 10 classes" to `text` for folders of images, "" for other data. Returns `text`. */
static const char *format_class_count(const clv_run *r, char *text, size_t len) {
  size_t n = clv_dataset_class_count(r->data.train);
  text[0] = '\0';
  if (n) snprintf(text, len, " in %zu class%s", n, n > 1 ? "es" : "");
  return text;
}

static clv_code check_weight_files(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  for (size_t i = 0; i < r->config->n_stages; i++) {
    CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL, *adapters = NULL;
    CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL, **found_adapters = NULL;
    if (r->config->stages[i].weights_file)
      CLV_TRY(clv_stage_file_open(r->blueprint, (uint32_t)i, &f, &found, &notes, err));
    if (r->blueprint->stages[i].adapter_folder)
      CLV_TRY(clv_stage_adapters_open(r->blueprint, (uint32_t)i, &adapters, &found_adapters, err));
    CLV_AUTO(clv_stage_folder_done) clv_stage_folder folder = {0};
    if (r->config->stages[i].weights_folder)
      CLV_TRY(clv_stage_folder_open(r->blueprint, (uint32_t)i, &folder, &notes, err));
  }
  clv_label_order_describe(r->blueprint, false, &notes);
  clv_sampling_describe(r->blueprint, false, &notes);
  clv_run_print_notes(r, "notice", notes.data);
  return CLV_OK;
}

/* Prints the result of the command `check`. sets_text: the text that clv_run_describe_sets has
 * made. */
static void print_check_result(const clv_run *r, const char *sets_text) {
  CLV_AUTO(clv_bytes_done) clv_bytes kept = {0};
  char classes_text[48], checked_text[80] = "all of them were looked at";
  size_t n_records = clv_dataset_count(r->data.train), n_checked = clv_run_scan_limit(r, n_records);
  size_t n_samples = r->data.train_rows.n + r->data.validation_rows.n;
  if (n_checked < n_records)
    snprintf(checked_text, sizeof checked_text, "%zu of %zu training records were looked at",
             n_checked, n_records);
  CLV_AUTO(clv_bytes_done) clv_bytes look = {0};
  (r->o->json ? clv_look_describe_json : clv_look_describe)(r->blueprint, &look);
  clv_kept_bytes_describe(r->blueprint, r->o->json, &kept);
  clv_ema_describe(r->blueprint, r->o->json, &kept);
  if (!r->o->json)
    printf("%s%s%s", sets_text, look.data ? look.data : "", kept.data ? kept.data : "");
  if (r->o->json)
    printf(
        "{\"ok\":true,\"stages\":%u,\"records\":%zu,\"validation\":%zu,\"left_out\":%llu%s%s,"
        "\"checkpoints_at_workers\":%s}\n",
        r->blueprint->n_stages, n_records, r->data.validation_rows.n,
        (unsigned long long)r->n_omitted_records, sets_text, look.data, kept.data);
  else
    printf("%s is in order: %u stage%s, %zu training sample%s%s; %s, nothing was sent anywhere\n",
           r->config->file, r->blueprint->n_stages, CLV_S(r->blueprint->n_stages), n_samples,
           CLV_S(n_samples), format_class_count(r, classes_text, sizeof classes_text),
           checked_text);
  CLV_AUTO(clv_bytes_done) clv_bytes held_back = {0};
  clv_run_data_describe_held_back(r->config, &r->data, &held_back);
  if (!r->o->json && held_back.len && !held_back.failed) printf("%s\n", held_back.data);
}

/* Returns true if the session has a stage or the loss at a worker. */
static bool uses_workers(const clv_run *r) {
  bool is_any_used = false;
  for (size_t i = 0; i < r->config->n_workers; i++) is_any_used |= r->blueprint->is_worker_used[i];
  return is_any_used;
}

clv_exit_code clv_run_check_identity(const clv_run *r, bool even_without_workers, clv_err *err) {
  const clv_tls_config *t = &r->config->tls;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *id = NULL;
  if (!t->ca || !(even_without_workers || uses_workers(r))) return CLV_EXIT_OK;
  if (clv_tls_identity_load(t->ca, t->cert, t->key, &id, err) == CLV_OK &&
      clv_tls_identity_require_usage(id, CLV_TLS_CLIENT, err) == CLV_OK &&
      clv_tls_revocation_load(t->crl, id, err) == CLV_OK)
    return CLV_EXIT_OK;
  return clv_run_fail(r, CLV_EXIT_CONNECT, err);
}

clv_exit_code clv_run_check(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = o};
  clv_err err;
  if (clv_run_open_blueprint(&r, true, CLV_SCAN_IMAGES, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  if (check_weight_files(&r, &err) != CLV_OK) return clv_run_fail(&r, CLV_EXIT_DATA, &err);
  if (clv_run_take_look_in_plan(&r, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  clv_exit_code code = clv_run_check_identity(&r, true, &err);
  if (code != CLV_EXIT_OK) return code;
  CLV_AUTO(clv_bytes_done) clv_bytes sets = {0};
  if (clv_run_describe_sets(&r, o->json, &sets, &err) != CLV_OK)
    return clv_run_fail(&r, CLV_EXIT_FAILED, &err);
  print_check_result(&r, sets.data ? sets.data : "");
  clv_run_print_later_refusals(&r);
  return CLV_EXIT_OK;
}

/* ---- evaluation of a checkpoint, for eval and predict ---------------------------------------- */

/* Compares the egress table with the table of the run that trained the weights, and opens that
 * run's egress record, the file that lists the sent tensors. */
static clv_code prepare_egress_record(clv_run *r, const char *command, clv_err *err) {
  if (!uses_workers(r)) return CLV_OK;
  CLV_TRY(clv_run_resolve_micro_batches(r, true, err));
  CLV_TRY(clv_run_compare_egress_table(r, err));
  return clv_run_open_egress_record(r, command, err);
}

/* Checks and prints the layers that have moved between master and workers since the run trained. */
static clv_code check_moved_layers(clv_run *r, const clv_checkpoint *c, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes moved = {0};
  CLV_TRY(clv_run_check_moved_layers(r, c, err));
  clv_moved_layers_describe(&r->blueprint->moved_layers, false, &moved);
  if (moved.len && !moved.failed) clv_run_print_notes(r, "moved", moved.data);
  return CLV_OK;
}

static clv_code open_checkpoint_for_evaluation(clv_run *r, const char *command, clv_err *err) {
  clv_train_position at;
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  clv_code code = clv_run_open_checkpoint(r, &c, &notes, err);
  if (code == CLV_OK) code = clv_checkpoint_choose_weights(c, r->o->weights, err);
  if (code == CLV_OK) code = check_moved_layers(r, c, err);
  if (code == CLV_OK) code = clv_run_take_look(r, c, err);
  if (code == CLV_OK) code = prepare_egress_record(r, command, err);
  if (code == CLV_OK)
    code =
        clv_trainer_open(r->blueprint, r->egress_record, CLV_TRAINER_EVALUATION, &r->trainer, err);
  if (code == CLV_OK) clv_run_print_notices(r);
  if (code == CLV_OK) code = clv_trainer_restore_from(r->trainer, c, &at, &notes, err);
  clv_run_print_notes(r, "checkpoint", notes.data);
  if (code == CLV_DATA_LOSS && c && !clv_manifest_has_all_files(clv_checkpoint_manifest(c)))
    clv_run_warn(r, CLV_LOG_ERROR, "checkpoint",
                 "files of this checkpoint are at workers: `cleave-master checkpoint gather "
                 "SESSION.yaml` fetches those that are still there");
  return code;
}

static clv_exit_code exit_code_of_failed_open(const clv_run *r, const clv_err *err) {
  bool lacks_usable_checkpoint = err->code == CLV_NOT_FOUND || err->code == CLV_DATA_LOSS;
  return lacks_usable_checkpoint ? CLV_EXIT_CHECKPOINT : clv_run_connect_exit_code(r, err);
}

static clv_code check_changed_files(clv_run *r, clv_err *err) {
  clv_bytes_printf(&r->dir, "%s", r->config->checkpoint.dir);
  if (r->dir.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_run_compare_files(r, err));
  /* clv_run_compare_files has printed these changes, so they are not printed again */
  r->changes.len = 0;
  return clv_run_warn_changed_keys(r, err);
}

clv_exit_code clv_run_eval_checkpoint(clv_run *r, const char *command, clv_step_result *ret,
                                      clv_tensor **predictions) {
  clv_err err;
  clv_exit_code code = clv_run_check_identity(r, false, &err);
  if (code != CLV_EXIT_OK) return code;
  if (check_changed_files(r, &err) != CLV_OK)
    return clv_run_fail(r, clv_run_setup_exit_code(&err), &err);
  if (open_checkpoint_for_evaluation(r, command, &err) != CLV_OK)
    return clv_run_fail(r, exit_code_of_failed_open(r, &err), &err);
  clv_trainer_set_dropout_pass(r->trainer, r->o->dropout_samples > 0);
  if (clv_trainer_eval(r->trainer, r->data.test, &r->data.test_rows, r->scores, ret, predictions,
                       &err) != CLV_OK)
    return clv_run_fail(r, clv_run_exit_code(r, &err), &err);
  return CLV_EXIT_OK;
}

clv_exit_code clv_run_check_has_test(const clv_run *r) {
  clv_err err;
  if (r->config->data.test.n) return CLV_EXIT_OK;
  clv_session_fail_at(r->config, r->config->data.pos, &err,
                      "data.test is missing: name the records to look at there: %s",
                      clv_format_row_of(r->config->data.format)->train_names);
  return clv_run_fail(r, CLV_EXIT_CONFIG, &err);
}

static void print_test_result(clv_run *r, const clv_step_result *e) {
  char step_text[64] = "", step_json[64];
  unsigned long long step = clv_trainer_step_count(r->trainer);
  bool is_ema = r->o->weights == CLV_WEIGHTS_EMA;
  if (r->o->checkpoint || is_ema)
    snprintf(step_text, sizeof step_text, ", step %llu%s", step, is_ema ? ", averages" : "");
  snprintf(step_json, sizeof step_json, ",\"step\":%llu%s", step,
           is_ema ? ",\"weights\":\"ema\"" : "");
  clv_run_print_eval(r, "test", e, step_text, step_json);
}

/* Checks that data.test has labels, and, if the data are images, that its classes are those that
 * the model was trained with. */
static clv_code check_labels(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_classes_free) clv_classes classes = {0};
  const clv_session_config *c = r->config;
  if (!clv_dataset_has_labels(r->data.test))
    return clv_session_fail_at(c, c->data.test_pos, err,
                               "eval needs labels, and data.test names records alone");
  CLV_TRY(clv_classes_read(c->checkpoint.dir, &classes, err));
  return clv_run_compare_classes(r, &classes, r->data.test, "data.test", err);
}

clv_exit_code clv_run_eval(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = o};
  clv_step_result e;
  clv_err err;
  clv_exit_code code = r.exit_code = clv_run_check_has_test(&r);
  if (code != CLV_EXIT_OK) return code;
  if (clv_run_resolve_key(&r, true, &err) != CLV_OK)
    return clv_run_fail(&r, CLV_EXIT_CHECKPOINT, &err);
  if (clv_run_open_blueprint(&r, false, CLV_SCAN_VALUES, &err) != CLV_OK ||
      check_labels(&r, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  code = r.exit_code = clv_run_eval_checkpoint(&r, "eval", &e, NULL);
  if (code == CLV_EXIT_OK) print_test_result(&r, &e);
  if (code == CLV_EXIT_OK && o->intervals && clv_run_write_intervals(&r, &e, &err) != CLV_OK)
    code = r.exit_code = clv_run_fail(&r, CLV_EXIT_FAILED, &err);
  return code;
}
