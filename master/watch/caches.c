/* SPDX-License-Identifier: Apache-2.0
 *
 * The command cache: lists the caches of this identity on the workers' disks, or deletes them.
 */
#include "master/watch/hello_int.h"

#include <stdio.h>

/* Configuration, identity and runtime for calls to the workers. */
typedef struct cache_client {
  const clv_session_config *config;
  const clv_run_options *o;
  clv_tls_identity *id;
  clv_rpc_runtime *runtime;
} cache_client;

static void cache_client_done(cache_client *a) {
  clv_rpc_runtime_free(a->runtime);
  clv_tls_identity_free(a->id);
}

static clv_code open_runtime(cache_client *a, clv_err *err) {
  const clv_tls_config *t = &a->config->tls;
  clv_rpc_runtime_options ro = {.queue_threads = 2};
  CLV_TRY(clv_tls_floor_install(err));
  CLV_TRY(clv_tls_identity_load(t->ca, t->cert, t->key, &a->id, err));
  CLV_TRY(clv_tls_identity_require(a->id, CLV_TLS_CLIENT, err));
  CLV_TRY(clv_tls_revocation_load(t->crl, a->id, err));
  return clv_rpc_runtime_new(&ro, &a->runtime, err);
}

/* Asks a worker for its caches of this identity, or to delete them. */
static clv_code call_cache_method(const cache_client *a, const clv_remote_spec *w,
                                  clv_wire_cached_reply *ret, clv_err *err) {
  CLV_AUTO(clv_rpc_channel_freep) clv_rpc_channel *channel = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  const clv_wire_cached_request q = {.all = true, .remove = a->o->delete_caches};
  unsigned ms = (unsigned)a->config->limits.connect_timeout_ms;
  clv_rpc_channel_options o = {.target = w->address,
                               .expected_uri = w->identity,
                               .pem = {a->id->ca_pem, a->id->cert_pem, a->id->key_pem}};
  CLV_TRY(clv_rpc_channel_new(a->runtime, &o, &channel, err));
  CLV_TRY(clv_rpc_channel_connect(channel, ms, err));
  CLV_TRY(clv_wire_cached_request_encode(&q, &request, err));
  CLV_TRY(clv_rpc_call(channel, CLV_METHOD_CACHED, request.data, request.len, ms, &reply, err));
  return clv_wire_cached_reply_decode(&(clv_piece){reply.data, reply.len}, 1, ret, err);
}

static void append_json(const char *worker, const clv_wire_cache_status *s, bool deleted,
                        clv_bytes *out) {
  char key[65];
  clv_sha256_hex(&s->key, key);
  clv_bytes_puts(out, "{\"worker\":");
  clv_bytes_add_json(out, worker);
  clv_bytes_printf(out,
                   ",\"key\":\"%s\",\"records\":%llu,\"rows\":%llu,\"row_bytes\":%llu,"
                   "\"disk_bytes\":%llu,\"unused_s\":%llu,\"expires_s\":%llu,\"deleted\":%s}\n",
                   key, (unsigned long long)s->records, (unsigned long long)s->rows,
                   (unsigned long long)s->row_bytes, (unsigned long long)s->disk_bytes,
                   (unsigned long long)s->unused_s, (unsigned long long)s->expires_s,
                   deleted ? "true" : "false");
}

static void append_text_line(const char *worker, const clv_wire_cache_status *s, bool deleted,
                             clv_bytes *out) {
  char key[65], disk[24];
  clv_sha256_hex(&s->key, key);
  clv_bytes_printf(out, "%s  cache %.16s  %llu of %llu rows  %s  unused for %llu s", worker, key,
                   (unsigned long long)s->rows, (unsigned long long)s->records,
                   clv_format_size(s->disk_bytes, disk, sizeof disk),
                   (unsigned long long)s->unused_s);
  if (deleted)
    clv_bytes_puts(out, "  deleted\n");
  else
    clv_bytes_printf(out, "  deleted in %llu s unless it is used\n",
                     (unsigned long long)s->expires_s);
}

/* Appends a line for each cache of a worker. */
static clv_code show_worker(const cache_client *a, const clv_remote_spec *w, clv_bytes *out,
                            clv_err *err) {
  CLV_AUTO(clv_wire_done) clv_wire_cached_reply reply = {0};
  if (call_cache_method(a, w, &reply, err) != CLV_OK)
    return clv_err_prefix(err, "worker %s", w->name);
  for (uint32_t i = 0; i < reply.n_caches; i++)
    (a->o->json ? append_json : append_text_line)(w->name, &reply.caches[i], a->o->delete_caches,
                                                  out);
  if (!reply.n_caches && !a->o->json) clv_bytes_printf(out, "%s  no cache\n", w->name);
  return CLV_OK;
}

clv_exit_code clv_show_caches(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(cache_client_done) cache_client a = {.config = config, .o = o};
  clv_exit_code result = CLV_EXIT_OK;
  clv_err err;
  if (config->n_workers && open_runtime(&a, &err) != CLV_OK)
    return (clv_exit_code)clv_exit_report(CLV_EXIT_CONNECT, &err);
  for (size_t i = 0; i < config->n_workers; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    if (show_worker(&a, &config->workers[i], &text, &err) == CLV_OK)
      fputs(text.data ? text.data : "", stdout);
    else
      result = (clv_exit_code)clv_exit_report(CLV_EXIT_CONNECT, &err);
  }
  return result;
}
