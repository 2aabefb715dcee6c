/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker's metrics for Prometheus. The values of labels are identities of `allow`, names of
 * `peers`, names of devices and words of fixed lists. So no text from a caller creates a time
 * series.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/metrics/metrics.h"
#include "worker/service/service_int.h"

/* Usage of all sessions of one identity. */
typedef struct identity_usage {
  double n_sessions, n_contexts, n_values, n_references_owned, n_references_used;
  double n_references_pending, n_waiting_calls, memory_bytes;
} identity_usage;

/* Queued frames, and bytes of tensors in transfer, on all links to the master or on all links to
 * one peer. */
typedef struct link_load {
  double n_frames_in;  /* frames that were received, but not handled yet */
  double n_frames_out; /* frames that wait to be sent */
  double bytes_in;     /* bytes that were announced, but not received yet */
  double bytes_out;    /* bytes that were sent, but not acknowledged yet */
} link_load;

/* Values of all metrics at one moment. */
typedef struct metric_values {
  const clv_service *service;
  clv_worker_settings *settings;   /* newest settings, with a reference of their own */
  const clv_worker_config *config; /* the configuration in `settings` */
  clv_service_snapshot snapshot;
  identity_usage *usage; /* usage of each identity of `allow`, [n_allow] */
  clv_work_counts *work; /* work done for each identity of `allow`, [n_allow] */
  /* bytes and messages on the links to the master and to each peer, [CLV_N_LINK_TRAFFIC] */
  clv_link_traffic *traffic;
  /* load of the links to the master and to each peer, [CLV_N_LINK_TRAFFIC] */
  link_load *link_loads;
  uint64_t n_refused_sessions[N_REFUSALS];
  double uptime_s;
  double is_ready; /* 1: the worker accepts new sessions; 0: the worker is draining */
  double max_sessions_per_identity, memory_limit_bytes, session_memory_limit_bytes;
  double n_shed;               /* value of clv_accept_guard_shed_count */
  double certificate_expiry_s; /* seconds since 1970 */
  double n_reloads, n_failed_reloads;
  double n_connections, max_connections, n_handshakes, n_calls, n_active_calls;
  double n_bans; /* times that an identity was refused for a while, because it wasted calls */
} metric_values;

/* ---- gathering the values -------------------------------------------------------------------- */

static void metric_values_done(metric_values *n) {
  clv_settings_unref(n->settings);
  clv_service_snapshot_done(&n->snapshot);
  free(n->usage);
  free(n->work);
  free(n->traffic);
  free(n->link_loads);
}

static clv_code init_values(metric_values *n, clv_service *v, clv_err *err) {
  n->service = v;
  n->settings = clv_service_ref_settings(v);
  const clv_worker_config *c = n->config = n->settings->config;
  CLV_TRY(clv_alloc(c->n_allow, sizeof *n->usage, &n->usage, err));
  CLV_TRY(clv_alloc(c->n_allow, sizeof *n->work, &n->work, err));
  CLV_TRY(clv_alloc(CLV_N_LINK_TRAFFIC(c), sizeof *n->traffic, &n->traffic, err));
  return clv_alloc(CLV_N_LINK_TRAFFIC(c), sizeof *n->link_loads, &n->link_loads, err);
}

/* Adds the work and the traffic of an open session, which the totals do not include. */
static void add_open_session(metric_values *n, clv_session *s) {
  const clv_allow_spec *a = clv_settings_find_allowed(n->settings, s->owner);
  /* receives the work for an identity that is not in `allow` */
  clv_work_counts unlisted_work = {0};
  clv_session_add_counts_to(s, n->config, a ? &n->work[a - n->config->allow] : &unlisted_work,
                            n->traffic);
}

/* Gathers the counters of ended sessions, which are the totals, and of open sessions, all under the
 * service's lock. When a session ends, it leaves the table and its counters are added to the totals
 * under that lock. Without the lock a session could be missed or counted twice, and a sum could
 * decrease. */
