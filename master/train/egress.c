/* SPDX-License-Identifier: Apache-2.0
 *
 * The trainer's part of egress control. clv_trainer_make_flows gives the gate
 * (master/egress/gate.c), which every sent tensor passes, the rows of the egress table, each with a
 * flow: the balance of bytes that may still be sent. The master writes an allowance, a number of
 * bytes, to the egress record before it sends tensors: clv_trainer_allow_batch before steps and
 * batches of evaluations, clv_trainer_allow_state before tensors of state, which have one flow
 * each. Tensors that workers send to each other are recorded as planned, with
 * clv_trainer_charge_direct_flows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* ---- flows of the rows of the egress table --------------------------------------------------- */

static void set_sender_and_receiver(const clv_trainer *t, int sender, int receiver,
                                    clv_egress_key *ret) {
  const clv_remote_spec *w = &t->config->workers[receiver];
  snprintf(ret->from, sizeof ret->from, "%s",
           sender < 0 ? CLV_EGRESS_MASTER : t->config->workers[sender].name);
  snprintf(ret->to, sizeof ret->to, "%s", w->name);
  snprintf(ret->identity, sizeof ret->identity, "%s", w->identity);
}

static void set_stage_name(const clv_trainer *t, uint32_t stage, clv_egress_key *ret) {
  snprintf(ret->stage, sizeof ret->stage, "%s",
           stage == t->b->n_stages ? CLV_LOSS_NAME : t->config->stages[stage].name);
}

/* Sets dtype, shape and bytes of one sample of a batch. For packed sequences (max_positions > 0)
 * sets the shape and the bytes of one position instead; max_positions is the largest number of
 * positions of a sample. */
static clv_code measure_sample(clv_dtype dtype, const clv_shape *batch_shape, int64_t max_positions,
                               clv_egress_key *key, clv_row_flow *ret, clv_err *err) {
  size_t bytes;
  key->shape.rank = CLV_MAX(batch_shape->rank - 1, 0);
  memcpy(key->shape.dim, batch_shape->dim + 1, (size_t)key->shape.rank * sizeof *batch_shape->dim);
  snprintf(key->dtype, sizeof key->dtype, "%s", clv_dtype_name(dtype));
  CLV_TRY(clv_shape_bytes(&key->shape, dtype, &bytes, err));
  ret->position_bytes = max_positions ? bytes : 0;
  ret->sample_bytes = bytes * (uint64_t)CLV_MAX(max_positions, 1);
  return CLV_OK;
}

/* Sets the name of the record numbers or activations of the cache in the egress record. The name of
 * activations says how long the worker keeps them and what they show. */
static void set_name_of_cached_row(const clv_trainer *t, const clv_egress_row *r,
                                   clv_egress_key *key) {
  char findings_text[CLV_FINDINGS_TEXT_BYTES];
  if (r->input)
    snprintf(key->name, sizeof key->name, "numbers of records");
  else
    snprintf(key->name, sizeof key->name, "kept there, unused for at most %llu s%s%s",
             (unsigned long long)(t->config->stages[0].cache_ttl_ms / 1000),
             r->findings ? ", " : "", clv_findings_format(r->findings, findings_text));
}

static clv_code make_row_flow(clv_trainer *t, const clv_egress_row *r, clv_row_flow *ret,
                              clv_err *err) {
  clv_egress_key key = {.kind = clv_egress_record_kind(r->kind, r->findings),
                        .has_random_values = t->egress.has_random_values};
  if (clv_egress_is_state(r->kind)) return CLV_OK;
  set_sender_and_receiver(t, -1, r->worker, &key);
  set_stage_name(t, r->stage, &key);
  if (r->kind == CLV_EGRESS_INPUT && t->b->inputs.n > 1)
    snprintf(key.name, sizeof key.name, "%s", t->b->stages[r->stage].graph->nodes[r->input].name);
  if (r->kind == CLV_EGRESS_CACHED) set_name_of_cached_row(t, r, &key);
  CLV_TRY(measure_sample(r->dtype, &r->shape, r->max_positions, &key, ret, err));
  return clv_egress_flow_new(t->egress.record, &key, false, &ret->flow, err);
}

/* Makes the flow of the value that a worker sends directly to the worker of the next stage.
 * is_gradient: makes the flow of the value's gradient instead, which the next worker sends. */
static clv_code make_direct_flow(clv_trainer *t, uint32_t stage, bool is_gradient,
                                 clv_row_flow *ret, clv_err *err) {
  const clv_stage_plan *s = &t->b->stages[stage];
  char words[CLV_FINDINGS_TEXT_BYTES];
  if (!s->sends_directly || (is_gradient && !s[1].input_needs_grad)) return CLV_OK;
  clv_egress_row r = clv_blueprint_hop_row(t->b, stage, is_gradient);
  clv_egress_key key = {.kind = clv_egress_record_kind(r.kind, r.findings),
                        .has_random_values = t->egress.has_random_values};
  set_sender_and_receiver(t, s[is_gradient].worker, r.worker, &key);
  set_stage_name(t, stage, &key);
  snprintf(key.name, sizeof key.name, "%s", clv_findings_format(r.findings, words));
  CLV_TRY(measure_sample(r.dtype, &r.shape, r.max_positions, &key, ret, err));
  return clv_egress_flow_new(t->egress.record, &key, false, &ret->flow, err);
}

