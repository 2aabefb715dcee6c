/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that two workers compute at the same time: api_overlap SESSION.yaml A B N [single] has a
 * module at A and one at B that take 20 ms each, forward and backward. One thread keeps eight
 * contexts in flight over them, N in all. The events of A and B show how much of their time they
 * compute.
 */
#include "api_int.h"

enum { IN_FLIGHT = 8 };

typedef struct busy_time {
  uint64_t first_begin_ns, last_end_ns, busy_ns;
} busy_time;

static busy_time busy_times[3];

static void add_event(void *user, cleave_context context, const cleave_event *event) {
  (void)user, (void)context;
  bool computes =
      event->kind >= CLEAVE_EVENT_FORWARD && event->kind <= CLEAVE_EVENT_BACKWARD_WEIGHT;
  if (!computes || event->node > 2) return;
  busy_time *b = &busy_times[event->node];
  b->first_begin_ns = b->first_begin_ns && b->first_begin_ns < event->begin_ns ? b->first_begin_ns
                                                                               : event->begin_ns;
  b->last_end_ns = b->last_end_ns > event->end_ns ? b->last_end_ns : event->end_ns;
  b->busy_ns += event->end_ns - event->begin_ns;
}

typedef struct open_context_slot {
  cleave_context context;
  bool is_closing;
} open_context_slot;

static bool start_context(cleave_module *const m[3], open_context_slot *ret,
                          cleave_future *ret_future) {
  static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, zeros[8];
  cleave_context_options o = {.size = sizeof o, .events = true};
  cleave_reference in, target, h, y, loss;
  MUST(cleave_context_open(rt, &o, &ret->context, e));
  ret->is_closing = false;
  DO(make_leaf(ret->context, x, 4, 2, true, &in));
  DO(make_leaf(ret->context, zeros, 4, 2, false, &target));
  MUST(cleave_call(rt, ret->context, m[0], &in, 1, &h, e));
  MUST(cleave_call(rt, ret->context, m[1], &h, 1, &y, e));
  MUST(cleave_call(rt, ret->context, m[2], (cleave_reference[]){y, target}, 2, &loss, e));
  MUST(cleave_backward_async(rt, ret->context, &loss, 1, NULL, ret_future, e));
  return true;
}

static bool run_contexts_in_flight(cleave_module *const m[3], int n) {
  open_context_slot slots[IN_FLIGHT];
  cleave_future f[IN_FLIGHT] = {{0}}, done_future;
  size_t index;
  int n_begun = 0;
  for (; n_begun < IN_FLIGHT && n_begun < n; n_begun++)
    DO(start_context(m, &slots[n_begun], &f[n_begun]));
  for (int n_ended = 0; n_ended < n;) {
    MUST(cleave_wait_any(rt, f, IN_FLIGHT, 0, &index, e));
    open_context_slot *slot = &slots[index];
    done_future = f[index];
    f[index].id = 0;
    MUST(cleave_future_wait(rt, done_future, 0, e));
    MUST(cleave_future_release(rt, done_future, e));
    if (!slot->is_closing) {
      slot->is_closing = true;
      MUST(cleave_context_close_async(rt, slot->context, 0, &f[index], e));
      continue;
    }
    n_ended++;
    if (n_begun++ < n) DO(start_context(m, slot, &f[index]));
  }
  return true;
}

/* Each worker must compute during nine tenths of the time between the begin of its first piece of
 * work and the end of its last one. Each piece of work counts with the duration that the worker
 * measured, because on a busy machine a sleep of 20 ms takes longer. A program that waits for each
 * context would reach half. The best of five runs counts. */
static bool eight_contexts_in_flight_keep_two_workers_busy(int n) {
  static const char wait_layers[] = "[{op: wait, forward_ms: 20, input_ms: 10, weight_ms: 10}]";
  cleave_module *m[3];
  double best_busy_ratio = 0;
  DO(load_module("first", at_a, wait_layers, 2, &m[0]));
  DO(load_module("second", at_b, wait_layers, 2, &m[1]));
  DO(load_loss("loss", at_b, 2, &m[2]));
  for (int i = 0; i < 3; i++) MUST(cleave_module_place(rt, m[i], true, 0, e));
  cleave_link_measure clocks;
  for (uint32_t i = 1; i <= 2; i++) MUST(cleave_measure(rt, i, 0, &clocks, e));
  for (int run = 0; run < 5 && best_busy_ratio < 0.9; run++) {
    double overlap_ratio = 1, busy_ratio = 1;
    memset(busy_times, 0, sizeof busy_times);
    DO(run_contexts_in_flight(m, n));
    for (int i = 1; i <= 2; i++) {
      const busy_time *b = &busy_times[i];
      uint64_t ideal_ns = (uint64_t)n * 40 * 1000000, took_ns = b->last_end_ns - b->first_begin_ns;
      CHECK(b->busy_ns >= ideal_ns);
      overlap_ratio = fmin(overlap_ratio, (double)ideal_ns / (double)took_ns);
      busy_ratio = fmin(busy_ratio, (double)b->busy_ns / (double)took_ns);
    }
    fprintf(stderr, "%.3f of the ideal overlap, %.3f of the time computing\n", overlap_ratio,
            busy_ratio);
    best_busy_ratio = fmax(best_busy_ratio, busy_ratio);
  }
  CHECK(best_busy_ratio >= 0.9);
  return true;
}

int main(int argc, char **argv) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000, .on_event = add_event};
  cleave_error e = {0};
  if (argc < 5) return 2;
  at_a = argv[2];
  at_b = argv[3];
  o.single_thread = argc > 5 && strcmp(argv[5], "single") == 0;
  bool is_ready = cleave_open(argv[1], &o, &rt, &e) == CLEAVE_OK;
  snprintf(why, sizeof why, "%.900s", e.text);
  print_result(is_ready, "open");
  if (!is_ready) return 1;
  print_result(eight_contexts_in_flight_keep_two_workers_busy(atoi(argv[4])),
               "eight_contexts_in_flight_keep_two_workers_busy");
  cleave_leaks leaks;
  print_result(cleave_close(rt, 0, &leaks, NULL) == CLEAVE_OK && !leaks.contexts && !leaks.futures,
               "close");
  return n_failed != 0;
}
