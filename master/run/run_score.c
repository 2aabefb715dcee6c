/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the scores of evaluations in addition to loss and accuracy (loss.scores).
 */
#include "master/run/run_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned mask_of_wanted_scores(const clv_text_list *names) {
  unsigned score_mask = 0;
  for (size_t i = 0; i < names->n; i++)
    for (int k = 0; k < CLV_SCORE_KINDS; k++)
      if (strcmp(names->items[i], clv_score_names[k]) == 0) score_mask |= 1u << k;
  return score_mask;
}

static clv_score_outputs score_outputs_of_loss(clv_loss_kind kind, bool has_one_output) {
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

/* Returns the number of columns of the output that are scored: one for each class, label or
 * number. */
static size_t count_scored_columns(const clv_shape *output_shape, bool has_classes,
                                   bool has_one_output) {
  size_t n = 1;
  if (has_classes) return has_one_output ? 2 : (size_t)output_shape->dim[output_shape->rank - 1];
  for (int i = 1; i < output_shape->rank; i++) n *= (size_t)output_shape->dim[i];
  return n;
}

/* Refuses scores that cannot be computed for records with several labels. */
static clv_code refuse_scores_of_several_labels(const clv_session_config *c,
                                                const clv_score_options *o, clv_err *err) {
  char score_names[160];
  for (int k = 0; k < CLV_SCORE_KINDS; k++) {
    if (!(o->score_bits & 1u << k) || clv_score_tasks((clv_score_kind)k) & CLV_TASK_LABELS)
      continue;
    clv_score_names_of(CLV_TASK_LABELS, score_names, sizeof score_names);
    return clv_session_fail_at(c, c->loss.scores_pos, err,
                               "loss.scores: %s goes with one output of %s, and the last layer has "
                               "%zu, whose scores are %s",
                               clv_score_names[k], clv_loss_name(c->loss.kind), o->n_classes,
                               score_names);
  }
  return CLV_OK;
}

/* Makes the score of a target. The target's loss has one output, or one per class. */
static clv_code make_target_score(const clv_run *r, const clv_target_spec *t, clv_score **ret,
                                  clv_err *err) {
  clv_task task = clv_loss_row_of(t->kind)->task;
  clv_score_options o = {.score_bits = mask_of_wanted_scores(&t->scores),
                         .outputs = score_outputs_of_loss(t->kind, true),
                         .n_classes = task == CLV_TASK_LABELS ? 2 : clv_target_width(t),
                         .specificity = t->specificity,
                         .has_intervals = r->o->intervals};
  clv_err reason;
  if (task == CLV_TASK_NUMBERS && o.has_intervals)
    o.score_bits |= CLV_SCORE_MAE | CLV_SCORE_RMSE | CLV_SCORE_R2;
  if (clv_score_new(&o, ret, &reason) == CLV_OK) return CLV_OK;
  return clv_session_fail_at(r->config, t->pos, err, "loss.targets.%.80s.scores: %s", t->name,
                             reason.text);
}

static clv_code make_single_score(const clv_run *r, clv_score **ret, clv_err *err) {
  const clv_session_config *c = r->config;
  const clv_graph *full_graph = r->blueprint->full_graph;
  const clv_shape *output_shape = &full_graph->nodes[full_graph->output_node].shape;
  clv_task task = clv_loss_row_of(c->loss.kind)->task;
  bool has_one_output =
      task == CLV_TASK_LABELS && output_shape->rank == 2 && output_shape->dim[1] == 1;
  bool has_classes = task == CLV_TASK_CLASSES || has_one_output;
  clv_score_options o = {
      .score_bits = mask_of_wanted_scores(&c->loss.scores),
      .outputs = score_outputs_of_loss(c->loss.kind, has_one_output),
      .n_classes = count_scored_columns(output_shape, has_classes, has_one_output),
      .has_ignored_label = clv_loss_row_of(c->loss.kind)->keys & CLV_LOSS_KEY_IGNORE_INDEX,
      .ignored_label = (int64_t)c->loss.ignore_index,
      .specificity = c->loss.specificity,
      .has_intervals = r->o->intervals};
  clv_err reason;
  if (!o.score_bits && !o.has_intervals) return CLV_OK;
  if (task == CLV_TASK_NUMBERS && o.has_intervals)
    o.score_bits |= CLV_SCORE_MAE | CLV_SCORE_RMSE | CLV_SCORE_R2;
  if (task == CLV_TASK_LABELS && !has_one_output)
    CLV_TRY(refuse_scores_of_several_labels(c, &o, err));
  if (clv_score_new(&o, ret, &reason) == CLV_OK) return CLV_OK;
  return clv_session_fail_at(c, c->loss.scores_pos, err, "loss.scores: %s", reason.text);
}

void clv_run_free_scores(clv_run *r) {
  for (size_t i = 0; r->scores && i < r->n_scores; i++) clv_score_free(r->scores[i]);
  free(clv_steal(&r->scores));
  r->n_scores = 0;
}

clv_code clv_run_make_scores(clv_run *r, clv_err *err) {
  const clv_session_config *c = r->config;
  CLV_AUTO(clv_score_freep) clv_score *score = NULL;
  clv_run_free_scores(r);
  if (!c->loss.n_targets) CLV_TRY(make_single_score(r, &score, err));
  if (!c->loss.n_targets && !score) return CLV_OK;
  CLV_TRY(clv_alloc(CLV_MAX(c->loss.n_targets, (size_t)1), sizeof(clv_score *), &r->scores, err));
  r->n_scores = CLV_MAX(c->loss.n_targets, (size_t)1);
  if (score) r->scores[0] = clv_steal(&score);
  for (size_t i = 0; i < c->loss.n_targets; i++)
    CLV_TRY(make_target_score(r, &c->loss.targets[i], &r->scores[i], err));
  return CLV_OK;
}

/* ---- names of classes for texts and JSON ----------------------------------------------------- */

/* The argument `user` of class_name: the run and the target whose class names it returns. */
typedef struct name_source {
  const clv_run *r;
  size_t target; /* index of the target; unused if records have one label */
} name_source;

static const char *class_name(const void *user, size_t c) {
  const name_source *s = user;
  const clv_dataset *ds = s->r->data.train ? s->r->data.train : s->r->data.test;
  if (!ds) return NULL;
  if (!clv_dataset_target_count(ds))
    return c < clv_dataset_class_count(ds) ? clv_dataset_class_name(ds, c) : NULL;
  return c < clv_dataset_target_class_count(ds, s->target)
             ? clv_dataset_target_class_name(ds, s->target, c)
             : NULL;
}

static const char *record_name(const void *user, size_t record) {
  const clv_run *r = user;
  const char *id = clv_dataset_record_id(r->data.test, (uint32_t)record);
  return id ? id : clv_dataset_image_path(r->data.test, record);
}

/* ---- scores of several targets as JSON ------------------------------------------------------- */

/* Appends the scores of all targets, such as
 * {"targets":{"died":{"loss":0.4,"labelled":18,"auc":0.9},...}}. A target with `missing: mask` has
 * the number of its labels. */
static void append_json_targets(const clv_run *r, const clv_step_result *e, clv_bytes *out) {
  clv_bytes_puts(out, "{\"targets\":{");
  for (size_t i = 0; i < r->config->loss.n_targets; i++) {
    CLV_AUTO(clv_scores_done) clv_scores s = {0};
    CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
    char number[CLV_JSON_NUMBER_BYTES];
    if (clv_score_finish(r->scores[i], &s, NULL) != CLV_OK) continue;
    clv_scores_append_json(&s, class_name, &(name_source){r, i}, &json);
    clv_bytes_puts(out, out->data[out->len - 1] == '{' ? "" : ",");
    clv_bytes_add_json(out, r->config->loss.targets[i].name);
    clv_bytes_printf(out, ":{\"loss\":%s", clv_json_number(e->target_losses[i], 9, number));
    if (r->config->loss.targets[i].masks_missing)
      clv_bytes_printf(out, ",\"labelled\":%llu", (unsigned long long)e->n_target_labels[i]);
    if (json.failed) out->failed = true;
    /* Appends the members in `json` without its opening brace. "{}" has no members, so only the
     * closing brace is added. */
    if (json.len > 2) clv_bytes_printf(out, ",%s", json.data + 1);
    if (json.len <= 2) clv_bytes_puts(out, "}");
  }
  clv_bytes_puts(out, "}}");
}

static void append_json_scores(const clv_run *r, const clv_step_result *e, const clv_scores *s,
                               clv_bytes *out) {
  if (r->config->loss.n_targets)
    append_json_targets(r, e, out);
  else
    clv_scores_append_json(s, class_name, &(name_source){r, 0}, out);
}

/* Appends the curves for a report; with several targets in the form
 * {"targets":{"died":{"roc":...},...}}. */
static void append_json_curves(const clv_run *r, const clv_scores *s, clv_bytes *out) {
  if (!r->config->loss.n_targets) {
    clv_scores_append_curves_json(s, out);
    return;
  }
  clv_bytes_puts(out, "{\"targets\":{");
  for (size_t i = 0; i < r->n_scores; i++) {
    CLV_AUTO(clv_scores_done) clv_scores of_target = {0};
    CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
    if (clv_score_finish(r->scores[i], &of_target, NULL) != CLV_OK) continue;
    clv_scores_append_curves_json(&of_target, &json);
    if (json.failed) out->failed = true;
    if (!json.len) continue;
    clv_bytes_puts(out, out->data[out->len - 1] == '{' ? "" : ",");
    clv_bytes_add_json(out, r->config->loss.targets[i].name);
    clv_bytes_printf(out, ":%s", json.data);
  }
  clv_bytes_puts(out, "}}");
}

/* ---- files of scores in the run folder ------------------------------------------------------- */

clv_code clv_run_write_intervals(const clv_run *r, const clv_step_result *e, clv_err *err) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_TRY(clv_score_finish(r->scores[0], &s, err));
  clv_bytes_printf(&path, "%s/" CLV_RUN_INTERVALS_FILE, r->config->checkpoint.dir);
  clv_bytes_printf(&text, "{\"step\":%llu,\"event\":\"eval\"%s,\"samples\":%llu,\"scores\":",
                   (unsigned long long)clv_trainer_step_count(r->trainer),
                   r->o->weights == CLV_WEIGHTS_EMA ? ",\"weights\":\"ema\"" : "",
                   (unsigned long long)e->samples);
  append_json_scores(r, e, &s, &text);
  clv_bytes_puts(&text, "}\n");
  if (path.failed || text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text.data, text.len, 0644, err);
}

