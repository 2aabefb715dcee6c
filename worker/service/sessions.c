/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

enum { PEER_TIMEOUT_MS = 10000 };

/* ---- lifetime ---------------------------------------------------------------------------------- */

static session *session_ref(session *s) {
  __atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
  return s;
}

void clv_session_unref(session *s) {
  if (!s || __atomic_fetch_sub(&s->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_node_free(s->node);
  clv_seat_free(s->seat);
  for (uint32_t i = 0; i < s->n_peers; i++) free(s->peers[i]);
  free(s->peers);
  free(s->tallied_edges);
  clv_pool_unref(s->pool);
  __atomic_store_n(&s->service->freed, true, __ATOMIC_RELAXED);
  pthread_mutex_destroy(&s->lock);
  pthread_mutex_destroy(&s->loading);
  free(s);
}

void clv_session_unrefp(session **s) {
  clv_session_unref(*s);
  *s = NULL;
}

static void add_counts(clv_link *link, clv_wire_close_reply *ret) {
  clv_link_counts c;
  if (!link) return;
  clv_link_count(link, &c);
  ret->bytes_in += c.bytes_in;
  ret->bytes_out += c.bytes_out;
}

void clv_session_counts(session *s, clv_wire_close_reply *ret) {
  *ret = (clv_wire_close_reply){0};
  pthread_mutex_lock(&s->lock);
  add_counts(s->master, ret);
  for (uint32_t i = 0; i < s->n_out; i++) add_counts(s->out[i].link, ret);
  for (uint32_t i = 0; i < s->n_in; i++) add_counts(s->in[i].link, ret);
  for (uint32_t i = 0; s->node && i < CLV_MODULE_ALL; i++) {
    clv_stage_counts c;
    clv_stage *stage = clv_node_stage(s->node, i);
    if (!stage) continue;
    clv_stage_count(stage, &c);
    ret->forwards += c.forwards;
    ret->backwards += c.backwards;
  }
  pthread_mutex_unlock(&s->lock);
}

static void drop_links(session *s) {
  clv_link *links[1 + 2 * MAX_PEER_LINKS];
  uint32_t n = 0;
  pthread_mutex_lock(&s->lock);
  if (s->master) links[n++] = s->master;
  for (uint32_t i = 0; i < s->n_out; i++) links[n++] = s->out[i].link;
  for (uint32_t i = 0; i < s->n_in; i++) links[n++] = s->in[i].link;
  s->master = NULL;
  s->n_out = s->n_in = 0;
  if (s->node) {
    clv_node_set_master(s->node, NULL);
    clv_node_forget_peers(s->node);
  }
  pthread_mutex_unlock(&s->lock);
  for (uint32_t i = 0; i < n; i++) {
    clv_link_close(links[i]);
    clv_link_unref(links[i]);
  }
}

/* Under the service's lock: queue threads may poll if the threads of a session leave them a core.
 * Not the sum over sessions: rpc polls only while none of them computes, and a session that sits
 * idle must not cost the others their latency. */
static void set_spin(clv_service *v) {
  unsigned threads = 0;
  for (uint32_t i = 0; i < v->n_sessions; i++) threads = CLV_MAX(threads, v->sessions[i]->threads);
  clv_rpc_runtime_set_spin(v->runtime, threads ? clv_spin_us(threads) : 0);
}

void clv_session_uses(session *s, unsigned threads) {
  pthread_mutex_lock(&s->service->lock);
  s->threads = CLV_MAX(s->threads, threads);
  set_spin(s->service);
  pthread_mutex_unlock(&s->service->lock);
}

void clv_session_close(session *s, const char *verdict) {
  clv_service *v = s->service;
  bool mine = false;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions && !mine; i++) {
    if (v->sessions[i] != s) continue;
    v->sessions[i] = v->sessions[--v->n_sessions];
    clv_session_tally(s);
    mine = true;
  }
  set_spin(v);
  pthread_mutex_unlock(&v->lock);
  if (!mine) return; /* somebody else is closing it */
  clv_account_discharge(v->identities[s->allowed], CLV_QUOTA_SESSIONS, 1);
  pthread_mutex_lock(&s->lock);
  s->gone = true; /* a LoadShard that is at work starts no thread any more, nobody attaches */
  pthread_mutex_unlock(&s->lock);
  clv_wire_close_reply c;
  clv_session_counts(s, &c);
  if (s->node) clv_node_stop(s->node);
  if (s->computing) pthread_join(s->compute, NULL);
  pthread_mutex_lock(&v->lock);
  clv_session_tally(s);
  pthread_mutex_unlock(&v->lock);
  drop_links(s);
  clv_log_event(CLV_LOG_INFO, "audit",
                "close session=%s identity=%s verdict=\"%s\" bytes_in=%llu bytes_out=%llu", s->name,
                s->owner, verdict, (unsigned long long)c.bytes_in, (unsigned long long)c.bytes_out);
  clv_session_unref(s);
}

/* ---- opening ----------------------------------------------------------------------------------- */

static bool is_named(const session *s, const clv_wire_id *id, const char *owner) {
  return memcmp(&s->id, id, sizeof *id) == 0 && strcmp(s->owner, owner) == 0;
}

/* Under the service's lock. A stranger's session of the same id is another one: it is not told of. */
static clv_code admit(clv_service *v, session *s, clv_err *err) {
  if (v->draining) return clv_fail(err, CLV_UNAVAILABLE, "this worker is draining");
  for (uint32_t i = 0; i < v->n_sessions; i++)
    if (is_named(v->sessions[i], &s->id, s->owner))
      return clv_fail(err, CLV_EXISTS, "a session of this id is open");
  if (v->n_sessions == MAX_SESSIONS)
    return clv_fail(err, CLV_EXHAUSTED, "this worker has no place for another session");
  CLV_TRY(clv_account_charge(v->identities[s->allowed], CLV_QUOTA_SESSIONS, 1, err));
  v->sessions[v->n_sessions++] = s;
  return CLV_OK;
}

static clv_code copy_peers(session *s, const clv_wire_open_request *r, clv_err *err) {
  CLV_TRY(clv_alloc(r->n_peer_identities, sizeof *s->peers, &s->peers, err));
  for (; s->n_peers < r->n_peer_identities; s->n_peers++)
    CLV_TRY(clv_strdup(r->peer_identities[s->n_peers], &s->peers[s->n_peers], err));
  return CLV_OK;
}

/* What this session is told that it may use; the identity's other sessions may leave it less. */
static clv_wire_limits grant(const clv_service *v, const clv_allow_spec *a) {
  clv_wire_limits l = v->limits;
  if (a->sessions) l.sessions = (uint32_t)a->sessions;
  if (a->bytes) l.session_bytes = CLV_MIN(a->bytes, l.session_bytes);
  if (a->tensors) l.tensors = (uint32_t)CLV_MIN(a->tensors, (uint64_t)l.tensors);
  return l;
}

static clv_code open_account(session *s, clv_err *err) {
  CLV_AUTO(clv_account_unrefp) clv_account *account = NULL;
  clv_service *v = s->service;
  CLV_TRY(clv_service_new_session_account(v, s->allowed, &account, err));
  CLV_TRY(clv_pool_new_of(account, &s->pool, err));
  return clv_seat_new(v->turnstile, s->allowed, &s->seat, err);
}

static clv_code new_session(clv_service *v, const char *uri, const clv_wire_open_request *r,
                            session **ret, clv_err *err) {
  session *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->service = v;
  s->refs = 1;
  s->id = r->session;
  s->epoch = r->epoch;
  s->seed = r->seed;
  s->opened_ms = clv_now_ns() / 1000000u;
  s->allowed = clv_service_allow_index(v, uri);
  s->granted = grant(v, &v->config->allow[s->allowed]);
  s->send_credit = clv_service_credit(v, uri);
  snprintf(s->owner, sizeof s->owner, "%s", uri);
  snprintf(s->name, sizeof s->name, "%s", r->name);
  pthread_mutex_init(&s->loading, NULL);
  pthread_mutex_init(&s->lock, NULL);
  clv_code code = open_account(s, err);
  if (code == CLV_OK) code = copy_peers(s, r, err);
  if (code == CLV_OK) code = clv_session_tally_init(s, err);
  if (code != CLV_OK) {
    clv_session_unref(s);
    return code;
  }
  *ret = s;
  return CLV_OK;
}

clv_code clv_session_open(clv_service *v, const char *uri, const clv_wire_open_request *r,
                          clv_wire_limits *ret_granted, clv_err *err) {
  CLV_AUTO(clv_session_unrefp) session *s = NULL;
  CLV_TRY(new_session(v, uri, r, &s, err));
  pthread_mutex_lock(&v->lock);
  clv_code code = admit(v, s, err);
  if (code != CLV_OK) v->refused[clv_refusal_of(code)]++;
  pthread_mutex_unlock(&v->lock);
  if (code != CLV_OK) {
    clv_log_event(CLV_LOG_WARN, "audit", "deny session=%s identity=%s verdict=\"%s\"", r->name, uri,
                  err->text);
    clv_service_note(v, uri, "session %s was refused: %s", r->name, err->text);
    return code;
  }
  *ret_granted = s->granted;
  clv_log_event(CLV_LOG_INFO, "audit", "open session=%s identity=%s verdict=\"ok\"", s->name, uri);
  s = NULL; /* the table's now */
  return CLV_OK;
}

clv_code clv_session_find(clv_service *v, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          session **ret, clv_err *err) {
  session *found = NULL;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    session *s = v->sessions[i];
    if (is_named(s, id, uri) && s->epoch == epoch) found = session_ref(s);
  }
  pthread_mutex_unlock(&v->lock);
  if (!found) return clv_fail(err, CLV_NOT_FOUND, "no such session");
  *ret = found;
  return CLV_OK;
}

