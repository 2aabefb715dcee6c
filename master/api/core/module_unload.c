/* SPDX-License-Identifier: Apache-2.0
 *
 * Unloads modules. A released module stays until all contexts that have used it are freed and its
 * optimiser is released. Then its node is sent UNLOAD. When the node has answered, the module's
 * index is free for another module, with the next generation. No function of this file sleeps.
 */
#include <stdlib.h>

#include "master/api/core/module_int.h"
#include "master/api/core/ties_int.h"

void api_module_drop_weights(cleave_module *m) {
  for (size_t i = 0; i < m->n_pending_weights; i++) {
    free(m->pending_weights[i].name);
    clv_tensor_unref(m->pending_weights[i].tensor);
  }
  m->n_pending_weights = 0;
}

void api_module_free_saved_state(cleave_module *m, int kind) {
  api_state_items_free(clv_steal(&m->saved_state[kind]), m->n_saved_state_items[kind]);
  m->n_saved_state_items[kind] = 0;
}

void api_module_free(cleave_module *m) {
  if (!m) return;
  api_module_drop_weights(m);
  for (int k = 0; k < 2; k++) api_module_free_saved_state(m, k);
  clv_graph_free(m->graph);
  clv_params_free(m->params);
  free(m->pending_weights);
  free(m->tie_owners);
  free(m->frozen_param_names);
  free(m->artifact_name);
  free(m->initialized_param_names);
  free(m->direct_to);
  free(m->param_group_numbers);
  free(m);
}

void api_module_mark_for_reload(cleave_module *m, bool resets_moments) {
  if (resets_moments) api_module_free_saved_state(m, 1);
  if (api_module_on_event(&m->state, MODULE_OUTDATED) != API_ACTION_RECORD) return;
  m->needs_reload = true;
  m->resets_moments |= resets_moments;
}

/* ---- unloading a module ---------------------------------------------------------------------- */

static void unload_unused_owners(cleave_runtime *rt);

static void remove_module(cleave_module *m) {
  cleave_runtime *rt = m->runtime;
  bool has_ties = m->params->n_ties > 0;
  rt->modules[m->index] = NULL;
  if (!m->n_kept_refs) api_module_free(m);
  clv_pool_free_unused_tensors(rt->pool); /* frees blocks of sizes that only this module has used */
  api_wake(rt);
  if (has_ties) unload_unused_owners(rt);
}

static void drop_module(cleave_module *m) {
  if (api_module_on_event(&m->state, MODULE_DROPPED) == API_ACTION_END) remove_module(m);
}

/* Sends UNLOAD, or drops the module if its node does not have it. If the link ends during the send,
 * its handler drops the module; api_module_add_kept_ref therefore keeps the record until the send
 * has returned. */
static void send_unload(cleave_module *m) {
  cleave_runtime *rt = m->runtime;
  clv_packet *p;
  const api_peer *at = &rt->peers[m->node];
  bool is_at_node = (m->state == MODULE_PLACED || m->may_be_at_node) && !api_is_peer_lost(at) &&
                    m->n_rejoins_at_load == at->n_rejoins;
  if (!is_at_node || api_packet_new(rt, CLV_UNLOAD, 0, m->unload_message_id = ++rt->next_id, &p,
                                    NULL) != CLEAVE_OK) {
    drop_module(m);
    return;
  }
  api_set_frame_module(p, m);
  (void)api_module_on_event(&m->state, MODULE_UNLOADS);
  api_module_add_kept_ref(m);
  if (api_send(rt, m->node, p, NULL) != CLEAVE_OK) drop_module(m);
  api_module_remove_kept_ref(m);
}

static bool is_module_needed(const cleave_module *m) {
  bool is_in_transfer = m->state == MODULE_PLACING || m->state == MODULE_UNLOADING;
  return !m->is_released || m->n_contexts || is_in_transfer ||
         (m->optimizer && !m->optimizer->is_released) || api_is_tie_owner(m);
}

void api_module_unload_if_unused(cleave_module *m) {
  /* m->runtime->node is NULL while the runtime is being closed */
  if (is_module_needed(m) || !m->runtime->node) return;
  api_module_leave_optimizer(m);
  send_unload(m);
}

/* Unloads released modules that nothing needs any more, because the modules tied to them were
 * freed. */
static void unload_unused_owners(cleave_runtime *rt) {
  for (uint32_t i = 0; i < rt->n_modules; i++)
    if (rt->modules[i] && rt->modules[i]->is_released) api_module_unload_if_unused(rt->modules[i]);
}

void api_optimizer_unload_if_unused(cleave_optimizer *o) {
  bool is_last_module = false;
  for (size_t i = o->n_modules; i-- > 0 && !is_last_module;) {
    is_last_module = o->n_modules == 1; /* the optimiser is freed with its last module */
    api_module_unload_if_unused(o->modules[i]);
  }
}

/* ---- users of a module ----------------------------------------------------------------------- */

void api_context_use_module(api_context *c, cleave_module *m) {
  m->n_contexts += !c->has_used_module[m->index];
  c->has_used_module[m->index] = true;
}

void api_context_release_modules(cleave_runtime *rt, api_context *c) {
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    if (!c->has_used_module[i]) continue;
    c->has_used_module[i] = false;
    rt->modules[i]->n_contexts--;
    api_module_unload_if_unused(rt->modules[i]);
  }
}

void api_module_add_kept_ref(cleave_module *m) {
  if (m) m->n_kept_refs++;
}

void api_module_remove_kept_ref(cleave_module *m) {
  if (m && --m->n_kept_refs == 0 && m->state == MODULE_GONE) api_module_free(m);
}

/* ---- answers to UNLOAD ----------------------------------------------------------------------- */

static cleave_module *find_unloading_module(cleave_runtime *rt, const api_peer *from,
                                            const clv_frame *f) {
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    cleave_module *m = rt->modules[i];
    bool awaits_answer = m && (m->state == MODULE_UNLOADING || m->state == MODULE_PLACING);
    if (awaits_answer && m->unload_message_id && m->unload_message_id == f->reply_to &&
        m->node == from->index)
      return m;
  }
  return NULL;
}

static void handle_unload_answer(cleave_module *m) {
  m->unload_message_id = 0;
  if (api_module_on_event(&m->state, MODULE_UNLOADED) == API_ACTION_END)
    remove_module(m);
  else
    api_wake(m->runtime);
}

bool api_on_unloaded(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  cleave_module *m = find_unloading_module(rt, from, &p->frame);
  if (m) handle_unload_answer(m);
  return false;
}

/* Handles an ERROR that answers UNLOAD. The module counts as unloaded after NOT_FOUND, because the
 * node does not have it, and after any error if it is uncertain whether the node has the module
 * (may_be_at_node). After other errors the module keeps its index. */
bool api_on_unload_error(cleave_runtime *rt, const api_peer *from, const clv_frame *f) {
  cleave_module *m = find_unloading_module(rt, from, f);
  if (m && (f->failure.code == CLV_NOT_FOUND || m->may_be_at_node)) handle_unload_answer(m);
  return m;
}

void api_modules_drop_at_node(cleave_runtime *rt, uint32_t node) {
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    cleave_module *m = rt->modules[i];
    if (m && m->node == node && m->state == MODULE_UNLOADING) drop_module(m);
  }
}
