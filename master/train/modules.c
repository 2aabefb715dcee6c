/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens and closes a trainer: connects to the workers, loads a module for each stage and the loss,
 * and makes the optimiser. clv_trainer_open sets the callbacks of libcleave, among them
 * clv_trainer_may_send, the gate for everything that leaves this process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/wire/wire.h"
#include "master/train/train_int.h"

/* ---- loading modules ------------------------------------------------------------------------- */

/* Writes to `names` the worker to which the worker of stage i sends its value directly, if there is
 * one. Returns the number of names, 0 or 1. */
static size_t list_direct_receivers(const clv_trainer *t, uint32_t i, const char *names[2]) {
  const clv_blueprint *b = t->b;
  size_t n = 0;
  if (i < b->n_stages && b->stages[i].sends_directly)
    names[n++] = t->config->workers[b->stages[i + 1].worker].name;
  return n;
}

static const char *node_name_of(const clv_trainer *t, int worker) {
  return worker < 0 ? "master" : t->config->workers[worker].name;
}

static clv_code load_graph(clv_trainer *t, const cleave_module_options *o, const clv_graph *graph,
                           cleave_module **ret, clv_err *err) {
  cleave_graph *g;
  CLV_TRY_API(cleave_graph_of(graph, &g, CLV_API_ERROR));
  cleave_error reason;
  cleave_status status = cleave_load_graph(t->runtime, o, g, ret, &reason);
  cleave_graph_free(g);
  return status == CLEAVE_OK ? CLV_OK : clv_trainer_convert_error(t, &reason, err);
}

/* Returns the largest number of micro-batches that a stage keeps at the same time in the first
 * placed schedule; 1: no schedule was placed yet. */
static uint32_t max_live_micro_batches(const clv_trainer *t, uint32_t stage) {
  return CLV_MAX(t->n_schedules ? t->schedules[0]->report.max_live_micros[stage] : 1u, 1u);
}

/* Makes the list of weights that layers of the stage share with earlier stages. */
static clv_code list_ties(const clv_trainer *t, uint32_t i, cleave_tie **ret, size_t *ret_n,
                          clv_err *err) {
  const clv_params *p = t->b->stages[i].params;
  uint32_t owner_stage;
  CLV_TRY(clv_alloc((size_t)p->n_ties, sizeof **ret, ret, err));
  *ret_n = 0;
  for (int k = 0; k < p->n_ties; k++) {
    cleave_tie tie = {.weight = p->ties[k].param.name};
    if (!clv_stage_tie_owner(t->b, i, k, &owner_stage, &tie.of_weight)) continue;
    tie.of = t->modules[owner_stage];
    (*ret)[(*ret_n)++] = tie;
  }
  return CLV_OK;
}

static clv_code refuse_tf32_at_worker(const clv_trainer *t, const clv_stage_spec *spec,
                                      clv_err *err) {
  clv_err reason = *err;
  return clv_session_fail_at(t->config, spec->tf32_pos, err, "%s", reason.text);
}

static clv_code load_stage(clv_trainer *t, uint32_t i, clv_err *err) {
  const clv_stage_plan *s = &t->b->stages[i];
  const clv_stage_spec *spec = &t->config->stages[i];
  const char *receiver_names[2];
  CLV_AUTO(clv_freep) cleave_tie *ties = NULL;
  size_t n_ties;
  CLV_TRY(list_ties(t, i, &ties, &n_ties, err));
  CLV_AUTO(clv_freep) const char **frozen = NULL, **initialized = NULL;
  CLV_TRY(clv_alloc((size_t)s->params->n, sizeof *frozen, &frozen, err));
  CLV_TRY(clv_alloc((size_t)s->params->n, sizeof *initialized, &initialized, err));
  cleave_module_options o = {.size = sizeof o,
                             .name = spec->name,
                             .at = node_name_of(t, s->worker),
                             .device = spec->device,
                             /* permits inputs from another device, because the user chooses the
                              * devices of stages */
                             .copies_inputs = true,
                             .threads = (uint32_t)spec->threads,
                             .in_flight = max_live_micro_batches(t, i),
                             .seed = CLEAVE_SESSION_NETWORK,
                             .bf16 = t->config->train.dtype == CLV_COMPUTE_BF16,
                             .tf32 = spec->tf32,
                             .frozen = frozen,
                             .frozen_is_final = true,
                             .frozen_bf16 = spec->lora.base_type == CLV_COMPUTE_BF16,
                             .direct_to = receiver_names,
                             .n_direct_to = list_direct_receivers(t, i, receiver_names),
                             .initialized = initialized,
                             .ties = ties,
                             .n_ties = n_ties,
                             .artifact = spec->weights_artifact,
                             .artifact_sha256 = spec->weights_sha256};
  for (int k = 0; k < s->params->n; k++)
    if (s->params->list[k].frozen) frozen[o.n_frozen++] = s->params->list[k].name;
  for (int k = 0; o.artifact && k < s->params->n; k++)
    if (clv_stage_is_param_new(spec, s->params->list[k].name))
      initialized[o.n_initialized++] = s->params->list[k].name;
  clv_sha256 digest;
  if (o.artifact && (!o.artifact_sha256 || !clv_sha256_parse(o.artifact_sha256, &digest)))
    return clv_session_fail_at(t->config, spec->weights_pos, err,
                               "stage '%s': an artifact needs its sha256", spec->name);
  clv_code code = load_graph(t, &o, s->graph, &t->modules[i], err);
  return code == CLV_PRECONDITION && spec->tf32 ? refuse_tf32_at_worker(t, spec, err) : code;
}

