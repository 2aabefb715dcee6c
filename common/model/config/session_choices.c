/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the scores of a session: those of loss.scores go with the loss (clv_session_check_scores),
 * and validations have those by which checkpoint.best and train.early_stopping choose
 * (clv_session_check_choices).
 */
#include <stdio.h>
#include <string.h>

#include "common/model/config/schema_int.h"

/* A key whose value names a metric that validations compute. */
typedef struct choice {
  const char *key;
  clv_best_metric metric;
  clv_config_pos pos;
} choice;

static bool has_score(const clv_session_config *c, const char *name) {
  for (size_t i = 0; i < c->loss.scores.n; i++)
    if (strcmp(c->loss.scores.items[i], name) == 0) return true;
  return false;
}

static clv_code check_score_is_listed(const clv_session_config *c, const choice *k, clv_err *err) {
  unsigned needed_scores = clv_score_value_row_of((clv_score_value)(k->metric - 1))->needs;
  for (int i = 0; i < CLV_SCORE_KINDS; i++)
    if (needed_scores & 1u << i && !has_score(c, clv_score_names[i]))
      return clv_session_fail_at(c, k->pos, err, "%s: %s needs %s among loss.scores: add it there",
                                 k->key, clv_best_metric_name(k->metric), clv_score_names[i]);
  return CLV_OK;
}

static clv_code check_choice(const clv_session_config *c, const choice *k, clv_err *err) {
  if (k->metric == CLV_BEST_NONE) return CLV_OK;
  if (!clv_data_has_validation(&c->data))
    return clv_session_fail_at(
        c, k->pos, err, "%s needs validations: set data.validation.fraction, as in 0.1", k->key);
  if (k->metric == CLV_BEST_ACCURACY && !clv_loss_has_accuracy(c->loss.kind))
    return clv_session_fail_at(c, k->pos, err, "%s has no accuracy: set %s: validation.loss",
                               clv_loss_name(c->loss.kind), k->key);
  return check_score_is_listed(c, k, err);
}

static clv_code set_mode(clv_session_config *c, clv_err *err) {
  bool is_largest = clv_best_metric_is_largest(c->checkpoint.best);
  clv_best_mode natural_mode = is_largest ? CLV_BEST_MAX : CLV_BEST_MIN;
  if (c->checkpoint.best == CLV_BEST_NONE) return CLV_OK;
  if (c->checkpoint.mode != CLV_BEST_AUTO && c->checkpoint.mode != natural_mode)
    return clv_session_fail_at(c, c->checkpoint.best_pos, err,
                               "the best %s is the %s: set checkpoint.mode: %s, or leave it out",
                               clv_best_metric_name(c->checkpoint.best),
                               is_largest ? "largest" : "smallest", is_largest ? "max" : "min");
  c->checkpoint.mode = natural_mode;
  return CLV_OK;
}

clv_code clv_session_check_choices(clv_session_config *c, clv_err *err) {
  const choice choices[] = {{"checkpoint.best", c->checkpoint.best, c->checkpoint.best_pos},
                            {"train.early_stopping.score", c->train.early_stopping.score,
                             c->train.early_stopping.score_pos}};
  for (size_t i = 0; i < CLV_COUNT(choices); i++) CLV_TRY(check_choice(c, &choices[i], err));
  return set_mode(c, err);
}

/* Returns the kind of entry i of loss.scores. The schema has checked the entry's name. */
static clv_score_kind score_of(const clv_session_config *c, size_t i) {
  int k = 0;
  while (k < CLV_SCORE_KINDS - 1 && strcmp(c->loss.scores.items[i], clv_score_names[k]) != 0) k++;
  return (clv_score_kind)k;
}

clv_code clv_session_check_scores(const clv_session_config *c, clv_err *err) {
  unsigned task = clv_loss_row_of(c->loss.kind)->task;
  char names[160];
  /* A model with one output of yes or no has two classes, so scores of classes may apply. How many
   * outputs the model has is not known here. */
  if (task == CLV_TASK_LABELS) task |= CLV_TASK_CLASSES;
  for (size_t i = 0; i < c->loss.scores.n; i++) {
    if (clv_score_tasks(score_of(c, i)) & task) continue;
    clv_score_names_of((clv_task)(task & ~(unsigned)CLV_TASK_LABELS), names, sizeof names);
    return clv_session_fail_at(c, c->loss.scores_pos, err,
                               "loss.scores: %s does not go with %s, whose scores are %s",
                               c->loss.scores.items[i], clv_loss_name(c->loss.kind), names);
  }
  return CLV_OK;
}
