/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this folder share: questions about a shape, growing lists, the links of a
 * simulation, and the two engines. greedy.c makes lists by running a policy in simulated time;
 * simulate.c walks lists that exist, which is also how check.c proves that they cannot stop.
 */
#ifndef CLEAVE_SCHED_INT_H
#define CLEAVE_SCHED_INT_H

#include "common/model/sched/sched.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

clv_code clv_sched_shape_check(const clv_sched_shape *shape, clv_err *err) CLV_USE_RESULT;
/* Finite and not negative, for the stages the shape has. */
clv_code clv_sched_costs_check(const clv_sched_shape *shape, const clv_sched_costs *c,
                               clv_err *err) CLV_USE_RESULT;

static inline bool sched_learns(const clv_sched_shape *shape, uint32_t stage) {
  return stage >= shape->first_backward;
}
/* Edge s is between stages s and s+1: does a tensor cross it, and does a gradient come back? */
static inline bool sched_crosses(const clv_sched_shape *shape, uint32_t edge) {
  return edge + 1 < shape->n_stages && shape->rank[edge] != shape->rank[edge + 1];
}
static inline bool sched_crosses_back(const clv_sched_shape *shape, uint32_t edge) {
  return sched_learns(shape, edge) && sched_crosses(shape, edge);
}
/* Micro-batches per step inside the round; 0 where the step comes after it. */
uint32_t clv_sched_micros_per_step(clv_sched_kind kind, const clv_sched_shape *shape);

/* Stages that take no time (the loss) are not counted as stages of the pipeline. Where all are so,
 * none is. */
void clv_sched_find_free_stages(const clv_sched_shape *shape, const clv_sched_costs *c, bool *ret);

/* ---- lists ----------------------------------------------------------------------------------- */

clv_code clv_sched_new(clv_sched_kind kind, const clv_sched_shape *shape, uint32_t window,
                       clv_sched **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_sched_add_instr(clv_sched *s, uint32_t rank, clv_instr_kind kind, uint32_t stage,
                             uint32_t micro, uint32_t weights_age, clv_err *err) CLV_USE_RESULT;

extern const char *const clv_instr_names[CLV_INSTR_KINDS];

enum { SCHED_INSTR_TEXT = 24 };
const char *clv_instr_text(const clv_instr *i, char buf[SCHED_INSTR_TEXT]); /* "sf12" */

/* ---- simulated time -------------------------------------------------------------------------- */

/* When each directed pair of ranks' link is free again. */
typedef struct sched_links {
  uint32_t n_ranks;
  double *free_at; /* [from][to], owned */
} sched_links;

clv_code clv_sched_links_init(sched_links *l, uint32_t n_ranks, clv_err *err) CLV_USE_RESULT;
/* A tensor over edge `edge`, downwards or `back`, handed over at `now`: when it has arrived. */
double clv_sched_links_send(sched_links *l, const clv_sched_shape *shape, const clv_sched_costs *c,
                            uint32_t edge, bool back, double now);

double clv_sched_cost(const clv_sched_costs *c, clv_instr_kind kind, uint32_t stage);

/* Runs lists whose instructions are sound one by one (check.c's first part); refuses those that
 * wait for each other. `c` NULL: nothing takes time. `ret` NULL: only whether it ends. */
clv_code clv_sched_walk(const clv_sched *s, const clv_sched_costs *c, bool spans,
                        clv_sched_run *ret, clv_err *err) CLV_USE_RESULT;

/* ---- the greedy generator -------------------------------------------------------------------- */

/* Each rank, when it is free, runs what is ready and allowed: backwards before forwards before
 * weight gradients, older micro-batches first, deeper stages first. */
typedef struct sched_policy {
  uint32_t limit[CLV_SCHED_STAGES]; /* micro-batches between F and the input gradient */
  uint32_t held;                    /* split: and between F and W, at any stage */
  uint32_t per_step;                /* as clv_sched_micros_per_step */
  uint32_t ring;                    /* interleaved: ranks in the ring, else 0 */
  bool strict;                      /* no backward while a forward is allowed, here or not */
  bool split;                       /* I and W instead of B */
  bool two_versions;                /* pipedream-2bw's rule of versions */
  bool free_stages[CLV_SCHED_STAGES];
} sched_policy;

clv_code clv_sched_greedy(clv_sched *s, const sched_policy *policy, const clv_sched_costs *c,
                          clv_err *err) CLV_USE_RESULT;

/* ---- windows --------------------------------------------------------------------------------- */

/* The formula of clv_sched_window. */
uint32_t clv_sched_window_formula(const clv_sched_shape *shape, const clv_sched_costs *c,
                                  const bool *free_stages);
/* Stages of the pipeline from s on, at least 1. */
uint32_t clv_sched_depth(const clv_sched_shape *shape, const bool *free_stages, uint32_t s);

#endif
