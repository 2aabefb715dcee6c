/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends frames to nodes. A final step that was decided earlier is sent before any other frame. No
 * function waits for the answers to a final step, so the step is held back until the next frame.
 * That frame is mostly the END_CONTEXT of the step's context, and then one message carries both.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"

/* ---- sending packets ------------------------------------------------------------------------- */

cleave_status api_packet_new(cleave_runtime *rt, clv_frame_kind kind, uint64_t context_id,
                             uint64_t message_id, clv_packet **ret, cleave_error *error) {
  TRY(clv_packet_new(rt->pool, kind, ret, &err));
  (*ret)->frame.context = context_id;
  (*ret)->frame.message_id = message_id;
  return CLEAVE_OK;
}

cleave_status api_send(cleave_runtime *rt, uint32_t node, clv_packet *p, cleave_error *error) {
  api_peer *to = &rt->peers[node];
  api_flush_final_step(rt);
  if (node == 0) {
    clv_node_post(rt->node, p);
    return CLEAVE_OK;
  }
  if (api_is_peer_lost(to) || api_is_of_earlier_incarnation(rt, to, &p->frame)) {
    clv_packet_free(p);
    if (error) *error = to->loss_error;
    return to->loss_error.status;
  }
  clv_err err;
  if (clv_link_send(to->link, p, &err) == CLV_OK) return CLEAVE_OK;
  if (err.code == CLV_UNAVAILABLE) clv_err_prefix(&err, "worker '%s' was lost", to->name);
  api_convert_error(error, &err);
  /* the link may have ended without having called on_closed yet */
  api_set_error_node(error, to->name, err.code == CLV_UNAVAILABLE ? "link" : "");
  return (cleave_status)err.code;
}

cleave_status api_send_buffered(cleave_runtime *rt, uint32_t node, clv_packet *p,
                                cleave_error *error) {
  p->coalesces_with_next = rt->is_single_threaded && node > 0;
  return api_send(rt, node, p, error);
}

/* ---- sending the failure of a context to its nodes ------------------------------------------- */

/* Sends ABORT to the nodes of the context that are not in `notified_nodes`. */
void api_context_send_aborts(cleave_runtime *rt, api_context *c, api_node_set notified_nodes) {
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    if (!(c->nodes_used & ~notified_nodes & NODE_BIT(i))) continue;
    if (api_packet_new(rt, CLV_ABORT, c->id, ++rt->next_id, &p, NULL) != CLEAVE_OK) return;
    clv_frame_set_failure(&p->frame, (clv_code)c->failure.status, c->failure.text,
                          c->failure_hop[0] ? c->failure_hop : c->failure.hop);
    /* a failed send means that this node is lost as well, so it needs no ABORT */
    if (api_send(rt, i, p, NULL) != CLEAVE_OK) continue;
  }
}

void api_context_fail(cleave_runtime *rt, api_context *c, const cleave_error *failure,
                      api_node_set notified_nodes) {
  if (c->has_failed) return;
  c->has_failed = true;
  c->failure = *failure;
  if (c->n_unconfirmed_kept_values) rt->kept_ops->on_context_failed(rt, c);
  if (rt->undecided_context != c) api_context_send_aborts(rt, c, notified_nodes);
  api_wake(rt);
}

/* ---- sending the decision on a step ---------------------------------------------------------- */

/* Returns the learning rate of a group after `steps` steps. */
static double learning_rate_after_steps(const api_optimizer_group *g, uint64_t steps) {
  return clv_lr_at(&g->schedule, g->optim.lr, steps);
}

double api_group_learning_rate(const cleave_optimizer *o, const api_optimizer_group *g) {
  return learning_rate_after_steps(g, o->n_steps_decided);
}

double api_learning_rate_after_steps(const cleave_optimizer *o, uint64_t n_steps_ahead) {
  return learning_rate_after_steps(&o->groups[0], o->n_steps_decided + n_steps_ahead);
}

/* Adds the learning rates of the module's groups to an APPLY. */
static cleave_status add_learning_rates(clv_packet *p, const cleave_module *m, uint64_t steps,
                                        cleave_error *error) {
  float group_lrs[CLV_OPTIM_MAX_GROUPS] = {0};
  for (uint32_t i = 0; i < m->n_groups; i++)
    group_lrs[i] = (float)learning_rate_after_steps(m->groups[i], steps);
  p->frame.commit.lr = group_lrs[0];
  TRY(clv_packet_set_group_lrs(p, group_lrs + 1, m->n_groups ? m->n_groups - 1 : 0, &err));
  return CLEAVE_OK;
}

cleave_status api_send_step_at(cleave_optimizer *o, api_context *c, const cleave_module *m,
                               uint64_t n_steps_ahead, uint32_t position, bool saves_weights,
                               cleave_error *error) {
  CLV_AUTO(clv_packet_freep) clv_packet *p = NULL;
  cleave_runtime *rt = o->runtime;
  TRY(clv_packet_new_planned_step(rt->pool, c->id, ++rt->next_id, m->index, position, saves_weights,
                                  0, &p, &err));
  api_set_frame_module(p, m);
  TRY_API(add_learning_rates(p, m, o->n_steps_decided + n_steps_ahead, error));
  return api_send(rt, m->node, clv_steal(&p), error);
}

