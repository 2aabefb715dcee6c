/* SPDX-License-Identifier: Apache-2.0
 *
 * The run lock: the lock and the record (run.json) of the process that trains. history.h describes
 * the order of the calls. Every write of the record replaces the file durably.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/history/history_int.h"

/* most tries to lock a folder, which its previous holder may be removing */
enum { MAX_LOCK_TRIES = 8 };

struct clv_run_lock {
  char *dir;
  int lock_fd;                /* descriptor of run.lock; the lock lasts until it is closed */
  bool has_made_folder;       /* this process created `dir` */
  bool has_begun;             /* clv_run_lock_begin has recorded the attempt */
  bool has_started;           /* clv_run_lock_note_start was called */
  bool has_warned;            /* a failed write of the record was reported */
  bool has_moved_earlier_run; /* clv_run_lock_move_earlier_run was called */
  char *moved_to_folder;      /* folder with the files of the earlier run; NULL: none were moved */
  /* the earlier run stays in moved_to_folder; false: it is deleted when the new run starts */
  bool keeps_earlier_run;
  clv_run_record record;
  clv_notifier notifier;
};

/* ---- reading and writing run.json ------------------------------------------------------------ */

static void append_record_path(const char *run_dir, clv_bytes *ret) {
  clv_bytes_printf(ret, "%s/run.json", run_dir);
}

clv_code clv_run_record_read(const char *run_dir, clv_run_record *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  append_record_path(run_dir, &path);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read(path.data, CLV_RECORD_MAX_BYTES, &text, err));
  return clv_run_record_parse(text.data, text.len, path.data, ret, err);
}

clv_code clv_run_record_write(const char *run_dir, const clv_run_record *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  append_record_path(run_dir, &path);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_run_record_format(r, &text, err));
  return clv_file_write_durable(path.data, text.data, text.len, 0644, err);
}

/* ---- taking and releasing the run lock ------------------------------------------------------- */

void clv_run_lock_free(clv_run_lock *c) {
  if (!c) return;
  clv_fd_closep(&c->lock_fd);
  clv_run_record_clear(&c->record);
  free(c->moved_to_folder);
  free(c->dir);
  free(c);
}

static void run_lock_freep(clv_run_lock **c) { clv_run_lock_free(*c); }

static clv_code fail_in_use(const char *run_dir, long pid, clv_err *err) {
  char holder_text[48] = "a process that cannot be seen from here";
  if (pid) snprintf(holder_text, sizeof holder_text, "process %ld", pid);
  return clv_fail(err, CLV_PRECONDITION,
                  "%s trains in %s already: `cleave-master stop %s` ends it after a checkpoint, "
                  "`log -f %s` follows it, --set name=... starts another run beside it",
                  holder_text, run_dir, run_dir, run_dir);
}

static clv_code lock_folder(clv_run_lock *c, clv_err *err) {
  long pid = 0;
  c->has_made_folder = access(c->dir, F_OK) != 0;
  if (clv_mkdirs(c->dir, err) != CLV_OK) return clv_err_prefix(err, "run.dir");
  clv_code code = clv_run_folder_lock(c->dir, &c->lock_fd, &pid, err);
  return code == CLV_PRECONDITION ? fail_in_use(c->dir, pid, err) : code;
}

clv_code clv_run_lock_new(const char *run_dir, clv_run_lock **ret, clv_err *err) {
  CLV_AUTO(run_lock_freep) clv_run_lock *c = NULL;
  clv_code code = CLV_NOT_FOUND;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->lock_fd = -1;
  CLV_TRY(clv_strdup(run_dir, &c->dir, err));
  for (int i = 0; i < MAX_LOCK_TRIES && code == CLV_NOT_FOUND; i++) code = lock_folder(c, err);
  CLV_TRY(code);
  CLV_TRY(clv_run_folder_undo_move(run_dir, err));
  *ret = clv_steal(&c);
  return CLV_OK;
}

/* ---- making room for a new run --------------------------------------------------------------- */

