/* SPDX-License-Identifier: Apache-2.0
 *
 * The distributed optimiser: one local optimiser per module, and one decision for all of them. With
 * its last backward, each node has sent its vote: the sums of its squared gradients. The decision
 * is sent to every node, and if a node cannot step, all nodes revert the step. param_groups.c has
 * the groups of parameters.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/state_requests_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/future_int.h"

/* ---- making an optimiser --------------------------------------------------------------------- */

static int compare_load_numbers(const void *a, const void *b) {
  uint64_t x = (*(cleave_module *const *)a)->load_number,
           y = (*(cleave_module *const *)b)->load_number;
  return (x > y) - (x < y);
}

cleave_status cleave_optimizer_new(cleave_runtime *runtime, const cleave_group *groups,
                                   size_t n_groups, double clip_norm,
                                   cleave_optimizer **ret_optimizer, cleave_error *error) {
  NOT_NULL(runtime, groups, ret_optimizer);
  cleave_optimizer *o;
  size_t n = 0;
  for (size_t i = 0; i < n_groups; i++) n += groups[i].n_modules;
  if (!n) return api_fail(error, CLV_INVALID, "an optimiser without modules");
  TRY(clv_alloc(1, sizeof *o, &o, &err));
  o->runtime = runtime;
  o->clip_norm = clip_norm;
  clv_err err;
  cleave_status status = CLEAVE_OK;
  if (clv_alloc(n, sizeof *o->modules, &o->modules, &err) != CLV_OK ||
      clv_alloc(n_groups, sizeof *o->groups, &o->groups, &err) != CLV_OK)
    status = api_convert_error(error, &err);
  LOCKED(runtime);
  if (status == CLEAVE_OK) status = api_groups_await_idle(o, groups, n_groups, error);
  if (status == CLEAVE_OK) status = api_optimizer_add_groups(o, groups, n_groups, error);
  if (status != CLEAVE_OK) {
    api_optimizer_remove_params(o);
    api_optimizer_free(o);
    return status;
  }
  qsort(o->modules, o->n_modules, sizeof(cleave_module *), compare_load_numbers);
  o->next = runtime->optimizers;
  runtime->optimizers = o;
  *ret_optimizer = o;
  return CLEAVE_OK;
}

static cleave_status check_optimizer_runtime(const cleave_runtime *rt, const cleave_optimizer *o,
                                             cleave_error *error) {
  if (o->runtime == rt) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "the optimiser is of another runtime");
}

cleave_status cleave_optimizer_release(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                       cleave_error *error) {
  if (!optimizer) return CLEAVE_OK;
  NOT_NULL(runtime);
  TRY_API(check_optimizer_runtime(runtime, optimizer, error));
  LOCKED(runtime);
  optimizer->is_released = true;
  api_optimizer_unload_if_unused(optimizer);
  return CLEAVE_OK;
}

cleave_status cleave_optimizer_set_steps(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                         uint64_t steps, cleave_error *error) {
  NOT_NULL(runtime, optimizer);
  TRY_API(check_optimizer_runtime(runtime, optimizer, error));
  LOCKED(runtime);
  api_flush_final_step(runtime);
  optimizer->n_steps_decided = steps;
  return CLEAVE_OK;
}

cleave_status cleave_optimizer_set_ema(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                       double decay, bool warmup, cleave_error *error) {
  NOT_NULL(runtime, optimizer);
  TRY_API(check_optimizer_runtime(runtime, optimizer, error));
  LOCKED(runtime);
  for (size_t i = 0; i < optimizer->n_groups; i++) {
    clv_optim_config *o = &optimizer->groups[i].optim;
    o->ema = decay;
    o->ema_warmup = warmup;
    TRY(clv_optim_check(o, &err));
  }
  return CLEAVE_OK;
}

/* Finds a group by its number. Fails if the optimiser is of another runtime or has no such
 * group. */
