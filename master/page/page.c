/* SPDX-License-Identifier: Apache-2.0
 *
 * Puts the page together: a heading that warns of ids and names on the page, a table of the scores
 * of all runs, charts with the curves of all runs, then a section for each run. The sections are
 * side by side if the window is wide enough.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "master/page/page_int.h"

enum { N_COLORS = 8 };

static const char style_sheet[] =
    ":root{--bg:#fff;--fg:#1a1a1a;--dim:#666;--line:#ccc;--note:#fff4d6;--heat:#2a6fb0;"
    "--0:#1f5fa8;--1:#b8480f;--2:#2b7a3d;--3:#7a3fa0;--4:#a3182f;--5:#0f7480;--6:#7d6608;--7:#555}"
    "@media(prefers-color-scheme:dark){:root{--bg:#16181b;--fg:#e6e6e6;--dim:#a0a0a0;--line:#444;"
    "--note:#3a3212;--heat:#4d9be6;--0:#6fb1ff;--1:#ff9a5c;--2:#74cf88;--3:#c79bea;--4:#ff8095;"
    "--5:#5fd0dc;--6:#d9c356;--7:#bbb}}"
    "body{font:15px/1.5 sans-serif;background:var(--bg);color:var(--fg);margin:0 auto;"
    "max-width:1400px;padding:1em}"
    "h1{font-size:1.5em}h2{font-size:1.2em;overflow-wrap:anywhere}h3{font-size:1em}"
    ".note{background:var(--note);padding:.6em .9em;border-left:4px solid var(--1)}"
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1em}"
    ".run{min-width:0}figure{margin:0;min-width:0}figcaption{font-weight:600}"
    "figure>svg{width:100%;max-width:600px;height:auto}svg text{font:13px "
    "sans-serif;fill:var(--dim)}"
    ".g{stroke:var(--line)}.d{stroke:var(--dim);stroke-dasharray:4 4}"
    ".c{fill:none;stroke-width:2}.legend{margin:.2em 0;color:var(--dim)}"
    ".k{display:inline-block;margin-right:1em;overflow-wrap:anywhere}.k svg{width:.8em;height:.8em}"
    ".c0{stroke:var(--0)}.c1{stroke:var(--1)}.c2{stroke:var(--2)}.c3{stroke:var(--3)}"
    ".c4{stroke:var(--4)}.c5{stroke:var(--5)}.c6{stroke:var(--6)}.c7{stroke:var(--7)}"
    ".f0{fill:var(--0)}.f1{fill:var(--1)}.f2{fill:var(--2)}.f3{fill:var(--3)}"
    ".f4{fill:var(--4)}.f5{fill:var(--5)}.f6{fill:var(--6)}.f7{fill:var(--7)}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;margin:.4em 0 1em}"
    "th,td{border:1px solid var(--line);padding:.2em .6em;text-align:left;vertical-align:top}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}th{font-weight:600}"
    "small{color:var(--dim)}pre{overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}"
    "@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--line:#aaa;--note:#fff}"
    "body{max-width:none;padding:0}figure,table{break-inside:avoid}.wide{overflow:visible}}";

/* ---- small parts of the report page ---------------------------------------------------------- */

/* Returns the last part of the folder's path. It names the run on the page, because runs of one
 * session differ in their folders. */
static const char *run_name(const page_run *r) {
  const char *slash = strrchr(r->folder, '/');
  return slash && slash[1] ? slash + 1 : r->folder;
}

static void put_row(clv_bytes *out, const char *key, const char *value) {
  clv_bytes_puts(out, "<tr><th>");
  page_put_text(out, key);
  clv_bytes_puts(out, "</th><td>");
  page_put_text(out, value);
  clv_bytes_puts(out, "</td></tr>\n");
}

static void put_heading(clv_bytes *out, const char *text) {
  clv_bytes_puts(out, "<h3>");
  page_put_text(out, text);
  clv_bytes_puts(out, "</h3>\n");
}

static void put_cell(clv_bytes *out, double v) {
  clv_bytes_puts(out, "<td class=\"n\">");
  page_put_number(out, v);
  clv_bytes_puts(out, "</td>");
}

