/* SPDX-License-Identifier: Apache-2.0
 *
 * Adds to the ledger, the list of what workers have received, the keys and weights that a worker is
 * about to receive. The trainer calls clv_trainer_note_keys just before it sends a stage to its
 * worker, and clv_trainer_note_values just before it sends values. So an attempt that is refused
 * earlier adds no line. If an attempt is killed after the note and before the values are sent, the
 * ledger counts the values as sent. The trainer also adds values that it fetches for a checkpoint,
 * because the worker has them. Values are those of parameters and of their averages (train.ema).
 * The values of a checkpoint whose files stay at a worker are added when the master gathers these
 * files, because the master does not see the values earlier.
 */
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* Returns the identity of the stage's worker. */
static const char *worker_identity_of_stage(const clv_trainer *t, uint32_t stage) {
  return t->config->workers[t->b->stages[stage].worker].identity;
}

/* ---- keys and parameters of a stage ---------------------------------------------------------- */

static clv_code add_param(clv_ledger_list *o, const clv_trainer *t, uint32_t stage,
                          const char *name, clv_err *err) {
  clv_sha256 digest;
  if (!t->b->run_secret) return CLV_OK;
  CLV_TRY(clv_ledger_hash_param_name(t->b->run_secret, name, &digest, err));
  return clv_ledger_list_add(o, worker_identity_of_stage(t, stage), CLV_LEDGER_RUN, &digest, err);
}

/* Adds the parameters of a stage, and of other stages if layers of this stage are tied to them,
 * because the worker has the values of all these parameters. */
static clv_code add_params(clv_ledger_list *o, const clv_trainer *t, uint32_t stage, clv_err *err) {
  const clv_params *p = t->b->stages[stage].params;
  const char *weight_name;
  uint32_t owner_stage;
  for (int k = 0; k < p->n; k++)
    if (p->list[k].shape.rank >= 2) CLV_TRY(add_param(o, t, stage, p->list[k].name, err));
  for (int k = 0; k < p->n_ties; k++)
    if (clv_stage_tie_owner(t->b, stage, k, &owner_stage, &weight_name))
      CLV_TRY(add_param(o, t, stage, weight_name, err));
  return CLV_OK;
}

static clv_code add_keys(clv_ledger_list *o, const clv_trainer *t, uint32_t stage, clv_err *err) {
  const clv_graph *g = t->b->stages[stage].graph;
  clv_sha256 digest;
  for (int k = 0; k < g->n_nodes; k++) {
    if (g->nodes[k].op == CLV_OP_INPUT) continue;
    CLV_TRY(clv_ledger_hash_graph_node(t->config, g, k, &digest, err));
    CLV_TRY(
        clv_ledger_list_add(o, worker_identity_of_stage(t, stage), CLV_LEDGER_KEY, &digest, err));
  }
  return CLV_OK;
}

static bool belongs_in_ledger(const clv_trainer *t, uint32_t stage) {
  return t->use != CLV_TRAINER_TRIAL /* a trial's seed is discarded */ &&
         t->b->stages[stage].worker >= 0;
}

clv_code clv_trainer_check_ledger(const clv_trainer *t, clv_err *err) {
  bool needs_ledger = false;
  for (uint32_t i = 0; i < t->b->n_stages; i++) needs_ledger |= belongs_in_ledger(t, i);
  return needs_ledger ? clv_ledger_check_writable(err) : CLV_OK;
}

clv_code clv_trainer_note_keys(const clv_trainer *t, uint32_t stage, clv_err *err) {
  CLV_AUTO(clv_ledger_list_done) clv_ledger_list o = {0};
  if (!belongs_in_ledger(t, stage)) return CLV_OK;
  CLV_TRY(add_keys(&o, t, stage, err));
  if (t->use == CLV_TRAINER_NEW_RUN) CLV_TRY(add_params(&o, t, stage, err));
  return clv_ledger_add(o.items, o.n, err);
}

/* ---- values of a stage's tensors ------------------------------------------------------------- */

