/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides how a run starts, by the contents of its folder: clv_run_check_finished finds whether the
 * run is finished, clv_run_find_start whether it resumes from a checkpoint or begins. `train` calls
 * both after it has locked the folder. The other functions print how the run starts.
 */
#include <stdio.h>
#include <unistd.h>

#include "master/run/run_int.h"

static void batches_freep(clv_batches **b) { clv_batches_free(*b); }

/* Sets *ret_n_session_steps to the number of steps of the session, and *ret to the step at which
 * this command stops, which is earlier if --max-steps is smaller. */
static clv_code count_steps(const clv_run *r, uint64_t *ret, uint64_t *ret_n_session_steps,
                            clv_err *err) {
  const clv_train_config *t = &r->config->train;
  CLV_AUTO(batches_freep) clv_batches *b = NULL;
  const clv_batches_options o = {
      .subset = &r->data.train_rows, .batch_size = t->batch, .drops_short_last = t->drop_last};
  CLV_TRY(clv_batches_new(&o, &b, err));
  uint64_t n_steps = t->epochs * clv_batches_per_epoch(b);
  if (t->max_steps) n_steps = CLV_MIN(n_steps, t->max_steps);
  *ret_n_session_steps = n_steps;
  *ret = r->o->max_steps ? CLV_MIN(n_steps, r->o->max_steps) : n_steps;
  return CLV_OK;
}

static void print_finished_run(clv_run *r, uint64_t step, bool has_stopped_early) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_bytes_printf(
      &text,
      "the run in %s is finished after step %llu, and no file was changed; a larger "
      "%s continues it, --fresh starts over and keeps the finished run",
      r->dir.data, (unsigned long long)step,
      has_stopped_early ? "train.early_stopping.patience" : "train.epochs or train.max_steps");
  clv_bytes_printf(&json,
                   "{\"event\":\"finished\",\"step\":%llu,\"message\":", (unsigned long long)step);
  clv_bytes_add_json(&json, text.data ? text.data : "");
  clv_bytes_puts(&json, "}");
  if (!text.failed && !json.failed) clv_run_print_line(r, text.data, json.data);
}

/* Fails if the run has no step left to train because the data have fewer records now. A run that
 * stops for this reason does not count as finished. */
static clv_code check_steps_left(const clv_run *r, uint64_t step, uint64_t n_session_steps,
                                 clv_err *err) {
  size_t n_records = r->data.train_rows.n;
  if (!r->has_other_data || n_records >= r->n_records_at_begin || step < n_session_steps)
    return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the run in %s has done %llu steps, and train.epochs: %llu over the present %zu "
                  "records (%llu before) has only %llu: no step is left to "
                  "train; raise train.epochs",
                  r->dir.data, (unsigned long long)step,
                  (unsigned long long)r->config->train.epochs, n_records,
                  (unsigned long long)r->n_records_at_begin, (unsigned long long)n_session_steps);
}

clv_code clv_run_check_finished(clv_run *r, bool *ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  uint64_t n_command_steps, n_session_steps;
  bool is_finished = clv_run_lock_is_finished(r->lock);
  if (!r->o->resume || (!is_finished && !r->has_other_data)) return CLV_OK;
  CLV_TRY(count_steps(r, &n_command_steps, &n_session_steps, err));
  CLV_TRY(clv_run_check_named_checkpoint(r, err));
  /* If no checkpoint can be read, the run trains again, so it does not count as finished. */
  if (clv_run_load_start_checkpoint(r, &c, NULL) != CLV_OK) return CLV_OK;
  uint64_t step = clv_checkpoint_manifest(c)->step;
  CLV_TRY(check_steps_left(r, step, n_session_steps, err));
  clv_train_position position;
  clv_trainer_read_position(clv_checkpoint_state(c), &position);
  bool has_stopped_early =
      step < n_command_steps &&
      clv_early_stopping_is_due(&position.early_stopping_state, &r->config->train);
  *ret = is_finished && (step >= n_command_steps || has_stopped_early);
  if (*ret) print_finished_run(r, step, has_stopped_early);
  return CLV_OK;
}

/* ---- finding where --resume starts ----------------------------------------------------------- */

/* Fails because the run had checkpoints, and they are missing now. Starting at step 1 would
 * silently repeat work that may have taken days. */
static clv_code fail_missing_checkpoints(const clv_run *r, clv_err *err) {
  return clv_fail(err, CLV_NOT_FOUND,
                  "run folder %s: no usable checkpoint, though run.json lists some: restore them, "
                  "or start over with --fresh",
                  r->dir.data);
}

/* Restores the newest sealed copy (encrypted copy of a checkpoint) of the run. If there is none,
 * returns failed_code, and *err stays the error of the caller, which found no checkpoint. */
static clv_code restore_sealed_copy(clv_run *r, clv_code failed_code, clv_err *err) {
  bool was_restored;
  clv_err reason;
  clv_code code = clv_run_escrow_open(r, &reason);
  if (code == CLV_OK) code = clv_run_escrow_restore(r, CLV_CHECKPOINT_NONE, &was_restored, &reason);
  if (code != CLV_OK) return clv_fail(err, reason.code, "%s", reason.text);
  if (!was_restored) return failed_code;
  r->is_resumed = true;
  return clv_run_refuse_changes(r, err);
}

clv_code clv_run_find_start(clv_run *r, clv_err *err) {
  if (!r->o->resume) return CLV_OK;
  CLV_TRY(clv_run_check_named_checkpoint(r, err));
  r->is_resumed = clv_checkpoint_has_manifest(r->dir.data);
  if (r->is_resumed) {
    clv_code code = clv_run_refuse_changes(r, err);
    return code == CLV_NOT_FOUND ? restore_sealed_copy(r, code, err) : code;
  }
  if (clv_run_lock_has_checkpoint(r->lock))
    return restore_sealed_copy(r, fail_missing_checkpoints(r, err), err);
  return clv_checkpoint_remove_all(r->dir.data, err); /* files of an incomplete first checkpoint */
}

void clv_run_print_start(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  if (!r->o->resume || r->is_resumed) return;
  clv_bytes_printf(&text, "%s has no checkpoint yet: the run begins at step 1", r->dir.data);
  clv_bytes_puts(&json, "{\"event\":\"begins\",\"message\":");
  clv_bytes_add_json(&json, text.data ? text.data : "");
  clv_bytes_puts(&json, "}");
  if (!text.failed && !json.failed)
    clv_report_notice(r->journal, clv_run_has_json_output(r), text.data, json.data);
}

void clv_run_print_validation_split(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_run_data_describe_held_back(r->config, &r->data, &text);
  if (!text.len) return;
  clv_bytes_printf(&json, "{\"event\":\"split\",\"training\":%zu,\"validation\":%zu,\"message\":",
                   r->data.train_rows.n, r->data.validation_rows.n);
  clv_bytes_add_json(&json, text.data ? text.data : "");
  clv_bytes_puts(&json, "}");
  if (!text.failed && !json.failed)
    clv_report_notice(r->journal, clv_run_has_json_output(r), text.data, json.data);
}

bool clv_run_has_stored_session(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  if (r->is_resumed) return true;
  clv_bytes_printf(&path, "%s/session.effective.yaml", r->dir.data);
  return r->o->resume && !path.failed && access(path.data, F_OK) == 0;
}

void clv_run_print_moved_folder(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  const char *moved_folder = clv_run_lock_moved_folder(r->lock);
  if (!moved_folder) return;
  clv_bytes_printf(&text, "the finished run that was here is in %s", moved_folder);
  if (!text.failed) clv_reporter_notice(r->reporter, text.data, NULL);
}
