/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses a checkpoint: the newest, that of a step, or the best, which a run keeps in addition to
 * the newest ones. A file of one line in the run folder names the best one, so that a resumed run
 * knows it.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

enum { MAX_BEST_LINE_LEN = 160 + CLV_BEST_TARGET_BYTES };

/* ---- the line that names the best checkpoint ------------------------------------------------- */

static void format_best_line(const clv_best_checkpoint *b, char line[MAX_BEST_LINE_LEN]) {
  snprintf(line, MAX_BEST_LINE_LEN, "%s %.17g step %llu%s%s\n", clv_best_metric_name(b->metric),
           b->value, (unsigned long long)b->step, b->target[0] ? " of " : "", b->target);
}

/* Accepts a line only in the exact form that clv_run_write_best_checkpoint writes. */
clv_code clv_best_checkpoint_parse(const char *text, size_t len, const char *label,
                                   clv_best_checkpoint *ret, clv_err *err) {
  char rewritten_line[MAX_BEST_LINE_LEN];
  clv_best_metric metric = CLV_BEST_NONE;
  for (int i = CLV_BEST_NONE + 1; i < CLV_BEST_COUNT; i++) {
    size_t n = strlen(clv_best_metric_name((clv_best_metric)i));
    if (strncmp(text, clv_best_metric_name((clv_best_metric)i), n) == 0 && text[n] == ' ')
      metric = (clv_best_metric)i;
  }
  const char *value_text = text + strlen(clv_best_metric_name(metric));
  char *end;
  clv_best_checkpoint b = {.metric = metric, .value = strtod(value_text, &end)};
  if (strncmp(end, " step ", 6) == 0 && isdigit((unsigned char)end[6]))
    b.step = strtoull(end + 6, &end, 10);
  if (strncmp(end, " of ", 4) == 0)
    snprintf(b.target, sizeof b.target, "%.*s", (int)strcspn(end + 4, "\n"), end + 4);
  format_best_line(&b, rewritten_line);
  if (metric == CLV_BEST_NONE || !isfinite(b.value) || b.step > INT64_MAX ||
      len != strlen(rewritten_line) || memcmp(text, rewritten_line, len) != 0)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s is damaged: expected one line, such as validation.loss 0.25 step 120",
                    label);
  *ret = b;
  return CLV_OK;
}

static void append_best_path(const char *dir, clv_bytes *ret) {
  clv_bytes_printf(ret, "%s/" CLV_RUN_BEST_FILE, dir);
}

static clv_code read_best_file(const char *dir, clv_best_checkpoint *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  append_best_path(dir, &path);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read(path.data, MAX_BEST_LINE_LEN, &text, err));
  return clv_best_checkpoint_parse(text.data ? text.data : "", text.len, path.data, ret, err);
}

static clv_code write_best_file(const char *dir, const clv_best_checkpoint *b, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char line[MAX_BEST_LINE_LEN];
  format_best_line(b, line);
  append_best_path(dir, &path);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, line, strlen(line), 0644, err);
}

/* ---- the best checkpoint while training ------------------------------------------------------ */

void clv_run_delete_best_file(const char *dir) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  append_best_path(dir, &path);
  if (!path.failed) (void)!unlink(path.data);
}

uint64_t clv_run_best_checkpoint_step(const char *dir) {
  clv_best_checkpoint b;
  return read_best_file(dir, &b, NULL) == CLV_OK ? b.step : CLV_CHECKPOINT_NONE;
}

/* Returns the target whose score decides which checkpoint is the best; "": the evaluation's own
 * score decides, not a target's. */
static const char *best_target_of(const clv_run *r) {
  return r->config->checkpoint.best_target ? r->config->checkpoint.best_target : "";
}

static clv_code load_best_record(const clv_run *r, clv_best_checkpoint *ret, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  clv_best_checkpoint b;
  clv_code code = read_best_file(r->dir.data, &b, err);
  if (code != CLV_OK) return code == CLV_NOT_FOUND ? CLV_OK : code;
  CLV_TRY(clv_checkpoint_load_step(r->dir.data, b.step, &c, err));
  bool has_other_metric = r->config->checkpoint.best && (r->config->checkpoint.best != b.metric ||
                                                         strcmp(best_target_of(r), b.target) != 0);
  if (has_other_metric)
    clv_run_delete_best_file(r->dir.data);
  else
    *ret = b;
  return CLV_OK;
}

