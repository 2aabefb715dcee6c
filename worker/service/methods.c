/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/service/service_int.h"

static const clv_piece *iov_as_pieces(const clv_iov *iov) { return (const clv_piece *)iov; }

/* Lists the libraries of each backend, under the name of its device. The name for the processor is
 * "kernels". */
static uint32_t list_libraries(const clv_service *v, clv_wire_library *ret) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < v->n_devices; i++) {
    const clv_backend *b = v->devices[i].backend;
    const char *name = b == clv_backend_cpu() ? "kernels" : b->device;
    if (clv_service_is_first_with_backend(v, i))
      ret[n++] = (clv_wire_library){name, clv_backend_libraries(b)};
  }
  return n;
}

enum { MAX_CAPABILITIES = 12 }; /* largest number of capabilities that a worker reports */

/* Lists the worker's capabilities for the identity `uri`. Files of state need a state_dir in
 * worker.yaml. Caches need a state_dir and a quota of the identity. */
static uint32_t list_capabilities(const clv_service *v, const clv_worker_settings *newest_settings,
                                  const char *uri, const char **ret) {
  uint32_t n = 0;
  ret[n++] = "chunks";
  ret[n++] = "direct";
  ret[n++] = CLV_CAPABILITY_REFERENCE_LEASE;
  ret[n++] = CLV_CAPABILITY_FIXED;
  ret[n++] = CLV_CAPABILITY_STATE_PIECES;
  ret[n++] = CLV_CAPABILITY_TIES;
  ret[n++] = CLV_CAPABILITY_FROZEN_BF16;
  ret[n++] = CLV_CAPABILITY_BF16_VALUES;
  ret[n++] = CLV_CAPABILITY_EMA;
  if (v->state_files) ret[n++] = CLV_CAPABILITY_STATE_FILES;
  if (v->state_files) ret[n++] = CLV_CAPABILITY_KEPT;
  if (clv_service_has_caches_for(v, newest_settings, uri)) ret[n++] = CLV_CAPABILITY_CACHED;
  return n;
}

/* Fills *a with the worker's description for a master or peer that speaks protocol version
 * `protocol`. *a points into the arrays `capabilities` and `libraries`. */
static void fill_about(const clv_service *v, const clv_worker_settings *newest_settings,
                       const char *uri, uint32_t protocol, clv_wire_about *a,
                       const char **capabilities, clv_wire_library *libraries) {
  *a = (clv_wire_about){.protocol = protocol,
                        .n_capabilities = list_capabilities(v, newest_settings, uri, capabilities),
                        .n_libraries = list_libraries(v, libraries),
                        .capabilities = capabilities,
                        .libraries = libraries,
                        .limits = newest_settings->limits,
                        .software = "cleave " CLV_VERSION,
                        .isa = clv_backend_isa(clv_service_backend(v)),
                        .unix_ms = clv_wall_ms()};
}

static clv_code list_artifacts(const clv_worker_config *config, clv_wire_artifact *list,
                               clv_err *err) {
  for (size_t i = 0; i < config->n_artifacts && i < CLV_WIRE_LIST; i++) {
    list[i].name = config->artifacts[i].name;
    if (!clv_sha256_parse(config->artifacts[i].sha256, &list[i].sha256))
      return clv_fail(err, CLV_INTERNAL, "artifact %zu has no digest", i);
  }
  return CLV_OK;
}

static clv_code on_hello(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                         clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_request r = {0};
  CLV_TRY(clv_wire_hello_request_decode(iov_as_pieces(request), n, &r, err));
  if (clv_wire_limits_check(&r.about.limits, err) != CLV_OK) {
    clv_err_prefix(err, "this caller");
    return err->code = CLV_PRECONDITION;
  }
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *newest_settings = clv_service_ref_settings(v);
  clv_service_record_hello(v, peer->uri, &r.about);
  const char *capabilities[MAX_CAPABILITIES], *device_names[MAX_DEVICES];
  clv_wire_device_kind device_kinds[MAX_DEVICES];
  clv_wire_library libraries[MAX_DEVICES];
  clv_wire_artifact artifacts[CLV_WIRE_LIST];
  CLV_TRY(list_artifacts(newest_settings->config, artifacts, err));
  for (uint32_t i = 0; i < v->n_devices; i++) {
    const clv_backend *b = v->devices[i].backend;
    device_names[i] = v->devices[i].name;
    device_kinds[i] = (clv_wire_device_kind){b->name, clv_backend_isa(b), clv_backend_libraries(b)};
  }
  long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
  clv_wire_hello_reply out = {
      .incarnation = v->incarnation,
      .worker_name = v->config->name ? v->config->name : "worker",
      .n_cores = (uint32_t)CLV_MAX(n_cores, 1L),
      .n_threads = (uint32_t)CLV_MAX(n_cores, 1L),
      .n_devices = v->n_devices,
      .device_names = device_names,
      .device_kinds = device_kinds,
      .n_artifacts = (uint32_t)CLV_MIN(newest_settings->config->n_artifacts, (size_t)CLV_WIRE_LIST),
      .artifacts = artifacts};
  fill_about(v, newest_settings, peer->uri, r.about.protocol, &out.about, capabilities, libraries);
  return clv_wire_hello_reply_encode(&out, reply, err);
}

