/* SPDX-License-Identifier: Apache-2.0
 *
 * `runs`: prints the state and the results of each run in a folder, as a table or as JSON.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "master/history/history_int.h"
#include "master/report/report.h"

enum { MAX_RUNS = 100000, CELL_BYTES = 80 };

typedef struct run_list {
  clv_run_entry *items;
  size_t n;
} run_list;

static void run_list_done(run_list *l) {
  for (size_t i = 0; i < l->n; i++) clv_run_entry_done(&l->items[i]);
  free(l->items);
}

static void dir_closep(DIR **dir) {
  if (*dir) closedir(*dir);
}

/* ---- finding the runs ------------------------------------------------------------------------ */

/* Adds the run of a folder. Skips a folder that belongs to no run. */
static clv_code add_run(run_list *l, const char *folder, clv_err *err) {
  clv_run_entry *grown = reallocarray(l->items, l->n + 1, sizeof *grown);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  l->items = grown;
  clv_code code = clv_run_entry_read(folder, &grown[l->n], err);
  if (code == CLV_OK) l->n++;
  return code == CLV_NOT_FOUND ? CLV_OK : code;
}

/* Adds the runs of the folders in `folder`. */
static clv_code add_runs_below(run_list *l, const char *folder, clv_err *err) {
  CLV_AUTO(dir_closep) DIR *dir = opendir(folder);
  if (!dir)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_UNAVAILABLE,
                    errno == ENOENT ? "there is no folder %s: nothing was trained here yet; give "
                                      "the folder that session files have as run.dir"
                                    : "%s cannot be read: %s; name a folder of runs",
                    folder, strerror(errno));
  for (struct dirent *d; l->n < MAX_RUNS && (d = readdir(dir));) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    if (d->d_name[0] == '.' || (d->d_type != DT_DIR && d->d_type != DT_UNKNOWN)) continue;
    clv_bytes_printf(&path, "%s/%s", folder, d->d_name);
    if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    CLV_TRY(add_run(l, path.data, err));
  }
  return CLV_OK;
}

/* Returns when the last attempt of a run began; 0: the run has no attempt. */
static uint64_t last_attempt_began_ms(const clv_run_entry *e) {
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  return a ? a->began_ms : 0;
}

static int compare_newest_first(const void *a, const void *b) {
  const clv_run_entry *x = a, *y = b;
  if (last_attempt_began_ms(x) != last_attempt_began_ms(y))
    return last_attempt_began_ms(x) < last_attempt_began_ms(y) ? 1 : -1;
  return strcmp(x->name, y->name);
}

/* ---- the table of runs ----------------------------------------------------------------------- */

typedef enum column {
  NAME_COLUMN,
  STATE_COLUMN,
  BEGIN_TIME_COLUMN,
  DURATION_COLUMN,
  STEP_COLUMN,
  LOSS_COLUMN,
  ACCURACY_COLUMN,
  BEST_COLUMN,
  HOST_COLUMN,
  N_COLUMNS
} column;

static const char *const column_titles[N_COLUMNS] = {"RUN",  "STATE",    "BEGAN", "TOOK", "STEP",
                                                     "LOSS", "ACCURACY", "BEST",  "WHERE"};

typedef char row_cells[N_COLUMNS][CELL_BYTES];

static void format_time(uint64_t ms, char *text, size_t len) {
  /* at most the end of year 9999, because later years have more digits */
  time_t seconds = (time_t)CLV_MIN(ms / 1000, (uint64_t)253402300799);
  struct tm tm;
  if (!ms || !localtime_r(&seconds, &tm) || !strftime(text, len, "%Y-%m-%d %H:%M", &tm))
    snprintf(text, len, "-");
}

static void format_duration(uint64_t ms, char *text, size_t len) {
  uint64_t s = ms / 1000;
  if (s < 60)
    snprintf(text, len, "%" PRIu64 "s", s);
  else if (s < 3600)
    snprintf(text, len, "%" PRIu64 "m%02us", s / 60, (unsigned)(s % 60));
  else if (s < 86400)
    snprintf(text, len, "%" PRIu64 "h%02um", s / 3600, (unsigned)(s / 60 % 60));
  else
    snprintf(text, len, "%" PRIu64 "d%02uh", s / 86400, (unsigned)(s / 3600 % 24));
}

static void format_number(double v, char *text, size_t len) {
  snprintf(text, len, isfinite(v) ? "%.4f" : "-", v);
}