/* Reads the file that names the best checkpoint of a resumed run. If the file is damaged or
 * missing, the run has no best checkpoint until the next evaluation. */
void clv_run_read_best_checkpoint(clv_run *r) {
  clv_err err;
  r->best_checkpoint = (clv_best_checkpoint){.step = CLV_CHECKPOINT_NONE};
  if (!r->is_resumed) clv_run_delete_best_file(r->dir.data);
  if (!r->is_resumed || load_best_record(r, &r->best_checkpoint, &err) == CLV_OK) return;
  clv_err_prefix(&err, "the best checkpoint cannot be used, and the run looks for a new one");
  clv_run_warn(r, CLV_LOG_WARN, "notice", err.text);
}

bool clv_is_better_checkpoint(const clv_best_checkpoint *candidate, const clv_best_checkpoint *best,
                              clv_best_mode mode) {
  if (!isfinite(candidate->value)) return false;
  if (best->step == CLV_CHECKPOINT_NONE) return true;
  return mode == CLV_BEST_MAX ? candidate->value > best->value : candidate->value < best->value;
}

bool clv_run_is_best_evaluation(const clv_run *r, const clv_step_result *e,
                                clv_best_checkpoint *ret) {
  clv_best_checkpoint b = {.metric = r->config->checkpoint.best,
                           .step = clv_trainer_step_count(r->trainer)};
  if (!b.metric || !e->samples) return false;
  snprintf(b.target, sizeof b.target, "%s", best_target_of(r));
  b.value = clv_run_score_value(r, e, b.metric, r->config->checkpoint.best_target);
  *ret = b;
  return clv_is_better_checkpoint(&b, &r->best_checkpoint, r->config->checkpoint.mode);
}

clv_code clv_run_write_best_checkpoint(clv_run *r, const clv_best_checkpoint *b, clv_err *err) {
  CLV_TRY(write_best_file(r->dir.data, b, err));
  r->best_checkpoint = *b;
  return CLV_OK;
}

/* ---- opening the checkpoint that --checkpoint names ------------------------------------------ */

bool clv_is_checkpoint_name(const char *text) {
  char rewritten_name[24];
  if (!text || strcmp(text, "latest") == 0 || strcmp(text, "best") == 0) return true;
  unsigned long long step = strtoull(text, NULL, 10);
  snprintf(rewritten_name, sizeof rewritten_name, "%llu", step);
  return step <= INT64_MAX && strcmp(text, rewritten_name) == 0;
}

static clv_code open_best_checkpoint(const char *dir, clv_checkpoint **ret, clv_err *err) {
  clv_best_checkpoint b;
  clv_code code = read_best_file(dir, &b, err);
  if (code == CLV_NOT_FOUND)
    return clv_fail(err, CLV_NOT_FOUND,
                    "run folder %s: no checkpoint was kept as the best; checkpoint.best in the "
                    "session file says by what one is",
                    dir);
  CLV_TRY(code);
  return clv_checkpoint_load_step(dir, b.step, ret, err);
}

clv_code clv_run_find_checkpoint(const char *dir, const char *which, clv_checkpoint **ret,
                                 clv_bytes *notes, clv_err *err) {
  if (!which || strcmp(which, "latest") == 0)
    return clv_checkpoint_load_latest(dir, ret, notes, err);
  if (strcmp(which, "best") == 0) return open_best_checkpoint(dir, ret, err);
  return clv_checkpoint_load_step(dir, strtoull(which, NULL, 10), ret, err);
}

clv_code clv_run_open_checkpoint(const clv_run *r, clv_checkpoint **ret, clv_bytes *notes,
                                 clv_err *err) {
  return clv_run_find_checkpoint(r->config->checkpoint.dir, r->o->checkpoint, ret, notes, err);
}
