/* SPDX-License-Identifier: Apache-2.0
 *
 * Hello calls outside of a session (clv_watch_call_hello), and the devices of the stages that
 * workers report in their answers (clv_query_device_kinds, for `plan --ask`).
 */
#include "master/watch/hello_int.h"

#include <stdio.h>
#include <string.h>

/* A gRPC channel, and the time limit in ms for a call on it. */
typedef struct timed_channel {
  clv_rpc_channel *channel;
  unsigned ms;
} timed_channel;

static clv_code call_hello(void *timed_call, const clv_bytes *request, clv_bytes *reply,
                           clv_err *err) {
  const timed_channel *t = timed_call;
  return clv_rpc_call_unary(t->channel, CLV_METHOD_HELLO, request->data, request->len, t->ms, reply,
                            err);
}

clv_code clv_watch_call_hello(const clv_session_config *config, clv_rpc_runtime *runtime,
                              const clv_remote_spec *worker, const clv_tls_identity *id,
                              clv_wire_hello_reply *ret, clv_err *err) {
  CLV_AUTO(clv_rpc_channel_freep) clv_rpc_channel *channel = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  clv_rpc_channel_options o = {.target_address = worker->address,
                               .expected_uri = worker->identity,
                               .pem = {id->ca_pem, id->cert_pem, id->key_pem}};
  const clv_wire_about own_about = {.unix_ms = clv_wall_ms()};
  unsigned ms = (unsigned)config->limits.connect_timeout_ms;
  CLV_TRY(clv_rpc_channel_new(runtime, &o, &channel, err));
  uint64_t began_ns = clv_now_ns();
  CLV_TRY(clv_rpc_channel_connect(channel, ms, err));
  uint64_t spent_ms = (clv_now_ns() - began_ns) / 1000000u;
  timed_channel t = {channel, (unsigned)(ms - CLV_MIN(spent_ms, ms - 1))};
  CLV_TRY(clv_wire_hello_exchange(&own_about, call_hello, &t, &reply, err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(clv_wire_hello_reply_decode(&piece, 1, ret, err));
  return clv_wire_limits_check(&ret->about.limits, err);
}

/* ---- devices of the stages ------------------------------------------------------------------- */

/* A stage and its device, as the node reports it. */
typedef struct stage_device {
  const char *stage, *node, *device;
  clv_wire_device_kind kind;
} stage_device;

static void append_stage_text(const stage_device *s, clv_bytes *out) {
  clv_bytes_printf(out, "stage '%s' computes on %s of %s: %s%s%s%s%s\n", s->stage, s->device,
                   s->node, s->kind.kind, s->kind.isa[0] ? ", " : "", s->kind.isa,
                   s->kind.libraries[0] ? ", " : "", s->kind.libraries);
}

static void append_stage_json(const stage_device *s, clv_bytes *out) {
  const struct {
    const char *key, *value;
  } members[] = {{"{\"stage\":", s->stage},   {",\"node\":", s->node},
                 {",\"device\":", s->device}, {",\"kind\":", s->kind.kind},
                 {",\"isa\":", s->kind.isa},  {",\"libraries\":", s->kind.libraries}};
  for (size_t i = 0; i < CLV_COUNT(members); i++) {
    clv_bytes_puts(out, members[i].key);
    clv_bytes_add_json(out, members[i].value);
  }
  clv_bytes_puts(out, "}\n");
}

static clv_code append_stage(clv_blueprint *b, uint32_t i, const char *node,
                             const clv_wire_hello_reply *h, bool json, clv_bytes *out,
                             clv_err *err) {
  const clv_stage_spec *s = &b->config->stages[i];
  int device = clv_wire_find_device(h, s->device);
  if (device < 0)
    return clv_fail(err, CLV_NOT_FOUND, "worker %s has no device '%s' for stage '%s'", node,
                    s->device, s->name);
  const stage_device stage = {s->name, node, h->device_names[device], h->device_kinds[device]};
  clv_blueprint_set_device(b, i, h->device_names[device]);
  (json ? append_stage_json : append_stage_text)(&stage, out);
  return CLV_OK;
}

/* Fails if the worker that must cache the outputs of the frozen first stage has no cache. */
static clv_code check_worker_has_cache(const clv_session_config *c, int node,
                                       const clv_wire_hello_reply *h, clv_err *err) {
  if (!c->stages[0].cache || c->n_stages < 2 || c->stages[1].worker != node) return CLV_OK;
  if (clv_wire_has_capability(&h->about, CLV_CAPABILITY_CACHED)) return CLV_OK;
  clv_session_fail_at(c, c->stages[0].cache_pos, err,
                      "worker '%s' keeps no caches for this identity: it needs state_dir and "
                      "allow[].cache_bytes in its worker.yaml, or is of an older version",
                      c->workers[node].name);
  return err->code = CLV_NOT_FOUND;
}

static void note_old_protocol(const char *worker, const clv_wire_about *worker_about) {
  if (clv_wire_protocol_has_acks(worker_about->protocol)) return;
  clv_notice(CLV_LOG_WARN, "notice",
             "worker %s speaks protocol %u: a lost connection ends its link; upgrade it", worker,
             worker_about->protocol);
}

/* Asks one node for the devices of its stages, stores them in b and appends a line for each stage
 * to `out`. node -1: the master itself, which needs no call. */
static clv_code query_node(clv_blueprint *b, int node, clv_rpc_runtime *runtime,
                           const clv_tls_identity *id, bool json, clv_bytes *out, clv_err *err) {
  const clv_session_config *c = b->config;
  const clv_backend *cpu = clv_backend_cpu();
  const char *device = cpu->device, *name = node < 0 ? "master" : c->workers[node].name;
  clv_wire_device_kind kind = {cpu->name, clv_backend_isa(cpu), clv_backend_libraries(cpu)};
  CLV_AUTO(clv_wire_message_clear)
  clv_wire_hello_reply h = {.n_devices = 1, .device_names = &device, .device_kinds = &kind};
  bool has_reply = node < 0;
  for (uint32_t i = 0; i < b->n_stages; i++) {
    if (c->stages[i].worker != node) continue;
    if (!has_reply && clv_watch_call_hello(c, runtime, &c->workers[node], id, &h, err) != CLV_OK)
      return clv_err_prefix(err, "worker %s", name);
    if (!has_reply && node >= 0) {
      CLV_TRY(check_worker_has_cache(c, node, &h, err));
      note_old_protocol(name, &h.about);
    }
    has_reply = true;
    CLV_TRY(append_stage(b, i, name, &h, json, out, err));
  }
  return CLV_OK;
}

static clv_code open_identity(const clv_tls_config *t, clv_tls_identity **ret, clv_err *err) {
  CLV_TRY(clv_tls_identity_load(t->ca, t->cert, t->key, ret, err));
  CLV_TRY(clv_tls_identity_require_usage(*ret, CLV_TLS_CLIENT, err));
  return clv_tls_revocation_load(t->crl, *ret, err);
}

clv_code clv_query_device_kinds(clv_blueprint *b, bool json, clv_bytes *out, clv_err *err) {
  const clv_session_config *c = b->config;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *id = NULL;
  CLV_AUTO(clv_rpc_runtime_freep) clv_rpc_runtime *runtime = NULL;
  clv_rpc_runtime_options ro = {.n_queue_threads = 2};
  CLV_TRY(clv_tls_set_min_version(err));
  if (c->n_workers && open_identity(&c->tls, &id, err) != CLV_OK)
    /* replaces the code, because callers take CLV_NOT_FOUND for a missing device */
    return err->code = CLV_UNAUTHENTICATED;
  CLV_TRY(clv_rpc_runtime_new(&ro, &runtime, err));
  for (int node = -1; node < (int)c->n_workers; node++)
    CLV_TRY(query_node(b, node, runtime, id, json, out, err));
  return CLV_OK;
}