/* Formats the best evaluation: "accuracy 0.9100 at 120, validation". */
static void format_best(const clv_run_best *b, char *text, size_t len) {
  char number[CLV_JSON_NUMBER_BYTES], set_name[24];
  bool is_by_loss = isnan(b->accuracy);
  format_number(is_by_loss ? b->loss : b->accuracy, number, sizeof number);
  if (b->evaluated_set[0])
    snprintf(text, len, "%s %s at %" PRIu64 ", %s", is_by_loss ? "loss" : "accuracy", number,
             b->step, clv_text_truncate(b->evaluated_set, set_name, sizeof set_name));
  else
    snprintf(text, len, "-");
}

static void format_host(const clv_run_entry *e, const clv_run_attempt *a, char *text, size_t len) {
  clv_run_attempt this_process = {0};
  clv_process_describe_self(&this_process);
  if (e->state == CLV_STATE_RUNNING && e->holder_pid)
    snprintf(text, len, "process %ld", e->holder_pid);
  else if (a && strcmp(a->host, this_process.host) != 0)
    clv_text_truncate(a->host, text, len);
  else
    snprintf(text, len, "-");
}

/* Returns the end of an attempt in ms; now for a running one; 0 for one that died, because its end
 * is unknown. */
static uint64_t attempt_ended_ms(const clv_run_entry *e, const clv_run_attempt *a) {
  if (e->state == CLV_STATE_RUNNING) return clv_wall_ms();
  return a->ended_ms;
}

/* Fills a row of the table; "-" where a value is unknown. */
static void fill_row(const clv_run_entry *e, row_cells r) {
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  for (int c = 0; c < N_COLUMNS; c++) strcpy(r[c], "-");
  clv_text_truncate(e->name, r[NAME_COLUMN], CELL_BYTES);
  snprintf(r[STATE_COLUMN], CELL_BYTES, "%s", clv_run_state_name(e->state));
  format_number(e->loss, r[LOSS_COLUMN], CELL_BYTES);
  format_number(e->accuracy, r[ACCURACY_COLUMN], CELL_BYTES);
  format_host(e, a, r[HOST_COLUMN], CELL_BYTES);
  if (a || e->step) snprintf(r[STEP_COLUMN], CELL_BYTES, "%" PRIu64, e->step);
  if (!a) return;
  if (a->total_steps)
    snprintf(r[STEP_COLUMN], CELL_BYTES, "%" PRIu64 "/%" PRIu64, e->step, a->total_steps);
  format_time(a->began_ms, r[BEGIN_TIME_COLUMN], CELL_BYTES);
  if (attempt_ended_ms(e, a) > a->began_ms)
    format_duration(attempt_ended_ms(e, a) - a->began_ms, r[DURATION_COLUMN], CELL_BYTES);
  format_best(&e->record.best, r[BEST_COLUMN], CELL_BYTES);
}

/* Prints a row as one line: line feeds and tabs of its texts become '?'. */
static void print_row(row_cells r, const int width[N_COLUMNS]) {
  char line[N_COLUMNS * (CELL_BYTES + 2) + 1];
  size_t line_len = 0;
  for (int c = 0; c < N_COLUMNS; c++)
    line_len += (size_t)snprintf(line + line_len, sizeof line - line_len, "%-*s",
                                 c + 1 < N_COLUMNS ? width[c] + 2 : 0, r[c]);
  while (line_len && line[line_len - 1] == ' ') line[--line_len] = '\0';
  for (char *p = line; *p; p++)
    if (*p == '\n' || *p == '\t') *p = '?';
  clv_print_sanitized(line);
  putchar('\n');
}

/* Prints why a run did not end well, and the checkpoint that it can resume from. */
static void print_reason(const clv_run_entry *e) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  if (e->state == CLV_STATE_FAILED && a)
    clv_bytes_printf(&text, "exit code %" PRIu64 ": %s", a->exit_code, a->text);
  if (e->state == CLV_STATE_RUNNING && a && a->text[0])
    clv_bytes_printf(&text, "recovering: %s", a->text);
  if (e->state == CLV_STATE_DIED) clv_bytes_puts(&text, CLV_DIED_TEXT);
  if (e->state == CLV_STATE_ELSEWHERE && a)
    clv_bytes_printf(&text, "began on %s, from where alone its process can be seen", a->host);
  if (e->state == CLV_STATE_DAMAGED) clv_bytes_puts(&text, e->read_error.text);
  bool is_resumable = e->state == CLV_STATE_FAILED || e->state == CLV_STATE_DIED;
  if (is_resumable && e->record.n_checkpoints)
    clv_bytes_printf(&text, "; train --resume goes on from checkpoint %" PRIu64,
                     e->record.checkpoints[0]);
  if (!text.len || text.failed) return;
  fputs("    ", stdout);
  clv_print_sanitized(text.data);
  putchar('\n');
}

