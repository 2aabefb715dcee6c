/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates a worker. Its methods take and return the bytes that go over the wire. Its session is a
 * node with links, as worker/service sets them up, but without threads.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulate/world_int.h"
#include "tests/unit/far.h"
#include "worker/service/service_int.h"

enum { DIAL_TIMEOUT_MS = 5000 };

/* ---- links of a worker ----------------------------------------------------------------------- */

static void record_backward(sim_requests *t, const clv_frame *f) {
  uint32_t i = 0;
  while (i < t->n_backwards && t->backwards[i].context != f->context) i++;
  if (f->kind != CLV_PREPARE || !f->backward.n_needed_calls || i == SIM_MAX_BACKWARDS) return;
  if (i == t->n_backwards) t->backwards[t->n_backwards++].context = f->context;
  t->backwards[i].phase_bits |= UINT64_C(1) << f->backward_pass_number % 64;
}

/* Notes a module as loaded when it is used, because the answer to its load may have been lost. */
static void record_module_use(sim_requests *t, const clv_frame *f) {
  if (f->kind == CLV_CALL || f->kind == CLV_STATE_GET)
    t->next_generation[f->module] =
        CLV_MAX(t->next_generation[f->module], UINT64_C(1) + f->module_generation);
}

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  const sim_worker *k = user;
  (void)link;
  record_backward(&k->world->master_messages, &p->frame);
  record_module_use(&k->world->master_messages, &p->frame);
  if (k->node && k->has_open_session)
    clv_node_post(k->node, p);
  else
    clv_packet_free(p);
}

/* Called when the master's link has ended. The service closes the session at its next tick. */
static void on_master_link_closed(void *user, clv_link *link, clv_code code, const char *text) {
  sim_worker *k = user;
  (void)link, (void)code, (void)text;
  sim_world_schedule_close(k->world, k);
}

static void on_peer_link_closed(void *user, clv_link *link, clv_code code, const char *text) {
  sim_worker *k = user;
  char why[CLV_ERR_TEXT];
  clv_packet *p;
  clv_err err;
  snprintf(why, sizeof why, "the link to %s ended: %.200s", clv_link_peer_name(link), text);
  if (!k->has_open_session || !k->master_link ||
      clv_packet_new(k->pool, CLV_ABORT, &p, &err) != CLV_OK)
    return;
  clv_frame_set_failure(&p->frame, code == CLV_OK ? CLV_UNAVAILABLE : code, why,
                        clv_link_peer_name(link));
  (void)!clv_link_send(k->master_link, p, &err);
}

static clv_link_options make_link_options(sim_worker *k, const char *peer, bool is_master) {
  return (clv_link_options){
      .clock = sim_world_get_clock(k->world),
      .peer_name = peer,
      .pool = k->pool,
      .accept_limits = k->granted_limits,
      .initial_send_credit = k->world->conditions.credit_bytes,
      .quota_fails_packet = true,
      .lease_ms = k->world->conditions.repairs_links ? SIM_LINK_LEASE_MS : 0,
      .events = {.user = k,
                 .on_packet = on_packet,
                 .on_closed = is_master ? on_master_link_closed : on_peer_link_closed}};
}

/* Gives the worker's node the links to the other places. */
static void set_node_links(sim_worker *k) {
  clv_err err;
  if (!k->node) return;
  clv_node_set_master(k->node, k->master_link);
  for (uint32_t i = 1; i < SIM_PLACES; i++)
    if (k->accepted_links[i])
      (void)!clv_node_add_peer(k->node, k->world->workers[i].name, k->accepted_links[i], &err);
  for (uint32_t i = 1; i < SIM_PLACES; i++)
    if (k->dialled_links[i])
      (void)!clv_node_add_peer(k->node, k->world->workers[i].name, k->dialled_links[i], &err);
}

static clv_code find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                          clv_err *err) {
  sim_worker *k = user;
  bool is_master = attach->attach.role == CLV_ATTACH_MASTER;
  uint32_t from_place = is_master ? 0 : (uint32_t)(uri[1] - '0');
  clv_link **link = is_master ? &k->master_link : &k->accepted_links[from_place];
  if (!k->has_open_session) return clv_fail(err, CLV_NOT_FOUND, "no such session");
  if (!*link) {
    clv_link_options o = make_link_options(
        k, is_master ? "the master" : k->world->workers[from_place].name, is_master);
    CLV_TRY(clv_link_new(&o, link, err));
    set_node_links(k);
  }
  *ret = clv_link_ref(*link);
  return CLV_OK;
}

static clv_code dial_peer(sim_worker *k, const char *name, clv_err *err) {
  uint32_t to = (uint32_t)(name[1] - '0');
  if (k->dialled_links[to]) return CLV_OK;
  clv_link_options o = make_link_options(k, name, false);
  o.initial_send_credit = 0; /* the frame ATTACHED brings the credit */
  clv_link_dial d = {.session_id = k->session_id,
                     .session_owner = "m0",
                     .n_bulk_lanes = 4,
                     .attach_role = CLV_ATTACH_PEER};
  CLV_TRY(sim_world_dial_link(k->world, k->place, to, &o, &d, DIAL_TIMEOUT_MS,
                              &k->dialled_links[to], err));
  set_node_links(k);
  return CLV_OK;
}

