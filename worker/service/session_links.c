/* SPDX-License-Identifier: Apache-2.0
 *
 * The links of a session: the link to its master, the links that other workers have dialled, and
 * the links that this worker dials.
 */
#include <stdio.h>
#include <string.h>

#include "worker/service/service_int.h"

enum { HELLO_TIMEOUT_MS = 10000 };

/* Answers a frame that arrives before the first LoadModule with an ERROR, because the session has
 * no node and no compute thread yet. */
static void refuse_early_frame(clv_session *s, clv_link *link, const clv_frame *request) {
  clv_packet *p;
  clv_err err;
  if (clv_packet_new(s->pool, CLV_ERROR, &p, &err) != CLV_OK) return;
  p->frame.reply_to = request->message_id;
  clv_frame_set_failure(&p->frame, CLV_PRECONDITION, "no module is loaded in this session", "");
  if (clv_link_send(link, p, &err) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "session %s: %s", s->name, err.text);
}

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  clv_session *s = user;
  pthread_mutex_lock(&s->lock);
  bool is_closing = s->is_closing;
  clv_session_node *node = s->node;
  pthread_mutex_unlock(&s->lock);
  if (node && !is_closing) {
    clv_node_post(node, p);
    return;
  }
  if (!is_closing) refuse_early_frame(s, link, &p->frame);
  clv_packet_free(p);
}

static void on_master_closed(void *user, clv_link *link, clv_code code, const char *text) {
  clv_session *s = user;
  (void)link;
  pthread_mutex_lock(&s->lock);
  s->is_closing = true;
  snprintf(s->abort_text, sizeof s->abort_text, "the master's stream ended (%s): %s",
           clv_code_name(code), text);
  pthread_mutex_unlock(&s->lock);
  clv_session_unref(s);
}

void clv_session_abort(clv_session *s, clv_code code, const char *why, const char *lost_peer) {
  pthread_mutex_lock(&s->lock);
  clv_link *master_link = s->master_link && !s->is_closing ? clv_link_ref(s->master_link) : NULL;
  pthread_mutex_unlock(&s->lock);
  clv_packet *p;
  clv_err err;
  if (master_link && clv_packet_new(s->pool, CLV_ABORT, &p, &err) == CLV_OK) {
    clv_session_set_last_error(s, "%s", why);
    clv_frame_set_failure(&p->frame, code, why, lost_peer);
    if (clv_link_send(master_link, p, &err) != CLV_OK)
      clv_log(CLV_LOG_DEBUG, "session %s: %s", s->name, err.text);
  }
  clv_link_unref(master_link);
}

/* Handles the end of a link to a peer: sends ABORT to the master, which decides how to continue. */
static void on_peer_closed(void *user, clv_link *link, clv_code code, const char *text) {
  clv_session *s = user;
  char why[CLV_ERR_TEXT];
  snprintf(why, sizeof why, "the link to %s ended: %.200s", clv_link_peer_name(link), text);
  clv_session_abort(s, code == CLV_OK ? CLV_UNAVAILABLE : code, why, clv_link_peer_name(link));
  clv_session_unref(s);
}

/* Returns how long a link may be without a connection before it ends, ms: limits.lease, but at most
 * three quarters of the session's reference lease. So a link ends before the references of the node
 * at its other end are freed. 0: with this protocol a link cannot get another connection. */
static uint64_t get_link_lease_ms(const clv_session *s, uint32_t protocol) {
  uint64_t max_ms = (uint64_t)s->reference_lease_ms / 4 * 3;
  return clv_wire_protocol_has_acks(protocol)
             ? CLV_MIN(s->settings->config->limits.lease_ms, max_ms)
             : 0;
}

/* Counts the session's links to other workers that have lost a connection and wait for another one.
 * The link to the master calls this, to report the number in a PONG. */
static uint32_t count_peers_waiting_for_connections(void *user) {
  clv_session *s = user;
  uint32_t n = 0;
  pthread_mutex_lock(&s->lock);
  for (uint32_t i = 0; i < s->n_accepted_links; i++)
    n += clv_link_is_mending(s->accepted_links[i].link);
  for (uint32_t i = 0; i < s->n_dialled_links; i++)
    n += clv_link_is_mending(s->dialled_links[i].link);
  pthread_mutex_unlock(&s->lock);
  return n;
}

