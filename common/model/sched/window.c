/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_find_window: computes the number of micro-batches in flight with which the slowest rank
 * or link never waits. This is the round-trip time of a micro-batch divided by the time between two
 * micro-batches.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <string.h>

static double stage_seconds(const clv_sched_shape *shape, const clv_sched_costs *c, uint32_t s) {
  return c->forward_seconds[s] +
         (is_trained_stage(shape, s) ? c->input_grad_seconds[s] + c->weight_grad_seconds[s] : 0);
}

/* Returns the time for which one micro-batch occupies the busiest rank, or the busiest link in one
 * direction, whichever is longer. In seconds. */
static double bottleneck_seconds(const clv_sched_shape *shape, const clv_sched_costs *c) {
  double compute[CLV_SCHED_RANKS] = {0}, longest = 0;
  for (uint32_t s = 0; s < shape->n_stages; s++) {
    double *rank_seconds = &compute[shape->stage_rank[s]], link_seconds[2] = {0};
    longest = fmax(longest, *rank_seconds += stage_seconds(shape, c, s));
    /* Sums the edges up to s that share a link with edge s, because they are between the same two
     * ranks; one sum per direction. */
    for (uint32_t e = 0; e <= s && is_cross_rank_edge(shape, s); e++) {
      if (!is_cross_rank_edge(shape, e)) continue;
      bool is_same_direction = shape->stage_rank[e] == shape->stage_rank[s] &&
                               shape->stage_rank[e + 1] == shape->stage_rank[s + 1];
      bool is_opposite_direction = shape->stage_rank[e] == shape->stage_rank[s + 1] &&
                                   shape->stage_rank[e + 1] == shape->stage_rank[s];
      double back_seconds = is_trained_stage(shape, e) ? c->serialise_backward_seconds[e] : 0;
      link_seconds[0] += is_same_direction * c->serialise_forward_seconds[e] +
                         is_opposite_direction * back_seconds;
      link_seconds[1] += is_opposite_direction * c->serialise_forward_seconds[e] +
                         is_same_direction * back_seconds;
    }
    longest = fmax(longest, fmax(link_seconds[0], link_seconds[1]));
  }
  return longest;
}

uint32_t clv_sched_window_by_formula(const clv_sched_shape *shape, const clv_sched_costs *c,
                                     const bool *takes_no_time) {
  uint32_t first = CLV_MIN(shape->first_backward_stage, shape->n_stages - 1);
  double bottleneck = bottleneck_seconds(shape, c), round_trip = 0;
  for (uint32_t s = first; s < shape->n_stages; s++) {
    if (s > first) round_trip += stage_seconds(shape, c, s);
    if (is_cross_rank_edge(shape, s))
      round_trip += 2 * c->latency_seconds[s] + c->serialise_forward_seconds[s] +
                    c->serialise_backward_seconds[s];
  }
  /* Subtracts 1e-9, so that a rounding error does not increase a ratio that is a whole number. */
  double n = bottleneck > 0 ? ceil(round_trip / bottleneck - 1e-9) + 1 : 1;
  n = fmax(n, clv_sched_pipeline_depth(shape, takes_no_time, first));
  return (uint32_t)fmin(n, shape->n_micro_batches);
}

static clv_code simulate_window(const clv_sched_shape *shape, const clv_sched_costs *c,
                                uint32_t window, double *ret, clv_err *err) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  clv_sched_options o = {.kind = CLV_SCHED_1F1B, .shape = *shape, .window = window, .costs = c};
  o.shape.n_accumulate = 0;
  clv_sched_run run = {0};
  CLV_TRY(clv_sched_make(&o, &s, err));
  CLV_TRY(clv_sched_simulate_lists(s, c, false, &run, err));
  *ret = run.seconds;
  return CLV_OK;
}

/* Simulates windows of w to 4 w micro-batches, w being the result of
 * clv_sched_window_by_formula. That formula assumes a steady stream: if stages of one rank delay
 * each other, or two ranks are nearly equally busy, a larger window is faster. Returns the
 * smallest window that is nearly as fast as the best one, because larger windows cost memory. */
clv_code clv_sched_find_window(const clv_sched_shape *shape, const clv_sched_costs *c,
                               uint32_t *ret, clv_err *err) {
  enum { MAX_TRIES = 20 };
  static const double tolerance = 1.02;
  bool takes_no_time[CLV_SCHED_STAGES];
  uint32_t window[MAX_TRIES], n = 0, i = 0;
  double seconds[MAX_TRIES], best = INFINITY;
  CLV_TRY(clv_sched_shape_check(shape, err));
  CLV_TRY(clv_sched_costs_check(shape, c, err));
  clv_sched_mark_timeless_stages(shape, c, takes_no_time);
  uint32_t w = clv_sched_window_by_formula(shape, c, takes_no_time),
           last = CLV_MIN(4 * w, shape->n_micro_batches);
  for (uint32_t window_step = 1 + (CLV_MAX(last, w) - w) / MAX_TRIES; n < MAX_TRIES && w <= last;
       w += n == 1 ? 1 : window_step, n++) {
    CLV_TRY(simulate_window(shape, c, w, &seconds[n], err));
    window[n] = w;
    best = fmin(best, seconds[n]);
  }
  while (seconds[i] > best * tolerance) i++;
  *ret = window[i];
  return CLV_OK;
}
