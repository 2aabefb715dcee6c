/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the files of a run folder for its page. run.json must exist. Files of steps, evaluations
 * and the egress record may be missing, because the run has not come so far; the page then says so
 * or leaves the section out.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/config/config.h"
#include "master/page/page_int.h"

enum { MAX_LINE_BYTES = 16 << 20, MAX_WORST_BYTES = 1 << 20, MAX_SESSION_BYTES = 1 << 20 };

/* ---- metrics.jsonl and pace.jsonl ------------------------------------------------------------ */

/* Reads one line of metrics.jsonl or pace.jsonl. ret: [n] receives the values of the `keys` [n];
 * NaN for a key that the line does not have or whose value is null. */
static clv_code read_step_line(clv_json *j, const char *const *keys, size_t n, double *ret,
                               clv_err *err) {
  bool has_more;
  for (size_t i = 0; i < n; i++) ret[i] = (double)NAN;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t at = 0;; at++) {
    CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
    size_t i = 0;
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, at, &has_more, err));
    if (!has_more) return clv_json_end(j, err);
    CLV_TRY(clv_json_read_key(j, &key, err));
    while (i < n && (!key.data || strcmp(keys[i], key.data) != 0)) i++;
    if (i == n)
      CLV_TRY(clv_json_skip(j, err));
    else if (!clv_json_skip_null(j))
      CLV_TRY(clv_json_read_real(j, &ret[i], err));
  }
}

static clv_code read_metrics_line(page_run *r, const char *label, const char *line, size_t len,
                                  size_t line_number, clv_err *err) {
  static const char *const keys[] = {"step", "loss"};
  double v[CLV_COUNT(keys)];
  clv_json j = {.label = label, .text = line, .len = len, .lines_before = line_number};
  CLV_TRY(read_step_line(&j, keys, CLV_COUNT(keys), v, err));
  page_series_add(&r->train_loss, v[0], v[1]);
  r->n_steps++;
  return CLV_OK;
}

static clv_code read_pace_line(page_run *r, const char *label, const char *line, size_t len,
                               size_t line_number, clv_err *err) {
  static const char *const keys[] = {"samples_per_s", "wait", "bytes_up", "bytes_down"};
  double v[CLV_COUNT(keys)];
  clv_json j = {.label = label, .text = line, .len = len, .lines_before = line_number};
  CLV_TRY(read_step_line(&j, keys, CLV_COUNT(keys), v, err));
  r->n_pace_lines++;
  double *const sums[] = {&r->samples_per_s_sum, &r->wait_share_sum, &r->bytes_up_sum,
                          &r->bytes_down_sum};
  for (size_t i = 0; i < CLV_COUNT(sums); i++)
    if (isfinite(v[i])) *sums[i] += v[i];
  return CLV_OK;
}

/* ---- reading the files of a run folder ------------------------------------------------------- */

/* Reads one line of a file into *r. label: path of the file, for errors; line_number: index of the
 * line, from 0. */
typedef clv_code line_reader(page_run *r, const char *label, const char *line, size_t len,
                             size_t line_number, clv_err *err);

static void file_closep(FILE **f) {
  if (*f) fclose(*f);
}

/* Calls `read` for each complete line of a file; the file may be missing. Stops before a last line
 * without a newline, because the run is still writing it. */
static clv_code read_lines(page_run *r, const char *name, line_reader *read, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_AUTO(clv_freep) char *line = NULL;
  size_t capacity = 0, line_number = 0;
  clv_bytes_printf(&path, "%s/%s", r->folder, name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_AUTO(file_closep) FILE *f = fopen(path.data, "re");
  if (!f && errno == ENOENT) return CLV_OK;
  if (!f) return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
  for (ssize_t n; (n = getline(&line, &capacity, f)) > 0; line_number++) {
    if (line[n - 1] != '\n') break;
    if (n > MAX_LINE_BYTES)
      return clv_fail(err, CLV_DATA_LOSS, "%s:%zu: the line has more than %d bytes", path.data,
                      line_number + 1, MAX_LINE_BYTES);
    clv_code code = read(r, path.data, line, (size_t)n - 1, line_number, err);
    if (code == CLV_INVALID && err) err->code = CLV_DATA_LOSS;
    if (code != CLV_OK) return code == CLV_INVALID ? CLV_DATA_LOSS : code;
  }
  return CLV_OK;
}

/* Reads a file of at most max_bytes; leaves *ret empty if the file is missing. path: receives the
 * path of the file. */
static clv_code read_file(const page_run *r, const char *name, size_t max_bytes, clv_bytes *path,
                          clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(path, "%s/%s", r->folder, name);
  if (path->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path->data, max_bytes, ret, err);
  return code == CLV_NOT_FOUND ? CLV_OK : code;
}

static clv_code read_run_json(page_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_TRY(read_file(r, "run.json", CLV_RECORD_MAX_BYTES, &path, &text, err));
  if (!text.len)
    return clv_fail(err, CLV_NOT_FOUND, "%s has no run.json: it is no folder of a run", r->folder);
  return clv_run_record_parse(text.data, text.len, path.data, &r->record, err);
}

static clv_code read_worst_file(page_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_TRY(read_file(r, "worst_records.json", MAX_WORST_BYTES, &path, &text, err));
  if (!text.len) return CLV_OK;
  clv_code code = page_read_worst(r, path.data, text.data, text.len, err);
  if (code == CLV_INVALID && err) err->code = CLV_DATA_LOSS;
  return code == CLV_INVALID ? CLV_DATA_LOSS : code;
}

static clv_code read_egress(page_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_EGRESS_FILE, r->folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_egress_read(path.data, &r->egress, err);
  r->has_egress = code == CLV_OK;
  return code == CLV_NOT_FOUND ? CLV_OK : code;
}

/* Reads session.effective.yaml, the session with its defaults filled in, as the run used it. Leaves
 * r->session empty if the file is missing, or invalid because another version wrote it. */
static clv_code read_session(page_run *r, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/session.effective.yaml", r->folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (clv_session_config_load(path.data, NULL, &c, NULL) != CLV_OK) return CLV_OK;
  return clv_session_config_write_public(c, &r->session, err);
}

clv_code page_read_run(page_run *r, clv_err *err) {
  CLV_TRY(read_run_json(r, err));
  CLV_TRY(read_lines(r, "metrics.jsonl", read_metrics_line, err));
  CLV_TRY(read_lines(r, "pace.jsonl", read_pace_line, err));
  CLV_TRY(read_lines(r, "evaluations.jsonl", page_read_evaluation, err));
  CLV_TRY(read_lines(r, "intervals.json", page_read_evaluation, err));
  CLV_TRY(read_worst_file(r, err));
  CLV_TRY(read_egress(r, err));
  return read_session(r, err);
}

void page_run_done(page_run *r) {
  clv_run_record_clear(&r->record);
  clv_egress_summary_done(&r->egress);
  page_scores_done(&r->test_scores);
  page_scores_done(&r->interval_scores);
  for (size_t i = 0; i < r->n_worst_records; i++) {
    free(r->worst_records[i].id);
    free(r->worst_records[i].target);
  }
  clv_bytes_done(&r->session);
}
