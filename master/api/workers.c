/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/api_int.h"

/* ---- calls to a worker --------------------------------------------------------------------------- */

static clv_rpc_pem pem_of(const cleave_runtime *rt) {
  return (clv_rpc_pem){rt->identity->ca_pem, rt->identity->cert_pem, rt->identity->key_pem};
}

static clv_code call(peer *p, const char *method, const clv_bytes *request, uint64_t timeout_ms,
                     clv_bytes *reply, clv_err *err) {
  return clv_rpc_call(p->channel, method, request->data, request->len,
                      (unsigned)CLV_MIN(timeout_ms, (uint64_t)INT32_MAX), reply, err);
}

static bool knows_contexts(const clv_wire_hello_reply *h) {
  for (uint32_t i = 0; i < h->about.n_capabilities; i++)
    if (strcmp(h->about.capabilities[i], "contexts") == 0) return true;
  return false;
}

/* What "auto" means there: the first that is more than a processor. */
static void best_device(const clv_wire_hello_reply *h, char dst[API_DEVICE]) {
  const char *best = "cpu";
  for (uint32_t i = 0; i < h->n_devices && strcmp(best, "cpu") == 0; i++) best = h->devices[i];
  snprintf(dst, API_DEVICE, "%s", best);
}

static clv_code hello(peer *p, clv_err *err) {
  const clv_session_config *c = p->runtime->config;
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_done) clv_wire_hello_reply h = {0};
  clv_wire_hello_request q = {.about = {.protocol = CLV_WIRE_PROTOCOL,
                                        .limits = clv_wire_limits_default(),
                                        .software = "libcleave " CLV_VERSION,
                                        .isa = clv_backend_cpu()->isa(),
                                        .unix_ms = clv_wall_ms()}};
  q.about.limits.credit_bytes = c->limits.credit_bytes;
  CLV_TRY(clv_wire_hello_request_encode(&q, &request, err));
  CLV_TRY(call(p, CLV_METHOD_HELLO, &request, c->limits.connect_timeout_ms, &reply, err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(clv_wire_hello_reply_decode(&piece, 1, &h, err));
  if (h.about.protocol != CLV_WIRE_PROTOCOL)
    return clv_fail(err, CLV_UNIMPLEMENTED, "it speaks protocol %u, this program %d",
                    h.about.protocol, CLV_WIRE_PROTOCOL);
  if (!knows_contexts(&h))
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "it trains session files only, not contexts; it needs a newer cleave-worker");
  p->incarnation = h.incarnation;
  p->limits = h.about.limits;
  best_device(&h, p->device);
  return CLV_OK;
}

