/* SPDX-License-Identifier: Apache-2.0
 *
 * Training: the run folder, the loop over batches, and what is left behind at the end.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "master/run/run_int.h"

/* Steps in a row with gradients that are not finite, after which nothing will come of the run. */
enum { MAX_SKIPPED_STEPS = 20 };

/* ---- the run folder -------------------------------------------------------------------------- */

static clv_code write_in_run(const run *r, const char *name, const clv_bytes *text, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s", r->dir.data, name);
  return clv_file_write_durable(path.data, text->data ? text->data : "", text->len, 0644, err);
}

/* On resume, the table of what leaves must be the one the run began with, unless it is accepted. */
static clv_code compare_egress(const run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes now = {0}, then = {0}, path = {0};
  clv_blueprint_egress_text(r->blueprint, &now);
  clv_bytes_printf(&path, "%s/egress.table", r->dir.data);
  if (r->o->resume && clv_file_read(path.data, 1 << 20, &then, NULL) == CLV_OK &&
      strcmp(then.data, now.data ? now.data : "") != 0 && !r->o->accept_egress)
    return clv_fail(err, CLV_INVALID,
                    "what leaves the network has changed since this run began (%s); compare with "
                    "`cleave-master plan`, then pass --accept-egress to go on",
                    path.data);
  return write_in_run(r, "egress.table", &now, err);
}

/* Journal errors go to standard error, since the journal itself has failed. */
static void print_to_stderr_only(void *user, const char *text) {
  (void)user;
  clv_notice(CLV_LOG_WARN, "notice", "%s", text);
}

static const clv_notifier stderr_notifier = {.notify = print_to_stderr_only};

/* From here on the folder is this process's, and what becomes of the run is recorded there. */
static clv_code lock_run_dir(run *r, clv_err *err) {
  const clv_run_lock_info what = {.name = r->config->name,
                                  .session = r->config->file,
                                  .resume = r->o->resume,
                                  .notice = {clv_run_on_notice, r}};
  clv_bytes_printf(&r->dir, "%s", r->config->checkpoint.dir);
  if (r->dir.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_run_lock_new(r->dir.data, &r->lock, err));
  if (clv_checkpoint_any(r->dir.data) && !r->o->resume && !r->o->fresh)
    return clv_fail(err, CLV_INVALID,
                    "%s holds checkpoints of an earlier run: --resume goes on with it, --fresh "
                    "begins anew and keeps it beside if it is finished, --set name=... starts "
                    "another",
                    r->dir.data);
  CLV_TRY(clv_run_is_done(r, &r->done, err));
  if (r->done) return CLV_OK;
  if (r->o->fresh && !r->o->resume) CLV_TRY(clv_run_lock_make_room(r->lock, err));
  CLV_TRY(clv_journal_open(r->dir.data, r->o->resume, stderr_notifier, &r->journal, err));
  return clv_run_lock_begin(r->lock, &what, err);
}

/* micro_batches: auto becomes a number, once for a run and all that resume it. */
static clv_code settle_micro_batches(run *r, clv_err *err) {
  uint64_t m;
  if (r->config->pipeline.micro_batches != CLV_MICRO_AUTO) return CLV_OK;
  CLV_TRY(r->o->resume
              ? clv_recall_micro_batches(r->dir.data, &m, err)
              : clv_choose_micro_batches(r->blueprint, clv_run_json_lines(r), r->journal, &m, err));
  r->own = *r->config;
  r->own.pipeline.micro_batches = m;
  r->config = &r->own;
  CLV_TRY(clv_run_make_blueprint(r, err));
  return clv_pipeline_check(r->blueprint, err);
}

static clv_code make_run_dir(run *r, clv_err *err) {
  CLV_TRY(lock_run_dir(r, err));
  if (r->done) return CLV_OK;
  CLV_TRY(settle_micro_batches(r, err));
  CLV_TRY(clv_run_keep_classes(r, err));
  CLV_TRY(compare_egress(r, err));
  CLV_AUTO(clv_bytes_done) clv_bytes config = {0};
  CLV_TRY(clv_session_config_write(r->config, &config, err));
  return write_in_run(r, "session.effective.yaml", &config, err);
}

