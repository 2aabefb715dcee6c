/* SPDX-License-Identifier: Apache-2.0
 *
 * Early stopping (train.early_stopping). A validation is an improvement if its score is better than
 * the best earlier score by more than min_delta; a score that is not finite is no improvement.
 * After `patience` validations in a row without an improvement the run takes no further step, saves
 * and tests as at its end. Checkpoints have the counts, so a resumed or recovered run stops at the
 * same step.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "master/run/run_int.h"

static bool is_improvement(const clv_early_stopping_state *s, const clv_train_config *c,
                           double value) {
  double gain = clv_best_metric_is_largest(s->score) ? value - s->best : s->best - value;
  if (!isfinite(value)) return false;
  return !s->has_best || gain > c->early_stopping.min_delta;
}

/* Returns the target whose score early stopping compares; "": the evaluation's own score. */
static const char *target_of_config(const clv_train_config *c) {
  return c->early_stopping.target ? c->early_stopping.target : "";
}

/* Returns true if `s` has counted the score that the session names. */
static bool has_same_score(const clv_early_stopping_state *s, const clv_train_config *c) {
  return s->score == c->early_stopping.score && strcmp(s->target, target_of_config(c)) == 0;
}

void clv_early_stopping_count_validation(clv_early_stopping_state *s, const clv_train_config *c,
                                         double value, uint64_t step) {
  clv_best_metric score = c->early_stopping.score;
  /* a resumed run may compare another score than before; the count then begins again */
  if (!has_same_score(s, c)) *s = (clv_early_stopping_state){.score = score};
  if (score == CLV_BEST_NONE) return;
  bool has_improved = is_improvement(s, c, value);
  s->n_without_improvement++;
  if (has_improved) *s = (clv_early_stopping_state){score, true, value, step, 0, ""};
  snprintf(s->target, sizeof s->target, "%s", target_of_config(c));
}

bool clv_early_stopping_is_due(const clv_early_stopping_state *s, const clv_train_config *c) {
  return c->early_stopping.score != CLV_BEST_NONE && has_same_score(s, c) &&
         s->n_without_improvement >= c->early_stopping.patience;
}

void clv_run_count_validation(clv_run *r, const clv_step_result *e) {
  clv_best_metric score = r->config->train.early_stopping.score;
  const char *target = r->config->train.early_stopping.target;
  double value = score == CLV_BEST_NONE ? NAN : clv_run_score_value(r, e, score, target);
  clv_early_stopping_count_validation(&r->steps.early_stopping_state, &r->config->train, value,
                                      clv_trainer_step_count(r->trainer));
}

void clv_run_print_early_stopping(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  const clv_early_stopping_state *s = &r->steps.early_stopping_state;
  char best_text[CLV_JSON_NUMBER_BYTES] = "null", name[CLV_BEST_NAME_BYTES];
  if (!clv_early_stopping_is_due(s, &r->config->train)) return;
  unsigned long long step = clv_trainer_step_count(r->trainer), best_step = s->best_step;
  clv_bytes_printf(&text, "stopped early after step %llu: %llu validations without a better %s",
                   step, (unsigned long long)s->n_without_improvement,
                   clv_best_name(s->score, s->target, name));
  if (s->has_best) {
    clv_bytes_printf(&text, " than %g of step %llu", s->best, best_step);
    clv_json_number(s->best, 9, best_text);
  }
  clv_bytes_printf(&json, "{\"event\":\"stopped_early\",\"step\":%llu,\"score\":", step);
  clv_bytes_add_json(&json, clv_best_name(s->score, s->target, name));
  clv_bytes_printf(&json, ",\"validations\":%llu,\"best\":%s,\"best_step\":%llu}",
                   (unsigned long long)s->n_without_improvement, best_text, best_step);
  if (!text.failed && !json.failed) clv_reporter_notice(r->reporter, text.data, json.data);
}
