/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/service/service_int.h"

static const clv_piece *pieces_of(const clv_iov *iov) { return (const clv_piece *)iov; }

/* What this worker says of itself. The arrays are the caller's. */
static void about_us(clv_service *v, clv_wire_about *a, const char **capabilities,
                     clv_wire_library *libraries) {
  const clv_backend *b = clv_backend_cpu();
  capabilities[0] = "chunks";
  capabilities[1] = "direct";
  libraries[0] = (clv_wire_library){"kernels", b->libraries()};
  *a = (clv_wire_about){.protocol = CLV_WIRE_PROTOCOL,
                        .n_capabilities = 2,
                        .n_libraries = 1,
                        .capabilities = capabilities,
                        .libraries = libraries,
                        .limits = v->limits,
                        .software = "cleave " CLV_VERSION,
                        .isa = b->isa(),
                        .unix_ms = clv_wall_ms()};
}

static clv_code artifacts_of(const clv_worker_config *config, clv_wire_artifact *list,
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
  CLV_AUTO(clv_wire_done) clv_wire_hello_request r = {0};
  CLV_TRY(clv_wire_hello_request_decode(pieces_of(request), n, &r, err));
  if (r.about.protocol != CLV_WIRE_PROTOCOL)
    return clv_fail(err, CLV_UNIMPLEMENTED, "this worker speaks protocol %d, not %u",
                    CLV_WIRE_PROTOCOL, r.about.protocol);
  clv_service_set_credit(v, peer->uri, r.about.limits.credit_bytes);
  const char *capabilities[4], *devices[1] = {"cpu"};
  clv_wire_library libraries[2];
  clv_wire_artifact artifacts[CLV_WIRE_LIST];
  CLV_TRY(artifacts_of(v->config, artifacts, err));
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  clv_wire_hello_reply out = {
      .incarnation = v->incarnation,
      .worker = v->config->name ? v->config->name : "worker",
      .cores = (uint32_t)CLV_MAX(cores, 1L),
      .threads = (uint32_t)CLV_MAX(cores, 1L),
      .n_devices = 1,
      .devices = devices,
      .n_artifacts = (uint32_t)CLV_MIN(v->config->n_artifacts, (size_t)CLV_WIRE_LIST),
      .artifacts = artifacts};
  about_us(v, &out.about, capabilities, libraries);
  return clv_wire_hello_reply_encode(&out, reply, err);
}

static clv_code on_open(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                        clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_done) clv_wire_open_request r = {0};
  CLV_TRY(clv_wire_open_request_decode(pieces_of(request), n, &r, err));
  clv_wire_open_reply out = {.incarnation = v->incarnation};
  CLV_TRY(clv_session_open(v, peer->uri, &r, &out.granted, err));
  return clv_wire_open_reply_encode(&out, reply, err);
}

static clv_code on_close(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                         clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_done) clv_wire_close_request r = {0};
  CLV_TRY(clv_wire_close_request_decode(pieces_of(request), n, &r, err));
  CLV_AUTO(clv_session_unrefp) session *s = NULL;
  CLV_TRY(clv_session_find(v, &r.session, r.epoch, peer->uri, &s, err));
  clv_wire_close_reply out;
  clv_session_counts(s, &out);
  clv_session_close(s, "closed by its master");
  return clv_wire_close_reply_encode(&out, reply, err);
}

static clv_code on_load(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                        clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_done) clv_wire_load_request r = {0};
  CLV_TRY(clv_wire_load_request_decode(pieces_of(request), n, &r, err));
  CLV_AUTO(clv_session_unrefp) session *s = NULL;
  CLV_TRY(clv_session_find(v, &r.session, r.epoch, peer->uri, &s, err));
  CLV_AUTO(clv_freep) clv_wire_param *params = NULL;
  clv_wire_spec outputs[1];
  CLV_TRY(clv_alloc(CLV_WIRE_PARAMS, sizeof *params, &params, err));
  clv_wire_load_reply out = {.params = params, .outputs = outputs};
  clv_code code = clv_session_load(s, &r, &out, err);
  if (code != CLV_OK) {
    clv_log(CLV_LOG_WARN, "session %s: stage %u not loaded: %s", s->name, r.stage, err->text);
    return code;
  }
  clv_log(CLV_LOG_INFO, "session %s: stage %u loaded, %u parameters, %llu bytes", s->name, r.stage,
          out.n_params, (unsigned long long)out.memory_bytes);
  return clv_wire_load_reply_encode(&out, reply, err);
}