static clv_link_options make_link_options(clv_session *s, const char *peer,
                                          uint64_t send_window_bytes, uint32_t protocol,
                                          void (*on_closed)(void *, clv_link *, clv_code,
                                                            const char *)) {
  return (clv_link_options){.peer_name = peer,
                            .pool = s->pool,
                            .accept_limits = s->granted_limits,
                            .initial_send_credit = send_window_bytes,
                            .quota_fails_packet = true,
                            .lease_ms = get_link_lease_ms(s, protocol),
                            .events = {.user = s, .on_packet = on_packet, .on_closed = on_closed}};
}

/* Returns the entry of `peers` in worker.yaml with the identity `uri`; NULL: none. */
static const clv_remote_spec *find_peer_by_uri(const clv_session *s, const char *uri) {
  const clv_worker_config *c = s->settings->config;
  for (size_t i = 0; i < c->n_peers; i++)
    if (strcmp(c->peers[i].identity, uri) == 0) return &c->peers[i];
  return NULL;
}

static clv_link *find_peer_link(const clv_peer_link *list, uint32_t n, const char *name) {
  for (uint32_t i = 0; i < n; i++)
    if (strcmp(list[i].name, name) == 0) return list[i].link;
  return NULL;
}

/* Passes to the session's node each link to another worker, under that worker's name: first the
 * accepted links, then the links that this worker has dialled, which replace accepted links to the
 * same worker. */
static void pass_peers_to_node(clv_session *s) {
  clv_err err;
  const clv_log_source source = {.peer = s->owner, .event_kind = "errors of sessions"};
  for (uint32_t i = 0; i < s->n_accepted_links + s->n_dialled_links; i++) {
    const clv_peer_link *l = i < s->n_accepted_links ? &s->accepted_links[i]
                                                     : &s->dialled_links[i - s->n_accepted_links];
    if (clv_node_add_peer(s->node, l->name, l->link, &err) != CLV_OK)
      clv_log_limited(CLV_LOG_WARN, "log", &source, "session %s: %s", s->name, err.text);
  }
}

void clv_session_set_node_links(clv_session *s) {
  if (!s->node) return;
  clv_node_set_master(s->node, s->master_link);
  pass_peers_to_node(s);
}

/* Refuses an ATTACH that reconnects a link (connection_number > 0), because this session does not
 * have the link. */
static clv_code check_first_attach(const clv_frame *f, clv_err *err) {
  return f->attach.connection_number ? clv_fail(err, CLV_NOT_FOUND, "no such session") : CLV_OK;
}

/* Returns the link to the master with a new reference, or makes the link. Caller holds s->lock. */
static clv_code get_master_link(clv_session *s, const clv_frame *attach, clv_link **ret,
                                clv_err *err) {
  if (s->master_link) {
    *ret = clv_link_ref(s->master_link);
    return CLV_OK;
  }
  CLV_TRY(check_first_attach(attach, err));
  clv_link_options o =
      make_link_options(s, "the master", s->send_window_bytes, s->owner_protocol, on_master_closed);
  o.events.count_mending_links = count_peers_waiting_for_connections;
  CLV_TRY(clv_link_new(&o, &s->master_link, err));
  clv_session_ref(s);
  clv_session_set_node_links(s);
  *ret = clv_link_ref(s->master_link);
  return CLV_OK;
}

/* Returns the link that the identity `uri` has dialled, with a new reference, or makes the link.
 * Caller holds s->lock. */