static clv_code print_table(const run_list *l, clv_err *err) {
  CLV_AUTO(clv_freep) row_cells *rows = NULL;
  int widths[N_COLUMNS];
  row_cells title_row;
  CLV_TRY(clv_alloc(l->n, sizeof *rows, &rows, err));
  for (int c = 0; c < N_COLUMNS; c++) {
    strcpy(title_row[c], column_titles[c]);
    widths[c] = (int)strlen(column_titles[c]);
  }
  for (size_t i = 0; i < l->n; i++) {
    fill_row(&l->items[i], rows[i]);
    for (int c = 0; c < N_COLUMNS; c++) widths[c] = CLV_MAX(widths[c], (int)strlen(rows[i][c]));
  }
  print_row(title_row, widths);
  for (size_t i = 0; i < l->n; i++) {
    print_row(rows[i], widths);
    print_reason(&l->items[i]);
  }
  return CLV_OK;
}

/* ---- the runs as JSON ------------------------------------------------------------------------ */

static void append_text(clv_bytes *out, const char *key, const char *text) {
  clv_bytes_printf(out, ",\"%s\":", key);
  clv_run_record_append_text(out, text);
}

static void append_integer(clv_bytes *out, const char *key, uint64_t v) {
  clv_bytes_printf(out, ",\"%s\":%" PRIu64, key, v);
}

static void append_number(clv_bytes *out, const char *key, double v) {
  char digits[CLV_JSON_NUMBER_BYTES];
  clv_bytes_printf(out, ",\"%s\":%s", key, clv_json_number(v, 9, digits));
}

static void append_attempt(clv_bytes *out, const clv_run_entry *e, const clv_run_attempt *a) {
  const clv_run_best *b = &e->record.best;
  append_text(out, "session", e->record.session_path);
  append_text(out, "config_sha256", e->record.config_sha256);
  append_integer(out, "attempts", e->record.n_earlier + e->record.n_attempts);
  append_integer(out, "code", a->exit_code);
  append_text(out, "text", a->text);
  append_integer(out, "began_ms", a->began_ms);
  append_integer(out, "ended_ms", a->ended_ms);
  append_text(out, "host", a->host);
  append_integer(out, "pid", a->pid);
  append_integer(out, "total_steps", a->total_steps);
  if (b->evaluated_set[0]) {
    clv_bytes_puts(out, ",\"best\":{\"what\":");
    clv_bytes_add_json(out, b->evaluated_set);
    append_integer(out, "step", b->step);
    append_number(out, "loss", b->loss);
    append_number(out, "accuracy", b->accuracy);
    clv_bytes_puts(out, "}");
  }
  clv_bytes_puts(out, ",\"checkpoints\":[");
  for (size_t i = 0; i < e->record.n_checkpoints; i++)
    clv_bytes_printf(out, "%s%" PRIu64, i ? "," : "", e->record.checkpoints[i]);
  clv_bytes_puts(out, "]");
}

static clv_code print_json(const run_list *l, clv_err *err) {
  for (size_t i = 0; i < l->n; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
    const clv_run_entry *e = &l->items[i];
    clv_bytes_puts(&out, "{\"name\":");
    clv_run_record_append_text(&out, e->name);
    append_text(&out, "folder", e->folder);
    append_text(&out, "state", clv_run_state_name(e->state));
    if (e->state == CLV_STATE_DAMAGED) append_text(&out, "why", e->read_error.text);
    append_integer(&out, "step", e->step);
    append_number(&out, "loss", e->loss);
    append_number(&out, "accuracy", e->accuracy);
    if (clv_run_entry_last_attempt(e)) append_attempt(&out, e, clv_run_entry_last_attempt(e));
    clv_bytes_puts(&out, "}");
    if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    puts(out.data);
  }
  return CLV_OK;
}

clv_code clv_history_print_runs(const char *folder, bool json, clv_err *err) {
  CLV_AUTO(run_list_done) run_list l = {0};
  const char *given_folder = folder ? folder : CLV_RUNS_FOLDER;
  CLV_TRY(add_run(&l, given_folder, err)); /* finds one run, if given_folder is its folder */
  if (!l.n) CLV_TRY(add_runs_below(&l, given_folder, err));
  if (l.n) qsort(l.items, l.n, sizeof *l.items, compare_newest_first);
  if (json) return print_json(&l, err);
  if (l.n) return print_table(&l, err);
  printf("no runs in %s\n", given_folder);
  return CLV_OK;
}