/* ---- methods of the worker's service --------------------------------------------------------- */

static clv_code on_hello_method(sim_worker *k, const clv_piece *request, clv_bytes *reply,
                                clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_request r = {0};
  CLV_TRY(clv_wire_hello_request_decode(request, 1, &r, err));
  const char *capabilities[] = {"chunks", "direct", CLV_CAPABILITY_REFERENCE_LEASE};
  const char *devices[] = {clv_backend_cpu()->name};
  clv_wire_hello_reply out = {.incarnation = k->incarnation_id,
                              .worker_name = k->name,
                              .n_cores = 1,
                              .n_threads = 1,
                              .n_devices = 1,
                              .device_names = devices,
                              .about = {.protocol = CLV_WIRE_PROTOCOL,
                                        .n_capabilities = CLV_COUNT(capabilities),
                                        .capabilities = capabilities,
                                        .limits = k->granted_limits,
                                        .software = "cleave " CLV_VERSION,
                                        .isa = clv_backend_isa(clv_backend_cpu()),
                                        .unix_ms = r.about.unix_ms}};
  return clv_wire_hello_reply_encode(&out, reply, err);
}

/* Keeps an earlier session or process until the end of the world, because its work may still
 * run. */
static void keep_earlier_session(sim_worker *k, bool is_process_killed) {
  clv_err err;
  sim_worker *earlier;
  if (!is_process_killed && !k->node) return;
  if (clv_alloc(1, sizeof *earlier, &earlier, &err) != CLV_OK) abort();
  *earlier = *k;
  k->node = NULL;
  k->earlier_session = earlier;
  /* the next session of this process uses the pool, because the links of the earlier session are
   * freed */
  if (!is_process_killed) earlier->pool = NULL;
}

static clv_code on_open_method(sim_worker *k, const clv_piece *request, clv_bytes *reply,
                               clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_open_request r = {0};
  CLV_TRY(clv_wire_open_request_decode(request, 1, &r, err));
  keep_earlier_session(k, false);
  k->session_id = r.session_id;
  k->lease_ms = r.reference_lease_ms;
  k->has_open_session = true;
  clv_wire_open_reply out = {.incarnation = k->incarnation_id, .granted_limits = k->granted_limits};
  return clv_wire_open_reply_encode(&out, reply, err);
}

static clv_code on_close_method(sim_worker *k, const clv_piece *request, clv_bytes *reply,
                                clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_close_request r = {0};
  CLV_TRY(clv_wire_close_request_decode(request, 1, &r, err));
  sim_worker_close_session(k);
  return clv_wire_close_reply_encode(&(clv_wire_close_reply){0}, reply, err);
}

static clv_code make_node(sim_worker *k, clv_err *err) {
  if (k->node) return CLV_OK;
  clv_node_options o = {.pool = k->pool,
                        .originator = (uint16_t)k->place,
                        .reference_lease_ms = k->lease_ms,
                        .clock = sim_world_get_clock(k->world),
                        .executor = sim_world_get_executor(k->world, k->place),
                        .wait = sim_world_wait_until,
                        .wait_user = k->world};
  CLV_TRY(clv_node_new(&o, &k->node, err));
  set_node_links(k);
  return CLV_OK;
}

/* Asserts that generations grow, also over lost sessions and restarts. */
static void check_generation(sim_worker *k, const clv_wire_load_request *r) {
  sim_requests *t = &k->world->master_messages;
  if (r->module_generation < t->next_generation[r->module_index])
    snprintf(t->violation, sizeof t->violation, "%s is to load a module %u of generation %u again",
             k->name, r->module_index, r->module_generation);
}

static clv_code load_module(sim_worker *k, const clv_wire_load_request *r, clv_wire_load_reply *out,
                            clv_err *err) {
  CLV_AUTO(clv_module_freep) clv_module *m = NULL;
  check_generation(k, r);
  const clv_backend *ref = clv_backend_ref();
  const clv_backend *backend =
      k->world->conditions.has_device_workers && k->place > 1 ? far_get_backend(ref) : ref;
  const clv_device device = {.name = "cpu", .backend = backend};
  CLV_TRY(clv_load_make_module(r, &device, k->node, k->pool, NULL, &m, err));
  for (uint32_t i = 0; i < r->n_peers; i++) {
    if (dial_peer(k, r->peer_names[i], err) != CLV_OK)
      return clv_err_prefix(err, "peer %s at its address", r->peer_names[i]);
  }
  CLV_TRY(clv_load_describe_module(m, NULL, out, err));
  if (!k->has_open_session) return clv_fail(err, CLV_NOT_FOUND, "no such session");
  CLV_TRY(make_node(k, err));
  return clv_node_add_module(k->node, clv_steal(&m), err);
}