static void gather_totals(clv_service *v, metric_values *n) {
  const clv_worker_config *c = n->config;
  pthread_mutex_lock(&v->lock);
  for (size_t i = 0; i < c->n_allow; i++)
    n->work[i] = clv_service_find_member(v, c->allow[i].identity)->ended_work;
  for (size_t i = 0; i <= c->n_peers; i++)
    n->traffic[i] = clv_service_find_traffic_total(v, i ? c->peers[i - 1].name : "")->ended_traffic;
  memcpy(n->n_refused_sessions, v->n_refused_sessions, sizeof n->n_refused_sessions);
  n->n_reloads = (double)v->n_reloads;
  n->n_failed_reloads = (double)v->n_failed_reloads;
  for (uint32_t i = 0; i < v->n_sessions; i++) add_open_session(n, v->sessions[i]);
  pthread_mutex_unlock(&v->lock);
}

static void add_session_usage(metric_values *n, const clv_wire_session_status *s,
                              identity_usage *h) {
  h->n_sessions++;
  h->n_contexts += s->n_contexts;
  h->n_values += (double)s->n_held_values;
  h->n_references_owned += (double)s->n_references_owned;
  h->n_references_used += (double)s->n_references_used;
  h->n_references_pending += (double)s->n_references_pending;
  h->n_waiting_calls += (double)s->n_waiting_calls;
  h->memory_bytes += (double)s->memory_bytes;
  for (uint32_t i = 0; i < s->n_links; i++) {
    const clv_wire_link_status *k = &s->links[i];
    link_load *l = &n->link_loads[clv_link_traffic_index(n->config, k->peer_name)];
    l->n_frames_in += (double)k->frames_in;
    l->n_frames_out += (double)k->frames_out;
    l->bytes_in += (double)k->missing_bytes_in;
    l->bytes_out += (double)k->missing_bytes_out;
  }
}

static void gather_sessions(metric_values *n) {
  const clv_wire_status_reply *status = &n->snapshot.status;
  for (uint32_t i = 0; i < status->n_sessions; i++) {
    const clv_allow_spec *a =
        clv_settings_find_allowed(n->settings, status->sessions[i].owner_identity);
    if (a) add_session_usage(n, &status->sessions[i], &n->usage[a - n->config->allow]);
  }
}

static clv_code gather_values(clv_service *v, uint64_t n_shed, metric_values *n, clv_err *err) {
  const clv_wire_status_reply *status = &n->snapshot.status;
  CLV_TRY(clv_service_snapshot_take(v, NULL, NULL, &n->snapshot, err));
  gather_sessions(n);
  gather_totals(v, n);
  n->uptime_s = (double)status->uptime_ms / 1e3;
  n->is_ready = !status->is_draining;
  n->max_sessions_per_identity = n->settings->limits.sessions;
  n->session_memory_limit_bytes = (double)n->settings->limits.session_bytes;
  n->memory_limit_bytes = (double)status->memory_limit;
  n->certificate_expiry_s = (double)status->certificate_expiry_s;
  n->n_connections = status->n_connections;
  n->max_connections = status->max_connections;
  n->n_shed = (double)n_shed;
  n->n_handshakes = (double)n->snapshot.caller_handshakes.n_completed;
  n->n_calls = (double)n->snapshot.call_counts.n_calls;
  n->n_active_calls = n->snapshot.call_counts.n_active_calls;
  n->n_bans = (double)n->snapshot.call_counts.n_cut_peers;
  return CLV_OK;
}

/* ---- writing samples ------------------------------------------------------------------------- */

/* Writes a sample for each identity that may open sessions. get_value: returns the value of the
 * sample; its argument `identity` is an index in `allow`. */
static void put_by_identity(clv_metrics_out *out, const metric_values *n,
                            double (*get_value)(const metric_values *n, size_t identity)) {
  for (size_t i = 0; i < n->config->n_allow; i++) {
    const clv_metric_label label = {"identity", n->config->allow[i].identity};
    if (n->config->allow[i].role == CLV_ROLE_MASTER)
      clv_metric_sample(out, get_value(n, i), &label, 1);
  }
}

/* Defines put_NAME, which writes `value` for each identity. `value` uses n, the values of all
 * metrics, and i, the index of the identity in `allow`. */
#define DEFINE_IDENTITY_METRIC(name, value)                                              \
  static double get_##name(const metric_values *n, size_t i) { return (double)(value); } \
  static void put_##name(clv_metrics_out *out, const void *n) {                          \
    put_by_identity(out, n, get_##name);                                                 \
  }

