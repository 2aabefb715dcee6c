/* SPDX-License-Identifier: Apache-2.0
 *
 * The command train. clv_run_loop takes the steps. clv_run_train opens and restores the run
 * (run_open.c), calls the loop, recovers from the loss of a worker (run_recover.c), runs the test
 * and prints how to continue.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

/* number of consecutive steps, each skipped because its loss or a gradient was not finite, after
 * which the run fails as diverged */
enum { MAX_CONSECUTIVE_SKIPPED_STEPS = 20 };

/* ---- evaluations and steps of a training ----------------------------------------------------- */

/* Writes the result of an evaluation to evaluations.jsonl, the event files and run.json. */
static clv_code record_evaluation(clv_run *r, const char *set_name, const clv_step_result *e,
                                  uint64_t epoch, clv_err *err) {
  CLV_AUTO(clv_run_scores_free) clv_run_scores scores;
  bool has_accuracy = clv_run_has_accuracy(r);
  double accuracy = has_accuracy ? clv_step_accuracy(e) : NAN;
  CLV_TRY(clv_run_take_scores(r, e, strcmp(set_name, "test") == 0, &scores, err));
  clv_run_best best = {
      .step = clv_trainer_step_count(r->trainer), .loss = e->loss, .accuracy = accuracy};
  clv_evaluation evaluation = {.dataset = set_name,
                               .step = best.step,
                               .epoch = epoch,
                               .n_samples = e->samples,
                               .n_labelled = e->n_labelled != e->samples ? e->n_labelled : 0,
                               .loss = e->loss,
                               .accuracy = has_accuracy ? accuracy : -1,
                               .scores_json = scores.json.len ? scores.json.data : NULL,
                               .curves_json = scores.curves.len ? scores.curves.data : NULL,
                               .scalars = scores.scalars,
                               .n_scalars = scores.n};
  snprintf(best.evaluated_set, sizeof best.evaluated_set, "%s", set_name);
  clv_run_lock_note_evaluation(r->lock, &best);
  return clv_reporter_evaluation(r->reporter, &evaluation, err);
}

/* Prints an evaluation with the present step and epoch. is_last: the evaluation is the test of the
 * finished run, so the printed text omits step and epoch. */
static void print_evaluation(clv_run *r, const char *set_name, const clv_step_result *e,
                             uint64_t epoch, bool is_last) {
  char when[64] = "", json[64];
  unsigned long long step = clv_trainer_step_count(r->trainer), epoch_index = epoch;
  if (!is_last) snprintf(when, sizeof when, ", step %llu, epoch %llu", step, epoch_index + 1);
  snprintf(json, sizeof json, ",\"step\":%llu,\"epoch\":%llu", step, epoch_index);
  clv_run_print_eval(r, set_name, e, when, json);
}

/* Evaluates the validation records, and counts the result for early stopping. If it is the best so
 * far, saves a checkpoint and records it as the best. */
static clv_code validate_and_save_best(clv_run *r, uint64_t epoch, clv_err *err) {
  clv_step_result e;
  clv_best_checkpoint best;
  if (!r->data.validation_rows.n) return CLV_OK;
  CLV_TRY(clv_trainer_eval(r->trainer, r->data.train, &r->data.validation_rows, r->scores, &e, NULL,
                           err));
  print_evaluation(r, "validation", &e, epoch, false);
  CLV_TRY(record_evaluation(r, "validation", &e, epoch, err));
  /* counted before the checkpoint below is saved, because the checkpoint stores the count */
  clv_run_count_validation(r, &e);
  if (!clv_run_is_best_evaluation(r, &e, &best)) return CLV_OK;
  CLV_TRY(clv_run_try_save_now(r, err));
  bool is_saved = r->steps.saved_step == clv_trainer_step_count(r->trainer);
  return is_saved ? clv_run_write_best_checkpoint(r, &best, err) : CLV_OK;
}

