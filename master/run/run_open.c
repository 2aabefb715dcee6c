/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts a training. clv_run_open prepares the run folder, clv_run_open_trainer connects to the
 * workers, and clv_run_restore loads a checkpoint and opens the loader and the reporter. `train`
 * calls them in this order; a recovery calls the last two again (run_recover.c).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

/* ---- preparing the run folder ---------------------------------------------------------------- */

/* Callback for errors of the journal. Prints them only to standard error, because the journal
 * itself has failed. */
static void print_to_stderr_only(void *user, const char *text) {
  (void)user;
  clv_notice(CLV_LOG_WARN, "notice", "%s", text);
}

static const clv_notifier stderr_notifier = {.notify = print_to_stderr_only};

/* Locks the run folder, unless this process has locked it already. If a killed --fresh had moved a
 * run away from the folder, clv_run_lock_new moves it back. The folder belongs to this process
 * until clv_run_done. */
static clv_code lock_run_dir(clv_run *r, clv_err *err) {
  if (r->lock) return CLV_OK;
  clv_bytes_printf(&r->dir, "%s", r->config->checkpoint.dir);
  if (r->dir.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_run_lock_new(r->dir.data, &r->lock, err);
}

/* Locks the folder of a resumed run. Called before the key of the run is read, because another
 * process could otherwise begin a new run in the folder after the key was read. The folder of a new
 * run is made later, when everything else has been checked. */
static clv_code lock_resumed_run(clv_run *r, clv_err *err) {
  bool has_folder = access(r->config->checkpoint.dir, F_OK) == 0;
  return r->o->resume && has_folder ? lock_run_dir(r, err) : CLV_OK;
}

/* Moves the earlier run in the folder to another folder. If that run is deleted instead, notes its
 * files at workers as orphans, which are removed later, and prints them. */
static clv_code move_earlier_run_aside(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_run_checkpoints_free) clv_run_checkpoints earlier_run = {0};
  CLV_TRY(clv_run_checkpoints_read(r->dir.data, &earlier_run, err));
  CLV_TRY(clv_run_lock_move_earlier_run(r->lock, err));
  return clv_run_lock_moved_folder(r->lock) ? CLV_OK : clv_run_note_orphans(r, &earlier_run, err);
}

/* Decides whether the run is finished, resumes or begins. Unless it is finished, begins its journal
 * and run.json. */
static clv_code begin_run(clv_run *r, clv_err *err) {
  const clv_run_lock_info lock_info = {.name = r->config->name,
                                       .session = r->config->file,
                                       .is_resume = r->o->resume,
                                       .notifier = {clv_run_on_notice, r}};
  CLV_TRY(lock_run_dir(r, err));
  if (clv_checkpoint_has_any(r->dir.data) && !r->o->resume && !r->o->fresh)
    return clv_fail(err, CLV_INVALID,
                    "%s holds checkpoints of an earlier run: --resume continues it, --fresh "
                    "starts over and keeps the old run if it is finished, --set name=... starts "
                    "another run",
                    r->dir.data);
  CLV_TRY(clv_run_compare_data(r, err));
  CLV_TRY(clv_run_check_finished(r, &r->is_finished, err));
  if (r->is_finished) return CLV_OK;
  CLV_TRY(clv_run_find_start(r, err));
  if (r->o->fresh && !r->o->resume) CLV_TRY(move_earlier_run_aside(r, err));
  CLV_TRY(clv_journal_open(r->dir.data, r->o->resume, stderr_notifier, &r->journal, err));
  CLV_TRY(clv_run_lock_begin(r->lock, &lock_info, err));
  return clv_run_write_key(r, err);
}

/* Prints the egress table, also to the journal, before anything is sent. */
static clv_code print_egress_table(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_blueprint_describe_egress(r->blueprint, false, &text);
  clv_bytes_puts(&json, "{\"event\":\"egress\",");
  clv_blueprint_describe_egress(r->blueprint, true, &json);
  clv_bytes_puts(&json, "}");
  if (text.failed || json.failed || !text.len) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  /* removes the last newline, because clv_report_notice adds one itself */
  text.data[text.len - 1] = '\0';
  clv_report_notice(r->journal, clv_run_has_json_output(r), text.data, json.data);
  return CLV_OK;
}

