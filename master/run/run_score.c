/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the scores of evaluations in addition to loss and accuracy (loss.scores).
 */
#include "master/run/run_int.h"

#include <math.h>
#include <string.h>

_Static_assert((int)CLV_SCORE_VALUES <= (int)CLV_EVALUATION_SCORES, "clv_run_scores has them all");

static unsigned wanted_scores(const clv_session_config *c) {
  unsigned set = 0;
  for (size_t i = 0; i < c->loss.scores.n; i++)
    for (int k = 0; k < CLV_SCORE_KINDS; k++)
      if (strcmp(c->loss.scores.items[i], clv_score_names[k]) == 0) set |= 1u << k;
  return set;
}

static clv_score_outputs kind_of_outputs(clv_loss_kind kind, bool has_one_output) {
  switch (kind) {
    case CLV_LOSS_NLL:
      return CLV_SCORE_LOG_PROBABILITIES;
    case CLV_LOSS_BCE:
      return has_one_output ? CLV_SCORE_PROBABILITY : CLV_SCORE_LABEL_PROBABILITIES;
    case CLV_LOSS_BCE_WITH_LOGITS:
      return has_one_output ? CLV_SCORE_LOGIT : CLV_SCORE_LABEL_LOGITS;
    case CLV_LOSS_POISSON:
      return CLV_SCORE_LOG_NUMBERS;
    default:
      return clv_loss_row_of(kind)->task == CLV_TASK_NUMBERS ? CLV_SCORE_NUMBERS : CLV_SCORE_LOGITS;
  }
}

/* Returns the number of columns of the output that are scored: of classes, labels or numbers. */
static size_t count_columns(const clv_shape *out, bool has_classes, bool has_one_output) {
  size_t n = 1;
  if (has_classes) return has_one_output ? 2 : (size_t)out->dim[out->rank - 1];
  for (int i = 1; i < out->rank; i++) n *= (size_t)out->dim[i];
  return n;
}

/* Refuses scores that cannot be computed for records with several labels. */
static clv_code check_several_labels(const clv_session_config *c, const clv_score_options *o,
                                     clv_err *err) {
  char names[160];
  for (int k = 0; k < CLV_SCORE_KINDS; k++) {
    if (!(o->score_bits & 1u << k) || clv_score_tasks((clv_score_kind)k) & CLV_TASK_LABELS)
      continue;
    clv_score_names_of(CLV_TASK_LABELS, names, sizeof names);
    return clv_session_fail_at(c, c->loss.scores_pos, err,
                               "loss.scores: %s goes with one output of %s, and the last layer has "
                               "%zu, whose scores are %s",
                               clv_score_names[k], clv_loss_name(c->loss.kind), o->n_classes,
                               names);
  }
  return CLV_OK;
}

clv_code clv_run_make_score(clv_run *r, clv_err *err) {
  const clv_session_config *c = r->config;
  const clv_graph *last = r->blueprint->full_graph;
  const clv_shape *out = &last->nodes[last->output_node].shape;
  clv_task task = clv_loss_row_of(c->loss.kind)->task;
  bool has_one_output = task == CLV_TASK_LABELS && out->rank == 2 && out->dim[1] == 1;
  bool has_classes = task == CLV_TASK_CLASSES || has_one_output;
  clv_score_options o = {
      .score_bits = wanted_scores(c),
      .outputs = kind_of_outputs(c->loss.kind, has_one_output),
      .n_classes = count_columns(out, has_classes, has_one_output),
      .has_ignored = clv_loss_row_of(c->loss.kind)->keys & CLV_LOSS_KEY_IGNORE_INDEX,
      .ignored_label = (int64_t)c->loss.ignore_index,
      .specificity = c->loss.specificity,
      .has_intervals = r->o->intervals};
  clv_err reason;
  clv_score_freep(&r->score);
  if (!o.score_bits && !o.has_intervals) return CLV_OK;
  if (task == CLV_TASK_NUMBERS && o.has_intervals)
    o.score_bits |= CLV_SCORE_MAE | CLV_SCORE_RMSE | CLV_SCORE_R2;
  if (task == CLV_TASK_LABELS && !has_one_output) CLV_TRY(check_several_labels(c, &o, err));
  if (clv_score_new(&o, &r->score, &reason) == CLV_OK) return CLV_OK;
  return clv_session_fail_at(c, c->loss.scores_pos, err, "loss.scores: %s", reason.text);
}

