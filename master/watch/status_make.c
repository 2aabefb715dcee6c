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

static double counter_increase(uint64_t new_count, uint64_t old_count) {
  return new_count > old_count ? (double)(new_count - old_count) : 0;
}

static double divide_or_zero(double part, double whole) { return whole > 0 ? part / whole : 0; }

static double compute_share(double part, double whole) {
  return CLV_MIN(divide_or_zero(part, whole), 1.0);
}

static clv_status_last_error make_last_error(const clv_wire_last_error *t) {
  return (clv_status_last_error){t->text, (double)t->age_ms / 1e3};
}

/* ---- status of a session --------------------------------------------------------------------- */

static const clv_wire_session_status *find_earlier_session(const clv_wire_status_reply *old_reply,
                                                           const clv_wire_session_status *s) {
  static const clv_wire_session_status zero_status;
  for (uint32_t i = 0; old_reply && i < old_reply->n_sessions; i++) {
    const clv_wire_session_status *b = &old_reply->sessions[i];
    if (memcmp(&b->session_id, &s->session_id, sizeof b->session_id) == 0 &&
        b->attempt_number == s->attempt_number)
      return b;
  }
  return &zero_status;
}

static const clv_wire_module_status *find_earlier_module(const clv_wire_session_status *old_status,
                                                         uint32_t module) {
  static const clv_wire_module_status zero_status;
  for (uint32_t i = 0; i < old_status->n_modules; i++)
    if (old_status->modules[i].module_index == module) return &old_status->modules[i];
  return &zero_status;
}

static const clv_wire_link_status *find_earlier_link(const clv_wire_session_status *old_status,
                                                     const char *peer) {
  static const clv_wire_link_status zero_status;
  for (uint32_t i = 0; i < old_status->n_links; i++)
    if (strcmp(old_status->links[i].peer_name, peer) == 0) return &old_status->links[i];
  return &zero_status;
}

/* Returns the name of the stage that a module belongs to. If a run was started with this session
 * file, its modules are the stages, in order, and the loss. */
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

static clv_status_module make_module_status(const clv_wire_module_status *new_module,
                                            const clv_wire_module_status *old_module,
                                            double seconds, double thread_ns, const char *stage) {
  const char *name = stage ? stage : new_module->module_name[0] ? new_module->module_name : NULL;
  double calls = counter_increase(new_module->n_forwards, old_module->n_forwards) +
                 counter_increase(new_module->n_backwards, old_module->n_backwards) +
                 counter_increase(new_module->n_evals, old_module->n_evals);
  return (clv_status_module){
      .index = new_module->module_index,
      .name = name,
      .device = new_module->device_name,
      .is_stage = stage != NULL,
      .n_steps = new_module->n_steps,
      .n_forwards = new_module->n_forwards,
      .n_backwards = new_module->n_backwards,
      .n_evals = new_module->n_evals,
      .calls_per_s = divide_or_zero(calls, seconds),
      .computing_share = compute_share(
          counter_increase(new_module->compute_ns, old_module->compute_ns), thread_ns)};
}

static clv_status_link make_link_status(const clv_wire_link_status *new_link,
                                        const clv_wire_link_status *old_link, double seconds,
                                        double thread_ns, double idle_share) {
  double receiving_ns = counter_increase(new_link->receiving_ns, old_link->receiving_ns);
  double sending_ns = counter_increase(new_link->sending_ns, old_link->sending_ns);
  /* ns between the peer's last PONGs in old_link and in new_link; 0: no PONG in old_link */
  double asked_ns =
      old_link->last_pong_ns ? counter_increase(new_link->last_pong_ns, old_link->last_pong_ns) : 0;
  return (clv_status_link){
      .peer = new_link->peer_name,
      .bytes_in = new_link->bytes_in,
      .bytes_out = new_link->bytes_out,
      .bytes_in_per_s =
          divide_or_zero(counter_increase(new_link->bytes_in, old_link->bytes_in), seconds),
      .bytes_out_per_s =
          divide_or_zero(counter_increase(new_link->bytes_out, old_link->bytes_out), seconds),
      .round_trip_s = (double)new_link->round_trip_us / 1e6,
      .frames_in = new_link->frames_in,
      .frames_out = new_link->frames_out,
      .tensors_in = new_link->tensors_in,
      .tensors_out = new_link->tensors_out,
      .missing_bytes_in = new_link->missing_bytes_in,
      .missing_bytes_out = new_link->missing_bytes_out,
      .receiving_share = compute_share(receiving_ns, seconds * 1e9),
      .sending_share = compute_share(sending_ns, asked_ns),
      .transfer_bytes_in_per_s = divide_or_zero(
          counter_increase(new_link->received_bytes, old_link->received_bytes), receiving_ns / 1e9),
      .transfer_bytes_out_per_s =
          asked_ns > 0
              ? divide_or_zero(counter_increase(new_link->sent_bytes, old_link->sent_bytes),
                               sending_ns / 1e9)
              : 0,
      /* A wait counts in full when it ends, even if it began before the earlier answer. So the sum
       * may exceed the idle time between the answers, which limits the share. */
      .waiting_share =
          CLV_MIN(compute_share(counter_increase(new_link->node_wait_ns, old_link->node_wait_ns),
                                thread_ns),
                  idle_share),
      .waits_per_s =
          divide_or_zero(counter_increase(new_link->n_node_waits, old_link->n_node_waits), seconds),
      .n_outages = new_link->n_outages,
      .last_outage_age_s = (double)new_link->last_outage_age_ms / 1e3,
      .last_outage_s = (double)new_link->last_outage_ms / 1e3,
      .outage_s = (double)new_link->current_outage_ms / 1e3};
}