static clv_code log_egress(run *r, FILE *f, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  clv_trainer_egress_json(r->trainer, &line);
  if (fprintf(f, "%s\n", line.data) < 0 || fflush(f) != 0)
    return clv_fail(err, CLV_UNAVAILABLE, "egress.jsonl: %s", strerror(errno));
  return CLV_OK;
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct loop {
  clv_loader *loader;
  FILE *egress;
  uint64_t total, saved_at;
  uint64_t skipped; /* steps in a row that were not applied */
  uint64_t epoch;   /* of the last batch */
  clv_cursor cursor;
} loop;

static void loop_done(loop *l) {
  clv_loader_free(l->loader);
  if (l->egress) fclose(l->egress);
}

/* As the session states it: --max-steps stops a run early and does not make it another one. */
static uint64_t whole_length(const run *r, const clv_loader *loader) {
  const clv_train_config *c = &r->config->train;
  uint64_t total = c->epochs * clv_loader_per_epoch(loader);
  return c->max_steps ? CLV_MIN(total, c->max_steps) : total;
}

static clv_code save(run *r, loop *l, clv_err *err) {
  if (l->saved_at == clv_trainer_step_count(r->trainer)) return CLV_OK;
  CLV_TRY(log_egress(r, l->egress, err));
  uint64_t begin = clv_now_ns();
  CLV_TRY(clv_trainer_save(r->trainer, r->dir.data, l->cursor, r->best.step, err));
  l->saved_at = clv_trainer_step_count(r->trainer);
  clv_run_lock_saved(r->lock);
  clv_run_metrics_saved(r->metrics, l->saved_at, clv_now_ns() - begin);
  return CLV_OK;
}

/* Beside those of the steps: for programs, TensorBoard and the run's record. */
static clv_code note_eval(run *r, const char *what, const clv_step_result *e, uint64_t epoch,
                          clv_err *err) {
  bool known = clv_run_has_accuracy(r);
  double accuracy = known && e->samples ? (double)e->correct / (double)e->samples : NAN;
  clv_run_best best = {
      .step = clv_trainer_step_count(r->trainer), .loss = e->loss, .accuracy = accuracy};
  clv_evaluation evaluation = {.what = what,
                               .step = best.step,
                               .epoch = epoch,
                               .samples = e->samples,
                               .loss = e->loss,
                               .accuracy = known ? accuracy : -1};
  snprintf(best.what, sizeof best.what, "%s", what);
  clv_run_lock_evaluation(r->lock, &best);
  return clv_reporter_evaluation(r->reporter, &evaluation, err);
}

/* Of the step and the epoch that end now; the last line of a run is about all of it. */
static void print_eval(run *r, const char *what, const clv_step_result *e, uint64_t epoch,
                       bool last) {
  char when[64] = "", json[64];
  unsigned long long step = clv_trainer_step_count(r->trainer), of = epoch;
  if (!last) snprintf(when, sizeof when, ", step %llu, epoch %llu", step, of + 1);
  snprintf(json, sizeof json, ",\"step\":%llu,\"epoch\":%llu", step, of);
  clv_run_print_eval(r, what, e, when, json);
}

static clv_code validate(run *r, loop *l, uint64_t epoch, clv_err *err) {
  clv_step_result e;
  clv_best_checkpoint best;
  if (!r->data.validation_rows.n) return CLV_OK;
  CLV_TRY(clv_trainer_eval(r->trainer, r->data.train, &r->data.validation_rows, &e, NULL, err));
  print_eval(r, "validation", &e, epoch, false);
  CLV_TRY(note_eval(r, "validation", &e, epoch, err));
  if (!clv_run_is_best(r, &e, &best)) return CLV_OK;
  CLV_TRY(save(r, l, err));
  return clv_run_keep_best(r, &best, err);
}

/* bytes: of the step, up and down. */
static clv_code report_step(run *r, loop *l, uint64_t epoch, uint64_t step,
                            const clv_step_result *s, const uint64_t bytes[2], clv_err *err) {
  clv_progress p = {.step = step,
                    .total_steps = l->total,
                    .epoch = epoch,
                    .loss = s->loss,
                    .accuracy = clv_run_has_accuracy(r) && r->config->loss.worker < 0
                                    ? (double)s->correct / (double)s->samples
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
  clv_run_lock_step(r->lock, step, p.loss, p.accuracy < 0 ? NAN : p.accuracy);
  clv_run_metrics_step(r->metrics, step, s);
  l->skipped = s->applied ? 0 : l->skipped + 1;
  return clv_reporter_step(r->reporter, &p, err);
}

static void print_notice(run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  const char *text = clv_trainer_notice(r->trainer);
  if (!text) return;
  clv_bytes_puts(&json, "{\"event\":\"window\",\"message\":");
  clv_bytes_json(&json, text);
  clv_bytes_puts(&json, "}");
  clv_reporter_notice(r->reporter, text, json.data);
}

/* Whether stages have to be at the same step after this batch. */
static bool must_flush(const run *r, const loop *l, const clv_batch *batch) {
  uint64_t step = clv_trainer_step_count(r->trainer) + clv_trainer_waiting(r->trainer) + 1;
  uint64_t every = r->config->checkpoint.every_steps;
  return batch->last || step >= l->total || (every && step % every == 0) ||
         (r->o->interrupted && *r->o->interrupted);
}

/* The steps of a round share what travelled. */
static clv_code one_step(run *r, loop *l, const clv_batch *batch, clv_err *err) {
  const clv_step_result *results;
  uint32_t done;
  uint64_t before = clv_trainer_step_count(r->trainer), from[2], to[2];
  clv_trainer_traffic(r->trainer, &from[0], &from[1]);
  CLV_TRY(clv_trainer_step(r->trainer, batch, must_flush(r, l, batch), &done, &results, err));
  clv_trainer_traffic(r->trainer, &to[0], &to[1]);
  for (uint32_t i = 0; i < done; i++) {
    const uint64_t bytes[2] = {(to[0] - from[0]) / done, (to[1] - from[1]) / done};
    CLV_TRY(report_step(r, l, batch->at.epoch, before + i + 1, &results[i], bytes, err));
  }
  if (done && !clv_trainer_waiting(r->trainer)) l->cursor = batch->next;
  print_notice(r);
  clv_run_print_notices(r);
  if (l->skipped < MAX_SKIPPED_STEPS) return CLV_OK;
  return clv_fail(err, CLV_RANGE,
                  "diverged: the gradients of the last %d steps were not finite; lower "
                  "train.optimizer.lr or set train.clip_grad_norm",
                  MAX_SKIPPED_STEPS);
}

static clv_code train_loop(run *r, loop *l, clv_err *err) {
  while (clv_trainer_step_count(r->trainer) + clv_trainer_waiting(r->trainer) < l->total) {
    clv_batch batch;
    CLV_TRY(clv_loader_next(l->loader, &batch, err));
    if (!batch.n) break;
    CLV_TRY(one_step(r, l, &batch, err));
    uint64_t step = clv_trainer_step_count(r->trainer), every = r->config->checkpoint.every_steps;
    bool whole = !clv_trainer_waiting(r->trainer);
    l->epoch = batch.at.epoch;
    /* First, or a run that ends in between would go on without the validation. */
    if (batch.last) CLV_TRY(validate(r, l, l->epoch, err));
    if (every && step % every == 0 && whole) CLV_TRY(save(r, l, err));
    if (r->o->interrupted && *r->o->interrupted) break;
  }
  return save(r, l, err);
}

/* All that looks on from here. */
static clv_code open_reporter(run *r, const loop *l, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes about = {0}, events = {0};
  clv_sha256 digest;
  uint64_t step = clv_trainer_step_count(r->trainer);
  CLV_TRY(clv_run_public_session(r->config, &about, &digest, err));
  CLV_TRY(clv_run_events_folder(r->config, &events, err));
  clv_report_options o = {.run_dir = r->dir.data,
                          .keep_step = step,
                          .resumed = r->o->resume,
                          .every = r->config->log.every,
                          .json = clv_run_json_lines(r),
                          .journal = r->journal,
                          .notice = stderr_notifier,
                          .tensorboard = events.data,
                          .about = about.data};
  CLV_TRY(clv_reporter_open(&o, &r->reporter, err));
  clv_run_lock_started(r->lock, step, l->total, &digest);
  clv_run_print_aside(r);
  return CLV_OK;
}

static clv_code start(run *r, loop *l, clv_err *err) {
  CLV_TRY(clv_trainer_open(r->blueprint, &r->trainer, err));
  clv_run_print_notices(r);
  if (r->profiler) clv_profiler_attach(r->profiler, r->trainer);
  if (r->o->resume) {
    CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
    clv_code code = clv_trainer_restore(r->trainer, r->dir.data, &l->cursor, &notes, err);
    clv_run_print_notes(r, "checkpoint", notes.data);
    if (code != CLV_OK) return code;
  }
  clv_run_recall_best(r);
  l->epoch = l->cursor.epoch - (l->cursor.epoch && !l->cursor.index);
  l->saved_at = r->o->resume ? clv_trainer_step_count(r->trainer) : UINT64_MAX;
  const clv_train_config *t = &r->config->train;
  clv_batches_options bo = {.subset = &r->data.train_rows,
                            .batch = t->batch,
                            .shuffle = t->shuffle,
                            .drop_last = t->drop_last,
                            .seed = t->seed,
                            .epochs = t->epochs,
                            .start = l->cursor};
  CLV_TRY(clv_loader_new(r->data.train, &bo, &l->loader, err));
  l->total = whole_length(r, l->loader);
  clv_trainer_set_length(r->trainer, l->total);
  if (r->o->max_steps) l->total = CLV_MIN(l->total, r->o->max_steps);
  clv_run_metrics_attach(r->metrics, r->trainer, l->total);
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/egress.jsonl", r->dir.data);
  l->egress = fopen(path.data, r->o->resume ? "ae" : "we");
  if (!l->egress) return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
  return open_reporter(r, l, err);
}

static clv_code finish_observing(run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (!r->profiler) return CLV_OK;
  if (r->o->profile) {
    clv_profiler_text(r->profiler, r->trainer, &text);
    clv_reporter_notice(r->reporter, text.data, NULL);
  }
  return clv_profiler_finish(r->profiler, err);
}

static bool is_stopped(const run *r) {
  return r->o->interrupted && *r->o->interrupted == CLV_ASKED_TO_STOP;
}

static clv_exit print_interrupted(run *r) {
  char text[512];
  snprintf(text, sizeof text, "%s after step %llu; --resume goes on from %s",
           is_stopped(r) ? "stopped" : "interrupted",
           (unsigned long long)clv_trainer_step_count(r->trainer), r->dir.data);
  clv_reporter_notice(r->reporter, text,
                      is_stopped(r) ? "{\"event\":\"stopped\"}" : "{\"event\":\"interrupted\"}");
  return CLV_EXIT_INTERRUPTED;
}

static clv_exit finish(run *r, const loop *l, clv_err *err) {
  char text[512];
  if (finish_observing(r, err) != CLV_OK) return clv_run_fail(r, CLV_EXIT_FAILED, err);
  if (r->o->interrupted && *r->o->interrupted) return print_interrupted(r);
  snprintf(text, sizeof text, "run files in %s", r->dir.data);
  clv_reporter_notice(r->reporter, text, NULL);
  if (r->data.test && clv_dataset_has_labels(r->data.test)) {
    clv_step_result e;
    if (clv_trainer_eval(r->trainer, r->data.test, &r->data.test_rows, &e, NULL, err) != CLV_OK)
      return clv_run_fail(r, clv_run_exit(r, err), err);
    print_eval(r, "test", &e, l->epoch, true);
    if (note_eval(r, "test", &e, l->epoch, err) != CLV_OK)
      return clv_run_fail(r, CLV_EXIT_FAILED, err);
  }
  return CLV_EXIT_OK;
}

/* For whoever looks into what stopped: the instructions that were being run. */
static void leave_schedule(const run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err ignored;
  clv_trainer_schedule_text(r->trainer, &text);
  if (!text.len || write_in_run(r, "schedule.failed", &text, &ignored) != CLV_OK) return;
  text.len = 0;
  clv_bytes_printf(&text, "the schedule it ran is in %s/schedule.failed", r->dir.data);
  if (!text.failed) clv_run_warn(r, CLV_LOG_ERROR, "schedule", text.data);
}

static clv_exit fail_setup(const run *r, const clv_err *err) {
  bool nothing = r->o->resume && err->code == CLV_NOT_FOUND;
  return clv_run_fail(r, nothing ? CLV_EXIT_CHECKPOINT : clv_run_connect_exit(err), err);
}

static clv_exit fail_training(run *r, const loop *l, const clv_err *err) {
  char text[160];
  clv_exit code = clv_run_exit(r, err);
  clv_reporter_close(r->reporter);
  r->reporter = NULL;
  clv_run_fail(r, code, err);
  leave_schedule(r);
  if (l->saved_at == UINT64_MAX) return code;
  snprintf(text, sizeof text,
           "the checkpoint of step %llu is complete: train --resume goes on from it",
           (unsigned long long)l->saved_at);
  clv_run_warn(r, CLV_LOG_ERROR, "checkpoint", text);
  return code;
}

static clv_exit train(run *r, clv_err *err) {
  CLV_AUTO(loop_done) loop l = {0};
  if (make_run_dir(r, err) != CLV_OK) return fail_setup(r, err);
  if (r->done) return CLV_EXIT_OK;
  if ((r->o->trace || r->o->profile) &&
      clv_profiler_new(r->o->trace, r->o->profile, &r->profiler, err) != CLV_OK)
    return clv_run_fail(r, CLV_EXIT_FAILED, err);
  if (clv_run_metrics_open(r->config, &r->metrics, err) != CLV_OK) return fail_setup(r, err);
  if (start(r, &l, err) != CLV_OK) return fail_setup(r, err);
  if (train_loop(r, &l, err) != CLV_OK) return fail_training(r, &l, err);
  return finish(r, &l, err);
}

clv_exit clv_run_train(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_run_done) run r = {.config = config, .o = o};
  clv_err err;
  if (clv_run_open_blueprint(&r, true, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit(&err), &err);
  clv_exit code = train(&r, &err);
  clv_run_status status = code == CLV_EXIT_OK            ? CLV_RUN_FINISHED
                          : code != CLV_EXIT_INTERRUPTED ? CLV_RUN_FAILED
                          : is_stopped(&r)               ? CLV_RUN_STOPPED
                                                         : CLV_RUN_INTERRUPTED;
  clv_run_lock_end(r.lock, status, code, status == CLV_RUN_FAILED ? err.text : "");
  return code;
}
