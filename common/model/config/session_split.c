/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks data.validation and data.sampling of a session: that the keys which are given fit each
 * other (clv_session_check_split).
 */
#include "common/model/config/schema_int.h"

#define fail_at clv_session_fail_at

bool clv_data_has_validation(const clv_data_config *d) {
  return d->validation_fraction > 0 || d->folds || d->validation_split_by == CLV_BY_COLUMN;
}

/* Checks the column by which a table is split: a column of times, or one that names the set of each
 * record. */
static clv_code check_column(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  bool is_by_column = d->validation_split_by == CLV_BY_COLUMN;
  bool is_by_time = d->validation_split_by == CLV_BY_TIME;
  bool has_values = d->training_values.n || d->validation_values.n || d->test_values.n;
  if (d->split_column && !is_by_column && !is_by_time)
    return fail_at(c, d->group_pos, err,
                   "data.validation.column goes with data.validation.by: time and column");
  if (has_values && !is_by_column)
    return fail_at(c, d->group_pos, err,
                   "data.validation.training, validation and test go with "
                   "data.validation.by: column");
  if (!is_by_column && !is_by_time) return CLV_OK;
  if (!(clv_format_row_of(d->format)->accepted_keys & CLV_KEY_TABLE))
    return fail_at(c, d->group_pos, err,
                   "data.validation.by: %s goes with data.format: table; other formats have last "
                   "and group",
                   is_by_column ? "column" : "time");
  if (!d->split_column)
    return fail_at(c, d->group_pos, err,
                   "data.validation.by: %s needs data.validation.column, the name of a column",
                   is_by_column ? "column" : "time");
  if (is_by_column && d->validation_fraction > 0)
    return fail_at(c, d->group_pos, err,
                   "data.validation.fraction does not go with by: column, which names the records: "
                   "remove it");
  return CLV_OK;
}

static clv_code check_folds(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  bool is_drawn = d->validation_split_by == CLV_BY_CLASS ||
                  d->validation_split_by == CLV_BY_CHANCE || d->validation_split_by == CLV_BY_GROUP;
  if (!d->folds && !d->fold) return CLV_OK;
  if (d->folds < 2)
    return fail_at(c, d->group_pos, err, "data.validation.folds is %llu: set it to 2 or more",
                   (unsigned long long)d->folds);
  if (!d->fold || d->fold > d->folds)
    return fail_at(c, d->group_pos, err,
                   "data.validation.fold is %llu: set the fold to hold back, from 1 to %llu",
                   (unsigned long long)d->fold, (unsigned long long)d->folds);
  if (d->validation_fraction > 0)
    return fail_at(c, d->group_pos, err,
                   "data.validation has a fraction and folds: keep one of them");
  if (!is_drawn)
    return fail_at(c, d->group_pos, err,
                   "data.validation.folds goes with by: stratified, random and group");
  if (c->train.seed.is_given) return CLV_OK;
  return fail_at(
      c, d->group_pos, err,
      "data.validation.folds needs train.seed, or each run would divide the records in its "
      "own way: set 32 hexadecimal digits, as openssl rand -hex 16 prints them");
}

/* Checks the keys that name one of several targets. */
static clv_code check_named_targets(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  bool has_targets = c->loss.kind == CLV_LOSS_TARGETS;
  bool splits_by_class = clv_data_has_validation(d) && d->validation_split_by == CLV_BY_CLASS;
  bool limits_by_class = (d->limit_train || d->limit_test) && d->limit_chosen_by == CLV_BY_CLASS;
  if (d->split_target && !(has_targets && (splits_by_class || limits_by_class)))
    return fail_at(c, d->split_target_pos, err, "data.validation.target goes with %s: remove it",
                   has_targets
                       ? "data.validation.by: stratified and a fraction or folds, or with a "
                         "limit by: stratified"
                       : "several targets (loss.kind: targets)");
  if (!d->sampling_target) return CLV_OK;
  if (!has_targets)
    return fail_at(
        c, d->sampling_pos, err,
        "data.sampling_target goes with several targets (loss.kind: targets): remove it");
  if (clv_data_samples(d) && d->sampling != CLV_SAMPLING_COLUMN) return CLV_OK;
  return fail_at(
      c, d->sampling_pos, err,
      "data.sampling_target goes with data.sampling: balanced and data.sampling_weights: "
      "set one of them, or remove it");
}

/* Checks data.sampling with the keys that contradict it. */
static clv_code check_sampling(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  bool is_by_column = d->sampling == CLV_SAMPLING_COLUMN;
  const struct {
    bool contradicts;
    const char *text;
  } others[] = {
      {d->sampling && d->sampling_weights.n,
       "data.sampling and data.sampling_weights exclude each other: leave one out"},
      {!c->train.shuffle, "data.sampling draws records at random: leave train.shuffle: false out"},
      {is_by_column && !(clv_format_row_of(d->format)->accepted_keys & CLV_KEY_TABLE),
       "data.sampling: column goes with data.format: table, whose column with as: weight it reads"},
      {!is_by_column && clv_loss_row_of(c->loss.kind)->task == CLV_TASK_NUMBERS,
       "data.sampling goes by classes, and this loss has numbers for labels: leave it out"},
      {!is_by_column && d->objective != CLV_LABELS_OF_FILES,
       "data.sampling goes by classes, and data.objective has tokens for labels: leave it out"},
      {d->sampling == CLV_SAMPLING_BALANCED && c->loss.class_weights,
       "data.sampling and loss.class_weights: balanced would weigh rare classes twice: leave one "
       "out"}};
  if (!clv_data_samples(d)) return CLV_OK;
  for (size_t i = 0; i < CLV_COUNT(others); i++)
    if (others[i].contradicts) return fail_at(c, d->sampling_pos, err, "%s", others[i].text);
  for (size_t i = 0; i < c->n_stages; i++)
    if (c->stages[i].cache)
      return fail_at(c, d->sampling_pos, err,
                     "data.sampling does not go with stages[].cache, which needs each record once: "
                     "leave one out");
  return CLV_OK;
}

clv_code clv_session_check_split(const clv_session_config *c, clv_err *err) {
  CLV_TRY(check_column(c, err));
  CLV_TRY(check_named_targets(c, err));
  CLV_TRY(check_sampling(c, err));
  return check_folds(c, err);
}
