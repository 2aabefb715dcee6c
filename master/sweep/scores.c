/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the outcome of a run from its folder: whether it is finished, from run.json, and the score
 * of a validation, from evaluations.jsonl.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"
#include "common/model/weights/weights.h"
#include "master/sweep/sweep_int.h"

enum { MAX_LINE_BYTES = 16 << 20 };

/* ---- lines of evaluations.jsonl -------------------------------------------------------------- */

/* A line of evaluations.jsonl while it is read. */
typedef struct evaluation_line {
  const char *name;   /* name of the score to read from the line */
  const char *target; /* target that has the score; "": the validation itself */
  char prefix[4];     /* "f1_" while the members of "f1" are read, else "" */
  sweep_validation validation;
} evaluation_line;

typedef clv_code member_reader(clv_json *j, evaluation_line *l, const char *key, clv_err *err);

static clv_code read_members(clv_json *j, evaluation_line *l, member_reader *read, clv_err *err) {
  bool has_more;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return CLV_OK;
    CLV_TRY(clv_json_read_key(j, &key, err));
    CLV_TRY(read(j, l, key.data ? key.data : "", err));
  }
}

/* Reads a member, and stores its value if it is the score that `l` names. */
static clv_code read_value(clv_json *j, evaluation_line *l, const char *key, clv_err *err) {
  size_t n = strlen(l->prefix);
  clv_json_kind kind;
  if (strncmp(l->name, l->prefix, n) != 0 || strcmp(l->name + n, key) != 0)
    return clv_json_skip(j, err);
  CLV_TRY(clv_json_peek(j, &kind, err));
  return kind == CLV_JSON_NUMERAL ? clv_json_read_real(j, &l->validation.value, err)
                                  : clv_json_skip(j, err);
}

static clv_code read_score(clv_json *j, evaluation_line *l, const char *key, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_OBJECT || strcmp(key, "f1") != 0) return read_value(j, l, key, err);
  strcpy(l->prefix, "f1_");
  clv_code code = read_members(j, l, read_value, err);
  l->prefix[0] = '\0';
  return code;
}

/* Reads the scores of the target `key` if it is l->target; otherwise skips them. */
static clv_code read_target(clv_json *j, evaluation_line *l, const char *key, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_OBJECT || strcmp(key, l->target) != 0) return clv_json_skip(j, err);
  return read_members(j, l, read_score, err);
}

/* Reads a member of `scores`. The scores of targets are in its member `targets`. */
static clv_code read_scores(clv_json *j, evaluation_line *l, const char *key, clv_err *err) {
  clv_json_kind kind;
  if (!*l->target) return read_score(j, l, key, err);
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_OBJECT || strcmp(key, "targets") != 0) return clv_json_skip(j, err);
  return read_members(j, l, read_target, err);
}

static clv_code read_line_member(clv_json *j, evaluation_line *l, const char *key, clv_err *err) {
  int64_t step;
  if (strcmp(key, "event") == 0) {
    CLV_AUTO(clv_bytes_done) clv_bytes event = {0};
    CLV_TRY(clv_json_read_text(j, &event, err));
    l->validation.is_validation = event.data && strcmp(event.data, "validation") == 0;
    return CLV_OK;
  }
  if (strcmp(key, "step") == 0) {
    CLV_TRY(clv_json_read_integer(j, 0, INT64_MAX, &step, err));
    l->validation.step = (uint64_t)step;
    return CLV_OK;
  }
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (strcmp(key, "scores") == 0 && kind == CLV_JSON_OBJECT)
    return read_members(j, l, read_scores, err);
  return *l->target ? clv_json_skip(j, err) : read_value(j, l, key, err);
}

clv_code sweep_validation_parse(const char *label, const char *line, size_t len, size_t line_index,
                                const char *name, const char *target, sweep_validation *ret,
                                clv_err *err) {
  evaluation_line l = {.name = name, .target = target, .validation = {.value = (double)NAN}};
  clv_json j = {.label = label, .text = line, .len = len, .lines_before = line_index};
  CLV_TRY(read_members(&j, &l, read_line_member, err));
  CLV_TRY(clv_json_end(&j, err));
  *ret = l.validation;
  return CLV_OK;
}

/* ---- the score of a run ---------------------------------------------------------------------- */

static void file_closep(FILE **f) {
  if (*f) fclose(*f);
}

/* Updates the score of a run by one validation. The score is that of the run's best validation if
 * score->uses_best_validation, else that of the last one. */
static void count_validation(const sweep_score *score, const sweep_validation *v, sweep_run *r) {
  bool is_largest_best = clv_best_metric_is_largest(score->metric);
  bool is_better = isnan(r->value) || (is_largest_best ? v->value > r->value : v->value < r->value);
  if (!v->is_validation || (score->uses_best_validation && (!isfinite(v->value) || !is_better)))
    return;
  r->value = v->value;
  r->step = v->step;
}

clv_code sweep_score_read(const sweep_score *score, sweep_run *r, clv_err *err) {
  const char *name = clv_score_value_row_of((clv_score_value)(score->metric - 1))->name;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_AUTO(clv_freep) char *line = NULL;
  size_t line_capacity = 0, line_index = 0;
  r->value = (double)NAN;
  r->step = 0;
  clv_bytes_printf(&path, "%s/evaluations.jsonl", r->folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_AUTO(file_closep) FILE *f = fopen(path.data, "re");
  if (!f && errno == ENOENT) return CLV_OK;
  if (!f) return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
  for (ssize_t n; (n = getline(&line, &line_capacity, f)) > 0 && line[n - 1] == '\n';
       line_index++) {
    sweep_validation v;
    if (n > MAX_LINE_BYTES)
      return clv_fail(err, CLV_DATA_LOSS, "%s:%zu: the line has more than %d bytes", path.data,
                      line_index + 1, MAX_LINE_BYTES);
    CLV_TRY(sweep_validation_parse(path.data, line, (size_t)n - 1, line_index, name, score->target,
                                   &v, err));
    count_validation(score, &v, r);
  }
  return CLV_OK;
}

/* ---- run.json -------------------------------------------------------------------------------- */

clv_code sweep_stored_state_read(const char *folder, sweep_stored_state *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_AUTO(clv_run_record_clear) clv_run_record record = {.n_attempts = 0};
  *ret = (sweep_stored_state){.exists = false};
  clv_bytes_printf(&path, "%s/run.json", folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, CLV_RECORD_MAX_BYTES, &text, err);
  if (code == CLV_NOT_FOUND) return CLV_OK;
  CLV_TRY(code);
  CLV_TRY(clv_run_record_parse(text.data, text.len, path.data, &record, err));
  const clv_run_attempt *last_attempt = &record.attempts[record.n_attempts - 1];
  ret->exists = true;
  ret->is_finished = last_attempt->status == CLV_RUN_FINISHED;
  snprintf(ret->reason, sizeof ret->reason, "%s",
           last_attempt->status == CLV_RUN_FAILED ? last_attempt->text : "");
  return CLV_OK;
}