/* ---- status ------------------------------------------------------------------------------------ */

static uint64_t resident_bytes(void) {
  unsigned long long pages = 0, total = 0;
  FILE *f = fopen("/proc/self/statm", "re");
  if (!f) return 0;
  int got = fscanf(f, "%llu %llu", &total, &pages);
  fclose(f);
  return got == 2 ? pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static void fill_session(session *s, clv_wire_session_status *out, clv_wire_stage_status *stages) {
  clv_wire_close_reply c;
  clv_session_counts(s, &c);
  *out = (clv_wire_session_status){.session = s->id,
                                   .epoch = s->epoch,
                                   .bytes_in = c.bytes_in,
                                   .bytes_out = c.bytes_out,
                                   .name = s->name,
                                   .stages = stages};
  pthread_mutex_lock(&s->lock);
  out->memory_bytes = clv_pool_bytes(s->pool);
  if (s->node) {
    clv_context_counts k;
    clv_node_context_count(s->node, &k);
    out->contexts = (uint32_t)k.contexts;
    out->values = k.values;
    out->calls_waiting = k.calls_waiting;
    out->late_frames = k.late_frames;
  }
  for (uint32_t i = 0; s->node && i < CLV_MODULE_ALL; i++) {
    clv_stage_counts k;
    clv_stage *stage = clv_node_stage(s->node, i);
    if (!stage) continue;
    clv_stage_count(stage, &k);
    stages[out->n_stages++] = (clv_wire_stage_status){i, k.steps, k.forwards, k.backwards};
  }
  pthread_mutex_unlock(&s->lock);
}

static clv_code status_reply(clv_service *v, session **list, uint32_t n, clv_bytes *reply,
                             clv_err *err) {
  CLV_AUTO(clv_freep) clv_wire_session_status *sessions = NULL;
  CLV_AUTO(clv_freep) clv_wire_stage_status *stages = NULL;
  CLV_TRY(clv_alloc(n, sizeof *sessions, &sessions, err));
  CLV_TRY(clv_alloc((size_t)n * CLV_WIRE_MODULES, sizeof *stages, &stages, err));
  for (uint32_t i = 0; i < n; i++)
    fill_session(list[i], &sessions[i], stages + (size_t)i * CLV_WIRE_MODULES);
  clv_wire_status_reply out = {.incarnation = v->incarnation,
                               .uptime_ms = clv_now_ns() / 1000000u - v->started_ms,
                               .rss_bytes = resident_bytes(),
                               .draining = v->draining,
                               .n_sessions = n,
                               .sessions = sessions};
  return clv_wire_status_reply_encode(&out, reply, err);
}

/* A master sees its own sessions; an observer sees all of them. */
static clv_code on_status(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                          clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  CLV_AUTO(clv_wire_done) clv_wire_status_request r = {0};
  CLV_TRY(clv_wire_status_request_decode(pieces_of(request), n, &r, err));
  const clv_allow_spec *a = clv_service_allowed(v, peer->uri);
  session *list[MAX_SESSIONS];
  uint32_t found = 0;
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    session *s = v->sessions[i];
    bool visible = (a && a->role == CLV_ROLE_OBSERVER) || strcmp(s->owner, peer->uri) == 0;
    if (!visible || (!r.all && memcmp(&s->id, &r.session, sizeof s->id) != 0)) continue;
    __atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
    list[found++] = s;
  }
  pthread_mutex_unlock(&v->lock);
  clv_code code = !r.all && !found ? clv_fail(err, CLV_NOT_FOUND, "no such session")
                                   : status_reply(v, list, found, reply, err);
  for (uint32_t i = 0; i < found; i++) clv_session_unref(list[i]);
  return code;
}

