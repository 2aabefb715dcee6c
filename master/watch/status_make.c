/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes from two answers of a worker the differences, rates and shares that `status` shows. A
 * worker may answer anything: a counter that decreases counts as a difference of 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train.h"
#include "master/watch/status_int.h"

static double difference(uint64_t now, uint64_t before) {
  return now > before ? (double)(now - before) : 0;
}

static double divide_or_zero(double part, double whole) { return whole > 0 ? part / whole : 0; }

static double compute_share(double part, double whole) {
  return CLV_MIN(divide_or_zero(part, whole), 1.0);
}

static clv_status_last_error make_last_error(const clv_wire_last_error *t) {
  return (clv_status_last_error){t->text, (double)t->age_ms / 1e3};
}

/* ---- status of a session --------------------------------------------------------------------- */

static const clv_wire_session_status *find_earlier_session(const clv_wire_status_reply *before,
                                                           const clv_wire_session_status *s) {
  static const clv_wire_session_status zero_status;
  for (uint32_t i = 0; before && i < before->n_sessions; i++) {
    const clv_wire_session_status *b = &before->sessions[i];
    if (memcmp(&b->session_id, &s->session_id, sizeof b->session_id) == 0 &&
        b->attempt_number == s->attempt_number)
      return b;
  }
  return &zero_status;
}

static const clv_wire_module_status *find_earlier_module(const clv_wire_session_status *before,
                                                         uint32_t module) {
  static const clv_wire_module_status zero_status;
  for (uint32_t i = 0; i < before->n_modules; i++)
    if (before->modules[i].module_index == module) return &before->modules[i];
  return &zero_status;
}

static const clv_wire_link_status *find_earlier_link(const clv_wire_session_status *before,
                                                     const char *peer) {
  static const clv_wire_link_status zero_status;
  for (uint32_t i = 0; i < before->n_links; i++)
    if (strcmp(before->links[i].peer_name, peer) == 0) return &before->links[i];
  return &zero_status;
}

/* Returns the name of the stage that a module belongs to. The modules of a run by this session file
 * are its stages, in order, and the loss. */
static const char *find_stage_name(const clv_session_config *c, uint32_t worker,
                                   const char *session, const clv_wire_module_status *module) {
  if (strcmp(session, c->name) != 0 || module->module_index > c->n_stages) return NULL;
  bool is_loss = module->module_index == c->n_stages;
  int stage_worker = is_loss ? c->loss.worker : c->stages[module->module_index].worker;
  const char *name = is_loss ? "loss" : c->stages[module->module_index].name;
  const char *reported_name =
      is_loss && strcmp(module->module_name, CLV_LOSS_NAME) == 0 ? name : module->module_name;
  return stage_worker == (int)worker && (!reported_name[0] || strcmp(reported_name, name) == 0)
             ? name
             : NULL;
}

static clv_status_module make_module_status(const clv_wire_module_status *now,
                                            const clv_wire_module_status *before, double seconds,
                                            double thread_ns, const char *stage) {
  const char *name = stage ? stage : now->module_name[0] ? now->module_name : NULL;
  double calls = difference(now->n_forwards, before->n_forwards) +
                 difference(now->n_backwards, before->n_backwards) +
                 difference(now->n_evals, before->n_evals);
  return (clv_status_module){
      .index = now->module_index,
      .name = name,
      .device = now->device_name,
      .is_stage = stage != NULL,
      .steps = now->n_steps,
      .forwards = now->n_forwards,
      .backwards = now->n_backwards,
      .evals = now->n_evals,
      .calls_per_s = divide_or_zero(calls, seconds),
      .computing_share = compute_share(difference(now->compute_ns, before->compute_ns), thread_ns)};
}

