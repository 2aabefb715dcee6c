/* SPDX-License-Identifier: Apache-2.0
 *
 * Determines the state of a run that another process may be training, from the run's record
 * (run.json), its lock and the last line of metrics.jsonl. Only the lock shows whether a run is
 * alive, because run.json says "running" until the process writes another state. clv_run_entry_read
 * is the main function; runs, log and stop call it.
 */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/history/history_int.h"

enum { MAX_LINE_BYTES = 4096, MAX_RUN_NAMES = 4096 };

const char *clv_run_state_name(clv_run_state state) {
  static const char *const names[] = {"running", "finished",  "failed", "interrupted",
                                      "stopped", "recovered", "died",   "elsewhere",
                                      "damaged", "no record"};
  return names[state];
}

void clv_run_entry_done(clv_run_entry *e) {
  if (!e) return;
  clv_run_record_clear(&e->record);
  free(e->folder);
  *e = (clv_run_entry){0};
}

const clv_run_attempt *clv_run_entry_last_attempt(const clv_run_entry *e) {
  return e->record.n_attempts ? &e->record.attempts[e->record.n_attempts - 1] : NULL;
}

int clv_run_entry_exit_code(const clv_run_entry *e) {
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  bool has_recorded_end = a && a->status != CLV_RUN_RUNNING && e->state != CLV_STATE_RUNNING;
  return has_recorded_end && a->exit_code <= 255 ? (int)a->exit_code : 1;
}

/* ---- the last line of the metrics ------------------------------------------------------------ */

/* Reads the last complete line of a file. Returns false if the file has no complete line or the
 * line is longer than MAX_LINE_BYTES bytes. */
static bool read_last_line(const char *path, char line[MAX_LINE_BYTES + 1]) {
  CLV_AUTO(clv_fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return false;
  off_t tail_at = CLV_MAX(st.st_size - MAX_LINE_BYTES, (off_t)0);
  ssize_t n = pread(fd, line, MAX_LINE_BYTES, tail_at);
  while (n > 0 && line[n - 1] != '\n') n--;
  if (n <= 0) return false;
  line[n - 1] = '\0';
  char *begin = memrchr(line, '\n', (size_t)n - 1);
  if (!begin && tail_at) return false;
  if (begin) memmove(line, begin + 1, (size_t)(line + n - begin - 1));
  return true;
}

static double parse_number_member(const char *line, const char *key) {
  const char *member = strstr(line, key);
  char *end;
  if (!member) return NAN;
  double v = strtod(member + strlen(key), &end);
  return end == member + strlen(key) ? NAN : v;
}

/* Sets step, loss and accuracy. run.json is written only with checkpoints and at the end, so the
 * last line of metrics.jsonl is newer while the run trains. Before the attempt has started, that
 * line belongs to an earlier run and is ignored. */
static void read_progress(clv_run_entry *e) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  char line[MAX_LINE_BYTES + 1];
  e->step = a ? a->step : 0;
  e->loss = a ? a->loss : NAN;
  e->accuracy = a ? a->accuracy : NAN;
  bool is_newer_in_metrics = e->state == CLV_STATE_RUNNING || e->state == CLV_STATE_DIED;
  if (a && (!is_newer_in_metrics || !a->total_steps)) return;
  clv_bytes_printf(&path, "%s/metrics.jsonl", e->folder);
  if (path.failed || !read_last_line(path.data, line)) return;
  double step = parse_number_member(line, "\"step\":");
  if (!(step >= (double)e->step && step < 1e15)) return;
  e->step = (uint64_t)step;
  e->loss = parse_number_member(line, "\"loss\":");
  e->accuracy = parse_number_member(line, "\"accuracy\":");
}

/* ---- state of a run by lock and record ------------------------------------------------------- */

static clv_run_state derive_state(const clv_run_attempt *a, bool is_locked) {
  clv_run_attempt this_process = {0};
  if (is_locked) return CLV_STATE_RUNNING;
  if (a->status != CLV_RUN_RUNNING)
    return (clv_run_state)
        a->status; /* clv_run_status and clv_run_state have the same first values */
  clv_process_describe_self(&this_process);
  bool is_this_host =
      strcmp(a->boot_id, this_process.boot_id) == 0 || strcmp(a->host, this_process.host) == 0;
  return is_this_host ? CLV_STATE_DIED : CLV_STATE_ELSEWHERE;
}

static bool is_folder(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool has_file(const char *folder, const char *name) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s", folder, name);
  return !path.failed && access(path.data, F_OK) == 0;
}

/* Sets the state of a run whose record cannot be read. A folder without a record may belong to a
 * run of an older version, or to no run. */