/* Appends the SHA-256 of the style in base64, the form that a Content-Security-Policy has. */
static clv_code put_style_digest(clv_bytes *out, clv_err *err) {
  static const char base64_digits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  clv_sha256 d;
  CLV_TRY(clv_sha256_of(style_sheet, sizeof style_sheet - 1, &d, err));
  for (size_t i = 0; i < sizeof d.bytes; i += 3) {
    size_t n_bytes = CLV_MIN(sizeof d.bytes - i, (size_t)3);
    uint32_t word = 0;
    char text[5] = "====";
    for (size_t k = 0; k < 3; k++) word = word << 8 | (k < n_bytes ? d.bytes[i + k] : 0u);
    for (size_t k = 0; k <= n_bytes; k++) text[k] = base64_digits[word >> (18 - 6 * k) & 63];
    clv_bytes_puts(out, text);
  }
  return CLV_OK;
}

/* Formats a time in ms since 1970; empty text for 0. */
static void format_time(uint64_t ms, char text[32]) {
  time_t s = (time_t)(ms / 1000);
  struct tm t;
  text[0] = '\0';
  if (ms && gmtime_r(&s, &t)) strftime(text, 32, "%Y-%m-%d %H:%M:%S UTC", &t);
}

/* ---- the table of all runs ------------------------------------------------------------------- */

/* Returns the scores of a target, or for target NULL the scores of the evaluation itself. */
static const page_scores *find_scores(const page_scores *s, const char *target) {
  static const page_scores no_scores = {.is_set = false};
  const page_scores *target_scores = target ? page_find_target(s, target) : s;
  return target_scores ? target_scores : &no_scores;
}

/* Appends a cell with the run's test score `name` and, if `eval --intervals` has computed one, its
 * interval. target: name of the target that has the score; NULL: the evaluation. */
static void put_value_cell(clv_bytes *out, const page_run *r, const char *target,
                           const char *name) {
  const page_value *v = page_find_value(find_scores(&r->test_scores, target), name);
  const page_value *i = page_find_value(find_scores(&r->interval_scores, target), name);
  clv_bytes_puts(out, "<td class=\"n\">");
  page_put_number(out, v ? v->value : (double)NAN);
  if (i && !isnan(i->low)) {
    clv_bytes_puts(out, "<br><small>");
    page_put_number(out, i->value);
    clv_bytes_printf(out, " (%.4g to %.4g), step %lld%s</small>", i->low, i->high,
                     (long long)r->interval_scores.step,
                     r->interval_scores.is_ema ? ", averages of the weights" : "");
  }
  clv_bytes_puts(out, "</td>");
}

/* Returns the scores of the run's test, or those of `eval --intervals` if the run has not tested.
 * The names of these scores become the rows of the table of all runs. */
static const page_scores *test_or_interval_scores(const page_run *r) {
  return r->test_scores.is_set ? &r->test_scores : &r->interval_scores;
}

/* Appends a table row for each score of an evaluation, or of one of its targets. */
static void put_value_rows(clv_bytes *out, const page_scores *named_scores, const page_run *runs,
                           size_t n) {
  for (size_t i = 0; i < named_scores->n_values; i++) {
    clv_bytes_puts(out, "<tr><th>");
    if (named_scores->target) page_put_text(out, named_scores->target);
    if (named_scores->target) clv_bytes_puts(out, ": ");
    page_put_text(out, named_scores->values[i].name);
    clv_bytes_puts(out, "</th>");
    for (size_t k = 0; k < n; k++)
      put_value_cell(out, &runs[k], named_scores->target, named_scores->values[i].name);
    clv_bytes_puts(out, "</tr>\n");
  }
}

static void put_scores(clv_bytes *out, const page_run *runs, size_t n) {
  const page_scores *named_scores = test_or_interval_scores(&runs[0]);
  for (size_t k = 1; k < n && !named_scores->n_values; k++)
    named_scores = test_or_interval_scores(&runs[k]);
  clv_bytes_puts(out, "<h2>Scores on the test records</h2>\n");
  if (!named_scores->n_values) {
    clv_bytes_puts(out, "<p>No run has tested yet: data.test names the records.</p>\n");
    return;
  }
  clv_bytes_puts(out, "<div class=\"wide\"><table><tr><th></th>");
  for (size_t k = 0; k < n; k++) {
    clv_bytes_puts(out, "<th>");
    page_put_text(out, run_name(&runs[k]));
    clv_bytes_puts(out, "</th>");
  }
  clv_bytes_puts(out, "</tr>\n");
  put_value_rows(out, named_scores, runs, n);
  for (size_t i = 0; i < named_scores->n_targets; i++)
    put_value_rows(out, &named_scores->targets[i], runs, n);
  clv_bytes_puts(out,
                 "</table></div>\n<p><small>Small print: 95 % of the bootstrap over the "
                 "records, from `eval --intervals`.</small></p>\n");
}

