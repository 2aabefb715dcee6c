/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes a snapshot of the numbers of a worker: its sessions, their modules and links. A snapshot
 * has a reference to each session in it, and reads the counters of a session while the session
 * runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/metrics/metrics.h"
#include "worker/service/service_int.h"

enum { MAX_LINKS_PER_SESSION = 1 + 2 * MAX_PEER_LINKS };
_Static_assert((int)MAX_LINKS_PER_SESSION == CLV_WIRE_LINKS,
               "a reply has room for all links of a session");
_Static_assert((int)MAX_SESSIONS == CLV_WIRE_SESSIONS, "a reply has room for all sessions");

/* Copies of the name of a module and of the name of its device. */
typedef struct module_texts {
  char name[CLV_WIRE_NAME + 1], device[CLV_WIRE_NAME + 1];
} module_texts;

typedef struct clv_snapshot_memory {
  clv_session *held_sessions[MAX_SESSIONS]; /* sessions in the snapshot, each with a reference */
  uint32_t n_held_sessions;
  clv_last_error last_error;         /* last error of the viewer; for an observer: of the worker */
  clv_last_error *last_errors;       /* last error of each session, [n_held_sessions] */
  clv_wire_session_status *sessions; /* status of each session, [n_held_sessions] */
  /* status of the modules of each session, [n_held_sessions * CLV_WIRE_MODULES] */
  clv_wire_module_status *modules;
  /* names of the modules and of their devices, [n_held_sessions * CLV_WIRE_MODULES] */
  module_texts *copied_texts;
  /* status of the links of each session, [n_held_sessions * MAX_LINKS_PER_SESSION] */
  clv_wire_link_status *links;
  clv_wire_device_status devices[MAX_DEVICES];
  clv_wire_library library; /* libraries of the default device */
} snapshot_memory;

/* ---- last errors ----------------------------------------------------------------------------- */

static clv_wire_last_error last_error_to_wire(const clv_last_error *e, uint64_t now_ns) {
  if (!e->at_ns) return (clv_wire_last_error){.text = ""};
  return (clv_wire_last_error){.text = e->text,
                               .age_ms = (now_ns - CLV_MIN(e->at_ns, now_ns)) / 1000000u};
}

/* Fills *ret with the last error of a session or the last failure of its node, whichever is
 * newer. */
static void get_latest_error(clv_session *s, clv_session_node *node, clv_last_error *ret) {
  clv_node_failure f = {0};
  if (node) clv_node_last_failure(node, &f);
  pthread_mutex_lock(&s->lock);
  *ret = s->last_error;
  pthread_mutex_unlock(&s->lock);
  if (!f.count || f.at_ns < ret->at_ns) return;
  ret->at_ns = f.at_ns;
  memcpy(ret->text, f.text, sizeof ret->text);
}

/* ---- links of a session ---------------------------------------------------------------------- */

/* A link with a reference of its own, and the name of its peer; "": the master. */
typedef struct held_link {
  const char *name;
  clv_link *link;
} held_link;

static uint32_t ref_links(clv_session *s, held_link *list) {
  uint32_t n = 0;
  if (s->master_link) list[n++] = (held_link){"", clv_link_ref(s->master_link)};
  for (uint32_t i = 0; i < s->n_dialled_links; i++)
    list[n++] = (held_link){s->dialled_links[i].name, clv_link_ref(s->dialled_links[i].link)};
  for (uint32_t i = 0; i < s->n_accepted_links; i++)
    list[n++] = (held_link){s->accepted_links[i].name, clv_link_ref(s->accepted_links[i].link)};
  return n;
}

/* Returns the entry of the peer `name` in the session's list of links, and adds the entry if it is
 * missing. If two workers have dialled each other, both links share an entry. */
static clv_wire_link_status *find_or_add_link_status(clv_wire_session_status *s, const char *name) {
  for (uint32_t i = 0; i < s->n_links; i++)
    if (strcmp(s->links[i].peer_name, name) == 0) return &s->links[i];
  s->links[s->n_links].peer_name = name;
  return &s->links[s->n_links++];
}

/* Adds the outages of a link to the entry of its peer. The last outage of the entry is the newest
 * one of all links of the peer. */