static clv_code on_open_session(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                                size_t n, clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_message_clear) clv_wire_open_request r = {0};
  CLV_TRY(clv_wire_open_request_decode(iov_as_pieces(request), n, &r, err));
  clv_wire_open_reply out = {.incarnation = v->incarnation};
  CLV_TRY(clv_session_open(v, peer->uri, &r, &out.granted_limits, err));
  return clv_wire_open_reply_encode(&out, reply, err);
}

static clv_code on_close_session(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                                 size_t n, clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_message_clear) clv_wire_close_request r = {0};
  CLV_TRY(clv_wire_close_request_decode(iov_as_pieces(request), n, &r, err));
  CLV_AUTO(clv_session_unrefp) clv_session *s = NULL;
  CLV_TRY(clv_session_find(v, &r.session_id, r.attempt_number, peer->uri, &s, err));
  clv_wire_close_reply out;
  clv_session_get_counts(s, &out);
  clv_session_close(s, "closed by its master");
  return clv_wire_close_reply_encode(&out, reply, err);
}

static clv_code on_load_module(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                               size_t n, clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request r = {0};
  CLV_TRY(clv_wire_load_request_decode(iov_as_pieces(request), n, &r, err));
  CLV_AUTO(clv_session_unrefp) clv_session *s = NULL;
  CLV_TRY(clv_session_find(v, &r.session_id, r.attempt_number, peer->uri, &s, err));
  CLV_AUTO(clv_freep) clv_wire_param *params = NULL;
  clv_wire_spec outputs[1];
  CLV_TRY(clv_alloc(CLV_WIRE_PARAMS, sizeof *params, &params, err));
  clv_wire_load_reply out = {.params = params, .output_specs = outputs};
  clv_code code = clv_session_load_module(s, &r, peer->is_cancelled, &out, reply, err);
  if (code != CLV_OK) {
    clv_session_log_error(s, "module %u '%s' was not loaded: %s", r.module_index, r.module_name,
                          err->text);
    return code;
  }
  const clv_log_source source = {peer->uri, "modules loaded",
                                 (unsigned)s->settings->config->log.lines_per_minute};
  clv_log_limited(CLV_LOG_INFO, "log", &source,
                  "session %s: module %u '%s' loaded, %u parameter%s, %llu bytes", s->name,
                  r.module_index, r.module_name, out.n_params, CLV_S(out.n_params),
                  (unsigned long long)out.memory_bytes);
  return CLV_OK;
}

/* ---- status and health ----------------------------------------------------------------------- */

/* Encodes a status reply. Halves the number of sessions until the reply fits into a message, and
 * counts the omitted sessions. */
static clv_code encode_fitting_sessions(clv_wire_status_reply *r, clv_bytes *reply, clv_err *err) {
  clv_code code = clv_wire_status_reply_encode(r, reply, err);
  while (code == CLV_EXHAUSTED && r->n_sessions) {
    r->n_sessions_left_out += r->n_sessions - r->n_sessions / 2;
    r->n_sessions /= 2;
    code = clv_wire_status_reply_encode(r, reply, err);
  }
  return code;
}

/* Handles Status. A master sees its own sessions, an observer sees all sessions. */
static clv_code on_status(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                          clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_message_clear) clv_wire_status_request r = {0};
  CLV_AUTO(clv_service_snapshot_done) clv_service_snapshot snapshot = {0};
  CLV_TRY(clv_wire_status_request_decode(iov_as_pieces(request), n, &r, err));
  CLV_TRY(clv_service_snapshot_take(v, peer->uri, r.all_sessions ? NULL : &r.session_id, &snapshot,
                                    err));
  snapshot.status.about.protocol =
      r.newest_protocol < CLV_WIRE_PROTOCOL ? CLV_WIRE_PROTOCOL_MIN : CLV_WIRE_PROTOCOL;
  if (!r.all_sessions && !snapshot.status.n_sessions)
    return clv_fail(err, CLV_NOT_FOUND, "no such session");
  return encode_fitting_sessions(&snapshot.status, reply, err);
}