clv_code clv_trainer_load_loss(clv_trainer *t, const char *name, int worker, cleave_module **ret,
                               clv_err *err) {
  cleave_module_options o = {.size = sizeof o,
                             .name = name,
                             .at = node_name_of(t, worker),
                             .copies_inputs = true,
                             .in_flight = max_live_micro_batches(t, t->b->n_stages)};
  return load_graph(t, &o, t->b->stages[t->b->n_stages].graph, ret, err);
}

clv_code clv_trainer_load_target_loss(clv_trainer *t, size_t target, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *graph = NULL;
  char name[CLEAVE_NAME + 1];
  snprintf(name, sizeof name, "(loss of target %zu)", target);
  CLV_TRY(clv_target_make_loss_graph(t->config, target, t->b->eval_size, &graph, err));
  const cleave_module_options o = {.size = sizeof o,
                                   .name = name,
                                   .at = node_name_of(t, -1),
                                   .copies_inputs = true,
                                   .in_flight = 1};
  return load_graph(t, &o, graph, &t->target_losses[target], err);
}

static clv_code make_optimizer(clv_trainer *t, clv_err *err) {
  const clv_optimizer_config *c = &t->config->train.optimizer;
  CLV_AUTO(clv_freep) cleave_module **learning_modules = NULL;
  CLV_AUTO(clv_trainer_free_decay_lists) clv_trainer_decay_lists decay_lists = {0};
  CLV_TRY(clv_alloc(t->b->n_stages, sizeof(cleave_module *), &learning_modules, err));
  /* no_rollback: nodes keep no copies to revert a step, because after a failure the run resumes
   * from its checkpoint. */
  cleave_group groups[2], g = {.modules = learning_modules,
                               .kind = (cleave_optimizer_kind)c->kind,
                               .schedule = clv_trainer_make_schedule(t->config, 0),
                               .no_rollback = true};
  CLV_OPTIM_COPY(&g, c);
  for (uint32_t i = 0; i < t->b->n_stages; i++)
    if (t->b->stages[i].n_learning_params) learning_modules[g.n_modules++] = t->modules[i];
  size_t n;
  CLV_TRY(clv_trainer_make_groups(t->b, &g, &decay_lists, groups, &n, err));
  cleave_optimizer *optimizer;
  CLV_TRY_API(cleave_optimizer_new(t->runtime, groups, n, t->config->train.clip_grad_norm,
                                   &optimizer, CLV_API_ERROR));
  t->optimizer = optimizer;
  CLV_TRY_API(cleave_optimizer_set_ema(t->runtime, optimizer, t->config->train.ema,
                                       t->config->train.ema_warmup, CLV_API_ERROR));
  return CLV_OK;
}

void clv_trainer_set_total_steps(clv_trainer *t, uint64_t n_steps) {
  cleave_schedule s = clv_trainer_make_schedule(t->config, n_steps);
  (void)cleave_optimizer_set_schedule(
      t->runtime, t->optimizer, &s,
      /* cannot fail, because cleave_optimizer_new has accepted this schedule with length 0 */
      NULL);
}

