/* SPDX-License-Identifier: Apache-2.0
 *
 * The command train. clv_run_open prepares the run folder and the trainer, clv_run_restore loads a
 * checkpoint, clv_run_loop takes the steps; clv_run_train calls all three, then runs the test and
 * prints how to continue. Programs in tests call the three functions one by one.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

/* Consecutive steps with gradients that are not finite, after which the run fails as diverged. */
enum { MAX_SKIPPED_STEPS = 20 };

/* ---- the run folder -------------------------------------------------------------------------- */

/* Journal errors go to standard error, since the journal itself has failed. */
static void print_to_stderr_only(void *user, const char *text) {
  (void)user;
  clv_notice(CLV_LOG_WARN, "notice", "%s", text);
}

static const clv_notifier stderr_notifier = {.notify = print_to_stderr_only};

/* Locks the run folder, unless the process holds it already; restores a run that a killed --fresh
 * had moved. The folder belongs to this process until clv_run_done. */
static clv_code lock_run_dir(clv_run *r, clv_err *err) {
  if (r->lock) return CLV_OK;
  clv_bytes_printf(&r->dir, "%s", r->config->checkpoint.dir);
  if (r->dir.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_run_lock_new(r->dir.data, &r->lock, err);
}

/* Locks the folder of a resumed run before its key is read, because another process may begin a run
 * there meanwhile. Other runs make their folder later, when everything else has been checked. */
static clv_code lock_resumed_run(clv_run *r, clv_err *err) {
  bool is_there = access(r->config->checkpoint.dir, F_OK) == 0;
  return r->o->resume && is_there ? lock_run_dir(r, err) : CLV_OK;
}

/* Decides whether the run is done, resumes or begins, and begins its journal and run.json. */
static clv_code begin_run(clv_run *r, clv_err *err) {
  const clv_run_lock_info what = {.name = r->config->name,
                                  .session = r->config->file,
                                  .resume = r->o->resume,
                                  .notice = {clv_run_on_notice, r}};
  CLV_TRY(lock_run_dir(r, err));
  if (clv_checkpoint_has_any(r->dir.data) && !r->o->resume && !r->o->fresh)
    return clv_fail(err, CLV_INVALID,
                    "%s holds checkpoints of an earlier run: --resume continues it, --fresh "
                    "starts over and keeps the old run if it is finished, --set name=... starts "
                    "another run",
                    r->dir.data);
  CLV_TRY(clv_run_compare_data(r, err));
  CLV_TRY(clv_run_check_done(r, &r->done, err));
  if (r->done) return CLV_OK;
  CLV_TRY(clv_run_find_start(r, err));
  if (r->o->fresh && !r->o->resume) CLV_TRY(clv_run_lock_make_room(r->lock, err));
  CLV_TRY(clv_journal_open(r->dir.data, r->o->resume, stderr_notifier, &r->journal, err));
  CLV_TRY(clv_run_lock_begin(r->lock, &what, err));
  return clv_run_write_key(r, err);
}

/* Prints the egress table, also to the journal, before anything is sent. */
static clv_code print_egress(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_blueprint_describe_egress(r->blueprint, false, &text);
  clv_bytes_puts(&json, "{\"event\":\"egress\",");
  clv_blueprint_describe_egress(r->blueprint, true, &json);
  clv_bytes_puts(&json, "}");
  if (text.failed || json.failed || !text.len) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  text.data[text.len - 1] = '\0'; /* the notice ends the line itself */
  clv_report_notice(r->journal, clv_run_has_json_output(r), text.data, json.data);
  return CLV_OK;
}

/* Sets the session id, attempt and digest that the master sends to workers. The trials before it
 * used separate sessions. */
static clv_code identify(clv_run *r, const clv_bytes *config, clv_err *err) {
  clv_attempt *a = &r->own.attempt;
  clv_run_lock_attempt_id(r->lock, a->session, &a->epoch);
  return clv_hmac_sha256(&r->secret, config->data, config->len, &a->config_digest, err);
}

/* Prepares the run folder: lock, look, micro-batches, egress table, session, digests and record. */
static clv_code make_run_dir(clv_run *r, clv_err *err) {
  CLV_TRY(begin_run(r, err));
  if (r->done) return CLV_OK;
  bool recalls = clv_run_has_stored_session(r);
  bool tries = r->config->pipeline.micro_batches == CLV_MICRO_AUTO && !recalls;
  clv_run_print_start(r);
  clv_run_print_held_back(r);
  CLV_TRY(clv_run_look_at_start(r, err));
  if (tries) CLV_TRY(print_egress(r, err)); /* the trials send random numbers under this table */
  CLV_TRY(clv_run_resolve_micro_batches(r, recalls, err));
  CLV_TRY(clv_run_write_classes(r, err));
  if (r->o->resume) CLV_TRY(clv_run_compare_table(r, err));
  CLV_TRY(print_egress(r, err));
  CLV_AUTO(clv_bytes_done) clv_bytes config = {0}, table = {0};
  clv_blueprint_egress_text(r->blueprint, &table);
  CLV_TRY(clv_session_config_write(r->config, &config, err));
  CLV_TRY(clv_run_write_file(r, "egress.table", &table, err));
  CLV_TRY(identify(r, &config, err));
  CLV_TRY(clv_run_print_changes(r, err));
  CLV_TRY(clv_run_write_data_digests(r, err));
  CLV_TRY(clv_run_write_file(r, "session.effective.yaml", &config, err));
  return clv_run_open_record(r, "train", err);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Returns the steps of the session. --max-steps is not part of it: the option ends an attempt early
 * but does not change the run. */
static uint64_t session_length(const clv_run *r, const clv_loader *loader) {
  const clv_train_config *c = &r->config->train;
  uint64_t total = c->epochs * clv_loader_per_epoch(loader);
  return c->max_steps ? CLV_MIN(total, c->max_steps) : total;
}

static clv_code save(clv_run *r, clv_err *err) {
  if (r->steps.saved_at == clv_trainer_step_count(r->trainer)) return CLV_OK;
  uint64_t begin = clv_now_ns();
  CLV_TRY(clv_trainer_save(r->trainer, r->dir.data, r->steps.cursor, r->best.step, err));
  r->steps.saved_at = clv_trainer_step_count(r->trainer);
  clv_run_lock_note_checkpoint(r->lock);
  clv_run_metrics_checkpoint(r->metrics, r->steps.saved_at, clv_now_ns() - begin);
  return CLV_OK;
}

/* Writes the result of an evaluation to evaluations.jsonl, the event files and run.json. */
static clv_code note_eval(clv_run *r, const char *what, const clv_step_result *e, uint64_t epoch,
                          clv_err *err) {
  CLV_AUTO(clv_run_scores_done) clv_run_scores scores;
  bool known = clv_run_has_accuracy(r);
  double accuracy = known ? clv_step_accuracy(e) : NAN;
  clv_run_take_scores(r, &scores);
  if (scores.json.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_run_best best = {
      .step = clv_trainer_step_count(r->trainer), .loss = e->loss, .accuracy = accuracy};
  clv_evaluation evaluation = {.what = what,
                               .step = best.step,
                               .epoch = epoch,
                               .samples = e->samples,
                               .places = e->labelled != e->samples ? e->labelled : 0,
                               .loss = e->loss,
                               .accuracy = known ? accuracy : -1,
                               .scores = scores.json.len ? scores.json.data : NULL,
                               .scalars = scores.scalars,
                               .n_scalars = scores.n};
  snprintf(best.what, sizeof best.what, "%s", what);
  clv_run_lock_note_evaluation(r->lock, &best);
  return clv_reporter_evaluation(r->reporter, &evaluation, err);
}

/* Prints an evaluation with the present step and epoch. last: the test of the finished run, whose
 * text names neither. */
static void print_eval(clv_run *r, const char *what, const clv_step_result *e, uint64_t epoch,
                       bool last) {
  char when[64] = "", json[64];
  unsigned long long step = clv_trainer_step_count(r->trainer), of = epoch;
  if (!last) snprintf(when, sizeof when, ", step %llu, epoch %llu", step, of + 1);
  snprintf(json, sizeof json, ",\"step\":%llu,\"epoch\":%llu", step, of);
  clv_run_print_eval(r, what, e, when, json);
}

/* Evaluates the validation records, and keeps the checkpoint of this step if it is the best. */
static clv_code validate(clv_run *r, uint64_t epoch, clv_err *err) {
  clv_step_result e;
  clv_best_checkpoint best;
  if (!r->data.validation_rows.n) return CLV_OK;
  CLV_TRY(clv_trainer_eval(r->trainer, r->data.train, &r->data.validation_rows, r->score, &e, NULL,
                           err));
  print_eval(r, "validation", &e, epoch, false);
  CLV_TRY(note_eval(r, "validation", &e, epoch, err));
  if (!clv_run_is_best(r, &e, &best)) return CLV_OK;
  CLV_TRY(save(r, err));
  return clv_run_write_best(r, &best, err);
}

static void count_step(clv_run_steps *l, const clv_step_result *s) {
  l->skipped = s->applied ? 0 : l->skipped + 1;
  if (s->applied)
    l->taken++;
  else if (isfinite(s->loss))
    l->bad_gradients++;
  else
    l->bad_losses++;
}

/* Reports a step. bytes: bytes sent and received in the step. */
static clv_code report_step(clv_run *r, uint64_t epoch, uint64_t step, const clv_step_result *s,
                            const uint64_t bytes[2], clv_err *err) {
  clv_progress p = {.step = step,
                    .total_steps = r->steps.total,
                    .epoch = epoch,
                    .loss = s->loss,
                    .accuracy = clv_run_has_accuracy(r) && r->config->loss.worker < 0 && s->labelled
                                    ? clv_step_accuracy(s)
                                    : -1,
                    .grad_norm = s->grad_norm,
                    .lr = s->lr,
                    .samples = s->samples,
                    .wait_ns = s->wait_ns,
                    .step_ns = s->step_ns,
                    .step_up = bytes[0],
                    .step_down = bytes[1],
                    .applied = s->applied};
  clv_trainer_traffic(r->trainer, &p.bytes_up, &p.bytes_down);
  clv_run_lock_note_step(r->lock, step, p.loss, p.accuracy < 0 ? NAN : p.accuracy);
  clv_run_metrics_step(r->metrics, step, s);
  count_step(&r->steps, s);
  return clv_reporter_step(r->reporter, &p, err);
}

static void print_notice(clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  const char *text = clv_trainer_take_notice(r->trainer);
  if (!text) return;
  clv_bytes_puts(&json, "{\"event\":\"window\",\"message\":");
  clv_bytes_json(&json, text);
  clv_bytes_puts(&json, "}");
  clv_reporter_notice(r->reporter, text, json.data);
}

/* Returns true if the round ends with this batch even if it is not full. The decision depends on
 * the session only, not on interrupts or checkpoints, because the weights of an asynchronous
 * schedule depend on where its rounds end. */
static bool must_flush(const clv_run *r, const clv_batch *batch) {
  uint64_t step = clv_trainer_step_count(r->trainer) + clv_trainer_n_held(r->trainer) + 1;
  return batch->last || step >= r->steps.session_steps;
}

/* Returns the last step of the round that contains step `step`, from 1. Each epoch begins a new
 * round. */
static uint64_t round_end(const clv_run *r, uint64_t step) {
  uint64_t round = clv_pipeline_steps_in_round(r->config),
           per_epoch = clv_loader_per_epoch(r->steps.loader);
  if (!step || !per_epoch) return step;
  uint64_t epoch = (step - 1) / per_epoch * per_epoch, within = step - epoch;
  uint64_t end = epoch + CLV_MIN((within + round - 1) / round * round, per_epoch);
  return CLV_MIN(end, r->steps.session_steps);
}

/* Takes a step and reports it. The steps of a round are reported with equal shares of the bytes. */
static clv_code one_step(clv_run *r, const clv_batch *batch, clv_err *err) {
  const clv_step_result *results;
  uint32_t done;
  uint64_t before = clv_trainer_step_count(r->trainer), from[2], to[2];
  clv_trainer_traffic(r->trainer, &from[0], &from[1]);
  CLV_TRY(clv_trainer_step(r->trainer, batch, must_flush(r, batch), &done, &results, err));
  clv_trainer_traffic(r->trainer, &to[0], &to[1]);
  for (uint32_t i = 0; i < done; i++) {
    const uint64_t bytes[2] = {(to[0] - from[0]) / done, (to[1] - from[1]) / done};
    CLV_TRY(report_step(r, batch->at.epoch, before + i + 1, &results[i], bytes, err));
  }
  if (done && !clv_trainer_n_held(r->trainer)) r->steps.cursor = batch->next;
  print_notice(r);
  clv_run_print_notices(r);
  if (r->steps.skipped < MAX_SKIPPED_STEPS) return CLV_OK;
  return clv_fail(err, CLV_RANGE,
                  "diverged: the gradients of the last %d steps were not finite; lower "
                  "train.optimizer.lr, which is %g, or set train.clip_grad_norm",
                  MAX_SKIPPED_STEPS, r->config->train.optimizer.lr);
}

/* Ends a round: validates at the end of an epoch, and saves a checkpoint if the round has passed a
 * multiple of every_steps. before: the step at the begin of the round. */
static clv_code end_round(clv_run *r, uint64_t before, bool epoch_ends, clv_err *err) {
  uint64_t step = clv_trainer_step_count(r->trainer), every = r->config->checkpoint.every_steps;
  /* Before save, because a run that stops between the two would resume without this validation. */
  if (epoch_ends) CLV_TRY(validate(r, r->steps.epoch, err));
  return every && step / every != before / every ? save(r, err) : CLV_OK;
}

clv_code clv_run_loop(clv_run *r, clv_err *err) {
  uint64_t before;
  while ((before = clv_trainer_step_count(r->trainer)) < r->steps.total) {
    clv_batch batch;
    CLV_TRY(clv_loader_next(r->steps.loader, &batch, err));
    if (!batch.n) break;
    if (batch.at.epoch != r->steps.epoch) clv_policy_begin_epoch(r->policy, 0);
    CLV_TRY(one_step(r, &batch, err));
    r->steps.epoch = batch.at.epoch;
    if (clv_trainer_n_held(r->trainer)) continue;
    CLV_TRY(end_round(r, before, batch.last, err));
    if (r->o->interrupted && *r->o->interrupted) break;
  }
  return save(r, err);
}

static void print_first_step(const clv_run *r, uint64_t step) {
  char text[120], json[80];
  snprintf(text, sizeof text, "resumed from the checkpoint of step %llu: the first step is %llu",
           (unsigned long long)step, (unsigned long long)step + 1);
  snprintf(json, sizeof json, "{\"event\":\"resumed\",\"step\":%llu}", (unsigned long long)step);
  clv_reporter_notice(r->reporter, text, json);
}

/* Opens the reporter: step lines, event files and the console. The first time also notes in
 * run.json that the attempt has started. */
static clv_code open_reporter(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes about = {0}, events = {0};
  clv_sha256 digest;
  uint64_t step = clv_trainer_step_count(r->trainer);
  CLV_TRY(clv_run_public_session(r->config, &about, &digest, err));
  CLV_TRY(clv_run_events_folder(r->config, &events, err));
  clv_report_options o = {.run_dir = r->dir.data,
                          .keep_step = step,
                          .resumed = r->resumed,
                          .steps_per_line = r->config->log.every,
                          .prints_json = clv_run_has_json_output(r),
                          .journal = r->journal,
                          .notice = stderr_notifier,
                          .tensorboard = events.data,
                          .session_text = about.data};
  clv_reporter_close(clv_steal(&r->reporter));
  CLV_TRY(clv_reporter_open(&o, &r->reporter, err));
  if (r->started) return CLV_OK;
  r->started = true;
  clv_run_lock_note_start(r->lock, step, r->steps.total, &digest);
  clv_run_print_moved_folder(r);
  if (r->resumed && step < r->steps.total) print_first_step(r, step);
  return CLV_OK;
}

/* Finds the position in the data at which the loop begins: that of the checkpoint, or the start. */
static clv_code find_start_position(clv_run *r, clv_cursor *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  *ret = (clv_cursor){0};
  if (r->resumed) {
    clv_code code = clv_trainer_restore(r->trainer, r->dir.data, ret, &notes, err);
    clv_run_print_notes(r, "checkpoint", notes.data);
    if (code != CLV_OK) return code;
  }
  /* If other data were accepted, the position may be behind their end: then the epoch is over. */
  if (r->has_other_data && ret->index >= r->data.train_rows.n)
    *ret = (clv_cursor){ret->epoch + 1, 0};
  return CLV_OK;
}

/* Opens the loader at the position, and sets the number of steps. */
static clv_code open_loader(clv_run *r, clv_err *err) {
  const clv_train_config *t = &r->config->train;
  clv_run_steps *l = &r->steps;
  uint64_t seed;
  CLV_TRY(clv_run_data_derive_seed(r->config, &seed, err));
  clv_batches_options bo = {.subset = &r->data.train_rows,
                            .batch = t->batch,
                            .shuffle = t->shuffle,
                            .drop_last = t->drop_last,
                            .seed = seed,
                            .epochs = t->epochs,
                            .start = l->cursor};
  CLV_TRY(clv_loader_new(r->data.train, &bo, &l->loader, err));
  l->session_steps = l->total = session_length(r, l->loader);
  clv_trainer_set_length(r->trainer, l->session_steps);
  if (r->o->max_steps) l->total = CLV_MIN(l->session_steps, round_end(r, r->o->max_steps));
  return CLV_OK;
}

clv_code clv_run_restore(clv_run *r, clv_err *err) {
  clv_run_steps *l = &r->steps;
  bool again = l->loader != NULL;
  r->resumed |= again;
  clv_loader_free(l->loader);
  *l = (clv_run_steps){0};
  CLV_TRY(find_start_position(r, &l->cursor, err));
  if (!again) CLV_TRY(clv_run_cache_begin(r, err));
  clv_run_read_best(r);
  l->first = clv_trainer_step_count(r->trainer);
  l->epoch = l->cursor.epoch - (l->cursor.epoch && !l->cursor.index);
  l->saved_at = r->resumed ? l->first : UINT64_MAX;
  CLV_TRY(open_loader(r, err));
  clv_run_metrics_attach(r->metrics, r->trainer, l->total);
  return open_reporter(r, err);
}

static clv_code finish_observing(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (!r->profiler) return CLV_OK;
  if (r->o->profile) {
    clv_profiler_text(r->profiler, r->trainer, &text);
    clv_reporter_notice(r->reporter, text.data, NULL);
  }
  return clv_profiler_finish(r->profiler, err);
}

static bool is_stopped(const clv_run *r) {
  return r->o->interrupted && *r->o->interrupted == CLV_ASKED_TO_STOP;
}

static clv_exit_code print_interrupted(clv_run *r) {
  char text[512];
  snprintf(text, sizeof text, "%s after step %llu; --resume goes on from %s",
           is_stopped(r) ? "stopped" : "interrupted",
           (unsigned long long)clv_trainer_step_count(r->trainer), r->dir.data);
  clv_reporter_notice(r->reporter, text,
                      is_stopped(r) ? "{\"event\":\"stopped\"}" : "{\"event\":\"interrupted\"}");
  return CLV_EXIT_INTERRUPTED;
}

/* Prints how many records were left out and how many steps were skipped. */
static void print_left_out(clv_run *r) {
  char text[200], json[160];
  uint64_t skipped = r->steps.bad_losses + r->steps.bad_gradients;
  if (r->left_out) {
    snprintf(text, sizeof text,
             "%llu record%s were left out (data.non_finite: skip, data.broken: skip)",
             (unsigned long long)r->left_out, CLV_S(r->left_out));
    snprintf(json, sizeof json, "{\"event\":\"left_out\",\"records\":%llu}",
             (unsigned long long)r->left_out);
    clv_reporter_notice(r->reporter, text, json);
  }
  if (!skipped) return;
  snprintf(text, sizeof text,
           "%llu of %llu steps were skipped and changed no weight: %llu had a loss that was not "
           "finite, %llu a gradient",
           (unsigned long long)skipped, (unsigned long long)(skipped + r->steps.taken),
           (unsigned long long)r->steps.bad_losses, (unsigned long long)r->steps.bad_gradients);
  snprintf(json, sizeof json,
           "{\"event\":\"skipped\",\"steps\":%llu,\"of\":%llu,\"loss\":%llu,\"gradient\":%llu}",
           (unsigned long long)skipped, (unsigned long long)(skipped + r->steps.taken),
           (unsigned long long)r->steps.bad_losses, (unsigned long long)r->steps.bad_gradients);
  clv_reporter_notice(r->reporter, text, json);
}

/* Fails if no step of the run has changed the weights. */
static clv_code check_learned(const clv_run_steps *l, clv_err *err) {
  uint64_t skipped = l->bad_losses + l->bad_gradients;
  if (l->first || l->taken || !skipped) return CLV_OK;
  return clv_fail(err, CLV_RANGE,
                  "diverged: none of the %llu steps changed the weights, since no loss or gradient "
                  "was finite; look for such values with `cleave-master check`, lower "
                  "train.optimizer.lr or set train.clip_grad_norm",
                  (unsigned long long)skipped);
}

/* Prints how the user can continue after a failure. The weights in the checkpoints of a diverged
 * run may already be too large. */
static void print_usable(const clv_run *r, clv_exit_code code) {
  char text[300];
  unsigned long long step = r->steps.saved_at;
  if (code == CLV_EXIT_DIVERGED && r->steps.saved_at == UINT64_MAX)
    snprintf(text, sizeof text,
             "there is no checkpoint yet: after that change, train --fresh starts over");
  else if (code == CLV_EXIT_DIVERGED)
    snprintf(text, sizeof text,
             "the checkpoint of step %llu is complete: after that change, train --resume continues "
             "from it; if it diverges again, its weights are too large already, and train --fresh "
             "starts over",
             step);
  else if (r->steps.saved_at == UINT64_MAX)
    snprintf(text, sizeof text,
             "there is no checkpoint yet: train --resume starts again at step 1");
  else if (step < r->steps.total)
    snprintf(text, sizeof text,
             "the checkpoint of step %llu is complete: train --resume goes on from it", step);
  else
    snprintf(text, sizeof text,
             "the training is done, and its checkpoint of step %llu is complete: train --resume "
             "goes on with the test, eval and predict can use it",
             step);
  clv_run_warn(r, CLV_LOG_ERROR, "checkpoint", text);
}

static clv_exit_code fail_finish(const clv_run *r, clv_exit_code code, const clv_err *err) {
  clv_run_fail(r, code, err);
  print_usable(r, code);
  return code;
}

static clv_exit_code finish(clv_run *r, clv_err *err) {
  char text[512];
  print_left_out(r);
  if (finish_observing(r, err) != CLV_OK) return fail_finish(r, CLV_EXIT_FAILED, err);
  if (r->o->interrupted && *r->o->interrupted) return print_interrupted(r);
  if (check_learned(&r->steps, err) != CLV_OK) return clv_run_fail(r, CLV_EXIT_DIVERGED, err);
  snprintf(text, sizeof text, "run files in %s", r->dir.data);
  clv_reporter_notice(r->reporter, text, NULL);
  if (r->data.test && clv_dataset_has_labels(r->data.test)) {
    clv_step_result e;
    if (clv_trainer_eval(r->trainer, r->data.test, &r->data.test_rows, r->score, &e, NULL, err) !=
        CLV_OK)
      return fail_finish(r, clv_run_exit_code(r, err), err);
    print_eval(r, "test", &e, r->steps.epoch, true);
    if (note_eval(r, "test", &e, r->steps.epoch, err) != CLV_OK)
      return fail_finish(r, CLV_EXIT_FAILED, err);
  }
  return CLV_EXIT_OK;
}

/* Writes the present schedule to schedule.failed after a timeout or an internal error, so that a
 * deadlock can be analysed. */
static void write_failed_schedule(const clv_run *r, const clv_err *why) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err ignored;
  if (why->code != CLV_DEADLINE && why->code != CLV_INTERNAL) return; /* not the schedule's fault */
  clv_trainer_schedule_text(r->trainer, &text);
  if (!text.len || clv_run_write_file(r, "schedule.failed", &text, &ignored) != CLV_OK) return;
  text.len = 0;
  clv_bytes_printf(&text, "the schedule of the failed step is in %s/schedule.failed", r->dir.data);
  if (!text.failed) clv_run_warn(r, CLV_LOG_ERROR, "schedule", text.data);
}

/* Returns true for failures caused by a worker, not by the contents of the run folder. */
static bool is_worker_failure(const clv_err *err) {
  return err->code == CLV_UNAVAILABLE || err->code == CLV_DEADLINE || err->code == CLV_BAD_ANSWER;
}

static clv_exit_code fail_setup(const clv_run *r, const clv_err *err) {
  bool nothing = r->o->resume && err->code == CLV_NOT_FOUND;
  clv_exit_code code =
      clv_run_fail(r, nothing ? CLV_EXIT_CHECKPOINT : clv_run_connect_exit_code(r, err), err);
  if (r->resumed && is_worker_failure(err))
    clv_run_warn(r, CLV_LOG_ERROR, "checkpoint",
                 "no step was taken, and the checkpoints are unchanged: train --resume continues "
                 "from the newest");
  return code;
}

static clv_exit_code fail_training(clv_run *r, const clv_err *err) {
  clv_exit_code code = clv_run_exit_code(r, err);
  print_left_out(r);
  clv_reporter_close(r->reporter);
  r->reporter = NULL;
  clv_run_fail(r, code, err);
  write_failed_schedule(r, err);
  print_usable(r, code);
  return code;
}

/* The profiler and the metrics port of the attempt, then the trainer with its workers. */
static clv_code open_trainer(clv_run *r, clv_err *err) {
  clv_trainer_use use = r->resumed ? CLV_TRAINER_RESUMES : CLV_TRAINER_BEGINS;
  CLV_TRY(clv_run_metrics_open(r->config, &r->metrics, err));
  CLV_TRY(clv_trainer_open(r->blueprint, r->record, use, &r->trainer, err));
  clv_run_print_notices(r);
  if (r->profiler) clv_profiler_attach(r->profiler, r->trainer);
  return CLV_OK;
}

clv_exit_code clv_run_open(clv_run *r, clv_err *err) {
  clv_exit_code code = CLV_EXIT_OK;
  if (lock_resumed_run(r, err) != CLV_OK) return fail_setup(r, err);
  if (clv_run_resolve_key(r, r->o->resume, err) != CLV_OK) return fail_setup(r, err);
  if (clv_run_open_blueprint(r, true, CLV_SCAN_VALUES, err) != CLV_OK)
    return clv_run_fail(r, clv_run_setup_exit_code(err), err);
  if (!r->o->resume) code = clv_run_check_identity(r, false, err);
  if (code != CLV_EXIT_OK) return code;
  if (make_run_dir(r, err) != CLV_OK) return fail_setup(r, err);
  if (r->done) return CLV_EXIT_OK; /* without a connection to any worker */
  if ((code = clv_run_check_identity(r, false, err)) != CLV_EXIT_OK) return code;
  if ((r->o->trace || r->o->profile) &&
      clv_profiler_new(r->o->trace, r->o->profile, &r->profiler, err) != CLV_OK)
    return clv_run_fail(r, CLV_EXIT_FAILED, err);
  return open_trainer(r, err) == CLV_OK ? CLV_EXIT_OK : fail_setup(r, err);
}

static clv_exit_code train(clv_run *r, clv_err *err) {
  clv_exit_code code = clv_run_open(r, err);
  if (code != CLV_EXIT_OK || r->done) return code;
  if (clv_run_restore(r, err) != CLV_OK) return fail_setup(r, err);
  if (clv_run_loop(r, err) != CLV_OK) return fail_training(r, err);
  return finish(r, err);
}

clv_exit_code clv_run_train(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = o};
  clv_err err;
  clv_exit_code code = r.code = train(&r, &err);
  clv_run_cache_end(&r);
  clv_run_status status = code == CLV_EXIT_OK            ? CLV_RUN_FINISHED
                          : code != CLV_EXIT_INTERRUPTED ? CLV_RUN_FAILED
                          : is_stopped(&r)               ? CLV_RUN_STOPPED
                                                         : CLV_RUN_INTERRUPTED;
  if (!r.started) clv_run_drop_record(&r);
  clv_run_lock_end(r.lock, status, code, status == CLV_RUN_FAILED ? err.text : "");
  return code;
}
