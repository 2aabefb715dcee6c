/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction of sessions that a reload no longer allows, because `allow` does not have the owner as a
 * master any more, or does not have one of the session's peers as a peer. The worker evicts a
 * session when this costs the master least: after a step, while no context is open, or in any case
 * after a minute. It sends the session's master an ABORT with the reason, and closes the session
 * five seconds later, because a busy host may need more than a second to read the ABORT. Also ends
 * sessions of identities whose certificate is revoked.
 */
#include <stdio.h>
#include <string.h>

#include "worker/service/service_int.h"

/* EVICTION_TIMEOUT_MS: time after which a session is evicted even in the middle of a step.
 * ABORT_GRACE_MS: time between the ABORT to a master and the closing of its session. */
enum { EVICTION_TIMEOUT_MS = 60000, ABORT_GRACE_MS = 5000 };

static bool has_role(const clv_worker_settings *newest_settings, const char *uri, clv_role role) {
  const clv_allow_spec *a = clv_settings_find_allowed(newest_settings, uri);
  return a && a->role == role;
}

static const clv_remote_spec *find_peer_by_name(const clv_worker_config *c, const char *name) {
  for (size_t i = 0; i < c->n_peers; i++)
    if (strcmp(c->peers[i].name, name) == 0) return &c->peers[i];
  return NULL;
}

/* Returns the owner of the session or the identity of one of its peers that the newest settings do
 * not allow any more; NULL: all are allowed. Caller holds s->lock. */
static const char *find_disallowed_identity(const clv_worker_settings *newest_settings,
                                            const clv_session *s) {
  const clv_worker_config *session_config = s->settings->config;
  if (!has_role(newest_settings, s->owner, CLV_ROLE_MASTER)) return s->owner;
  for (uint32_t i = 0; i < s->n_accepted_links; i++) {
    const clv_remote_spec *p = find_peer_by_name(session_config, s->accepted_links[i].name);
    if (p && !has_role(newest_settings, p->identity, CLV_ROLE_PEER)) return p->identity;
  }
  for (uint32_t i = 0; i < s->n_dialled_links; i++) {
    const clv_remote_spec *p = find_peer_by_name(session_config, s->dialled_links[i].name);
    const clv_remote_spec *q = find_peer_by_name(newest_settings->config, s->dialled_links[i].name);
    if (p && (!q || strcmp(p->identity, q->identity) != 0)) return p->identity;
  }
  return NULL;
}

/* Returns the identity of a peer of the session whose certificate is revoked; NULL: none. Caller
 * holds s->lock. */
static const char *find_revoked_peer(const clv_session *s) {
  for (uint32_t i = 0; i < s->n_dialled_links; i++) {
    const clv_remote_spec *p = find_peer_by_name(s->settings->config, s->dialled_links[i].name);
    if (p && clv_tls_is_peer_revoked(p->identity)) return p->identity;
  }
  for (uint32_t i = 0; i < s->n_accepted_links; i++) {
    const clv_remote_spec *p = find_peer_by_name(s->settings->config, s->accepted_links[i].name);
    if (p && s->accepted_links[i].is_revoked) return p->identity;
  }
  return NULL;
}

static uint64_t count_steps(const clv_session *s) {
  clv_module_counts c = {0};
  if (s->node) clv_node_count_work(s->node, &c);
  return c.steps_since_load;
}

/* True if the session has no open context, has made a step since its eviction began, or its
 * eviction began more than EVICTION_TIMEOUT_MS ago. Caller holds s->lock. */
static bool can_evict_now(const clv_session *s, uint64_t now_ms) {
  clv_context_counts k = {0};
  if (s->node) clv_node_context_count(s->node, &k);
  return !k.contexts || count_steps(s) != s->steps_at_eviction_start ||
         now_ms - s->eviction_began_ms > EVICTION_TIMEOUT_MS;
}

/* Begins, continues or cancels the eviction of a session. True: the caller must send ABORT to the
 * session's master, or, if an ABORT was sent already, close the session. Caller holds s->lock. */
static bool advance_eviction(const clv_worker_settings *newest_settings, clv_session *s,
                             uint64_t now_ms) {
  if (s->abort_sent_ms) return !s->is_closing && now_ms - s->abort_sent_ms > ABORT_GRACE_MS;
  const char *disallowed_identity =
      s->is_closing ? NULL : find_disallowed_identity(newest_settings, s);
  const char *revoked_identity = s->is_closing ? NULL : find_revoked_peer(s);
  if (revoked_identity) {
    snprintf(s->abort_text, sizeof s->abort_text, "the certificate of %.300s is revoked",
             revoked_identity);
    return true;
  }
  if (disallowed_identity && !s->eviction_pending) {
    s->eviction_began_ms = now_ms;
    s->steps_at_eviction_start = count_steps(s);
  }
  s->eviction_pending = disallowed_identity != NULL;
  if (!disallowed_identity || !can_evict_now(s, now_ms)) return false;
  snprintf(s->abort_text, sizeof s->abort_text,
           "%.300s is no longer allowed (allow, peers in worker.yaml)", disallowed_identity);
  return true;
}

/* Returns a session for which advance_eviction returns true, with a new reference; NULL: none. */
static clv_session *find_evictable_session(clv_service *v,
                                           const clv_worker_settings *newest_settings) {
  clv_session *evictable_session = NULL;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions && !evictable_session; i++) {
    clv_session *s = v->sessions[i];
    pthread_mutex_lock(&s->lock);
    if (advance_eviction(newest_settings, s, clv_now_ns() / 1000000u))
      evictable_session = clv_session_ref(s);
    pthread_mutex_unlock(&s->lock);
  }
  pthread_mutex_unlock(&v->lock);
  return evictable_session;
}

/* Marks the links that the identity `uri`, whose certificate is revoked, has dialled to the
 * session, and marks the session for closing if `uri` owns it. common/net/tls has closed the
 * connections of the identity already, and it cannot attach again. Caller holds s->lock. */
static void mark_revoked(clv_session *s, const char *uri) {
  for (uint32_t i = 0; i < s->n_accepted_links; i++) {
    const clv_remote_spec *p = find_peer_by_name(s->settings->config, s->accepted_links[i].name);
    s->accepted_links[i].is_revoked |= p && strcmp(p->identity, uri) == 0;
  }
  if (s->is_closing || strcmp(s->owner, uri) != 0) return;
  s->is_closing = true;
  snprintf(s->abort_text, sizeof s->abort_text, "the certificate of %.300s is revoked", uri);
}

void clv_service_revoke(clv_service *v, const char *uri) {
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    pthread_mutex_lock(&v->sessions[i]->lock);
    mark_revoked(v->sessions[i], uri);
    pthread_mutex_unlock(&v->sessions[i]->lock);
  }
  pthread_mutex_unlock(&v->lock);
}

void clv_service_evict(clv_service *v) {
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *newest_settings = clv_service_ref_settings(v);
  for (clv_session *s; (s = find_evictable_session(v, newest_settings)) != NULL;
       clv_session_unref(s)) {
    if (s->abort_sent_ms) {
      clv_session_close(s, s->abort_text);
      continue;
    }
    s->abort_sent_ms = clv_now_ns() / 1000000u;
    clv_session_abort(s, CLV_DENIED, s->abort_text, "");
    clv_service_set_last_error(v, s->owner, "session %s: %s", s->name, s->abort_text);
  }
}