static clv_code get_accepted_peer_link(clv_session *s, const clv_frame *attach, const char *uri,
                                       uint64_t send_window_bytes, uint32_t protocol,
                                       clv_link **ret, clv_err *err) {
  const clv_remote_spec *peer = find_peer_by_uri(s, uri);
  bool may_attach = false;
  for (uint32_t i = 0; i < s->n_peer_identities; i++)
    may_attach |= strcmp(s->peer_identities[i], uri) == 0;
  if (!peer || !may_attach) return clv_fail(err, CLV_NOT_FOUND, "no such session");
  clv_link *link = find_peer_link(s->accepted_links, s->n_accepted_links, peer->name);
  if (!link) {
    CLV_TRY(check_first_attach(attach, err));
    if (s->n_accepted_links == MAX_PEER_LINKS)
      return clv_fail(err, CLV_EXHAUSTED,
                      "the session has links to 16 peers, the most it can have");
    clv_link_options o =
        make_link_options(s, peer->name, send_window_bytes, protocol, on_peer_closed);
    CLV_TRY(clv_link_new(&o, &link, err));
    clv_session_ref(s);
    snprintf(s->accepted_links[s->n_accepted_links].name, sizeof s->accepted_links[0].name, "%s",
             peer->name);
    s->accepted_links[s->n_accepted_links++].link = link;
    clv_session_set_node_links(s);
  }
  *ret = clv_link_ref(link);
  return CLV_OK;
}

clv_code clv_session_find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                               clv_err *err) {
  clv_service *v = user;
  if (memcmp(&attach->attach.incarnation, &v->incarnation, sizeof v->incarnation) != 0 &&
      attach->attach.role == CLV_ATTACH_MASTER)
    return clv_fail(err, CLV_ABORTED,
                    "the worker has been restarted since the master's Hello: open a new session");
  /* A peer's ATTACH names the owner of the session at the peer, which must be the owner here.
   * Otherwise an identity that has opened a session of the same id at the peer could send into this
   * session of another owner. */
  const char *owner = attach->attach.role == CLV_ATTACH_PEER ? attach->attach.session_owner : uri;
  CLV_AUTO(clv_session_unrefp) clv_session *s = NULL;
  CLV_TRY(clv_session_find(v, &attach->attach.session_id, attach->attach.attempt_number, owner, &s,
                           err));
  uint64_t send_window_bytes = clv_service_receive_window(v, uri);
  uint32_t protocol = clv_service_protocol(v, uri);
  pthread_mutex_lock(&s->lock);
  clv_code code =
      s->is_closing ? clv_fail(err, CLV_NOT_FOUND, "no such session")
      : attach->attach.role == CLV_ATTACH_MASTER
          ? get_master_link(s, attach, ret, err)
          : get_accepted_peer_link(s, attach, uri, send_window_bytes, protocol, ret, err);
  pthread_mutex_unlock(&s->lock);
  return code;
}

void clv_session_end_expired_links(clv_session *s) {
  clv_link *links[1 + 2 * MAX_PEER_LINKS];
  uint32_t n = 0;
  pthread_mutex_lock(&s->lock);
  if (s->master_link) links[n++] = clv_link_ref(s->master_link);
  for (uint32_t i = 0; i < s->n_accepted_links; i++)
    links[n++] = clv_link_ref(s->accepted_links[i].link);
  pthread_mutex_unlock(&s->lock);
  for (uint32_t i = 0; i < n; i++) {
    (void)clv_link_redial_or_end(links[i]);
    clv_link_unref(links[i]);
  }
}

static clv_code call_hello(void *channel, const clv_bytes *request, clv_bytes *reply,
                           clv_err *err) {
  return clv_rpc_call_unary(channel, CLV_METHOD_HELLO, request->data, request->len,
                            HELLO_TIMEOUT_MS, reply, err);
}

/* Sends Hello to a peer, before this worker dials a link to it. Hello names this worker's receive
 * window; the reply names the peer's timeout and protocol version. */
