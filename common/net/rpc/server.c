/* SPDX-License-Identifier: Apache-2.0
 *
 * Server: start, accept, drain, counters. server_call.c handles each call.
 *
 * ACCEPT_SLOTS slots always wait for new calls. A slot requests the next call before it handles the
 * one it received, so that a burst of calls does not pile up inside gRPC for want of a slot.
 */
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/rpc/server_int.h"

enum { ACCEPT_SLOTS = 64 };

typedef struct accept_slot {
  rpc_tag tag;
  clv_rpc_server *server;
  grpc_call *call;
  grpc_call_details call_details;
  grpc_metadata_array call_metadata;
} accept_slot;

void rpc_server_begin_slot_or_call(clv_rpc_server *server) {
  pthread_mutex_lock(&server->lock);
  server->n_slots_and_calls++;
  pthread_mutex_unlock(&server->lock);
}

void rpc_server_end_slot_or_call(clv_rpc_server *server) {
  pthread_mutex_lock(&server->lock);
  server->n_slots_and_calls--;
  pthread_cond_broadcast(&server->state_changed);
  pthread_mutex_unlock(&server->lock);
}

/* ---- accepting calls ------------------------------------------------------------------------- */

static void free_accept_slot(accept_slot *slot) {
  clv_rpc_server *server = slot->server;
  grpc_call_details_destroy(&slot->call_details);
  grpc_metadata_array_destroy(&slot->call_metadata);
  free(slot);
  rpc_server_end_slot_or_call(server);
}

static bool request_next_call(accept_slot *slot) {
  clv_rpc_runtime *runtime = slot->server->runtime;
  grpc_server *grpc = slot->server->grpc_handle;
  rpc_tsan_release(&slot->tag); /* another thread may receive the slot from here on */
  return grpc_server_request_call(grpc, &slot->call, &slot->call_details, &slot->call_metadata,
                                  runtime->queue, runtime->admission_queue,
                                  &slot->tag) == GRPC_CALL_OK;
}

static void on_call_accepted(rpc_tag *tag, bool ok) {
  accept_slot *slot = RPC_OWNER(tag, accept_slot, tag);
  clv_rpc_server *server = slot->server;
  if (!ok) {
    free_accept_slot(slot);
    return;
  }
  grpc_call *call = clv_steal(&slot->call);
  grpc_slice method = grpc_slice_ref(slot->call_details.method);
  grpc_call_details_destroy(&slot->call_details);
  grpc_metadata_array_destroy(&slot->call_metadata);
  grpc_call_details_init(&slot->call_details);
  grpc_metadata_array_init(&slot->call_metadata);
  rpc_server_begin_slot_or_call(server); /* counts the call before the slot may be freed */
  if (!request_next_call(slot)) free_accept_slot(slot);
  rpc_server_admit_call(server, call, method);
  grpc_slice_unref(method);
}

static clv_code add_accept_slot(clv_rpc_server *server, clv_err *err) {
  accept_slot *slot = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*slot), &slot, err));
  slot->server = server;
  slot->tag.run = on_call_accepted;
  grpc_call_details_init(&slot->call_details);
  grpc_metadata_array_init(&slot->call_metadata);
  rpc_server_begin_slot_or_call(server);
  if (request_next_call(slot)) return CLV_OK;
  free_accept_slot(slot);
  return clv_fail(err, CLV_INTERNAL, "gRPC cannot wait for calls");
}

/* ---- starting a server ----------------------------------------------------------------------- */

/* Returns why an address cannot be bound. gRPC does not report the reason, so this function tries
 * the bind itself. */
static const char *find_bind_error(const char *listen_address) {
  char host[256];
  const char *colon = strrchr(listen_address, ':');
  size_t len = colon ? (size_t)(colon - listen_address) : 0;
  if (!colon || len >= sizeof(host)) return "it is not HOST:PORT";
  bool has_brackets = len >= 2 && listen_address[0] == '[' && listen_address[len - 1] == ']';
  memcpy(host, listen_address + has_brackets, len - 2 * has_brackets);
  host[len - 2 * has_brackets] = '\0';
  struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  int gai_error = getaddrinfo(host, colon + 1, &hints, &found);
  if (gai_error != 0) return gai_strerror(gai_error);
  int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int on = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const char *why = "gRPC could not use it";
  if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0) why = clv_bind_error_text(errno);
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return why;
}

