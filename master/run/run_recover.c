/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery of a training from the loss of a worker. The main function is clv_run_recover: `train`
 * calls it when the loop fails. clv_run_recover closes the trainer and connects to the workers
 * again with a higher epoch (number of the attempt), at which workers free the lost session. Then
 * it restores the newest checkpoint. A step depends only on the checkpoint and on the records that
 * follow it, so steps that are taken again give the same bits. Run folder, lock, journal, data and
 * blueprint stay open meanwhile.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "master/run/run_int.h"

enum {
  FIRST_RETRY_PAUSE_MS = 100,      /* pause before the second try; doubles up to recovery.wait */
  INTERRUPT_POLL_INTERVAL_MS = 50, /* interval at which a pause checks for an interrupt */
  FAILED_TRY_PRINT_INTERVAL_S = 60 /* seconds between two lines about tries that fail */
};

/* ---- causes for which a training fails ------------------------------------------------------- */

static bool is_interrupted(const clv_run *r) {
  return clv_ms_since_interrupt() || (r->o->interrupted && *r->o->interrupted);
}

/* Returns true if a worker or its link was lost. Data that were damaged in transit count as a loss
 * only the first time, because a connection that damages data again and again would otherwise keep
 * the run from ever ending. */
static bool is_worker_loss(clv_run *r, const clv_err *err) {
  if (is_interrupted(r)) return false;
  if (err->code == CLV_UNAVAILABLE)
    return !r->trainer || strcmp(clv_trainer_lost_worker(r->trainer), "master") != 0;
  if (err->code == CLV_DATA_LOSS && !r->recovery.has_had_damaged_data)
    return r->recovery.has_had_damaged_data = true;
  return err->code == CLV_DEADLINE;
}

/* Returns true if a later try to connect may succeed. UNAVAILABLE, DEADLINE: the worker restarts.
 * EXHAUSTED, EXISTS: the worker has not yet freed the earlier session. NOT_FOUND: the worker's host
 * name does not resolve while the network is down. ABORTED: the worker was restarted while the
 * master connected, unless another process has taken over the run. */
static bool may_be_temporary(const clv_run *r, const clv_err *err) {
  clv_err ignored_err;
  if (err->code == CLV_ABORTED) return clv_run_lock_check_newest(r->lock, &ignored_err) == CLV_OK;
  return err->code == CLV_UNAVAILABLE || err->code == CLV_DEADLINE || err->code == CLV_EXHAUSTED ||
         err->code == CLV_EXISTS || err->code == CLV_NOT_FOUND;
}

/* Checks that the policy of the host permits the weights and moments that a recovery sends. A run
 * without a checkpoint sends only the initial weights, which the policy has permitted already. */
static clv_code check_policy_permits_resume(const clv_run *r, clv_err *err) {
  const clv_planned_sends sends = clv_planned_sends_make(&r->data, CLV_COMMAND_RESUMES);
  return clv_checkpoint_has_manifest(r->dir.data)
             ? clv_blueprint_check_policy(r->blueprint, &sends, err)
             : CLV_OK;
}

/* Returns the step of the newest checkpoint; 0: the run has none. */
static uint64_t find_newest_checkpoint_step(const clv_run *r) {
  uint64_t step;
  return clv_checkpoint_steps_with_manifest(r->dir.data, &step, 1) ? step : 0;
}

/* Puts `prefix`, the reason why the failure `err` ends the run, in front of the text of `err`.
 * Returns the code of `err`. */
static clv_code prefix_reason(clv_err *err, const char *prefix) {
  return clv_err_prefix(err, "%s", prefix);
}

/* Counts the lost worker. Returns an error if the failure was no loss of a worker, or if the run
 * must not recover. */