static clv_code send_hello(clv_session *s, const clv_remote_spec *peer, const clv_rpc_pem *pem,
                           unsigned *ret_peer_timeout_ms, uint32_t *ret_protocol, clv_err *err) {
  clv_service *v = s->service;
  CLV_AUTO(clv_rpc_channel_freep) clv_rpc_channel *channel = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_reply h = {0};
  clv_rpc_channel_options o = {
      .target_address = peer->address, .expected_uri = peer->identity, .pem = *pem};
  const clv_wire_about own_about = {.limits = s->settings->limits,
                                    .software = "cleave " CLV_VERSION,
                                    .isa = clv_backend_isa(clv_service_backend(v)),
                                    .unix_ms = clv_wall_ms()};
  CLV_TRY(clv_rpc_channel_new(v->runtime, &o, &channel, err));
  CLV_TRY(clv_rpc_channel_connect(channel, HELLO_TIMEOUT_MS, err));
  CLV_TRY(clv_wire_hello_exchange(&own_about, call_hello, channel, &reply, err));
  CLV_TRY(clv_wire_hello_reply_decode(&(clv_piece){reply.data, reply.len}, 1, &h, err));
  CLV_TRY(clv_wire_limits_check(&h.about.limits, err));
  *ret_peer_timeout_ms =
      clv_wire_shorter_timeout(s->settings->limits.peer_timeout_ms, h.about.limits.peer_timeout_ms);
  *ret_protocol = h.about.protocol;
  return CLV_OK;
}

/* Callback of a dialled link: copies the certificates for another connection to the peer. */
static clv_code read_pem(void *service, clv_rpc_pem *ret, clv_err *err) {
  return clv_service_copy_pem(service, ret, err);
}

static clv_code dial_peer_link(clv_session *s, const clv_remote_spec *peer, const clv_rpc_pem *pem,
                               clv_link **ret, clv_err *err) {
  clv_service *v = s->service;
  uint32_t protocol;
  clv_link_dial d = {.peer_address = peer->address,
                     .peer_identity = peer->identity,
                     .pem = *pem,
                     .read_pem = read_pem,
                     .pem_user = v,
                     .limits = {.max_message_bytes = s->settings->limits.message_bytes},
                     .session_id = s->id,
                     .attempt_number = s->epoch,
                     .session_owner = s->owner,
                     .n_bulk_lanes = s->n_bulk_lanes,
                     .attach_role = CLV_ATTACH_PEER,
                     .dial_timeout_ms = HELLO_TIMEOUT_MS};
  CLV_TRY(send_hello(s, peer, pem, &d.limits.peer_timeout_ms, &protocol, err));
  /* send window 0: the frame ATTACHED from the peer grants the first credit */
  clv_link_options o = make_link_options(s, peer->name, 0, protocol, on_peer_closed);
  clv_session_ref(s);
  return clv_link_open(v->runtime, &o, &d, ret, err);
}

clv_code clv_session_dial_peer(clv_session *s, const char *name, clv_err *err) {
  clv_service *v = s->service;
  const clv_remote_spec *peer = NULL;
  const clv_worker_config *c = s->settings->config;
  for (size_t i = 0; i < c->n_peers; i++)
    if (strcmp(c->peers[i].name, name) == 0) peer = &c->peers[i];
  if (!peer)
    return clv_fail(err, CLV_NOT_FOUND,
                    "no peer '%s' in this worker's peers; add it or use transfer: via_master",
                    name);
  pthread_mutex_lock(&s->lock);
  bool is_dialled = find_peer_link(s->dialled_links, s->n_dialled_links, name) != NULL,
       is_full = s->n_dialled_links == MAX_PEER_LINKS;
  pthread_mutex_unlock(&s->lock);
  if (is_dialled) return CLV_OK;
  if (is_full)
    return clv_fail(err, CLV_EXHAUSTED, "the session has links to 16 peers, the most it can have");
  clv_link *link;
  clv_rpc_pem pem;
  CLV_TRY(clv_service_copy_pem(v, &pem, err));
  clv_code code = dial_peer_link(s, peer, &pem, &link, err);
  clv_rpc_pem_clear(&pem);
  if (code != CLV_OK) return clv_err_prefix(err, "peer %s at its address", name);
  pthread_mutex_lock(&s->lock);
  snprintf(s->dialled_links[s->n_dialled_links].name, sizeof s->dialled_links[0].name, "%s", name);
  s->dialled_links[s->n_dialled_links++].link = link;
  clv_session_set_node_links(s);
  pthread_mutex_unlock(&s->lock);
  return CLV_OK;
}