static clv_code load_modules(clv_trainer *t, clv_err *err) {
  const clv_blueprint *b = t->b;
  for (uint32_t i = 0; i < b->n_stages; i++) CLV_TRY(load_stage(t, i, err));
  CLV_TRY(clv_trainer_load_loss(t, CLV_LOSS_NAME, b->stages[b->n_stages].worker,
                                &t->modules[b->n_stages], err));
  if (t->use != CLV_TRAINER_EVALUATION) CLV_TRY(make_optimizer(t, err));
  for (uint32_t i = 0; i <= b->n_stages; i++) {
    CLV_TRY(clv_interrupt_check(err));
    if (i < b->n_stages) CLV_TRY(clv_trainer_note_keys(t, i, err));
    CLV_TRY_API(cleave_module_place(t->runtime, t->modules[i], b->stages[i].input_needs_grad, 0,
                                    CLV_API_ERROR));
  }
  return t->use == CLV_TRAINER_NEW_RUN ? clv_trainer_push_files(t, err) : CLV_OK;
}

/* ---- opening the trainer --------------------------------------------------------------------- */

/* Returns true if a stage or the loss is at the worker. */
static bool worker_has_stage(const clv_blueprint *b, int worker) {
  for (uint32_t i = 0; i <= b->n_stages; i++)
    if (b->stages[i].worker == worker) return true;
  return false;
}

/* Returns the bytes of a stage's inputs and output for a batch of the largest size. */
static uint64_t count_boundary_bytes(const clv_blueprint *b, uint32_t stage) {
  const clv_graph *g = b->stages[stage].graph;
  uint64_t bytes = 0;
  for (int k = 0; k < g->n_nodes; k++) {
    size_t node_bytes;
    if (g->nodes[k].op != CLV_OP_INPUT && k != g->output_node) continue;
    if (clv_shape_bytes(&g->nodes[k].shape, g->nodes[k].dtype, &node_bytes, NULL) != CLV_OK)
      return UINT64_MAX;
    bytes += node_bytes;
  }
  return bytes * CLV_MAX(b->eval_size, b->micro_size) / b->micro_size;
}

/* Returns the number of bulk lanes, extra connections for large tensors, of the session's links;
 * each costs a TLS handshake. 0: everything that crosses a link fits in frames without chunks. */
static uint32_t choose_bulk_lane_count(const clv_blueprint *b) {
  for (uint32_t i = 0; i <= b->n_stages; i++) {
    const clv_stage_plan *s = &b->stages[i];
    if (s->worker < 0) continue;
    size_t state_bytes = s->params->total_bytes + s->params->shared_bytes;
    if (CLV_MAX(state_bytes, count_boundary_bytes(b, i)) > CLV_WIRE_INLINE_MAX)
      return CLEAVE_BULK_LANES;
  }
  return 0;
}

static clv_code connect_workers(clv_trainer *t, clv_err *err) {
  const clv_session_config *c = t->config;
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_TRY(clv_alloc(c->n_workers + 1, sizeof *names, &names, err));
  cleave_options o = {.size = sizeof o,
                      .single_thread = true,
                      .workers = names,
                      .may_send = clv_trainer_may_send,
                      .on_event = clv_trainer_on_event,
                      .on_notice = clv_trainer_on_notice,
                      .user = t};
  for (size_t i = 0; i < c->n_workers; i++)
    if (worker_has_stage(t->b, (int)i)) names[o.n_workers++] = c->workers[i].name;
  CLV_TRY_API(cleave_open_config(c, choose_bulk_lane_count(t->b), &o, &t->runtime, CLV_API_ERROR));
  return CLV_OK;
}

static clv_code prepare_trainer(clv_trainer *t, clv_err *err) {
  const clv_blueprint *b = t->b;
  const clv_placed_schedule *first_schedule;
  t->n_round_steps = clv_pipeline_steps_per_round(t->config);
  size_t n_round_micro_batches = (size_t)b->max_micro_batches * t->n_round_steps;
  CLV_TRY(clv_alloc(b->n_stages + 1, sizeof(cleave_module *), &t->modules, err));
  CLV_TRY(clv_alloc(n_round_micro_batches, sizeof *t->micro_batches, &t->micro_batches, err));
  CLV_TRY(clv_alloc(b->max_micro_batches, sizeof *t->micro_batch_rows, &t->micro_batch_rows, err));
  CLV_TRY(clv_alloc(n_round_micro_batches, sizeof *t->loss_references, &t->loss_references, err));
  CLV_TRY(clv_alloc(n_round_micro_batches, sizeof *t->loss_shares, &t->loss_shares, err));
  CLV_TRY(clv_alloc(n_round_micro_batches * (b->n_stages + 1), sizeof *t->output_references,
                    &t->output_references, err));
  CLV_TRY(clv_alloc(t->n_round_steps, sizeof *t->held_batches, &t->held_batches, err));
  CLV_TRY(clv_alloc(b->n_stages, sizeof *t->is_stage_fetched, &t->is_stage_fetched, err));
  CLV_TRY(clv_alloc(2 * t->n_round_steps, sizeof *t->results, &t->results, err));
  t->window = clv_pipeline_initial_window(t->config);
  /* nodes make plans in step 0, so the times of step 0 do not count */
  t->step_meter.next_measured_step = 1;
  t->step_meter.is_window_auto = t->config->pipeline.schedule == CLV_PIPE_1F1B &&
                                 t->config->pipeline.window == CLV_WINDOW_AUTO &&
                                 b->micro_batches > 1;
  CLV_TRY(clv_trainer_placed_schedule(t, b->micro_batches * t->n_round_steps, t->n_round_steps,
                                      &first_schedule, err));
  CLV_TRY(clv_trainer_make_flows(t, err));
  CLV_TRY(clv_trainer_check_ledger(t, err));
  CLV_TRY(connect_workers(t, err));
  return load_modules(t, err);
}

