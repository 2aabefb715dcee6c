/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides when a training saves checkpoints. The loop calls clv_run_save_if_due after each round.
 * This function completes a checkpoint that workers have finished writing, and begins the next one
 * when checkpoint.every_steps or checkpoint.every says so. Only one checkpoint is in progress at a
 * time. clv_run_save_now waits until the checkpoint of the present step is complete: at the end of
 * a run, at an interrupt, and for the best checkpoint, because the next step would change the
 * weights that it stores.
 *
 * With `every: auto` the interval follows from the cost of the preceding checkpoint: the time in
 * which the master did not train, and the time by which steps were slower while workers wrote. The
 * interval begins when that checkpoint is complete.
 */
#include <stdio.h>
#include <string.h>

#include "master/run/run_int.h"

/* Limits of the interval with checkpoint.every: auto. */
#define MIN_CHECKPOINT_INTERVAL_NS (UINT64_C(10) * 1000000000)
#define MAX_CHECKPOINT_INTERVAL_NS (UINT64_C(30) * 60 * 1000000000)
enum {
  /* percent of the time that checkpoints may cost with `every: auto` */
  MAX_CHECKPOINT_TIME_PERCENT = 3,
  /* first rounds of an attempt, which take longer because they make plans and touch new memory */
  N_SLOW_FIRST_ROUNDS = 2
};

uint64_t clv_checkpoint_interval_ns(uint64_t cost_ns) {
  uint64_t interval_ns =
      cost_ns > UINT64_MAX / 100 ? UINT64_MAX : cost_ns * 100 / MAX_CHECKPOINT_TIME_PERCENT;
  return CLV_MIN(CLV_MAX(interval_ns, MIN_CHECKPOINT_INTERVAL_NS), MAX_CHECKPOINT_INTERVAL_NS);
}

/* Returns the time between two checkpoints; UINT64_MAX: no checkpoint is due by time. */
static uint64_t find_interval_ns(const clv_run *r) {
  uint64_t interval_ms = clv_session_checkpoint_every_ms(r->config);
  if (interval_ms) return interval_ms * 1000000;
  if (!clv_session_checkpoint_is_auto(r->config)) return UINT64_MAX;
  return clv_checkpoint_interval_ns(r->save_state.cost_ns);
}

/* ---- cost of a checkpoint -------------------------------------------------------------------- */

void clv_checkpoint_note_round(clv_run_save_state *s, bool is_saving, uint64_t ns) {
  if (s->n_rounds++ < N_SLOW_FIRST_ROUNDS) return;
  if (!is_saving)
    s->usual_round_ns = s->usual_round_ns ? (7 * s->usual_round_ns + ns) / 8 : ns;
  else if (ns > s->usual_round_ns)
    s->present_cost_ns += ns - s->usual_round_ns;
}

/* ---- saving one checkpoint ------------------------------------------------------------------- */

static clv_train_position current_position(const clv_run *r) {
  return (clv_train_position){.cursor = r->steps.cursor,
                              .n_skipped_in_a_row = r->steps.n_skipped_in_a_row,
                              .n_bad_losses = r->steps.n_bad_losses,
                              .n_bad_gradients = r->steps.n_bad_gradients,
                              .early_stopping_state = r->steps.early_stopping_state};
}

static clv_code begin_checkpoint(clv_run *r, clv_err *err) {
  clv_run_save_state *s = &r->save_state;
  const clv_train_position at = current_position(r);
  s->is_due = false;
  s->begin_ns = clv_now_ns();
  s->step = clv_trainer_step_count(r->trainer);
  CLV_TRY(clv_run_lock_check_newest(r->lock, err));
  /* syncs the files of step lines before the checkpoint begins, because a run that resumes from the
   * checkpoint needs the lines of all earlier steps */
  CLV_TRY(clv_reporter_sync(r->reporter, err));
  CLV_TRY(clv_trainer_begin_save(r->trainer, r->dir.data, &at, err));
  s->present_cost_ns = clv_now_ns() - s->begin_ns;
  return CLV_OK;
}

/* Notes the complete checkpoint of s->step in run.json and in the metrics. */
static void note_complete_checkpoint(clv_run *r) {
  clv_run_save_state *s = &r->save_state;
  r->steps.saved_step = s->step;
  s->cost_ns = s->present_cost_ns;
  /* the interval begins now, so that rounds without a checkpoint are measured even if the disk is
   * slow */
  if (clv_session_checkpoint_is_auto(r->config)) s->begin_ns = clv_now_ns();
  clv_run_lock_note_checkpoint(r->lock);
  clv_run_metrics_note_checkpoint(r->metrics, s->step, s->present_cost_ns);
}

/* Callback of clv_trainer_end_save: fails if another process has begun an attempt of this run. */
static clv_code check_newest_attempt(void *user, clv_err *err) {
  const clv_run *r = user;
  return clv_run_lock_check_newest(r->lock, err);
}

/* Completes the checkpoint in progress if its files are durable. waits_for_files: waits until the
 * files are durable. After a failure the next checkpoint is due at once. *ret (may be NULL): result
 * of the checkpoint. */
