/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions at workers: Hello, OpenSession and CloseSession; and LoadModule, which sends a module.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/incarnations_int.h"

/* 64 TiB. A worker's reply that claims more memory for one module violates the protocol. */
#define MAX_MODULE_BYTES ((uint64_t)64 << 40)

/* N_RESERVED_FILES: number of file descriptors that the runtime itself needs. N_FILES_PER_WORKER:
 * largest number of file descriptors that gRPC and the connections need for each worker. */
enum { N_RESERVED_FILES = 8, N_FILES_PER_WORKER = 2 + CLEAVE_BULK_LANES };

/* ---- calls to a worker ----------------------------------------------------------------------- */

clv_rpc_pem api_tls_pem(const cleave_runtime *rt) {
  return (clv_rpc_pem){rt->identity->ca_pem, rt->identity->cert_pem, rt->identity->key_pem};
}

/* Returns the milliseconds until p->connect_deadline_ns, at least 1. If there is no such deadline,
 * returns limits.connect_timeout. */
unsigned api_connect_timeout_ms(const api_peer *p) {
  uint64_t ms = p->runtime->config->limits.connect_timeout_ms, now = api_now(p->runtime);
  if (!p->connect_deadline_ns) return (unsigned)ms;
  uint64_t remaining_ms = p->connect_deadline_ns - CLV_MIN(now, p->connect_deadline_ns);
  return (unsigned)CLV_MIN(ms, CLV_MAX((remaining_ms + 999999u) / 1000000u, 1));
}

/* Sets the deadline of connecting: limits.connect_timeout for dialling, Hello and OpenSession
 * together. */
static void begin_connecting(api_peer *p) {
  uint64_t ms = p->runtime->config->limits.connect_timeout_ms;
  if (!p->connect_deadline_ns) p->connect_deadline_ns = api_now(p->runtime) + ms * 1000000u;
}

static clv_code call_worker_method(const api_peer *p, const char *method, const clv_bytes *request,
                                   uint64_t timeout_ms, clv_bytes *reply, clv_err *err) {
  const api_platform *w = &p->runtime->platform;
  if (w->call_worker)
    return w->call_worker(w->user, p->name, method, request, timeout_ms, reply, err);
  return clv_rpc_call_unary(p->channel, method, request->data, request->len,
                            (unsigned)CLV_MIN(timeout_ms, (uint64_t)INT32_MAX), reply, err);
}

/* Stores the worker's device for "auto" and the list of its devices. */
static void store_devices(const clv_wire_hello_reply *h, api_peer *p) {
  int auto_device = clv_wire_find_device(h, "auto");
  size_t at = 0;
  snprintf(p->device, sizeof p->device, "%s",
           auto_device < 0 ? "cpu" : h->device_names[auto_device]);
  for (uint32_t i = 0; i < h->n_devices && at < sizeof p->devices; i++)
    at += (size_t)snprintf(p->devices + at, sizeof p->devices - at, "%s%s", i ? ", " : "",
                           h->device_names[i]);
}

/* Replaces CLV_INVALID, CLV_UNIMPLEMENTED and CLV_EXHAUSTED of a worker by CLV_UNAVAILABLE, because
 * the program would blame its own arguments for these codes. */
static clv_code map_call_error(clv_code code, clv_err *err) {
  if (code == CLV_INVALID || code == CLV_UNIMPLEMENTED || code == CLV_EXHAUSTED)
    code = err->code = CLV_UNAVAILABLE;
  return code;
}

/* Maps the error of an answer that cannot be decoded, or that contradicts the request, to
 * CLV_BAD_ANSWER. */
static clv_code map_answer_error(clv_code code, clv_err *err) {
  if (code == CLV_OK || code == CLV_UNIMPLEMENTED) return map_call_error(code, err);
  err->code = CLV_BAD_ANSWER;
  return clv_err_prefix(err, "its answer violates the protocol");
}

/* Notifies the program if the instruction sets or libraries of master and worker differ.
 * worker_libraries: "" from workers before 0.6.2. */
