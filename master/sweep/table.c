/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the points of a sweep with their scores, the best first: as text, as CSV, or as JSON with
 * an object per line. For a point with k folds, prints the mean of the folds' scores x and their
 * standard deviation, sqrt(sum((x - mean)^2) / (k - 1)), once all k folds have a score.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/sweep/sweep_int.h"

/* A point with its score. */
typedef struct table_row {
  size_t point_index;
  const sweep_run *run; /* the run of the point, or of its first fold */
  /* score of the point (of k folds: mean and deviation); NaN: not known yet */
  double value, standard_deviation;
  double sort_key; /* key of the sort; rows with smaller keys come first */
  size_t n_runs, n_finished;
  int exit_code; /* exit code of the first run that failed; 0: none failed */
  bool has_failed;
} table_row;

static int compare_rows(const void *a, const void *b) {
  const table_row *x = a, *y = b;
  if (x->sort_key != y->sort_key) return x->sort_key < y->sort_key ? -1 : 1;
  return x->point_index < y->point_index ? -1 : x->point_index > y->point_index;
}

static void compute_mean(const sweep_run *runs, table_row *row) {
  double sum = 0, sum_of_squares = 0;
  size_t n = row->n_runs;
  for (size_t i = 0; i < n; i++) {
    if (runs[i].state != SWEEP_RUN_FINISHED || !isfinite(runs[i].value)) return;
    sum += runs[i].value;
  }
  row->value = sum / (double)n;
  for (size_t i = 0; i < n; i++)
    sum_of_squares += (runs[i].value - row->value) * (runs[i].value - row->value);
  if (n > 1) row->standard_deviation = sqrt(sum_of_squares / (double)(n - 1));
}

/* Fills in the rows, one for each point, and sorts the rows. */
static void make_sorted_rows(const sweep_work *s, table_row *rows) {
  size_t n_runs_per_point = s->n_runs / s->points.n_points;
  bool is_largest_best = clv_best_metric_is_largest(s->score.metric);
  for (size_t p = 0; p < s->points.n_points; p++) {
    const sweep_run *runs = &s->runs[p * n_runs_per_point];
    table_row *row = &rows[p];
    *row = (table_row){.point_index = p,
                       .run = runs,
                       .n_runs = n_runs_per_point,
                       .value = (double)NAN,
                       .standard_deviation = (double)NAN};
    for (size_t i = 0; i < n_runs_per_point; i++) {
      row->n_finished += runs[i].state == SWEEP_RUN_FINISHED;
      if (runs[i].state == SWEEP_RUN_FAILED && !row->has_failed) row->exit_code = runs[i].exit_code;
      row->has_failed |= runs[i].state == SWEEP_RUN_FAILED;
    }
    compute_mean(runs, row);
    row->sort_key = isnan(row->value) ? (double)INFINITY
                    : is_largest_best ? -row->value
                                      : row->value;
  }
  qsort(rows, s->points.n_points, sizeof *rows, compare_rows);
}

/* Appends the name of a point, such as "NAME-003", without a suffix for its folds. */
static void append_name(const sweep_work *s, const table_row *row, clv_bytes *out) {
  clv_bytes_printf(out, "%s-%03zu", s->base_session->name, row->point_index + 1);
}

/* Appends "finished", "failed (exit 9)", "not started" or "3 of 5 folds". */
static void append_state(const sweep_work *s, const table_row *row, clv_bytes *out) {
  if (row->n_finished == row->n_runs)
    clv_bytes_puts(out, "finished");
  else if (row->has_failed && row->exit_code < 0)
    clv_bytes_printf(out, "failed (signal %d)", -row->exit_code);
  else if (row->has_failed)
    clv_bytes_printf(out, "failed (exit %d)", row->exit_code);
  else if (s->o->folds && row->n_finished)
    clv_bytes_printf(out, "%zu of %zu folds", row->n_finished, row->n_runs);
  else
    clv_bytes_puts(out, "not finished");
}

/* ---- a row of the table as a JSON line ------------------------------------------------------- */

static void append_json_number(clv_bytes *out, const char *key, double v) {
  if (isfinite(v))
    clv_bytes_printf(out, ",\"%s\":%.9g", key, v);
  else
    clv_bytes_printf(out, ",\"%s\":null", key);
}

static void append_json_row(const sweep_work *s, const table_row *row, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes state = {0};
  char name[CLV_BEST_NAME_BYTES];
  append_state(s, row, &state);
  out->failed |= state.failed;
  if (out->failed) return;
  clv_bytes_puts(out, "{\"point\":\"");
  append_name(s, row, out);
  clv_bytes_printf(out, "\",\"state\":\"%s\",\"score\":", state.data);
  clv_bytes_add_json(out, clv_best_name(s->score.metric, s->score.target, name));
  append_json_number(out, "value", row->value);
  if (s->o->folds)
    append_json_number(out, "deviation", row->standard_deviation);
  else
    clv_bytes_printf(out, ",\"step\":%llu", (unsigned long long)row->run->step);
  clv_bytes_puts(out, ",\"runs\":[");
  for (size_t i = 0; i < row->n_runs; i++) {
    if (i) clv_bytes_puts(out, ",");
    clv_bytes_add_json(out, row->run[i].folder);
  }
  clv_bytes_puts(out, "],\"set\":{");
  for (size_t k = 0; k < s->points.n_keys; k++) {
    if (k) clv_bytes_puts(out, ",");
    clv_bytes_add_json(out, s->points.keys[k].name);
    clv_bytes_puts(out, ":");
    clv_bytes_add_json(out, sweep_point_value(&s->points, row->point_index, k));
  }
  clv_bytes_puts(out, "}}\n");
}

