/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction of sessions whose identities a reload has removed from `allow`: the owner may no longer
 * open sessions, or a peer is no longer a peer. Sessions end when it costs their master least,
 * after a step or while no context is open, and in any case after a minute. Their masters receive
 * an ABORT with the reason, and have five seconds to read it, because a busy host may need more
 * than one.
 */
#include <stdio.h>
#include <string.h>

#include "worker/service/service_int.h"

enum { EVICTION_TIMEOUT_MS = 60000, ABORT_GRACE_MS = 5000 };

static bool has_role(const clv_worker_settings *newest, const char *uri, clv_role role) {
  const clv_allow_spec *a = clv_settings_allowed(newest, uri);
  return a && a->role == role;
}

static const clv_remote_spec *find_peer_by_name(const clv_worker_config *c, const char *name) {
  for (size_t i = 0; i < c->n_peers; i++)
    if (strcmp(c->peers[i].name, name) == 0) return &c->peers[i];
  return NULL;
}

/* Returns an identity of the session that is no longer allowed; NULL: none. Caller holds
 * s->lock. */
static const char *find_disallowed_identity(const clv_worker_settings *newest,
                                            const clv_session *s) {
  const clv_worker_config *session_config = s->settings->config;
  if (!has_role(newest, s->owner, CLV_ROLE_MASTER)) return s->owner;
  for (uint32_t i = 0; i < s->n_in; i++) {
    const clv_remote_spec *p = find_peer_by_name(session_config, s->in[i].name);
    if (p && !has_role(newest, p->identity, CLV_ROLE_PEER)) return p->identity;
  }
  for (uint32_t i = 0; i < s->n_out; i++) {
    const clv_remote_spec *p = find_peer_by_name(session_config, s->out[i].name);
    const clv_remote_spec *q = find_peer_by_name(newest->config, s->out[i].name);
    if (p && (!q || strcmp(p->identity, q->identity) != 0)) return p->identity;
  }
  return NULL;
}

/* Returns a peer whose certificate has been revoked; NULL: none. Caller holds s->lock. */
static const char *find_revoked_peer(const clv_session *s) {
  for (uint32_t i = 0; i < s->n_out; i++) {
    const clv_remote_spec *p = find_peer_by_name(s->settings->config, s->out[i].name);
    if (p && clv_tls_is_peer_revoked(p->identity)) return p->identity;
  }
  for (uint32_t i = 0; i < s->n_in; i++) {
    const clv_remote_spec *p = find_peer_by_name(s->settings->config, s->in[i].name);
    if (p && s->in[i].is_revoked) return p->identity;
  }
  return NULL;
}

static uint64_t count_steps(const clv_session *s) {
  clv_module_counts c = {0};
  if (s->node) clv_node_count_work(s->node, &c);
  return c.steps_since_load;
}

/* True if the session has no open context, has made a step since its eviction began, or its
 * eviction has lasted EVICTION_TIMEOUT_MS. Caller holds s->lock. */
static bool can_evict_now(const clv_session *s, uint64_t now_ms) {
  clv_context_counts k = {0};
  if (s->node) clv_node_context_count(s->node, &k);
  return !k.contexts || count_steps(s) != s->eviction_steps ||
         now_ms - s->eviction_began_ms > EVICTION_TIMEOUT_MS;
}

/* Advances the eviction of a session. True: send ABORT to its master, or, if ABORT_GRACE_MS have
 * passed since the ABORT, close the session. Caller holds s->lock. */
static bool advance_eviction(const clv_worker_settings *newest, clv_session *s, uint64_t now_ms) {
  if (s->abort_sent_ms) return !s->is_closing && now_ms - s->abort_sent_ms > ABORT_GRACE_MS;
  const char *disallowed = s->is_closing ? NULL : find_disallowed_identity(newest, s);
  const char *revoked = s->is_closing ? NULL : find_revoked_peer(s);
  if (revoked) {
    snprintf(s->abort_text, sizeof s->abort_text, "the certificate of %.300s is revoked", revoked);
    return true;
  }
  if (disallowed && !s->eviction_pending) {
    s->eviction_began_ms = now_ms;
    s->eviction_steps = count_steps(s);
  }
  s->eviction_pending = disallowed != NULL;
  if (!disallowed || !can_evict_now(s, now_ms)) return false;
  snprintf(s->abort_text, sizeof s->abort_text,
           "%.300s is no longer allowed (allow, peers in worker.yaml)", disallowed);
  return true;
}

static clv_session *find_evictable(clv_service *v, const clv_worker_settings *newest) {
  clv_session *found = NULL;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions && !found; i++) {
    clv_session *s = v->sessions[i];
    pthread_mutex_lock(&s->lock);
    if (advance_eviction(newest, s, clv_now_ns() / 1000000u)) found = clv_session_ref(s);
    pthread_mutex_unlock(&s->lock);
  }
  pthread_mutex_unlock(&v->lock);
  return found;
}

/* Marks the links that the identity `uri`, whose certificate is revoked, has dialled to the
 * session, and closes the session if `uri` owns it. The connections of the identity are cut
 * already, and it cannot attach again. The caller holds s->lock. */
static void mark_revoked(clv_session *s, const char *uri) {
  for (uint32_t i = 0; i < s->n_in; i++) {
    const clv_remote_spec *p = find_peer_by_name(s->settings->config, s->in[i].name);
    s->in[i].is_revoked |= p && strcmp(p->identity, uri) == 0;
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
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *newest = clv_service_settings(v);
  for (clv_session *s; (s = find_evictable(v, newest)) != NULL; clv_session_unref(s)) {
    if (s->abort_sent_ms) {
      clv_session_close(s, s->abort_text);
      continue;
    }
    s->abort_sent_ms = clv_now_ns() / 1000000u;
    clv_session_abort(s, CLV_DENIED, s->abort_text, "");
    clv_service_set_last_error(v, s->owner, "session %s: %s", s->name, s->abort_text);
  }
}
