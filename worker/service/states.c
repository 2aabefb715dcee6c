/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of state of a session's identity: the callbacks of its node for the store, and the audit
 * log.
 */
#include "worker/service/service_int.h"

static void log_audit(const clv_session *s, const char *verb, const char *name, clv_code code,
                      const clv_err *err) {
  const clv_log_source source = {s->owner, "files of state",
                                 (unsigned)s->settings->config->log.lines};
  clv_log_limited(code == CLV_OK ? CLV_LOG_INFO : CLV_LOG_WARN, "audit", &source,
                  "%s state session=%s identity=%s file=%s reason=\"%s\"", verb, s->name, s->owner,
                  name, code == CLV_OK ? "ok" : err->text);
}

/* Logs the result of `verb` on a file of state. Replaces the text of a disk error for the peer,
 * which must not see paths. */
static clv_code finish_request(const clv_session *s, const char *verb, const char *name,
                               clv_code code, clv_err *err) {
  log_audit(s, verb, name, code, err);
  if (code != CLV_UNAVAILABLE) return code;
  return clv_fail(err, code, "file of state '%s': the worker's disk failed; its log says how",
                  name);
}

/* Returns the quota of the identity in the newest settings; 0 if the identity is no longer in
 * `allow`. */
static uint64_t quota_of(const clv_session *s) {
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *now = clv_service_settings(s->service);
  const clv_allow_spec *a = clv_settings_allowed(now, s->owner);
  return a ? a->state_bytes : 0;
}

static clv_code save_file(void *user, const char *name, const clv_weights_tensor *list, size_t n,
                          clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  const clv_session *s = user;
  clv_code code = clv_states_save(s->service->state_files, s->owner, quota_of(s), name, list, n,
                                  ret_digest, ret_bytes, err);
  return finish_request(s, "save", name, code, err);
}

static clv_code open_file(void *user, const char *name, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) {
  const clv_session *s = user;
  clv_code code =
      clv_states_open_file(s->service->state_files, s->owner, name, max_bytes, ret, err);
  return finish_request(s, "load", name, code, err);
}

static clv_code remove_file(void *user, const char *name, clv_err *err) {
  const clv_session *s = user;
  clv_code code = clv_states_remove(s->service->state_files, s->owner, name, err);
  return finish_request(s, "remove", name, code, err);
}

clv_state_files clv_session_files(clv_session *s) {
  if (!s->service->state_files) return (clv_state_files){0};
  return (clv_state_files){s, save_file, open_file, remove_file};
}
