/* SPDX-License-Identifier: Apache-2.0
 *
 * The callbacks with which a session's node saves, loads and removes files of state of the
 * session's owner.
 */
#include "worker/service/service_int.h"

static clv_code log_result(const clv_session *s, const char *verb, const char *name, clv_code code,
                           const clv_err *err) {
  clv_service_log_state(verb, s->name, s->owner, name,
                        (unsigned)s->settings->config->log.lines_per_minute, code, err);
  return code;
}

static bool is_session_closing(void *user) {
  clv_session *s = user;
  pthread_mutex_lock(&s->lock);
  bool is_closing = s->is_closing;
  pthread_mutex_unlock(&s->lock);
  return is_closing;
}

static clv_code save_file(void *user, const char *name, const clv_weights_tensor *list, size_t n,
                          clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  clv_session *s = user;
  const clv_cancel_hook cancel_hook = {is_session_closing, s};
  const clv_state_save_request r = {.list = list,
                                    .n = n,
                                    .max_bytes = clv_service_state_quota(s->service, s->owner),
                                    .cancel_hook = &cancel_hook};
  clv_code code =
      clv_states_save(s->service->state_files, s->owner, name, &r, ret_digest, ret_bytes, err);
  return log_result(s, "save", name, code, err);
}

static clv_code open_file(void *user, const char *name, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) {
  clv_session *s = user;
  const clv_cancel_hook cancel_hook = {is_session_closing, s};
  clv_code code = clv_states_open_file(s->service->state_files, s->owner, name, max_bytes,
                                       &cancel_hook, ret, err);
  return log_result(s, "load", name, code, err);
}

static clv_code remove_file(void *user, const char *name, clv_err *err) {
  clv_session *s = user;
  const clv_cancel_hook cancel_hook = {is_session_closing, s};
  clv_code code = clv_states_remove(s->service->state_files, s->owner, name, &cancel_hook, err);
  return log_result(s, "remove", name, code, err);
}

static clv_code save_later(void *user, clv_state_save *save, clv_err *err) {
  const clv_session *s = user;
  return clv_state_writer_add(s->service->state_writer, s, save, err);
}

static void withdraw_save(void *user, const clv_state_save *save) {
  const clv_session *s = user;
  clv_state_writer_withdraw(s->service->state_writer, save);
}

clv_state_files clv_session_file_callbacks(clv_session *s) {
  if (!s->service->state_files) return (clv_state_files){0};
  return (clv_state_files){s, save_file, open_file, remove_file, save_later, withdraw_save};
}