static void add_outages(clv_wire_link_status *r, const clv_link_counts *c) {
  uint64_t age_ms = c->last_outage_age_ns / 1000000;
  if (c->n_outages && (!r->n_outages || age_ms < r->last_outage_age_ms)) {
    r->last_outage_age_ms = age_ms;
    r->last_outage_ms = c->last_outage_ns / 1000000;
  }
  r->n_outages += c->n_outages;
  r->current_outage_ms = CLV_MAX(r->current_outage_ms, (c->current_outage_ns + 999999) / 1000000);
}

/* Adds the counters of a link to the entry of its peer, and starts a measurement of the round-trip
 * time. */
static void add_link_counts(clv_wire_session_status *s, const held_link *h) {
  clv_wire_link_status *r = find_or_add_link_status(s, h->name);
  clv_link_counts c;
  clv_link_load l;
  clv_link_get_counts(h->link, &c);
  clv_link_get_load(h->link, &l);
  r->bytes_in += c.bytes_in;
  r->bytes_out += c.bytes_out;
  r->round_trip_us = CLV_MAX(r->round_trip_us, c.round_trip_ns / 1000);
  r->frames_in += l.frames_in;
  r->frames_out += l.frames_out;
  r->tensors_in += l.tensors_in;
  r->tensors_out += l.tensors_out;
  r->missing_bytes_in += l.bytes_in;
  r->missing_bytes_out += l.bytes_out;
  r->received_bytes += c.received_bytes;
  r->receiving_ns += c.receiving_ns;
  r->sent_bytes += c.peer_received_bytes;
  r->sending_ns += c.peer_receiving_ns;
  r->last_pong_ns = CLV_MAX(r->last_pong_ns, c.last_pong_ns);
  r->n_node_waits += c.n_node_waits;
  r->node_wait_ns += c.node_wait_ns;
  add_outages(r, &c);
  s->bytes_in += c.bytes_in;
  s->bytes_out += c.bytes_out;
  clv_link_ping_async(h->link);
}

/* ---- status of a session --------------------------------------------------------------------- */

/* Fills the status of a session's modules. Copies their names to copied_texts, because modules may
 * be unloaded while the snapshot is read. */
static void fill_modules(clv_session_node *node, module_texts *copied_texts,
                         clv_wire_session_status *out) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    clv_module_counts k;
    if (!clv_node_module_info(node, i, &k, copied_texts[i].name, copied_texts[i].device)) continue;
    out->modules[out->n_modules++] =
        (clv_wire_module_status){.module_index = i,
                                 .n_steps = k.steps,
                                 .n_forwards = k.forwards,
                                 .n_backwards = k.backwards,
                                 .n_evals = k.evals,
                                 .compute_ns = k.compute_ns,
                                 .module_name = copied_texts[i].name,
                                 .device_name = copied_texts[i].device};
  }
}

/* Fills the numbers that the session's node counts. */
static void fill_node(clv_session_node *node, clv_wire_session_status *out) {
  clv_context_counts k;
  clv_node_times t;
  clv_node_context_count(node, &k);
  clv_node_time(node, &t);
  out->n_contexts = (uint32_t)k.contexts;
  out->n_held_values = k.values;
  out->n_waiting_calls = k.calls_waiting;
  out->n_late_frames = k.late_frames;
  out->n_references_owned = k.references.n_owned;
  out->n_references_used = k.references.n_used;
  out->n_references_pending = k.references.n_pending;
  out->busy_ns = t.busy_ns;
  out->idle_ns = t.idle_ns;
  out->share_wait_ns = t.share_ns;
}

/* Fills the status of a session, and *ret_error with its last error. The caller has allocated
 * out->modules and out->links. Reads the node without the session's lock, because the node exists
 * as long as the session. */
static void fill_session(clv_session *s, uint64_t now_ns, module_texts *copied_texts,
                         clv_last_error *ret_error, clv_wire_session_status *out) {
  held_link links[MAX_LINKS_PER_SESSION];
  out->session_id = s->id;
  out->attempt_number = s->epoch;
  out->session_name = s->name;
  out->owner_identity = s->owner;
  out->age_ms = now_ns / 1000000u - s->opened_ms;
  out->memory_bytes = clv_pool_charged_bytes(s->pool);
  out->memory_limit = s->granted_limits.session_bytes;
  pthread_mutex_lock(&s->lock);
  clv_session_node *node = s->node;
  out->is_attached = s->master_link && !s->is_closing;
  uint32_t n = ref_links(s, links);
  if (node) fill_modules(node, copied_texts, out);
  pthread_mutex_unlock(&s->lock);
  if (node) fill_node(node, out);
  for (uint32_t i = 0; i < n; i++) {
    add_link_counts(out, &links[i]);
    clv_link_unref(links[i].link);
  }
  get_latest_error(s, node, ret_error);
  out->last_error = last_error_to_wire(ret_error, now_ns);
}

