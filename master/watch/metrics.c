/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of a run for Prometheus, on the port of metrics.listen. The training thread stores the
 * results of each step under a lock (clv_run_metrics_note_step). For a scrape the thread of the
 * port copies them, and asks libcleave for the state of the links.
 *
 * The waiting time of the master is known for every step, but its causes only for measured steps:
 * about every 16th, at most a few times a second. The waiting time of any other step is divided
 * among the causes as in the last measured step.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/http/http.h"
#include "common/base/metrics/metrics.h"
#include "common/net/tls/tls.h"
#include "master/watch/watch.h"

enum { OUTCOME_APPLIED, OUTCOME_SKIPPED, N_OUTCOMES };
enum { PHASE_COMPUTE, PHASE_NETWORK, PHASE_PEER, PHASE_OTHER, N_PHASES };

/* Numbers of a run that the training thread stores for scrapes. Counts are doubles, because
 * Prometheus metrics are doubles. */
typedef struct step_numbers {
  clv_histogram step_seconds;
  double phase_seconds[N_PHASES], n_steps[N_OUTCOMES], n_records;
  double step, target_steps, loss, learning_rate, gradient_norm, n_micro_batches, window;
  double n_checkpoints, checkpoint_s, checkpoint_wall_s, checkpoint_step;
  /* number of recoveries; seconds of the last recovery; recovering_gauge: 1 from the time when a
   * worker is lost until the run trains again, else 0 */
  double n_recoveries, recovery_s, recovering_gauge;
  /* true: a sealed (encrypted) copy of a checkpoint exists, or a try to make one has failed */
  bool has_escrow;
  double escrow_step, escrow_bytes, escrow_wall_s, n_escrow_failures;
} step_numbers;

struct clv_run_metrics {
  const char *session;
  clv_http *http;
  pthread_mutex_t lock; /* protects all fields below except runtime_lock */
  step_numbers numbers;
  clv_trainer *trainer;         /* trainer of the run; NULL: not connected, or closed */
  double wait_shares[N_PHASES]; /* shares of the waiting time by cause, of the last measured step */
  /* held while a scrape uses the trainer's runtime; taken before `lock` */
  pthread_mutex_t runtime_lock;
};

static const double step_seconds_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                             0.25,  0.5,    1,     2.5,  5,     10,   30};
_Static_assert(CLV_COUNT(step_seconds_bounds) <= CLV_HISTOGRAM_BOUNDS, "buckets");

/* ---- reports of the training thread ---------------------------------------------------------- */

/* Adds the time of a step to its phases. Caller holds the lock. */
static void add_phase_times(clv_run_metrics *m, const clv_step_result *s) {
  double wait_s = (double)CLV_MIN(s->wait_ns, s->step_ns) * 1e-9;
  m->numbers.phase_seconds[PHASE_COMPUTE] += (double)s->step_ns * 1e-9 - wait_s;
  for (int i = PHASE_NETWORK; i < N_PHASES; i++)
    m->numbers.phase_seconds[i] += wait_s * m->wait_shares[i];
}

void clv_run_metrics_note_step(clv_run_metrics *m, uint64_t step, const clv_step_result *s) {
  if (!m) return;
  pthread_mutex_lock(&m->lock);
  step_numbers *t = &m->numbers;
  clv_histogram_add(&t->step_seconds, (double)s->step_ns * 1e-9);
  add_phase_times(m, s);
  t->n_steps[s->changed_weights ? OUTCOME_APPLIED : OUTCOME_SKIPPED]++;
  t->n_records += (double)s->samples;
  t->step = (double)step;
  t->loss = s->loss;
  t->learning_rate = s->lr;
  t->gradient_norm = s->grad_norm;
  t->n_micro_batches = clv_trainer_micro_batches(m->trainer);
  t->window = clv_trainer_window(m->trainer);
  pthread_mutex_unlock(&m->lock);
}

/* Callback of clv_trainer_set_on_waits: stores the share of each cause (network, peer, other) in
 * the waiting time. */
