/* SPDX-License-Identifier: Apache-2.0
 *
 * The reporter: writes metrics.jsonl, pace.jsonl and evaluations.jsonl, prints progress, and fills
 * the event file. The trainer calls clv_reporter_step after each step. compute_step_scalars
 * computes each number of a step once, so the files and TensorBoard get the same value.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/report/report_int.h"

/* ---- files with a line per step -------------------------------------------------------------- */

/* MAX_TAG_BYTES: longest tag in event files, with its NUL. MAX_SCALARS_PER_CALL: scores of an
 * evaluation go to the event file in groups of this many. MAX_PENDING_BYTES: the run fails if more
 * bytes of lines than that could not be written. */
enum { MAX_TAG_BYTES = 160, MAX_SCALARS_PER_CALL = 32, MAX_PENDING_BYTES = 64 << 20 };

typedef enum line_file_kind {
  METRICS_FILE,
  PACE_FILE,
  EVALUATIONS_FILE,
  N_LINE_FILES
} line_file_kind;

static const char *const line_file_names[N_LINE_FILES] = {[METRICS_FILE] = "metrics.jsonl",
                                                          [PACE_FILE] = "pace.jsonl",
                                                          [EVALUATIONS_FILE] = "evaluations.jsonl"};

/* ---- numbers of a step ----------------------------------------------------------------------- */

/* Numbers that each step has in its lines and in the event file. */
typedef enum step_scalar {
  SCALAR_LOSS,
  SCALAR_GRAD_NORM,
  SCALAR_LR,
  SCALAR_ACCURACY,
  SCALAR_SAMPLES_PER_S,
  SCALAR_WAIT_SHARE,
  SCALAR_BYTES_UP,
  SCALAR_BYTES_DOWN,
  N_STEP_SCALARS
} step_scalar;

static const struct {
  const char *key, *tag; /* key: name in the JSON line; tag: name in the event file */
  line_file_kind file;   /* file whose lines have the number */
  /* printf format, for a value that is always finite; NULL: 17 digits, or JSON null for a value
   * that is not finite */
  const char *format;
} scalar_formats[N_STEP_SCALARS] = {
    [SCALAR_LOSS] = {.key = "loss", .tag = "train/loss", .file = METRICS_FILE},
    [SCALAR_GRAD_NORM] = {.key = "grad_norm", .tag = "train/gradient_norm", .file = METRICS_FILE},
    [SCALAR_LR] = {.key = "lr",
                   .tag = "train/learning_rate",
                   .file = METRICS_FILE,
                   .format = "%.9g"},
    [SCALAR_ACCURACY] = {.key = "accuracy",
                         .tag = "train/accuracy",
                         .file = METRICS_FILE,
                         .format = "%.6f"},
    [SCALAR_SAMPLES_PER_S] = {.key = "samples_per_s",
                              .tag = "pace/samples_per_second",
                              .file = PACE_FILE,
                              .format = "%.9g"},
    [SCALAR_WAIT_SHARE] = {.key = "wait",
                           .tag = "pace/wait_share",
                           .file = PACE_FILE,
                           .format = "%.9g"},
    [SCALAR_BYTES_UP] = {.key = "bytes_up",
                         .tag = "pace/bytes_up",
                         .file = PACE_FILE,
                         .format = "%.0f"},
    [SCALAR_BYTES_DOWN] = {.key = "bytes_down",
                           .tag = "pace/bytes_down",
                           .file = PACE_FILE,
                           .format = "%.0f"},
};

static double compute_rate(uint64_t count, uint64_t ns) {
  return ns ? (double)count * 1e9 / (double)ns : 0;
}

static void compute_step_scalars(const clv_progress *p, double values[N_STEP_SCALARS]) {
  values[SCALAR_LOSS] = p->loss;
  values[SCALAR_GRAD_NORM] = p->grad_norm;
  values[SCALAR_LR] = p->lr;
  values[SCALAR_ACCURACY] = p->accuracy;
  values[SCALAR_SAMPLES_PER_S] = compute_rate(p->n_samples, p->step_ns);
  values[SCALAR_WAIT_SHARE] = p->step_ns ? (double)p->wait_ns / (double)p->step_ns : 0;
  values[SCALAR_BYTES_UP] = (double)p->step_bytes_up;
  values[SCALAR_BYTES_DOWN] = (double)p->step_bytes_down;
}

