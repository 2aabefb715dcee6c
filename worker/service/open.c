/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens sessions: checks the request, closes the session of an earlier attempt, charges the new
 * session to the quota of its identity, and adds it to the table. If the quota refuses the session,
 * closes a session that an ended program of this identity has left, and tries again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* Checks the session's reference lease against the worker's limit. The worker limits the lease
 * because it keeps the values that a lost node references for one lease. */
static clv_code check_lease(const clv_session *s, clv_err *err) {
  uint64_t max_ms = s->settings->config->limits.reference_lease_ms;
  if (s->reference_lease_ms <= max_ms) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "a reference lease of %g s is over this worker's limit of %g s: lower "
                  "limits.reference_lease in the session file or raise it in worker.yaml",
                  (double)s->reference_lease_ms / 1e3, (double)max_ms / 1e3);
}

/* Adds a session to the table. Refuses an id that another session of the same owner has; sessions
 * of other owners may have this id. Caller holds the service's lock. */
static clv_code add_to_table(clv_service *v, clv_session *s, clv_err *err) {
  if (v->is_draining)
    return clv_fail(err, CLV_UNAVAILABLE,
                    "this worker is draining: it takes no new sessions until it "
                    "has been started again");
  for (uint32_t i = 0; i < v->n_sessions; i++)
    if (clv_session_has_id_and_owner(v->sessions[i], &s->id, s->owner))
      return clv_fail(err, CLV_EXISTS, "a session of this id is open: close it first");
  CLV_TRY(check_lease(s, err));
  if (v->n_sessions == MAX_SESSIONS)
    return clv_fail(
        err, CLV_EXHAUSTED,
        "the worker has 256 sessions, the most it can hold: close one or use another worker");
  CLV_TRY(clv_account_charge(s->member->account, CLV_QUOTA_SESSIONS, 1, err));
  CLV_FAILPOINT("session.open");
  v->sessions[v->n_sessions++] = s;
  return CLV_OK;
}

static clv_code copy_peers(clv_session *s, const clv_wire_open_request *r, clv_err *err) {
  CLV_TRY(clv_alloc(r->n_peer_identities, sizeof *s->peer_identities, &s->peer_identities, err));
  for (; s->n_peer_identities < r->n_peer_identities; s->n_peer_identities++)
    CLV_TRY(clv_strdup(r->peer_identities[s->n_peer_identities],
                       &s->peer_identities[s->n_peer_identities], err));
  return CLV_OK;
}

/* Returns the limits that the worker reports to the master of a session. The session may get less
 * than these limits, because it shares the quotas of its identity with the identity's other
 * sessions. */
static clv_wire_limits limits_for_identity(const clv_worker_settings *settings,
                                           const clv_allow_spec *a) {
  clv_wire_limits l = settings->limits;
  if (a->sessions) l.sessions = (uint32_t)a->sessions;
  if (a->bytes) l.session_bytes = CLV_MIN(a->bytes, l.session_bytes);
  if (a->tensors) l.tensors = (uint32_t)CLV_MIN(a->tensors, (uint64_t)l.tensors);
  return l;
}

static clv_code open_accounts(clv_session *s, clv_err *err) {
  CLV_AUTO(clv_account_unrefp) clv_account *account = NULL;
  clv_service *v = s->service;
  CLV_TRY(clv_service_new_session_account(s, &account, err));
  CLV_TRY(clv_pool_new_for_account(account, &s->pool, err));
  CLV_TRY(clv_service_new_device_accounts(s, err));
  return clv_share_new(v->scheduler, s->member->tenant_number, &s->share, err);
}

static clv_code new_session(clv_service *v, clv_worker_settings *settings, const char *uri,
                            const clv_wire_open_request *r, clv_session **ret, clv_err *err) {
  clv_session *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->service = v;
  s->n_refs = 1;
  s->id = r->session_id;
  s->epoch = r->attempt_number;
  s->is_only_attempt = r->is_only_attempt;
  s->reference_lease_ms = r->reference_lease_ms;
  s->n_bulk_lanes = r->n_lanes;
  s->opened_ms = clv_now_ns() / 1000000u;
  s->settings = clv_settings_ref(settings);
  s->granted_limits = limits_for_identity(settings, clv_settings_find_allowed(settings, uri));
  pthread_mutex_lock(&v->lock);
  s->member = clv_service_find_member(v, uri);
  pthread_mutex_unlock(&v->lock);
  s->send_window_bytes = clv_service_receive_window(v, uri);
  s->owner_protocol = clv_service_protocol(v, uri);
  snprintf(s->owner, sizeof s->owner, "%s", uri);
  snprintf(s->name, sizeof s->name, "%s", r->session_name);
  pthread_mutex_init(&s->loading_lock, NULL);
  pthread_mutex_init(&s->lock, NULL);
  clv_code code = open_accounts(s, err);
  if (code == CLV_OK) code = copy_peers(s, r, err);
  if (code == CLV_OK) code = clv_session_init_totals(s, err);
  if (code != CLV_OK) {
    clv_session_unref(s);
    return code;
  }
  *ret = s;
  return CLV_OK;
}