static clv_code finish_checkpoint(clv_run *r, bool waits_for_files, clv_save_result *ret,
                                  clv_err *err) {
  clv_run_save_state *s = &r->save_state;
  clv_save_result result;
  uint64_t begin_ns = clv_now_ns();
  const clv_save_end_options save_end = {.waits_for_files = waits_for_files,
                                         .step_to_keep = r->best_checkpoint.step,
                                         .check_before_rename = check_newest_attempt,
                                         .check_user = r};
  CLV_TRY(clv_trainer_end_save(r->trainer, &save_end, &result, err));
  s->present_cost_ns += clv_now_ns() - begin_ns;
  clv_run_print_notices(r);
  s->is_due |= result == CLV_SAVE_FAILED;
  if (ret) *ret = result;
  if (result == CLV_SAVE_DONE) note_complete_checkpoint(r);
  return CLV_OK;
}

static clv_code finish_checkpoint_in_progress(clv_run *r, bool waits_for_files, clv_err *err) {
  return clv_trainer_is_saving(r->trainer) ? finish_checkpoint(r, waits_for_files, NULL, err)
                                           : CLV_OK;
}

clv_code clv_run_save_now(clv_run *r, clv_err *err) {
  clv_save_result result = CLV_SAVE_FAILED;
  CLV_TRY(finish_checkpoint_in_progress(r, true, err));
  if (r->steps.saved_step == clv_trainer_step_count(r->trainer)) return CLV_OK;
  /* this loop ends, because after each failure fewer stages keep their files at workers */
  while (result == CLV_SAVE_FAILED) {
    CLV_TRY(begin_checkpoint(r, err));
    CLV_TRY(finish_checkpoint(r, true, &result, err));
  }
  return CLV_OK;
}

/* ---- checkpoints that the disk could not take ------------------------------------------------ */

/* Warns that the disk could not take a checkpoint, and removes its incomplete folder to free the
 * space. The run goes on. */
static void skip_checkpoint(const clv_run *r, const clv_err *reason) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *complete_checkpoint = NULL;
  char text[CLV_ERR_TEXT + 240], earlier_text[80] = "there is no earlier one";
  clv_err err;
  unsigned long long step = r->save_state.step, saved_step = r->steps.saved_step;
  if (r->steps.saved_step != UINT64_MAX && saved_step)
    snprintf(earlier_text, sizeof earlier_text, "the one of step %llu stays", saved_step);
  snprintf(text, sizeof text,
           "the checkpoint of step %llu could not be written: %s; %s, and the run goes on", step,
           reason->text, earlier_text);
  clv_run_warn(r, CLV_LOG_WARN, "checkpoint", text);
  if (clv_checkpoint_load_step(r->dir.data, r->save_state.step, &complete_checkpoint, NULL) !=
          CLV_OK &&
      clv_checkpoint_remove(r->dir.data, r->save_state.step, &err) != CLV_OK)
    clv_run_warn(r, CLV_LOG_WARN, "checkpoint", err.text);
}

/* Warns and returns CLV_OK if the disk did not take a checkpoint (CLV_PRECONDITION), because the
 * run can do without it. Returns any other code unchanged. */
static clv_code skip_checkpoint_if_disk_failed(const clv_run *r, clv_code code,
                                               const clv_err *err) {
  if (code != CLV_PRECONDITION) return code;
  skip_checkpoint(r, err);
  return CLV_OK;
}

clv_code clv_run_try_save_now(clv_run *r, clv_err *err) {
  return skip_checkpoint_if_disk_failed(r, clv_run_save_now(r, err), err);
}

/* ---- interval between checkpoints ------------------------------------------------------------ */

/* Returns true if a checkpoint is due: the round that began behind step `step_before` has reached a
 * multiple of every_steps, or the last checkpoint began at least checkpoint.every ago. */
static bool has_interval_passed(const clv_run *r, uint64_t step_before) {
  uint64_t step = clv_trainer_step_count(r->trainer),
           every_steps = r->config->checkpoint.every_steps;
  if (every_steps && step / every_steps != step_before / every_steps) return true;
  return clv_now_ns() - r->save_state.begin_ns >= find_interval_ns(r);
}

static clv_code save_if_due(clv_run *r, uint64_t step_before, uint64_t round_ns, clv_err *err) {
  clv_run_save_state *s = &r->save_state;
  clv_checkpoint_note_round(s, clv_trainer_is_saving(r->trainer), round_ns);
  s->is_due |= has_interval_passed(r, step_before);
  CLV_TRY(finish_checkpoint_in_progress(r, false, err));
  if (!s->is_due || clv_trainer_is_saving(r->trainer)) return CLV_OK;
  if (r->steps.saved_step == clv_trainer_step_count(r->trainer)) {
    s->is_due = false;
    return CLV_OK;
  }
  CLV_TRY(begin_checkpoint(r, err));
  return finish_checkpoint(r, false, NULL, err);
}

clv_code clv_run_save_if_due(clv_run *r, uint64_t step_before, uint64_t round_ns, clv_err *err) {
  return skip_checkpoint_if_disk_failed(r, save_if_due(r, step_before, round_ns, err), err);
}

void clv_run_reset_saving(clv_run *r) {
  r->save_state = (clv_run_save_state){.begin_ns = clv_now_ns(), .cost_ns = r->save_state.cost_ns};
}
