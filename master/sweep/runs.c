/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the runs of a sweep and checks all of them before the first one starts: keys, values,
 * shapes, privacy and policy, and the bytes of all runs together.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/egress/egress.h"
#include "master/run/run.h"
#include "master/sweep/sweep_int.h"

/* ---- the settings of a run ------------------------------------------------------------------- */

void sweep_set_options_done(sweep_set_options *s) {
  if (!s) return;
  for (size_t i = s->n_shared; i < s->n; i++) {
    free((char *)(uintptr_t)s->items[i]);
    free((char *)(uintptr_t)s->labels[i]);
  }
  s->n = s->n_shared = 0;
}

/* Adds the setting KEY=VALUE. Messages call it `option`, such as "--grid", followed by `number` or,
 * if `number` is NULL, by KEY=VALUE. */
static clv_code add_set_option(sweep_set_options *s, const char *key, const char *value,
                               const char *option, const char *number, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, label = {0};
  char *copy, *label_copy;
  clv_bytes_printf(&text, "%s=%s", key, value);
  clv_bytes_printf(&label, "%s %s", option, number ? number : text.failed ? "" : text.data);
  if (text.failed || label.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_strdup(text.data, &copy, err));
  s->items[s->n] = copy;
  s->labels[s->n++] = NULL;
  CLV_TRY(clv_strdup(label.data, &label_copy, err));
  s->labels[s->n - 1] = label_copy;
  return CLV_OK;
}

static clv_code add_fold(const sweep_work *s, const sweep_run *r, sweep_set_options *ret,
                         clv_err *err) {
  char folds_text[24], fold_text[24];
  if (!r->fold) return CLV_OK;
  snprintf(folds_text, sizeof folds_text, "%llu", (unsigned long long)s->o->folds);
  snprintf(fold_text, sizeof fold_text, "%llu", (unsigned long long)r->fold);
  CLV_TRY(add_set_option(ret, "data.validation.folds", folds_text, "--folds", folds_text, err));
  return add_set_option(ret, "data.validation.fold", fold_text, "--folds", folds_text, err);
}

clv_code sweep_set_options_make(const sweep_work *s, const sweep_run *r, sweep_set_options *ret,
                                clv_err *err) {
  ret->n = ret->n_shared = s->o->sets->n;
  const char *option = s->o->randoms->n ? "--random" : "--grid";
  for (size_t i = 0; i < ret->n; i++) {
    ret->items[i] = s->o->sets->items[i];
    ret->labels[i] = NULL;
  }
  for (size_t k = 0; k < s->points.n_keys; k++)
    CLV_TRY(add_set_option(ret, s->points.keys[k].name,
                           sweep_point_value(&s->points, r->point_index, k), option, NULL, err));
  CLV_TRY(add_fold(s, r, ret, err));
  return add_set_option(ret, "name", r->name, "the run's name", NULL, err);
}

/* ---- the runs of a sweep --------------------------------------------------------------------- */

void sweep_done(sweep_work *s) {
  if (!s) return;
  for (size_t i = 0; i < s->n_runs; i++) {
    free(s->runs[i].name);
    free(s->runs[i].folder);
  }
  free(s->runs);
  free(s->folder);
  if (s->lock_fd) close(s->lock_fd);
  sweep_points_done(&s->points);
  clv_session_config_free(s->base_session);
  *s = (sweep_work){.o = NULL};
}

static clv_code load_base_session(const clv_sweep_options *o, clv_session_config **ret,
                                  clv_err *err) {
  const clv_config_overrides overrides = {
      .env = (const char *const *)environ, .sets = o->sets->items, .n_sets = o->sets->n};
  return clv_session_config_load(o->session, &overrides, ret, err);
}