static void put_curves(clv_bytes *out, const page_run *runs, size_t n) {
  page_curve loss[2 * CLV_PAGE_MAX_RUNS], accuracy[CLV_PAGE_MAX_RUNS];
  char names[2 * CLV_PAGE_MAX_RUNS][288];
  for (size_t k = 0; k < n; k++) {
    snprintf(names[2 * k], sizeof names[0], "%.256s, training", run_name(&runs[k]));
    snprintf(names[2 * k + 1], sizeof names[0], "%.256s, validation", run_name(&runs[k]));
    loss[2 * k] = (page_curve){names[2 * k], &runs[k].train_loss, (int)(2 * k) % N_COLORS};
    loss[2 * k + 1] =
        (page_curve){names[2 * k + 1], &runs[k].validation_loss, (int)(2 * k + 1) % N_COLORS};
    accuracy[k] = loss[2 * k + 1];
    accuracy[k].points = &runs[k].validation_accuracy;
  }
  clv_bytes_puts(out, "<h2>Curves</h2>\n<div class=\"grid\">");
  page_put_chart(out, "Loss", "step", loss, 2 * n, false);
  page_put_chart(out, "Accuracy of validations", "step", accuracy, n, false);
  clv_bytes_puts(out, "</div>\n");
}

/* ---- the section of one run ------------------------------------------------------------------ */

static void put_classes(clv_bytes *out, const page_scores *s) {
  if (!s->n_classes) return;
  put_heading(out, "Classes");
  clv_bytes_puts(out,
                 "<div class=\"wide\"><table><tr><th>class</th><th>precision</th><th>recall</th>"
                 "<th>F1</th><th>AUC</th><th>places</th></tr>\n");
  for (size_t c = 0; c < s->n_classes; c++) {
    const page_class *k = &s->classes[c];
    clv_bytes_puts(out, "<tr><td>");
    page_put_text(out, k->name ? k->name : "");
    clv_bytes_puts(out, "</td>");
    const double numbers[] = {k->precision, k->recall, k->f1, k->auc, k->n_positions};
    for (size_t i = 0; i < CLV_COUNT(numbers); i++) put_cell(out, numbers[i]);
    clv_bytes_puts(out, "</tr>\n");
  }
  clv_bytes_puts(out, "</table></div>\n");
}

static const char *class_name(const page_scores *s, size_t c) {
  return c < s->n_classes && s->classes[c].name ? s->classes[c].name : "?";
}

static void put_confusion(clv_bytes *out, const page_scores *s) {
  size_t n = s->confusion_width;
  if (!n) return;
  put_heading(out, "Confusion: labels (rows) and answers (columns)");
  if (n > PAGE_MAX_SHOWN_CLASSES) {
    clv_bytes_printf(out, "<p>%zu classes, more than the %d that are drawn.</p>\n", n,
                     PAGE_MAX_SHOWN_CLASSES);
    return;
  }
  clv_bytes_puts(out, "<div class=\"wide\"><table><tr><th></th>");
  for (size_t c = 0; c < n; c++) {
    clv_bytes_puts(out, "<th>");
    page_put_text(out, class_name(s, c));
    clv_bytes_puts(out, "</th>");
  }
  clv_bytes_puts(out, "</tr>\n");
  for (size_t r = 0; r < n; r++) {
    clv_bytes_puts(out, "<tr><th>");
    page_put_text(out, class_name(s, r));
    clv_bytes_puts(out, "</th>");
    for (size_t c = 0; c < n; c++) put_cell(out, s->confusion[r * n + c]);
    clv_bytes_puts(out, "</tr>\n");
  }
  clv_bytes_puts(out, "</table></div>\n");
}

static void put_roc(clv_bytes *out, const page_scores *s) {
  page_curve curves[PAGE_MAX_SHOWN_CLASSES];
  size_t n = 0;
  for (size_t c = 0; c < s->n_classes && n < PAGE_MAX_SHOWN_CLASSES; c++)
    if (s->classes[c].roc)
      curves[n++] = (page_curve){class_name(s, c), s->classes[c].roc, (int)(c % N_COLORS)};
  page_put_chart(out, "ROC: sensitivity by 1 - specificity", "1 - specificity", curves, n, true);
}

