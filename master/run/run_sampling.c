/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements data.sampling, data.sampling_weights and data.sampling_target, with which a training
 * draws its records at random with replacement.
 */
#include <stdlib.h>
#include <string.h>

#include "master/run/run_int.h"

/* Computes r->sampling_sums from the class of each record, which is its label for the target
 * data.sampling_target. */
static clv_code make_sums_of_target(clv_run *r, clv_err *err) {
  const clv_data_config *d = &r->config->data;
  size_t k = 0;
  while (strcmp(clv_dataset_target_name(r->data.train, k), d->sampling_target) != 0) k++;
  return clv_sampling_sums_of_target(r->data.train, &r->data.train_rows, k,
                                     d->sampling_weights.items, d->sampling_weights.n,
                                     &r->sampling_sums, err);
}

/* Finds the number of classes by which records are drawn. A model with one output, as for yes or
 * no, has two classes. */
static clv_code count_drawn_classes(const clv_run *r, size_t *ret, clv_err *err) {
  size_t n = 0;
  const char *target = r->config->data.sampling_target;
  for (size_t k = 0; target && k < r->config->loss.n_targets; k++) {
    const clv_target_spec *t = &r->config->loss.targets[k];
    if (strcmp(t->name, target) == 0) n = (size_t)t->n_classes;
  }
  if (!target) CLV_TRY(clv_run_count_outputs(r, &n, err));
  *ret = CLV_MAX(n, 2u);
  return CLV_OK;
}

/* Refuses weights of classes that no record can have. */
static clv_code check_weight_count(const clv_run *r, clv_err *err) {
  size_t n_weights = r->config->data.sampling_weights.n, n_classes = 0;
  if (!n_weights) return CLV_OK;
  CLV_TRY(count_drawn_classes(r, &n_classes, err));
  if (n_weights <= n_classes) return CLV_OK;
  return clv_session_fail_at(r->config, r->config->data.sampling_pos, err,
                             "data.sampling_weights has %zu numbers, and there are %zu classes: "
                             "give a number for each",
                             n_weights, n_classes);
}

clv_code clv_run_make_sampling(clv_run *r, clv_err *err) {
  const clv_data_config *d = &r->config->data;
  clv_err reason;
  free(clv_steal(&r->sampling_sums));
  if (!clv_data_samples(d) || !r->data.train) return CLV_OK;
  CLV_TRY(check_weight_count(r, err));
  clv_code code =
      d->sampling == CLV_SAMPLING_COLUMN
          ? clv_sampling_sums_of_column(r->data.train, &r->data.train_rows, &r->sampling_sums,
                                        &reason)
      : d->sampling_target
          ? make_sums_of_target(r, &reason)
          : clv_sampling_sums(r->data.train, &r->data.train_rows, d->sampling_weights.items,
                              d->sampling_weights.n, &r->sampling_sums, &reason);
  if (code == CLV_OK) return CLV_OK;
  return clv_session_fail_at(r->config, d->sampling_pos, err, "data.sampling: %s", reason.text);
}