/* ---- links ------------------------------------------------------------------------------------- */

/* There is no compute thread before the first LoadShard: nothing can be done with this. */
static void refuse_early(session *s, clv_link *link, const clv_frame *cause) {
  clv_packet *p;
  clv_err err;
  if (clv_packet_new(s->pool, CLV_ERROR, &p, &err) != CLV_OK) return;
  p->frame.reply_to = cause->message;
  clv_frame_set_failure(&p->frame, CLV_PRECONDITION, "no shard is loaded in this session", "");
  if (clv_link_send(link, p, &err) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "session %s: %s", s->name, err.text);
}

static void link_packet(void *user, clv_link *link, clv_packet *p) {
  session *s = user;
  pthread_mutex_lock(&s->lock);
  bool gone = s->gone;
  clv_session_node *node = s->node;
  pthread_mutex_unlock(&s->lock);
  if (node && !gone) {
    clv_node_post(node, p);
    return;
  }
  if (!gone) refuse_early(s, link, &p->frame);
  clv_packet_free(p);
}

static void master_closed(void *user, clv_link *link, clv_code code, const char *text) {
  session *s = user;
  (void)link;
  pthread_mutex_lock(&s->lock);
  s->gone = true;
  snprintf(s->why, sizeof s->why, "the master's stream ended (%s): %s", clv_code_name(code), text);
  pthread_mutex_unlock(&s->lock);
  clv_session_unref(s);
}