static clv_code fill_sessions(snapshot_memory *m, uint64_t now_ns, clv_err *err) {
  size_t n = m->n_held_sessions;
  CLV_TRY(clv_alloc(n, sizeof *m->last_errors, &m->last_errors, err));
  CLV_TRY(clv_alloc(n, sizeof *m->sessions, &m->sessions, err));
  CLV_TRY(clv_alloc(n * CLV_WIRE_MODULES, sizeof *m->modules, &m->modules, err));
  CLV_TRY(clv_alloc(n * CLV_WIRE_MODULES, sizeof *m->copied_texts, &m->copied_texts, err));
  CLV_TRY(clv_alloc(n * MAX_LINKS_PER_SESSION, sizeof *m->links, &m->links, err));
  for (size_t i = 0; i < n; i++) {
    m->sessions[i].modules = m->modules + i * CLV_WIRE_MODULES;
    m->sessions[i].links = m->links + i * MAX_LINKS_PER_SESSION;
    fill_session(m->held_sessions[i], now_ns, m->copied_texts + i * CLV_WIRE_MODULES,
                 &m->last_errors[i], &m->sessions[i]);
  }
  return CLV_OK;
}

/* ---- status of the worker -------------------------------------------------------------------- */

/* Collects the sessions that the viewer may see, with a reference to each. The viewer must not
 * learn that other sessions exist. viewer_entry: entry of the viewer in `allow`. Takes the
 * service's lock. */
static void collect_sessions(clv_service *v, const clv_allow_spec *viewer_entry,
                             const char *viewer_uri, const clv_wire_id *only_session_id,
                             snapshot_memory *m, clv_wire_status_reply *out) {
  pthread_mutex_lock(&v->lock);
  for (uint32_t i = 0; i < v->n_sessions; i++) {
    clv_session *s = v->sessions[i];
    if (!out->caller_sees_all && strcmp(s->owner, viewer_uri) != 0) continue;
    out->n_open_sessions++;
    out->memory_bytes += clv_pool_charged_bytes(s->pool);
    if (only_session_id && memcmp(&s->id, only_session_id, sizeof *only_session_id) != 0) continue;
    m->held_sessions[m->n_held_sessions++] = clv_session_ref(s);
  }
  out->is_draining = v->is_draining;
  out->certificate_expiry_s = (uint64_t)CLV_MAX(v->certificate_expiry_s, (int64_t)0);
  if (out->caller_sees_all)
    m->last_error = v->last_error;
  else if (viewer_entry)
    m->last_error = clv_service_find_member(v, viewer_uri)->last_error;
  pthread_mutex_unlock(&v->lock);
}

/* Fills the numbers that concern the complete process, such as its memory. Called only for viewers
 * that may see all sessions. */
static void fill_process(clv_service *v, const clv_worker_settings *settings,
                         clv_service_snapshot *snapshot) {
  clv_wire_status_reply *out = &snapshot->status;
  out->rss_bytes = clv_metrics_resident();
  out->memory_limit = clv_settings_memory_limit(settings);
  out->n_connections = clv_rpc_server_count_connections(v->server);
  out->max_connections = (uint32_t)settings->config->limits.connections;
  out->n_handshake_failures = snapshot->call_counts.n_calls_unauthenticated;
  for (size_t i = 0; i < CLV_TLS_FAILURES; i++)
    out->n_handshake_failures +=
        snapshot->caller_handshakes.n_failed[i] + snapshot->peer_handshakes.n_failed[i];
}

static void fill_worker(clv_service *v, const clv_worker_settings *settings, uint64_t now_ns,
                        snapshot_memory *m, clv_wire_status_reply *out) {
  m->library = (clv_wire_library){"kernels", clv_backend_libraries(clv_service_backend(v))};
  out->incarnation = v->incarnation;
  out->uptime_ms = now_ns / 1000000u - v->started_ms;
  out->has_about = true;
  out->about = (clv_wire_about){.protocol = CLV_WIRE_PROTOCOL,
                                .limits = settings->limits,
                                .software = "cleave " CLV_VERSION,
                                .isa = clv_backend_isa(clv_service_backend(v)),
                                .n_libraries = 1,
                                .libraries = &m->library,
                                .unix_ms = clv_wall_ms()};
  out->worker_name = v->config->name ? v->config->name : "worker";
  out->device_name = v->devices[0].name; /* the device that worker.yaml names, if any */
  out->n_cores = (uint32_t)CLV_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
}

