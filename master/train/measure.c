/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures from the events of a step the time that stages and links take, and chooses the window of
 * 1f1b from these times. The trainer measures the second step (nodes make plans in the first), the
 * next two, then every 16th, and each step that follows a step of clearly unusual duration.
 *
 * The latency and the bandwidth of an edge (the link between two stages) are estimated from the
 * tensors that cross it. A tensor that did not queue takes the latency plus its transfer time. If
 * two tensors queued, the second arrives one transfer time after the first.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

enum {
  N_WARM_UP_STEPS = 1, /* first steps, in which nodes make plans, so their times do not count */
  N_FIRST_MEASURED_STEPS = 4, /* first steps, which are measured except the N_WARM_UP_STEPS */
  MEASURE_INTERVAL_STEPS =
      16, /* steps between two measurements, after the first N_FIRST_MEASURED_STEPS */
  MIN_WAITS_INTERVAL_MS = 200, /* shortest ms between two steps measured only for on_waits */
};
/* UNUSUAL_STEP_DEVIATION: deviation from the usual duration, relative to it, that makes a step
 * unusual. MIN_WINDOW_GAIN: smallest part of a step's duration that a new window must save.
 * QUEUEING_SLACK_SHARE, QUEUEING_SLACK_S: a tensor has queued only if it took longer than the
 * quickest one by more than QUEUEING_SLACK_SHARE of the quickest one's time plus
 * QUEUEING_SLACK_S. */
static const double UNUSUAL_STEP_DEVIATION = 0.25, MIN_WINDOW_GAIN = 0.02,
                    QUEUEING_SLACK_SHARE = 0.1, QUEUEING_SLACK_S = 0.001;

/* ---- choice of the steps to measure ---------------------------------------------------------- */

bool clv_step_meter_begin(clv_trainer *t) {
  clv_step_meter *w = &t->step_meter;
  w->n_events = 0;
  bool is_due = w->on_waits && clv_now_ns() >= w->next_measure_ns;
  return w->on_measured ||
         ((w->is_window_auto || is_due) && t->n_committed_steps >= w->next_measured_step);
}

static void plan_next_measurement(clv_step_meter *w, uint64_t n_committed_steps) {
  w->next_measured_step =
      n_committed_steps + (n_committed_steps < N_FIRST_MEASURED_STEPS ? 0 : MEASURE_INTERVAL_STEPS);
}

/* Makes the next step a measured one if this step took clearly longer or shorter than usual. */
static void detect_unusual_step(clv_step_meter *w, uint64_t n_committed_steps, double step_s) {
  bool is_unusual = w->usual_step_s > 0 &&
                    fabs(step_s - w->usual_step_s) > UNUSUAL_STEP_DEVIATION * w->usual_step_s;
  if (is_unusual && n_committed_steps > N_FIRST_MEASURED_STEPS)
    w->next_measured_step = n_committed_steps;
  w->usual_step_s = w->usual_step_s > 0 ? 0.8 * w->usual_step_s + 0.2 * step_s : step_s;
}

void clv_trainer_set_on_waits(clv_trainer *t, clv_waits_fn *fn, void *user) {
  t->step_meter.on_waits = fn;
  t->step_meter.waits_user = user;
}

/* ---- events of a measured step --------------------------------------------------------------- */

void clv_trainer_on_event(void *user, cleave_context context, const cleave_event *event) {
  clv_step_meter *w = &((clv_trainer *)user)->step_meter;
  (void)context;
  if (w->n_events == w->cap_events) {
    size_t new_cap = w->cap_events ? 2 * w->cap_events : 1024;
    cleave_event *grown_events = realloc(w->events, new_cap * sizeof *grown_events);
    if (!grown_events) return; /* out of memory: the measurement lacks these events */
    w->events = grown_events;
    w->cap_events = new_cap;
  }
  w->events[w->n_events++] = *event;
}

void clv_step_meter_free_events(clv_step_meter *w) {
  if (w) free(w->events);
}

static int compare_reference_id(const void *key, const void *item) {
  uint64_t a = *(const uint64_t *)key, b = ((const cleave_reference *)item)->id;
  return a < b ? -1 : a > b;
}