static clv_code open_session(peer *p, clv_err *err) {
  cleave_runtime *rt = p->runtime;
  const char *identities[CLV_WIRE_PEERS];
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_done) clv_wire_open_reply o = {0};
  clv_wire_open_request q = {.session = rt->session,
                             .epoch = rt->epoch,
                             .seed = rt->config->train.seed,
                             .name = rt->config->name,
                             .lanes = API_BULK_LANES,
                             .peer_identities = identities};
  for (uint32_t i = 1; i < rt->n_peers && q.n_peer_identities < CLV_WIRE_PEERS; i++)
    if (i != p->index) identities[q.n_peer_identities++] = rt->peers[i].spec->identity;
  CLV_TRY(clv_wire_open_request_encode(&q, &request, err));
  CLV_TRY(call(p, CLV_METHOD_OPEN_SESSION, &request, rt->config->limits.connect_timeout_ms, &reply,
               err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(clv_wire_open_reply_decode(&piece, 1, &o, err));
  p->opened = true;
  p->limits = o.granted;
  return CLV_OK;
}

static clv_code connect_worker(peer *p, clv_err *err) {
  clv_rpc_channel_options o = {
      .target = p->spec->address, .expected_uri = p->spec->identity, .pem = pem_of(p->runtime)};
  CLV_TRY(clv_rpc_channel_new(p->runtime->rpc, &o, &p->channel, err));
  CLV_TRY(clv_rpc_channel_connect(p->channel,
                                  (unsigned)p->runtime->config->limits.connect_timeout_ms, err));
  CLV_TRY(hello(p, err));
  return open_session(p, err);
}

cleave_status api_connect(cleave_runtime *rt, cleave_error *error) {
  const clv_tls_config *t = &rt->config->tls;
  TRY(clv_tls_identity_load(t->ca, t->cert, t->key, &rt->identity, &err));
  TRY(clv_tls_identity_require(rt->identity, CLV_TLS_CLIENT, &err));
  TRY(clv_tls_floor_install(&err));
  clv_rpc_runtime_options ro = {.queue_threads = 2, .spin_us = clv_spin_us(1)};
  TRY(clv_rpc_runtime_new(&ro, &rt->rpc, &err));
  for (uint32_t i = 1; i < rt->n_peers; i++) {
    peer *p = &rt->peers[i];
    clv_err err;
    if (connect_worker(p, &err) == CLV_OK) continue;
    clv_err_prefix(&err, "worker '%s' at %s", p->name, p->spec->address);
    api_from(error, &err);
    api_place_error(error, p->name, "connect");
    return (cleave_status)err.code;
  }
  return CLEAVE_OK;
}

/* ---- links ----------------------------------------------------------------------------------------- */

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  (void)link;
  api_event(user, p);
}

/* Contexts that the worker takes part in end with it; nobody waits for its answers any more. */
static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  peer *p = user;
  cleave_runtime *rt = p->runtime;
  (void)link;
  LOCKED(rt);
  if (p->lost) return;
  p->lost = true;
  api_fail(&p->why_lost, code == CLV_OK ? CLV_UNAVAILABLE : code, "worker '%s' (%s) was lost: %s",
           p->name, p->spec->address, text);
  api_place_error(&p->why_lost, p->name, "link");
  for (size_t i = 0; i < rt->contexts.cap; i++) {
    context *c = rt->contexts.ids[i] ? rt->contexts.things[i] : NULL;
    if (c && (c->nodes & NODE_BIT(p->index)))
      api_context_fail(rt, c, &p->why_lost, NODE_BIT(p->index));
  }
  for (state_request *r = rt->requests; r; r = r->next)
    if (r->node == p->index && !r->failed) {
      r->failed = true;
      r->failure = p->why_lost;
    }
  pthread_cond_broadcast(&rt->changed);
}

cleave_status api_open_link(peer *p, cleave_error *error) {
  cleave_runtime *rt = p->runtime;
  clv_wire_limits accept = clv_wire_limits_default();
  accept.credit_bytes = rt->config->limits.credit_bytes;
  clv_link_options o = {.peer_name = p->name,
                        .pool = rt->pool,
                        .accept = accept,
                        .send_credit = p->limits.credit_bytes,
                        .events = {.user = p, .on_packet = on_packet, .on_closed = on_closed}};
  clv_link_dial d = {.address = p->spec->address,
                     .identity = p->spec->identity,
                     .pem = pem_of(rt),
                     .limits = {.max_message = 0},
                     .session = rt->session,
                     .incarnation = p->incarnation,
                     .epoch = rt->epoch,
                     .bulk_lanes = API_BULK_LANES,
                     .role = CLV_ATTACH_MASTER,
                     .timeout_ms = (unsigned)rt->config->limits.connect_timeout_ms};
  clv_err err;
  if (clv_link_open(rt->rpc, &o, &d, &p->link, &err) == CLV_OK) return CLEAVE_OK;
  clv_err_prefix(&err, "worker '%s' at %s", p->name, p->spec->address);
  api_from(error, &err);
  api_place_error(error, p->name, "attach");
  return (cleave_status)err.code;
}

