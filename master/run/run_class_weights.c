/* SPDX-License-Identifier: Apache-2.0
 *
 * loss.class_weights: balanced. A training gives class c the weight n / (C * n_c): n labels of
 * training records, n_c of them of class c, C classes, as scikit-learn's compute_class_weight. A
 * class without training records gets 1. The run's session file stores the weights as loss.weight,
 * so `eval` and `predict` use the same weights as the training. A target with class_weights:
 * balanced has such weights for its own classes; records without a label for that target do not
 * count.
 */
#include <stdlib.h>
#include <string.h>

#include "master/run/run_int.h"

/* Allocates a list of `n` class weights, which the run owns. Makes r->config point at the run's own
 * copy of the session, so that the list can be stored there. */
static clv_code make_weight_list(clv_run *r, size_t n, clv_number_list *ret, clv_err *err) {
  free(r->class_weights);
  r->class_weights = NULL;
  CLV_TRY(clv_alloc(n, sizeof *r->class_weights, &r->class_weights, err));
  if (r->config != &r->effective_config) r->effective_config = *r->config;
  r->config = &r->effective_config;
  *ret = (clv_number_list){n, r->class_weights};
  return CLV_OK;
}

/* Computes the weight of each class from `counts`, the number of records of each class. */
static void balance(const size_t *counts, size_t n, double *weights) {
  size_t n_labels = 0;
  for (size_t c = 0; c < n; c++) n_labels += counts[c];
  for (size_t c = 0; c < n; c++)
    weights[c] = counts[c] ? (double)n_labels / ((double)n * (double)counts[c]) : 1;
}

static void use_weight_list(clv_run *r, const clv_number_list *list) {
  r->effective_config.loss.weight = *list;
  r->effective_config.loss.class_weights = CLV_CLASS_WEIGHTS_GIVEN;
}

clv_code clv_run_count_outputs(const clv_run *r, size_t *ret, clv_err *err) {
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  clv_session_config config_without_class_weights = *r->config;
  config_without_class_weights.loss.class_weights = CLV_CLASS_WEIGHTS_GIVEN;
  CLV_TRY(clv_blueprint_new_of_data(&config_without_class_weights, r->data.train, &b, err));
  const clv_shape *output_shape = &b->full_graph->nodes[b->full_graph->output_node].shape;
  *ret = (size_t)output_shape->dim[output_shape->rank - 1];
  return CLV_OK;
}

static clv_code count_labels(const clv_run *r, size_t n, size_t *counts, clv_err *err) {
  const clv_subset *rows = &r->data.train_rows;
  for (size_t i = 0; i < rows->n; i++) {
    int64_t label = clv_dataset_record_class(r->data.train, rows->index[i]);
    if (label == -1)
      return clv_session_fail_at(r->config, r->config->loss.class_weights_pos, err,
                                 "loss.class_weights: balanced needs one class for each record: "
                                 "give loss.weight in place of it");
    if ((double)label == r->config->loss.ignore_index) continue;
    if (label < 0 || (size_t)label >= n)
      return clv_session_fail_at(r->config, r->config->loss.class_weights_pos, err,
                                 "loss.class_weights: record %u has class %lld, and the last layer "
                                 "has %zu outputs",
                                 rows->index[i], (long long)label, n);
    counts[label]++;
  }
  return CLV_OK;
}

/* Computes the class weights from the labels of the training records. */
static clv_code compute_balanced_weights(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  clv_number_list list;
  size_t n = 0;
  CLV_TRY(clv_run_count_outputs(r, &n, err));
  CLV_TRY(clv_alloc(n, sizeof *counts, &counts, err));
  CLV_TRY(count_labels(r, n, counts, err));
  CLV_TRY(make_weight_list(r, n, &list, err));
  balance(counts, n, list.items);
  use_weight_list(r, &list);
  return CLV_OK;
}

/* Loads the session that `train` has stored in the run folder. */
static clv_code load_stored_config(const clv_run *r, clv_session_config **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_SESSION_FILE, r->config->checkpoint.dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_session_config_load(path.data, NULL, ret, err);
  if (code != CLV_OK)
    clv_err_prefix(err, "class_weights: balanced takes the weights of the training");
  return code;
}

/* Sets the class weights to loss.weight of the run's stored session, where the training wrote its
 * class weights. */
