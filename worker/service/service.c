/* SPDX-License-Identifier: Apache-2.0 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/service/service_int.h"

enum { TRIM_INTERVAL_MS = 250 }; /* shortest time between two calls of malloc_trim */
enum { DETACHED_MS = 2000 };     /* time that a draining worker waits for a master to reconnect */
/* CONNECTION_BYTES: memory that gRPC may use for each connection. MIN_TRANSPORT_BYTES: least memory
 * that gRPC may use besides the memory of two messages. */
enum { CONNECTION_BYTES = 1 << 20, MIN_TRANSPORT_BYTES = 64 << 20 };

static void on_reflection_request(void *user, clv_rpc_stream *stream, const clv_iov *pieces,
                                  size_t n) {
  (void)user;
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  clv_err err;
  clv_code code = clv_wire_answer_reflection((const clv_piece *)pieces, n, &reply, &err);
  clv_rpc_piece piece = {.data = reply.data, .len = reply.len};
  if (code == CLV_OK) code = clv_rpc_stream_send(stream, &piece, 1, &err);
  if (code != CLV_OK) clv_rpc_stream_cancel(stream, code, err.text);
}

static void on_reflection_closed(void *user, clv_rpc_stream *stream, clv_code code,
                                 const char *text) {
  (void)user, (void)stream, (void)code, (void)text;
}

static clv_code on_stream(void *user, const char *method, const clv_rpc_peer *peer,
                          clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err) {
  clv_service *s = user;
  if (strcmp(method, CLV_METHOD_REFLECTION) == 0) {
    *ret_events = (clv_rpc_stream_events){.on_message = on_reflection_request,
                                          .on_closed = on_reflection_closed};
    return CLV_OK;
  }
  return clv_lane_accept(&s->lane_acceptor, peer, stream, ret_events, err);
}

static clv_rpc_pem pem_from_identity(const clv_tls_identity *id) {
  return (clv_rpc_pem){id->ca_pem, id->cert_pem, id->key_pem};
}

/* Returns the memory of the transport, bytes: enough for a read buffer for each connection and four
 * messages of the largest size: at most half of memory_limit, but at least enough for two such
 * messages. */
size_t clv_service_transport_memory(const clv_worker_config *c) {
  uint64_t max_bytes = c->limits.connections * CONNECTION_BYTES + 4 * c->limits.message_bytes;
  uint64_t min_bytes = 2 * c->limits.message_bytes + MIN_TRANSPORT_BYTES;
  if (c->memory_limit != CLV_MEMORY_NONE) max_bytes = CLV_MIN(max_bytes, c->memory_limit / 2);
  return (size_t)CLV_MAX(max_bytes, min_bytes);
}

static clv_code start_server(clv_service *s, clv_err *err) {
  static const char *const stream_methods[] = {CLV_METHOD_SESSION, CLV_METHOD_REFLECTION};
  const clv_worker_config *c = s->config;
  clv_rpc_server_options o = {.listen_address = c->listen,
                              .pem = s->pem,
                              .limits = {.max_message_bytes = c->limits.message_bytes,
                                         .peer_timeout_ms = (unsigned)c->limits.peer_timeout_ms},
                              .user = s,
                              .authorize = clv_service_authorize,
                              .unary_methods = clv_service_methods,
                              .n_unary_methods = clv_service_n_methods,
                              .stream_methods = stream_methods,
                              .n_stream_methods = CLV_COUNT(stream_methods),
                              .on_stream = on_stream,
                              .find_connection = clv_tls_accepted_find_connection,
                              .on_call_delivered = clv_tls_accepted_on_call,
                              .on_message_delivered = clv_tls_accepted_on_message,
                              .memory_limit = clv_service_transport_memory(c),
                              .max_calls_per_peer = (unsigned)c->limits.concurrent_calls,
                              .handshake_timeout_ms = (unsigned)c->limits.handshake_timeout_ms};
  return clv_rpc_server_new(s->runtime, &o, &s->server, err);
}

static clv_code open_settings(clv_service *s, clv_err *err) {
  clv_worker_settings *settings;
  CLV_TRY(clv_settings_prepare(s, s->config, err));
  CLV_TRY(clv_settings_new(s->config, &settings, err));
  clv_settings_swap(s, settings);
  return CLV_OK;
}

