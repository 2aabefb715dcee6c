/* SPDX-License-Identifier: Apache-2.0
 *
 * The options --trace and --profile: writes the events of every round as slices for a viewer, and
 * sums them up. A node that does not compute waits for a tensor in flight (network), for a tensor
 * that another node has not computed yet (peer), or for no tensor at all (own).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/report/report.h"
#include "master/train/train_int.h"

enum {
  WARM_ROUNDS = 1,
  MOST_EVENTS = 8192, /* larger rounds are not searched for the causes of the master's waits */
};

/* Sums over rounds, seconds. */
typedef struct node_times {
  double busy, network, peer, own;
} node_times;

typedef struct stage_times {
  double forward, backward;
  uint64_t forwards, backwards;
} stage_times;

struct clv_profiler {
  clv_trace *trace;
  bool profile;
  uint32_t rounds;
  double seconds;
  node_times node[CLV_SCHED_RANKS + 1];
  stage_times stage[CLV_SCHED_STAGES];
  bool named;
};

/* ---- one round's events ---------------------------------------------------------------------- */

static bool computes(const cleave_event *e) { return e->kind <= CLEAVE_EVENT_STEP; }

static int by_node_and_time(const void *a, const void *b) {
  const cleave_event *x = a, *y = b;
  if (x->node != y->node) return x->node < y->node ? -1 : 1;
  return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* Returns the arrival at another node of the tensor that `out` has sent; NULL: no such event. */
static const cleave_event *arrival_of(const clv_sampler *w, const cleave_event *out) {
  cleave_event_kind in =
      out->kind == CLEAVE_EVENT_VALUE_OUT ? CLEAVE_EVENT_VALUE_IN : CLEAVE_EVENT_GRADIENT_IN;
  for (size_t i = 0; i < w->n_events; i++) {
    const cleave_event *e = &w->events[i];
    if (e->kind == in && e->reference.id == out->reference.id && e->node != out->node) return e;
  }
  return NULL;
}

/* ---- trace ----------------------------------------------------------------------------------- */

static const struct {
  const char *letter, *phase;
} kinds[CLEAVE_EVENT_KINDS] = {
    [CLEAVE_EVENT_FORWARD] = {"F", "forward"},
    [CLEAVE_EVENT_BACKWARD] = {"B", "backward"},
    [CLEAVE_EVENT_BACKWARD_INPUT] = {"I", "input gradient"},
    [CLEAVE_EVENT_BACKWARD_WEIGHT] = {"W", "weight gradient"},
    [CLEAVE_EVENT_STEP] = {"S", "step"},
    [CLEAVE_EVENT_VALUE_OUT] = {"activation ", "activation"},
    [CLEAVE_EVENT_GRADIENT_OUT] = {"gradient ", "gradient"},
};

static void trace_event(clv_trace *trace, const clv_trainer *t, const clv_placed_schedule *l,
                        const cleave_event *e) {
  char name[96];
  clv_trace_slice s = {.name = name,
                       .phase = kinds[e->kind].phase,
                       .node = e->node,
                       .step = t->committed,
                       .begin_ns = e->begin_ns,
                       .end_ns = e->end_ns,
                       .bytes = e->bytes,
                       .version = e->version};
  if (!kinds[e->kind].letter || !clv_sampler_locate(t, l, e, &s.stage, &s.micro_batch)) return;
  const char *stage = s.stage < t->b->n_stages ? t->config->stages[s.stage].name : "loss";
  snprintf(name, sizeof name, "%s%u %s", kinds[e->kind].letter, s.micro_batch, stage);
  if (computes(e)) {
    clv_trace_compute(trace, &s);
    return;
  }
  const cleave_event *in = arrival_of(&t->sampler, e);
  if (!in) return;
  s.end_ns = in->begin_ns;
  clv_trace_transfer(trace, &s);
}

static void trace_round(clv_profiler *o, const clv_trainer *t, const clv_placed_schedule *l) {
  const char *name;
  for (uint32_t i = 0; !o->named && (name = cleave_node_name(t->runtime, i)) != NULL; i++)
    clv_trace_node(o->trace, i, name);
  o->named = true;
  for (size_t i = 0; i < t->sampler.n_events; i++)
    trace_event(o->trace, t, l, &t->sampler.events[i]);
}

/* ---- profile --------------------------------------------------------------------------------- */

static double overlap(uint64_t a, uint64_t b, uint64_t from, uint64_t to) {
  uint64_t low = CLV_MAX(a, from), high = CLV_MIN(b, to);
  return high > low ? (double)(high - low) * 1e-9 : 0;
}

/* Returns the sending of the tensor that `e` needed: the value of the stage before it, or the
 * gradient of its own output. NULL: no tensor of another node. */
static const cleave_event *awaited(const clv_trainer *t, const cleave_event *e, uint32_t stage,
                                   uint32_t micro_batch) {
  uint32_t stages = t->b->n_stages + 1;
  bool forward = e->kind == CLEAVE_EVENT_FORWARD;
  if (e->kind > CLEAVE_EVENT_BACKWARD_INPUT || (forward && !stage)) return NULL;
  uint64_t id = t->references[micro_batch * stages + stage - forward].id;
  cleave_event_kind out = forward ? CLEAVE_EVENT_VALUE_OUT : CLEAVE_EVENT_GRADIENT_OUT;
  for (size_t i = 0; i < t->sampler.n_events; i++) {
    const cleave_event *x = &t->sampler.events[i];
    if (x->kind == out && x->reference.id == id && x->node != e->node) return x;
  }
  return NULL;
}

static void add_gap(node_times *n, const clv_trainer *t, const clv_placed_schedule *l,
                    uint64_t from, const cleave_event *e) {
  uint32_t stage, micro_batch;
  const cleave_event *out = NULL, *in = NULL;
  double gap = overlap(from, e->begin_ns, from, e->begin_ns);
  if (clv_sampler_locate(t, l, e, &stage, &micro_batch)) out = awaited(t, e, stage, micro_batch);
  if (out) in = arrival_of(&t->sampler, out);
  double network = in ? overlap(from, e->begin_ns, out->begin_ns, in->begin_ns) : 0;
  double peer = out ? overlap(from, e->begin_ns, 0, out->begin_ns) : 0;
  n->network += network;
  n->peer += peer;
  n->own += gap - network - peer;
}

static void add_stage(stage_times *s, const cleave_event *e) {
  double seconds = (double)(e->end_ns - e->begin_ns) * 1e-9;
  bool forward = e->kind == CLEAVE_EVENT_FORWARD;
  *(forward ? &s->forward : &s->backward) += seconds;
  s->forwards += forward;
  s->backwards += e->kind == CLEAVE_EVENT_BACKWARD || e->kind == CLEAVE_EVENT_BACKWARD_INPUT;
}

/* From the first thing that is computed anywhere to the last. */
static void span_of(const clv_sampler *w, uint64_t *ret_begin, uint64_t *ret_end) {
  *ret_begin = UINT64_MAX;
  *ret_end = 0;
  for (size_t i = 0; i < w->n_events; i++) {
    if (!computes(&w->events[i])) continue;
    *ret_begin = CLV_MIN(*ret_begin, w->events[i].begin_ns);
    *ret_end = CLV_MAX(*ret_end, w->events[i].end_ns);
  }
}

static void profile_round(clv_profiler *o, clv_trainer *t, const clv_placed_schedule *l) {
  clv_sampler *w = &t->sampler;
  uint64_t begin, end, last = 0;
  uint32_t stage, micro_batch, node = UINT32_MAX;
  span_of(w, &begin, &end);
  if (begin >= end || o->rounds++ < WARM_ROUNDS) return;
  o->seconds += (double)(end - begin) * 1e-9;
  qsort(w->events, w->n_events, sizeof *w->events, by_node_and_time);
  for (size_t i = 0; i < w->n_events; i++) {
    const cleave_event *e = &w->events[i];
    if (!computes(e) || e->node > CLV_SCHED_RANKS) continue;
    node_times *n = &o->node[e->node];
    if (e->node != node) last = begin;
    node = e->node;
    if (e->begin_ns > last) add_gap(n, t, l, last, e);
    n->busy += (double)(e->end_ns - e->begin_ns) * 1e-9;
    last = CLV_MAX(last, e->end_ns);
    if (e->kind != CLEAVE_EVENT_STEP && clv_sampler_locate(t, l, e, &stage, &micro_batch))
      add_stage(&o->stage[stage], e);
  }
}

/* ---- what the master waits for --------------------------------------------------------------- */

static int by_time(const void *a, const void *b) {
  const cleave_event *x = a, *y = b;
  return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* Returns the seconds in [from, to) in which at least one other node computed. The events are in
 * the order of time. */
static double seconds_computed_elsewhere(const clv_sampler *w, uint64_t from, uint64_t to) {
  double seconds = 0;
  for (size_t i = 0; i < w->n_events && w->events[i].begin_ns < to; i++) {
    const cleave_event *e = &w->events[i];
    if (e->node == 0 || !computes(e)) continue;
    seconds += overlap(e->begin_ns, e->end_ns, from, to);
    from = CLV_MAX(from, CLV_MIN(e->end_ns, to));
  }
  return seconds;
}

/* Adds the wait before `e` to its causes. Until the needed tensor is sent, either another node
 * computes (peer), or a tensor is in flight to a node that will compute (network). */
static void add_wait(const clv_trainer *t, const clv_placed_schedule *l, uint64_t from,
                     const cleave_event *e, clv_waits *ret) {
  uint32_t stage, micro_batch;
  const cleave_event *out = NULL, *in = NULL;
  uint64_t to = e->begin_ns;
  if (clv_sampler_locate(t, l, e, &stage, &micro_batch)) out = awaited(t, e, stage, micro_batch);
  if (out) in = arrival_of(&t->sampler, out);
  double gap = overlap(from, to, from, to);
  double travels = in ? overlap(from, to, out->begin_ns, in->begin_ns) : 0;
  double made = out ? overlap(from, to, 0, out->begin_ns) : 0;
  double computed =
      made > 0 ? seconds_computed_elsewhere(&t->sampler, from, CLV_MIN(to, out->begin_ns)) : 0;
  ret->peer += computed;
  ret->network += travels + made - computed;
  ret->own += gap - travels - made;
}

void clv_sampler_sum_waits(clv_trainer *t, const clv_placed_schedule *l, clv_waits *ret) {
  clv_sampler *w = &t->sampler;
  uint64_t begin, end, last;
  *ret = (clv_waits){0};
  if (w->n_events > MOST_EVENTS) return;
  span_of(w, &begin, &end);
  last = begin;
  qsort(w->events, w->n_events, sizeof *w->events, by_time);
  for (size_t i = 0; i < w->n_events; i++) {
    const cleave_event *e = &w->events[i];
    if (e->node != 0 || !computes(e)) continue;
    if (e->begin_ns > last) add_wait(t, l, last, e, ret);
    last = CLV_MAX(last, e->end_ns);
  }
  if (last >= end) return;
  double computed = seconds_computed_elsewhere(w, last, end);
  ret->peer += computed;
  ret->network += overlap(last, end, last, end) - computed;
}

static void profile_sampled(void *user, clv_trainer *t, const clv_placed_schedule *l) {
  clv_profiler *o = user;
  if (o->trace) trace_round(o, t, l);
  if (o->profile) profile_round(o, t, l);
}

/* ---- as text --------------------------------------------------------------------------------- */

/* Returns true if the node has a stage of the model. A node with the loss alone does not count. */
static bool has_stage(const clv_trainer *t, const char *node) {
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    int worker = t->b->stages[i].worker;
    if (strcmp(worker < 0 ? "master" : t->config->workers[worker].name, node) == 0) return true;
  }
  return false;
}

/* Returns the largest number of stages at a node. */
static uint32_t per_rank(const clv_trainer *t) {
  uint32_t most = 1;
  for (uint32_t i = 0; i < t->b->n_stages; i++) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < t->b->n_stages; k++)
      n += t->b->stages[k].worker == t->b->stages[i].worker;
    most = CLV_MAX(most, n);
  }
  return most;
}

