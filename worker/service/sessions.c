/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* ---- lifetime -------------------------------------------------------------------------------- */

clv_session *clv_session_ref(clv_session *s) {
  __atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
  return s;
}

void clv_session_unref(clv_session *s) {
  if (!s || __atomic_fetch_sub(&s->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_node_free(s->node);
  clv_share_free(s->share);
  for (uint32_t i = 0; i < s->n_peers; i++) free(s->peers[i]);
  free(s->peers);
  free(s->edge_counts_in_totals);
  clv_pool_unref(s->pool);
  for (int i = 0; i < MAX_DEVICES; i++) clv_account_unref(s->device_accounts[i]);
  clv_settings_unref(s->settings);
  __atomic_store_n(&s->service->has_freed_session, true, __ATOMIC_RELAXED);
  pthread_mutex_destroy(&s->lock);
  pthread_mutex_destroy(&s->loading_lock);
  free(s);
}

void clv_session_unrefp(clv_session **s) {
  clv_session_unref(*s);
  *s = NULL;
}

static void add_link_bytes(clv_link *link, clv_wire_close_reply *ret) {
  clv_link_counts c;
  if (!link) return;
  clv_link_get_counts(link, &c);
  ret->bytes_in += c.bytes_in;
  ret->bytes_out += c.bytes_out;
}

void clv_session_get_counts(clv_session *s, clv_wire_close_reply *ret) {
  *ret = (clv_wire_close_reply){0};
  pthread_mutex_lock(&s->lock);
  add_link_bytes(s->master_link, ret);
  for (uint32_t i = 0; i < s->n_out; i++) add_link_bytes(s->out[i].link, ret);
  for (uint32_t i = 0; i < s->n_in; i++) add_link_bytes(s->in[i].link, ret);
  clv_module_counts c = {0};
  if (s->node) clv_node_count_work(s->node, &c);
  ret->n_forwards = c.forwards;
  ret->n_backwards = c.backwards;
  pthread_mutex_unlock(&s->lock);
}

static void close_links(clv_session *s) {
  clv_link *links[1 + 2 * MAX_PEER_LINKS];
  uint32_t n = 0;
  pthread_mutex_lock(&s->lock);
  if (s->master_link) links[n++] = s->master_link;
  for (uint32_t i = 0; i < s->n_out; i++) links[n++] = s->out[i].link;
  for (uint32_t i = 0; i < s->n_in; i++) links[n++] = s->in[i].link;
  s->master_link = NULL;
  s->n_out = s->n_in = 0;
  if (s->node) {
    clv_node_set_master(s->node, NULL);
    clv_node_remove_peers(s->node);
  }
  pthread_mutex_unlock(&s->lock);
  for (uint32_t i = 0; i < n; i++) clv_link_begin_close(links[i]);
  for (uint32_t i = 0; i < n; i++) {
    clv_link_close(links[i]);
    clv_link_unref(links[i]);
  }
}

/* Lets queue threads poll if each session's threads leave them a core. The sum over sessions does
 * not matter: rpc polls only while no session computes, and an idle session must not cost the
 * others latency. Caller holds the service's lock. */
static void update_queue_polling(clv_service *v) {
  unsigned threads = 0;
  for (uint32_t i = 0; i < v->n_sessions; i++)
    threads = CLV_MAX(threads, v->sessions[i]->max_module_threads);
  clv_rpc_runtime_set_spin(v->runtime, threads ? clv_spin_us(threads) : 0);
}

void clv_session_record_threads(clv_session *s, unsigned threads) {
  pthread_mutex_lock(&s->service->lock);
  s->max_module_threads = CLV_MAX(s->max_module_threads, threads);
  update_queue_polling(s->service);
  pthread_mutex_unlock(&s->service->lock);
}

void clv_session_close(clv_session *s, const char *reason) {
  if (!s) return;
  clv_service *v = s->service;
  bool mine = false;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions && !mine; i++) {
    if (v->sessions[i] != s) continue;
    v->sessions[i] = v->sessions[--v->n_sessions];
    clv_session_count_totals(s);
    mine = true;
  }
  update_queue_polling(v);
  pthread_mutex_unlock(&v->lock);
  if (!mine) return; /* another thread is closing it */
  CLV_FAILPOINT("session.close");
  clv_account_discharge(s->member->account, CLV_QUOTA_SESSIONS, 1);
  pthread_mutex_lock(&s->lock);
  /* from here on a running LoadModule starts no thread, and no link attaches */
  s->is_closing = true;
  pthread_mutex_unlock(&s->lock);
  clv_wire_close_reply c;
  clv_session_get_counts(s, &c);
  clv_session_keep_last_error(s, reason);
  if (s->node) clv_node_stop(s->node);
  if (s->has_compute_thread) pthread_join(s->compute_thread, NULL);
  pthread_mutex_lock(&v->lock);
  clv_session_count_totals(s);
  pthread_mutex_unlock(&v->lock);
  close_links(s);
  const clv_log_source source = {s->owner, "sessions closed",
                                 (unsigned)s->settings->config->log.lines_per_minute};
  clv_log_limited(CLV_LOG_INFO, "audit", &source,
                  "close session=%s identity=%s reason=\"%s\" bytes_in=%llu bytes_out=%llu "
                  "forwards=%llu backwards=%llu",
                  s->name, s->owner, reason, (unsigned long long)c.bytes_in,
                  (unsigned long long)c.bytes_out, (unsigned long long)c.n_forwards,
                  (unsigned long long)c.n_backwards);
  clv_session_unref(s);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool has_id_and_owner(const clv_session *s, const clv_wire_id *id, const char *owner) {
  return memcmp(&s->id, id, sizeof *id) == 0 && strcmp(s->owner, owner) == 0;
}

/* Checks the session's reference lease against the worker's limit, because values of a lost node
 * are kept for one lease. */
static clv_code check_lease(const clv_session *s, clv_err *err) {
  uint64_t most_ms = s->settings->config->limits.reference_lease_ms;
  if (s->reference_lease_ms <= most_ms) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "a reference lease of %g s is over this worker's limit of %g s: lower "
                  "limits.reference_lease in the session file or raise it in worker.yaml",
                  (double)s->reference_lease_ms / 1e3, (double)most_ms / 1e3);
}

/* Adds a session to the table. Another identity's session may have the same id. Caller holds the
 * service's lock. */
static clv_code add_to_table(clv_service *v, clv_session *s, clv_err *err) {
  if (v->is_draining)
    return clv_fail(err, CLV_UNAVAILABLE,
                    "this worker is draining: it takes no new sessions until it "
                    "has been started again");
  for (uint32_t i = 0; i < v->n_sessions; i++)
    if (has_id_and_owner(v->sessions[i], &s->id, s->owner))
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
  CLV_TRY(clv_alloc(r->n_peer_identities, sizeof *s->peers, &s->peers, err));
  for (; s->n_peers < r->n_peer_identities; s->n_peers++)
    CLV_TRY(clv_strdup(r->peer_identities[s->n_peers], &s->peers[s->n_peers], err));
  return CLV_OK;
}

/* Returns the limits that are reported to the session. Other sessions of the identity may leave it
 * less. */
static clv_wire_limits limits_for_identity(const clv_worker_settings *at, const clv_allow_spec *a) {
  clv_wire_limits l = at->limits;
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
  return clv_share_new(v->scheduler, s->member->tenant, &s->share, err);
}

static clv_code new_session(clv_service *v, clv_worker_settings *at, const char *uri,
                            const clv_wire_open_request *r, clv_session **ret, clv_err *err) {
  clv_session *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->service = v;
  s->refs = 1;
  s->id = r->session_id;
  s->epoch = r->attempt_number;
  s->reference_lease_ms = r->reference_lease_ms;
  s->n_bulk_lanes = r->n_lanes;
  s->opened_ms = clv_now_ns() / 1000000u;
  s->settings = clv_settings_ref(at);
  s->granted_limits = limits_for_identity(at, clv_settings_allowed(at, uri));
  pthread_mutex_lock(&v->lock);
  s->member = clv_service_find_member(v, uri);
  pthread_mutex_unlock(&v->lock);
  s->send_credit = clv_service_credit(v, uri);
  s->owner_protocol = clv_service_protocol(v, uri);
  snprintf(s->owner, sizeof s->owner, "%s", uri);
  snprintf(s->name, sizeof s->name, "%s", r->session_name);
  pthread_mutex_init(&s->loading_lock, NULL);
  pthread_mutex_init(&s->lock, NULL);
  clv_code code = open_accounts(s, err);
  if (code == CLV_OK) code = copy_peers(s, r, err);
  if (code == CLV_OK) code = clv_session_count_totals_init(s, err);
  if (code != CLV_OK) {
    clv_session_unref(s);
    return code;
  }
  *ret = s;
  return CLV_OK;
}

/* Closes the session of an earlier attempt, whose master has ended or lost its connection. */
static void close_earlier_attempt(clv_service *v, const char *uri, const clv_wire_open_request *r) {
  clv_session *earlier = NULL;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions && !earlier; i++)
    if (has_id_and_owner(v->sessions[i], &r->session_id, uri) &&
        v->sessions[i]->epoch < r->attempt_number)
      earlier = clv_session_ref(v->sessions[i]);
  pthread_mutex_unlock(&v->lock);
  if (!earlier) return;
  clv_session_close(earlier, "a newer attempt has taken its place");
  clv_session_unref(earlier);
}