bool clv_run_lock_is_finished(const clv_run_lock *c) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  return clv_run_record_read(c->dir, &r, NULL) == CLV_OK &&
         r.attempts[r.n_attempts - 1].status == CLV_RUN_FINISHED;
}

bool clv_run_lock_has_checkpoint(const clv_run_lock *c) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  return clv_run_record_read(c->dir, &r, NULL) == CLV_OK && r.n_checkpoints > 0;
}

/* True if the earlier run finished at least once, so that it is kept. Also true if the record omits
 * old attempts, or cannot be read while there are checkpoints, because then the run may have
 * finished. */
static bool is_worth_keeping(const clv_run_lock *c) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  if (clv_run_record_read(c->dir, &r, NULL) != CLV_OK) return clv_checkpoint_has_any(c->dir);
  for (size_t i = 0; i < r.n_attempts; i++)
    if (r.attempts[i].status == CLV_RUN_FINISHED) return true;
  return r.n_earlier > 0;
}

clv_code clv_run_lock_move_earlier_run(clv_run_lock *c, clv_err *err) {
  c->keeps_earlier_run = is_worth_keeping(c);
  c->has_moved_earlier_run = true;
  return clv_run_folder_move_aside(c->dir, &c->moved_to_folder, err);
}

const char *clv_run_lock_moved_folder(const clv_run_lock *c) {
  return c->keeps_earlier_run ? c->moved_to_folder : NULL;
}

/* Completes the move of the earlier run, which can then not be undone. Deletes that run unless it
 * is worth keeping. */
static clv_code commit_move_of_earlier_run(clv_run_lock *c, clv_err *err) {
  if (!c->moved_to_folder) return CLV_OK;
  CLV_TRY(clv_run_folder_commit_move(c->dir, err));
  if (c->keeps_earlier_run) return CLV_OK;
  CLV_TRY(clv_run_folder_remove(c->moved_to_folder, err));
  return CLV_OK;
}

static clv_code undo_begin(const clv_run_lock *c, clv_err *err) {
  if (c->has_moved_earlier_run) CLV_TRY(clv_run_folder_undo_move(c->dir, err));
  return c->has_made_folder ? clv_run_folder_remove(c->dir, err) : CLV_OK;
}

static clv_run_attempt *current_attempt(clv_run_lock *c) {
  return &c->record.attempts[c->record.n_attempts - 1];
}

/* Writes run.json, unless another process has begun an attempt in the folder. Reports the first
 * failed write. */
static void write_or_warn(clv_run_lock *c) {
  clv_err err;
  clv_code code = clv_run_lock_check_newest(c, &err);
  /* not reported here: the caller's next checkpoint fails with this error */
  if (code == CLV_ABORTED) return;
  if (clv_run_record_write(c->dir, &c->record, &err) == CLV_OK) return;
  if (!c->has_warned) clv_notify(c->notifier, "cannot write the record of the run: %s", err.text);
  c->has_warned = true;
}

static void list_checkpoints(clv_run_lock *c) {
  c->record.n_checkpoints =
      clv_checkpoint_steps_with_manifest(c->dir, c->record.checkpoints, CLV_RECORD_MAX_CHECKPOINTS);
}

/* Loads the record of earlier attempts, if this attempt resumes the run. An unreadable record is
 * reported and dropped. */
static void load_earlier_attempts(clv_run_lock *c, bool is_resume) {
  clv_err err;
  if (!is_resume) return;
  clv_code code = clv_run_record_read(c->dir, &c->record, &err);
  if (code != CLV_OK && code != CLV_NOT_FOUND)
    clv_notify(c->notifier, "%s; the record of earlier attempts is dropped, and a new one begins",
               err.text);
}

/* Sets the session id and the epoch that the master sends to workers: all attempts of a run share
 * the id, and each has a higher epoch. */
