/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the accounts that check quotas. Each session has an account. Its parent is the account of
 * the session's identity, whose parent is the account of all sessions of the worker. Also makes the
 * scheduler, which shares the cores between identities by their weights in `allow`.
 */
#include <stdlib.h>
#include <unistd.h>

#include "worker/service/service_int.h"

/* length of a time slice; waking a thread costs about a twentieth of this */
enum { SLICE_NS = 1000000 };

uint64_t clv_settings_memory_limit(const clv_worker_settings *settings) {
  return settings->config->memory_limit == CLV_MEMORY_NONE ? 0 : settings->config->memory_limit;
}

static clv_code new_total_account(clv_service *s, clv_err *err) {
  clv_account_options o = {.owner_in_messages = "all sessions of this worker",
                           .limit_keys = {[CLV_QUOTA_BYTES] = "memory_limit"},
                           .is_shared = true};
  return clv_account_new(&o, &s->all_sessions_account, err);
}

clv_code clv_service_new_identity_account(clv_service *s, clv_account **ret, clv_err *err) {
  clv_account_options o = {
      .parent = s->all_sessions_account,
      .owner_in_messages = "all sessions of this identity",
      .limit_keys = {[CLV_QUOTA_SESSIONS] = "limits.sessions or allow[].sessions",
                     [CLV_QUOTA_BYTES] = "allow[].bytes",
                     [CLV_QUOTA_TENSORS] = "allow[].tensors",
                     [CLV_QUOTA_CALLS] = "allow[].calls"}};
  return clv_account_new(&o, ret, err);
}

static void set_member_quotas(clv_service *s, const clv_allow_spec *a) {
  const clv_member *m = clv_service_find_member(s, a->identity);
  uint64_t sessions = a->sessions ? a->sessions : s->settings->limits.sessions;
  clv_account_set_limit(m->account, CLV_QUOTA_SESSIONS, sessions);
  clv_account_set_limit(m->account, CLV_QUOTA_BYTES, a->bytes);
  clv_account_set_limit(m->account, CLV_QUOTA_TENSORS, a->tensors);
  clv_account_set_limit(m->account, CLV_QUOTA_CALLS, a->calls);
  clv_fair_scheduler_set_weight(s->scheduler, m->tenant_number, a->weight);
}

void clv_service_set_quotas(clv_service *s) {
  const clv_worker_config *c = s->settings->config;
  clv_account_set_limit(s->all_sessions_account, CLV_QUOTA_BYTES,
                        clv_settings_memory_limit(s->settings));
  for (size_t i = 0; i < c->n_allow; i++) set_member_quotas(s, &c->allow[i]);
}

clv_code clv_service_new_session_account(clv_session *s, clv_account **ret, clv_err *err) {
  const clv_worker_settings *settings = s->settings;
  clv_account_options o = {.parent = s->member->account,
                           .owner_in_messages = "this session",
                           .limits = {[CLV_QUOTA_BYTES] = settings->limits.session_bytes,
                                      [CLV_QUOTA_TENSORS] = settings->limits.tensors,
                                      [CLV_QUOTA_CALLS] = settings->config->limits.calls},
                           .limit_keys = {[CLV_QUOTA_BYTES] = "limits.session_bytes",
                                          [CLV_QUOTA_TENSORS] = "limits.tensors",
                                          [CLV_QUOTA_CALLS] = "limits.calls"}};
  return clv_account_new(&o, ret, err);
}

static clv_code new_scheduler(clv_service *s, clv_err *err) {
  long n_host_cores = CLV_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
  clv_fair_scheduler_options o = {
      .n_cores = (unsigned)(s->config->cores.n ? s->config->cores.n : (size_t)n_host_cores),
      .slice_ns = SLICE_NS};
  return clv_fair_scheduler_new(&o, &s->scheduler, err);
}

clv_code clv_service_open_accounts(clv_service *s, clv_err *err) {
  CLV_TRY(new_total_account(s, err));
  CLV_TRY(clv_service_open_devices(s, err));
  return new_scheduler(s, err);
}

void clv_service_close_accounts(clv_service *s) {
  clv_service_close_devices(s);
  clv_account_unref(s->all_sessions_account);
  clv_fair_scheduler_free(s->scheduler);
}