static grpc_server *create_grpc_server(const clv_rpc_server_options *options) {
  rpc_args args = {.n = 0};
  rpc_args_add_common(&args, &options->limits);
  rpc_args_add_server(&args, options);
  grpc_resource_quota *quota = options->memory_limit ? grpc_resource_quota_create("server") : NULL;
  if (quota) {
    grpc_resource_quota_resize(quota, options->memory_limit);
    rpc_args_add_quota(&args, quota);
  }
  grpc_channel_args list = {args.n, args.args};
  grpc_server *server = grpc_server_create(&list, NULL);
  if (quota) grpc_resource_quota_unref(quota);
  return server;
}

static clv_code start_server(clv_rpc_server *server, clv_err *err) {
  const clv_rpc_server_options *options = &server->options;
  server->grpc_handle = create_grpc_server(options);
  grpc_server_register_completion_queue(server->grpc_handle, server->runtime->queue, NULL);
  grpc_server_register_completion_queue(server->grpc_handle, server->runtime->admission_queue,
                                        NULL);
  grpc_server_credentials *credentials = rpc_server_credentials(&server->certs);
  int port = grpc_server_add_http2_port(server->grpc_handle, options->listen_address, credentials);
  grpc_server_credentials_release(credentials);
  if (port == 0)
    return clv_fail(err, CLV_UNAVAILABLE, "cannot listen on '%s': %s", options->listen_address,
                    find_bind_error(options->listen_address));
  server->port = (unsigned)port;
  grpc_server_start(server->grpc_handle);
  for (int i = 0; i < ACCEPT_SLOTS; i++) CLV_TRY(add_accept_slot(server, err));
  return CLV_OK;
}

static clv_code check_options(const clv_rpc_server_options *options, clv_err *err) {
  if (!options->listen_address) return clv_fail(err, CLV_INVALID, "no address to listen on");
  if (options->n_handler_threads > 64)
    return clv_fail(err, CLV_INVALID, "handler_threads is %u, must be at most 64",
                    options->n_handler_threads);
  if (options->n_stream_methods > 0 && !options->on_stream)
    return clv_fail(err, CLV_INVALID, "stream methods are given, but no on_stream");
  return CLV_OK;
}

/* Prepares everything that needs no network. A failure leaves nothing to free. */
static clv_code prepare_server(clv_rpc_server *server, const clv_rpc_pem *pem, clv_err *err) {
  const clv_rpc_server_options *options = &server->options;
  CLV_TRY(rpc_limits_fill_and_check(&server->options.limits, err));
  CLV_TRY(rpc_server_certs_init(&server->certs, pem, err));
  if (!options->n_handler_threads) server->options.n_handler_threads = 4;
  /* peers.c bounds the requests that wait, for each identity. */
  clv_code code = rpc_pool_init(&server->handler_pool, options->n_handler_threads, UINT_MAX, err);
  if (code != CLV_OK) {
    rpc_server_certs_clear(&server->certs);
    return code;
  }
  rpc_peers_init(&server->peers, options);
  pthread_mutex_init(&server->lock, NULL);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&server->state_changed, &attr);
  pthread_condattr_destroy(&attr);
  return CLV_OK;
}

clv_code clv_rpc_server_new(clv_rpc_runtime *runtime, const clv_rpc_server_options *options,
                            clv_rpc_server **ret_server, clv_err *err) {
  CLV_TRY(check_options(options, err));
  clv_rpc_server *server = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*server), &server, err));
  server->runtime = runtime;
  server->options = *options;
  server->options.pem = (clv_rpc_pem){0}; /* the PEM text stays the caller's */
  server->shutdown_tag.run = rpc_server_on_shutdown;
  clv_code code = prepare_server(server, &options->pem, err);
  if (code != CLV_OK) {
    free(server);
    return code;
  }
  code = start_server(server, err);
  if (code != CLV_OK) {
    clv_rpc_server_free(server);
    return code;
  }
  *ret_server = server;
  return CLV_OK;
}

unsigned clv_rpc_server_port(const clv_rpc_server *server) { return server->port; }