/* Closes the session of an earlier attempt of this run, whose master has ended or lost its
 * connection. */
static void close_earlier_attempt(clv_service *v, const char *uri, const clv_wire_open_request *r) {
  clv_session *earlier_session = NULL;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions && !earlier_session; i++)
    if (clv_session_has_id_and_owner(v->sessions[i], &r->session_id, uri) &&
        v->sessions[i]->epoch < r->attempt_number)
      earlier_session = clv_session_ref(v->sessions[i]);
  pthread_mutex_unlock(&v->lock);
  if (!earlier_session) return;
  clv_session_close(earlier_session, "a newer attempt has taken its place");
  clv_session_unref(earlier_session);
}

/* Registers the epoch of the attempt, which is its number within the run. Refuses an epoch below a
 * registered one, so that an earlier attempt that was disconnected cannot return while a later
 * attempt runs. *ret_session_config_changed: the configuration of the session differs from that of
 * the attempt before. */
static clv_code register_attempt(clv_service *v, const char *uri, const clv_wire_open_request *r,
                                 bool *ret_session_config_changed, clv_err *err) {
  *ret_session_config_changed = false;
  if (!r->is_only_attempt)
    CLV_TRY(clv_epochs_register(v->epochs, uri, r->session_id.bytes, r->attempt_number,
                                &r->config_digest, ret_session_config_changed, err));
  close_earlier_attempt(v, uri, r);
  return CLV_OK;
}

static clv_code lock_and_add_to_table(clv_service *v, clv_session *s, clv_err *err) {
  pthread_mutex_lock(&v->lock);
  clv_code code = add_to_table(v, s, err);
  pthread_mutex_unlock(&v->lock);
  return code;
}

/* Adds a session to the table. If a quota refuses the session, closes abandoned sessions and tries
 * again. */
static clv_code add_or_take_over(clv_service *v, clv_session *s, clv_err *err) {
  clv_code code = lock_and_add_to_table(v, s, err);
  while (code == CLV_EXHAUSTED && clv_session_close_abandoned(s))
    code = lock_and_add_to_table(v, s, err);
  return code;
}

static void count_refusal(clv_service *v, clv_code code) {
  pthread_mutex_lock(&v->lock);
  v->n_refused_sessions[clv_refusal_from_code(code)]++;
  pthread_mutex_unlock(&v->lock);
}

clv_code clv_session_open(clv_service *v, const char *uri, const clv_wire_open_request *r,
                          clv_wire_limits *ret_granted_limits, clv_err *err) {
  CLV_AUTO(clv_session_unrefp) clv_session *s = NULL;
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *newest_settings = clv_service_ref_settings(v);
  bool session_config_changed;
  /* a reload may have removed the identity since the call began */
  if (!clv_settings_find_allowed(newest_settings, uri))
    return clv_fail(err, CLV_DENIED, "not allowed");
  CLV_TRY(new_session(v, newest_settings, uri, r, &s, err));
  clv_code code = register_attempt(v, uri, r, &session_config_changed, err);
  if (code == CLV_OK) code = add_or_take_over(v, s, err);
  if (code != CLV_OK) {
    count_refusal(v, code);
    const clv_log_source source = {.peer = uri, .event_kind = "refused sessions"};
    clv_log_limited(CLV_LOG_WARN, "audit", &source, "deny session=%s identity=%s reason=\"%s\"",
                    r->session_name, uri, err->text);
    clv_service_set_last_error(v, uri, "session %s was refused: %s", r->session_name, err->text);
    return code;
  }
  *ret_granted_limits = s->granted_limits;
  const clv_log_source source = {uri, "sessions opened",
                                 (unsigned)s->settings->config->log.lines_per_minute};
  clv_log_limited(
      CLV_LOG_INFO, "audit", &source, "open session=%s identity=%s attempt=%llu reason=\"%s\"",
      s->name, uri, (unsigned long long)s->epoch,
      session_config_changed ? "ok, its configuration is not that of the attempt before" : "ok");
  s = NULL; /* the table owns this reference to the session from now on */
  return CLV_OK;
}