static void close_session(peer *p) {
  clv_err ignored;
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  clv_wire_close_request q = {.session = p->runtime->session, .epoch = p->runtime->epoch};
  api_lock(p->runtime);
  bool was_lost = p->lost;
  p->lost = true; /* its end is no surprise */
  api_unlock(p->runtime);
  if (p->opened && !was_lost && clv_wire_close_request_encode(&q, &request, &ignored) == CLV_OK &&
      call(p, CLV_METHOD_CLOSE_SESSION, &request, 3000, &reply, &ignored) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "closing the session at %s: %s", p->name, ignored.text);
  if (p->link) clv_link_close(p->link);
}

void api_hang_up(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++) close_session(&rt->peers[i]);
}

void api_disconnect(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++) {
    clv_link_unref(rt->peers[i].link);
    clv_rpc_channel_free(rt->peers[i].channel);
  }
  clv_rpc_runtime_free(rt->rpc);
  rt->rpc = NULL;
}

/* ---- shards as data ----------------------------------------------------------------------------------- */

static clv_code load_remote(const cleave_module *m, uint64_t timeout_ms, clv_err *err) {
  cleave_runtime *rt = m->runtime;
  peer *p = &rt->peers[m->node];
  const char *others[API_MAX_NODES];
  CLV_AUTO(clv_shard_message_done) clv_shard_message message = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_done) clv_wire_load_reply o = {0};
  clv_wire_load_request q = {.session = rt->session,
                             .epoch = rt->epoch,
                             .seed = m->seed,
                             .stage = m->index,
                             .n_stages = API_MAX_MODULES + 1,
                             .threads = m->threads,
                             .max_micro_batches = 1,
                             .next_peer = "",
                             .prev_peer = "",
                             .peers = others,
                             .device = m->device,
                             .frozen = m->frozen,
                             .n_frozen = m->n_frozen};
  CLV_TRY(clv_shard_message_make(m->graph, &message, &q, err));
  for (uint32_t i = 1; rt->direct && i < rt->n_peers; i++)
    if (i != m->node) others[q.n_peers++] = rt->peers[i].name;
  if (m->optimizer) clv_shard_message_optimizer(&m->optim, &q);
  CLV_TRY(clv_wire_load_request_encode(&q, &request, err));
  CLV_TRY(call(p, CLV_METHOD_LOAD_SHARD, &request, timeout_ms, &reply, err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(clv_wire_load_reply_decode(&piece, 1, &o, err));
  if (o.n_params != (uint32_t)m->params->n)
    return clv_fail(err, CLV_INTERNAL, "it reports %u parameters, the graph has %d", o.n_params,
                    m->params->n);
  return CLV_OK;
}

static clv_code load_local(const cleave_module *m, clv_err *err) {
  clv_stage *stage;
  clv_stage_options o = {.index = m->index,
                         .backend = clv_backend_cpu(),
                         .threads = (int)m->threads,
                         .optimizer = m->optim,
                         .learns = m->optimizer != NULL,
                         .seed = m->seed,
                         .max_micro_batches = 1,
                         .frozen = m->frozen,
                         .n_frozen = m->n_frozen};
  CLV_TRY(api_graph_copy(m->graph, &o.graph, err));
  CLV_TRY(clv_stage_new(&o, &stage, err));
  return clv_node_add_stage(m->runtime->node, stage, err);
}

cleave_status api_load_shard(cleave_module *m, uint64_t deadline_ms, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  uint64_t ms = deadline_ms ? deadline_ms : rt->deadline_ms;
  clv_err err;
  if ((m->node ? load_remote(m, ms, &err) : load_local(m, &err)) == CLV_OK) return CLEAVE_OK;
  clv_err_prefix(&err, "module '%s' at %s", m->name, rt->peers[m->node].name);
  api_from(error, &err);
  api_place_error(error, rt->peers[m->node].name, "load");
  return (cleave_status)err.code;
}