static void compare_processors(const api_peer *p, const char *worker_isa,
                               const char *worker_libraries) {
  const char *own_isa = clv_backend_isa(clv_backend_cpu());
  const char *own_libraries = clv_backend_libraries(clv_backend_cpu());
  if (strcmp(worker_isa, own_isa) != 0)
    clv_notify(
        p->runtime->on_notice,
        "worker %s computes with %s, this master with %s: results will not be bit-identical to "
        "another placement (cap both with DNNL_MAX_CPU_ISA)",
        p->name, worker_isa, own_isa);
  else if (worker_libraries[0] && strcmp(worker_libraries, own_libraries) != 0)
    clv_notify(p->runtime->on_notice,
               "worker %s computes with %s, this master with %s: results will not be "
               "bit-identical to another placement",
               p->name, worker_libraries, own_libraries);
}

/* Notifies the program if the worker's results will not be bit-identical to the master's, or if the
 * worker's clock is wrong. Results are promised to be bit-identical only for the same kind of
 * device, the same instruction set or capability, and the same versions of libraries. */
static void compare_builds(const api_peer *p, const clv_wire_hello_reply *h) {
  const clv_wire_about *worker_about = &h->about;
  int at = clv_wire_find_device(h, p->device);
  const char *kind = at < 0 ? "cpu" : h->device_kinds[at].kind;
  const char *worker_isa = at < 0 ? worker_about->isa : h->device_kinds[at].isa;
  bool is_cpu = strcmp(kind, "cpu") == 0;
  if (is_cpu)
    compare_processors(p, worker_isa, at < 0 ? "" : h->device_kinds[at].libraries);
  else
    clv_notify(p->runtime->on_notice,
               "worker %s computes on %s (%s, %s): results are bit-identical to other placements "
               "on such devices, and near those of processors",
               p->name, p->device, kind, worker_isa);
  int64_t clock_skew_ms = (int64_t)(worker_about->unix_ms - clv_wall_ms());
  if (clock_skew_ms > 60000 || clock_skew_ms < -60000)
    clv_notify(p->runtime->on_notice, "the clock of worker %s differs by %lld s", p->name,
               (long long)(clock_skew_ms / 1000));
}

/* Refuses a worker that cannot use the session's reference lease. With a shorter lease the worker
 * would free values that other nodes still use. */
static clv_code check_lease(const clv_session_config *c, const clv_wire_about *worker_about,
                            clv_err *err) {
  if (c->limits.reference_lease_ms == CLV_WIRE_REF_LEASE_MS ||
      clv_wire_has_capability(worker_about, CLV_CAPABILITY_REFERENCE_LEASE))
    return CLV_OK;
  return clv_fail(
      err, CLV_UNAVAILABLE,
      "it (%s) has no other reference lease than %d s: leave limits.reference_lease out "
      "of %s, or update the worker",
      worker_about->software, CLV_WIRE_REF_LEASE_MS / 1000, c->file);
}

/* Stores which features the worker's version has. */
static void store_features(const clv_wire_about *worker_about, api_peer *p) {
  p->protocol_version = worker_about->protocol;
  p->supports_kept_refs = clv_wire_has_capability(worker_about, CLV_CAPABILITY_KEPT);
  /* without the method Kept, the files of a worker could not be read again */
  p->supports_state_files =
      p->supports_kept_refs && clv_wire_has_capability(worker_about, CLV_CAPABILITY_STATE_FILES);
  p->supports_row_cache = clv_wire_has_capability(worker_about, CLV_CAPABILITY_CACHED);
  p->supports_state_pieces = clv_wire_has_capability(worker_about, CLV_CAPABILITY_STATE_PIECES);
  p->supports_fixed_modules = clv_wire_has_capability(worker_about, CLV_CAPABILITY_FIXED);
  p->supports_ties = clv_wire_has_capability(worker_about, CLV_CAPABILITY_TIES);
  p->supports_ema = clv_wire_has_capability(worker_about, CLV_CAPABILITY_EMA);
  p->supports_bf16_weights = clv_wire_has_capability(worker_about, CLV_CAPABILITY_FROZEN_BF16);
  p->supports_bf16_values = clv_wire_has_capability(worker_about, CLV_CAPABILITY_BF16_VALUES);
  if (!clv_wire_protocol_has_acks(p->protocol_version))
    clv_notify(p->runtime->on_notice,
               "worker %s speaks protocol %u: a lost connection ends its link; upgrade it", p->name,
               p->protocol_version);
}

