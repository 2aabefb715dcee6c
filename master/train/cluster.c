/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/models/models.h"
#include "master/train/train_int.h"

/* ---- egress: the one gate -------------------------------------------------------------------------- */

static bool row_fits(const clv_blueprint *b, const clv_egress_row *r, const clv_packet *p,
                     uint32_t tensor) {
  const clv_tensor *t = p->tensor[tensor];
  if (r->kind == CLV_STATE_PUT) return true;
  if (r->dtype != t->dtype || r->shape.rank != t->shape.rank) return false;
  for (int i = 1; i < t->shape.rank; i++)
    if (r->shape.dim[i] != t->shape.dim[i]) return false;
  return t->shape.rank == 0 || t->shape.dim[0] <= CLV_MAX(b->micro_size, b->eval_size);
}

static uint32_t slot_of(const clv_packet *p, uint32_t tensor) {
  for (uint32_t i = 0, seen = 0; i < 8 * CLV_WIRE_PRESENCE_BYTES; i++)
    if ((p->frame.presence[i / 8] >> (i % 8) & 1) && seen++ == tensor) return i;
  return tensor;
}

/* Nothing leaves that the plan's table does not name. */
clv_code clv_egress_check(void *user, clv_link *link, const clv_packet *p, clv_err *err) {
  remote *to = user;
  clv_blueprint *b = to->trainer->b;
  (void)link;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    clv_egress_row *row = NULL;
    for (size_t k = 0; k < b->n_egress && !row; k++) {
      clv_egress_row *r = &b->egress[k];
      if (r->worker == to->index && r->kind == p->frame.kind && r->stage == p->frame.stage &&
          (r->kind == CLV_STATE_PUT || r->slot == slot_of(p, i)) && row_fits(b, r, p, i))
        row = r;
    }
    if (!row) {
      char shape[160];
      return clv_fail(
          err, CLV_DENIED,
          "egress refused: a %s tensor %s for stage %u is not in the plan's table for %s",
          clv_frame_kind_name(p->frame.kind),
          clv_shape_format(&p->tensor[i]->shape, shape, sizeof shape), p->frame.stage,
          to->spec->name);
    }
    __atomic_fetch_add(&row->tensors, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&row->bytes, p->tensor[i]->bytes, __ATOMIC_RELAXED);
  }
  return CLV_OK;
}

/* ---- links ------------------------------------------------------------------------------------------ */

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  remote *r = user;
  (void)link;
  __atomic_store_n(&r->heard_ns, clv_now_ns(), __ATOMIC_RELAXED);
  clv_node_post(r->trainer->node, p);
}

static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  remote *r = user;
  (void)link;
  clv_node_fail(r->trainer->node, code == CLV_OK ? CLV_UNAVAILABLE : code, r->spec->name,
                "worker '%s' (%s) was lost: %s", r->spec->name, r->spec->address, text);
}

static clv_rpc_pem pem_of(const clv_trainer *t) {
  return (clv_rpc_pem){t->identity->ca_pem, t->identity->cert_pem, t->identity->key_pem};
}