bool clv_step_meter_locate(const clv_trainer *t, const clv_placed_schedule *l,
                           const cleave_event *e, uint32_t *ret_stage, uint32_t *ret_micro) {
  uint32_t n_stages = t->b->n_stages + 1;
  if (e->kind == CLEAVE_EVENT_STEP) {
    *ret_micro = 0;
    for (*ret_stage = 0; *ret_stage < n_stages; ++*ret_stage)
      if (t->modules[*ret_stage] == e->module) return true;
    return false;
  }
  const cleave_reference *r =
      bsearch(&e->reference.id, t->output_references, (size_t)l->n_micro_batches * n_stages,
              sizeof *r, compare_reference_id);
  if (!r) return false;
  *ret_stage = (uint32_t)(r - t->output_references) % n_stages;
  *ret_micro = (uint32_t)(r - t->output_references) / n_stages;
  return true;
}

/* ---- times of stages from the events --------------------------------------------------------- */

typedef struct number_list {
  double *list;
  size_t n;
} number_list;

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double compute_median(number_list *s) {
  if (!s->n) return 0;
  qsort(s->list, s->n, sizeof *s->list, compare_doubles);
  return s->list[s->n / 2];
}

static double median_event_seconds(const clv_trainer *t, const clv_placed_schedule *l,
                                   cleave_event_kind kind, uint32_t stage, number_list *s) {
  const clv_step_meter *w = &t->step_meter;
  uint32_t event_stage, k;
  s->n = 0;
  for (size_t i = 0; i < w->n_events; i++)
    if (w->events[i].kind == kind && clv_step_meter_locate(t, l, &w->events[i], &event_stage, &k) &&
        event_stage == stage && w->events[i].end_ns >= w->events[i].begin_ns)
      s->list[s->n++] = (double)(w->events[i].end_ns - w->events[i].begin_ns) * 1e-9;
  return compute_median(s);
}

static void measure_stage_times(const clv_trainer *t, const clv_placed_schedule *l,
                                clv_sched_costs *c, number_list *s) {
  for (uint32_t i = 0; i <= t->b->n_stages; i++) {
    c->forward_seconds[i] = median_event_seconds(t, l, CLEAVE_EVENT_FORWARD, i, s);
    double full_backward_s = median_event_seconds(t, l, CLEAVE_EVENT_BACKWARD, i, s);
    c->input_grad_seconds[i] =
        full_backward_s / 2 + median_event_seconds(t, l, CLEAVE_EVENT_BACKWARD_INPUT, i, s);
    c->weight_grad_seconds[i] =
        full_backward_s / 2 + median_event_seconds(t, l, CLEAVE_EVENT_BACKWARD_WEIGHT, i, s);
    c->step_seconds[i] = median_event_seconds(t, l, CLEAVE_EVENT_STEP, i, s);
  }
}

/* ---- edges, the links between stages --------------------------------------------------------- */

/* Times in seconds at which the tensor of a micro-batch was sent and received; 0: no event. */
typedef struct transfer {
  double sent_s, received_s;
} transfer;

static void read_transfers(const clv_trainer *t, const clv_placed_schedule *l, uint32_t stage,
                           bool is_forward, transfer *list) {
  cleave_event_kind out = is_forward ? CLEAVE_EVENT_VALUE_OUT : CLEAVE_EVENT_GRADIENT_OUT;
  cleave_event_kind in = is_forward ? CLEAVE_EVENT_VALUE_IN : CLEAVE_EVENT_GRADIENT_IN;
  memset(list, 0, l->n_micro_batches * sizeof *list);
  for (size_t i = 0; i < t->step_meter.n_events; i++) {
    const cleave_event *e = &t->step_meter.events[i];
    uint32_t event_stage, k;
    if ((e->kind != out && e->kind != in) || !clv_step_meter_locate(t, l, e, &event_stage, &k) ||
        event_stage != stage)
      continue;
    *(e->kind == out ? &list[k].sent_s : &list[k].received_s) = (double)e->begin_ns * 1e-9;
  }
}

/* Returns true if the tensor waited on the link behind the tensor `previous`: it was sent before
 * `previous` arrived, arrived after `previous`, and took clearly longer than the quickest
 * tensor. */
static bool has_queued(const transfer *p, const transfer *previous, double quickest_s) {
  bool has_overlapped = previous->received_s > 0 && p->sent_s > 0 &&
                        p->sent_s < previous->received_s && p->received_s > previous->received_s;
  return has_overlapped &&
         p->received_s - p->sent_s > (1 + QUEUEING_SLACK_SHARE) * quickest_s + QUEUEING_SLACK_S;
}

/* Estimates two times of a link from the sending and arrival times of n tensors: its latency, and
 * the time that one tensor occupies the link. Tensors that queued arrive one such time apart.
 * known_latency_s: latency to use if no tensor has queued; < 0: not known. Returns false if no
 * tensor crossed the link. */