/* Returns the memory of device i that the sessions in the snapshot use, bytes. */
static uint64_t sum_device_bytes(const snapshot_memory *m, uint32_t i) {
  uint64_t bytes = 0;
  for (size_t k = 0; k < m->n_held_sessions; k++)
    bytes += clv_account_usage(m->held_sessions[k]->device_accounts[i], CLV_QUOTA_BYTES);
  return bytes;
}

static void fill_devices(const clv_service *v, snapshot_memory *m, clv_wire_status_reply *out) {
  out->devices = m->devices;
  for (uint32_t i = 0; i < v->n_devices; i++) {
    const clv_device *d = &v->devices[i];
    uint64_t used_bytes = out->caller_sees_all ? clv_account_usage(d->account, CLV_QUOTA_BYTES)
                                               : sum_device_bytes(m, i);
    m->devices[out->n_devices++] =
        (clv_wire_device_status){d->name,
                                 d->backend->name,
                                 clv_backend_isa(d->backend),
                                 used_bytes,
                                 clv_account_own_limit(d->account, CLV_QUOTA_BYTES),
                                 d->memory_bytes};
  }
}

/* Replaces the worker's limits in the reply by the quotas in the viewer's entry of `allow`. */
static void fill_quotas(const clv_allow_spec *viewer_entry, clv_wire_status_reply *out) {
  out->memory_limit = viewer_entry->bytes;
  if (viewer_entry->sessions) out->about.limits.sessions = (uint32_t)viewer_entry->sessions;
}

clv_code clv_service_snapshot_take(clv_service *v, const char *viewer_uri,
                                   const clv_wire_id *only_session_id, clv_service_snapshot *ret,
                                   clv_err *err) {
  CLV_AUTO(clv_service_snapshot_done) clv_service_snapshot snapshot = {0};
  CLV_AUTO(clv_settings_unrefp) clv_worker_settings *newest_settings = clv_service_ref_settings(v);
  const clv_allow_spec *a =
      viewer_uri ? clv_settings_find_allowed(newest_settings, viewer_uri) : NULL;
  clv_wire_status_reply *out = &snapshot.status;
  CLV_TRY(clv_alloc(1, sizeof *snapshot.memory, &snapshot.memory, err));
  out->caller_sees_all = !viewer_uri || (a && a->role == CLV_ROLE_OBSERVER);
  collect_sessions(v, a, viewer_uri, only_session_id, snapshot.memory, out);
  /* read the time after collect_sessions, so that no session in the snapshot was opened later */
  uint64_t now_ns = clv_now_ns();
  CLV_TRY(fill_sessions(snapshot.memory, now_ns, err));
  out->n_sessions = snapshot.memory->n_held_sessions;
  out->sessions = snapshot.memory->sessions;
  out->last_error = last_error_to_wire(&snapshot.memory->last_error, now_ns);
  fill_worker(v, newest_settings, now_ns, snapshot.memory, out);
  fill_devices(v, snapshot.memory, out);
  clv_rpc_server_get_counts(v->server, &snapshot.call_counts);
  clv_tls_handshakes_get_counts(true, &snapshot.caller_handshakes);
  clv_tls_handshakes_get_counts(false, &snapshot.peer_handshakes);
  if (out->caller_sees_all)
    fill_process(v, newest_settings, &snapshot);
  else if (a)
    fill_quotas(a, out);
  *ret = snapshot;
  snapshot = (clv_service_snapshot){0}; /* the caller owns the snapshot */
  return CLV_OK;
}

void clv_service_snapshot_done(clv_service_snapshot *snapshot) {
  if (!snapshot) return;
  snapshot_memory *m = snapshot->memory;
  if (!m) return;
  for (uint32_t i = 0; i < m->n_held_sessions; i++) clv_session_unref(m->held_sessions[i]);
  free(m->last_errors);
  free(m->sessions);
  free(m->modules);
  free(m->copied_texts);
  free(m->links);
  free(m);
  *snapshot = (clv_service_snapshot){0};
}