static void on_waits(void *user, const clv_waits *w) {
  clv_run_metrics *m = user;
  double sum_s = w->network_s + w->peer_s + w->own_s;
  if (sum_s <= 0) return;
  pthread_mutex_lock(&m->lock);
  m->wait_shares[PHASE_NETWORK] = w->network_s / sum_s;
  m->wait_shares[PHASE_PEER] = w->peer_s / sum_s;
  m->wait_shares[PHASE_OTHER] = w->own_s / sum_s;
  pthread_mutex_unlock(&m->lock);
}

void clv_run_metrics_attach(clv_run_metrics *m, clv_trainer *t, uint64_t target_steps) {
  if (!m) return;
  clv_trainer_set_on_waits(t, on_waits, m);
  pthread_mutex_lock(&m->lock);
  m->trainer = t;
  m->numbers.step = (double)clv_trainer_step_count(t);
  m->numbers.target_steps = (double)target_steps;
  pthread_mutex_unlock(&m->lock);
}

void clv_run_metrics_detach(clv_run_metrics *m) {
  if (!m) return;
  pthread_mutex_lock(&m->runtime_lock);
  pthread_mutex_lock(&m->lock);
  if (m->trainer) clv_trainer_set_on_waits(m->trainer, NULL, NULL);
  m->trainer = NULL;
  pthread_mutex_unlock(&m->lock);
  pthread_mutex_unlock(&m->runtime_lock);
}

void clv_run_metrics_note_lost_worker(clv_run_metrics *m) {
  if (!m) return;
  pthread_mutex_lock(&m->lock);
  m->numbers.recovering_gauge = 1;
  pthread_mutex_unlock(&m->lock);
}

void clv_run_metrics_note_recovery(clv_run_metrics *m, uint64_t duration_ns) {
  if (!m) return;
  pthread_mutex_lock(&m->lock);
  m->numbers.recovering_gauge = 0;
  m->numbers.n_recoveries++;
  m->numbers.recovery_s = (double)duration_ns * 1e-9;
  pthread_mutex_unlock(&m->lock);
}

void clv_run_metrics_note_escrow(clv_run_metrics *m, uint64_t step, uint64_t bytes,
                                 uint64_t wall_ms, uint64_t n_failures) {
  if (!m) return;
  pthread_mutex_lock(&m->lock);
  m->numbers.has_escrow = true;
  m->numbers.escrow_step = (double)step;
  m->numbers.escrow_bytes = (double)bytes;
  m->numbers.escrow_wall_s = (double)wall_ms / 1e3;
  m->numbers.n_escrow_failures = (double)n_failures;
  pthread_mutex_unlock(&m->lock);
}

void clv_run_metrics_note_checkpoint(clv_run_metrics *m, uint64_t step, uint64_t duration_ns) {
  if (!m) return;
  pthread_mutex_lock(&m->lock);
  m->numbers.n_checkpoints++;
  m->numbers.checkpoint_s = (double)duration_ns * 1e-9;
  m->numbers.checkpoint_wall_s = (double)clv_wall_ms() / 1e3;
  m->numbers.checkpoint_step = (double)step;
  pthread_mutex_unlock(&m->lock);
}

/* ---- rows of the table of metrics ------------------------------------------------------------ */

/* Values that the answer to one scrape has, copied while the locks are held. */
typedef struct scrape {
  step_numbers numbers;
  const char *session;
  cleave_runtime *runtime; /* libcleave's runtime of the trainer; NULL: not connected */
  cleave_holding runtime_state;
  clv_tls_handshakes handshakes;
  double n_contexts, n_values, memory_bytes;
} scrape;

static void put_session(clv_metrics_out *out, const void *scrape_data) {
  const scrape *n = scrape_data;
  clv_metric_sample(out, 1, &(clv_metric_label){"session", n->session}, 1);
}

static void put_steps(clv_metrics_out *out, const void *scrape_data) {
  static const char *const results[N_OUTCOMES] = {"applied", "skipped"};
  const scrape *n = scrape_data;
  for (int i = 0; i < N_OUTCOMES; i++)
    clv_metric_sample(out, n->numbers.n_steps[i], &(clv_metric_label){"result", results[i]}, 1);
}

static void put_step_seconds(clv_metrics_out *out, const void *scrape_data) {
  clv_metric_histogram(out, &((const scrape *)scrape_data)->numbers.step_seconds, NULL, 0);
}