static clv_code call_hello(void *peer, const clv_bytes *request, clv_bytes *reply, clv_err *err) {
  const api_peer *p = peer;
  return call_worker_method(p, CLV_METHOD_HELLO, request, api_connect_timeout_ms(p), reply, err);
}

static clv_code exchange_hello(api_peer *p, clv_err *err) {
  const clv_session_config *c = p->runtime->config;
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_reply h = {0};
  clv_wire_about own_about = {.limits = clv_wire_limits_default(),
                              .software = "libcleave " CLV_VERSION,
                              .isa = clv_backend_isa(clv_backend_cpu()),
                              .unix_ms = clv_wall_ms()};
  own_about.limits.credit_bytes = c->limits.credit_bytes;
  own_about.limits.peer_timeout_ms = (uint32_t)c->limits.peer_timeout_ms;
  CLV_TRY(map_call_error(clv_wire_hello_exchange(&own_about, call_hello, p, &reply, err), err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(map_answer_error(clv_wire_hello_reply_decode(&piece, 1, &h, err), err));
  CLV_TRY(clv_wire_limits_check(&h.about.limits, err));
  CLV_TRY(check_lease(c, &h.about, err));
  CLV_TRY(cleave_secrets_check(c, &h, err));
  p->incarnation = h.incarnation;
  p->limits = h.about.limits;
  p->peer_timeout_ms =
      clv_wire_shorter_timeout((uint32_t)c->limits.peer_timeout_ms, h.about.limits.peer_timeout_ms);
  store_features(&h.about, p);
  store_devices(&h, p);
  compare_builds(p, &h);
  return CLV_OK;
}

static clv_code open_session(api_peer *p, clv_err *err) {
  cleave_runtime *rt = p->runtime;
  const char *identities[CLV_WIRE_PEERS];
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_message_clear) clv_wire_open_reply o = {0};
  clv_wire_open_request q = {.session_id = rt->session_id,
                             .attempt_number = rt->epoch,
                             .config_digest = rt->config->attempt.config_digest,
                             .session_name = rt->config->name,
                             .is_only_attempt = rt->cannot_resume,
                             .n_lanes = rt->platform.n_bulk_lanes,
                             .peer_identities = identities,
                             .reference_lease_ms = (uint32_t)rt->config->limits.reference_lease_ms};
  for (uint32_t i = 1; i < rt->n_peers && q.n_peer_identities < CLV_WIRE_PEERS; i++)
    if (i != p->index && api_can_link_directly(p, &rt->peers[i]))
      identities[q.n_peer_identities++] = rt->peers[i].spec->identity;
  CLV_TRY(clv_wire_open_request_encode(&q, &request, err));
  CLV_TRY(call_worker_method(p, CLV_METHOD_OPEN_SESSION, &request, api_connect_timeout_ms(p),
                             &reply, err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(map_answer_error(clv_wire_open_reply_decode(&piece, 1, &o, err), err));
  p->has_session = true;
  if (memcmp(&o.incarnation, &p->incarnation, sizeof o.incarnation) != 0)
    return clv_fail(err, CLV_BAD_ANSWER,
                    "another process answered the opening of the session than its Hello: the "
                    "worker was started again meanwhile, or two share its address");
  p->limits = o.granted_limits;
  return CLV_OK;
}

static clv_code dial_worker(api_peer *p, clv_err *err) {
  clv_rpc_channel_options o = {.target_address = p->spec->address,
                               .expected_uri = p->spec->identity,
                               .pem = api_tls_pem(p->runtime)};
  CLV_TRY(clv_rpc_channel_new(p->runtime->rpc, &o, &p->channel, err));
  begin_connecting(p);
  clv_code code = clv_rpc_channel_connect(p->channel, api_connect_timeout_ms(p), err);
  if (code != CLV_OK) {
    clv_tls_explain_refusal(p->spec->address, p->runtime->identity, api_connect_timeout_ms(p), err);
    return err->code;
  }
  return CLV_OK;
}

void api_end_session(const api_peer *p) {
  clv_err ignored_err;
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  clv_wire_close_request q = {.session_id = p->runtime->session_id,
                              .attempt_number = p->runtime->epoch};
  if (clv_wire_close_request_encode(&q, &request, &ignored_err) == CLV_OK &&
      call_worker_method(p, CLV_METHOD_CLOSE_SESSION, &request, 3000, &reply, &ignored_err) !=
          CLV_OK)
    clv_log(CLV_LOG_DEBUG, "closing the session at %s: %s", p->name, ignored_err.text);
}

static clv_code connect_worker(api_peer *p, clv_err *err) {
  CLV_TRY(clv_rpc_check_cancel_hook(err));
  if (!p->runtime->platform.call_worker) CLV_TRY(dial_worker(p, err));
  CLV_TRY(exchange_hello(p, err));
  if (p->state != PEER_PRESENT) api_end_session(p);
  return open_session(p, err);
}

static clv_code connect_in_time(api_peer *p, clv_err *err) {
  bool had_deadline = p->connect_deadline_ns != 0;
  clv_code code = connect_worker(p, err);
  if (!had_deadline) p->connect_deadline_ns = 0;
  return code;
}

/* Adds the worker's name to an error. For CLV_DENIED also adds what to do, because the worker does
 * not say why it refuses an identity that it does not know. */
static void add_worker_and_advice(const api_peer *p, clv_err *err) {
  const char *at = p->spec->address;
  if (err->code == CLV_DENIED && p->runtime->identity)
    clv_fail(err, CLV_DENIED, "%s: add identity %s to `allow` in its worker.yaml, as master",
             err->text, p->runtime->identity->uri);
  if (strncmp(err->text, at, strlen(at)) == 0) /* the text begins with the address already */
    clv_err_prefix(err, "worker '%s'", p->name);
  else
    clv_err_prefix(err, "worker '%s' at %s", p->name, at);
}

static cleave_status start_transport(cleave_runtime *rt, cleave_error *error) {
  const clv_tls_config *t = &rt->config->tls;
  TRY(clv_open_files_check(N_RESERVED_FILES + N_FILES_PER_WORKER * (rt->n_peers - 1), &err));
  TRY(clv_tls_identity_load(t->ca, t->cert, t->key, &rt->identity, &err));
  TRY(clv_tls_identity_require_usage(rt->identity, CLV_TLS_CLIENT, &err));
  TRY(clv_tls_set_min_version(&err));
  TRY(clv_tls_revocation_load(t->crl, rt->identity, &err));
  clv_rpc_runtime_options ro = {.n_queue_threads = 2, .spin_us = clv_spin_us(1)};
  TRY(clv_rpc_runtime_new(&ro, &rt->rpc, &err));
  return CLEAVE_OK;
}

cleave_status api_connect_worker(api_peer *p, cleave_error *error) {
  clv_err err;
  if (connect_in_time(p, &err) == CLV_OK) return CLEAVE_OK;
  add_worker_and_advice(p, &err);
  api_convert_error(error, &err);
  api_set_error_node(error, p->name, "connect");
  return (cleave_status)err.code;
}

cleave_status api_connect(cleave_runtime *rt, cleave_error *error) {
  if (!rt->platform.call_worker) TRY_API(start_transport(rt, error));
  for (uint32_t i = 1; i < rt->n_peers; i++) TRY_API(api_connect_worker(&rt->peers[i], error));
  return CLEAVE_OK;
}

/* ---- sending modules to workers -------------------------------------------------------------- */

static bool is_listed_direct(const cleave_module *m, const char *worker) {
  for (uint32_t i = 0; i < m->n_direct_to; i++)
    if (strcmp(m->direct_to[i], worker) == 0) return true;
  return false;
}

/* Lists the workers to which the module's worker may link directly. Returns their number. */
static uint32_t list_direct_peers(const cleave_module *m, const char **names) {
  cleave_runtime *rt = m->runtime;
  const api_peer *from = &rt->peers[m->node];
  uint32_t n = 0;
  LOCKED(rt);
  for (uint32_t i = 1; !rt->sends_via_master && i < rt->n_peers; i++) {
    const api_peer *p = &rt->peers[i];
    bool is_permitted =
        m->direct_to ? is_listed_direct(m, p->name) : rt->sends_directly && p != from;
    if (is_permitted && api_can_link_directly(from, p)) names[n++] = p->name;
  }
  return n;
}

/* Adds the optimiser and its groups to a request. names [m->params->n] and groups
 * [CLV_WIRE_GROUPS]: memory of the caller to which the request points afterwards. */
static void fill_groups(const cleave_module *m, const char **names, clv_wire_group *groups,
                        clv_wire_load_request *q) {
  if (!m->optimizer) return;
  bool cannot_revert = m->optimizer->cannot_revert;
  q->optimizer = clv_module_message_optimizer(&m->groups[0]->optim, cannot_revert);
  q->freezes_rest = m->has_unstepped_group;
  q->groups = groups;
  q->n_groups = m->n_groups - 1;
  for (uint32_t i = 1; i < m->n_groups; i++) {
    uint32_t n = api_group_param_names(m, i, names);
    groups[i - 1] = (clv_wire_group){
        clv_module_message_optimizer(&m->groups[i]->optim, cannot_revert), n, names};
    names += n;
  }
}

static bool has_same_spec(const clv_wire_spec *worker_spec, clv_dtype dtype,
                          const clv_shape *shape) {
  return worker_spec->dtype == dtype && clv_shape_equal(&worker_spec->shape, shape);
}

/* Checks the reply of LoadModule against the graph of this program. */
static clv_code check_load_reply(const cleave_module *m, const clv_wire_load_reply *o,
                                 clv_err *err) {
  const clv_graph *g = m->graph;
  const clv_node *output = &g->nodes[g->output_node];
  if (o->n_params != (uint32_t)m->params->n)
    return clv_fail(err, CLV_BAD_ANSWER, "it reports %u parameters, the graph has %d", o->n_params,
                    m->params->n);
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *own_param = &m->params->list[i];
    if (strcmp(o->params[i].name, own_param->name) != 0 ||
        !has_same_spec(&o->params[i].tensor_spec, own_param->dtype, &own_param->shape))
      return clv_fail(err, CLV_BAD_ANSWER, "its parameter %d is not '%s' of the graph", i,
                      own_param->name);
  }
  if (o->n_outputs != 1 || !has_same_spec(&o->output_specs[0], output->dtype, &output->shape))
    return clv_fail(err, CLV_BAD_ANSWER, "it reports another output than the graph has");
  if (o->memory_bytes > MAX_MODULE_BYTES)
    return clv_fail(err, CLV_BAD_ANSWER, "it reports that the module takes %llu bytes",
                    (unsigned long long)o->memory_bytes);
  return CLV_OK;
}

/* True if the list has exactly this device: "cpu" does not match "cpu:1". */
static bool is_device_listed(const char *devices, const char *name) {
  size_t len = strlen(name);
  for (const char *at = devices; (at = strstr(at, name)) != NULL; at += len)
    if ((at == devices || at[-1] == ' ') && (!at[len] || at[len] == ',')) return true;
  return false;
}

static clv_code check_device(const cleave_module *m, const api_peer *p, clv_err *err) {
  if (is_device_listed(p->devices, m->device)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "it has no device '%s'; it has: %s", m->device,
                  p->devices[0] ? p->devices : "none");
}

void api_module_set_device(cleave_module *m, const char *device) {
  if (device[0] && strncmp(m->device, device, sizeof m->device - 1) != 0)
    snprintf(m->device, sizeof m->device, "%.*s", API_DEVICE_NAME_BYTES - 1, device);
}

/* Adds the ties to a request. Refuses a worker that does not support ties, because such a worker
 * would train two separate parameters. */
static clv_code fill_ties(const cleave_module *m, const api_peer *p, clv_wire_load_request *q,
                          clv_err *err) {
  for (int i = 0; i < m->params->n_ties; i++) {
    const clv_tie *t = &m->params->ties[i];
    if (!p->supports_ties)
      return clv_fail(err, CLV_PRECONDITION,
                      "'%s' is another layer's parameter, and this worker knows no such thing: "
                      "update it",
                      t->param.name);
    q->ties[i].owner_module = m->tie_owners[i] ? m->tie_owners[i]->index + 1 : 0;
  }
  return CLV_OK;
}

/* Refuses a worker whose version cannot keep averages, because the worker's checkpoints would lack
 * the averages. */
static clv_code check_ema(const cleave_module *m, const api_peer *p, clv_err *err) {
  if (p->supports_ema || !m->optimizer || !(m->groups[0]->optim.ema > 0)) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "this worker cannot keep an average of the weights (train.ema), because it is of "
                  "an older version: update it, or remove train.ema");
}

static clv_code check_worker(const cleave_module *m, const api_peer *p, clv_err *err) {
  CLV_TRY(check_device(m, p, err));
  return check_ema(m, p, err);
}

static void fill_artifact(const cleave_module *m, clv_wire_load_request *q) {
  if (!m->artifact_name) return;
  q->init_source = CLV_WIRE_INIT_ARTIFACT;
  q->artifact = (clv_wire_artifact){m->artifact_name, m->artifact_sha256};
}

static clv_code load_remote(cleave_module *m, uint64_t timeout_ms, clv_err *err) {
  cleave_runtime *rt = m->runtime;
  api_peer *p = &rt->peers[m->node];
  const char *others[API_MAX_NODES];
  clv_wire_group groups[CLV_WIRE_GROUPS];
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_AUTO(clv_module_message_clear) clv_module_message message = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_reply o = {0};
  clv_wire_load_request q = {.session_id = rt->session_id,
                             .attempt_number = rt->epoch,
                             .module_index = m->index,
                             .module_generation = m->generation,
                             .n_threads = m->n_threads,
                             .max_calls_in_flight = m->max_calls_in_flight,
                             .computes_in_bf16 = m->computes_in_bf16,
                             .allows_tf32 = m->allows_tf32,
                             .frozen_has_no_grads_or_moments = m->is_frozen_set_final,
                             .stores_frozen_as_bf16 = m->stores_frozen_as_bf16,
                             .peer_names = others,
                             .input_needs_grad = m->needs_input_grads,
                             .device_name = m->device,
                             .module_name = m->name,
                             .new_param_names = m->initialized_param_names,
                             .n_new_params = m->n_initialized_params,
                             .frozen_names = m->frozen_param_names,
                             .n_frozen = m->n_frozen_params};
  CLV_TRY(check_worker(m, p, err));
  CLV_TRY(clv_module_message_make(m->graph, &message, &q, err));
  CLV_TRY(fill_ties(m, p, &q, err));
  fill_artifact(m, &q);
  q.n_peers = list_direct_peers(m, others);
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *names, &names, err));
  fill_groups(m, names, groups, &q);
  CLV_TRY(clv_wire_load_request_encode(&q, &request, err));
  clv_code code = call_worker_method(p, CLV_METHOD_LOAD_MODULE, &request, timeout_ms, &reply, err);
  if (code == CLV_NOT_FOUND && m->artifact_name)
    code = err->code = CLV_DATA_LOSS; /* the code of a missing file of weights */
  CLV_TRY(code);
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(map_answer_error(clv_wire_load_reply_decode(&piece, 1, &o, err), err));
  CLV_TRY(check_load_reply(m, &o, err));
  api_module_set_device(m, o.device_name);
  return CLV_OK;
}