static const char *class_name(const void *user, size_t c) {
  const clv_run *r = user;
  const clv_dataset *ds = r->data.train ? r->data.train : r->data.test;
  return ds && c < clv_dataset_class_count(ds) ? clv_dataset_class_name(ds, c) : NULL;
}

static void add_scalar(void *user, const char *name, double value) {
  clv_run_scores *s = user;
  if (s->n < CLV_COUNT(s->scalars)) s->scalars[s->n++] = (clv_scalar){name, value};
}

clv_code clv_run_write_intervals(const clv_run *r, const clv_step_result *e, clv_err *err) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_TRY(clv_score_finish(r->score, &s, err));
  clv_bytes_printf(&path, "%s/" CLV_RUN_INTERVALS_FILE, r->config->checkpoint.dir);
  clv_bytes_printf(&text, "{\"step\":%llu,\"event\":\"eval\"%s,\"samples\":%llu,\"scores\":",
                   (unsigned long long)clv_trainer_step_count(r->trainer),
                   r->o->weights == CLV_WEIGHTS_EMA ? ",\"weights\":\"ema\"" : "",
                   (unsigned long long)e->samples);
  clv_scores_json(&s, class_name, r, &text);
  clv_bytes_puts(&text, "}\n");
  if (path.failed || text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text.data, text.len, 0644, err);
}

static const char *record_name(const void *user, size_t record) {
  const clv_run *r = user;
  const char *id = clv_dataset_record_id(r->data.test, (uint32_t)record);
  return id ? id : clv_dataset_image_path(r->data.test, record);
}

clv_code clv_run_write_worst_records(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  if (!r->score) return CLV_OK;
  CLV_TRY(clv_score_finish(r->score, &s, err));
  if (!s.n_worst) return CLV_OK;
  clv_scores_json_worst(&s, record_name, r, &text);
  clv_bytes_printf(&path, "%s/" CLV_RUN_WORST_FILE, r->dir.data);
  if (path.failed || text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}

void clv_run_take_scores(const clv_run *r, bool with_curves, clv_run_scores *ret) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  *ret = (clv_run_scores){.n = 0};
  if (!r->score || clv_score_finish(r->score, &s, NULL) != CLV_OK) return;
  clv_scores_json(&s, class_name, r, &ret->json);
  if (with_curves) clv_scores_json_curves(&s, &ret->curves);
  clv_scores_each(&s, add_scalar, ret);
}

double clv_run_score_value(const clv_run *r, const clv_step_result *e, clv_best_metric metric) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  if (metric == CLV_BEST_LOSS) return e->loss;
  if (metric == CLV_BEST_ACCURACY) return clv_step_accuracy(e);
  if (!r->score || clv_score_finish(r->score, &s, NULL) != CLV_OK) return NAN;
  return clv_scores_value(&s, (clv_score_value)(metric - 1));
}

void clv_run_scores_free(clv_run_scores *s) {
  if (!s) return;
  clv_bytes_done(&s->json);
  clv_bytes_done(&s->curves);
}

void clv_run_add_scores(const clv_run *r, bool with_table, clv_bytes *text, clv_bytes *json) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  if (r->score && clv_score_finish(r->score, &s, NULL) == CLV_OK) {
    CLV_AUTO(clv_bytes_done) clv_bytes rows = {0};
    CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
    clv_scores_line(&s, &line);
    if (line.failed) text->failed = true;
    if (line.len) clv_bytes_printf(text, "  %s", line.data);
    if (with_table) clv_scores_table(&s, class_name, r, &rows);
    if (rows.failed) text->failed = true;
    if (rows.len) clv_bytes_printf(text, "\n%.*s", (int)rows.len - 1, rows.data);
    clv_bytes_puts(json, ",\"scores\":");
    clv_scores_json(&s, class_name, r, json);
  }
  clv_bytes_puts(json, "}");
}
