/* SPDX-License-Identifier: Apache-2.0
 *
 * loss.class_weights: balanced. A training gives class c the weight n / (C * n_c): n labels of
 * training records, n_c of them of class c, C classes, as scikit-learn's compute_class_weight. A
 * class without training records gets 1. The run's session file stores the weights as loss.weight,
 * so `eval` and `predict` use the same weights as the training.
 */
#include <stdlib.h>

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

static void use_weight_list(clv_run *r, const clv_number_list *list) {
  r->effective_config.loss.weight = *list;
  r->effective_config.loss.class_weights = CLV_CLASS_WEIGHTS_GIVEN;
}

/* Finds the number of classes: the width of the model's last layer. */
static clv_code count_classes_of_model(const clv_run *r, size_t *ret, clv_err *err) {
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
  size_t n = 0, n_labels = 0;
  CLV_TRY(count_classes_of_model(r, &n, err));
  CLV_TRY(clv_alloc(n, sizeof *counts, &counts, err));
  CLV_TRY(count_labels(r, n, counts, err));
  CLV_TRY(make_weight_list(r, n, &list, err));
  for (size_t c = 0; c < n; c++) n_labels += counts[c];
  for (size_t c = 0; c < n; c++)
    list.items[c] = counts[c] ? (double)n_labels / ((double)n * (double)counts[c]) : 1;
  use_weight_list(r, &list);
  return CLV_OK;
}

/* Sets the class weights to those of the training: loss.weight in the run's stored session. */
static clv_code read_stored_weights(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_AUTO(clv_session_config_freep) clv_session_config *stored_config = NULL;
  clv_number_list list;
  clv_bytes_printf(&path, "%s/" CLV_SESSION_FILE, r->config->checkpoint.dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_session_config_load(path.data, NULL, &stored_config, err);
  if (code != CLV_OK) {
    clv_err_prefix(err, "loss.class_weights: balanced takes the weights of the training");
    return code;
  }
  if (!stored_config->loss.weight.n)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s has no loss.weight, and loss.class_weights: balanced takes the weights of "
                    "the training from it: give loss.weight",
                    path.data);
  CLV_TRY(make_weight_list(r, stored_config->loss.weight.n, &list, err));
  for (size_t c = 0; c < list.n; c++) list.items[c] = stored_config->loss.weight.items[c];
  use_weight_list(r, &list);
  return CLV_OK;
}

clv_code clv_run_resolve_class_weights(clv_run *r, clv_err *err) {
  if (r->config->loss.class_weights != CLV_CLASS_WEIGHTS_BALANCED) return CLV_OK;
  return r->data.train ? compute_balanced_weights(r, err) : read_stored_weights(r, err);
}
