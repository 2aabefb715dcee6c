/* SPDX-License-Identifier: Apache-2.0
 *
 * Labels of records that have several targets. Each record has a row of f32 with one label for each
 * target: a number as it is, 0 or 1 for no or yes, or the number of a class; NaN if the record has
 * no label, which the target's column permits with `missing: mask`. The classes of a target are
 * learnt from data.train, as those of a single target are.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"

/* ---- classes of targets ---------------------------------------------------------------------- */

static const clv_learnt_target *find_learnt_target(const clv_learnt *l, const char *name) {
  for (size_t i = 0; l && i < l->n_targets; i++)
    if (strcmp(l->targets[i].name, name) == 0) return &l->targets[i];
  return NULL;
}

size_t clv_learnt_target_count(const clv_learnt *l) { return l->n_targets; }

const char *clv_learnt_target_name(const clv_learnt *l, size_t target) {
  return l->targets[target].name;
}

const char *clv_learnt_class_name(const clv_learnt *l, const char *target, size_t class) {
  const clv_learnt_target *t = find_learnt_target(l, target);
  return t && class < t->n_classes ? t->classes[class] : NULL;
}

/* ---- labels of records with several targets -------------------------------------------------- */

/* Fails because a record has a class of the target that no record of data.train has. */
static clv_code fail_unknown_class(const clv_dataset *ds, const clv_learnt_target *from,
                                   const char *target, size_t record, clv_err *err) {
  if (!from || !from->n_classes)
    return clv_fail(err, CLV_DATA_LOSS,
                    "target '%.80s' had no classes when the run was trained: train again with "
                    "--fresh",
                    target);
  return clv_fail(
      err, CLV_INVALID,
      "%.200s: record %zu has a class of target '%.80s' that no record of data.train has",
      ds->inputs_path, record, target);
}

static clv_code fill_target_classes(const clv_dataset *ds, const clv_learnt *l, size_t target,
                                    float *y, clv_err *err) {
  CLV_AUTO(clv_freep) size_t *classes = NULL;
  const clv_cell_table *t = ds->table;
  const clv_table_column *c = t->targets[target];
  const clv_learnt_target *from = find_learnt_target(l, c->o.name);
  if (!from) return fail_unknown_class(ds, NULL, c->o.name, 0, err);
  CLV_TRY(clv_table_map_codes(c, from->classes, from->n_classes, &classes, err));
  for (size_t i = 0; i < ds->count; i++) {
    int32_t code = c->codes[clv_table_row(t, i)];
    if (code == CLV_MISSING_CODE) {
      y[i * t->n_targets + target] = NAN;
      continue;
    }
    size_t class = classes[code];
    if (class == from->n_classes) return fail_unknown_class(ds, from, c->o.name, i, err);
    y[i * t->n_targets + target] = (float)class;
  }
  return CLV_OK;
}

/* Copies names and classes of the targets to ds->targets. */
static clv_code copy_targets(clv_dataset *ds, const clv_learnt *l, clv_err *err) {
  const clv_cell_table *t = ds->table;
  clv_learnt_targets_free(ds->targets, ds->n_targets);
  ds->targets = NULL;
  ds->n_targets = 0;
  CLV_TRY(clv_alloc(t->n_targets, sizeof *ds->targets, &ds->targets, err));
  ds->n_targets = t->n_targets;
  for (size_t i = 0; i < t->n_targets; i++) {
    const clv_learnt_target *from = find_learnt_target(l, t->targets[i]->o.name);
    clv_learnt_target *to = &ds->targets[i];
    CLV_TRY(clv_strdup(t->targets[i]->o.name, &to->name, err));
    if (!from || !from->n_classes) continue;
    CLV_TRY(clv_alloc(from->n_classes, sizeof *to->classes, &to->classes, err));
    for (; to->n_classes < from->n_classes; to->n_classes++)
      CLV_TRY(clv_strdup(from->classes[to->n_classes], &to->classes[to->n_classes], err));
  }
  return CLV_OK;
}

clv_code clv_targets_set_labels(clv_dataset *ds, const clv_learnt *l, clv_err *err) {
  const clv_cell_table *t = ds->table;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *y = NULL;
  const clv_shape shape = CLV_SHAPE((int64_t)ds->count, (int64_t)t->n_targets);
  CLV_TRY(clv_tensor_new(CLV_F32, &shape, &y, err));
  for (size_t k = 0; k < t->n_targets; k++) {
    const clv_table_column *c = t->targets[k];
    float *values = y->data;
    if (!c->has_numbers) CLV_TRY(fill_target_classes(ds, l, k, values, err));
    for (size_t i = 0; c->has_numbers && i < ds->count; i++)
      values[i * t->n_targets + k] = (float)c->numbers[clv_table_row(t, i)];
  }
  CLV_TRY(copy_targets(ds, l, err));
  clv_tensor_unref(ds->labels);
  ds->labels = clv_steal(&y);
  ds->y_shape = shape;
  return CLV_OK;
}

/* ---- targets of a dataset -------------------------------------------------------------------- */

size_t clv_dataset_target_count(const clv_dataset *ds) { return ds->n_targets; }

const char *clv_dataset_target_name(const clv_dataset *ds, size_t target) {
  return ds->targets[target].name;
}

size_t clv_dataset_target_class_count(const clv_dataset *ds, size_t target) {
  const clv_table_column *c = ds->table->targets[target];
  return c->is_yes_or_no ? 2 : ds->targets[target].n_classes;
}

const char *clv_dataset_target_class_name(const clv_dataset *ds, size_t target, size_t class) {
  const clv_learnt_target *t = &ds->targets[target];
  if (class < t->n_classes) return t->classes[class];
  return class ? "yes" : "no";
}

bool clv_dataset_has_target(const clv_dataset *ds, size_t target, size_t record) {
  return !isnan(((const float *)ds->labels->data)[record * ds->n_targets + target]);
}

int64_t clv_dataset_target_class(const clv_dataset *ds, size_t target, size_t record) {
  if (!clv_dataset_target_class_count(ds, target) || !clv_dataset_has_target(ds, target, record))
    return -1;
  return (int64_t)((const float *)ds->labels->data)[record * ds->n_targets + target];
}
