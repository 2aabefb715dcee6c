/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of a run, kept by the process that trains.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/history/history_int.h"

enum { TRIES = 8 }; /* the folder may be removed by whoever had it before */

struct clv_run_lock {
  char *dir;
  int lock;  /* held as long as it is open */
  bool made; /* the folder */
  bool begun, started, warned;
  bool made_room;
  char *aside; /* where what was there is; NULL: nothing was */
  bool keep_aside;
  clv_run_record record;
  clv_notifier notice;
};

/* ---- files ----------------------------------------------------------------------------------- */

static void record_path(const char *run_dir, clv_bytes *ret) {
  clv_bytes_printf(ret, "%s/run.json", run_dir);
}

clv_code clv_record_read(const char *run_dir, clv_run_record *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  record_path(run_dir, &path);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read(path.data, CLV_RECORD_MAX_BYTES, &text, err));
  return clv_run_record_parse(text.data, text.len, path.data, ret, err);
}

clv_code clv_record_write(const char *run_dir, const clv_run_record *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  record_path(run_dir, &path);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_run_record_format(r, &text, err));
  return clv_file_write_durable(path.data, text.data, text.len, 0644, err);
}

/* ---- the run lock ---------------------------------------------------------------------------- */

void clv_run_lock_free(clv_run_lock *c) {
  if (!c) return;
  clv_closep(&c->lock);
  clv_run_record_done(&c->record);
  free(c->aside);
  free(c->dir);
  free(c);
}

static void run_lock_freep(clv_run_lock **c) { clv_run_lock_free(*c); }

static clv_code fail_taken(const char *run_dir, long pid, clv_err *err) {
  char who[48] = "a process that cannot be seen from here";
  if (pid) snprintf(who, sizeof who, "process %ld", pid);
  return clv_fail(err, CLV_PRECONDITION,
                  "%s trains in %s already: `cleave-master stop %s` ends it after a checkpoint, "
                  "`log -f %s` follows it, --set name=... starts another run beside it",
                  who, run_dir, run_dir, run_dir);
}

static clv_code take(clv_run_lock *c, clv_err *err) {
  long pid = 0;
  c->made = access(c->dir, F_OK) != 0;
  if (clv_mkdirs(c->dir, err) != CLV_OK) return clv_err_prefix(err, "run.dir");
  clv_code code = clv_holder_lock(c->dir, &c->lock, &pid, err);
  return code == CLV_PRECONDITION ? fail_taken(c->dir, pid, err) : code;
}

clv_code clv_run_lock_new(const char *run_dir, clv_run_lock **ret, clv_err *err) {
  CLV_AUTO(run_lock_freep) clv_run_lock *c = NULL;
  clv_code code = CLV_NOT_FOUND;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->lock = -1;
  CLV_TRY(clv_strdup(run_dir, &c->dir, err));
  for (int i = 0; i < TRIES && code == CLV_NOT_FOUND; i++) code = take(c, err);
  CLV_TRY(code);
  CLV_TRY(clv_folder_bring_back(run_dir, err));
  *ret = clv_steal(&c);
  return CLV_OK;
}

/* ---- one run after another ------------------------------------------------------------------- */

bool clv_run_lock_is_finished(const clv_run_lock *c) {
  CLV_AUTO(clv_run_record_done) clv_run_record r = {0};
  return clv_record_read(c->dir, &r, NULL) == CLV_OK &&
         r.attempts[r.n_attempts - 1].status == CLV_RUN_FINISHED;
}

bool clv_run_lock_has_saved(const clv_run_lock *c) {
  CLV_AUTO(clv_run_record_done) clv_run_record r = {0};
  return clv_record_read(c->dir, &r, NULL) == CLV_OK && r.n_checkpoints > 0;
}

/* What nobody can tell is kept as well. */
static bool is_worth_keeping(const clv_run_lock *c) {
  CLV_AUTO(clv_run_record_done) clv_run_record r = {0};
  if (clv_record_read(c->dir, &r, NULL) != CLV_OK) return clv_checkpoint_any(c->dir);
  for (size_t i = 0; i < r.n_attempts; i++)
    if (r.attempts[i].status == CLV_RUN_FINISHED) return true;
  return r.earlier > 0;
}

clv_code clv_run_lock_make_room(clv_run_lock *c, clv_err *err) {
  c->keep_aside = is_worth_keeping(c);
  c->made_room = true;
  return clv_folder_move_aside(c->dir, &c->aside, err);
}

const char *clv_run_lock_aside(const clv_run_lock *c) { return c->keep_aside ? c->aside : NULL; }

/* From here on the folder is the new run's. */
static clv_code settle(clv_run_lock *c, clv_err *err) {
  if (!c->aside) return CLV_OK;
  CLV_TRY(clv_folder_settle(c->dir, err));
  if (c->keep_aside) return CLV_OK;
  CLV_TRY(clv_folder_remove(c->aside, err));
  return CLV_OK;
}

static clv_code undo(const clv_run_lock *c, clv_err *err) {
  if (c->made_room) CLV_TRY(clv_folder_bring_back(c->dir, err));
  return c->made ? clv_folder_remove(c->dir, err) : CLV_OK;
}

static clv_run_attempt *current(clv_run_lock *c) {
  return &c->record.attempts[c->record.n_attempts - 1];
}