static clv_status_link make_link_status(const clv_wire_link_status *now,
                                        const clv_wire_link_status *before, double seconds,
                                        double thread_ns, double idle_share) {
  double receiving_ns = difference(now->receiving_ns, before->receiving_ns);
  double sending_ns = difference(now->sending_ns, before->sending_ns);
  /* The peer's numbers cover the time between the peer's last two answers; 0 after one answer. */
  double asked_ns = before->last_pong_ns ? difference(now->last_pong_ns, before->last_pong_ns) : 0;
  return (clv_status_link){
      .peer = now->peer_name,
      .bytes_in = now->bytes_in,
      .bytes_out = now->bytes_out,
      .in_per_s = divide_or_zero(difference(now->bytes_in, before->bytes_in), seconds),
      .out_per_s = divide_or_zero(difference(now->bytes_out, before->bytes_out), seconds),
      .round_trip_s = (double)now->round_trip_us / 1e6,
      .frames_in = now->frames_in,
      .frames_out = now->frames_out,
      .tensors_in = now->tensors_in,
      .tensors_out = now->tensors_out,
      .missing_in = now->missing_bytes_in,
      .missing_out = now->missing_bytes_out,
      .receiving_share = compute_share(receiving_ns, seconds * 1e9),
      .sending_share = compute_share(sending_ns, asked_ns),
      .link_in_per_s = divide_or_zero(difference(now->received_bytes, before->received_bytes),
                                      receiving_ns / 1e9),
      .link_out_per_s =
          asked_ns > 0
              ? divide_or_zero(difference(now->sent_bytes, before->sent_bytes), sending_ns / 1e9)
              : 0,
      /* A wait is counted when it ends, so it may include time before the earlier answer: limit it
       * to the idle time. */
      .waiting_share =
          CLV_MIN(compute_share(difference(now->node_wait_ns, before->node_wait_ns), thread_ns),
                  idle_share),
      .awaits_per_s = divide_or_zero(difference(now->n_node_waits, before->n_node_waits), seconds),
      .n_outages = now->n_outages,
      .last_outage_age_s = (double)now->last_outage_age_ms / 1e3,
      .last_outage_s = (double)now->last_outage_ms / 1e3,
      .outage_s = (double)now->current_outage_ms / 1e3};
}

static void set_time_shares(const clv_wire_session_status *now,
                            const clv_wire_session_status *before, clv_status_session *ret,
                            double *ret_total_ns) {
  double busy_ns = difference(now->busy_ns, before->busy_ns),
         idle_ns = difference(now->idle_ns, before->idle_ns);
  double core_wait_ns = difference(now->share_wait_ns, before->share_wait_ns);
  *ret_total_ns = busy_ns + idle_ns + core_wait_ns;
  ret->busy_share = compute_share(busy_ns, *ret_total_ns);
  ret->idle_share = compute_share(idle_ns, *ret_total_ns);
  ret->core_wait_share = compute_share(core_wait_ns, *ret_total_ns);
}

static void format_id(const clv_wire_id *id, char dst[33]) {
  for (size_t i = 0; i < sizeof id->bytes; i++) snprintf(dst + 2 * i, 3, "%02x", id->bytes[i]);
}

static void fill_session(const clv_session_config *c, uint32_t worker,
                         const clv_wire_session_status *now, const clv_wire_session_status *before,
                         double interval_s, clv_status_session *ret) {
  double age_s = (double)now->age_ms / 1e3, seconds = before->session_name ? interval_s : age_s,
         thread_ns;
  ret->name = now->session_name;
  ret->identity = now->owner_identity;
  format_id(&now->session_id, ret->id);
  ret->epoch = now->attempt_number;
  ret->age_s = age_s;
  ret->is_attached = now->is_attached;
  ret->n_contexts = now->n_contexts;
  ret->values = now->n_held_values;
  ret->references = now->n_references_owned;
  ret->n_used_references = now->n_references_used;
  ret->n_pending_references = now->n_references_pending;
  ret->n_waiting_calls = now->n_waiting_calls;
  ret->n_late_frames = now->n_late_frames;
  ret->bytes_in = now->bytes_in;
  ret->bytes_out = now->bytes_out;
  ret->memory = now->memory_bytes;
  ret->memory_limit = now->memory_limit;
  ret->last_error = make_last_error(&now->last_error);
  set_time_shares(now, before, ret, &thread_ns);
  for (uint32_t i = 0; i < now->n_modules; i++) {
    const clv_wire_module_status *s = &now->modules[i];
    ret->modules[ret->n_modules++] =
        make_module_status(s, find_earlier_module(before, s->module_index), seconds, thread_ns,
                           find_stage_name(c, worker, now->session_name, s));
  }
  for (uint32_t i = 0; i < now->n_links; i++) {
    const clv_wire_link_status *l = &now->links[i];
    ret->links[ret->n_links++] = make_link_status(l, find_earlier_link(before, l->peer_name),
                                                  seconds, thread_ns, ret->idle_share);
  }
}

