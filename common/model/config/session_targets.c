/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks loss.targets of a session: the losses of several labels per record, and their columns
 * (clv_session_check_targets).
 */
#include <stdio.h>
#include <string.h>

#include "common/model/config/schema_int.h"

#define fail_at clv_session_fail_at

size_t clv_target_width(const clv_target_spec *s) {
  return s->n_classes ? (size_t)s->n_classes : 1;
}

const clv_target_spec *clv_session_find_target(const clv_session_config *c, const char *name) {
  for (size_t i = 0; i < c->loss.n_targets; i++)
    if (strcmp(c->loss.targets[i].name, name) == 0) return &c->loss.targets[i];
  return NULL;
}

/* Checks the keys of a target: a key that is given must be one that the target's loss has. */
static clv_code check_keys(const clv_session_config *c, const clv_target_spec *t, clv_err *err) {
  const struct {
    const char *name;
    unsigned key;
    bool is_given;
  } keys[] = {{"weight", CLV_LOSS_KEY_WEIGHT, t->weight.n > 0},
              {"class_weights", CLV_LOSS_KEY_WEIGHT, t->class_weights != CLV_CLASS_WEIGHTS_GIVEN},
              {"pos_weight", CLV_LOSS_KEY_POS_WEIGHT, t->pos_weight != 1},
              {"label_smoothing", CLV_LOSS_KEY_LABEL_SMOOTHING, t->label_smoothing != 0},
              {"beta", CLV_LOSS_KEY_BETA, t->beta != 1},
              {"delta", CLV_LOSS_KEY_DELTA, t->delta != 1},
              {"quantile", CLV_LOSS_KEY_QUANTILE, t->quantile != 0.5},
              {"gamma", CLV_LOSS_KEY_GAMMA, t->gamma != 2}};
  char loss_names[80];
  for (size_t i = 0; i < CLV_COUNT(keys); i++) {
    if (!keys[i].is_given || clv_loss_row_of(t->kind)->keys & keys[i].key) continue;
    clv_loss_names_of(keys[i].key, loss_names, sizeof loss_names);
    return fail_at(c, t->pos, err, "loss.targets.%.80s.%s goes with %s, and not with %s: remove it",
                   t->name, keys[i].name, loss_names, clv_loss_name(t->kind));
  }
  bool has_classes = clv_loss_row_of(t->kind)->task == CLV_TASK_CLASSES;
  if (has_classes && t->n_classes < 2)
    return fail_at(c, t->pos, err,
                   "loss.targets.%.80s: %s needs classes, the number of classes (2 or more), which "
                   "is how many "
                   "outputs of the model belong to it",
                   t->name, clv_loss_name(t->kind));
  if (!has_classes && t->n_classes)
    return fail_at(c, t->pos, err,
                   "loss.targets.%.80s.classes goes with losses of classes, and %s has one output: "
                   "remove it",
                   t->name, clv_loss_name(t->kind));
  return CLV_OK;
}

/* Checks the weights of the classes of a target. */
static clv_code check_weights(const clv_session_config *c, const clv_target_spec *t, clv_err *err) {
  bool has_positive = !t->weight.n;
  for (size_t i = 0; i < t->weight.n; i++) has_positive = has_positive || t->weight.items[i] > 0;
  if (t->weight.n && t->class_weights)
    return fail_at(c, t->pos, err,
                   "loss.targets.%.80s has weight and class_weights, which exclude each other: "
                   "leave one out",
                   t->name);
  if (t->weight.n && t->weight.n != t->n_classes)
    return fail_at(c, t->pos, err,
                   "loss.targets.%.80s.weight has %zu number%s, and the target has %llu classes: "
                   "give a number for each",
                   t->name, t->weight.n, CLV_S(t->weight.n), (unsigned long long)t->n_classes);
  if (has_positive) return CLV_OK;
  return fail_at(c, t->pos, err,
                 "loss.targets.%.80s.weight is 0 for every class: give one a weight", t->name);
}

static const clv_column_spec *find_column(const clv_session_config *c, const char *name) {
  for (size_t i = 0; i < c->data.table.n_columns; i++)
    if (strcmp(c->data.table.columns[i].name, name) == 0) return &c->data.table.columns[i];
  return NULL;
}

static bool has_control_character(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 0x20 || *text == 0x7f) return true;
  return false;
}

static clv_code check_target(const clv_session_config *c, const clv_target_spec *t, clv_err *err) {
  const clv_column_spec *column = find_column(c, t->name);
  if (has_control_character(t->name))
    return fail_at(c, t->pos, err,
                   "loss.targets: a name has a control character: rename the column");
  if (!column || column->use != CLV_COLUMN_TARGET)
    return fail_at(c, t->pos, err,
                   "loss.targets.%.80s: data.table.columns has no target of this name: say `as: "
                   "target` for it there",
                   t->name);
  CLV_TRY(check_keys(c, t, err));
  return check_weights(c, t, err);
}

