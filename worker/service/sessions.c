/* SPDX-License-Identifier: Apache-2.0
 *
 * References to sessions, closing a session, and finding a session. open.c opens sessions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* ---- references to a session ----------------------------------------------------------------- */

clv_session *clv_session_ref(clv_session *s) {
  __atomic_fetch_add(&s->n_refs, 1, __ATOMIC_RELAXED);
  return s;
}

void clv_session_unref(clv_session *s) {
  if (!s || __atomic_fetch_sub(&s->n_refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_node_free(s->node);
  clv_share_free(s->share);
  for (uint32_t i = 0; i < s->n_peer_identities; i++) free(s->peer_identities[i]);
  free(s->peer_identities);
  free(s->traffic_in_totals);
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
  for (uint32_t i = 0; i < s->n_dialled_links; i++) add_link_bytes(s->dialled_links[i].link, ret);
  for (uint32_t i = 0; i < s->n_accepted_links; i++) add_link_bytes(s->accepted_links[i].link, ret);
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
  for (uint32_t i = 0; i < s->n_dialled_links; i++) links[n++] = s->dialled_links[i].link;
  for (uint32_t i = 0; i < s->n_accepted_links; i++) links[n++] = s->accepted_links[i].link;
  s->master_link = NULL;
  s->n_dialled_links = s->n_accepted_links = 0;
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

/* Sets for how long rpc's queue threads poll before they sleep, so that they poll only if the
 * compute threads of a session leave them a core. Uses the largest number of threads of one module,
 * not the sum over sessions, because rpc polls only while no session computes, and because idle
 * sessions must not add latency to the others. Caller holds the service's lock. */
static void update_queue_polling(clv_service *v) {
  unsigned max_threads = 0;
  for (uint32_t i = 0; i < v->n_sessions; i++)
    max_threads = CLV_MAX(max_threads, v->sessions[i]->max_module_threads);
  clv_rpc_runtime_set_spin(v->runtime, max_threads ? clv_spin_us(max_threads) : 0);
}

void clv_session_record_threads(clv_session *s, unsigned n_threads) {
  pthread_mutex_lock(&s->service->lock);
  s->max_module_threads = CLV_MAX(s->max_module_threads, n_threads);
  update_queue_polling(s->service);
  pthread_mutex_unlock(&s->service->lock);
}

void clv_session_close(clv_session *s, const char *reason) {
  if (!s) return;
  clv_service *v = s->service;
  bool was_in_table = false;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions && !was_in_table; i++) {
    if (v->sessions[i] != s) continue;
    v->sessions[i] = v->sessions[--v->n_sessions];
    clv_session_add_to_totals(s);
    was_in_table = true;
  }
  update_queue_polling(v);
  pthread_mutex_unlock(&v->lock);
  if (!was_in_table) return; /* another thread is closing the session */
  CLV_FAILPOINT("session.close");
  clv_account_discharge(s->member->account, CLV_QUOTA_SESSIONS, 1);
  pthread_mutex_lock(&s->lock);
  /* after this a LoadModule that still runs starts no thread, and no link attaches */
  s->is_closing = true;
  pthread_mutex_unlock(&s->lock);
  clv_wire_close_reply c;
  clv_session_get_counts(s, &c);
  clv_session_keep_last_error(s, reason);
  if (s->node) clv_node_stop(s->node);
  if (s->has_compute_thread) pthread_join(s->compute_thread, NULL);
  pthread_mutex_lock(&v->lock);
  clv_session_add_to_totals(s);
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

/* ---- finding a session ----------------------------------------------------------------------- */

bool clv_session_has_id_and_owner(const clv_session *s, const clv_wire_id *id, const char *owner) {
  return memcmp(&s->id, id, sizeof *id) == 0 && strcmp(s->owner, owner) == 0;
}

clv_code clv_session_find(clv_service *v, const clv_wire_id *id, uint64_t epoch, const char *uri,
                          clv_session **ret, clv_err *err) {
  clv_session *matching_session = NULL;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    clv_session *s = v->sessions[i];
    if (clv_session_has_id_and_owner(s, id, uri) && s->epoch == epoch)
      matching_session = clv_session_ref(s);
  }
  pthread_mutex_unlock(&v->lock);
  if (!matching_session) return clv_fail(err, CLV_NOT_FOUND, "no such session");
  *ret = matching_session;
  return CLV_OK;
}