/* Registers the epoch of the attempt, its number within the run. An epoch below a registered one is
 * refused, so an earlier attempt that was disconnected cannot return while a later one runs. */
static clv_code register_attempt(clv_service *v, const char *uri, const clv_wire_open_request *r,
                                 bool *ret_changed, clv_err *err) {
  *ret_changed = false;
  if (!r->is_only_attempt)
    CLV_TRY(clv_epochs_register(v->epochs, uri, r->session_id.bytes, r->attempt_number,
                                &r->config_digest, ret_changed, err));
  close_earlier_attempt(v, uri, r);
  return CLV_OK;
}

clv_code clv_session_open(clv_service *v, const char *uri, const clv_wire_open_request *r,
                          clv_wire_limits *ret_granted, clv_err *err) {
  CLV_AUTO(clv_session_unrefp) clv_session *s = NULL;
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *now = clv_service_settings(v);
  bool changed;
  /* a reload has removed the identity */
  if (!clv_settings_allowed(now, uri)) return clv_fail(err, CLV_DENIED, "not allowed");
  CLV_TRY(new_session(v, now, uri, r, &s, err));
  clv_code code = register_attempt(v, uri, r, &changed, err);
  pthread_mutex_lock(&v->lock);
  if (code == CLV_OK) code = add_to_table(v, s, err);
  if (code != CLV_OK) v->refused[clv_refusal_of(code)]++;
  pthread_mutex_unlock(&v->lock);
  if (code != CLV_OK) {
    const clv_log_source source = {.who = uri, .what = "refused sessions"};
    clv_log_limited(CLV_LOG_WARN, "audit", &source, "deny session=%s identity=%s reason=\"%s\"",
                    r->session_name, uri, err->text);
    clv_service_set_last_error(v, uri, "session %s was refused: %s", r->session_name, err->text);
    return code;
  }
  *ret_granted = s->granted_limits;
  const clv_log_source source = {uri, "sessions opened",
                                 (unsigned)s->settings->config->log.lines_per_minute};
  clv_log_limited(CLV_LOG_INFO, "audit", &source,
                  "open session=%s identity=%s attempt=%llu reason=\"%s\"", s->name, uri,
                  (unsigned long long)s->epoch,
                  changed ? "ok, its configuration is not that of the attempt before" : "ok");
  s = NULL; /* the table owns the session from now on */
  return CLV_OK;
}

clv_code clv_session_find(clv_service *v, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          clv_session **ret, clv_err *err) {
  clv_session *found = NULL;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    clv_session *s = v->sessions[i];
    if (has_id_and_owner(s, id, uri) && s->epoch == epoch) found = clv_session_ref(s);
  }
  pthread_mutex_unlock(&v->lock);
  if (!found) return clv_fail(err, CLV_NOT_FOUND, "no such session");
  *ret = found;
  return CLV_OK;
}