static clv_code on_load_method(sim_worker *k, const clv_piece *request, clv_bytes *reply,
                               clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request r = {0};
  CLV_TRY(clv_wire_load_request_decode(request, 1, &r, err));
  clv_wire_param params[16];
  clv_wire_spec outputs[1];
  clv_wire_load_reply out = {.params = params, .output_specs = outputs};
  CLV_TRY(load_module(k, &r, &out, err));
  return clv_wire_load_reply_encode(&out, reply, err);
}

clv_code sim_worker_call_method(sim_worker *k, const char *method, const clv_piece *request,
                                clv_bytes *reply, clv_err *err) {
  static const struct {
    const char *method;
    clv_code (*run)(sim_worker *k, const clv_piece *request, clv_bytes *reply, clv_err *err);
    bool needs_no_session;
  } methods[] = {{CLV_METHOD_HELLO, on_hello_method, true},
                 {CLV_METHOD_OPEN_SESSION, on_open_method, true},
                 {CLV_METHOD_LOAD_MODULE, on_load_method, false},
                 {CLV_METHOD_CLOSE_SESSION, on_close_method, false}};
  for (size_t i = 0; i < CLV_COUNT(methods); i++) {
    if (strcmp(method, methods[i].method) != 0) continue;
    if (!methods[i].needs_no_session && !k->has_open_session)
      return clv_fail(err, CLV_NOT_FOUND, "no such session");
    return methods[i].run(k, request, reply, err);
  }
  return clv_fail(err, CLV_UNIMPLEMENTED, "%s is not simulated", method);
}

/* ---- starting and freeing a worker ----------------------------------------------------------- */

clv_code sim_worker_start(sim_world *w, uint32_t place, clv_err *err) {
  sim_worker *k = &w->workers[place];
  *k = (sim_worker){.world = w, .place = place, .granted_limits = clv_wire_limits_default()};
  k->granted_limits.credit_bytes = w->conditions.credit_bytes;
  k->lane_acceptor = (clv_lane_acceptor){k, find_link};
  snprintf(k->name, sizeof k->name, "w%u", place);
  k->incarnation_id.bytes[0] = (uint8_t)place;
  return clv_pool_new((size_t)1 << 30, 4096, &k->pool, err);
}

void sim_worker_restart(sim_worker *k) {
  clv_err err;
  keep_earlier_session(k, true);
  sim_worker *earlier = k->earlier_session;
  sim_network_revive_place(k->world->network, k->place);
  if (sim_worker_start(k->world, k->place, &err) != CLV_OK) abort();
  k->earlier_session = earlier;
  k->n_restarts = earlier->n_restarts + 1;
  k->incarnation_id.bytes[1] = (uint8_t)k->n_restarts;
}

uint64_t sim_worker_next_run_ns(sim_worker *k) {
  if (!k->node || !k->has_open_session || k->is_dead) return UINT64_MAX;
  uint64_t due_ns = clv_node_due_ns(k->node);
  return due_ns == UINT64_MAX ? due_ns : CLV_MAX(due_ns, k->busy_until_ns);
}

void sim_worker_run_node(sim_worker *k) { clv_node_poll(k->node); }

static void close_link(clv_link **link) {
  clv_link *l = clv_steal(link);
  clv_link_close(l);
  clv_link_unref(l);
}

void sim_worker_close_session(sim_worker *k) {
  if (!k->has_open_session) return;
  k->has_open_session = false;
  if (k->node) {
    clv_node_stop(k->node);
    clv_node_set_master(k->node, NULL);
    clv_node_remove_peers(k->node);
  }
  close_link(&k->master_link);
  for (uint32_t i = 0; i < SIM_PLACES; i++) {
    close_link(&k->accepted_links[i]);
    close_link(&k->dialled_links[i]);
  }
}

void sim_worker_describe_objects(const sim_worker *k, char *text, size_t len) {
  clv_context_counts c;
  text[0] = '\0';
  if (!k->node || !k->has_open_session || k->is_dead) return;
  clv_node_context_count(k->node, &c);
  if (c.contexts || c.values || c.calls_waiting || c.references.n_owned || c.references.n_used ||
      c.references.n_pending)
    snprintf(text, len,
             "%s holds %llu contexts, %llu values, %llu calls, %llu + %llu references, %llu "
             "unanswered",
             k->name, (unsigned long long)c.contexts, (unsigned long long)c.values,
             (unsigned long long)c.calls_waiting, (unsigned long long)c.references.n_owned,
             (unsigned long long)c.references.n_used, (unsigned long long)c.references.n_pending);
}

void sim_worker_free_node(sim_worker *k) {
  sim_worker_close_session(k);
  clv_node_free(k->node); /* freeing the node ends its work first */
  k->node = NULL;
  if (k->earlier_session) sim_worker_free_node(k->earlier_session);
}

/* Asserts that nothing is charged to the pool after node and links are freed. Such a charge is a
 * leaked tensor. */
void sim_worker_free(sim_worker *k, char *text, size_t len) {
  if (k->earlier_session) sim_worker_free(k->earlier_session, text, len);
  free(k->earlier_session);
  if (!k->pool) return;
  sim_describe_pool_leftovers(k->pool, k->name, text, len);
  clv_pool_unref(k->pool);
}