clv_code clv_run_write_worst_records(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  const clv_target_spec *targets = r->config->loss.targets;
  size_t n = 0;
  for (size_t i = 0; r->scores && i < r->n_scores; i++) {
    CLV_AUTO(clv_scores_done) clv_scores s = {0};
    CLV_TRY(clv_score_finish(r->scores[i], &s, err));
    s.n_worst_records = CLV_MIN(s.n_worst_records, CLV_RUN_MAX_WORST_RECORDS / r->n_scores);
    if (s.n_worst_records && !n) clv_bytes_puts(&text, "[");
    clv_scores_append_worst_json(&s, targets ? targets[i].name : NULL, record_name, r, n > 0,
                                 &text);
    n += s.n_worst_records;
  }
  if (!n) return CLV_OK;
  clv_bytes_puts(&text, "]\n");
  clv_bytes_printf(&path, "%s/" CLV_RUN_WORST_FILE, r->dir.data);
  if (path.failed || text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}

/* ---- results of evaluations ------------------------------------------------------------------ */

/* List to which add_scalar appends scalars. */
typedef struct scalar_list {
  clv_run_scores *to;
  const char *target; /* name of the target that has the scores; NULL: records have one label */
} scalar_list;

/* Callback of clv_scores_for_each: appends a scalar. Its tag is the name of the score or, for a
 * target, the names of target and score, such as "died.auc". */
static void add_scalar(void *user, const char *name, double value) {
  scalar_list *list = user;
  clv_run_scores *to = list->to;
  char *tag = to->names[to->n];
  snprintf(tag, sizeof *to->names, "%.80s%s%s", list->target ? list->target : "",
           list->target ? "." : "", name);
  to->scalars[to->n++] = (clv_scalar){tag, value};
}

static clv_code list_step_scores(const clv_run *r, const clv_step_result *e, clv_run_scores *ret,
                                 clv_err *err) {
  size_t max_scalars = r->n_scores * (CLV_SCORE_VALUES + 1);
  CLV_TRY(clv_alloc(max_scalars, sizeof *ret->scalars, &ret->scalars, err));
  CLV_TRY(clv_alloc(max_scalars, sizeof *ret->names, &ret->names, err));
  for (size_t i = 0; i < r->n_scores; i++) {
    CLV_AUTO(clv_scores_done) clv_scores s = {0};
    const clv_target_spec *t = r->config->loss.n_targets ? &r->config->loss.targets[i] : NULL;
    scalar_list list = {ret, t ? t->name : NULL};
    CLV_TRY(clv_score_finish(r->scores[i], &s, err));
    if (t && !e->n_target_labels[i]) continue;
    if (t) add_scalar(&list, "loss", e->target_losses[i]);
    if (t && s.n_classes) add_scalar(&list, "accuracy", s.values[CLV_VALUE_ACCURACY]);
    clv_scores_for_each(&s, add_scalar, &list);
  }
  return CLV_OK;
}

clv_code clv_run_take_scores(const clv_run *r, const clv_step_result *e, bool with_curves,
                             clv_run_scores *ret, clv_err *err) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  *ret = (clv_run_scores){.n = 0};
  if (!r->scores || clv_score_finish(r->scores[0], &s, NULL) != CLV_OK) return CLV_OK;
  append_json_scores(r, e, &s, &ret->json);
  if (with_curves) append_json_curves(r, &s, &ret->curves);
  if (ret->json.failed || ret->curves.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return list_step_scores(r, e, ret, err);
}

double clv_run_score_value(const clv_run *r, const clv_step_result *e, clv_best_metric metric,
                           const char *target) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  size_t i = 0;
  while (target && i < r->config->loss.n_targets &&
         strcmp(r->config->loss.targets[i].name, target) != 0)
    i++;
  if (metric == CLV_BEST_LOSS) return target ? e->target_losses[i] : e->loss;
  if (metric == CLV_BEST_ACCURACY && !target) return clv_step_accuracy(e);
  if (!r->scores || clv_score_finish(r->scores[i], &s, NULL) != CLV_OK) return NAN;
  return clv_scores_value(&s, (clv_score_value)(metric - 1));
}

