/* SPDX-License-Identifier: Apache-2.0
 *
 * The scores of evaluations in addition to loss and accuracy (loss.scores).
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

static clv_score_outputs kind_of_outputs(clv_loss_kind kind) {
  static const clv_score_outputs list[CLV_LOSS_COUNT] = {
      [CLV_LOSS_CROSS_ENTROPY] = CLV_SCORE_LOGITS,
      [CLV_LOSS_NLL] = CLV_SCORE_LOG_PROBABILITIES,
      [CLV_LOSS_BCE] = CLV_SCORE_PROBABILITY,
      [CLV_LOSS_BCE_WITH_LOGITS] = CLV_SCORE_LOGIT};
  return list[kind];
}

clv_code clv_run_make_score(clv_run *r, clv_err *err) {
  const clv_session_config *c = r->config;
  const clv_graph *last = r->blueprint->full_graph;
  const clv_shape *out = &last->nodes[last->output_node].shape;
  int64_t width = out->rank ? out->dim[out->rank - 1] : 1;
  clv_score_options o = {.wanted = wanted_scores(c),
                         .outputs = kind_of_outputs(c->loss.kind),
                         .classes = (size_t)width,
                         .has_ignored = c->loss.kind == CLV_LOSS_CROSS_ENTROPY,
                         .ignored_label = (int64_t)c->loss.ignore_index};
  clv_err reason;
  clv_score_freep(&r->score);
  if (!o.wanted) return CLV_OK;
  if (o.outputs >= CLV_SCORE_PROBABILITY && (width != 1 || out->rank != 2))
    return clv_session_fail_at(c, c->loss.scores_pos, err,
                               "loss.scores go with class labels, or with one output of a binary "
                               "loss; the last layer has more");
  if (o.outputs >= CLV_SCORE_PROBABILITY) o.classes = 2;
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

void clv_run_take_scores(const clv_run *r, clv_run_scores *ret) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  *ret = (clv_run_scores){.n = 0};
  if (!r->score || clv_score_finish(r->score, &s, NULL) != CLV_OK) return;
  clv_scores_json(&s, class_name, r, &ret->json);
  clv_scores_each(&s, add_scalar, ret);
}

double clv_run_score_value(const clv_run *r, const clv_step_result *e, clv_best_metric metric) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  if (metric == CLV_BEST_LOSS) return e->loss;
  if (metric == CLV_BEST_ACCURACY) return clv_step_accuracy(e);
  if (!r->score || clv_score_finish(r->score, &s, NULL) != CLV_OK) return NAN;
  return clv_scores_value(&s, (clv_score_value)(metric - 1));
}

void clv_run_scores_free(clv_run_scores *s) { clv_bytes_done(&s->json); }

void clv_run_add_scores(const clv_run *r, bool table, clv_bytes *text, clv_bytes *json) {
  CLV_AUTO(clv_scores_done) clv_scores s = {0};
  if (r->score && clv_score_finish(r->score, &s, NULL) == CLV_OK) {
    CLV_AUTO(clv_bytes_done) clv_bytes rows = {0};
    clv_bytes_puts(text, s.wanted & ~(unsigned)CLV_SCORE_CONFUSION ? "  " : "");
    clv_scores_line(&s, text);
    if (table) clv_scores_table(&s, class_name, r, &rows);
    if (rows.failed) text->failed = true;
    if (rows.len) clv_bytes_printf(text, "\n%.*s", (int)rows.len - 1, rows.data);
    clv_bytes_puts(json, ",\"scores\":");
    clv_scores_json(&s, class_name, r, json);
  }
  clv_bytes_puts(json, "}");
}