static cleave_status find_group(const cleave_runtime *rt, cleave_optimizer *o, size_t group,
                                api_optimizer_group **ret, cleave_error *error) {
  TRY_API(check_optimizer_runtime(rt, o, error));
  if (group >= o->n_groups)
    return api_fail(error, CLV_NOT_FOUND, "group %zu of an optimiser with %zu", group, o->n_groups);
  *ret = &o->groups[group];
  return CLEAVE_OK;
}

cleave_status cleave_optimizer_set_schedule(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                            const cleave_schedule *schedule, cleave_error *error) {
  NOT_NULL(runtime, optimizer, schedule);
  TRY_API(check_optimizer_runtime(runtime, optimizer, error));
  TRY_API(api_check_lr_schedule(schedule, error));
  LOCKED(runtime);
  api_flush_final_step(runtime);
  for (size_t i = 0; i < optimizer->n_groups; i++)
    optimizer->groups[i].schedule = api_convert_lr_schedule(schedule);
  return CLEAVE_OK;
}

/* ---- the vote: the norm of the gradients of all nodes ---------------------------------------- */

/* Returns `total_squared_norm` plus a module's sums of squared gradients. sums: one sum for each
 * trainable parameter, in order. Sums of parameters in no group are left out. */
static double add_grouped_squared_norms(const cleave_module *m, const double *sums,
                                        double total_squared_norm) {
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (!p->trainable || p->frozen) continue;
    if (m->param_group_numbers[i]) total_squared_norm += *sums;
    sums++;
  }
  return total_squared_norm;
}

/* Adds the sums of squared gradients in the votes of the nodes. A vote lists the sums of modules
 * that have gradients, in the order of the modules and parameters of the node. The function adds
 * them in the order in which modules were loaded, so that the norm depends neither on the nodes nor
 * on the indices of the modules. */
static cleave_status sum_squared_norms(const cleave_optimizer *o, const api_context *c, double *ret,
                                       cleave_error *error) {
  const cleave_runtime *rt = o->runtime;
  size_t at[API_MAX_NODES] = {0};
  const double *of[API_MAX_MODULES];
  double total_squared_norm = 0;
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    const cleave_module *m = rt->modules[i];
    if (!m || !c->has_gradient[i] || (m->optimizer != o && !c->votes[m->node]))
      continue; /* the module was not in the pass */
    const clv_tensor *squared_norms = c->votes[m->node];
    if (!squared_norms || at[m->node] + m->n_trained_params > squared_norms->n) {
      api_fail(error, CLV_BAD_ANSWER, "the vote of '%s' lacks module '%s'", rt->peers[m->node].name,
               m->name);
      api_set_error_node(error, rt->peers[m->node].name, m->name);
      return CLEAVE_PROTOCOL_VIOLATION;
    }
    of[i] = (const double *)squared_norms->data + at[m->node];
    at[m->node] += m->n_trained_params;
  }
  for (size_t i = 0; i < o->n_modules; i++) {
    const cleave_module *m = o->modules[i];
    if (c->has_gradient[m->index])
      total_squared_norm = add_grouped_squared_norms(m, of[m->index], total_squared_norm);
  }
  *ret = total_squared_norm;
  return CLEAVE_OK;
}

/* ---- the decision whether all modules step --------------------------------------------------- */

cleave_status cleave_optimizer_rate(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                    size_t group, double *ret_rate, cleave_error *error) {
  NOT_NULL(runtime, optimizer, ret_rate);
  api_optimizer_group *g = NULL;
  LOCKED(runtime);
  TRY_API(find_group(runtime, optimizer, group, &g, error));
  *ret_rate = api_group_learning_rate(optimizer, g);
  return CLEAVE_OK;
}

