/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of a sweep, and its file sweep.jsonl, which names the session and the points. A
 * later command for the same folder compares this file with the points that its own options make,
 * so that a table never mixes two sweeps.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "master/plan/plan.h"
#include "master/sweep/sweep_int.h"

#define POINTS_FILE "sweep.jsonl"
enum { MAX_POINTS_FILE_BYTES = 64 << 20 };

/* ---- the folder of a sweep ------------------------------------------------------------------- */

/* Makes the folder of the sweep and locks it, until this process ends. */
static clv_code lock_folder(sweep_work *s, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes folder = {0}, path = {0};
  clv_bytes_printf(&folder, "%s.sweep", s->base_session->checkpoint.dir);
  clv_bytes_printf(&path, "%s/lock", folder.data ? folder.data : "");
  if (folder.failed || path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_strdup(folder.data, &s->folder, err));
  CLV_TRY(clv_mkdirs(s->folder, err));
  int fd = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
  s->lock_fd = fd;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "%s: another process runs this sweep: wait for its end, or give another "
                  "--set name=...",
                  s->folder);
}

/* ---- sweep.jsonl ----------------------------------------------------------------------------- */

static clv_code format_points(const sweep_work *s, clv_bytes *out, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes session = {0};
  clv_sha256 digest;
  char hex[65];
  CLV_TRY(clv_session_config_write_public(s->base_session, &session, err));
  CLV_TRY(clv_sha256_of(session.data, session.len, &digest, err));
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(
      out, "{\"format\":\"cleave-sweep\",\"version\":1,\"session\":\"%s\",\"folds\":%llu}\n", hex,
      (unsigned long long)s->o->folds);
  for (size_t i = 0; i < s->n_runs; i++) {
    CLV_AUTO(sweep_set_options_done) sweep_set_options sets = {.n = 0};
    CLV_TRY(sweep_set_options_make(s, &s->runs[i], &sets, err));
    clv_bytes_puts(out, "{\"run\":");
    clv_bytes_add_json(out, s->runs[i].name);
    clv_bytes_puts(out, ",\"set\":[");
    for (size_t k = sets.n_shared; k < sets.n; k++) {
      if (k > sets.n_shared) clv_bytes_puts(out, ",");
      clv_bytes_add_json(out, sets.items[k]);
    }
    clv_bytes_puts(out, "]}\n");
  }
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* Fails if the folder of a run exists already, although the sweep is new. */
static clv_code check_run_folders_unused(const sweep_work *s, clv_err *err) {
  for (size_t i = 0; i < s->n_runs; i++) {
    sweep_stored_state state;
    CLV_TRY(sweep_stored_state_read(s->runs[i].folder, &state, err));
    if (state.exists)
      return clv_fail(err, CLV_INVALID,
                      "%s is the folder of another run: remove it, or give the sweep another name "
                      "by --set name=...",
                      s->runs[i].folder);
  }
  return CLV_OK;
}

/* Fails because line `line_number` of sweep.jsonl differs from the line that this command would
 * write. */
static clv_code fail_changed_points(const char *path, size_t line_number, clv_err *err) {
  if (line_number == 1)
    return clv_fail(err, CLV_INVALID,
                    "%s:1: the sweep began with another session or other --folds: give those, or "
                    "another --set name=... for a new sweep",
                    path);
  return clv_fail(err, CLV_INVALID,
                  "%s:%zu: the sweep has other points than these options: give the same ones, or "
                  "another --set name=... for a new sweep",
                  path, line_number);
}

/* Writes sweep.jsonl. If it exists, compares its lines with the points of this command, and adds
 * the points that the file lacks. */
static clv_code write_or_compare_points(const sweep_work *s, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0}, stored_text = {0};
  CLV_TRY(format_points(s, &text, err));
  clv_bytes_printf(&path, "%s/" POINTS_FILE, s->folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, MAX_POINTS_FILE_BYTES, &stored_text, err);
  if (code == CLV_NOT_FOUND) CLV_TRY(check_run_folders_unused(s, err));
  if (code != CLV_OK && code != CLV_NOT_FOUND) return code;
  size_t line_number = 1, n_equal_bytes = 0;
  while (n_equal_bytes < stored_text.len && n_equal_bytes < text.len &&
         stored_text.data[n_equal_bytes] == text.data[n_equal_bytes])
    line_number += stored_text.data[n_equal_bytes++] == '\n';
  if (n_equal_bytes < stored_text.len) return fail_changed_points(path.data, line_number, err);
  return n_equal_bytes == text.len && code == CLV_OK
             ? CLV_OK
             : clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}