clv_code clv_rpc_server_replace_certs(clv_rpc_server *server, const clv_rpc_pem *pem,
                                      clv_err *err) {
  return rpc_server_certs_replace(&server->certs, pem, err);
}

void clv_rpc_server_get_counts(clv_rpc_server *server, clv_rpc_server_counts *ret_counts) {
  *ret_counts = (clv_rpc_server_counts){
      .n_calls = atomic_load(&server->n_calls),
      .n_calls_denied = atomic_load(&server->n_calls_denied),
      .n_calls_unauthenticated = atomic_load(&server->n_calls_unauthenticated),
      .n_calls_refused = atomic_load(&server->n_calls_refused),
      .n_active_calls = atomic_load(&server->n_active_calls),
  };
  pthread_mutex_lock(&server->peers.lock);
  ret_counts->n_cut_peers = server->peers.n_cut_peers;
  pthread_mutex_unlock(&server->peers.lock);
}

unsigned clv_rpc_server_count_connections(const clv_rpc_server *server) {
  return rpc_count_connections(server->port);
}

/* ---- draining and freeing a server ----------------------------------------------------------- */

void rpc_server_on_shutdown(rpc_tag *tag, bool ok) {
  (void)ok;
  clv_rpc_server *server = RPC_OWNER(tag, clv_rpc_server, shutdown_tag);
  pthread_mutex_lock(&server->lock);
  server->is_grpc_shut_down = true;
  pthread_cond_broadcast(&server->state_changed);
  pthread_mutex_unlock(&server->lock);
}

/* Waits until gRPC has shut down and all slots and calls have ended, at most `ms` (UINT_MAX:
 * forever). */
static bool wait_until_drained(clv_rpc_server *server, unsigned ms) {
  uint64_t until = clv_now_ns() + 1000000ull * ms;
  struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
  int rc = 0;
  pthread_mutex_lock(&server->lock);
  while (!(server->is_grpc_shut_down && server->n_slots_and_calls == 0) && rc == 0)
    rc = ms == UINT_MAX ? pthread_cond_wait(&server->state_changed, &server->lock)
                        : pthread_cond_timedwait(&server->state_changed, &server->lock, &at);
  bool is_drained = server->is_grpc_shut_down && server->n_slots_and_calls == 0;
  pthread_mutex_unlock(&server->lock);
  return is_drained;
}

clv_code clv_rpc_server_drain(clv_rpc_server *server, unsigned deadline_ms, clv_err *err) {
  pthread_mutex_lock(&server->lock);
  bool first = !server->is_draining;
  server->is_draining = true;
  pthread_mutex_unlock(&server->lock);
  if (first) {
    rpc_tsan_release(&server->shutdown_tag);
    grpc_server_shutdown_and_notify(server->grpc_handle, server->runtime->queue,
                                    &server->shutdown_tag);
  }
  if (wait_until_drained(server, deadline_ms)) return CLV_OK;
  /* First cancel with a reason that reaches the clients, then cancel the rest. */
  rpc_cancel_streams_of(server->runtime, server, CLV_UNAVAILABLE, "the server is shutting down");
  bool is_drained = wait_until_drained(server, 500);
  if (!is_drained) {
    grpc_server_cancel_all_calls(server->grpc_handle);
    wait_until_drained(server, UINT_MAX);
  }
  return clv_fail(err, CLV_DEADLINE, "calls were still running after %u ms and were cancelled",
                  deadline_ms);
}

void clv_rpc_server_free(clv_rpc_server *server) {
  if (!server) return;
  clv_err ignored; /* ignores CLV_DEADLINE, because the caller wants the calls to be cancelled */
  if (clv_rpc_server_drain(server, 0, &ignored) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "server freed: %s", ignored.text);
  grpc_server_destroy(server->grpc_handle);
  rpc_pool_stop(&server->handler_pool);
  rpc_peers_clear(&server->peers);
  rpc_server_certs_clear(&server->certs);
  pthread_cond_destroy(&server->state_changed);
  pthread_mutex_destroy(&server->lock);
  free(server);
}

void clv_rpc_server_freep(clv_rpc_server **server) {
  clv_rpc_server_free(*server);
  *server = NULL;
}