/* Returns false if scalar i is the accuracy and is unknown, because the loss is not computed at the
 * master or there are no classes. */
static bool is_known_scalar(const double values[N_STEP_SCALARS], step_scalar i) {
  return i != SCALAR_ACCURACY || values[i] >= 0;
}

/* A file with a line per step or evaluation. Lines whose write fails wait in memory. */
typedef struct line_file {
  int fd;                  /* descriptor of the file; -1: not open */
  clv_bytes pending_lines; /* lines that are not yet written */
  bool has_warned;         /* a failed write was reported */
} line_file;

struct clv_reporter {
  line_file files[N_LINE_FILES];
  clv_notifier notifier;
  clv_event_file *event_file;
  clv_journal *journal;
  uint64_t steps_per_line;
  bool prints_json, is_terminal;
  bool is_line_open; /* the status line on the terminal has no line end yet */
  /* sums over the steps since the last printed line, which was printed at time began_ns */
  uint64_t began_ns, n_steps, n_samples, wait_ns, step_ns;
  uint64_t bytes_up, bytes_down; /* sent and received in the attempt until the last printed line */
  uint64_t n_finite_samples;     /* samples of steps with a finite loss */
  uint64_t n_skipped_steps;      /* steps that changed no weight */
  double loss_sum, correct_sum;  /* loss of n_finite_samples; correct answers of n_samples */
  bool has_accuracy;             /* the last step had an accuracy */
  clv_bytes line, object, json_line; /* buffers in which lines are made; reused for each line */
};

/* ---- opening the files of a run -------------------------------------------------------------- */

/* Returns true if the step of a JSON line is at most last_kept_step. */
static bool is_line_up_to_step(const char *line, uint64_t last_kept_step) {
  const char *at = strstr(line, "\"step\":");
  return at && strtoull(at + 7, NULL, 10) <= last_kept_step;
}

/* Deletes the lines of steps after last_kept_step from a file, because the resumed run writes them
 * again. Creates the file if it does not exist. */
static clv_code drop_later_lines(const char *path, uint64_t last_kept_step, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes old_lines = {0}, kept_lines = {0};
  clv_code code = clv_file_read(path, (size_t)1 << 30, &old_lines, err);
  if (code != CLV_OK && code != CLV_NOT_FOUND) return code;
  clv_bytes_puts(&kept_lines, "");
  for (char *at = old_lines.data; at && *at;) {
    char *end = strchr(at, '\n');
    if (!end) break; /* a line cut short by a crash */
    if (is_line_up_to_step(at, last_kept_step))
      clv_bytes_add(&kept_lines, at, (size_t)(end + 1 - at));
    at = end + 1;
  }
  if (kept_lines.failed) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path);
  return clv_file_write_durable(path, kept_lines.data, kept_lines.len, 0644, err);
}

static clv_code open_line_file(const clv_report_options *o, line_file_kind t, int *ret,
                               clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s", o->run_dir, line_file_names[t]);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(drop_later_lines(path.data, o->last_kept_step, err));
  *ret = open(path.data, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (*ret < 0) return clv_fail(err, CLV_PRECONDITION, "%s: %s", path.data, strerror(errno));
  return CLV_OK;
}

/* Adds the text of the session as a code block: TensorBoard shows Markdown, in which four spaces
 * before a line mean code. */
static void add_session_text(clv_event_file *e, uint64_t step, const char *session_text) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  for (const char *line = session_text; *line;) {
    size_t n = strcspn(line, "\n");
    clv_bytes_printf(&text, "    %.*s\n", (int)n, line);
    line += n + (line[n] == '\n');
  }
  if (text.len && !text.failed) clv_event_file_add_text(e, step, "session", text.data);
}

/* Opens the event file. A new run makes TensorBoard ignore all older events of the folder, a
 * resumed run only those of the steps that it repeats. */
static clv_code open_event_file(clv_reporter *r, const clv_report_options *o, clv_err *err) {
  if (!o->tensorboard_folder) return CLV_OK;
  CLV_TRY(clv_event_file_open(o->tensorboard_folder, o->is_resumed ? o->last_kept_step + 1 : 0,
                              o->notifier, &r->event_file, err));
  if (o->session_text) add_session_text(r->event_file, o->last_kept_step, o->session_text);
  clv_event_file_flush(r->event_file);
  return CLV_OK;
}

