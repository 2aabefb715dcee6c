/* SPDX-License-Identifier: Apache-2.0
 *
 * The callbacks with which a session's node stores and reads rows of caches, the audit log of their
 * failures, and the deletion of expired caches. A cache belongs to the session's owner and is on
 * the worker's disk. Its rows are outputs of frozen layers, one row for each record of the training
 * data.
 */
#include <stdio.h>

#include "worker/service/service_int.h"

enum { SWEEP_INTERVAL_MS = 1000 }; /* shortest time between two evictions of expired caches */

static void log_audit(const char *verb, const char *session, const char *owner,
                      const char *reason) {
  const clv_log_source source = {.peer = owner, .event_kind = "caches"};
  clv_log_limited(CLV_LOG_WARN, "audit", &source, "%s cache session=%s identity=%s reason=\"%s\"",
                  verb, session, owner, reason);
}

/* Logs a failed request, and returns its code. Replaces the text of a disk error, because the text
 * has a path, which the master must not see. */
static clv_code finish_request(const clv_session *s, const char *verb, clv_code code,
                               clv_err *err) {
  if (code != CLV_OK) log_audit(verb, s->name, s->owner, err->text);
  if (code != CLV_UNAVAILABLE) return code;
  return clv_fail(err, code, "the worker's disk failed; its log says how");
}

/* Returns the quota of the identity `uri` for caches, bytes; 0: the identity may have no caches. */
static uint64_t get_cache_quota(const clv_worker_settings *newest_settings, const char *uri) {
  const clv_allow_spec *a = clv_settings_find_allowed(newest_settings, uri);
  return a && a->role == CLV_ROLE_MASTER ? a->cache_bytes : 0;
}

bool clv_service_has_caches_for(const clv_service *s, const clv_worker_settings *newest_settings,
                                const char *uri) {
  return s->caches && get_cache_quota(newest_settings, uri) > 0;
}

/* Fills *ret with the cache that a frame names, and *ret_max_bytes with the quota of the session's
 * owner for caches, by the newest settings. CLV_EXHAUSTED: the owner has no such quota. */
static clv_code get_cache_settings(const clv_session *s, const clv_wire_cached *c, clv_cache *ret,
                                   uint64_t *ret_max_bytes, clv_err *err) {
  CLV_AUTO(clv_settings_unrefp)
  clv_worker_settings *newest_settings = clv_service_ref_settings(s->service);
  *ret_max_bytes = get_cache_quota(newest_settings, s->owner);
  *ret = (clv_cache){c->key, c->n_records,
                     CLV_MIN(c->keep_s, newest_settings->config->cache_ttl_ms / 1000)};
  if (*ret_max_bytes) return CLV_OK;
  return clv_fail(
      err, CLV_EXHAUSTED,
      "this identity has no quota for caches: set its allow[].cache_bytes in worker.yaml");
}

static clv_code put_rows(void *user, const clv_wire_cached *c, const int64_t *rows,
                         const clv_tensor *values, clv_err *err) {
  const clv_session *s = user;
  clv_cache cache;
  uint64_t max_bytes;
  clv_code code = get_cache_settings(s, c, &cache, &max_bytes, err);
  if (code == CLV_OK)
    code = clv_caches_put(s->service->caches, s->owner, max_bytes, &cache, rows, values, err);
  if (code == CLV_OK)
    __atomic_add_fetch(&s->service->cache_bytes_stored, values->bytes, __ATOMIC_RELAXED);
  return finish_request(s, "put", code, err);
}

static clv_code get_rows_shape(void *user, const clv_wire_cached *c, size_t n, clv_dtype *ret_dtype,
                               clv_shape *ret_shape, clv_err *err) {
  const clv_session *s = user;
  clv_cache cache;
  uint64_t max_bytes;
  clv_code code = get_cache_settings(s, c, &cache, &max_bytes, err);
  if (code == CLV_OK)
    code = clv_caches_get_rows_shape(s->service->caches, s->owner, &cache, n, ret_dtype, ret_shape,
                                     err);
  return finish_request(s, "get", code, err);
}

static clv_code get_rows(void *user, const clv_wire_cached *c, const int64_t *rows,
                         clv_tensor *values, clv_err *err) {
  const clv_session *s = user;
  const clv_cache cache = {c->key, c->n_records, c->keep_s};
  clv_code code = clv_caches_get(s->service->caches, s->owner, &cache, rows, values, err);
  if (code == CLV_OK)
    __atomic_add_fetch(&s->service->cache_bytes_read, values->bytes, __ATOMIC_RELAXED);
  return finish_request(s, "get", code, err);
}

clv_row_caches clv_session_cache_callbacks(clv_session *s) {
  if (!s->service->caches) return (clv_row_caches){0};
  return (clv_row_caches){s, put_rows, get_rows_shape, get_rows};
}

/* ---- eviction of expired caches -------------------------------------------------------------- */

void clv_service_evict_caches(clv_service *s) {
  uint64_t now_ms = clv_now_ns() / 1000000u;
  if (!s->caches || now_ms - s->caches_evicted_ms < SWEEP_INTERVAL_MS) return;
  s->caches_evicted_ms = now_ms;
  uint32_t n_deleted = clv_caches_evict_expired(s->caches, (int64_t)(clv_wall_ms() / 1000));
  if (n_deleted)
    clv_log_event(CLV_LOG_INFO, "expired", "%u cache%s deleted", n_deleted, CLV_S(n_deleted));
}