static bool estimate_link(const transfer *p, uint32_t n, double known_latency_s,
                          double *ret_latency_s, double *ret_transfer_s, number_list *s) {
  double quickest_s = INFINITY;
  s->n = 0;
  for (uint32_t k = 0; k < n; k++)
    if (p[k].sent_s > 0 && p[k].received_s > 0)
      quickest_s = fmin(quickest_s, p[k].received_s - p[k].sent_s);
  if (quickest_s == INFINITY) return false;
  quickest_s = fmax(quickest_s, 0);
  for (uint32_t k = 1; k < n; k++)
    if (has_queued(&p[k], &p[k - 1], quickest_s))
      s->list[s->n++] = p[k].received_s - p[k - 1].received_s;
  double unqueued_s = known_latency_s >= 0 ? fmax(quickest_s - known_latency_s, 0) : 0;
  *ret_transfer_s = s->n ? fmin(compute_median(s), quickest_s) : unqueued_s;
  *ret_latency_s = quickest_s - *ret_transfer_s;
  return true;
}

/* Returns half of the sum of two round-trip times: from the master to the worker of a stage, and to
 * the worker of the next stage. < 0: these workers have a direct link, and the master does not know
 * its time. */
static double compute_half_round_trip(const clv_trainer *t, uint32_t stage,
                                      const double *round_trip_s) {
  int from = t->b->stages[stage].worker, to = t->b->stages[stage + 1].worker;
  if (from >= 0 && to >= 0 && t->b->stages[stage].sends_directly) return -1;
  return ((from >= 0 ? round_trip_s[from] : 0) + (to >= 0 ? round_trip_s[to] : 0)) / 2;
}

static void estimate_edge_times(const clv_trainer *t, const clv_placed_schedule *l,
                                const double *round_trip_s, transfer *transfers, clv_sched_costs *c,
                                number_list *s) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    double backward_latency_s = 0, known_latency_s = compute_half_round_trip(t, i, round_trip_s);
    read_transfers(t, l, i, true, transfers);
    estimate_link(transfers, l->n_micro_batches, known_latency_s, &c->latency_seconds[i],
                  &c->serialise_forward_seconds[i], s);
    read_transfers(t, l, i, false, transfers);
    if (estimate_link(transfers, l->n_micro_batches, known_latency_s, &backward_latency_s,
                      &c->serialise_backward_seconds[i], s))
      c->latency_seconds[i] = fmin(c->latency_seconds[i], backward_latency_s);
  }
}

/* Measures the links to all workers. round_trip_s: [n_workers] receives the round-trip times in
 * seconds; NULL: not wanted. */
static clv_code ping_all_workers(clv_trainer *t, double *round_trip_s, clv_err *err) {
  const char *name;
  for (uint32_t node = 1; (name = cleave_node_name(t->runtime, node)) != NULL; node++) {
    cleave_link_measure m;
    CLV_TRY_API(cleave_measure(t->runtime, node, 0, &m, CLV_API_ERROR));
    for (size_t i = 0; round_trip_s && i < t->config->n_workers; i++)
      if (strcmp(t->config->workers[i].name, name) == 0) round_trip_s[i] = m.round_trip_s;
  }
  return CLV_OK;
}

clv_code clv_step_meter_measure(clv_trainer *t, const clv_placed_schedule *l, clv_sched_costs *ret,
                                clv_err *err) {
  CLV_AUTO(clv_freep) double *list = NULL, *round_trip_s = NULL;
  CLV_AUTO(clv_freep) transfer *transfers = NULL;
  size_t max_samples = CLV_MAX(t->step_meter.n_events, (size_t)l->n_micro_batches);
  CLV_TRY(clv_alloc(max_samples + 1, sizeof *list, &list, err));
  CLV_TRY(clv_alloc(t->config->n_workers + 1, sizeof *round_trip_s, &round_trip_s, err));
  CLV_TRY(clv_alloc(l->n_micro_batches, sizeof *transfers, &transfers, err));
  number_list s = {.list = list};
  *ret = (clv_sched_costs){.sends_input_gradient_first = true};
  CLV_TRY(ping_all_workers(t, round_trip_s, err));
  measure_stage_times(t, l, ret, &s);
  estimate_edge_times(t, l, round_trip_s, transfers, ret, &s);
  return CLV_OK;
}

/* ---- choice of the window, the micro-batches in flight in 1f1b ------------------------------- */