void clv_run_set_attempt_id(clv_run *r) {
  clv_run_lock_attempt_id(r->lock, r->effective_config.attempt.session_id,
                          &r->effective_config.attempt.attempt_number);
}

/* Prepares the run folder: takes the lock, runs the look (which measures what sent tensors show),
 * chooses the number of micro-batches, and writes egress table, session, digests and egress
 * record. */
static clv_code make_run_dir(clv_run *r, clv_err *err) {
  CLV_TRY(begin_run(r, err));
  if (r->is_finished) return CLV_OK;
  bool reads_stored_number = clv_run_has_stored_session(r);
  bool needs_trials = r->config->pipeline.micro_batches == CLV_MICRO_AUTO && !reads_stored_number;
  clv_run_print_start(r);
  clv_run_print_validation_split(r);
  CLV_TRY(clv_run_take_look_before_training(r, err));
  if (needs_trials)
    /* printed before the trials of clv_run_resolve_micro_batches, because these already send
     * tensors of this table, filled with random numbers */
    CLV_TRY(print_egress_table(r, err));
  CLV_TRY(clv_run_resolve_micro_batches(r, reads_stored_number, err));
  CLV_TRY(clv_run_write_classes(r, err));
  CLV_TRY(clv_run_write_learnt(r, err));
  if (r->o->resume) CLV_TRY(clv_run_compare_egress_table(r, err));
  CLV_TRY(print_egress_table(r, err));
  CLV_AUTO(clv_bytes_done) clv_bytes config = {0}, table = {0};
  clv_blueprint_append_egress_text(r->blueprint, &table);
  CLV_TRY(clv_session_config_write(r->config, &config, err));
  CLV_TRY(clv_run_write_file(r, "egress.table", &table, err));
  /* set now, because the micro-batch trials had session ids of their own */
  clv_run_set_attempt_id(r);
  CLV_TRY(clv_hmac_sha256(&r->secret, config.data, config.len,
                          &r->effective_config.attempt.config_digest, err));
  CLV_TRY(clv_run_print_changes(r, err));
  CLV_TRY(clv_run_write_data_digests(r, err));
  CLV_TRY(clv_run_write_file(r, "session.effective.yaml", &config, err));
  return clv_run_open_egress_record(r, "train", err);
}
/* ---- opening the run and its trainer --------------------------------------------------------- */

/* Returns true for failures caused by a worker, not by the contents of the run folder. */
static bool is_worker_failure(const clv_err *err) {
  return err->code == CLV_UNAVAILABLE || err->code == CLV_DEADLINE || err->code == CLV_BAD_ANSWER;
}

clv_exit_code clv_run_fail_setup(const clv_run *r, const clv_err *err) {
  bool has_no_checkpoint = r->o->resume && err->code == CLV_NOT_FOUND;
  clv_exit_code code = clv_run_fail(
      r, has_no_checkpoint ? CLV_EXIT_CHECKPOINT : clv_run_connect_exit_code(r, err), err);
  if (r->is_resumed && is_worker_failure(err))
    clv_run_warn(r, CLV_LOG_ERROR, "checkpoint",
                 "no step was taken, and the checkpoints are unchanged: train --resume continues "
                 "from the newest");
  return code;
}
clv_code clv_run_open_trainer(clv_run *r, clv_err *err) {
  clv_trainer_use use = r->is_resumed ? CLV_TRAINER_RESUMED_RUN : CLV_TRAINER_NEW_RUN;
  CLV_TRY(clv_run_lock_check_newest(r->lock, err));
  if (!r->metrics) CLV_TRY(clv_run_metrics_open(r->config, &r->metrics, err));
  CLV_TRY(clv_trainer_open(r->blueprint, r->egress_record, use, &r->trainer, err));
  clv_run_print_notices(r);
  if (r->profiler) clv_profiler_attach(r->profiler, r->trainer);
  return CLV_OK;
}

