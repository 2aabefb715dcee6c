/* SPDX-License-Identifier: Apache-2.0
 *
 * Reconnects workers that were lost (cleave_worker_rejoin), and loads the modules again that were
 * lost with them (cleave_module_reload). Contexts that used an earlier incarnation of a worker have
 * failed, and none of their frames is sent to the worker any more. Other contexts are not affected.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/extra/extra_int.h"

/* ---- reconnecting a worker ------------------------------------------------------------------- */

static cleave_status find_lost_peer(cleave_runtime *rt, const char *worker, api_peer **ret,
                                    cleave_error *error) {
  int node = api_find_node(rt, worker);
  uint32_t names = rt->n_peers;
  if (node <= 0)
    return api_fail(error, CLV_NOT_FOUND, "no worker '%s' in %s", worker, rt->config->file);
  *ret = &rt->peers[node];
  for (uint32_t i = 0; i < rt->n_peers; i++) names += rt->peers[i].n_rejoins;
  if ((*ret)->state != PEER_LOST)
    return api_fail(error, CLV_PRECONDITION, "worker '%s' %s", worker,
                    api_is_peer_lost(*ret) ? "is coming back already" : "is not lost");
  if (names < API_MAX_NODES) return CLEAVE_OK;
  return api_fail(
      error, CLV_EXHAUSTED,
      "worker '%s' would come back under name number %u: a runtime has %d, and this one "
      "has had %u workers and %u returns. Close it and open another runtime",
      worker, names, API_MAX_NODES - 1, rt->n_peers - 1, names - rt->n_peers);
}

/* Waits until no function uses the lost worker's link, and no step waits for it. */
static cleave_status wait_until_worker_idle(cleave_runtime *rt, const api_peer *p,
                                            uint64_t until_ns, cleave_error *error) {
  while (p->n_modules_loading)
    if (!api_wait(rt, until_ns))
      return api_fail_late(rt, error, "a module is still being loaded at worker '%s'", p->name);
  return api_await_step_decision(rt, until_ns, error);
}

/* Begins to rejoin a worker. Until end_rejoin only this thread uses the worker's link and channel.
 * *ret_old_link, *ret_channel: receive the old link and channel, which the caller closes. */
static void begin_rejoin(api_peer *p, uint64_t until_ns, clv_link **ret_old_link,
                         clv_rpc_channel **ret_channel) {
  cleave_runtime *rt = p->runtime;
  clv_link_counts c;
  clv_err ignored_err;
  *ret_old_link = clv_steal(&p->link);
  *ret_channel = clv_steal(&p->channel);
  if (*ret_old_link) {
    clv_link_get_counts(*ret_old_link, &c);
    p->closed_links_bytes_sent += c.bytes_out;
    p->closed_links_bytes_received += c.bytes_in;
    (void)!clv_node_add_peer(rt->node, api_wire_name(p), NULL, &ignored_err);
  }
  (void)api_peer_on_event(&p->state, PEER_REJOIN_BEGINS);
  p->connect_deadline_ns = until_ns;
  snprintf(p->wire_name, sizeof p->wire_name, "%.64s (%u)", p->name, ++p->n_rejoins + 1);
}

static void end_rejoin(api_peer *p, bool has_rejoined) {
  p->connect_deadline_ns = 0;
  if (has_rejoined) return;
  (void)api_peer_on_event(&p->state, PEER_REJOIN_FAILS);
  if (--p->n_rejoins)
    snprintf(p->wire_name, sizeof p->wire_name, "%.64s (%u)", p->name, p->n_rejoins + 1);
}

/* Clears a pending report that a link of the node to another worker has ended. */
static void clear_broken_link(cleave_runtime *rt, uint32_t node) {
  if (rt->broken_link_worker == node || rt->broken_link_neighbour == node)
    rt->broken_link_error.status = CLEAVE_OK;
}

static void end_contexts_at_node(cleave_runtime *rt, uint32_t node) {
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;) {
    if (!(c->nodes_used & NODE_BIT(node))) continue;
    c->nodes_since_restarted |= NODE_BIT(node);
    c->nodes_ended |= NODE_BIT(node);
    c->nodes_sent_apply &= ~NODE_BIT(node);
  }
}

static cleave_status admit_worker(api_peer *p, cleave_error *error) {
  cleave_runtime *rt = p->runtime;
  if (p->state == PEER_LOST_DURING_REJOIN)
    return api_fail(error, CLV_UNAVAILABLE, "worker '%s' was lost again at once", p->name);
  TRY(clv_node_add_peer(rt->node, api_wire_name(p), p->link, &err));
  clear_broken_link(rt, p->index);
  end_contexts_at_node(rt, p->index);
  p->last_link_counts = (clv_link_counts){0};
  p->has_module = false;
  (void)api_peer_on_event(&p->state, PEER_REJOINS);
  return CLEAVE_OK;
}

/* Adds the worker's name to the error. Codes that mean no answer become CLEAVE_UNAVAILABLE, because
 * the worker may answer later. */