static clv_code count_lost_worker(clv_run *r, clv_err *err) {
  clv_run_recovery *c = &r->recovery;
  char text[160];
  clv_err reason;
  if (r->config->recovery.use == CLV_RECOVERY_OFF || !is_worker_loss(r, err)) return err->code;
  if (check_policy_permits_resume(r, &reason) != CLV_OK) {
    char loss_text[CLV_ERR_TEXT];
    snprintf(loss_text, sizeof loss_text, "%s", err->text);
    return clv_fail(err, err->code,
                    "%.300s; the run does not recover, since its weights may not be "
                    "sent again: %.300s",
                    loss_text, reason.text);
  }
  uint64_t newest_step = find_newest_checkpoint_step(r);
  c->n_losses_since_checkpoint =
      c->checkpoint_step_at_last_loss == newest_step ? c->n_losses_since_checkpoint + 1 : 1;
  c->checkpoint_step_at_last_loss = newest_step;
  if (c->n_losses_since_checkpoint <= r->config->recovery.attempts) return CLV_OK;
  snprintf(text, sizeof text,
           "%llu losses in a row without a newer checkpoint, which is recovery.attempts",
           (unsigned long long)c->n_losses_since_checkpoint - 1);
  return prefix_reason(err, text);
}

/* ---- printing the recovery ------------------------------------------------------------------- */

/* Prints an event of the recovery, also to the journal. json_members: further members of the JSON
 * object, each with a comma before it. */
static void print_event(const clv_run *r, const char *event, const char *json_members,
                        const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  CLV_FAILPOINT("recovery.%s", event);
  clv_bytes_printf(&json, "{\"event\":\"%s\"%s,\"message\":", event, json_members);
  clv_bytes_add_json(&json, text);
  clv_bytes_puts(&json, "}");
  if (!json.failed) clv_report_notice(r->journal, clv_run_has_json_output(r), text, json.data);
}

static double seconds_since(uint64_t ns) { return (double)(clv_now_ns() - ns) * 1e-9; }

static void print_lost_worker(const clv_run *r, const clv_err *err) {
  char text[CLV_ERR_TEXT + 160], json_members[120], start_text[80] = "its beginning";
  uint64_t newest_step = r->recovery.checkpoint_step_at_last_loss;
  if (newest_step)
    snprintf(start_text, sizeof start_text, "the checkpoint of step %llu",
             (unsigned long long)newest_step);
  snprintf(text, sizeof text, "lost: %s; the run recovers and goes on from %s", err->text,
           start_text);
  snprintf(json_members, sizeof json_members, ",\"step\":%llu,\"checkpoint\":%llu",
           (unsigned long long)r->recovery.last_step, (unsigned long long)newest_step);
  print_event(r, "lost", json_members, text);
}

/* Prints that a try has failed: the first time, and once a minute. */
static void print_failed_try(clv_run *r, uint64_t n_tries, const clv_err *err) {
  clv_run_recovery *c = &r->recovery;
  char text[CLV_ERR_TEXT + 160], json_members[80];
  double remaining_s =
      (double)r->config->recovery.give_up_after_ms / 1e3 - seconds_since(c->worker_lost_at_ns);
  if (c->last_print_ns && seconds_since(c->last_print_ns) < FAILED_TRY_PRINT_INTERVAL_S) return;
  c->last_print_ns = clv_now_ns();
  snprintf(text, sizeof text,
           "not recovered yet: %s; it is tried for another %.0f s (recovery.give_up_after)",
           err->text, CLV_MAX(remaining_s, 0));
  snprintf(json_members, sizeof json_members, ",\"tries\":%llu,\"seconds_left\":%.0f",
           (unsigned long long)n_tries, CLV_MAX(remaining_s, 0));
  print_event(r, "waiting", json_members, text);
}

static void print_recovered(const clv_run *r) {
  char text[200], json_members[120], repeated_text[80] = "no step is taken again";
  unsigned long long from_step = clv_trainer_step_count(r->trainer), step = r->recovery.last_step;
  double recovery_s = seconds_since(r->recovery.worker_lost_at_ns);
  if (step > from_step)
    snprintf(
        repeated_text, sizeof repeated_text,
        step == from_step + 1 ? "step %llu is taken again" : "steps %llu to %llu are taken again",
        from_step + 1, step);
  snprintf(text, sizeof text, "recovered after %.1f s: %s", recovery_s, repeated_text);
  snprintf(json_members, sizeof json_members, ",\"step\":%llu,\"replayed\":%llu,\"seconds\":%.3f",
           from_step, step > from_step ? step - from_step : 0, recovery_s);
  print_event(r, "recovered", json_members, text);
}