/* A worker that lost a neighbour tells the master, which decides. */
static void peer_closed(void *user, clv_link *link, clv_code code, const char *text) {
  session *s = user;
  pthread_mutex_lock(&s->lock);
  clv_link *master = s->master && !s->gone ? clv_link_ref(s->master) : NULL;
  pthread_mutex_unlock(&s->lock);
  clv_packet *p;
  clv_err err;
  if (master && clv_packet_new(s->pool, CLV_ABORT, &p, &err) == CLV_OK) {
    char why[CLV_ERR_TEXT];
    snprintf(why, sizeof why, "the link to %s ended: %.200s", clv_link_peer(link), text);
    clv_session_note(s, "%s", why);
    clv_frame_set_failure(&p->frame, code == CLV_OK ? CLV_UNAVAILABLE : code, why,
                          s->service->config->name ? s->service->config->name : "worker");
    if (clv_link_send(master, p, &err) != CLV_OK)
      clv_log(CLV_LOG_DEBUG, "session %s: %s", s->name, err.text);
  }
  clv_link_unref(master);
  clv_session_unref(s);
}

static clv_link_options link_options(session *s, const char *peer, uint64_t send_credit,
                                     void (*closed)(void *, clv_link *, clv_code, const char *)) {
  return (clv_link_options){.peer_name = peer,
                            .pool = s->pool,
                            .accept = s->granted,
                            .send_credit = send_credit,
                            .lives_on = true,
                            .events = {.user = s, .on_packet = link_packet, .on_closed = closed}};
}