static void count_step(clv_run_steps *l, const clv_step_result *s) {
  l->n_steps_done++;
  l->n_skipped_in_a_row = s->changed_weights ? 0 : l->n_skipped_in_a_row + 1;
  if (s->changed_weights)
    l->n_weight_changes++;
  else if (isfinite(s->loss))
    l->n_bad_gradients++;
  else
    l->n_bad_losses++;
}

/* Reports a step. sent_and_received_bytes: [0] bytes sent, [1] bytes received in the step. */
static clv_code report_step(clv_run *r, uint64_t epoch, uint64_t step, const clv_step_result *s,
                            const uint64_t sent_and_received_bytes[2], clv_err *err) {
  clv_progress p = {
      .step = step,
      .total_steps = r->steps.stop_step,
      .epoch = epoch,
      .loss = s->loss,
      .accuracy = clv_run_has_accuracy(r) && r->config->loss.worker < 0 && s->n_labelled
                      ? clv_step_accuracy(s)
                      : -1,
      .grad_norm = s->grad_norm,
      .lr = s->lr,
      .n_samples = s->samples,
      .wait_ns = s->wait_ns,
      .step_ns = s->step_ns,
      .step_bytes_up = sent_and_received_bytes[0],
      .step_bytes_down = sent_and_received_bytes[1],
      .changed_weights = s->changed_weights};
  clv_trainer_count_traffic(r->trainer, &p.bytes_up, &p.bytes_down);
  clv_run_lock_note_step(r->lock, step, p.loss, p.accuracy < 0 ? NAN : p.accuracy);
  clv_run_metrics_note_step(r->metrics, step, s);
  count_step(&r->steps, s);
  return clv_reporter_step(r->reporter, &p, err);
}

static void print_schedule_notice(clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  const char *text = clv_trainer_take_notice(r->trainer);
  if (!text) return;
  clv_bytes_puts(&json, "{\"event\":\"window\",\"message\":");
  clv_bytes_add_json(&json, text);
  clv_bytes_puts(&json, "}");
  clv_reporter_notice(r->reporter, text, json.data);
}

/* Returns true if the round ends with this batch, even if the round is not full. The decision
 * depends on the session only, not on interrupts or checkpoints, because the weights of an
 * asynchronous schedule depend on where its rounds end. */
static bool is_last_batch_of_round(const clv_run *r, const clv_batch *batch) {
  uint64_t step =
      clv_trainer_step_count(r->trainer) + clv_trainer_count_held_batches(r->trainer) + 1;
  return batch->is_last_of_epoch || step >= r->steps.n_session_steps;
}

/* Takes a step and reports it. Each step of a round is reported with the same number of bytes:
 * those of the round, divided by its steps. */
static clv_code take_step(clv_run *r, const clv_batch *batch, clv_err *err) {
  const clv_step_result *results;
  uint32_t n_steps_done;
  uint64_t step_before = clv_trainer_step_count(r->trainer), bytes_before[2], bytes_after[2];
  clv_trainer_count_traffic(r->trainer, &bytes_before[0], &bytes_before[1]);
  CLV_TRY(clv_trainer_step(r->trainer, batch, is_last_batch_of_round(r, batch), &n_steps_done,
                           &results, err));
  clv_trainer_count_traffic(r->trainer, &bytes_after[0], &bytes_after[1]);
  for (uint32_t i = 0; i < n_steps_done; i++) {
    const uint64_t sent_and_received_bytes[2] = {(bytes_after[0] - bytes_before[0]) / n_steps_done,
                                                 (bytes_after[1] - bytes_before[1]) / n_steps_done};
    CLV_TRY(report_step(r, batch->at.epoch, step_before + i + 1, &results[i],
                        sent_and_received_bytes, err));
  }
  if (n_steps_done && !clv_trainer_count_held_batches(r->trainer)) r->steps.cursor = batch->next;
  print_schedule_notice(r);
  clv_run_print_notices(r);
  clv_run_print_escrow_notes(r);
  if (r->steps.n_skipped_in_a_row < MAX_CONSECUTIVE_SKIPPED_STEPS) return CLV_OK;
  return clv_fail(err, CLV_RANGE,
                  "diverged: the gradients of the last %d steps were not finite; lower "
                  "train.optimizer.lr, which is %g, or set train.clip_grad_norm",
                  MAX_CONSECUTIVE_SKIPPED_STEPS, r->config->train.optimizer.lr);
}

