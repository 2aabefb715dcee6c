/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the link to a worker, and handles its end.
 */
#include <string.h>

#include "master/api/core/incarnations_int.h"

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  api_peer *from = user;
  (void)link;
  __atomic_store_n(&from->last_packet_ns, api_now(from->runtime), __ATOMIC_RELAXED);
  api_on_packet(from, p);
}

/* Frees ended contexts that waited only for the lost worker's answer to END_CONTEXT. */
static void free_ended_contexts(cleave_runtime *rt) {
  for (size_t i = 0; i < rt->contexts.cap; i++) {
    size_t n = rt->contexts.n;
    if (rt->contexts.ids[i]) api_context_free_if_ended(rt, rt->contexts.entries[i]);
    if (rt->contexts.n != n) i = (size_t)-1; /* a removal moves entries of the table: start again */
  }
}

/* Handles the end of a link: fails the contexts that use the worker, and ends the waits for its
 * answers. */
static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  api_peer *p = user;
  cleave_runtime *rt = p->runtime;
  clv_code why = clv_link_has_violation(link) ? CLV_BAD_ANSWER : api_get_loss_code(code);
  LOCKED(rt);
  if (api_peer_on_event(&p->state, PEER_LINK_ENDS) != API_ACTION_BEGIN) return;
  api_fail(&p->loss_error, why, "worker '%s' (%s) %s: %s", p->name, p->spec->address,
           why == CLV_BAD_ANSWER ? "violated the protocol" : "was lost", text);
  api_set_error_node(&p->loss_error, p->name, "link");
  if (rt->broken_link_worker == rt->broken_link_neighbour)
    rt->broken_link_error.status =
        CLEAVE_OK; /* the pending report of a broken link was about this loss */
  api_node_fail(rt, p->index, &p->loss_error);
  free_ended_contexts(rt);
}

static clv_code open_link(api_peer *p, const clv_link_options *o, const clv_link_dial *d,
                          clv_err *err) {
  const api_platform *w = &p->runtime->platform;
  return w->open_link ? w->open_link(w->user, p->name, o, d, &p->link, err)
                      : clv_link_open(p->runtime->rpc, o, d, &p->link, err);
}

cleave_status api_open_link(api_peer *p, cleave_error *error) {
  cleave_runtime *rt = p->runtime;
  clv_wire_limits own_limits = clv_wire_limits_default();
  own_limits.credit_bytes = rt->config->limits.credit_bytes;
  clv_link_options o = {
      .clock = rt->platform.clock,
      .peer_name = api_wire_name(p),
      .pool = rt->pool,
      .accept_limits = own_limits,
      .initial_send_credit = p->limits.credit_bytes,
      .lease_ms = clv_wire_protocol_has_acks(p->protocol_version) ? rt->config->limits.lease_ms : 0,
      .refusal_timeout_ms = rt->refusal_timeout_ms,
      .events = {
          .user = p, .on_packet = on_packet, .check_send = api_may_send, .on_closed = on_closed}};
  clv_link_dial d = {.peer_address = p->spec->address,
                     .peer_identity = p->spec->identity,
                     .pem = rt->identity ? api_tls_pem(rt) : (clv_rpc_pem){0},
                     .limits = {.max_message_bytes = own_limits.message_bytes,
                                .peer_timeout_ms = p->peer_timeout_ms},
                     .session_id = rt->session_id,
                     .incarnation = p->incarnation,
                     .attempt_number = rt->epoch,
                     .n_bulk_lanes = rt->platform.n_bulk_lanes,
                     .attach_role = CLV_ATTACH_MASTER,
                     .dial_timeout_ms = api_connect_timeout_ms(p)};
  p->last_packet_ns = api_now(rt);
  clv_err err;
  if (open_link(p, &o, &d, &err) == CLV_OK) return CLEAVE_OK;
  clv_err_prefix(&err, "worker '%s' at %s", p->name, p->spec->address);
  api_convert_error(error, &err);
  api_set_error_node(error, p->name, "attach");
  return (cleave_status)err.code;
}

static void close_session(api_peer *p) {
  api_lock(p->runtime);
  bool was_present = api_peer_on_event(&p->state, PEER_CLOSES) == API_ACTION_END;
  api_unlock(p->runtime);
  if (p->has_session && was_present) api_end_session(p);
  if (p->link) clv_link_close(p->link);
}

void api_close_sessions(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++) close_session(&rt->peers[i]);
}

void api_close_links(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++) {
    clv_link_unref(rt->peers[i].link);
    clv_rpc_channel_free(rt->peers[i].channel);
  }
  clv_rpc_runtime_free(rt->rpc);
  rt->rpc = NULL;
}