clv_code clv_service_open(const clv_worker_config *config, const clv_backends *other_backends,
                          const clv_tls_identity *identity, clv_rpc_runtime *runtime,
                          clv_service **ret, clv_err *err) {
  clv_service *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->config = config;
  s->other_backends = *other_backends;
  s->runtime = runtime;
  s->lane_acceptor = (clv_lane_acceptor){s, clv_session_find_link};
  s->started_ms = clv_now_ns() / 1000000u;
  pthread_mutex_init(&s->lock, NULL);
  clv_code code = clv_random_bytes(&s->incarnation, sizeof s->incarnation, err);
  clv_rpc_pem pem = pem_from_identity(identity);
  if (code == CLV_OK) code = clv_rpc_pem_copy(&pem, &s->pem, err);
  s->certificate_expiry_s = identity->not_after;
  if (code == CLV_OK) code = clv_service_open_accounts(s, err);
  if (code == CLV_OK) code = open_settings(s, err);
  if (code == CLV_OK) code = clv_shared_tensors_new(&s->shared_tensors, err);
  if (code == CLV_OK) code = clv_epochs_open(config->state_dir, &s->epochs, err);
  if (code == CLV_OK && config->state_dir)
    code = clv_states_open(config->state_dir, &s->state_files, err);
  if (code == CLV_OK && config->state_dir) code = clv_state_writer_new(s, &s->state_writer, err);
  if (code == CLV_OK && config->state_dir)
    code = clv_caches_open(config->state_dir, &s->caches, err);
  if (code == CLV_OK) code = start_server(s, err);
  if (code != CLV_OK) {
    clv_service_close(s);
    return code;
  }
  *ret = s;
  return CLV_OK;
}

unsigned clv_service_port(const clv_service *s) { return clv_rpc_server_port(s->server); }

/* Applies new settings and certificates. The steps that can fail come first, so that a failure
 * changes nothing. Caller holds the service's lock. */
static clv_code apply_reload(clv_service *s, const clv_worker_config *config,
                             const clv_tls_identity *identity, clv_worker_settings *new_settings,
                             clv_err *err) {
  CLV_AUTO(clv_rpc_pem_clear) clv_rpc_pem new_pem = {0};
  clv_rpc_pem pem = pem_from_identity(identity);
  CLV_TRY(clv_settings_prepare(s, config, err));
  CLV_TRY(clv_rpc_pem_copy(&pem, &new_pem, err));
  CLV_TRY(clv_rpc_server_replace_certs(s->server, &new_pem, err));
  clv_rpc_pem old_pem = s->pem;
  s->pem = new_pem;
  new_pem = old_pem;
  s->certificate_expiry_s = identity->not_after;
  clv_settings_swap(s, clv_settings_ref(new_settings));
  return CLV_OK;
}

clv_code clv_service_reload(clv_service *s, clv_worker_config **config,
                            const clv_tls_identity *identity, clv_err *err) {
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *new_settings = NULL;
  CLV_TRY(clv_settings_new(*config, &new_settings, err));
  pthread_mutex_lock(&s->lock);
  clv_code code = apply_reload(s, *config, identity, new_settings, err);
  ++*(code == CLV_OK ? &s->n_reloads : &s->n_failed_reloads);
  pthread_mutex_unlock(&s->lock);
  if (code == CLV_OK) new_settings->owned_config = clv_steal(config);
  return code;
}

/* Returns a session that must be closed now, with a new reference; NULL: none. *ret_why: the
 * reason. */
