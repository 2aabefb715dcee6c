/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounts: charge, discharge and report the usage of quotas. Pools charge tensors, slabs charge
 * records; the worker makes one account for itself, each identity and each session.
 */
#include "common/net/fair/account_int.h"

#include <stdlib.h>

/* Names of a unit of each quota, in the singular and in the plural. */
static const char *const quota_names[CLV_N_QUOTAS][2] = {
    [CLV_QUOTA_SESSIONS] = {"session", "sessions"},
    [CLV_QUOTA_BYTES] = {"byte", "bytes"},
    [CLV_QUOTA_TENSORS] = {"tensor", "tensors"},
    [CLV_QUOTA_CALLS] = {"call", "calls"},
};

clv_code clv_account_new(const clv_account_options *o, clv_account **ret, clv_err *err) {
  clv_account *a;
  CLV_TRY(clv_alloc(1, sizeof *a, &a, err));
  a->o = *o;
  a->refs = 1;
  if (o->parent) clv_account_ref(o->parent);
  pthread_mutex_init(&a->lock, NULL);
  *ret = a;
  return CLV_OK;
}

clv_account *clv_account_ref(clv_account *a) {
  __atomic_fetch_add(&a->refs, 1, __ATOMIC_RELAXED);
  return a;
}

void clv_account_unref(clv_account *a) {
  if (!a || __atomic_fetch_sub(&a->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  for (clv_quota q = 0; q < CLV_N_QUOTAS; q++) clv_account_discharge(a->o.parent, q, a->usage[q]);
  clv_account_unref(a->o.parent);
  pthread_mutex_destroy(&a->lock);
  free(a);
}

void clv_account_unrefp(clv_account **a) {
  clv_account_unref(*a);
  *a = NULL;
}

/* ---- charging accounts ----------------------------------------------------------------------- */

static uint64_t limit_of_quota(const clv_account *a, clv_quota q) {
  return __atomic_load_n(&a->o.limits[q], __ATOMIC_RELAXED);
}

void clv_account_set_limit(clv_account *a, clv_quota q, uint64_t limit) {
  __atomic_store_n(&a->o.limits[q], limit, __ATOMIC_RELAXED);
}

static void raise_peak(clv_account *a, clv_quota q) {
  uint64_t used = __atomic_load_n(&a->usage[q], __ATOMIC_RELAXED);
  uint64_t peak = __atomic_load_n(&a->peak_usage[q], __ATOMIC_RELAXED);
  while (used > peak && !__atomic_compare_exchange_n(&a->peak_usage[q], &peak, used, true,
                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

static bool add_within_limit(clv_account *a, clv_quota q, uint64_t n) {
  uint64_t used = __atomic_load_n(&a->usage[q], __ATOMIC_RELAXED), limit = limit_of_quota(a, q);
  do {
    if (limit && (n > limit || used > limit - n)) return false;
  } while (!__atomic_compare_exchange_n(&a->usage[q], &used, used + n, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return true;
}

/* Discharges the accounts from `a` up to `end`, which is not discharged. */
static void discharge_up_to(clv_account *a, const clv_account *end, clv_quota q, uint64_t n) {
  for (; a != end; a = a->o.parent) __atomic_fetch_sub(&a->usage[q], n, __ATOMIC_RELAXED);
}

clv_account *clv_account_try_charge(clv_account *a, clv_quota q, uint64_t n) {
  for (clv_account *at = a; at; at = at->o.parent) {
    if (add_within_limit(at, q, n)) continue;
    discharge_up_to(a, at, q, n);
    return at;
  }
  for (clv_account *at = a; at; at = at->o.parent) raise_peak(at, q);
  return NULL;
}

/* Reports an exceeded quota. Errors of a shared account omit its usage, so that no identity learns
 * what the others use. */
clv_code clv_account_fail_exceeded(clv_account *a, clv_quota q, uint64_t n, clv_err *err) {
  const char *key = a->o.limit_keys[q], *raise_text = key ? "; raise " : "";
  const char *file_text = key ? " in worker.yaml" : "", *verb = n == 1 ? "exceeds" : "exceed";
  const char *unit = quota_names[q][n != 1];
  uint64_t used = clv_account_usage(a, q), limit = limit_of_quota(a, q);
  if (a->o.is_shared && a->o.reports_remaining)
    return clv_fail(
        err, CLV_EXHAUSTED, "%llu %s more %s the quota of %s, which has %llu left%s%s%s",
        (unsigned long long)n, unit, verb, a->o.owner_in_messages,
        (unsigned long long)(limit - CLV_MIN(used, limit)), raise_text, key ? key : "", file_text);
  if (a->o.is_shared)
    return clv_fail(err, CLV_EXHAUSTED, "%llu %s more %s the quota of %s%s%s%s",
                    (unsigned long long)n, unit, verb, a->o.owner_in_messages, raise_text,
                    key ? key : "", file_text);
  return clv_fail(
      err, CLV_EXHAUSTED, "%llu %s more %s the quota of %s: %llu in use, the limit is %llu%s%s%s",
      (unsigned long long)n, unit, verb, a->o.owner_in_messages, (unsigned long long)used,
      (unsigned long long)limit, raise_text, key ? key : "", file_text);
}

clv_code clv_account_charge(clv_account *a, clv_quota q, uint64_t n, clv_err *err) {
  clv_account *exceeded = clv_account_try_charge(a, q, n);
  return exceeded ? clv_account_fail_exceeded(exceeded, q, n, err) : CLV_OK;
}

void clv_account_discharge(clv_account *a, clv_quota q, uint64_t n) {
  if (n) discharge_up_to(a, NULL, q, n);
}

/* ---- reading the usage of accounts ----------------------------------------------------------- */

uint64_t clv_account_usage(const clv_account *a, clv_quota q) {
  return __atomic_load_n(&a->usage[q], __ATOMIC_RELAXED);
}

uint64_t clv_account_peak_usage(const clv_account *a, clv_quota q) {
  return __atomic_load_n(&a->peak_usage[q], __ATOMIC_RELAXED);
}

uint64_t clv_account_own_limit(const clv_account *a, clv_quota q) { return limit_of_quota(a, q); }

bool clv_account_is_within(const clv_account *a, const clv_account *ancestor) {
  while (a && a != ancestor) a = a->o.parent;
  return a != NULL;
}

clv_account *clv_account_root(clv_account *a) {
  while (a->o.parent) a = a->o.parent;
  return a;
}