static clv_code on_health(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                          clv_bytes *reply, clv_err *err) {
  clv_service *v = user;
  char service[CLV_WIRE_NAME + 1];
  (void)peer;
  CLV_TRY(clv_wire_health_decode(pieces_of(request), n, service, err));
  if (service[0] && strcmp(service, "cleave.v1.Worker") != 0)
    return clv_fail(err, CLV_NOT_FOUND, "unknown service");
  return clv_wire_health_encode(v->draining ? CLV_HEALTH_NOT_SERVING : CLV_HEALTH_SERVING, reply,
                                err);
}

const clv_rpc_unary clv_service_methods[] = {
    {CLV_METHOD_HELLO, CLV_WIRE_UNARY_MAX, on_hello},
    {CLV_METHOD_OPEN_SESSION, CLV_WIRE_UNARY_MAX, on_open},
    {CLV_METHOD_CLOSE_SESSION, CLV_WIRE_UNARY_MAX, on_close},
    {CLV_METHOD_LOAD_SHARD, CLV_WIRE_UNARY_MAX, on_load},
    {CLV_METHOD_STATUS, CLV_WIRE_UNARY_MAX, on_status},
    {CLV_METHOD_HEALTH_CHECK, 4096, on_health},
};
const size_t clv_service_n_methods = CLV_COUNT(clv_service_methods);

/* ---- who may call what --------------------------------------------------------------------------- */

enum {
  MASTER = 1u << CLV_ROLE_MASTER,
  PEER = 1u << CLV_ROLE_PEER,
  OBSERVER = 1u << CLV_ROLE_OBSERVER
};

static const struct {
  const char *method;
  unsigned roles;
} permissions[] = {
    {CLV_METHOD_HELLO, MASTER | PEER | OBSERVER},
    {CLV_METHOD_OPEN_SESSION, MASTER},
    {CLV_METHOD_CLOSE_SESSION, MASTER},
    {CLV_METHOD_LOAD_SHARD, MASTER},
    {CLV_METHOD_SESSION, MASTER | PEER},
    {CLV_METHOD_STATUS, MASTER | OBSERVER},
    {CLV_METHOD_HEALTH_CHECK, MASTER | PEER | OBSERVER},
    {CLV_METHOD_REFLECTION, MASTER | OBSERVER},
};

const clv_allow_spec *clv_service_allowed(const clv_service *s, const char *uri) {
  for (size_t i = 0; i < s->config->n_allow; i++)
    if (strcmp(s->config->allow[i].identity, uri) == 0) return &s->config->allow[i];
  return NULL;
}

void clv_service_set_credit(clv_service *s, const char *uri, uint64_t bytes) {
  const clv_allow_spec *a = clv_service_allowed(s, uri);
  if (!a) return;
  pthread_mutex_lock(&s->lock);
  s->credit[a - s->config->allow] = bytes;
  pthread_mutex_unlock(&s->lock);
}

uint64_t clv_service_credit(clv_service *s, const char *uri) {
  const clv_allow_spec *a = clv_service_allowed(s, uri);
  pthread_mutex_lock(&s->lock);
  uint64_t bytes = a ? s->credit[a - s->config->allow] : 0;
  pthread_mutex_unlock(&s->lock);
  return bytes ? bytes : clv_wire_limits_default().credit_bytes; /* it was left out */
}

clv_code clv_service_authorize(void *user, const clv_rpc_peer *peer, const char *method,
                               clv_err *err) {
  const clv_service *s = user;
  const clv_allow_spec *a = clv_service_allowed(s, peer->uri);
  for (size_t i = 0; a && i < CLV_COUNT(permissions); i++)
    if (strcmp(permissions[i].method, method) == 0 && (permissions[i].roles >> a->role & 1))
      return CLV_OK;
  clv_log(CLV_LOG_WARN, "audit deny identity=%s method=%s verdict=\"%s\"", peer->uri, method,
          a ? "not for this role" : "identity not in allow");
  return clv_fail(err, CLV_DENIED, "not allowed");
}