static clv_session *find_ended_session(clv_service *s, const char **ret_why) {
  clv_session *ended_session = NULL;
  pthread_mutex_lock(&s->lock);
  /* read the time under the lock, so that no session in the table was opened later */
  uint64_t now_ms = clv_now_ns() / 1000000u;
  for (uint32_t i = 0; i < s->n_sessions && !ended_session; i++) {
    clv_session *x = s->sessions[i];
    pthread_mutex_lock(&x->lock);
    bool has_lease_expired =
        !x->master_link && now_ms - x->opened_ms > x->settings->config->limits.lease_ms;
    if (x->is_closing || has_lease_expired) {
      ended_session = clv_session_ref(x);
      *ret_why = x->is_closing ? x->abort_text : "no master attached within the lease";
    }
    pthread_mutex_unlock(&x->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return ended_session;
}

/* Logs how many calls of callers without an identity were refused since the last time. rpc refuses
 * and counts these calls, so clv_service_authorize does not see them. */
static void log_refused_without_identity(clv_service *s) {
  clv_rpc_server_counts c;
  clv_rpc_server_get_counts(s->server, &c);
  const clv_log_source source = {.peer = "?", .event_kind = "calls without an identity"};
  if (c.n_calls_unauthenticated > s->n_refused_without_identity)
    clv_log_limited(
        CLV_LOG_WARN, "audit", &source,
        "deny identity=? calls=%llu reason=\"a certificate without exactly one URI\"",
        (unsigned long long)(c.n_calls_unauthenticated - s->n_refused_without_identity));
  s->n_refused_without_identity = c.n_calls_unauthenticated;
}

/* Returns memory of ended sessions to the system, because malloc keeps the memory in arenas of
 * threads that may not exist any more. Also clears the caches of generated kernels: a kernel that
 * is cached already starts sooner, which would reveal the shapes of earlier sessions to the next
 * one. Does nothing within TRIM_INTERVAL_MS of the last time, so that opening and closing sessions
 * does not slow down other sessions. */
static void return_unused_memory(clv_service *s) {
  uint64_t now_ms = clv_now_ns() / 1000000u;
  if (now_ms - s->memory_returned_ms < TRIM_INTERVAL_MS) return;
  if (!__atomic_exchange_n(&s->has_freed_session, false, __ATOMIC_RELAXED)) return;
  for (uint32_t i = 0; i < s->n_devices; i++) {
    const clv_backend *b = s->devices[i].backend;
    if (b->trim && clv_service_is_first_with_backend(s, i)) b->trim(b);
  }
  malloc_trim(0);
  s->memory_returned_ms = now_ms;
}

/* Returns the session with index i of the table, with a new reference; NULL: there are fewer
 * sessions. */
static clv_session *ref_session(clv_service *s, uint32_t i) {
  pthread_mutex_lock(&s->lock);
  clv_session *x = i < s->n_sessions ? clv_session_ref(s->sessions[i]) : NULL;
  pthread_mutex_unlock(&s->lock);
  return x;
}

/* Ends links whose lost connections were not made again in time. If a session ends during the loop,
 * another session takes its index in the table, and the loop may skip that session until the next
 * tick. */
static void end_expired_links(clv_service *s) {
  uint32_t i = 0;
  for (clv_session *x; (x = ref_session(s, i++)) != NULL; clv_session_unref(x))
    clv_session_end_expired_links(x);
}

void clv_service_tick(clv_service *s) {
  const char *why;
  end_expired_links(s);
  log_refused_without_identity(s);
  clv_log_limited_tick();
  clv_service_evict(s);
  for (clv_session *x; (x = find_ended_session(s, &why)) != NULL; clv_session_unref(x)) {
    clv_service_set_last_error(s, x->owner, "session %s: %s", x->name, why);
    clv_session_close(x, why);
  }
  clv_service_evict_caches(s);
  return_unused_memory(s);
}

void clv_service_count_sessions(clv_service *s, unsigned *ret_n_sessions,
                                unsigned *ret_n_contexts) {
  *ret_n_contexts = 0;
  pthread_mutex_lock(&s->lock);
  *ret_n_sessions = s->n_sessions;
  for (uint32_t i = 0; i < s->n_sessions; i++) {
    clv_context_counts k = {0};
    pthread_mutex_lock(&s->sessions[i]->lock);
    if (s->sessions[i]->node) clv_node_context_count(s->sessions[i]->node, &k);
    pthread_mutex_unlock(&s->sessions[i]->lock);
    *ret_n_contexts += (unsigned)k.contexts;
  }
  pthread_mutex_unlock(&s->lock);
}

static uint32_t count_sessions(clv_service *s) {
  pthread_mutex_lock(&s->lock);
  uint32_t n = s->n_sessions;
  pthread_mutex_unlock(&s->lock);
  return n;
}

/* Marks a session for closing if its master has not been connected for DETACHED_MS. Its steps
 * cannot continue, so a draining worker does not wait until the master's lease has expired. */
static void end_if_detached(clv_session *x, uint64_t now_ms) {
  pthread_mutex_lock(&x->lock);
  bool is_attached = x->master_link && !clv_link_is_mending(x->master_link);
  x->detached_since_ms = is_attached ? 0 : x->detached_since_ms ? x->detached_since_ms : now_ms;
  if (!is_attached && !x->is_closing && now_ms - x->detached_since_ms >= DETACHED_MS) {
    x->is_closing = true;
    snprintf(x->abort_text, sizeof x->abort_text,
             "the worker is draining, and the master is not connected");
  }
  pthread_mutex_unlock(&x->lock);
}

static void end_detached_sessions(clv_service *s) {
  uint32_t i = 0;
  for (clv_session *x; (x = ref_session(s, i++)) != NULL; clv_session_unref(x))
    end_if_detached(x, clv_now_ns() / 1000000u);
}

void clv_service_drain(clv_service *s, unsigned timeout_ms) {
  uint64_t deadline_ns = clv_now_ns() + (uint64_t)timeout_ms * 1000000u;
  pthread_mutex_lock(&s->lock);
  s->is_draining = true;
  pthread_mutex_unlock(&s->lock);
  while (count_sessions(s) && clv_now_ns() < deadline_ns) {
    end_detached_sessions(s);
    clv_service_tick(s);
    nanosleep(&(struct timespec){0, 50 * 1000 * 1000}, NULL);
  }
}

void clv_service_close(clv_service *s) {
  if (!s) return;
  for (;;) {
    pthread_mutex_lock(&s->lock);
    clv_session *x = s->n_sessions ? clv_session_ref(s->sessions[0]) : NULL;
    pthread_mutex_unlock(&s->lock);
    if (!x) break;
    clv_session_close(x, "the worker is stopping");
    clv_session_unref(x);
  }
  clv_rpc_server_free(s->server);
  clv_state_writer_free(s->state_writer);
  clv_rpc_pem_clear(&s->pem);
  clv_settings_done(s);
  clv_service_close_accounts(s);
  clv_epochs_free(s->epochs);
  clv_states_free(s->state_files);
  clv_shared_tensors_free(s->shared_tensors);
  clv_caches_free(s->caches);
  pthread_mutex_destroy(&s->lock);
  free(s);
}
