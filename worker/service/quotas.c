/* SPDX-License-Identifier: Apache-2.0
 *
 * What identities may use: an account for each entry of `allow`, below one for the whole worker,
 * and above one for each session; and turns to compute by the weights of the entries.
 */
#include <stdlib.h>
#include <unistd.h>

#include "worker/service/service_int.h"

enum { SLICE_NS = 1000000 }; /* a wake-up costs a twentieth of it */

uint64_t clv_service_memory(const clv_service *s) {
  return s->config->memory_limit == CLV_MEMORY_NONE ? 0 : s->config->memory_limit;
}

static clv_code new_total(clv_service *s, clv_err *err) {
  clv_account_options o = {.of = "all sessions of this worker",
                           .most = {[CLV_QUOTA_BYTES] = clv_service_memory(s)},
                           .key = {[CLV_QUOTA_BYTES] = "memory_limit"},
                           .shared = true};
  return clv_account_new(&o, &s->total, err);
}

static clv_code new_identity(clv_service *s, size_t i, clv_err *err) {
  const clv_allow_spec *a = &s->config->allow[i];
  clv_account_options o = {
      .above = s->total,
      .of = "all sessions of this identity",
      .most = {[CLV_QUOTA_SESSIONS] = a->sessions ? a->sessions : s->limits.sessions,
               [CLV_QUOTA_BYTES] = a->bytes,
               [CLV_QUOTA_TENSORS] = a->tensors,
               [CLV_QUOTA_CALLS] = a->calls},
      .key = {[CLV_QUOTA_SESSIONS] = a->sessions ? "allow[].sessions" : "limits.sessions",
              [CLV_QUOTA_BYTES] = "allow[].bytes",
              [CLV_QUOTA_TENSORS] = "allow[].tensors",
              [CLV_QUOTA_CALLS] = "allow[].calls"}};
  return clv_account_new(&o, &s->identities[i], err);
}

clv_code clv_service_new_session_account(clv_service *s, size_t identity, clv_account **ret,
                                         clv_err *err) {
  clv_account_options o = {.above = s->identities[identity],
                           .of = "this session",
                           .most = {[CLV_QUOTA_BYTES] = s->limits.session_bytes,
                                    [CLV_QUOTA_TENSORS] = s->limits.tensors,
                                    [CLV_QUOTA_CALLS] = s->config->limits.calls},
                           .key = {[CLV_QUOTA_BYTES] = "limits.session_bytes",
                                   [CLV_QUOTA_TENSORS] = "limits.tensors",
                                   [CLV_QUOTA_CALLS] = "limits.calls"}};
  return clv_account_new(&o, ret, err);
}

static clv_code new_turnstile(clv_service *s, clv_err *err) {
  CLV_AUTO(clv_freep) uint64_t *weights = NULL;
  size_t n = s->config->n_allow;
  long all = CLV_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
  CLV_TRY(clv_alloc(n, sizeof *weights, &weights, err));
  for (size_t i = 0; i < n; i++) weights[i] = s->config->allow[i].weight;
  clv_turnstile_options o = {
      .cores = (unsigned)(s->config->cores.n ? s->config->cores.n : (size_t)all),
      .n_tenants = n,
      .weights = weights,
      .slice_ns = SLICE_NS};
  return clv_turnstile_new(&o, &s->turnstile, err);
}

clv_code clv_service_open_accounts(clv_service *s, clv_err *err) {
  size_t n = s->config->n_allow;
  CLV_TRY(clv_alloc(n, sizeof *s->identities, &s->identities, err));
  CLV_TRY(new_total(s, err));
  for (size_t i = 0; i < n; i++) CLV_TRY(new_identity(s, i, err));
  return new_turnstile(s, err);
}

void clv_service_close_accounts(clv_service *s) {
  for (size_t i = 0; s->identities && i < s->config->n_allow; i++)
    clv_account_unref(s->identities[i]);
  free(s->identities);
  clv_account_unref(s->total);
  clv_turnstile_free(s->turnstile);
}
