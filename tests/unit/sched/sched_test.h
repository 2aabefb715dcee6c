/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the tests of schedules share: shapes, schedules and simulated runs that must
 * succeed, random numbers.
 */
#ifndef CLEAVE_SCHED_TEST_H
#define CLEAVE_SCHED_TEST_H

#include "common/model/sched/sched_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define ok(call)                                                   \
  do {                                                             \
    clv_err ok_err_ = {0}, *err = &ok_err_;                        \
    if ((call) != CLV_OK) fail_msg("%s: %s", #call, ok_err_.text); \
  } while (0)

/* Returns a shape that assigns the stages to the ranks in turn. */
static inline clv_sched_shape make_shape(uint32_t stages, uint32_t ranks, uint32_t micros) {
  clv_sched_shape shape = {.n_stages = stages, .n_ranks = ranks, .n_micro_batches = micros};
  for (uint32_t s = 0; s < stages; s++) shape.stage_rank[s] = (uint16_t)(s % ranks);
  return shape;
}

static inline clv_sched *make_schedule(clv_sched_kind kind, const clv_sched_shape *shape,
                                       uint32_t window, const clv_sched_costs *costs) {
  clv_sched_options o = {.kind = kind, .shape = *shape, .window = window, .costs = costs};
  clv_sched *s = NULL;
  ok(clv_sched_make(&o, &s, err));
  return s;
}

static inline clv_sched_run simulate_schedule(const clv_sched *s, const clv_sched_costs *c) {
  clv_sched_run run;
  ok(clv_sched_simulate(s, c, false, &run, err));
  return run;
}

/* Returns a random number below n by xorshift64*, whose sequence depends on the state only, so that
 * a failing seed can be repeated. */
static inline uint32_t draw_below(uint64_t *state, uint32_t n) {
  *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
  return (uint32_t)((*state * 0x2545F4914F6CDD1DULL >> 32) % n);
}

static inline double draw_uniform(uint64_t *state, double low, double high) {
  return low + (high - low) * draw_below(state, 1u << 30) / (1u << 30);
}

#endif