cleave_status cleave_optimizer_set_rate(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                        size_t group, double rate, cleave_error *error) {
  NOT_NULL(runtime, optimizer);
  api_optimizer_group *g = NULL;
  LOCKED(runtime);
  TRY_API(find_group(runtime, optimizer, group, &g, error));
  clv_optim_config changed_config = g->optim;
  changed_config.lr = rate;
  TRY(clv_optim_check(&changed_config, &err));
  api_flush_final_step(runtime);
  g->optim.lr = rate;
  return CLEAVE_OK;
}

/* Sends REVERT to every node that was sent APPLY and is not lost. The node then restores the values
 * from before the step, bit by bit. */
static void send_reverts(cleave_runtime *rt, api_context *c) {
  clv_err err;
  c->n_step_answers_missing = 0;
  c->first_apply_message_id = rt->next_id + 1;
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    if (!(c->nodes_sent_apply & NODE_BIT(i)) || api_is_peer_lost(&rt->peers[i])) continue;
    if (clv_packet_new_revert(rt->pool, c->id, ++rt->next_id, &p, &err) != CLV_OK) continue;
    c->n_step_answers_missing += api_send(rt, i, p, NULL) == CLEAVE_OK;
  }
}

void api_on_step_answered(cleave_runtime *rt, api_context *c) {
  if (rt->undecided_context != c) return;
  c->nodes_sent_apply = 0;
  rt->undecided_context = NULL;
  for (cleave_optimizer *o = rt->optimizers; o; o = o->next) o->is_decision_pending = false;
}

/* Reverts the pending step. The failure is sent to the nodes after REVERT, because a node that
 * receives the failure frees the copies that REVERT restores. */
static void begin_step_revert(cleave_runtime *rt, api_context *c) {
  cleave_error late_step_error;
  api_fail(&late_step_error, CLV_DEADLINE, "not every node took the step of context %s in time",
           c->name);
  api_context_fail(rt, c, &late_step_error, 0);
  rt->is_reverting = true;
  rt->revert_deadline_ns = api_deadline_ns(rt, c->step_deadline_ms);
  send_reverts(rt, c);
}

static void end_step_revert(cleave_runtime *rt, api_context *c) {
  for (cleave_optimizer *o = rt->optimizers; o; o = o->next)
    o->n_steps_decided -= o->is_decision_pending;
  c->has_reverted_step = true;
  rt->is_reverting = false;
  api_on_step_answered(rt, c);
  api_context_send_aborts(rt, c, 0);
  api_wake(rt);
}

/* Begins or ends the revert of the pending step. cleave_step does not wait for the answers to
 * APPLY. The first later function that needs these answers waits for them, and calls this
 * function. */
uint64_t api_step_decision_advance(cleave_runtime *rt) {
  api_context *c = rt->undecided_context;
  if (!c) return UINT64_MAX;
  if (!rt->is_reverting && (c->has_failed || api_is_deadline_over(rt, c->decision_deadline_ns)))
    begin_step_revert(rt, c);
  if (rt->is_reverting &&
      (!c->n_step_answers_missing || api_is_deadline_over(rt, rt->revert_deadline_ns)))
    end_step_revert(rt, c);
  if (!rt->undecided_context) return UINT64_MAX;
  return rt->is_reverting ? rt->revert_deadline_ns : c->decision_deadline_ns;
}

cleave_status api_await_step_decision(cleave_runtime *rt, uint64_t until_ns, cleave_error *error) {
  uint64_t due_ns = api_step_decision_advance(rt);
  while (rt->undecided_context) {
    if (api_is_deadline_over(rt, until_ns) || api_is_interrupted(rt))
      return api_fail_late(rt, error, "the step of context %s was not decided in time",
                           rt->undecided_context->name);
    (void)api_sleep(rt, CLV_MIN(due_ns, until_ns));
    due_ns = api_step_decision_advance(rt);
  }
  return CLEAVE_OK;
}

