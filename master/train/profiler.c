/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the options --trace and --profile: writes the events of every round as slices for a
 * trace viewer, and sums up the times of the events. A node that does not compute waits for a
 * tensor in flight (network), for a tensor that another node has not computed yet (peer), or for no
 * tensor at all (own).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/report/report.h"
#include "master/train/train_int.h"

enum {
  /* first rounds (a round is the steps of one context), in which nodes make plans */
  N_UNPROFILED_ROUNDS = 1,
  MAX_WAIT_EVENTS = 8192, /* in a round with more events the causes of waits are not computed */
};

/* Seconds that a node computed or waited, by cause; summed over rounds. */
typedef struct node_times {
  double busy_s, network_s, peer_s, own_s;
} node_times;

typedef struct stage_times {
  double forward_s, backward_s; /* seconds in forwards and in backwards */
  uint64_t n_forwards, n_backwards;
} stage_times;

struct clv_profiler {
  clv_trace *trace;
  bool has_profile;
  uint32_t n_rounds; /* number of rounds with events so far */
  double profiled_s; /* duration of the profiled rounds, which are all except the first */
  node_times times_of_node[CLV_SCHED_RANKS + 1];
  stage_times times_of_stage[CLV_SCHED_STAGES];
  bool has_written_node_names;
};

/* ---- events of one round --------------------------------------------------------------------- */

static bool is_computation(const cleave_event *e) { return e->kind <= CLEAVE_EVENT_STEP; }