static clv_code set_next_epoch(clv_run_record *r, clv_err *err) {
  uint8_t id[16];
  if (!r->newest_attempt || r->newest_attempt >= INT64_MAX ||
      !clv_hex_parse(r->id, id, sizeof id)) {
    CLV_TRY(clv_random_bytes(id, sizeof id, err));
    clv_hex(id, sizeof id, r->id);
    r->newest_attempt = 0;
  }
  r->newest_attempt++;
  return CLV_OK;
}

clv_code clv_run_lock_begin(clv_run_lock *c, const clv_run_lock_info *run, clv_err *err) {
  clv_run_attempt *a = NULL;
  CLV_AUTO(clv_freep) char *absolute = realpath(run->session, NULL);
  c->notifier = run->notifier;
  load_earlier_attempts(c, run->is_resume);
  CLV_TRY(set_next_epoch(&c->record, err));
  CLV_TRY(clv_run_record_add_attempt(&c->record, &a, err));
  snprintf(c->record.name, sizeof c->record.name, "%s", run->name);
  snprintf(c->record.session_path, sizeof c->record.session_path, "%s",
           absolute ? absolute : run->session);
  list_checkpoints(c);
  clv_process_describe_self(a);
  if (run->is_resume && c->record.n_checkpoints)
    a->from_step = a->step =
        /* a resumed attempt begins with the step of the newest checkpoint, which stays recorded if
         * the attempt fails before it starts */
        c->record.checkpoints[0];
  a->began_ms = clv_wall_ms();
  c->has_begun = true;
  CLV_FAILPOINT("run.running");
  return clv_run_record_write(c->dir, &c->record, err);
}

/* Returns true if both records were written by one process in one attempt. The epoch alone does not
 * show that, because two processes that began at the same moment may have the same epoch. */
static bool is_same_attempt(const clv_run_record *a, const clv_run_record *b) {
  const clv_run_attempt *x = &a->attempts[a->n_attempts - 1], *y = &b->attempts[b->n_attempts - 1];
  return strcmp(a->id, b->id) == 0 && a->newest_attempt == b->newest_attempt && x->pid == y->pid &&
         strcmp(x->boot_id, y->boot_id) == 0 && strcmp(x->host, y->host) == 0;
}

clv_code clv_run_lock_check_newest(const clv_run_lock *c, clv_err *err) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  CLV_TRY(clv_run_record_read(c->dir, &r, err));
  if (is_same_attempt(&r, &c->record)) {
    CLV_FAILPOINT("run.check_newest");
    return CLV_OK;
  }
  return clv_fail(err, CLV_ABORTED,
                  "%s/run.json has attempt %llu of the run, and this process is attempt %llu: "
                  "another process trains there, so this one ends and writes nothing",
                  c->dir, (unsigned long long)r.newest_attempt,
                  (unsigned long long)c->record.newest_attempt);
}

clv_code clv_run_lock_raise_epoch(clv_run_lock *c, clv_err *err) {
  CLV_TRY(clv_run_lock_check_newest(c, err));
  CLV_TRY(set_next_epoch(&c->record, err));
  return clv_run_record_write(c->dir, &c->record, err);
}

clv_code clv_run_lock_begin_again(clv_run_lock *c, unsigned code, const char *failure_text,
                                  clv_err *err) {
  clv_run_attempt *a = current_attempt(c);
  CLV_TRY(clv_run_lock_check_newest(c, err));
  a->status = CLV_RUN_RECOVERED;
  a->exit_code = code;
  a->ended_ms = clv_wall_ms();
  snprintf(a->text, sizeof a->text, "%s", failure_text);
  const clv_run_attempt ended_attempt = *a;
  CLV_TRY(clv_run_record_add_attempt(&c->record, &a, err));
  list_checkpoints(c);
  clv_process_describe_self(a);
  a->began_ms = clv_wall_ms();
  a->from_step = a->step = c->record.n_checkpoints ? c->record.checkpoints[0] : 0;
  a->total_steps = ended_attempt.total_steps;
  snprintf(a->text, sizeof a->text, "%s", failure_text);
  memcpy(a->look_result, ended_attempt.look_result, sizeof a->look_result);
  CLV_FAILPOINT("run.recovered");
  return clv_run_record_write(c->dir, &c->record, err);
}

