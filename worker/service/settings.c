/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings that a reload may change: allowed identities, peers, limits, artifacts. All of them are
 * in one reference-counted snapshot, which a reload replaces by another snapshot. A session keeps
 * the snapshot that was the newest when it was opened. But eviction.c checks the session's
 * identities against the newest snapshot.
 *
 * Some data must outlive a snapshot: the account, the share of the cores and the counters of each
 * identity that was ever allowed, and the traffic totals of each peer. The service finds them by
 * the name of the identity or peer, so no usage is lost in a reload.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* ---- snapshots of the settings --------------------------------------------------------------- */

static clv_wire_limits limits_from_config(const clv_worker_config *c) {
  clv_wire_limits l = clv_wire_limits_default();
  l.sessions = (uint32_t)c->limits.sessions;
  l.tensors = (uint32_t)c->limits.tensors;
  l.concurrent_calls = (uint32_t)c->limits.concurrent_calls;
  l.session_bytes = c->limits.session_bytes;
  l.message_bytes = c->limits.message_bytes;
  l.credit_bytes = c->limits.credit_bytes;
  l.peer_timeout_ms = (uint32_t)c->limits.peer_timeout_ms;
  return l;
}

clv_code clv_settings_new(const clv_worker_config *config, clv_worker_settings **ret,
                          clv_err *err) {
  clv_worker_settings *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->n_refs = 1;
  s->config = config;
  s->limits = limits_from_config(config);
  *ret = s;
  return CLV_OK;
}

clv_worker_settings *clv_settings_ref(clv_worker_settings *s) {
  __atomic_fetch_add(&s->n_refs, 1, __ATOMIC_RELAXED);
  return s;
}

void clv_settings_unref(clv_worker_settings *s) {
  if (!s || __atomic_fetch_sub(&s->n_refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_worker_config_free(s->owned_config);
  free(s);
}

void clv_settings_unrefp(clv_worker_settings **s) {
  clv_settings_unref(*s);
  *s = NULL;
}

clv_worker_settings *clv_service_ref_settings(clv_service *v) {
  pthread_mutex_lock(&v->lock);
  clv_worker_settings *s = clv_settings_ref(v->settings);
  pthread_mutex_unlock(&v->lock);
  return s;
}

const clv_allow_spec *clv_settings_find_allowed(const clv_worker_settings *s, const char *uri) {
  for (size_t i = 0; i < s->config->n_allow; i++)
    if (strcmp(s->config->allow[i].identity, uri) == 0) return &s->config->allow[i];
  return NULL;
}

/* ---- members, one for each identity ---------------------------------------------------------- */

static void member_free(clv_member *m) {
  if (!m) return;
  free(m->identity);
  clv_account_unref(m->account);
  free(m);
}

static clv_code fill_member(clv_service *v, const clv_allow_spec *a, clv_member *m, clv_err *err) {
  CLV_TRY(clv_strdup(a->identity, &m->identity, err));
  CLV_TRY(clv_service_new_identity_account(v, &m->account, err));
  return clv_fair_scheduler_add_tenant(v->scheduler, a->weight, &m->tenant_number, err);
}

static clv_code add_member(clv_service *v, const clv_allow_spec *a, clv_err *err) {
  clv_member *m, **larger_array = realloc(v->members, (v->n_members + 1) * sizeof(clv_member *));
  if (!larger_array) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  v->members = larger_array;
  CLV_TRY(clv_alloc(1, sizeof *m, &m, err));
  clv_code code = fill_member(v, a, m, err);
  if (code == CLV_OK)
    v->members[v->n_members++] = m;
  else
    member_free(m);
  return code;
}

/* ---- traffic totals, one for each peer ------------------------------------------------------- */

static clv_code add_traffic_total(clv_service *v, const char *peer, clv_err *err) {
  clv_link_traffic_total *e,
      **larger_array =
          realloc(v->traffic_totals, (v->n_traffic_totals + 1) * sizeof(clv_link_traffic_total *));
  if (!larger_array) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  v->traffic_totals = larger_array;
  CLV_TRY(clv_alloc(1, sizeof *e, &e, err));
  clv_code code = clv_strdup(peer, &e->peer_name, err);
  if (code == CLV_OK)
    v->traffic_totals[v->n_traffic_totals++] = e;
  else
    free(e);
  return code;
}

/* ---- preparing and replacing the settings ---------------------------------------------------- */

clv_code clv_settings_prepare(clv_service *v, const clv_worker_config *c, clv_err *err) {
  /* the total with the name "" is for the links to the master */
  if (!v->n_traffic_totals) CLV_TRY(add_traffic_total(v, "", err));
  for (size_t i = 0; i < c->n_peers; i++)
    if (!clv_service_find_traffic_total(v, c->peers[i].name))
      CLV_TRY(add_traffic_total(v, c->peers[i].name, err));
  for (size_t i = 0; i < c->n_allow; i++)
    if (!clv_service_find_member(v, c->allow[i].identity))
      CLV_TRY(add_member(v, &c->allow[i], err));
  return CLV_OK;
}

void clv_settings_swap(clv_service *v, clv_worker_settings *new_settings) {
  clv_worker_settings *old_settings = v->settings;
  v->settings = new_settings;
  clv_service_set_quotas(v);
  clv_settings_unref(old_settings);
}

void clv_settings_done(clv_service *v) {
  if (!v) return;
  for (size_t i = 0; i < v->n_members; i++) member_free(v->members[i]);
  for (size_t i = 0; i < v->n_traffic_totals; i++) {
    free(v->traffic_totals[i]->peer_name);
    free(v->traffic_totals[i]);
  }
  free(v->members);
  free(v->traffic_totals);
  clv_settings_unref(v->settings);
}

uint64_t clv_service_state_quota(clv_service *v, const char *uri) {
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *newest_settings = clv_service_ref_settings(v);
  const clv_allow_spec *a = clv_settings_find_allowed(newest_settings, uri);
  return a ? a->state_bytes : 0;
}