static clv_code put_calibration(clv_bytes *out, const page_scores *s, clv_err *err) {
  CLV_AUTO(clv_freep) page_series *points = NULL;
  CLV_TRY(clv_alloc(1, sizeof *points, &points, err));
  for (size_t b = 0; b < s->n_bins; b++)
    if (s->bins[b][0] > 0) page_series_add(points, s->bins[b][1], s->bins[b][2]);
  page_put_chart(out, "Calibration: share that was right by mean probability", "probability",
                 &(page_curve){"10 bins", points, 0}, 1, true);
  return CLV_OK;
}

static void put_worst_records(clv_bytes *out, const page_run *r) {
  if (!r->n_worst_records) return;
  put_heading(out, "Test records with the largest losses");
  clv_bytes_puts(out, "<div class=\"wide\"><table><tr><th>record</th><th>loss</th></tr>\n");
  for (size_t i = 0; i < r->n_worst_records; i++) {
    clv_bytes_puts(out, "<tr><td>");
    page_put_text(out, r->worst_records[i].id ? r->worst_records[i].id : "");
    if (r->worst_records[i].target) clv_bytes_puts(out, " (");
    if (r->worst_records[i].target) page_put_text(out, r->worst_records[i].target);
    clv_bytes_puts(out, r->worst_records[i].target ? ")</td>" : "</td>");
    put_cell(out, r->worst_records[i].loss);
    clv_bytes_puts(out, "</tr>\n");
  }
  clv_bytes_puts(out,
                 "</table></div>\n<p><small>Ids alone: this page has no contents of "
                 "records.</small></p>\n");
}

/* ---- time and bytes of a run ----------------------------------------------------------------- */

/* Returns the sum of the durations of all attempts that have ended. */
static double sum_attempt_seconds(const clv_run_record *r) {
  double ms = 0;
  for (size_t i = 0; i < r->n_attempts; i++)
    if (r->attempts[i].ended_ms > r->attempts[i].began_ms)
      ms += (double)(r->attempts[i].ended_ms - r->attempts[i].began_ms);
  return ms / 1000;
}

static void put_time(clv_bytes *out, const page_run *r) {
  char text[64];
  put_heading(out, "Time");
  clv_bytes_puts(out, "<div class=\"wide\"><table>");
  snprintf(text, sizeof text, "%.1f s", sum_attempt_seconds(&r->record));
  put_row(out, "all attempts", text);
  snprintf(text, sizeof text, "%llu", (unsigned long long)r->n_steps);
  put_row(out, "steps", text);
  if (r->n_pace_lines) {
    double n = (double)r->n_pace_lines;
    snprintf(text, sizeof text, "%.1f %%", 100 * r->wait_share_sum / n);
    put_row(out, "share of a step that the master waited for workers", text);
    snprintf(text, sizeof text, "%.4g", r->samples_per_s_sum / n);
    put_row(out, "samples a second, mean of the steps", text);
  }
  clv_bytes_puts(out, "</table></div>\n");
}

static void put_size_cell(clv_bytes *out, uint64_t bytes) {
  char text[24];
  clv_bytes_printf(out, "<td class=\"n\">%s</td>", clv_format_size(bytes, text, sizeof text));
}

static void put_egress_row(clv_bytes *out, const clv_egress_row_sum *w) {
  char shape_text[160];
  const char *texts[] = {
      w->key.from,     w->key.to,
      w->key.identity, clv_egress_kind_name((clv_egress_kind)w->key.kind),
      w->key.stage,    clv_shape_format(&w->key.shape, shape_text, sizeof shape_text)};
  clv_bytes_puts(out, "<tr>");
  for (size_t i = 0; i < CLV_COUNT(texts); i++) {
    clv_bytes_puts(out, "<td>");
    page_put_text(out, texts[i]);
    clv_bytes_puts(out, "</td>");
  }
  clv_bytes_printf(out, "<td class=\"n\">%llu</td>", (unsigned long long)w->n_tensors);
  put_size_cell(out, w->settled_bytes + w->unsettled_bytes);
  clv_bytes_puts(out, "</tr>\n");
}