clv_code clv_trainer_new_samples(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const clv_weights_want *items, size_t n, clv_weights_sample **ret,
                                 clv_err *err) {
  *ret = NULL;
  bool has_values = kind == CLEAVE_STATE_WEIGHTS || t->config->train.ema > 0;
  if (!belongs_in_ledger(t, stage) || !has_values) return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof **ret, ret, err));
  /* The result is ignored: if the rank or type of a tensor needs no sample, its sample stays empty,
   * and clv_trainer_note_values adds no line for the tensor. */
  for (size_t i = 0; i < n; i++)
    if (kind == CLEAVE_STATE_WEIGHTS || clv_optim_is_ema(items[i].name))
      (void)clv_weights_sample_begin(&(*ret)[i], items[i].dtype, &items[i].shape);
  return CLV_OK;
}

void clv_trainer_free_samples(clv_weights_sample *samples, size_t n) {
  for (size_t i = 0; samples && i < n; i++) clv_weights_sample_done(&samples[i]);
  free(samples);
}

clv_code clv_trainer_note_params(const clv_trainer *t, uint32_t stage, clv_err *err) {
  CLV_AUTO(clv_ledger_list_done) clv_ledger_list o = {0};
  if (!belongs_in_ledger(t, stage)) return CLV_OK;
  CLV_TRY(add_params(&o, t, stage, err));
  return clv_ledger_add(o.items, o.n, err);
}

clv_code clv_trainer_note_values(const clv_trainer *t, uint32_t stage,
                                 const clv_weights_sample *samples, size_t n, clv_err *err) {
  CLV_AUTO(clv_ledger_list_done) clv_ledger_list o = {0};
  if (samples) CLV_TRY(add_params(&o, t, stage, err));
  for (size_t i = 0; samples && i < n; i++)
    if (samples[i].n_parts)
      CLV_TRY(clv_ledger_list_add_sample(&o, worker_identity_of_stage(t, stage), &samples[i], err));
  return clv_ledger_add(o.items, o.n, err);
}

/* ---- values in files gathered from workers --------------------------------------------------- */

static clv_code fill_sample(const clv_weights_file *f, const clv_weights_entry *e,
                            clv_weights_sample *s, clv_err *err) {
  CLV_AUTO(clv_freep) char *chunk = NULL;
  size_t size = clv_dtype_size(e->dtype);
  CLV_TRY(clv_alloc(CLV_SAMPLE_CHUNK_VALUES, size, &chunk, err));
  for (uint64_t at = 0; at < e->bytes;) {
    size_t n = (size_t)CLV_MIN(e->bytes - at, (uint64_t)CLV_SAMPLE_CHUNK_VALUES * size);
    CLV_TRY(clv_weights_read_range(f, e, at, chunk, n, err));
    clv_weights_sample_add(s, at, chunk, n);
    at += n;
  }
  return CLV_OK;
}

static clv_code add_entry(clv_ledger_list *o, const char *identity, const clv_weights_file *f,
                          const clv_weights_entry *e, clv_err *err) {
  CLV_AUTO(clv_weights_sample_done) clv_weights_sample s = {0};
  if (!e->dtype || !clv_weights_sample_begin(&s, e->dtype, &e->shape)) return CLV_OK;
  CLV_TRY(fill_sample(f, e, &s, err));
  return clv_ledger_list_add_sample(o, identity, &s, err);
}

clv_code clv_note_gathered_weights(const char *path, const char *identity, bool is_optimizer,
                                   clv_err *err) {
  CLV_AUTO(clv_ledger_list_done) clv_ledger_list o = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_TRY(clv_weights_open_lazy(path, &f, err));
  for (size_t i = 0; i < clv_weights_n_entries(f); i++)
    if (!is_optimizer || clv_optim_is_ema(clv_weights_entries(f)[i].name))
      CLV_TRY(add_entry(&o, identity, f, &clv_weights_entries(f)[i], err));
  return clv_ledger_add(o.items, o.n, err);
}