/* Ends a round: validates at the end of an epoch, and saves a checkpoint if one is due.
 * step_before: the step at the begin of the round; round_ns: duration of the round in
 * nanoseconds. */
static clv_code end_round(clv_run *r, uint64_t step_before, uint64_t round_ns, bool is_end_of_epoch,
                          clv_err *err) {
  /* The validation comes before the checkpoint, because a run that stops between the two would
   * resume without this validation. */
  if (is_end_of_epoch) CLV_TRY(validate_and_save_best(r, r->steps.last_epoch, err));
  return clv_run_save_if_due(r, step_before, round_ns, err);
}

/* Removes older checkpoints for an attempt that was killed after its last checkpoint, before it
 * removed them. Does nothing if this attempt has taken steps. */
static clv_code prune_checkpoints_of_killed_attempt(const clv_run *r, clv_err *err) {
  if (!r->is_resumed || r->steps.n_steps_done != r->steps.restored_step) return CLV_OK;
  return clv_trainer_prune_checkpoints(r->trainer, r->dir.data, r->best_checkpoint.step, err);
}

clv_code clv_run_loop(clv_run *r, clv_err *err) {
  uint64_t step_before, round_begin_ns = clv_now_ns();
  while ((step_before = clv_trainer_step_count(r->trainer)) < r->steps.stop_step &&
         !clv_early_stopping_is_due(&r->steps.early_stopping_state, &r->config->train)) {
    clv_batch batch;
    CLV_TRY(clv_loader_next(r->steps.loader, &batch, err));
    if (!batch.n) break;
    if (batch.at.epoch != r->steps.last_epoch) clv_policy_begin_epoch(r->policy, 0);
    CLV_TRY(take_step(r, &batch, err));
    r->steps.last_epoch = batch.at.epoch;
    if (clv_trainer_count_held_batches(r->trainer)) continue;
    CLV_TRY(end_round(r, step_before, clv_now_ns() - round_begin_ns, batch.is_last_of_epoch, err));
    round_begin_ns = clv_now_ns();
    if (r->o->interrupted && *r->o->interrupted) break;
  }
  CLV_TRY(clv_run_save_now(r, err));
  return prune_checkpoints_of_killed_attempt(r, err);
}

static clv_code finish_profile(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (!r->profiler) return CLV_OK;
  if (r->o->profile) {
    clv_profiler_append_text(r->profiler, r->trainer, &text);
    clv_reporter_notice(r->reporter, text.data, NULL);
  }
  return clv_profiler_finish(r->profiler, err);
}

static bool is_stop_requested(const clv_run *r) {
  return r->o->interrupted && *r->o->interrupted == CLV_ASKED_TO_STOP;
}

/* Prints the step after which the user interrupted the run. Without a trainer, a recovery was in
 * progress, and the step is that of the newest checkpoint. */
static clv_exit_code print_interrupted(clv_run *r) {
  char text[512];
  const char *json =
      is_stop_requested(r) ? "{\"event\":\"stopped\"}" : "{\"event\":\"interrupted\"}";
  uint64_t step =
      r->trainer ? clv_trainer_step_count(r->trainer) : r->recovery.checkpoint_step_at_last_loss;
  snprintf(text, sizeof text, "%s after step %llu; --resume goes on from %s",
           is_stop_requested(r) ? "stopped" : "interrupted", (unsigned long long)step, r->dir.data);
  if (r->reporter)
    clv_reporter_notice(r->reporter, text, json);
  else
    clv_report_notice(r->journal, clv_run_has_json_output(r), text, json);
  return CLV_EXIT_INTERRUPTED;
}