static clv_code on_health(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                          clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  char service[CLV_WIRE_NAME + 1];
  (void)peer;
  CLV_TRY(clv_wire_health_request_decode(iov_as_pieces(request), n, service, err));
  if (service[0] && strcmp(service, "cleave.v1.Worker") != 0)
    return clv_fail(err, CLV_NOT_FOUND, "unknown service: ask for \"\" or \"cleave.v1.Worker\"");
  pthread_mutex_lock(&v->lock);
  bool is_draining = v->is_draining;
  pthread_mutex_unlock(&v->lock);
  return clv_wire_health_reply_encode(is_draining ? CLV_HEALTH_NOT_SERVING : CLV_HEALTH_SERVING,
                                      reply, err);
}

const clv_rpc_unary clv_service_methods[] = {
    {.method = CLV_METHOD_HELLO, .max_request_bytes = CLV_WIRE_UNARY_MAX, .handler = on_hello},
    {.method = CLV_METHOD_OPEN_SESSION,
     .max_request_bytes = CLV_WIRE_UNARY_MAX,
     .handler = on_open_session},
    {.method = CLV_METHOD_CLOSE_SESSION,
     .max_request_bytes = CLV_WIRE_UNARY_MAX,
     .handler = on_close_session},
    {.method = CLV_METHOD_LOAD_MODULE,
     .max_request_bytes = CLV_WIRE_UNARY_MAX,
     .handler = on_load_module},
    {.method = CLV_METHOD_STATUS, .max_request_bytes = CLV_WIRE_UNARY_MAX, .handler = on_status},
    {.method = CLV_METHOD_KEPT,
     .max_request_bytes = CLV_WIRE_UNARY_MAX,
     .handler = clv_service_on_kept},
    {.method = CLV_METHOD_HEALTH_CHECK, .max_request_bytes = 4096, .handler = on_health},
};
const size_t clv_service_n_methods = CLV_COUNT(clv_service_methods);

/* ---- authorisation --------------------------------------------------------------------------- */

/* bit masks of roles */
enum {
  MASTER_BIT = 1u << CLV_ROLE_MASTER,
  PEER_BIT = 1u << CLV_ROLE_PEER,
  OBSERVER_BIT = 1u << CLV_ROLE_OBSERVER
};

/* roles that may call each method, as a bit mask */
static const struct {
  const char *method;
  unsigned roles;
} permissions[] = {
    {CLV_METHOD_HELLO, MASTER_BIT | PEER_BIT | OBSERVER_BIT},
    {CLV_METHOD_OPEN_SESSION, MASTER_BIT},
    {CLV_METHOD_CLOSE_SESSION, MASTER_BIT},
    {CLV_METHOD_LOAD_MODULE, MASTER_BIT},
    {CLV_METHOD_SESSION, MASTER_BIT | PEER_BIT},
    {CLV_METHOD_STATUS, MASTER_BIT | OBSERVER_BIT},
    {CLV_METHOD_KEPT, MASTER_BIT},
    {CLV_METHOD_HEALTH_CHECK, MASTER_BIT | PEER_BIT | OBSERVER_BIT},
    {CLV_METHOD_REFLECTION, MASTER_BIT | OBSERVER_BIT},
};

void clv_service_record_hello(clv_service *s, const char *uri, const clv_wire_about *about) {
  pthread_mutex_lock(&s->lock);
  clv_member *m = clv_service_find_member(s, uri);
  if (m) m->receive_window_bytes = about->limits.credit_bytes;
  if (m) m->protocol = about->protocol;
  pthread_mutex_unlock(&s->lock);
}

/* Logs a denied call, and makes it the last error of the caller's identity and of the worker. */
static void record_denied_call(clv_service *s, const char *uri, const char *method,
                               const char *why) {
  const clv_log_source source = {.peer = uri, .event_kind = "denied calls"};
  clv_log_limited(CLV_LOG_WARN, "audit", &source, "deny identity=%s method=%s reason=\"%s\"", uri,
                  method, why);
  clv_service_set_last_error(s, uri, "%s was refused %s: %s", uri, method, why);
}

clv_code clv_service_authorize(void *user, const clv_rpc_peer *peer, const char *method,
                               clv_err *err) {
  clv_service *s = user;
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *newest_settings = clv_service_ref_settings(s);
  const clv_allow_spec *a = clv_settings_find_allowed(newest_settings, peer->uri);
  clv_err why;
  if (clv_tls_revocation_check_expiry(&why) != CLV_OK) {
    record_denied_call(s, peer->uri, method, why.text);
    return clv_fail(err, CLV_DENIED,
                    "this worker's revocation list (tls.crl) has expired: renew it and reload");
  }
  for (size_t i = 0; a && i < CLV_COUNT(permissions); i++)
    if (strcmp(permissions[i].method, method) == 0 && (permissions[i].roles >> a->role & 1))
      return CLV_OK;
  record_denied_call(s, peer->uri, method, a ? "not for this role" : "identity not in allow");
  return clv_fail(err, CLV_DENIED, "not allowed");
}