clv_code clv_trainer_open(const clv_blueprint *b, clv_egress_record *record, clv_trainer_use use,
                          clv_trainer **ret, clv_err *err) {
  clv_trainer *t;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->b = b;
  t->config = b->config;
  t->use = use;
  t->first_lost_step = CLV_CHECKPOINT_NONE;
  t->egress = (clv_trainer_egress){.record = record, .has_random_values = use == CLV_TRAINER_TRIAL};
  pthread_mutex_init(&t->notes_lock, NULL);
  *ret = t;
  return prepare_trainer(t, err);
}

void clv_trainer_close(clv_trainer *t) {
  if (!t) return;
  cleave_error reason;
  clv_trainer_drop_save(t);
  if (cleave_close(t->runtime, 3000, NULL, &reason) != CLEAVE_OK)
    clv_log(CLV_LOG_DEBUG, "closing the session: %s", reason.text);
  cleave_tensor_free(&t->fetched_value);
  clv_trainer_drop_flows(t);
  clv_trainer_drop_held_batches(t);
  clv_trainer_forget_schedules(t);
  clv_step_meter_free_events(&t->step_meter);
  clv_bytes_done(&t->notes);
  pthread_mutex_destroy(&t->notes_lock);
  free(t->pack_buffer);
  free(t->cache.is_row_sent);
  free(t->cache.record_numbers);
  free(t->cache.batch_numbers);
  free(t->held_batches);
  free(t->is_stage_fetched);
  free(t->results);
  free(t->output_references);
  free(t->modules);
  free(t->target_losses);
  free(t->micro_batches);
  free(t->micro_batch_rows);
  free(t->loss_references);
  free(t->loss_shares);
  free(t);
}

void clv_trainer_count_traffic(clv_trainer *t, uint64_t *ret_sent_bytes,
                               uint64_t *ret_received_bytes) {
  cleave_link_totals c;
  cleave_get_link_totals(t->runtime, &c);
  *ret_sent_bytes = c.bytes_up;
  *ret_received_bytes = c.bytes_down;
}

const char *clv_trainer_lost_worker(clv_trainer *t) { return t->lost_worker; }
uint32_t clv_trainer_count_held_batches(const clv_trainer *t) { return t->n_held_batches; }

void clv_trainer_take_notes(clv_trainer *t, clv_bytes *ret) {
  pthread_mutex_lock(&t->notes_lock);
  clv_bytes_add(ret, t->notes.data, t->notes.len);
  clv_bytes_done(&t->notes);
  pthread_mutex_unlock(&t->notes_lock);
}

const char *clv_trainer_take_notice(clv_trainer *t) {
  snprintf(t->taken_notice, sizeof t->taken_notice, "%s", t->notice);
  t->notice[0] = '\0';
  return t->taken_notice[0] ? t->taken_notice : NULL;
}

void clv_trainer_append_schedule_text(const clv_trainer *t, clv_bytes *out) {
  if (t->n_schedules) clv_sched_format(t->schedules[0]->sched, out);
}
uint64_t clv_trainer_step_count(const clv_trainer *t) { return t->n_committed_steps; }

uint32_t clv_trainer_micro_batches(const clv_trainer *t) { return t->b->micro_batches; }

uint32_t clv_trainer_window(const clv_trainer *t) { return t->window; }

cleave_runtime *clv_trainer_runtime(const clv_trainer *t) { return t->runtime; }