static clv_code open_link(clv_trainer *t, remote *r, clv_err *err) {
  clv_wire_limits accept = clv_wire_limits_default();
  accept.credit_bytes = t->config->limits.credit_bytes;
  clv_link_options o = {.peer_name = r->spec->name,
                        .pool = t->pool,
                        .accept = accept,
                        .send_credit = r->limits.credit_bytes,
                        .events = {r, on_packet, clv_egress_check, on_closed}};
  clv_link_dial d = {.address = r->spec->address,
                     .identity = r->spec->identity,
                     .pem = pem_of(t),
                     .limits = {.max_message = 0},
                     .session = t->session,
                     .incarnation = r->incarnation,
                     .epoch = t->epoch,
                     .bulk_lanes = BULK_LANES,
                     .role = CLV_ATTACH_MASTER,
                     .timeout_ms = (unsigned)t->config->limits.connect_timeout_ms};
  r->heard_ns = clv_now_ns();
  return clv_link_open(t->runtime, &o, &d, &r->link, err);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static clv_code call(clv_trainer *t, remote *r, const char *method, const clv_bytes *request,
                     clv_bytes *reply, clv_err *err) {
  return clv_rpc_call(r->channel, method, request->data, request->len,
                      (unsigned)t->config->limits.step_timeout_ms, reply, err);
}

static void compare_builds(const remote *r, const clv_wire_about *theirs) {
  const clv_backend *b = clv_backend_cpu();
  if (strcmp(theirs->isa, b->isa()) != 0)
    clv_log(CLV_LOG_WARN,
            "worker %s computes with %s, this master with %s: results will not be bit-identical to "
            "another placement (cap both with DNNL_MAX_CPU_ISA)",
            r->spec->name, theirs->isa, b->isa());
  int64_t skew = (int64_t)(theirs->unix_ms - clv_wall_ms());
  if (skew > 60000 || skew < -60000)
    clv_log(CLV_LOG_WARN, "the clock of worker %s differs by %lld s", r->spec->name,
            (long long)(skew / 1000));
}

static clv_code hello(clv_trainer *t, remote *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_done) clv_wire_hello_reply h = {0};
  clv_wire_hello_request q = {.about = {.protocol = CLV_WIRE_PROTOCOL,
                                        .limits = clv_wire_limits_default(),
                                        .software = "cleave " CLV_VERSION,
                                        .isa = clv_backend_cpu()->isa(),
                                        .unix_ms = clv_wall_ms()}};
  q.about.limits.credit_bytes = t->config->limits.credit_bytes;
  CLV_TRY(clv_wire_hello_request_encode(&q, &request, err));
  CLV_TRY(call(t, r, CLV_METHOD_HELLO, &request, &reply, err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(clv_wire_hello_reply_decode(&piece, 1, &h, err));
  if (h.about.protocol != CLV_WIRE_PROTOCOL)
    return clv_fail(err, CLV_UNIMPLEMENTED, "it speaks protocol %u, this master %d",
                    h.about.protocol, CLV_WIRE_PROTOCOL);
  r->incarnation = h.incarnation;
  r->limits = h.about.limits;
  compare_builds(r, &h.about);
  return CLV_OK;
}

static clv_code open_session(clv_trainer *t, remote *r, clv_err *err) {
  const char *peers[CLV_WIRE_PEERS];
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_done) clv_wire_open_reply o = {0};
  clv_wire_open_request q = {.session = t->session,
                             .epoch = t->epoch,
                             .seed = t->config->train.seed,
                             .name = t->config->name,
                             .lanes = BULK_LANES,
                             .peer_identities = peers};
  for (size_t i = 0; i < t->config->n_workers && q.n_peer_identities < CLV_WIRE_PEERS; i++)
    if (t->b->worker_used[i] && (int)i != r->index)
      peers[q.n_peer_identities++] = t->config->workers[i].identity;
  CLV_TRY(clv_wire_open_request_encode(&q, &request, err));
  CLV_TRY(call(t, r, CLV_METHOD_OPEN_SESSION, &request, &reply, err));
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(clv_wire_open_reply_decode(&piece, 1, &o, err));
  r->opened = true;
  r->limits = o.granted;
  return CLV_OK;
}

/* What makes no sense before any shard is loaded is the peer's doing, not the session file's. */
static clv_code not_a_worker(clv_code code, clv_err *err) {
  if (code == CLV_INVALID || code == CLV_UNIMPLEMENTED) code = err->code = CLV_UNAVAILABLE;
  return code;
}

static clv_code connect_worker(clv_trainer *t, remote *r, clv_err *err) {
  clv_rpc_channel_options o = {
      .target = r->spec->address, .expected_uri = r->spec->identity, .pem = pem_of(t)};
  CLV_TRY(clv_rpc_channel_new(t->runtime, &o, &r->channel, err));
  CLV_TRY(clv_rpc_channel_connect(r->channel, (unsigned)t->config->limits.connect_timeout_ms, err));
  clv_code code = hello(t, r, err);
  if (code == CLV_OK) code = open_session(t, r, err);
  return not_a_worker(code, err);
}

/* ---- shards as data ----------------------------------------------------------------------------------- */

clv_optim_config clv_optimizer_of(const clv_session_config *c) {
  static const clv_optim_kind kinds[] = {[CLV_OPT_SGD] = CLV_OPTIM_SGD,
                                         [CLV_OPT_ADAM] = CLV_OPTIM_ADAM,
                                         [CLV_OPT_ADAMW] = CLV_OPTIM_ADAMW};
  const clv_optimizer_config *o = &c->train.optimizer;
  return (clv_optim_config){.kind = kinds[o->kind],
                            .lr = o->lr,
                            .momentum = o->momentum,
                            .nesterov = o->nesterov,
                            .weight_decay = o->weight_decay,
                            .beta1 = o->betas.items[0],
                            .beta2 = o->betas.items[1],
                            .eps = o->eps};
}

/* The stage's own settings; the loss has none. */
static clv_code fill_stage(const clv_trainer *t, uint32_t i, clv_wire_load_request *q,
                           clv_err *err) {
  const clv_blueprint *b = t->b;
  const clv_session_config *c = t->config;
  if (i == b->n_stages) {
    q->labels_here = true;
    q->threads = 1;
    return CLV_OK;
  }
  const clv_stage_spec *spec = &c->stages[i];
  q->threads = (uint32_t)spec->threads;
  q->device = spec->device;
  clv_optim_config optimizer = clv_optimizer_of(c);
  clv_shard_message_optimizer(&optimizer, q);
  if (b->shards[i].direct) q->next_peer = c->workers[b->shards[i + 1].worker].name;
  if (i > 0 && b->shards[i - 1].direct) q->prev_peer = c->workers[b->shards[i - 1].worker].name;
  if (spec->weights_file) q->init = CLV_WIRE_INIT_PUSHED;
  if (spec->weights_artifact) {
    q->init = CLV_WIRE_INIT_ARTIFACT;
    q->artifact.name = spec->weights_artifact;
    if (!spec->weights_sha256 || !clv_sha256_parse(spec->weights_sha256, &q->artifact.sha256))
      return clv_session_fail_at(c, spec->weights_pos, err,
                                 "stage '%s': an artifact needs its sha256", spec->name);
  }
  return CLV_OK;
}

static clv_code load_remote(clv_trainer *t, uint32_t i, clv_err *err) {
  const clv_shard_plan *s = &t->b->shards[i];
  remote *r = &t->remotes[s->worker];
  CLV_AUTO(clv_shard_message_done) clv_shard_message m = {0};
  CLV_AUTO(clv_freep) const char **frozen = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  CLV_AUTO(clv_wire_done) clv_wire_load_reply o = {0};
  CLV_TRY(clv_alloc((size_t)s->params->n, sizeof *frozen, &frozen, err));
  clv_wire_load_request q = {.session = t->session,
                             .epoch = t->epoch,
                             .seed = t->config->train.seed,
                             .stage = i,
                             .n_stages = t->b->n_stages + 1,
                             .max_micro_batches = t->b->max_micro,
                             .next_peer = "",
                             .prev_peer = "",
                             .input_needs_grad = s->input_needs_grad,
                             .device = "cpu",
                             .frozen = frozen};
  CLV_TRY(clv_shard_message_make(s->graph, &m, &q, err));
  for (int k = 0; k < s->params->n; k++)
    if (s->params->list[k].frozen) frozen[q.n_frozen++] = s->params->list[k].name;
  CLV_TRY(fill_stage(t, i, &q, err));
  CLV_TRY(clv_wire_load_request_encode(&q, &request, err));
  clv_code code = call(t, r, CLV_METHOD_LOAD_SHARD, &request, &reply, err);
  if (code == CLV_NOT_FOUND && q.init == CLV_WIRE_INIT_ARTIFACT)
    code = err->code = CLV_DATA_LOSS; /* weights that are not there, as one of a local file */
  CLV_TRY(code);
  clv_piece piece = {reply.data, reply.len};
  CLV_TRY(not_a_worker(clv_wire_load_reply_decode(&piece, 1, &o, err), err));
  if (o.n_params != (uint32_t)s->params->n)
    return clv_fail(err, CLV_INTERNAL, "it reports %u parameters, the plan has %d", o.n_params,
                    s->params->n);
  return CLV_OK;
}

static clv_code copy_graph(const clv_shard_plan *s, clv_graph **ret, clv_err *err) {
  uint32_t last = 0;
  for (int i = 0; i < s->graph->n_nodes; i++) last = CLV_MAX(last, s->graph->nodes[i].layer);
  return clv_graph_slice(s->graph, 0, last, ret, err);
}

static clv_code load_local(clv_trainer *t, uint32_t i, clv_err *err) {
  const clv_blueprint *b = t->b;
  const clv_shard_plan *s = &b->shards[i];
  bool is_loss = i == b->n_stages;
  CLV_AUTO(clv_freep) const char **frozen = NULL;
  CLV_TRY(clv_alloc((size_t)s->params->n, sizeof *frozen, &frozen, err));
  clv_stage_options o = {.index = i,
                         .backend = clv_backend_cpu(),
                         .threads = is_loss ? 1 : (int)t->config->stages[i].threads,
                         .input_needs_grad = s->input_needs_grad,
                         .optimizer = clv_optimizer_of(t->config),
                         .learns = !is_loss,
                         .seed = t->config->train.seed,
                         .max_micro_batches = b->max_micro,
                         .frozen = frozen};
  for (int k = 0; k < s->params->n; k++)
    if (s->params->list[k].frozen) frozen[o.n_frozen++] = s->params->list[k].name;
  if (is_loss)
    CLV_TRY(clv_loss_graph(clv_loss_name(t->config->loss.kind), &s->graph->nodes[0].shape,
                           b->micro_size, &o.graph, err));
  else
    CLV_TRY(copy_graph(s, &o.graph, err));
  clv_stage *stage;
  CLV_TRY(clv_stage_new(&o, &stage, err));
  CLV_TRY(clv_node_add_stage(t->node, stage, err));
  return clv_stage_warm(stage, b->micro_size, true, err);
}

/* ---- connecting ----------------------------------------------------------------------------------------- */

static clv_code routes(clv_trainer *t, clv_err *err) {
  const clv_blueprint *b = t->b;
  for (size_t i = 0; i < t->config->n_workers; i++)
    if (b->worker_used[i]) {
      remote *r = &t->remotes[i];
      if (open_link(t, r, err) != CLV_OK) return clv_err_prefix(err, "worker '%s'", r->spec->name);
    }
  for (uint32_t i = 0; i <= b->n_stages; i++) {
    int w = b->shards[i].worker;
    if (w < 0) continue;
    bool fed_here =
        i == 0 || i == b->n_stages || !(b->shards[i - 1].direct || b->shards[i - 1].worker == w);
    clv_node_route(t->node, i, t->remotes[w].link, fed_here);
  }
  return CLV_OK;
}

/* At home one stage computes at a time: as many threads as the largest one uses. */
static unsigned home_threads(const clv_trainer *t) {
  unsigned most = t->b->shards[t->b->n_stages].worker < 0;
  for (uint32_t i = 0; i < t->b->n_stages; i++)
    if (t->b->shards[i].worker < 0) most = CLV_MAX(most, (unsigned)t->config->stages[i].threads);
  return most;
}

static clv_code connect_workers(clv_trainer *t, clv_err *err) {
  const clv_session_config *c = t->config;
  CLV_TRY(clv_tls_identity_load(c->tls.ca, c->tls.cert, c->tls.key, &t->identity, err));
  CLV_TRY(clv_tls_identity_require(t->identity, CLV_TLS_CLIENT, err));
  CLV_TRY(clv_tls_floor_install(err));
  clv_rpc_runtime_options ro = {.queue_threads = 2, .spin_us = clv_spin_us(home_threads(t))};
  CLV_TRY(clv_rpc_runtime_new(&ro, &t->runtime, err));
  for (size_t i = 0; i < c->n_workers; i++) {
    remote *r = &t->remotes[i];
    *r = (remote){.trainer = t, .index = (int)i, .spec = &c->workers[i]};
    if (!t->b->worker_used[i]) continue;
    if (connect_worker(t, r, err) != CLV_OK) {
      snprintf(t->lost, sizeof t->lost, "%s", r->spec->name);
      return clv_err_prefix(err, "worker '%s' at %s", r->spec->name, r->spec->address);
    }
  }
  return CLV_OK;
}

clv_code clv_trainer_connect(clv_trainer *t, clv_err *err) {
  const clv_blueprint *b = t->b;
  bool any = false;
  for (size_t i = 0; i < t->config->n_workers; i++) any |= b->worker_used[i];
  CLV_TRY(clv_random_bytes(&t->session, sizeof t->session, err));
  t->epoch = 1;
  if (any) CLV_TRY(connect_workers(t, err));
  clv_node_options no = {.pool = t->pool,
                         .n_stages = b->n_stages,
                         .runtime = t->runtime,
                         .user = t,
                         .on_driver = clv_trainer_on_driver,
                         .on_prediction = clv_trainer_on_prediction,
                         .on_handled = clv_trainer_on_handled};
  CLV_TRY(clv_node_new(&no, &t->node, err));
  for (uint32_t i = 0; i <= b->n_stages; i++) {
    int w = b->shards[i].worker;
    clv_code code = w < 0 ? load_local(t, i, err) : load_remote(t, i, err);
    if (code == CLV_OK) continue;
    const char *stage = i < b->n_stages ? t->config->stages[i].name : "loss";
    if (w < 0) return clv_err_prefix(err, "stage '%s'", stage);
    return clv_err_prefix(err, "worker '%s', stage '%s'", t->config->workers[w].name, stage);
  }
  if (any) CLV_TRY(routes(t, err));
  return clv_trainer_push_files(t, err);
}

static void close_remote(clv_trainer *t, remote *r) {
  clv_err ignored;
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  clv_wire_close_request q = {.session = t->session, .epoch = t->epoch};
  if (r->opened && clv_wire_close_request_encode(&q, &request, &ignored) == CLV_OK &&
      clv_rpc_call(r->channel, CLV_METHOD_CLOSE_SESSION, request.data, request.len, 3000, &reply,
                   &ignored) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "closing the session at %s: %s", r->spec->name, ignored.text);
  if (r->link) clv_link_close(r->link);
}

clv_code clv_trainer_open(const clv_blueprint *b, clv_trainer **ret, clv_err *err) {
  clv_trainer *t;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->b = (clv_blueprint *)(uintptr_t)b; /* counts egress in the blueprint's rows */
  t->config = b->config;
  t->next_message = 1;
  size_t n_grads = 0;
  for (uint32_t i = 0; i < b->n_stages; i++) n_grads += b->shards[i].n_learning;
  clv_code code = clv_pool_new((size_t)64 << 30, 4096, &t->pool, err);
  if (code == CLV_OK) code = clv_alloc(b->config->n_workers, sizeof(remote), &t->remotes, err);
  if (code == CLV_OK) code = clv_alloc(b->max_micro, sizeof(size_t), &t->sizes, err);
  if (code == CLV_OK) code = clv_alloc(b->max_micro, sizeof(size_t), &t->starts, err);
  if (code == CLV_OK) code = clv_alloc(b->max_micro, sizeof(double), &t->losses, err);
  if (code == CLV_OK) code = clv_alloc(b->n_stages, sizeof(bool), &t->voted, err);
  if (code == CLV_OK) code = clv_alloc(n_grads, sizeof(double), &t->grad_sq, err);
  if (code == CLV_OK) code = clv_alloc(b->n_stages + 1, sizeof(uint32_t), &t->grad_at, err);
  for (uint32_t i = 0; code == CLV_OK && i < b->n_stages; i++) {
    t->grad_at[i + 1] = t->grad_at[i] + b->shards[i].n_learning;
    t->votes_wanted += b->shards[i].participates;
  }
  if (code == CLV_OK) code = clv_trainer_connect(t, err);
  if (code != CLV_OK) {
    clv_trainer_close(t);
    return code;
  }
  *ret = t;
  return CLV_OK;
}

void clv_trainer_close(clv_trainer *t) {
  if (!t) return;
  for (size_t i = 0; t->remotes && i < t->config->n_workers; i++)
    if (t->remotes[i].spec) close_remote(t, &t->remotes[i]);
  for (size_t i = 0; t->remotes && i < t->config->n_workers; i++) {
    clv_link_unref(t->remotes[i].link);
    clv_rpc_channel_free(t->remotes[i].channel);
  }
  clv_rpc_runtime_free(t->runtime); /* no callback is running after this: the node can go */
  clv_node_free(t->node);
  clv_stage_free(t->loss_stage);
  clv_tls_identity_free(t->identity);
  clv_pool_unref(t->pool);
  free(t->remotes);
  free(t->sizes);
  free(t->starts);
  free(t->losses);
  free(t->voted);
  free(t->grad_sq);
  free(t->grad_at);
  free(t);
}

void clv_trainer_closep(clv_trainer **t) {
  clv_trainer_close(*t);
  *t = NULL;
}

void clv_trainer_traffic(clv_trainer *t, uint64_t *ret_up, uint64_t *ret_down) {
  *ret_up = *ret_down = 0;
  for (size_t i = 0; i < t->config->n_workers; i++) {
    clv_link_counts c;
    if (!t->remotes[i].link) continue;
    clv_link_count(t->remotes[i].link, &c);
    *ret_up += c.bytes_out;
    *ret_down += c.bytes_in;
  }
}

void clv_trainer_egress_json(clv_trainer *t, clv_bytes *out) {
  clv_bytes_printf(out, "{\"step\":%llu,\"egress\":[", (unsigned long long)t->committed);
  for (size_t i = 0; i < t->b->n_egress; i++) {
    const clv_egress_row *r = &t->b->egress[i];
    clv_bytes_printf(out, "%s{\"tensor\":", i ? "," : "");
    clv_bytes_json(out, r->name);
    clv_bytes_puts(out, ",\"to\":");
    clv_bytes_json(out, t->config->workers[r->worker].name);
    clv_bytes_printf(out, ",\"tensors\":%llu,\"bytes\":%llu}", (unsigned long long)r->tensors,
                     (unsigned long long)r->bytes);
  }
  clv_bytes_puts(out, "]}");
}

const char *clv_trainer_lost_worker(clv_trainer *t) { return t->lost; }
uint64_t clv_trainer_step_count(const clv_trainer *t) { return t->committed; }