/* Prints how many records were left out and how many steps were skipped. */
static void print_skipped_records_and_steps(clv_run *r) {
  char text[200], json[160];
  uint64_t n_skipped = r->steps.n_bad_losses + r->steps.n_bad_gradients;
  if (r->n_omitted_records) {
    snprintf(text, sizeof text,
             "%llu record%s were left out (data.non_finite: skip, data.broken: skip)",
             (unsigned long long)r->n_omitted_records, CLV_S(r->n_omitted_records));
    snprintf(json, sizeof json, "{\"event\":\"left_out\",\"records\":%llu}",
             (unsigned long long)r->n_omitted_records);
    clv_reporter_notice(r->reporter, text, json);
  }
  if (!n_skipped) return;
  snprintf(text, sizeof text,
           "%llu of %llu steps were skipped and changed no weight: %llu had a loss that was not "
           "finite, %llu a gradient",
           (unsigned long long)n_skipped, (unsigned long long)r->steps.n_steps_done,
           (unsigned long long)r->steps.n_bad_losses, (unsigned long long)r->steps.n_bad_gradients);
  snprintf(json, sizeof json,
           "{\"event\":\"skipped\",\"steps\":%llu,\"of\":%llu,\"loss\":%llu,\"gradient\":%llu}",
           (unsigned long long)n_skipped, (unsigned long long)r->steps.n_steps_done,
           (unsigned long long)r->steps.n_bad_losses, (unsigned long long)r->steps.n_bad_gradients);
  clv_reporter_notice(r->reporter, text, json);
}

/* Fails if no step of the run has changed the weights. */
static clv_code check_weights_changed(const clv_run_steps *l, clv_err *err) {
  uint64_t n_skipped = l->n_bad_losses + l->n_bad_gradients;
  if (l->restored_step || l->n_weight_changes || !n_skipped) return CLV_OK;
  return clv_fail(err, CLV_RANGE,
                  "diverged: none of the %llu steps changed the weights, since no loss or gradient "
                  "was finite; look for such values with `cleave-master check`, lower "
                  "train.optimizer.lr or set train.clip_grad_norm",
                  (unsigned long long)n_skipped);
}

/* Prints how the user can continue after a failure. The weights in the checkpoints of a diverged
 * run may already be too large. */
static void print_how_to_continue(const clv_run *r, clv_exit_code code) {
  char text[300];
  unsigned long long step = r->steps.saved_step;
  if (code == CLV_EXIT_DIVERGED && r->steps.saved_step == UINT64_MAX)
    snprintf(text, sizeof text,
             "there is no checkpoint yet: after that change, train --fresh starts over");
  else if (code == CLV_EXIT_DIVERGED)
    snprintf(text, sizeof text,
             "the checkpoint of step %llu is complete: after that change, train --resume continues "
             "from it; if it diverges again, its weights are too large already, and train --fresh "
             "starts over",
             step);
  else if (r->steps.saved_step == UINT64_MAX)
    snprintf(text, sizeof text,
             "there is no checkpoint yet: train --resume starts again at step 1");
  else if (step < r->steps.stop_step)
    snprintf(text, sizeof text,
             "the checkpoint of step %llu is complete: train --resume goes on from it", step);
  else
    snprintf(text, sizeof text,
             "the training is done, and its checkpoint of step %llu is complete: train --resume "
             "goes on with the test, eval and predict can use it",
             step);
  clv_run_warn(r, CLV_LOG_ERROR, "checkpoint", text);
}

static clv_exit_code fail_after_training(const clv_run *r, clv_exit_code code, const clv_err *err) {
  clv_run_fail(r, code, err);
  print_how_to_continue(r, code);
  return code;
}