static void put_phases(clv_metrics_out *out, const void *scrape_data) {
  static const char *const phases[N_PHASES] = {"compute", "network", "peer", "other"};
  const scrape *n = scrape_data;
  for (int i = 0; i < N_PHASES; i++)
    clv_metric_sample(out, n->numbers.phase_seconds[i], &(clv_metric_label){"phase", phases[i]}, 1);
}

/* For the link to each worker, writes two samples of a metric: a count for each direction, such as
 * bytes. in_offset, out_offset: offsets of uint64_t fields in cleave_link_status. */
static void put_two_directions_per_worker(clv_metrics_out *out, const scrape *n, size_t in_offset,
                                          size_t out_offset) {
  cleave_link_status l;
  for (uint32_t i = 1; n->runtime && cleave_inspect_link(n->runtime, i, &l); i++)
    for (int in = 1; in >= 0; in--) {
      const char *at = (const char *)&l + (in ? in_offset : out_offset);
      const clv_metric_label labels[] = {{"worker", l.worker}, {"direction", in ? "in" : "out"}};
      clv_metric_sample(out, (double)*(const uint64_t *)at, labels, CLV_COUNT(labels));
    }
}

#define LINK_FIELD(member) offsetof(cleave_link_status, member)

static void put_bytes(clv_metrics_out *out, const void *n) {
  put_two_directions_per_worker(out, n, LINK_FIELD(bytes_in), LINK_FIELD(bytes_out));
}
static void put_packets(clv_metrics_out *out, const void *n) {
  put_two_directions_per_worker(out, n, LINK_FIELD(packets_in), LINK_FIELD(packets_out));
}
static void put_pending_bytes(clv_metrics_out *out, const void *n) {
  put_two_directions_per_worker(out, n, LINK_FIELD(pending_in), LINK_FIELD(pending_out));
}

/* Writes a sample of a metric for each worker whose link has a measured value (above 0).
 * field_offset: offset of a double field in cleave_link_status. */
static void put_number_per_worker(clv_metrics_out *out, const scrape *n, size_t field_offset) {
  cleave_link_status l;
  for (uint32_t i = 1; n->runtime && cleave_inspect_link(n->runtime, i, &l); i++) {
    double value = *(const double *)((const char *)&l + field_offset);
    if (value > 0) clv_metric_sample(out, value, &(clv_metric_label){"worker", l.worker}, 1);
  }
}

/* Writes a sample of a metric for the link to each worker. field_offset: offset of a uint64_t field
 * in cleave_link_status. */
static void put_count_per_worker(clv_metrics_out *out, const scrape *n, size_t field_offset) {
  cleave_link_status l;
  for (uint32_t i = 1; n->runtime && cleave_inspect_link(n->runtime, i, &l); i++)
    clv_metric_sample(out, (double)*(const uint64_t *)((const char *)&l + field_offset),
                      &(clv_metric_label){"worker", l.worker}, 1);
}

static void put_reconnects(clv_metrics_out *out, const void *scrape_data) {
  put_count_per_worker(out, scrape_data, LINK_FIELD(reconnects));
}

static void put_resent_bytes(clv_metrics_out *out, const void *scrape_data) {
  put_count_per_worker(out, scrape_data, LINK_FIELD(resent_bytes));
}

static void put_round_trips(clv_metrics_out *out, const void *scrape_data) {
  put_number_per_worker(out, scrape_data, LINK_FIELD(round_trip_s));
}

static void put_silences(clv_metrics_out *out, const void *scrape_data) {
  put_number_per_worker(out, scrape_data, LINK_FIELD(silent_s));
}

static void put_failures(clv_metrics_out *out, const void *scrape_data) {
  const scrape *n = scrape_data;
  for (int i = 0; i < CLV_TLS_FAILURES; i++)
    clv_metric_sample(out, (double)n->handshakes.n_failed[i],
                      &(clv_metric_label){"reason", clv_tls_failure_reason((clv_tls_failure)i)}, 1);
}

static void put_certificate_end(clv_metrics_out *out, const void *scrape_data) {
  const scrape *n = scrape_data;
  if (n->runtime_state.certificate_end)
    clv_metric_sample(out, (double)n->runtime_state.certificate_end, NULL, 0);
}