static void set_time_shares(const clv_wire_session_status *new_status,
                            const clv_wire_session_status *old_status, clv_status_session *ret,
                            double *ret_total_ns) {
  double busy_ns = counter_increase(new_status->busy_ns, old_status->busy_ns),
         idle_ns = counter_increase(new_status->idle_ns, old_status->idle_ns);
  double core_wait_ns = counter_increase(new_status->share_wait_ns, old_status->share_wait_ns);
  *ret_total_ns = busy_ns + idle_ns + core_wait_ns;
  ret->busy_share = compute_share(busy_ns, *ret_total_ns);
  ret->idle_share = compute_share(idle_ns, *ret_total_ns);
  ret->core_wait_share = compute_share(core_wait_ns, *ret_total_ns);
}

static void format_id(const clv_wire_id *id, char dst[33]) {
  for (size_t i = 0; i < sizeof id->bytes; i++) snprintf(dst + 2 * i, 3, "%02x", id->bytes[i]);
}

static void fill_session(const clv_session_config *c, uint32_t worker,
                         const clv_wire_session_status *new_status,
                         const clv_wire_session_status *old_status, double interval_s,
                         clv_status_session *ret) {
  double age_s = (double)new_status->age_ms / 1e3,
         seconds = old_status->session_name ? interval_s : age_s, thread_ns;
  ret->name = new_status->session_name;
  ret->identity = new_status->owner_identity;
  format_id(&new_status->session_id, ret->id);
  ret->epoch = new_status->attempt_number;
  ret->age_s = age_s;
  ret->is_attached = new_status->is_attached;
  ret->n_contexts = new_status->n_contexts;
  ret->n_values = new_status->n_held_values;
  ret->n_kept_references = new_status->n_references_owned;
  ret->n_used_references = new_status->n_references_used;
  ret->n_pending_references = new_status->n_references_pending;
  ret->n_waiting_calls = new_status->n_waiting_calls;
  ret->n_late_frames = new_status->n_late_frames;
  ret->bytes_in = new_status->bytes_in;
  ret->bytes_out = new_status->bytes_out;
  ret->memory = new_status->memory_bytes;
  ret->memory_limit = new_status->memory_limit;
  ret->last_error = make_last_error(&new_status->last_error);
  set_time_shares(new_status, old_status, ret, &thread_ns);
  for (uint32_t i = 0; i < new_status->n_modules; i++) {
    const clv_wire_module_status *s = &new_status->modules[i];
    ret->modules[ret->n_modules++] =
        make_module_status(s, find_earlier_module(old_status, s->module_index), seconds, thread_ns,
                           find_stage_name(c, worker, new_status->session_name, s));
  }
  for (uint32_t i = 0; i < new_status->n_links; i++) {
    const clv_wire_link_status *l = &new_status->links[i];
    ret->links[ret->n_links++] = make_link_status(l, find_earlier_link(old_status, l->peer_name),
                                                  seconds, thread_ns, ret->idle_share);
  }
}

/* ---- status of a worker ---------------------------------------------------------------------- */