/* Name in worker.yaml of a peer's identity, or NULL. */
static const clv_remote_spec *peer_by_uri(const clv_service *v, const char *uri) {
  for (size_t i = 0; i < v->config->n_peers; i++)
    if (strcmp(v->config->peers[i].identity, uri) == 0) return &v->config->peers[i];
  return NULL;
}

static clv_link *find_peer(const peer_link *list, uint32_t n, const char *name) {
  for (uint32_t i = 0; i < n; i++)
    if (strcmp(list[i].name, name) == 0) return list[i].link;
  return NULL;
}

/* Values and gradients of contexts go over any link to the worker they name; the one that this side
 * dialled comes first. */
static void name_peers(session *s) {
  clv_err err;
  for (uint32_t i = 0; i < s->n_in + s->n_out; i++) {
    const peer_link *l = i < s->n_in ? &s->in[i] : &s->out[i - s->n_in];
    if (clv_node_peer(s->node, l->name, l->link, &err) != CLV_OK)
      clv_log(CLV_LOG_WARN, "session %s: %s", s->name, err.text);
  }
}

void clv_session_links(session *s) {
  if (!s->node) return;
  clv_node_set_master(s->node, s->master);
  name_peers(s);
}

static clv_code master_link(session *s, clv_link **ret, clv_err *err) {
  if (s->master) {
    *ret = clv_link_ref(s->master);
    return CLV_OK;
  }
  clv_link_options o = link_options(s, "the master", s->send_credit, master_closed);
  CLV_TRY(clv_link_new(&o, &s->master, err));
  session_ref(s);
  clv_session_links(s);
  *ret = clv_link_ref(s->master);
  return CLV_OK;
}

static clv_code peer_in_link(session *s, const char *uri, uint64_t credit, clv_link **ret,
                             clv_err *err) {
  const clv_remote_spec *peer = peer_by_uri(s->service, uri);
  bool invited = false;
  for (uint32_t i = 0; i < s->n_peers; i++) invited |= strcmp(s->peers[i], uri) == 0;
  if (!peer || !invited) return clv_fail(err, CLV_NOT_FOUND, "no such session");
  clv_link *link = find_peer(s->in, s->n_in, peer->name);
  if (!link) {
    if (s->n_in == MAX_PEER_LINKS) return clv_fail(err, CLV_EXHAUSTED, "too many peers");
    clv_link_options o = link_options(s, peer->name, credit, peer_closed);
    CLV_TRY(clv_link_new(&o, &link, err));
    session_ref(s);
    snprintf(s->in[s->n_in].name, sizeof s->in[0].name, "%s", peer->name);
    s->in[s->n_in++].link = link;
    clv_session_links(s);
  }
  *ret = clv_link_ref(link);
  return CLV_OK;
}

clv_code clv_session_find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                               clv_err *err) {
  clv_service *v = user;
  if (memcmp(&attach->attach.incarnation, &v->incarnation, sizeof v->incarnation) != 0 &&
      attach->attach.role == CLV_ATTACH_MASTER)
    return clv_fail(err, CLV_ABORTED, "the worker has been restarted since HELLO");
  /* A worker says for whom it speaks: else a stranger who gave a session of his own the same id there
   * could have it speak in this one. */
  const char *owner = attach->attach.role == CLV_ATTACH_PEER ? attach->attach.owner : uri;
  CLV_AUTO(clv_session_unrefp) session *s = NULL;
  CLV_TRY(clv_session_find(v, &attach->attach.session, attach->attach.epoch, owner, &s, err));
  uint64_t credit = clv_service_credit(v, uri);
  pthread_mutex_lock(&s->lock);
  clv_code code = s->gone ? clv_fail(err, CLV_NOT_FOUND, "no such session")
                  : attach->attach.role == CLV_ATTACH_MASTER
                      ? master_link(s, ret, err)
                      : peer_in_link(s, uri, credit, ret, err);
  pthread_mutex_unlock(&s->lock);
  return code;
}