static cleave_status add_worker_to_error(const api_peer *p, cleave_status status,
                                         cleave_error *error) {
  bool means_silence = status == CLEAVE_DEADLINE || status == CLEAVE_ABORTED ||
                       status == CLEAVE_EXISTS || status == CLEAVE_NOT_FOUND ||
                       status == CLEAVE_CANCELLED;
  if (means_silence) status = CLEAVE_UNAVAILABLE;
  if (error) error->status = status;
  api_set_error_node(error, p->name, "rejoin");
  return status;
}

/* Closes the old link and connects again. Without the runtime's lock. */
static cleave_status reconnect_worker(api_peer *p, clv_link *old_link, clv_rpc_channel *channel,
                                      cleave_error *error) {
  if (old_link) clv_link_close(old_link);
  clv_link_unref(old_link);
  clv_rpc_channel_free(channel);
  TRY_API(api_connect_worker(p, error));
  return api_open_link(p, error);
}

cleave_status cleave_worker_rejoin(cleave_runtime *runtime, const char *worker,
                                   uint64_t deadline_ms, cleave_error *error) {
  NOT_NULL(runtime, worker);
  LOCKED(runtime);
  uint64_t until_ns = api_deadline_ns(runtime, deadline_ms);
  api_peer *p;
  clv_link *old_link;
  clv_rpc_channel *channel;
  CLV_AUTO(api_interruptible_end) api_interruptible waits;
  api_interruptible_begin(runtime, &waits);
  TRY_API(find_lost_peer(runtime, worker, &p, error));
  TRY_API(wait_until_worker_idle(runtime, p, until_ns, error));
  /* another thread may have begun to rejoin this worker */
  TRY_API(find_lost_peer(runtime, worker, &p, error));
  begin_rejoin(p, api_deadline_monotonic_ns(runtime, until_ns), &old_link, &channel);
  api_unlock(runtime);
  cleave_status status = reconnect_worker(p, old_link, channel, error);
  api_lock(runtime);
  if (status == CLEAVE_OK) status = admit_worker(p, error);
  end_rejoin(p, status == CLEAVE_OK);
  api_wake(runtime);
  return status == CLEAVE_OK ? status : add_worker_to_error(p, status, error);
}

cleave_status api_rejoin_check(cleave_runtime *rt, const char *worker, cleave_error *error) {
  api_peer *p;
  LOCKED(rt);
  return find_lost_peer(rt, worker, &p, error);
}

/* ---- reloading the modules of a worker that has rejoined ------------------------------------- */

/* State with which a module is loaded again. */
typedef struct reload_state {
  api_state_item *items[2]; /* [0]: weights; [1]: state of the optimiser */
  uint32_t n[2];
} reload_state;

static const cleave_state_kind state_kinds[2] = {CLEAVE_STATE_WEIGHTS, CLEAVE_STATE_OPTIMIZER};

static void free_reload_state(reload_state *c) {
  for (int k = 0; k < 2; k++) api_state_items_free(c->items[k], c->n[k]);
}

static cleave_status copy_reload_state(const cleave_module *m, const cleave_state *const *from,
                                       reload_state *ret, cleave_error *error) {
  for (int k = 0; k < 2; k++) {
    size_t n = from[k] ? from[k]->n : 0;
    if (n > cleave_state_count(m, state_kinds[k]))
      return api_fail(error, CLV_INVALID, "%zu items for module '%s', which has %zu", n, m->name,
                      cleave_state_count(m, state_kinds[k]));
    if (!n) continue;
    ret->n[k] = (uint32_t)n;
    TRY_API(api_copy_state_items(m, state_kinds[k], from[k]->items, n, &ret->items[k], error));
  }
  if (ret->n[0] || !m->has_given_weights) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID,
                  "module '%s' was loaded with weights, which are not kept here: give them again",
                  m->name);
}

/* Checks that the owners of a module's ties are loaded. A tied module is loaded after its owner. */
static cleave_status check_tie_owners_loaded(const cleave_module *m, cleave_error *error) {
  cleave_error ignored_error;
  for (int i = 0; i < m->params->n_ties; i++) {
    const cleave_module *of = m->tie_owners[i];
    if (of && of->state == MODULE_PLACED &&
        api_check_module_present(of, &ignored_error) != CLEAVE_OK)
      return api_fail(error, CLV_PRECONDITION,
                      "module '%s' has a weight of module '%s', which was lost as well: reload "
                      "'%s' first",
                      m->name, of->name, of->name);
  }
  return CLEAVE_OK;
}

static cleave_status check_module_lost(const cleave_module *m, cleave_error *error) {
  cleave_error ignored_error;
  if (m->is_released) return api_fail(error, CLV_NOT_FOUND, "module '%s' was released", m->name);
  TRY_API(api_check_node_present(m->runtime, m->node, error));
  TRY_API(check_tie_owners_loaded(m, error));
  if (m->state == MODULE_PLACED && api_check_module_present(m, &ignored_error) != CLEAVE_OK)
    return CLEAVE_OK;
  return api_fail(error, CLV_PRECONDITION,
                  "module '%s' was not lost; its state is written by cleave_state_write", m->name);
}