static clv_code allocate_buffers(const clv_wire_status_reply *new_reply, clv_status_buffers *m,
                                 clv_err *err) {
  size_t n_modules = 0, n_links = 0;
  for (uint32_t i = 0; i < new_reply->n_sessions; i++) {
    n_modules += new_reply->sessions[i].n_modules;
    n_links += new_reply->sessions[i].n_links;
  }
  CLV_TRY(clv_alloc(new_reply->n_sessions, sizeof *m->sessions, &m->sessions, err));
  CLV_TRY(clv_alloc(n_modules, sizeof *m->modules, &m->modules, err));
  CLV_TRY(clv_alloc(new_reply->n_devices, sizeof *m->devices, &m->devices, err));
  return clv_alloc(n_links, sizeof *m->links, &m->links, err);
}

static void fill_worker(const clv_remote_spec *spec, const clv_wire_status_reply *new_reply,
                        clv_status_worker *ret) {
  ret->name = spec->name;
  ret->address = spec->address;
  ret->has_outcome = true;
  ret->own_name = new_reply->worker_name;
  ret->software =
      new_reply->has_about ? new_reply->about.software : "an older cleave, which says little";
  ret->protocol_version = new_reply->about.protocol;
  ret->must_upgrade =
      new_reply->has_about && !clv_wire_protocol_has_acks(new_reply->about.protocol);
  ret->device = new_reply->device_name;
  ret->isa = new_reply->about.isa;
  ret->libraries = new_reply->about.n_libraries ? new_reply->about.libraries[0].version : "";
  ret->n_cores = new_reply->n_cores;
  ret->uptime_s = (double)new_reply->uptime_ms / 1e3;
  ret->is_draining = new_reply->is_draining;
  ret->sees_all = new_reply->caller_sees_all;
  ret->resident_bytes = new_reply->rss_bytes;
  ret->memory = new_reply->memory_bytes;
  ret->memory_limit = new_reply->memory_limit;
  ret->session_limit = new_reply->about.limits.session_bytes;
  ret->n_open_sessions = CLV_MAX(new_reply->n_open_sessions, new_reply->n_sessions);
  ret->max_sessions = new_reply->about.limits.sessions;
  ret->n_connections = new_reply->n_connections;
  ret->max_connections = new_reply->max_connections;
  ret->n_omitted_sessions = new_reply->n_sessions_left_out;
  ret->n_handshake_failures = new_reply->n_handshake_failures;
  ret->has_certificate = new_reply->certificate_expiry_s != 0;
  ret->certificate_days =
      ((double)new_reply->certificate_expiry_s - (double)new_reply->about.unix_ms / 1e3) / 86400;
  ret->last_error = make_last_error(&new_reply->last_error);
}

clv_code clv_status_compare(const clv_session_config *c, uint32_t worker,
                            const clv_wire_status_reply *old_reply,
                            const clv_wire_status_reply *new_reply, clv_status_buffers *m,
                            clv_status_worker *ret, clv_err *err) {
  clv_status_module *modules;
  clv_status_link *links;
  CLV_TRY(allocate_buffers(new_reply, m, err));
  bool is_same_process = old_reply && memcmp(&old_reply->incarnation, &new_reply->incarnation,
                                             sizeof new_reply->incarnation) == 0;
  double interval_s = is_same_process
                          ? counter_increase(new_reply->uptime_ms, old_reply->uptime_ms) / 1e3
                          : (double)new_reply->uptime_ms / 1e3;
  modules = m->modules;
  links = m->links;
  fill_worker(&c->workers[worker], new_reply, ret);
  ret->interval_s = interval_s;
  ret->sessions = m->sessions;
  ret->devices = m->devices;
  ret->n_devices = new_reply->n_devices;
  for (uint32_t i = 0; i < new_reply->n_devices; i++)
    m->devices[i] = (clv_status_device){
        new_reply->devices[i].name,         new_reply->devices[i].kind,
        new_reply->devices[i].isa,          new_reply->devices[i].used_memory_bytes,
        new_reply->devices[i].memory_limit, new_reply->devices[i].total_memory_bytes};
  for (uint32_t i = 0; i < new_reply->n_sessions; i++) {
    const clv_wire_session_status *s = &new_reply->sessions[i];
    m->sessions[i].modules = modules;
    m->sessions[i].links = links;
    fill_session(c, worker, s, find_earlier_session(is_same_process ? old_reply : NULL, s),
                 interval_s, &m->sessions[i]);
    modules += s->n_modules;
    links += s->n_links;
  }
  ret->n_sessions = new_reply->n_sessions;
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