static int compare_node_and_time(const void *a, const void *b) {
  const cleave_event *x = a, *y = b;
  if (x->node != y->node) return x->node < y->node ? -1 : 1;
  return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* Returns the event of another node that received the tensor of the event `out`; NULL: none. */
static const cleave_event *find_arrival_event(const clv_step_meter *w, const cleave_event *out) {
  cleave_event_kind in =
      out->kind == CLEAVE_EVENT_VALUE_OUT ? CLEAVE_EVENT_VALUE_IN : CLEAVE_EVENT_GRADIENT_IN;
  for (size_t i = 0; i < w->n_events; i++) {
    const cleave_event *e = &w->events[i];
    if (e->kind == in && e->reference.id == out->reference.id && e->node != out->node) return e;
  }
  return NULL;
}

/* ---- the trace file -------------------------------------------------------------------------- */

static const struct {
  /* letter: first part of the name of a trace slice; phase: kind of the slice. NULL: events of this
   * kind have no slice of their own. */
  const char *letter, *phase;
} event_kind_labels[CLEAVE_EVENT_KINDS] = {
    [CLEAVE_EVENT_FORWARD] = {"F", "forward"},
    [CLEAVE_EVENT_BACKWARD] = {"B", "backward"},
    [CLEAVE_EVENT_BACKWARD_INPUT] = {"I", "input gradient"},
    [CLEAVE_EVENT_BACKWARD_WEIGHT] = {"W", "weight gradient"},
    [CLEAVE_EVENT_STEP] = {"S", "step"},
    [CLEAVE_EVENT_VALUE_OUT] = {"activation ", "activation"},
    [CLEAVE_EVENT_GRADIENT_OUT] = {"gradient ", "gradient"},
};

static void write_trace_event(clv_trace *trace, const clv_trainer *t, const clv_placed_schedule *l,
                              const cleave_event *e) {
  char name[96];
  clv_trace_slice s = {.name = name,
                       .phase = event_kind_labels[e->kind].phase,
                       .node = e->node,
                       .step = t->n_committed_steps,
                       .begin_ns = e->begin_ns,
                       .end_ns = e->end_ns,
                       .bytes = e->bytes,
                       .version = e->version};
  if (!event_kind_labels[e->kind].letter ||
      !clv_step_meter_locate(t, l, e, &s.stage, &s.micro_batch))
    return;
  const char *stage = s.stage < t->b->n_stages ? t->config->stages[s.stage].name : "loss";
  snprintf(name, sizeof name, "%s%u %s", event_kind_labels[e->kind].letter, s.micro_batch, stage);
  if (is_computation(e)) {
    clv_trace_add_compute(trace, &s);
    return;
  }
  const cleave_event *in = find_arrival_event(&t->step_meter, e);
  if (!in) return;
  s.end_ns = in->begin_ns;
  clv_trace_add_transfer(trace, &s);
}

static void write_trace_round(clv_profiler *o, const clv_trainer *t, const clv_placed_schedule *l) {
  const char *name;
  for (uint32_t i = 0;
       !o->has_written_node_names && (name = cleave_node_name(t->runtime, i)) != NULL; i++)
    clv_trace_name_node(o->trace, i, name);
  o->has_written_node_names = true;
  for (size_t i = 0; i < t->step_meter.n_events; i++)
    write_trace_event(o->trace, t, l, &t->step_meter.events[i]);
}

/* ---- the profile, sums of times -------------------------------------------------------------- */

static double overlap_seconds(uint64_t begin_ns, uint64_t end_ns, uint64_t from_ns,
                              uint64_t to_ns) {
  uint64_t low = CLV_MAX(begin_ns, from_ns), high = CLV_MIN(end_ns, to_ns);
  return high > low ? (double)(high - low) * 1e-9 : 0;
}

/* Returns the event that sent the tensor which the computation `e` needed: for a forward the value
 * of the stage before, for a backward the gradient of the stage's output. NULL: the tensor came
 * from the same node. */
static const cleave_event *find_awaited_send(const clv_trainer *t, const cleave_event *e,
                                             uint32_t stage, uint32_t micro_batch) {
  uint32_t n_stages = t->b->n_stages + 1;
  bool is_forward = e->kind == CLEAVE_EVENT_FORWARD;
  if (e->kind > CLEAVE_EVENT_BACKWARD_INPUT || (is_forward && !stage)) return NULL;
  uint64_t id = t->output_references[micro_batch * n_stages + stage - is_forward].id;
  cleave_event_kind out = is_forward ? CLEAVE_EVENT_VALUE_OUT : CLEAVE_EVENT_GRADIENT_OUT;
  for (size_t i = 0; i < t->step_meter.n_events; i++) {
    const cleave_event *x = &t->step_meter.events[i];
    if (x->kind == out && x->reference.id == id && x->node != e->node) return x;
  }
  return NULL;
}

static void add_idle_time(node_times *n, const clv_trainer *t, const clv_placed_schedule *l,
                          uint64_t from_ns, const cleave_event *e) {
  uint32_t stage, micro_batch;
  const cleave_event *out = NULL, *in = NULL;
  double gap_s = overlap_seconds(from_ns, e->begin_ns, from_ns, e->begin_ns);
  if (clv_step_meter_locate(t, l, e, &stage, &micro_batch))
    out = find_awaited_send(t, e, stage, micro_batch);
  if (out) in = find_arrival_event(&t->step_meter, out);
  double network_s = in ? overlap_seconds(from_ns, e->begin_ns, out->begin_ns, in->begin_ns) : 0;
  double peer_s = out ? overlap_seconds(from_ns, e->begin_ns, 0, out->begin_ns) : 0;
  n->network_s += network_s;
  n->peer_s += peer_s;
  n->own_s += gap_s - network_s - peer_s;
}

static void add_stage_time(stage_times *s, const cleave_event *e) {
  double seconds = (double)(e->end_ns - e->begin_ns) * 1e-9;
  bool is_forward = e->kind == CLEAVE_EVENT_FORWARD;
  *(is_forward ? &s->forward_s : &s->backward_s) += seconds;
  s->n_forwards += is_forward;
  s->n_backwards += e->kind == CLEAVE_EVENT_BACKWARD || e->kind == CLEAVE_EVENT_BACKWARD_INPUT;
}

/* Sets *ret_begin_ns to the time when the first computation of the round began at any node, and
 * *ret_end_ns to the time when the last one ended. */
static void find_round_span(const clv_step_meter *w, uint64_t *ret_begin_ns, uint64_t *ret_end_ns) {
  *ret_begin_ns = UINT64_MAX;
  *ret_end_ns = 0;
  for (size_t i = 0; i < w->n_events; i++) {
    if (!is_computation(&w->events[i])) continue;
    *ret_begin_ns = CLV_MIN(*ret_begin_ns, w->events[i].begin_ns);
    *ret_end_ns = CLV_MAX(*ret_end_ns, w->events[i].end_ns);
  }
}

static void add_round_to_profile(clv_profiler *o, clv_trainer *t, const clv_placed_schedule *l) {
  clv_step_meter *w = &t->step_meter;
  uint64_t begin_ns, end_ns, last_end_ns = 0;
  uint32_t stage, micro_batch, node = UINT32_MAX;
  find_round_span(w, &begin_ns, &end_ns);
  if (begin_ns >= end_ns || o->n_rounds++ < N_UNPROFILED_ROUNDS) return;
  o->profiled_s += (double)(end_ns - begin_ns) * 1e-9;
  qsort(w->events, w->n_events, sizeof *w->events, compare_node_and_time);
  for (size_t i = 0; i < w->n_events; i++) {
    const cleave_event *e = &w->events[i];
    if (!is_computation(e) || e->node > CLV_SCHED_RANKS) continue;
    node_times *n = &o->times_of_node[e->node];
    if (e->node != node) last_end_ns = begin_ns;
    node = e->node;
    if (e->begin_ns > last_end_ns) add_idle_time(n, t, l, last_end_ns, e);
    n->busy_s += (double)(e->end_ns - e->begin_ns) * 1e-9;
    last_end_ns = CLV_MAX(last_end_ns, e->end_ns);
    if (e->kind != CLEAVE_EVENT_STEP && clv_step_meter_locate(t, l, e, &stage, &micro_batch))
      add_stage_time(&o->times_of_stage[stage], e);
  }
}

/* ---- waits of the master --------------------------------------------------------------------- */

static int compare_time(const void *a, const void *b) {
  const cleave_event *x = a, *y = b;
  return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* Returns the seconds in [from, to) in which at least one node other than the master computed. The
 * events must be sorted by time. */
static double sum_seconds_computed_elsewhere(const clv_step_meter *w, uint64_t from_ns,
                                             uint64_t to_ns) {
  double seconds = 0;
  for (size_t i = 0; i < w->n_events && w->events[i].begin_ns < to_ns; i++) {
    const cleave_event *e = &w->events[i];
    if (e->node == 0 || !is_computation(e)) continue;
    seconds += overlap_seconds(e->begin_ns, e->end_ns, from_ns, to_ns);
    from_ns = CLV_MAX(from_ns, CLV_MIN(e->end_ns, to_ns));
  }
  return seconds;
}

/* Adds the wait of the master before the computation `e` to *ret, by cause. While the tensor that
 * `e` needs has not been sent, either another node computes (peer), or a tensor is in flight to a
 * node that will compute (network). */
static void add_wait(const clv_trainer *t, const clv_placed_schedule *l, uint64_t from_ns,
                     const cleave_event *e, clv_waits *ret) {
  uint32_t stage, micro_batch;
  const cleave_event *out = NULL, *in = NULL;
  uint64_t to_ns = e->begin_ns;
  if (clv_step_meter_locate(t, l, e, &stage, &micro_batch))
    out = find_awaited_send(t, e, stage, micro_batch);
  if (out) in = find_arrival_event(&t->step_meter, out);
  double gap_s = overlap_seconds(from_ns, to_ns, from_ns, to_ns);
  double in_flight_s = in ? overlap_seconds(from_ns, to_ns, out->begin_ns, in->begin_ns) : 0;
  double unsent_s = out ? overlap_seconds(from_ns, to_ns, 0, out->begin_ns) : 0;
  double computed_s = unsent_s > 0 ? sum_seconds_computed_elsewhere(&t->step_meter, from_ns,
                                                                    CLV_MIN(to_ns, out->begin_ns))
                                   : 0;
  ret->peer_s += computed_s;
  ret->network_s += in_flight_s + unsent_s - computed_s;
  ret->own_s += gap_s - in_flight_s - unsent_s;
}

void clv_step_meter_sum_waits(clv_trainer *t, const clv_placed_schedule *l, clv_waits *ret) {
  clv_step_meter *w = &t->step_meter;
  uint64_t begin_ns, end_ns, last_end_ns;
  *ret = (clv_waits){0};
  if (w->n_events > MAX_WAIT_EVENTS) return;
  find_round_span(w, &begin_ns, &end_ns);
  last_end_ns = begin_ns;
  qsort(w->events, w->n_events, sizeof *w->events, compare_time);
  for (size_t i = 0; i < w->n_events; i++) {
    const cleave_event *e = &w->events[i];
    if (e->node != 0 || !is_computation(e)) continue;
    if (e->begin_ns > last_end_ns) add_wait(t, l, last_end_ns, e, ret);
    last_end_ns = CLV_MAX(last_end_ns, e->end_ns);
  }
  if (last_end_ns >= end_ns) return;
  double computed_s = sum_seconds_computed_elsewhere(w, last_end_ns, end_ns);
  ret->peer_s += computed_s;
  ret->network_s += overlap_seconds(last_end_ns, end_ns, last_end_ns, end_ns) - computed_s;
}

static void on_measured_round(void *user, clv_trainer *t, const clv_placed_schedule *l) {
  clv_profiler *o = user;
  if (o->trace) write_trace_round(o, t, l);
  if (o->has_profile) add_round_to_profile(o, t, l);
}

/* ---- the profile as text --------------------------------------------------------------------- */

/* Returns true if the node has a stage of the model. A node with the loss alone does not count. */
static bool node_has_stage(const clv_trainer *t, const char *node) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    int worker = t->b->stages[i].worker;
    if (strcmp(worker < 0 ? "master" : t->config->workers[worker].name, node) == 0) return true;
  }
  return false;
}