static void text_stages(const clv_profiler *o, const clv_trainer *t, clv_bytes *out) {
  clv_bytes_printf(out, "%-16s %-12s %12s %12s\n", "stage", "at", "forward", "backward");
  for (uint32_t i = 0; i <= t->b->n_stages; i++) {
    const stage_times *s = &o->stage[i];
    int worker = t->b->stages[i].worker;
    clv_bytes_printf(out, "%-16s %-12s %9.2f ms %9.2f ms   a micro-batch\n",
                     i < t->b->n_stages ? t->config->stages[i].name : "loss",
                     worker < 0 ? "master" : t->config->workers[worker].name,
                     s->forwards ? 1e3 * s->forward / (double)s->forwards : 0,
                     s->backwards ? 1e3 * s->backward / (double)s->backwards : 0);
  }
}

void clv_profiler_text(const clv_profiler *o, const clv_trainer *t, clv_bytes *out) {
  const char *name;
  uint32_t rounds = o->rounds - CLV_MIN(o->rounds, (uint32_t)WARM_ROUNDS), ranks = 0;
  double busy = 0;
  if (!rounds) {
    clv_bytes_puts(out, "profile: nothing measured (the first step does not count)\n");
    return;
  }
  text_stages(o, t, out);
  clv_bytes_printf(out, "%-16s %8s %8s %8s %8s   of %.1f ms a round, %u rounds\n", "node", "busy",
                   "network", "peer", "own", 1e3 * o->seconds / rounds, rounds);
  for (uint32_t i = 0; (name = cleave_node_name(t->runtime, i)) != NULL; i++) {
    const node_times *n = &o->node[i];
    if (n->busy <= 0) continue;
    ranks += has_stage(t, name);
    busy += has_stage(t, name) ? n->busy : 0;
    double rest = o->seconds - n->busy - n->network - n->peer;
    clv_bytes_printf(out, "%-16s %7.1f%% %7.1f%% %7.1f%% %7.1f%%\n", name,
                     100 * n->busy / o->seconds, 100 * n->network / o->seconds,
                     100 * n->peer / o->seconds, 100 * rest / o->seconds);
  }
  clv_sched_kind kind = (clv_sched_kind)t->config->pipeline.schedule;
  clv_bytes_printf(out, "bubble %.1f %% of what %u nodes could compute",
                   100 * (1 - busy / (o->seconds * ranks)), ranks);
  if (kind != CLV_SCHED_CUSTOM)
    clv_bytes_printf(out,
                     "; for equal stages and free links %.1f %% (textbook, which sends a backward "
                     "whole: %.1f %%)",
                     100 * clv_sched_bubble_formula(kind, ranks, per_rank(t),
                                                    t->b->micro_batches * t->round, true),
                     100 * clv_sched_bubble_formula(kind, ranks, per_rank(t),
                                                    t->b->micro_batches * t->round, false));
  clv_bytes_puts(out, "\n");
}

/* ---- life ------------------------------------------------------------------------------------ */

clv_code clv_profiler_new(const char *trace, bool profile, clv_profiler **ret, clv_err *err) {
  clv_profiler *o;
  CLV_TRY(clv_alloc(1, sizeof *o, &o, err));
  o->profile = profile;
  clv_code code = trace ? clv_trace_open(trace, &o->trace, err) : CLV_OK;
  if (code != CLV_OK) {
    clv_profiler_free(o);
    return code;
  }
  *ret = o;
  return CLV_OK;
}

void clv_profiler_attach(clv_profiler *o, clv_trainer *t) {
  t->sampler.sink = profile_sampled;
  t->sampler.sink_user = o;
}

clv_code clv_profiler_finish(clv_profiler *o, clv_err *err) {
  return clv_trace_close(clv_steal(&o->trace), err);
}

void clv_profiler_free(clv_profiler *o) {
  clv_err ignored;
  if (!o) return;
  (void)!clv_trace_close(o->trace, &ignored); /* what an interrupted run has is worth reading */
  free(o);
}