DEFINE_IDENTITY_METRIC(sessions, n->usage[i].n_sessions)
DEFINE_IDENTITY_METRIC(contexts, n->usage[i].n_contexts)
DEFINE_IDENTITY_METRIC(values, n->usage[i].n_values)
DEFINE_IDENTITY_METRIC(references_owned, n->usage[i].n_references_owned)
DEFINE_IDENTITY_METRIC(references_used, n->usage[i].n_references_used)
DEFINE_IDENTITY_METRIC(references_pending, n->usage[i].n_references_pending)
DEFINE_IDENTITY_METRIC(calls_waiting, n->usage[i].n_waiting_calls)
DEFINE_IDENTITY_METRIC(memory, n->usage[i].memory_bytes)
DEFINE_IDENTITY_METRIC(steps, n->work[i].n_steps)
DEFINE_IDENTITY_METRIC(forwards, n->work[i].n_forwards)
DEFINE_IDENTITY_METRIC(backwards, n->work[i].n_backwards)
DEFINE_IDENTITY_METRIC(compute, (double)n->work[i].compute_ns * 1e-9)
DEFINE_IDENTITY_METRIC(replays, n->work[i].n_graph_launches)
DEFINE_IDENTITY_METRIC(not_recorded, n->work[i].n_graph_fallbacks)
DEFINE_IDENTITY_METRIC(idle, (double)n->work[i].idle_ns * 1e-9)
DEFINE_IDENTITY_METRIC(share, (double)n->work[i].core_wait_ns * 1e-9)
DEFINE_IDENTITY_METRIC(wakes, n->work[i].n_wakeups)

static void put_copied_bytes(clv_metrics_out *out, const void *values) {
  static const struct {
    const char *name;
    size_t offset;
  } copy_routes[] = {{"device", offsetof(clv_work_counts, within_device_bytes)},
                     {"peer", offsetof(clv_work_counts, between_devices_bytes)},
                     {"host", offsetof(clv_work_counts, through_host_bytes)}};
  const metric_values *n = values;
  for (size_t i = 0; i < CLV_COUNT(copy_routes); i++) {
    double sum = 0;
    for (size_t k = 0; k < n->config->n_allow; k++)
      sum += (double)*(const uint64_t *)((const char *)&n->work[k] + copy_routes[i].offset);
    clv_metric_sample(out, sum, &(clv_metric_label){"way", copy_routes[i].name}, 1);
  }
}

/* Writes two samples, one for each direction, for the links to the master and for the links to each
 * peer. get_value: returns the value of the sample. */
static void put_by_link(clv_metrics_out *out, const metric_values *n,
                        double (*get_value)(const metric_values *n, size_t link, bool in)) {
  for (size_t i = 0; i <= n->config->n_peers; i++) {
    const char *name = i ? n->config->peers[i - 1].name : "master";
    for (int in = 1; in >= 0; in--) {
      const clv_metric_label labels[] = {{"link", name}, {"direction", in ? "in" : "out"}};
      clv_metric_sample(out, get_value(n, i, in), labels, CLV_COUNT(labels));
    }
  }
}

/* Defines put_NAME, which writes in_value and out_value for the links to the master and to each
 * peer. These use n, the values of all metrics, and i: 0 for the master, or 1 + the index of the
 * peer. */
#define DEFINE_LINK_METRIC(name, in_value, out_value)                   \
  static double get_##name(const metric_values *n, size_t i, bool in) { \
    return (double)(in ? (in_value) : (out_value));                     \
  }                                                                     \
  static void put_##name(clv_metrics_out *out, const void *n) { put_by_link(out, n, get_##name); }

DEFINE_LINK_METRIC(link_bytes, n->traffic[i].bytes_in, n->traffic[i].bytes_out)
DEFINE_LINK_METRIC(link_messages, n->traffic[i].n_messages_in, n->traffic[i].n_messages_out)
DEFINE_LINK_METRIC(link_packets, n->link_loads[i].n_frames_in, n->link_loads[i].n_frames_out)
DEFINE_LINK_METRIC(link_pending, n->link_loads[i].bytes_in, n->link_loads[i].bytes_out)

/* Writes a quota of each identity that has this quota in `allow`. offset: offset of the quota in
 * clv_allow_spec. */