void clv_run_write_failed_schedule(const clv_run *r, const clv_err *reason) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err ignored_err;
  if (reason->code != CLV_DEADLINE && reason->code != CLV_INTERNAL)
    /* writes no file, because a bad schedule can only cause a timeout or an internal error */
    return;
  clv_trainer_append_schedule_text(r->trainer, &text);
  if (!text.len || clv_run_write_file(r, "schedule.failed", &text, &ignored_err) != CLV_OK) return;
  text.len = 0;
  clv_bytes_printf(&text, "the schedule of the failed step is in %s/schedule.failed", r->dir.data);
  if (!text.failed) clv_run_warn(r, CLV_LOG_ERROR, "schedule", text.data);
}

/* ---- closing and opening the session --------------------------------------------------------- */

/* Closes the parts of the run that belong to the lost session. */
static void close_session(clv_run *r) {
  clv_run_metrics_detach(r->metrics);
  clv_reporter_close(clv_steal(&r->reporter));
  clv_loader_free(clv_steal(&r->steps.loader));
  clv_trainer_close(clv_steal(&r->trainer));
  CLV_FAILPOINT("recovery.close_session");
}

/* Raises the epoch of the run (the number of its attempt), begins an attempt in the egress record,
 * opens a trainer and restores the newest checkpoint. */
static clv_code open_session(clv_run *r, clv_err *err) {
  CLV_TRY(clv_run_lock_raise_epoch(r->lock, err));
  CLV_FAILPOINT("recovery.open_session");
  clv_run_set_attempt_id(r);
  r->is_resumed = clv_checkpoint_has_manifest(r->dir.data);
  clv_policy_begin_epoch(r->policy, 0);
  if (!r->egress_record) CLV_TRY(clv_run_open_egress_record(r, "train", err));
  clv_code code = clv_run_open_trainer(r, err);
  CLV_FAILPOINT("recovery.restore");
  if (code == CLV_OK) code = clv_run_restore(r, err);
  return code;
}

/* Waits `ms` milliseconds, or until the user interrupts the run. */
static void pause_unless_interrupted(const clv_run *r, uint64_t ms) {
  const struct timespec poll_interval = {.tv_nsec = INTERRUPT_POLL_INTERVAL_MS * 1000000L};
  uint64_t end_ns = clv_now_ns() + ms * 1000000;
  while (clv_now_ns() < end_ns && !is_interrupted(r)) nanosleep(&poll_interval, NULL);
}

static clv_code fail_after_last_try(const clv_run *r, uint64_t n_tries, clv_err *err) {
  char text[160];
  snprintf(text, sizeof text, "given up after %.0f s (recovery.give_up_after) and %llu tries",
           (double)r->config->recovery.give_up_after_ms / 1e3, (unsigned long long)n_tries);
  return prefix_reason(err, text);
}

/* ---- spares, workers that replace lost ones -------------------------------------------------- */

/* Finds the worker of the session file that the worker `name` stands for: `name` itself, or the
 * worker that `name` replaces as a spare. NULL: the found worker has no spares. */
static clv_remote_spec *find_lost_worker_with_spare(const clv_run *r, const char *name) {
  for (size_t i = 0; i < r->config->n_workers; i++) {
    clv_remote_spec *w = &r->config->workers[i];
    int worker_in_use = clv_session_worker_in_use(r->config, (int)i);
    if (w->spares.n && strcmp(r->config->workers[worker_in_use].name, name) == 0) return w;
  }
  return NULL;
}

static void print_replaced_worker(const clv_run *r, const char *lost_worker,
                                  const char *spare_worker) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, members = {0};
  clv_bytes_printf(
      &text,
      "replaced: worker '%s' could not be reached for %.0f s (recovery.replace_after), "
      "and '%s' takes its place",
      lost_worker, seconds_since(r->recovery.first_try_ns), spare_worker);
  clv_bytes_printf(&members, ",\"worker\":\"%s\",\"spare\":\"%s\"", lost_worker, spare_worker);
  if (!text.failed && !members.failed) print_event(r, "replaced", members.data, text.data);
}

/* Replaces a worker that the master could not reach for recovery.replace_after: gives its stages to
 * its next spare, or after the last spare to the worker of the session file again. */