static cleave_status send_apply_of_module(cleave_optimizer *o, api_context *c,
                                          const cleave_module *m, bool is_applied, double scale,
                                          cleave_error *error) {
  cleave_runtime *rt = o->runtime;
  CLV_AUTO(clv_packet_freep) clv_packet *p = NULL;
  TRY(clv_packet_new_apply(rt->pool, c->id, ++rt->next_id, m->index, (float)scale, 0, is_applied,
                           &p, &err));
  api_set_frame_module(p, m);
  TRY_API(add_learning_rates(p, m, o->n_steps_decided, error));
  TRY_API(api_send(rt, m->node, clv_steal(&p), error));
  c->nodes_sent_apply |= NODE_BIT(m->node);
  c->n_step_answers_missing += !o->cannot_revert;
  return CLEAVE_OK;
}

/* True for a module that takes no step and whose calls have changed its running statistics. If the
 * step of the other modules is not applied, these statistics are restored as well. */
static bool must_revert_statistics(const cleave_module *m, const api_context *c) {
  return (!m->optimizer || !m->n_trained_params) && c->n_module_calls[m->index] &&
         m->params->total_bytes > m->params->buffer_offset;
}

cleave_status api_send_step_decision(cleave_optimizer *o, api_context *c, api_node_set nodes,
                                     bool is_applied, double scale, cleave_error *error) {
  for (uint32_t i = 0; i < o->runtime->n_modules; i++) {
    const cleave_module *m = o->runtime->modules[i];
    if (!m) continue;
    bool steps = m->optimizer == o && c->has_gradient[i];
    if ((nodes & NODE_BIT(m->node)) && (steps || (!is_applied && must_revert_statistics(m, c))))
      TRY_API(send_apply_of_module(o, c, m, is_applied, scale, error));
  }
  return CLEAVE_OK;
}

/* ---- the unsent final step ------------------------------------------------------------------- */

/* True if one message can carry the decision on the step for all modules of the node that the
 * context has called. That is so if each of these modules that has an optimiser has the optimiser
 * `o`, one group and the same learning rate, *ret_rate. False if no such module has an
 * optimiser. */
static bool can_send_one_apply(const cleave_optimizer *o, const api_context *c, uint32_t node,
                               float *ret_rate) {
  bool has_module = false, have_all_same_step = true;
  for (uint32_t i = 0; i < o->runtime->n_modules; i++) {
    const cleave_module *m = o->runtime->modules[i];
    if (!m || m->node != node || !c->n_module_calls[i] || !m->optimizer) continue;
    float rate = (float)api_group_learning_rate(o, m->groups[0]);
    have_all_same_step &=
        m->optimizer == o && m->n_groups == 1 && (!has_module || rate == *ret_rate);
    *ret_rate = rate;
    has_module = true;
  }
  return has_module && have_all_same_step;
}

static void send_unsent_step(cleave_runtime *rt, api_context *c, api_node_set nodes) {
  cleave_optimizer *o = rt->unsent_step_optimizer;
  cleave_error why;
  if (api_send_step_decision(o, c, nodes, rt->is_unsent_step_applied, rt->unsent_step_scale,
                             &why) != CLEAVE_OK)
    api_context_fail(rt, c, &why, 0);
}

void api_flush_final_step(cleave_runtime *rt) {
  api_context *c = rt->unsent_step_context;
  rt->unsent_step_context = NULL;
  if (!c) return;
  send_unsent_step(rt, c, ~(api_node_set)0);
  rt->unsent_step_optimizer->n_steps_decided++;
}

void api_flush_step_and_ends(cleave_runtime *rt, api_context *c, api_node_set *ret_sent_nodes) {
  float rate = 0;
  *ret_sent_nodes = 0;
  rt->unsent_step_context = NULL;
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    clv_err err;
    if (!(c->nodes_used & NODE_BIT(i)) ||
        !can_send_one_apply(rt->unsent_step_optimizer, c, i, &rate))
      continue;
    if (clv_packet_new_end_context(rt->pool, c->id, ++rt->next_id, &p, &err) != CLV_OK) continue;
    clv_packet_set_end_commit(p, (float)rt->unsent_step_scale, rate, rt->is_unsent_step_applied);
    *ret_sent_nodes |= NODE_BIT(i);
    if (api_send_buffered(rt, i, p, NULL) != CLEAVE_OK)
      c->nodes_ended |= NODE_BIT(i); /* the node is lost; its link has reported that */
  }
  send_unsent_step(rt, c, ~*ret_sent_nodes);
  rt->unsent_step_optimizer->n_steps_decided++;
}

/* Sends the unsent final step before a thread sleeps, because the thread may wait for an effect of
 * this step. */
static uint64_t before_sleep(cleave_runtime *rt) {
  api_flush_final_step(rt);
  return UINT64_MAX;
}

const api_job api_step_job = {.before_sleep = before_sleep};