/* Fills in the optimiser groups of a module at the master. names and groups: as for fill_groups. */
static void fill_local_groups(const cleave_module *m, const char **names, clv_module_group *groups,
                              clv_module_options *o) {
  if (!m->optimizer) return;
  o->is_trainable = true;
  o->has_no_revert = m->optimizer->cannot_revert;
  o->optimizer = m->groups[0]->optim;
  o->group0_is_frozen = m->has_unstepped_group;
  o->groups = groups;
  o->n_groups = m->n_groups - 1;
  for (uint32_t i = 1; i < m->n_groups; i++) {
    uint32_t n = api_group_param_names(m, i, names);
    groups[i - 1] = (clv_module_group){m->groups[i]->optim, names, n};
    names += n;
  }
}

/* Returns the batch size of the first input that is not a scalar. */
static int64_t batch_size_of(const cleave_module *m) {
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    const clv_shape *shape = &m->graph->nodes[m->input_node_indexes[i]].shape;
    if (shape->rank) return shape->dim[0];
  }
  return 1;
}

/* Modules at the master that own tied parameters. They are pinned (not unloaded) while a tied
 * module is made. */
typedef struct pinned_owners {
  clv_module_tie *list;
  uint32_t n;
} pinned_owners;

static void unpin_owners(pinned_owners *o) {
  for (uint32_t i = 0; i < o->n; i++) clv_node_unpin_module(o->list[i].owner);
  free(o->list);
}