/* Writes a metric of the last checkpoint; writes nothing before the first checkpoint. */
static void put_checkpoint_value(clv_metrics_out *out, const scrape *n, double value) {
  if (n->numbers.n_checkpoints > 0) clv_metric_sample(out, value, NULL, 0);
}
static void put_checkpoint_time(clv_metrics_out *out, const void *n) {
  put_checkpoint_value(out, n, ((const scrape *)n)->numbers.checkpoint_wall_s);
}
static void put_checkpoint_seconds(clv_metrics_out *out, const void *n) {
  put_checkpoint_value(out, n, ((const scrape *)n)->numbers.checkpoint_s);
}
static void put_checkpoint_step(clv_metrics_out *out, const void *n) {
  put_checkpoint_value(out, n, ((const scrape *)n)->numbers.checkpoint_step);
}

/* Writes a metric of the last sealed (encrypted) copy of a checkpoint; writes nothing if there is
 * none, or if !is_known. */
static void put_escrow_value(clv_metrics_out *out, const scrape *n, double value, bool is_known) {
  if (n->numbers.has_escrow && is_known) clv_metric_sample(out, value, NULL, 0);
}
static void put_escrow_step(clv_metrics_out *out, const void *scrape_data) {
  const scrape *n = scrape_data;
  put_escrow_value(out, n, n->numbers.escrow_step, true);
}
static void put_escrow_bytes(clv_metrics_out *out, const void *scrape_data) {
  const scrape *n = scrape_data;
  put_escrow_value(out, n, n->numbers.escrow_bytes, n->numbers.escrow_bytes > 0);
}
static void put_escrow_time(clv_metrics_out *out, const void *scrape_data) {
  const scrape *n = scrape_data;
  put_escrow_value(out, n, n->numbers.escrow_wall_s, n->numbers.escrow_wall_s > 0);
}

/* Writes a metric of the last step; writes nothing before the first step. */
static void put_step_value(clv_metrics_out *out, const scrape *n, double value) {
  if (n->numbers.n_steps[OUTCOME_APPLIED] + n->numbers.n_steps[OUTCOME_SKIPPED] > 0)
    clv_metric_sample(out, value, NULL, 0);
}
static void put_loss(clv_metrics_out *out, const void *n) {
  put_step_value(out, n, ((const scrape *)n)->numbers.loss);
}
static void put_gradient_norm(clv_metrics_out *out, const void *n) {
  put_step_value(out, n, ((const scrape *)n)->numbers.gradient_norm);
}
static void put_learning_rate(clv_metrics_out *out, const void *n) {
  put_step_value(out, n, ((const scrape *)n)->numbers.learning_rate);
}

#define AT(member) offsetof(scrape, member)