void clv_run_lock_note_recovery(clv_run_lock *c, uint64_t step) {
  if (!c || !c->has_begun) return;
  clv_run_attempt *a = current_attempt(c);
  a->text[0] = '\0';
  a->from_step = a->step = step;
  list_checkpoints(c);
  write_or_warn(c);
}

void clv_run_lock_attempt_id(const clv_run_lock *c, uint8_t ret_session[16], uint64_t *ret_epoch) {
  if (clv_hex_parse(c->record.id, ret_session, 16)) *ret_epoch = c->record.newest_attempt;
}

void clv_run_lock_note_look(clv_run_lock *c, const char *summary) {
  if (!c || !c->has_begun) return;
  clv_run_attempt *a = current_attempt(c);
  snprintf(a->look_result, sizeof a->look_result, "%s", summary);
  write_or_warn(c);
}

void clv_run_lock_note_start(clv_run_lock *c, uint64_t step, uint64_t total_steps,
                             const clv_sha256 *config) {
  clv_err err;
  if (!c || !c->has_begun) return;
  clv_run_attempt *a = current_attempt(c);
  c->has_started = true;
  if (commit_move_of_earlier_run(c, &err) != CLV_OK)
    clv_notify(c->notifier, "cannot remove the earlier run: %s", err.text);
  a->from_step = a->step = step;
  a->total_steps = total_steps;
  clv_sha256_hex(config, c->record.config_sha256);
  list_checkpoints(c);
  write_or_warn(c);
}

void clv_run_lock_note_step(clv_run_lock *c, uint64_t step, double loss, double accuracy) {
  if (!c || !c->has_begun) return;
  clv_run_attempt *a = current_attempt(c);
  a->step = step;
  a->loss = loss;
  a->accuracy = accuracy;
}

static bool is_better(const clv_run_best *new_best, const clv_run_best *old_best) {
  if (!old_best->evaluated_set[0]) return true;
  if (!isnan(new_best->accuracy) && !isnan(old_best->accuracy) &&
      new_best->accuracy != old_best->accuracy)
    return new_best->accuracy > old_best->accuracy;
  return new_best->loss < old_best->loss || isnan(old_best->loss);
}

/* A test uses other records than a validation, so their results are not compared: a test is the
 * best evaluation only of a run without validations. */
void clv_run_lock_note_evaluation(clv_run_lock *c, const clv_run_best *e) {
  if (!c || !c->has_begun) return;
  clv_run_best *best = &c->record.best;
  bool is_other_set = best->evaluated_set[0] && strcmp(best->evaluated_set, e->evaluated_set) != 0;
  if (is_other_set ? strcmp(e->evaluated_set, "validation") == 0 : is_better(e, best)) *best = *e;
}

void clv_run_lock_note_rewind(clv_run_lock *c, uint64_t step) {
  if (!c || !c->has_begun) return;
  if (c->record.best.step > step) c->record.best = (clv_run_best){.loss = NAN, .accuracy = NAN};
  list_checkpoints(c);
  write_or_warn(c);
}

void clv_run_lock_note_checkpoint(clv_run_lock *c) {
  if (!c || !c->has_begun) return;
  list_checkpoints(c);
  write_or_warn(c);
}

void clv_run_lock_end(clv_run_lock *c, clv_run_status status, unsigned code, const char *text) {
  clv_err err;
  if (c && !c->has_started && (c->has_made_folder || c->has_moved_earlier_run)) {
    if (undo_begin(c, &err) != CLV_OK) clv_notify(c->notifier, "%s", err.text);
    return;
  }
  if (!c || !c->has_begun) return;
  CLV_FAILPOINT("run.%s", clv_run_state_name((clv_run_state)status));
  clv_run_attempt *a = current_attempt(c);
  a->status = status;
  a->exit_code = code;
  a->ended_ms = clv_wall_ms();
  snprintf(a->text, sizeof a->text, "%s", text);
  write_or_warn(c);
}