static clv_code make_failure_flow(clv_trainer *t, size_t worker, clv_err *err) {
  clv_egress_key key = {.kind = CLV_EGRESS_FAILURE};
  set_sender_and_receiver(t, -1, (int)worker, &key);
  return clv_egress_flow_new(t->egress.record, &key, false, &t->egress.gate.failure_flows[worker],
                             err);
}

clv_code clv_trainer_make_flows(clv_trainer *t, clv_err *err) {
  clv_trainer_egress *e = &t->egress;
  uint32_t n = t->b->n_stages;
  clv_gate *g = &e->gate;
  *g = (clv_gate){.config = t->config,
                  .rows = t->b->egress,
                  .n_rows = t->b->n_egress,
                  .max_samples = CLV_MAX(t->b->micro_size, t->b->eval_size),
                  .uncertain_findings = t->b->look.uncertain_findings,
                  .policy = t->b->policy};
  CLV_TRY(clv_alloc(t->config->n_workers, sizeof *g->failure_flows, &g->failure_flows, err));
  CLV_TRY(clv_alloc(t->b->n_egress, sizeof *g->flows, &g->flows, err));
  CLV_TRY(clv_alloc(2 * (size_t)n, sizeof *e->direct_flows, &e->direct_flows, err));
  if (!e->record) return CLV_OK;
  for (size_t i = 0; i < t->config->n_workers; i++) CLV_TRY(make_failure_flow(t, i, err));
  for (size_t k = 0; k < t->b->n_egress; k++)
    CLV_TRY(make_row_flow(t, &t->b->egress[k], &g->flows[k], err));
  for (uint32_t i = 0; i < 2 * n; i++)
    CLV_TRY(make_direct_flow(t, i / 2, i % 2, &e->direct_flows[i], err));
  return CLV_OK;
}

void clv_trainer_drop_flows(clv_trainer *t) {
  free(t->egress.gate.failure_flows);
  free(t->egress.gate.flows);
  free(t->egress.gate.state_flows);
  free(t->egress.direct_flows);
}

cleave_status clv_trainer_may_send(void *user, const cleave_sending *s, cleave_error *error) {
  clv_trainer *t = user;
  return clv_gate_check_sending(&t->egress.gate, s, error);
}

/* ---- allowances for a batch ------------------------------------------------------------------ */

/* Returns true if the tensor of a CACHED row is sent for the present batch. Record numbers are sent
 * whenever the cache is used; activations only with CLV_CACHE_ROWS. */
static bool is_cached_row_sent(const clv_egress_row *r, clv_cache_use use) {
  return r->input ? use != CLV_CACHE_NONE : use == CLV_CACHE_ROWS;
}

/* Returns true if the master sends tensors of the row for the present batch. It sends labels and
 * gradients only in training. */
static bool is_sent_in_batch(const clv_trainer *t, const clv_egress_row *r, bool is_training) {
  if (!clv_blueprint_is_row_in_use(t->b, r)) return false;
  if (r->kind == CLV_EGRESS_CACHED) return is_cached_row_sent(r, t->cache.use);
  bool is_front_cached = t->cache.use != CLV_CACHE_NONE && r->stage == 0;
  if (r->kind == CLV_EGRESS_ACTIVATION && is_front_cached) return false;
  return is_training || r->kind == CLV_EGRESS_ACTIVATION || r->kind == CLV_EGRESS_INPUT;
}

clv_code clv_trainer_allow_batch(clv_trainer *t, uint64_t n_samples, bool is_training,
                                 clv_err *err) {
  clv_trainer_egress *e = &t->egress;
  const clv_blueprint *b = t->b;
  uint64_t allowance_key = 8 * n_samples + 2 * (uint64_t)t->cache.use + is_training;
  if (!e->record || e->allowance_key == allowance_key) return CLV_OK;
  for (size_t k = 0; k < b->n_egress; k++)
    if (e->gate.flows[k].flow && is_sent_in_batch(t, &b->egress[k], is_training))
      clv_egress_set_step_bytes(e->gate.flows[k].flow, n_samples * e->gate.flows[k].sample_bytes);
  for (uint32_t i = 0; i < 2 * b->n_stages; i++)
    if (e->direct_flows[i].flow && (is_training || i % 2 == 0))
      clv_egress_set_step_bytes(e->direct_flows[i].flow,
                                n_samples * e->direct_flows[i].sample_bytes);
  CLV_TRY(clv_egress_write_ahead(e->record, err));
  e->allowance_key = allowance_key;
  return CLV_OK;
}

