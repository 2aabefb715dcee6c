/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run finds in its folder before it begins.
 */
#include <stdio.h>
#include <unistd.h>

#include "master/run/run_int.h"

static void batches_freep(clv_batches **b) { clv_batches_free(*b); }

/* Steps that this command is to reach; *ret_whole: those of the session. */
static clv_code wanted_steps(const clv_run *r, uint64_t *ret, uint64_t *ret_whole, clv_err *err) {
  const clv_train_config *t = &r->config->train;
  CLV_AUTO(batches_freep) clv_batches *b = NULL;
  const clv_batches_options o = {
      .subset = &r->data.train_rows, .batch = t->batch, .drop_last = t->drop_last};
  CLV_TRY(clv_batches_new(&o, &b, err));
  uint64_t steps = t->epochs * clv_batches_per_epoch(b);
  if (t->max_steps) steps = CLV_MIN(steps, t->max_steps);
  *ret_whole = steps;
  *ret = r->o->max_steps ? CLV_MIN(steps, r->o->max_steps) : steps;
  return CLV_OK;
}

static void print_done(clv_run *r, uint64_t step) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_bytes_printf(&text,
                   "the run in %s is finished after step %llu, and nothing was touched; a larger "
                   "train.epochs or train.max_steps goes on from there, --fresh begins anew and "
                   "keeps this one beside it",
                   r->dir.data, (unsigned long long)step);
  clv_bytes_printf(&json,
                   "{\"event\":\"finished\",\"step\":%llu,\"message\":", (unsigned long long)step);
  clv_bytes_json(&json, text.data ? text.data : "");
  clv_bytes_puts(&json, "}");
  if (!text.failed && !json.failed) clv_run_print_line(r, text.data, json.data);
}

/* Fewer records have fewer steps, and a run is not finished because its data shrank. */
static clv_code check_left(const clv_run *r, uint64_t step, uint64_t whole, clv_err *err) {
  size_t records = r->data.train_rows.n;
  if (!r->has_other_data || records >= r->records_before || step < whole) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the run in %s has %llu steps behind it, and train.epochs: %llu of the %zu "
                  "records that there are now (%llu before) are only %llu: nothing is left to "
                  "train; raise train.epochs",
                  r->dir.data, (unsigned long long)step,
                  (unsigned long long)r->config->train.epochs, records,
                  (unsigned long long)r->records_before, (unsigned long long)whole);
}

clv_code clv_run_check_done(clv_run *r, bool *ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  uint64_t wanted, whole;
  bool finished = clv_run_lock_is_finished(r->lock);
  if (!r->o->resume || (!finished && !r->has_other_data)) return CLV_OK;
  CLV_TRY(wanted_steps(r, &wanted, &whole, err));
  /* One that is damaged is made again. */
  if (clv_checkpoint_load_latest(r->dir.data, &c, NULL, NULL) != CLV_OK) return CLV_OK;
  uint64_t step = clv_checkpoint_manifest(c)->step;
  CLV_TRY(check_left(r, step, whole, err));
  *ret = finished && step >= wanted;
  if (*ret) print_done(r, step);
  return CLV_OK;
}

/* ---- where --resume goes on ------------------------------------------------------------------ */

/* What was lost is not made again by mistake: it may have taken days. */
static clv_code fail_lost(const clv_run *r, clv_err *err) {
  return clv_fail(
      err, CLV_NOT_FOUND,
      "run folder %s: no usable checkpoint, though run.json lists some: bring them back, "
      "or begin anew with --fresh",
      r->dir.data);
}

clv_code clv_run_find_start(clv_run *r, clv_err *err) {
  if (!r->o->resume) return CLV_OK;
  r->resumed = clv_checkpoint_has_manifest(r->dir.data);
  if (r->resumed) return clv_run_refuse_changes(r, err);
  if (clv_run_lock_has_checkpoint(r->lock)) return fail_lost(r, err);
  return clv_checkpoint_clear(r->dir.data, err); /* of one that was being written */
}

void clv_run_print_start(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  if (!r->o->resume || r->resumed) return;
  clv_bytes_printf(&text, "%s has no checkpoint yet: the run begins at step 1", r->dir.data);
  clv_bytes_puts(&json, "{\"event\":\"begins\",\"message\":");
  clv_bytes_json(&json, text.data ? text.data : "");
  clv_bytes_puts(&json, "}");
  if (!text.failed && !json.failed)
    clv_report_notice(r->journal, clv_run_has_json_output(r), text.data, json.data);
}

void clv_run_print_held_back(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_run_data_describe_held_back(r->config, &r->data, &text);
  if (!text.len) return;
  clv_bytes_printf(&json, "{\"event\":\"split\",\"training\":%zu,\"validation\":%zu,\"message\":",
                   r->data.train_rows.n, r->data.validation_rows.n);
  clv_bytes_json(&json, text.data ? text.data : "");
  clv_bytes_puts(&json, "}");
  if (!text.failed && !json.failed)
    clv_report_notice(r->journal, clv_run_has_json_output(r), text.data, json.data);
}

bool clv_run_has_stored_session(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  if (r->resumed) return true;
  clv_bytes_printf(&path, "%s/session.effective.yaml", r->dir.data);
  return r->o->resume && !path.failed && access(path.data, F_OK) == 0;
}

void clv_run_print_moved_folder(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  const char *aside = clv_run_lock_moved_folder(r->lock);
  if (!aside) return;
  clv_bytes_printf(&text, "the finished run that was here is in %s", aside);
  if (!text.failed) clv_reporter_notice(r->reporter, text.data, NULL);
}