static void put_egress(clv_bytes *out, const page_run *r) {
  char down_text[24], up_text[24];
  put_heading(out, "What left, and to whom (egress record)");
  if (!r->has_egress || !r->egress.n_rows) {
    clv_bytes_puts(out, r->has_egress ? "<p>Nothing left the master.</p>\n"
                                      : "<p>There is no record: no tensor was sent.</p>\n");
    return;
  }
  clv_bytes_puts(out,
                 "<div class=\"wide\"><table><tr><th>from</th><th>to</th><th>identity</th>"
                 "<th>kind</th><th>stage</th><th>shape</th><th>tensors</th><th>bytes, at "
                 "most</th></tr>\n");
  for (size_t i = 0; i < r->egress.n_rows; i++) put_egress_row(out, &r->egress.rows[i]);
  clv_bytes_puts(out, "</table></div>\n");
  clv_bytes_printf(out, "<p>Steps of the newest lines: %s sent by the master, %s received.</p>\n",
                   clv_format_size((uint64_t)r->bytes_up_sum, up_text, sizeof up_text),
                   clv_format_size((uint64_t)r->bytes_down_sum, down_text, sizeof down_text));
}

/* ---- the attempts of a run ------------------------------------------------------------------- */

static const char *attempt_status_name(const clv_run_attempt *a) {
  static const char *const names[CLV_RUN_STATUSES] = {
      "runs, or was killed", "finished", "failed",
      "interrupted",         "stopped",  "a worker was lost, and the run recovered"};
  return (unsigned)a->status < CLV_RUN_STATUSES ? names[a->status] : "?";
}

static void put_attempts(clv_bytes *out, const clv_run_record *r) {
  put_heading(out, "Attempts and recoveries");
  clv_bytes_puts(out,
                 "<div class=\"wide\"><table><tr><th>began</th><th>host</th><th>steps</th>"
                 "<th>how it ended</th></tr>\n");
  for (size_t i = 0; i < r->n_attempts; i++) {
    const clv_run_attempt *a = &r->attempts[i];
    char began_text[32];
    format_time(a->began_ms, began_text);
    clv_bytes_printf(out, "<tr><td>%s</td><td>", began_text);
    page_put_text(out, a->host);
    clv_bytes_printf(out, "</td><td class=\"n\">%llu to %llu of %llu</td><td>%s",
                     (unsigned long long)a->from_step, (unsigned long long)a->step,
                     (unsigned long long)a->total_steps, attempt_status_name(a));
    if (a->text[0]) clv_bytes_puts(out, ": ");
    page_put_text(out, a->text);
    clv_bytes_puts(out, "</td></tr>\n");
  }
  clv_bytes_puts(out, "</table></div>\n");
}

static void put_environment(clv_bytes *out, const page_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes command = {0};
  put_heading(out, "How it was run");
  clv_bytes_printf(&command, "cleave-master train %s", r->record.session_path);
  clv_bytes_puts(out, "<div class=\"wide\"><table>");
  put_row(out, "command", command.data ? command.data : "");
  put_row(out, "name of the session", r->record.name);
  put_row(out, "folder", r->folder);
  put_row(out, "SHA-256 of the session, with the run's secret", r->record.config_sha256);
  put_row(out, "version of this page", CLV_VERSION);
  clv_bytes_puts(out, "</table></div>\n");
  if (!r->session.len) return;
  clv_bytes_puts(out,
                 "<details><summary>The session as it ran, without places and seed"
                 "</summary><pre>");
  page_put_text(out, r->session.data);
  clv_bytes_puts(out, "</pre></details>\n");
  out->failed |= command.failed;
}

/* Appends the tables of classes and confusion and the curves of an evaluation, or of one of its
 * targets. */
static clv_code put_details(clv_bytes *out, const page_scores *s, clv_err *err) {
  put_classes(out, s);
  put_confusion(out, s);
  put_roc(out, s);
  return put_calibration(out, s, err);
}

