/* SPDX-License-Identifier: Apache-2.0
 *
 * The blueprint of a run, from its data and what it will send.
 */
#include "master/run/run_int.h"

/* A run that ends early sends less; the gate counts what it does send. */
static clv_sends sends_of(const clv_run *r) {
  const clv_run_data *d = &r->data;
  bool evaluates = r->sends == RUN_EVALUATES;
  uint64_t test = d->test && (evaluates || clv_dataset_has_labels(d->test)) ? d->test_rows.n : 0;
  return (clv_sends){.weights = evaluates || r->o->resume,
                     .trained = evaluates ? 0 : d->train_rows.n,
                     .evaluated = test + (evaluates ? 0 : d->validation_rows.n)};
}

/* Layers at home that a worker knows from an earlier session hide nothing in this one. */
static clv_code recall(clv_run *r, clv_err *err) {
  clv_blueprint *b = r->blueprint;
  CLV_TRY(clv_run_find_key(r, err));
  b->run = r->has_secret ? &r->secret : NULL;
  return clv_blueprint_recall(b, b->run, err);
}

clv_code clv_run_check_policy(clv_run *r, clv_err *err) {
  const clv_sends sends = sends_of(r);
  if (r->look.done) clv_blueprint_looked(r->blueprint, &r->look);
  if (!r->looks) CLV_TRY(clv_blueprint_permits(r->blueprint, err));
  return clv_blueprint_check_policy(r->blueprint, &sends, err);
}

clv_code clv_run_make_blueprint(clv_run *r, clv_err *err) {
  const clv_dataset *d = r->data.train ? r->data.train : r->data.test;
  clv_blueprint_freep(&r->blueprint);
  CLV_TRY(clv_blueprint_of_data(r->config, d, &r->blueprint, err));
  r->blueprint->policy = r->policy;
  CLV_TRY(recall(r, err));
  CLV_TRY(clv_run_data_find_order(&r->data, r->blueprint, err));
  return clv_run_check_policy(r, err);
}