/* Sends UNLOAD for the module that a failed reload may have left at the node. The next reload uses
 * another generation, so this UNLOAD does not affect the module of that reload. */
static void send_unload(cleave_module *m) {
  clv_packet *p;
  if (api_packet_new(m->runtime, CLV_UNLOAD, 0, ++m->runtime->next_id, &p, NULL) != CLEAVE_OK)
    return;
  api_set_frame_module(p, m);
  (void)api_send(m->runtime, m->node, p, NULL);
}

static cleave_status send_reload_state(cleave_module *m, const reload_state *c, uint64_t until_ns,
                                       cleave_error *error) {
  for (int k = 0; k < 2; k++)
    if (c->n[k])
      TRY_API(api_put_state_items(m, (clv_state_kind)state_kinds[k], 0, c->items[k], c->n[k],
                                  until_ns, error));
  return CLEAVE_OK;
}

/* Loads the lost module again with its state. Until the node has the complete state, the module
 * counts as lost. */
static cleave_status reload_module(cleave_module *m, const reload_state *c, uint64_t deadline_ms,
                                   cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  api_peer *p = &rt->peers[m->node];
  uint64_t until_ns = api_deadline_ns(rt, deadline_ms);
  uint32_t n_rejoins = p->n_rejoins;
  (void)api_module_on_event(&m->state, MODULE_TRANSFER_BEGINS);
  p->n_modules_loading++;
  cleave_status status = api_module_load_at_node(m, until_ns, error);
  bool may_be_at_worker =
      /* after a missed deadline the module may be at the node */
      status == CLEAVE_OK || status == CLEAVE_DEADLINE;
  if (status == CLEAVE_OK) status = send_reload_state(m, c, until_ns, error);
  p->n_modules_loading--;
  (void)api_module_on_event(&m->state, MODULE_AT_NODE);
  m->weights_version++;
  if (status == CLEAVE_OK) m->n_rejoins_at_load = n_rejoins;
  if (status == CLEAVE_OK) m->needs_reload = m->resets_moments = false;
  if (status != CLEAVE_OK && may_be_at_worker) send_unload(m);
  api_module_record_load_attempt(m, status);
  p->has_module |= status == CLEAVE_OK;
  api_module_unload_if_unused(m);
  api_wake(rt);
  return status;
}

/* Loads the output modules of the module again (outputs.c). They have no state. */
static cleave_status reload_outputs(const cleave_module *m, uint64_t deadline_ms,
                                    cleave_error *error) {
  cleave_error ignored_error;
  const reload_state empty_state = {0};
  for (uint32_t i = 0; m->n_outputs > 1 && i < m->n_outputs; i++)
    if (m->output_modules[i]->state == MODULE_PLACED &&
        api_check_module_present(m->output_modules[i], &ignored_error) != CLEAVE_OK)
      TRY_API(reload_module(m->output_modules[i], &empty_state, deadline_ms, error));
  return CLEAVE_OK;
}

struct api_reload {
  cleave_module *module;
  reload_state state;
};

void api_reload_free(api_reload *r) {
  if (r) free_reload_state(&r->state);
  free(r);
}

cleave_status api_reload_new(cleave_runtime *rt, cleave_module *m, const cleave_state *weights,
                             const cleave_state *optimizer, api_reload **ret, cleave_error *error) {
  const cleave_state *const from[2] = {weights, optimizer};
  api_reload *r;
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  TRY(clv_alloc(1, sizeof *r, &r, &err));
  r->module = m;
  cleave_status status = copy_reload_state(m, from, &r->state, error);
  if (status == CLEAVE_OK)
    *ret = r;
  else
    api_reload_free(r);
  return status;
}

cleave_status api_reload_run(cleave_runtime *rt, const api_reload *r, uint64_t deadline_ms,
                             cleave_error *error) {
  LOCKED(rt);
  TRY_API(api_check_no_pending_backward(rt, error));
  TRY_API(api_await_step_decision(rt, api_deadline_ns(rt, deadline_ms), error));
  TRY_API(check_module_lost(r->module, error));
  TRY_API(reload_outputs(r->module, deadline_ms, error));
  return reload_module(r->module, &r->state, deadline_ms, error);
}

cleave_status cleave_module_reload(cleave_runtime *runtime, cleave_module *module,
                                   const cleave_state *weights, const cleave_state *optimizer,
                                   uint64_t deadline_ms, cleave_error *error) {
  NOT_NULL(runtime, module);
  api_reload *r;
  TRY_API(api_reload_new(runtime, module, weights, optimizer, &r, error));
  cleave_status status = api_reload_run(runtime, r, deadline_ms, error);
  api_reload_free(r);
  return status;
}