/* Returns the largest number of stages at a node. */
static uint32_t max_stages_per_node(const clv_trainer *t) {
  uint32_t max_stages = 1;
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < t->b->n_stages; k++)
      n += t->b->stages[k].worker == t->b->stages[i].worker;
    max_stages = CLV_MAX(max_stages, n);
  }
  return max_stages;
}

static void append_stage_lines(const clv_profiler *o, const clv_trainer *t, clv_bytes *out) {
  clv_bytes_printf(out, "%-16s %-12s %12s %12s\n", "stage", "at", "forward", "backward");
  for (uint32_t i = 0; i <= t->b->n_stages; i++) {
    const stage_times *s = &o->times_of_stage[i];
    int worker = t->b->stages[i].worker;
    clv_bytes_printf(out, "%-16s %-12s %9.2f ms %9.2f ms   a micro-batch\n",
                     i < t->b->n_stages ? t->config->stages[i].name : "loss",
                     worker < 0 ? "master" : t->config->workers[worker].name,
                     s->n_forwards ? 1e3 * s->forward_s / (double)s->n_forwards : 0,
                     s->n_backwards ? 1e3 * s->backward_s / (double)s->n_backwards : 0);
  }
}

void clv_profiler_append_text(const clv_profiler *o, const clv_trainer *t, clv_bytes *out) {
  const char *name;
  uint32_t n_rounds = o->n_rounds - CLV_MIN(o->n_rounds, (uint32_t)N_UNPROFILED_ROUNDS),
           n_ranks = 0;
  double busy_s = 0;
  if (!n_rounds) {
    clv_bytes_puts(out, "profile: nothing measured (the first step does not count)\n");
    return;
  }
  append_stage_lines(o, t, out);
  clv_bytes_printf(out, "%-16s %8s %8s %8s %8s   of %.1f ms a round, %u rounds\n", "node", "busy",
                   "network", "peer", "own", 1e3 * o->profiled_s / n_rounds, n_rounds);
  for (uint32_t i = 0; (name = cleave_node_name(t->runtime, i)) != NULL; i++) {
    const node_times *n = &o->times_of_node[i];
    if (n->busy_s <= 0) continue;
    n_ranks += node_has_stage(t, name);
    busy_s += node_has_stage(t, name) ? n->busy_s : 0;
    double own_s = o->profiled_s - n->busy_s - n->network_s - n->peer_s;
    clv_bytes_printf(out, "%-16s %7.1f%% %7.1f%% %7.1f%% %7.1f%%\n", name,
                     100 * n->busy_s / o->profiled_s, 100 * n->network_s / o->profiled_s,
                     100 * n->peer_s / o->profiled_s, 100 * own_s / o->profiled_s);
  }
  clv_sched_kind kind = (clv_sched_kind)t->config->pipeline.schedule;
  clv_bytes_printf(out, "bubble %.1f %% of what %u nodes could compute",
                   100 * (1 - busy_s / (o->profiled_s * n_ranks)), n_ranks);
  if (kind != CLV_SCHED_CUSTOM)
    clv_bytes_printf(
        out,
        "; for equal stages and free links %.1f %% (textbook, which sends a backward "
        "whole: %.1f %%)",
        100 * clv_sched_bubble_by_formula(kind, n_ranks, max_stages_per_node(t),
                                          t->b->micro_batches * t->n_round_steps, true),
        100 * clv_sched_bubble_by_formula(kind, n_ranks, max_stages_per_node(t),
                                          t->b->micro_batches * t->n_round_steps, false));
  clv_bytes_puts(out, "\n");
}

/* ---- opening and closing the profiler -------------------------------------------------------- */

clv_code clv_profiler_new(const char *trace_path, bool collects_profile, clv_profiler **ret,
                          clv_err *err) {
  clv_profiler *o;
  CLV_TRY(clv_alloc(1, sizeof *o, &o, err));
  o->has_profile = collects_profile;
  clv_code code = trace_path ? clv_trace_open(trace_path, &o->trace, err) : CLV_OK;
  if (code != CLV_OK) {
    clv_profiler_free(o);
    return code;
  }
  *ret = o;
  return CLV_OK;
}

void clv_profiler_attach(clv_profiler *o, clv_trainer *t) {
  t->step_meter.on_measured = on_measured_round;
  t->step_meter.on_measured_user = o;
}

clv_code clv_profiler_finish(clv_profiler *o, clv_err *err) {
  return clv_trace_close(clv_steal(&o->trace), err);
}

void clv_profiler_free(clv_profiler *o) {
  clv_err ignored;
  if (!o) return;
  (void)!clv_trace_close(o->trace, &ignored); /* makes the trace of an interrupted run readable */
  free(o);
}