static clv_code use_next_spare(clv_run *r, const char *lost_worker, clv_err *err) {
  clv_remote_spec *w = find_lost_worker_with_spare(r, lost_worker);
  double limit_s = (double)r->config->recovery.replace_after_ms / 1e3;
  if (!w || seconds_since(r->recovery.first_try_ns) < limit_s) return CLV_OK;
  w->spare_in_use = (w->spare_in_use + 1) % (w->spares.n + 1);
  print_replaced_worker(r, lost_worker,
                        w->spare_in_use ? w->spares.items[w->spare_in_use - 1] : w->name);
  r->recovery.first_try_ns = clv_now_ns();
  return clv_run_make_blueprint(r, err);
}

/* Tries to open the session until that succeeds or recovery.give_up_after has passed. An interrupt
 * ends the pause, and the next try fails at once. */
static clv_code retry_until_open(clv_run *r, clv_err *err) {
  uint64_t pause_ms = FIRST_RETRY_PAUSE_MS, limit_ms = r->config->recovery.give_up_after_ms;
  char lost_worker[CLEAVE_NAME + 1];
  r->recovery.first_try_ns = r->recovery.worker_lost_at_ns;
  for (uint64_t n_tries = 1;; n_tries++) {
    clv_code code = open_session(r, err);
    if (code == CLV_OK) return CLV_OK;
    clv_exit_code exit_code = clv_run_connect_exit_code(r, err);
    snprintf(lost_worker, sizeof lost_worker, "%s",
             r->trainer ? clv_trainer_lost_worker(r->trainer) : "");
    close_session(r);
    if (!may_be_temporary(r, err)) {
      r->recovery.exit_code = exit_code;
      return code;
    }
    if (seconds_since(r->recovery.worker_lost_at_ns) * 1e3 >= (double)limit_ms)
      return fail_after_last_try(r, n_tries, err);
    print_failed_try(r, n_tries, err);
    CLV_TRY(use_next_spare(r, lost_worker, err));
    pause_unless_interrupted(r, pause_ms);
    pause_ms = CLV_MIN(2 * pause_ms, r->config->recovery.wait_ms);
  }
}

static clv_code begin_recovery(clv_run *r, const clv_err *loss_err, clv_err *err) {
  char text[CLV_ERR_TEXT];
  snprintf(text, sizeof text, "%s", loss_err->text);
  r->recovery.worker_lost_at_ns = clv_now_ns();
  r->recovery.last_print_ns = 0;
  close_session(r);
  clv_run_close_egress_record(r, r->recovery.exit_code);
  return r->has_started ? clv_run_lock_begin_again(r->lock, r->recovery.exit_code, text, err)
                        : CLV_OK;
}

clv_code clv_run_recover(clv_run *r, clv_err *err) {
  r->recovery.exit_code = clv_run_exit_code(r, err);
  CLV_TRY(count_lost_worker(r, err));
  r->recovery.last_step = clv_trainer_step_count(r->trainer);
  print_lost_worker(r, err);
  clv_run_write_failed_schedule(r, err);
  clv_run_metrics_note_lost_worker(r->metrics);
  const clv_err loss_err = *err;
  CLV_TRY(begin_recovery(r, &loss_err, err));
  CLV_TRY(retry_until_open(r, err));
  clv_run_lock_note_recovery(r->lock, clv_trainer_step_count(r->trainer));
  print_recovered(r);
  clv_run_metrics_note_recovery(r->metrics, clv_now_ns() - r->recovery.worker_lost_at_ns);
  r->recovery.worker_lost_at_ns = 0;
  clv_run_remove_unneeded_files(r);
  return CLV_OK;
}

clv_code clv_run_wait_for_workers(clv_run *r, clv_err *err) {
  if (r->config->recovery.use == CLV_RECOVERY_OFF || !r->o->resume || is_interrupted(r) ||
      !may_be_temporary(r, err))
    return err->code;
  r->recovery.worker_lost_at_ns = clv_now_ns();
  close_session(r);
  print_failed_try(r, 1, err);
  pause_unless_interrupted(r, FIRST_RETRY_PAUSE_MS);
  CLV_TRY(retry_until_open(r, err));
  r->recovery.worker_lost_at_ns = 0;
  return CLV_OK;
}