static void put_quota(clv_metrics_out *out, const metric_values *n, size_t offset) {
  for (size_t i = 0; i < n->config->n_allow; i++) {
    const clv_allow_spec *a = &n->config->allow[i];
    uint64_t quota = *(const uint64_t *)((const char *)a + offset);
    if (a->role == CLV_ROLE_MASTER && quota)
      clv_metric_sample(out, (double)quota, &(clv_metric_label){"identity", a->identity}, 1);
  }
}
static void put_max_sessions_of_identities(clv_metrics_out *out, const void *n) {
  put_quota(out, n, offsetof(clv_allow_spec, sessions));
}
static void put_memory_limits_of_identities(clv_metrics_out *out, const void *n) {
  put_quota(out, n, offsetof(clv_allow_spec, bytes));
}

static void put_memory_limit(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  if (n->memory_limit_bytes > 0) clv_metric_sample(out, n->memory_limit_bytes, NULL, 0);
}

static void put_crl_expiry(clv_metrics_out *out, const void *values) {
  int64_t expiry_s = clv_tls_revocation_expiry();
  (void)values;
  if (expiry_s) clv_metric_sample(out, (double)expiry_s, NULL, 0);
}

static void put_handshake_failure(clv_metrics_out *out, const char *side, const char *reason,
                                  uint64_t count) {
  const clv_metric_label labels[] = {{"side", side}, {"reason", reason}};
  clv_metric_sample(out, (double)count, labels, CLV_COUNT(labels));
}

/* Writes the numbers of failed handshakes. A caller whose certificate names no identity is refused
 * only after the handshake, at its first call; rpc counts these callers. */
static void put_handshake_failures(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  put_handshake_failure(out, "caller", "wrong_identity",
                        n->snapshot.call_counts.n_calls_unauthenticated);
  for (int i = 0; i < CLV_TLS_FAILURES; i++) {
    const char *reason = clv_tls_failure_reason((clv_tls_failure)i);
    put_handshake_failure(out, "caller", reason, n->snapshot.caller_handshakes.n_failed[i]);
    put_handshake_failure(out, "peer", reason, n->snapshot.peer_handshakes.n_failed[i]);
  }
}

static void put_by_reason(clv_metrics_out *out, const char *reason, uint64_t count) {
  clv_metric_sample(out, (double)count, &(clv_metric_label){"reason", reason}, 1);
}

static void put_refused_calls(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  put_by_reason(out, "not_allowed", n->snapshot.call_counts.n_calls_denied);
  put_by_reason(out, "too_many", n->snapshot.call_counts.n_calls_refused);
}

static void put_refused_sessions(clv_metrics_out *out, const void *values) {
  static const char *const reasons[N_REFUSALS] = {"draining", "exists", "quota"};
  const metric_values *n = values;
  for (int i = 0; i < N_REFUSALS; i++) put_by_reason(out, reasons[i], n->n_refused_sessions[i]);
}

static void put_reloads(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  clv_metric_sample(out, n->n_reloads, &(clv_metric_label){"result", "ok"}, 1);
  clv_metric_sample(out, n->n_failed_reloads, &(clv_metric_label){"result", "failed"}, 1);
}

static void put_cached_bytes(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  const clv_service *s = n->service;
  clv_metric_sample(out, (double)__atomic_load_n(&s->cache_bytes_stored, __ATOMIC_RELAXED),
                    &(clv_metric_label){"direction", "in"}, 1);
  clv_metric_sample(out, (double)__atomic_load_n(&s->cache_bytes_read, __ATOMIC_RELAXED),
                    &(clv_metric_label){"direction", "out"}, 1);
}

static void put_by_device(clv_metrics_out *out, const metric_values *n,
                          uint64_t (*get_bytes)(const clv_account *a, clv_quota q)) {
  for (uint32_t i = 0; i < n->service->n_devices; i++) {
    const clv_device *d = &n->service->devices[i];
    clv_metric_sample(out, (double)get_bytes(d->account, CLV_QUOTA_BYTES),
                      &(clv_metric_label){"device", d->name}, 1);
  }
}

static void put_device_memory(clv_metrics_out *out, const void *values) {
  put_by_device(out, values, clv_account_usage);
}