/* Checks that a key names a target with classes, or of yes or no. */
static clv_code check_class_target(const clv_session_config *c, const char *name, const char *key,
                                   clv_config_pos pos, clv_err *err) {
  const clv_target_spec *t = clv_session_find_target(c, name);
  if (!t)
    return fail_at(c, pos, err, "%s: loss.targets has no '%.80s': name one of its targets", key,
                   name);
  if (clv_loss_has_accuracy(t->kind)) return CLV_OK;
  return fail_at(
      c, pos, err,
      "%s: the labels of '%.80s' are numbers (%s): name a target with classes, or of yes "
      "or no",
      key, name, clv_loss_name(t->kind));
}

/* Checks data.sampling and data.sampling_target of a session with several targets. */
static clv_code check_sampling_target(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  bool goes_by_class = clv_data_samples(d) && d->sampling != CLV_SAMPLING_COLUMN;
  if (goes_by_class && !d->sampling_target)
    return fail_at(c, d->sampling_pos, err,
                   "data.sampling goes by the class of a record, and one with several targets has "
                   "a class of each: name the target with data.sampling_target, or set column, "
                   "which reads weights");
  if (!d->sampling_target) return CLV_OK;
  CLV_TRY(check_class_target(c, d->sampling_target, "data.sampling_target", d->sampling_pos, err));
  if (d->sampling != CLV_SAMPLING_BALANCED ||
      !clv_session_find_target(c, d->sampling_target)->class_weights)
    return CLV_OK;
  return fail_at(
      c, d->sampling_pos, err,
      "data.sampling: balanced by the target '%.80s', whose class_weights: balanced would "
      "weigh rare classes twice: leave one out",
      d->sampling_target);
}

/* Checks the other keys of the session, some of which exclude several targets. */
static clv_code check_rest_of_session(const clv_session_config *c, clv_err *err) {
  if (!(clv_format_row_of(c->data.format)->accepted_keys & CLV_KEY_TABLE))
    return fail_at(
        c, c->loss.targets_pos, err,
        "loss.targets goes with data.format: table, because targets are columns, and not with "
        "%s: remove it",
        clv_format_row_of(c->data.format)->name);
  if (c->loss.at && strcmp(c->loss.at, "master") != 0)
    return fail_at(c, c->loss.at_pos, err,
                   "loss.at: the losses of several targets are computed at the master: remove it");
  CLV_TRY(check_sampling_target(c, err));
  if (c->data.split_target)
    CLV_TRY(check_class_target(c, c->data.split_target, "data.validation.target",
                               c->data.split_target_pos, err));
  if (c->loss.specificity != 0.9)
    return fail_at(c, c->loss.pos, err,
                   "loss.specificity: each target has its own: write it in loss.targets.%.80s",
                   c->loss.targets[0].name);
  return CLV_OK;
}

clv_code clv_session_check_targets(clv_session_config *c, clv_err *err) {
  size_t n_with_classes = 0;
  bool has_targets = c->loss.kind == CLV_LOSS_TARGETS;
  if (!has_targets && c->loss.n_targets)
    return fail_at(
        c, c->loss.targets_pos, err,
        "loss.targets goes with loss.kind: targets, and not with %s: change loss.kind, or "
        "remove loss.targets",
        clv_loss_name(c->loss.kind));
  if (!has_targets) return CLV_OK;
  if (!c->loss.n_targets)
    return fail_at(c, c->loss.pos, err,
                   "loss.kind: targets needs loss.targets, as in `targets: {died: {kind: "
                   "bce_with_logits}, days: {kind: mse}}`");
  CLV_TRY(check_rest_of_session(c, err));
  for (size_t i = 0; i < c->loss.n_targets; i++) {
    clv_target_spec *t = &c->loss.targets[i];
    CLV_TRY(check_target(c, t, err));
    t->masks_missing = find_column(c, t->name)->missing == CLV_MISSING_MASK;
    n_with_classes += c->loss.targets[i].n_classes > 0;
  }
  if (n_with_classes > CLV_MAX_CLASS_TARGETS)
    return fail_at(
        c, c->loss.targets_pos, err,
        "loss.targets has %zu targets of classes, at most %d are possible: use bce_with_logits, "
        "which has no such limit, for targets of two classes",
        n_with_classes, CLV_MAX_CLASS_TARGETS);
  for (size_t i = 0; i < c->data.table.n_columns; i++) {
    const clv_column_spec *s = &c->data.table.columns[i];
    if (s->use == CLV_COLUMN_TARGET && !clv_session_find_target(c, s->name))
      return fail_at(c, s->pos, err,
                     "data.table.columns.%.80s: loss.targets has no loss for this target: add one, "
                     "or say `as: ignore`",
                     s->name);
  }
  return CLV_OK;
}