clv_exit_code clv_run_open(clv_run *r, clv_err *err) {
  clv_exit_code code = CLV_EXIT_OK;
  if (lock_resumed_run(r, err) != CLV_OK) return clv_run_fail_setup(r, err);
  if (clv_run_resolve_key(r, r->o->resume, err) != CLV_OK) return clv_run_fail_setup(r, err);
  if (clv_run_open_blueprint(r, true, CLV_SCAN_VALUES, err) != CLV_OK)
    return clv_run_fail(r, clv_run_setup_exit_code(err), err);
  if (!r->o->resume) code = clv_run_check_identity(r, false, err);
  if (code != CLV_EXIT_OK) return code;
  if (make_run_dir(r, err) != CLV_OK) return clv_run_fail_setup(r, err);
  if (r->is_finished) return CLV_EXIT_OK; /* a finished run connects to no worker */
  if (clv_run_escrow_open(r, err) != CLV_OK) return clv_run_fail_setup(r, err);
  if ((code = clv_run_check_identity(r, false, err)) != CLV_EXIT_OK) return code;
  if ((r->o->trace || r->o->profile) &&
      clv_profiler_new(r->o->trace, r->o->profile, &r->profiler, err) != CLV_OK)
    return clv_run_fail(r, CLV_EXIT_FAILED, err);
  return CLV_EXIT_OK;
}
/* ---- restoring a checkpoint ------------------------------------------------------------------ */

/* Returns the number of steps of the session. --max-steps does not change this number: the option
 * ends an attempt early, but not the run. */
static uint64_t count_session_steps(const clv_run *r, const clv_loader *loader) {
  const clv_train_config *c = &r->config->train;
  uint64_t n_steps = c->epochs * clv_loader_per_epoch(loader);
  return c->max_steps ? CLV_MIN(n_steps, c->max_steps) : n_steps;
}

/* Returns the last step of the round that contains `step`; both count from 1. Each epoch begins a
 * new round. */
static uint64_t find_round_end(const clv_run *r, uint64_t step) {
  uint64_t steps_per_round = clv_pipeline_steps_per_round(r->config),
           steps_per_epoch = clv_loader_per_epoch(r->steps.loader);
  if (!step || !steps_per_epoch) return step;
  uint64_t steps_before_epoch = (step - 1) / steps_per_epoch * steps_per_epoch,
           step_in_epoch = step - steps_before_epoch;
  uint64_t round_end = steps_before_epoch + CLV_MIN((step_in_epoch + steps_per_round - 1) /
                                                        steps_per_round * steps_per_round,
                                                    steps_per_epoch);
  return CLV_MIN(round_end, r->steps.n_session_steps);
}

static void print_first_step_after_resume(const clv_run *r, uint64_t step) {
  char text[120], json[80];
  snprintf(text, sizeof text, "resumed from the checkpoint of step %llu: the first step is %llu",
           (unsigned long long)step, (unsigned long long)step + 1);
  snprintf(json, sizeof json, "{\"event\":\"resumed\",\"step\":%llu}", (unsigned long long)step);
  clv_reporter_notice(r->reporter, text, json);
}

/* Opens the reporter, which writes step lines and event files and prints to the console. The first
 * call also notes in run.json that the attempt has started. */
static clv_code open_reporter(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes public_session = {0}, events = {0};
  clv_sha256 digest;
  uint64_t step = clv_trainer_step_count(r->trainer);
  CLV_TRY(clv_run_write_public_session(r->config, &public_session, &digest, err));
  CLV_TRY(clv_run_events_folder(r->config, &events, err));
  clv_report_options o = {.run_dir = r->dir.data,
                          .last_kept_step = step,
                          .is_resumed = r->is_resumed,
                          .steps_per_line = r->config->log.every,
                          .prints_json = clv_run_has_json_output(r),
                          .journal = r->journal,
                          .notifier = stderr_notifier,
                          .tensorboard_folder = events.data,
                          .session_text = public_session.data};
  clv_reporter_close(clv_steal(&r->reporter));
  CLV_TRY(clv_reporter_open(&o, &r->reporter, err));
  if (r->has_started) return CLV_OK;
  r->has_started = true;
  clv_run_lock_note_start(r->lock, step, r->steps.stop_step, &digest);
  clv_run_print_moved_folder(r);
  if (r->is_resumed && step < r->steps.stop_step) print_first_step_after_resume(r, step);
  return CLV_OK;
}

/* Restores the newest usable checkpoint. *ret_was_newer_refused: a newer checkpoint may exist that
 * could not be used. */