static clv_exit_code finish_training(clv_run *r, clv_err *err) {
  char text[512];
  print_skipped_records_and_steps(r);
  if (finish_profile(r, err) != CLV_OK) return fail_after_training(r, CLV_EXIT_FAILED, err);
  if (r->o->interrupted && *r->o->interrupted) return print_interrupted(r);
  if (check_weights_changed(&r->steps, err) != CLV_OK)
    return clv_run_fail(r, CLV_EXIT_DIVERGED, err);
  clv_run_print_early_stopping(r);
  snprintf(text, sizeof text, "run files in %s", r->dir.data);
  clv_reporter_notice(r->reporter, text, NULL);
  if (r->data.test && clv_dataset_has_labels(r->data.test)) {
    clv_step_result e;
    while (clv_trainer_eval(r->trainer, r->data.test, &r->data.test_rows, r->scores, &e, NULL,
                            err) != CLV_OK)
      if (clv_run_recover(r, err) != CLV_OK)
        return fail_after_training(r, r->recovery.exit_code, err);
    print_evaluation(r, "test", &e, r->steps.last_epoch, true);
    if (record_evaluation(r, "test", &e, r->steps.last_epoch, err) != CLV_OK ||
        clv_run_write_worst_records(r, err) != CLV_OK)
      return fail_after_training(r, CLV_EXIT_FAILED, err);
  }
  return CLV_EXIT_OK;
}

static clv_exit_code fail_training(clv_run *r, const clv_err *err) {
  clv_exit_code code = r->recovery.exit_code;
  clv_run_escrow_stop(r);
  if (code == CLV_EXIT_INTERRUPTED && !r->trainer) return print_interrupted(r);
  print_skipped_records_and_steps(r);
  clv_reporter_close(clv_steal(&r->reporter));
  clv_run_fail(r, code, err);
  if (r->trainer) clv_run_write_failed_schedule(r, err);
  print_how_to_continue(r, code);
  return code;
}

/* Connects to the workers and restores the checkpoint. If the run resumes, and a worker cannot be
 * reached or is lost meanwhile, waits for the workers. Finally, with --resume, removes the files
 * that killed attempts have left at workers. */
static clv_code connect_and_restore(clv_run *r, clv_err *err) {
  clv_code code = clv_run_open_trainer(r, err);
  if (code == CLV_OK) code = clv_run_restore(r, err);
  if (code != CLV_OK) CLV_TRY(clv_run_wait_for_workers(r, err));
  if (r->o->resume) clv_run_remove_unneeded_files(r);
  return CLV_OK;
}

static clv_exit_code run_training(clv_run *r, clv_err *err) {
  clv_exit_code code = clv_run_open(r, err);
  if (code != CLV_EXIT_OK || r->is_finished) return code;
  if (connect_and_restore(r, err) != CLV_OK) return clv_run_fail_setup(r, err);
  while (clv_run_loop(r, err) != CLV_OK)
    if (clv_run_recover(r, err) != CLV_OK) return fail_training(r, err);
  clv_run_escrow_stop(r);
  return finish_training(r, err);
}

clv_exit_code clv_run_train(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = o};
  clv_err err;
  clv_exit_code code = r.exit_code = run_training(&r, &err);
  clv_run_end_cache(&r);
  clv_run_gather_at_end(&r);
  clv_run_status status = code == CLV_EXIT_OK            ? CLV_RUN_FINISHED
                          : code != CLV_EXIT_INTERRUPTED ? CLV_RUN_FAILED
                          : is_stop_requested(&r)        ? CLV_RUN_STOPPED
                                                         : CLV_RUN_INTERRUPTED;
  if (!r.has_started) clv_run_drop_egress_record(&r);
  clv_run_lock_end(r.lock, status, code, status == CLV_RUN_FAILED ? err.text : "");
  return code;
}