static void reporter_closep(clv_reporter **r) { clv_reporter_close(*r); }

clv_code clv_reporter_open(const clv_report_options *o, clv_reporter **ret, clv_err *err) {
  CLV_AUTO(reporter_closep) clv_reporter *r = NULL;
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  r->notifier = o->notifier;
  for (int t = 0; t < N_LINE_FILES; t++) r->files[t].fd = -1;
  for (int t = 0; t < N_LINE_FILES; t++)
    CLV_TRY(open_line_file(o, (line_file_kind)t, &r->files[t].fd, err));
  CLV_TRY(open_event_file(r, o, err));
  r->journal = o->journal;
  r->steps_per_line = CLV_MAX(o->steps_per_line, (uint64_t)1);
  r->prints_json = o->prints_json;
  r->is_terminal = !o->prints_json && isatty(STDOUT_FILENO);
  r->began_ns = clv_now_ns();
  *ret = clv_steal(&r);
  return CLV_OK;
}

static void end_status_line(clv_reporter *r) {
  if (r->is_line_open) putchar('\n');
  r->is_line_open = false;
}

/* ---- writing lines --------------------------------------------------------------------------- */

/* Writes the pending lines of a file. Bytes that cannot be written stay pending. */
static clv_code write_pending(clv_reporter *r, line_file_kind t, clv_err *err) {
  line_file *f = &r->files[t];
  size_t n_written = 0;
  ssize_t n = 0;
  while (n_written < f->pending_lines.len && n >= 0) {
    n = write(f->fd, f->pending_lines.data + n_written, f->pending_lines.len - n_written);
    if (n < 0 && errno == EINTR) n = 0;
    if (n > 0) n_written += (size_t)n;
  }
  int write_errno = errno;
  f->pending_lines.len -= n_written;
  if (n_written)
    memmove(f->pending_lines.data, f->pending_lines.data + n_written, f->pending_lines.len);
  if (n >= 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "%s: write: %s", line_file_names[t],
                  strerror(write_errno));
}

/* As write_pending, but after a failed write only warns once, unless more than MAX_PENDING_BYTES
 * are pending. */
static clv_code flush_line_file(clv_reporter *r, line_file_kind t, clv_err *err) {
  line_file *f = &r->files[t];
  if (write_pending(r, t, err) == CLV_OK) return CLV_OK;
  if (f->pending_lines.len > MAX_PENDING_BYTES) return err->code;
  if (!f->has_warned)
    clv_notify(r->notifier, "%s; its lines wait in memory, and the run goes on", err->text);
  f->has_warned = true;
  return CLV_OK;
}

clv_code clv_reporter_sync(clv_reporter *r, clv_err *err) {
  for (int t = 0; t < N_LINE_FILES; t++) {
    CLV_TRY(write_pending(r, (line_file_kind)t, err));
    if (fsync(r->files[t].fd) != 0)
      return clv_fail(err, CLV_PRECONDITION, "%s: fsync: %s", line_file_names[t], strerror(errno));
  }
  return CLV_OK;
}

static void close_line_file(clv_reporter *r, line_file_kind t) {
  line_file *f = &r->files[t];
  clv_err err;
  if (f->fd >= 0 && write_pending(r, t, &err) != CLV_OK)
    clv_notify(r->notifier, "%s: %zu bytes of lines are lost", err.text, f->pending_lines.len);
  if (f->fd >= 0) close(f->fd);
  clv_bytes_done(&f->pending_lines);
}

void clv_reporter_close(clv_reporter *r) {
  if (!r) return;
  end_status_line(r);
  for (int t = 0; t < N_LINE_FILES; t++) close_line_file(r, (line_file_kind)t);
  clv_event_file_close(r->event_file);
  clv_bytes_done(&r->line);
  clv_bytes_done(&r->object);
  clv_bytes_done(&r->json_line);
  free(r);
}

/* ---- lines that are printed ------------------------------------------------------------------ */