static clv_code restore_newest_checkpoint(clv_run *r, clv_train_position *ret,
                                          bool *ret_was_newer_refused, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  clv_code code = clv_trainer_restore(r->trainer, r->dir.data, ret, &notes, err);
  *ret_was_newer_refused = notes.len > 0 || code == CLV_DATA_LOSS || code == CLV_NOT_FOUND;
  clv_run_print_notes(r, "checkpoint", notes.data);
  return code;
}

/* Restores the newest checkpoint. If workers have lost files of newer checkpoints, and a sealed
 * copy is newer than the restored checkpoint, restores the copy. */
static clv_code restore_start_checkpoint(clv_run *r, clv_train_position *ret, clv_err *err) {
  bool was_newer_refused, has_copy;
  clv_err reason;
  if (clv_run_has_named_checkpoint(r)) return clv_run_restore_named_checkpoint(r, ret, err);
  clv_code code = restore_newest_checkpoint(r, ret, &was_newer_refused, err);
  if (!was_newer_refused) return code;
  uint64_t step = code == CLV_OK ? clv_trainer_step_count(r->trainer) : CLV_CHECKPOINT_NONE;
  if (clv_run_escrow_restore(r, step, &has_copy, &reason) != CLV_OK)
    return clv_fail(err, reason.code, "%s", reason.text);
  return has_copy ? restore_newest_checkpoint(r, ret, &was_newer_refused, err) : code;
}

/* Sets the position and the counts with which the loop begins: those of the restored checkpoint, or
 * zero in a new run. */
static clv_code find_start_position(clv_run *r, clv_err *err) {
  clv_train_position at = {0};
  if (r->is_resumed) CLV_TRY(restore_start_checkpoint(r, &at, err));
  /* If the user has accepted data with fewer records, the position may be behind the last record;
   * then the next epoch begins. */
  if (r->has_other_data && at.cursor.index >= r->data.train_rows.n)
    at.cursor = (clv_cursor){at.cursor.epoch + 1, 0};
  r->steps = (clv_run_steps){.cursor = at.cursor,
                             .n_skipped_in_a_row = at.n_skipped_in_a_row,
                             .n_bad_losses = at.n_bad_losses,
                             .n_bad_gradients = at.n_bad_gradients,
                             .early_stopping_state = at.early_stopping_state};
  return CLV_OK;
}

/* Opens the loader at r->steps.cursor, and sets the number of steps of session and attempt. */
static clv_code open_loader(clv_run *r, clv_err *err) {
  const clv_train_config *t = &r->config->train;
  clv_run_steps *l = &r->steps;
  uint64_t seed;
  CLV_TRY(clv_run_data_derive_seed(r->config, &seed, err));
  clv_batches_options bo = {.subset = &r->data.train_rows,
                            .batch_size = t->batch,
                            .shuffles = t->shuffle,
                            .sampling_sums = r->sampling_sums,
                            .drops_short_last = t->drop_last,
                            .seed = seed,
                            .epochs = t->epochs,
                            .start = l->cursor};
  CLV_TRY(clv_loader_new(r->data.train, &bo, &l->loader, err));
  l->n_session_steps = l->stop_step = count_session_steps(r, l->loader);
  clv_trainer_set_total_steps(r->trainer, l->n_session_steps);
  if (r->o->max_steps)
    l->stop_step = CLV_MIN(l->n_session_steps, find_round_end(r, r->o->max_steps));
  return CLV_OK;
}

clv_code clv_run_restore(clv_run *r, clv_err *err) {
  clv_run_steps *l = &r->steps;
  bool is_second_call = l->loader != NULL;
  r->is_resumed |= is_second_call;
  clv_loader_free(clv_steal(&l->loader));
  CLV_TRY(find_start_position(r, err));
  if (!is_second_call) CLV_TRY(clv_run_begin_cache(r, err));
  clv_run_read_best_checkpoint(r);
  l->restored_step = l->n_steps_done = clv_trainer_step_count(r->trainer);
  l->last_epoch = l->cursor.epoch - (l->cursor.epoch && !l->cursor.index);
  l->saved_step = r->is_resumed ? l->restored_step : UINT64_MAX;
  clv_run_reset_saving(r);
  CLV_TRY(open_loader(r, err));
  clv_run_metrics_attach(r->metrics, r->trainer, l->stop_step);
  CLV_TRY(open_reporter(r, err));
  return clv_run_escrow_start(r, err);
}