/* Reads from the run folders which runs are finished, and their scores. */
static clv_code read_finished_runs(sweep_work *s, clv_err *err) {
  for (size_t i = 0; i < s->n_runs; i++) {
    sweep_stored_state state;
    CLV_TRY(sweep_stored_state_read(s->runs[i].folder, &state, err));
    if (!state.is_finished) continue;
    s->runs[i].state = SWEEP_RUN_FINISHED;
    CLV_TRY(sweep_score_read(&s->score, &s->runs[i], err));
  }
  return CLV_OK;
}

/* ---- the commands sweep and plan ------------------------------------------------------------- */

static clv_repeated_runs repeats_of(const sweep_work *s) {
  return (clv_repeated_runs){.n_runs = s->n_runs,
                             .epoch_bytes = s->epoch_bytes,
                             .has_same_initial_weights = s->base_session->train.seed.is_given};
}

static void print_sweep_start(const sweep_work *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  const clv_repeated_runs repeats = repeats_of(s);
  size_t n_finished = 0;
  for (size_t i = 0; i < s->n_runs; i++) n_finished += s->runs[i].state == SWEEP_RUN_FINISHED;
  clv_repeated_runs_describe(&repeats, false, &text);
  if (!text.failed && text.len)
    clv_notice(CLV_LOG_INFO, "sweep", "%.*s", (int)text.len - 1, text.data);
  if (n_finished)
    clv_notice(CLV_LOG_INFO, "sweep", "%zu of %zu runs are finished and are not run again",
               n_finished, s->n_runs);
}

static clv_code print_table(const sweep_work *s, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(sweep_table_format(s, &text, err));
  fputs(text.data, stdout);
  return CLV_OK;
}

static clv_exit_code exit_code_of(const sweep_work *s) {
  if (s->o->interrupted && *s->o->interrupted) return CLV_EXIT_INTERRUPTED;
  for (size_t i = 0; i < s->n_runs; i++)
    if (s->runs[i].state == SWEEP_RUN_FAILED)
      return s->runs[i].exit_code > 0 ? (clv_exit_code)s->runs[i].exit_code : CLV_EXIT_FAILED;
  return CLV_EXIT_OK;
}

static clv_exit_code fail_sweep(const clv_err *err) {
  clv_exit_code code = err->code == CLV_INVALID     ? CLV_EXIT_CONFIG
                       : err->code == CLV_DATA_LOSS ? CLV_EXIT_DATA
                                                    : CLV_EXIT_FAILED;
  return (clv_exit_code)clv_exit_report(code, err);
}

clv_exit_code clv_sweep_run(const clv_sweep_options *o) {
  CLV_AUTO(sweep_done) sweep_work s = {.o = NULL};
  clv_err err;
  clv_exit_code exit_code = sweep_prepare_runs(o, &s);
  if (exit_code != CLV_EXIT_OK) return exit_code;
  clv_code code = lock_folder(&s, &err);
  if (code == CLV_OK) code = write_or_compare_points(&s, &err);
  if (code == CLV_OK) code = read_finished_runs(&s, &err);
  if (code != CLV_OK) return fail_sweep(&err);
  print_sweep_start(&s);
  code = sweep_run_all(&s, &err);
  if (code == CLV_OK) code = print_table(&s, &err);
  return code == CLV_OK ? exit_code_of(&s) : fail_sweep(&err);
}

static clv_code format_plan(const sweep_work *s, clv_bytes *out, clv_err *err) {
  const clv_repeated_runs repeats = repeats_of(s);
  bool json = s->o->format == CLV_SWEEP_JSON;
  if (!json) clv_bytes_puts(out, "sweep: ");
  clv_repeated_runs_describe(&repeats, json, out);
  return sweep_table_format(s, out, err);
}

clv_exit_code clv_sweep_plan(const clv_sweep_options *o) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(sweep_done) sweep_work s = {.o = NULL};
  clv_err err;
  clv_exit_code exit_code = sweep_prepare_runs(o, &s);
  if (exit_code != CLV_EXIT_OK) return exit_code;
  if (format_plan(&s, &text, &err) != CLV_OK) return fail_sweep(&err);
  fputs(text.data, stdout);
  return CLV_EXIT_OK;
}