/* Adds a step to the sums since the last printed line. */
static void add_to_interval(clv_reporter *r, const clv_progress *p) {
  r->n_steps++;
  r->n_samples += p->n_samples;
  r->wait_ns += p->wait_ns;
  r->step_ns += p->step_ns;
  r->n_skipped_steps += !p->changed_weights;
  if (isfinite(p->loss)) {
    r->n_finite_samples += p->n_samples;
    r->loss_sum += p->loss * (double)p->n_samples;
  }
  r->has_accuracy = p->accuracy >= 0;
  r->correct_sum += p->accuracy * (double)p->n_samples;
}

const char *clv_json_number(double v, int digits, char dst[CLV_JSON_NUMBER_BYTES]) {
  if (isfinite(v))
    snprintf(dst, CLV_JSON_NUMBER_BYTES, "%.*g", digits, v);
  else
    snprintf(dst, CLV_JSON_NUMBER_BYTES, "null");
  return dst;
}

const char *clv_format_number(const char *format, double v, char dst[CLV_JSON_NUMBER_BYTES]) {
  if (isfinite(v))
    snprintf(dst, CLV_JSON_NUMBER_BYTES, format, v);
  else
    snprintf(dst, CLV_JSON_NUMBER_BYTES, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
  return dst;
}

/* Numbers of a printed line: averages over the steps since the previous printed line. */
typedef struct interval_averages {
  double loss, samples_per_s;
  double up_mb_per_s, down_mb_per_s; /* sent and received; MB are 10^6 bytes */
  double wait_share;                 /* share of the time in which the master waited */
  double remaining_s;                /* seconds to the end of the run; < 0: unknown */
} interval_averages;

#define MAX_REMAINING_S 1e9

/* Estimates the seconds until the run ends, from the speed since the last printed line; -1:
 * unknown. seconds: time since that line. */
static double estimate_remaining_s(const clv_reporter *r, const clv_progress *p, double seconds) {
  if (!r->n_steps || p->step >= p->total_steps || !(seconds > 0)) return -1;
  double left = seconds / (double)r->n_steps * (double)(p->total_steps - p->step);
  return left < MAX_REMAINING_S ? left : -1;
}

const char *clv_format_duration(double s, char dst[CLV_DURATION_TEXT_BYTES]) {
  bool is_shown = s >= 0 && s < MAX_REMAINING_S;
  uint64_t n = is_shown ? (uint64_t)(s + 0.5) : 0;
  if (!is_shown)
    dst[0] = '\0';
  else if (n < 60)
    snprintf(dst, CLV_DURATION_TEXT_BYTES, "%us", (unsigned)n);
  else if (n < 3600)
    snprintf(dst, CLV_DURATION_TEXT_BYTES, "%um%02us", (unsigned)(n / 60), (unsigned)(n % 60));
  else
    snprintf(dst, CLV_DURATION_TEXT_BYTES, "%uh%02um", (unsigned)(n / 3600),
             (unsigned)(n / 60 % 60));
  return dst;
}

static void put_interval_json(clv_bytes *out, const clv_progress *p, const interval_averages *i,
                              uint64_t skipped) {
  char loss[CLV_JSON_NUMBER_BYTES];
  clv_bytes_printf(out,
                   "{\"event\":\"progress\",\"step\":%llu,\"epoch\":%llu,\"loss\":%s,"
                   "\"samples_per_s\":%.1f,\"up_MBps\":%.3f,\"down_MBps\":%.3f,\"wait\":%.3f",
                   (unsigned long long)p->step, (unsigned long long)p->epoch,
                   clv_json_number(i->loss, 6, loss), i->samples_per_s, i->up_mb_per_s,
                   i->down_mb_per_s, i->wait_share);
  if (skipped) clv_bytes_printf(out, ",\"skipped\":%llu", (unsigned long long)skipped);
  if (i->remaining_s >= 0) clv_bytes_printf(out, ",\"eta_s\":%.1f", i->remaining_s);
  clv_bytes_puts(out, "}");
}

static void put_interval_text(clv_bytes *out, const clv_reporter *r, const clv_progress *p,
                              const interval_averages *i) {
  char total_text[24] = "", accuracy_text[24] = "", skipped_text[96] = "",
       remaining_text[CLV_DURATION_TEXT_BYTES];
  char loss[CLV_JSON_NUMBER_BYTES];
  if (p->total_steps)
    snprintf(total_text, sizeof total_text, "/%llu", (unsigned long long)p->total_steps);
  if (r->has_accuracy)
    snprintf(accuracy_text, sizeof accuracy_text, "  acc %.3f",
             r->correct_sum / (double)r->n_samples);
  if (r->n_skipped_steps)
    snprintf(skipped_text, sizeof skipped_text,
             "  SKIPPED %llu of %llu steps (loss or gradient not finite)",
             (unsigned long long)r->n_skipped_steps, (unsigned long long)r->n_steps);
  clv_bytes_printf(out,
                   "step %llu%s  epoch %llu  loss %s%s  %.0f samples/s  up %.1f MB/s  down %.1f "
                   "MB/s  wait %.0f%%%s%s%s",
                   (unsigned long long)p->step, total_text, (unsigned long long)p->epoch + 1,
                   clv_format_number("%.4f", i->loss, loss), accuracy_text, i->samples_per_s,
                   i->up_mb_per_s, i->down_mb_per_s, 100 * i->wait_share,
                   i->remaining_s >= 0 ? "  eta " : "",
                   clv_format_duration(i->remaining_s, remaining_text), skipped_text);
}

static void print_interval(clv_reporter *r, const clv_progress *p) {
  double seconds = (double)(clv_now_ns() - r->began_ns) / 1e9, n = (double)r->n_samples;
  interval_averages i = {
      .loss = r->n_finite_samples ? r->loss_sum / (double)r->n_finite_samples : NAN,
      .samples_per_s = n / seconds,
      .up_mb_per_s = (double)(p->bytes_up - r->bytes_up) / seconds / 1e6,
      .down_mb_per_s = (double)(p->bytes_down - r->bytes_down) / seconds / 1e6,
      .wait_share = r->step_ns ? (double)r->wait_ns / (double)r->step_ns : 0,
      .remaining_s = estimate_remaining_s(r, p, seconds)};
  r->line.len = r->object.len = r->json_line.len = 0;
  put_interval_text(&r->line, r, p, &i);
  put_interval_json(&r->object, p, &i, r->n_skipped_steps);
  if (r->line.failed || r->object.failed) return;
  clv_report_json(&r->json_line, CLV_LOG_INFO, NULL, r->object.data);
  if (r->json_line.failed) return;
  clv_journal_add(r->journal, r->line.data, r->json_line.data);
  if (r->is_terminal)
    printf("\r\033[K%s", r->line.data);
  else
    printf("%s\n", r->prints_json ? r->json_line.data : r->line.data);
  fflush(stdout);
  r->is_line_open = r->is_terminal;
  r->began_ns = clv_now_ns();
  r->n_steps = r->n_samples = r->wait_ns = r->step_ns = r->n_finite_samples = r->n_skipped_steps =
      0;
  r->loss_sum = r->correct_sum = 0;
  r->bytes_up = p->bytes_up;
  r->bytes_down = p->bytes_down;
}

void clv_reporter_notice(clv_reporter *r, const char *text, const char *json) {
  if (r) end_status_line(r);
  clv_report_notice(r ? r->journal : NULL, r && r->prints_json, text, json);
}

/* ---- lines of the JSON files ----------------------------------------------------------------- */

static void add_json_scalar(clv_bytes *line, step_scalar i, double value) {
  char text[CLV_JSON_NUMBER_BYTES];
  clv_bytes_printf(line, ",\"%s\":", scalar_formats[i].key);
  if (scalar_formats[i].format)
    snprintf(text, sizeof text, scalar_formats[i].format, value);
  else
    clv_json_number(value, 17, text);
  clv_bytes_puts(line, text);
}

static clv_code write_line(clv_reporter *r, line_file_kind t, clv_err *err) {
  clv_bytes_puts(&r->line, "}\n");
  if (r->line.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_bytes_add(&r->files[t].pending_lines, r->line.data, r->line.len);
  return r->files[t].pending_lines.failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

static clv_code write_step(clv_reporter *r, line_file_kind t, const clv_progress *p,
                           const double values[N_STEP_SCALARS], clv_err *err) {
  r->line.len = 0;
  clv_bytes_printf(&r->line, "{\"step\":%llu", (unsigned long long)p->step);
  for (int i = 0; i < N_STEP_SCALARS; i++) {
    if (scalar_formats[i].file == t && is_known_scalar(values, (step_scalar)i))
      add_json_scalar(&r->line, (step_scalar)i, values[i]);
    if (i == SCALAR_LR && t == METRICS_FILE)
      clv_bytes_printf(&r->line, ",\"applied\":%s", p->changed_weights ? "true" : "false");
  }
  return write_line(r, t, err);
}

static void add_step_scalars(clv_reporter *r, const clv_progress *p,
                             const double values[N_STEP_SCALARS]) {
  clv_scalar list[N_STEP_SCALARS];
  size_t n = 0;
  for (int i = 0; i < N_STEP_SCALARS; i++)
    if (is_known_scalar(values, (step_scalar)i))
      list[n++] = (clv_scalar){scalar_formats[i].tag, values[i]};
  clv_event_file_add_scalars(r->event_file, p->step, list, n);
}

clv_code clv_reporter_step(clv_reporter *r, const clv_progress *p, clv_err *err) {
  double values[N_STEP_SCALARS];
  compute_step_scalars(p, values);
  CLV_TRY(write_step(r, METRICS_FILE, p, values, err));
  CLV_TRY(flush_line_file(r, METRICS_FILE, err));
  CLV_TRY(write_step(r, PACE_FILE, p, values, err));
  add_step_scalars(r, p, values);
  add_to_interval(r, p);
  bool is_last_step = p->total_steps && p->step == p->total_steps;
  if (r->n_steps < r->steps_per_line && !is_last_step) return CLV_OK;
  print_interval(r, p);
  clv_event_file_flush(r->event_file);
  return flush_line_file(r, PACE_FILE, err);
}

/* Appends a scalar to list[*n]. Its tag, such as "validation/f1_macro", is written to `tag`. */
static void add_scalar(clv_scalar list[], size_t *n, char tag[MAX_TAG_BYTES], const char *dataset,
                       const char *name, double value) {
  snprintf(tag, MAX_TAG_BYTES, "%s/%s", dataset, name);
  list[(*n)++] = (clv_scalar){tag, value};
}

static void add_evaluation_scalars(clv_reporter *r, const clv_evaluation *e) {
  char tags[MAX_SCALARS_PER_CALL + 2][MAX_TAG_BYTES];
  clv_scalar list[MAX_SCALARS_PER_CALL + 2];
  size_t n = 0;
  add_scalar(list, &n, tags[n], e->dataset, "loss", e->loss);
  if (e->accuracy >= 0) add_scalar(list, &n, tags[n], e->dataset, "accuracy", e->accuracy);
  for (size_t i = 0; i < e->n_scalars; i++) {
    if (n >= MAX_SCALARS_PER_CALL)
      clv_event_file_add_scalars(r->event_file, e->step, list, n), n = 0;
    if (!isnan(e->scalars[i].value)) /* a score that is not defined has no point in a curve */
      add_scalar(list, &n, tags[n], e->dataset, e->scalars[i].tag, e->scalars[i].value);
  }
  clv_event_file_add_scalars(r->event_file, e->step, list, n);
  clv_event_file_flush(r->event_file);
}

clv_code clv_reporter_evaluation(clv_reporter *r, const clv_evaluation *e, clv_err *err) {
  char loss[CLV_JSON_NUMBER_BYTES];
  clv_bytes *line = &r->line;
  add_evaluation_scalars(r, e);
  line->len = 0;
  clv_bytes_printf(line, "{\"step\":%llu,\"epoch\":%llu,\"event\":\"%s\",\"loss\":%s",
                   (unsigned long long)e->step, (unsigned long long)e->epoch, e->dataset,
                   clv_json_number(e->loss, 17, loss));
  if (e->accuracy >= 0) clv_bytes_printf(line, ",\"accuracy\":%.6f", e->accuracy);
  clv_bytes_printf(line, ",\"samples\":%llu", (unsigned long long)e->n_samples);
  if (e->n_labelled) clv_bytes_printf(line, ",\"places\":%llu", (unsigned long long)e->n_labelled);
  if (e->scores_json) clv_bytes_printf(line, ",\"scores\":%s", e->scores_json);
  if (e->curves_json) clv_bytes_printf(line, ",\"curves\":%s", e->curves_json);
  CLV_TRY(write_line(r, EVALUATIONS_FILE, err));
  return flush_line_file(r, EVALUATIONS_FILE, err);
}