static clv_code put_run(clv_bytes *out, const page_run *r, clv_err *err) {
  const page_scores *s = test_or_interval_scores(r);
  clv_bytes_puts(out, "<section class=\"run\"><h2>");
  page_put_text(out, run_name(r));
  clv_bytes_puts(out, "</h2>\n");
  CLV_TRY(put_details(out, s, err));
  for (size_t i = 0; i < s->n_targets; i++) {
    clv_bytes_puts(out, "<h3>Target ");
    page_put_text(out, s->targets[i].target);
    clv_bytes_puts(out, "</h3>\n");
    CLV_TRY(put_details(out, &s->targets[i], err));
  }
  put_worst_records(out, r);
  put_time(out, r);
  put_egress(out, r);
  put_attempts(out, &r->record);
  put_environment(out, r);
  clv_bytes_puts(out, "</section>\n");
  return CLV_OK;
}

/* ---- putting the report page together -------------------------------------------------------- */

static clv_code put_head(clv_bytes *out, const page_run *runs, size_t n, clv_err *err) {
  clv_bytes_puts(out,
                 "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                 "base-uri 'none'; form-action 'none'; style-src 'sha256-");
  CLV_TRY(put_style_digest(out, err));
  clv_bytes_puts(out,
                 "'\">\n<meta name=\"viewport\" content=\"width=device-width,"
                 "initial-scale=1\">\n<meta name=\"referrer\" content=\"no-referrer\">\n"
                 "<title>Report of ");
  for (size_t k = 0; k < n; k++) {
    clv_bytes_puts(out, k ? ", " : "");
    page_put_text(out, run_name(&runs[k]));
  }
  clv_bytes_printf(out, "</title>\n<style>%s</style></head><body>\n<h1>Report of ", style_sheet);
  for (size_t k = 0; k < n; k++) {
    clv_bytes_puts(out, k ? " and " : "");
    page_put_text(out, run_name(&runs[k]));
  }
  clv_bytes_puts(out,
                 "</h1>\n<p class=\"note\"><strong>This page shows records:</strong> ids of "
                 "records and names of classes from the data of the runs. Keep it where the "
                 "records are kept. It loads nothing and runs no script.</p>\n");
  return CLV_OK;
}

clv_code page_put_report(const page_run *runs, size_t n, clv_bytes *out, clv_err *err) {
  CLV_TRY(put_head(out, runs, n, err));
  put_scores(out, runs, n);
  put_curves(out, runs, n);
  clv_bytes_puts(out, "<div class=\"grid\">\n");
  for (size_t k = 0; k < n; k++) CLV_TRY(put_run(out, &runs[k], err));
  clv_bytes_puts(out, "</div>\n</body></html>\n");
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* Array of the n runs of a page. */
typedef struct run_list {
  page_run *runs;
  size_t n;
} run_list;

static void free_runs(run_list *l) {
  for (size_t i = 0; i < l->n; i++) page_run_done(&l->runs[i]);
  free(l->runs);
}

clv_code clv_page_write(const char *const *folders, size_t n, clv_bytes *out, clv_err *err) {
  CLV_AUTO(free_runs) run_list l = {0};
  if (!n || n > CLV_PAGE_MAX_RUNS)
    return clv_fail(err, CLV_INVALID, "a report is of 1 to %d runs, not of %zu", CLV_PAGE_MAX_RUNS,
                    n);
  CLV_TRY(clv_alloc(n, sizeof *l.runs, &l.runs, err));
  for (; l.n < n; l.n++) {
    l.runs[l.n].folder = folders[l.n];
    clv_code code = page_read_run(&l.runs[l.n], err);
    if (code == CLV_OK) continue;
    l.n++;
    return code;
  }
  return page_put_report(l.runs, n, out, err);
}

clv_code clv_page_write_texts(const char *evaluation_lines, size_t len, const char *worst_records,
                              size_t worst_records_len, clv_bytes *out, clv_err *err) {
  CLV_AUTO(free_runs) run_list l = {0};
  CLV_TRY(clv_alloc(1, sizeof *l.runs, &l.runs, err));
  l.runs[l.n++].folder = "run";
  for (size_t at = 0, line_number = 0; at < len; line_number++) {
    const char *end = memchr(evaluation_lines + at, '\n', len - at);
    size_t n = end ? (size_t)(end - evaluation_lines) - at : len - at;
    CLV_TRY(page_read_evaluation(&l.runs[0], "evaluations.jsonl", evaluation_lines + at, n,
                                 line_number, err));
    at += n + 1;
  }
  if (worst_records_len)
    CLV_TRY(
        page_read_worst(&l.runs[0], "worst_records.json", worst_records, worst_records_len, err));
  return page_put_report(l.runs, 1, out, err);
}