/* clang-format off */
static const clv_metric metric_rows[] = {
    {.name = "cleave_master_session_info", .kind = CLV_GAUGE, .unit = "",
     .help = "1, with the name of the session as a label.", .write = put_session},
    {.name = "cleave_master_step", .kind = CLV_GAUGE, .unit = "",
     .help = "The last step that is done, those of an earlier run " "included.",
     .at = AT(numbers.step)},
    {.name = "cleave_master_target_steps", .kind = CLV_GAUGE, .unit = "",
     .help = "The step with which the run ends.", .at = AT(numbers.target_steps)},
    {.name = "cleave_master_steps_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Steps since this process began: applied, or skipped because a gradient was not finite.",
     .write = put_steps},
    {.name = "cleave_master_samples_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Records that were trained on.", .at = AT(numbers.n_records)},
    {.name = "cleave_master_step_seconds", .kind = CLV_HISTOGRAM, .unit = "seconds",
     .help = "Time of a step.", .write = put_step_seconds},
    {.name = "cleave_master_step_phase_seconds_total", .kind = CLV_COUNTER, .unit = "seconds",
     .help = "Time of steps as the master spent it: computing, waiting for tensors in flight, for a " "worker that computes, for anything else. For what it waited is sampled.",
     .write = put_phases},
    {.name = "cleave_master_loss", .kind = CLV_GAUGE, .unit = "",
     .help = "Mean loss of the last step's batch.", .write = put_loss},
    {.name = "cleave_master_learning_rate", .kind = CLV_GAUGE, .unit = "",
     .help = "Learning rate of the last step.", .write = put_learning_rate},
    {.name = "cleave_master_gradient_norm", .kind = CLV_GAUGE, .unit = "",
     .help = "Norm of all gradients of the last step, before clipping.", .write = put_gradient_norm},
    {.name = "cleave_master_micro_batches", .kind = CLV_GAUGE, .unit = "",
     .help = "Parts that a batch is cut into.", .at = AT(numbers.n_micro_batches)},
    {.name = "cleave_master_pipeline_window", .old_name = "cleave_master_window", .kind = CLV_GAUGE, .unit = "",
     .help = "Micro-batches in flight, at most; 0: the schedule has " "no window.",
     .at = AT(numbers.window)},

    {.name = "cleave_master_link_bytes_total", .kind = CLV_COUNTER, .unit = "bytes",
     .help = "Bytes of messages with each worker, framing included, TLS not.", .write = put_bytes},
    {.name = "cleave_master_link_packets", .kind = CLV_GAUGE, .unit = "",
     .help = "Queue: packets that have come and are not worked on yet (in), or wait to leave (out).",
     .write = put_packets},
    {.name = "cleave_master_link_pending_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Bytes of tensors in flight: not yet received (in), or not known to have arrived (out).",
     .write = put_pending_bytes},
    {.name = "cleave_master_link_reconnects_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Connections to each worker that were lost and made again.", .write = put_reconnects},
    {.name = "cleave_master_link_resent_bytes_total", .kind = CLV_COUNTER, .unit = "bytes",
     .help = "Bytes of messages that were sent to each worker again after a loss.",
     .write = put_resent_bytes},
    {.name = "cleave_master_link_round_trip_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "Round trip to a worker when it was last measured.", .write = put_round_trips},
    {.name = "cleave_master_link_silence_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "Time since something came from a worker.", .write = put_silences},
    {.name = "cleave_master_handshake_failures_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Handshakes with workers that failed.", .write = put_failures},
    {.name = "cleave_master_certificate_expiry_timestamp_seconds", .kind = CLV_GAUGE,
     .unit = "seconds",
     .help = "When the master's certificate, or a CA above it, ends; seconds since 1970.",
     .write = put_certificate_end},

    {.name = "cleave_master_contexts", .kind = CLV_GAUGE, .unit = "",
     .help = "Contexts that are open.", .at = AT(n_contexts)},
    {.name = "cleave_master_references", .kind = CLV_GAUGE, .unit = "",
     .help = "References to values, here and at workers.", .at = AT(n_values)},
    {.name = "cleave_master_memory_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Memory of the session here: tensors, and stages at the master.", .at = AT(memory_bytes)},
    {.name = "cleave_master_checkpoints_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Checkpoints that were written.", .at = AT(numbers.n_checkpoints)},
    {.name = "cleave_master_checkpoint_timestamp_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "When the last checkpoint was complete; seconds since 1970.",
     .write = put_checkpoint_time},
    {.name = "cleave_master_checkpoint_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "What the last checkpoint took.", .write = put_checkpoint_seconds},
    {.name = "cleave_master_checkpoint_step", .kind = CLV_GAUGE, .unit = "",
     .help = "The step of the last checkpoint.", .write = put_checkpoint_step},
    {.name = "cleave_master_escrow_step", .kind = CLV_GAUGE, .unit = "",
     .help = "The step of the newest sealed copy of a checkpoint; 0: there is none.",
     .write = put_escrow_step},
    {.name = "cleave_master_escrow_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Bytes of the files of the newest sealed copy.", .write = put_escrow_bytes},
    {.name = "cleave_master_escrow_timestamp_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "When the newest sealed copy was complete; seconds since 1970.",
     .write = put_escrow_time},
    {.name = "cleave_master_escrow_failures_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Sealed copies of checkpoints that have failed.", .at = AT(numbers.n_escrow_failures)},
    {.name = "cleave_master_recovering", .kind = CLV_GAUGE, .unit = "",
     .help = "1 from the loss of a worker until the run trains again, else 0.",
     .at = AT(numbers.recovering_gauge)},
    {.name = "cleave_master_recoveries_total", .kind = CLV_COUNTER, .unit = "",
     .help = "Losses of workers from which this process has recovered.",
     .at = AT(numbers.n_recoveries)},
    {.name = "cleave_master_recovery_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "Time from the last loss until the run trained again; 0: none was lost.",
     .at = AT(numbers.recovery_s)},
};
/* clang-format on */

/* ---- the answer to a scrape ------------------------------------------------------------------ */

/* Answers a scrape. The trainer cannot be freed meanwhile, because clv_run_metrics_detach waits for
 * `runtime_lock`, and clv_run_metrics_close waits for the thread of the port. */
static unsigned answer_scrape(void *user, clv_bytes *out) {
  clv_run_metrics *m = user;
  pthread_mutex_lock(&m->runtime_lock);
  pthread_mutex_lock(&m->lock);
  scrape n = {.numbers = m->numbers, .session = m->session};
  if (m->trainer) n.runtime = clv_trainer_runtime(m->trainer);
  pthread_mutex_unlock(&m->lock);
  if (n.runtime) cleave_inspect(n.runtime, &n.runtime_state);
  n.n_contexts = (double)n.runtime_state.contexts;
  n.n_values = (double)n.runtime_state.values;
  n.memory_bytes = (double)n.runtime_state.memory_bytes;
  clv_tls_handshakes_get_counts(false, &n.handshakes);
  clv_metrics_write(metric_rows, CLV_COUNT(metric_rows), &n, out);
  pthread_mutex_unlock(&m->runtime_lock);
  clv_metrics_process("cleave-master", out);
  return 200;
}

/* ---- opening and closing the port ------------------------------------------------------------ */

static clv_code open_port(const clv_session_config *c, clv_run_metrics *m, clv_err *err) {
  static const clv_http_page pages[] = {
      {.path = "/metrics", .type = CLV_METRICS_TYPE, .write = answer_scrape},
      {.path = "/healthz", .type = CLV_HTTP_TEXT, .write = clv_http_health},
  };
  clv_http_options o = {
      .listen = c->metrics.listen, .pages = pages, .n_pages = CLV_COUNT(pages), .user = m};
  CLV_TRY(clv_tls_handshakes_start_counting(c->limits.connect_timeout_ms, err));
  clv_code code = clv_http_open(&o, &m->http, err);
  return code == CLV_OK ? code : clv_err_prefix(err, "metrics.listen");
}

clv_code clv_run_metrics_open(const clv_session_config *c, clv_run_metrics **ret, clv_err *err) {
  clv_run_metrics *m;
  if (!c->metrics.listen) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *m, &m, err));
  m->session = c->name;
  m->wait_shares[PHASE_OTHER] = 1;
  m->numbers.step_seconds.bounds = step_seconds_bounds;
  m->numbers.step_seconds.n_bounds = CLV_COUNT(step_seconds_bounds);
  pthread_mutex_init(&m->lock, NULL);
  pthread_mutex_init(&m->runtime_lock, NULL);
  clv_code code = open_port(c, m, err);
  if (code != CLV_OK) {
    clv_run_metrics_close(m);
    return code;
  }
  *ret = m;
  return CLV_OK;
}

void clv_run_metrics_close(clv_run_metrics *m) {
  if (!m) return;
  clv_http_close(m->http);
  if (m->trainer) clv_trainer_set_on_waits(m->trainer, NULL, NULL);
  pthread_mutex_destroy(&m->lock);
  pthread_mutex_destroy(&m->runtime_lock);
  free(m);
}

/* Warns if other machines can reach the port, because every host that reaches the port can read
 * loss, speed and names of workers without a password. */
void clv_run_metrics_warn(const clv_session_config *c) {
  clv_err warning;
  if (!c->metrics.listen || clv_http_is_loopback(c->metrics.listen)) return;
  clv_session_fail_at(
      c, c->metrics.listen_pos, &warning,
      "metrics.listen is %s: every host that reaches that address can read loss, speed and "
      "names of workers without a password; use 127.0.0.1 to keep them local",
      c->metrics.listen);
  clv_notice(CLV_LOG_WARN, "metrics", "warning: %s", warning.text);
}