static void put_device_peaks(clv_metrics_out *out, const void *values) {
  put_by_device(out, values, clv_account_peak_usage);
}

/* Writes the free memory that each device reports. The rest may be used by other processes. */
static void put_free_device_memory(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  for (uint32_t i = 0; i < n->service->n_devices; i++) {
    const clv_device *d = &n->service->devices[i];
    const clv_backend_memory *memory = d->backend->memory;
    size_t free_bytes, total_bytes;
    clv_err why;
    if (memory && memory->get_free_bytes(d->backend, &free_bytes, &total_bytes, &why) == CLV_OK)
      clv_metric_sample(out, (double)free_bytes, &(clv_metric_label){"device", d->name}, 1);
  }
}

static void put_kept_files(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  if (n->service->state_files)
    clv_metric_sample(out, (double)clv_states_usage(n->service->state_files).n_files, NULL, 0);
}

static void put_kept_bytes(clv_metrics_out *out, const void *values) {
  const metric_values *n = values;
  if (n->service->state_files)
    clv_metric_sample(out, (double)clv_states_usage(n->service->state_files).bytes, NULL, 0);
}

/* Returns the counters of the thread that writes files of state; zeros without a state_dir. */
static clv_state_writes get_state_writes(const void *values) {
  clv_state_writer *w = ((const metric_values *)values)->service->state_writer;
  return w ? clv_state_writer_counts(w) : (clv_state_writes){0};
}

static void put_pending_state_writes(clv_metrics_out *out, const void *values) {
  clv_metric_sample(out, (double)get_state_writes(values).n_pending, NULL, 0);
}

static void put_state_writes(clv_metrics_out *out, const void *values) {
  const clv_state_writes w = get_state_writes(values);
  clv_metric_sample(out, (double)w.n_written, &(clv_metric_label){"result", "ok"}, 1);
  clv_metric_sample(out, (double)w.n_failed, &(clv_metric_label){"result", "failed"}, 1);
}

static void put_last_state_write(clv_metrics_out *out, const void *values) {
  clv_metric_sample(out, (double)get_state_writes(values).last_write_ns / 1e9, NULL, 0);
}

/* ---- the table of metrics -------------------------------------------------------------------- */

#define OFFSET_OF(member) offsetof(metric_values, member)