void clv_run_scores_free(clv_run_scores *s) {
  if (!s) return;
  clv_bytes_done(&s->json);
  clv_bytes_done(&s->curves);
  free(s->scalars);
  free(s->names);
}

/* Appends the scores `s` of r->scores[i] to the line of target i, or of the evaluation if there are
 * no targets. */
static void append_score_text(const clv_run *r, size_t i, bool with_table, const clv_scores *s,
                              clv_bytes *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes rows = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  bool is_target = r->config->loss.n_targets > 0;
  clv_scores_append_line(s, &line);
  if (line.failed) text->failed = true;
  if (line.len) clv_bytes_printf(text, "%s%s", is_target ? ", " : "  ", line.data);
  if (with_table) clv_scores_append_table(s, class_name, &(name_source){r, i}, &rows);
  if (rows.failed) text->failed = true;
  if (rows.len) clv_bytes_printf(text, "\n%.*s", (int)rows.len - 1, rows.data);
}

/* Appends a line for each target: its name, loss, accuracy and scores. */
static void append_target_texts(const clv_run *r, const clv_step_result *e, bool with_table,
                                clv_bytes *text) {
  for (size_t i = 0; i < r->config->loss.n_targets; i++) {
    CLV_AUTO(clv_scores_done) clv_scores s = {0};
    CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
    char loss_text[CLV_JSON_NUMBER_BYTES];
    if (clv_score_finish(r->scores[i], &s, NULL) != CLV_OK) continue;
    clv_bytes_puts(&name, r->config->loss.targets[i].name);
    if (name.failed) text->failed = true;
    if (!name.failed) clv_text_to_printable(name.data);
    if (!e->n_target_labels[i]) {
      clv_bytes_printf(text, "\n  %s: no record has a label", name.data ? name.data : "");
      continue;
    }
    clv_bytes_printf(text, "\n  %s: loss %s", name.data ? name.data : "",
                     clv_format_number("%.6f", e->target_losses[i], loss_text));
    if (r->config->loss.targets[i].masks_missing)
      clv_bytes_printf(text, " over %llu of %llu records",
                       (unsigned long long)e->n_target_labels[i], (unsigned long long)e->samples);
    if (s.n_classes)
      clv_bytes_printf(text, ", accuracy %.2f %%", 100 * s.values[CLV_VALUE_ACCURACY]);
    append_score_text(r, i, with_table, &s, text);
  }
}

void clv_run_add_scores(const clv_run *r, const clv_step_result *e, bool with_table,
                        clv_bytes *text, clv_bytes *json) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  if (r->scores && clv_score_finish(r->scores[0], &s, NULL) == CLV_OK) {
    if (r->config->loss.n_targets)
      append_target_texts(r, e, with_table, text);
    else
      append_score_text(r, 0, with_table, &s, text);
    clv_bytes_puts(json, ",\"scores\":");
    append_json_scores(r, e, &s, json);
  }
  clv_bytes_puts(json, "}");
}