static cleave_status check_step(const cleave_optimizer *o, const api_context *c,
                                cleave_error *error) {
  bool has_gradient = false;
  for (size_t i = 0; i < o->n_modules; i++) {
    has_gradient |= c->has_gradient[o->modules[i]->index];
    if (c->has_stepped[o->modules[i]->index])
      return api_fail(error, CLV_PRECONDITION, "module '%s' has taken its step of context %s",
                      o->modules[i]->name, c->name);
  }
  if (!has_gradient)
    return api_fail(error, CLV_PRECONDITION,
                    "context %s has no gradient of any module of this optimiser", c->name);
  return CLEAVE_OK;
}

static void record_decided_step(cleave_optimizer *o, api_context *c, bool is_applied) {
  for (size_t i = 0; i < o->n_modules; i++) {
    cleave_module *m = o->modules[i];
    c->has_stepped[m->index] = c->has_gradient[m->index];
    m->weights_version += is_applied && c->has_gradient[m->index];
  }
}

/* ---- final steps, which cannot be reverted (no_rollback) ----------------------------------------
 *
 * A final step is sent with the next packet. That packet is mostly the END_CONTEXT of the step's
 * context, and then one message carries both. No function waits for the answers to a final step. If
 * the step fails, its context has the error. */

static void decide_final_step(cleave_optimizer *o, api_context *c, bool is_applied, double scale) {
  cleave_runtime *rt = o->runtime;
  api_flush_final_step(rt);
  rt->unsent_step_context = c;
  rt->unsent_step_optimizer = o;
  rt->is_unsent_step_applied = is_applied;
  rt->unsent_step_scale = scale;
  c->has_final_step = true;
  record_decided_step(o, c, is_applied);
}

/* ---- steps that can be reverted -------------------------------------------------------------- */

/* Sends a step that can be reverted. Several optimisers may step in one context; their steps are
 * decided together. If sending fails, the context fails, and the steps are reverted at once. */
static void decide_revertible_step(cleave_optimizer *o, api_context *c, bool is_applied,
                                   double scale, uint64_t until_ns, uint64_t deadline_ms) {
  cleave_runtime *rt = o->runtime;
  if (rt->undecided_context != c) {
    c->n_step_answers_missing = 0;
    c->first_apply_message_id = rt->next_id + 1;
    c->decision_deadline_ns = until_ns;
    c->step_deadline_ms = deadline_ms;
  }
  c->decision_deadline_ns = CLV_MIN(c->decision_deadline_ns, until_ns);
  rt->undecided_context = c;
  o->is_decision_pending = true;
  cleave_error why;
  if (api_send_step_decision(o, c, ~(api_node_set)0, is_applied, scale, &why) != CLEAVE_OK)
    api_context_fail(rt, c, &why, 0);
  o->n_steps_decided++;
  record_decided_step(o, c, is_applied);
}

cleave_status api_decide_step(cleave_runtime *rt, api_future *f, cleave_error *error) {
  cleave_optimizer *o = f->optimizer;
  api_context *c = f->context;
  double squared_norm;
  TRY_API(check_step(o, c, error));
  TRY_API(api_check_no_pending_backward(rt, error));
  TRY_API(sum_squared_norms(o, c, &squared_norm, error));
  squared_norm += f->own_gradients_squared_sum;
  bool is_finite = !c->nodes_with_nonfinite_gradients && !f->has_nonfinite_own_gradient;
  bool is_applied = is_finite && isfinite(squared_norm) && squared_norm >= 0;
  double scale = is_applied ? clv_clip_scale(squared_norm, o->clip_norm) : 1;
  f->step_decision = (cleave_step_decision){.applied = is_applied,
                                            .norm = sqrt(squared_norm),
                                            .lr = api_group_learning_rate(o, &o->groups[0]),
                                            .scale = (float)scale, /* f32, as in APPLY */
                                            .number = o->n_steps_decided + 1};
  if (o->cannot_revert)
    decide_final_step(o, c, is_applied, scale);
  else
    decide_revertible_step(o, c, is_applied, scale, f->until_ns, f->deadline_ms);
  return CLEAVE_OK;
}