static uint64_t count_flow_bytes(const clv_row_flow *f, uint64_t n_samples, uint64_t n_positions) {
  return f->position_bytes ? n_positions * f->position_bytes : n_samples * f->sample_bytes;
}

clv_code clv_trainer_charge_direct_flows(clv_trainer *t, uint32_t stage, uint64_t n_samples,
                                         uint64_t n_positions, bool is_training, clv_err *err) {
  const clv_row_flow *value_row = &t->egress.direct_flows[2 * stage], *gradient_row = value_row + 1;
  if (value_row->flow)
    CLV_TRY(clv_egress_charge(value_row->flow, count_flow_bytes(value_row, n_samples, n_positions),
                              err));
  if (!is_training || !gradient_row->flow) return CLV_OK;
  return clv_egress_charge(gradient_row->flow,
                           count_flow_bytes(gradient_row, n_samples, n_positions), err);
}

/* ---- reports of workers about direct transfers ----------------------------------------------- */

/* Returns true if the plan has a direct link between the two workers, in either direction. */
static bool has_direct_link(const clv_trainer *t, const char *from, const char *to) {
  for (uint32_t i = 0; i + 1 < t->b->n_stages; i++) {
    const clv_stage_plan *s = &t->b->stages[i];
    if (!s->sends_directly) continue;
    const char *worker_name = t->config->workers[s->worker].name,
               *next_worker_name = t->config->workers[s[1].worker].name;
    if ((strcmp(worker_name, from) == 0 && strcmp(next_worker_name, to) == 0) ||
        (strcmp(worker_name, to) == 0 && strcmp(next_worker_name, from) == 0))
      return true;
  }
  return false;
}

static void note_sent_bytes(void *user, const char *worker, const char *peer, uint64_t bytes) {
  clv_trainer *t = user;
  if (has_direct_link(t, worker, peer))
    clv_egress_note_direct_transfer(t->egress.record, worker, peer, bytes);
}

void clv_trainer_record_direct_bytes(clv_trainer *t) {
  enum { LINK_QUERY_TIMEOUT_MS = 2000 };
  const char *worker_name;
  clv_err err;
  bool has_direct_flow = false;
  for (uint32_t i = 0; t->egress.direct_flows && i < t->b->n_stages; i++)
    has_direct_flow |= t->egress.direct_flows[2 * i].flow != NULL;
  for (uint32_t i = 1; has_direct_flow && (worker_name = cleave_node_name(t->runtime, i)) != NULL;
       i++)
    if (strcmp(worker_name, t->lost_worker) != 0 &&
        cleave_ask_links(t->runtime, i, LINK_QUERY_TIMEOUT_MS, note_sent_bytes, t, &err) != CLV_OK)
      clv_log(CLV_LOG_DEBUG, "worker '%s' does not report the bytes that it sent: %s", worker_name,
              err.text);
}

/* ---- flows of the tensors of state ----------------------------------------------------------- */

static clv_code make_state_flow(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                const clv_weights_want *item, clv_state_flow *ret, clv_err *err) {
  bool is_optimizer = kind == CLEAVE_STATE_OPTIMIZER;
  clv_egress_key key = {.kind = is_optimizer ? CLV_EGRESS_STATE : CLV_EGRESS_WEIGHTS,
                        .shape = item->shape};
  set_sender_and_receiver(t, -1, t->b->stages[stage].worker, &key);
  set_stage_name(t, stage, &key);
  snprintf(key.name, sizeof key.name, "%s", item->name);
  snprintf(key.dtype, sizeof key.dtype, "%s", clv_dtype_name(item->dtype));
  *ret = (clv_state_flow){.stage = stage, .is_optimizer_state = is_optimizer};
  memcpy(ret->name, key.name, sizeof ret->name);
  return clv_egress_flow_new(t->egress.record, &key, true, &ret->flow, err);
}

clv_code clv_trainer_allow_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const clv_weights_want *items, size_t n, clv_err *err) {
  clv_gate *g = &t->egress.gate;
  if (!t->egress.record || t->b->stages[stage].worker < 0) return CLV_OK;
  /* no other thread reads state_flows now: only this thread sends state, and frames that the master
   * relays between workers have no state */
  clv_state_flow *grown_flows =
      reallocarray(g->state_flows, g->n_state_flows + n + 1, sizeof *grown_flows);
  if (!grown_flows) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  g->state_flows = grown_flows;
  g->next_state_flow = g->n_state_flows;
  for (size_t i = 0; i < n; i++) {
    clv_state_flow *f = &g->state_flows[g->n_state_flows];
    size_t bytes;
    CLV_TRY(clv_shape_bytes(&items[i].shape, items[i].dtype, &bytes, err));
    CLV_TRY(make_state_flow(t, stage, kind, &items[i], f, err));
    g->n_state_flows++;
    clv_egress_set_step_bytes(f->flow, bytes);
  }
  return clv_egress_write_ahead(t->egress.record, err);
}