static clv_code simulate_step_seconds(const clv_placed_schedule *l, uint32_t window,
                                      const clv_sched_costs *c, double *ret, clv_err *err) {
  clv_sched_options o = {
      .kind = CLV_SCHED_1F1B, .shape = l->sched->shape, .window = window, .costs = c};
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  CLV_TRY(clv_sched_make(&o, &s, err));
  return clv_sched_round_seconds(s, c, ret, err);
}

/* Returns the edge (link between two stages) with the largest sum of latency and transfer time. */
static uint32_t find_slowest_edge(const clv_trainer *t, const clv_sched_costs *c) {
  uint32_t slowest_stage = 0;
  for (uint32_t i = 1; i < t->b->n_stages; i++)
    if (c->latency_seconds[i] + c->serialise_forward_seconds[i] >
        c->latency_seconds[slowest_stage] + c->serialise_forward_seconds[slowest_stage])
      slowest_stage = i;
  return slowest_stage;
}

static void set_window_notice(clv_trainer *t, uint32_t window, double new_step_s,
                              double present_step_s, const clv_sched_costs *c) {
  uint32_t slowest_edge = find_slowest_edge(t, c);
  const char *next_stage_name =
      slowest_edge + 1 < t->b->n_stages ? t->config->stages[slowest_edge + 1].name : "the loss";
  char previous_window_text[32] = "";
  if (t->window)
    snprintf(previous_window_text, sizeof previous_window_text, " (was %u)", t->window);
  snprintf(
      t->notice, sizeof t->notice,
      "window %u%s: %s -> %s takes %.1f ms and %.1f ms on the link; a step is expected to take "
      "%.0f ms instead of %.0f",
      window, previous_window_text, t->config->stages[slowest_edge].name, next_stage_name,
      1e3 * c->latency_seconds[slowest_edge], 1e3 * c->serialise_forward_seconds[slowest_edge],
      1e3 * new_step_s, 1e3 * present_step_s);
}

static clv_code choose_window(clv_trainer *t, const clv_placed_schedule *l,
                              const clv_sched_costs *c, clv_err *err) {
  uint32_t window;
  double new_step_s, present_step_s;
  CLV_TRY(clv_sched_find_window(&l->sched->shape, c, &window, err));
  window = CLV_MIN(window, l->n_micro_batches);
  if (window == t->window) return CLV_OK;
  CLV_TRY(simulate_step_seconds(l, window, c, &new_step_s, err));
  CLV_TRY(clv_sched_round_seconds(l->sched, c, &present_step_s, err));
  if (new_step_s > (1 - MIN_WINDOW_GAIN) * present_step_s) return CLV_OK;
  set_window_notice(t, window, new_step_s, present_step_s, c);
  t->window = window;
  t->costs = *c;
  t->has_costs = true;
  clv_trainer_forget_schedules(t);
  return CLV_OK;
}

static void report_waits(clv_trainer *t, const clv_placed_schedule *l) {
  clv_waits waits;
  clv_step_meter_sum_waits(t, l, &waits);
  t->step_meter.on_waits(t->step_meter.waits_user, &waits);
}

clv_code clv_step_meter_end(clv_trainer *t, const clv_placed_schedule *l, bool is_measured,
                            double seconds, clv_err *err) {
  clv_step_meter *w = &t->step_meter;
  bool can_choose_window = t->n_committed_steps > N_WARM_UP_STEPS && l->n_micro_batches > 1;
  if (!is_measured) {
    detect_unusual_step(w, t->n_committed_steps, seconds);
    return CLV_OK;
  }
  if (w->on_measured) w->on_measured(w->on_measured_user, t, l);
  if (w->on_waits) report_waits(t, l);
  w->next_measure_ns = clv_now_ns() + (uint64_t)MIN_WAITS_INTERVAL_MS * 1000000u;
  if (!(w->is_window_auto || w->on_waits) || t->n_committed_steps < w->next_measured_step)
    return CLV_OK;
  plan_next_measurement(w, t->n_committed_steps);
  clv_sched_costs c;
  /* the window is not chosen here, but the pings keep the estimated differences between the clocks
   * of the workers up to date */
  if (!w->is_window_auto || !can_choose_window) return ping_all_workers(t, NULL, err);
  CLV_TRY(clv_step_meter_measure(t, l, &c, err));
  clv_err reason; /* event times come from the workers; impossible times must not end the run */
  if (choose_window(t, l, &c, &reason) != CLV_OK)
    clv_notify((clv_notifier){clv_trainer_on_notice, t}, "the window stays as it is: %s",
               reason.text);
  return CLV_OK;
}