/* The peer must know how much may be on its way back before it attaches a link. */
static clv_code say_hello(clv_service *v, const clv_remote_spec *peer, const clv_rpc_pem *pem,
                          clv_err *err) {
  CLV_AUTO(clv_rpc_channel_freep) clv_rpc_channel *channel = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_done) clv_wire_hello_reply h = {0};
  clv_rpc_channel_options o = {
      .target = peer->address, .expected_uri = peer->identity, .pem = *pem};
  clv_wire_hello_request q = {.about = {.protocol = CLV_WIRE_PROTOCOL,
                                        .limits = v->limits,
                                        .software = "cleave " CLV_VERSION,
                                        .isa = clv_backend_cpu()->isa(),
                                        .unix_ms = clv_wall_ms()}};
  CLV_TRY(clv_rpc_channel_new(v->runtime, &o, &channel, err));
  CLV_TRY(clv_rpc_channel_connect(channel, PEER_TIMEOUT_MS, err));
  CLV_TRY(clv_wire_hello_request_encode(&q, &request, err));
  CLV_TRY(clv_rpc_call(channel, CLV_METHOD_HELLO, request.data, request.len, PEER_TIMEOUT_MS,
                       &reply, err));
  return clv_wire_hello_reply_decode(&(clv_piece){reply.data, reply.len}, 1, &h, err);
}

static clv_code open_peer(session *s, const clv_remote_spec *peer, const clv_rpc_pem *pem,
                          clv_link **ret, clv_err *err) {
  clv_service *v = s->service;
  clv_link_options o = link_options(s, peer->name, 0, peer_closed); /* ATTACHED says how much */
  clv_link_dial d = {.address = peer->address,
                     .identity = peer->identity,
                     .pem = *pem,
                     .limits = {.max_message = 0},
                     .session = s->id,
                     .epoch = s->epoch,
                     .owner = s->owner,
                     .bulk_lanes = 4,
                     .role = CLV_ATTACH_PEER,
                     .timeout_ms = PEER_TIMEOUT_MS};
  CLV_TRY(say_hello(v, peer, pem, err));
  session_ref(s);
  return clv_link_open(v->runtime, &o, &d, ret, err);
}

clv_code clv_session_dial_peer(session *s, const char *name, clv_err *err) {
  clv_service *v = s->service;
  const clv_remote_spec *peer = NULL;
  for (size_t i = 0; i < v->config->n_peers; i++)
    if (strcmp(v->config->peers[i].name, name) == 0) peer = &v->config->peers[i];
  if (!peer)
    return clv_fail(err, CLV_NOT_FOUND,
                    "no peer '%s' in this worker's peers; add it or use transfer: via_master",
                    name);
  pthread_mutex_lock(&s->lock);
  bool known = find_peer(s->out, s->n_out, name) != NULL, full = s->n_out == MAX_PEER_LINKS;
  pthread_mutex_unlock(&s->lock);
  if (known) return CLV_OK;
  if (full) return clv_fail(err, CLV_EXHAUSTED, "too many peers");
  clv_link *link;
  clv_rpc_pem pem;
  CLV_TRY(clv_service_pem(v, &pem, err));
  clv_code code = open_peer(s, peer, &pem, &link, err);
  clv_service_pem_done(&pem);
  if (code != CLV_OK) return clv_err_prefix(err, "peer %s at its address", name);
  pthread_mutex_lock(&s->lock);
  snprintf(s->out[s->n_out].name, sizeof s->out[0].name, "%s", name);
  s->out[s->n_out++].link = link;
  clv_session_links(s);
  pthread_mutex_unlock(&s->lock);
  return CLV_OK;
}