/* ---- the table as text or CSV ---------------------------------------------------------------- */

enum { N_FIXED_COLUMNS = 4, MAX_COLUMNS = N_FIXED_COLUMNS + SWEEP_MAX_KEYS };

/* A line of the table. `text` has the texts of its cells one after the other, each with a NUL. */
typedef struct table_line {
  clv_bytes text;
  size_t at[MAX_COLUMNS]; /* offset in `text` at which each cell begins */
  size_t n;
} table_line;

static void end_cell(table_line *c) { clv_bytes_add(&c->text, "", 1); }

static clv_bytes *begin_cell(table_line *c) {
  c->at[c->n++] = c->text.len;
  return &c->text;
}

static void add_cell(table_line *c, const char *text) {
  clv_bytes_puts(begin_cell(c), text);
  end_cell(c);
}

static void add_number_cell(table_line *c, double v) {
  clv_bytes *out = begin_cell(c);
  if (isfinite(v)) clv_bytes_printf(out, "%.6g", v);
  end_cell(c);
}

static void fill_header_line(const sweep_work *s, table_line *c) {
  char name[CLV_BEST_NAME_BYTES];
  add_cell(c, "point");
  add_cell(c, clv_best_name(s->score.metric, s->score.target, name));
  add_cell(c, s->o->folds ? "deviation" : "step");
  add_cell(c, "state");
  for (size_t k = 0; k < s->points.n_keys; k++) add_cell(c, s->points.keys[k].name);
}

static void fill_row_line(const sweep_work *s, const table_row *row, table_line *c) {
  append_name(s, row, begin_cell(c));
  end_cell(c);
  add_number_cell(c, row->value);
  add_number_cell(c, s->o->folds         ? row->standard_deviation
                     : isnan(row->value) ? (double)NAN
                                         : (double)row->run->step);
  append_state(s, row, begin_cell(c));
  end_cell(c);
  for (size_t k = 0; k < s->points.n_keys; k++)
    add_cell(c, sweep_point_value(&s->points, row->point_index, k));
}

static void append_csv_cell(const char *text, clv_bytes *out) {
  if (!strpbrk(text, ",\"\r\n")) {
    clv_bytes_puts(out, text);
    return;
  }
  clv_bytes_puts(out, "\"");
  for (; *text; text++) clv_bytes_printf(out, *text == '"' ? "\"\"" : "%c", *text);
  clv_bytes_puts(out, "\"");
}

static void append_cells(const sweep_work *s, const table_line *c, const int widths[MAX_COLUMNS],
                         clv_bytes *out) {
  for (size_t k = 0; k < c->n; k++) {
    const char *text = c->text.data + c->at[k];
    bool is_last = k + 1 == c->n;
    if (s->o->format == CLV_SWEEP_CSV)
      append_csv_cell(text, out);
    else
      clv_bytes_printf(out, "%-*s", is_last ? 0 : widths[k], *text ? text : "-");
    clv_bytes_puts(out, is_last ? "\n" : s->o->format == CLV_SWEEP_CSV ? "," : "  ");
  }
}

static void free_lines(table_line **lines_ptr) {
  table_line *lines = *lines_ptr;
  for (size_t i = 0; lines && lines[i].n; i++) clv_bytes_done(&lines[i].text);
  free(lines);
}

static clv_code append_table_lines(const sweep_work *s, const table_row *rows, clv_bytes *out,
                                   clv_err *err) {
  CLV_AUTO(free_lines) table_line *lines = NULL;
  int widths[MAX_COLUMNS] = {0};
  size_t n = s->points.n_points + 1;
  /* lines[n] stays empty and ends the list for free_lines */
  CLV_TRY(clv_alloc(n + 1, sizeof *lines, &lines, err));
  fill_header_line(s, &lines[0]);
  for (size_t i = 1; i < n; i++) fill_row_line(s, &rows[i - 1], &lines[i]);
  for (size_t i = 0; i < n; i++) {
    if (lines[i].text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    for (size_t k = 0; k < lines[i].n; k++)
      widths[k] = CLV_MAX(widths[k], (int)strlen(lines[i].text.data + lines[i].at[k]));
  }
  for (size_t i = 0; i < n; i++) append_cells(s, &lines[i], widths, out);
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code sweep_table_format(const sweep_work *s, clv_bytes *out, clv_err *err) {
  CLV_AUTO(clv_freep) table_row *rows = NULL;
  CLV_TRY(clv_alloc(s->points.n_points, sizeof *rows, &rows, err));
  make_sorted_rows(s, rows);
  if (s->o->format != CLV_SWEEP_JSON) return append_table_lines(s, rows, out, err);
  for (size_t i = 0; i < s->points.n_points; i++) append_json_row(s, &rows[i], out);
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}