static clv_code read_stored_weights(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *stored_config = NULL;
  clv_number_list list;
  CLV_TRY(load_stored_config(r, &stored_config, err));
  if (!stored_config->loss.weight.n)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s/" CLV_SESSION_FILE
                    " has no loss.weight, and loss.class_weights: balanced "
                    "takes the weights of the training from it: give loss.weight",
                    r->config->checkpoint.dir);
  CLV_TRY(make_weight_list(r, stored_config->loss.weight.n, &list, err));
  for (size_t c = 0; c < list.n; c++) list.items[c] = stored_config->loss.weight.items[c];
  use_weight_list(r, &list);
  return CLV_OK;
}

/* ---- class weights of targets ---------------------------------------------------------------- */

static bool is_balanced(const clv_target_spec *t) {
  return t->class_weights == CLV_CLASS_WEIGHTS_BALANCED;
}

/* Returns the number of classes of all targets with class_weights: balanced. */
static size_t count_balanced_classes(const clv_session_config *c) {
  size_t n = 0;
  for (size_t k = 0; k < c->loss.n_targets; k++)
    if (is_balanced(&c->loss.targets[k])) n += (size_t)c->loss.targets[k].n_classes;
  return n;
}

/* Sets the class weights of a target. Computes them from the training records that have a label for
 * this target. */
static clv_code balance_target(const clv_run *r, size_t target, const clv_number_list *weights,
                               clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  const clv_subset *rows = &r->data.train_rows;
  CLV_TRY(clv_alloc(weights->n, sizeof *counts, &counts, err));
  for (size_t i = 0; i < rows->n; i++) {
    int64_t class = clv_dataset_target_class(r->data.train, target, rows->index[i]);
    if (class >= 0 && (size_t) class < weights->n) counts[class]++;
  }
  balance(counts, weights->n, weights->items);
  return CLV_OK;
}

/* Copies the weights of a target from the session that the training stored. */
static clv_code copy_stored_weights(const clv_session_config *stored_config,
                                    const clv_target_spec *target, const clv_number_list *weights,
                                    clv_err *err) {
  const clv_target_spec *from = NULL;
  for (size_t k = 0; k < stored_config->loss.n_targets; k++)
    if (strcmp(stored_config->loss.targets[k].name, target->name) == 0)
      from = &stored_config->loss.targets[k];
  if (!from || from->weight.n != weights->n)
    return clv_fail(
        err, CLV_DATA_LOSS,
        "%s has no weights of the %zu classes of loss.targets.%.80s, and class_weights: "
        "balanced takes those of the training from it: give weight",
        stored_config->file, weights->n, target->name);
  memcpy(weights->items, from->weight.items, weights->n * sizeof *weights->items);
  return CLV_OK;
}

/* Sets the weights of all targets with class_weights: balanced, in a copy of the targets. */
static clv_code resolve_target_weights(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *stored_config = NULL;
  size_t n_targets = r->config->loss.n_targets, at = 0;
  const clv_target_spec *targets = r->config->loss.targets;
  clv_number_list all;
  if (!r->data.train) CLV_TRY(load_stored_config(r, &stored_config, err));
  CLV_TRY(make_weight_list(r, count_balanced_classes(r->config), &all, err));
  free(r->weighted_targets);
  r->weighted_targets = NULL;
  CLV_TRY(clv_alloc(n_targets, sizeof *r->weighted_targets, &r->weighted_targets, err));
  memcpy(r->weighted_targets, targets, n_targets * sizeof *targets);
  for (size_t k = 0; k < n_targets; k++) {
    clv_target_spec *t = &r->weighted_targets[k];
    if (!is_balanced(t)) continue;
    t->weight = (clv_number_list){(size_t)t->n_classes, all.items + at};
    t->class_weights = CLV_CLASS_WEIGHTS_GIVEN;
    at += t->weight.n;
    CLV_TRY(stored_config ? copy_stored_weights(stored_config, t, &t->weight, err)
                          : balance_target(r, k, &t->weight, err));
  }
  r->effective_config.loss.targets = r->weighted_targets;
  return CLV_OK;
}

clv_code clv_run_resolve_class_weights(clv_run *r, clv_err *err) {
  if (count_balanced_classes(r->config)) return resolve_target_weights(r, err);
  if (r->config->loss.class_weights != CLV_CLASS_WEIGHTS_BALANCED) return CLV_OK;
  return r->data.train ? compute_balanced_weights(r, err) : read_stored_weights(r, err);
}