static clv_code make_runs(sweep_work *s, clv_err *err) {
  size_t n_folds = CLV_MAX((size_t)s->o->folds, (size_t)1);
  CLV_TRY(clv_alloc(s->points.n_points * n_folds, sizeof *s->runs, &s->runs, err));
  for (size_t i = 0; i < s->points.n_points * n_folds; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
    sweep_run *r = &s->runs[s->n_runs++];
    *r = (sweep_run){.point_index = i / n_folds, .fold = s->o->folds ? i % n_folds + 1 : 0};
    clv_bytes_printf(&name, "%s-%03zu", s->base_session->name, r->point_index + 1);
    if (r->fold) clv_bytes_printf(&name, "-fold-%llu", (unsigned long long)r->fold);
    if (name.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    CLV_TRY(clv_strdup(name.data, &r->name, err));
  }
  return CLV_OK;
}

/* ---- checks of the runs ---------------------------------------------------------------------- */

/* Returns the score by which runs are compared: that of checkpoint.best, else that of early
 * stopping, else accuracy or, if the loss has no accuracy, the loss. */
static sweep_score score_of_session(const clv_session_config *c) {
  sweep_score ret = {.metric =
                         clv_loss_has_accuracy(c->loss.kind) ? CLV_BEST_ACCURACY : CLV_BEST_LOSS};
  const char *target = NULL;
  if (c->train.early_stopping.score) {
    ret.metric = c->train.early_stopping.score;
    target = c->train.early_stopping.target;
  }
  if (c->checkpoint.best) {
    ret = (sweep_score){.metric = c->checkpoint.best, .uses_best_validation = true};
    target = c->checkpoint.best_target;
  }
  snprintf(ret.target, sizeof ret.target, "%s", target ? target : "");
  return ret;
}

/* Checks the keys of a run's session that matter to a sweep. Sets the score of the sweep and the
 * folder of the run. */
static clv_code check_session(sweep_work *s, sweep_run *r, const clv_session_config *c,
                              clv_err *err) {
  sweep_score score = score_of_session(c);
  char score_names[2][CLV_BEST_NAME_BYTES];
  if (strcmp(c->checkpoint.dir, s->base_session->checkpoint.dir) == 0)
    return clv_fail(err, CLV_INVALID,
                    "checkpoint.dir is %s: each run of a sweep has a folder of its own in run.dir: "
                    "leave checkpoint.dir out",
                    c->checkpoint.dir);
  if (!clv_data_has_validation(&c->data))
    return clv_session_fail_at(c, c->data.pos, err,
                               "a sweep compares validations, and the session has none: set "
                               "data.validation.fraction, as in 0.1, or give --folds");
  if (c->metrics.listen && s->o->jobs > 1)
    return clv_session_fail_at(c, c->metrics.listen_pos, err,
                               "metrics.listen is %s, and --jobs %llu runs cannot share a port: "
                               "leave it out",
                               c->metrics.listen, (unsigned long long)s->o->jobs);
  if (s->score.metric && (s->score.metric != score.metric ||
                          s->score.uses_best_validation != score.uses_best_validation ||
                          strcmp(s->score.target, score.target) != 0))
    return clv_session_fail_at(c, c->checkpoint.best_pos, err,
                               "points are compared by %s and by %s: set checkpoint.best",
                               clv_best_name(s->score.metric, s->score.target, score_names[0]),
                               clv_best_name(score.metric, score.target, score_names[1]));
  s->score = score;
  return clv_strdup(c->checkpoint.dir, &r->folder, err);
}

static clv_exit_code check_run(sweep_work *s, sweep_run *r) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(sweep_set_options_done) sweep_set_options set_options = {.n = 0};
  clv_run_outline outline;
  clv_err err;
  clv_code code = sweep_set_options_make(s, r, &set_options, &err);
  const clv_config_overrides overrides = {.env = (const char *const *)environ,
                                          .sets = set_options.items,
                                          .n_sets = set_options.n,
                                          .set_labels = set_options.labels};
  if (code == CLV_OK) code = clv_session_config_load(s->o->session, &overrides, &c, &err);
  if (code == CLV_OK) code = check_session(s, r, c, &err);
  if (code != CLV_OK) return (clv_exit_code)clv_exit_report(CLV_EXIT_CONFIG, &err);
  clv_exit_code exit_code = clv_run_preview(c, &outline);
  if (exit_code != CLV_EXIT_OK) {
    clv_notice(CLV_LOG_ERROR, "sweep", "no run was started: %s cannot be trained as it stands",
               r->name);
    return exit_code;
  }
  s->may_resume = s->may_resume && outline.may_resume;
  if (outline.epoch_bytes > UINT64_MAX - s->epoch_bytes)
    s->epoch_bytes = UINT64_MAX;
  else
    s->epoch_bytes += outline.epoch_bytes;
  return CLV_EXIT_OK;
}

/* Checks that the policy of this host permits the bytes of an epoch of all runs together, because
 * its limit for a run applies to their sum. */
static clv_code check_policy_bytes(const sweep_work *s, clv_err *err) {
  CLV_AUTO(clv_policy_freep) clv_policy *policy = NULL;
  CLV_TRY(clv_policy_find(&policy, err));
  if (clv_policy_check_epoch(policy, s->epoch_bytes, err) == CLV_OK) return CLV_OK;
  return clv_err_prefix(err, "the %zu runs of the sweep count together", s->n_runs);
}

clv_exit_code sweep_prepare_runs(const clv_sweep_options *o, sweep_work *ret) {
  clv_err err;
  *ret = (sweep_work){.o = o, .may_resume = true};
  if (sweep_points_make(o, &ret->points, &err) != CLV_OK)
    return (clv_exit_code)clv_exit_report(CLV_EXIT_USAGE, &err);
  if (load_base_session(o, &ret->base_session, &err) != CLV_OK)
    return (clv_exit_code)clv_exit_report(CLV_EXIT_CONFIG, &err);
  if (make_runs(ret, &err) != CLV_OK) return (clv_exit_code)clv_exit_report(CLV_EXIT_FAILED, &err);
  for (size_t i = 0; i < ret->n_runs; i++) {
    clv_exit_code code = check_run(ret, &ret->runs[i]);
    if (code != CLV_EXIT_OK) return code;
  }
  if (check_policy_bytes(ret, &err) != CLV_OK)
    return (clv_exit_code)clv_exit_report(CLV_EXIT_CONFIG, &err);
  return CLV_EXIT_OK;
}