static clv_code set_state_without_record(clv_run_entry *e, clv_code code, bool is_locked,
                                         clv_err *err) {
  e->state = is_locked ? CLV_STATE_RUNNING : CLV_STATE_DAMAGED;
  if (code != CLV_NOT_FOUND || is_locked) return CLV_OK;
  e->state = CLV_STATE_UNRECORDED;
  if (has_file(e->folder, "metrics.jsonl") || has_file(e->folder, "session.effective.yaml"))
    return CLV_OK;
  return clv_fail(err, CLV_NOT_FOUND,
                  "%s is not the folder of a run: `cleave-master runs FOLDER` lists "
                  "those in a folder",
                  e->folder);
}

/* Reads the lock first and the record afterwards. A run writes its end before it releases the lock,
 * so if the lock is free, the record that is read has that end. */
static clv_code read_entry(clv_run_entry *e, clv_err *err) {
  bool is_locked = clv_run_folder_is_locked(e->folder, &e->holder_pid);
  clv_code code = clv_run_record_read(e->folder, &e->record, &e->read_error);
  if (code == CLV_OK)
    e->state = derive_state(clv_run_entry_last_attempt(e), is_locked);
  else
    CLV_TRY(set_state_without_record(e, code, is_locked, err));
  read_progress(e);
  return CLV_OK;
}

clv_code clv_run_entry_read(const char *folder, clv_run_entry *ret, clv_err *err) {
  clv_run_entry e = {0};
  if (!is_folder(folder)) return clv_fail(err, CLV_NOT_FOUND, "%s is not a folder", folder);
  CLV_TRY(clv_strdup(folder, &e.folder, err));
  for (size_t n = strlen(e.folder); n > 1 && e.folder[n - 1] == '/'; n--) e.folder[n - 1] = '\0';
  const char *slash = strrchr(e.folder, '/');
  e.name = slash && slash[1] ? slash + 1 : e.folder;
  clv_code code = read_entry(&e, err);
  if (code == CLV_OK)
    *ret = e;
  else
    clv_run_entry_done(&e);
  return code;
}

/* ---- finding a run by its name --------------------------------------------------------------- */

/* Returns true if the error for an unknown run may suggest this name: printable and not hidden. */
static bool can_be_suggested(const char *text) {
  for (const char *p = text; *p; p++)
    if (iscntrl((unsigned char)*p)) return false;
  return text[0] != '.';
}

static clv_code fail_unknown_run(const char *run, clv_err *err) {
  char *names[MAX_RUN_NAMES];
  size_t n = 0;
  DIR *dir = opendir(CLV_RUNS_FOLDER);
  if (!dir)
    return clv_fail(err, CLV_NOT_FOUND,
                    "no run '%.100s': the working folder has no folder " CLV_RUNS_FOLDER
                    ": change to the folder where it was trained, or give the run's folder",
                    run);
  for (struct dirent *d; n < MAX_RUN_NAMES && (d = readdir(dir));)
    if (can_be_suggested(d->d_name) && (names[n] = strdup(d->d_name)) != NULL) n++;
  closedir(dir);
  const char *similar = clv_did_you_mean(run, (const char *const *)names, n);
  clv_fail(err, CLV_NOT_FOUND, "no run '%.100s' in " CLV_RUNS_FOLDER "%s%.100s%s", run,
           similar ? "; did you mean '" : " (`cleave-master runs` lists them)",
           similar ? similar : "", similar ? "'?" : "");
  for (size_t i = 0; i < n; i++) free(names[i]);
  return CLV_NOT_FOUND;
}

clv_code clv_run_entry_find_folder(const char *run, char **ret_folder, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes below_runs = {0};
  clv_bytes_printf(&below_runs, CLV_RUNS_FOLDER "/%s", run);
  if (below_runs.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  bool is_path = !run[0] || strchr(run, '/') || strcmp(run, ".") == 0 || strcmp(run, "..") == 0;
  if (!is_path && is_folder(below_runs.data)) return clv_strdup(below_runs.data, ret_folder, err);
  if (run[0] && is_folder(run)) return clv_strdup(run, ret_folder, err);
  if (is_path)
    return clv_fail(err, CLV_NOT_FOUND,
                    "there is no folder '%.200s': give the name of a run as in "
                    "`cleave-master runs`, or its folder",
                    run);
  return fail_unknown_run(run, err);
}

clv_code clv_history_find_folder(const char *run, char **ret_folder, clv_err *err) {
  return clv_run_entry_find_folder(run, ret_folder, err);
}

void clv_print_sanitized(const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_text_sanitize_utf8(text, &out);
  if (!out.failed) fwrite(out.data, 1, out.len, stdout);
}