/* clang-format off */
static const clv_metric metric_table[] = {
    {.name = "cleave_worker_uptime_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "Time since it began to serve.", .at = OFFSET_OF(uptime_s)},
    {.name = "cleave_worker_ready", .kind = CLV_GAUGE, .unit = "",
     .help = "1 while it takes new sessions, 0 while it drains.", .at = OFFSET_OF(is_ready)},
    {.name = "cleave_worker_sessions", .kind = CLV_GAUGE, .unit = "", .help = "Open sessions.",
     .write = put_sessions},
    {.name = "cleave_worker_sessions_limit", .kind = CLV_GAUGE, .unit = "",
     .help = "Sessions that an identity may have open, unless `allow` gives it a number of its own.",
     .at = OFFSET_OF(max_sessions_per_identity)},
    {.name = "cleave_worker_identity_sessions_limit", .kind = CLV_GAUGE, .unit = "",
     .help = "Sessions that this identity may have open; left out where `allow` does not say.",
     .write = put_max_sessions_of_identities},
    {.name = "cleave_worker_contexts", .kind = CLV_GAUGE, .unit = "",
     .help = "Contexts that are open.", .write = put_contexts},
    {.name = "cleave_worker_values", .kind = CLV_GAUGE, .unit = "",
     .help = "Values that contexts hold or wait for.", .write = put_values},
    {.name = "cleave_worker_calls_waiting", .kind = CLV_GAUGE, .unit = "",
     .help = "Calls that wait for inputs or for their turn in a queue.", .write = put_calls_waiting},
    {.name = "cleave_worker_owned_references", .kind = CLV_GAUGE, .unit = "",
     .help = "References: values that outlive their context and are kept here.",
     .write = put_references_owned},
    {.name = "cleave_worker_used_references", .kind = CLV_GAUGE, .unit = "",
     .help = "References: handles here of values that are kept here or elsewhere.",
     .write = put_references_used},
    {.name = "cleave_worker_pending_reference_messages", .kind = CLV_GAUGE, .unit = "",
     .help = "Messages about references that are not acknowledged yet.", .write = put_references_pending},
    {.name = "cleave_worker_memory_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Memory of sessions as quotas count it: weights, optimiser state, tensors.",
     .write = put_memory},
    {.name = "cleave_worker_device_memory_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Memory of all modules of a device: weights, optimiser state, plans and calls.",
     .write = put_device_memory},
    {.name = "cleave_worker_device_memory_peak_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "The most that cleave_worker_device_memory_bytes was since the worker began to serve.",
     .write = put_device_peaks},
    {.name = "cleave_worker_device_memory_free_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Free memory of a device with memory of its own, as the device reports it.",
     .write = put_free_device_memory},
    {.name = "cleave_worker_memory_limit_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "memory_limit of worker.yaml; absent if there is none.",
     .write = put_memory_limit},
    {.name = "cleave_worker_identity_memory_limit_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Memory that all sessions of this identity may hold; absent without a limit in `allow`.",
     .write = put_memory_limits_of_identities},
    {.name = "cleave_worker_session_memory_limit_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Memory that one session may hold.", .at = OFFSET_OF(session_memory_limit_bytes)},

    {.name = "cleave_worker_link_bytes_total", .kind = CLV_COUNTER, .unit = "bytes",
     .help = "Bytes of messages with masters and other workers, framing included, TLS not.",
     .write = put_link_bytes},
    {.name = "cleave_worker_link_messages_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Messages with masters and other workers; one carries 1 to 16 frames.",
     .write = put_link_messages},
    {.name = "cleave_worker_link_packets", .kind = CLV_GAUGE, .unit = "",
     .help = "Queued packets: received and not handled yet (in), or waiting to be sent (out).",
     .write = put_link_packets},
    {.name = "cleave_worker_link_pending_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Bytes of tensors in flight: announced but not received (in), or sent but not acknowledged (out).",
     .write = put_link_pending},
    {.name = "cleave_worker_steps_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Steps that modules here have taken, each module for itself.", .write = put_steps},
    {.name = "cleave_worker_forwards_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Forwards of calls that train.", .write = put_forwards},
    {.name = "cleave_worker_backwards_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Backwards of calls.", .write = put_backwards},
    {.name = "cleave_worker_compute_seconds_total", .kind = CLV_COUNTER, .unit = "seconds",
     .help = "Time in forwards and backwards.", .write = put_compute},
    {.name = "cleave_worker_cuda_graph_launches_total", .old_name = "cleave_worker_graph_launches_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Forwards and parts of backwards that were launched on a device as one CUDA graph.",
     .write = put_replays},
    {.name = "cleave_worker_cuda_graph_fallbacks_total", .old_name = "cleave_worker_graph_refusals_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Repeated device work that could not be captured as a CUDA graph and is launched kernel by kernel.",
     .write = put_not_recorded},
    {.name = "cleave_worker_device_copy_bytes_total", .old_name = "cleave_worker_moved_bytes_total", .kind = CLV_COUNTER, .unit = "bytes",
     .help = "Bytes of values and gradients copied between modules on devices: within a device, "
             "from a peer device, or through the host.",
     .write = put_copied_bytes},
    {.name = "cleave_worker_cached_bytes_total", .kind = CLV_COUNTER, .unit = "bytes",
     .help = "Bytes of cache rows: stored on disk (in), and read from it (out).",
     .write = put_cached_bytes},
    {.name = "cleave_worker_kept_files", .kind = CLV_GAUGE, .unit = "",
     .help = "Files of state on this worker's disk, of all identities.", .write = put_kept_files},
    {.name = "cleave_worker_kept_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Bytes of these files.", .write = put_kept_bytes},
    {.name = "cleave_worker_pending_state_writes", .kind = CLV_GAUGE, .unit = "",
     .help = "Files of state that are being written or wait for it.", .write = put_pending_state_writes},
    {.name = "cleave_worker_state_writes_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Files of state that were written beside the sessions, or failed.", .write = put_state_writes},
    {.name = "cleave_worker_last_state_write_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "Duration of the last of these writes, until the file was durable.",
     .write = put_last_state_write},
    {.name = "cleave_worker_input_wait_seconds_total", .kind = CLV_COUNTER, .unit = "seconds",
     .help = "Time in which sessions with a module had nothing to do but wait for what comes.",
     .write = put_idle},
    {.name = "cleave_worker_core_wait_seconds_total", .old_name = "cleave_worker_turn_wait_seconds_total", .kind = CLV_COUNTER, .unit = "seconds",
     .help = "Time in which sessions had something to compute and waited for cores that others used.",
     .write = put_share},
    {.name = "cleave_worker_thread_wakeups_total", .old_name = "cleave_worker_wakes_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Times that a compute thread fell asleep and was woken.", .write = put_wakes},

    {.name = "cleave_worker_connections", .kind = CLV_GAUGE, .unit = "",
     .help = "Open connections to the port.", .at = OFFSET_OF(n_connections)},
    {.name = "cleave_worker_connections_limit", .kind = CLV_GAUGE, .unit = "",
     .help = "limits.connections of worker.yaml.", .at = OFFSET_OF(max_connections)},
    {.name = "cleave_worker_handshakes_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Connections from callers that got through " "TLS.", .at = OFFSET_OF(n_handshakes)},
    {.name = "cleave_worker_handshake_failures_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Failed handshakes: with callers, or with peers that this worker dialled.",
     .write = put_handshake_failures},
    {.name = "cleave_worker_shed_connections_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Connections closed at once: over limits.connections, or no file descriptors left.",
     .at = OFFSET_OF(n_shed)},
    {.name = "cleave_worker_calls_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Calls and streams that have come.", .at = OFFSET_OF(n_calls)},
    {.name = "cleave_worker_active_calls", .kind = CLV_GAUGE, .unit = "",
     .help = "Calls and streams at work.", .at = OFFSET_OF(n_active_calls)},
    {.name = "cleave_worker_refused_calls_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Calls that were refused: the identity or its role is not allowed, too many at once.",
     .write = put_refused_calls},
    {.name = "cleave_worker_identity_bans_total", .old_name = "cleave_worker_cut_identities_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Times that an identity was banned for a while because it wasted too many calls in a second.", .at = OFFSET_OF(n_bans)},
    {.name = "cleave_worker_refused_sessions_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Sessions that were not opened: draining, one of that id exists, quota.",
     .write = put_refused_sessions},
    {.name = "cleave_worker_certificate_expiry_timestamp_seconds", .kind = CLV_GAUGE,
     .unit = "seconds", .help = "When the certificate, or a CA above it, ends; seconds since 1970.",
     .at = OFFSET_OF(certificate_expiry_s)},
    {.name = "cleave_worker_revocation_list_expiry_timestamp_seconds", .kind = CLV_GAUGE,
     .unit = "seconds", .help = "When the first list of tls.crl ends; seconds since 1970.",
     .write = put_crl_expiry},
    {.name = "cleave_worker_reloads_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Reloads of worker.yaml and the certificates.", .write = put_reloads},
};
/* clang-format on */

void clv_service_write_metrics(clv_service *s, uint64_t n_shed, clv_bytes *ret) {
  CLV_AUTO(metric_values_done) metric_values n = {0};
  clv_err err;
  if (init_values(&n, s, &err) != CLV_OK || gather_values(s, n_shed, &n, &err) != CLV_OK) {
    clv_log(CLV_LOG_WARN, "no metrics: %s", err.text);
    ret->failed = true;
    return;
  }
  clv_metrics_write(metric_table, CLV_COUNT(metric_table), &n, ret);
}

/* ---- readiness and failed reloads ------------------------------------------------------------ */

bool clv_service_is_ready(clv_service *s, clv_bytes *ret) {
  pthread_mutex_lock(&s->lock);
  bool is_draining = s->is_draining;
  uint32_t n_open = s->n_sessions;
  pthread_mutex_unlock(&s->lock);
  if (is_draining)
    clv_bytes_printf(ret, "draining: takes no new sessions, %u open\n", n_open);
  else
    clv_bytes_puts(ret, "ready\n");
  return !is_draining;
}

void clv_service_count_failed_reload(clv_service *s) {
  pthread_mutex_lock(&s->lock);
  s->n_failed_reloads++;
  pthread_mutex_unlock(&s->lock);
}