static clv_code pin_owners(const cleave_module *m, pinned_owners *o, clv_err *err) {
  CLV_TRY(clv_alloc((size_t)m->params->n_ties, sizeof *o->list, &o->list, err));
  for (int i = 0; i < m->params->n_ties; i++) {
    if (!m->tie_owners[i]) continue;
    o->list[o->n].node = m->graph->nodes[m->params->ties[i].param.node].name;
    CLV_TRY(
        clv_node_pin_module(m->runtime->node, m->tie_owners[i]->index, &o->list[o->n].owner, err));
    o->n++;
  }
  return CLV_OK;
}

static clv_code load_local(const cleave_module *m, clv_err *err) {
  cleave_runtime *rt = m->runtime;
  clv_module *module;
  clv_module_group groups[CLV_WIRE_GROUPS];
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_AUTO(unpin_owners) pinned_owners ties = {0};
  clv_module_options o = {.index = m->index,
                          .generation = m->generation,
                          .name = m->name,
                          .backend = m->backend,
                          .device = m->device,
                          .threads = (int)m->n_threads,
                          .bf16 = m->computes_in_bf16,
                          .tf32 = m->allows_tf32,
                          .is_frozen_for_good = m->is_frozen_set_final,
                          .frozen_bf16 = m->stores_frozen_as_bf16,
                          .input_needs_grad = m->needs_input_grads,
                          .max_calls_in_flight = m->max_calls_in_flight,
                          .frozen = m->frozen_param_names,
                          .n_frozen = m->n_frozen_params};
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *names, &names, err));
  fill_local_groups(m, names, groups, &o);
  CLV_TRY(pin_owners(m, &ties, err));
  o.ties = ties.list;
  o.n_ties = ties.n;
  CLV_TRY(api_graph_copy(m->graph, &o.graph, err));
  CLV_TRY(clv_module_new(&o, &module, err));
  clv_code code = clv_module_warm_up(module, batch_size_of(m), err);
  if (code != CLV_OK) {
    clv_module_free(module);
    return code;
  }
  rt->max_local_threads = CLV_MAX(rt->max_local_threads, m->n_threads);
  if (rt->rpc) clv_rpc_runtime_set_spin(rt->rpc, clv_spin_us(rt->max_local_threads));
  return clv_node_add_module(rt->node, module, err);
}

cleave_status api_load_module(cleave_module *m, uint64_t deadline_ms, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  uint64_t ms = deadline_ms ? deadline_ms : rt->deadline_ms;
  clv_err err;
  if ((m->node ? load_remote(m, ms, &err) : load_local(m, &err)) == CLV_OK) return CLEAVE_OK;
  clv_err_prefix(&err, "module '%s' at %s", m->name, rt->peers[m->node].name);
  api_convert_error(error, &err);
  api_set_error_node(error, rt->peers[m->node].name, "load");
  return (cleave_status)err.code;
}