static void write_or_warn(clv_run_lock *c) {
  clv_err err;
  if (clv_record_write(c->dir, &c->record, &err) == CLV_OK) return;
  if (!c->warned) clv_notify(c->notice, "the run's record: %s", err.text);
  c->warned = true;
}

static void list_checkpoints(clv_run_lock *c) {
  c->record.n_checkpoints =
      clv_checkpoint_steps(c->dir, c->record.checkpoints, CLV_RECORD_MAX_CHECKPOINTS);
}

/* What earlier attempts left is gone when the run begins afresh, or nobody can read it. */
static void recall(clv_run_lock *c, bool resume) {
  clv_err err;
  if (!resume) return;
  clv_code code = clv_record_read(c->dir, &c->record, &err);
  if (code != CLV_OK && code != CLV_NOT_FOUND)
    clv_notify(c->notice, "%s; the record of earlier attempts begins anew", err.text);
}

/* The session of a run stays, and each attempt has an epoch above the last one's. */
static clv_code next_epoch(clv_run_record *r, clv_err *err) {
  uint8_t id[16];
  if (!r->epoch || r->epoch >= INT64_MAX || !clv_hex_parse(r->id, id, sizeof id)) {
    CLV_TRY(clv_random_bytes(id, sizeof id, err));
    clv_hex(id, sizeof id, r->id);
    r->epoch = 0;
  }
  r->epoch++;
  return CLV_OK;
}

clv_code clv_run_lock_begin(clv_run_lock *c, const clv_run_lock_info *run, clv_err *err) {
  clv_run_attempt *a = NULL;
  CLV_AUTO(clv_freep) char *whole = realpath(run->session, NULL);
  c->notice = run->notice;
  recall(c, run->resume);
  CLV_TRY(next_epoch(&c->record, err));
  CLV_TRY(clv_run_record_add(&c->record, &a, err));
  snprintf(c->record.name, sizeof c->record.name, "%s", run->name);
  snprintf(c->record.session, sizeof c->record.session, "%s", whole ? whole : run->session);
  list_checkpoints(c);
  clv_holder_self(a);
  if (run->resume && c->record.n_checkpoints)
    a->from_step = a->step = c->record.checkpoints[0]; /* what an attempt that fails here keeps */
  a->began_ms = clv_wall_ms();
  c->begun = true;
  return clv_record_write(c->dir, &c->record, err);
}

void clv_run_lock_attempt(const clv_run_lock *c, uint8_t ret_session[16], uint64_t *ret_epoch) {
  if (clv_hex_parse(c->record.id, ret_session, 16)) *ret_epoch = c->record.epoch;
}

void clv_run_lock_look(clv_run_lock *c, const char *read) {
  if (!c || !c->begun) return;
  clv_run_attempt *a = current(c);
  snprintf(a->look, sizeof a->look, "%s", read);
  write_or_warn(c);
}

void clv_run_lock_started(clv_run_lock *c, uint64_t step, uint64_t total_steps,
                          const clv_sha256 *config) {
  clv_err err;
  if (!c || !c->begun) return;
  clv_run_attempt *a = current(c);
  c->started = true;
  if (settle(c, &err) != CLV_OK) clv_notify(c->notice, "the run before: %s", err.text);
  a->from_step = a->step = step;
  a->total_steps = total_steps;
  clv_sha256_hex(config, c->record.config_sha256);
  list_checkpoints(c);
  write_or_warn(c);
}

void clv_run_lock_step(clv_run_lock *c, uint64_t step, double loss, double accuracy) {
  if (!c || !c->begun) return;
  clv_run_attempt *a = current(c);
  a->step = step;
  a->loss = loss;
  a->accuracy = accuracy;
}

static bool is_better(const clv_run_best *now, const clv_run_best *then) {
  if (!then->what[0]) return true;
  if (!isnan(now->accuracy) && !isnan(then->accuracy) && now->accuracy != then->accuracy)
    return now->accuracy > then->accuracy;
  return now->loss < then->loss || isnan(then->loss);
}

/* A test is of other records than validations, so it does not compete with them: it is the best of
 * a run without validations alone. */
void clv_run_lock_evaluation(clv_run_lock *c, const clv_run_best *e) {
  if (!c || !c->begun) return;
  clv_run_best *best = &c->record.best;
  bool other = best->what[0] && strcmp(best->what, e->what) != 0;
  if (other ? strcmp(e->what, "validation") == 0 : is_better(e, best)) *best = *e;
}

void clv_run_lock_saved(clv_run_lock *c) {
  if (!c || !c->begun) return;
  list_checkpoints(c);
  write_or_warn(c);
}

void clv_run_lock_end(clv_run_lock *c, clv_run_status status, unsigned code, const char *text) {
  clv_err err;
  if (c && !c->started && (c->made || c->made_room)) {
    if (undo(c, &err) != CLV_OK) clv_notify(c->notice, "%s", err.text);
    return;
  }
  if (!c || !c->begun) return;
  clv_run_attempt *a = current(c);
  a->status = status;
  a->code = code;
  a->ended_ms = clv_wall_ms();
  snprintf(a->text, sizeof a->text, "%s", text);
  write_or_warn(c);
}
