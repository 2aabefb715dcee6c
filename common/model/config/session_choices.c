/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the scores of a session: whether its loss has those of loss.scores
 * (clv_session_check_scores), and whether validations compute those by which checkpoint.best and
 * train.early_stopping choose (clv_session_check_choices).
 */
#include <stdio.h>
#include <string.h>

#include "common/model/config/schema_int.h"

/* A key whose value names a metric that validations compute. */
typedef struct choice {
  const char *key;
  clv_best_metric metric;
  const char *target; /* target that has the metric; NULL: the evaluation itself */
  clv_config_pos pos;
} choice;

static bool has_score(const clv_text_list *scores, const char *name) {
  for (size_t i = 0; i < scores->n; i++)
    if (strcmp(scores->items[i], name) == 0) return true;
  return false;
}

/* Finds the loss that has the metric of choice k, and the list of scores of this loss. Fails if the
 * session has no such target. */
static clv_code find_loss(const clv_session_config *c, const choice *k, clv_loss_kind *ret_kind,
                          const clv_text_list **ret_scores, clv_err *err) {
  const clv_target_spec *t = k->target ? clv_session_find_target(c, k->target) : NULL;
  if (k->target && !t)
    return clv_session_fail_at(c, k->pos, err,
                               "%s: loss.targets has no '%.80s': name one of its targets", k->key,
                               k->target);
  if (t && strlen(t->name) >= CLV_BEST_TARGET_BYTES)
    return clv_session_fail_at(
        c, k->pos, err,
        "%s: the name of target '%.80s' has %zu bytes, more than %d: rename its column", k->key,
        t->name, strlen(t->name), CLV_BEST_TARGET_BYTES - 1);
  *ret_kind = t ? t->kind : c->loss.kind;
  *ret_scores = t ? &t->scores : &c->loss.scores;
  return CLV_OK;
}

static clv_code check_score_is_listed(const clv_session_config *c, const choice *k,
                                      const clv_text_list *scores, clv_err *err) {
  char name[CLV_BEST_NAME_BYTES];
  unsigned needed_scores = clv_score_value_row_of((clv_score_value)(k->metric - 1))->needs;
  for (int i = 0; i < CLV_SCORE_KINDS; i++)
    if (needed_scores & 1u << i && !has_score(scores, clv_score_names[i]))
      return clv_session_fail_at(
          c, k->pos, err, "%s: %s needs %s among loss.%s%.80s%sscores: add it there", k->key,
          clv_best_name(k->metric, k->target, name), clv_score_names[i],
          k->target ? "targets." : "", k->target ? k->target : "", k->target ? "." : "");
  return CLV_OK;
}

static clv_code check_choice(const clv_session_config *c, const choice *k, clv_err *err) {
  if (k->metric == CLV_BEST_NONE) return CLV_OK;
  if (!clv_data_has_validation(&c->data))
    return clv_session_fail_at(
        c, k->pos, err, "%s needs validations: set data.validation.fraction, as in 0.1", k->key);
  clv_loss_kind loss = c->loss.kind;
  const clv_text_list *scores = NULL;
  CLV_TRY(find_loss(c, k, &loss, &scores, err));
  if (loss == CLV_LOSS_TARGETS && k->metric != CLV_BEST_LOSS)
    return clv_session_fail_at(c, k->pos, err,
                               "%s: the targets have scores of their own: set %s: validation.loss, "
                               "or name one of them, as in validation.%.80s.%s",
                               k->key, k->key, c->loss.targets[0].name,
                               clv_best_metric_name(k->metric) + strlen("validation."));
  if (k->metric == CLV_BEST_ACCURACY && !clv_loss_has_accuracy(loss))
    return clv_session_fail_at(c, k->pos, err, "%s has no accuracy: set %s: validation.%.80s%sloss",
                               clv_loss_name(loss), k->key, k->target ? k->target : "",
                               k->target ? "." : "");
  return check_score_is_listed(c, k, scores, err);
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
  const choice choices[] = {
      {"checkpoint.best", c->checkpoint.best, c->checkpoint.best_target, c->checkpoint.best_pos},
      {"train.early_stopping.score", c->train.early_stopping.score, c->train.early_stopping.target,
       c->train.early_stopping.score_pos}};
  for (size_t i = 0; i < CLV_COUNT(choices); i++) CLV_TRY(check_choice(c, &choices[i], err));
  return set_mode(c, err);
}

/* Returns the kind of a score. The schema has checked its name. */
static clv_score_kind score_of(const char *name) {
  int k = 0;
  while (k < CLV_SCORE_KINDS - 1 && strcmp(name, clv_score_names[k]) != 0) k++;
  return (clv_score_kind)k;
}

/* Checks that evaluations of a loss can have these scores. key: the key that lists them. */
static clv_code check_scores(const clv_session_config *c, const char *key, clv_loss_kind loss,
                             const clv_text_list *scores, clv_config_pos pos, clv_err *err) {
  unsigned task = clv_loss_row_of(loss)->task;
  char names[160];
  /* A model with one output of yes or no has two classes, so scores of classes may apply. How many
   * outputs the model has is not known here. */
  if (task == CLV_TASK_LABELS) task |= CLV_TASK_CLASSES;
  for (size_t i = 0; i < scores->n; i++) {
    if (clv_score_tasks(score_of(scores->items[i])) & task) continue;
    clv_score_names_of((clv_task)(task & ~(unsigned)CLV_TASK_LABELS), names, sizeof names);
    return clv_session_fail_at(c, pos, err, "%s: %s does not go with %s, whose scores are %s", key,
                               scores->items[i], clv_loss_name(loss), names);
  }
  return CLV_OK;
}

clv_code clv_session_check_scores(const clv_session_config *c, clv_err *err) {
  char key[160];
  for (size_t i = 0; i < c->loss.n_targets; i++) {
    const clv_target_spec *t = &c->loss.targets[i];
    snprintf(key, sizeof key, "loss.targets.%.80s.scores", t->name);
    CLV_TRY(check_scores(c, key, t->kind, &t->scores, t->scores_pos, err));
  }
  if (c->loss.kind != CLV_LOSS_TARGETS)
    return check_scores(c, "loss.scores", c->loss.kind, &c->loss.scores, c->loss.scores_pos, err);
  if (!c->loss.scores.n) return CLV_OK;
  return clv_session_fail_at(c, c->loss.scores_pos, err,
                             "loss.scores: each target has its own scores: list them in "
                             "loss.targets.%.80s.scores",
                             c->loss.n_targets ? c->loss.targets[0].name : "NAME");
}