/* ---- status of a worker ---------------------------------------------------------------------- */

static clv_code allocate_buffers(const clv_wire_status_reply *now, clv_status_buffers *m,
                                 clv_err *err) {
  size_t n_modules = 0, n_links = 0;
  for (uint32_t i = 0; i < now->n_sessions; i++) {
    n_modules += now->sessions[i].n_modules;
    n_links += now->sessions[i].n_links;
  }
  CLV_TRY(clv_alloc(now->n_sessions, sizeof *m->sessions, &m->sessions, err));
  CLV_TRY(clv_alloc(n_modules, sizeof *m->modules, &m->modules, err));
  CLV_TRY(clv_alloc(now->n_devices, sizeof *m->devices, &m->devices, err));
  return clv_alloc(n_links, sizeof *m->links, &m->links, err);
}

static void fill_worker(const clv_remote_spec *spec, const clv_wire_status_reply *now,
                        clv_status_worker *ret) {
  ret->name = spec->name;
  ret->address = spec->address;
  ret->has_outcome = true;
  ret->own_name = now->worker_name;
  ret->software = now->has_about ? now->about.software : "an older cleave, which says little";
  ret->protocol = now->about.protocol;
  ret->must_upgrade = now->has_about && !clv_wire_protocol_has_acks(now->about.protocol);
  ret->device = now->device_name;
  ret->isa = now->about.isa;
  ret->libraries = now->about.n_libraries ? now->about.libraries[0].version : "";
  ret->cores = now->n_cores;
  ret->uptime_s = (double)now->uptime_ms / 1e3;
  ret->is_draining = now->is_draining;
  ret->sees_all = now->caller_sees_all;
  ret->resident_bytes = now->rss_bytes;
  ret->memory = now->memory_bytes;
  ret->memory_limit = now->memory_limit;
  ret->session_limit = now->about.limits.session_bytes;
  ret->open_sessions = CLV_MAX(now->n_open_sessions, now->n_sessions);
  ret->max_sessions = now->about.limits.sessions;
  ret->connections = now->n_connections;
  ret->max_connections = now->max_connections;
  ret->sessions_omitted = now->n_sessions_left_out;
  ret->handshake_failures = now->n_handshake_failures;
  ret->has_certificate = now->certificate_expiry_s != 0;
  ret->certificate_days =
      ((double)now->certificate_expiry_s - (double)now->about.unix_ms / 1e3) / 86400;
  ret->last_error = make_last_error(&now->last_error);
}

clv_code clv_status_compare(const clv_session_config *c, uint32_t worker,
                            const clv_wire_status_reply *before, const clv_wire_status_reply *now,
                            clv_status_buffers *m, clv_status_worker *ret, clv_err *err) {
  clv_status_module *modules;
  clv_status_link *links;
  CLV_TRY(allocate_buffers(now, m, err));
  bool is_same_process =
      before && memcmp(&before->incarnation, &now->incarnation, sizeof now->incarnation) == 0;
  double interval_s = is_same_process ? difference(now->uptime_ms, before->uptime_ms) / 1e3
                                      : (double)now->uptime_ms / 1e3;
  modules = m->modules;
  links = m->links;
  fill_worker(&c->workers[worker], now, ret);
  ret->interval_s = interval_s;
  ret->sessions = m->sessions;
  ret->devices = m->devices;
  ret->n_devices = now->n_devices;
  for (uint32_t i = 0; i < now->n_devices; i++)
    m->devices[i] =
        (clv_status_device){now->devices[i].name,         now->devices[i].kind,
                            now->devices[i].isa,          now->devices[i].used_memory_bytes,
                            now->devices[i].memory_limit, now->devices[i].total_memory_bytes};
  for (uint32_t i = 0; i < now->n_sessions; i++) {
    const clv_wire_session_status *s = &now->sessions[i];
    m->sessions[i].modules = modules;
    m->sessions[i].links = links;
    fill_session(c, worker, s, find_earlier_session(is_same_process ? before : NULL, s), interval_s,
                 &m->sessions[i]);
    modules += s->n_modules;
    links += s->n_links;
  }
  ret->n_sessions = now->n_sessions;
  return CLV_OK;
}

void clv_status_buffers_done(clv_status_buffers *m) {
  if (!m) return;
  free(m->sessions);
  free(m->modules);
  free(m->links);
  free(m->devices);
  *m = (clv_status_buffers){0};
}
